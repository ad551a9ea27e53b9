//! Tensors of an ONNX file: in the file itself, in fields of numbers, or in a file beside it.

use super::proto;
use crate::array::Array;
use crate::error::{Context, bad};
use crate::map::Bytes;
use crate::paths::referred;
use rlx_ir::onnx::{dtype, narrow};
use rlx_ir::{DType, Result, tensor};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Mutex;

/// What tensors are read from: the model's own bytes, and the files beside it.
pub(crate) struct Data {
    /// The file of the model.
    bytes: Bytes,
    /// Its path, beside which files of tensors lie; without one there are none.
    path: Option<PathBuf>,
    /// Files that are open.
    open: Mutex<HashMap<PathBuf, Bytes>>,
}

impl Data {
    pub fn new(bytes: Bytes, path: Option<PathBuf>) -> Data {
        Data { bytes, path, open: Mutex::default() }
    }

    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// A tensor, in place where it lies as RLX has it.
    pub fn read(&self, t: proto::Tensor<'_>) -> Result<Array> {
        let name = t.name()?;
        self.load(t).about(format!("tensor {name:?}"))
    }

    fn load(&self, t: proto::Tensor<'_>) -> Result<Array> {
        let kind = t.data_type()?;
        let dtype = dtype(kind)?;
        let shape = shape(t)?;
        if t.segmented()? {
            return Err(bad("it is in segments, which no writer makes"));
        }
        let count = tensor::count(&shape)?;
        let bytes = if t.is_external()? {
            self.external(t, count, kind, dtype)?
        } else if let Some(raw) = t.raw()? {
            self.inside(raw).ok_or_else(|| bad("its data lie outside of the file"))?
        } else {
            return Array::new(dtype, &shape, fields(t, kind, dtype, count)?.into());
        };
        match narrow(kind) {
            None => {
                let array = Array::new(dtype, &shape, bytes)?;
                array.check()?;
                Ok(array)
            }
            Some((bits, signed)) => {
                let per = 8 / bits as usize;
                if bytes.len() != count.div_ceil(per) {
                    let need = count.div_ceil(per);
                    return Err(bad(format!(
                        "{count} elements of {bits} bits need {need} bytes, not {}",
                        bytes.len()
                    )));
                }
                Array::new(dtype, &shape, unpack(&bytes, bits, signed, count).into())
            }
        }
    }

    /// A part of the model's own bytes, shared.
    fn inside(&self, part: &[u8]) -> Option<Bytes> {
        if part.is_empty() {
            return Some(Vec::new().into());
        }
        let start = (part.as_ptr() as usize).checked_sub(self.bytes.as_ptr() as usize)?;
        self.bytes.slice(start..start.checked_add(part.len())?)
    }

    /// Data in a file beside the model.
    fn external(&self, t: proto::Tensor<'_>, count: usize, kind: i64, dtype: DType) -> Result<Bytes> {
        let (mut location, mut offset, mut length) = ("", 0usize, None);
        for (key, value) in t.external()? {
            let number =
                || value.parse::<usize>().map_err(|_| bad(format!("its {key} is {value:?}, no size")));
            match key {
                "location" => location = value,
                "offset" => offset = number()?,
                "length" => length = Some(number()?),
                _ => {}
            }
        }
        let need = match narrow(kind) {
            Some((bits, _)) => count.div_ceil(8 / bits as usize),
            None => dtype.bytes().and_then(|b| b.checked_mul(count)).ok_or_else(|| bad("it is too large"))?,
        };
        let length = length.unwrap_or(need);
        let file = self.file(location)?;
        let end = offset.checked_add(length);
        end.and_then(|end| file.slice(offset..end)).ok_or_else(|| {
            bad(format!(
                "its {length} bytes from {offset} on are not within {location:?}, which has {}",
                file.len()
            ))
        })
    }

    fn file(&self, location: &str) -> Result<Bytes> {
        let beside = self.path.as_ref();
        let beside = beside.ok_or_else(|| bad("its data are in another file, and the model is in none"))?;
        let path = referred(beside, location)?;
        let mut open = self.open.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(bytes) = open.get(&path) {
            return Ok(bytes.clone());
        }
        let bytes = Bytes::open(&path)?;
        open.insert(path, bytes.clone());
        Ok(bytes)
    }
}

/// The sizes of a tensor.
pub(super) fn shape(t: proto::Tensor<'_>) -> Result<Vec<usize>> {
    let dims = t.dims()?;
    dims.iter().map(|d| usize::try_from(*d).map_err(|_| bad(format!("an axis of size {d}")))).collect()
}

/// The bytes of elements that stand in fields of numbers.
fn fields(t: proto::Tensor<'_>, kind: i64, dtype: DType, count: usize) -> Result<Vec<u8>> {
    let check = |n: usize, unit: &str| match n {
        n if n == count => Ok(()),
        n => Err(bad(format!("{n} {unit} for {count} elements"))),
    };
    match dtype {
        DType::F32 => {
            let out = t.floats()?;
            check(out.len() / 4, "floats")?;
            Ok(out)
        }
        DType::F64 => {
            let out = t.doubles()?;
            check(out.len() / 8, "doubles")?;
            Ok(out)
        }
        DType::I64 | DType::U32 | DType::U64 => {
            let all = t.integers(if dtype == DType::I64 { 7 } else { 11 })?;
            check(all.len(), "integers")?;
            narrowed(&all, dtype)
        }
        _ => {
            let all = t.integers(5)?;
            if let Some((bits, signed)) = narrow(kind) {
                let per = 8 / bits as usize;
                let bytes: Vec<u8> = all.iter().map(|i| *i as u8).collect();
                if bytes.len() != count.div_ceil(per) {
                    return Err(bad(format!("{} bytes for {count} elements of {bits} bits", bytes.len())));
                }
                return Ok(unpack(&bytes, bits, signed, count));
            }
            check(all.len(), "integers")?;
            narrowed(&all, dtype)
        }
    }
}

/// Integers in the bytes of a dtype; of floats they are the bits.
fn narrowed(all: &[i64], dtype: DType) -> Result<Vec<u8>> {
    let size = dtype.bytes().ok_or_else(|| bad("packed elements"))?;
    let range = match dtype {
        DType::F16 | DType::BF16 => Some((0, 0xffff)),
        DType::F8E4M3 | DType::F8E5M2 => Some((0, 0xff)),
        _ => dtype.int_range(),
    };
    let mut out = Vec::with_capacity(all.len() * size);
    for i in all {
        // An unsigned number of 64 bits stands there as one with a sign.
        let value = if dtype == DType::U64 { i128::from(*i as u64) } else { i128::from(*i) };
        if range.is_some_and(|(lo, hi)| !(lo..=hi).contains(&value)) {
            return Err(bad(format!("{value} is no {dtype}")));
        }
        out.extend(value.to_le_bytes().iter().take(size));
    }
    Ok(out)
}

/// Elements of four or two bits, the lowest bits first, each in a byte of its own.
fn unpack(bytes: &[u8], bits: u32, signed: bool, count: usize) -> Vec<u8> {
    let per = 8 / bits as usize;
    let mask = (1u8 << bits) - 1;
    let one = |k: usize| {
        let code = bytes.get(k / per).map_or(0, |b| b >> (bits as usize * (k % per)) & mask);
        if signed && code >> (bits - 1) == 1 { code | !mask } else { code }
    };
    (0..count).map(one).collect()
}

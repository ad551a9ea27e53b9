//! Host tensors: a dtype, concrete sizes and the bytes of the elements, little-endian and row-major.

use crate::dtype::{DType, Kind};
use crate::error::{Code, Error, Result};
use crate::quant::lowfloat as lf;
use crate::types::{MAX_RANK, Type};
use std::fmt;
use std::sync::Arc;

/// Data on the host. Cloning shares the bytes.
#[derive(Clone, PartialEq)]
pub struct Tensor {
    dtype: DType,
    shape: Vec<usize>,
    planes: Vec<Arc<[u8]>>,
}

/// A Rust type that is an element of a [`Tensor`].
pub trait Element: Copy {
    /// The dtype of such elements.
    const DTYPE: DType;
    /// Appends the little-endian bytes.
    fn write(self, out: &mut Vec<u8>);
    /// Reads from exactly as many bytes as the type has.
    fn read(bytes: &[u8]) -> Self;
}

macro_rules! element {
    ($($t:ty = $d:ident),*) => {$(
        impl Element for $t {
            const DTYPE: DType = DType::$d;
            fn write(self, out: &mut Vec<u8>) { out.extend_from_slice(&self.to_le_bytes()) }
            fn read(bytes: &[u8]) -> $t {
                bytes.try_into().map(<$t>::from_le_bytes).unwrap_or_default()
            }
        }
    )*};
}
element!(
    f64 = F64,
    f32 = F32,
    i8 = I8,
    i16 = I16,
    i32 = I32,
    i64 = I64,
    u8 = U8,
    u16 = U16,
    u32 = U32,
    u64 = U64
);
element!(half::f16 = F16, half::bf16 = BF16);

impl Element for bool {
    const DTYPE: DType = DType::Bool;
    fn write(self, out: &mut Vec<u8>) {
        out.push(self as u8)
    }
    fn read(bytes: &[u8]) -> bool {
        bytes.first().is_some_and(|b| *b != 0)
    }
}

/// The number of elements of concrete sizes, if it is sane.
pub fn count(shape: &[usize]) -> Result<usize> {
    if shape.len() > MAX_RANK {
        return Err(Error::new(Code::Size, format!("{} axes; the limit is {MAX_RANK}", shape.len())));
    }
    shape
        .iter()
        .try_fold(1usize, |n, d| n.checked_mul((*d).max(1)))
        .filter(|n| *n <= isize::MAX as usize / 16)
        .map(|n| if shape.contains(&0) { 0 } else { n })
        .ok_or_else(|| Error::new(Code::Size, format!("a tensor of sizes {shape:?} is too large")))
}

impl Tensor {
    /// A tensor of elements in row-major order.
    pub fn new<T: Element>(shape: &[usize], elements: &[T]) -> Result<Tensor> {
        let n = count(shape)?;
        if n != elements.len() {
            return Err(Error::new(
                Code::BadInput,
                format!("sizes {shape:?} need {n} elements, not {}", elements.len()),
            ));
        }
        let mut bytes = Vec::with_capacity(std::mem::size_of_val(elements));
        elements.iter().for_each(|e| e.write(&mut bytes));
        Ok(Tensor { dtype: T::DTYPE, shape: shape.to_vec(), planes: vec![bytes.into()] })
    }

    /// A tensor from the little-endian bytes of its elements; bools must be 0 or 1.
    pub fn from_bytes(dtype: DType, shape: &[usize], bytes: impl Into<Arc<[u8]>>) -> Result<Tensor> {
        let bytes = bytes.into();
        let Some(size) = dtype.bytes() else {
            return Err(Error::new(Code::Quant, format!("{dtype} has planes: use Tensor::packed")));
        };
        let need = count(shape)?.checked_mul(size);
        if need != Some(bytes.len()) {
            return Err(Error::new(
                Code::BadInput,
                format!("{dtype}{shape:?} needs {} bytes, not {}", need.unwrap_or(usize::MAX), bytes.len()),
            ));
        }
        if dtype == DType::Bool && bytes.iter().any(|b| *b > 1) {
            return Err(Error::new(Code::BadInput, "a bool byte is neither 0 nor 1"));
        }
        Ok(Tensor { dtype, shape: shape.to_vec(), planes: vec![bytes] })
    }

    /// A packed tensor from the planes of its scheme (see [`crate::quant::Scheme::planes`]).
    pub fn packed(scheme: crate::quant::Scheme, shape: &[usize], planes: Vec<Arc<[u8]>>) -> Result<Tensor> {
        count(shape)?;
        let quant = |e: crate::quant::QuantError| Error::new(Code::Quant, e.to_string());
        let want = scheme.planes(shape).map_err(quant)?;
        if want.len() != planes.len() {
            return Err(Error::new(
                Code::Quant,
                format!("{scheme} has {} planes, not {}", want.len(), planes.len()),
            ));
        }
        for (w, p) in want.iter().zip(&planes) {
            if w.bytes != p.len() {
                return Err(Error::new(
                    Code::Quant,
                    format!("plane {} of {scheme}{shape:?} needs {} bytes, not {}", w.name, w.bytes, p.len()),
                ));
            }
        }
        Ok(Tensor { dtype: DType::Packed(scheme), shape: shape.to_vec(), planes })
    }

    /// A tensor without axes.
    pub fn scalar<T: Element>(x: T) -> Tensor {
        let mut bytes = Vec::new();
        x.write(&mut bytes);
        Tensor { dtype: T::DTYPE, shape: Vec::new(), planes: vec![bytes.into()] }
    }

    /// Numbers rounded to `dtype`; `None` for packed types and for a wrong count.
    pub fn from_f64s(dtype: DType, shape: &[usize], xs: &[f64]) -> Option<Tensor> {
        let size = dtype.bytes()?;
        if count(shape).ok()? != xs.len() {
            return None;
        }
        let mut out = Vec::with_capacity(xs.len() * size);
        for &x in xs {
            match dtype {
                DType::F64 => x.write(&mut out),
                DType::F32 => (x as f32).write(&mut out),
                DType::F16 => half::f16::from_f64(x).write(&mut out),
                DType::BF16 => half::bf16::from_f64(x).write(&mut out),
                DType::F8E4M3 => out.push(lf::f8e4m3_from_f64(x)),
                DType::F8E5M2 => out.push(lf::f8e5m2_from_f64(x)),
                _ => write_int(dtype, x as i128, size, &mut out),
            }
        }
        Some(Tensor { dtype, shape: shape.to_vec(), planes: vec![out.into()] })
    }

    /// Integers wrapped to `dtype` (floats are rounded); `None` for packed types and for a wrong count.
    pub fn from_i128s(dtype: DType, shape: &[usize], xs: &[i128]) -> Option<Tensor> {
        if dtype.is_float() {
            let f: Vec<f64> = xs.iter().map(|x| *x as f64).collect();
            return Tensor::from_f64s(dtype, shape, &f);
        }
        let size = dtype.bytes()?;
        if count(shape).ok()? != xs.len() {
            return None;
        }
        let mut out = Vec::with_capacity(xs.len() * size);
        xs.iter().for_each(|x| write_int(dtype, *x, size, &mut out));
        Some(Tensor { dtype, shape: shape.to_vec(), planes: vec![out.into()] })
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }
    /// The sizes of the axes.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }
    /// The type, with constant dims.
    pub fn ty(&self) -> Type {
        Type::new(self.dtype, self.shape.iter().map(|d| (*d).into()).collect::<Vec<_>>())
    }
    /// The number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }
    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }
    /// The bytes of an unpacked tensor, or of the first plane of a packed one.
    pub fn bytes(&self) -> &[u8] {
        self.planes.first().map_or(&[], |p| p)
    }
    /// The planes: one for an unpacked tensor.
    pub fn planes(&self) -> &[Arc<[u8]>] {
        &self.planes
    }

    /// The elements, if they are of that type.
    pub fn to_vec<T: Element>(&self) -> Option<Vec<T>> {
        (T::DTYPE == self.dtype).then(|| self.bytes().chunks_exact(size_of::<T>()).map(T::read).collect())
    }

    /// The elements as `f64` (64-bit integers may be rounded); `None` for packed types.
    pub fn to_f64s(&self) -> Option<Vec<f64>> {
        let size = self.dtype.bytes()?;
        let chunks = self.bytes().chunks_exact(size);
        Some(match self.dtype {
            DType::F64 => chunks.map(f64::read).collect(),
            DType::F32 => chunks.map(|b| f32::read(b) as f64).collect(),
            DType::F16 => chunks.map(|b| half::f16::read(b).to_f64()).collect(),
            DType::BF16 => chunks.map(|b| half::bf16::read(b).to_f64()).collect(),
            DType::F8E4M3 => self.bytes().iter().map(|b| lf::f8e4m3_to_f32(*b) as f64).collect(),
            DType::F8E5M2 => self.bytes().iter().map(|b| lf::f8e5m2_to_f32(*b) as f64).collect(),
            _ => self.to_i128s()?.into_iter().map(|x| x as f64).collect(),
        })
    }

    /// The elements of an integer or bool tensor.
    pub fn to_i128s(&self) -> Option<Vec<i128>> {
        let (size, signed) = match self.dtype.kind() {
            Kind::Int { bits, signed } => (bits as usize / 8, signed),
            Kind::Bool => (1, false),
            _ => return None,
        };
        let read = |b: &[u8]| {
            let mut wide = [if signed && b.last().is_some_and(|b| b & 0x80 != 0) { 0xff } else { 0 }; 16];
            wide.iter_mut().zip(b).for_each(|(w, b)| *w = *b);
            i128::from_le_bytes(wide)
        };
        Some(self.bytes().chunks_exact(size).map(read).collect())
    }
}

fn write_int(dtype: DType, x: i128, size: usize, out: &mut Vec<u8>) {
    out.extend(dtype.wrap_int(x).to_le_bytes().iter().take(size));
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.ty())?;
        match self.to_f64s() {
            Some(v) if v.len() <= 16 => write!(f, " {v:?}"),
            Some(v) => write!(f, " {:?}…", v.iter().take(16).collect::<Vec<_>>()),
            None => Ok(()),
        }
    }
}

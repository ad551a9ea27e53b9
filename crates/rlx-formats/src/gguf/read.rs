//! One file.

use super::{ALIGNMENT, MAX_AXES, TensorType, USUAL_ALIGNMENT};
use crate::archive::{Contents, Entry, Place};
use crate::error::{Context, bad};
use crate::map::Bytes;
use crate::metadata::{LIST, List, Value};
use rlx_ir::Result;
use std::collections::HashSet;
use std::ops::Range;

/// The longest key or name that the format allows.
const LONGEST_KEY: u64 = 65_535;

/// The metadata and tensors of a file.
pub(super) fn file(bytes: &Bytes) -> Result<Contents> {
    let mut from = Cursor { bytes, at: 0 };
    match from.take(4)? {
        b"GGUF" => {}
        b"FUGG" => return Err(swapped()),
        _ => return Err(bad("does not begin with GGUF")),
    }
    match from.u32()? {
        2 | 3 => {}
        0 => return Err(bad("GGUF of version 0, which there never was")),
        1 => {
            return Err(bad(
                "GGUF of version 1, which is no longer read: convert it with the tools of its time",
            ));
        }
        v if v.swap_bytes() <= 0xffff => return Err(swapped()),
        v => return Err(bad(format!("GGUF of version {v}, which is not known: 2 and 3 are"))),
    }
    let tensors = from.u64()?;
    let keys = from.u64()?;
    // Key, kind and a byte; name, number of axes, type and offset.
    from.expect("keys", keys, 8 + 1 + 4 + 1)?;
    from.expect("tensors", tensors, 8 + 1 + 4 + 4 + 8)?;

    let mut metadata = Vec::new();
    let mut seen = HashSet::new();
    for _ in 0..keys {
        let key = from.name("key")?;
        let value = from.value().about(format!("key {key:?}"))?;
        if !seen.insert(key.clone()) {
            return Err(bad(format!("there are two keys {key:?}")));
        }
        metadata.push((key, value));
    }
    let alignment = alignment(&metadata)?;
    let mut infos = Vec::new();
    for _ in 0..tensors {
        let name = from.name("tensor")?;
        infos.push(Info::read(&mut from, alignment, &name).about(format!("tensor {name:?}"))?);
    }
    let data = from.at.checked_next_multiple_of(alignment as usize).filter(|at| *at <= bytes.len());
    let data = match (data, tensors) {
        (Some(at), _) => bytes.slice(at..bytes.len()),
        // Nothing is behind the table, not even what aligns it.
        (None, 0) => bytes.slice(0..0),
        (None, _) => None,
    };
    let data = data.ok_or_else(|| bad("the file ends before the data of its tensors"))?;
    check_apart(&infos)?;
    let mut entries = Vec::with_capacity(infos.len());
    for info in infos {
        let part = data.slice(info.range.clone()).ok_or_else(|| {
            let Range { start, end } = info.range;
            let have = data.len();
            bad(format!("tensor {:?} lies at {start}..{end} of {have} bytes of data", info.name))
        })?;
        let place = Place::Here(vec![part]);
        entries.push(Entry::new(&info.name, info.ty.dtype(), info.ty.name, info.shape, place)?);
    }
    Ok(Contents { entries, metadata, ..Contents::default() })
}

fn swapped() -> rlx_ir::Error {
    bad(
        "GGUF in the other byte order (big-endian): convert it with `gguf-convert-endian FILE little` of the Python package gguf",
    )
}

fn alignment(metadata: &[(String, Value)]) -> Result<u32> {
    match metadata.iter().find(|(key, _)| key == ALIGNMENT).map(|(_, value)| value) {
        None => Ok(USUAL_ALIGNMENT),
        Some(Value::U32(n)) if n.is_power_of_two() => Ok(*n),
        Some(Value::U32(n)) => Err(bad(format!("{ALIGNMENT} is {n}, which is no power of two"))),
        Some(_) => Err(bad(format!("{ALIGNMENT} is not an unsigned 32-bit integer"))),
    }
}

/// Tensors do not overlap.
fn check_apart(infos: &[Info]) -> Result<()> {
    let mut order: Vec<&Info> = infos.iter().collect();
    order.sort_by_key(|i| i.range.start);
    for pair in order.windows(2) {
        if let [a, b] = pair
            && b.range.start < a.range.end
        {
            return Err(bad(format!("tensors {:?} and {:?} overlap", a.name, b.name)));
        }
    }
    Ok(())
}

/// A row of the table of tensors.
struct Info {
    name: String,
    ty: &'static TensorType,
    shape: Vec<usize>,
    /// Within the data.
    range: Range<usize>,
}

impl Info {
    fn read(from: &mut Cursor<'_>, alignment: u32, name: &str) -> Result<Info> {
        let axes = from.u32()? as usize;
        if axes > MAX_AXES {
            return Err(bad(format!("has {axes} axes; the format allows {MAX_AXES}")));
        }
        let mut sizes = Vec::with_capacity(axes);
        for _ in 0..axes {
            let size = from.u64()?;
            let fits = i64::try_from(size).ok().and_then(|s| usize::try_from(s).ok()).filter(|s| *s > 0);
            sizes.push(fits.ok_or_else(|| bad(format!("has an axis of size {}", size as i64)))?);
        }
        let id = from.u32()?;
        let ty = TensorType::find(id)
            .ok_or_else(|| bad(format!("has type {id}, which the format does not define")))?;
        let row = sizes.first().copied().unwrap_or(1);
        if !row.is_multiple_of(ty.block) {
            return Err(bad(format!("has rows of {row}, but {} comes in blocks of {}", ty.name, ty.block)));
        }
        let blocks = sizes.iter().skip(1).try_fold(row / ty.block, |n, size| n.checked_mul(*size));
        let bytes = blocks.and_then(|n| n.checked_mul(ty.bytes));
        let offset = from.u64()?;
        if !offset.is_multiple_of(alignment.into()) {
            return Err(bad(format!("lies at {offset}, which is not a multiple of {alignment}")));
        }
        let start = usize::try_from(offset).ok();
        let end = start.zip(bytes).and_then(|(start, bytes)| start.checked_add(bytes));
        let range = start.zip(end).map(|(start, end)| start..end);
        let range = range.ok_or_else(|| bad(format!("of sizes {sizes:?} at {offset} is too large")))?;
        sizes.reverse();
        Ok(Info { name: name.to_owned(), ty, shape: sizes, range })
    }
}

/// Bytes that are read from front to back.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn rest(&self) -> usize {
        self.bytes.len().saturating_sub(self.at)
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(n);
        let taken = end.and_then(|end| self.bytes.get(self.at..end)).ok_or_else(|| {
            bad(format!("the file ends at {}: {n} bytes are wanted at {}", self.bytes.len(), self.at))
        })?;
        self.at = self.at.saturating_add(n);
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let taken = self.take(N)?;
        taken.try_into().map_err(bad)
    }

    fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// The rest can hold so many things, of so many bytes at least each. Only then is memory asked for them.
    fn expect(&self, what: &str, n: u64, least: usize) -> Result<usize> {
        let fits = usize::try_from(n).ok().filter(|n| n.checked_mul(least).is_some_and(|n| n <= self.rest()));
        fits.ok_or_else(|| bad(format!("{n} {what} are announced, but {} bytes are left", self.rest())))
    }

    fn text(&mut self) -> Result<String> {
        let len = self.u64()?;
        let len = self.expect("bytes of a text", len, 1)?;
        let text =
            std::str::from_utf8(self.take(len)?).map_err(|e| bad(format!("a text is not UTF-8: {e}")))?;
        Ok(text.to_owned())
    }

    /// A key or the name of a tensor.
    fn name(&mut self, what: &str) -> Result<String> {
        let at = self.at;
        let name = self.text().about(format!("the name of a {what} at {at}"))?;
        match name.len() as u64 {
            0 => Err(bad(format!("a {what} at {at} has no name"))),
            1..=LONGEST_KEY => Ok(name),
            n => Err(bad(format!("the name of a {what} at {at} has {n} bytes"))),
        }
    }

    fn bool(&mut self) -> Result<bool> {
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [b] => Err(bad(format!("a bool is {b}"))),
        }
    }

    fn value(&mut self) -> Result<Value> {
        Ok(match self.u32()? {
            0 => Value::U8(u8::from_le_bytes(self.array()?)),
            1 => Value::I8(i8::from_le_bytes(self.array()?)),
            2 => Value::U16(u16::from_le_bytes(self.array()?)),
            3 => Value::I16(i16::from_le_bytes(self.array()?)),
            4 => Value::U32(self.u32()?),
            5 => Value::I32(i32::from_le_bytes(self.array()?)),
            6 => Value::F32(f32::from_le_bytes(self.array()?)),
            7 => Value::Bool(self.bool()?),
            8 => Value::Text(self.text()?),
            LIST => Value::List(self.list()?),
            10 => Value::U64(self.u64()?),
            11 => Value::I64(i64::from_le_bytes(self.array()?)),
            12 => Value::F64(f64::from_le_bytes(self.array()?)),
            kind => return Err(bad(format!("a value of kind {kind}, which the format does not define"))),
        })
    }

    fn list(&mut self) -> Result<List> {
        let kind = self.u32()?;
        let len = self.u64()?;
        Ok(match kind {
            0 => List::U8(self.numbers(len, u8::from_le_bytes)?),
            1 => List::I8(self.numbers(len, i8::from_le_bytes)?),
            2 => List::U16(self.numbers(len, u16::from_le_bytes)?),
            3 => List::I16(self.numbers(len, i16::from_le_bytes)?),
            4 => List::U32(self.numbers(len, u32::from_le_bytes)?),
            5 => List::I32(self.numbers(len, i32::from_le_bytes)?),
            6 => List::F32(self.numbers(len, f32::from_le_bytes)?),
            7 => List::Bool(self.each(len, 1, Cursor::bool)?),
            8 => List::Text(self.each(len, 8, Cursor::text)?),
            LIST => return Err(bad("a list of lists, which no program writes")),
            10 => List::U64(self.numbers(len, u64::from_le_bytes)?),
            11 => List::I64(self.numbers(len, i64::from_le_bytes)?),
            12 => List::F64(self.numbers(len, f64::from_le_bytes)?),
            _ => return Err(bad(format!("a list of kind {kind}, which the format does not define"))),
        })
    }

    fn numbers<T, const N: usize>(&mut self, len: u64, read: fn([u8; N]) -> T) -> Result<Vec<T>> {
        let len = self.expect("elements of a list", len, N)?;
        let bytes = self.take(len.saturating_mul(N))?;
        Ok(bytes.as_chunks().0.iter().map(|b| read(*b)).collect())
    }

    fn each<T>(&mut self, len: u64, least: usize, read: fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let len = self.expect("elements of a list", len, least)?;
        (0..len).map(|_| read(self)).collect()
    }
}

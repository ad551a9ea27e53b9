//! Writing a file.

use super::{ALIGNMENT, MAX_AXES, TensorType, USUAL_ALIGNMENT};
use crate::array::View;
use crate::error::{Context, bad};
use crate::metadata::{List, Value};
use crate::replace::replace;
use rlx_ir::Result;
use std::collections::HashSet;
use std::io::{self, Write};
use std::path::Path;

/// Names from this length on are refused by llama.cpp.
const TOO_LONG: usize = 64;

/// Writes one file, which is there as a whole or not at all. The data are aligned as `general.alignment` of the metadata says.
pub fn write(path: &Path, tensors: &[(&str, View<'_>)], metadata: &[(String, Value)]) -> Result<()> {
    let head = Head::new(tensors, metadata).about(path.display())?;
    replace(path, |to| head.put(tensors, to)).about(path.display())
}

/// Writes the bytes of a file.
pub fn write_to(
    to: &mut dyn Write,
    tensors: &[(&str, View<'_>)],
    metadata: &[(String, Value)],
) -> Result<()> {
    Head::new(tensors, metadata)?.put(tensors, to).map_err(bad)
}

/// All that comes before the data, and to what they are aligned.
struct Head {
    bytes: Vec<u8>,
    alignment: usize,
}

impl Head {
    fn new(tensors: &[(&str, View<'_>)], metadata: &[(String, Value)]) -> Result<Head> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((tensors.len() as u64).to_le_bytes());
        out.extend((metadata.len() as u64).to_le_bytes());
        let mut alignment = USUAL_ALIGNMENT;
        let mut seen = HashSet::new();
        for (key, value) in metadata {
            if key.is_empty() || key.len() > 65_535 || !seen.insert(key) {
                return Err(bad(format!("a key {key:?} is empty, too long, or there twice")));
            }
            if key == ALIGNMENT {
                alignment = match value {
                    // More than a page would be no use.
                    Value::U32(n) if n.is_power_of_two() && *n <= 1 << 16 => *n,
                    _ => return Err(bad(format!("{ALIGNMENT} is {value}, not a power of two up to 65536"))),
                };
            }
            text(key, &mut out);
            out.extend(value.kind().to_le_bytes());
            put(value, &mut out);
        }
        let alignment = alignment as usize;
        let (mut names, mut offset) = (HashSet::new(), 0usize);
        for (name, view) in tensors {
            let wrong = |why: String| bad(format!("tensor {name:?} {why}"));
            if name.is_empty() || name.len() >= TOO_LONG {
                return Err(wrong(format!(
                    "has a name of {} bytes; the format allows 1 to {}",
                    name.len(),
                    TOO_LONG - 1
                )));
            }
            if !names.insert(name) {
                return Err(wrong("is there twice".into()));
            }
            let ty = TensorType::of(view.dtype);
            let ty = ty.ok_or_else(|| wrong(format!("is {}, which GGUF files have not", view.dtype)))?;
            if view.shape.len() > MAX_AXES || view.shape.contains(&0) {
                let text =
                    format!("has sizes {:?}; the format allows {MAX_AXES} axes, none of size 0", view.shape);
                return Err(wrong(text));
            }
            text(name, &mut out);
            out.extend((view.shape.len() as u32).to_le_bytes());
            for size in view.shape.iter().rev() {
                out.extend((*size as u64).to_le_bytes());
            }
            out.extend(ty.id.to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset += view.len().next_multiple_of(alignment);
        }
        Ok(Head { bytes: out, alignment })
    }

    /// Writes the head, and the data behind it.
    fn put(&self, tensors: &[(&str, View<'_>)], to: &mut dyn Write) -> io::Result<()> {
        let zeros = vec![0; self.alignment];
        let pad = |len: usize| zeros.get(..padding(len, self.alignment)).unwrap_or_default();
        to.write_all(&self.bytes)?;
        to.write_all(pad(self.bytes.len()))?;
        for (_, view) in tensors {
            view.planes.iter().try_for_each(|p| to.write_all(p))?;
            to.write_all(pad(view.len()))?;
        }
        Ok(())
    }
}

fn padding(len: usize, alignment: usize) -> usize {
    len.next_multiple_of(alignment) - len
}

fn text(s: &str, out: &mut Vec<u8>) {
    out.extend((s.len() as u64).to_le_bytes());
    out.extend(s.as_bytes());
}

fn put(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::U8(x) => out.extend(x.to_le_bytes()),
        Value::I8(x) => out.extend(x.to_le_bytes()),
        Value::U16(x) => out.extend(x.to_le_bytes()),
        Value::I16(x) => out.extend(x.to_le_bytes()),
        Value::U32(x) => out.extend(x.to_le_bytes()),
        Value::I32(x) => out.extend(x.to_le_bytes()),
        Value::U64(x) => out.extend(x.to_le_bytes()),
        Value::I64(x) => out.extend(x.to_le_bytes()),
        Value::F32(x) => out.extend(x.to_le_bytes()),
        Value::F64(x) => out.extend(x.to_le_bytes()),
        Value::Bool(x) => out.push(u8::from(*x)),
        Value::Text(s) => text(s, out),
        Value::List(list) => {
            out.extend(list.kind().to_le_bytes());
            out.extend((list.len() as u64).to_le_bytes());
            put_all(list, out);
        }
    }
}

fn put_all(list: &List, out: &mut Vec<u8>) {
    for i in 0..list.len() {
        if let Some(value) = list.get(i) {
            put(&value, out);
        }
    }
}

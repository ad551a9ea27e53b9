//! Writing files.

use super::packed::declaration;
use super::{DTYPES, PACKED, read};
use crate::array::{View, plane_dtype, planes_of};
use crate::error::{Context, bad};
use crate::metadata::Value;
use crate::parts::cut;
use crate::replace::replace;
use rlx_ir::{DType, Result};
use safetensors::Dtype;
use serde_json::{Map, json};
use std::collections::HashSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Writes one file, which is there as a whole or not at all. Metadata become texts.
pub fn write(path: &Path, tensors: &[(&str, View<'_>)], metadata: &[(String, Value)]) -> Result<()> {
    let file = prepared(tensors, metadata).about(path.display())?;
    replace(path, |to| file.put(to)).about(path.display())
}

/// Writes the bytes of a file.
pub fn write_to(
    to: &mut dyn Write,
    tensors: &[(&str, View<'_>)],
    metadata: &[(String, Value)],
) -> Result<()> {
    prepared(tensors, metadata)?.put(to).map_err(bad)
}

/// Writes an index, `NAME.safetensors.index.json`, and beside it the files that it names, `NAME-00001-of-00003.safetensors` …
/// Gives the paths of those. Each file is there as a whole or not at all, and the index comes last. A file has at most so many
/// bytes of tensors, unless one alone has more.
pub fn write_parts(
    index: &Path,
    tensors: &[(&str, View<'_>)],
    metadata: &[(String, Value)],
    most: u64,
) -> Result<Vec<PathBuf>> {
    let stem = index.file_name().and_then(|n| n.to_str()?.strip_suffix(".safetensors.index.json"));
    let stem = stem.filter(|s| !s.is_empty());
    let stem =
        stem.ok_or_else(|| bad(format!("{}: an index ends in .safetensors.index.json", index.display())))?;
    // A name in two files would not be noticed in either.
    prepared(tensors, metadata).about(index.display())?;
    let cut = cut(tensors, most);
    let (mut map, mut files, mut total) = (Map::new(), Vec::new(), 0u64);
    for (i, part) in cut.iter().enumerate() {
        let name = format!("{stem}-{:05}-of-{:05}.safetensors", i + 1, cut.len());
        for p in prepared(part, &[])?.parts {
            total += p.bytes.len() as u64;
            map.insert(p.name, json!(name));
        }
        let path = index.with_file_name(&name);
        write(&path, part, metadata)?;
        files.push(path);
    }
    let text = json!({"metadata": {"total_size": total}, "weight_map": map});
    let text = serde_json::to_string_pretty(&text).map_err(bad)?;
    replace(index, |to| to.write_all(text.as_bytes())).about(index.display())?;
    Ok(files)
}

/// A file to be written.
struct Prepared<'a> {
    header: Vec<u8>,
    /// In the order of the data.
    parts: Vec<Part<'a>>,
}

impl Prepared<'_> {
    fn put(&self, to: &mut dyn Write) -> io::Result<()> {
        to.write_all(&(self.header.len() as u64).to_le_bytes())?;
        to.write_all(&self.header)?;
        self.parts.iter().try_for_each(|p| to.write_all(p.bytes))
    }
}

struct Part<'a> {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: &'a [u8],
}

fn prepared<'a>(tensors: &[(&str, View<'a>)], metadata: &[(String, Value)]) -> Result<Prepared<'a>> {
    let mut parts = Vec::new();
    let mut packed = Map::new();
    for (name, view) in tensors {
        if let DType::Packed(scheme) = view.dtype {
            for (plane, bytes) in planes_of(scheme, view.shape)?.into_iter().zip(&view.planes) {
                let dtype = file_dtype(plane_dtype(plane.elem))?;
                parts.push(Part { name: format!("{name}.{}", plane.name), dtype, shape: plane.shape, bytes });
            }
            packed.insert(name.to_string(), declaration(scheme, view.shape));
            continue;
        }
        let bytes = view.planes.first().copied().unwrap_or_default();
        parts.push(Part {
            name: name.to_string(),
            dtype: file_dtype(view.dtype)?,
            shape: view.shape.to_vec(),
            bytes,
        });
    }
    // Larger elements first, so that all are aligned.
    parts.sort_by(|a, b| b.dtype.bitsize().cmp(&a.dtype.bitsize()).then_with(|| a.name.cmp(&b.name)));

    let mut texts = Map::new();
    for (key, value) in metadata {
        if key == PACKED || texts.insert(key.clone(), value.to_string().into()).is_some() {
            return Err(bad(format!("the metadata have {key:?} twice, or it is not theirs to say")));
        }
    }
    if !packed.is_empty() {
        texts.insert(PACKED.into(), serde_json::Value::Object(packed).to_string().into());
    }
    let mut header = Vec::new();
    if !texts.is_empty() {
        header.push(("__metadata__", serde_json::Value::Object(texts)));
    }
    let mut names = HashSet::from(["__metadata__"]);
    let mut at = 0usize;
    for p in &parts {
        if !names.insert(&p.name) {
            return Err(bad(format!("no two tensors can be called {:?}", p.name)));
        }
        let end = at + p.bytes.len();
        let info = json!({"dtype": format!("{:?}", p.dtype), "shape": p.shape, "data_offsets": [at, end]});
        header.push((&p.name, info));
        at = end;
    }
    let header = object(&header)?;
    if header.len() as u64 > read::LONGEST_HEADER {
        return Err(bad(format!(
            "the header would have {} bytes, more than the format allows",
            header.len()
        )));
    }
    Ok(Prepared { header, parts })
}

/// A JSON object in the given order, with white space behind it up to a multiple of 8 bytes, so that the data are aligned.
fn object(pairs: &[(&str, serde_json::Value)]) -> Result<Vec<u8>> {
    let mut out = vec![b'{'];
    for (i, (key, value)) in pairs.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        serde_json::to_writer(&mut out, key).map_err(bad)?;
        out.push(b':');
        serde_json::to_writer(&mut out, value).map_err(bad)?;
    }
    out.push(b'}');
    out.resize(out.len().next_multiple_of(8), b' ');
    Ok(out)
}

fn file_dtype(dtype: DType) -> Result<Dtype> {
    let found = DTYPES.iter().find(|(ours, _)| *ours == dtype).map(|(_, theirs)| *theirs);
    found.ok_or_else(|| bad(format!("safetensors files have no {dtype}")))
}

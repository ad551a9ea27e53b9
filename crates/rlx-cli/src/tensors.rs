//! Tensors to and from files.

use crate::failure::{Context, Failure, Result};
use rlx::formats::{self, Archive, Bytes, Format, Value, View, gguf, npy, npz, safetensors};
use rlx::{DType, Tensor, Type};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Whether a file holds tensors rather than a graph: by what is in it, or if that says nothing, by its name.
pub(crate) fn is_archive(path: &Path) -> bool {
    if path.extension().is_some_and(|e| e == "rlx") {
        return false;
    }
    let inside = path.is_file() && Bytes::open(path).is_ok_and(|bytes| Archive::recognises(&bytes));
    inside || Format::of_name(path).is_some()
}

/// A file of tensors: mapped, or read if it is a pipe.
pub(crate) fn open(path: &Path) -> Result<Archive> {
    if path.is_file() || !path.exists() {
        return Ok(formats::open(path)?);
    }
    Archive::from_bytes(read_file(path)?.into()).about(path.display())
}

/// A whole file. Pipes and devices may have no end, so of them no more is read than a graph or its inputs need.
pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>> {
    const ENDLESS: u64 = 256 << 20;
    let name = path.display();
    let file = File::open(path).about(&name)?;
    let limit = if file.metadata().about(&name)?.is_file() { u64::MAX } else { ENDLESS };
    let mut bytes = Vec::new();
    // One byte more tells a text of that length from a longer one.
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes).about(&name)?;
    if bytes.len() as u64 > limit {
        return Err(Failure::other(format!(
            "{name}: not a file, and it goes on after {} MiB",
            ENDLESS >> 20
        )));
    }
    Ok(bytes)
}

/// The names under which a tensor of that type may be stored: its own, or those of its planes.
pub(crate) fn parts(tensor: &str, ty: &Type) -> Result<Vec<String>> {
    let mut names = vec![tensor.to_string()];
    if let DType::Packed(scheme) = ty.dtype {
        names.extend(formats::archive::plane_names(tensor, scheme, &sizes(tensor, ty)?)?);
    }
    Ok(names)
}

/// A tensor. The type is asked only for how packed data are stored; whoever runs the graph compares it.
pub(crate) fn tensor(file: &Archive, tensor: &str, ty: &Type) -> Result<Tensor> {
    let found = match ty.dtype {
        DType::Packed(scheme) => file.packed(tensor, scheme, &sizes(tensor, ty)?)?,
        _ => file.tensor(tensor)?,
    };
    Ok(found.to_tensor()?)
}

/// The sizes of a packed tensor, which are numbers.
fn sizes(tensor: &str, ty: &Type) -> Result<Vec<usize>> {
    let size = |d: &rlx::Dim| d.as_const().and_then(|n| usize::try_from(n).ok());
    let sizes: Option<Vec<usize>> = ty.shape.iter().map(size).collect();
    sizes.ok_or_else(|| {
        Failure::other(format!("{tensor:?} is {ty}, and packed data have sizes that are numbers"))
    })
}

/// The files of an index have so many bytes of tensors unless something else is asked for.
const PART: u64 = 5_000_000_000;

/// Writes tensors in the format that the name of the file ends in, else as safetensors, in one file or in parts of so many bytes.
/// Every file is there as a whole or not at all. Gives the files; the first is the one to open.
pub(crate) fn write(
    path: &Path,
    tensors: &[(&str, View<'_>)],
    metadata: &[(String, Value)],
    part: Option<u64>,
) -> Result<Vec<PathBuf>> {
    let name = path.display();
    let is_index = path.to_string_lossy().to_ascii_lowercase().ends_with(".index.json");
    match (Format::of_name(path).unwrap_or(Format::Safetensors), part) {
        (Format::Safetensors, part) if is_index => {
            let files = safetensors::write_parts(path, tensors, metadata, part.unwrap_or(PART))?;
            return Ok([path.to_path_buf()].into_iter().chain(files).collect());
        }
        (Format::Gguf, Some(most)) => return Ok(gguf::write_parts(path, tensors, metadata, most)?),
        (_, Some(_)) => {
            return Err(Failure::call(format!(
                "{name}: only .gguf and .safetensors.index.json come in parts"
            )));
        }
        (Format::Safetensors, None) => safetensors::write(path, tensors, metadata)?,
        (Format::Gguf, None) => gguf::write(path, tensors, metadata)?,
        (Format::Npz, None) => npz::write(path, tensors)?,
        (Format::Onnx, None) => {
            return Err(Failure::call(format!("{name}: ONNX models are read, and not written")));
        }
        (Format::Npy, None) => match tensors {
            [(_, one)] => npy::write(path, one)?,
            _ => {
                let text = format!("{name}: an npy file has one array, not {}", tensors.len());
                return Err(Failure::other(text));
            }
        },
    }
    Ok(vec![path.to_path_buf()])
}

/// Writes a file, which is there as a whole or not at all.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    formats::replace::replace(path, |to| to.write_all(bytes)).about(path.display())
}

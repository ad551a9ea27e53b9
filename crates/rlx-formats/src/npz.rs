//! Arrays of NumPy's by name, in a zip archive.

use crate::archive::Contents;
use crate::array::{View, plane_dtype, planes_of};
use crate::error::{Context, bad};
use crate::map::Bytes;
use crate::npy;
use crate::replace::replace;
use crate::zip;
use rlx_ir::{DType, Result};
use std::collections::HashSet;
use std::io::Write;
use std::path::Path;

/// How the names of arrays end.
const ENDING: &str = ".npy";

/// Whether an archive is what PyTorch saves: a pickle that refers to its other files.
pub(crate) fn is_pickle(bytes: &Bytes) -> bool {
    let names = zip::members(bytes).unwrap_or_default();
    names.iter().any(|(name, _)| name == "data.pkl" || name.ends_with("/data.pkl"))
}

/// The arrays of an archive.
pub(crate) fn read(bytes: &Bytes) -> Result<Contents> {
    let mut contents = Contents::default();
    for (name, member) in zip::members(bytes)? {
        let array = name.strip_suffix(ENDING).filter(|n| !n.is_empty());
        let array =
            array.ok_or_else(|| bad(format!("a zip archive with a file {name:?}, which is no array")))?;
        contents.entries.push(npy::member(array, member).about(format!("{name:?}"))?);
    }
    Ok(contents)
}

/// Writes an archive, which is there as a whole or not at all. Packed tensors are stored as their planes.
pub fn write(path: &Path, tensors: &[(&str, View<'_>)]) -> Result<()> {
    with_members(tensors, |members| replace(path, |to| zip::write(to, members)).map_err(bad))
        .about(path.display())
}

/// Writes the bytes of an archive.
pub fn write_to(to: &mut dyn Write, tensors: &[(&str, View<'_>)]) -> Result<()> {
    with_members(tensors, |members| zip::write(to, members).map_err(bad))
}

/// A file of an archive: its name, and the parts that it is made of.
type Member<'a> = (String, Vec<&'a [u8]>);

/// Gives the files of the archive to be written.
fn with_members(tensors: &[(&str, View<'_>)], write: impl FnOnce(&[Member<'_>]) -> Result<()>) -> Result<()> {
    let mut planes = Vec::new();
    for (_, view) in tensors {
        if let DType::Packed(scheme) = view.dtype {
            planes.push(planes_of(scheme, view.shape)?);
        }
    }
    let mut planes = planes.iter();
    let mut arrays: Vec<(String, View<'_>)> = Vec::new();
    for (name, view) in tensors {
        if !view.dtype.is_packed() {
            arrays.push((name.to_string(), view.clone()));
            continue;
        }
        for (plane, bytes) in planes.next().into_iter().flatten().zip(&view.planes) {
            let view = View { dtype: plane_dtype(plane.elem), shape: &plane.shape, planes: vec![bytes] };
            arrays.push((format!("{name}.{}", plane.name), view));
        }
    }
    let (mut headers, mut names) = (Vec::new(), HashSet::new());
    for (name, view) in &arrays {
        let about = || format!("tensor {name:?}");
        zip::check_name(name.as_bytes()).about(about())?;
        if !names.insert(name) {
            return Err(bad(format!("{} is there twice", about())));
        }
        headers.push(npy::header(view).about(about())?);
    }
    let members: Vec<Member<'_>> = arrays
        .iter()
        .zip(&headers)
        .map(|((name, view), header)| {
            let parts = [header.as_slice()].into_iter().chain(view.planes.iter().copied());
            (format!("{name}{ENDING}"), parts.collect())
        })
        .collect();
    write(&members)
}

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
    let about = || path.display();
    let mut arrays: Vec<(String, View<'_>)> = Vec::new();
    let mut shapes = Vec::new();
    for (_, view) in tensors {
        if let DType::Packed(scheme) = view.dtype {
            shapes.push(planes_of(scheme, view.shape).about(about())?);
        }
    }
    let mut shapes = shapes.iter();
    for (name, view) in tensors {
        match view.dtype {
            DType::Packed(_) => {
                for (plane, bytes) in shapes.next().into_iter().flatten().zip(&view.planes) {
                    let dtype = plane_dtype(plane.elem);
                    let view = View { dtype, shape: &plane.shape, planes: vec![bytes] };
                    arrays.push((format!("{name}.{}", plane.name), view));
                }
            }
            _ => arrays.push((name.to_string(), view.clone())),
        }
    }
    let (mut headers, mut names) = (Vec::new(), HashSet::new());
    for (name, view) in &arrays {
        let about = || format!("{}: tensor {name:?}", about());
        zip::check_name(name.as_bytes()).about(about())?;
        if !names.insert(name) {
            return Err(bad(format!("{} is there twice", about())));
        }
        headers.push(npy::header(view).about(about())?);
    }
    let members: Vec<(String, Vec<&[u8]>)> = arrays
        .iter()
        .zip(&headers)
        .map(|((name, view), header)| {
            let parts = [header.as_slice()].into_iter().chain(view.planes.iter().copied());
            (format!("{name}{ENDING}"), parts.collect())
        })
        .collect();
    replace(path, |to| zip::write(to, &members)).about(about())
}

//! Tensors to and from safetensors files.
//!
//! A packed tensor `w` is stored as its planes: `w.codes`, `w.scale`, …, named as its scheme names them.

use crate::failure::{Context, Failure, Result};
use rlx::quant::PlaneElem;
use rlx::{DType, Tensor, Type, weights};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;

/// A file in memory.
pub(crate) struct Stored {
    name: String,
    bytes: Vec<u8>,
}

impl Stored {
    pub(crate) fn open(path: &Path) -> Result<Stored> {
        let name = path.display().to_string();
        let bytes = read_file(path)?;
        Ok(Stored { name, bytes })
    }

    /// Its tensors, by name.
    pub(crate) fn read(&self) -> Result<Reader<'_>> {
        let all = weights::parse(&self.bytes).about(&self.name)?;
        Ok(Reader { name: &self.name, all })
    }
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

/// The tensors of a file.
pub(crate) struct Reader<'a> {
    name: &'a str,
    all: SafeTensors<'a>,
}

impl Reader<'_> {
    /// The names of all tensors, sorted.
    pub(crate) fn names(&self) -> Vec<&str> {
        let mut names = self.all.names();
        names.sort_unstable();
        names
    }

    /// The names under which a tensor of that type is stored.
    pub(crate) fn parts(tensor: &str, ty: &Type) -> Result<Vec<String>> {
        let DType::Packed(scheme) = ty.dtype else { return Ok(vec![tensor.to_string()]) };
        let planes = scheme.planes(&sizes(tensor, ty)?).about(tensor)?;
        Ok(planes.iter().map(|p| format!("{tensor}.{}", p.name)).collect())
    }

    /// A tensor. The type is asked only for how packed data are stored; whoever runs the graph compares it.
    pub(crate) fn tensor(&self, tensor: &str, ty: &Type) -> Result<Tensor> {
        let about = || format!("{}: tensor {tensor:?}", self.name);
        if let DType::Packed(scheme) = ty.dtype {
            let mut planes = Vec::new();
            for part in Reader::parts(tensor, ty)? {
                planes.push(self.all.tensor(&part).about(self.name)?.data().into());
            }
            return Tensor::packed(scheme, &sizes(tensor, ty)?, planes).about(about());
        }
        let view = self.all.tensor(tensor).about(self.name)?;
        let dtype = weights::dtype(view.dtype())
            .map_err(|e| Failure::other(format!("{} {}", about(), e.message())))?;
        Tensor::from_bytes(dtype, view.shape(), view.data()).about(about())
    }
}

/// The sizes of a packed tensor, which are numbers.
fn sizes(tensor: &str, ty: &Type) -> Result<Vec<usize>> {
    let size = |d: &rlx::Dim| d.as_const().and_then(|n| usize::try_from(n).ok());
    let sizes: Option<Vec<usize>> = ty.shape.iter().map(size).collect();
    sizes.ok_or_else(|| {
        Failure::other(format!("{tensor:?} is {ty}, and packed data have sizes that are numbers"))
    })
}

/// Writes tensors; the file is there as a whole or not at all.
pub(crate) fn write(path: &Path, tensors: &[(String, Tensor)]) -> Result<()> {
    let about = path.display().to_string();
    let mut views: Vec<(String, TensorView<'_>)> = Vec::new();
    for (name, t) in tensors {
        if let DType::Packed(scheme) = t.dtype() {
            for (plane, bytes) in scheme.planes(t.shape()).about(name)?.into_iter().zip(t.planes()) {
                let dtype = match plane.elem {
                    PlaneElem::I8 => Dtype::I8,
                    PlaneElem::U8 => Dtype::U8,
                    PlaneElem::F32 => Dtype::F32,
                };
                let view = TensorView::new(dtype, plane.shape, bytes).about(name)?;
                views.push((format!("{name}.{}", plane.name), view));
            }
            continue;
        }
        let dtype = weights::file_dtype(t.dtype())
            .ok_or_else(|| Failure::other(format!("{name:?} is {}: no file has that", t.dtype())))?;
        views.push((name.clone(), TensorView::new(dtype, t.shape().to_vec(), t.bytes()).about(name)?));
    }
    let bytes = safetensors::serialize(views, None).about(&about)?;
    replace(path, &bytes)
}

/// Writes a file, which is there as a whole or not at all.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    replaced(path, bytes).about(path.display())
}

/// Writes beside the file, makes sure that it has reached the disk, and moves it into place. A link stays, and what it leads
/// to is replaced; what is no file, such as a pipe or a device, is written to.
fn replaced(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let path = &match fs::metadata(path) {
        Ok(m) if m.is_file() => fs::canonicalize(path)?,
        Ok(_) => return OpenOptions::new().write(true).open(path)?.write_all(bytes),
        // A link that leads nowhere yet.
        Err(_) if path.is_symlink() => return File::create(path)?.write_all(bytes),
        Err(_) => path.to_path_buf(),
    };
    let name = path.file_name().ok_or_else(|| std::io::Error::other("not the name of a file"))?;
    let folder = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    let temp = folder.join(format!(".{}.{}.tmp", name.to_string_lossy(), std::process::id()));
    let mut file = OpenOptions::new().write(true).create_new(true).open(&temp)?;
    let done = file
        .write_all(bytes)
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&temp, path))
        // The name is safe only when the folder is; not every system lets folders be opened.
        .and_then(|()| File::open(folder).map_or(Ok(()), |f| f.sync_all()));
    if done.is_err() {
        // It may be in place already, and then there is nothing to remove.
        let _ = fs::remove_file(&temp);
    }
    done
}

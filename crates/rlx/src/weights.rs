//! Params from safetensors files, mapped rather than read.

use crate::exec::Params;
use rlx_cpu::Data;
use rlx_ir::{Code, DType, Error, Result};
use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// A mapped file; its bytes stay valid as long as it is kept.
struct Mapped(memmap2::Mmap);

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[allow(unsafe_code)]
fn map(file: &File) -> std::io::Result<Mapped> {
    // SAFETY: the map is read only. A file that another process changes shows other numbers, which no code here relies on; one
    // that it cuts short ends the process with a signal, as for every program that maps files.
    unsafe { memmap2::Mmap::map(file) }.map(Mapped)
}

fn dtype(d: Dtype) -> Option<DType> {
    Some(match d {
        Dtype::F64 => DType::F64,
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::F8_E4M3 => DType::F8E4M3,
        Dtype::F8_E5M2 => DType::F8E5M2,
        Dtype::I8 => DType::I8,
        Dtype::I16 => DType::I16,
        Dtype::I32 => DType::I32,
        Dtype::I64 => DType::I64,
        Dtype::U8 => DType::U8,
        Dtype::U16 => DType::U16,
        Dtype::U32 => DType::U32,
        Dtype::U64 => DType::U64,
        Dtype::BOOL => DType::Bool,
        _ => return None,
    })
}

/// The tensors of a safetensors file, mapped.
pub fn open(path: impl AsRef<Path>) -> Result<BTreeMap<String, Data>> {
    let path = path.as_ref();
    let fail = |why: String| Error::new(Code::BadInput, format!("{}: {why}", path.display()));
    let file = File::open(path).map_err(|e| fail(e.to_string()))?;
    let owner: Arc<dyn AsRef<[u8]> + Send + Sync> = Arc::new(map(&file).map_err(|e| fail(e.to_string()))?);
    let bytes: &[u8] = (*owner).as_ref();
    let start = bytes.as_ptr() as usize;
    let mut out = BTreeMap::new();
    let tensors = SafeTensors::deserialize(bytes).map_err(|e| fail(e.to_string()))?;
    for (name, view) in tensors.iter() {
        let dtype =
            dtype(view.dtype()).ok_or_else(|| fail(format!("tensor {name:?} is {:?}", view.dtype())))?;
        if dtype == DType::Bool && view.data().iter().any(|b| *b > 1) {
            return Err(fail(format!("a bool of tensor {name:?} is neither 0 nor 1")));
        }
        let from = view.data().as_ptr() as usize - start;
        let range = from..from + view.data().len();
        let data = Data::Shared { dtype, shape: view.shape().to_vec(), owner: owner.clone(), range };
        out.insert(name.to_string(), data);
    }
    Ok(out)
}

impl Params<'_> {
    /// Sets every param that the file has a tensor for, by name. Tensors that no param is named after are an error.
    pub fn load(&self, path: impl AsRef<Path>) -> Result<()> {
        for (name, data) in open(path)? {
            self.set_data(&name, data)?;
        }
        Ok(())
    }
}

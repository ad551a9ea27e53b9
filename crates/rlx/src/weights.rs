//! Params from safetensors files, mapped rather than read.

use crate::exec::Params;
use rlx_cpu::Data;
use rlx_ir::{Code, DType, Error, Result};
use safetensors::{Dtype, SafeTensors};
use serde::Deserializer;
use serde::de::{Error as _, MapAccess, Visitor};
use serde_json::Value;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
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

/// What each dtype is called in a file.
const DTYPES: &[(DType, Dtype)] = &[
    (DType::F64, Dtype::F64),
    (DType::F32, Dtype::F32),
    (DType::F16, Dtype::F16),
    (DType::BF16, Dtype::BF16),
    (DType::F8E4M3, Dtype::F8_E4M3),
    (DType::F8E5M2, Dtype::F8_E5M2),
    (DType::I8, Dtype::I8),
    (DType::I16, Dtype::I16),
    (DType::I32, Dtype::I32),
    (DType::I64, Dtype::I64),
    (DType::U8, Dtype::U8),
    (DType::U16, Dtype::U16),
    (DType::U32, Dtype::U32),
    (DType::U64, Dtype::U64),
    (DType::Bool, Dtype::BOOL),
];

/// The dtype of a tensor in a file, if RLX has it.
pub fn dtype(d: Dtype) -> Result<DType> {
    let known = DTYPES.iter().find(|(_, theirs)| *theirs == d).map(|(ours, _)| *ours);
    known.ok_or_else(|| Error::new(Code::BadInput, format!("is {d:?}, a dtype that RLX has not")))
}

/// What a dtype is called in a file; packed ones are stored as several tensors.
pub fn file_dtype(d: DType) -> Option<Dtype> {
    DTYPES.iter().find(|(ours, _)| *ours == d).map(|(_, theirs)| *theirs)
}

/// The tensors in the bytes of a safetensors file. Whoever reads such a file begins here: the `safetensors` crate refuses data
/// that overlap, leave gaps or do not fit their shapes, but lets two things pass. Of a name that stands twice it takes the
/// last, and with an offset near 2^64 it calculates beyond 64 bits.
pub fn parse(bytes: &[u8]) -> Result<SafeTensors<'_>> {
    let wrong = |e: &dyn fmt::Display| Error::new(Code::BadInput, e.to_string());
    check_header(bytes).map_err(|e| wrong(&e))?;
    SafeTensors::deserialize(bytes).map_err(|e| wrong(&e))
}

fn check_header(bytes: &[u8]) -> serde_json::Result<()> {
    let Some((len, rest)) = bytes.split_first_chunk::<8>() else { return Ok(()) };
    let header = usize::try_from(u64::from_le_bytes(*len)).ok().and_then(|n| rest.get(..n));
    // That there is no header, the crate says.
    let Some(header) = header else { return Ok(()) };
    serde_json::Deserializer::from_slice(header).deserialize_map(Header { len: bytes.len() as u64 })
}

struct Header {
    /// Of the file.
    len: u64,
}

impl<'de> Visitor<'de> for Header {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the tensors by their names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<(), A::Error> {
        let mut names = HashSet::new();
        while let Some((name, entry)) = map.next_entry::<String, Value>()? {
            let beyond = |o: &Value| o.as_u64().is_none_or(|o| o > self.len);
            if let Some(Value::Array(offsets)) = entry.get("data_offsets")
                && offsets.iter().any(beyond)
            {
                return Err(A::Error::custom(format!("tensor {name:?} lies beyond the end of the file")));
            }
            if let Some(name) = names.replace(name) {
                return Err(A::Error::custom(format!("there are two tensors {name:?}")));
            }
        }
        Ok(())
    }
}

/// The tensors of a safetensors file, mapped.
pub fn open(path: impl AsRef<Path>) -> Result<BTreeMap<String, Data>> {
    let path = path.as_ref();
    let fail = |why: &dyn fmt::Display| Error::new(Code::BadInput, format!("{}: {why}", path.display()));
    // A pipe would be waited for, and a device may have no end.
    if !std::fs::metadata(path).map_err(|e| fail(&e))?.is_file() {
        return Err(fail(&"not a file"));
    }
    let file = File::open(path).map_err(|e| fail(&e))?;
    let owner: Arc<dyn AsRef<[u8]> + Send + Sync> = Arc::new(map(&file).map_err(|e| fail(&e))?);
    let bytes: &[u8] = (*owner).as_ref();
    let start = bytes.as_ptr() as usize;
    let mut out = BTreeMap::new();
    let tensors = parse(bytes).map_err(|e| fail(&e.message()))?;
    for (name, view) in tensors.iter() {
        let dtype = dtype(view.dtype()).map_err(|e| fail(&format!("tensor {name:?} {}", e.message())))?;
        if dtype == DType::Bool && view.data().iter().any(|b| *b > 1) {
            return Err(fail(&format!("a bool of tensor {name:?} is neither 0 nor 1")));
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

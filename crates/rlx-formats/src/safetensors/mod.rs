//! Safetensors files: a header in JSON, then the data. A model may be cut into several, which an index names.
//!
//! The format knows no quantised types, so a packed tensor `w` is stored as its planes, `w.codes`, `w.scale` …, and the
//! metadata say under [`PACKED`] what belongs together.

mod index;
mod packed;
mod read;
mod write;

pub use write::{write, write_parts, write_to};

use crate::archive::Contents;
use crate::error::bad;
use crate::map::Bytes;
use rlx_ir::{DType, Result};
use safetensors::Dtype;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;
use std::path::Path;

/// The key of the metadata under which the shapes and schemes of packed tensors stand, by name, in JSON.
pub const PACKED: &str = "rlx.packed";

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

/// Whether bytes begin like a file or an index.
pub(crate) fn looks_like(bytes: &[u8]) -> bool {
    has_header(bytes) || is_json(bytes)
}

/// Whether there is a length that a header may have, and its first brace.
fn has_header(bytes: &[u8]) -> bool {
    let sane = |len: &[u8; 8]| u64::from_le_bytes(*len) <= read::LONGEST_HEADER;
    matches!(bytes.split_first_chunk::<8>(), Some((len, [b'{', ..])) if sane(len))
}

fn is_json(bytes: &[u8]) -> bool {
    // An index with more white space in front of its brace was not written by any program.
    bytes.iter().take(64).find(|b| !b.is_ascii_whitespace()) == Some(&b'{')
}

/// Reads a file, or the files that an index names.
pub(crate) fn read(bytes: &Bytes, path: Option<&Path>) -> Result<Contents> {
    match path {
        // A length may look like a brace.
        _ if has_header(bytes) || !is_json(bytes) => packed::merged(read::file(bytes)?),
        Some(path) => index::files(bytes, path),
        None => Err(bad("an index of safetensors files, which cannot be found without a path")),
    }
}

/// A JSON object as a list, in which no key stands twice.
struct Pairs<T>(Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Pairs<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Pairs<T>, D::Error> {
        struct Each<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Each<T> {
            type Value = Pairs<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Pairs<T>, A::Error> {
                let (mut pairs, mut seen) = (Vec::new(), HashSet::new());
                while let Some((key, value)) = map.next_entry::<String, T>()? {
                    if !seen.insert(key.clone()) {
                        return Err(A::Error::custom(format!("{key:?} stands twice")));
                    }
                    pairs.push((key, value));
                }
                Ok(Pairs(pairs))
            }
        }
        d.deserialize_map(Each(PhantomData))
    }
}

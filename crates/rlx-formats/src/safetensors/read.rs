//! One file.

use super::DTYPES;
use crate::archive::{Contents, Entry, Place};
use crate::error::bad;
use crate::map::Bytes;
use crate::metadata::Value;
use rlx_ir::Result;
use safetensors::SafeTensors;
use serde::Deserializer;
use serde::de::{Error as _, MapAccess, Visitor};
use std::collections::HashSet;
use std::fmt;

/// What the format allows.
pub(super) const LONGEST_HEADER: u64 = 100_000_000;

/// The tensors and metadata of a file. The `safetensors` crate refuses data that overlap, leave gaps or do not fit their shapes,
/// but lets two things pass, so headers are looked through first: of a name that stands twice it takes the last, and with an
/// offset near 2^64 it calculates beyond 64 bits.
pub(super) fn file(bytes: &Bytes) -> Result<Contents> {
    check_header(bytes).map_err(bad)?;
    let (header, all) = SafeTensors::read_metadata(bytes).map_err(bad)?;
    let data = header.checked_add(8).and_then(|start| bytes.slice(start..bytes.len()));
    let data = data.ok_or_else(|| bad("the header is longer than the file"))?;
    let mut entries = Vec::new();
    for name in all.offset_keys() {
        let Some(info) = all.info(&name) else { continue };
        let part = data.slice(info.data_offsets.0..info.data_offsets.1);
        let part = part.ok_or_else(|| bad(format!("tensor {name:?} lies beyond the end of the file")))?;
        let dtype = DTYPES.iter().find(|(_, theirs)| *theirs == info.dtype).map(|(ours, _)| *ours);
        let stored = format!("{:?}", info.dtype);
        entries.push(Entry::new(&name, dtype, stored, info.shape.clone(), Place::Here(vec![part]))?);
    }
    let texts = all.metadata().iter().flatten();
    let mut metadata: Vec<_> = texts.map(|(k, v)| (k.clone(), Value::from(v.clone()))).collect();
    metadata.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(Contents { entries, metadata, ..Contents::default() })
}

fn check_header(bytes: &[u8]) -> serde_json::Result<()> {
    let Some((len, rest)) = bytes.split_first_chunk::<8>() else { return Ok(()) };
    let len = u64::from_le_bytes(*len);
    let header = usize::try_from(len).ok().and_then(|n| rest.get(..n));
    match header {
        Some(header) if len <= LONGEST_HEADER => {
            serde_json::Deserializer::from_slice(header).deserialize_map(Header { len: bytes.len() as u64 })
        }
        // That there is no header, or a long one, the crate says.
        _ => Ok(()),
    }
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
        while let Some((name, entry)) = map.next_entry::<String, serde_json::Value>()? {
            let beyond = |o: &serde_json::Value| o.as_u64().is_none_or(|o| o > self.len);
            if let Some(serde_json::Value::Array(offsets)) = entry.get("data_offsets")
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

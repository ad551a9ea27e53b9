//! Packed tensors and the planes that they are stored as.

use super::{PACKED, Pairs};
use crate::archive::{Contents, Entry, Place};
use crate::array::{plane_dtype, planes_of};
use crate::error::bad;
use crate::metadata::Value;
use rlx_ir::quant::Scheme;
use rlx_ir::{DType, Result};
use std::collections::HashMap;

/// What the metadata say of a packed tensor.
pub(super) fn declaration(scheme: Scheme, shape: &[usize]) -> serde_json::Value {
    serde_json::json!({"scheme": scheme.to_string(), "shape": shape})
}

/// Planes that belong together become one tensor, in the place of the first.
pub(super) fn merged(mut contents: Contents) -> Result<Contents> {
    let Some(at) = contents.metadata.iter().position(|(key, _)| key == PACKED) else { return Ok(contents) };
    let (_, text) = contents.metadata.remove(at);
    let wrong = |why: &dyn std::fmt::Display| bad(format!("metadata {PACKED:?}: {why}"));
    let Value::Text(text) = text else { return Err(wrong(&"not a text")) };
    let declared: Pairs<serde_json::Value> = serde_json::from_str(&text).map_err(|e| wrong(&e))?;
    let places: HashMap<&str, usize> =
        contents.entries.iter().enumerate().map(|(i, e)| (e.name(), i)).collect();
    // What becomes of each entry: itself, nothing, or a packed tensor.
    let mut become_of: Vec<Option<Option<Entry>>> = vec![None; contents.entries.len()];
    for (name, packed) in declared.0 {
        let malformed = || wrong(&format!("{packed} of {name:?} is no scheme and shape"));
        let scheme = packed.get("scheme").and_then(|s| Scheme::parse(s.as_str()?)).ok_or_else(malformed)?;
        let size = |n: &serde_json::Value| usize::try_from(n.as_u64()?).ok();
        let shape = packed.get("shape").and_then(|s| s.as_array()).ok_or_else(malformed)?;
        let shape: Vec<usize> = shape.iter().map(size).collect::<Option<_>>().ok_or_else(malformed)?;
        let (mut planes, mut first) = (Vec::new(), None);
        for plane in planes_of(scheme, &shape).map_err(|e| wrong(&e.message()))? {
            let full = format!("{name}.{}", plane.name);
            let found = places.get(full.as_str()).and_then(|i| Some((*i, contents.entries.get(*i)?)));
            let (i, entry) = found.ok_or_else(|| wrong(&format!("there is no plane {full:?}")))?;
            match entry.place() {
                Place::Here(bytes)
                    if entry.dtype() == Some(plane_dtype(plane.elem))
                        && entry.bytes() == plane.bytes as u64 =>
                {
                    planes.extend(bytes.iter().cloned());
                }
                _ => return Err(wrong(&format!("plane {full:?} does not fit {scheme}{shape:?}"))),
            }
            let slot = become_of.get_mut(i).filter(|slot| slot.is_none());
            *slot.ok_or_else(|| wrong(&format!("plane {full:?} belongs to two tensors")))? = Some(None);
            first.get_or_insert(i);
        }
        let entry =
            Entry::new(&name, Some(DType::Packed(scheme)), scheme.to_string(), shape, Place::Here(planes))?;
        if let Some(slot) = first.and_then(|i| become_of.get_mut(i)) {
            *slot = Some(Some(entry));
        }
    }
    let entries = contents.entries.into_iter().zip(become_of);
    contents.entries = entries.filter_map(|(entry, new)| new.unwrap_or(Some(entry))).collect();
    Ok(contents)
}

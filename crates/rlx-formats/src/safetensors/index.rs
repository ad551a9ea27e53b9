//! An index: which file has which tensor.

use super::{Pairs, packed, read};
use crate::archive::{Contents, Entry, check_no_pickle, plane_names};
use crate::error::{Context, bad};
use crate::map::Bytes;
use crate::metadata::Value;
use crate::paths::referred;
use rlx_ir::{DType, Result};
use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::path::Path;

/// The tensors of all files that an index names. What a file holds beyond what the index says of it is left out.
pub(super) fn files(bytes: &Bytes, path: &Path) -> Result<Contents> {
    let index: Index = serde_json::from_slice(bytes).map_err(bad)?;
    let mut files: BTreeMap<&str, HashSet<&str>> = BTreeMap::new();
    for (tensor, file) in &index.weight_map.0 {
        files.entry(file).or_default().insert(tensor);
    }
    let mut all = Contents { metadata: index.metadata.0.iter().map(value).collect(), ..Contents::default() };
    let mut keys: HashSet<String> = all.metadata.iter().map(|(key, _)| key.clone()).collect();
    for (file, mut wanted) in files {
        let part_path = referred(path, file)?;
        let part = Bytes::open(&part_path)?;
        // PyTorch writes indices of pickles that look the same.
        check_no_pickle(&part, &part_path).about(part_path.display())?;
        let mut part = read::file(&part).about(part_path.display())?;
        part.entries.retain(|e| wanted.remove(e.name()));
        if let Some(missing) = wanted.iter().min() {
            let text = format!(
                "{}: there is no tensor {missing:?}, which the index says is there",
                part_path.display()
            );
            return Err(bad(text));
        }
        let part = packed::merged(part).about(part_path.display())?;
        all.entries.extend(part.entries);
        all.metadata.extend(part.metadata.into_iter().filter(|(key, _)| keys.insert(key.clone())));
        all.more_files.push(part_path);
    }
    let order: HashMap<&str, usize> =
        index.weight_map.0.iter().enumerate().map(|(i, (name, _))| (name.as_str(), i)).collect();
    // A packed tensor is in the index under the names of its planes.
    let place = |e: &Entry| match e.dtype() {
        Some(DType::Packed(scheme)) => {
            let planes = plane_names(e.name(), scheme, e.shape()).unwrap_or_default();
            planes.iter().filter_map(|p| order.get(p.as_str()).copied()).min()
        }
        _ => order.get(e.name()).copied(),
    };
    all.entries.sort_by_cached_key(place);
    Ok(all)
}

fn value((key, value): &(String, serde_json::Value)) -> (String, Value) {
    let value = match value {
        serde_json::Value::String(text) => text.clone().into(),
        serde_json::Value::Bool(b) => (*b).into(),
        other => match (other.as_u64(), other.as_i64(), other.as_f64()) {
            (Some(x), ..) => x.into(),
            (_, Some(x), _) => x.into(),
            (.., Some(x)) => x.into(),
            _ => other.to_string().into(),
        },
    };
    (key.clone(), value)
}

struct Index {
    metadata: Pairs<serde_json::Value>,
    weight_map: Pairs<String>,
}

impl<'de> Deserialize<'de> for Index {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Index, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Index;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an index of safetensors files")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Index, A::Error> {
                let (mut metadata, mut weight_map) = (None, None);
                while let Some(key) = map.next_key::<String>()? {
                    let again = match key.as_str() {
                        "metadata" => metadata.replace(map.next_value()?).is_some(),
                        "weight_map" => weight_map.replace(map.next_value()?).is_some(),
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                            false
                        }
                    };
                    if again {
                        return Err(A::Error::custom(format!("{key:?} stands twice")));
                    }
                }
                let weight_map = weight_map
                    .ok_or_else(|| A::Error::custom("no weight_map: not an index of safetensors files"))?;
                Ok(Index { metadata: metadata.unwrap_or(Pairs(Vec::new())), weight_map })
            }
        }
        d.deserialize_map(Fields)
    }
}

//! THE op table: one file per op or family of ops. The build script finds the files.

use crate::op::OpDef;
use std::collections::HashMap;
use std::sync::LazyLock;

include!(concat!(env!("OUT_DIR"), "/ops.rs"));

/// Every op, sorted by name.
pub fn all() -> &'static [&'static OpDef] {
    static ALL: LazyLock<Vec<&'static OpDef>> = LazyLock::new(|| {
        let mut v: Vec<_> = FILES.iter().flat_map(|f| f.iter().copied()).collect();
        v.sort_by_key(|d| d.name);
        v
    });
    &ALL
}

/// The op of that name.
pub fn find(name: &str) -> Option<&'static OpDef> {
    static BY_NAME: LazyLock<HashMap<&'static str, &'static OpDef>> =
        LazyLock::new(|| all().iter().map(|d| (d.name, *d)).collect());
    BY_NAME.get(name).copied()
}

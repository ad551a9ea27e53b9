//! The rules for ONNX nodes: what is always true of them, and what they make of nodes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx_ir::onnx;
use std::collections::BTreeMap;

/// Else the order of files would decide.
#[test]
fn one_rule_per_name_and_version() {
    let mut seen: BTreeMap<_, Vec<&str>> = BTreeMap::new();
    for (r, def) in onnx::rules() {
        seen.entry((r.domain, r.name, r.since)).or_default().push(def.name);
    }
    seen.retain(|_, ops| ops.len() > 1);
    assert!(seen.is_empty(), "several rules for {seen:?}");
}

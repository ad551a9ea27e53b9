//! `docs/ops.md`, written from the op table.

use rlx_ir::doc;
use rlx_ir::op::OpDef;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// The page of all ops.
pub fn render() -> String {
    let mut files: BTreeMap<&str, Vec<&'static OpDef>> = BTreeMap::new();
    for op in rlx_ir::ops::all() {
        let stem = Path::new(op.file).file_stem().and_then(|s| s.to_str()).unwrap_or("?");
        files.entry(stem).or_default().push(op);
    }
    let mut out = String::new();
    let done = write(&mut out, &files);
    debug_assert!(done.is_ok(), "strings take everything");
    out
}

fn write(out: &mut String, files: &BTreeMap<&str, Vec<&'static OpDef>>) -> std::fmt::Result {
    writeln!(
        out,
        "# Ops\n\n\
         The op table, one section per file under `crates/rlx-ir/src/ops/`. This page is written from it by \
         `cargo run -p rlx-conformance --bin bless`; a test fails when it is stale. How calls are written is in \
         [text-format.md](text-format.md); what errors mean is in [errors/](errors/). Operands that take floats, \
         numbers or any dtype share one dtype within a call. Axes may count from the end.\n"
    )?;
    writeln!(
        out,
        "| file | op | meaning | gradient | batching | ONNX | samples |\n|---|---|---|---|---|---|---|"
    )?;
    for (file, ops) in files {
        for op in ops {
            writeln!(
                out,
                "| {file} | [{name}](#{name}) | {} | {} | {} | {} | {} |",
                doc::meaning(op),
                doc::gradient(op),
                doc::batching(op),
                op.onnx.join(", "),
                op.sample_list().len(),
                name = op.name,
            )?;
        }
    }
    for (file, ops) in files {
        writeln!(out, "\n## {file}")?;
        for op in ops {
            write!(out, "\n{}", doc::page(op))?;
        }
    }
    Ok(())
}

//! `docs/ops.md`, written from the op table.

use rlx_ir::doc;
use rlx_ir::op::OpDef;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

const HEAD: &str = "\
The COUNT ops of the table, one section per file under `crates/rlx-ir/src/ops/`. This page is written from the table \
by `cargo xtask bless`; a test fails when it is stale. `rlx ops NAME` prints the part of one op.

How to read an entry:

- The first line is a call in the [text format](text-format.md). An operand with `?` may be left out, one with `…` \
stands for any number; attributes are shown at their defaults, and those in `‹›` must be given. In Rust it is a \
method of the first operand.
- Operands that take floats, numbers or any dtype share one dtype within a call. Axes may count from the end.
- C1, C2 … are the constraints that [errors](errors/README.md) refer to.
- Meaning: what the reference interpreter does: one scalar formula (element-wise), simpler ops (body), or a loop of \
its own (primitive).
- Gradient: by a rule of the op, through its body, or none. Batching, which is `vmap`: likewise; an element-wise op \
needs nothing, and a loop takes one entry at a time.
- Tolerance: how far a backend may be from the interpreter, relative to the size of the result.
\n";

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
    let count: usize = files.values().map(Vec::len).sum();
    writeln!(out, "# Ops\n\n{}", HEAD.replace("COUNT", &count.to_string()))?;
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
                op.onnx_names().join(", "),
                op.sample_list().len(),
                name = op.name,
            )?;
        }
    }
    for (file, ops) in files {
        writeln!(out, "\n## `{file}.rs`")?;
        for op in ops {
            write!(out, "\n{}", doc::page(op))?;
        }
    }
    Ok(())
}

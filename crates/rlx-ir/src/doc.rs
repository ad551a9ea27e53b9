//! The documentation of an op, from its declaration: what `rlx ops NAME` prints and `docs/ops.md` is made of.

use crate::attr::AttrSpec;
use crate::op::{Arity, Meaning, OpDef, Vjp, Vmap};
use crate::text::print_attr;
use std::fmt::Write;

/// The form of a call in the text format: `z = add(x, y)`.
pub fn signature(op: &OpDef) -> String {
    let operands: Vec<String> = op
        .operands
        .iter()
        .map(|o| match o.arity {
            Arity::One => o.name.to_string(),
            Arity::Optional => format!("{}?", o.name),
            Arity::Many => format!("{}…", o.name),
        })
        .collect();
    let attrs: Vec<String> = op
        .attrs
        .iter()
        .map(|a| match default(a) {
            Some(d) => format!("{}: {d}", a.name),
            None => format!("{}: ‹{}›", a.name, a.kind.words()),
        })
        .collect();
    let mut out = format!("{} = {}({})", op.results.join(", "), op.name, operands.join(", "));
    if !attrs.is_empty() {
        out += &format!(" {{{}}}", attrs.join(", "));
    }
    for r in op.regions {
        out += &format!(" {r} (…) {{…}}");
    }
    out
}

/// The text of an attribute that is left out; `None` if it may not be.
fn default(a: &AttrSpec) -> Option<String> {
    match a.default {
        Some(d) => Some(print_attr(&d())),
        None => a.optional.then(|| "none".to_string()),
    }
}

/// The first sentence of an op's documentation.
pub fn summary(op: &OpDef) -> String {
    let doc: String = paragraphs(op.doc).lines().next().unwrap_or("").into();
    match doc.find(". ") {
        Some(end) => doc.get(..=end).unwrap_or("").into(),
        None => doc,
    }
}

/// Lines of one paragraph joined, paragraphs and lists kept apart.
fn paragraphs(doc: &str) -> String {
    let mut out = String::new();
    let mut verbatim = false;
    for line in doc.lines() {
        let fence = line.trim_start().starts_with("```");
        let line = if verbatim { line.trim_end() } else { line.trim() };
        let starts = fence || verbatim || line.is_empty() || line.starts_with(['-', '|', '#']);
        if !out.is_empty() {
            let open = out.ends_with('\n') || starts;
            out.push(if open && !out.ends_with("\n\n") || verbatim || fence { '\n' } else { ' ' });
        }
        out.push_str(line);
        verbatim ^= fence;
    }
    out.trim_end().to_string()
}

/// How the op is differentiated, in a few words.
pub fn gradient(op: &OpDef) -> &'static str {
    match op.vjp {
        Vjp::Zero => "none",
        Vjp::Through => "through the body",
        Vjp::Rule(_) => "rule",
    }
}

/// How the op is batched, in a few words.
pub fn batching(op: &OpDef) -> &'static str {
    match op.vmap {
        Vmap::Elementwise => "element-wise",
        Vmap::Through => "through the body",
        Vmap::Loop => "loop",
        Vmap::Rule(_) => "rule",
    }
}

/// What kind of meaning the op has, in a few words.
pub fn meaning(op: &OpDef) -> &'static str {
    match op.meaning {
        Meaning::Scalar(_) => "element-wise",
        Meaning::Body(_) => "body over simpler ops",
        Meaning::Primitive(_) => "primitive",
        Meaning::Region => "region",
        Meaning::Collective(_) => "collective",
    }
}

/// The page of an op, in Markdown.
pub fn page(op: &OpDef) -> String {
    let mut out = String::new();
    let done = write_page(&mut out, op);
    debug_assert!(done.is_ok(), "strings take everything");
    out
}

fn write_page(out: &mut String, op: &OpDef) -> std::fmt::Result {
    writeln!(out, "### {}\n\n```text\n{}\n```\n\n{}\n", op.name, signature(op), paragraphs(op.doc))?;
    if !op.operands.is_empty() {
        writeln!(out, "| operand | takes | |\n|---|---|---|")?;
        for o in op.operands {
            let how = match o.arity {
                Arity::One => "",
                Arity::Optional => "optional",
                Arity::Many => "any number",
            };
            writeln!(out, "| `{}` | {} | {how} |", o.name, o.class.words())?;
        }
        writeln!(out)?;
    }
    if !op.attrs.is_empty() {
        writeln!(out, "| attribute | holds | default |\n|---|---|---|")?;
        for a in op.attrs {
            let default = default(a).map_or(String::new(), |d| format!("`{d}`"));
            // A bare bar would end the cell.
            let holds = a.kind.words().replace('|', "\\|");
            writeln!(out, "| `{}` | {holds} | {default} |", a.name)?;
        }
        writeln!(out)?;
    }
    let results: Vec<String> = op.results.iter().map(|r| format!("`{r}`")).collect();
    writeln!(out, "Results: {}.", results.join(", "))?;
    if !op.regions.is_empty() {
        let regions: Vec<String> = op.regions.iter().map(|r| format!("`{r}`")).collect();
        writeln!(out, "Regions: {}.", regions.join(", "))?;
    }
    writeln!(out)?;
    for (i, c) in op.constraints.iter().enumerate() {
        writeln!(out, "- C{}: {c}", i + 1)?;
    }
    if !op.constraints.is_empty() {
        writeln!(out)?;
    }
    let t = op.tol;
    writeln!(out, "Meaning: {}. Gradient: {}. Batching: {}.", meaning(op), gradient(op), batching(op))?;
    write!(out, "Tolerance: f32 {:e}, f16 {:e}, bf16 {:e}.", t.f32, t.f16, t.bf16)?;
    if !op.onnx.is_empty() {
        write!(out, " ONNX: {}.", op.onnx_names().join(", "))?;
    }
    writeln!(out)
}

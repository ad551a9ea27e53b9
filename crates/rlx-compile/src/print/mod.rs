//! Programs for people: what was fused and why, where everything lies, what each kernel does.
//!
//! [`fusion`], [`plan`] and [`kernels`] give text, [`dot`] a graph of the calls for Graphviz, [`arena`] a picture of the
//! memory over time.

mod svg;

pub use svg::arena;

use crate::access::dense_strides;
use crate::plan::{Layout, Report};
use crate::program::{Arg, Call, Inst, Kernel, Place, Program, Region, SizeId, SlotId, Work};
use rlx_ir::dim::{Bindings, DimError};
use rlx_ir::{DType, Dim};
use std::fmt::Write;

/// A buffer of the arena at known sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    /// The first slot in it.
    pub slot: SlotId,
    /// The ops that write it first.
    pub label: String,
    /// Its type in the graph's own sizes.
    pub ty: String,
    /// Where it begins.
    pub offset: i64,
    /// Its size.
    pub bytes: i64,
    /// The first step that touches it.
    pub first: u32,
    /// The last one.
    pub last: u32,
}

/// The arena at known sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct Arena {
    /// The buffers, in the order of the steps that first touch them.
    pub buffers: Vec<Placed>,
    /// Peak and lower bound.
    pub report: Report,
    /// The number of steps.
    pub steps: u32,
}

impl Arena {
    /// The arena of a program with its symbols bound.
    pub fn new(p: &Program, bindings: &Bindings) -> Result<Arena, DimError> {
        let mut sizes = Vec::new();
        p.sizes.bind(bindings, &mut sizes)?;
        let mut layout = Layout::default();
        p.plan.layout(&sizes, &mut layout);
        let placed = |(b, offset): (&crate::plan::Buffer, &i64)| Placed {
            slot: b.slot,
            label: writer(p, b.slot).map_or_else(String::new, |c| c.label.clone()),
            ty: slot_type(p, b.slot),
            offset: *offset,
            bytes: sizes.get(b.bytes.0 as usize).copied().unwrap_or(0),
            first: b.first,
            last: b.last,
        };
        let mut buffers: Vec<Placed> = p.plan.buffers.iter().zip(&layout.offsets).map(placed).collect();
        buffers.sort_by_key(|b| (b.first, b.offset));
        let steps = buffers.iter().map(|b| b.last.saturating_add(1)).max().unwrap_or(0);
        Ok(Arena { buffers, report: p.plan.report(&sizes), steps })
    }
}

/// The call that writes a slot first.
fn writer(p: &Program, slot: SlotId) -> Option<&Call> {
    p.calls.iter().find(|c| {
        let args = p.kernel(c).map(|k| k.args.as_slice()).unwrap_or_default();
        c.args.iter().zip(args).any(|((s, _), a)| *s == slot && a.write)
    })
}

fn list(p: &Program, ids: &[SizeId]) -> String {
    let texts: Vec<String> = ids.iter().map(|d| p.sizes.dim(*d).to_string()).collect();
    format!("[{}]", texts.join(", "))
}

fn slot_type(p: &Program, id: SlotId) -> String {
    p.slot(id).map_or_else(|_| "?".into(), |s| format!("{}{}", s.dtype, list(p, &s.shape)))
}

/// What a slot is called: as in the graph, or `%` and its number.
pub fn slot_name(p: &Program, id: SlotId) -> String {
    let named = |list: &[crate::program::Named], k: u32| list.get(k as usize).map(|n| n.name.clone());
    let name = match p.slot(id).map(|s| &s.place) {
        Ok(Place::Input(k)) => named(&p.inputs, *k),
        Ok(Place::Param(k)) => named(&p.params, *k),
        Ok(Place::Prepared(k)) => named(&p.prepared, *k),
        Ok(Place::Output(k)) => named(&p.outputs, *k),
        Ok(Place::Constant(_)) => Some(format!("const{}", id.0)),
        Ok(Place::Arena(_)) | Err(_) => None,
    };
    name.unwrap_or_else(|| format!("%{}", id.0))
}

/// What a kernel is, in a word or two.
pub fn kind(k: &Kernel) -> String {
    match &k.work {
        Work::Region(_) => "region".into(),
        Work::Product(p) => {
            let with = [p.prologue.as_ref().map(|_| "prologue"), p.epilogue.as_ref().map(|_| "epilogue")];
            let what = if p.zeros.is_some() { "integer product" } else { "product" };
            match with.into_iter().flatten().collect::<Vec<_>>().join(" and ") {
                with if with.is_empty() => what.into(),
                with => format!("{what} with {with}"),
            }
        }
        Work::Copy => "copy".into(),
        Work::Kernel { step, epilogue: Some(_), .. } => format!("{} with epilogue", word(step)),
        Work::Kernel { step, .. } | Work::Flow { step, .. } => word(step),
    }
}

/// The name of a variant, without what it holds.
fn word(x: &impl std::fmt::Debug) -> String {
    let text = format!("{x:?}");
    let end = text.find(|c: char| !c.is_alphanumeric()).unwrap_or(text.len());
    let mut out = String::new();
    for c in text.get(..end).unwrap_or_default().chars() {
        if c.is_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.extend(c.to_lowercase());
    }
    out
}

/// What a kernel runs over, if it is a space.
pub fn space(p: &Program, k: &Kernel) -> Option<String> {
    k.work.region().map(|r| {
        let (rows, lanes) = r.space.split_at(r.space.len().saturating_sub(r.lanes));
        if r.lanes == 0 { list(p, rows) } else { format!("rows {} lanes {}", list(p, rows), list(p, lanes)) }
    })
}

/// A number of things.
fn counted(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

/// Name and numbers of a program.
fn head(p: &Program) -> String {
    let symbols: Vec<String> = p.symbols.iter().map(|s| format!("{} <= {}", s.name, s.max)).collect();
    let symbols = if symbols.is_empty() { String::new() } else { format!("; {}", symbols.join(", ")) };
    let (calls, kernels) = (counted(p.calls.len(), "call"), counted(p.kernels.len(), "kernel"));
    format!("{}: {calls} of {kernels}{symbols}\n", p.name.replace(char::is_control, " "))
}

/// Calls one part of the text on a program, on what runs when params are set, and on the bodies of control flow.
fn each(p: &Program, title: &str, depth: usize, out: &mut String, part: &dyn Fn(&Program) -> String) {
    let text = format!("{title}{}{}", head(p), part(p));
    for line in text.lines() {
        let line = format!("{}{line}", "  ".repeat(depth));
        out.push_str(line.trim_end());
        out.push('\n');
    }
    for (i, k) in p.kernels.iter().enumerate() {
        if let Work::Flow { bodies, .. } = &k.work {
            for (j, b) in bodies.iter().enumerate() {
                out.push('\n');
                each(b, &format!("body {j} of kernel {i}, "), depth + 1, out, part);
            }
        }
    }
    if let Some(prepare) = &p.prepare {
        out.push('\n');
        each(prepare, "once, when params are set: ", depth, out, part);
    }
}

/// Every call with its ops, its kernel and why things were fused or kept apart.
pub fn fusion(p: &Program) -> String {
    let mut out = String::new();
    each(p, "", 0, &mut out, &|p| {
        let mut out = String::new();
        for (i, c) in p.calls.iter().enumerate() {
            let Ok(k) = p.kernel(c) else { continue };
            let over = space(p, k).map_or(String::new(), |s| format!(" over {s}"));
            let _ = writeln!(out, "\n{i:>4}  {}", c.label);
            let _ = writeln!(out, "      kernel {}: {}{over}", c.kernel, kind(k));
            let _ = writeln!(out, "      {}", operands(p, c, k));
            let notes = p.notes.get(i).map(String::as_str).unwrap_or_default();
            for note in notes.lines().filter(|n| !n.is_empty()) {
                let _ = writeln!(out, "      - {note}");
            }
        }
        out
    });
    out
}

/// What a call reads and writes.
fn operands(p: &Program, c: &Call, k: &Kernel) -> String {
    let names = |write: bool| {
        let args = c.args.iter().zip(&k.args).filter(|(_, a)| a.write == write);
        let one = |((slot, _), a): (&(SlotId, SizeId), &Arg)| match (a.write, a.over) {
            (true, Some(_)) => format!("{} {} (in place)", slot_name(p, *slot), slot_type(p, *slot)),
            (true, None) => format!("{} {}", slot_name(p, *slot), slot_type(p, *slot)),
            _ => slot_name(p, *slot),
        };
        args.map(one).collect::<Vec<_>>().join(", ")
    };
    format!("{} -> {}", names(false), names(true))
}

/// A number of bytes for people.
pub fn bytes(n: i64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut x, mut unit) = (n as f64, UNITS.iter());
    let mut name = unit.next().copied().unwrap_or_default();
    while x.abs() >= 1024.0
        && let Some(next) = unit.next()
    {
        (x, name) = (x / 1024.0, next);
    }
    if name == "B" { format!("{n} B") } else { format!("{x:.1} {name}") }
}

/// The buffers of the arena with offsets and lifetimes, and how good the layout is.
pub fn plan(p: &Program, bindings: &Bindings) -> Result<String, DimError> {
    let mut out = one_plan(p, bindings)?;
    if let Some(prepare) = &p.prepare {
        let _ = write!(out, "\nonce, when params are set: {}", one_plan(prepare, bindings)?);
    }
    Ok(out)
}

fn one_plan(p: &Program, bindings: &Bindings) -> Result<String, DimError> {
    let arena = Arena::new(p, bindings)?;
    let at: Vec<String> = bindings.iter().map(|(n, v)| format!("{n} = {v}")).collect();
    let at = if at.is_empty() { String::new() } else { format!(" at {}", at.join(", ")) };
    let r = arena.report;
    let mut out = format!(
        "{}{}, {}{at}\n",
        head(p),
        counted(arena.steps as usize, "step"),
        counted(arena.buffers.len(), "buffer")
    );
    let _ = writeln!(
        out,
        "peak {} ({} B), lower bound {} ({} B), waste {:.1} %",
        bytes(r.peak),
        r.peak,
        bytes(r.bound),
        r.bound,
        100.0 * r.waste()
    );
    let _ = writeln!(
        out,
        "live at most {} ({} B) in this order, {} ({} B) in the graph's",
        bytes(r.bound),
        r.bound,
        bytes(r.graph),
        r.graph
    );
    if arena.buffers.is_empty() {
        return Ok(out);
    }
    let _ = writeln!(out, "\n{:>12}  {:>12}  {:>9}  {:8}  what", "offset", "bytes", "steps", "slot");
    for b in &arena.buffers {
        let steps = format!("{}..{}", b.first, b.last);
        let what = format!("{} {}", b.label, b.ty);
        let slot = slot_name(p, b.slot);
        let _ = writeln!(out, "{:>12}  {:>12}  {steps:>9}  {slot:8}  {what}", b.offset, b.bytes);
    }
    Ok(out)
}

/// Every kernel with its arguments and instructions.
pub fn kernels(p: &Program) -> String {
    let mut out = String::new();
    each(p, "", 0, &mut out, &|p| {
        let mut out = String::new();
        for (i, k) in p.kernels.iter().enumerate() {
            let calls = p.calls.iter().filter(|c| c.kernel as usize == i).count();
            let over = space(p, k).map_or(String::new(), |s| format!(" over {s}"));
            let _ = writeln!(out, "\nkernel {i}: {}{over}, {}", kind(k), counted(calls, "call"));
            if let Work::Kernel { step, .. } | Work::Flow { step, .. } = &k.work {
                let _ = writeln!(out, "  {step:?}");
            }
            for (a, arg) in k.args.iter().enumerate() {
                let _ = writeln!(out, "  a{a} {}", argument(p, arg));
            }
            for line in code(p, k) {
                let _ = writeln!(out, "  {line}");
            }
        }
        out
    });
    out
}

/// An argument: which way it goes, its type, and its strides where it is not dense.
pub fn argument(p: &Program, a: &Arg) -> String {
    let dims = |ids: &[SizeId]| ids.iter().map(|d| p.sizes.dim(*d)).collect::<Vec<Dim>>();
    let way = if a.write { "out" } else { "in" };
    let mut text = format!("{way} {}{}", a.dtype, list(p, &a.shape));
    if dims(&a.strides) != dense_strides(&dims(&a.shape)) {
        let _ = write!(text, " strides {}", list(p, &a.strides));
    }
    if let Some(over) = a.over {
        let _ = write!(text, " over a{over}");
    }
    text
}

/// The instructions of a kernel, a line each.
pub fn code(p: &Program, k: &Kernel) -> Vec<String> {
    let lines = |r: &Region| r.code.iter().enumerate().map(|(i, c)| inst(p, k, i, c)).collect::<Vec<_>>();
    k.work.regions().flat_map(lines).collect()
}

fn inst(p: &Program, k: &Kernel, i: usize, c: &Inst) -> String {
    let size = |d: &SizeId| p.sizes.dim(*d).to_string();
    let does = match c {
        Inst::Store { arg, value } => return format!("a{arg} = r{value}"),
        Inst::Give(value) => return format!("give r{value} to the product"),
        Inst::Load(arg) => format!("a{arg}"),
        Inst::Take { arg, index, stride, len, .. } => {
            format!("a{arg}[r{index}] of {} entries, {} apart", size(len), size(stride))
        }
        Inst::Produced(dtype) => match &k.work {
            Work::Kernel { step, .. } => format!("what {} gives, {dtype}", word(step)),
            _ => format!("the product, {dtype}"),
        },
        Inst::Number(dtype, bytes) => number(*dtype, bytes),
        Inst::Size(d, dtype) => format!("{dtype} {}", size(d)),
        Inst::Iota { strides, offset, dtype } => {
            format!("iota {dtype} strides {} from {}", list(p, strides), size(offset))
        }
        Inst::Scalar { op, dtype, args } => {
            let args: Vec<String> = args.iter().map(|r| format!("r{r}")).collect();
            format!("{} {dtype} {}", word(op), args.join(" "))
        }
        Inst::Cast { arg, from, to } => format!("cast r{arg} {from} -> {to}"),
        Inst::Fold { kind, arg, dtype } => format!("fold {} {dtype} r{arg}", word(kind)),
    };
    format!("r{i} = {does}")
}

fn number(dtype: DType, bytes: &[u8]) -> String {
    let t = rlx_ir::Tensor::from_bytes(dtype, &[], bytes).ok();
    let float = t.as_ref().and_then(|t| t.to_f64s()).and_then(|v| v.first().map(f64::to_string));
    let int = || t.as_ref().and_then(|t| t.to_i128s()).and_then(|v| v.first().map(i128::to_string));
    let shown = if dtype.is_float() { float } else { int() };
    format!("{dtype} {}", shown.unwrap_or_else(|| "?".into()))
}

/// A text in quotes, for Graphviz.
fn quoted(s: &str) -> String {
    let s = s.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{}\"", s.replace(char::is_control, " "))
}

/// The calls as nodes, the slots that go from one to another as edges.
pub fn dot(p: &Program) -> String {
    let mut out = format!("digraph {} {{\n  rankdir=TB\n", quoted(&p.name));
    let mut made: Vec<Option<String>> = vec![None; p.slots.len()];
    let ports =
        p.inputs.iter().map(|n| (n, "box")).chain(p.params.iter().chain(&p.prepared).map(|n| (n, "box3d")));
    for (n, shape) in ports {
        let id = format!("slot_{}", n.slot.0);
        let _ = writeln!(out, "  {id} [shape={shape}, label={}]", quoted(&n.name));
        if let Some(m) = made.get_mut(n.slot.0 as usize) {
            *m = Some(id);
        }
    }
    for (i, c) in p.calls.iter().enumerate() {
        let Ok(k) = p.kernel(c) else { continue };
        let _ = writeln!(out, "  call_{i} [label={}]", quoted(&format!("{} ({})", c.label, kind(k))));
        let args = || c.args.iter().zip(&k.args).map(|((slot, _), a)| (*slot, a.write));
        for (slot, _) in args().filter(|a| !a.1) {
            if let Some(Some(from)) = made.get(slot.0 as usize) {
                let label = quoted(&format!("{} {}", slot_name(p, slot), slot_type(p, slot)));
                let _ = writeln!(out, "  {from} -> call_{i} [label={label}]");
            }
        }
        for (slot, _) in args().filter(|a| a.1) {
            if let Some(m) = made.get_mut(slot.0 as usize) {
                *m = Some(format!("call_{i}"));
            }
        }
    }
    for (i, o) in p.outputs.iter().enumerate() {
        let _ = writeln!(out, "  out_{i} [shape=box, style=rounded, label={}]", quoted(&o.name));
        if let Some(Some(from)) = made.get(o.slot.0 as usize) {
            let _ = writeln!(out, "  {from} -> out_{i} [label={}]", quoted(&slot_type(p, o.slot)));
        }
    }
    out + "}\n"
}

//! `rlx run --bisect`: the first step that disagrees with the oracle.
//!
//! First the oracle runs the graph before and after it is rewritten and expanded: if the two disagree, a rewrite is at fault.
//! Then every value of the expanded graph becomes an output of a program without fusion, and each is compared with the
//! oracle in the order of the graph. If all agree but the outputs of the fused program do not, fusion is at fault: then
//! single values are asked of fused programs until one that agrees stands before one that does not.

use crate::compare::{Errors, errors};
use crate::data::Given;
use crate::engine::ready;
use crate::failure::{Failure, Result};
use rlx::func::{Def, Output, PortKind};
use rlx::op::Step;
use rlx::oracle::Arr;
use rlx::{
    CompileOptions, DType, Device, Func, Graph, Node, Options, Precision, Tensor, ValueId, eval, tools,
};
use std::io::Write;

/// What was found.
struct Finding {
    /// The node at fault, by its place.
    node: usize,
    errors: Errors,
    tolerance: f64,
    /// The error of the node alone: the oracle's node on the device's operands.
    own: Option<f64>,
    /// Whether only fusion brings it about.
    fused: bool,
}

pub(crate) fn bisect(
    f: &Func,
    device: Device,
    options: &CompileOptions,
    data: &Given,
    out: &mut impl Write,
) -> Result<()> {
    let stages = tools::stages(f, device, options)?;
    let expanded = stages.expanded;
    let all = with_outputs(&expanded, 0..expanded.nodes.len());
    let tolerances = tolerances(&expanded, options.precision);
    for ((o, want), got) in expanded.outputs.iter().zip(oracle(f, data)?).zip(oracle(&expanded, data)?) {
        let e = errors(&want, &got.to_tensor()?)?;
        let most = tolerances.iter().fold(0f64, |a, b| a.max(*b));
        if e.relative > most.max(f64::from(f32::EPSILON)) {
            let rules: Vec<&str> = stages.rewritten.fired.iter().map(|(rule, _)| *rule).collect();
            writeln!(
                out,
                "output {} is off by {:.2e} after rewriting, on the oracle itself",
                o.name, e.relative
            )?;
            writeln!(out, "  rules that fired: {}", rules.join(", "))?;
            return Err(Failure::other(format!("rewriting changes the output {}", o.name)));
        }
    }
    let options = &CompileOptions { rewrite: false, ..options.clone() };
    let want = oracle(&all, data)?;
    let apart = CompileOptions { fuse: false, ..options.clone() };
    let got = on_device(&all, device, &apart, data)?;
    let mut finding = None;
    let mut worst = 0f64;
    for (o, (want, value)) in all.outputs.iter().zip(want.iter().zip(&got)) {
        let Def::Node(node, _) = expanded.value(o.value)?.def else { continue };
        let node = node as usize;
        let e = errors(want, value)?;
        let tolerance = tolerances.get(node).copied().unwrap_or(0.0);
        worst = worst.max(e.relative);
        if !within(&e, tolerance) {
            let own = alone(&expanded, &all, node, &got, data).unwrap_or(None);
            finding = Some(Finding { node, errors: e, tolerance, own, fused: false });
            break;
        }
    }
    if finding.is_none() {
        finding = fused(&expanded, device, options, data, &all, &want, &tolerances)?;
    }
    let count = expanded.nodes.len();
    match finding {
        None => Ok(writeln!(
            out,
            "all {count} steps and {} outputs agree with the oracle; the worst relative error is {worst:.1e}",
            expanded.outputs.len()
        )?),
        Some(found) => {
            let line = told(&expanded, &found, out)?;
            Err(Failure::other(line))
        }
    }
}

/// Prints the finding, and gives it in a line.
fn told(f: &Func, found: &Finding, out: &mut impl Write) -> Result<String> {
    let Some(node) = f.nodes.get(found.node) else { return Ok("a step disagrees with the oracle".into()) };
    let names = crate::inspect::names(f);
    let name = |v: &ValueId| names.get(v.0 as usize).cloned().unwrap_or_default();
    let results: Vec<String> = node.results.iter().map(&name).collect();
    let operands: Vec<String> = node.operands.iter().flatten().map(&name).collect();
    let call = format!("{} = {}({})", results.join(", "), node.op.name, operands.join(", "));
    writeln!(out, "step {} of {}: {call}", found.node, f.nodes.len())?;
    writeln!(out, "  written at {}", node.loc)?;
    let e = &found.errors;
    writeln!(out, "  off by {:.2e}, {:.1e} is allowed on this path", e.relative, found.tolerance)?;
    if let Some((i, want, got)) = e.worst {
        writeln!(out, "  worst at element {i}: {got:?}, the oracle says {want:?}")?;
    }
    if found.fused {
        writeln!(out, "  unfused it agrees: only the fused program is off")?;
    } else if let Some(own) = found.own {
        let whose = if own <= found.tolerance {
            "the step itself is right: it magnifies the rounding of its operands"
        } else {
            "the step itself is off"
        };
        writeln!(out, "  on the device's own operands it is off by {own:.2e}: {whose}")?;
    }
    Ok(format!(
        "{} at {} is the first step that disagrees with the oracle: off by {:.2e}",
        node.op.name, node.loc, e.relative
    ))
}

/// The graph with the results of these nodes as its outputs.
fn with_outputs(f: &Func, nodes: impl Iterator<Item = usize>) -> Func {
    let values = nodes.filter_map(|n| f.nodes.get(n)).flat_map(|n| n.results.iter());
    let outputs = values.map(|v| Output { name: format!("v{}", v.0), value: *v }).collect();
    Func { outputs, ..f.clone() }
}

fn oracle(f: &Func, data: &Given) -> Result<Vec<Arr>> {
    let given: Vec<(&str, &Tensor)> = data.iter().map(|(n, t)| (n.as_str(), t)).collect();
    Ok(eval(f, &given, &Options::default())?.into_iter().map(|(_, a)| a).collect())
}

fn on_device(f: &Func, device: Device, options: &CompileOptions, data: &Given) -> Result<Vec<Tensor>> {
    let ready = ready(f, device, options, data)?;
    Ok(ready.exe.run(&ready.inputs)?.into_vec().into_iter().map(|(_, t)| t).collect())
}

fn within(e: &Errors, tolerance: f64) -> bool {
    e.relative <= tolerance
}

/// What each node may be off by: its own tolerance and the most that any operand may be off by.
fn tolerances(f: &Func, precision: Precision) -> Vec<f64> {
    /// A factor of 2^-8, rounded up: what products of operands in bf16 are off by.
    const BF16: f64 = 2e-2;
    let mut values = vec![0f64; f.values.len()];
    let mut nodes = Vec::with_capacity(f.nodes.len());
    for n in &f.nodes {
        let dtype = n.results.first().and_then(|r| f.ty(*r).ok()).map_or(DType::F32, |t| t.dtype);
        let own = match dtype {
            DType::F64 => n.op.tol.f64,
            DType::F16 => n.op.tol.f16,
            DType::BF16 => n.op.tol.bf16,
            _ => n.op.tol.f32,
        };
        let types: Vec<_> = n.operands.iter().map(|o| o.and_then(|v| f.ty(v).ok().cloned())).collect();
        let product =
            matches!(n.step(&types), Some(Ok(Step::Dot { .. } | Step::Conv { .. } | Step::Attention(_))));
        let own = if product && precision == Precision::Bf16 { own.max(BF16) } else { own };
        let most =
            n.operands.iter().flatten().filter_map(|v| values.get(v.0 as usize)).fold(0f64, |a, b| a.max(*b));
        for r in &n.results {
            if let Some(v) = values.get_mut(r.0 as usize) {
                *v = own + most;
            }
        }
        nodes.push(own + most);
    }
    nodes
}

/// The error of one node alone: the oracle evaluates it on what the device made of its operands.
fn alone(f: &Func, all: &Func, node: usize, got: &[Tensor], data: &Given) -> Result<Option<f64>> {
    let Some(n) = f.nodes.get(node) else { return Ok(None) };
    let of = |v: ValueId| -> Option<Tensor> {
        match f.value(v).ok()?.def {
            Def::Port(k) => {
                let p = f.ports.get(k as usize)?;
                let inline = match &p.source {
                    Some(rlx::func::Source::Inline(t)) => Some(t.clone()),
                    _ => None,
                };
                data.iter().find(|(name, _)| *name == p.name).map(|(_, t)| t.clone()).or(inline)
            }
            Def::Node(..) => {
                let at = all.outputs.iter().position(|o| o.value == v)?;
                got.get(at).cloned()
            }
        }
    };
    let mut given: Given = Vec::new();
    for v in n.operands.iter().flatten() {
        let Some(t) = of(*v) else { return Ok(None) };
        given.push((format!("x{}", given.len()), t));
    }
    let single = single(n, &given)?;
    let want = oracle(&single, &given)?;
    let first = n.results.first().and_then(|r| all.outputs.iter().position(|o| o.value == *r));
    let worst = want.iter().zip(first.and_then(|at| got.get(at..)).unwrap_or_default());
    let mut own = 0f64;
    for (want, got) in worst {
        own = own.max(errors(want, got)?.relative);
    }
    Ok(Some(own))
}

/// A graph of one node, its operands being inputs of the sizes that they have in this run.
fn single(n: &Node, given: &Given) -> Result<Func> {
    let g = Graph::new("step");
    {
        let mut ports = given.iter().map(|(name, t)| g.port(name, t.ty(), PortKind::Input, None));
        let operands = n.operands.iter().map(|o| o.and_then(|_| ports.next())).collect();
        for (k, v) in g.emit_at(n, operands).into_iter().enumerate() {
            g.output(&format!("y{k}"), v);
        }
    }
    Ok(g.finish()?)
}

/// The first disagreement that only the fused program has.
fn fused(
    f: &Func,
    device: Device,
    options: &CompileOptions,
    data: &Given,
    all: &Func,
    want: &[Arr],
    tolerances: &[f64],
) -> Result<Option<Finding>> {
    let check = |g: &Func| -> Result<Option<(usize, Errors, f64)>> {
        for (o, got) in g.outputs.iter().zip(&on_device(g, device, options, data)?) {
            let Def::Node(node, _) = f.value(o.value)?.def else { continue };
            let Some(want) = all.outputs.iter().position(|a| a.value == o.value).and_then(|i| want.get(i))
            else {
                continue;
            };
            let (e, tolerance) = (errors(want, got)?, tolerances.get(node as usize).copied().unwrap_or(0.0));
            if !within(&e, tolerance) {
                return Ok(Some((node as usize, e, tolerance)));
            }
        }
        Ok(None)
    };
    let Some(mut found) = check(f)? else { return Ok(None) };
    let before = ancestors(f, found.0);
    let (mut low, mut high) = (0, before.len());
    while low < high {
        let middle = (low + high) / 2;
        let Some(node) = before.get(middle) else { break };
        match check(&with_outputs(f, std::iter::once(*node)))? {
            Some(off) => (found, high) = (off, middle),
            None => low = middle + 1,
        }
    }
    let (node, errors, tolerance) = found;
    Ok(Some(Finding { node, errors, tolerance, own: None, fused: true }))
}

/// The nodes that a node depends on, in order.
fn ancestors(f: &Func, node: usize) -> Vec<usize> {
    let mut needed = vec![false; f.nodes.len()];
    let mut stack = vec![node];
    while let Some(i) = stack.pop() {
        for v in f.nodes.get(i).into_iter().flat_map(|n| n.operands.iter().flatten()) {
            if let Ok(Def::Node(k, _)) = f.value(*v).map(|v| v.def)
                && let Some(n) = needed.get_mut(k as usize)
                && !*n
            {
                *n = true;
                stack.push(k as usize);
            }
        }
    }
    needed.iter().enumerate().filter(|(_, n)| **n).map(|(i, _)| i).collect()
}

//! `rlx run --bisect`: the first step that disagrees with the oracle.
//!
//! If the outputs agree, so does everything that matters: sums that are 0 but for rounding are off by any factor. Else the
//! oracle runs the graph as it was and as it was rewritten and expanded: if the two disagree, a rewrite is at fault. Then
//! every value of the expanded graph is computed without fusion. The first node that is off when the oracle gets the
//! device's own operands is at fault; if there is none, it is the numbers: the first node that is off on a path of such nodes
//! to the output. If all these agree, fusion is at fault: then single values are asked of fused programs. In control flow that
//! is at fault the search goes on within the body.

use crate::compare::{Errors, errors, errors_beside};
use crate::data::{Given, bound};
use crate::engine::ready;
use crate::failure::{Failure, Result};
use rlx::func::{Def, Output, PortKind, Source};
use rlx::op::Step;
use rlx::oracle::Arr;
use rlx::{
    CompileOptions, DType, Device, Func, Graph, Node, Options, Precision, Tensor, ValueId, dim, eval, tools,
};
use std::io::Write;
use std::sync::Arc;

#[cfg(test)]
mod tests;

/// Whose fault it is.
enum Fault {
    /// That of the step itself.
    Step,
    /// That of the numbers: the step magnifies the rounding of its operands.
    Numbers,
    /// That of fusion.
    Fusion,
}

/// What was found.
struct Finding {
    /// The node at fault, by its place.
    node: usize,
    errors: Errors,
    tolerance: f64,
    fault: Fault,
    /// Of control flow: what is at fault within.
    inner: Option<Box<Inner>>,
}

/// What was found in a body of control flow.
struct Inner {
    body: Arc<Func>,
    /// The turn of the loop, from 0 on.
    turn: usize,
    found: Finding,
}

pub(crate) fn bisect(
    f: &Func,
    device: Device,
    options: &CompileOptions,
    data: &Given,
    out: &mut impl Write,
) -> Result<()> {
    let stages = tools::stages(f, device, options)?;
    let search = Search::new(&stages.expanded, device, options, data)?;
    let want = oracle(f, data)?;
    let got = on_device(f, device, options, data)?;
    let (bad, worst) = search.bad_outputs(&want, &got)?;
    let Some(first) = bad.first() else {
        let (count, outputs) = (search.f.nodes.len(), f.outputs.len());
        let line = format!(
            "{outputs} outputs of {count} steps agree with the oracle: the worst is off by {worst:.1e}"
        );
        return Ok(writeln!(out, "{line}")?);
    };
    let rewritten: Vec<Tensor> =
        oracle(search.f, data)?.iter().map(Arr::to_tensor).collect::<rlx::Result<_>>()?;
    let (changed, _) = search.bad_outputs(&want, &rewritten)?;
    if let Some(name) = changed.first().and_then(|k| f.outputs.get(*k)).map(|o| &o.name) {
        let rules: Vec<&str> = stages.rewritten.fired.iter().map(|(rule, _)| *rule).collect();
        writeln!(out, "output {name} is off after rewriting, on the oracle itself")?;
        writeln!(out, "  rules that fired: {}", rules.join(", "))?;
        return Err(Failure::other(format!("rewriting changes output {name}")));
    }
    match search.find(*first)? {
        Some(found) => Err(Failure::other(told(search.f, &found, out)?)),
        None => {
            let name = f.outputs.get(*first).map_or("", |o| o.name.as_str());
            Err(Failure::other(format!("output {name} disagrees with the oracle, but no step of it does")))
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
    writeln!(out, "  off by {:.2e}, where {:.1e} is allowed", e.relative, found.tolerance)?;
    if let Some((i, want, got)) = e.worst {
        writeln!(out, "  worst at element {i}: {got:?}, the oracle says {want:?}")?;
    }
    let whose = match found.fault {
        Fault::Step => "the step itself is off: the oracle was given the device's own operands",
        Fault::Numbers => "the step itself is right: it magnifies the rounding of its operands",
        Fault::Fusion => "without fusion it agrees: only the fused program is off",
    };
    writeln!(out, "  {whose}")?;
    if let Some(inner) = &found.inner {
        writeln!(out, "within it, in turn {}:", inner.turn)?;
        return told(&inner.body, &inner.found, out);
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

/// The expanded graph with the oracle's values.
struct Search<'a> {
    f: &'a Func,
    device: Device,
    options: CompileOptions,
    data: &'a Given,
    /// What each node may be off by alone.
    own: Vec<f64>,
    /// The same with the most that any operand may be off by.
    path: Vec<f64>,
}

impl<'a> Search<'a> {
    fn new(f: &'a Func, device: Device, options: &CompileOptions, data: &'a Given) -> Result<Search<'a>> {
        // The graph is what rewriting made of it; it is not rewritten again.
        let options = CompileOptions { rewrite: false, ..options.clone() };
        let (own, path) = tolerances(f, options.precision);
        Ok(Search { f, device, options, data, own, path })
    }

    fn node_of(&self, v: ValueId) -> Option<usize> {
        match self.f.value(v).ok()?.def {
            Def::Node(n, _) => Some(n as usize),
            Def::Port(_) => None,
        }
    }

    /// The outputs that are off, and the worst error of all.
    fn bad_outputs(&self, want: &[Arr], got: &[Tensor]) -> Result<(Vec<usize>, f64)> {
        let (mut bad, mut worst) = (Vec::new(), 0f64);
        for (k, ((o, want), got)) in self.f.outputs.iter().zip(want).zip(got).enumerate() {
            let e = errors(want, got)?;
            let tolerance = self.node_of(o.value).and_then(|n| self.path.get(n)).copied().unwrap_or(0.0);
            worst = worst.max(e.relative);
            if e.relative > tolerance {
                bad.push(k);
            }
        }
        Ok((bad, worst))
    }

    /// The node at fault for an output.
    fn find(&self, output: usize) -> Result<Option<Finding>> {
        let Some(last) = self.f.outputs.get(output).and_then(|o| self.node_of(o.value)) else {
            return Ok(None);
        };
        let nodes = ancestors(self.f, last);
        let all = with_outputs(self.f, nodes.iter().copied());
        let want = oracle(&all, self.data)?;
        let apart = CompileOptions { fuse: false, ..self.options.clone() };
        let got = on_device(&all, self.device, &apart, self.data)?;
        let values = Values { all: &all, want: &want, got: &got };
        for n in &nodes {
            let own = self.own.get(*n).copied().unwrap_or(0.0);
            // A node that the oracle cannot run alone is left to the other checks.
            if let Ok(Some(e)) = self.alone(*n, &values)
                && e.relative > own
            {
                // A body that cannot be run alone is left as it is.
                let inner = self.within(*n, &values).unwrap_or(None).map(Box::new);
                return Ok(Some(Finding { node: *n, errors: e, tolerance: own, fault: Fault::Step, inner }));
            }
        }
        // Back from the output along nodes that are off.
        let mut off: Option<Finding> = None;
        let (mut stack, mut seen) = (vec![last], vec![false; self.f.nodes.len()]);
        while let Some(n) = stack.pop() {
            if seen.get_mut(n).is_none_or(|s| std::mem::replace(s, true)) {
                continue;
            }
            let tolerance = self.path.get(n).copied().unwrap_or(0.0);
            let Some(e) = values.errors(self.f, n)?.filter(|e| e.relative > tolerance) else { continue };
            if off.as_ref().is_none_or(|o| n < o.node) {
                off = Some(Finding { node: n, errors: e, tolerance, fault: Fault::Numbers, inner: None });
            }
            let operands = self.f.nodes.get(n).into_iter().flat_map(|n| n.operands.iter().flatten());
            stack.extend(operands.filter_map(|v| self.node_of(*v)));
        }
        match off {
            Some(found) => Ok(Some(found)),
            None => self.fused(&nodes, &values),
        }
    }

    /// The error of one node alone: the oracle runs it on what the device made of its operands.
    fn alone(&self, node: usize, values: &Values<'_>) -> Result<Option<Errors>> {
        let Some(n) = self.f.nodes.get(node) else { return Ok(None) };
        let mut given: Given = Vec::new();
        let mut terms = 0f64;
        for v in n.operands.iter().flatten() {
            let Some(t) = self.operand(*v, values) else { return Ok(None) };
            if t.dtype().is_float() {
                let sizes = t.to_f64s().unwrap_or_default();
                terms = sizes.iter().filter(|x| x.is_finite()).fold(terms, |m, x| m.max(x.abs()));
            }
            given.push((format!("x{}", given.len()), t));
        }
        let single = self.single(n, &mut given)?;
        let mut worst: Option<Errors> = None;
        for (want, r) in oracle(&single, &given)?.iter().zip(&n.results) {
            let Some(got) = values.got(*r) else { continue };
            let e = errors_beside(want, got, terms)?;
            if worst.as_ref().is_none_or(|w| e.relative > w.relative) {
                worst = Some(e);
            }
        }
        Ok(worst)
    }

    /// The step at fault within control flow. The body of a loop is run turn by turn, on what the oracle makes of the turns
    /// before.
    fn within(&self, node: usize, values: &Values<'_>) -> Result<Option<Inner>> {
        /// Turns that are looked at: what a body gets wrong, it rarely gets right for long.
        const TURNS: i64 = 16;
        let Some(n) = self.f.nodes.get(node) else { return Ok(None) };
        let types: Vec<_> = n.operands.iter().map(|o| o.and_then(|v| self.f.ty(v).ok().cloned())).collect();
        let state: Option<Vec<Tensor>> =
            n.operands.iter().flatten().map(|v| self.operand(*v, values)).collect();
        let (Some(Ok(step)), Some(mut state)) = (n.step(&types), state) else { return Ok(None) };
        let sizes = bound(self.f, self.data);
        let (body, carries, xs, turns) = match &step {
            Step::If if !state.is_empty() => {
                let taken = state.remove(0).bytes() != [0];
                (n.regions.get(usize::from(!taken)), 0, 0, 1)
            }
            Step::While { carries, max, .. } => (n.regions.get(1), *carries, 0, *max),
            Step::Scan { carries, xs, length, .. } => {
                (n.regions.first(), *carries, *xs, length.eval(&sizes).unwrap_or(0))
            }
            _ => return Ok(None),
        };
        let Some(body) = body else { return Ok(None) };
        let given = |f: &Func, state: Vec<Tensor>| -> Given {
            f.ports.iter().map(|p| p.name.clone()).zip(state).collect()
        };
        for turn in 0..turns.clamp(0, TURNS) {
            if let (Step::While { .. }, Some(condition)) = (&step, n.regions.first()) {
                let holds = oracle(condition, &given(condition, state.clone()))?;
                if holds.first().is_none_or(|h| h.f64s() == [0.0]) {
                    break;
                }
            }
            let mut now = state.clone();
            if let Step::Scan { reverse, .. } = step {
                let entry = if reverse { turns - 1 - turn } else { turn };
                for x in now.iter_mut().skip(carries).take(xs) {
                    let Some(part) = entry_of(x, entry as usize) else { return Ok(None) };
                    *x = part;
                }
            }
            let data = given(body, now);
            let search = Search::new(body, self.device, &self.options, &data)?;
            let want = oracle(body, &data)?;
            let got = on_device(body, self.device, &search.options, &data)?;
            if let Some(first) = search.bad_outputs(&want, &got)?.0.first() {
                let found = search.find(*first)?;
                return Ok(found.map(|found| Inner { body: body.clone(), turn: turn as usize, found }));
            }
            for (carried, new) in state.iter_mut().zip(&want).take(carries) {
                *carried = new.to_tensor()?;
            }
        }
        Ok(None)
    }

    /// A value as the device has it.
    fn operand(&self, v: ValueId, values: &Values<'_>) -> Option<Tensor> {
        let Def::Port(k) = self.f.value(v).ok()?.def else { return values.got(v).cloned() };
        let p = self.f.ports.get(k as usize)?;
        match (self.data.iter().find(|(name, _)| *name == p.name), &p.source) {
            (Some((_, t)), _) => Some(t.clone()),
            (None, Some(Source::Inline(t))) => Some(t.clone()),
            _ => None,
        }
    }

    /// A graph of one node whose operands are inputs. Symbols get their values from further inputs, of no use otherwise.
    fn single(&self, n: &Node, given: &mut Given) -> Result<Func> {
        let g = Graph::new("step");
        {
            let mut operands = Vec::new();
            for o in &n.operands {
                operands.push(match o {
                    Some(v) => {
                        let name = format!("x{}", operands.iter().flatten().count());
                        Some(g.port(&name, self.f.ty(*v)?.clone(), PortKind::Input, None))
                    }
                    None => None,
                });
            }
            let symbols = self.f.symbols()?;
            for (name, value) in &bound(self.f, self.data) {
                let (Some(max), Ok(size)) = (symbols.get(name), usize::try_from(value)) else { continue };
                let port = format!("dim.{name}");
                g.input(&port, DType::Bool, [dim(name, *max)]);
                given.push((port, Tensor::new(&[size], &vec![false; size])?));
            }
            for (k, v) in g.emit_at(n, operands).into_iter().enumerate() {
                g.output(&format!("y{k}"), v);
            }
        }
        Ok(g.finish()?)
    }

    /// The first of these nodes that is off in a program of its own, with fusion.
    fn fused(&self, nodes: &[usize], values: &Values<'_>) -> Result<Option<Finding>> {
        let check = |n: usize| -> Result<Option<Finding>> {
            let one = with_outputs(self.f, std::iter::once(n));
            let tolerance = self.path.get(n).copied().unwrap_or(0.0);
            for (o, got) in one.outputs.iter().zip(&on_device(&one, self.device, &self.options, self.data)?) {
                let Some(want) = values.want(o.value) else { continue };
                let errors = errors(want, got)?;
                if errors.relative > tolerance {
                    return Ok(Some(Finding {
                        node: n,
                        errors,
                        tolerance,
                        fault: Fault::Fusion,
                        inner: None,
                    }));
                }
            }
            Ok(None)
        };
        let (mut low, mut high, mut found) = (0, nodes.len(), None);
        while low < high {
            let middle = (low + high) / 2;
            let Some(node) = nodes.get(middle) else { break };
            match check(*node)? {
                Some(off) => (found, high) = (Some(off), middle),
                None => low = middle + 1,
            }
        }
        Ok(found)
    }
}

/// An entry of a tensor along its first axis.
fn entry_of(t: &Tensor, i: usize) -> Option<Tensor> {
    let (n, shape) = t.shape().split_first()?;
    let bytes = t.bytes().len().checked_div(*n)?;
    Tensor::from_bytes(t.dtype(), shape, t.bytes().get(i * bytes..(i + 1) * bytes)?).ok()
}

/// The values of some nodes, from the oracle and from the device.
struct Values<'a> {
    /// The graph with these values as its outputs.
    all: &'a Func,
    want: &'a [Arr],
    got: &'a [Tensor],
}

impl Values<'_> {
    fn at(&self, v: ValueId) -> Option<usize> {
        // Outputs are in the order of the values.
        self.all.outputs.binary_search_by_key(&v, |o| o.value).ok()
    }
    fn want(&self, v: ValueId) -> Option<&Arr> {
        self.want.get(self.at(v)?)
    }
    fn got(&self, v: ValueId) -> Option<&Tensor> {
        self.got.get(self.at(v)?)
    }
    /// The worst error of a node's results.
    fn errors(&self, f: &Func, node: usize) -> Result<Option<Errors>> {
        let mut worst: Option<Errors> = None;
        for r in f.nodes.get(node).into_iter().flat_map(|n| &n.results) {
            let (Some(want), Some(got)) = (self.want(*r), self.got(*r)) else { continue };
            let e = errors(want, got)?;
            if worst.as_ref().is_none_or(|w| e.relative > w.relative) {
                worst = Some(e);
            }
        }
        Ok(worst)
    }
}

/// What each node may be off by: alone, and with the most that any operand may be off by.
fn tolerances(f: &Func, precision: Precision) -> (Vec<f64>, Vec<f64>) {
    /// A few times 2^-8: what products of operands in bf16 are off by.
    const BF16: f64 = 2e-2;
    let mut values = vec![0f64; f.values.len()];
    let (mut alone, mut path) = (Vec::with_capacity(f.nodes.len()), Vec::with_capacity(f.nodes.len()));
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
        let operands = n.operands.iter().flatten().filter_map(|v| values.get(v.0 as usize));
        let most = operands.fold(0f64, |a, b| a.max(*b));
        for r in &n.results {
            if let Some(v) = values.get_mut(r.0 as usize) {
                *v = own + most;
            }
        }
        alone.push(own);
        path.push(own + most);
    }
    (alone, path)
}

/// The nodes that a node depends on, and itself, in order.
fn ancestors(f: &Func, node: usize) -> Vec<usize> {
    let mut needed = vec![false; f.nodes.len()];
    let mut stack = vec![node];
    while let Some(i) = stack.pop() {
        if needed.get_mut(i).is_none_or(|n| std::mem::replace(n, true)) {
            continue;
        }
        for v in f.nodes.get(i).into_iter().flat_map(|n| n.operands.iter().flatten()) {
            if let Ok(Def::Node(k, _)) = f.value(*v).map(|v| v.def) {
                stack.push(k as usize);
            }
        }
    }
    needed.iter().enumerate().filter(|(_, n)| **n).map(|(i, _)| i).collect()
}

//! Reverse mode: the vector-Jacobian product.
//!
//! The forward graph is copied; composite ops on the way of the gradient that have no rule of their own are replaced
//! by their bodies. Then the copy is walked backwards, and each op's rule turns the gradients of its results into
//! gradients of its operands. Integers and bools carry no gradient.

use super::dce;
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::func::{Func, Node, PortKind, ValueId};
use crate::graph::{Graph, Var};
use crate::op::{Cx, Meaning, Vjp, VjpCx};
use std::collections::{HashMap, HashSet};

/// The graph and the gradients of its named outputs, weighted by cotangents, with respect to the named ports.
///
/// A scalar output has the cotangent 1; for every other a new input `ct.OUTPUT` of its type is added.
/// The gradients are new outputs `grad.PORT`.
pub fn vjp(f: &Func, outputs: &[&str], wrt: &[&str]) -> Result<Func> {
    let (places, wanted) = float_ports(f, wrt)?;
    let g = Graph::new(f.name.clone());
    let args = g.declare_ports(f);
    for name in wrt {
        let grad = format!("grad.{name}");
        if f.outputs.iter().any(|o| o.name == grad) {
            let message =
                format!("the gradient of {name:?} would be the output {grad:?}, and there is one already");
            return Err(Error::new(Code::Name, message));
        }
    }
    let results = forward(&g, f, &args, &wanted)?;
    for (o, v) in f.outputs.iter().zip(&results) {
        g.output(&o.name, *v);
    }
    let mut seeds = Vec::new();
    let by_name: HashMap<&str, Var<'_>> =
        f.outputs.iter().map(|o| o.name.as_str()).zip(results.iter().copied()).collect();
    let mut seen = HashSet::new();
    for name in outputs {
        let Some(y) = by_name.get(name).copied() else {
            f.need_output(name)?;
            continue;
        };
        if !seen.insert(name) {
            return Err(Error::new(Code::Gradient, format!("output {name:?} is named twice")));
        }
        if !y.dtype().is_float() {
            return Err(Error::new(Code::Gradient, format!("output {name:?} is {}, not a float", y.dtype())));
        }
        let ct = if y.rank() == 0 {
            y.ones_like()
        } else {
            g.port(&format!("ct.{name}"), y.ty(), PortKind::Input, None)
        };
        seeds.push((y, ct));
    }
    let grads = backward(&g, &seeds, &args, &wanted)?;
    for (i, name) in places.into_iter().zip(wrt) {
        if let (Some(x), Some(grad)) = (args.get(i), grads.get(i)) {
            g.output(&format!("grad.{name}"), grad.unwrap_or_else(|| x.zeros_like()));
        }
    }
    dce(&g.finish()?)
}

/// The positions of the named ports, and whether each port is among them. They are floats, each named once.
pub(super) fn float_ports(f: &Func, names: &[&str]) -> Result<(Vec<usize>, Vec<bool>)> {
    let by_name: HashMap<&str, usize> =
        f.ports.iter().enumerate().map(|(i, p)| (p.name.as_str(), i)).collect();
    let mut places = Vec::new();
    let mut wanted = vec![false; f.ports.len()];
    for &name in names {
        let Some(&i) = by_name.get(name) else {
            f.need_port(name)?;
            continue;
        };
        let dtype = f.ports.get(i).map_or(Ok(DType::F32), |p| f.ty(p.value).map(|t| t.dtype))?;
        if !dtype.is_float() {
            let message = format!("{name:?} is {dtype}, and only floats have gradients");
            return Err(Error::new(Code::Gradient, message));
        }
        if wanted.get_mut(i).is_some_and(|w| std::mem::replace(w, true)) {
            return Err(Error::new(Code::Gradient, format!("{name:?} is named twice")));
        }
        places.push(i);
    }
    Ok((places, wanted))
}

/// The backward pass as a function of its own: from the ports of `f` and a cotangent for each float output to the
/// gradient of each port that `wrt` marks (zeros where there is none). Used for the regions of control flow.
pub fn pullback(f: &Func, wrt: &[bool]) -> Result<Func> {
    let g = Graph::new(format!("{}.pullback", f.name));
    let args = declare_inputs(&g, f)?;
    let results = forward(&g, f, &args, wrt)?;
    let mut seeds = Vec::new();
    for (i, y) in results.iter().enumerate() {
        if y.dtype().is_float() {
            seeds.push((*y, g.port(&format!("ct{i}"), y.ty(), PortKind::Input, None)));
        }
    }
    let grads = backward(&g, &seeds, &args, wrt)?;
    for (i, ((x, grad), wanted)) in args.iter().zip(grads).zip(wrt).enumerate() {
        if *wanted {
            g.output(&format!("grad{i}"), grad.unwrap_or_else(|| x.zeros_like()));
        }
    }
    dce(&g.finish()?)
}

/// Ports named by their position, all of them inputs.
fn declare_inputs<'g>(g: &'g Graph, f: &Func) -> Result<Vec<Var<'g>>> {
    let types = f.port_types()?;
    Ok(types
        .into_iter()
        .enumerate()
        .map(|(i, ty)| g.port(&format!("p{i}"), ty, PortKind::Input, None))
        .collect())
}

/// Copies `f`, with bodies in place of the ops on the gradient's way that have no rule.
pub(super) fn forward<'g>(g: &'g Graph, f: &Func, args: &[Var<'g>], wanted: &[bool]) -> Result<Vec<Var<'g>>> {
    let mut active: HashSet<ValueId> = HashSet::new();
    for (a, w) in args.iter().zip(wanted) {
        if *w {
            active.insert(a.id());
        }
    }
    copy(g, f, args, &mut active)
}

fn copy<'g>(g: &'g Graph, f: &Func, args: &[Var<'g>], active: &mut HashSet<ValueId>) -> Result<Vec<Var<'g>>> {
    g.inline_with(f, args, &mut |g, node, operands| copy_node(g, node, operands, active))
}

fn copy_node<'g>(
    g: &'g Graph,
    node: &Node,
    operands: Vec<Option<Var<'g>>>,
    active: &mut HashSet<ValueId>,
) -> Result<Vec<Var<'g>>> {
    let on_path = operands.iter().flatten().any(|v| active.contains(&v.id()));
    let results = match (node.op.vjp, node.op.meaning) {
        (Vjp::Through, Meaning::Body(_)) if on_path => {
            let types: Vec<_> = operands.iter().map(|o| o.map(|v| v.ty())).collect();
            let body = Graph::body_of(node.op, &node.attrs, &types, &node.regions)?;
            let given: Vec<Var<'g>> = operands.into_iter().flatten().collect();
            return copy(g, &body, &given, active);
        }
        _ => g.emit_at(node, operands),
    };
    if on_path && !matches!(node.op.vjp, Vjp::Zero) {
        active.extend(results.iter().filter(|r| r.dtype().is_float()).map(|r| r.id()));
    }
    Ok(results)
}

/// Walks the graph backwards from the seeds (value, cotangent) and gives the gradients of the args.
pub(super) fn backward<'g>(
    g: &'g Graph,
    seeds: &[(Var<'g>, Var<'g>)],
    args: &[Var<'g>],
    wanted: &[bool],
) -> Result<Vec<Option<Var<'g>>>> {
    // Which values depend on a wanted arg.
    let mut active: HashSet<ValueId> =
        args.iter().zip(wanted).filter(|(_, w)| **w).map(|(a, _)| a.id()).collect();
    let count = g.node_count();
    for i in 0..count {
        let Some(node) = g.node(i) else { continue };
        if !matches!(node.op.vjp, Vjp::Zero) && node.operands.iter().flatten().any(|v| active.contains(v)) {
            active.extend(node.results.iter().filter(|r| g.var(**r).dtype().is_float()));
        }
    }
    let mut cts: HashMap<ValueId, Var<'g>> = HashMap::new();
    for (y, ct) in seeds {
        accumulate(&mut cts, y.id(), *ct);
    }
    for i in (0..count).rev() {
        let Some(node) = g.node(i) else { continue };
        let reached = node.results.iter().any(|r| cts.contains_key(r));
        let wanted: Vec<bool> =
            node.operands.iter().map(|o| o.is_some_and(|v| active.contains(&v))).collect();
        if !reached || !wanted.contains(&true) {
            continue;
        }
        let grads = g.on_behalf(&node.loc, || apply_rule(g, i, &node, &cts, wanted.clone()))?;
        for ((operand, grad), wanted) in node.operands.iter().zip(grads).zip(wanted) {
            if let (Some(v), Some(grad), true) = (operand, grad, wanted) {
                let want = g.var(*v).ty();
                if !grad.is_poison() && grad.ty() != want {
                    let message = format!("the gradient is {}, the operand {want}", grad.ty());
                    return Err(Error::new(Code::Verify, message).in_op(node.op.name).at(node.loc.clone()));
                }
                g.on_behalf(&node.loc, || accumulate(&mut cts, *v, grad));
            }
        }
    }
    Ok(args.iter().map(|a| cts.get(&a.id()).copied()).collect())
}

fn apply_rule<'g>(
    g: &'g Graph,
    index: usize,
    node: &Node,
    cts: &HashMap<ValueId, Var<'g>>,
    wanted: Vec<bool>,
) -> Result<Vec<Option<Var<'g>>>> {
    let rule = match node.op.vjp {
        Vjp::Rule(rule) => rule,
        Vjp::Zero => return Ok(Vec::new()),
        Vjp::Through => {
            return Err(Error::new(Code::Verify, "the body should stand here").in_op(node.op.name));
        }
    };
    let cx = Cx {
        g,
        def: node.op,
        attrs: node.attrs.clone(),
        operands: node.operands.iter().map(|o| o.map(|v| g.var(v))).collect(),
        regions: node.regions.clone(),
    };
    let results = node.results.iter().map(|r| g.var(*r)).collect();
    let cts = node.results.iter().map(|r| cts.get(r).copied()).collect();
    let grads = rule(&VjpCx { cx, results, cts, wanted, node: index })
        .map_err(|e| e.in_op(node.op.name).at(node.loc.clone()))?;
    Ok(grads.0)
}

fn accumulate<'g>(cts: &mut HashMap<ValueId, Var<'g>>, v: ValueId, ct: Var<'g>) {
    let sum = cts.get(&v).map_or(ct, |old| old.add(ct));
    cts.insert(v, sum);
}

//! What depends on params alone is computed once, when the params are set, and not in every run.

use rlx_ir::func::{Func, PortKind, ValueId};
use rlx_ir::graph::{Graph, Var};
use rlx_ir::op::Step;
use rlx_ir::{Result, Type};
use std::collections::{HashMap, HashSet};

/// The most bytes that a tensor of the type takes.
fn bytes(t: &Type) -> i64 {
    // No packed scheme takes more than a byte for an element.
    t.numel().upper().map_or(i64::MAX, |n| n.saturating_mul(t.dtype.bytes().unwrap_or(1) as i64))
}

/// Splits a graph into one from params to what is prepared, and one that takes what is prepared as further params (the
/// last ones). `None` if there is nothing to prepare.
pub fn hoist(f: &Func) -> Result<(Option<Func>, Func)> {
    let mut fixed = vec![false; f.values.len()];
    let mut work = vec![false; f.values.len()]; // whether anything is computed on the way from the params
    let mut data = vec![false; f.values.len()]; // whether it depends on a param at all
    let mut held = vec![0i64; f.values.len()]; // the bytes that lie in memory for it: those of what it views
    let set = |v: &mut Vec<bool>, i: ValueId, to: bool| {
        if let Some(s) = v.get_mut(i.0 as usize) {
            *s = to;
        }
    };
    let put = |v: &mut Vec<i64>, i: ValueId, to: i64| {
        if let Some(s) = v.get_mut(i.0 as usize) {
            *s = to;
        }
    };
    let get = |v: &[bool], i: ValueId| v.get(i.0 as usize).copied().unwrap_or(false);
    for p in f.ports.iter().filter(|p| p.kind == PortKind::Param) {
        // Of what has no size yet there is nothing to compute.
        set(&mut fixed, p.value, f.ty(p.value)?.symbols().next().is_none());
        set(&mut data, p.value, true);
    }
    for p in &f.ports {
        put(&mut held, p.value, bytes(f.ty(p.value)?));
    }
    for node in &f.nodes {
        let types: Vec<Option<Type>> =
            node.operands.iter().map(|o| o.map(|v| f.ty(v).cloned()).transpose()).collect::<Result<_>>()?;
        let step = node.step(&types).transpose()?;
        let all = node.operands.iter().flatten().all(|v| get(&fixed, *v));
        let some = node.operands.iter().flatten().any(|v| get(&data, *v));
        let view = matches!(
            step,
            Some(
                Step::Reshape
                    | Step::Permute(_)
                    | Step::Broadcast
                    | Step::Slice { .. }
                    | Step::Flip(_)
                    | Step::Same
            )
        );
        let worked = node.operands.iter().flatten().any(|v| get(&work, *v)) || !view;
        // Expanding a small param into something large would cost more memory than it saves time.
        let of = |v: &ValueId| held.get(v.0 as usize).copied().unwrap_or(0);
        let read: i64 = node.operands.iter().flatten().map(of).fold(0, i64::saturating_add);
        let symbolic = node.results.iter().any(|r| f.ty(*r).is_ok_and(|t| t.symbols().next().is_some()))
            || node.attrs.iter().any(|a| a.dims().iter().any(|d| !d.is_const()))
            || node.regions.iter().any(|r| r.symbols().map_or(true, |s| !s.is_empty()));
        let written: i64 =
            node.results.iter().filter_map(|r| f.ty(*r).ok()).map(bytes).fold(0, i64::saturating_add);
        let small = view || written <= read.saturating_mul(4).max(1 << 16);
        for r in &node.results {
            set(&mut fixed, *r, all && small && !symbolic);
            set(&mut data, *r, all && some);
            set(&mut work, *r, worked);
            let own = f.ty(*r).map_or(0, bytes);
            put(&mut held, *r, if view { own.min(read) } else { own });
        }
    }
    // What the rest of the graph reads, directly or through views, and took work.
    let mut wanted: Vec<ValueId> = Vec::new();
    let mut seen: HashSet<ValueId> = HashSet::new();
    let mut want = |v: ValueId| {
        let is_node = f.value(v).is_ok_and(|i| matches!(i.def, rlx_ir::func::Def::Node(..)));
        if is_node && get(&fixed, v) && get(&work, v) && get(&data, v) && seen.insert(v) {
            wanted.push(v);
        }
    };
    for node in &f.nodes {
        if node.results.iter().any(|r| !get(&fixed, *r)) {
            node.operands.iter().flatten().for_each(|v| want(*v));
        }
    }
    f.outputs.iter().for_each(|o| want(o.value));
    if wanted.is_empty() {
        return Ok((None, f.clone()));
    }
    let before = Graph::new(format!("{}.prepare", f.name));
    {
        let params: Vec<_> =
            f.ports.iter().filter(|p| p.kind == PortKind::Param && get(&fixed, p.value)).collect();
        let mut map: HashMap<ValueId, Var<'_>> = HashMap::new();
        for p in params {
            map.insert(p.value, before.port(&p.name, f.ty(p.value)?.clone(), PortKind::Input, None));
        }
        for node in f.nodes.iter().filter(|n| n.results.iter().all(|r| get(&fixed, *r))) {
            let operands = node.operands.iter().map(|o| o.and_then(|v| map.get(&v).copied())).collect();
            for (r, v) in node.results.iter().zip(before.emit_at(node, operands)) {
                map.insert(*r, v);
            }
        }
        for (k, v) in wanted.iter().enumerate() {
            if let Some(v) = map.get(v) {
                before.output(&format!("prepared{k}"), *v);
            }
        }
    }
    let after = Graph::new(f.name.clone());
    {
        let mut map: HashMap<ValueId, Var<'_>> =
            f.ports.iter().map(|p| p.value).zip(after.declare_ports(f)).collect();
        for (k, v) in wanted.iter().enumerate() {
            let name =
                (0..).map(|n| format!("prepared{k}.{n}")).find(|n| f.port(n).is_none()).unwrap_or_default();
            map.insert(*v, after.port(&name, f.ty(*v)?.clone(), PortKind::Param, None));
        }
        for node in &f.nodes {
            if node.results.iter().all(|r| map.contains_key(r)) {
                continue;
            }
            let operands = node.operands.iter().map(|o| o.and_then(|v| map.get(&v).copied())).collect();
            for (r, v) in node.results.iter().zip(after.emit_at(node, operands)) {
                map.entry(*r).or_insert(v);
            }
        }
        for o in &f.outputs {
            if let Some(v) = map.get(&o.value) {
                after.output(&o.name, *v);
            }
        }
    }
    Ok((Some(rlx_ir::transform::dce(&before.finish()?)?), rlx_ir::transform::dce(&after.finish()?)?))
}

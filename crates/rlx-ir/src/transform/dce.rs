//! Removal of dead code: what no output needs, regions included. Ports stay, since callers know them.

use crate::error::Result;
use crate::func::{Def, Func, Node, Output, Port, ValueId, ValueInfo};
use std::collections::HashSet;
use std::sync::Arc;

/// A control-flow node without the results that nobody needs: what remains of it.
pub struct Pruned {
    /// The node's new attributes.
    pub attrs: Vec<crate::attr::AttrValue>,
    /// The indices of the operands that stay.
    pub operands: Vec<usize>,
    /// The indices of the results that stay.
    pub results: Vec<usize>,
    /// The new regions.
    pub regions: Vec<Arc<Func>>,
}

/// The graph without what no output needs.
pub fn dce(f: &Func) -> Result<Func> {
    let mut live: HashSet<ValueId> = f.outputs.iter().map(|o| o.value).collect();
    let mut kept: Vec<Node> = Vec::new();
    for node in f.nodes.iter().rev() {
        let needed: Vec<bool> = node.results.iter().map(|r| live.contains(r)).collect();
        if !needed.contains(&true) {
            continue;
        }
        let node = match node.op.prune {
            Some(prune) => apply(node, prune(node, &needed)?),
            None => node.clone(),
        };
        live.extend(node.operands.iter().flatten());
        kept.push(node);
    }
    kept.reverse();
    let out = renumber(f, kept)?;
    if cfg!(debug_assertions) {
        crate::verify::verify(&out)?;
    }
    Ok(out)
}

fn apply(node: &Node, p: Pruned) -> Node {
    Node {
        op: node.op,
        attrs: p.attrs,
        operands: p.operands.iter().filter_map(|i| node.operands.get(*i).copied()).collect(),
        results: p.results.iter().filter_map(|i| node.results.get(*i).copied()).collect(),
        regions: p.regions,
        loc: node.loc.clone(),
    }
}

/// Numbers values anew: ports, then results in the order of the nodes.
fn renumber(f: &Func, nodes: Vec<Node>) -> Result<Func> {
    let mut map = vec![ValueId(u32::MAX); f.values.len()];
    let mut values: Vec<ValueInfo> = Vec::new();
    let mut place = |old: ValueId, def: Def| -> Result<ValueId> {
        let info = f.value(old)?;
        let new = ValueId(values.len() as u32);
        if let Some(slot) = map.get_mut(old.0 as usize) {
            *slot = new;
        }
        values.push(ValueInfo { def, ..info.clone() });
        Ok(new)
    };
    let mut ports = Vec::new();
    for (i, p) in f.ports.iter().enumerate() {
        ports.push(Port { value: place(p.value, Def::Port(i as u32))?, ..p.clone() });
    }
    let mut out = Vec::new();
    for (n, node) in nodes.into_iter().enumerate() {
        let mut results = Vec::new();
        for (k, r) in node.results.iter().enumerate() {
            results.push(place(*r, Def::Node(n as u32, k as u32))?);
        }
        out.push(Node { results, ..node });
    }
    let look = |v: ValueId| map.get(v.0 as usize).copied().unwrap_or(ValueId(u32::MAX));
    for node in &mut out {
        node.operands.iter_mut().flatten().for_each(|v| *v = look(*v));
    }
    let outputs = f.outputs.iter().map(|o| Output { name: o.name.clone(), value: look(o.value) }).collect();
    Ok(Func { name: f.name.clone(), ports, values, nodes: out, outputs })
}

/// A function with only the marked outputs, its dead code gone; and which of its ports it still uses.
pub fn keep_outputs(f: &Func, keep: &[bool]) -> Result<(Func, Vec<bool>)> {
    let mut g = f.clone();
    let mut flags = keep.iter();
    g.outputs.retain(|_| flags.next().copied().unwrap_or(false));
    let g = dce(&g)?;
    let used: HashSet<ValueId> = g
        .nodes
        .iter()
        .flat_map(|n| n.operands.iter().flatten().copied())
        .chain(g.outputs.iter().map(|o| o.value))
        .collect();
    let flags = g.ports.iter().map(|p| used.contains(&p.value)).collect();
    Ok((g, flags))
}

/// A function without the ports that are not marked; they must not be used.
pub fn keep_ports(f: &Func, keep: &[bool]) -> Result<Func> {
    let mut g = f.clone();
    let mut flags = keep.iter();
    g.ports.retain(|_| flags.next().copied().unwrap_or(false));
    let nodes = g.nodes.clone();
    renumber(&g, nodes)
}

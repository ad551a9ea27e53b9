//! Removal of dead code: what no output needs, regions included. Ports stay, since callers know them.

use crate::error::Result;
use crate::func::{Def, Func, Node, Output, Port, ValueId, ValueInfo};
use std::collections::HashSet;
use std::sync::Arc;

/// A set of positions: of operands, or of ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks(Vec<u64>);

impl FromIterator<usize> for Marks {
    fn from_iter<I: IntoIterator<Item = usize>>(positions: I) -> Marks {
        let mut m = Marks::default();
        positions.into_iter().for_each(|i| m.insert(i));
        m
    }
}

impl Marks {
    /// Adds a position.
    pub fn insert(&mut self, i: usize) {
        if self.0.len() <= i / 64 {
            self.0.resize(i / 64 + 1, 0);
        }
        self.0.get_mut(i / 64).into_iter().for_each(|w| *w |= 1 << (i % 64));
    }
    /// Adds the positions of another set.
    pub fn join(&mut self, other: &Marks) {
        self.0.resize(self.0.len().max(other.0.len()), 0);
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a |= b);
    }
    /// Whether the position is in the set.
    pub fn has(&self, i: usize) -> bool {
        self.0.get(i / 64).is_some_and(|w| w >> (i % 64) & 1 == 1)
    }
    /// The positions, in order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.0.len() * 64).filter(|i| self.has(*i))
    }
}

/// For each output of a function, the ports that it needs.
pub fn reads(f: &Func) -> Result<Vec<Marks>> {
    let mut values = vec![Marks::default(); f.values.len()];
    for (i, p) in f.ports.iter().enumerate() {
        values.get_mut(p.value.0 as usize).into_iter().for_each(|m| m.insert(i));
    }
    for node in &f.nodes {
        let operand = |i: usize| node.operands.get(i).copied().flatten().map_or(usize::MAX, |v| v.0 as usize);
        let needs = match node.op.reads {
            Some(reads) => reads(node)?,
            None => vec![(0..node.operands.len()).collect(); node.results.len()],
        };
        for (r, needs) in node.results.iter().zip(needs) {
            let mut all = Marks::default();
            needs.iter().filter_map(|i| values.get(operand(i))).for_each(|m| all.join(m));
            values.get_mut(r.0 as usize).into_iter().for_each(|m| *m = all.clone());
        }
    }
    Ok(f.outputs.iter().map(|o| values.get(o.value.0 as usize).cloned().unwrap_or_default()).collect())
}

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
            None => {
                let regions = node.regions.iter().map(|r| dce(r).map(Arc::new)).collect::<Result<_>>()?;
                Node { regions, ..node.clone() }
            }
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

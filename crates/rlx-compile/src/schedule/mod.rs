//! The order of the groups: one in which few bytes live at the same time.
//!
//! A few orders compete: the graph's own, and greedy ones from the front, from the back and depth first. What comes of the
//! best is improved step by step where it peaks. Finding the least peak is hard, so that each of these is a guess; but
//! peaks are counted with the very rules by which memory is given out, and the graph's order is kept unless another is
//! better by a hundredth: neighbours in a graph find their operands in the cache.
//!
//! Sizes are symbolic and there is one order for all of them, so peaks are compared at several: an order that is
//! worse than the graph's at any of them is out, and of the others the one with the least sum of ratios wins. Ratios, since
//! else the largest sizes would be all that counts.
//!
//! What lies outside the arena counts nothing: inputs, params, what is prepared, constants and outputs. A view counts as
//! what it views. The scratch space of kernels is left out: it is shared by all of them, and the largest stays the largest.

#![allow(
    clippy::indexing_slicing,
    reason = "steps and values are numbered by `Steps`, orders are permutations"
)]

use crate::build::{byte_size, reads};
use crate::fuse::{Class, Fused, operand_access};
use crate::items::{Doing, Items, Point, Source, Value};
use crate::plan::{Life, round_up};
use crate::program::{SizeId, Sizes, fault};
use rlx_ir::{Bindings, Result};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

mod search;

use search::{Step, Steps};

/// The symbols that are also looked at apart from the others.
const APART: usize = 3;

/// The groups in order.
pub struct Schedule {
    /// The groups, each after those it reads from.
    pub order: Vec<usize>,
    /// The values that each group reads from memory.
    pub reads: Vec<Vec<Value>>,
    /// The memory that the graph's order would take.
    pub graph: Vec<Life>,
    /// Every size of so far, bound to the values at which orders were compared.
    pub at: Vec<Vec<i64>>,
}

/// Puts the groups in an order with a small peak of bytes.
pub fn schedule(items: &Items<'_>, fused: &Fused, sizes: &mut Sizes) -> Result<Schedule> {
    let reads = (0..fused.groups.len()).map(|g| reads(items, fused, g)).collect::<Result<Vec<_>>>()?;
    let groups = in_graph_order(items, fused, &reads)?;
    let mut place = vec![0; groups.len()];
    groups.iter().enumerate().for_each(|(k, g)| place[*g] = k);
    let mut number: HashMap<Value, usize> = HashMap::new();
    let mut bytes: Vec<SizeId> = Vec::new();
    let mut steps = Vec::with_capacity(groups.len());
    for g in &groups {
        let mut step = Step::default();
        for v in &reads[*g] {
            step.reads.extend(number.get(v));
            step.after.extend(writer(items, fused, *v)?.map(|w| place[w]));
        }
        step.after.sort_unstable();
        step.after.dedup();
        for v in writes(items, fused, *g)? {
            if !items.outputs.contains(&v) {
                let n = bytes.len();
                bytes.push(sizes.id(&byte_size(&items.value(v)?.ty)?));
                number.insert(v, n);
                step.writes.push(n);
                let wide = |v: Value| items.dtype(v).ok().and_then(|d| d.bytes());
                let large = |r: &Value| number.get(r).is_some_and(|r| bytes[*r] == bytes[n]);
                let like = |r: &Value| large(r) && wide(*r) == wide(v);
                let like: Vec<Value> = reads[*g].iter().copied().filter(like).collect();
                let taken = replaceable(items, fused, *g, v, &like)?;
                step.over.extend(taken.iter().filter_map(|r| number.get(r)).map(|r| (n, *r)));
            }
        }
        steps.push(step);
    }
    let mut at: Vec<Vec<i64>> = Vec::new();
    for b in points(items)? {
        let mut bound = Vec::new();
        // Sizes that no machine can hold say nothing about an order.
        if sizes.bind(&b, &mut bound).is_ok() {
            at.push(bound);
        }
    }
    let most = i64::MAX / (bytes.len() as i64 + 1);
    let own = |at: &Vec<i64>| bytes.iter().map(|b| round_up(at[b.0 as usize]).clamp(0, most)).collect();
    let steps = Steps::new(steps, at.iter().map(own).collect());
    let lives = steps.lives(&(0..groups.len()).collect::<Vec<_>>());
    let graph = lives.into_iter().map(|(v, first, last)| Life { bytes: bytes[v], first, last }).collect();
    let order = match steps.best() {
        Some(order) => order.iter().map(|k| groups[*k]).collect(),
        None => groups,
    };
    Ok(Schedule { order, reads, graph, at })
}

/// The sizes at which orders are compared: all symbols at their maximum, all at its root, and each in turn at 1 or at its
/// maximum with the others at the root: a batch of one, a long text.
fn points(items: &Items<'_>) -> Result<Vec<Bindings>> {
    let symbols = items.func.symbols()?;
    let root = |max: i64| (max.max(0) as f64).sqrt().ceil() as i64;
    let point = |of: &dyn Fn(usize, i64) -> i64| -> Bindings {
        symbols.iter().enumerate().map(|(i, (name, max))| (name.clone(), of(i, *max))).collect()
    };
    let mut out = vec![point(&|_, max| max)];
    if !symbols.is_empty() {
        out.push(point(&|_, max| root(max)));
    }
    for k in 0..symbols.len().min(APART) {
        out.push(point(&|i, max| if i == k { 1.min(max) } else { root(max) }));
        if symbols.len() > 1 {
            out.push(point(&|i, max| if i == k { max } else { root(max) }));
        }
    }
    Ok(out)
}

/// The group that writes a value, unless it is there from the start.
fn writer(items: &Items<'_>, fused: &Fused, v: Value) -> Result<Option<usize>> {
    let Source::Item(i) = items.value(v)?.source else { return Ok(None) };
    let group = fused.group_of.get(i).copied().flatten();
    group.map(Some).ok_or_else(|| fault("an item has no group"))
}

/// Each group after those it reads from, otherwise as in the graph.
fn in_graph_order(items: &Items<'_>, fused: &Fused, reads: &[Vec<Value>]) -> Result<Vec<usize>> {
    let n = fused.groups.len();
    let mut waits = vec![0usize; n];
    let mut behind: Vec<Vec<usize>> = vec![Vec::new(); n];
    let place = |g: usize| {
        let group = &fused.groups[g];
        group.members.iter().map(|m| m.0).chain(group.producer).chain(group.alone).max().unwrap_or(0)
    };
    for g in 0..n {
        let mut before: Vec<usize> = Vec::new();
        for v in &reads[g] {
            before.extend(writer(items, fused, *v)?);
        }
        before.sort_unstable();
        before.dedup();
        waits[g] = before.len();
        before.iter().for_each(|b| behind[*b].push(g));
    }
    let mut ready: BinaryHeap<Reverse<(usize, usize)>> =
        (0..n).filter(|g| waits[*g] == 0).map(|g| Reverse((place(g), g))).collect();
    let mut out = Vec::with_capacity(n);
    while let Some(Reverse((_, g))) = ready.pop() {
        out.push(g);
        for h in &behind[g] {
            waits[*h] -= 1;
            if waits[*h] == 0 {
                ready.push(Reverse((place(*h), *h)));
            }
        }
    }
    if out.len() < n { Err(fault("groups wait for each other")) } else { Ok(out) }
}

/// The values that a group writes to memory, in the order in which they get it.
fn writes(items: &Items<'_>, fused: &Fused, g: usize) -> Result<Vec<Value>> {
    let group = fused.groups.get(g).ok_or_else(|| fault("a group is missing"))?;
    let results = |i: usize| items.items.get(i).map(|i| i.results.as_slice()).unwrap_or_default();
    if let Some(i) = group.alone {
        return Ok(results(i).to_vec());
    }
    let all = group.producer.into_iter().chain(group.members.iter().rev().map(|m| m.0));
    let stored = |v: &Value| fused.stored.get(*v).copied().unwrap_or(false);
    Ok(all.filter_map(|i| results(i).first().copied()).filter(stored).collect())
}

/// Those of some values, as large as `v` and with elements as wide, whose memory `v` could take in its group, were they read
/// there for the last time: in the order in which they are tried.
fn replaceable(items: &Items<'_>, fused: &Fused, g: usize, v: Value, like: &[Value]) -> Result<Vec<Value>> {
    let group = fused.groups.get(g).ok_or_else(|| fault("a group is missing"))?;
    let Source::Item(own) = items.value(v)?.source else { return Ok(Vec::new()) };
    // A product in front is computed at every index too.
    let class = group.members.iter().find(|m| m.0 == own).map(|m| m.1);
    if like.is_empty() || group.alone.is_some() || class.is_some_and(|c| c != Class::Full) {
        return Ok(Vec::new());
    }
    let (mut fit, mut unfit): (Vec<Value>, Vec<Value>) = Default::default();
    if let Some(p) = group.producer.and_then(|p| items.items.get(p)) {
        for o in p.operands.iter().flatten() {
            unfit.push(items.value(*o)?.base);
        }
    }
    for (i, class) in group.members.iter().rev() {
        let item = items.items.get(*i).ok_or_else(|| fault("an item is missing"))?;
        for (k, o) in item.operands.iter().enumerate() {
            let Some(o) = o else { continue };
            let info = items.value(*o)?;
            if !like.contains(&info.base) || unfit.contains(&info.base) {
                continue;
            }
            let base = &items.value(info.base)?.ty;
            let whole = info.ty.shape == base.shape || info.ty.numel() == base.numel();
            let dense = match &item.doing {
                _ if !whole => false,
                Doing::Point(Point::Fold(..)) => {
                    operand_access(items, *i, k, *o)?.is_some_and(|a| a.is_dense())
                }
                Doing::Point(Point::Take(_)) => false,
                _ => *class == Class::Full && (*o == info.base || info.access.is_dense()),
            };
            let list = if dense { &mut fit } else { &mut unfit };
            if !list.contains(&info.base) {
                list.push(info.base);
            }
        }
    }
    fit.retain(|b| !unfit.contains(b));
    Ok(fit)
}

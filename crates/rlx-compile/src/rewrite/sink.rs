//! Views around element-wise work: they move through it where they meet another view that undoes them.

use super::build::elementwise;
use super::work::{N, V, Work};
use super::{Apply, Rule, Stage};
use rlx_ir::attr::AttrValue;
use rlx_ir::ops::softmax::{LogSoftmax, Softmax};
use rlx_ir::ops::views::{Broadcast, Permute, Reshape};
use rlx_ir::types::{inverse, resolve_axis};

pub const RULES: &[Rule] = &[
    Rule {
        name: "permute_through",
        algebra: "permute(f(permute(x)), …) → f(x) for element-wise f, where the permutes cancel",
        stage: Stage::Simplify,
        roots: &[Permute::DEF],
        apply: Apply::One(permute_through),
        samples: &["graph t { input x: f32[2, 3, 4] c = constant() {value: f32[] 0.3} \
             a = permute(x) {axes: [1, 2, 0]} b = mul(a, c) d = exp(b) y = permute(d) {axes: [2, 0, 1]} \
             output y = y }"],
        refuses: &["graph t { input x: f32[2, 3, 4] a = permute(x) {axes: [1, 2, 0]} d = exp(a) \
             y = permute(d) {axes: [1, 0, 2]} output y = y }"],
    },
    Rule {
        name: "reshape_through",
        algebra: "reshape(f(reshape(x), …)) → reshape(f(x, …)) for element-wise f",
        stage: Stage::Simplify,
        roots: &[Reshape::DEF],
        apply: Apply::One(reshape_through),
        samples: &[
            "graph t { input x: f32[2, 3, 4] input b: f32[4] a = reshape(x) {shape: [6, 4]} c = add(a, b) \
             y = reshape(c) {shape: [2, 3, 2, 2]} output y = y }",
        ],
        refuses: &[
            "graph t { input x: f32[2, 3, 4] input b: f32[6] a = reshape(x) {shape: [4, 6]} c = add(a, b) \
             y = reshape(c) {shape: [2, 3, 4]} output y = y }",
        ],
    },
    Rule {
        name: "softmax_reshaped",
        algebra: "softmax(reshape(x)) → reshape(softmax(x)), where the last axis stays",
        stage: Stage::Simplify,
        roots: &[Softmax::DEF, LogSoftmax::DEF],
        apply: Apply::One(softmax_reshaped),
        samples: &[
            "graph t { input x: f32[2, 3, 4] a = reshape(x) {shape: [6, 4]} y = softmax(a) output y = y }",
        ],
        refuses: &[
            "graph t { input x: f32[2, 3, 4] a = reshape(x) {shape: [6, 4]} y = softmax(a) {axis: 0} \
             output y = y }",
        ],
    },
    Rule {
        name: "broadcast_through",
        algebra: "f(x, broadcast(y)) → broadcast(f(x, y)) for element-wise f, which broadcasts by itself",
        stage: Stage::Simplify,
        roots: &[],
        apply: Apply::One(broadcast_through),
        samples: &[
            "graph t { input x: f32[3] a = broadcast(x) {shape: [2, 3]} y = exp(a) output y = y }",
            "graph t { input x: f32[2, 3] input y: f32[3] b = broadcast(y) {shape: [2, 3]} z = add(x, b) \
             output z = z }",
            "graph t { input x: f32[1, 3] input y: f32[3] b = broadcast(y) {shape: [2, 3]} z = add(x, b) \
             output z = z }",
        ],
        refuses: &["graph t { input x: f32[2, 3] input y: f32[3] z = add(x, y) output z = z }"],
    },
];

/// How deep a view looks through element-wise work.
const DEPTH: usize = 8;

/// The element-wise work that gives `v`, on what `leaf` makes of its operands. Values without axes stay.
fn through(w: &mut Work, v: V, depth: usize, leaf: &dyn Fn(&Work, V) -> Option<V>) -> Option<V> {
    if let Some(x) = leaf(w, v) {
        return Some(x);
    }
    if w.rank(v)? == 0 {
        return Some(v);
    }
    let (n, _) = w.def(v)?;
    let node = w.node(n)?;
    if depth == 0 || !elementwise(node.op) || !w.once(v) {
        return None;
    }
    let operands = node.operands.clone();
    let mut new = Vec::with_capacity(operands.len());
    for o in operands {
        new.push(match o {
            Some(o) => Some(through(w, o, depth - 1, leaf)?),
            None => None,
        });
    }
    w.again(n, new)?.first().copied()
}

fn permute_through(w: &mut Work, n: N) -> Option<V> {
    let (x, back) = (w.x(n, 0)?, inverse(&w.permutation(n)?));
    w.op_of(x).filter(|op| elementwise(op))?;
    let rank = back.len();
    let leaf = |w: &Work, v: V| {
        let m = w.by(v, Permute::DEF)?;
        (w.rank(v)? == rank && w.permutation(m)? == back).then(|| w.x(m, 0))?
    };
    through(w, x, DEPTH, &leaf)
}

fn reshape_through(w: &mut Work, n: N) -> Option<V> {
    let x = w.x(n, 0)?;
    w.op_of(x).filter(|op| elementwise(op))?;
    // The shape before the first reshape that is found is that of all the work.
    let (source, flat) = first_reshaped(w, x, DEPTH)?;
    let last = (w.shape(source)?.last().cloned()?, w.shape(flat)?.last().cloned()?);
    let (from, to) = (w.shape(source)?.clone(), w.shape(flat)?.clone());
    let leaf = |w: &Work, v: V| {
        // A row is the same row whatever is done to the axes before it.
        if w.rank(v)? == 1 && last.0 == last.1 && from.len() > 1 && to.len() > 1 {
            return (w.shape(v)?.first() == Some(&last.0)).then_some(v);
        }
        let x = w.arg(v, Reshape::DEF)?;
        (*w.shape(x)? == from && *w.shape(v)? == to).then_some(x)
    };
    let y = through(w, x, DEPTH, &leaf)?;
    let shape = w.shape(w.y(n)?)?.clone();
    w.reshape(y, &shape)
}

/// The first operand of element-wise work that is a reshape: what it reshapes, and its result.
fn first_reshaped(w: &Work, v: V, depth: usize) -> Option<(V, V)> {
    if let Some(x) = w.arg(v, Reshape::DEF) {
        return Some((x, v));
    }
    let (n, _) = w.def(v)?;
    let node = w.node(n)?;
    if depth == 0 || !elementwise(node.op) || !w.once(v) {
        return None;
    }
    node.operands
        .iter()
        .flatten()
        .filter(|o| w.rank(**o) > Some(1))
        .find_map(|o| first_reshaped(w, *o, depth - 1))
}

fn softmax_reshaped(w: &mut Work, n: N) -> Option<V> {
    let flat = w.x(n, 0)?;
    let x = w.arg(flat, Reshape::DEF)?;
    let (from, to) = (w.shape(x)?, w.shape(flat)?.clone());
    let axis = match w.node(n)?.attrs.first()? {
        AttrValue::Int(axis) => resolve_axis(*axis, to.len()).ok()?,
        _ => return None,
    };
    if axis + 1 != to.len() || from.last() != to.last() {
        return None;
    }
    let (op, last) = (w.node(n)?.op, from.len() as i64 - 1);
    let y = w.apply(op, vec![AttrValue::Int(last)], vec![Some(x)], Vec::new())?.first().copied()?;
    w.reshape(y, &to)
}

fn broadcast_through(w: &mut Work, n: N) -> Option<V> {
    let node = w.node(n)?;
    if !elementwise(node.op) {
        return None;
    }
    let bare = |o: &Option<V>| o.map(|v| w.arg(v, Broadcast::DEF).unwrap_or(v));
    let operands: Vec<Option<V>> = node.operands.iter().map(bare).collect();
    if operands == node.operands {
        return None;
    }
    let y = w.again(n, operands)?.first().copied()?;
    w.like_result(y, n)
}

//! Reductions over axes.

use super::build::{ints, is_identity, same};
use super::work::{N, V, Work};
use super::{Apply, Rule, Stage};
use rlx_ir::attr::AttrValue;
use rlx_ir::dim::Dim;
use rlx_ir::op::OpDef;
use rlx_ir::ops::elementwise::{Div, Mul};
use rlx_ir::ops::reduce::{All, Any, Max, Mean, Min, Prod, Sum};
use rlx_ir::ops::views::{Permute, Reshape};
use rlx_ir::types::{Shape, product, resolve_axes};

/// The reductions that have the attributes `axes` and `keep`, and give x itself over no axes.
const OPS: &[&OpDef] = &[Sum::DEF, Mean::DEF, Max::DEF, Min::DEF, Prod::DEF, Any::DEF, All::DEF];

pub const RULES: &[Rule] = &[
    Rule {
        name: "reduce_axes",
        algebra: "sum(x, [−1, 0]) → sum(x, [0, 1])",
        stage: Stage::Simplify,
        roots: OPS,
        apply: Apply::One(reduce_axes),
        samples: &["graph t { input x: f32[2, 3] y = sum(x) {axes: [-1]} output y = y }"],
        refuses: &["graph t { input x: f32[2, 3] y = sum(x) {axes: [1]} output y = y }"],
    },
    Rule {
        name: "reduce_nothing",
        algebra: "sum over axes of size 1 → reshape(x)",
        stage: Stage::Simplify,
        roots: OPS,
        apply: Apply::One(reduce_nothing),
        samples: &[
            "graph t { input x: f32[2, 1, 3] y = sum(x) {axes: [1]} output y = y }",
            "graph t { input x: f32[2, 3] a = mean(x) {axes: []} y = exp(a) output y = y }",
        ],
        refuses: &["graph t { input x: f32[2, 1, 3] y = sum(x) {axes: [1, 2]} output y = y }"],
    },
    Rule {
        name: "reduce_reduce",
        algebra: "sum(sum(x, a), b) → sum(x, a ∪ b) (rounding)",
        stage: Stage::Simplify,
        roots: OPS,
        apply: Apply::One(reduce_reduce),
        samples: &[
            "graph t { input x: f32[2, 3, 4] a = sum(x) {axes: [1]} y = sum(a) {axes: [1]} output y = y }",
            "graph t { input x: f32[2, 3, 4] a = mean(x) {axes: [1], keep: true} y = mean(a) {axes: [2], keep: true} \
             output y = y }",
        ],
        refuses: &[
            "graph t { input x: f32[2, 3, 4] a = sum(x) {axes: [1]} y = max(a) {axes: [1]} output y = y }",
        ],
    },
    Rule {
        name: "reduce_keep",
        algebra: "reshape(sum(x)) → sum(x, keep), where the reshape puts the axes back",
        stage: Stage::Simplify,
        roots: &[Reshape::DEF],
        apply: Apply::One(reduce_keep),
        samples: &["graph t { input x: f32[2, 3] a = mean(x) {axes: [1]} y = reshape(a) {shape: [2, 1]} \
             output y = y }"],
        refuses: &["graph t { input x: f32[2, 3] a = mean(x) {axes: [1]} y = reshape(a) {shape: [1, 2]} \
             output y = y }"],
    },
    Rule {
        name: "reduce_permuted",
        algebra: "sum(permute(x), a) → sum(x, a'), where the other axes stay in order (rounding)",
        stage: Stage::Simplify,
        roots: OPS,
        apply: Apply::One(reduce_permuted),
        samples: &[
            "graph t { input x: f32[2, 3, 4] a = permute(x) {axes: [0, 2, 1]} y = sum(a) {axes: [2]} \
             output y = y }",
        ],
        refuses: &[
            "graph t { input x: f32[2, 3, 4] a = permute(x) {axes: [1, 0, 2]} y = sum(a) {axes: [2]} \
             output y = y }",
        ],
    },
    Rule {
        name: "raise_mean",
        algebra: "sum(x, a) / n → mean(x, a), where n is the number of elements",
        stage: Stage::Raise,
        roots: &[Div::DEF, Mul::DEF],
        apply: Apply::One(raise_mean),
        samples: &[
            "graph t { input x: f32[2, 3] c = constant() {value: f32[] 3} a = sum(x) {axes: [1], keep: true} \
             y = div(a, c) output y = y }",
            "graph t { input x: f32[2, 4] c = constant() {value: f32[] 0.25} a = sum(x) {axes: [1]} y = mul(a, c) \
             output y = y }",
        ],
        refuses: &["graph t { input x: f32[2, 3] c = constant() {value: f32[] 2.9} a = sum(x) {axes: [1]} \
             y = div(a, c) output y = y }"],
    },
];

/// A reduction: its operand, its axes in order, and whether they stay.
pub struct Reduction {
    pub x: V,
    pub axes: Vec<usize>,
    pub keep: bool,
}

/// Reads a reduction.
pub fn reduction(w: &Work, n: N) -> Option<Reduction> {
    let node = w.node(n)?;
    if !OPS.iter().any(|d| std::ptr::eq(*d, node.op)) {
        return None;
    }
    match node.attrs.as_slice() {
        [AttrValue::Ints(axes), AttrValue::Bool(keep)] => {
            let x = w.x(n, 0)?;
            let mut axes = resolve_axes(axes, w.rank(x)?).ok()?;
            axes.sort_unstable();
            Some(Reduction { x, axes, keep: *keep })
        }
        _ => None,
    }
}

/// The reduction of a value by that op which the value is.
pub fn reduced(w: &Work, v: V, op: &'static OpDef) -> Option<Reduction> {
    reduction(w, w.by(v, op)?)
}

fn reduce(w: &mut Work, op: &'static OpDef, x: V, axes: &[usize], keep: bool) -> Option<V> {
    let attrs = vec![AttrValue::Ints(ints(axes.iter().copied())), AttrValue::Bool(keep)];
    w.apply(op, attrs, vec![Some(x)], Vec::new())?.first().copied()
}

fn reduce_axes(w: &mut Work, n: N) -> Option<V> {
    let r = reduction(w, n)?;
    let written = match w.node(n)?.attrs.first()? {
        AttrValue::Ints(axes) => *axes == ints(r.axes.iter().copied()),
        _ => true,
    };
    (!written).then(|| reduce(w, w.node(n)?.op, r.x, &r.axes, r.keep))?
}

fn reduce_nothing(w: &mut Work, n: N) -> Option<V> {
    let r = reduction(w, n)?;
    let shape = w.shape(r.x)?;
    if !r.axes.iter().all(|a| shape.get(*a).is_some_and(|d| d.is(1))) {
        return None;
    }
    let shape = w.shape(w.y(n)?)?.clone();
    w.reshape(r.x, &shape)
}

fn reduce_reduce(w: &mut Work, n: N) -> Option<V> {
    let outer = reduction(w, n)?;
    let op = w.node(n)?.op;
    let inner = reduced(w, outer.x, op)?;
    if inner.keep != outer.keep || !w.once(outer.x) {
        return None;
    }
    // The outer axes count what the inner reduction left.
    let left: Vec<usize> = match inner.keep {
        true => (0..w.rank(inner.x)?).collect(),
        false => (0..w.rank(inner.x)?).filter(|a| !inner.axes.contains(a)).collect(),
    };
    let mut axes = inner.axes.clone();
    axes.extend(outer.axes.iter().filter_map(|a| left.get(*a)).filter(|a| !inner.axes.contains(a)));
    axes.sort_unstable();
    reduce(w, op, inner.x, &axes, inner.keep)
}

/// The shape with size 1 along the axes.
fn kept(shape: &[Dim], axes: &[usize]) -> Shape {
    let kept = |(i, d): (usize, &Dim)| if axes.contains(&i) { Dim::constant(1) } else { d.clone() };
    shape.iter().enumerate().map(kept).collect()
}

fn reduce_keep(w: &mut Work, n: N) -> Option<V> {
    let x = w.x(n, 0)?;
    let (m, _) = w.def(x)?;
    let r = reduction(w, m)?;
    if r.keep || !w.once(x) || *w.shape(w.y(n)?)? != kept(w.shape(r.x)?, &r.axes) {
        return None;
    }
    reduce(w, w.node(m)?.op, r.x, &r.axes, true)
}

fn reduce_permuted(w: &mut Work, n: N) -> Option<V> {
    let r = reduction(w, n)?;
    let m = w.by(r.x, Permute::DEF)?;
    let p = w.permutation(m)?;
    let mut axes: Vec<usize> = r.axes.iter().filter_map(|a| p.get(*a).copied()).collect();
    axes.sort_unstable();
    let others: Vec<usize> = match r.keep {
        // Axes of size 1 stand where they are.
        true => p.iter().enumerate().map(|(to, from)| if axes.contains(from) { to } else { *from }).collect(),
        false => p.iter().copied().filter(|a| !axes.contains(a)).collect(),
    };
    if !others.is_sorted() || (r.keep && !is_identity(&others)) {
        return None;
    }
    reduce(w, w.node(n)?.op, w.x(m, 0)?, &axes, r.keep)
}

fn raise_mean(w: &mut Work, n: N) -> Option<V> {
    let (s, c) = w.xy(n)?;
    let c = if w.is(n, Div::DEF) { w.number(c)? } else { 1.0 / w.number(c)? };
    let m = w.by(s, Sum::DEF)?;
    let r = reduction(w, m)?;
    let shape = w.shape(r.x)?;
    let sizes: Shape = r.axes.iter().filter_map(|a| shape.get(*a).cloned()).collect();
    let (count, dtype) = (product(&sizes).as_const()? as f64, w.dtype(r.x)?);
    if !dtype.is_float() || !same(dtype, c, count) || !w.once(s) {
        return None;
    }
    reduce(w, Mean::DEF, r.x, &r.axes, r.keep)
}

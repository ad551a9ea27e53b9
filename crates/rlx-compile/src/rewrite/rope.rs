//! Raises rotary position embedding in its half-split form.

use super::build::elementwise;
use super::work::{N, V, Work};
use super::{Apply, Rule, Stage};
use rlx_ir::DType;
use rlx_ir::dim::Dim;
use rlx_ir::ops::concat::Concat;
use rlx_ir::ops::create::Iota;
use rlx_ir::ops::elementwise::{Add, Mul, Neg, Sub};
use rlx_ir::ops::gather::{Embedding, Gather};
use rlx_ir::ops::rope::Rope;
use rlx_ir::ops::views::{Broadcast, Reshape, Slice};
use rlx_ir::types::{product, resolve_axis};

pub const RULES: &[Rule] = &[
    Rule {
        name: "raise_rope",
        algebra: "x · cos + [−x₂ x₁] · sin → rope(x), where both halves of cos and of sin are equal",
        stage: Stage::Raise,
        roots: &[Add::DEF],
        apply: Apply::One(raise_rope),
        samples: &[
            // Llama: heads before positions, tables for all rows of the batch.
            "graph t { input x: f32[2, 3, 5, 4] input f: f32[5, 2] g = concat(f, f) {axis: -1} c = cos(g) s = sin(g) \
             a = slice(x) {start: [0, 0, 0, 0], stop: [2, 3, 5, 2], step: [1, 1, 1, 1]} \
             b = slice(x) {start: [0, 0, 0, 2], stop: [2, 3, 5, 4], step: [1, 1, 1, 1]} n = neg(b) \
             r = concat(n, a) {axis: 3} p = mul(x, c) q = mul(r, s) y = add(p, q) output y = y }",
            // Positions before heads, tables of their own for each row.
            "graph t { input x: f32[2, 5, 3, 4] input f: f32[2, 5, 2] g = concat(f, f) {axis: -1} \
             e = reshape(g) {shape: [2, 5, 1, 4]} c = cos(e) s = sin(e) \
             a = slice(x) {start: [0, 0, 0, 0], stop: [2, 5, 3, 2], step: [1, 1, 1, 1]} \
             b = slice(x) {start: [0, 0, 0, 2], stop: [2, 5, 3, 4], step: [1, 1, 1, 1]} n = neg(b) \
             r = concat(n, a) {axis: 3} p = mul(x, c) q = mul(r, s) y = add(q, p) output y = y }",
        ],
        refuses: &["graph t { input x: f32[2, 3, 5, 4] input c: f32[5, 4] input s: f32[5, 4] \
             a = slice(x) {start: [0, 0, 0, 0], stop: [2, 3, 5, 2], step: [1, 1, 1, 1]} \
             b = slice(x) {start: [0, 0, 0, 2], stop: [2, 3, 5, 4], step: [1, 1, 1, 1]} n = neg(b) \
             r = concat(n, a) {axis: 3} p = mul(x, c) q = mul(r, s) y = add(p, q) output y = y }"],
    },
    Rule {
        name: "raise_rope_halves",
        algebra: "[x₁ · cos − x₂ · sin, x₂ · cos + x₁ · sin] → rope(x)",
        stage: Stage::Raise,
        roots: &[Concat::DEF],
        apply: Apply::One(raise_rope_halves),
        samples: &["graph t { input x: f32[2, 3, 5, 4] input c: f32[5, 2] input s: f32[5, 2] \
             a = slice(x) {start: [0, 0, 0, 0], stop: [2, 3, 5, 2], step: [1, 1, 1, 1]} \
             b = slice(x) {start: [0, 0, 0, 2], stop: [2, 3, 5, 4], step: [1, 1, 1, 1]} \
             p = mul(a, c) q = mul(b, s) u = sub(p, q) i = mul(b, c) j = mul(a, s) v = add(i, j) \
             y = concat(u, v) {axis: -1} output y = y }"],
        refuses: &["graph t { input x: f32[2, 3, 5, 4] input c: f32[5, 2] input s: f32[5, 2] \
             a = slice(x) {start: [0, 0, 0, 0], stop: [2, 3, 5, 2], step: [1, 1, 1, 1]} \
             b = slice(x) {start: [0, 0, 0, 2], stop: [2, 3, 5, 4], step: [1, 1, 1, 1]} \
             p = mul(a, c) q = mul(b, s) u = sub(p, q) i = mul(b, c) j = mul(a, s) v = add(i, j) \
             y = concat(v, u) {axis: -1} output y = y }"],
    },
];

/// What the value is a half of along its last axis: that, the node, and which half.
fn half_of(w: &Work, v: V) -> Option<(V, N, bool)> {
    let n = w.by(v, Slice::DEF)?;
    let x = w.x(n, 0)?;
    let (a, shape) = (w.attrs::<Slice>(n)?, w.shape(x)?);
    let (last, lead) = shape.split_last()?;
    let k = lead.len();
    let whole = a.step.iter().all(|s| *s == 1)
        && lead
            .iter()
            .enumerate()
            .all(|(i, d)| a.start.get(i).is_some_and(|s| s.is(0)) && a.stop.get(i) == Some(d));
    let half = Dim::constant(last.as_const().filter(|d| d % 2 == 0)? / 2);
    let (start, stop) = (a.start.get(k)?, a.stop.get(k)?);
    match whole {
        true if start.is(0) && *stop == half => Some((x, n, false)),
        true if *start == half && stop == last => Some((x, n, true)),
        _ => None,
    }
}

/// A concat of two along the last axis.
fn pair(w: &Work, v: V) -> Option<(N, V, V)> {
    let n = w.by(v, Concat::DEF)?;
    let axis = resolve_axis(w.attrs::<Concat>(n)?.axis, w.rank(v)?).ok()?;
    match w.node(n)?.operands.as_slice() {
        [Some(a), Some(b)] if axis + 1 == w.rank(v)? => Some((n, *a, *b)),
        _ => None,
    }
}

/// Whether both halves of the last axis hold the same.
fn halves_equal(w: &Work, v: V, depth: usize) -> bool {
    if depth == 0 {
        return false;
    }
    if let Some((_, a, b)) = pair(w, v) {
        return a == b;
    }
    if let Some(t) = w.data(v) {
        let Some(last) = t.shape().last().filter(|d| **d > 0 && **d % 2 == 0).copied() else { return false };
        let row = last * t.dtype().bytes().unwrap_or(1);
        return t.bytes().chunks_exact(row).all(|r| r.get(..row / 2) == r.get(row / 2..));
    }
    let Some(n) = w.def(v).map(|d| d.0) else { return false };
    let Some(node) = w.node(n) else { return false };
    let Some(x) = w.x(n, 0) else { return false };
    let last = |v: V| w.shape(v).and_then(|s| s.last().cloned());
    if elementwise(node.op) {
        let varies = |o: &V| last(*o).is_some_and(|d| !d.is(1));
        return node.operands.iter().flatten().filter(|o| varies(o)).all(|o| halves_equal(w, *o, depth - 1));
    }
    if w.is(n, Slice::DEF) {
        let part = w.attrs::<Slice>(n).is_some_and(|a| a.step.last() == Some(&1));
        return part && last(x) == last(v) && halves_equal(w, x, depth - 1);
    }
    if w.is(n, Gather::DEF) {
        let rows = w.attrs::<Gather>(n).is_some_and(|a| a.axis == 0) && w.rank(x) == Some(2);
        return rows && halves_equal(w, x, depth - 1);
    }
    if w.is(n, Embedding::DEF) {
        return halves_equal(w, x, depth - 1);
    }
    (w.is(n, Reshape::DEF) || w.is(n, Broadcast::DEF)) && last(x) == last(v) && halves_equal(w, x, depth - 1)
}

fn raise_rope(w: &mut Work, n: N) -> Option<V> {
    let (a, b) = w.xy(n)?;
    for (straight, turned) in [(a, b), (b, a)] {
        let (Some(p), Some(q)) = (w.by(straight, Mul::DEF), w.by(turned, Mul::DEF)) else { return None };
        let (q0, q1) = w.xy(q)?;
        let (rotated, sin) =
            if pair(w, q0).is_some() && rotated_half(w, q0).is_some() { (q0, q1) } else { (q1, q0) };
        let Some((x, mut inside)) = rotated_half(w, rotated) else { continue };
        let (p0, p1) = w.xy(p)?;
        let cos = if p0 == x { p1 } else { p0 };
        inside.extend([p, q]);
        if (p0 != x && p1 != x)
            || !w.closed(n, &inside)
            || !halves_equal(w, cos, 12)
            || !halves_equal(w, sin, 12)
        {
            continue;
        }
        let half = Dim::constant(w.shape(x)?.last()?.as_const()? / 2);
        let first = |w: &mut Work, v: V| w.narrow(v, w.rank(v)?.checked_sub(1)?, &Dim::constant(0), &half);
        let (cos, sin) = (first(w, cos)?, first(w, sin)?);
        return rope(w, x, cos, sin);
    }
    None
}

/// x of [−x₂ x₁], and the nodes.
fn rotated_half(w: &Work, v: V) -> Option<(V, Vec<N>)> {
    let (n, minus, first) = pair(w, v)?;
    let m = w.by(minus, Neg::DEF)?;
    let (x, s2, upper) = half_of(w, w.x(m, 0)?)?;
    let (same, s1, other) = half_of(w, first)?;
    (upper && !other && same == x).then(|| (x, vec![n, m, s1, s2]))
}

fn raise_rope_halves(w: &mut Work, n: N) -> Option<V> {
    let (_, low, high) = pair(w, w.y(n)?)?;
    let (minus, plus) = (w.by(low, Sub::DEF)?, w.by(high, Add::DEF)?);
    let mut inside = vec![minus, plus];
    // A product of a half of x and a table: which half, x and the table.
    let term = |v: V, inside: &mut Vec<N>| -> Option<(bool, V, V)> {
        let m = w.by(v, Mul::DEF)?;
        let (a, b) = w.xy(m)?;
        let ((x, s, upper), table) = match half_of(w, a) {
            Some(h) => (h, b),
            None => (half_of(w, b)?, a),
        };
        inside.extend([m, s]);
        Some((upper, x, table))
    };
    let ((a, b), (c, d)) = (w.xy(minus)?, w.xy(plus)?);
    let (first, second) = (term(a, &mut inside)?, term(b, &mut inside)?);
    let (third, fourth) = (term(c, &mut inside)?, term(d, &mut inside)?);
    let (third, fourth) = if third.0 { (third, fourth) } else { (fourth, third) };
    let x = first.1;
    let fits = !first.0 && second.0 && third.0 && !fourth.0;
    let same =
        [&second, &third, &fourth].iter().all(|t| t.1 == x) && first.2 == third.2 && second.2 == fourth.2;
    (fits && same && w.closed(n, &inside)).then(|| rope(w, x, first.2, second.2))?
}

/// The op, for x of `[b, heads, s, d]` or `[b, s, heads, d]` and tables of `[.., s, d/2]` that broadcast to it.
fn rope(w: &mut Work, x: V, cos: V, sin: V) -> Option<V> {
    let shape = w.shape(x)?.clone();
    let [b, m, k, d] = shape.as_slice() else { return None };
    let width = d.as_const()?;
    if *w.shape(cos)? != *w.shape(sin)? || w.dtype(cos)? != w.dtype(sin)? {
        return None;
    }
    let mut own = w.shape(cos)?.clone();
    while own.len() < 4 {
        own.insert(0, Dim::constant(1));
    }
    let (rows_of_batch, heads_first) = match own.as_slice() {
        [o, p, q, _] if p.is(1) && q == k && !k.is(1) => (o.clone(), true),
        [o, p, q, _] if q.is(1) && p == m && !m.is(1) => (o.clone(), false),
        _ => return None,
    };
    let (s, heads) = if heads_first { (k, m) } else { (m, k) };
    let order: &[usize] = if heads_first { &[0, 2, 1, 3] } else { &[0, 1, 2, 3] };
    let turned = w.permute(x, order)?;
    let flat = w.reshape(turned, &[b.clone(), s.clone(), heads * d])?;
    // One table for all rows of the batch, or the tables of all rows behind each other.
    let (rows, positions) = if rows_of_batch.is(1) {
        (s.clone(), None)
    } else if rows_of_batch == *b {
        let n = product(&[b.clone(), s.clone()]);
        let index =
            w.emit(Iota::DEF, &Iota { shape: vec![n.clone()].into(), axis: 0, dtype: DType::I64 }, &[])?;
        (n, Some(w.reshape(index, &[b.clone(), s.clone()])?))
    } else {
        return None;
    };
    let half = Dim::constant(width / 2);
    let (cos, sin) = (w.reshape(cos, &[rows.clone(), half.clone()])?, w.reshape(sin, &[rows, half])?);
    let a = Rope { head_dim: width, n_rot: width, interleaved: false, inverse: false };
    let y = w.emit_opt(Rope::DEF, &a, vec![Some(flat), Some(cos), Some(sin), positions])?;
    let turned_shape: Vec<Dim> = vec![b.clone(), s.clone(), heads.clone(), d.clone()];
    let y = w.reshape(y, &turned_shape)?;
    w.permute(y, order)
}

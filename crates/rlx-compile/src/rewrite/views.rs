//! Views: reshapes, permutes, broadcasts, slices and what undoes them.

use super::build::{elementwise, is_identity, pick};
use super::work::{N, V, Work};
use super::{Apply, Rule, Stage};
use rlx_ir::attr::Dims;
use rlx_ir::dim::Dim;
use rlx_ir::ops::concat::Concat;
use rlx_ir::ops::views::{Broadcast, Flip, Pad, Permute, Reshape, Slice};
use rlx_ir::types::{resolve_axes, resolve_axis};

pub const RULES: &[Rule] = &[
    Rule {
        name: "same_view",
        algebra: "reshape, permute, broadcast, slice, pad, flip that change nothing → x",
        stage: Stage::Simplify,
        roots: &[Reshape::DEF, Permute::DEF, Broadcast::DEF, Slice::DEF, Pad::DEF, Flip::DEF],
        apply: Apply::One(same_view),
        samples: &[
            "graph t { input x: f32[2, 3] a = reshape(x) {shape: [2, 3]} y = exp(a) output y = y }",
            "graph t { input x: f32[2, 3] a = permute(x) {axes: [0, -1]} y = exp(a) output y = y }",
            "graph t { input x: f32[2, 3] a = broadcast(x) {shape: [2, 3]} y = exp(a) output y = y }",
            "graph t { input x: f32[2, 3] a = slice(x) {start: [0, 0], stop: [2, 3], step: [1, 1]} y = exp(a) \
             output y = y }",
            "graph t { input x: f32[2, 1] a = flip(x) {axes: [1]} y = exp(a) output y = y }",
        ],
        refuses: &["graph t { input x: f32[3, 3] a = permute(x) {axes: [1, 0]} output a = a }"],
    },
    Rule {
        name: "reshape_reshape",
        algebra: "reshape(reshape(x)) → reshape(x)",
        stage: Stage::Simplify,
        roots: &[Reshape::DEF],
        apply: Apply::One(reshape_reshape),
        samples: &[
            "graph t { input x: f32[2, 6] a = reshape(x) {shape: [12]} y = reshape(a) {shape: [3, 4]} \
             output y = y }",
        ],
        refuses: &[],
    },
    Rule {
        name: "permute_permute",
        algebra: "permute(permute(x, p), q) → permute(x, p∘q)",
        stage: Stage::Simplify,
        roots: &[Permute::DEF],
        apply: Apply::One(permute_permute),
        samples: &["graph t { input x: f32[2, 3, 4] a = permute(x) {axes: [1, 2, 0]} \
             y = permute(a) {axes: [1, 0, 2]} output y = y }"],
        refuses: &[],
    },
    Rule {
        name: "permute_ones",
        algebra: "permute(x) → reshape(x), where only axes of size 1 change places",
        stage: Stage::Simplify,
        roots: &[Permute::DEF],
        apply: Apply::One(permute_ones),
        samples: &["graph t { input x: f32[1, 3, 4] y = permute(x) {axes: [1, 0, 2]} output y = y }"],
        refuses: &["graph t { input x: f32[2, 3, 4] y = permute(x) {axes: [1, 0, 2]} output y = y }"],
    },
    Rule {
        name: "permute_axes",
        algebra: "permute(x, [−1, 0]) → permute(x, [1, 0])",
        stage: Stage::Simplify,
        roots: &[Permute::DEF],
        apply: Apply::One(permute_axes),
        samples: &["graph t { input x: f32[3, 4] y = permute(x) {axes: [-1, 0]} output y = y }"],
        refuses: &["graph t { input x: f32[3, 4] y = permute(x) {axes: [1, 0]} output y = y }"],
    },
    Rule {
        name: "broadcast_broadcast",
        algebra: "broadcast(broadcast(x)) → broadcast(x)",
        stage: Stage::Simplify,
        roots: &[Broadcast::DEF],
        apply: Apply::One(broadcast_broadcast),
        samples: &["graph t { input x: f32[3] a = broadcast(x) {shape: [2, 3]} \
             y = broadcast(a) {shape: [4, 2, 3]} output y = y }"],
        refuses: &[],
    },
    Rule {
        name: "broadcast_ones",
        algebra: "broadcast(x) → reshape(x), where it only adds axes of size 1",
        stage: Stage::Simplify,
        roots: &[Broadcast::DEF],
        apply: Apply::One(broadcast_ones),
        samples: &["graph t { input x: f32[3] y = broadcast(x) {shape: [1, 3]} output y = y }"],
        refuses: &["graph t { input x: f32[3] y = broadcast(x) {shape: [2, 3]} output y = y }"],
    },
    Rule {
        name: "view_of_number",
        algebra: "reshape, permute, slice, flip of a repeated number → the number repeated",
        stage: Stage::Simplify,
        roots: &[Reshape::DEF, Permute::DEF, Slice::DEF, Flip::DEF],
        apply: Apply::One(view_of_number),
        samples: &[
            "graph t { dim n <= 9 input x: f32[n] c = constant() {value: f32[] 2} a = broadcast(c) {shape: [n, 3]} \
             y = permute(a) {axes: [1, 0]} output y = y }",
        ],
        refuses: &[],
    },
    Rule {
        name: "slice_slice",
        algebra: "x[a..][b..] → x[a+b..]",
        stage: Stage::Simplify,
        roots: &[Slice::DEF],
        apply: Apply::One(slice_slice),
        samples: &["graph t { input x: f32[9] a = slice(x) {start: [1], stop: [9], step: [2]} \
             y = slice(a) {start: [1], stop: [4], step: [2]} output y = y }"],
        refuses: &[],
    },
    Rule {
        name: "slice_concat",
        algebra: "concat(x, y)[part of x] → x[part]",
        stage: Stage::Simplify,
        roots: &[Slice::DEF],
        apply: Apply::One(slice_concat),
        samples: &["graph t { input x: f32[2, 3] input y: f32[2, 4] a = concat(x, y) {axis: 1} \
             z = slice(a) {start: [0, 4], stop: [2, 6], step: [1, 1]} output z = z }"],
        refuses: &["graph t { input x: f32[2, 3] input y: f32[2, 4] a = concat(x, y) {axis: 1} \
             z = slice(a) {start: [0, 2], stop: [2, 6], step: [1, 1]} output z = z }"],
    },
    Rule {
        name: "slice_unary",
        algebra: "f(x)[part] → f(x[part]) for element-wise f of one operand",
        stage: Stage::Simplify,
        roots: &[Slice::DEF],
        apply: Apply::One(slice_unary),
        samples: &["graph t { input x: f32[6] a = exp(x) y = slice(a) {start: [1], stop: [3], step: [1]} \
             output y = y }"],
        refuses: &["graph t { input x: f32[6] a = exp(x) y = slice(a) {start: [1], stop: [3], step: [1]} \
             output y = y output a = a }"],
    },
    Rule {
        name: "slice_reshape",
        algebra: "reshape(x)[part] → reshape(x[part]), where the reshape only adds or drops axes of size 1",
        stage: Stage::Simplify,
        roots: &[Slice::DEF],
        apply: Apply::One(slice_reshape),
        samples: &["graph t { input x: f32[5, 4] a = reshape(x) {shape: [1, 5, 1, 4]} \
             y = slice(a) {start: [0, 1, 0, 0], stop: [1, 3, 1, 4], step: [1, 1, 1, 2]} output y = y }"],
        refuses: &["graph t { input x: f32[5, 4] a = reshape(x) {shape: [4, 5]} \
             y = slice(a) {start: [0, 1], stop: [1, 3], step: [1, 1]} output y = y }"],
    },
    Rule {
        name: "concat_slices",
        algebra: "concat(x[a..b], x[b..c]) → x[a..c]",
        stage: Stage::Simplify,
        roots: &[Concat::DEF],
        apply: Apply::One(concat_slices),
        samples: &["graph t { input x: f32[2, 6] a = slice(x) {start: [0, 0], stop: [2, 2], step: [1, 1]} \
             b = slice(x) {start: [0, 2], stop: [2, 5], step: [1, 1]} y = concat(a, b) {axis: 1} output y = y }"],
        refuses: &["graph t { input x: f32[2, 6] a = slice(x) {start: [0, 0], stop: [2, 2], step: [1, 1]} \
             b = slice(x) {start: [0, 2], stop: [2, 5], step: [1, 1]} y = concat(b, a) {axis: 1} output y = y }"],
    },
    Rule {
        name: "concat_concat",
        algebra: "concat(concat(x, y), z) → concat(x, y, z)",
        stage: Stage::Simplify,
        roots: &[Concat::DEF],
        apply: Apply::One(concat_concat),
        samples: &["graph t { input x: f32[2, 3] a = concat(x, x) {axis: 1} y = concat(a, x) {axis: -1} \
             output y = y }"],
        refuses: &["graph t { input x: f32[2, 3] a = concat(x, x) {axis: 1} y = concat(a, a) {axis: 0} \
             output y = y }"],
    },
    Rule {
        name: "flip_flip",
        algebra: "flip(flip(x)) → x",
        stage: Stage::Simplify,
        roots: &[Flip::DEF],
        apply: Apply::One(flip_flip),
        samples: &[
            "graph t { input x: f32[2, 3] a = flip(x) {axes: [1]} b = flip(a) {axes: [-1]} y = exp(b) \
             output y = y }",
        ],
        refuses: &[
            "graph t { input x: f32[2, 3] a = flip(x) {axes: [1]} b = flip(a) {axes: [0]} output b = b }",
        ],
    },
];

fn same_view(w: &mut Work, n: N) -> Option<V> {
    let (x, y) = (w.x(n, 0)?, w.y(n)?);
    let same = if w.is(n, Permute::DEF) {
        is_identity(&w.permutation(n)?)
    } else if w.is(n, Flip::DEF) {
        let (shape, a) = (w.shape(x)?, w.attrs::<Flip>(n)?);
        let axes = resolve_axes(&a.axes, shape.len()).ok()?;
        axes.iter().all(|i| shape.get(*i).is_some_and(|d| d.is(1) || d.is(0)))
    } else if w.is(n, Slice::DEF) {
        let a = w.attrs::<Slice>(n)?;
        a.start.iter().all(|d| d.is(0)) && a.step.iter().all(|s| *s == 1)
    } else {
        true
    };
    (same && w.ty(x) == w.ty(y)).then_some(x)
}

fn reshape_reshape(w: &mut Work, n: N) -> Option<V> {
    let x = w.arg(w.x(n, 0)?, Reshape::DEF)?;
    let shape = w.shape(w.y(n)?)?.clone();
    w.reshape(x, &shape)
}

fn permute_permute(w: &mut Work, n: N) -> Option<V> {
    let inner = w.by(w.x(n, 0)?, Permute::DEF)?;
    let axes = pick(&w.permutation(inner)?, &w.permutation(n)?)?;
    w.permute(w.x(inner, 0)?, &axes)
}

fn permute_ones(w: &mut Work, n: N) -> Option<V> {
    let (x, axes) = (w.x(n, 0)?, w.permutation(n)?);
    let shape = w.shape(x)?;
    let long: Vec<usize> = axes.into_iter().filter(|a| shape.get(*a).is_some_and(|d| !d.is(1))).collect();
    if !long.is_sorted() {
        return None;
    }
    let shape = w.shape(w.y(n)?)?.clone();
    w.reshape(x, &shape)
}

fn permute_axes(w: &mut Work, n: N) -> Option<V> {
    let negative = w.attrs::<Permute>(n)?.axes.iter().any(|a| *a < 0);
    let axes = w.permutation(n)?;
    negative.then(|| w.permute(w.x(n, 0)?, &axes))?
}

fn broadcast_broadcast(w: &mut Work, n: N) -> Option<V> {
    let x = w.arg(w.x(n, 0)?, Broadcast::DEF)?;
    w.like_result(x, n)
}

fn broadcast_ones(w: &mut Work, n: N) -> Option<V> {
    let (x, y) = (w.x(n, 0)?, w.y(n)?);
    let (from, to) = (w.shape(x)?, w.shape(y)?.clone());
    let lead = to.len().checked_sub(from.len())?;
    let only_ones = to.iter().take(lead).all(|d| d.is(1)) && to.get(lead..)? == from.as_slice();
    only_ones.then(|| w.reshape(x, &to))?
}

fn view_of_number(w: &mut Work, n: N) -> Option<V> {
    let mut x = w.x(n, 0)?;
    w.number(x)?;
    // A constant is folded; what is left is a repeated one.
    while let Some(inner) = w.arg(x, Broadcast::DEF).or_else(|| w.arg(x, Reshape::DEF)) {
        x = inner;
    }
    let x = w.reshape(x, &[])?;
    w.like_result(x, n)
}

fn slice_slice(w: &mut Work, n: N) -> Option<V> {
    let inner = w.by(w.x(n, 0)?, Slice::DEF)?;
    let (a, b, x) = (w.attrs::<Slice>(inner)?, w.attrs::<Slice>(n)?, w.x(inner, 0)?);
    let mut out = Slice { start: Dims(vec![]), stop: Dims(vec![]), step: vec![] };
    for i in 0..a.step.len() {
        let (s, t) = (*a.step.get(i)?, *b.step.get(i)?);
        let start = a.start.get(i)? + b.start.get(i)? * s;
        // The end of the outer slice, in steps of the inner one; it may pass the inner end by less than a step.
        let stop = match s {
            1 => a.start.get(i)? + b.stop.get(i)?,
            _ => {
                let last = (b.stop.get(i)? - b.start.get(i)? - 1).as_const().filter(|k| *k >= 0)?;
                &start + last * s + 1
            }
        };
        out.start.0.push(start);
        out.stop.0.push(stop);
        out.step.push(s.checked_mul(t)?);
    }
    w.emit(Slice::DEF, &out, &[x])
}

fn slice_concat(w: &mut Work, n: N) -> Option<V> {
    let inner = w.by(w.x(n, 0)?, Concat::DEF)?;
    let mut a = w.attrs::<Slice>(n)?;
    let axis = resolve_axis(w.attrs::<Concat>(inner)?.axis, a.step.len()).ok()?;
    let (start, stop) = (a.start.get(axis)?.clone(), a.stop.get(axis)?.clone());
    let mut before = Dim::constant(0);
    let at_least = |a: &Dim, b: &Dim| (a - b).lower().is_some_and(|l| l >= 0);
    for part in w.node(inner)?.operands.iter().flatten() {
        let after = &before + w.shape(*part)?.get(axis)?;
        if at_least(&start, &before) && at_least(&after, &stop) && at_least(&stop, &start) {
            *a.start.0.get_mut(axis)? = start - &before;
            *a.stop.0.get_mut(axis)? = stop - &before;
            let part = *part;
            return w.emit(Slice::DEF, &a, &[part]);
        }
        // Parts that begin behind the first element hold no part that begins there.
        if at_least(&after, &(&start + 1)) {
            return None;
        }
        before = after;
    }
    None
}

fn slice_unary(w: &mut Work, n: N) -> Option<V> {
    let inner = w.x(n, 0)?;
    let (m, _) = w.def(inner)?;
    let node = w.node(m)?;
    if !elementwise(node.op) || node.operands.len() != 1 || !w.once(inner) {
        return None;
    }
    let x = w.x(m, 0)?;
    let part = w.again(n, vec![Some(x)])?.first().copied()?;
    w.again(m, vec![Some(part)])?.first().copied()
}

fn slice_reshape(w: &mut Work, n: N) -> Option<V> {
    let view = w.x(n, 0)?;
    let x = w.arg(view, Reshape::DEF)?;
    let (from, to, a) = (w.shape(x)?, w.shape(view)?, w.attrs::<Slice>(n)?);
    // The long axes, which are the same on both sides; those of size 1 must be taken whole.
    let mut long = Vec::new();
    for (i, d) in to.iter().enumerate() {
        match d.is(1) {
            true if a.start.get(i)?.is(0) && a.stop.get(i)?.is(1) => {}
            true => return None,
            false => long.push(i),
        }
    }
    let mut long = long.into_iter();
    let mut out = Slice { start: Dims(vec![]), stop: Dims(from.clone()), step: vec![] };
    for (k, d) in from.iter().enumerate() {
        let i = if d.is(1) { None } else { Some(long.next().filter(|i| to.get(*i) == Some(d))?) };
        out.start.0.push(i.map_or(Some(Dim::constant(0)), |i| a.start.get(i).cloned())?);
        out.step.push(i.map_or(Some(1), |i| a.step.get(i).copied())?);
        if let Some(i) = i {
            *out.stop.0.get_mut(k)? = a.stop.get(i)?.clone();
        }
    }
    if long.next().is_some() {
        return None;
    }
    let shape = w.shape(w.y(n)?)?.clone();
    let part = w.emit(Slice::DEF, &out, &[x])?;
    w.reshape(part, &shape)
}

fn concat_slices(w: &mut Work, n: N) -> Option<V> {
    let parts: Vec<V> = w.node(n)?.operands.iter().flatten().copied().collect();
    let slices = parts.iter().map(|p| w.by(*p, Slice::DEF)).collect::<Option<Vec<N>>>()?;
    let (first, rest) = slices.split_first()?;
    let x = w.x(*first, 0)?;
    let mut all = w.attrs::<Slice>(*first)?;
    let axis = resolve_axis(w.attrs::<Concat>(n)?.axis, all.step.len()).ok()?;
    if *all.step.get(axis)? != 1 {
        return None;
    }
    for s in rest {
        let mut a = w.attrs::<Slice>(*s)?;
        if w.x(*s, 0)? != x || a.start.get(axis)? != all.stop.get(axis)? {
            return None;
        }
        // Equal but for the part of the axis, which they continue.
        *a.start.0.get_mut(axis)? = all.start.get(axis)?.clone();
        *all.stop.0.get_mut(axis)? = a.stop.get(axis)?.clone();
        if a != all {
            return None;
        }
    }
    w.emit(Slice::DEF, &all, &[x])
}

fn concat_concat(w: &mut Work, n: N) -> Option<V> {
    let rank = w.rank(w.y(n)?)?;
    let axis = resolve_axis(w.attrs::<Concat>(n)?.axis, rank).ok()?;
    let same = |m: N| {
        let along = |a: Concat| resolve_axis(a.axis, rank).is_ok_and(|k| k == axis);
        w.is(m, Concat::DEF) && w.attrs::<Concat>(m).is_some_and(along)
    };
    // Only from the outermost one, and then all at once: one by one would list the parts of a long chain anew each time.
    let y = w.y(n)?;
    if w.once(y) && w.users(y).iter().any(|u| same(*u)) {
        return None;
    }
    let mut parts = Vec::new();
    let mut flattened = false;
    let operands = |m: N| w.node(m).into_iter().flat_map(|n| n.operands.iter().rev().flatten().copied());
    let mut stack: Vec<V> = operands(n).collect();
    while let Some(p) = stack.pop() {
        match w.by(p, Concat::DEF).filter(|m| w.once(p) && same(*m)) {
            Some(m) => {
                flattened = true;
                stack.extend(operands(m));
            }
            None => parts.push(p),
        }
    }
    flattened.then(|| w.emit(Concat::DEF, &Concat { axis: axis as i64 }, &parts))?
}

fn flip_flip(w: &mut Work, n: N) -> Option<V> {
    let inner = w.by(w.x(n, 0)?, Flip::DEF)?;
    let x = w.x(inner, 0)?;
    let axes = |n: N| -> Option<Vec<usize>> {
        let mut axes = resolve_axes(&w.attrs::<Flip>(n)?.axes, w.rank(x)?).ok()?;
        axes.sort_unstable();
        Some(axes)
    };
    (axes(inner)? == axes(n)?).then_some(x)
}

//! Raises softmax and its logarithm.

use super::reduce::reduced;
use super::work::{N, V, Work};
use super::{Apply, Rule, Stage};
use rlx_ir::DType;
use rlx_ir::ops::elementwise::{Cast, Div, Mul, Sub};
use rlx_ir::ops::math::{Exp, Log, Recip};
use rlx_ir::ops::norm::{LayerNorm, RmsNorm};
use rlx_ir::ops::reduce::{Max, Sum};
use rlx_ir::ops::softmax::{LogSoftmax, Softmax};

pub const RULES: &[Rule] = &[
    Rule {
        name: "raise_softmax",
        algebra: "e / Σ e → softmax(x), where e = exp(x − max x) or exp(x)",
        stage: Stage::Raise,
        roots: &[Div::DEF, Mul::DEF],
        apply: Apply::One(raise_softmax),
        samples: &[
            "graph t { input x: f32[2, 3] m = max(x) {axes: [-1], keep: true} s = sub(x, m) e = exp(s) \
             z = sum(e) {axes: [-1], keep: true} y = div(e, z) output y = y }",
            "graph t { input x: f32[2, 3] e = exp(x) z = sum(e) {axes: [0], keep: true} y = div(e, z) output y = y }",
            "graph t { input x: f32[2, 3] e = exp(x) z = sum(e) {axes: [1], keep: true} r = recip(z) y = mul(r, e) \
             output y = y }",
        ],
        refuses: &[
            "graph t { input x: f32[2, 3] e = exp(x) z = sum(e) {axes: [0, 1], keep: true} y = div(e, z) output y = y }",
            "graph t { input x: f32[2, 3] e = exp(x) z = sum(e) {axes: [1], keep: true} y = div(e, z) output y = y \
             output e = e }",
        ],
    },
    Rule {
        name: "raise_log_softmax",
        algebra: "s − ln Σ exp(s) → log_softmax(x), where s = x − max x",
        stage: Stage::Raise,
        roots: &[Sub::DEF],
        apply: Apply::One(raise_log_softmax),
        samples: &[
            "graph t { input x: f32[2, 3] m = max(x) {axes: [1], keep: true} s = sub(x, m) e = exp(s) \
             z = sum(e) {axes: [1], keep: true} l = log(z) y = sub(s, l) output y = y }",
        ],
        refuses: &["graph t { input x: f32[2, 3] e = exp(x) z = sum(e) {axes: [1], keep: true} l = log(z) \
             y = sub(x, l) output y = y }"],
    },
    Rule {
        name: "narrow_kernel",
        algebra: "cast(f(cast(x, wide)), narrow) → f(x), where f computes in the wide dtype by itself",
        stage: Stage::Raise,
        roots: &[Cast::DEF],
        apply: Apply::One(narrow_kernel),
        samples: &[
            "graph t { input x: f16[2, 3] a = cast(x) {dtype: f32} b = softmax(a) y = cast(b) {dtype: f16} \
             output y = y }",
        ],
        refuses: &[
            "graph t { input x: f32[2, 3] a = cast(x) {dtype: f64} b = softmax(a) y = cast(b) {dtype: f32} \
             output y = y }",
        ],
    },
];

/// A sum of exponentials along one axis: the node, what is summed, and the axis.
fn sum_of(w: &Work, v: V) -> Option<(N, V, usize)> {
    let r = reduced(w, v, Sum::DEF)?;
    match r.axes.as_slice() {
        [axis] if r.keep => Some((w.by(v, Sum::DEF)?, r.x, *axis)),
        _ => None,
    }
}

/// x of x − max x along the axis; the nodes are noted.
fn shifted(w: &Work, v: V, axis: usize, inside: &mut Vec<N>) -> Option<V> {
    let n = w.by(v, Sub::DEF)?;
    let (x, m) = w.xy(n)?;
    let r = reduced(w, m, Max::DEF)?;
    if r.x != x || r.axes != [axis] || !r.keep {
        return None;
    }
    inside.extend([n, w.def(m)?.0]);
    Some(x)
}

fn raise_softmax(w: &mut Work, n: N) -> Option<V> {
    let (a, b) = w.xy(n)?;
    let mut inside = Vec::new();
    let (e, total) = if w.is(n, Div::DEF) {
        (a, b)
    } else {
        let (e, r) = if w.by(a, Recip::DEF).is_some() { (b, a) } else { (a, b) };
        inside.push(w.by(r, Recip::DEF)?);
        (e, w.arg(r, Recip::DEF)?)
    };
    let (sum, summed, axis) = sum_of(w, total)?;
    let exp = w.by(e, Exp::DEF).filter(|_| summed == e)?;
    inside.extend([sum, exp]);
    let x = w.x(exp, 0)?;
    let mut with_max = inside.clone();
    if let Some(x) = shifted(w, x, axis, &mut with_max)
        && w.closed(n, &with_max)
    {
        return w.emit(Softmax::DEF, &Softmax { axis: axis as i64 }, &[x]);
    }
    w.closed(n, &inside).then(|| w.emit(Softmax::DEF, &Softmax { axis: axis as i64 }, &[x]))?
}

fn raise_log_softmax(w: &mut Work, n: N) -> Option<V> {
    let (s, l) = w.xy(n)?;
    let log = w.by(l, Log::DEF)?;
    let (sum, summed, axis) = sum_of(w, w.x(log, 0)?)?;
    let exp = w.by(summed, Exp::DEF).filter(|e| w.x(*e, 0) == Some(s))?;
    let mut inside = vec![log, sum, exp];
    let x = shifted(w, s, axis, &mut inside)?;
    w.closed(n, &inside).then(|| w.emit(LogSoftmax::DEF, &LogSoftmax { axis: axis as i64 }, &[x]))?
}

fn narrow_kernel(w: &mut Work, n: N) -> Option<V> {
    let y = w.x(n, 0)?;
    let (m, _) = w.def(y)?;
    let narrow = w.attrs::<Cast>(n)?.dtype;
    let own = |op| w.is(m, op);
    let fits = own(Softmax::DEF) || own(LogSoftmax::DEF) || own(LayerNorm::DEF) || own(RmsNorm::DEF);
    if !fits || !w.once(y) || narrow == DType::F64 || w.dtype(y)? != narrow.wide() {
        return None;
    }
    let mut operands = Vec::new();
    for o in w.node(m)?.operands.clone() {
        operands.push(match o {
            None => None,
            Some(v) => Some(w.arg(v, Cast::DEF).filter(|x| w.dtype(*x) == Some(narrow))?),
        });
    }
    w.again(m, operands)?.first().copied()
}

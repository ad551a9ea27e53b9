//! Raises layer norm and RMS norm, with what scales and shifts them.

use super::reduce::{Reduction, reduced};
use super::work::{N, V, Work};
use super::{Apply, Rule, Stage};
use rlx_ir::op::OpDef;
use rlx_ir::ops::elementwise::{Add, Div, Mul, Pow, Sub};
use rlx_ir::ops::math::{Recip, Rsqrt, Sqrt};
use rlx_ir::ops::norm::{LayerNorm, RmsNorm};
use rlx_ir::ops::reduce::Mean;
use rlx_ir::ops::statistics::Variance;
use rlx_ir::types::resolve_axes;

pub const RULES: &[Rule] = &[
    Rule {
        name: "raise_norm",
        algebra: "d / √(mean(d²) + eps) → layer_norm(x) where d = x − mean(x), else rms_norm(d)",
        stage: Stage::Raise,
        roots: &[Div::DEF, Mul::DEF],
        apply: Apply::One(raise_norm),
        samples: &[
            // PyTorch's export to ONNX.
            "graph t { input x: f32[2, 4] p = constant() {value: f32[] 2} e = constant() {value: f32[] 1e-5} \
             m = mean(x) {axes: [-1], keep: true} d = sub(x, m) s = pow(d, p) v = mean(s) {axes: [-1], keep: true} \
             a = add(v, e) r = sqrt(a) y = div(d, r) output y = y }",
            "graph t { input x: f32[2, 4] e = constant() {value: f32[] 1e-5} m = mean(x) {axes: [1], keep: true} \
             d = sub(x, m) v = var(x) {axes: [1], keep: true} a = add(v, e) r = rsqrt(a) y = mul(d, r) output y = y }",
            "graph t { input x: f32[2, 4] e = constant() {value: f32[] 1e-6} h = constant() {value: f32[] -0.5} \
             s = square(x) v = mean(s) {axes: [1]} w = reshape(v) {shape: [2, 1]} a = add(w, e) r = pow(a, h) \
             y = mul(x, r) output y = y }",
            "graph t { input x: f32[2, 4] e = constant() {value: f32[] 1e-6} o = constant() {value: f32[] 1} \
             s = mul(x, x) v = mean(s) {axes: [1], keep: true} a = add(v, e) q = sqrt(a) r = div(o, q) \
             y = mul(r, x) output y = y }",
        ],
        refuses: &[
            "graph t { input x: f32[2, 4] e = constant() {value: f32[] 1e-6} s = mul(x, x) \
             v = mean(s) {axes: [0], keep: true} a = add(v, e) r = rsqrt(a) y = mul(x, r) output y = y }",
            "graph t { input x: f32[2, 4] e = constant() {value: f32[] 1e-6} s = mul(x, x) \
             v = mean(s) {axes: [1], keep: true} a = add(v, e) r = rsqrt(a) y = mul(x, r) output y = y output r = r }",
        ],
    },
    Rule {
        name: "norm_gamma",
        algebra: "norm(x) · gamma → norm(x, gamma)",
        stage: Stage::Raise,
        roots: &[Mul::DEF],
        apply: Apply::One(norm_gamma),
        samples: &[
            "graph t { input x: f32[2, 4] param g: f32[4] n = layer_norm(x) y = mul(n, g) output y = y }",
            "graph t { input x: f32[2, 3, 4] param g: f32[1, 1, 4] n = rms_norm(x) y = mul(g, n) output y = y }",
        ],
        refuses: &[
            "graph t { input x: f32[2, 4] param g: f32[2, 1] n = layer_norm(x) y = mul(n, g) output y = y }",
        ],
    },
    Rule {
        name: "norm_beta",
        algebra: "norm(x, gamma) + beta → norm(x, gamma, beta)",
        stage: Stage::Raise,
        roots: &[Add::DEF],
        apply: Apply::One(norm_beta),
        samples: &[
            "graph t { input x: f32[2, 4] param g: f32[4] param b: f32[4] n = layer_norm(x, g) y = add(n, b) \
             output y = y }",
        ],
        refuses: &[
            "graph t { input x: f32[2, 4] param g: f32[4] n = layer_norm(x, g) y = add(n, x) output y = y }",
        ],
    },
];

/// e of 1/√e, as a factor; the nodes are noted.
fn inverse_root(w: &Work, v: V, inside: &mut Vec<N>) -> Option<V> {
    let (n, _) = w.def(v)?;
    inside.push(n);
    if w.is(n, Rsqrt::DEF) {
        return w.x(n, 0);
    }
    if w.is(n, Recip::DEF) {
        return root(w, w.x(n, 0)?, inside);
    }
    let (e, p) = w.xy(n).filter(|_| w.is(n, Pow::DEF))?;
    (w.number(p)? == -0.5).then_some(e)
}

/// e of √e.
fn root(w: &Work, v: V, inside: &mut Vec<N>) -> Option<V> {
    let (n, _) = w.def(v)?;
    inside.push(n);
    if w.is(n, Sqrt::DEF) {
        return w.x(n, 0);
    }
    let (e, p) = w.xy(n).filter(|_| w.is(n, Pow::DEF))?;
    (w.number(p)? == 0.5).then_some(e)
}

/// Whether the axes are the last ones, and stay.
fn over_last(w: &Work, r: &Reduction) -> bool {
    w.rank(r.x).is_some_and(|rank| {
        r.keep && !r.axes.is_empty() && r.axes.iter().copied().eq(rank - r.axes.len()..rank)
    })
}

fn raise_norm(w: &mut Work, n: N) -> Option<V> {
    let (a, b) = w.xy(n)?;
    if w.is(n, Div::DEF) {
        let mut inside = Vec::new();
        let e = root(w, b, &mut inside)?;
        return normalised(w, n, a, e, inside);
    }
    for (d, r) in [(a, b), (b, a)] {
        let mut inside = Vec::new();
        if let Some(e) = inverse_root(w, r, &mut inside)
            && let Some(y) = normalised(w, n, d, e, inside)
        {
            return Some(y);
        }
    }
    None
}

/// d / √e as a norm.
fn normalised(w: &mut Work, n: N, d: V, e: V, mut inside: Vec<N>) -> Option<V> {
    let (a, b) = w.args(e, Add::DEF)?;
    let (v, eps) = if let Some(eps) = w.decimal(b) { (a, eps) } else { (b, w.decimal(a)?) };
    if !(0.0..=0.1).contains(&eps) {
        return None;
    }
    inside.extend([w.def(e)?.0, w.def(v)?.0]);
    // The axes that are normalised: those of the variance of x, or of the mean of squares.
    let mut centred = inside.clone();
    let away = |axes: &[usize], centred: &mut Vec<N>| -> Option<V> {
        let m = w.by(d, Sub::DEF)?;
        let (x, mean) = w.xy(m)?;
        let r = reduced(w, mean, Mean::DEF)?;
        centred.extend([m, w.def(mean)?.0]);
        (r.x == x && r.keep && r.axes == axes).then_some(x)
    };
    if let Some(m) = w.by(v, Variance::DEF) {
        let a = w.attrs::<Variance>(m)?;
        let x = w.x(m, 0)?;
        let mut axes = resolve_axes(&a.axes, w.rank(x)?).ok()?;
        axes.sort_unstable();
        let last = over_last(w, &Reduction { x, axes: axes.clone(), keep: a.keep });
        let same = away(&axes, &mut centred)? == x && a.correction == 0 && last;
        let norm = LayerNorm { eps, axes: axes.len() as i64 };
        return (same && w.closed(n, &centred)).then(|| w.emit(LayerNorm::DEF, &norm, &[x]))?;
    }
    let r = reduced(w, v, Mean::DEF).filter(|r| over_last(w, r))?;
    let square = w.def(r.x)?.0;
    if w.square_of(r.x)? != d {
        return None;
    }
    centred.push(square);
    inside.push(square);
    if let Some(x) = away(&r.axes, &mut centred)
        && w.closed(n, &centred)
    {
        return w.emit(LayerNorm::DEF, &LayerNorm { eps, axes: r.axes.len() as i64 }, &[x]);
    }
    (r.axes.len() == 1 && w.closed(n, &inside)).then(|| w.emit(RmsNorm::DEF, &RmsNorm { eps }, &[d]))?
}

/// The norm that one operand is, and the other operand in the shape of the norm's parameters.
fn norm_and(w: &mut Work, n: N) -> Option<(N, V)> {
    let (a, b) = w.xy(n)?;
    for (y, p) in [(a, b), (b, a)] {
        let is = |op: &'static OpDef| w.by(y, op);
        let Some(m) = is(LayerNorm::DEF).or(is(RmsNorm::DEF)).filter(|_| w.once(y)) else { continue };
        let axes = w.attrs::<LayerNorm>(m).map_or(1, |a| a.axes as usize);
        let (shape, own) = (w.shape(y)?, w.shape(p)?);
        let last = shape.get(shape.len().checked_sub(axes)?..)?.to_vec();
        let Some(lead) = own.len().checked_sub(axes) else { continue };
        if own.iter().take(lead).all(|d| d.is(1)) && own.get(lead..)? == last.as_slice() {
            return Some((m, w.reshape(p, &last)?));
        }
    }
    None
}

fn norm_gamma(w: &mut Work, n: N) -> Option<V> {
    let (m, gamma) = norm_and(w, n)?;
    if w.x(m, 1).is_some() || w.x(m, 2).is_some() {
        return None;
    }
    w.again(m, vec![w.x(m, 0), Some(gamma)])?.first().copied()
}

fn norm_beta(w: &mut Work, n: N) -> Option<V> {
    let (m, beta) = norm_and(w, n)?;
    if w.x(m, 2).is_some() {
        return None;
    }
    w.again(m, vec![w.x(m, 0), w.x(m, 1), Some(beta)])?.first().copied()
}

//! Raises activations: products of x and a gate that depends on x.

use super::build::{close, same};
use super::work::{N, V, Work};
use super::{Apply, Rule, Stage};
use rlx_ir::ops::activations::{Geglu, Gelu, GeluTanh, Mish, QuickGelu, Silu, Softplus, Swiglu};
use rlx_ir::ops::elementwise::{Add, Div, Maximum, Mul, Neg};
use rlx_ir::ops::math::{Abs, Erf, Erfc, Exp, Log, Log1p, Recip, Sigmoid, Tanh};
use std::f64::consts::{FRAC_1_SQRT_2, PI};

pub const RULES: &[Rule] = &[
    Rule {
        name: "raise_sigmoid",
        algebra: "1 / (1 + e⁻ˣ) → sigmoid(x)",
        stage: Stage::Raise,
        roots: &[Recip::DEF],
        apply: Apply::One(raise_sigmoid),
        samples: &[
            "graph t { input x: f32[3] c = constant() {value: f32[] 1} a = neg(x) b = exp(a) d = add(b, c) \
             y = div(c, d) output y = y }",
        ],
        refuses: &[
            "graph t { input x: f32[3] c = constant() {value: f32[] 2} a = neg(x) b = exp(a) d = add(b, c) \
             y = recip(d) output y = y }",
        ],
    },
    Rule {
        name: "raise_silu",
        algebra: "x / (1 + e⁻ˣ) → silu(x)",
        stage: Stage::Raise,
        roots: &[Div::DEF],
        apply: Apply::One(raise_silu),
        samples: &[
            "graph t { input x: f32[3] c = constant() {value: f32[] 1} a = neg(x) b = exp(a) d = add(c, b) \
             y = div(x, d) output y = y }",
        ],
        refuses: &[
            "graph t { input x: f32[3] input z: f32[3] c = constant() {value: f32[] 1} a = neg(x) b = exp(a) \
             d = add(c, b) y = div(z, d) output y = y }",
        ],
    },
    Rule {
        name: "raise_softplus",
        algebra: "ln(1 + eˣ), max(x, 0) + ln(1 + e^−|x|) → softplus(x)",
        stage: Stage::Raise,
        roots: &[Log1p::DEF, Log::DEF, Add::DEF],
        apply: Apply::One(raise_softplus),
        samples: &[
            "graph t { input x: f32[3] a = exp(x) y = log1p(a) output y = y }",
            "graph t { input x: f32[3] c = constant() {value: f32[] 1} a = exp(x) b = add(a, c) y = log(b) output y = y }",
            "graph t { input x: f32[3] z = constant() {value: f32[] 0} m = maximum(x, z) a = abs(x) b = neg(a) \
             d = exp(b) e = log1p(d) y = add(m, e) output y = y }",
        ],
        refuses: &["graph t { input x: f32[3] a = exp(x) y = log1p(a) output y = y output a = a }"],
    },
    Rule {
        name: "raise_gate",
        algebra: "x/2 · (1 + erf(x/√2)) → gelu(x), x/2 · (1 + tanh(√(2/π) · (x + 0.044715x³))) → gelu_tanh(x), \
                  x · sigmoid(x) → silu(x), x · sigmoid(1.702x) → quick_gelu(x), x · tanh(softplus(x)) → mish(x)",
        stage: Stage::Raise,
        roots: &[Mul::DEF],
        apply: Apply::One(raise_gate),
        samples: &[
            // PyTorch's export to ONNX.
            "graph t { input x: f32[2, 3] r = constant() {value: f32[] 1.4142135} o = constant() {value: f32[] 1} \
             h = constant() {value: f32[] 0.5} a = div(x, r) b = erf(a) c = add(b, o) d = mul(x, c) y = mul(d, h) \
             output y = y }",
            "graph t { input x: f32[3] r = constant() {value: f32[] 0.70710677} o = constant() {value: f32[] 1} \
             h = constant() {value: f32[] 0.5} a = mul(x, r) b = erf(a) c = add(o, b) d = mul(x, h) y = mul(d, c) \
             output y = y }",
            "graph t { input x: f32[3] r = constant() {value: f32[] -0.70710677} h = constant() {value: f32[] 0.5} \
             a = mul(x, r) b = erfc(a) d = mul(x, h) y = mul(d, b) output y = y }",
            "graph t { input x: f32[3] t = constant() {value: f32[] 3} k = constant() {value: f32[] 0.044715} \
             q = constant() {value: f32[] 0.7978846} o = constant() {value: f32[] 1} h = constant() {value: f32[] 0.5} \
             p = pow(x, t) a = mul(p, k) b = add(x, a) c = mul(b, q) d = tanh(c) e = add(d, o) f = mul(x, h) \
             y = mul(f, e) output y = y }",
            "graph t { input x: f32[3] k = constant() {value: f32[] 0.044715} q = constant() {value: f32[] 0.7978846} \
             o = constant() {value: f32[] 1} h = constant() {value: f32[] 0.5} l = mul(x, q) s = mul(x, k) \
             p = mul(s, x) a = add(p, o) c = mul(l, a) d = tanh(c) e = add(d, o) f = mul(x, h) y = mul(f, e) \
             output y = y }",
            "graph t { input x: f32[3] a = sigmoid(x) y = mul(a, x) output y = y }",
            "graph t { input x: f32[3] k = constant() {value: f32[] 1.702} b = mul(x, k) a = sigmoid(b) y = mul(a, x) \
             output y = y }",
            "graph t { input x: f32[3] b = softplus(x) a = tanh(b) y = mul(a, x) output y = y }",
        ],
        refuses: &[
            "graph t { input x: f32[3] r = constant() {value: f32[] 1.41} o = constant() {value: f32[] 1} \
             h = constant() {value: f32[] 0.5} a = div(x, r) b = erf(a) c = add(b, o) d = mul(x, c) y = mul(d, h) \
             output y = y }",
            "graph t { input x: f32[3] a = sigmoid(x) y = mul(a, x) output y = y output a = a }",
        ],
    },
    Rule {
        name: "raise_gated",
        algebra: "silu(a) · b → swiglu(a, b), gelu(a) · b → geglu(a, b)",
        stage: Stage::Raise,
        roots: &[Mul::DEF],
        apply: Apply::One(raise_gated),
        samples: &[
            "graph t { input a: f32[3] input b: f32[3] s = sigmoid(a) g = mul(a, s) y = mul(g, b) output y = y }",
            "graph t { input a: f32[3] input b: f32[3] g = gelu(a) y = mul(b, g) output y = y }",
        ],
        refuses: &[
            "graph t { input a: f32[3] input b: f32[3] g = gelu(a) y = mul(b, g) output y = y output g = g }",
        ],
    },
];

/// A product: its known factor and the others.
pub struct Product {
    pub number: f64,
    pub factors: Vec<V>,
}

/// The value as a product, through values that are used only there. The nodes on the way are noted.
pub fn product(w: &Work, v: V, inside: &mut Vec<N>) -> Product {
    let mut p = Product { number: 1.0, factors: Vec::new() };
    let mut stack = vec![(v, 0)];
    while let Some((f, depth)) = stack.pop() {
        if let Some(c) = w.number(f) {
            p.number *= c;
            continue;
        }
        let node = w.def(f).map(|d| d.0).filter(|_| depth < 5 && (depth == 0 || w.once(f)));
        let by = |n: N| {
            w.is(n, Mul::DEF) || (w.is(n, Div::DEF) && w.x(n, 1).is_some_and(|c| w.number(c).is_some()))
        };
        match (node, node.and_then(|n| w.xy(n))) {
            (Some(n), Some((x, y))) if by(n) => {
                inside.push(n);
                stack.push((x, depth + 1));
                match w.number(y) {
                    Some(c) if w.is(n, Div::DEF) => p.number /= c,
                    _ => stack.push((y, depth + 1)),
                }
            }
            (Some(n), _) if w.is(n, Neg::DEF) => {
                inside.push(n);
                p.number = -p.number;
                stack.extend(w.x(n, 0).map(|x| (x, depth + 1)));
            }
            _ => p.factors.push(f),
        }
    }
    p
}

/// Whether the value is k · x.
fn is_multiple(w: &Work, v: V, x: V, k: f64, inside: &mut Vec<N>) -> bool {
    is_power(w, v, x, 1, k, inside)
}

/// Whether the value is k · xⁿ.
fn is_power(w: &Work, v: V, x: V, n: usize, k: f64, inside: &mut Vec<N>) -> bool {
    let dtype = w.dtype(x).unwrap_or(rlx_ir::DType::F32);
    if v == x {
        return n == 1 && k == 1.0;
    }
    let p = product(w, v, inside);
    p.factors.len() == n && p.factors.iter().all(|f| *f == x) && close(dtype, p.number, k)
}

/// The other operand of a sum with a value for which `is` holds.
fn plus(w: &Work, v: V, inside: &mut Vec<N>, is: impl Fn(V) -> bool) -> Option<V> {
    let n = w.by(v, Add::DEF)?;
    inside.push(n);
    let (a, b) = w.xy(n)?;
    if is(b) { Some(a) } else { is(a).then_some(b) }
}

/// The operand of a one-operand op.
fn under(w: &Work, v: V, op: &'static rlx_ir::op::OpDef, inside: &mut Vec<N>) -> Option<V> {
    let n = w.by(v, op)?;
    inside.push(n);
    w.x(n, 0)
}

/// x of 1 + e⁻ˣ.
fn one_plus_exp_neg(w: &Work, v: V, inside: &mut Vec<N>) -> Option<V> {
    let e = plus(w, v, inside, |c| w.is_number(c, 1.0))?;
    let a = under(w, e, Exp::DEF, inside)?;
    under(w, a, Neg::DEF, inside)
}

fn raise_sigmoid(w: &mut Work, n: N) -> Option<V> {
    let mut inside = Vec::new();
    let x = one_plus_exp_neg(w, w.x(n, 0)?, &mut inside)?;
    w.closed(n, &inside).then(|| w.plain(Sigmoid::DEF, &[x]))?
}

fn raise_silu(w: &mut Work, n: N) -> Option<V> {
    let mut inside = Vec::new();
    let (x, d) = w.xy(n)?;
    let same = one_plus_exp_neg(w, d, &mut inside)? == x;
    (same && w.closed(n, &inside)).then(|| w.plain(Silu::DEF, &[x]))?
}

fn raise_softplus(w: &mut Work, n: N) -> Option<V> {
    let mut inside = Vec::new();
    let x = if w.is(n, Log1p::DEF) {
        under(w, w.x(n, 0)?, Exp::DEF, &mut inside)?
    } else if w.is(n, Log::DEF) {
        let e = plus(w, w.x(n, 0)?, &mut inside, |c| w.is_number(c, 1.0))?;
        under(w, e, Exp::DEF, &mut inside)?
    } else {
        let (a, b) = w.xy(n)?;
        let (m, l) = if w.by(a, Maximum::DEF).is_some() { (a, b) } else { (b, a) };
        let l = under(w, l, Log1p::DEF, &mut inside)?;
        let e = under(w, l, Exp::DEF, &mut inside)?;
        let a = under(w, e, Neg::DEF, &mut inside)?;
        let x = under(w, a, Abs::DEF, &mut inside)?;
        let m = w.by(m, Maximum::DEF)?;
        inside.push(m);
        w.with_number(m).filter(|(y, c)| *y == x && *c == 0.0)?.0
    };
    // e^−|x| alone is a part of the last form.
    if w.arg(x, Neg::DEF).and_then(|a| w.arg(a, Abs::DEF)).is_some() {
        return None;
    }
    w.closed(n, &inside).then(|| w.plain(Softplus::DEF, &[x]))?
}

/// Whether u is k · (x + 0.044715 · x³).
fn is_gelu_angle(w: &Work, u: V, x: V, k: f64, inside: &mut Vec<N>) -> bool {
    const CUBE: f64 = 0.044715;
    let p = product(w, u, inside);
    if !w.dtype(x).is_some_and(|d| close(d, p.number, k)) {
        return false;
    }
    let rest = |f: V, n: usize, inside: &mut Vec<N>, is: &dyn Fn(V) -> bool| {
        plus(w, f, inside, is).is_some_and(|t| is_power(w, t, x, n, CUBE, inside))
    };
    match p.factors.as_slice() {
        [f] => rest(*f, 3, inside, &|v| v == x),
        [f, g] if *f == x => rest(*g, 2, inside, &|v| w.is_number(v, 1.0)),
        [f, g] if *g == x => rest(*f, 2, inside, &|v| w.is_number(v, 1.0)),
        _ => false,
    }
}

fn raise_gate(w: &mut Work, n: N) -> Option<V> {
    let mut inside = Vec::new();
    let p = product(w, w.y(n)?, &mut inside);
    let [a, b] = p.factors.as_slice() else { return None };
    let op = gate(w, p.number, *a, *b, &mut inside.clone(), n)
        .or_else(|| gate(w, p.number, *b, *a, &mut inside, n))?;
    w.plain(op.0, &[op.1])
}

/// The activation that c · x · gate is, if nothing else uses what is inside.
fn gate(
    w: &Work,
    c: f64,
    x: V,
    gate: V,
    inside: &mut Vec<N>,
    root: N,
) -> Option<(&'static rlx_ir::op::OpDef, V)> {
    let dtype = w.dtype(x)?;
    let bend = (2.0 / PI).sqrt();
    let (m, _) = w.def(gate)?;
    inside.push(m);
    let op = if w.is(m, Add::DEF) {
        let t = plus(w, gate, inside, |c| w.is_number(c, 1.0))?;
        if !same(dtype, c, 0.5) {
            return None;
        }
        if let Some(u) = under(w, t, Erf::DEF, inside) {
            is_multiple(w, u, x, FRAC_1_SQRT_2, inside).then_some(Gelu::DEF)?
        } else {
            let u = under(w, t, Tanh::DEF, inside)?;
            is_gelu_angle(w, u, x, bend, inside).then_some(GeluTanh::DEF)?
        }
    } else if w.is(m, Erfc::DEF) {
        let fits = same(dtype, c, 0.5) && is_multiple(w, w.x(m, 0)?, x, -FRAC_1_SQRT_2, inside);
        fits.then_some(Gelu::DEF)?
    } else if c != 1.0 {
        return None;
    } else if w.is(m, Sigmoid::DEF) {
        let u = w.x(m, 0)?;
        if u == x {
            Silu::DEF
        } else if is_multiple(w, u, x, 1.702, &mut inside.clone()) {
            is_multiple(w, u, x, 1.702, inside);
            QuickGelu::DEF
        } else {
            is_gelu_angle(w, u, x, 2.0 * bend, inside).then_some(GeluTanh::DEF)?
        }
    } else {
        let u = under(w, gate, Tanh::DEF, inside)?;
        (under(w, u, Softplus::DEF, inside)? == x).then_some(Mish::DEF)?
    };
    w.closed(root, inside).then_some((op, x))
}

fn raise_gated(w: &mut Work, n: N) -> Option<V> {
    let (a, b) = w.xy(n)?;
    for (gate, up) in [(a, b), (b, a)] {
        if !w.once(gate) || w.number(up).is_some() {
            continue;
        }
        if let Some(x) = w.arg(gate, Silu::DEF) {
            return w.plain(Swiglu::DEF, &[x, up]);
        }
        if let Some(x) = w.arg(gate, Gelu::DEF) {
            return w.plain(Geglu::DEF, &[x, up]);
        }
    }
    None
}

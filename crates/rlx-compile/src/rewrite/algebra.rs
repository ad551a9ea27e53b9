//! Arithmetic with known numbers, signs, and casts.
//!
//! Only what IEEE makes exact, or what differs by rounding alone, as each rule says.

use super::fold::MAX_RESULT;
use super::work::{N, V, Work};
use super::{Apply, Rule, Stage};
use rlx_ir::Tensor;
use rlx_ir::dtype::{DType, Kind};
use rlx_ir::ops::create::{Iota, SizeOf};
use rlx_ir::ops::elementwise::{Add, Cast, Div, Maximum, Minimum, Mul, Neg, Pow, Sub};
use rlx_ir::ops::math::{Abs, Exp, Recip, Sigmoid};

pub const RULES: &[Rule] = &[
    Rule {
        name: "fixed_right",
        algebra: "c + x → x + c, c · x → x · c for numbers and params c",
        stage: Stage::Simplify,
        roots: &[Add::DEF, Mul::DEF],
        apply: Apply::One(fixed_right),
        samples: &[
            "graph t { input x: f32[3] c = constant() {value: f32[] 0.3} y = mul(c, x) output y = y }",
        ],
        refuses: &[
            "graph t { input x: f32[3] c = constant() {value: f32[] 0.3} y = mul(x, c) output y = y }",
        ],
    },
    Rule {
        name: "sub_number",
        algebra: "x − c → x + (−c)",
        stage: Stage::Simplify,
        roots: &[Sub::DEF],
        apply: Apply::One(sub_number),
        samples: &[
            "graph t { input x: f32[3] c = constant() {value: f32[] 0.3} y = sub(x, c) output y = y }",
            "graph t { input x: u8[3] c = constant() {value: u8[] 3} y = sub(x, c) output y = y }",
        ],
        refuses: &[
            "graph t { input x: f32[3] c = constant() {value: f32[] 0.3} y = sub(c, x) output y = y }",
        ],
    },
    Rule {
        name: "div_number",
        algebra: "x / c → x · (1/c) for c = ±2ᵏ, where 1/c is exact",
        stage: Stage::Simplify,
        roots: &[Div::DEF],
        apply: Apply::One(div_number),
        samples: &["graph t { input x: f32[3] c = constant() {value: f32[] 8} y = div(x, c) output y = y }"],
        refuses: &[
            "graph t { input x: f32[3] c = constant() {value: f32[] 3} y = div(x, c) output y = y }",
            "graph t { input x: i32[3] c = constant() {value: i32[] 8} y = div(x, c) output y = y }",
        ],
    },
    Rule {
        name: "neutral",
        algebra: "x · 1 → x, x / 1 → x, x¹ → x, x + (−0) → x, max(x, −∞) → x, min(x, ∞) → x",
        stage: Stage::Simplify,
        roots: &[Mul::DEF, Div::DEF, Pow::DEF, Add::DEF, Sub::DEF, Maximum::DEF, Minimum::DEF],
        apply: Apply::One(neutral),
        samples: &[
            "graph t { input x: f32[3] c = constant() {value: f32[] 1} y = mul(x, c) z = exp(y) output z = z }",
            "graph t { input x: f32[3] c = constant() {value: f32[2, 1] [1, 1]} y = mul(x, c) output y = y }",
            "graph t { input x: f32[3] c = constant() {value: f32[] 1} y = pow(x, c) z = exp(y) output z = z }",
            "graph t { input x: f32[3] c = constant() {value: f32[] -0.0} y = add(x, c) z = exp(y) output z = z }",
            "graph t { input x: i32[3] c = constant() {value: i32[] 0} y = add(x, c) z = abs(y) output z = z }",
            "graph t { input x: f32[3] c = constant() {value: f32[] -inf} y = maximum(x, c) z = exp(y) output z = z }",
        ],
        refuses: &["graph t { input x: f32[3] c = constant() {value: f32[] 0} y = add(x, c) output y = y }"],
    },
    Rule {
        name: "add_zero",
        algebra: "x + 0 → x, where x is never −0",
        stage: Stage::Simplify,
        roots: &[Add::DEF],
        apply: Apply::One(add_zero),
        samples: &[
            "graph t { input x: f32[3] c = constant() {value: f32[] 0} e = exp(x) y = add(e, c) output y = y }",
        ],
        refuses: &[
            "graph t { input x: f32[3] c = constant() {value: f32[] 0} e = sin(x) y = add(e, c) output y = y }",
        ],
    },
    Rule {
        name: "int_mul_zero",
        algebra: "x · 0 → 0 for integers",
        stage: Stage::Simplify,
        roots: &[Mul::DEF],
        apply: Apply::One(int_mul_zero),
        samples: &["graph t { input x: i32[3] c = constant() {value: i32[] 0} y = mul(x, c) output y = y }"],
        refuses: &["graph t { input x: f32[3] c = constant() {value: f32[] 0} y = mul(x, c) output y = y }"],
    },
    Rule {
        name: "int_chain",
        algebra: "(x + a) + b → x + (a + b), (x · a) · b → x · (a · b) for integers, which wrap",
        stage: Stage::Simplify,
        roots: &[Add::DEF, Mul::DEF],
        apply: Apply::One(int_chain),
        samples: &[
            "graph t { input x: u8[3] a = constant() {value: u8[] 200} b = constant() {value: u8[] 100} \
             y = add(x, a) z = add(y, b) output z = z }",
        ],
        refuses: &[
            "graph t { input x: f32[3] a = constant() {value: f32[] 0.1} b = constant() {value: f32[] 0.2} \
             y = add(x, a) z = add(y, b) output z = z }",
        ],
    },
    Rule {
        name: "power",
        algebra: "x² → x · x, x³ → x · x · x, x⁻¹ → 1/x (rounding), x⁰ → 1",
        stage: Stage::Simplify,
        roots: &[Pow::DEF],
        apply: Apply::One(power),
        samples: &[
            "graph t { input x: f32[3] c = constant() {value: f32[] 2} y = pow(x, c) output y = y }",
            "graph t { input x: f32[3] c = constant() {value: f32[] 3} y = pow(x, c) output y = y }",
            "graph t { input x: f32[3] c = constant() {value: f32[] -1} y = pow(x, c) output y = y }",
            "graph t { input x: f32[3] c = constant() {value: f32[] 0} y = pow(x, c) output y = y }",
            "graph t { input x: i32[3] c = constant() {value: i32[] 2} y = pow(x, c) output y = y }",
        ],
        refuses: &[
            "graph t { input x: f32[3] c = constant() {value: f32[] 0.5} y = pow(x, c) output y = y }",
            "graph t { input x: i32[3] c = constant() {value: i32[] -1} y = pow(x, c) output y = y }",
        ],
    },
    Rule {
        name: "mul_minus_one",
        algebra: "x · (−1) → −x",
        stage: Stage::Simplify,
        roots: &[Mul::DEF],
        apply: Apply::One(mul_minus_one),
        samples: &["graph t { input x: f32[3] c = constant() {value: f32[] -1} y = mul(x, c) output y = y }"],
        refuses: &["graph t { input x: f32[3] c = constant() {value: f32[] -2} y = mul(x, c) output y = y }"],
    },
    Rule {
        name: "neg_neg",
        algebra: "−(−x) → x",
        stage: Stage::Simplify,
        roots: &[Neg::DEF],
        apply: Apply::One(|w, n| w.arg(w.x(n, 0)?, Neg::DEF)),
        samples: &["graph t { input x: f32[3] a = neg(x) b = neg(a) y = exp(b) output y = y }"],
        refuses: &["graph t { input x: f32[3] a = exp(x) y = neg(a) output y = y }"],
    },
    Rule {
        name: "add_neg",
        algebra: "x + (−y) → x − y, (−x) + y → y − x, x − (−y) → x + y",
        stage: Stage::Simplify,
        roots: &[Add::DEF, Sub::DEF],
        apply: Apply::One(add_neg),
        samples: &[
            "graph t { input x: f32[3] input y: f32[3] a = neg(y) z = add(x, a) output z = z }",
            "graph t { input x: f32[3] input y: f32[3] a = neg(x) z = add(a, y) output z = z }",
            "graph t { input x: f32[3] input y: f32[3] a = neg(y) z = sub(x, a) output z = z }",
        ],
        refuses: &["graph t { input x: f32[3] input y: f32[3] a = neg(x) z = sub(a, y) output z = z }"],
    },
    Rule {
        name: "mul_neg",
        algebra: "(−x) · (−y) → x · y, (−x) · c → x · (−c), −(x · c) → x · (−c), and the same for /",
        stage: Stage::Simplify,
        roots: &[Mul::DEF, Div::DEF, Neg::DEF],
        apply: Apply::One(mul_neg),
        samples: &[
            "graph t { input x: f32[3] input y: f32[3] a = neg(x) b = neg(y) z = mul(a, b) output z = z }",
            "graph t { input x: f32[3] c = constant() {value: f32[] 0.3} a = neg(x) z = mul(a, c) output z = z }",
            "graph t { input x: f32[3] c = constant() {value: f32[] 0.3} a = mul(x, c) z = neg(a) output z = z }",
            "graph t { input x: f32[3] c = constant() {value: f32[] 0.3} a = div(x, c) z = neg(a) output z = z }",
        ],
        refuses: &[
            "graph t { input x: i32[3] c = constant() {value: i32[] 3} a = neg(x) z = div(a, c) output z = z }",
        ],
    },
    Rule {
        name: "mul_recip",
        algebra: "x · (1/y) → x / y (rounding)",
        stage: Stage::Simplify,
        roots: &[Mul::DEF],
        apply: Apply::One(mul_recip),
        samples: &["graph t { input x: f32[3] input y: f32[3] r = recip(y) z = mul(x, r) output z = z }"],
        // A division for each element of x instead of each element of y.
        refuses: &[
            "graph t { input x: f32[3, 3] input y: f32[3, 1] r = recip(y) z = mul(x, r) output z = z \
             output r = r }",
        ],
    },
    Rule {
        name: "one_over",
        algebra: "1 / x → recip(x)",
        stage: Stage::Simplify,
        roots: &[Div::DEF],
        apply: Apply::One(one_over),
        samples: &["graph t { input x: f32[3] c = constant() {value: f32[] 1} y = div(c, x) output y = y }"],
        refuses: &["graph t { input x: f32[3] c = constant() {value: f32[] 2} y = div(c, x) output y = y }"],
    },
    Rule {
        name: "cast_same",
        algebra: "cast(x, the dtype of x) → x",
        stage: Stage::Simplify,
        roots: &[Cast::DEF],
        apply: Apply::One(cast_same),
        samples: &["graph t { input x: f32[3] a = cast(x) {dtype: f32} y = exp(a) output y = y }"],
        refuses: &["graph t { input x: f32[3] y = cast(x) {dtype: f16} output y = y }"],
    },
    Rule {
        name: "cast_cast",
        algebra: "cast(cast(x, b), c) → cast(x, c), where b holds every x",
        stage: Stage::Simplify,
        roots: &[Cast::DEF],
        apply: Apply::One(cast_cast),
        samples: &[
            "graph t { input x: f16[3] a = cast(x) {dtype: f32} y = cast(a) {dtype: bf16} output y = y }",
            "graph t { input x: bool[3] a = cast(x) {dtype: i32} y = cast(a) {dtype: f32} output y = y }",
            "graph t { input x: i32[3] a = cast(x) {dtype: i64} y = cast(a) {dtype: u8} output y = y }",
        ],
        refuses: &[
            "graph t { input x: f32[3] a = cast(x) {dtype: bf16} y = cast(a) {dtype: f32} output y = y }",
            // Floats are clamped, integers wrap.
            "graph t { input x: i32[3] a = cast(x) {dtype: f64} y = cast(a) {dtype: i8} output y = y }",
        ],
    },
];

fn is_float(w: &Work, v: V) -> bool {
    w.dtype(v).is_some_and(DType::is_float)
}

fn fixed_right(w: &mut Work, n: N) -> Option<V> {
    let (x, y) = w.xy(n)?;
    let rank = |v: V| (w.number(v).is_some(), w.data(v).is_some() || w.is_param(v));
    if rank(x) <= rank(y) {
        return None;
    }
    // An equal node is this very one, whose operands may stand in either order.
    w.fresh(w.node(n)?.op, Vec::new(), vec![Some(y), Some(x)], Vec::new())?.first().copied()
}

fn sub_number(w: &mut Work, n: N) -> Option<V> {
    let (x, c) = w.xy(n)?;
    let minus = negated(w, c)?;
    let y = w.plain(Add::DEF, &[x, minus])?;
    w.like_result(y, n)
}

/// A negated constant: data, or one number, then without axes.
///
/// It is computed here, because a `neg` that is not folded after all would be taken back into a difference.
fn negated(w: &mut Work, c: V) -> Option<V> {
    if let Some(t) = w.data(c).filter(|t| t.len() > 1 && t.len() <= MAX_RESULT as usize) {
        let minus = match t.dtype().is_float() {
            true => {
                Tensor::from_f64s(t.dtype(), t.shape(), &t.to_f64s()?.iter().map(|x| -x).collect::<Vec<_>>())
            }
            false => Tensor::from_i128s(
                t.dtype(),
                t.shape(),
                &t.to_i128s()?.iter().map(|x| -x).collect::<Vec<_>>(),
            ),
        };
        return w.constant(minus?);
    }
    let (dtype, k) = (w.dtype(c)?, w.number(c)?);
    let t = match dtype.is_float() {
        true => Tensor::from_f64s(dtype, &[], &[-k]),
        false if k.abs() < (1u64 << 53) as f64 => Tensor::from_i128s(dtype, &[], &[-(k as i128)]),
        false => None,
    };
    w.constant(t?)
}

/// Whether 1/c is exact in that dtype and neither overflows nor is denormal.
fn exact_recip(dtype: DType, c: f64) -> bool {
    let power = c.is_normal() && c.to_bits() << 12 == 0;
    let range = match dtype {
        DType::F64 => 1000,
        DType::F32 | DType::BF16 => 120,
        DType::F16 => 14,
        _ => 0,
    };
    power && c.abs().log2().abs() <= range as f64
}

fn div_number(w: &mut Work, n: N) -> Option<V> {
    let (x, c) = w.xy(n)?;
    let (dtype, k) = (w.dtype(x)?, w.number(c)?);
    if !dtype.is_float() || !exact_recip(dtype, k) || k == 1.0 {
        return None;
    }
    let r = w.scalar(dtype, 1.0 / k)?;
    let y = w.plain(Mul::DEF, &[x, r])?;
    w.like_result(y, n)
}

fn neutral(w: &mut Work, n: N) -> Option<V> {
    let (x, y) = w.xy(n)?;
    let c = w.number(y)?;
    let op = w.node(n)?.op;
    let float = is_float(w, x);
    let is = |d| std::ptr::eq(op, d);
    let goes = if is(Mul::DEF) || is(Div::DEF) || is(Pow::DEF) {
        c == 1.0
    } else if is(Add::DEF) {
        c == 0.0 && (!float || c.is_sign_negative())
    } else if is(Sub::DEF) {
        c == 0.0 && (!float || c.is_sign_positive())
    } else if is(Maximum::DEF) {
        c == f64::NEG_INFINITY
    } else {
        is(Minimum::DEF) && c == f64::INFINITY
    };
    goes.then(|| w.like_result(x, n))?
}

/// Whether the value is never −0.
fn never_minus_zero(w: &Work, v: V) -> bool {
    let Some((n, _)) = w.def(v) else { return false };
    let any = |ops: &[&'static rlx_ir::op::OpDef]| ops.iter().any(|d| w.is(n, d));
    if any(&[Exp::DEF, Sigmoid::DEF, Abs::DEF, Iota::DEF, SizeOf::DEF]) {
        return true;
    }
    if w.is(n, Cast::DEF) {
        return w.x(n, 0).is_some_and(|x| !is_float(w, x));
    }
    // x + y is −0 only if both are; a product with itself never is.
    match w.xy(n) {
        Some((x, y)) if w.is(n, Add::DEF) => [x, y].iter().any(|v| {
            w.number(*v).is_some_and(|c| c != 0.0 || c.is_sign_positive()) || never_minus_zero_shallow(w, *v)
        }),
        Some((x, y)) => w.is(n, Mul::DEF) && x == y,
        None => false,
    }
}

fn never_minus_zero_shallow(w: &Work, v: V) -> bool {
    w.op_of(v).is_some_and(|op| [Exp::DEF, Sigmoid::DEF, Abs::DEF].iter().any(|d| std::ptr::eq(*d, op)))
}

fn add_zero(w: &mut Work, n: N) -> Option<V> {
    let (x, c) = w.xy(n)?;
    let zero = w.number(c)? == 0.0;
    (zero && never_minus_zero(w, x)).then(|| w.like_result(x, n))?
}

fn int_mul_zero(w: &mut Work, n: N) -> Option<V> {
    let (x, c) = w.xy(n)?;
    let (dtype, zero) = (w.dtype(x)?, w.number(c)? == 0.0);
    if dtype.is_float() || !zero {
        return None;
    }
    let zero = w.scalar(dtype, 0.0)?;
    w.like_result(zero, n)
}

fn int_chain(w: &mut Work, n: N) -> Option<V> {
    let (inner, b) = w.xy(n)?;
    let op = w.node(n)?.op;
    let (x, a) = w.args(inner, op)?;
    if is_float(w, x) || w.number(a).is_none() || w.number(b).is_none() {
        return None;
    }
    let both = w.plain(op, &[a, b])?;
    w.plain(op, &[x, both])
}

fn power(w: &mut Work, n: N) -> Option<V> {
    let (x, c) = w.xy(n)?;
    let (dtype, c) = (w.dtype(x)?, w.number(c)?);
    let y = if c == 2.0 {
        w.plain(Mul::DEF, &[x, x])?
    } else if c == 3.0 {
        let square = w.plain(Mul::DEF, &[x, x])?;
        w.plain(Mul::DEF, &[square, x])?
    } else if c == -1.0 && dtype.is_float() {
        w.plain(Recip::DEF, &[x])?
    } else if c == 0.0 {
        w.scalar(dtype, 1.0)?
    } else {
        return None;
    };
    w.like_result(y, n)
}

fn mul_minus_one(w: &mut Work, n: N) -> Option<V> {
    let (x, c) = w.xy(n)?;
    if w.number(c)? != -1.0 {
        return None;
    }
    let y = w.plain(Neg::DEF, &[x])?;
    w.like_result(y, n)
}

fn add_neg(w: &mut Work, n: N) -> Option<V> {
    let (x, y) = w.xy(n)?;
    if w.is(n, Sub::DEF) {
        let y = w.arg(y, Neg::DEF)?;
        return w.plain(Add::DEF, &[x, y]);
    }
    match (w.arg(x, Neg::DEF), w.arg(y, Neg::DEF)) {
        (_, Some(y)) => w.plain(Sub::DEF, &[x, y]),
        (Some(x), None) => w.plain(Sub::DEF, &[y, x]),
        _ => None,
    }
}

fn mul_neg(w: &mut Work, n: N) -> Option<V> {
    if w.is(n, Neg::DEF) {
        let inner = w.x(n, 0)?;
        let (m, _) = w.def(inner)?;
        if !(w.is(m, Mul::DEF) || w.is(m, Div::DEF)) || !w.once(inner) {
            return None;
        }
        let y = move_sign(w, m)?;
        return w.like_result(y, n);
    }
    let (x, y) = w.xy(n)?;
    let op = w.node(n)?.op;
    let exact = w.is(n, Mul::DEF) || is_float(w, x);
    match (w.arg(x, Neg::DEF), w.arg(y, Neg::DEF)) {
        (Some(x), Some(y)) if exact => w.plain(op, &[x, y]),
        (Some(x), None) if exact => {
            w.number(y)?;
            let y = negated(w, y)?;
            let y = w.plain(op, &[x, y])?;
            w.like_result(y, n)
        }
        _ => None,
    }
}

/// −(x · c) or −(x / c), the sign moved into the number.
fn move_sign(w: &mut Work, m: N) -> Option<V> {
    let (x, c) = w.xy(m)?;
    w.number(c)?;
    if w.is(m, Div::DEF) && !is_float(w, x) {
        return None;
    }
    let op = w.node(m)?.op;
    let c = negated(w, c)?;
    w.plain(op, &[x, c])
}

fn mul_recip(w: &mut Work, n: N) -> Option<V> {
    let (x, y) = w.xy(n)?;
    let fits =
        |r: V| w.arg(r, Recip::DEF).filter(|_| w.once(r) && w.shape(r) == w.y(n).and_then(|y| w.shape(y)));
    match (fits(y), fits(x)) {
        (Some(y), _) => w.plain(Div::DEF, &[x, y]),
        (None, Some(x)) => w.plain(Div::DEF, &[y, x]),
        _ => None,
    }
}

fn one_over(w: &mut Work, n: N) -> Option<V> {
    let (c, x) = w.xy(n)?;
    if w.number(c)? != 1.0 || !is_float(w, x) {
        return None;
    }
    let y = w.plain(Recip::DEF, &[x])?;
    w.like_result(y, n)
}

fn cast_same(w: &mut Work, n: N) -> Option<V> {
    let x = w.x(n, 0)?;
    (w.dtype(x)? == w.attrs::<Cast>(n)?.dtype).then_some(x)
}

/// Whether every value of `a` is one of `b`.
fn holds(a: DType, b: DType) -> bool {
    let digits = |d: DType| match d {
        DType::F64 => Some((53, 1023)),
        DType::F32 => Some((24, 127)),
        DType::F16 => Some((11, 15)),
        DType::BF16 => Some((8, 127)),
        _ => None,
    };
    match (a.kind(), b.kind()) {
        (Kind::Float, Kind::Float) => {
            // The 8-bit floats fit every wider one.
            let (Some(b), a) = (digits(b), digits(a).unwrap_or((4, 15))) else { return false };
            a.0 <= b.0 && a.1 <= b.1
        }
        (Kind::Int { .. } | Kind::Bool, Kind::Int { .. }) => match (a.int_range(), b.int_range()) {
            (Some(a), Some(b)) => b.0 <= a.0 && a.1 <= b.1,
            _ => false,
        },
        (Kind::Bool, Kind::Float) => true,
        (Kind::Int { bits, .. }, Kind::Float) => digits(b).is_some_and(|d| bits <= d.0),
        _ => false,
    }
}

fn cast_cast(w: &mut Work, n: N) -> Option<V> {
    let inner = w.x(n, 0)?;
    let x = w.arg(inner, Cast::DEF)?;
    let (a, b, c) = (w.dtype(x)?, w.dtype(inner)?, w.attrs::<Cast>(n)?.dtype);
    // An integer wraps where the float of its value is clamped.
    let clamps = a.is_int() && b.is_float() && c.is_int() && !holds(a, c);
    (holds(a, b) && !clamps).then(|| w.cast(x, c))?
}

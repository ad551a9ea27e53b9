//! Masks of attention: which keys a query sees, read from comparisons of positions, triangles and data.

use super::build::same;
use super::work::{V, Work};
use rlx_ir::DType;
use rlx_ir::dim::Dim;
use rlx_ir::ops::create::{Iota, SizeOf};
use rlx_ir::ops::elementwise::{
    Add, And, Cast, Equal, Greater, GreaterEqual, Less, LessEqual, Neg, Not, NotEqual, Select, Sub,
};
use rlx_ir::ops::masks::{Tril, Triu};
use rlx_ir::ops::views::{Broadcast, Reshape};
use rlx_ir::types::resolve_axis;

/// How deep a mask is looked into.
const DEPTH: usize = 12;

/// row · i + column · j + at, for the indices i and j of the last two axes.
#[derive(Clone, Debug, PartialEq)]
struct Affine {
    row: i64,
    column: i64,
    at: Dim,
}

impl Affine {
    fn plus(&self, k: i64, other: &Affine) -> Affine {
        Affine {
            row: self.row + k * other.row,
            column: self.column + k * other.column,
            at: &self.at + &other.at * k,
        }
    }
    fn less_one(mut self) -> Affine {
        self.at -= 1;
        self
    }
    /// Where this is not >= 0.
    fn complement(&self) -> Affine {
        Affine { row: 0, column: 0, at: Dim::constant(0) }.plus(-1, self).less_one()
    }
}

/// Whole numbers that count positions without wrapping or rounding.
fn counts(d: DType) -> bool {
    matches!(d, DType::I32 | DType::I64 | DType::F32 | DType::F64)
}

/// The value as a function of its place.
fn affine(w: &Work, v: V, depth: usize) -> Option<Affine> {
    if depth == 0 || !counts(w.dtype(v)?) {
        return None;
    }
    let level = |at: Dim| Affine { row: 0, column: 0, at };
    if let Some(c) = w.number(v) {
        return (c.fract() == 0.0 && c.abs() < 1e9).then(|| level(Dim::constant(c as i64)));
    }
    let (n, _) = w.def(v)?;
    if w.is(n, Iota::DEF) {
        let a = w.attrs::<Iota>(n)?;
        let axis = resolve_axis(a.axis, a.shape.len()).ok()?;
        return along(w, v, a.shape.len() - axis);
    }
    if w.is(n, SizeOf::DEF) {
        return Some(level(w.attrs::<SizeOf>(n)?.value));
    }
    let of = |i: usize| affine(w, w.x(n, i)?, depth - 1);
    if w.is(n, Add::DEF) {
        return Some(of(0)?.plus(1, &of(1)?));
    }
    if w.is(n, Sub::DEF) {
        return Some(of(0)?.plus(-1, &of(1)?));
    }
    if w.is(n, Neg::DEF) {
        return Some(level(Dim::constant(0)).plus(-1, &of(0)?));
    }
    if w.is(n, Cast::DEF) || w.is(n, Broadcast::DEF) {
        return of(0);
    }
    if w.is(n, Reshape::DEF) {
        // One long axis before and after: its index is the same, wherever it stands.
        let inner = of(0)?;
        let long = |v: V| -> Option<usize> {
            let shape = w.shape(v)?;
            let mut long = shape.iter().enumerate().filter(|(_, d)| !d.is(1)).map(|(i, _)| shape.len() - i);
            long.next().filter(|_| long.next().is_none())
        };
        let (from, to) = (long(w.x(n, 0)?)?, long(v)?);
        let k = [inner.column, inner.row].get(from - 1).copied()?;
        return match to {
            1 => Some(Affine { row: 0, column: k, at: inner.at }),
            2 => Some(Affine { row: k, column: 0, at: inner.at }),
            _ => None,
        };
    }
    None
}

/// The index along the axis that is `from_end`-th from the end; 0 along an axis of size 1.
fn along(w: &Work, v: V, from_end: usize) -> Option<Affine> {
    let shape = w.shape(v)?;
    let k = !shape.get(shape.len() - from_end)?.is(1) as i64;
    match from_end {
        1 => Some(Affine { row: 0, column: k, at: Dim::constant(0) }),
        2 => Some(Affine { row: k, column: 0, at: Dim::constant(0) }),
        _ => None,
    }
}

/// The number that a value has wherever it holds, if a cast keeps it from being zero there.
fn held(w: &Work, v: V, depth: usize) -> Option<f64> {
    let (n, _) = w.def(v).filter(|_| depth > 0)?;
    let dtype = w.dtype(v)?;
    if dtype == DType::Bool {
        return Some(1.0);
    }
    let c = if w.is(n, Cast::DEF) {
        held(w, w.x(n, 0)?, depth - 1)?
    } else if w.is(n, Tril::DEF) || w.is(n, Triu::DEF) {
        w.number(w.x(n, 0)?)?
    } else if w.is(n, Reshape::DEF) || w.is(n, Broadcast::DEF) {
        held(w, w.x(n, 0)?, depth - 1)?
    } else {
        return None;
    };
    (c != 0.0 && c.fract() == 0.0 && same(dtype, c, c)).then_some(c)
}

/// Where the value holds (is true, or not zero): where what is given is >= 0.
fn half(w: &Work, v: V, depth: usize) -> Option<Affine> {
    let (n, _) = w.def(v).filter(|_| depth > 0)?;
    let of = |i: usize| half(w, w.x(n, i)?, depth - 1);
    let gap = |a: usize, b: usize| {
        let side = |i: usize| affine(w, w.x(n, i)?, DEPTH);
        Some(side(a)?.plus(-1, &side(b)?))
    };
    let triangle = |row: i64, at: i64| {
        let x = w.x(n, 0)?;
        w.number(x).filter(|c| *c != 0.0)?;
        Some(Affine { row, column: -row, at: Dim::constant(at) })
    };
    if w.is(n, GreaterEqual::DEF) {
        gap(0, 1)
    } else if w.is(n, Greater::DEF) {
        gap(0, 1).map(Affine::less_one)
    } else if w.is(n, LessEqual::DEF) {
        gap(1, 0)
    } else if w.is(n, Less::DEF) {
        gap(1, 0).map(Affine::less_one)
    } else if w.is(n, Not::DEF) && w.dtype(v) == Some(DType::Bool) {
        of(0).map(|a| a.complement())
    } else if w.is(n, Cast::DEF) {
        held(w, v, depth).and_then(|_| of(0))
    } else if w.is(n, Equal::DEF) || w.is(n, NotEqual::DEF) {
        let inner = of(0).filter(|_| w.x(n, 1).and_then(|c| w.number(c)) == Some(0.0))?;
        Some(if w.is(n, Equal::DEF) { inner.complement() } else { inner })
    } else if w.is(n, Tril::DEF) {
        triangle(1, w.attrs::<Tril>(n)?.k)
    } else if w.is(n, Triu::DEF) {
        triangle(-1, w.attrs::<Triu>(n)?.k.checked_neg()?)
    } else if w.is(n, Reshape::DEF) || w.is(n, Broadcast::DEF) {
        let bare = inner(w, v);
        (bare != v && w.rank(bare) >= Some(2)).then(|| half(w, bare, depth - 1))?
    } else {
        None
    }
}

/// Whether the last two axes are of these sizes.
fn last_two(w: &Work, v: V, s: &Dim, t: &Dim) -> bool {
    w.shape(v).is_some_and(|shape| shape.iter().rev().take(2).eq([t, s]))
}

/// The value without views that only add axes before the last two.
fn inner(w: &Work, mut v: V) -> V {
    let last = |v: V| w.shape(v).map(|s| s.iter().rev().take(2).cloned().collect::<Vec<_>>());
    while let Some(x) =
        w.arg(v, Reshape::DEF).or_else(|| w.arg(v, Broadcast::DEF)).filter(|x| last(*x) == last(v))
    {
        v = x;
    }
    v
}

/// Whether the mask (or its complement) holds exactly where a causal query sees: j <= i + t − s, for masks of
/// `[.., s, t]`.
pub fn is_causal(w: &Work, mask: V, complement: bool, s: &Dim, t: &Dim) -> bool {
    if !last_two(w, mask, s, t) {
        return false;
    }
    if let Some(data) = w.data(mask).and_then(|t| t.to_f64s()) {
        return triangular(&data, s, t, |x| (x != 0.0) != complement);
    }
    let half = half(w, mask, DEPTH).map(|a| if complement { a.complement() } else { a });
    half.is_some_and(|a| (a.row, a.column) == (1, -1) && a.at.unify(&(t - s)).is_some())
}

/// Whether the data, one matrix, `see` exactly what a causal query does.
fn triangular(data: &[f64], s: &Dim, t: &Dim, see: impl Fn(f64) -> bool) -> bool {
    let (Some(s), Some(t)) = (s.as_const(), t.as_const()) else { return false };
    let place = |k: usize| (k as i64 / t.max(1), k as i64 % t.max(1));
    let right = |(k, x): (usize, &f64)| {
        let (i, j) = place(k);
        see(*x) == (j <= i + t - s)
    };
    data.len() as i64 == s * t && data.iter().enumerate().all(right)
}

/// Whether a score of that number is as good as −inf beside any other.
pub fn hides(dtype: DType, c: f64) -> bool {
    c <= if dtype == DType::F16 { -6e4 } else { -1e9 }
}

/// What is added to scores, as a mask: where it is true, 0 is added, elsewhere what hides.
pub enum Added {
    /// A mask, and the number that hides.
    Mask(V, f64),
    /// The complement of a mask, and the number that hides.
    Hidden(V, f64),
    /// Data that are causal.
    Causal(f64),
    /// Something else.
    Bias,
}

/// Reads what is added to scores.
pub fn added(w: &Work, bias: V, s: &Dim, t: &Dim) -> Added {
    let dtype = w.dtype(bias).unwrap_or(DType::F32);
    if let Some(n) = w.by(bias, Select::DEF)
        && let (Some(c), Some(a), Some(b)) = (w.x(n, 0), w.x(n, 1), w.x(n, 2))
        && let (Some(a), Some(b)) = (w.number(a), w.number(b))
    {
        if a == 0.0 && hides(dtype, b) {
            return Added::Mask(c, b);
        }
        if b == 0.0 && hides(dtype, a) {
            return Added::Hidden(c, a);
        }
    }
    // A triangle of what hides, above the keys that are seen.
    let above = w.by(inner(w, bias), Triu::DEF).and_then(|n| Some((w.x(n, 0)?, w.attrs::<Triu>(n)?.k)));
    if let Some((fill, k)) = above.and_then(|(x, k)| Some((w.number(x)?, k)))
        && hides(dtype, fill)
        && last_two(w, bias, s, t)
        && (t - s + 1).unify(&Dim::constant(k)).is_some()
    {
        return Added::Causal(fill);
    }
    if let Some(data) = w.data(bias).and_then(|t| t.to_f64s()) {
        let fill = data.iter().copied().find(|x| *x != 0.0).unwrap_or(0.0);
        let clean = data.iter().all(|x| *x == 0.0 || *x == fill);
        if clean && hides(dtype, fill) && last_two(w, bias, s, t) && triangular(&data, s, t, |x| x == 0.0) {
            return Added::Causal(fill);
        }
    }
    Added::Bias
}

/// The masks that must all hold for this one to.
pub fn conjuncts(w: &Work, mask: V) -> Vec<V> {
    let (mut out, mut stack) = (Vec::new(), vec![mask]);
    while let Some(m) = stack.pop() {
        match w.args(m, And::DEF) {
            Some((a, b)) if out.len() + stack.len() < DEPTH => stack.extend([b, a]),
            _ => out.push(m),
        }
    }
    out
}

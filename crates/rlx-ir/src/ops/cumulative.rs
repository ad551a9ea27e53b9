//! Running totals along an axis, and the linear recurrence that their gradients are made of.
//!
//! `exclusive` leaves out the element itself, so that a line starts with the total of nothing; `reverse` runs
//! from the end.

use crate::prelude::*;

/// The running total of each line along an axis, `nothing` being the total before the first element.
fn running(e: &Eval<'_>, a: &Line, nothing: Num, step: impl Fn(Num, Num) -> Num) -> Result<Arr> {
    let x = e.x(0)?;
    lines(e, a.axis, a.reverse, |line| {
        let mut total = nothing;
        line.iter()
            .map(|at| {
                let before = total;
                total = step(total, x.flat(*at));
                if a.exclusive { before } else { total }
            })
            .collect()
    })
}

/// Makes the first result line by line: `f` is given the flat positions of a line, in the order of the run.
fn lines(e: &Eval<'_>, axis: i64, reverse: bool, f: impl Fn(&[usize]) -> Vec<Num>) -> Result<Arr> {
    let x = e.x(0)?;
    let axis = resolve_axis(axis, x.rank())?;
    let n = x.shape().get(axis).copied().unwrap_or(1);
    let inner: usize = x.shape().iter().skip(axis + 1).product();
    let mut out = vec![Num::I(0); x.len()];
    for first in (0..x.len()).filter(|i| (i / inner.max(1)).is_multiple_of(n.max(1))) {
        let mut line: Vec<usize> = (0..n).map(|i| first + i * inner).collect();
        if reverse {
            line.reverse();
        }
        for (at, v) in line.iter().zip(f(&line)) {
            if let Some(slot) = out.get_mut(*at) {
                *slot = v;
            }
        }
    }
    let mut out = out.into_iter();
    e.make(0, |_| out.next().unwrap_or(Num::I(0)))
}

/// How a line is run through.
struct Line {
    axis: i64,
    exclusive: bool,
    reverse: bool,
}

impl Line {
    fn new(axis: i64, exclusive: bool, reverse: bool) -> Line {
        Line { axis, exclusive, reverse }
    }

    fn step(&self, c: &Infer<'_>, kind: Running) -> Result<Step> {
        let axis = resolve_axis(self.axis, c.ty(0)?.rank())?;
        Ok(Step::Running { kind, axis, exclusive: self.exclusive, reverse: self.reverse })
    }
}

/// The element that follows each in the order of the run; `last` after the last one.
fn following<'g>(x: Var<'g>, axis: i64, reverse: bool, last: f64) -> Result<Var<'g>> {
    let rank = x.rank();
    let axis = resolve_axis(axis, rank)?;
    let one = |yes: bool| (0..rank).map(|i| Dim::from((yes && i == axis) as i64)).collect::<Vec<_>>();
    // Lengthened by one and cut, so that an empty axis is no exception.
    let long = x.pad(last, one(reverse), one(!reverse), vec![0i64; rank]);
    Ok(long.narrow(axis as i64, if reverse { 0 } else { 1 }, x.dim(axis as i64)))
}

/// The gradient that reaches each inclusive total, from that of the totals that were asked for.
fn inclusive<'g>(dy: Var<'g>, a: &Line) -> Result<Var<'g>> {
    if a.exclusive { following(dy, a.axis, a.reverse, 0.0) } else { Ok(dy) }
}

/// The gradient of a running maximum or minimum: each total's goes to the element that set it. `beats`:
/// whether an element is at least as good as the total before it.
fn to_setter<'g>(x: Var<'g>, beats: Var<'g>, dy: Var<'g>, a: &Line) -> Result<Var<'g>> {
    let sets = beats.or(x.is_nan());
    let stays = following(1.0 - sets.cast(x.dtype()), a.axis, a.reverse, 0.0)?;
    let total = stays.linear_scan(inclusive(dy, a)?, a.axis, !a.reverse);
    Ok(sets.select(total, total.zeros_like()))
}

/// Axis, `exclusive` and `reverse`, as ONNX gives them.
fn onnx_line(c: &Call<'_, '_>) -> Result<(i64, bool, bool)> {
    let axis = c.int_at("axis", 1)?.ok_or_else(|| Error::new(Code::Operands, "the axis is missing"))?;
    Ok((axis, c.flag("exclusive", false)?, c.flag("reverse", false)?))
}

/// The samples that all running totals share.
fn cases<A: Attributes>(s: &mut Samples, make: fn(i64, bool, bool) -> A) {
    s.case("rows", make(1, false, false), [f([2, 4]).distinct(-1.5, 1.5)]);
    s.case("columns", make(0, false, false), [f([3, 2]).distinct(-1.5, 1.5)]);
    s.case("reverse", make(0, false, true), [f([4]).distinct(-1.5, 1.5)]);
    s.case("one", make(0, false, false), [f([1, 2])]);
    s.case("empty", make(0, false, false), [f([0, 2])]);
    let (exclusive, both) = ([f([2, 3]).distinct(-1.5, 1.5)], [f([1, 3, 2]).distinct(-1.5, 1.5)]);
    s.case("exclusive", make(-1, true, false), exclusive);
    s.case("both", make(1, true, true), both);
}

ops! {
    /// The linear recurrence y[t] = a[t] · y[t−1] + b[t] along an axis, from y[0] = b[0] (a[0] is not used).
    linear_scan: LinearScan(a: Float, b: Float) { axis: i64, reverse: bool = false } -> y;
    constraints = ["a and b have the same shape", "the axis exists"];
    infer = |c, a| {
        c.expect_shape(1, 1, &c.ty(0)?.shape)?;
        c.axis(2, 0, a.axis)?;
        Ok(vec![c.ty(0)?.clone()])
    };
    step = |c, a| Ok(Step::LinearScan { axis: resolve_axis(a.axis, c.ty(0)?.rank())?, reverse: a.reverse });
    eval = |e, at| {
        let (a, b) = (e.x(0)?, e.x(1)?);
        Ok(vec![lines(e, at.axis, at.reverse, |line| {
            let mut y: Option<f64> = None;
            line.iter()
                .map(|i| {
                    let b = b.flat(*i).f();
                    let next = y.map_or(b, |y| a.flat(*i).f() * y + b);
                    y = Some(next);
                    Num::F(next)
                })
                .collect()
        })?])
    };
    vjp = |c, at| {
        let db = following(c.x(0), at.axis, at.reverse, 0.0)?.linear_scan(c.dy(0), at.axis, !at.reverse);
        let before = following(c.y(0), at.axis, !at.reverse, 0.0)?;
        Ok([db * before, db].into())
    };
    vmap = |c, at| Ok(vec![c.bx(0).linear_scan(c.bx(1), c.shift(0, at.axis)?, at.reverse)]);
    samples = |s| {
        s.case("rows", LinearScan { axis: 1, reverse: false }, [f([2, 4]), f([2, 4])]);
        s.case("reverse", LinearScan { axis: -2, reverse: true }, [f([3, 2]), f([3, 2])]);
        s.case("one", LinearScan { axis: 0, reverse: false }, [f([1]), f([1])]);
        s.case("empty", LinearScan { axis: 0, reverse: false }, [f([0, 2]), f([0, 2])]);
    };
    tolerance = tol(2e-5, 8e-3, 6e-2);

    /// The running sum.
    cumsum: Cumsum(x: Num) { axis: i64, exclusive: bool = false, reverse: bool = false } -> y;
    constraints = ["the axis exists"];
    infer = |c, a| { c.axis(1, 0, a.axis)?; Ok(vec![c.ty(0)?.clone()]) };
    step = |c, a| Line::new(a.axis, a.exclusive, a.reverse).step(c, Running::Sum);
    eval = |e, a| {
        let (dtype, line) = (e.x(0)?.dtype(), Line::new(a.axis, a.exclusive, a.reverse));
        let zero = if dtype.is_float() { Num::F(0.0) } else { Num::I(0) };
        Ok(vec![running(e, &line, zero, |t, x| Scalar::Add.eval(dtype, &[t, x]))?])
    };
    vjp = |c, a| Ok([c.dy(0).cumsum(a.axis, a.exclusive, !a.reverse)].into());
    vmap = |c, a| Ok(vec![c.x(0).cumsum(c.shift(0, a.axis)?, a.exclusive, a.reverse)]);
    onnx = [rule("CumSum", 11, |c| {
        let (axis, exclusive, reverse) = onnx_line(c)?;
        Ok(vec![c.x(0)?.cumsum(axis, exclusive, reverse)])
    })];
    samples = |s| {
        cases(s, |axis, exclusive, reverse| Cumsum { axis, exclusive, reverse });
        s.rough("int", Cumsum { axis: 0, exclusive: false, reverse: false }, [int([4], -9, 9)]);
    };
    tolerance = tol(1e-5, 8e-3, 6e-2);

    /// The running product. The gradient is exact also where elements are 0.
    cumprod: Cumprod(x: Num) { axis: i64, exclusive: bool = false, reverse: bool = false } -> y;
    constraints = ["the axis exists"];
    infer = |c, a| { c.axis(1, 0, a.axis)?; Ok(vec![c.ty(0)?.clone()]) };
    step = |c, a| Line::new(a.axis, a.exclusive, a.reverse).step(c, Running::Prod);
    eval = |e, a| {
        let (dtype, line) = (e.x(0)?.dtype(), Line::new(a.axis, a.exclusive, a.reverse));
        let one = if dtype.is_float() { Num::F(1.0) } else { Num::I(1) };
        Ok(vec![running(e, &line, one, |t, x| Scalar::Mul.eval(dtype, &[t, x]))?])
    };
    vjp = |c, a| {
        // x[i] is a factor of every total from i on: the product before i, times Σ_k dy[k] · x[i+1] ⋯ x[k].
        let line = Line::new(a.axis, a.exclusive, a.reverse);
        let dy = inclusive(c.dy(0), &line)?;
        let after = following(c.x(0), a.axis, a.reverse, 0.0)?.linear_scan(dy, a.axis, !a.reverse);
        Ok([c.x(0).cumprod(a.axis, true, a.reverse) * after].into())
    };
    vmap = |c, a| Ok(vec![c.x(0).cumprod(c.shift(0, a.axis)?, a.exclusive, a.reverse)]);
    onnx = [rule("CumProd", 26, |c| {
        let (axis, exclusive, reverse) = onnx_line(c)?;
        Ok(vec![c.x(0)?.cumprod(axis, exclusive, reverse)])
    })];
    samples = |s| {
        cases(s, |axis, exclusive, reverse| Cumprod { axis, exclusive, reverse });
        let zeros = f([5]).values(&[2.0, 0.0, 3.0, 0.0, 0.5]);
        s.case("zeros", Cumprod { axis: 0, exclusive: false, reverse: false }, [zeros]);
        s.rough("int", Cumprod { axis: 0, exclusive: false, reverse: false }, [int([4], -9, 9)]);
    };
    tolerance = tol(1e-5, 8e-3, 6e-2);

    /// The running maximum; NaN from the first NaN on. The maximum of nothing is −∞, or the smallest integer.
    /// The gradient goes to the element that set the maximum, the latest of equal ones.
    cummax: Cummax(x: Num) { axis: i64, exclusive: bool = false, reverse: bool = false } -> y;
    constraints = ["the axis exists"];
    infer = |c, a| { c.axis(1, 0, a.axis)?; Ok(vec![c.ty(0)?.clone()]) };
    step = |c, a| Line::new(a.axis, a.exclusive, a.reverse).step(c, Running::Max);
    eval = |e, a| {
        let (dtype, line) = (e.x(0)?.dtype(), Line::new(a.axis, a.exclusive, a.reverse));
        let nothing = dtype.int_range().map_or(Num::F(f64::NEG_INFINITY), |r| Num::I(r.0));
        Ok(vec![running(e, &line, nothing, |t, x| Scalar::Max.eval(dtype, &[t, x]))?])
    };
    vjp = |c, a| {
        let line = Line::new(a.axis, a.exclusive, a.reverse);
        let beats = c.x(0).greater_equal(c.x(0).cummax(a.axis, true, a.reverse));
        Ok([to_setter(c.x(0), beats, c.dy(0), &line)?].into())
    };
    vmap = |c, a| Ok(vec![c.x(0).cummax(c.shift(0, a.axis)?, a.exclusive, a.reverse)]);
    samples = |s| {
        cases(s, |axis, exclusive, reverse| Cummax { axis, exclusive, reverse });
        let nan = f([5]).values(&[1.0, 3.0, 3.0, f64::NAN, 5.0]);
        s.rough("nan", Cummax { axis: 0, exclusive: false, reverse: false }, [nan]);
        s.rough("int", Cummax { axis: 0, exclusive: true, reverse: false }, [int([4], -9, 9)]);
    };

    /// The running minimum; NaN from the first NaN on. The minimum of nothing is ∞, or the largest integer.
    /// The gradient goes to the element that set the minimum, the latest of equal ones.
    cummin: Cummin(x: Num) { axis: i64, exclusive: bool = false, reverse: bool = false } -> y;
    constraints = ["the axis exists"];
    infer = |c, a| { c.axis(1, 0, a.axis)?; Ok(vec![c.ty(0)?.clone()]) };
    step = |c, a| Line::new(a.axis, a.exclusive, a.reverse).step(c, Running::Min);
    eval = |e, a| {
        let (dtype, line) = (e.x(0)?.dtype(), Line::new(a.axis, a.exclusive, a.reverse));
        let nothing = dtype.int_range().map_or(Num::F(f64::INFINITY), |r| Num::I(r.1));
        Ok(vec![running(e, &line, nothing, |t, x| Scalar::Min.eval(dtype, &[t, x]))?])
    };
    vjp = |c, a| {
        let line = Line::new(a.axis, a.exclusive, a.reverse);
        let beats = c.x(0).less_equal(c.x(0).cummin(a.axis, true, a.reverse));
        Ok([to_setter(c.x(0), beats, c.dy(0), &line)?].into())
    };
    vmap = |c, a| Ok(vec![c.x(0).cummin(c.shift(0, a.axis)?, a.exclusive, a.reverse)]);
    samples = |s| {
        cases(s, |axis, exclusive, reverse| Cummin { axis, exclusive, reverse });
        let nan = f([5]).values(&[5.0, 3.0, 3.0, f64::NAN, 1.0]);
        s.rough("nan", Cummin { axis: 0, exclusive: false, reverse: false }, [nan]);
        s.rough("int", Cummin { axis: 0, exclusive: true, reverse: false }, [int([4], -9, 9)]);
    };

    /// The running ln Σ eˣ, without overflow; −∞ for nothing. Where a total is −∞ its gradient is 0.
    logcumsumexp: Logcumsumexp(x: Float) { axis: i64, exclusive: bool = false, reverse: bool = false } -> y;
    constraints = ["the axis exists"];
    infer = |c, a| { c.axis(1, 0, a.axis)?; Ok(vec![c.ty(0)?.clone()]) };
    step = |c, a| Line::new(a.axis, a.exclusive, a.reverse).step(c, Running::LogSumExp);
    eval = |e, a| {
        let line = Line::new(a.axis, a.exclusive, a.reverse);
        Ok(vec![running(e, &line, Num::F(f64::NEG_INFINITY), |t, x| {
            let (lo, hi) = if t.f() < x.f() { (t.f(), x.f()) } else { (x.f(), t.f()) };
            Num::F(if lo == hi { hi + 2f64.ln() } else { hi + (lo - hi).exp().ln_1p() })
        })?])
    };
    vjp = |c, a| {
        // dx[i] = Σ_{k >= i} dy[k] · e^(x[i] − y[k]), by way of the totals between, so that no exponent is
        // positive.
        let line = Line::new(a.axis, a.exclusive, a.reverse);
        let (x, dy) = (c.x(0), inclusive(c.dy(0), &line)?);
        let y = if a.exclusive { x.logcumsumexp(a.axis, false, a.reverse) } else { c.y(0) };
        let finite = y.equal(y.scalar(f64::NEG_INFINITY)).select(y.scalar(0.0), y);
        let inner = following(y.ones_like(), a.axis, a.reverse, 0.0)?.greater(0.0);
        let drop = y - following(finite, a.axis, a.reverse, 0.0)?;
        let total = inner.select(drop, drop.zeros_like()).exp().linear_scan(dy, a.axis, !a.reverse);
        Ok([(x - finite).exp() * total].into())
    };
    vmap = |c, a| Ok(vec![c.x(0).logcumsumexp(c.shift(0, a.axis)?, a.exclusive, a.reverse)]);
    samples = |s| {
        cases(s, |axis, exclusive, reverse| Logcumsumexp { axis, exclusive, reverse });
        let large = f([4]).within(-400.0, 400.0);
        s.case("large", Logcumsumexp { axis: 0, exclusive: false, reverse: false }, [large]);
        s.rough("infinite", Logcumsumexp { axis: 0, exclusive: false, reverse: false }, [f([5]).values(&[
            f64::NEG_INFINITY, f64::NEG_INFINITY, 1.0, f64::INFINITY, 2.0,
        ])]);
    };
    tolerance = tol(2e-5, 8e-3, 6e-2);
}

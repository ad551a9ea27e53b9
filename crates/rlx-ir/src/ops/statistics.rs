//! Reductions made of simpler ones: logsumexp, variance, norms.

use super::reduce::{count, onnx_reduce, over_axes, restore};
use crate::prelude::*;

/// 1 where x is 0, else x.
fn nonzero(x: Var<'_>) -> Var<'_> {
    x.equal(x.scalar(0.0)).select(x.scalar(1.0), x)
}

/// What the sum of squared deviations is divided by: the count less the correction, at least 0.
fn freedom<'g>(x: Var<'g>, axes: &[i64], correction: i64) -> Result<Var<'g>> {
    Ok((count(x, axes)? - correction as f64).maximum(0.0))
}

/// A function of floats for any number; the result has the dtype of x again.
fn in_floats<'g>(x: Var<'g>, f: impl FnOnce(Var<'g>) -> Var<'g>) -> Var<'g> {
    f(if x.dtype().is_float() { x } else { x.to(DType::F64) }).to(x.dtype())
}

ops! {
    /// ln Σ eˣ over the axes, without overflow; −∞ over nothing. Where the result is −∞ the gradient is 0.
    logsumexp: Logsumexp(x: Float) { axes: Vec<i64>, keep: bool = false } -> y;
    constraints = ["each axis exists and is named once"];
    infer = |c, a| over_axes(c, &a.axes, a.keep);
    body = |c, a| {
        let x = c.x(0).wide();
        let top = x.max(a.axes.clone(), true);
        let top = top.is_inf().select(top.scalar(0.0), top);
        let total = (x - top).exp().sum(a.axes.clone(), a.keep).log();
        Ok(vec![(total + top.reshape(total.shape())).to(c.x(0).dtype())])
    };
    vjp = |c, a| {
        let y = c.y(0);
        let y = y.equal(y.scalar(f64::NEG_INFINITY)).select(y.scalar(0.0), y);
        let share = (c.x(0) - restore(y, c.x(0), &a.axes)?).exp();
        Ok([restore(c.dy(0), c.x(0), &a.axes)? * share].into())
    };
    vmap = |c, a| Ok(vec![c.x(0).logsumexp(c.shift_all(0, &a.axes)?, a.keep)]);
    onnx = [
        rule("ReduceLogSumExp", 1, |c| onnx_reduce(c, |x, axes, keep| in_floats(x, |x| x.logsumexp(axes, keep)))),
        rule("ReduceLogSum", 1, |c| {
            onnx_reduce(c, |x, axes, keep| in_floats(x, |x| x.wide().sum(axes, keep).log()))
        }),
    ];
    samples = |s| {
        s.case("last", Logsumexp { axes: vec![-1], keep: false }, [f([3, 4])]);
        s.case("keep", Logsumexp { axes: vec![0, 2], keep: true }, [f([2, 3, 2])]);
        s.case("large", Logsumexp { axes: vec![0], keep: false }, [f([4]).within(200.0, 203.0)]);
        s.case("none", Logsumexp { axes: vec![], keep: false }, [f([3])]);
        s.rough("infinite", Logsumexp { axes: vec![1], keep: false }, [f([3, 2]).values(&[
            f64::NEG_INFINITY, f64::NEG_INFINITY, f64::INFINITY, 0.0, f64::NEG_INFINITY, 1.0,
        ])]);
        s.rough("empty", Logsumexp { axes: vec![0], keep: false }, [f([0, 3])]);
    };
    tolerance = tol(1e-5, 4e-3, 3e-2);

    /// The variance over the axes: Σ (x − mean)² / max(n − correction, 0).
    var: Variance(x: Float) { axes: Vec<i64>, keep: bool = false, correction: i64 = 0 } -> y;
    constraints = ["each axis exists and is named once"];
    infer = |c, a| over_axes(c, &a.axes, a.keep);
    body = |c, a| {
        let x = c.x(0).wide();
        let away = x - x.mean(a.axes.clone(), true);
        let var = away.square().sum(a.axes.clone(), a.keep) / freedom(x, &a.axes, a.correction)?;
        Ok(vec![var.to(c.x(0).dtype())])
    };
    vjp = |c, a| {
        let [x, dy] = [c.x(0), c.dy(0)].map(Var::wide);
        let away = x - x.mean(a.axes.clone(), true);
        let dy = restore(dy, x, &a.axes)? * 2.0 / freedom(x, &a.axes, a.correction)?;
        Ok([(dy * away).to(c.x(0).dtype())].into())
    };
    vmap = |c, a| Ok(vec![c.x(0).var(c.shift_all(0, &a.axes)?, a.keep, a.correction)]);
    samples = |s| {
        s.case("last", Variance { axes: vec![-1], keep: false, correction: 0 }, [f([3, 4])]);
        s.case("keep", Variance { axes: vec![0, 2], keep: true, correction: 1 }, [f([2, 3, 2])]);
        s.rough("one", Variance { axes: vec![0], keep: false, correction: 1 }, [f([1, 2])]);
        s.rough("empty", Variance { axes: vec![0], keep: false, correction: 0 }, [f([0, 2])]);
    };
    tolerance = tol(2e-5, 8e-3, 6e-2);

    /// The standard deviation over the axes: √var. Where it is 0 its gradient is 0.
    std: Std(x: Float) { axes: Vec<i64>, keep: bool = false, correction: i64 = 0 } -> y;
    constraints = ["each axis exists and is named once"];
    infer = |c, a| over_axes(c, &a.axes, a.keep);
    body = |c, a| {
        let var = c.x(0).wide().var(a.axes.clone(), a.keep, a.correction);
        Ok(vec![var.sqrt().to(c.x(0).dtype())])
    };
    vjp = |c, a| {
        let [x, y, dy] = [c.x(0), c.y(0), c.dy(0)].map(Var::wide);
        let away = x - x.mean(a.axes.clone(), true);
        let dy = dy / (nonzero(y) * freedom(x, &a.axes, a.correction)?);
        Ok([(restore(dy, x, &a.axes)? * away).to(c.x(0).dtype())].into())
    };
    vmap = |c, a| Ok(vec![c.x(0).std(c.shift_all(0, &a.axes)?, a.keep, a.correction)]);
    samples = |s| {
        s.case("last", Std { axes: vec![-1], keep: false, correction: 0 }, [f([3, 4]).distinct(-2.0, 2.0)]);
        s.case("keep", Std { axes: vec![0, 2], keep: true, correction: 1 }, [f([2, 3, 2]).distinct(-2., 2.)]);
        s.rough("constant", Std { axes: vec![0], keep: false, correction: 0 }, [f([3]).values(&[2.0])]);
        s.rough("empty", Std { axes: vec![0], keep: false, correction: 0 }, [f([0, 2])]);
    };
    tolerance = tol(2e-5, 8e-3, 6e-2);

    /// Σ |x| over the axes.
    l1_norm: L1Norm(x: Num) { axes: Vec<i64>, keep: bool = false } -> y;
    constraints = ["each axis exists and is named once"];
    infer = |c, a| over_axes(c, &a.axes, a.keep);
    body = |c, a| Ok(vec![c.x(0).abs().sum(a.axes.clone(), a.keep)]);
    vmap = |c, a| Ok(vec![c.x(0).l1_norm(c.shift_all(0, &a.axes)?, a.keep)]);
    onnx = [rule("ReduceL1", 1, |c| onnx_reduce(c, |x, axes, keep| x.l1_norm(axes, keep)))];
    samples = |s| {
        s.case("last", L1Norm { axes: vec![-1], keep: false }, [f([3, 4]).distinct(-2.0, 2.0)]);
        s.case("keep", L1Norm { axes: vec![0, 2], keep: true }, [f([2, 3, 2]).within(0.2, 2.0)]);
        s.rough("zero", L1Norm { axes: vec![0], keep: false }, [f([3]).values(&[0.0])]);
        s.case("empty", L1Norm { axes: vec![0], keep: false }, [f([0, 3])]);
    };

    /// √(Σ x²) over the axes. Where it is 0 its gradient is 0.
    l2_norm: L2Norm(x: Float) { axes: Vec<i64>, keep: bool = false } -> y;
    constraints = ["each axis exists and is named once"];
    infer = |c, a| over_axes(c, &a.axes, a.keep);
    body = |c, a| {
        let norm = c.x(0).wide().square().sum(a.axes.clone(), a.keep).sqrt();
        Ok(vec![norm.to(c.x(0).dtype())])
    };
    vjp = |c, a| {
        let (x, y) = (c.x(0), c.y(0));
        let dy = y.equal(y.scalar(0.0)).select(y.zeros_like(), c.dy(0)) / nonzero(y);
        Ok([restore(dy, x, &a.axes)? * x].into())
    };
    vmap = |c, a| Ok(vec![c.x(0).l2_norm(c.shift_all(0, &a.axes)?, a.keep)]);
    onnx = [
        rule("ReduceL2", 1, |c| onnx_reduce(c, |x, axes, keep| in_floats(x, |x| x.l2_norm(axes, keep)))),
        rule("ReduceSumSquare", 1, |c| {
            onnx_reduce(c, |x, axes, keep| x.wide().square().sum(axes, keep).to(x.dtype()))
        }),
    ];
    samples = |s| {
        s.case("last", L2Norm { axes: vec![-1], keep: false }, [f([3, 4])]);
        s.case("keep", L2Norm { axes: vec![0, 2], keep: true }, [f([2, 3, 2])]);
        s.rough("zero", L2Norm { axes: vec![0], keep: false }, [f([3]).values(&[0.0])]);
        s.rough("empty", L2Norm { axes: vec![0], keep: false }, [f([0, 3])]);
    };
    tolerance = tol(1e-5, 4e-3, 3e-2);
}

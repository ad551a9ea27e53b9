//! Softmax and its logarithm.

use crate::prelude::*;

/// As ONNX had it before version 13: along all axes from one on, as one.
pub(crate) fn along_rest<'g>(c: &onnx::Call<'g, '_>, f: impl Fn(Var<'g>, i64) -> Var<'g>) -> Result<Vec<Var<'g>>> {
    let x = c.x(0)?;
    let shape = x.shape();
    let axis = c.int_or("axis", 1)?;
    // The axis may stand behind the last one: then every element is a row of its own.
    let at = if axis == shape.len() as i64 { shape.len() } else { resolve_axis(axis, shape.len())? };
    if at + 1 == shape.len() {
        return Ok(vec![f(x, -1)]);
    }
    let (rows, rest) = shape.split_at(at);
    Ok(vec![f(x.reshape(vec![product(rows), product(rest)]), 1).reshape(shape)])
}

ops! {
    /// exp(x) / Σ exp(x) along an axis. A row that is −inf throughout, or holds +inf or NaN, is NaN.
    softmax: Softmax(x: Float) { axis: i64 = -1 } -> y;
    constraints = ["the axis exists"];
    infer = |c, a| { c.axis(1, 0, a.axis)?; Ok(vec![c.ty(0)?.clone()]) };
    body = |c, a| {
        let x = c.x(0).wide();
        let e = (x - x.max(vec![a.axis], true).stop_gradient()).exp();
        Ok(vec![(e / e.sum(vec![a.axis], true)).to(c.x(0).dtype())])
    };
    vjp = |c, a| Ok([c.y(0).softmax_grad(c.dy(0), a.axis)].into());
    vmap = |c, a| Ok(vec![c.x(0).softmax(c.shift(0, a.axis)?)]);
    onnx = [rule("Softmax", 1, |c| along_rest(c, |x, axis| x.softmax(axis))),
        rule("Softmax", 13, |c| Ok(vec![c.x(0)?.softmax(c.int_or("axis", -1)?)]))];
    samples = |s| {
        s.case("last", Softmax { axis: -1 }, [f([3, 5])]);
        s.case("first", Softmax { axis: 0 }, [f([4, 3])]);
        s.case("middle", Softmax { axis: 1 }, [f([2, 3, 2])]);
        s.case("one", Softmax { axis: 1 }, [f([2, 1])]);
        s.case("large", Softmax { axis: -1 }, [f([2, 3]).values(&[999.0, 1000.0, 1001.0, -1e4, -1e4, -9999.0])]);
        s.case("empty_rows", Softmax { axis: -1 }, [f([0, 3])]);
        s.case("empty_axis", Softmax { axis: -1 }, [f([3, 0])]);
        let inf = f64::INFINITY;
        s.rough("infinite", Softmax { axis: -1 }, [f([3, 2]).values(&[-inf, 0.0, -inf, -inf, inf, 1.0])]);
    };
    tolerance = tol(2e-6, 2e-3, 2e-2);

    /// The gradient of `softmax` from its result y: y · (dy − Σ y · dy) along the axis.
    softmax_grad: SoftmaxGrad(y: Float, dy: Float) { axis: i64 = -1 } -> dx;
    constraints = ["the axis exists", "dy has the shape of y"];
    infer = |c, a| {
        c.axis(1, 0, a.axis)?;
        c.expect_shape(2, 1, &c.ty(0)?.shape)?;
        Ok(vec![c.ty(0)?.clone()])
    };
    body = |c, a| {
        let [y, dy] = c.xs().map(Var::wide);
        Ok(vec![(y * (dy - (y * dy).sum(vec![a.axis], true))).to(c.x(0).dtype())])
    };
    vmap = |c, a| Ok(vec![c.bx(0).softmax_grad(c.bx(1), c.shift(0, a.axis)?)]);
    samples = |s| {
        s.case("last", SoftmaxGrad { axis: -1 }, [f([3, 5]).within(0.0, 1.0), f([3, 5])]);
        s.case("first", SoftmaxGrad { axis: 0 }, [f([4, 3]).within(0.0, 1.0), f([4, 3])]);
        s.case("empty", SoftmaxGrad { axis: -1 }, [f([0, 3]), f([0, 3])]);
    };
    tolerance = tol(4e-6, 4e-3, 3e-2);

    /// x − log Σ exp(x) along an axis. A row that is −inf throughout, or holds +inf or NaN, is NaN.
    log_softmax: LogSoftmax(x: Float) { axis: i64 = -1 } -> y;
    constraints = ["the axis exists"];
    infer = |c, a| { c.axis(1, 0, a.axis)?; Ok(vec![c.ty(0)?.clone()]) };
    body = |c, a| {
        let x = c.x(0).wide();
        let x = x - x.max(vec![a.axis], true).stop_gradient();
        Ok(vec![(x - x.exp().sum(vec![a.axis], true).log()).to(c.x(0).dtype())])
    };
    vjp = |c, a| Ok([c.y(0).log_softmax_grad(c.dy(0), a.axis)].into());
    vmap = |c, a| Ok(vec![c.x(0).log_softmax(c.shift(0, a.axis)?)]);
    onnx = [rule("LogSoftmax", 1, |c| along_rest(c, |x, axis| x.log_softmax(axis))),
        rule("LogSoftmax", 13, |c| Ok(vec![c.x(0)?.log_softmax(c.int_or("axis", -1)?)]))];
    samples = |s| {
        s.case("last", LogSoftmax { axis: -1 }, [f([3, 5])]);
        s.case("first", LogSoftmax { axis: 0 }, [f([4, 3])]);
        s.case("one", LogSoftmax { axis: -1 }, [f([2, 1])]);
        s.case("large", LogSoftmax { axis: -1 }, [f([2, 3]).values(&[999.0, 1000.0, 1001.0, -1e4, -1e4, -9999.0])]);
        s.case("empty_rows", LogSoftmax { axis: -1 }, [f([0, 3])]);
        s.case("empty_axis", LogSoftmax { axis: -1 }, [f([3, 0])]);
        let inf = f64::INFINITY;
        s.rough("infinite", LogSoftmax { axis: -1 }, [f([3, 2]).values(&[-inf, 0.0, -inf, -inf, inf, 1.0])]);
    };
    tolerance = tol(2e-6, 2e-3, 2e-2);

    /// The gradient of `log_softmax` from its result y: dy − exp(y) · Σ dy along the axis.
    log_softmax_grad: LogSoftmaxGrad(y: Float, dy: Float) { axis: i64 = -1 } -> dx;
    constraints = ["the axis exists", "dy has the shape of y"];
    infer = |c, a| {
        c.axis(1, 0, a.axis)?;
        c.expect_shape(2, 1, &c.ty(0)?.shape)?;
        Ok(vec![c.ty(0)?.clone()])
    };
    body = |c, a| {
        let [y, dy] = c.xs().map(Var::wide);
        Ok(vec![(dy - y.exp() * dy.sum(vec![a.axis], true)).to(c.x(0).dtype())])
    };
    vmap = |c, a| Ok(vec![c.bx(0).log_softmax_grad(c.bx(1), c.shift(0, a.axis)?)]);
    samples = |s| {
        s.case("last", LogSoftmaxGrad { axis: -1 }, [f([3, 5]).within(-3.0, 0.0), f([3, 5])]);
        s.case("first", LogSoftmaxGrad { axis: 0 }, [f([4, 3]).within(-3.0, 0.0), f([4, 3])]);
        s.case("empty", LogSoftmaxGrad { axis: -1 }, [f([0, 3]), f([0, 3])]);
    };
    tolerance = tol(4e-6, 4e-3, 3e-2);
}

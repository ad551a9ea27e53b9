//! Normalisation over the last axes: layer norm, RMS norm, L2 normalisation.

use crate::prelude::*;

/// The last `n` axes, counted from the end.
fn last(n: i64) -> Vec<i64> {
    (-n..0).collect()
}

/// All axes of x but the last `n`.
fn leading(x: Var<'_>, n: i64) -> Vec<i64> {
    (0..(x.rank() as i64).saturating_sub(n)).collect()
}

/// `y · gamma + beta`, as far as they are given.
pub(crate) fn affine<'g>(y: Var<'g>, gamma: Option<Var<'g>>, beta: Option<Var<'g>>) -> Var<'g> {
    let y = gamma.map_or(y, |gamma| y * gamma.wide());
    beta.map_or(y, |beta| y + beta.wide())
}

/// Constraint `n`: eps is finite and not negative.
pub(crate) fn check_eps(c: &Infer<'_>, n: usize, eps: f64) -> Result<()> {
    if eps.is_finite() && eps >= 0.0 {
        return Ok(());
    }
    Err(c.fail(Code::Attribute, n, format!("eps is {eps}")))
}

/// The shape of gamma and beta, which the operands at `params` must have (constraint 2).
fn param_shape(c: &Infer<'_>, axes: i64, params: &[usize]) -> Result<Shape> {
    let x = c.ty(0)?;
    if axes < 1 || axes as u64 > x.rank() as u64 {
        return Err(c.fail(Code::Axis, 1, format!("{axes} of the {} axes of x", x.rank())).operand("x"));
    }
    let shape: Shape = x.shape.iter().skip(x.rank() - axes as usize).cloned().collect();
    for i in params.iter().filter(|i| c.opt(**i).is_some()) {
        c.expect_shape(2, *i, &shape)?;
    }
    Ok(shape)
}

/// Batches `norm(x) · gamma + beta`: x carries the batch straight through; batched parameters are applied
/// apart.
fn batch_affine<'g>(
    c: &VmapCx<'g>,
    norm: impl Fn(Var<'g>, Option<Var<'g>>, Option<Var<'g>>) -> Var<'g>,
) -> Result<Vec<Var<'g>>> {
    if c.only_first() {
        return Ok(vec![norm(c.x(0), c.opt(1), c.opt(2))]);
    }
    let param = |i| c.opt(i).map(|p| if c.is_batched(i) { p.align_batch(c.rank(0)) } else { p });
    let y = affine(norm(c.x(0), None, None).wide(), param(1), param(2));
    Ok(vec![y.to(c.x(0).dtype())])
}

ops! {
    /// (x − mean) / sqrt(variance + eps) · gamma + beta over the last `axes` axes, with the population
    /// variance.
    layer_norm: LayerNorm(x: Float, gamma: opt Float, beta: opt Float) { eps: f64 = 1e-5, axes: i64 = 1 } -> y;
    constraints = [
        "1 <= axes <= the number of axes of x",
        "gamma and beta have the shape of the last `axes` axes of x",
        "eps is finite and not negative",
    ];
    infer = |c, a| {
        param_shape(c, a.axes, &[1, 2])?;
        check_eps(c, 3, a.eps)?;
        Ok(vec![c.ty(0)?.clone()])
    };
    body = |c, a| {
        let x = c.x(0).wide();
        // The mean of what is left is the rounding of the first mean: far from zero it would be seen.
        let d = x - x.mean(last(a.axes), true);
        let d = d - d.mean(last(a.axes), true);
        let y = d * (d.square().mean(last(a.axes), true) + a.eps).rsqrt();
        Ok(vec![affine(y, c.opt(1), c.opt(2)).to(c.x(0).dtype())])
    };
    vjp = |c, a| {
        let [dx, dgamma, dbeta] = c.x(0).layer_norm_grad(c.dy(0), c.opt(1), a.eps, a.axes);
        Ok([Some(dx), c.opt(1).map(|_| dgamma), c.opt(2).map(|_| dbeta)].into())
    };
    vmap = |c, a| batch_affine(c, |x, gamma, beta| x.layer_norm(gamma, beta, a.eps, a.axes));
    onnx = [rule("LayerNormalization", 1, onnx::norm::layer_normalization),
        microsoft("SkipLayerNormalization", onnx::norm::skip_layer_normalization)];
    samples = |s| {
        let a = LayerNorm { eps: 1e-5, axes: 1 };
        s.case("affine", a.clone(), [f([3, 5]), f([5]), f([5])]);
        s.case_opt("gamma", a.clone(), [Some(f([2, 2, 4])), Some(f([4])), None]);
        s.case_opt("beta", a.clone(), [Some(f([3, 4])), None, Some(f([4]))]);
        s.case("plain", LayerNorm { eps: 0.1, axes: 1 }, [f([7])]);
        s.case("two_axes", LayerNorm { eps: 1e-5, axes: 2 }, [f([2, 3, 2]), f([3, 2]), f([3, 2])]);
        s.case("far_from_zero", a.clone(), [f([2, 4]).within(999.0, 1001.0), f([4]), f([4])]);
        s.case("empty_rows", a.clone(), [f([0, 3]), f([3]), f([3])]);
        s.rough("constant_row", a, [f([2, 3]).values(&[2.0]), f([3]), f([3])]);
    };
    tolerance = tol(4e-6, 4e-3, 3e-2);

    /// The gradients of `layer_norm`. With x̂ = (x − mean) · r, r = 1 / sqrt(variance + eps) and g = dy ·
    /// gamma: dx = r · (g − mean g − x̂ · mean(g · x̂)); dgamma and dbeta are dy · x̂ and dy summed over the
    /// leading axes.
    layer_norm_grad: LayerNormGrad(x: Float, dy: Float, gamma: opt Float) { eps: f64 = 1e-5, axes: i64 = 1 }
        -> (dx, dgamma, dbeta);
    constraints = [
        "1 <= axes <= the number of axes of x",
        "gamma has the shape of the last `axes` axes of x",
        "eps is finite and not negative",
        "dy has the shape of x",
    ];
    infer = |c, a| {
        let x = c.ty(0)?;
        let shape = param_shape(c, a.axes, &[2])?;
        check_eps(c, 3, a.eps)?;
        c.expect_shape(4, 1, &x.shape)?;
        Ok(vec![x.clone(), x.with_shape(shape.clone()), x.with_shape(shape)])
    };
    body = |c, a| {
        let (axes, dtype) = (last(a.axes), c.x(0).dtype());
        let [x, dy] = c.xs().map(Var::wide);
        let d = x - x.mean(axes.clone(), true);
        let d = d - d.mean(axes.clone(), true);
        let r = (d.square().mean(axes.clone(), true) + a.eps).rsqrt();
        let n = d * r;
        let g = affine(dy, c.opt(2), None);
        let dx = r * (g - g.mean(axes.clone(), true) - n * (g * n).mean(axes, true));
        let rows = leading(x, a.axes);
        Ok([dx, (dy * n).sum(rows.clone(), false), dy.sum(rows, false)].map(|v| v.to(dtype)).into())
    };
    samples = |s| {
        let a = LayerNormGrad { eps: 1e-5, axes: 1 };
        s.case("gamma", a.clone(), [f([3, 5]), f([3, 5]), f([5])]);
        s.case("plain", a.clone(), [f([2, 2, 3]), f([2, 2, 3])]);
        s.case("two_axes", LayerNormGrad { eps: 1e-3, axes: 2 }, [f([2, 3, 2]), f([2, 3, 2]), f([3, 2])]);
        s.case("one_row", a.clone(), [f([4]), f([4]), f([4])]);
        s.case("empty_rows", a, [f([0, 3]), f([0, 3]), f([3])]);
    };
    tolerance = tol(1e-5, 1e-2, 6e-2);

    /// x / sqrt(mean(x²) + eps) · gamma + beta over the last axis.
    rms_norm: RmsNorm(x: Float, gamma: opt Float, beta: opt Float) { eps: f64 = 1e-6 } -> y;
    constraints = [
        "x has at least one axis",
        "gamma and beta have the shape of the last axis of x",
        "eps is finite and not negative",
    ];
    infer = |c, a| {
        param_shape(c, 1, &[1, 2])?;
        check_eps(c, 3, a.eps)?;
        Ok(vec![c.ty(0)?.clone()])
    };
    body = |c, a| {
        let x = c.x(0).wide();
        let y = x * (x.square().mean(vec![-1], true) + a.eps).rsqrt();
        Ok(vec![affine(y, c.opt(1), c.opt(2)).to(c.x(0).dtype())])
    };
    vjp = |c, a| {
        let [dx, dgamma, dbeta] = c.x(0).rms_norm_grad(c.dy(0), c.opt(1), a.eps);
        Ok([Some(dx), c.opt(1).map(|_| dgamma), c.opt(2).map(|_| dbeta)].into())
    };
    vmap = |c, a| batch_affine(c, |x, gamma, beta| x.rms_norm(gamma, beta, a.eps));
    onnx = [rule("RMSNormalization", 23, onnx::norm::rms_normalization),
        // As ONNX Runtime writes it, into the domain of ONNX.
        rule("SimplifiedLayerNormalization", 1, onnx::norm::rms_normalization),
        microsoft("SkipSimplifiedLayerNormalization", onnx::norm::skip_rms_normalization)];
    samples = |s| {
        let a = RmsNorm { eps: 1e-6 };
        s.case("gamma", a.clone(), [f([3, 5]), f([5])]);
        s.case("affine", a.clone(), [f([2, 2, 4]), f([4]), f([4])]);
        s.case_opt("beta", a.clone(), [Some(f([3, 4])), None, Some(f([4]))]);
        s.case("plain", RmsNorm { eps: 0.1 }, [f([7])]);
        s.case("one_wide", RmsNorm { eps: 0.1 }, [f([3, 1]), f([1])]);
        s.case("empty_rows", a.clone(), [f([0, 3]), f([3])]);
        s.rough("zero_row", a, [f([2, 3]).values(&[0.0]), f([3])]);
    };
    tolerance = tol(2e-6, 2e-3, 2e-2);

    /// The gradients of `rms_norm`. With r = 1 / sqrt(mean(x²) + eps), x̂ = x · r and g = dy · gamma:
    /// dx = r · (g − x̂ · mean(g · x̂)); dgamma and dbeta are dy · x̂ and dy summed over the leading axes.
    rms_norm_grad: RmsNormGrad(x: Float, dy: Float, gamma: opt Float) { eps: f64 = 1e-6 } -> (dx, dgamma, dbeta);
    constraints = [
        "x has at least one axis",
        "gamma has the shape of the last axis of x",
        "eps is finite and not negative",
        "dy has the shape of x",
    ];
    infer = |c, a| {
        let x = c.ty(0)?;
        let shape = param_shape(c, 1, &[2])?;
        check_eps(c, 3, a.eps)?;
        c.expect_shape(4, 1, &x.shape)?;
        Ok(vec![x.clone(), x.with_shape(shape.clone()), x.with_shape(shape)])
    };
    body = |c, a| {
        let dtype = c.x(0).dtype();
        let [x, dy] = c.xs().map(Var::wide);
        let r = (x.square().mean(vec![-1], true) + a.eps).rsqrt();
        let n = x * r;
        let g = affine(dy, c.opt(2), None);
        let dx = r * (g - n * (g * n).mean(vec![-1], true));
        let rows = leading(x, 1);
        Ok([dx, (dy * n).sum(rows.clone(), false), dy.sum(rows, false)].map(|v| v.to(dtype)).into())
    };
    samples = |s| {
        let a = RmsNormGrad { eps: 1e-6 };
        s.case("gamma", a.clone(), [f([3, 5]), f([3, 5]), f([5])]);
        s.case("plain", a.clone(), [f([2, 2, 3]), f([2, 2, 3])]);
        s.case("one_row", RmsNormGrad { eps: 0.1 }, [f([4]), f([4]), f([4])]);
        s.case("empty_rows", a, [f([0, 3]), f([0, 3]), f([3])]);
    };
    tolerance = tol(1e-5, 1e-2, 6e-2);

    /// x / max(‖x‖₂, eps) along an axis. A vector shorter than eps is divided by eps.
    l2_normalize: L2Normalize(x: Float) { axis: i64 = -1, eps: f64 = 1e-12 } -> y;
    constraints = ["the axis exists", "eps is finite and not negative"];
    infer = |c, a| {
        c.axis(1, 0, a.axis)?;
        check_eps(c, 2, a.eps)?;
        Ok(vec![c.ty(0)?.clone()])
    };
    body = |c, a| {
        let x = c.x(0).wide();
        // The maximum is taken of the squares, so that the gradient at 0 has no infinite factor.
        let r = x.square().sum(vec![a.axis], true).maximum(a.eps * a.eps).rsqrt();
        Ok(vec![(x * r).to(c.x(0).dtype())])
    };
    vmap = |c, a| Ok(vec![c.x(0).l2_normalize(c.shift(0, a.axis)?, a.eps)]);
    onnx = [
        rule("LpNormalization", 1, |c| {
            let (x, axis) = (c.x(0)?, c.int_or("axis", -1)?);
            let wide = x.wide();
            let norm = match c.int_or("p", 2)? {
                1 => wide.l1_norm(vec![axis], true),
                2 => wide.l2_norm(vec![axis], true),
                p => return Err(c.cannot(format!("a norm with p = {p}"))),
            };
            // What has no length stays 0.
            let zero = norm.equal(0.0);
            Ok(vec![zero.select(wide.scalar(0.0), wide / zero.select(norm.ones_like(), norm)).to(x.dtype())])
        }),
        rule("MeanVarianceNormalization", 9, |c| {
            let (x, axes) = (c.x(0)?, c.ints("axes")?.unwrap_or_else(|| vec![0, 2, 3]));
            let wide = x.wide();
            let away = wide - wide.mean(axes.clone(), true);
            // ONNX's own definition adds this to the deviation.
            let std = wide.std(axes, true, 0) + 1e-9;
            Ok(vec![(away / std).to(x.dtype())])
        }),
    ];
    samples = |s| {
        s.case("last", L2Normalize { axis: -1, eps: 1e-12 }, [f([3, 5])]);
        s.case("first", L2Normalize { axis: 0, eps: 1e-12 }, [f([4, 3])]);
        s.case("below_eps", L2Normalize { axis: -1, eps: 10.0 }, [f([2, 3])]);
        s.case("zero", L2Normalize { axis: -1, eps: 0.5 }, [f([1, 3]).values(&[0.0])]);
        s.case("empty", L2Normalize { axis: -1, eps: 1e-12 }, [f([0, 3])]);
    };
    tolerance = tol(2e-6, 2e-3, 2e-2);
}

//! Activation functions. Values at ±∞ and NaN, and gradients at kinks, are PyTorch's.

use crate::prelude::*;
use std::f64::consts::{FRAC_1_SQRT_2, PI};

/// `value` where the condition holds, else the gradient that has reached the result.
fn unless<'g>(c: &VjpCx<'g>, condition: Var<'g>, value: f64) -> Grads<'g> {
    [condition.select(c.dy(0).full_like(value), c.dy(0))].into()
}

/// Samples around each kink, not at it; and the kinks and other special values.
fn cases<A: Attributes + Clone>(s: &mut Samples, a: A, kinks: &[f64]) {
    let around = |step: f64| kinks.iter().flat_map(|k| [k - step, k + step]).collect::<Vec<_>>();
    let near = match kinks.is_empty() {
        true => f([3, 5]).within(-2.0, 2.0),
        false => f([3, 5]).values(&[around(0.3), around(0.45)].concat()),
    };
    s.case("matrix", a.clone(), [near]);
    s.case("scalar", a.clone(), [f([]).within(0.1, 0.2)]);
    s.case("empty", a.clone(), [f([0, 3])]);
    if !kinks.is_empty() {
        s.rough("kinks", a.clone(), [f([kinks.len()]).values(kinks)]);
    }
    s.special(a);
}

/// The factor of SELU that keeps the variance of its input.
const SELU_SCALE: f64 = 1.050_700_987_355_480_5;
/// The α of SELU that keeps the mean of its input.
const SELU_ALPHA: f64 = 1.673_263_242_354_377_2;
/// The steepness of the sigmoid in `quick_gelu`.
const QUICK: f64 = 1.702;
/// The weight of the cube in `gelu_tanh`.
const CUBE: f64 = 0.044715;

/// x · sigmoid(alpha · x).
fn swish(x: Var<'_>, alpha: f64) -> Var<'_> {
    if alpha == 1.0 { x.silu() } else { x * (x * alpha).sigmoid() }
}

/// The argument of the sigmoid in `gelu_tanh`: 2 · √(2/π) · (x + 0.044715 · x³).
fn gelu_angle(x: Var<'_>) -> Var<'_> {
    (x + x * x * x * CUBE) * (2.0 * (2.0 / PI).sqrt())
}

/// What the fused activations of ONNX Runtime are of: x, plus a bias if there is one.
fn biased<'g>(c: &onnx::Call<'g, '_>) -> Result<Var<'g>> {
    let x = c.x(0)?;
    Ok(c.opt(1).map_or(x, |bias| x + bias))
}

ops! {
    /// max(x, 0); the gradient at 0 is 0.
    relu: Relu(x: Num) -> y;
    each = |c, _| Ok(vec![c.x(0).maximum(0.0)]);
    vjp = |c, _| Ok(unless(c, c.x(0).less_equal(0.0), 0.0));
    onnx = [same("Relu")];
    samples = |s| cases(s, Relu {}, &[0.0]);

    /// x where x > 0, else slope · x; the gradient at 0 is the slope.
    leaky_relu: LeakyRelu(x: Float) { slope: f64 = 0.01 } -> y;
    each = |c, a| Ok(vec![c.x(0).greater(0.0).select(c.x(0), c.x(0) * a.slope)]);
    vjp = |c, a| Ok([c.x(0).greater(0.0).select(c.dy(0), c.dy(0) * a.slope)].into());
    onnx = [rule("LeakyRelu", 1, |c| Ok(vec![c.x(0)?.leaky_relu(c.float_or("alpha", 0.01)?)]))];
    samples = |s| {
        cases(s, LeakyRelu { slope: 0.01 }, &[0.0]);
        s.case("steep", LeakyRelu { slope: 0.3 }, [f([4]).within(-2.0, -0.1)]);
    };

    /// x where x > 0, else slope · x, with a slope that is data and broadcasts.
    prelu: Prelu(x: Float, slope: Float) -> y;
    each = |c, _| Ok(vec![c.x(0).greater(0.0).select(c.x(0), c.x(0) * c.x(1))]);
    onnx = [rule("PRelu", 1, |c| {
        let [x, slope] = c.xs()?;
        // Of old, a slope with one axis has an entry for each channel.
        let behind = x.rank().saturating_sub(2);
        let slope = match slope.rank() {
            1 if c.opset < 7 && behind > 0 && !slope.dim(0).is(1) => slope.reshape(
                [slope.shape(), vec![Dim::constant(1); behind]].concat()),
            _ => slope,
        };
        Ok(vec![match x.dtype().is_float() {
            true => x.prelu(slope),
            false => x.less(0.0).select(x * slope, x),
        }])
    })];
    samples = |s| {
        s.case("per_channel", Prelu {}, [f([2, 3]).values(&[-1.0, 0.5, -0.3, 1.2]), f([3])]);
        s.case("one", Prelu {}, [f([4]).within(-2.0, -0.1), f([])]);
        s.case("wider_slope", Prelu {}, [f([1, 3]).within(-2.0, -0.1), f([2, 1])]);
        s.case("empty", Prelu {}, [f([0]), f([1])]);
        s.rough("kinks", Prelu {}, [f([2]).values(&[0.0, f64::NAN]), f([])]);
    };

    /// x where x > 0, else alpha · (eˣ − 1).
    elu: Elu(x: Float) { alpha: f64 = 1.0 } -> y;
    each = |c, a| {
        let x = c.x(0);
        Ok(vec![x.less_equal(0.0).select(x.minimum(0.0).expm1() * a.alpha, x)])
    };
    vjp = |c, a| {
        let x = c.x(0);
        Ok([c.dy(0) * x.less_equal(0.0).select(x.minimum(0.0).exp() * a.alpha, x.scalar(1.0))].into())
    };
    onnx = [rule("Elu", 1, |c| Ok(vec![c.x(0)?.elu(c.float_or("alpha", 1.0)?)]))];
    samples = |s| {
        cases(s, Elu { alpha: 1.0 }, &[0.0]);
        s.case("alpha", Elu { alpha: 0.5 }, [f([4]).within(-2.0, -0.1)]);
    };

    /// 1.0507 · elu(x) with alpha 1.6733: activations keep mean 0 and variance 1.
    selu: Selu(x: Float) -> y;
    each = |c, _| Ok(vec![c.x(0).elu(SELU_ALPHA) * SELU_SCALE]);
    onnx = [rule("Selu", 1, |c| {
        let (alpha, gamma) = if c.opset < 6 { (1.6732, 1.0507) } else { (SELU_ALPHA, SELU_SCALE) };
        Ok(vec![c.x(0)?.elu(c.float_or("alpha", alpha)?) * c.float_or("gamma", gamma)?])
    })];
    samples = |s| cases(s, Selu {}, &[0.0]);

    /// x where x > 0, else alpha · (e^(x/alpha) − 1).
    celu: Celu(x: Float) { alpha: f64 = 1.0 } -> y;
    constraints = ["alpha is not 0"];
    each = |c, a| {
        let x = c.x(0);
        Ok(vec![x.less_equal(0.0).select((x.minimum(0.0) / a.alpha).expm1() * a.alpha, x)])
    };
    infer = |c, a| match a.alpha {
        0.0 => Err(c.fail(Code::Attribute, 1, "alpha is 0")),
        _ => c.elementwise(),
    };
    vjp = |c, a| {
        let x = c.x(0);
        Ok([c.dy(0) * x.less_equal(0.0).select((x.minimum(0.0) / a.alpha).exp(), x.scalar(1.0))].into())
    };
    onnx = [rule("Celu", 12, |c| Ok(vec![c.x(0)?.celu(c.float_or("alpha", 1.0)?)]))];
    samples = |s| {
        cases(s, Celu { alpha: 1.0 }, &[0.0]);
        s.case("alpha", Celu { alpha: 0.5 }, [f([4]).within(-2.0, -0.1)]);
    };

    /// x · sigmoid(x), also called swish.
    silu: Silu(x: Float) -> y;
    each = |c, _| Ok(vec![c.x(0) * c.x(0).sigmoid()]);
    vjp = |c, _| {
        let (x, s) = (c.x(0), c.x(0).sigmoid());
        Ok([c.dy(0) * (s * (x * (1.0 - s) + 1.0))].into())
    };
    onnx = [rule("Swish", 24, |c| Ok(vec![swish(c.x(0)?, c.float_or("alpha", 1.0)?)]))];
    samples = |s| cases(s, Silu {}, &[]);
    tolerance = tol(1e-5, 4e-3, 3e-2);

    /// x · Φ(x), Φ being the cumulative normal distribution: x/2 · erfc(−x/√2).
    gelu: Gelu(x: Float) -> y;
    each = |c, _| Ok(vec![c.x(0) * 0.5 * (c.x(0) * -FRAC_1_SQRT_2).erfc()]);
    vjp = |c, _| {
        let x = c.x(0);
        let density = (x * x * -0.5).exp() * (0.5 / PI).sqrt();
        Ok([c.dy(0) * ((x * -FRAC_1_SQRT_2).erfc() * 0.5 + x * density)].into())
    };
    onnx = [rule("Gelu", 20, |c| match c.text("approximate", "none")? {
        "none" => Ok(vec![c.x(0)?.gelu()]),
        "tanh" => Ok(vec![c.x(0)?.gelu_tanh()]),
        other => Err(c.cannot(format!("gelu approximated by {other:?}"))),
    }), microsoft("Gelu", |c| Ok(vec![c.x(0)?.gelu()])), microsoft("BiasGelu", |c| Ok(vec![biased(c)?.gelu()]))];
    samples = |s| cases(s, Gelu {}, &[]);
    tolerance = tol(2e-5, 4e-3, 3e-2);

    /// gelu approximated by x/2 · (1 + tanh(√(2/π) · (x + 0.044715 · x³))), which is x · sigmoid of twice the
    /// same.
    gelu_tanh: GeluTanh(x: Float) -> y;
    each = |c, _| Ok(vec![c.x(0) * gelu_angle(c.x(0)).sigmoid()]);
    vjp = |c, _| {
        let (x, s) = (c.x(0), gelu_angle(c.x(0)).sigmoid());
        let slope = (x * x * (3.0 * CUBE) + 1.0) * (2.0 * (2.0 / PI).sqrt());
        Ok([c.dy(0) * (s + x * (s * (1.0 - s)) * slope)].into())
    };
    onnx = [microsoft("FastGelu", |c| Ok(vec![biased(c)?.gelu_tanh()]))];
    samples = |s| cases(s, GeluTanh {}, &[]);
    tolerance = tol(2e-5, 4e-3, 3e-2);

    /// x · sigmoid(1.702 · x), a rough gelu.
    quick_gelu: QuickGelu(x: Float) -> y;
    each = |c, _| Ok(vec![c.x(0) * (c.x(0) * QUICK).sigmoid()]);
    vjp = |c, _| {
        let (x, s) = (c.x(0), (c.x(0) * QUICK).sigmoid());
        Ok([c.dy(0) * (s * (x * (1.0 - s) * QUICK + 1.0))].into())
    };
    samples = |s| cases(s, QuickGelu {}, &[]);
    tolerance = tol(1e-5, 4e-3, 3e-2);

    /// x · tanh(softplus(x)).
    mish: Mish(x: Float) -> y;
    each = |c, _| Ok(vec![c.x(0) * c.x(0).softplus().tanh()]);
    vjp = |c, _| {
        let (x, t) = (c.x(0), c.x(0).softplus().tanh());
        Ok([c.dy(0) * (t + x * x.sigmoid() * (1.0 - t * t))].into())
    };
    onnx = [same("Mish")];
    samples = |s| cases(s, Mish {}, &[]);
    tolerance = tol(2e-5, 4e-3, 3e-2);

    /// ln(1 + eˣ), without overflow.
    softplus: Softplus(x: Float) -> y;
    each = |c, _| Ok(vec![c.x(0).maximum(0.0) + (-c.x(0).abs()).exp().log1p()]);
    vjp = |c, _| Ok([c.dy(0) * c.x(0).sigmoid()].into());
    onnx = [same("Softplus")];
    samples = |s| cases(s, Softplus {}, &[]);
    tolerance = tol(1e-5, 4e-3, 3e-2);

    /// x / (1 + |x|).
    softsign: Softsign(x: Float) -> y;
    each = |c, _| Ok(vec![c.x(0) / (c.x(0).abs() + 1.0)]);
    vjp = |c, _| Ok([c.dy(0) / (c.x(0).abs() + 1.0).square()].into());
    onnx = [same("Softsign")];
    // Its second derivative jumps at 0.
    samples = |s| cases(s, Softsign {}, &[0.0]);

    /// alpha · x + beta, brought into 0..1. The gradient at the ends is 0.
    hard_sigmoid: HardSigmoid(x: Float) { alpha: f64 = 1.0 / 6.0, beta: f64 = 0.5 } -> y;
    each = |c, a| Ok(vec![(c.x(0) * a.alpha + a.beta).clamp(0.0, 1.0)]);
    vjp = |c, a| {
        let inside = c.y(0).greater(0.0).and(c.y(0).less(1.0));
        Ok([inside.select(c.dy(0) * a.alpha, c.dy(0).zeros_like())].into())
    };
    onnx = [rule("HardSigmoid", 1, |c| {
        Ok(vec![c.x(0)?.hard_sigmoid(c.float_or("alpha", 0.2)?, c.float_or("beta", 0.5)?)])
    })];
    samples = |s| {
        cases(s, HardSigmoid { alpha: 1.0 / 6.0, beta: 0.5 }, &[-3.0, 3.0]);
        s.case("onnx", HardSigmoid { alpha: 0.2, beta: 0.4 }, [f([5])]);
    };

    /// x · min(max(x + 3, 0), 6) / 6. The gradient is 0 at −3 and 1 at 3.
    hard_swish: HardSwish(x: Float) -> y;
    each = |c, _| Ok(vec![c.x(0) * c.x(0).hard_sigmoid(1.0 / 6.0, 0.5)]);
    vjp = |c, _| {
        let (x, dy) = (c.x(0), c.dy(0));
        let middle = x.less(3.0).select(dy * (x / 3.0 + 0.5), dy);
        Ok([x.less_equal(-3.0).select(dy.zeros_like(), middle)].into())
    };
    onnx = [same("HardSwish")];
    samples = |s| cases(s, HardSwish {}, &[-3.0, 3.0]);

    /// x brought into lo..hi. Unlike clamp's, the gradient at the ends is 0.
    hard_tanh: HardTanh(x: Float) { lo: f64 = -1.0, hi: f64 = 1.0 } -> y;
    constraints = ["lo <= hi"];
    each = |c, a| Ok(vec![c.x(0).clamp(a.lo, a.hi)]);
    infer = |c, a| match a.lo <= a.hi {
        true => c.elementwise(),
        false => Err(c.fail(Code::Attribute, 1, format!("lo is {}, hi is {}", a.lo, a.hi))),
    };
    vjp = |c, a| Ok(unless(c, c.x(0).less_equal(a.lo).or(c.x(0).greater_equal(a.hi)), 0.0));
    samples = |s| {
        cases(s, HardTanh { lo: -1.0, hi: 1.0 }, &[-1.0, 1.0]);
        s.case("uneven", HardTanh { lo: -0.2, hi: 2.5 }, [f([3]).values(&[-1.0, 0.4, 2.7])]);
    };

    /// x brought into 0..6. The gradient at the ends is 0.
    relu6: Relu6(x: Float) -> y;
    each = |c, _| Ok(vec![c.x(0).hard_tanh(0.0, 6.0)]);
    samples = |s| cases(s, Relu6 {}, &[0.0, 6.0]);

    /// ln sigmoid(x), without overflow.
    log_sigmoid: LogSigmoid(x: Float) -> y;
    each = |c, _| Ok(vec![-(-c.x(0)).softplus()]);
    vjp = |c, _| Ok([c.dy(0) * (-c.x(0)).sigmoid()].into());
    samples = |s| cases(s, LogSigmoid {}, &[]);
    tolerance = tol(1e-5, 4e-3, 3e-2);

    /// x − tanh(x).
    tanh_shrink: TanhShrink(x: Float) -> y;
    each = |c, _| Ok(vec![c.x(0) - c.x(0).tanh()]);
    vjp = |c, _| Ok([c.dy(0) * c.x(0).tanh().square()].into());
    samples = |s| cases(s, TanhShrink {}, &[]);
    tolerance = tol(2e-5, 8e-3, 6e-2);

    /// x moved toward 0 by lambda, and 0 where |x| <= lambda, whose gradient is 0.
    soft_shrink: SoftShrink(x: Float) { lambda: f64 = 0.5 } -> y;
    constraints = ["lambda >= 0"];
    each = |c, a| {
        let x = c.x(0);
        Ok(vec![x.abs().less_equal(a.lambda).select(x.scalar(0.0), x - x.sign() * a.lambda)])
    };
    infer = |c, a| shrink(c, a.lambda);
    vjp = |c, a| Ok(unless(c, c.x(0).abs().less_equal(a.lambda), 0.0));
    onnx = [rule("Shrink", 9, |c| {
        let x = c.x(0)?;
        let (lambda, bias) = (c.float_or("lambd", 0.5)?, c.float_or("bias", 0.0)?);
        // Integers are compared with a threshold that may be none.
        let wide = if x.dtype().is_float() { x } else { x.to(DType::F64) };
        let below = wide.less(-lambda).select(wide + bias, wide.scalar(0.0));
        Ok(vec![wide.greater(lambda).select(wide - bias, below).to(x.dtype())])
    })];
    samples = |s| {
        cases(s, SoftShrink { lambda: 0.5 }, &[-0.5, 0.5]);
        s.case("wide", SoftShrink { lambda: 1.0 }, [f([3]).values(&[-1.4, 0.4, 1.2])]);
    };

    /// x where |x| > lambda, else 0, whose gradient is 0.
    hard_shrink: HardShrink(x: Float) { lambda: f64 = 0.5 } -> y;
    constraints = ["lambda >= 0"];
    each = |c, a| Ok(vec![c.x(0).abs().less_equal(a.lambda).select(c.x(0).scalar(0.0), c.x(0))]);
    infer = |c, a| shrink(c, a.lambda);
    vjp = |c, a| Ok(unless(c, c.x(0).abs().less_equal(a.lambda), 0.0));
    samples = |s| {
        cases(s, HardShrink { lambda: 0.5 }, &[-0.5, 0.5]);
        s.case("wide", HardShrink { lambda: 1.0 }, [f([3]).values(&[-1.4, 0.4, 1.2])]);
    };

    /// x where x > alpha, else 0, whose gradient is 0.
    thresholded_relu: ThresholdedRelu(x: Float) { alpha: f64 = 1.0 } -> y;
    each = |c, a| Ok(vec![c.x(0).less_equal(a.alpha).select(c.x(0).scalar(0.0), c.x(0))]);
    vjp = |c, a| Ok(unless(c, c.x(0).less_equal(a.alpha), 0.0));
    onnx = [same("ThresholdedRelu")];
    samples = |s| {
        cases(s, ThresholdedRelu { alpha: 1.0 }, &[1.0]);
        s.case("low", ThresholdedRelu { alpha: -0.5 }, [f([3]).values(&[-0.8, -0.2, 1.2])]);
    };

    /// a · sigmoid(b), where a is the first half of x along an axis and b the second.
    glu: Glu(x: Float) { axis: i64 = -1 } -> y;
    constraints = ["the axis exists", "its size is even"];
    infer = |c, a| {
        let (x, axis) = (c.ty(0)?, c.axis(1, 0, a.axis)?);
        let n = c.dim(0, axis)?;
        let odd = || c.fail(Code::Dim, 2, format!("axis {axis} is {n}")).operand("x").axis(axis);
        let half = n.exact_div(&2.into()).ok_or_else(odd)?;
        let sized = |(i, d): (usize, &Dim)| if i == axis { half.clone() } else { d.clone() };
        Ok(vec![x.with_shape(x.shape.iter().enumerate().map(sized).collect::<Shape>())])
    };
    body = |c, a| {
        let x = c.x(0);
        let half = x.dim(a.axis).floor_div(2);
        let (value, gate) = (x.narrow(a.axis, 0, half.clone()), x.narrow(a.axis, half.clone(), half));
        Ok(vec![value * gate.sigmoid()])
    };
    vmap = |c, a| Ok(vec![c.x(0).glu(c.shift(0, a.axis)?)]);
    samples = |s| {
        s.case("last", Glu { axis: -1 }, [f([3, 4])]);
        s.case("first", Glu { axis: 0 }, [f([2, 3])]);
        s.case("empty", Glu { axis: 1 }, [f([2, 0])]);
    };

    /// silu(gate) · up, the middle of a gated feed-forward layer.
    swiglu: Swiglu(gate: Float, up: Float) -> y;
    each = |c, _| Ok(vec![c.x(0).silu() * c.x(1)]);
    onnx = [rule("SwiGLU", 28, |c| Ok(vec![match (c.xs()?, c.float_or("alpha", 1.0)?) {
        ([gate, up], 1.0) => gate.swiglu(up),
        ([gate, up], alpha) => swish(gate, alpha) * up,
    }]))];
    samples = |s| s.binary((-2.0, 2.0), (-1.5, 1.5));
    tolerance = tol(1e-5, 4e-3, 3e-2);

    /// gelu(gate) · up, the middle of a gated feed-forward layer.
    geglu: Geglu(gate: Float, up: Float) -> y;
    each = |c, _| Ok(vec![c.x(0).gelu() * c.x(1)]);
    samples = |s| s.binary((-2.0, 2.0), (-1.5, 1.5));
    tolerance = tol(2e-5, 4e-3, 3e-2);
}

/// The shape rule of shrinking.
fn shrink(c: &Infer<'_>, lambda: f64) -> Result<Vec<Type>> {
    match lambda >= 0.0 {
        true => c.elementwise(),
        false => Err(c.fail(Code::Attribute, 1, format!("lambda is {lambda}"))),
    }
}

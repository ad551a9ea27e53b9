//! Quantisation-aware training: round in the forward direction, pass the gradient straight through.

use super::quantize::{fit_scheme, scheme_rules, spread};
use crate::prelude::*;

ops! {
    /// x rounded to the nearest integer, ties to even, with the gradient of x itself (straight through).
    round_through: RoundThrough(x: Float) -> y;
    each = |c, _| Ok(vec![c.x(0).round()]);
    vjp = |c, _| Ok([c.dy(0)].into());
    samples = |s| {
        s.rough("values", RoundThrough {}, [f([6]).values(&[-1.5, -0.4, 0.5, 1.5, 2.5, 0.0])]);
        s.rough("empty", RoundThrough {}, [f([0, 2])]);
    };

    /// What is left of x after linear quantisation: `(clamp(round(x / scale) + zero_point, lo, hi) − zero_point) · scale`.
    ///
    /// Without `axis` scale and zero point have no axes, with it they have one entry per index of that axis. The
    /// gradient goes straight through the rounding and stops where the clamp bites, so scale and zero point can be
    /// learnt too.
    fake_quantize: FakeQuantize(x: Float, scale: Float, zero_point: opt Float)
        with { lo: i64 = -128, hi: i64 = 127, axis: Option<i64> = None } -> y;
    constraints = ["scale has no axes, or the length of the axis", "zero_point has the shape of scale", "lo < hi",
        "the axis exists"];
    infer = |c, a| {
        let want = match a.axis {
            None => Shape::new(),
            Some(axis) => vec![c.dim(0, c.axis(4, 0, axis)?)?.clone()],
        };
        c.expect_shape(1, 1, &want)?;
        if c.opt(2).is_some() {
            c.expect_shape(2, 2, &want)?;
        }
        if a.lo >= a.hi {
            return Err(c.fail(Code::Attribute, 3, format!("{} >= {}", a.lo, a.hi)));
        }
        Ok(vec![c.ty(0)?.clone()])
    };
    body = |c, a| {
        // Codes can be wider than a narrow float.
        let x = c.x(0).wide();
        let scale = spread(c.x(1).wide(), x, a.axis, 0)?;
        let zero = c.opt(2).map(|z| spread(z.wide(), x, a.axis, 0)).transpose()?;
        let q = (x / scale).round_through();
        let q = zero.map_or(q, |z| q + z);
        // The ends of the range are codes like any other, but `clamp` would stop the gradient there.
        let inside = q.greater_equal(a.lo as f64).and(q.less_equal(a.hi as f64));
        let q = inside.select(q, q.clamp(a.lo as f64, a.hi as f64));
        Ok(vec![(zero.map_or(q, |z| q - z) * scale).to(c.x(0).dtype())])
    };
    samples = |s| {
        let per = |axis| FakeQuantize { lo: -8, hi: 7, axis };
        s.rough("tensor", per(None), [f([3, 4]), f([]).values(&[0.11])]);
        s.rough("axis", per(Some(-1)), [f([3, 4]), f([4]).within(0.1, 0.3), f([4]).values(&[1.0, -2.0, 0.0, 3.0])]);
        s.rough("empty", per(None), [f([0, 4]), f([]).values(&[1.0])]);
    };

    /// What is left of x after packing by a scheme: `dequantize(quantize(x))`, with the gradient of x itself.
    fake_quantize_block: FakeQuantizeBlock(x: Float) { scheme: DType } -> y;
    constraints = scheme_rules!();
    infer = |c, a| {
        let x = c.ty(0)?;
        fit_scheme(c, 1, a.scheme, &x.shape)?;
        Ok(vec![x.clone()])
    };
    body = |c, a| Ok(vec![c.x(0).quantize(a.scheme).dequantize(c.x(0).dtype(), false)]);
    vjp = |c, _| Ok([c.dy(0)].into());
    samples = |s| {
        let scheme = |name| FakeQuantizeBlock { scheme: DType::parse(name).unwrap_or(DType::F32) };
        s.rough("int4", scheme("packed<int4:4>"), [f([6, 3])]);
        s.rough("fp8", scheme("packed<fp8_e4m3>"), [f([3, 2])]);
        s.rough("ggml", scheme("packed<q4_0>"), [f([2, 32])]);
        s.rough("empty", scheme("packed<int4:4>"), [f([0, 3])]);
    };
}

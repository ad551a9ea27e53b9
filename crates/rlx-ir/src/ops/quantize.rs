//! Numbers to codes and back: packed block schemes, and the linear quantisation of ONNX.

use crate::prelude::*;
use crate::quant::{Decode, QuantError, Scheme};
use crate::tensor::Tensor;

/// The scheme of a packed dtype whose blocks fit the shape; `n` and the number after it are the constraints that the
/// dtype and the shape can break.
pub(crate) fn fit_scheme(c: &Infer<'_>, n: usize, dtype: DType, shape: &[Dim]) -> Result<Scheme> {
    let DType::Packed(scheme) = dtype else {
        return Err(c.fail(Code::DType, n, format!("{dtype} is not packed")));
    };
    if Scheme::new(scheme.kind, scheme.block).is_none() {
        return Err(c.fail(Code::Quant, n, format!("{dtype} has a block size that its kind does not allow")));
    }
    let (rank, block) = (shape.len(), i64::from(scheme.block));
    match shape.last() {
        Some(k) if scheme.is_ggml() && (k.floor_div(block) * block).unify(k).is_none() => {
            let text = format!("the last axis is {k}, not a whole number of blocks of {block}");
            Err(c.fail(Code::Quant, n + 1, text).axis(rank - 1))
        }
        Some(_) if scheme.is_ggml() || rank >= 2 => Ok(scheme),
        _ => Err(c.fail(Code::Rank, n + 1, format!("{dtype} needs more than {rank} axes"))),
    }
}

/// The constraints that [`fit_scheme`] checks.
macro_rules! scheme_rules {
    ($($more:literal),*) => {
        ["the scheme is a packed dtype",
         "ggml kinds: the last axis is a whole number of blocks; the others: there are at least two axes" $(, $more)*]
    };
}
pub(crate) use scheme_rules;

pub(crate) fn quant_error(e: QuantError) -> Error {
    Error::new(Code::Quant, e.to_string())
}

/// Checks scale (operand 1) and zero point (operand 2) of linear quantisation against x, as constraints 1 to 3, and the axis
/// as constraint 5.
fn check_linear(c: &Infer<'_>, axis: Option<i64>, block: i64) -> Result<()> {
    let x = c.ty(0)?;
    if block < 0 || (block > 0 && axis.is_none()) {
        return Err(c.fail(Code::Attribute, 2, format!("block {block} with axis {axis:?}")));
    }
    let want = match axis {
        None => Shape::new(),
        Some(axis) => {
            let k = c.axis(5, 0, axis)?;
            let d = c.dim(0, k)?.clone();
            match block {
                0 => vec![d],
                _ => x
                    .shape
                    .iter()
                    .enumerate()
                    .map(|(i, e)| if i == k { d.ceil_div(block) } else { e.clone() })
                    .collect(),
            }
        }
    };
    c.expect_shape(1, 1, &want)?;
    if c.opt(2).is_some() {
        c.expect_shape(3, 2, &want)?;
    }
    Ok(())
}

/// A scale or zero point in a shape that broadcasts against x.
pub(crate) fn spread<'g>(s: Var<'g>, x: Var<'g>, axis: Option<i64>, block: i64) -> Result<Var<'g>> {
    let Some(axis) = axis else { return Ok(s) };
    let k = resolve_axis(axis, x.rank())?;
    let d = x.dim(k as i64);
    if block > 0 {
        let index = x.graph().iota(vec![d], 0, DType::I64);
        return Ok(s.gather(index / x.graph().constant(Tensor::scalar(block)), k as i64));
    }
    let shape: Shape = (0..x.rank()).map(|i| if i == k { d.clone() } else { Dim::constant(1) }).collect();
    Ok(s.reshape(shape))
}

/// `x / scale` as their dtype holds it: whether that lies halfway between two codes is up to its rounding.
fn quotient<'g>(x: Var<'g>, scale: Var<'g>) -> Var<'g> {
    (x / scale).cast(x.dtype())
}

ops! {
    /// x packed by a scheme: each block of elements becomes codes and a scale, rounded to nearest.
    ///
    /// Kinds that store `[k, n]` run their blocks down axis −2, one scale per block and column; the last block may be
    /// short. The ggml kinds store `[n, k]` and run theirs along the last axis. Leading axes are batches. Values are
    /// rounded to f32 first. What becomes of NaN and infinity is the scheme's own rule. The gradient is zero: see
    /// `fake_quantize_block` for training.
    quantize: Quantize(x: Float) { scheme: DType } -> w;
    constraints = scheme_rules!();
    infer = |c, a| {
        let x = c.ty(0)?;
        fit_scheme(c, 1, a.scheme, &x.shape)?;
        Ok(vec![x.with_dtype(a.scheme)])
    };
    step = |_, _| Ok(Step::Quantize);
    eval = |e, a| {
        let DType::Packed(scheme) = a.scheme else {
            return Err(Error::new(Code::Quant, "the scheme is not packed"));
        };
        let x = e.x(0)?;
        let values: Vec<f32> = x.f64s().into_iter().map(|v| v as f32).collect();
        let planes = scheme.encode(x.shape(), &values).map_err(quant_error)?;
        Ok(vec![Arr::packed(a.scheme, x.shape(), planes.into_iter().map(Into::into).collect())?])
    };
    vmap = |c, a| match a.scheme {
        // One scale for the whole tensor: the tensors of a batch would have to share it.
        DType::Packed(s) if s.kind == crate::quant::SchemeKind::NvFp4 => {
            Err(Error::new(Code::Vmap, "nvfp4 has one scale for the tensor: a batch cannot be packed as one"))
        }
        scheme => Ok(vec![c.x(0).quantize(scheme)]),
    };
    samples = |s| {
        let scheme = |name| Quantize { scheme: DType::parse(name).unwrap_or(DType::F32) };
        s.rough("int8", scheme("packed<int8:4>"), [f([6, 3])]);
        s.rough("int4_odd", scheme("packed<int4:2>"), [f([5, 3])]);
        s.rough("fp8", scheme("packed<fp8_e4m3>"), [f([3, 2])]);
        s.rough("batch", scheme("packed<mxfp4:4>"), [f([2, 5, 2])]);
        s.rough("ggml", scheme("packed<q8_0>"), [f([2, 64])]);
        s.rough("empty", scheme("packed<int8:4>"), [f([0, 3])]);
    };

    /// The numbers that a packed tensor stands for. With `finite`, an element or a block scale in fp8 (or a power
    /// of two) that is NaN or infinite counts as 0, as in a matmul; scales in f32 and f16 count as they are. Without it,
    /// codes are decoded as stored. Values are f32, then rounded to `dtype`.
    dequantize: Dequantize(w: Packed) { dtype: DType = DType::F32, finite: bool = false } -> y;
    constraints = scheme_rules!("dtype is a float");
    infer = |c, a| {
        let w = c.ty(0)?;
        fit_scheme(c, 1, w.dtype, &w.shape).map_err(|e| e.operand("w"))?;
        if !a.dtype.is_float() {
            return Err(c.fail(Code::DType, 3, format!("{} is no float", a.dtype)));
        }
        Ok(vec![w.with_dtype(a.dtype)])
    };
    step = |_, a| Ok(Step::Dequantize { finite: a.finite });
    eval = |e, a| {
        let w = e.x(0)?.decode(if a.finite { Decode::Finite } else { Decode::AsStored })?;
        Ok(vec![e.make(0, |ix| Num::F(a.dtype.round_f64(w.at(ix).f())))?])
    };
    vmap = |c, a| Ok(vec![c.x(0).dequantize(a.dtype, a.finite)]);
    samples = |s| {
        let as_f32 = || Dequantize { dtype: DType::F32, finite: false };
        for (name, scheme, finite) in [
            ("int8_asym", "int8_asym:4", false), ("int4", "int4:2", false), ("nvfp4", "nvfp4:4", true),
            ("fp8_e5m2", "fp8_e5m2", true), ("mxfp8", "mxfp8_e4m3:3", false),
        ] {
            let attrs = Dequantize { dtype: DType::F32, finite };
            s.rough(name, attrs, [packed(Scheme::parse(scheme), [5, 3])]);
        }
        s.rough("ggml", as_f32(), [packed(Scheme::parse("q4_0"), [2, 32])]);
        s.rough("half", Dequantize { dtype: DType::F16, finite: false }, [packed(Scheme::parse("int8:4"), [2, 5, 1])]);
        s.rough("empty", as_f32(), [packed(Scheme::parse("int8:4"), [4, 0])]);
    };

    /// `clamp(round(x / scale) + zero_point)` as an integer dtype: ties to even, clamped to the dtype's range, NaN becomes 0.
    /// In fp8 the quotient plus zero point is rounded to what fp8 has, clamped to its finite range; NaN stays.
    ///
    /// Without `axis` there is one scale; with it, one per index of that axis; with `block > 0` too, one per block of so
    /// many elements along the axis (the last may be short). The zero point has the shape of the scale; none is 0.
    /// The gradient is zero: see `fake_quantize` for training.
    quantize_linear: QuantizeLinear(x: Float, scale: Float, zero_point: opt Free)
        with { axis: Option<i64> = None, block: i64 = 0, dtype: DType = DType::I8 } -> y;
    constraints = ["scale has no axes, or the length of the axis, or x's shape with the axis in blocks",
        "block >= 0, and a block needs an axis", "zero_point has the shape of scale and the dtype of the result",
        "dtype is an integer or fp8", "the axis exists"];
    infer = |c, a| {
        check_linear(c, a.axis, a.block)?;
        if !a.dtype.is_int() && !matches!(a.dtype, DType::F8E4M3 | DType::F8E5M2) {
            return Err(c.fail(Code::DType, 4, format!("cannot quantise to {}", a.dtype)));
        }
        if let Some(z) = c.opt(2).filter(|z| z.dtype != a.dtype) {
            let text = format!("zero_point is {}, the result {}", z.dtype, a.dtype);
            return Err(c.fail(Code::DType, 3, text).operand("zero_point"));
        }
        Ok(vec![c.ty(0)?.with_dtype(a.dtype)])
    };
    body = |c, a| {
        let x = c.x(0);
        // Wide enough for the codes: a 32-bit code plus zero point is no f16.
        let wide = x.dtype().wide();
        let mut q = quotient(x.to(wide), spread(c.x(1).cast(wide), x, a.axis, a.block)?);
        if a.dtype.is_int() {
            q = q.round();
        }
        if let Some(z) = c.opt(2) {
            q = q + spread(z.cast(wide), x, a.axis, a.block)?;
        }
        // Casts to integers clamp by themselves; fp8 must not run into infinity or NaN.
        if let Some(max) = a.dtype.float_max() {
            q = q.clamp(-max, max);
        }
        Ok(vec![q.cast(a.dtype)])
    };
    vjp = |c, _| Ok(vec![None; c.operands.len()].into());
    onnx = [rule("QuantizeLinear", 10, onnx::quantize::quantize_linear)];
    samples = |s| {
        let per = |axis, block, dtype| QuantizeLinear { axis, block, dtype };
        s.rough("tensor", per(None, 0, DType::I8), [f([3, 4]), f([]).values(&[0.01])]);
        s.rough("axis", per(Some(1), 0, DType::U8), [f([3, 4]), f([4]).within(0.01, 0.02), int([4], 100, 150).dtype(DType::U8)]);
        s.rough("blocks", per(Some(-1), 3, DType::I16), [f([2, 7]), f([2, 3]).within(0.01, 0.02)]);
        s.rough("fp8", per(None, 0, DType::F8E4M3), [f([5]).values(&[0.3, -1e6, 1e6, 17.0, 0.0]), f([]).values(&[0.5])]);
        s.rough("clamped", per(None, 0, DType::I8), [f([4]).values(&[-3.0, 3.0, 0.5, 1.5]), f([]).values(&[0.01])]);
        s.rough("empty", per(None, 0, DType::I8), [f([0, 2]), f([]).values(&[1.0])]);
    };

    /// x as bytes, with a scale and a zero point that come from its own range, as ONNX has it: of the range that holds 0 and
    /// all of x, `scale = (hi − lo) / 255`, `zero = clamp(round(−lo / scale))`, `y = clamp(round(x / scale) + zero)`, ties to
    /// even, clamped to 0..=255.
    ///
    /// Where all of x is 0, or there is nothing, all three are 0. The gradient is zero.
    dynamic_quantize_linear: DynamicQuantizeLinear(x: Float) -> (y, scale, zero);
    infer = |c, _| {
        let one = |dtype| Type::new(dtype, Shape::new());
        Ok(vec![c.ty(0)?.with_dtype(DType::U8), one(DType::F32), one(DType::U8)])
    };
    body = |c, _| {
        let x = c.x(0).wide();
        let axes: Vec<i64> = (0..x.rank() as i64).collect();
        let (lo, hi) = (x.min(axes.clone(), false).minimum(0.0), x.max(axes, false).maximum(0.0));
        // Rounded to f32 even where sums are kept in more: what is divided by is what is given.
        let scale = ((hi - lo) / 255.0).cast(DType::F32);
        let step = scale.to(x.dtype());
        // A cast to integers clamps by itself, and makes 0 of the NaN that 0 / 0 is.
        let zero = (-lo / step).round().cast(DType::U8);
        let y = (quotient(x, step).round() + zero.cast(x.dtype())).cast(DType::U8);
        Ok(vec![y, scale, zero])
    };
    vjp = |c, _| Ok(vec![None; c.operands.len()].into());
    onnx = [same("DynamicQuantizeLinear")];
    samples = |s| {
        let plain = || DynamicQuantizeLinear {};
        s.rough("both_signs", plain(), [f([3, 7])]);
        s.rough("positive", plain(), [f([2, 3, 2]).within(0.5, 2.0)]);
        s.rough("negative", plain(), [f([5]).within(-3.0, -1.0)]);
        s.rough("nothing_but_zeros", plain(), [f([4]).values(&[0.0])]);
        s.rough("scalar", plain(), [f([]).values(&[0.75])]);
        s.rough("empty", plain(), [f([0, 3])]);
    };

    /// `(x − zero_point) · scale`, with scale and zero point per tensor, axis or block as in `quantize_linear`. The
    /// result has the dtype of scale.
    dequantize_linear: DequantizeLinear(x: Free, scale: Float, zero_point: opt Free)
        with { axis: Option<i64> = None, block: i64 = 0 } -> y;
    constraints = ["scale has no axes, or the length of the axis, or x's shape with the axis in blocks",
        "block >= 0, and a block needs an axis", "zero_point has the shape of scale and the dtype of x",
        "x is an integer or fp8", "the axis exists"];
    infer = |c, a| {
        check_linear(c, a.axis, a.block)?;
        let x = c.ty(0)?;
        if !x.dtype.is_int() && !matches!(x.dtype, DType::F8E4M3 | DType::F8E5M2) {
            return Err(c.fail(Code::DType, 4, format!("x is {}", x.dtype)).operand("x"));
        }
        if let Some(z) = c.opt(2).filter(|z| z.dtype != x.dtype) {
            return Err(c.fail(Code::DType, 3, format!("zero_point is {}, x {}", z.dtype, x.dtype)).operand("zero_point"));
        }
        Ok(vec![x.with_dtype(c.ty(1)?.dtype)])
    };
    body = |c, a| {
        let (x, scale) = (c.x(0), c.x(1));
        let wide = scale.dtype().wide();
        let mut q = x.cast(wide);
        if let Some(z) = c.opt(2) {
            q = q - spread(z.cast(wide), x, a.axis, a.block)?;
        }
        Ok(vec![(q * spread(scale.to(wide), x, a.axis, a.block)?).to(scale.dtype())])
    };
    onnx = [rule("DequantizeLinear", 10, onnx::quantize::dequantize_linear)];
    samples = |s| {
        let per = |axis, block| DequantizeLinear { axis, block };
        s.case("tensor", per(None, 0), [int([3, 4], -128, 128).dtype(DType::I8), f([])]);
        s.case("axis", per(Some(0), 0), [int([3, 4], 0, 256).dtype(DType::U8), f([3]), int([3], 100, 150).dtype(DType::U8)]);
        s.case("blocks", per(Some(1), 2), [int([2, 5], -99, 99), f([2, 3]), int([2, 3], -9, 9)]);
        s.rough("fp8", per(None, 0), [f([4]).dtype(DType::F8E5M2), f([])]);
        s.case("empty", per(None, 0), [int([0], 0, 1), f([])]);
    };
}

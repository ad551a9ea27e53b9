//! ONNX's quantisation.

use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::graph::Var;
use crate::onnx::{Call, narrow, window};
use crate::ops::quantize::{DequantizeLinear, QuantizeLinear};
use crate::types::Shape;

/// A value of one element without axes; others as they are.
fn alone(x: Var<'_>) -> Var<'_> {
    if x.rank() > 0 && x.ty().numel().is(1) { x.reshape(Shape::new()) } else { x }
}

/// How scales lie along x: the axis and the length of a block. A scale for all of x loses its axes.
struct Spread<'g> {
    scale: Var<'g>,
    zero_point: Option<Var<'g>>,
    axis: Option<i64>,
    block: i64,
}

impl<'g> Spread<'g> {
    fn of(c: &Call<'g, '_>) -> Result<Spread<'g>> {
        let (scale, zero_point) = (c.x(1)?, c.opt(2));
        let block = c.int_or("block_size", 0)?;
        if block == 0 && scale.ty().numel().is(1) {
            return Ok(Spread { scale: alone(scale), zero_point: zero_point.map(alone), axis: None, block });
        }
        // Before there was an axis there was one scale.
        Ok(Spread { scale, zero_point, axis: Some(c.int_or("axis", 1)?), block })
    }
}

pub(crate) fn quantize_linear<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let x = c.x(0)?;
    let s = Spread::of(c)?;
    let named = c.dtype("output_dtype")?;
    let dtype = s.zero_point.map(|z| z.dtype()).or(named).unwrap_or(DType::U8);
    if !c.flag("saturate", true)? && !dtype.is_int() {
        return Err(c.cannot("quantising to fp8 without saturation"));
    }
    // The quotient is taken in f32 at least, of operands that are rounded to a narrower precision if one is named.
    let wide = if [x.dtype(), s.scale.dtype()].contains(&DType::F64) { DType::F64 } else { DType::F32 };
    let precision = c.dtype("precision")?.filter(|d| d.is_float());
    let own = |v: Var<'g>| precision.map_or(v, |p| v.to(p)).to(wide);
    let (axis, block) = (s.axis, s.block);
    let y = own(x).quantize_linear(own(s.scale), s.zero_point, QuantizeLinear { axis, block, dtype });
    // Codes of fewer bits than a byte have a range of their own.
    let bits = c.narrow.get(2).copied().flatten().or(c.int("output_dtype")?.and_then(narrow));
    Ok(vec![match bits {
        Some((bits, true)) => y.clamp(-f64::from(1 << (bits - 1)), f64::from((1 << (bits - 1)) - 1)),
        Some((bits, false)) => y.clamp(0.0, f64::from((1 << bits) - 1)),
        None => y,
    }])
}

pub(crate) fn dequantize_linear<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let x = c.x(0)?;
    let Spread { scale, zero_point, axis, block } = Spread::of(c)?;
    let dtype = c.dtype("output_dtype")?.unwrap_or(scale.dtype());
    let y = x.dequantize_linear(scale.wide(), zero_point, DequantizeLinear { axis, block });
    Ok(vec![y.to(dtype)])
}

/// A zero point or scale for each row or column of a matrix, as one axis: it may be given as a matrix of one column or row.
fn per_line(x: Var<'_>) -> Var<'_> {
    let x = alone(x);
    if x.rank() > 1 { x.reshape(vec![x.ty().numel()]) } else { x }
}

pub(crate) fn matmul_integer<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let [a, b] = c.xs()?;
    Ok(vec![a.matmul_integer(b, c.opt(2).map(per_line), c.opt(3).map(per_line))])
}

/// Sums of products as bytes again: times one factor, to nearest with ties to even, and clamped. All of it in f32, as ONNX
/// Runtime has it.
fn requantized<'g>(
    c: &Call<'g, '_>,
    sums: Var<'g>,
    factor: Var<'g>,
    zero: Option<Var<'g>>,
) -> Result<Var<'g>> {
    let zero = zero.map(alone);
    if zero.is_some_and(|z| z.rank() > 0) {
        return Err(c.cannot("a result with several zero points"));
    }
    let dtype = zero.map_or(DType::U8, |z| z.dtype());
    let x = sums.to(DType::F32) * factor.to(DType::F32);
    Ok(x.quantize_linear(1.0, zero, QuantizeLinear { axis: None, block: 0, dtype }))
}

pub(crate) fn qlinear_matmul<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let [a, a_scale, a_zero, b, b_scale, b_zero, y_scale] = c.xs()?;
    let sums = a.matmul_integer(b, per_line(a_zero), per_line(b_zero));
    // A scale per row of A stands before the columns.
    let rows = per_line(a_scale);
    let rows = if rows.rank() > 0 { rows.unsqueeze(1) } else { rows };
    let factor = rows * per_line(b_scale) / alone(y_scale);
    Ok(vec![requantized(c, sums, factor, c.opt(7))?])
}

pub(crate) fn conv_integer<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    Ok(vec![window::conv_integer(c, c.xs()?, [c.opt(2).map(alone), c.opt(3).map(alone)])?])
}

pub(crate) fn qlinear_conv<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let [x, x_scale, x_zero, w, w_scale, w_zero, y_scale] = c.xs()?;
    let sums = window::conv_integer(c, [x, w], [Some(alone(x_zero)), Some(alone(w_zero))])?;
    // What there is one of per output channel stands on axis 1.
    let per_channel = |v: Var<'g>| {
        let v = alone(v);
        let ones = std::iter::repeat_n(Dim::constant(1), x.rank().saturating_sub(2));
        if v.rank() == 0 { v } else { v.reshape(v.shape().into_iter().chain(ones).collect::<Shape>()) }
    };
    let sums = c.opt(8).map_or(sums, |bias| sums + per_channel(bias));
    let factor = alone(x_scale) * per_channel(w_scale) / alone(y_scale);
    Ok(vec![requantized(c, sums, factor, c.opt(7))?])
}

/// Codes of `bits` bits that lie in bytes along the last axis, the lowest first, as bytes of their own.
fn unpacked<'g>(x: Var<'g>, bits: i64) -> Var<'g> {
    let (each, mask) = (8 / bits, ((1 << bits) - 1) as f64);
    let code = |i: i64| x.shr(x.scalar((i * bits) as f64)).and(x.scalar(mask));
    let codes: Vec<Var<'g>> = (0..each).map(code).collect();
    let mut shape = x.shape();
    shape.last_mut().into_iter().for_each(|d| *d = &*d * each);
    x.graph().stack(&codes, -1).reshape(shape)
}

/// A product with weights in blocks along K, each with a scale and perhaps a zero point. The weights are unpacked once, when
/// they are set.
pub(crate) fn matmul_nbits<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let [a, b, scales] = c.xs()?;
    let required = |name: &str| -> Result<i64> {
        let n = c.int(name)?.filter(|n| *n > 0);
        n.ok_or_else(|| Error::new(Code::Attribute, format!("attribute {name} must be positive")))
    };
    let (k, n, block, bits) = (required("K")?, required("N")?, required("block_size")?, c.int_or("bits", 4)?);
    if ![2, 4, 8].contains(&bits) {
        return Err(c.cannot(format!("weights of {bits} bits")));
    }
    if c.opt(4).is_some() {
        return Err(c.cannot("weights in an order of their own (g_idx)"));
    }
    let blocks = Dim::constant(k).ceil_div(block);
    let per_block = |v: Var<'g>| v.reshape(vec![n.into(), blocks.clone(), 1.into()]).wide();
    let zero = match c.opt(3) {
        None => scales.wide().scalar(f64::from(1 << (bits - 1))),
        Some(z) if z.dtype() == DType::U8 => {
            let rows = z.reshape(vec![n.into(), (&blocks * bits).ceil_div(8)]);
            per_block(unpacked(rows, bits).narrow(1, 0, blocks.clone()).to(scales.dtype()))
        }
        Some(z) => per_block(z),
    };
    let codes = unpacked(b, bits).reshape(vec![n.into(), blocks.clone(), block.into()]).to(zero.dtype());
    let w = ((codes - zero) * per_block(scales)).reshape(vec![n.into(), &blocks * block]).narrow(1, 0, k);
    Ok(vec![a.linear(w.to(a.dtype()), c.opt(5), true)])
}

//! ONNX's quantisation.

use crate::dtype::DType;
use crate::error::Result;
use crate::graph::Var;
use crate::onnx::{Call, narrow};
use crate::ops::quantize::{DequantizeLinear, QuantizeLinear};
use crate::types::Shape;

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
            let alone = |v: Var<'g>| if v.rank() == 0 { v } else { v.reshape(Shape::new()) };
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
    // The quotient is taken in f32 at least, but rounded to a narrower precision if one is named.
    let wide = if [x.dtype(), s.scale.dtype()].contains(&DType::F64) { DType::F64 } else { DType::F32 };
    let precision = c.dtype("precision")?.filter(|d| d.is_float());
    let own = |v: Var<'g>| precision.map_or(v, |p| v.to(p)).to(wide);
    let (axis, block) = (s.axis, s.block);
    let y = own(x).quantize_linear(own(s.scale), s.zero_point, QuantizeLinear { axis, block, dtype });
    // Codes of fewer bits than a byte have a range of their own.
    Ok(vec![match c.int("output_dtype")?.and_then(narrow) {
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

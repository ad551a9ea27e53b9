//! ONNX's Fourier transforms, windows and the matrix of mel filters.

use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::graph::Var;
use crate::onnx::Call;
use crate::tensor::Tensor;
use crate::types::resolve_axis;
use std::f64::consts::TAU;

/// Operand `i` as one size; `None` if it is not given.
fn size(c: &Call<'_, '_>, i: usize) -> Result<Option<Dim>> {
    if c.opt(i).is_none() {
        return Ok(None);
    }
    match c.dims(i)?.as_slice() {
        [d] => Ok(Some(d.clone())),
        other => Err(Error::new(Code::Rank, format!("operand {i} holds {} numbers, not one", other.len()))),
    }
}

/// Axis −2 of x cut or filled with zeros to a length.
fn of_length<'g>(x: Var<'g>, n: &Dim) -> Result<Var<'g>> {
    let own = x.dim(-2);
    let more = n - &own;
    match (more.lower(), more.upper()) {
        (Some(0), Some(0)) => Ok(x),
        (_, Some(hi)) if hi <= 0 => Ok(x.narrow(-2, 0, n.clone())),
        (Some(lo), _) if lo >= 0 => {
            let none = vec![Dim::constant(0); x.rank()];
            let mut hi = none.clone();
            hi.iter_mut().rev().skip(1).take(1).for_each(|d| *d = more.clone());
            Ok(x.pad(0.0, none, hi, vec![0; x.rank()]))
        }
        _ => Err(Error::new(Code::Unsupported, format!("a transform of length {n} of an axis of {own}"))),
    }
}

/// The transform along axis −2 of real numbers `[.., n, 1]` or pairs `[.., n, 2]`, of length `n`.
fn transform<'g>(x: Var<'g>, n: Option<Dim>, inverse: bool, onesided: bool) -> Result<Var<'g>> {
    let half = |n: &Dim| n.floor_div(2) + 1;
    let real = x.dim(-1).is(1);
    let pairs = |x: Var<'g>| if real { x.graph().concat(&[x, x.zeros_like()], -1) } else { x };
    match (inverse, onesided) {
        (true, true) => {
            let n = n.unwrap_or_else(|| (x.dim(-2) - 1) * 2);
            Ok(of_length(pairs(x), &half(&n))?.irfft(n).unsqueeze(-1))
        }
        (false, true) if real => {
            let x = of_length(x, &n.unwrap_or(x.dim(-2)))?;
            Ok(x.squeeze(-1).rfft(-1))
        }
        _ => {
            let n = n.unwrap_or(x.dim(-2));
            let y = of_length(pairs(x), &n)?.fft(inverse);
            Ok(if onesided { y.narrow(-2, 0, half(&n)) } else { y })
        }
    }
}

pub(crate) fn dft<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let x = c.x(0)?;
    let axis = match c.opset {
        20.. => c.int_at("axis", 2)?.unwrap_or(-2),
        _ => c.int_or("axis", 1)?,
    };
    let axis = resolve_axis(axis, x.rank())? as i64;
    // In f64, so that frequencies that are not there are nothing beside those that are.
    let turned = x.to(DType::F64).move_axis(axis, -2);
    let y = transform(turned, size(c, 1)?, c.flag("inverse", false)?, c.flag("onesided", false)?)?;
    Ok(vec![y.move_axis(-2, axis).to(x.dtype())])
}

pub(crate) fn stft<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let x = c.x(0)?;
    let step = match c.const_ints(1)?.as_slice() {
        [n] if *n > 0 => *n,
        other => return Err(Error::new(Code::Attribute, format!("frame_step is {other:?}"))),
    };
    let window = c.opt(2);
    let length = size(c, 3)?.or_else(|| window.map(|w| w.dim(0))).unwrap_or(x.dim(1));
    let frames = (x.dim(1) - &length).floor_div(step) + 1;
    // What a window leaves of a frame; the transform fills up the rest.
    let width = window.map_or(length.clone(), |w| w.dim(0));
    let index = |n: Dim| c.g.iota(vec![n], 0, DType::I64);
    let at = (index(frames) * step as f64).unsqueeze(1) + index(width);
    let mut framed = x.gather(at, 1);
    if let Some(w) = window {
        framed = framed * w.to(x.dtype()).unsqueeze(-1);
    }
    Ok(vec![transform(framed, Some(length), false, c.flag("onesided", true)?)?])
}

/// `Σ (−1)ᵏ · terms[k] · cos(2πk·i / n)` for `i` up to the size, where n is the size, or one less.
fn window<'g>(c: &Call<'g, '_>, terms: &[f64]) -> Result<Vec<Var<'g>>> {
    let n = size(c, 0)?.ok_or_else(|| Error::new(Code::Operands, "operand 0 is missing"))?;
    let dtype = c.dtype("output_datatype")?.unwrap_or(DType::F32);
    let period = if c.flag("periodic", true)? { n.clone() } else { &n - 1 };
    let angle = c.g.iota(vec![n], 0, DType::F64) * TAU / c.g.size_of(period, DType::F64);
    let term = |(k, a): (usize, &f64)| {
        let sign = if k % 2 == 0 { 1.0 } else { -1.0 };
        (angle * k as f64).cos() * (a * sign)
    };
    let sum = terms.iter().enumerate().map(term).reduce(|a, b| a + b);
    Ok(vec![sum.unwrap_or(angle).to(dtype)])
}

pub(crate) fn hann<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    window(c, &[0.5, 0.5])
}

pub(crate) fn hamming<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    window(c, &[25.0 / 46.0, 21.0 / 46.0])
}

pub(crate) fn blackman<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    window(c, &[0.42, 0.5, 0.08])
}

/// The mel scale: `2595 · log10(1 + f / 700)`.
fn mel(hertz: f64) -> f64 {
    2595.0 * (hertz / 700.0).ln_1p() / 10f64.ln()
}

fn hertz(mel: f64) -> f64 {
    700.0 * (mel / 2595.0 * 10f64.ln()).exp_m1()
}

pub(crate) fn mel_weight_matrix<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let one = |i: usize| -> Result<f64> {
        match c.const_floats(i)?.as_slice() {
            [x] if x.is_finite() => Ok(*x),
            other => Err(Error::new(Code::Rank, format!("operand {i} is {other:?}, not a number"))),
        }
    };
    let (bins, length, rate) = (one(0)?, one(1)?, one(2)?);
    let (low, high) = (mel(one(3)?), mel(one(4)?));
    let dtype = c.dtype("output_datatype")?.unwrap_or(DType::F32);
    let (filters, rows) = (bins as usize, (length / 2.0).floor() as usize + 1);
    // A file may ask for any number; this is more than any spectrum has.
    if bins < 0.0 || length < 0.0 || rate <= 0.0 || filters.saturating_mul(rows) > 1 << 28 {
        return Err(c.cannot(format!("{bins} filters over {length} samples at {rate} Hz")));
    }
    let edge = |i: usize| {
        let f = hertz(low + i as f64 * (high - low) / (bins + 2.0));
        ((length + 1.0) * f / rate).floor()
    };
    let mut weights = vec![0.0; filters * rows];
    for i in 0..filters {
        let [left, center, right] = [edge(i), edge(i + 1), edge(i + 2)];
        for (j, w) in weights.iter_mut().skip(i).step_by(filters).enumerate() {
            let j = j as f64;
            // Up from the left edge to 1 at the center, and down to the right edge.
            if j >= center && j < right {
                *w = (right - j) / (right - center);
            } else if j >= left && j <= center {
                *w = if left == center { 1.0 } else { (j - left) / (center - left) };
            }
        }
    }
    let t = Tensor::from_f64s(dtype, &[rows, filters], &weights);
    let t = t.ok_or_else(|| Error::new(Code::DType, format!("weights in {dtype}")))?;
    Ok(vec![c.g.constant(t)])
}

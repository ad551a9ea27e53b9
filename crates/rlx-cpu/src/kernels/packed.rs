//! To and from packed form.

use super::{Form, ready};
use crate::bind::Ready;
use rlx_ir::quant::{Decode, Scheme};
use rlx_ir::{Code, DType, Error, Result};
use rlx_simd::mem::ScratchSize;

/// The schemes and sizes of a packed argument's planes: offset and length in bytes.
fn planes(form: &Form) -> Result<(Scheme, Vec<(usize, usize)>)> {
    let DType::Packed(scheme) = form.dtype else {
        return Err(Error::new(Code::Quant, format!("{} is not packed", form.dtype)));
    };
    let planes = scheme.planes(&form.shape).map_err(|e| Error::new(Code::Quant, e.to_string()))?;
    let mut at = 0;
    let place = |p: &rlx_ir::quant::Plane| {
        let from = at;
        at += p.bytes.div_ceil(64) * 64;
        (from, p.bytes)
    };
    Ok((scheme, planes.iter().map(place).collect()))
}

pub(super) fn quantizing(x: Form, w: Form) -> Result<Ready> {
    let (scheme, places) = planes(&w)?;
    Ok(ready(ScratchSize::default(), x.len(), move |_, args| {
        let [from, to] = args else { return };
        // SAFETY: the binder checked the arguments; the planes lie one behind the other.
        unsafe {
            let x = std::slice::from_raw_parts(from.0.cast::<f32>(), x.len());
            let Ok(encoded) = scheme.encode(&w.shape, x) else { return };
            for ((at, len), plane) in places.iter().zip(encoded) {
                std::ptr::copy_nonoverlapping(plane.as_ptr(), to.0.add(*at), (*len).min(plane.len()));
            }
        }
    }))
}

pub(super) fn dequantizing(w: Form, y: Form, finite: bool) -> Result<Ready> {
    let (scheme, places) = planes(&w)?;
    let mode = if finite { Decode::Finite } else { Decode::AsStored };
    let dtype = y.dtype;
    Ok(ready(ScratchSize::default(), y.len(), move |_, args| {
        let [from, to] = args else { return };
        // SAFETY: the binder checked the arguments; the planes lie one behind the other.
        unsafe {
            let slices: Vec<&[u8]> =
                places.iter().map(|(at, len)| std::slice::from_raw_parts(from.0.add(*at), *len)).collect();
            let Ok(values) = scheme.decode(&w.shape, &slices, mode) else { return };
            let wide: Vec<f64> = values.iter().map(|v| f64::from(*v)).collect();
            let Some(t) = rlx_ir::Tensor::from_f64s(dtype, &w.shape, &wide) else { return };
            std::ptr::copy_nonoverlapping(t.bytes().as_ptr(), to.0, t.bytes().len());
        }
    }))
}

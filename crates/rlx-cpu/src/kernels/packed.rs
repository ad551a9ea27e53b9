//! To and from packed form, piece by piece: a piece comes out the same whichever thread does it.

use super::{Form, ready};
use crate::bind::Ready;
use rlx_ir::quant::{Codec, Decode};
use rlx_ir::{Code, DType, Error, Result};
use rlx_simd::mem::{Ptr, ScratchSize};
use std::ops::Range;

/// Planes that a scheme has at most: codes, scales, and zero points or a global scale.
const PLANES: usize = 3;

/// Planes that lie one behind the other.
#[derive(Clone, Copy, Default)]
struct Places {
    count: usize,
    /// Where each begins, and its bytes.
    at: [(usize, usize); PLANES],
}

impl Places {
    fn new(codec: &Codec) -> Result<Places> {
        let mut places = Places { count: codec.planes().len(), ..Places::default() };
        if places.count > PLANES {
            return Err(Error::new(Code::Quant, format!("{} planes are too many", places.count)));
        }
        let mut from = 0;
        for (at, p) in places.at.iter_mut().zip(codec.planes()) {
            *at = (from, p.bytes);
            from += p.bytes.div_ceil(64) * 64;
        }
        Ok(places)
    }

    /// The planes from a number on.
    ///
    /// # Safety
    /// The planes lie at that address, and nobody writes to these meanwhile.
    unsafe fn read<'a>(
        &self,
        base: Ptr<u8>,
        from: usize,
        all: &'a mut [&'static [u8]; PLANES],
    ) -> &'a [&'a [u8]] {
        let used = self.at.get(from..self.count).unwrap_or_default();
        for (plane, (at, len)) in all.iter_mut().zip(used) {
            // SAFETY: as promised by the caller, who also drops the slices with the call.
            *plane = unsafe { std::slice::from_raw_parts(base.0.add(*at), *len) };
        }
        all.get(..used.len()).unwrap_or_default()
    }

    /// Some bytes of a plane.
    ///
    /// # Safety
    /// The planes lie at that address, the range is within the plane, and nobody else touches these bytes meanwhile.
    unsafe fn write<'a>(&self, base: Ptr<u8>, plane: usize, range: Range<usize>) -> &'a mut [u8] {
        match self.at.get(plane) {
            Some((at, len)) if range.start < range.end && range.end <= *len => {
                // SAFETY: as promised by the caller.
                unsafe { std::slice::from_raw_parts_mut(base.0.add(at + range.start), range.len()) }
            }
            _ => &mut [],
        }
    }
}

/// The codec of a packed argument, and where its planes lie.
fn codec(form: &Form) -> Result<(Codec, Places)> {
    let DType::Packed(scheme) = form.dtype else {
        return Err(Error::new(Code::Quant, format!("{} is not packed", form.dtype)));
    };
    let codec = scheme.codec(&form.shape).map_err(|e| Error::new(Code::Quant, e.to_string()))?;
    let places = Places::new(&codec)?;
    Ok((codec, places))
}

/// Lengths that were checked when the kernel was bound do not fail in a run.
fn sure<E>(result: std::result::Result<(), E>) {
    debug_assert!(result.is_ok(), "a codec refuses a piece of its own");
}

pub(super) fn quantizing(x: Form, w: Form) -> Result<Ready> {
    let (codec, places) = codec(&w)?;
    let peaks = if codec.has_global() { codec.pieces() } else { 0 };
    let scratch = ScratchSize { each: 0, shared: peaks * size_of::<f32>() };
    let len = x.len();
    Ok(ready(scratch, len, move |cx, args| {
        let [from, to] = args else { return };
        // SAFETY: the binder checked the arguments, and what is packed overlaps nothing; the planes lie one behind the other.
        // Tasks write to pieces of their own, and read only planes that no task of the same round writes to.
        unsafe {
            let values = std::slice::from_raw_parts(from.0.cast::<f32>(), len);
            let piece = |i: usize| values.get(codec.piece(i)).unwrap_or_default();
            let mut global = 1.0;
            if codec.has_global() {
                let all = Ptr(cx.scratch.shared::<f32>(peaks));
                cx.pool.run(peaks, |i, _| *{ all }.0.add(i) = Codec::peak(piece(i)));
                let peak = std::slice::from_raw_parts(all.0, peaks).iter().fold(0f32, |a, b| a.max(*b));
                global = codec.global(peak);
                places.write(*to, places.count - 1, 0..4).copy_from_slice(&global.to_le_bytes());
            }
            cx.pool.run(codec.scale_pieces(), |i, _| {
                let [scale, zero] = codec.scale_bytes(i);
                let (scale, zero) = (places.write(*to, 1, scale), places.write(*to, 2, zero));
                sure(codec.encode_scales(i, values, global, scale, zero));
            });
            cx.pool.run(codec.pieces(), |i, _| {
                let mut sides: [&[u8]; PLANES] = [&[]; PLANES];
                let sides = places.read(*to, 1, &mut sides);
                let codes = places.write(*to, 0, codec.piece_bytes(i));
                sure(codec.encode_codes(i, piece(i), sides, codes));
            });
            // What lies between planes is read as bytes of the output.
            for (at, bytes) in places.at.iter().take(places.count) {
                std::ptr::write_bytes(to.0.add(at + bytes), 0, bytes.div_ceil(64) * 64 - bytes);
            }
        }
    }))
}

pub(super) fn dequantizing(w: Form, y: Form, finite: bool) -> Result<Ready> {
    let (codec, places) = codec(&w)?;
    let mode = if finite { Decode::Finite } else { Decode::AsStored };
    if y.dtype != DType::F32 {
        return Err(Error::new(Code::Device, format!("codecs give f32, not {}", y.dtype)));
    }
    Ok(ready(ScratchSize::default(), y.len(), move |cx, args| {
        let [from, to] = args else { return };
        cx.pool.run(codec.pieces(), |i, _| {
            let piece = codec.piece(i);
            // SAFETY: the binder checked the arguments; the planes lie one behind the other, and a task writes its own piece.
            unsafe {
                let mut planes: [&[u8]; PLANES] = [&[]; PLANES];
                let planes = places.read(*from, 0, &mut planes);
                let out = std::slice::from_raw_parts_mut(to.0.cast::<f32>().add(piece.start), piece.len());
                sure(codec.decode(i, planes, mode, out));
            }
        });
    }))
}

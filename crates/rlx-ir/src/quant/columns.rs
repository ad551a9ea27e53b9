//! Schemes with scales in planes of their own: `W` is `[.., k, n]`, blocks run down the columns.
//!
//! One formula decodes them all, `(code − zero) · scale · global`, where a part that a scheme does not store is
//! neutral. So a scheme is: how codes read and write, what the scales are, and how a block is fitted.

use super::{Decode, Plane, PlaneElem, QuantError, lowfloat, product, tame};

/// How codes are stored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CodeElem {
    I8,
    U8,
    /// Two a byte in flat element order, low nibble first; an odd total leaves the last high nibble 0.
    Nibble,
}

/// How the scale of a block is stored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ScaleElem {
    F32,
    E4M3,
    E8M0,
}

/// What the codes of a block are relative to.
#[derive(Clone, Copy)]
struct Fit {
    /// Already rounded to what its plane can hold.
    scale: f32,
    zero: f32,
}

/// Everything about one scheme.
pub(super) struct ColumnCodec {
    codes: CodeElem,
    scale: Option<ScaleElem>,
    has_zero: bool,
    has_global: bool,
    /// Largest magnitude that a code stands for.
    largest: f32,
    read: fn(u8) -> f32,
    /// The nearest code, saturating; nibbles in the low half.
    write: fn(f32) -> u8,
    /// Chooses scale and zero for a block of tame values, given the tensor's global scale.
    fit: fn(&ColumnCodec, &[f32], f32) -> Fit,
}

const PLAIN: ColumnCodec = ColumnCodec {
    codes: CodeElem::U8,
    scale: None,
    has_zero: false,
    has_global: false,
    largest: 448.0,
    read: lowfloat::f8e4m3_to_f32,
    write: |x| lowfloat::f8e4m3_from_f32(saturate(x, 448.0)),
    fit: |_, _, _| Fit { scale: 1.0, zero: 0.0 },
};

pub(super) const FP8_E4M3: ColumnCodec = PLAIN;

pub(super) const FP8_E5M2: ColumnCodec = ColumnCodec {
    largest: 57344.0,
    read: lowfloat::f8e5m2_to_f32,
    write: |x| lowfloat::f8e5m2_from_f32(saturate(x, 57344.0)),
    ..PLAIN
};

pub(super) const INT8: ColumnCodec = ColumnCodec {
    codes: CodeElem::I8,
    scale: Some(ScaleElem::F32),
    largest: 127.0,
    read: |code| f32::from(code as i8),
    write: |x| x.round_ties_even().clamp(-127.0, 127.0) as i8 as u8,
    fit: fit_symmetric,
    ..PLAIN
};

pub(super) const INT8_ASYM: ColumnCodec =
    ColumnCodec { has_zero: true, write: |x| x.round_ties_even() as i8 as u8, fit: fit_asymmetric, ..INT8 };

pub(super) const INT4: ColumnCodec = ColumnCodec {
    codes: CodeElem::Nibble,
    largest: 7.0,
    read: |code| f32::from(((code << 4) as i8) >> 4),
    write: |x| (x.round_ties_even().clamp(-7.0, 7.0) as i8 as u8) & 0x0F,
    ..INT8
};

pub(super) const NVFP4: ColumnCodec = ColumnCodec {
    codes: CodeElem::Nibble,
    scale: Some(ScaleElem::E4M3),
    has_global: true,
    largest: 6.0,
    read: lowfloat::e2m1_to_f32,
    write: lowfloat::e2m1_from_f32,
    fit: fit_e4m3,
    ..PLAIN
};

pub(super) const MXFP4: ColumnCodec =
    ColumnCodec { scale: Some(ScaleElem::E8M0), has_global: false, fit: fit_e8m0, ..NVFP4 };

pub(super) const MXFP8_E4M3: ColumnCodec =
    ColumnCodec { scale: Some(ScaleElem::E8M0), fit: fit_e8m0, ..FP8_E4M3 };

pub(super) const MXFP8_E5M2: ColumnCodec =
    ColumnCodec { scale: Some(ScaleElem::E8M0), fit: fit_e8m0, ..FP8_E5M2 };

/// The extents of a batch of matrices cut into blocks.
pub(super) struct Geometry {
    batch: usize,
    k: usize,
    n: usize,
    block: usize,
    blocks: usize,
}

impl Geometry {
    /// A shape of one axis is a single column.
    pub(super) fn new(shape: &[usize], block: u32) -> Result<Self, QuantError> {
        let (leading, k, n) = match shape {
            [] => (&[][..], 1, 1),
            [k] => (&[][..], *k, 1),
            [leading @ .., k, n] => (leading, *k, *n),
        };
        let block = (block as usize).max(1);
        Ok(Self { batch: product(leading)?, k, n, block, blocks: k.div_ceil(block) })
    }

    /// Where the scales of a row of weights begin; rows are counted through the whole batch.
    fn group(&self, row: usize) -> usize {
        (row / self.k * self.blocks + row % self.k / self.block) * self.n
    }
}

impl ColumnCodec {
    pub(super) fn planes(&self, shape: &[usize], geometry: &Geometry) -> Result<Vec<Plane>, QuantError> {
        let mut groups = shape.to_vec();
        let k_axis = shape.len().saturating_sub(2);
        if let Some(axis) = groups.get_mut(k_axis) {
            *axis = geometry.blocks;
        }
        let mut planes = vec![match self.codes {
            CodeElem::I8 => Plane::new("codes", PlaneElem::I8, shape.to_vec())?,
            CodeElem::U8 => Plane::new("codes", PlaneElem::U8, shape.to_vec())?,
            CodeElem::Nibble => Plane::new("codes", PlaneElem::U8, vec![product(shape)?.div_ceil(2)])?,
        }];
        match self.scale {
            Some(ScaleElem::F32) => planes.push(Plane::new("scale", PlaneElem::F32, groups.clone())?),
            Some(_) => planes.push(Plane::new("scale", PlaneElem::U8, groups.clone())?),
            None => {}
        }
        if self.has_zero {
            planes.push(Plane::new("zero", PlaneElem::F32, groups)?);
        }
        if self.has_global {
            planes.push(Plane::new("global", PlaneElem::F32, vec![1])?);
        }
        Ok(planes)
    }

    /// Planes and output have the lengths of the geometry: the caller has checked.
    pub(super) fn decode(&self, geometry: &Geometry, planes: &[&[u8]], mode: Decode, out: &mut [f32]) {
        if out.is_empty() {
            return;
        }
        let keep = |x: f32| if mode == Decode::Finite && !x.is_finite() { 0.0 } else { x };
        let mut planes = planes.iter().copied();
        let codes = planes.next().unwrap_or_default();
        let scale: Option<Vec<f32>> = self.scale.map(|elem| {
            let bytes = planes.next().unwrap_or_default();
            match elem {
                ScaleElem::F32 => floats(bytes).collect(),
                ScaleElem::E4M3 => bytes.iter().map(|&b| keep(lowfloat::f8e4m3_to_f32(b))).collect(),
                ScaleElem::E8M0 => bytes.iter().map(|&b| keep(lowfloat::e8m0_to_f32(b))).collect(),
            }
        });
        let zero: Option<Vec<f32>> =
            self.has_zero.then(|| floats(planes.next().unwrap_or_default()).collect());
        let global = if self.has_global { planes.next().and_then(|b| floats(b).next()) } else { None };
        let global = global.unwrap_or(1.0);

        let value: [f32; 256] = std::array::from_fn(|code| keep((self.read)(code as u8)));
        match self.codes {
            CodeElem::I8 | CodeElem::U8 => {
                for (y, &code) in out.iter_mut().zip(codes) {
                    *y = value[usize::from(code)];
                }
            }
            CodeElem::Nibble => {
                for (pair, &byte) in out.chunks_mut(2).zip(codes) {
                    for (y, code) in pair.iter_mut().zip([byte & 0x0F, byte >> 4]) {
                        *y = value[usize::from(code)];
                    }
                }
            }
        }
        let Some(scale) = scale else { return };
        for (row, out) in out.chunks_exact_mut(geometry.n).enumerate() {
            let group = geometry.group(row);
            if let Some(zero) = &zero {
                for (y, zero) in out.iter_mut().zip(&zero[group..]) {
                    *y -= zero;
                }
            }
            for (y, scale) in out.iter_mut().zip(&scale[group..]) {
                *y = *y * scale * global;
            }
        }
    }

    /// Values and zeroed planes have the lengths of the geometry: the caller has made them so.
    pub(super) fn encode(&self, geometry: &Geometry, values: &[f32], planes: &mut [Vec<u8>]) {
        let Some((codes, sides)) = planes.split_first_mut() else { return };
        let global = if self.has_global { fit_global(values) } else { 1.0 };
        if self.has_global
            && let Some(side) = sides.last_mut()
        {
            side.copy_from_slice(&global.to_le_bytes());
        }
        if values.is_empty() {
            return; // an axis may still be huge when another is 0
        }
        let mut put = |i: usize, code: u8| match self.codes {
            CodeElem::I8 | CodeElem::U8 => codes[i] = code,
            CodeElem::Nibble => codes[i / 2] |= code << (4 * (i % 2)),
        };
        let Some(elem) = self.scale else {
            for (i, &x) in values.iter().enumerate() {
                put(i, (self.write)(x));
            }
            return;
        };
        let mut column = Vec::with_capacity(geometry.block.min(geometry.k));
        for matrix in 0..geometry.batch {
            for first in (0..geometry.k).step_by(geometry.block) {
                let rows = first..geometry.k.min(first.saturating_add(geometry.block));
                for col in 0..geometry.n {
                    let at = |row: usize| (matrix * geometry.k + row) * geometry.n + col;
                    column.clear();
                    column.extend(rows.clone().map(|row| tame(values[at(row)])));
                    let fit = (self.fit)(self, &column, global);
                    for (row, &x) in rows.clone().zip(&column) {
                        put(at(row), self.code(x, fit, global));
                    }
                    let group = geometry.group(matrix * geometry.k + first) + col;
                    let stored: [&[u8]; 2] = match elem {
                        ScaleElem::F32 => [&fit.scale.to_le_bytes(), &fit.zero.to_le_bytes()],
                        ScaleElem::E4M3 => [&[lowfloat::f8e4m3_from_f32(fit.scale)], &[]],
                        ScaleElem::E8M0 => [&[lowfloat::e8m0_from_f32(fit.scale)], &[]],
                    };
                    let sides_of_block = 1 + usize::from(self.has_zero);
                    for (side, bytes) in sides.iter_mut().zip(stored).take(sides_of_block) {
                        side[group * bytes.len()..][..bytes.len()].copy_from_slice(bytes);
                    }
                }
            }
        }
    }

    fn code(&self, x: f32, fit: Fit, global: f32) -> u8 {
        let unit = fit.scale * global;
        let steps = if unit == 0.0 { 0.0 } else { x / unit };
        (self.write)(steps + fit.zero)
    }

    fn squared_error(&self, block: &[f32], fit: Fit) -> f64 {
        let error = |&x: &f32| {
            let back = ((self.read)(self.code(x, fit, 1.0)) - fit.zero) * fit.scale;
            (f64::from(x) - f64::from(back)).powi(2)
        };
        block.iter().map(error).sum()
    }
}

/// `f32`s of a little-endian buffer.
fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b))
}

/// Holds a finite number to the range; infinity and NaN pass.
fn saturate(x: f32, largest: f32) -> f32 {
    if x.is_finite() { x.clamp(-largest, largest) } else { x }
}

fn peak(block: &[f32]) -> f32 {
    block.iter().fold(0.0, |peak, x| x.abs().max(peak))
}

/// The largest magnitude maps to the largest code.
fn fit_symmetric(codec: &ColumnCodec, block: &[f32], _: f32) -> Fit {
    Fit { scale: peak(block) / codec.largest, zero: 0.0 }
}

/// The range, widened to hold 0, maps to −128 … 127; the zero point is whole, so that 0 comes back as 0.
fn fit_asymmetric(_: &ColumnCodec, block: &[f32], _: f32) -> Fit {
    let (low, high) = block.iter().fold((0.0f32, 0.0f32), |(low, high), &x| (low.min(x), high.max(x)));
    let scale = ((f64::from(high) - f64::from(low)) / 255.0) as f32;
    let zero = if scale == 0.0 { 0.0 } else { (-128.0 - low / scale).round_ties_even() };
    Fit { scale, zero: zero.clamp(-128.0, 127.0) }
}

/// Chosen so that the block with the largest magnitude gets the largest E4M3 scale.
fn fit_global(values: &[f32]) -> f32 {
    let peak = values.iter().fold(0.0f32, |peak, &x| tame(x).abs().max(peak));
    let global = peak / (6.0 * 448.0);
    if global == 0.0 { 1.0 } else { global }
}

fn fit_e4m3(codec: &ColumnCodec, block: &[f32], global: f32) -> Fit {
    let scale = peak(block) / codec.largest / global;
    let code = lowfloat::f8e4m3_from_f32(saturate(scale, 448.0));
    Fit { scale: lowfloat::f8e4m3_to_f32(code), zero: 0.0 }
}

/// The power of two that lines up the top exponents, or the next one where clipping would cost more than the finer
/// steps gain.
fn fit_e8m0(codec: &ColumnCodec, block: &[f32], _: f32) -> Fit {
    let peak = peak(block);
    if peak == 0.0 {
        return Fit { scale: 1.0, zero: 0.0 };
    }
    let top = |x: f32| lowfloat::exponent(f64::from(x));
    let code = (top(peak) - top(codec.largest) + 127).clamp(0, 253);
    let fit = |code: i32| Fit { scale: lowfloat::e8m0_to_f32(code as u8), zero: 0.0 };
    let (fine, coarse) = (fit(code), fit(code + 1));
    if codec.squared_error(block, fine) <= codec.squared_error(block, coarse) { fine } else { coarse }
}

//! Schemes with scales in planes of their own: `W` is `[.., k, n]`, blocks run down the columns.
//!
//! One formula decodes them all, `(code − zero) · scale · global`, where a part that a scheme does not store is
//! neutral. So a scheme is: how codes read and write, what the scales are, and how a block is fitted.

use super::{Decode, Plane, PlaneElem, QuantError, lowfloat, product, tame};
use std::ops::Range;

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
    fit: fn(&ColumnCodec, &Column<'_>, f32) -> Fit,
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

    /// Elements of a block, but for those at the end of an axis.
    pub(super) fn block(&self) -> usize {
        self.block
    }

    /// The group of an element, and how many of the `most` elements from it on belong to this and the next groups in turn.
    fn run(&self, at: usize, most: usize) -> (usize, usize) {
        // Rows are counted through the whole batch.
        let (row, col) = (at / self.n, at % self.n);
        let group = (row / self.k * self.blocks + row % self.k / self.block) * self.n;
        (group + col, most.min(self.n - col))
    }

    /// The values of a group.
    fn column<'a>(&self, values: &'a [f32], group: usize) -> Column<'a> {
        let (down, col) = (group / self.n, group % self.n);
        let first = down % self.blocks * self.block;
        let at = (down / self.blocks * self.k + first) * self.n + col;
        Column { values: &values[at..], step: self.n, len: self.block.min(self.k - first) }
    }
}

/// The values of a group, which lie a row apart.
struct Column<'a> {
    values: &'a [f32],
    step: usize,
    len: usize,
}

impl Column<'_> {
    /// The values, tame.
    fn iter(&self) -> impl Iterator<Item = f32> {
        self.values.iter().step_by(self.step).take(self.len).map(|x| tame(*x))
    }
}

/// What codes are relative to, as it is stored.
struct Sides<'a> {
    elem: ScaleElem,
    scale: &'a [u8],
    /// What bytes of scales stand for, where a scale is a byte.
    value: [f32; 256],
    zero: Option<&'a [u8]>,
    global: f32,
}

impl<'a> Sides<'a> {
    /// From the planes behind the codes; `None` for schemes without scales.
    fn new(codec: &ColumnCodec, planes: &[&'a [u8]], keep: impl Fn(f32) -> f32) -> Option<Sides<'a>> {
        let elem = codec.scale?;
        let value = match elem {
            ScaleElem::F32 => [0.0; 256],
            ScaleElem::E4M3 => std::array::from_fn(|b| keep(lowfloat::f8e4m3_to_f32(b as u8))),
            ScaleElem::E8M0 => std::array::from_fn(|b| keep(lowfloat::e8m0_to_f32(b as u8))),
        };
        let mut planes = planes.iter().copied();
        let scale = planes.next().unwrap_or_default();
        let zero = if codec.has_zero { planes.next() } else { None };
        let global = if codec.has_global { planes.next().and_then(|b| floats(b).next()) } else { None };
        Some(Sides { elem, scale, value, zero, global: global.unwrap_or(1.0) })
    }

    fn fit(&self, group: usize) -> Fit {
        let float = |bytes: &[u8]| floats(&bytes[4 * group..]).next().unwrap_or(0.0);
        let scale = match self.elem {
            ScaleElem::F32 => float(self.scale),
            _ => self.value[usize::from(self.scale[group])],
        };
        Fit { scale, zero: self.zero.map_or(0.0, float) }
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

    pub(super) fn has_nibbles(&self) -> bool {
        self.codes == CodeElem::Nibble
    }

    pub(super) fn has_global(&self) -> bool {
        self.has_global
    }

    /// The groups that have a scale; no axis is 0.
    pub(super) fn groups(&self, geometry: &Geometry) -> usize {
        if self.scale.is_some() { geometry.batch * geometry.blocks * geometry.n } else { 0 }
    }

    /// Decodes elements from number `first` on, an even one. The caller has checked that they are there and that planes have
    /// the lengths of the geometry.
    pub(super) fn decode(
        &self,
        geometry: &Geometry,
        planes: &[&[u8]],
        mode: Decode,
        first: usize,
        out: &mut [f32],
    ) {
        let keep = |x: f32| if mode == Decode::Finite && !x.is_finite() { 0.0 } else { x };
        let Some((codes, sides)) = planes.split_first() else { return };
        let value: [f32; 256] = std::array::from_fn(|code| keep((self.read)(code as u8)));
        if self.has_nibbles() {
            for (pair, &byte) in out.chunks_mut(2).zip(&codes[first / 2..]) {
                for (y, code) in pair.iter_mut().zip([byte & 0x0F, byte >> 4]) {
                    *y = value[usize::from(code)];
                }
            }
        } else {
            for (y, &code) in out.iter_mut().zip(&codes[first..]) {
                *y = value[usize::from(code)];
            }
        }
        let Some(sides) = Sides::new(self, sides, keep) else { return };
        let (mut at, mut rest) = (first, out);
        while !rest.is_empty() {
            let (group, len) = geometry.run(at, rest.len());
            let (own, behind) = rest.split_at_mut(len);
            if let Some(zero) = sides.zero {
                for (y, zero) in own.iter_mut().zip(floats(&zero[4 * group..])) {
                    *y -= zero;
                }
            }
            match sides.elem {
                ScaleElem::F32 => {
                    for (y, scale) in own.iter_mut().zip(floats(&sides.scale[4 * group..])) {
                        *y = *y * scale * sides.global;
                    }
                }
                _ => {
                    for (y, scale) in own.iter_mut().zip(&sides.scale[group..]) {
                        *y = *y * sides.value[usize::from(*scale)] * sides.global;
                    }
                }
            }
            (at, rest) = (at + len, behind);
        }
    }

    /// Chooses scale and zero point of some groups and writes their bytes, of which there are as many as the groups need: the
    /// caller has checked, and that the values are those of the geometry.
    pub(super) fn encode_scales(
        &self,
        geometry: &Geometry,
        values: &[f32],
        global: f32,
        groups: Range<usize>,
        scale: &mut [u8],
        zero: &mut [u8],
    ) {
        let Some(elem) = self.scale else { return };
        for (i, group) in groups.enumerate() {
            let fit = (self.fit)(self, &geometry.column(values, group), global);
            match elem {
                ScaleElem::F32 => scale[4 * i..][..4].copy_from_slice(&fit.scale.to_le_bytes()),
                ScaleElem::E4M3 => scale[i] = lowfloat::f8e4m3_from_f32(fit.scale),
                ScaleElem::E8M0 => scale[i] = lowfloat::e8m0_from_f32(fit.scale),
            }
            if self.has_zero {
                zero[4 * i..][..4].copy_from_slice(&fit.zero.to_le_bytes());
            }
        }
    }

    /// Packs elements from number `first` on, an even one, into their own bytes. The caller has checked all lengths.
    pub(super) fn encode_codes(
        &self,
        geometry: &Geometry,
        values: &[f32],
        sides: &[&[u8]],
        first: usize,
        codes: &mut [u8],
    ) {
        let nibbles = self.has_nibbles();
        let mut put = |i: usize, code: u8| match (nibbles, i % 2) {
            (false, _) => codes[i] = code,
            (true, 0) => codes[i / 2] = code,
            (true, _) => codes[i / 2] |= code << 4,
        };
        let Some(sides) = Sides::new(self, sides, |x| x) else {
            values.iter().enumerate().for_each(|(i, x)| put(i, (self.write)(*x)));
            return;
        };
        let mut at = 0;
        while at < values.len() {
            let (group, len) = geometry.run(first + at, values.len() - at);
            for (k, x) in values[at..at + len].iter().enumerate() {
                put(at + k, self.code(tame(*x), sides.fit(group + k), sides.global));
            }
            at += len;
        }
    }

    fn code(&self, x: f32, fit: Fit, global: f32) -> u8 {
        let unit = fit.scale * global;
        let steps = if unit == 0.0 { 0.0 } else { x / unit };
        (self.write)(steps + fit.zero)
    }

    fn squared_error(&self, block: &Column<'_>, fit: Fit) -> f64 {
        let error = |x: f32| {
            let back = ((self.read)(self.code(x, fit, 1.0)) - fit.zero) * fit.scale;
            (f64::from(x) - f64::from(back)).powi(2)
        };
        block.iter().map(error).sum()
    }
}

/// `f32`s of a little-endian buffer.
pub(super) fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b))
}

/// Holds a finite number to the range; infinity and NaN pass.
fn saturate(x: f32, largest: f32) -> f32 {
    if x.is_finite() { x.clamp(-largest, largest) } else { x }
}

fn peak(block: &Column<'_>) -> f32 {
    block.iter().fold(0.0, |peak, x| x.abs().max(peak))
}

/// The largest magnitude maps to the largest code.
fn fit_symmetric(codec: &ColumnCodec, block: &Column<'_>, _: f32) -> Fit {
    Fit { scale: peak(block) / codec.largest, zero: 0.0 }
}

/// The range, widened to hold 0, maps to −128 … 127; the zero point is whole, so that 0 comes back as 0.
fn fit_asymmetric(_: &ColumnCodec, block: &Column<'_>, _: f32) -> Fit {
    let (low, high) = block.iter().fold((0.0f32, 0.0f32), |(low, high), x| (low.min(x), high.max(x)));
    let scale = ((f64::from(high) - f64::from(low)) / 255.0) as f32;
    let zero = if scale == 0.0 { 0.0 } else { (-128.0 - low / scale).round_ties_even() };
    Fit { scale, zero: zero.clamp(-128.0, 127.0) }
}

/// The largest magnitude of values once they are tame.
pub(super) fn tamed_peak(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |peak, x| tame(*x).abs().max(peak))
}

/// Chosen so that the block with the largest magnitude gets the largest E4M3 scale.
pub(super) fn part_of_global(peak: f32) -> f32 {
    let global = peak / (6.0 * 448.0);
    if global == 0.0 { 1.0 } else { global }
}

fn fit_e4m3(codec: &ColumnCodec, block: &Column<'_>, global: f32) -> Fit {
    let scale = peak(block) / codec.largest / global;
    let code = lowfloat::f8e4m3_from_f32(saturate(scale, 448.0));
    Fit { scale: lowfloat::f8e4m3_to_f32(code), zero: 0.0 }
}

/// The power of two that lines up the top exponents, or the next one where clipping would cost more than the finer
/// steps gain.
fn fit_e8m0(codec: &ColumnCodec, block: &Column<'_>, _: f32) -> Fit {
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

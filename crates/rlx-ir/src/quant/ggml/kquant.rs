//! Super-blocks of 256 in groups of 16 or 32, whose scales are themselves quantised: Q2_K … Q6_K, and Q8_K.

use super::bits::Codes;
use super::search::{Levels, best_affine, best_scale, signed_peak};
use super::{BlockCodec, Scale, get_f16, put_finite_f16};
use crate::quant::tame;

/// Elements of a super-block.
pub(super) const SUPER: usize = 256;

/// 16 bytes of 4-bit scales and minima, 64 of 2-bit codes, half scale, half minimum.
pub(in crate::quant) const Q2K: BlockCodec = BlockCodec {
    bytes: 84,
    scales: &[Scale::Half(80), Scale::Half(82)],
    decode: |block, values| Q2K_FORMAT.decode(block, values),
    encode: |values, block| Q2K_FORMAT.encode(values, block),
};

/// 32 bytes of third bits, 64 of low bits, 12 of 6-bit scales, half scale.
pub(in crate::quant) const Q3K: BlockCodec = BlockCodec {
    bytes: 110,
    scales: &[Scale::Half(108)],
    decode: |block, values| Q3K_FORMAT.decode(block, values),
    encode: |values, block| Q3K_FORMAT.encode(values, block),
};

/// Half scale, half minimum, 12 bytes of 6-bit scales and minima, 128 of nibbles.
pub(in crate::quant) const Q4K: BlockCodec = BlockCodec {
    bytes: 144,
    scales: &[Scale::Half(0), Scale::Half(2)],
    decode: |block, values| Q4K_FORMAT.decode(block, values),
    encode: |values, block| Q4K_FORMAT.encode(values, block),
};

/// Half scale, half minimum, 12 bytes of 6-bit scales and minima, 32 of fifth bits, 128 of nibbles.
pub(in crate::quant) const Q5K: BlockCodec = BlockCodec {
    bytes: 176,
    scales: &[Scale::Half(0), Scale::Half(2)],
    decode: |block, values| Q5K_FORMAT.decode(block, values),
    encode: |values, block| Q5K_FORMAT.encode(values, block),
};

/// 128 bytes of low nibbles, 64 of high bits, 16 signed scales, half scale.
pub(in crate::quant) const Q6K: BlockCodec = BlockCodec {
    bytes: 210,
    scales: &[Scale::Half(208)],
    decode: |block, values| Q6K_FORMAT.decode(block, values),
    encode: |values, block| Q6K_FORMAT.encode(values, block),
};

/// `f32` scale, 256 signed bytes, 16 `i16` sums of 16 codes each.
pub(in crate::quant) const Q8K: BlockCodec = BlockCodec {
    bytes: 4 + SUPER + 32,
    scales: &[Scale::Single(0)],
    decode: |block, values| {
        let scale = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
        for (y, code) in values.iter_mut().zip(&block[4..]) {
            *y = scale * f32::from(*code as i8);
        }
    },
    encode: |values, block| {
        let scale = tame(signed_peak(values)).abs() / 127.0;
        let (head, sums) = block.split_at_mut(4 + SUPER);
        head[..4].copy_from_slice(&scale.to_le_bytes());
        for (x, code) in values.iter().zip(&mut head[4..]) {
            let steps = if scale == 0.0 { 0.0 } else { tame(*x) / scale };
            *code = steps.round_ties_even() as i8 as u8;
        }
        for (sum, codes) in sums.chunks_exact_mut(2).zip(head[4..].chunks_exact(16)) {
            let total: i16 = codes.iter().map(|&code| i16::from(code as i8)).sum();
            sum.copy_from_slice(&total.to_le_bytes());
        }
    },
};

/// A format whose groups have a scale and a minimum: `scale · q − minimum`.
struct Affine {
    codes: Codes,
    top: u8,
    group: usize,
    /// The halves that the quantised scales and minima are multiples of.
    scale_at: usize,
    minimum_at: usize,
    top_scale: u8,
    /// Scales, then minima from index 16.
    unpack_scales: fn(&[u8]) -> [u8; 32],
    pack_scales: fn(&[u8; 32], &mut [u8]),
}

const Q2K_SCALES: Codes = Codes::one(0, 4, 16);

const Q2K_FORMAT: Affine = Affine {
    codes: Codes::one(16, 2, 32),
    top: 3,
    group: 16,
    scale_at: 80,
    minimum_at: 82,
    top_scale: 15,
    unpack_scales: |block| Q2K_SCALES.unpack(block),
    pack_scales: |scales, block| Q2K_SCALES.pack(scales, block),
};

const Q4K_FORMAT: Affine = Affine {
    codes: Codes::one(16, 4, 32),
    top: 15,
    group: 32,
    scale_at: 0,
    minimum_at: 2,
    top_scale: 63,
    unpack_scales: |block| unpack_six_bit_pairs(&block[4..16]),
    pack_scales: |scales, block| pack_six_bit_pairs(scales, &mut block[4..16]),
};

const Q5K_FORMAT: Affine =
    Affine { codes: Codes::one(48, 4, 32).with_high(16, 1, 32), top: 31, ..Q4K_FORMAT };

/// Eight scales and eight minima of 6 bits in 12 bytes. The first four of each are whole in bytes 0–3 and 4–7; the
/// other four have their low nibbles in bytes 8–11 and their top two bits above the whole ones.
fn unpack_six_bit_pairs(bytes: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    for i in 0..4 {
        out[i] = bytes[i] & 0x3F;
        out[16 + i] = bytes[4 + i] & 0x3F;
        out[4 + i] = (bytes[8 + i] & 0x0F) | (bytes[i] >> 6 << 4);
        out[20 + i] = (bytes[8 + i] >> 4) | (bytes[4 + i] >> 6 << 4);
    }
    out
}

fn pack_six_bit_pairs(scales: &[u8; 32], bytes: &mut [u8]) {
    for i in 0..4 {
        bytes[i] = scales[i] | (scales[4 + i] >> 4 << 6);
        bytes[4 + i] = scales[16 + i] | (scales[20 + i] >> 4 << 6);
        bytes[8 + i] = (scales[4 + i] & 0x0F) | (scales[20 + i] << 4);
    }
}

impl Affine {
    fn decode(&self, block: &[u8], values: &mut [f32]) {
        let (scale, minimum) = (get_f16(block, self.scale_at), get_f16(block, self.minimum_at));
        let scales = (self.unpack_scales)(block);
        let codes = self.codes.unpack::<SUPER>(block);
        let groups = values.chunks_exact_mut(self.group).zip(codes.chunks_exact(self.group));
        for (g, (values, codes)) in groups.enumerate() {
            let scale = scale * f32::from(scales[g]);
            let minimum = minimum * f32::from(scales[16 + g]);
            for (y, code) in values.iter_mut().zip(codes) {
                *y = scale * f32::from(*code) - minimum;
            }
        }
    }

    fn encode(&self, values: &[f32], block: &mut [u8]) {
        let values: [f32; SUPER] = std::array::from_fn(|i| tame(values[i]));
        let mut fits = [(0.0, 0.0); SUPER / 16];
        for (fit, values) in fits.iter_mut().zip(values.chunks_exact(self.group)) {
            *fit = best_affine(values, self.top);
        }
        let (top_scale, top_minimum) =
            fits.iter().fold((0.0f32, 0.0f32), |(s, m), f| (s.max(f.0), m.max(f.1)));
        let top = f32::from(self.top_scale);
        let scale = put_finite_f16(block, self.scale_at, top_scale / top);
        let minimum = put_finite_f16(block, self.minimum_at, top_minimum / top);
        let multiple = |x: f32, unit: f32| (steps(x, unit).round().min(top)) as u8;
        let mut scales = [0; 32];
        let mut codes = [0; SUPER];
        let groups = values.chunks_exact(self.group).zip(codes.chunks_exact_mut(self.group));
        for (g, (values, codes)) in groups.enumerate() {
            scales[g] = multiple(fits[g].0, scale);
            scales[16 + g] = multiple(fits[g].1, minimum);
            let scale = scale * f32::from(scales[g]);
            let minimum = minimum * f32::from(scales[16 + g]);
            for (x, code) in values.iter().zip(codes) {
                *code = ((steps(x + minimum, scale) + 0.5) as u8).min(self.top);
            }
        }
        (self.pack_scales)(&scales, block);
        self.codes.pack(&codes, block);
    }
}

/// A format whose groups have a signed scale: `scale · level`.
pub(super) struct Signed {
    pub(super) codes: Codes,
    pub(super) levels: Levels,
    pub(super) group: usize,
    /// The half that the quantised scales are multiples of.
    pub(super) scale_at: usize,
    pub(super) scales: Codes,
    /// The scale code that stands for 0; all scale codes reach from it by `lowest_scale` down and one less up.
    pub(super) zero_scale: u8,
    pub(super) lowest_scale: f32,
}

const Q3K_FORMAT: Signed = Signed {
    codes: Codes::one(32, 2, 32).with_high(0, 1, 32),
    levels: Levels {
        ends: [-4.0, 3.0],
        step: 1.0,
        value: |code| f32::from(code) - 4.0,
        nearest: |x| ((x + 4.5) as u8).min(7),
    },
    group: 16,
    scale_at: 108,
    scales: Codes::one(96, 4, 8).with_high(104, 2, 4),
    zero_scale: 32,
    lowest_scale: -32.0,
};

const Q6K_FORMAT: Signed = Signed {
    codes: Codes::one(0, 4, 64).with_high(128, 2, 32),
    levels: Levels {
        ends: [-32.0, 31.0],
        step: 1.0,
        value: |code| f32::from(code) - 32.0,
        nearest: |x| ((x + 32.5) as u8).min(63),
    },
    group: 16,
    scale_at: 208,
    scales: Codes::one(192, 8, 1),
    zero_scale: 0,
    lowest_scale: -128.0,
};

impl Signed {
    fn group_scale(&self, unit: f32, code: u8) -> f32 {
        unit * f32::from(code.wrapping_sub(self.zero_scale) as i8)
    }

    pub(super) fn decode(&self, block: &[u8], values: &mut [f32]) {
        let unit = get_f16(block, self.scale_at);
        let scales = self.scales.unpack::<{ SUPER / 16 }>(block);
        let codes = self.codes.unpack::<SUPER>(block);
        let groups = values.chunks_exact_mut(self.group).zip(codes.chunks_exact(self.group));
        for ((values, codes), scale) in groups.zip(scales) {
            let scale = self.group_scale(unit, scale);
            for (y, code) in values.iter_mut().zip(codes) {
                *y = scale * (self.levels.value)(*code);
            }
        }
    }

    pub(super) fn encode(&self, values: &[f32], block: &mut [u8]) {
        let values: [f32; SUPER] = std::array::from_fn(|i| tame(values[i]));
        let mut fits = [0.0; SUPER / 16];
        for (fit, values) in fits.iter_mut().zip(values.chunks_exact(self.group)) {
            *fit = best_scale(values, &self.levels);
        }
        let unit = put_finite_f16(block, self.scale_at, signed_peak(&fits) / self.lowest_scale);
        let mut scales = [self.zero_scale; SUPER / 16];
        let mut codes = [0; SUPER];
        let groups = values.chunks_exact(self.group).zip(codes.chunks_exact_mut(self.group));
        for (g, (values, codes)) in groups.enumerate() {
            let multiple = steps(fits[g], unit).round().clamp(self.lowest_scale, -1.0 - self.lowest_scale);
            scales[g] = (multiple as i8 as u8).wrapping_add(self.zero_scale);
            let scale = self.group_scale(unit, scales[g]);
            for (x, code) in values.iter().zip(codes) {
                *code = (self.levels.nearest)(steps(*x, scale));
            }
        }
        // A format of fewer groups keeps nothing after its own scales.
        self.scales.pack(&scales[..SUPER / self.group], block);
        self.codes.pack(&codes, block);
    }
}

/// x / unit, and 0 where the unit vanished.
pub(super) fn steps(x: f32, unit: f32) -> f32 {
    if unit == 0.0 { 0.0 } else { x / unit }
}

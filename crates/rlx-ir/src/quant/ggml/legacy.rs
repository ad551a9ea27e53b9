//! Blocks of 32 with one scale: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 and MXFP4.
//!
//! The encoders follow the Python package `gguf` operation by operation in `f32`, since files are compared by bytes.
//! Where that package leaves the result to the C compiler (a block that holds NaN or infinity, or nothing above
//! 2^-125), codes saturate instead.

use super::bits::Codes;
use super::{BlockCodec, Scale, get_f16, put_f16};

const BLOCK: usize = 32;

/// E2M1 values doubled into whole numbers; ggml has no negative zero here.
const TWICE_E2M1: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];

const Q4_0_CODES: Codes = Codes::one(2, 4, 16);
const Q4_1_CODES: Codes = Codes::one(4, 4, 16);
const Q5_0_CODES: Codes = Codes::one(6, 4, 16).with_high(2, 1, 1);
const Q5_1_CODES: Codes = Codes::one(8, 4, 16).with_high(4, 1, 1);
const MXFP4_CODES: Codes = Codes::one(1, 4, 16);

/// Half scale, 16 bytes of nibbles.
pub(in crate::quant) const Q4_0: BlockCodec = BlockCodec {
    bytes: 18,
    scales: &[Scale::Half(0)],
    decode: |block, values| decode_centred(&Q4_0_CODES, 8, block, values),
    encode: |values, block| encode_centred(&Q4_0_CODES, 8, values, block),
};

/// Half scale, half minimum, 16 bytes of nibbles.
pub(in crate::quant) const Q4_1: BlockCodec = BlockCodec {
    bytes: 20,
    scales: &[Scale::Half(0), Scale::Half(2)],
    decode: |block, values| decode_from_minimum(&Q4_1_CODES, block, values),
    encode: |values, block| encode_from_minimum(&Q4_1_CODES, 15, values, block),
};

/// Half scale, 4 bytes of fifth bits, 16 bytes of nibbles.
pub(in crate::quant) const Q5_0: BlockCodec = BlockCodec {
    bytes: 22,
    scales: &[Scale::Half(0)],
    decode: |block, values| decode_centred(&Q5_0_CODES, 16, block, values),
    encode: |values, block| encode_centred(&Q5_0_CODES, 16, values, block),
};

/// Half scale, half minimum, 4 bytes of fifth bits, 16 bytes of nibbles.
pub(in crate::quant) const Q5_1: BlockCodec = BlockCodec {
    bytes: 24,
    scales: &[Scale::Half(0), Scale::Half(2)],
    decode: |block, values| decode_from_minimum(&Q5_1_CODES, block, values),
    encode: |values, block| encode_from_minimum(&Q5_1_CODES, 31, values, block),
};

/// Half scale, 32 signed bytes.
pub(in crate::quant) const Q8_0: BlockCodec = BlockCodec {
    bytes: 34,
    scales: &[Scale::Half(0)],
    decode: |block, values| {
        let scale = get_f16(block, 0);
        for (y, code) in values.iter_mut().zip(&block[2..]) {
            *y = scale * f32::from(*code as i8);
        }
    },
    encode: |values, block| {
        let scale = values.iter().fold(0.0f32, |peak, x| x.abs().max(peak)) / 127.0;
        put_f16(block, 0, scale);
        for (x, code) in values.iter().zip(&mut block[2..]) {
            *code = (x * reciprocal(scale)).round() as i8 as u8;
        }
    },
};

/// E8M0 scale, 16 bytes of E2M1 nibbles.
pub(in crate::quant) const MXFP4: BlockCodec = BlockCodec {
    bytes: 17,
    // Every code of E8M0 is a number here.
    scales: &[],
    decode: |block, values| {
        let scale = half_e8m0(block[0]);
        for (y, code) in values.iter_mut().zip(MXFP4_CODES.unpack::<BLOCK>(block)) {
            *y = scale * TWICE_E2M1[usize::from(code)];
        }
    },
    encode: |values, block| {
        let peak = values.iter().fold(0.0f32, |peak, x| x.abs().max(peak));
        // The logarithm is rounded to f32 before the floor: just below a power of two it reaches the power.
        let top = (f64::from(peak).log2() as f32).floor();
        block[0] = if peak > 0.0 { (top - 2.0 + 127.0) as u8 } else { 0 };
        let scale = half_e8m0(block[0]);
        let levels = TWICE_E2M1.map(|level| scale * level);
        let codes: [u8; BLOCK] = std::array::from_fn(|i| {
            let mut best = (0, (levels[0] - values[i]).abs());
            for (code, level) in (0..16).zip(levels) {
                let error = (level - values[i]).abs();
                if error < best.1 {
                    best = (code, error);
                }
            }
            best.0
        });
        MXFP4_CODES.pack(&codes, block);
    },
};

fn decode_centred(codes: &Codes, centre: i8, block: &[u8], values: &mut [f32]) {
    let scale = get_f16(block, 0);
    for (y, code) in values.iter_mut().zip(codes.unpack::<BLOCK>(block)) {
        *y = scale * f32::from(code as i8 - centre);
    }
}

/// The value of largest magnitude gets code 0, which has a place more than the other end.
fn encode_centred(codes: &Codes, centre: i8, values: &[f32], block: &mut [u8]) {
    let peak = values.iter().fold(0.0f32, |peak, &x| if x.abs() > peak.abs() { x } else { peak });
    let centre = f32::from(centre);
    let scale = peak / -centre;
    put_f16(block, 0, scale);
    let top = 2.0 * centre - 1.0;
    let packed: [u8; BLOCK] =
        std::array::from_fn(|i| (values[i] * reciprocal(scale) + (centre + 0.5)).min(top) as u8);
    codes.pack(&packed, block);
}

fn decode_from_minimum(codes: &Codes, block: &[u8], values: &mut [f32]) {
    let (scale, minimum) = (get_f16(block, 0), get_f16(block, 2));
    for (y, code) in values.iter_mut().zip(codes.unpack::<BLOCK>(block)) {
        *y = scale * f32::from(code) + minimum;
    }
}

fn encode_from_minimum(codes: &Codes, top: u8, values: &[f32], block: &mut [u8]) {
    let maximum = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let minimum = values.iter().copied().fold(f32::INFINITY, f32::min);
    let scale = (maximum - minimum) / f32::from(top);
    put_f16(block, 0, scale);
    put_f16(block, 2, minimum);
    let packed: [u8; BLOCK] =
        std::array::from_fn(|i| (((values[i] - minimum) * reciprocal(scale) + 0.5) as u8).min(top));
    codes.pack(&packed, block);
}

/// 1 / x, and 0 for 0.
fn reciprocal(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

/// Half of the E8M0 value; ggml reads 255 as a number too.
fn half_e8m0(code: u8) -> f32 {
    match code {
        0 | 1 => f32::from_bits(0x0020_0000 << code),
        _ => f32::from_bits(u32::from(code - 1) << 23),
    }
}

//! Four-bit indices into uneven levels: IQ4_NL with one scale for 32, IQ4_XS in super-blocks.

use super::bits::Codes;
use super::kquant::{SUPER, Signed, steps};
use super::search::{Levels, best_scale};
use super::{BlockCodec, Scale, get_f16, put_finite_f16};
use crate::quant::tame;

/// The levels that the formats define, denser around 0.
const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

const IQ4_LEVELS: Levels = Levels {
    ends: [-127.0, 113.0],
    step: 16.0,
    value: |code| f32::from(LEVELS[usize::from(code & 0x0F)]),
    nearest: |x| {
        let below = |pair: &[i8; 2]| f32::from(pair[0]) + f32::from(pair[1]) < 2.0 * x;
        LEVELS.array_windows().map(|pair| u8::from(below(pair))).sum()
    },
};

const IQ4_NL_CODES: Codes = Codes::one(2, 4, 16);

/// Half scale, 16 bytes of nibbles.
pub(in crate::quant) const IQ4_NL: BlockCodec = BlockCodec {
    bytes: 18,
    scales: &[Scale::Half(0)],
    decode: |block, values| {
        let scale = get_f16(block, 0);
        for (y, code) in values.iter_mut().zip(IQ4_NL_CODES.unpack::<32>(block)) {
            *y = scale * (IQ4_LEVELS.value)(code);
        }
    },
    encode: |values, block| {
        let values: [f32; 32] = std::array::from_fn(|i| tame(values[i]));
        let scale = put_finite_f16(block, 0, best_scale(&values, &IQ4_LEVELS));
        IQ4_NL_CODES.pack(&values.map(|x| (IQ4_LEVELS.nearest)(steps(x, scale))), block);
    },
};

const IQ4_XS_FORMAT: Signed = Signed {
    codes: Codes::one(8, 4, 16),
    levels: IQ4_LEVELS,
    group: 32,
    scale_at: 0,
    scales: Codes::one(4, 4, 1).with_high(2, 2, 1),
    zero_scale: 32,
    lowest_scale: -32.0,
};

/// Half scale, 2 bytes of high and 4 of low bits of the 6-bit scales, 128 bytes of nibbles.
pub(in crate::quant) const IQ4_XS: BlockCodec = BlockCodec {
    bytes: 2 + 2 + 4 + SUPER / 2,
    scales: &[Scale::Half(0)],
    decode: |block, values| IQ4_XS_FORMAT.decode(block, values),
    encode: |values, block| IQ4_XS_FORMAT.encode(values, block),
};

//! The block formats of GGUF files: rows of blocks, each with its scales inside.
//!
//! Read `bits` for how codes are packed, then `legacy` (one scale a block), `kquant` (scales of scales) and `iq4`
//! (uneven levels). `search` finds good scales for the formats whose writers may choose.

use half::{bf16, f16};

mod bits;
pub(super) mod iq4;
pub(super) mod kquant;
pub(super) mod legacy;
mod search;

/// A format of fixed-size blocks. Both functions get slices of exactly one block, bytes to write are zero.
pub(super) struct BlockCodec {
    /// Bytes of a block.
    pub(super) bytes: usize,
    pub(super) decode: fn(&[u8], &mut [f32]),
    pub(super) encode: fn(&[f32], &mut [u8]),
}

pub(super) const F16: BlockCodec = BlockCodec {
    bytes: 2,
    decode: |block, values| values.fill(get_f16(block, 0)),
    encode: |values, block| {
        for x in values {
            put_f16(block, 0, *x);
        }
    },
};

pub(super) const BF16: BlockCodec = BlockCodec {
    bytes: 2,
    decode: |block, values| values.fill(bf16::from_le_bytes([block[0], block[1]]).to_f32()),
    encode: |values, block| {
        for x in values {
            block.copy_from_slice(&bf16::from_f32(*x).to_le_bytes());
        }
    },
};

fn get_f16(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Rounds to nearest even; beyond the range infinity.
fn put_f16(block: &mut [u8], at: usize, x: f32) {
    block[at..at + 2].copy_from_slice(&f16::from_f32(x).to_le_bytes());
}

/// Stores the nearest finite half and returns what a reader will see.
fn put_finite_f16(block: &mut [u8], at: usize, x: f32) -> f32 {
    put_f16(block, at, x.clamp(f16::MIN.to_f32(), f16::MAX.to_f32()));
    get_f16(block, at)
}

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

/// A format of fixed-size blocks. Both functions get slices of one whole block, bytes to write are zero; where a block
/// is one element, they get any number of them.
pub(super) struct BlockCodec {
    /// Bytes of a block.
    pub(super) bytes: usize,
    /// The scales and minima that numbers are multiples of, and where in a block they are.
    pub(super) scales: &'static [Scale],
    pub(super) decode: fn(&[u8], &mut [f32]),
    pub(super) encode: fn(&[f32], &mut [u8]),
}

/// A scale, by the byte at which it begins.
#[derive(Clone, Copy)]
pub(super) enum Scale {
    Half(usize),
    Single(usize),
}

pub(super) const F16: BlockCodec = BlockCodec {
    bytes: 2,
    scales: &[],
    decode: |bytes, values| {
        for (y, b) in values.iter_mut().zip(bytes.as_chunks().0) {
            *y = f16::from_le_bytes(*b).to_f32();
        }
    },
    encode: |values, bytes| {
        for (x, b) in values.iter().zip(bytes.as_chunks_mut().0) {
            *b = f16::from_f32(*x).to_le_bytes();
        }
    },
};

pub(super) const BF16: BlockCodec = BlockCodec {
    bytes: 2,
    scales: &[],
    decode: |bytes, values| {
        for (y, b) in values.iter_mut().zip(bytes.as_chunks().0) {
            *y = bf16::from_le_bytes(*b).to_f32();
        }
    },
    encode: |values, bytes| {
        for (x, b) in values.iter().zip(bytes.as_chunks_mut().0) {
            *b = bf16::from_f32(*x).to_le_bytes();
        }
    },
};

impl BlockCodec {
    /// How many blocks of `block` elements one call is given.
    fn blocks_a_call(block: usize) -> usize {
        if block == 1 { 4096 } else { 1 }
    }

    /// The first block with a scale that is NaN or infinite.
    pub(super) fn not_finite(&self, blocks: &[u8]) -> Option<usize> {
        let infinite = |block: &[u8], scale: &Scale| match *scale {
            // All bits of the exponent are set; they are in the last two bytes.
            Scale::Half(at) => block[at + 1] & 0x7c == 0x7c,
            Scale::Single(at) => block[at + 3] & 0x7f == 0x7f && block[at + 2] & 0x80 == 0x80,
        };
        if self.scales.is_empty() {
            return None;
        }
        blocks.chunks_exact(self.bytes).position(|block| self.scales.iter().any(|s| infinite(block, s)))
    }

    /// Decodes whole rows; the caller has checked that the lengths agree.
    pub(super) fn decode_all(&self, block: usize, bytes: &[u8], values: &mut [f32]) {
        let run = Self::blocks_a_call(block);
        for (values, bytes) in values.chunks_mut(block * run).zip(bytes.chunks(self.bytes * run)) {
            (self.decode)(bytes, values);
        }
    }

    /// Encodes whole rows into zeroed bytes; the caller has made the lengths agree.
    pub(super) fn encode_all(&self, block: usize, values: &[f32], bytes: &mut [u8]) {
        let run = Self::blocks_a_call(block);
        for (values, bytes) in values.chunks(block * run).zip(bytes.chunks_mut(self.bytes * run)) {
            (self.encode)(values, bytes);
        }
    }
}

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

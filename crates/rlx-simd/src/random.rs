//! Random bits by Philox4x32-10: counters in, words out, in any order.

use crate::copy::{at, pieces};
use crate::each_level;
use crate::level::Level;
use crate::mem::Ptr;
use crate::pool::Pool;

/// Counters that are worked on side by side: one vector of u32 of the widest level.
const LANES: usize = 16;
/// Words that a task makes; a multiple of `4 · LANES`.
const TASK_WORDS: usize = 16 << 10;

/// Writes `n` random words for each of `owners` keys: word `i` of an owner is word `i mod 4` of the Philox4x32-10 block with
/// the counter `i / 4` (two words), `stream` (two words), and the owner's two words of `seed` as the key.
///
/// # Safety
/// `seed` has `2 · owners` readable words, and `out` has `owners · n` writable ones that do not overlap them.
pub unsafe fn random_bits(
    level: Level,
    seed: *const u32,
    owners: usize,
    n: usize,
    stream: i64,
    out: *mut u32,
    pool: &Pool,
) {
    let (seed, out) = (Ptr(seed.cast_mut()), Ptr(out));
    let parts = n.div_ceil(TASK_WORDS);
    pieces(pool, owners * parts, 1, |range, _| {
        let (owner, first) = (range.start / parts, range.start % parts * TASK_WORDS);
        // SAFETY: the two words of one of the `owners`.
        let key = unsafe { [at(seed, owner * 2).read_unaligned(), at(seed, owner * 2 + 1).read_unaligned()] };
        let len = TASK_WORDS.min(n - first);
        let to = at(out, owner * n + first);
        let (block, stream) = (first as u64 / 4, stream as u64);
        each_level!(level, _FMA, words => (to: *mut u32, len: usize, block: u64, stream: u64, key: [u32; 2]));
    });
}

/// # Safety
/// `out` has `len` writable words.
#[inline(always)]
unsafe fn words(out: *mut u32, len: usize, block: u64, stream: u64, key: [u32; 2]) {
    for i in (0..len).step_by(4 * LANES) {
        let all = blocks(block + i as u64 / 4, stream, key);
        // SAFETY: the words from `i` on, at most `len`.
        unsafe {
            if i + 4 * LANES <= len {
                out.add(i).cast::<[u32; 4 * LANES]>().write_unaligned(all);
            } else {
                out.add(i).copy_from_nonoverlapping(all.as_ptr(), len - i);
            }
        }
    }
}

/// The words of [`LANES`] blocks that follow one another.
#[inline(always)]
fn blocks(first: u64, stream: u64, key: [u32; 2]) -> [u32; 4 * LANES] {
    let ([mut a, mut b, mut c, mut d], [mut k, mut l]) = ([[0u32; LANES]; 4], key);
    for (i, (a, b)) in a.iter_mut().zip(&mut b).enumerate() {
        let counter = first.wrapping_add(i as u64);
        (*a, *b) = (counter as u32, (counter >> 32) as u32);
    }
    (c, d) = (c.map(|_| stream as u32), d.map(|_| (stream >> 32) as u32));
    for _ in 0..10 {
        for (((a, b), c), d) in a.iter_mut().zip(&mut b).zip(&mut c).zip(&mut d) {
            let (x, y) = (u64::from(*a) * 0xD251_1F53, u64::from(*c) * 0xCD9E_8D57);
            (*a, *b, *c, *d) = ((y >> 32) as u32 ^ *b ^ k, y as u32, (x >> 32) as u32 ^ *d ^ l, x as u32);
        }
        (k, l) = (k.wrapping_add(0x9E37_79B9), l.wrapping_add(0xBB67_AE85));
    }
    let mut out = [0; 4 * LANES];
    for ((((out, a), b), c), d) in out.as_chunks_mut::<4>().0.iter_mut().zip(a).zip(b).zip(c).zip(d) {
        *out = [a, b, c, d];
    }
    out
}

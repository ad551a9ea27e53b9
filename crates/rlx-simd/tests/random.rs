//! Random bits against one block of Philox at a time, and against the published vectors.

#![allow(clippy::indexing_slicing, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]

use rlx_simd::level::Level;
use rlx_simd::pool::Pool;
use rlx_simd::random::random_bits;

fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let ([mut a, mut b, mut c, mut d], [mut k, mut l]) = (counter, key);
    for _ in 0..10 {
        let (x, y) = (u64::from(a) * 0xD251_1F53, u64::from(c) * 0xCD9E_8D57);
        (a, b, c, d) = ((y >> 32) as u32 ^ b ^ k, y as u32, (x >> 32) as u32 ^ d ^ l, x as u32);
        (k, l) = (k.wrapping_add(0x9E37_79B9), l.wrapping_add(0xBB67_AE85));
    }
    [a, b, c, d]
}

fn bits(level: Level, seed: &[u32], n: usize, stream: i64, pool: &Pool) -> Vec<u32> {
    let mut out = vec![0; seed.len() / 2 * n];
    unsafe { random_bits(level, seed.as_ptr(), seed.len() / 2, n, stream, out.as_mut_ptr(), pool) };
    out
}

#[test]
fn the_published_vector() {
    // Of the authors' test vectors, the one with all words 0.
    for level in Level::available() {
        let got = bits(level, &[0, 0], 4, 0, &Pool::new(1));
        assert_eq!(got, [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
    }
}

#[test]
fn every_word_is_that_of_its_counter() {
    let pools = [Pool::new(1), Pool::new(2), Pool::new(3)];
    let seed = [1, 2, u32::MAX, 0xDEAD_BEEF, 7, 0];
    for level in Level::available() {
        for n in [0, 1, 3, 4, 63, 64, 65, 1000, 16_384, 40_001] {
            for stream in [0, -5, i64::MAX] {
                let s = stream as u64;
                let want: Vec<u32> = (0..3 * n)
                    .map(|flat| {
                        let (owner, i) = (flat / n, flat % n);
                        let counter = [(i / 4) as u32, 0, s as u32, (s >> 32) as u32];
                        philox(counter, [seed[owner * 2], seed[owner * 2 + 1]])[i % 4]
                    })
                    .collect();
                for pool in &pools {
                    assert!(bits(level, &seed, n, stream, pool) == want, "{level} {n} {stream} {pool:?}");
                }
            }
        }
    }
}

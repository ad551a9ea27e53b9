//! Strided copies against a loop over every index.

#![allow(clippy::indexing_slicing, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]

use rlx_simd::copy::{copy, fill};
use rlx_simd::level::Level;
use rlx_simd::pool::Pool;

struct Random(u64);
impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % n.max(1)
    }
}

/// Strides of a dense array whose axes lie in memory in that order, outermost first.
fn dense(shape: &[usize], order: &[usize]) -> Vec<isize> {
    let mut out = vec![0; shape.len()];
    let mut n = 1;
    for a in order.iter().rev() {
        out[*a] = n;
        n *= shape[*a].max(1) as isize;
    }
    out
}

/// The offset that makes all elements of a strided array lie at 0 and above, and how many elements that takes.
fn extent(shape: &[usize], strides: &[isize]) -> (usize, usize) {
    let (mut low, mut high) = (0, 0);
    for (n, s) in shape.iter().zip(strides) {
        let last = s * (*n as isize - 1).max(0);
        (low, high) = (low + last.min(0), high + last.max(0));
    }
    (-low as usize, (high - low) as usize + 1)
}

fn check(level: Level, pools: &[Pool], width: usize, shape: &[usize], dst: &[isize], src: &[isize]) {
    let ((d0, dn), (s0, sn)) = (extent(shape, dst), extent(shape, src));
    let from: Vec<u8> = (0..sn * width).map(|i| (i * 31 + i / 251 * 7 + 3) as u8).collect();
    let mut want = vec![0xEEu8; dn * width];
    let mut ix = vec![0usize; shape.len()];
    for _ in 0..shape.iter().product() {
        let at = |strides: &[isize], first: usize| {
            (first as isize + ix.iter().zip(strides).map(|(i, s)| *i as isize * s).sum::<isize>()) as usize
                * width
        };
        let (d, s) = (at(dst, d0), at(src, s0));
        want[d..d + width].copy_from_slice(&from[s..s + width]);
        for a in (0..shape.len()).rev() {
            ix[a] += 1;
            if ix[a] < shape[a] {
                break;
            }
            ix[a] = 0;
        }
    }
    for pool in pools {
        let mut got = vec![0xEEu8; dn * width];
        unsafe {
            let (to, from) = (got.as_mut_ptr().add(d0 * width), from.as_ptr().add(s0 * width));
            copy(level, width, shape, to, dst, from, src, pool);
        }
        assert!(got == want, "{level} {width} bytes {shape:?} dst {dst:?} src {src:?} {pool:?}");
    }
}

fn pools() -> Vec<Pool> {
    vec![Pool::new(1), Pool::new(2), Pool::new(3)]
}

#[test]
fn permutes_of_all_widths() {
    let pools = pools();
    let shapes: &[(&[usize], &[usize])] = &[
        (&[2, 3], &[1, 0]),
        (&[5, 7], &[1, 0]),
        (&[16, 16], &[1, 0]),
        (&[33, 65], &[1, 0]),
        (&[197, 131], &[1, 0]),
        (&[130, 3], &[1, 0]),
        (&[3, 130], &[1, 0]),
        (&[2, 1], &[1, 0]),
        (&[2, 9, 5, 8], &[0, 2, 1, 3]),
        (&[2, 9, 5, 2], &[0, 2, 1, 3]),
        (&[2, 9, 5, 3], &[0, 2, 1, 3]),
        (&[2, 9, 5, 17], &[0, 3, 2, 1]),
        (&[3, 20, 18], &[2, 0, 1]),
        (&[3, 20, 18], &[1, 2, 0]),
        (&[4, 0, 3], &[2, 1, 0]),
        (&[], &[]),
    ];
    for level in Level::available() {
        for width in [1, 2, 4, 8, 3, 16] {
            for (shape, order) in shapes {
                let plain: Vec<usize> = (0..shape.len()).collect();
                let (dst, src) = (dense(shape, &plain), dense(shape, order));
                check(level, &pools, width, shape, &dst, &src);
                check(level, &pools, width, shape, &src, &dst);
            }
        }
    }
}

#[test]
fn large_copies_are_split() {
    let pools = pools();
    for level in Level::available() {
        for (shape, order) in
            [([300, 500, 2], [1, 0, 2]), ([2, 300, 257], [0, 2, 1]), ([40, 70, 64], [1, 0, 2])]
        {
            let (dst, src) = (dense(&shape, &[0, 1, 2]), dense(&shape, &order));
            check(level, &pools, 4, &shape, &dst, &src);
        }
        check(level, &pools, 4, &[300_001], &[1], &[1]);
        check(level, &pools, 8, &[2, 30_001], &[30_001, 1], &[30_005, 1]);
        check(level, &pools, 4, &[2, 50_000], &[50_000, 1], &[0, 1]);
        check(level, &pools, 2, &[100_000], &[1], &[0]);
        check(level, &pools, 4, &[70_000], &[1], &[-1]);
    }
}

#[test]
fn copies_past_the_cache() {
    let pools = [Pool::new(1), Pool::new(3)];
    for level in Level::available() {
        for (width, a, b) in
            [(1, 3001, 3008), (2, 2100, 2080), (4, 1500, 1408), (4, 1411, 1501), (8, 1040, 1024)]
        {
            check(level, &pools, width, &[a, b], &[b as isize, 1], &[1, a as isize]);
        }
        check(level, &pools, 4, &[7000, 301], &[301, 1], &[305, 1]);
        check(level, &pools, 4, &[3, 700_001], &[700_001, 1], &[700_003, 1]);
        check(level, &pools, 2, &[5_000_001], &[1], &[0]);
        check(level, &pools, 8, &[3, 400_001], &[400_003, 1], &[1, 0]);
    }
}

#[test]
fn any_strides() {
    let (pools, mut r) = (pools(), Random(1));
    for level in Level::available() {
        for _ in 0..300 {
            let rank = r.below(5);
            let shape: Vec<usize> = (0..rank).map(|_| [1, 2, 3, 5, 8, 17, 20][r.below(7)]).collect();
            let mut order: Vec<usize> = (0..rank).collect();
            let mut strides = |r: &mut Random, broadcast: bool| {
                for i in (1..rank).rev() {
                    order.swap(i, r.below(i + 1));
                }
                // Room between rows, then some axes backwards, and for a source some that stand still.
                let room: Vec<usize> = shape.iter().map(|n| n + r.below(8) / 6).collect();
                let mut out = dense(&room, &order);
                let step = 1 + (r.below(6) == 0) as isize;
                for s in &mut out {
                    *s *= step * if r.below(4) == 0 { -1 } else { 1 };
                    *s *= (!broadcast || r.below(5) > 0) as isize;
                }
                out
            };
            let (dst, src) = (strides(&mut r, false), strides(&mut r, true));
            check(level, &pools, [1, 2, 4, 8][r.below(4)], &shape, &dst, &src);
        }
    }
}

#[test]
fn more_axes_than_a_plan_has() {
    let shape = [2usize; 14];
    let order: Vec<usize> = (0..14).map(|i| (i * 3) % 14).collect();
    let (dst, src) = (dense(&shape, &(0..14).collect::<Vec<_>>()), dense(&shape, &order));
    check(Level::detect(), &pools(), 4, &shape, &dst, &src);
    let mut out = vec![0u16; 1 << 14];
    unsafe {
        fill(Level::detect(), &shape, out.as_mut_ptr().cast(), &dst, &7u16.to_ne_bytes(), &Pool::new(2))
    };
    assert!(out.iter().all(|v| *v == 7));
}

#[test]
fn fills_only_what_the_strides_reach() {
    for level in Level::available() {
        for pool in pools() {
            let mut out = vec![0.0f32; 1000 * 30];
            unsafe {
                let to = out.as_mut_ptr().add(2).cast();
                fill(level, &[1000, 7], to, &[30, 3], &1.5f32.to_ne_bytes(), &pool);
                fill(level, &[0, 7], to, &[30, 3], &9f32.to_ne_bytes(), &pool);
            }
            for (i, v) in out.iter().enumerate() {
                let c = i % 30;
                let hit = c >= 2 && (c - 2) % 3 == 0 && (c - 2) / 3 < 7;
                assert_eq!(*v, if hit { 1.5 } else { 0.0 }, "{i}");
            }
        }
    }
}

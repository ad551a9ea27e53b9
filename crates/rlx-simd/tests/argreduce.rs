//! Positions of the largest and smallest elements against a plain search.

#![allow(clippy::indexing_slicing, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]

use rlx_simd::argreduce::{Element, Which, argreduce, argreduce_scratch};
use rlx_simd::level::Level;
use rlx_simd::mem::{Buffer, Scratch};
use rlx_simd::pool::Pool;

fn reference<T: Element>(w: Which, [outer, n, inner]: [usize; 3], x: &[T]) -> Vec<i64> {
    let mut out = vec![];
    for o in 0..outer {
        for i in 0..inner {
            let mut best: Option<(usize, T)> = None;
            for k in 0..n {
                let v = x[(o * n + k) * inner + i];
                let wins = |b: T| match (v.is_nan(), b.is_nan()) {
                    (true, false) => true,
                    (false, true) => false,
                    (true, true) => w.last,
                    _ => (if w.largest { v > b } else { v < b }) || (w.last && v == b),
                };
                if best.is_none_or(|(_, b)| wins(b)) {
                    best = Some((k, v));
                }
            }
            out.push(best.map_or(0, |(k, _)| k as i64));
        }
    }
    out
}

fn check<T: Element>(make: impl Fn(usize) -> T) {
    let pools = [Pool::new(1), Pool::new(2), Pool::new(3)];
    let shapes = [
        [1, 0, 1],
        [3, 0, 2],
        [0, 4, 2],
        [2, 4, 0],
        [1, 1, 1],
        [5, 7, 1],
        [3, 64, 1],
        [2, 200, 1],
        [2, 9, 3],
        [2, 5, 64],
        [1, 33, 130],
        [1, 65_537, 1],
        [2, 140_000, 1],
        [1, 66_000, 3],
        [700, 90, 1],
    ];
    for level in Level::available() {
        for shape in shapes {
            let [outer, n, inner] = shape;
            let x: Vec<T> = (0..outer * n * inner).map(&make).collect();
            for (largest, last) in [(true, true), (true, false), (false, true), (false, false)] {
                let which = Which { largest, last };
                let want = reference(which, shape, &x);
                for pool in &pools {
                    let size = argreduce_scratch(outer, n, inner);
                    let memory = Buffer::new(size.total(pool.threads()));
                    let scratch = unsafe { Scratch::new(memory.ptr(), size, pool.threads()) };
                    let mut y = vec![-1; outer * inner];
                    let to = y.as_mut_ptr();
                    unsafe { argreduce(level, which, outer, n, inner, x.as_ptr(), to, pool, &scratch) };
                    assert!(y == want, "{level} {shape:?} {which:?} {pool:?}");
                }
            }
        }
    }
}

fn mix(i: usize) -> usize {
    (i.wrapping_mul(0x9E37_79B9_7F4A_7C15)) >> 40
}

#[test]
fn of_f32() {
    check(|i| mix(i) as f32 - 8e6);
    check(|i| (mix(i) % 5) as f32 - 2.0);
    check(|i| if mix(i).is_multiple_of(41) { f32::NAN } else { mix(i) as f32 });
    check(|i| [f32::NEG_INFINITY, f32::INFINITY, 0.0, -0.0][mix(i) % 4]);
    check(|_| f32::NEG_INFINITY);
    check(|_| f32::NAN);
}

#[test]
fn of_f64_and_i64() {
    check(|i| mix(i) as f64 - 8e6);
    check(|i| if mix(i).is_multiple_of(101) { f64::NAN } else { mix(i) as f64 });
    check(|i| mix(i) as i64 - 8_000_000);
    check(|i| (mix(i) % 3) as i64);
    check(|i| [i64::MIN, i64::MAX][mix(i) % 2]);
}

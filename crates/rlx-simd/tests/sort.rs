//! Sorting and picking against the standard library's stable sort.

#![allow(clippy::indexing_slicing, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]

use rlx_simd::level::Level;
use rlx_simd::mem::{Buffer, Scratch};
use rlx_simd::pool::Pool;
use rlx_simd::sort::{Element, Order, sort, sort_scratch};
use std::cmp::Ordering;

fn mix(i: usize) -> usize {
    (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ i << 9) >> 33
}

fn reference<T: Copy>(o: Order, x: &[T], cmp: impl Fn(T, T) -> Ordering) -> Vec<i64> {
    let mut out = vec![0; o.outer * o.keep * o.inner];
    for (a, b) in (0..o.outer).flat_map(|a| (0..o.inner).map(move |b| (a, b))) {
        let at = |k: usize| x[(a * o.n + k) * o.inner + b];
        let mut line: Vec<usize> = (0..o.n).collect();
        line.sort_by(|i, j| {
            let c = cmp(at(*i), at(*j));
            if o.descending { c.reverse() } else { c }
        });
        for (k, i) in line.into_iter().take(o.keep).enumerate() {
            out[(a * o.keep + k) * o.inner + b] = i as i64;
        }
    }
    out
}

fn check<T: Element>(make: impl Fn(usize) -> T, cmp: impl Fn(T, T) -> Ordering, bits: impl Fn(T) -> u64) {
    let pools = [Pool::new(1), Pool::new(2), Pool::new(3)];
    let shapes = [
        (1, 0, 1, 0),
        (0, 3, 2, 3),
        (2, 3, 0, 3),
        (1, 1, 1, 1),
        (3, 5, 1, 5),
        (2, 20, 3, 20),
        (2, 20, 3, 4),
        (40, 50, 1, 50),
        (2, 1000, 1, 1000),
        (2, 1000, 1, 0),
        (3, 1000, 1, 1),
        (3, 1000, 1, 7),
        (3, 1000, 1, 100),
        (3, 1000, 1, 400),
        (1, 32_768, 1, 5),
        (1, 32_769, 1, 9),
        (2, 70_000, 1, 50),
        (1, 70_000, 1, 4096),
        (1, 132_000, 1, 132_000),
        (2, 300_001, 1, 300_001),
        (1, 33_000, 2, 40),
        (9, 33_000, 1, 33_000),
        (1, 140_000, 1, 20_000),
    ];
    for (outer, n, inner, keep) in shapes {
        let x: Vec<T> = (0..outer * n * inner).map(&make).collect();
        for descending in [false, true] {
            let o = Order { outer, n, inner, keep, descending };
            let want = reference(o, &x, &cmp);
            for level in Level::available() {
                // A level only changes how the first ones are picked.
                let few = if level == Level::detect() { 3 } else { usize::from(keep < n / 8) };
                for pool in &pools[..few] {
                    let size = sort_scratch::<T>(o);
                    let memory = Buffer::new(size.total(pool.threads()));
                    let scratch = unsafe { Scratch::new(memory.ptr(), size, pool.threads()) };
                    let mut indices = vec![-1; want.len()];
                    let mut values: Vec<T> = (0..want.len()).map(|_| make(0)).collect();
                    let (v, i) = (values.as_mut_ptr(), indices.as_mut_ptr());
                    unsafe { sort(level, o, x.as_ptr(), v, i, pool, &scratch) };
                    assert!(indices == want, "{level} {o:?} {pool:?}");
                    for (to, (v, i)) in values.iter().zip(&indices).enumerate() {
                        let (a, b) = (to / (keep * inner), to % inner);
                        assert_eq!(bits(*v), bits(x[(a * n + *i as usize) * inner + b]));
                    }
                    // Only one of the two.
                    let mut alone = vec![-1; want.len()];
                    unsafe {
                        sort(level, o, x.as_ptr(), std::ptr::null_mut(), alone.as_mut_ptr(), pool, &scratch);
                        sort(level, o, x.as_ptr(), v, std::ptr::null_mut(), pool, &scratch);
                    }
                    assert!(alone == want);
                }
            }
        }
    }
}

fn floats(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

#[test]
fn of_f32() {
    let odd = [
        0.0,
        -0.0,
        f32::NAN,
        -f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MIN_POSITIVE,
        -1e-45,
        1.0,
        -1.0,
    ];
    let cmp = |a: f32, b: f32| floats(a as f64, b as f64);
    check(|i| mix(i) as f32 - 1e9, cmp, |v| v.to_bits() as u64);
    check(|i| (mix(i) % 13) as f32 - 6.0, cmp, |v| v.to_bits() as u64);
    check(|i| odd[mix(i) % odd.len()], cmp, |v| v.to_bits() as u64);
    check(|i| i as f32, cmp, |v| v.to_bits() as u64);
}

#[test]
fn of_f64() {
    let odd = [0.0, -0.0, f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 5e-324, 1.0, -1.0];
    check(|i| mix(i) as f64 - 1e9, floats, f64::to_bits);
    check(|i| odd[mix(i) % odd.len()], floats, f64::to_bits);
}

#[test]
fn of_i64() {
    check(|i| (mix(i) as i64 - (1 << 30)) << 32, |a, b| a.cmp(&b), |v| v as u64);
    check(|i| [i64::MIN, i64::MAX, 0, -1][mix(i) % 4], |a, b| a.cmp(&b), |v| v as u64);
}

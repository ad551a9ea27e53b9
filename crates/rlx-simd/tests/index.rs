//! Gathers and scatters against plain loops.

#![allow(clippy::indexing_slicing, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]

use rlx_simd::index::*;
use rlx_simd::level::Level;
use rlx_simd::mem::{Buffer, Scratch, ScratchSize};
use rlx_simd::pool::Pool;

fn mix(i: usize) -> usize {
    (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ i << 7) >> 34
}

fn place(i: i64, n: usize) -> Option<usize> {
    let i = if i < 0 { i + n as i64 } else { i };
    (0..n as i64).contains(&i).then_some(i as usize)
}

fn shapes() -> Vec<Rows> {
    let of = |(outer, n, inner, m)| Rows { outer, n, inner, m };
    [
        (1, 0, 2, 3),
        (0, 3, 2, 3),
        (2, 3, 0, 3),
        (2, 3, 2, 0),
        (1, 1, 1, 1),
        (1, 5, 1, 40),
        (3, 5, 1, 7),
        (2, 4, 3, 9),
        (2, 7, 5, 20),
        (1, 100, 64, 33),
        (2, 10, 300, 50),
        (1, 3, 2000, 5),
        (1, 2, 40_000, 3),
        (1, 5000, 1, 30_000),
        (2, 1000, 4, 3000),
        (1, 2, 1, 5000),
        (1, 100_000, 2, 10),
    ]
    .into_iter()
    .map(of)
    .collect()
}

/// Indices with repeats, negative ones, and some outside of the axis.
fn indices(r: Rows) -> Vec<i64> {
    let n = r.n as i64;
    (0..r.m)
        .map(|j| {
            if mix(j).is_multiple_of(11) {
                n + (mix(j) % 3) as i64
            } else {
                mix(j * 3 + 1) as i64 % (2 * n + 1) - n
            }
        })
        .collect()
}

fn with_scratch(size: ScratchSize, pool: &Pool, f: impl FnOnce(&Scratch)) {
    let mut memory = Buffer::new(size.total(pool.threads()));
    // Whatever was there before must not matter.
    memory
        .bytes_mut()
        .iter_mut()
        .enumerate()
        .for_each(|(i, b)| *b = if i % 8 == 0 { (i / 8) as u8 } else { 0 });
    f(&unsafe { Scratch::new(memory.ptr(), size, pool.threads()) });
}

/// The indices in every type that holds them.
fn each_type(all: &[i64], n: usize, mut f: impl FnMut(Indices)) {
    let short: Vec<i32> = all.iter().map(|i| *i as i32).collect();
    f(Indices::I64(all.as_ptr()));
    f(Indices::I32(short.as_ptr()));
    // Counted from the start; what is outside stays there.
    let start = |i: &i64| place(*i, n).map_or(u64::MAX, |i| i as u64);
    let long: Vec<u64> = all.iter().map(start).collect();
    let short: Vec<u32> = long.iter().map(|i| *i as u32).collect();
    f(Indices::U64(long.as_ptr()));
    f(Indices::U32(short.as_ptr()));
}

fn pools() -> [Pool; 3] {
    [Pool::new(1), Pool::new(2), Pool::new(3)]
}

#[test]
fn gathers_of_all_widths() {
    let pools = pools();
    for r in shapes() {
        let all = indices(r);
        for width in [1, 2, 4, 8] {
            let row = r.inner * width;
            let x: Vec<u8> = (0..r.outer * r.n * row).map(|i| mix(i) as u8).collect();
            let mut want = vec![0u8; r.outer * r.m * row];
            for (to, o, i) in
                (0..r.outer).flat_map(|o| all.iter().enumerate().map(move |(j, i)| (o * r.m + j, o, *i)))
            {
                if let Some(p) = place(i, r.n) {
                    let from = (o * r.n + p) * row;
                    want[to * row..][..row].copy_from_slice(&x[from..from + row]);
                }
            }
            each_type(&all, r.n, |indices| {
                for pool in &pools {
                    let mut y = vec![0xEE; want.len()];
                    unsafe { gather(width, r, x.as_ptr(), indices, y.as_mut_ptr(), pool) };
                    assert!(y == want, "{r:?} {width} {indices:?} {pool:?}");
                }
            });
        }
    }
}

#[test]
fn the_last_update_stands() {
    let pools = pools();
    for r in shapes() {
        let all = indices(r);
        for width in [1, 2, 4, 8] {
            let row = r.inner * width;
            let x: Vec<u8> = (0..r.outer * r.n * row).map(|i| mix(i) as u8).collect();
            let updates: Vec<u8> = (0..r.outer * r.m * row).map(|i| mix(i + 99) as u8).collect();
            let mut want = x.clone();
            for (from, o, i) in
                (0..r.outer).flat_map(|o| all.iter().enumerate().map(move |(j, i)| (o * r.m + j, o, *i)))
            {
                if let Some(p) = place(i, r.n) {
                    want[(o * r.n + p) * row..][..row].copy_from_slice(&updates[from * row..][..row]);
                }
            }
            each_type(&all, r.n, |indices| {
                for pool in &pools {
                    let mut y = x.clone();
                    with_scratch(scatter_set_scratch(r), pool, |scratch| unsafe {
                        scatter_set(width, r, indices, updates.as_ptr(), y.as_mut_ptr(), pool, scratch);
                    });
                    assert!(y == want, "{r:?} {width} {indices:?} {pool:?}");
                }
            });
        }
    }
}

/// `f(total, update)` over wide totals `A`, which are then compared with the results by `same`.
fn check<T: Element, A: Copy>(
    how: Combine,
    value: impl Fn(usize) -> T,
    lift: impl Fn(T) -> A,
    f: impl Fn(A, A) -> A,
    same: impl Fn(T, A) -> bool,
) {
    let pools = pools();
    for level in Level::available() {
        for r in shapes() {
            let all = indices(r);
            let x: Vec<T> = (0..r.outer * r.n * r.inner).map(&value).collect();
            let updates: Vec<T> = (0..r.outer * r.m * r.inner).map(|i| value(i + 77)).collect();
            let mut want: Vec<A> = x.iter().map(|v| lift(*v)).collect();
            for (from, o, i) in
                (0..r.outer).flat_map(|o| all.iter().enumerate().map(move |(j, i)| (o * r.m + j, o, *i)))
            {
                if let Some(p) = place(i, r.n) {
                    for c in 0..r.inner {
                        let slot = &mut want[(o * r.n + p) * r.inner + c];
                        *slot = f(*slot, lift(updates[from * r.inner + c]));
                    }
                }
            }
            for pool in &pools {
                each_type(&all, r.n, |indices| {
                    let mut y = x.clone();
                    with_scratch(scatter_scratch::<T>(r), pool, |scratch| unsafe {
                        scatter(level, how, r, indices, updates.as_ptr(), y.as_mut_ptr(), pool, scratch);
                    });
                    let good = y.iter().zip(&want).all(|(y, want)| same(*y, *want));
                    assert!(good, "{level} {how:?} {r:?} {indices:?} {pool:?}");
                });
            }
        }
    }
}

fn float_step(how: Combine, a: f64, b: f64) -> f64 {
    match how {
        Combine::Add => a + b,
        Combine::Mul => a * b,
        _ if a.is_nan() || b.is_nan() => f64::NAN,
        Combine::Max => a.max(b),
        Combine::Min => a.min(b),
    }
}

const ALL: [Combine; 4] = [Combine::Add, Combine::Max, Combine::Min, Combine::Mul];

#[test]
fn combined_f32_are_those_of_f64_rounded_once() {
    for how in ALL {
        let value = |i: usize| {
            if mix(i).is_multiple_of(301) { f32::NAN } else { (mix(i) % 2001) as f32 / 1000.0 - 1.0 }
        };
        let same = |y: f32, want: f64| y == want as f32 || (y.is_nan() && want.is_nan());
        check(how, value, |v| v as f64, |a, b| float_step(how, a, b), same);
    }
}

#[test]
fn combined_f64_and_i64() {
    for how in ALL {
        let value = |i: usize| (mix(i) % 2001) as f64 / 1000.0 - 1.0;
        check(how, value, |v| v, |a, b| float_step(how, a, b), |y, want| y == want);
        let step = |a: i64, b: i64| match how {
            Combine::Add => a.wrapping_add(b),
            Combine::Mul => a.wrapping_mul(b),
            Combine::Max => a.max(b),
            Combine::Min => a.min(b),
        };
        check(how, |i| mix(i) as i64 - (1 << 29), |v| v, step, |y, want| y == want);
    }
}

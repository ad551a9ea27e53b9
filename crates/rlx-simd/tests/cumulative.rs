//! Running totals against a plain loop in f64.

#![allow(clippy::indexing_slicing, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]

use rlx_simd::cumulative::{Element, Kind, Running, cumulative, cumulative_scratch};
use rlx_simd::level::Level;
use rlx_simd::mem::{Buffer, Scratch};
use rlx_simd::pool::Pool;

fn step(kind: Kind, t: f64, x: f64) -> f64 {
    match kind {
        Kind::Sum => t + x,
        Kind::Prod => t * x,
        Kind::Max | Kind::Min if t.is_nan() || x.is_nan() => f64::NAN,
        Kind::Max => t.max(x),
        Kind::Min => t.min(x),
        Kind::LogSumExp => {
            let (lo, hi) = if t < x { (t, x) } else { (x, t) };
            if lo == hi { hi + 2f64.ln() } else { hi + (lo - hi).exp().ln_1p() }
        }
    }
}

fn nothing(kind: Kind) -> f64 {
    match kind {
        Kind::Sum => 0.0,
        Kind::Prod => 1.0,
        Kind::Max | Kind::LogSumExp => f64::NEG_INFINITY,
        Kind::Min => f64::INFINITY,
    }
}

/// Line by line: `f(total, element)` gives the next total.
fn reference<T: Copy, A: Copy>(
    how: &Running<T>,
    [outer, n, inner]: [usize; 3],
    x: &[T],
    first: A,
    f: impl Fn(A, T) -> A,
) -> Vec<A> {
    let mut out = vec![first; x.len()];
    for (o, i) in (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))) {
        let mut t = first;
        for k in 0..n {
            let k = if how.reverse { n - 1 - k } else { k };
            let at = (o * n + k) * inner + i;
            let before = t;
            t = f(t, x[at]);
            out[at] = if how.exclusive { before } else { t };
        }
    }
    out
}

fn run<T: Element>(
    level: Level,
    how: Running<T>,
    [outer, n, inner]: [usize; 3],
    x: &[T],
    pool: &Pool,
) -> Vec<T> {
    let size = cumulative_scratch(outer, n, inner);
    let memory = Buffer::new(size.total(pool.threads()));
    let scratch = unsafe { Scratch::new(memory.ptr(), size, pool.threads()) };
    // In place, and so from a copy.
    let mut y = x.to_vec();
    unsafe { cumulative(level, how, outer, n, inner, y.as_ptr(), y.as_mut_ptr(), pool, &scratch) };
    let mut z = x.to_vec();
    unsafe { cumulative(level, how, outer, n, inner, x.as_ptr(), z.as_mut_ptr(), pool, &scratch) };
    let bytes =
        |v: &[T]| unsafe { std::slice::from_raw_parts(v.as_ptr().cast::<u8>(), size_of_val(v)) }.to_vec();
    assert!(bytes(&y) == bytes(&z), "in place");
    y
}

const SHAPES: [[usize; 3]; 15] = [
    [0, 3, 2],
    [2, 0, 3],
    [2, 3, 0],
    [1, 1, 1],
    [3, 7, 1],
    [2, 8, 1],
    [1, 29, 1],
    [2, 9, 3],
    [1, 5, 64],
    [2, 11, 150],
    [1, 8193, 1],
    [2, 20_000, 1],
    [1, 40_003, 1],
    [20, 9_000, 1],
    [1, 9_000, 2],
];

fn all_ways<T: Element>(kinds: &[Kind], mut f: impl FnMut(Level, Running<T>, [usize; 3])) {
    for level in Level::available() {
        for shape in SHAPES {
            for kind in kinds {
                for (exclusive, reverse) in [(false, false), (false, true), (true, false), (true, true)] {
                    f(level, Running { kind: *kind, exclusive, reverse, nothing: None }, shape);
                }
            }
        }
    }
}

fn mix(i: usize) -> f64 {
    (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as f64 / (1 << 24) as f64
}

const FLOAT: [Kind; 5] = [Kind::Sum, Kind::Prod, Kind::Max, Kind::Min, Kind::LogSumExp];

macro_rules! floats {
    ($name:ident, $t:ty, $tol:expr) => {
        #[test]
        fn $name() {
            let pools = [Pool::new(1), Pool::new(2), Pool::new(3)];
            all_ways::<$t>(&FLOAT, |level, how, shape| {
                for salt in [0usize, 1] {
                    let x: Vec<$t> = (0..shape.iter().product())
                        .map(|i| match (how.kind, salt) {
                            (_, 1) if mix(i) < 1e-3 => <$t>::NAN,
                            (Kind::Prod, _) => (0.9 + mix(i) * 0.2) as $t,
                            (Kind::LogSumExp, _) if mix(i) < 0.01 => <$t>::NEG_INFINITY,
                            _ => (mix(i) * 20.0 - 9.0) as $t,
                        })
                        .collect();
                    let want =
                        reference(&how, shape, &x, nothing(how.kind), |t, x| step(how.kind, t, x as f64));
                    let first = run(level, how, shape, &x, &pools[0]);
                    // A sum is as exact as the sizes that it passed through.
                    let size = want.iter().filter(|v| v.is_finite()).fold(1.0f64, |m, v| m.max(v.abs()));
                    let size = if how.kind == Kind::Sum { size } else { 0.0 };
                    for (i, (got, want)) in first.iter().zip(&want).enumerate() {
                        let got = *got as f64;
                        let close = (got - want).abs() <= $tol * want.abs().max(size * 1e-2).max(1e-30);
                        assert!(
                            close || got == *want || (got.is_nan() && want.is_nan()),
                            "{level} {how:?} {shape:?} at {i}: {got} is not {want}"
                        );
                    }
                    for pool in &pools[1..] {
                        let other = run(level, how, shape, &x, pool);
                        assert!(
                            other.iter().zip(&first).all(|(a, b)| a.to_bits() == b.to_bits()),
                            "{pool:?}"
                        );
                    }
                }
            });
        }
    };
}
floats!(of_f32, f32, 1e-7);
floats!(of_f64, f64, 1e-12);

#[test]
fn of_i64() {
    let pools = [Pool::new(1), Pool::new(2), Pool::new(3)];
    all_ways::<i64>(&FLOAT[..4], |level, how, shape| {
        let x: Vec<i64> = (0..shape.iter().product()).map(|i| (mix(i) * 1e18) as i64 - (1 << 58)).collect();
        let first = [0, 1, i64::MIN, i64::MAX][FLOAT.iter().position(|k| *k == how.kind).unwrap()];
        let want = reference(&how, shape, &x, first, |t, x| match how.kind {
            Kind::Sum => t.wrapping_add(x),
            Kind::Prod => t.wrapping_mul(x),
            Kind::Max => t.max(x),
            _ => t.min(x),
        });
        for pool in &pools {
            assert!(run(level, how, shape, &x, pool) == want, "{level} {how:?} {shape:?} {pool:?}");
        }
    });
}

#[test]
fn nothing_may_be_that_of_a_narrower_type() {
    let pool = Pool::new(1);
    let how = Running { kind: Kind::Max, exclusive: true, reverse: false, nothing: Some(-128) };
    assert_eq!(run(Level::detect(), how, [1, 3, 1], &[-128i64, 5, 4], &pool), [-128, -128, 5]);
}

#[test]
fn long_sums_stay_exact() {
    let x = vec![0.1f32; 3_000_000];
    let how = Running { kind: Kind::Sum, exclusive: false, reverse: false, nothing: None };
    let y = run(Level::detect(), how, [1, x.len(), 1], &x, &Pool::new(2));
    assert_eq!(y[x.len() - 1], (0.1f32 as f64 * 3e6) as f32);
}

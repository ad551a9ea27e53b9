//! Transforms against the sum that defines them.

#![allow(clippy::indexing_slicing, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]

use rlx_simd::fft::FftPlan;
use rlx_simd::level::Level;
use rlx_simd::mem::{Buffer, Scratch};
use rlx_simd::pool::Pool;
use std::f64::consts::TAU;

fn dft(x: &[f64], n: usize, inverse: bool) -> Vec<f64> {
    let sign = if inverse { 1.0 } else { -1.0 };
    let mut out = vec![0.0; x.len()];
    for (row, to) in x.chunks(2 * n).zip(out.chunks_mut(2 * n)) {
        for k in 0..n {
            for t in 0..n {
                let (sin, cos) = (sign * TAU * (k * t % n) as f64 / n as f64).sin_cos();
                to[2 * k] += row[2 * t] * cos - row[2 * t + 1] * sin;
                to[2 * k + 1] += row[2 * t] * sin + row[2 * t + 1] * cos;
            }
        }
        if inverse {
            to.iter_mut().for_each(|v| *v /= n as f64);
        }
    }
    out
}

macro_rules! check {
    ($name:ident, $t:ty, $tol:expr) => {
        #[test]
        fn $name() {
            let pools = [Pool::new(1), Pool::new(2), Pool::new(3)];
            for level in Level::available() {
                for (rows, n) in [
                    (3, 0),
                    (0, 8),
                    (5, 1),
                    (3, 2),
                    (3, 3),
                    (2, 7),
                    (4, 8),
                    (7, 60),
                    (3, 97),
                    (2, 101),
                    (2, 128),
                    (50, 211),
                    (1, 1024),
                    (1, 1009),
                ] {
                    for inverse in [false, true] {
                        let x: Vec<$t> =
                            (0..rows * n * 2).map(|i| ((i * 7919 + 13) % 1000) as $t / 500.0 - 1.0).collect();
                        let wide: Vec<f64> = x.iter().map(|v| *v as f64).collect();
                        let want = if n == 0 { vec![] } else { dft(&wide, n, inverse) };
                        let plan = FftPlan::<$t>::new(level, n, inverse);
                        let mut first: Option<Vec<$t>> = None;
                        for pool in &pools {
                            let memory = Buffer::new(plan.scratch().total(pool.threads()));
                            let scratch =
                                unsafe { Scratch::new(memory.ptr(), plan.scratch(), pool.threads()) };
                            let mut y = vec![0.0; x.len()];
                            unsafe { plan.run(rows, x.as_ptr(), y.as_mut_ptr(), pool, &scratch) };
                            let mut z = x.clone();
                            unsafe { plan.run(rows, z.as_ptr(), z.as_mut_ptr(), pool, &scratch) };
                            assert_eq!(y, z, "in place");
                            let size = want.iter().fold(1.0f64, |m, v| m.max(v.abs()));
                            for (y, want) in y.iter().zip(&want) {
                                assert!((*y as f64 - want).abs() <= $tol * size, "{level} {n}: {y} {want}");
                            }
                            assert_eq!(*first.get_or_insert(y.clone()), y, "{pool:?}");
                        }
                    }
                }
            }
        }
    };
}

check!(of_f32, f32, 1e-6);
check!(of_f64, f64, 1e-13);

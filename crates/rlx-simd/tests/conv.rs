//! Convolutions and their gradients against the plainest loops, at every level and with any number of threads.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx_simd::conv::{Conv, Number, Sink, Weights};
use rlx_simd::level::Level;
use rlx_simd::mem::{Buffer, Scratch, ScratchSize};
use rlx_simd::pool::Pool;
use std::ops::Range;
use std::sync::Mutex;

/// A small generator of test values.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) ^ (self.0 >> 12 & 0xff)
    }
    fn below(&mut self, n: usize) -> usize {
        self.next() as usize % n
    }
    fn within(&mut self, from: isize, to: isize) -> isize {
        from + self.below((to - from + 1) as usize) as isize
    }
}

trait Value: Number {
    fn of(r: &mut Random) -> Self;
    fn f64(self) -> f64;
    const TOLERANCE: f64;
}
macro_rules! value {
    ($t:ty, $tolerance:expr, |$r:ident| $of:expr) => {
        impl Value for $t {
            fn of($r: &mut Random) -> $t {
                $of
            }
            fn f64(self) -> f64 {
                self as f64
            }
            const TOLERANCE: f64 = $tolerance;
        }
    };
}
value!(f32, 1e-6, |r| r.within(-1000, 1000) as f32 / 1000.0);
value!(f64, 1e-14, |r| r.within(-1000, 1000) as f64 / 1000.0);
value!(i64, 0.0, |r| r.within(-50, 50) as i64);

#[derive(Clone, Debug)]
struct Sizes {
    batch: usize,
    groups: usize,
    channels: [usize; 2],
    spatial: Vec<usize>,
    kernel: Vec<usize>,
    stride: Vec<usize>,
    dilation: Vec<usize>,
    lo: Vec<isize>,
    hi: Vec<isize>,
}

impl Sizes {
    /// Channels per group, a cubic kernel and so on, to be changed.
    fn new(batch: usize, groups: usize, channels: [usize; 2], spatial: &[usize], kernel: &[usize]) -> Sizes {
        let n = spatial.len();
        Sizes {
            batch,
            groups,
            channels,
            spatial: spatial.to_vec(),
            kernel: kernel.to_vec(),
            stride: vec![1; n],
            dilation: vec![1; n],
            lo: vec![0; n],
            hi: vec![0; n],
        }
    }
    fn stride(mut self, s: usize) -> Sizes {
        self.stride.fill(s);
        self
    }
    fn dilation(mut self, d: usize) -> Sizes {
        self.dilation.fill(d);
        self
    }
    fn pad(mut self, lo: isize, hi: isize) -> Sizes {
        self.lo.fill(lo);
        self.hi.fill(hi);
        self
    }

    fn random(r: &mut Random) -> Sizes {
        let n = [1, 1, 2, 2, 2, 3, 4][r.below(7)];
        let most = [40, 14, 7, 4][n - 1];
        let groups = [1, 1, 1, 2, 3, 8][r.below(6)];
        let channels = [1 + r.below(9), if r.below(4) == 0 { 1 + r.below(20) } else { 1 + r.below(5) }];
        let channels = if r.below(6) == 0 { [1, 1] } else { channels };
        let axis =
            |r: &mut Random, least: usize, most: usize| (0..n).map(|_| least + r.below(most)).collect();
        let mut s = Sizes {
            batch: 1 + r.below(3),
            groups,
            channels,
            spatial: axis(r, 1, most),
            kernel: axis(r, 1, 4),
            stride: axis(r, 1, 3),
            dilation: axis(r, 1, 3),
            lo: (0..n).map(|_| r.within(-2, 4)).collect(),
            hi: (0..n).map(|_| r.within(-2, 4)).collect(),
        };
        match r.below(20) {
            0 => s.batch = 0,
            1 => s.channels[0] = 0,
            2 => s.channels[1] = 0,
            3 => s.spatial[0] = 0,
            4 => s.kernel[0] = 0,
            5 => s.stride[n - 1] = 7,
            6 => (s.kernel[0], s.dilation[0], s.lo[0]) = (3, 1500, 3000 - r.within(0, 2)),
            _ => {}
        }
        s
    }

    fn conv(&self) -> Conv<'_> {
        Conv {
            batch: self.batch,
            groups: self.groups,
            in_channels: self.groups * self.channels[0],
            out_channels: self.groups * self.channels[1],
            in_spatial: &self.spatial,
            kernel: &self.kernel,
            stride: &self.stride,
            dilation: &self.dilation,
            pad_lo: &self.lo,
            pad_hi: &self.hi,
        }
    }

    /// Calls `f` with every triple of places in x, w and y whose product is in the sum.
    fn each(&self, mut f: impl FnMut(usize, usize, usize)) {
        let c = self.conv();
        let out: Vec<usize> = c.out_spatial().collect();
        let (image, taps, positions): (usize, usize, usize) =
            (self.spatial.iter().product(), self.kernel.iter().product(), out.iter().product());
        for p in 0..positions {
            for k in 0..taps {
                let (mut at, mut scale, mut inside, mut p_rest, mut k_rest) = (0, 1, true, p, k);
                for i in (0..out.len()).rev() {
                    let (o, j) = (p_rest % out[i], k_rest % self.kernel[i]);
                    (p_rest, k_rest) = (p_rest / out[i], k_rest / self.kernel[i]);
                    let x = (o * self.stride[i] + j * self.dilation[i]) as isize - self.lo[i];
                    inside &= x >= 0 && x < self.spatial[i] as isize;
                    at += x * scale;
                    scale *= self.spatial[i] as isize;
                }
                if !inside {
                    continue;
                }
                for n in 0..self.batch {
                    for m in 0..c.out_channels {
                        let g = m / self.channels[1];
                        for ch in 0..self.channels[0] {
                            f(
                                (n * c.in_channels + g * self.channels[0] + ch) * image + at as usize,
                                (m * self.channels[0] + ch) * taps + k,
                                (n * c.out_channels + m) * positions + p,
                            );
                        }
                    }
                }
            }
        }
    }
}

fn with_scratch<R>(size: ScratchSize, threads: usize, f: impl FnOnce(&Scratch) -> R) -> R {
    let memory = Buffer::new(size.total(threads));
    // What earlier kernels leave in the scratch must not matter.
    // SAFETY: the buffer is that large.
    unsafe { memory.ptr().write_bytes(0xff, memory.len()) };
    // SAFETY: the memory lives until the end of the call.
    f(&unsafe { Scratch::new(memory.ptr(), size, threads) })
}

fn values<T: Value>(r: &mut Random, n: usize) -> Vec<T> {
    (0..n).map(|_| T::of(r)).collect()
}

/// Compares with the exact sums, given those of the magnitudes.
fn check<T: Value>(name: &str, s: &Sizes, level: Level, got: &[T], want: &[(f64, f64)]) {
    assert_eq!(got.len(), want.len());
    for (i, (g, (w, size))) in got.iter().zip(want).enumerate() {
        let error = (g.f64() - w).abs();
        assert!(error <= T::TOLERANCE * (size + 1e-30) * 4.0, "{name} {s:?} {level} at {i}: {g:?}, not {w}");
    }
}

fn same_bits<T: Value>(name: &str, s: &Sizes, runs: &[Vec<T>]) {
    for r in runs {
        assert!(
            r.iter().zip(&runs[0]).all(|(a, b)| a.f64().to_bits() == b.f64().to_bits()),
            "{name} {s:?}: the threads change the bits"
        );
    }
}

fn fresh<T: Value>(n: usize) -> Vec<T> {
    // Not what a result may be.
    vec![T::of(&mut Random(99)); n]
}

fn compare<T: Value>(s: &Sizes, pools: &[Pool], gradients: bool) {
    let c = s.conv();
    assert!(c.is_valid());
    let r = &mut Random(7);
    let (x, w, dy): (Vec<T>, Vec<T>, Vec<T>) =
        (values(r, c.inputs()), values(r, c.weights()), values(r, c.outputs()));
    let zeros = |n: usize| vec![(0.0, 0.0); n];
    let (mut y, mut dx, mut dw) = (zeros(c.outputs()), zeros(c.inputs()), zeros(c.weights()));
    s.each(|i, j, k| {
        let add = |to: &mut (f64, f64), p: f64| *to = (to.0 + p, to.1 + p.abs());
        add(&mut y[k], x[i].f64() * w[j].f64());
        add(&mut dx[i], dy[k].f64() * w[j].f64());
        add(&mut dw[j], dy[k].f64() * x[i].f64());
    });
    for level in Level::available() {
        let mut runs = [vec![], vec![], vec![], vec![]];
        for pool in pools {
            let n = pool.threads();
            let mut got = fresh::<T>(c.outputs());
            // SAFETY: all tensors have the sizes of the convolution.
            unsafe {
                with_scratch(c.scratch::<T>(level, false), n, |scratch| {
                    c.run_to(level, pool, scratch, x.as_ptr(), Weights::Plain(w.as_ptr()), got.as_mut_ptr())
                });
                check("conv", s, level, &got, &y);
                runs[0].push(got);
                // Packed for a larger input.
                let large: Vec<usize> = s.spatial.iter().map(|n| n + 9).collect();
                let other = Conv { batch: 7, in_spatial: &large, ..c };
                if let Some(packed) = other.pack(level, pool, w.as_ptr()) {
                    let mut got = fresh::<T>(c.outputs());
                    with_scratch(c.scratch::<T>(level, true), n, |scratch| {
                        c.run_to(level, pool, scratch, x.as_ptr(), Weights::Packed(&packed), got.as_mut_ptr())
                    });
                    runs[0].push(got);
                } else {
                    assert!(s.dilation.contains(&1500));
                }
                if !gradients {
                    continue;
                }
                let mut got = fresh::<T>(c.inputs());
                with_scratch(c.grad_input_scratch::<T>(level), n, |scratch| {
                    c.grad_input(level, pool, scratch, dy.as_ptr(), w.as_ptr(), got.as_mut_ptr())
                });
                check("grad_input", s, level, &got, &dx);
                runs[1].push(got);
                let mut got = fresh::<T>(c.weights());
                with_scratch(c.grad_weight_scratch::<T>(level), n, |scratch| {
                    c.grad_weight(level, pool, scratch, x.as_ptr(), dy.as_ptr(), got.as_mut_ptr())
                });
                check("grad_weight", s, level, &got, &dw);
                runs[2].push(got);
            }
        }
        runs.iter().filter(|r| !r.is_empty()).for_each(|r| same_bits("any", s, r));
    }
}

fn pools() -> [Pool; 3] {
    [1, 2, 3].map(Pool::new)
}

#[test]
fn random_sizes() {
    let (r, pools) = (&mut Random(1), pools());
    for _ in 0..250 {
        let s = Sizes::random(r);
        compare::<f32>(&s, &pools, true);
        compare::<f64>(&s, &pools, true);
        compare::<i64>(&s, &pools, false);
    }
}

#[test]
fn chosen_sizes() {
    let pools = pools();
    for s in [
        Sizes::new(1, 1, [16, 24], &[28, 30], &[3, 3]).pad(1, 1),
        Sizes::new(2, 1, [5, 19], &[33, 17], &[3, 3]).pad(1, 1).stride(2),
        Sizes::new(1, 1, [3, 16], &[40, 40], &[7, 7]).pad(3, 3).stride(2),
        Sizes::new(5, 1, [40, 33], &[7, 7], &[3, 3]).pad(1, 1),
        Sizes::new(1, 1, [64, 48], &[14, 14], &[1, 1]),
        Sizes::new(3, 1, [20, 12], &[13, 13], &[1, 1]).stride(2),
        Sizes::new(1, 32, [1, 1], &[31, 29], &[3, 3]).pad(1, 1),
        Sizes::new(2, 12, [1, 2], &[15, 15], &[5, 5]).pad(2, 2).stride(2),
        Sizes::new(1, 1, [3, 20], &[32, 32], &[8, 8]).stride(8),
        Sizes::new(1, 1, [2, 3], &[2000], &[25]).pad(24, 0),
        Sizes::new(1, 1, [2, 3], &[900], &[5]).stride(3).dilation(7),
        Sizes::new(70, 1, [3, 4], &[5], &[3]).pad(1, 1),
        Sizes::new(1, 1, [4, 4], &[9, 9, 9], &[3, 3, 3]).pad(1, 1),
        Sizes::new(1, 1, [6, 9], &[33, 21], &[3, 1]).pad(1, 1),
        Sizes::new(1, 1, [8, 8], &[21, 21], &[3, 3]).pad(6, 6).dilation(6),
        Sizes::new(1, 1, [600, 9], &[24, 24], &[3, 3]).pad(1, 1),
        Sizes::new(1, 2, [300, 16], &[30, 30], &[1, 1]),
    ] {
        compare::<f32>(&s, &pools, true);
        compare::<f64>(&s, &pools, true);
    }
}

#[test]
fn integers_wrap() {
    let s = Sizes::new(1, 1, [2, 1], &[4], &[2]);
    let (c, pool) = (s.conv(), Pool::new(1));
    let (x, w) = (vec![i64::MAX; c.inputs()], vec![3i64; c.weights()]);
    for level in Level::available() {
        let mut y = vec![0; c.outputs()];
        // SAFETY: all tensors have the sizes of the convolution.
        with_scratch(c.scratch::<i64>(level, false), 1, |scratch| unsafe {
            c.run_to(level, &pool, scratch, x.as_ptr(), Weights::Plain(w.as_ptr()), y.as_mut_ptr())
        });
        assert_eq!(y, vec![i64::MAX.wrapping_mul(12); c.outputs()]);
    }
}

/// Records which results have come.
struct Seen {
    channels: usize,
    positions: usize,
    count: Mutex<Vec<u32>>,
}

impl Sink<f32> for Seen {
    unsafe fn block(
        &self,
        _: usize,
        batch: usize,
        channels: Range<usize>,
        positions: Range<usize>,
        acc: *mut f32,
        stride: usize,
    ) {
        let mut count = self.count.lock().unwrap();
        for (i, c) in channels.enumerate() {
            for (j, p) in positions.clone().enumerate() {
                // SAFETY: the block has these rows and columns.
                let got = unsafe { *acc.add(i * stride + j) };
                assert_eq!(got, 9.0);
                count[(batch * self.channels + c) * self.positions + p] += 1;
            }
        }
    }
}

#[test]
fn a_sink_gets_every_result_once() {
    for s in [
        Sizes::new(3, 1, [1, 20], &[50, 23], &[3, 3]),
        Sizes::new(9, 4, [1, 1], &[6, 6], &[3, 3]),
        Sizes::new(2, 1, [1, 3], &[3000], &[9]),
    ] {
        let (c, pool) = (s.conv(), Pool::new(2));
        let (x, w) = (vec![1.0f32; c.inputs()], vec![1.0f32; c.weights()]);
        for level in Level::available() {
            let (channels, positions) = (c.out_channels, c.positions());
            let seen = Seen { channels, positions, count: Mutex::new(vec![0; c.outputs()]) };
            // SAFETY: all tensors have the sizes of the convolution.
            with_scratch(c.scratch::<f32>(level, false), 2, |scratch| unsafe {
                c.run(level, &pool, scratch, x.as_ptr(), Weights::Plain(w.as_ptr()), &seen)
            });
            assert!(seen.count.into_inner().unwrap().iter().all(|n| *n == 1), "{s:?}");
        }
    }
}

/// An infinite input reaches the sums that it is in, and no others.
#[test]
fn infinities_stay_where_they_are() {
    let s = Sizes::new(1, 1, [1, 1], &[9, 9], &[2, 2]).pad(1, 0);
    let (c, pool) = (s.conv(), Pool::new(1));
    let mut x = vec![1.0f32; c.inputs()];
    x[17] = f32::INFINITY;
    // The second tap of a row meets the last column, the first does not.
    let dy: Vec<f32> = (0..c.outputs()).map(|_| 1.0).collect();
    for level in Level::available() {
        let mut dw = vec![0.0; c.weights()];
        // SAFETY: all tensors have the sizes of the convolution.
        with_scratch(c.grad_weight_scratch::<f32>(level), 1, |scratch| unsafe {
            c.grad_weight(level, &pool, scratch, x.as_ptr(), dy.as_ptr(), dw.as_mut_ptr())
        });
        assert_eq!(dw, [64.0, f32::INFINITY, 72.0, f32::INFINITY], "{level}");
    }
}

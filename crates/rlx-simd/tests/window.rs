//! Windows against the plainest loops, at every level and with any number of threads.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx_simd::level::Level;
use rlx_simd::mem::{Buffer, Scratch, ScratchSize};
use rlx_simd::pool::Pool;
use rlx_simd::window::{Element, Kind, Window};

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }
    fn within(&mut self, from: isize, to: isize) -> isize {
        from + self.below((to - from + 1) as usize) as isize
    }
}

trait Value: Element + PartialOrd + std::fmt::Debug {
    fn of(r: &mut Random) -> Self;
    fn f64(self) -> f64;
    const TOLERANCE: f64;
}
impl Value for f32 {
    fn of(r: &mut Random) -> f32 {
        match r.below(40) {
            0 => f32::NAN,
            1 => f32::NEG_INFINITY,
            _ => r.within(-30, 30) as f32 / 7.0,
        }
    }
    fn f64(self) -> f64 {
        self as f64
    }
    const TOLERANCE: f64 = 1e-5;
}
impl Value for f64 {
    fn of(r: &mut Random) -> f64 {
        if r.below(40) == 0 { f64::NAN } else { r.within(-30, 30) as f64 / 7.0 }
    }
    fn f64(self) -> f64 {
        self
    }
    const TOLERANCE: f64 = 1e-13;
}
impl Value for i64 {
    fn of(r: &mut Random) -> i64 {
        r.within(-30, 30) as i64
    }
    fn f64(self) -> f64 {
        self as f64
    }
    const TOLERANCE: f64 = 0.0;
}

#[derive(Clone, Debug)]
struct Sizes {
    lead: usize,
    spatial: Vec<usize>,
    kernel: Vec<usize>,
    stride: Vec<usize>,
    dilation: Vec<usize>,
    lo: Vec<isize>,
    hi: Vec<isize>,
}

impl Sizes {
    fn new(lead: usize, spatial: &[usize], kernel: &[usize], stride: usize, pad: isize) -> Sizes {
        let n = spatial.len();
        Sizes {
            lead,
            spatial: spatial.to_vec(),
            kernel: kernel.to_vec(),
            stride: vec![stride; n],
            dilation: vec![1; n],
            lo: vec![pad; n],
            hi: vec![pad; n],
        }
    }

    fn random(r: &mut Random) -> Sizes {
        let n = r.below(5);
        let most = [1, 60, 12, 6, 4][n];
        let axis =
            |r: &mut Random, least: usize, most: usize| (0..n).map(|_| least + r.below(most)).collect();
        let mut s = Sizes {
            lead: 1 + r.below(4),
            spatial: axis(r, 1, most),
            kernel: axis(r, 1, 4),
            stride: axis(r, 1, 3),
            dilation: axis(r, 1, 2),
            lo: (0..n).map(|_| r.within(-2, 4)).collect(),
            hi: (0..n).map(|_| r.within(-2, 4)).collect(),
        };
        for i in 0..n {
            match r.below(4) {
                // Axes that may be merged.
                0 => (s.kernel[i], s.stride[i], s.lo[i], s.hi[i]) = (1, 1, 0, 0),
                1 => (s.kernel[i], s.dilation[i], s.lo[i], s.hi[i]) = (s.spatial[i], 1, 0, 0),
                _ => {}
            }
        }
        match r.below(12) {
            0 => s.lead = 0,
            1 if n > 0 => s.spatial[0] = 0,
            _ => {}
        }
        s.kernel.iter_mut().for_each(|k| *k = (*k).max(1));
        s
    }

    fn window(&self) -> Window<'_> {
        Window {
            lead: self.lead,
            spatial: &self.spatial,
            kernel: &self.kernel,
            stride: &self.stride,
            dilation: &self.dilation,
            pad_lo: &self.lo,
            pad_hi: &self.hi,
        }
    }

    /// The places of the elements of each window, in order.
    fn windows(&self) -> Vec<Vec<usize>> {
        let out: Vec<usize> = self.window().out_spatial().collect();
        let (count, taps): (usize, usize) = (out.iter().product(), self.kernel.iter().product());
        let window = |p: usize| {
            let tap = |k: usize| {
                let (mut at, mut scale, mut p, mut k) = (0, 1, p, k);
                for i in (0..out.len()).rev() {
                    let x = (p % out[i] * self.stride[i] + k % self.kernel[i] * self.dilation[i]) as isize
                        - self.lo[i];
                    (p, k) = (p / out[i], k / self.kernel[i]);
                    if x < 0 || x >= self.spatial[i] as isize {
                        return None;
                    }
                    at += x as usize * scale;
                    scale *= self.spatial[i];
                }
                Some(at)
            };
            (0..taps).filter_map(tap).collect()
        };
        (0..count).map(window).collect()
    }
}

fn with_scratch(size: ScratchSize, threads: usize, f: impl FnOnce(&Scratch)) {
    let memory = Buffer::new(size.total(threads));
    // SAFETY: the buffer is that large, and lives until the end of the call.
    f(&unsafe {
        memory.ptr().write_bytes(0xff, memory.len());
        Scratch::new(memory.ptr(), size, threads)
    })
}

fn same(a: f64, b: f64, tolerance: f64) -> bool {
    a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance * (1.0 + b.abs())
}

fn compare<T: Value>(s: &Sizes, pools: &[Pool]) {
    let (w, r) = (s.window(), &mut Random(5));
    assert!(w.is_valid());
    let x: Vec<T> = (0..w.inputs()).map(|_| T::of(r)).collect();
    let (windows, image) = (s.windows(), s.spatial.iter().product::<usize>());
    for kind in [Kind::Sum, Kind::Max, Kind::Min] {
        let better = |new: f64, old: f64| {
            (new.is_nan() && !old.is_nan()) || if kind == Kind::Min { new < old } else { new > old }
        };
        let (mut want, mut places) = (vec![], vec![]);
        for window in (0..s.lead).flat_map(|l| windows.iter().map(move |w| w.iter().map(move |p| (l, p)))) {
            let (mut best, mut sum, mut size) = (None, 0.0, 0.0);
            for (l, p) in window {
                let v = x[l * image + p].f64();
                (sum, size) = (sum + v, size + v.abs());
                if best.is_none_or(|(_, old)| better(v, old)) {
                    best = Some((*p as i64, v));
                }
            }
            let nothing = if kind == Kind::Min { T::GREATEST } else { T::LEAST }.f64();
            places.push(best.map_or(-1, |b| b.0));
            want.push(if kind == Kind::Sum { (sum, size) } else { (best.map_or(nothing, |b| b.1), 0.0) });
        }
        for level in Level::available() {
            let mut bits: Option<Vec<u64>> = None;
            for pool in pools {
                let n = pool.threads();
                let mut y = vec![T::of(&mut Random(3)); w.outputs()];
                let mut at = vec![-7; w.outputs()];
                with_scratch(w.scratch::<T>(), n, |scratch| {
                    // SAFETY: the tensors have the sizes of the windows.
                    unsafe {
                        w.reduce(level, pool, scratch, kind, x.as_ptr(), y.as_mut_ptr());
                        w.argmax(level, pool, scratch, kind, x.as_ptr(), at.as_mut_ptr());
                    }
                });
                assert_eq!(y.len(), want.len());
                for (i, (y, (want, size))) in y.iter().zip(&want).enumerate() {
                    assert!(
                        same(y.f64(), *want, T::TOLERANCE * size),
                        "{s:?} {kind:?} {level} at {i}: {y:?}, not {want}"
                    );
                }
                if kind != Kind::Sum {
                    assert_eq!(at, places, "{s:?} {kind:?} {level}");
                }
                let got: Vec<u64> = y.iter().map(|y| y.f64().to_bits()).collect();
                assert_eq!(
                    bits.get_or_insert_with(|| got.clone()),
                    &got,
                    "{s:?}: the threads change the bits"
                );
            }
        }
    }
}

#[test]
fn random_sizes() {
    let (r, pools) = (&mut Random(1), [1, 2, 3].map(Pool::new));
    for _ in 0..500 {
        let s = Sizes::random(r);
        compare::<f32>(&s, &pools);
        compare::<f64>(&s, &pools);
        compare::<i64>(&s, &pools);
    }
}

#[test]
fn chosen_sizes() {
    let pools = [1, 2, 3].map(Pool::new);
    for s in [
        Sizes::new(6, &[56, 57], &[3, 3], 2, 1),
        Sizes::new(20, &[14, 14], &[2, 2], 2, 0),
        Sizes::new(33, &[7, 7], &[7, 7], 1, 0),
        Sizes::new(2, &[5000], &[9], 1, 4),
        Sizes::new(2, &[5000], &[4], 4, 0),
        Sizes::new(1, &[5000], &[4000], 500, 0),
        Sizes::new(3, &[20, 20], &[17, 17], 1, 8),
        Sizes::new(1, &[8, 9, 40], &[2, 2, 1], 1, 0),
        Sizes::new(2500, &[], &[], 1, 0),
        Sizes::new(1, &[4], &[2], 1, 20),
    ] {
        compare::<f32>(&s, &pools);
        compare::<f64>(&s, &pools);
        compare::<i64>(&s, &pools);
    }
}

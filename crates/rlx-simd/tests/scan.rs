//! Scans and their gradients against plain loops in f64.
#![allow(clippy::indexing_slicing, clippy::unwrap_used, clippy::undocumented_unsafe_blocks)]

use rlx_simd::attention::Real;
use rlx_simd::level::Level;
use rlx_simd::mem::{Buffer, Scratch, ScratchSize, View};
use rlx_simd::pool::Pool;
use rlx_simd::scan::{LinearScan, ScanInputs, SelectiveScan};

/// A small generator of numbers.
struct Rng(u64);
impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let x = (self.0 ^ (self.0 >> 33)).wrapping_mul(0xff51afd7ed558ccd);
        x ^ (x >> 33)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    fn float(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// Elements of the types in the views.
trait Element: Copy + 'static {
    fn from_f64(x: f64) -> Self;
    fn f(self) -> f64;
}
macro_rules! element {
    ($($t:ty),*) => {$(impl Element for $t {
        fn from_f64(x: f64) -> $t { x as $t }
        fn f(self) -> f64 { self as f64 }
    })*};
}
element!(f32, f64);

/// A tensor with its own shape, and a layout of its own.
struct Tensor<T, const R: usize> {
    data: Vec<T>,
    offset: usize,
    shape: [usize; R],
    strides: [isize; R],
}

impl<T: Element, const R: usize> Tensor<T, R> {
    fn new(rng: &mut Rng, shape: [usize; R], strange: bool, fill: impl Fn(&mut Rng) -> f64) -> Self {
        let mut order: Vec<usize> = (0..R).rev().collect();
        if strange {
            for i in (1..R).rev() {
                order.swap(i, rng.below(i + 1));
            }
        }
        let (mut strides, mut n) = ([0isize; R], 1usize);
        for i in order {
            let gap = if strange { rng.below(3) } else { 0 };
            strides[i] = n as isize;
            n *= shape[i].max(1) + gap;
        }
        let data = (0..n).map(|_| T::from_f64(fill(rng))).collect();
        let mut offset = 0;
        if strange && shape.iter().all(|d| *d > 0) && rng.chance(30) {
            let axis = rng.below(R);
            offset = (shape[axis] - 1) * strides[axis] as usize;
            strides[axis] = -strides[axis];
        }
        Tensor { data, offset, shape, strides }
    }
    fn random(rng: &mut Rng, shape: [usize; R], strange: bool) -> Self {
        Tensor::new(rng, shape, strange, |r| r.float() * 1.5)
    }
    fn index(&self, at: [usize; R]) -> usize {
        (self.offset as isize + (0..R).map(|i| at[i] as isize * self.strides[i]).sum::<isize>()) as usize
    }
    fn get(&self, at: [usize; R]) -> f64 {
        self.data[self.index(at)].f()
    }
    fn view(&mut self) -> View<T, R> {
        View {
            ptr: self.data.as_mut_ptr().wrapping_add(self.offset),
            shape: self.shape,
            strides: self.strides,
        }
    }
}

fn with_scratch<R>(size: ScratchSize, threads: usize, f: impl FnOnce(&Scratch) -> R) -> R {
    let buffer = Buffer::new(size.total(threads));
    unsafe { std::slice::from_raw_parts_mut(buffer.ptr(), buffer.len()) }.fill(0xff);
    f(&unsafe { Scratch::new(buffer.ptr(), size, threads) })
}

fn pools() -> Vec<Pool> {
    [1, 2, 3].map(Pool::new).into()
}

fn close(got: f64, want: f64, tolerance: f64, what: impl FnOnce() -> String) {
    assert!((got - want).abs() <= tolerance * (1.0 + want.abs()), "{}: {got} for {want}", what());
}

#[derive(Clone, Debug, Default)]
struct Case {
    b: usize,
    s: usize,
    h: usize,
    n: usize,
    d: bool,
    z: bool,
    bias: bool,
    state: bool,
    softplus: bool,
    strange: bool,
}

struct Operands<T> {
    x: Tensor<T, 3>,
    delta: Tensor<T, 3>,
    a: Tensor<T, 2>,
    b: Tensor<T, 3>,
    c: Tensor<T, 3>,
    d: Option<Tensor<T, 1>>,
    z: Option<Tensor<T, 3>>,
    bias: Option<Tensor<T, 1>>,
    state: Option<Tensor<T, 3>>,
}

/// The results of the plain loop.
struct Plain {
    y: Vec<f64>,
    last: Vec<f64>,
}

impl Case {
    fn operands<T: Element>(&self, rng: &mut Rng) -> Operands<T> {
        let Case { b, s, h, n, strange, .. } = *self;
        let step = if self.softplus { -3.0 } else { 0.1 };
        Operands {
            x: Tensor::random(rng, [b, s, h], strange),
            delta: Tensor::new(rng, [b, s, h], strange, |r| {
                step + (r.float() + 1.0) * if step < 0.0 { 2.0 } else { 0.3 }
            }),
            a: Tensor::new(rng, [h, n], strange, |r| -0.2 - (r.float() + 1.0)),
            b: Tensor::random(rng, [b, s, n], strange),
            c: Tensor::random(rng, [b, s, n], strange),
            d: self.d.then(|| Tensor::random(rng, [h], strange)),
            z: self.z.then(|| Tensor::random(rng, [b, s, h], strange)),
            bias: self.bias.then(|| Tensor::new(rng, [h], strange, |r| 0.1 * (r.float() + 1.0))),
            state: self.state.then(|| Tensor::random(rng, [b, h, n], strange)),
        }
    }
    fn inputs<T: Real + Element>(&self, o: &mut Operands<T>) -> ScanInputs<T> {
        ScanInputs {
            x: o.x.view(),
            delta: o.delta.view(),
            a: o.a.view(),
            b: o.b.view(),
            c: o.c.view(),
            d: o.d.as_mut().map(Tensor::view),
            z: o.z.as_mut().map(Tensor::view),
            delta_bias: o.bias.as_mut().map(Tensor::view),
            state: o.state.as_mut().map(Tensor::view),
            softplus: self.softplus,
        }
    }
    fn plain<T: Element>(&self, o: &Operands<T>) -> Plain {
        let Case { b, s, h, n, .. } = *self;
        let (mut y, mut last) = (vec![0.0; b * s * h], vec![0.0; b * h * n]);
        for (bi, hi) in (0..b * h).map(|i| (i / h, i % h)) {
            let mut state: Vec<f64> =
                (0..n).map(|i| o.state.as_ref().map_or(0.0, |s| s.get([bi, hi, i]))).collect();
            for t in 0..s {
                let x = o.x.get([bi, t, hi]);
                let raw = o.delta.get([bi, t, hi]) + o.bias.as_ref().map_or(0.0, |b| b.get([hi]));
                let dt = if self.softplus { raw.exp().ln_1p() } else { raw };
                let mut out = 0.0;
                for (i, state) in state.iter_mut().enumerate() {
                    *state = (dt * o.a.get([hi, i])).exp() * *state + dt * o.b.get([bi, t, i]) * x;
                    out += o.c.get([bi, t, i]) * *state;
                }
                out += o.d.as_ref().map_or(0.0, |d| d.get([hi]) * x);
                out *= o.z.as_ref().map_or(1.0, |z| {
                    let z = z.get([bi, t, hi]);
                    z / (1.0 + (-z).exp())
                });
                y[(bi * s + t) * h + hi] = out;
            }
            last[(bi * h + hi) * n..][..n].copy_from_slice(&state);
        }
        Plain { y, last }
    }
}

fn check_forward<T: Real + Element>(case: &Case, rng: &mut Rng, pools: &[Pool], tolerance: f64) {
    let mut o: Operands<T> = case.operands(rng);
    let Case { b, s, h, n, strange, .. } = *case;
    let want = case.plain(&o);
    for level in Level::available() {
        let mut first: Option<Vec<u64>> = None;
        for pool in pools {
            let mut y: Tensor<T, 3> = Tensor::new(rng, [b, s, h], strange, |_| f64::NAN);
            let mut last: Tensor<T, 3> = Tensor::new(rng, [b, h, n], strange, |_| f64::NAN);
            let scan = SelectiveScan { inputs: case.inputs(&mut o), y: y.view(), last: Some(last.view()) };
            with_scratch(scan.scratch(), pool.threads(), |s| unsafe { scan.run(level, pool, s) });
            let mut bits = Vec::new();
            for (i, want) in want.y.iter().enumerate() {
                let got = y.get([i / (s * h), i / h % s, i % h]);
                close(got, *want, tolerance, || format!("{level} {case:?} y {i}"));
                bits.push(got.to_bits());
            }
            for (i, want) in want.last.iter().enumerate() {
                let got = last.get([i / (h * n), i / n % h, i % n]);
                close(got, *want, tolerance, || format!("{level} {case:?} last {i}"));
                bits.push(got.to_bits());
            }
            assert_eq!(
                first.get_or_insert_with(|| bits.clone()),
                &bits,
                "{level} {} threads {case:?}",
                pool.threads()
            );
        }
    }
}

fn random_case(rng: &mut Rng) -> Case {
    Case {
        b: 1 + rng.below(3),
        s: [0, 1, 2, 7, 31, 32, 33, 70][rng.below(8)],
        h: [0, 1, 3, 8, 15, 16, 33, 64, 67, 130][rng.below(10)],
        n: [0, 1, 2, 3, 4, 7, 8, 16, 21, 40][rng.below(10)],
        d: rng.chance(50),
        z: rng.chance(50),
        bias: rng.chance(50),
        state: rng.chance(50),
        softplus: rng.chance(50),
        strange: rng.chance(50),
    }
}

#[test]
fn selective_scan_with_all_options() {
    let (mut rng, pools) = (Rng(1), pools());
    for i in 0..150 {
        let case = random_case(&mut rng);
        check_forward::<f32>(&case, &mut rng, &pools, 2e-5);
        if i % 3 == 0 {
            check_forward::<f64>(&case, &mut rng, &pools, 1e-12);
        }
    }
}

#[test]
fn a_long_and_wide_scan() {
    let (mut rng, pools) = (Rng(2), pools());
    let case = Case { b: 2, s: 300, h: 600, n: 16, d: true, softplus: true, ..Case::default() };
    check_forward::<f32>(&case, &mut rng, &pools, 2e-5);
}

#[test]
fn large_steps_forget_all_and_never_fail() {
    let mut rng = Rng(3);
    let case = Case { b: 1, s: 3, h: 17, n: 4, state: true, ..Case::default() };
    for (step, factor) in [(1e4, 0.0), (1e30, 0.0), (0.0, 1.0)] {
        let mut o: Operands<f32> = case.operands(&mut rng);
        o.delta.data.fill(step);
        o.x.data.fill(0.0);
        let state: Vec<f32> = o.state.as_ref().unwrap().data.clone();
        for level in Level::available() {
            let (mut y, mut last) =
                (Tensor::random(&mut rng, [1, 3, 17], false), Tensor::random(&mut rng, [1, 17, 4], false));
            let scan = SelectiveScan { inputs: case.inputs(&mut o), y: y.view(), last: Some(last.view()) };
            let pool = Pool::new(1);
            with_scratch(scan.scratch(), 1, |s| unsafe { scan.run(level, &pool, s) });
            for (got, before) in last.data.iter().zip(&state) {
                assert_eq!(*got, before * factor, "{level} step {step}");
            }
        }
    }
}

#[test]
fn linear_scans_along_any_axis() {
    let (mut rng, pools) = (Rng(4), pools());
    for round in 0..120 {
        let shape: [usize; 3] = std::array::from_fn(|_| [0, 1, 2, 5, 16, 17, 40][rng.below(7)]);
        let strange = round % 2 == 0;
        let (mut a, mut b) = (
            Tensor::<f32, 3>::random(&mut rng, shape, strange),
            Tensor::<f32, 3>::random(&mut rng, shape, strange),
        );
        for level in Level::available() {
            let mut first: Option<Vec<f32>> = None;
            for pool in &pools {
                let mut y = Tensor::<f32, 3>::new(&mut rng, shape, false, |_| f64::NAN);
                let scan = LinearScan { a: a.view(), b: b.view(), y: y.view() };
                unsafe { scan.run(level, pool) };
                for (i, k) in (0..shape[0] * shape[2]).map(|n| (n / shape[2], n % shape[2])) {
                    let (mut total, mut size) = (0.0, 0.0);
                    for t in 0..shape[1] {
                        let (a, b) = (a.get([i, t, k]), b.get([i, t, k]));
                        total = if t == 0 { b } else { a * total + b };
                        size = if t == 0 { b.abs() } else { a.abs() * size + b.abs() };
                        let got = y.get([i, t, k]);
                        assert!((got - total).abs() <= 1e-5 * size, "{level} {shape:?}: {got} for {total}");
                    }
                }
                let len = shape.iter().product::<usize>();
                let bits = y.data[..len].to_vec();
                assert_eq!(first.get_or_insert_with(|| bits.clone()), &bits);
            }
        }
    }
}

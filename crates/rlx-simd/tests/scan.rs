//! Scans and their gradients against plain loops in f64.
#![allow(clippy::indexing_slicing, clippy::unwrap_used, clippy::undocumented_unsafe_blocks)]

use rlx_simd::attention::Real;
use rlx_simd::level::Level;
use rlx_simd::mem::{Buffer, Scratch, ScratchSize, View};
use rlx_simd::pool::Pool;
use rlx_simd::scan::{LinearScan, Out, ScanInputs, SelectiveScan, SelectiveScanGrad};
use rlx_simd::sink::Sink;
use std::ops::Range;
use std::sync::Mutex;

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

/// Keeps what it gets in `[b, s, h]`, and then spoils the block, which is its own.
struct Keep<T> {
    y: Mutex<Vec<Option<T>>>,
    s: usize,
    h: usize,
}

impl<T: Element + Send> Sink<T> for Keep<T> {
    unsafe fn block(
        &self,
        _: usize,
        batch: usize,
        rows: Range<usize>,
        cols: Range<usize>,
        acc: *mut T,
        stride: usize,
    ) {
        let mut y = self.y.lock().unwrap();
        for (i, t) in rows.enumerate() {
            for (j, h) in cols.clone().enumerate() {
                let from = unsafe { &mut *acc.add(i * stride + j) };
                let before = y[(batch * self.s + t) * self.h + h].replace(*from);
                assert!(before.is_none(), "batch {batch} step {t} channel {h} came twice");
                *from = T::from_f64(f64::NAN);
            }
        }
    }
}

fn check_forward<T: Real + Element>(case: &Case, rng: &mut Rng, pools: &[Pool], tolerance: f64) {
    let mut o: Operands<T> = case.operands(rng);
    let Case { b, s, h, n, strange, .. } = *case;
    let want = case.plain(&o);
    for level in Level::available() {
        let mut first: Option<Vec<u64>> = None;
        for (pool, sunk) in pools.iter().flat_map(|p| [(p, false), (p, true)]) {
            let mut y: Tensor<T, 3> = Tensor::new(rng, [b, s, h], strange, |_| f64::NAN);
            let mut last: Tensor<T, 3> = Tensor::new(rng, [b, h, n], strange, |_| f64::NAN);
            let keep = Keep { y: vec![None; b * s * h].into(), s, h };
            let out = if sunk { Out::Sink(&keep) } else { Out::Direct(y.view()) };
            let scan = SelectiveScan { inputs: case.inputs(&mut o), y: out, last: Some(last.view()) };
            with_scratch(scan.scratch(), pool.threads(), |s| unsafe { scan.run(level, pool, s) });
            let y: Vec<f64> = match sunk {
                true => keep.y.into_inner().unwrap().into_iter().map(|x| x.unwrap().f()).collect(),
                false => flat(&y),
            };
            let last = flat(&last);
            for (name, got, want) in [("y", &y, &want.y), ("last", &last, &want.last)] {
                for (i, (got, want)) in got.iter().zip(want).enumerate() {
                    close(*got, *want, tolerance, || format!("{level} {case:?} {name} {i}"));
                }
            }
            let bits: Vec<u64> = y.into_iter().chain(last).map(f64::to_bits).collect();
            assert_eq!(
                first.get_or_insert_with(|| bits.clone()),
                &bits,
                "{level} {} threads, a sink: {sunk}, {case:?}",
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
    // The time steps as they lie, and made; 24 of 600 channels remain for the last task.
    for softplus in [false, true] {
        let case = Case { b: 2, s: 300, h: 600, n: 16, d: true, softplus, ..Case::default() };
        check_forward::<f32>(&case, &mut rng, &pools, 2e-5);
    }
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
            let scan = SelectiveScan {
                inputs: case.inputs(&mut o),
                y: Out::Direct(y.view()),
                last: Some(last.view()),
            };
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

/// The gradients that come in.
struct Incoming<T> {
    dy: Tensor<T, 3>,
    dlast: Option<Tensor<T, 3>>,
}

/// The names of the gradients that go out, in order.
const NAMES: [&str; 9] = ["dx", "ddelta", "da", "db", "dc", "dd", "dz", "dbias", "dstate"];

impl Case {
    fn incoming<T: Element>(&self, rng: &mut Rng) -> Incoming<T> {
        Incoming {
            dy: Tensor::random(rng, [self.b, self.s, self.h], self.strange),
            dlast: rng.chance(50).then(|| Tensor::random(rng, [self.b, self.h, self.n], self.strange)),
        }
    }

    /// The gradients in row-major order, none for an operand that is not given.
    fn grads<T: Element>(&self, o: &Operands<T>, i: &Incoming<T>) -> [Vec<f64>; 9] {
        let Case { b, s, h, n, .. } = *self;
        let given = |yes: bool, len: usize| vec![0.0; if yes { len } else { 0 }];
        let [mut dx, mut ddelta, mut da] = [b * s * h, b * s * h, h * n].map(|n| vec![0.0; n]);
        let [mut db, mut dc] = [(); 2].map(|_| vec![0.0; b * s * n]);
        let (mut dd, mut dz, mut dbias) = (given(self.d, h), given(self.z, b * s * h), given(self.bias, h));
        let mut dstate = given(self.state, b * h * n);
        for (bi, hi) in (0..b * h).map(|i| (i / h, i % h)) {
            let raw = |t: usize| o.delta.get([bi, t, hi]) + o.bias.as_ref().map_or(0.0, |b| b.get([hi]));
            let step = |t: usize| if self.softplus { raw(t).exp().ln_1p() } else { raw(t) };
            let mut states = vec![vec![0.0; n]];
            for (i, x) in states[0].iter_mut().enumerate() {
                *x = o.state.as_ref().map_or(0.0, |s| s.get([bi, hi, i]));
            }
            for t in 0..s {
                let next = (0..n).map(|i| {
                    (step(t) * o.a.get([hi, i])).exp() * states[t][i]
                        + step(t) * o.b.get([bi, t, i]) * o.x.get([bi, t, hi])
                });
                let next = next.collect();
                states.push(next);
            }
            let mut ds: Vec<f64> =
                (0..n).map(|k| i.dlast.as_ref().map_or(0.0, |d| d.get([bi, hi, k]))).collect();
            for t in (0..s).rev() {
                let (x, dt, at) = (o.x.get([bi, t, hi]), step(t), (bi * s + t) * h + hi);
                let skip = o.d.as_ref().map_or(0.0, |d| d.get([hi]));
                let mut dy = i.dy.get([bi, t, hi]);
                if let Some(z) = &o.z {
                    let z = z.get([bi, t, hi]);
                    let sigma = 1.0 / (1.0 + (-z).exp());
                    let y = (0..n).map(|k| o.c.get([bi, t, k]) * states[t + 1][k]).sum::<f64>() + skip * x;
                    dz[at] = dy * y * sigma * (1.0 + z * (1.0 - sigma));
                    dy *= z * sigma;
                }
                let (mut of_input, mut of_step) = (0.0, 0.0);
                for k in 0..n {
                    let a = o.a.get([hi, k]);
                    let decay = (dt * a).exp();
                    ds[k] += dy * o.c.get([bi, t, k]);
                    dc[(bi * s + t) * n + k] += dy * states[t + 1][k];
                    db[(bi * s + t) * n + k] += ds[k] * dt * x;
                    of_input += ds[k] * o.b.get([bi, t, k]);
                    of_step += ds[k] * states[t][k] * decay * a;
                    da[hi * n + k] += ds[k] * states[t][k] * decay * dt;
                    ds[k] *= decay;
                }
                dx[at] = of_input * dt + dy * skip;
                let d = (of_input * x + of_step)
                    * if self.softplus { 1.0 / (1.0 + (-raw(t)).exp()) } else { 1.0 };
                ddelta[at] = d;
                if self.bias {
                    dbias[hi] += d;
                }
                if self.d {
                    dd[hi] += dy * x;
                }
            }
            if self.state {
                dstate[(bi * h + hi) * n..][..n].copy_from_slice(&ds);
            }
        }
        [dx, ddelta, da, db, dc, dd, dz, dbias, dstate]
    }
}

/// The elements of a tensor in row-major order.
fn flat<T: Element, const R: usize>(x: &Tensor<T, R>) -> Vec<f64> {
    let len = x.shape.iter().product::<usize>();
    let mut out = Vec::new();
    for n in 0..len {
        let (mut at, mut n) = ([0; R], n);
        for i in (0..R).rev() {
            at[i] = n % x.shape[i];
            n /= x.shape[i];
        }
        out.push(x.get(at));
    }
    out
}

fn run_backward<T: Real + Element>(
    case: &Case,
    o: &mut Operands<T>,
    i: &mut Incoming<T>,
    rng: &mut Rng,
    level: Level,
    pool: &Pool,
) -> [Vec<f64>; 9] {
    fn like<T: Element, const R: usize>(rng: &mut Rng, x: &Tensor<T, R>, strange: bool) -> Tensor<T, R> {
        Tensor::new(rng, x.shape, strange, |_| f64::NAN)
    }
    let s = case.strange;
    let (mut dx, mut ddelta, mut da) = (like(rng, &o.x, s), like(rng, &o.delta, s), like(rng, &o.a, s));
    let (mut db, mut dc) = (like(rng, &o.b, s), like(rng, &o.c, s));
    let mut dd = o.d.as_ref().map(|x| like(rng, x, s));
    let mut dz = o.z.as_ref().map(|x| like(rng, x, s));
    let mut dbias = o.bias.as_ref().map(|x| like(rng, x, s));
    let mut dstate = o.state.as_ref().map(|x| like(rng, x, s));
    let g = SelectiveScanGrad {
        inputs: case.inputs(o),
        dy: i.dy.view(),
        dlast: i.dlast.as_mut().map(Tensor::view),
        dx: dx.view(),
        ddelta: ddelta.view(),
        da: da.view(),
        db: db.view(),
        dc: dc.view(),
        dd: dd.as_mut().map(Tensor::view),
        dz: dz.as_mut().map(Tensor::view),
        ddelta_bias: dbias.as_mut().map(Tensor::view),
        dstate: dstate.as_mut().map(Tensor::view),
    };
    with_scratch(g.scratch(), pool.threads(), |s| unsafe { g.run(level, pool, s) });
    let [dd, dbias] = [dd, dbias].map(|x| x.as_ref().map_or(vec![], flat));
    let [dz, dstate] = [dz, dstate].map(|x| x.as_ref().map_or(vec![], flat));
    [flat(&dx), flat(&ddelta), flat(&da), flat(&db), flat(&dc), dd, dz, dbias, dstate]
}

fn check_backward<T: Real + Element>(case: &Case, rng: &mut Rng, pools: &[Pool], tolerance: f64) {
    let (mut o, mut i): (Operands<T>, Incoming<T>) = (case.operands(rng), case.incoming(rng));
    let want = case.grads(&o, &i);
    for level in Level::available() {
        let mut first: Option<[Vec<f64>; 9]> = None;
        for pool in pools {
            let got = run_backward(case, &mut o, &mut i, rng, level, pool);
            for ((name, got), want) in NAMES.iter().zip(&got).zip(&want) {
                assert_eq!(got.len(), want.len());
                // Sums over many terms are held against their own size.
                let size = want.iter().fold(1.0f64, |a, b| a.max(b.abs()));
                for (n, (got, want)) in got.iter().zip(want).enumerate() {
                    let error = (got - want).abs();
                    assert!(error <= tolerance * size, "{level} {case:?} {name} {n}: {got} for {want}");
                }
            }
            assert_eq!(
                first.get_or_insert_with(|| got.clone()),
                &got,
                "{level} {} threads {case:?}",
                pool.threads()
            );
        }
    }
}

#[test]
fn selective_scan_gradients_with_all_options() {
    let (mut rng, pools) = (Rng(5), pools());
    for i in 0..120 {
        let case = random_case(&mut rng);
        check_backward::<f32>(&case, &mut rng, &pools, 1e-5);
        if i % 3 == 0 {
            check_backward::<f64>(&case, &mut rng, &pools, 1e-12);
        }
    }
}

#[test]
fn gradients_of_a_long_and_wide_scan() {
    let (mut rng, pools) = (Rng(6), pools());
    let case = Case { b: 2, s: 300, h: 1100, n: 16, d: true, z: true, softplus: true, ..Case::default() };
    check_backward::<f32>(&case, &mut rng, &pools, 1e-5);
}

#[test]
fn gradients_are_the_slopes_of_the_forward_pass() {
    let (mut rng, pool) = (Rng(7), Pool::new(2));
    for round in 0..12 {
        let mut case = Case {
            b: 2,
            s: 1 + rng.below(20),
            h: 1 + rng.below(3),
            n: 1 + rng.below(3),
            ..random_case(&mut rng)
        };
        case.strange = false;
        if round == 0 {
            case = Case { d: true, z: true, bias: true, state: true, softplus: true, ..case };
        }
        let (mut o, mut i): (Operands<f64>, Incoming<f64>) =
            (case.operands(&mut rng), case.incoming(&mut rng));
        let got = run_backward(&case, &mut o, &mut i, &mut rng, Level::detect(), &pool);
        let (dy, dlast) = (flat(&i.dy), i.dlast.as_ref().map_or(vec![], flat));
        let loss = |o: &Operands<f64>| -> f64 {
            let out = case.plain(o);
            let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
            dot(&out.y, &dy) + dot(&out.last, &dlast)
        };
        type Pick = fn(&mut Operands<f64>) -> &mut [f64];
        let operands: [Pick; 9] = [
            |o| &mut o.x.data,
            |o| &mut o.delta.data,
            |o| &mut o.a.data,
            |o| &mut o.b.data,
            |o| &mut o.c.data,
            |o| &mut o.d.as_mut().unwrap().data,
            |o| &mut o.z.as_mut().unwrap().data,
            |o| &mut o.bias.as_mut().unwrap().data,
            |o| &mut o.state.as_mut().unwrap().data,
        ];
        for ((name, pick), got) in NAMES.iter().zip(operands).zip(&got) {
            for (n, got) in got.iter().enumerate() {
                let before = pick(&mut o)[n];
                let mut at = |x: f64| {
                    pick(&mut o)[n] = x;
                    loss(&o)
                };
                let slope = (at(before + 1e-5) - at(before - 1e-5)) / 2e-5;
                at(before);
                assert!(
                    (slope - got).abs() < 1e-7 * (1.0 + got.abs()),
                    "{case:?} {name} {n}: {got} for {slope}"
                );
            }
        }
    }
}

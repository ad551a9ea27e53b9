//! Attention and its gradients against plain loops in f64.
#![allow(clippy::indexing_slicing, clippy::unwrap_used, clippy::undocumented_unsafe_blocks)]

use rlx_simd::attention::{Attention, AttentionGrad, Out, Real, Scores, Sink};
use rlx_simd::level::Level;
use rlx_simd::mem::{Buffer, Scratch, ScratchSize, View};
use rlx_simd::pool::Pool;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

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
element!(f32, f64, u8);

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
    /// The element of a larger shape that this one is repeated to.
    fn wide(&self, at: [usize; R]) -> f64 {
        self.get(std::array::from_fn(|i| if self.shape[i] == 1 { 0 } else { at[i] }))
    }
    fn view(&mut self) -> View<T, R> {
        View {
            ptr: self.data.as_mut_ptr().wrapping_add(self.offset),
            shape: self.shape,
            strides: self.strides,
        }
    }
    fn view_as(&mut self, shape: [usize; R]) -> View<T, R> {
        let mut view = self.view();
        for i in 0..R {
            if view.shape[i] == 1 {
                view.strides[i] = 0;
            }
        }
        View { shape, ..view }
    }
}

#[derive(Clone, Debug, Default)]
struct Case {
    b: usize,
    hkv: usize,
    group: usize,
    s: usize,
    t: usize,
    d: usize,
    dv: usize,
    mask: Option<[bool; 4]>,
    bias: Option<[bool; 4]>,
    slopes: Option<bool>,
    causal: bool,
    window: Option<usize>,
    softcap: Option<f64>,
    strange: bool,
}

struct Operands<T> {
    q: Tensor<T, 4>,
    k: Tensor<T, 4>,
    v: Tensor<T, 4>,
    dy: Tensor<T, 4>,
    mask: Option<Tensor<u8, 4>>,
    bias: Option<Tensor<T, 4>>,
    slopes: Option<Tensor<T, 2>>,
    scale: f64,
}

impl Case {
    fn full(&self) -> [usize; 4] {
        [self.b, self.hkv * self.group, self.s, self.t]
    }
    fn own(&self, own: [bool; 4]) -> [usize; 4] {
        std::array::from_fn(|i| if own[i] { self.full()[i] } else { 1 })
    }
    fn operands<T: Element>(&self, rng: &mut Rng) -> Operands<T> {
        let (c, hq) = (self, self.hkv * self.group);
        Operands {
            q: Tensor::random(rng, [c.b, hq, c.s, c.d], c.strange),
            k: Tensor::random(rng, [c.b, c.hkv, c.t, c.d], c.strange),
            v: Tensor::random(rng, [c.b, c.hkv, c.t, c.dv], c.strange),
            dy: Tensor::random(rng, [c.b, hq, c.s, c.dv], c.strange),
            mask: c.mask.map(|own| Tensor::new(rng, c.own(own), c.strange, |r| f64::from(r.chance(60)))),
            bias: c.bias.map(|own| {
                Tensor::new(rng, c.own(own), c.strange, |r| {
                    if r.chance(10) { f64::NEG_INFINITY } else { r.float() }
                })
            }),
            slopes: c
                .slopes
                .map(|own| Tensor::new(rng, [if own { c.b } else { 1 }, hq], c.strange, |r| r.float().abs())),
            scale: 1.3 / (c.d.max(1) as f64).sqrt(),
        }
    }
    fn scores<T: Real + Element>(&self, o: &mut Operands<T>) -> Scores<T> {
        let full = self.full();
        Scores {
            q: o.q.view(),
            k: o.k.view(),
            mask: o.mask.as_mut().map(|m| m.view_as(full)),
            bias: o.bias.as_mut().map(|m| m.view_as(full)),
            slopes: o.slopes.as_mut().map(|m| m.view_as([full[0], full[1]])),
            scale: o.scale,
            causal: self.causal,
            window: self.window,
            softcap: self.softcap,
        }
    }
    fn visible(&self, i: usize, j: usize) -> bool {
        let far = (i + self.t) as isize - self.s as isize - j as isize;
        (!self.causal || far >= 0) && self.window.is_none_or(|w| far.unsigned_abs() < w)
    }
    /// The score before and after the bend and all that follows; −inf where hidden.
    fn score<T: Element>(&self, o: &Operands<T>, [b, h, i, j]: [usize; 4]) -> (f64, f64) {
        let far = ((i + self.t) as f64 - self.s as f64 - j as f64).abs();
        let raw: f64 =
            (0..self.d).map(|c| o.q.get([b, h, i, c]) * o.k.get([b, h / self.group, j, c])).sum::<f64>()
                * o.scale;
        let mut s = self.softcap.map_or(raw, |cap| cap * (raw / cap).tanh());
        s += o.bias.as_ref().map_or(0.0, |x| x.wide([b, h, i, j]));
        s -= o.slopes.as_ref().map_or(0.0, |x| x.wide([b, h])) * far;
        let seen = self.visible(i, j) && o.mask.as_ref().is_none_or(|m| m.wide([b, h, i, j]) != 0.0);
        let seen = seen && o.bias.as_ref().is_none_or(|x| x.wide([b, h, i, j]) != f64::NEG_INFINITY);
        (raw, if seen { s } else { f64::NEG_INFINITY })
    }
    fn weights<T: Element>(&self, o: &Operands<T>, [b, h, i]: [usize; 3]) -> Vec<f64> {
        let s: Vec<f64> = (0..self.t).map(|j| self.score(o, [b, h, i, j]).1).collect();
        let top = s.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let e: Vec<f64> =
            s.iter().map(|s| if *s == f64::NEG_INFINITY { 0.0 } else { (s - top).exp() }).collect();
        let sum: f64 = e.iter().sum();
        e.iter().map(|e| if sum == 0.0 { 0.0 } else { e / sum }).collect()
    }
    fn y<T: Element>(&self, o: &Operands<T>, at: [usize; 3]) -> Vec<f64> {
        let p = self.weights(o, at);
        let value = |j: usize, c: usize| o.v.get([at[0], at[1] / self.group, j, c]);
        (0..self.dv)
            .map(|c| (0..self.t).map(|j| if p[j] == 0.0 { 0.0 } else { p[j] * value(j, c) }).sum())
            .collect()
    }
    fn rows(&self) -> impl Iterator<Item = [usize; 3]> + use<> {
        let [b, h, s, _] = self.full();
        (0..b * h * s).map(move |n| [n / (h * s), n / s % h, n % s])
    }
}

fn with_scratch<R>(size: ScratchSize, threads: usize, f: impl FnOnce(&Scratch) -> R) -> R {
    let buffer = Buffer::new(size.total(threads));
    unsafe { std::slice::from_raw_parts_mut(buffer.ptr(), buffer.len()) }.fill(0xff);
    f(&unsafe { Scratch::new(buffer.ptr(), size, threads) })
}

fn check_forward<T: Real + Element>(
    case: &Case,
    rng: &mut Rng,
    pools: &[Pool],
    tolerance: f64,
    poison: bool,
) {
    let mut o: Operands<T> = case.operands(rng);
    if poison {
        // Keys that no query sees hold no numbers.
        for b in 0..case.b {
            for g in 0..case.hkv {
                for j in 0..case.t {
                    let seen = (0..case.group * case.s).any(|r| {
                        case.score(&o, [b, g * case.group + r / case.s, r % case.s, j]).1 != f64::NEG_INFINITY
                    });
                    if !seen {
                        for c in 0..case.d {
                            let at = o.k.index([b, g, j, c]);
                            o.k.data[at] = T::from_f64(f64::NAN);
                        }
                        for c in 0..case.dv {
                            let at = o.v.index([b, g, j, c]);
                            o.v.data[at] = T::from_f64(if j % 2 == 0 { f64::INFINITY } else { f64::NAN });
                        }
                    }
                }
            }
        }
    }
    compare_forward(case, &mut o, rng, pools, tolerance);
}

fn compare_forward<T: Real + Element>(
    case: &Case,
    o: &mut Operands<T>,
    rng: &mut Rng,
    pools: &[Pool],
    tolerance: f64,
) {
    let shape = [case.b, case.hkv * case.group, case.s, case.dv];
    let want: Vec<Vec<f64>> = case.rows().map(|at| case.y(o, at)).collect();
    for level in Level::available() {
        let mut first: Option<Vec<u64>> = None;
        for pool in pools {
            let mut y: Tensor<T, 4> = Tensor::new(rng, shape, case.strange, |_| f64::NAN);
            let a = Attention { scores: case.scores(o), v: o.v.view() };
            let out = Out::Direct(y.view());
            with_scratch(a.scratch(), pool.threads(), |s| unsafe { a.run(level, pool, s, out) });
            // A sink gets the same bits, every row once.
            let mut z: Tensor<T, 4> = Tensor::new(rng, shape, case.strange, |_| f64::NAN);
            let taken = (0..shape[0] * shape[1] * shape[2]).map(|_| AtomicUsize::new(0)).collect();
            let taker = Taker { z: z.view(), taken };
            with_scratch(a.scratch(), pool.threads(), |s| unsafe {
                a.run(level, pool, s, Out::Sink(&taker))
            });
            assert!(taker.taken.iter().all(|n| n.load(Relaxed) == 1), "{level} {case:?}");
            for at in case.rows() {
                for c in 0..shape[3] {
                    let at = [at[0], at[1], at[2], c];
                    assert_eq!(y.get(at).to_bits(), z.get(at).to_bits(), "{level} {case:?} {at:?}");
                }
            }
            let mut bits = Vec::new();
            for (at, want) in case.rows().zip(&want) {
                for (c, want) in want.iter().enumerate() {
                    let got = y.get([at[0], at[1], at[2], c]);
                    let error = (got - want).abs();
                    assert!(
                        error <= tolerance * (1.0 + want.abs()),
                        "{level} {case:?} {at:?} {c}: {got} for {want}"
                    );
                    bits.push(got.to_bits());
                }
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

/// Writes what it gets to memory, and to where it got it from.
struct Taker<T> {
    z: View<T, 4>,
    taken: Vec<AtomicUsize>,
}

// SAFETY: blocks go to different places.
unsafe impl<T> Sync for Taker<T> {}

impl<T: Real> Sink<T> for Taker<T> {
    unsafe fn block(
        &self,
        _: usize,
        head: usize,
        queries: Range<usize>,
        columns: Range<usize>,
        acc: *mut T,
        stride: usize,
    ) {
        let [_, heads, s, dv] = self.z.shape;
        assert_eq!(columns, 0..dv);
        for (row, i) in queries.enumerate() {
            self.taken[head * s + i].fetch_add(1, Relaxed);
            for c in 0..dv {
                // SAFETY: the block holds these rows, and nobody else writes them.
                unsafe {
                    let from = acc.add(row * stride + c);
                    *self.z.at([head / heads, head % heads, i, c]) = *from;
                    *from = T::ZERO;
                }
            }
        }
    }
}

fn pools() -> Vec<Pool> {
    [1, 2, 3].map(Pool::new).into()
}

fn random_case(rng: &mut Rng, sizes: &[usize]) -> Case {
    let own =
        |rng: &mut Rng, percent: usize| rng.chance(percent).then(|| std::array::from_fn(|_| rng.chance(50)));
    let pick = |rng: &mut Rng| sizes[rng.below(sizes.len())];
    Case {
        b: 1 + rng.below(2),
        hkv: 1 + rng.below(2),
        group: 1 + rng.below(3),
        s: if rng.chance(30) { 1 + rng.below(4) } else { pick(rng) },
        t: pick(rng),
        d: [0, 1, 2, 5, 16, 24, 32, 37][rng.below(8)],
        dv: [0, 1, 3, 8, 16, 31, 32, 67][rng.below(8)],
        mask: own(rng, 40),
        bias: own(rng, 30),
        slopes: rng.chance(25).then(|| rng.chance(50)),
        causal: rng.chance(40),
        window: rng.chance(30).then(|| 1 + rng.below(40)),
        softcap: rng.chance(20).then_some(1.5),
        strange: rng.chance(50),
    }
}

const SIZES: [usize; 14] = [0, 1, 2, 3, 5, 8, 13, 16, 17, 31, 64, 65, 97, 130];

#[test]
fn forward_with_all_options() {
    let (mut rng, pools) = (Rng(1), pools());
    for i in 0..400 {
        let case = random_case(&mut rng, &SIZES);
        check_forward::<f32>(&case, &mut rng, &pools, 2e-5, i % 4 == 0);
        if i % 4 == 0 {
            check_forward::<f64>(&case, &mut rng, &pools, 1e-12, i % 8 == 0);
        }
    }
}

#[test]
fn decoding_over_long_sequences() {
    let (mut rng, pools) = (Rng(2), pools());
    for (t, s, group) in [(1024, 1, 1), (1025, 1, 4), (1600, 2, 2), (2049, 3, 1)] {
        for causal in [false, true] {
            let mask = (t == 1600).then_some([true, false, false, true]);
            let window = (t == 2049).then_some(900);
            let case =
                Case { b: 2, hkv: 2, group, s, t, d: 64, dv: 48, causal, mask, window, ..Case::default() };
            check_forward::<f32>(&case, &mut rng, &pools, 2e-5, true);
        }
    }
}

#[test]
fn hidden_keys_leave_no_trace() {
    let (mut rng, pools) = (Rng(3), pools());
    for s in [1, 3, 20, 70] {
        for mask in [[true, false, false, true], [false, true, false, true], [true, true, true, true]] {
            let case =
                Case { b: 2, hkv: 2, group: 2, s, t: 90, d: 16, dv: 20, mask: Some(mask), ..Case::default() };
            check_forward::<f32>(&case, &mut rng, &pools, 2e-5, true);
        }
        let case = Case {
            b: 1,
            hkv: 2,
            group: 1,
            s,
            t: 33,
            d: 8,
            dv: 8,
            causal: true,
            window: Some(2),
            ..Case::default()
        };
        check_forward::<f32>(&case, &mut rng, &pools, 2e-5, true);
    }
}

/// Keys hidden at the ends, nowhere and everywhere, with what is hidden holding no numbers.
#[test]
fn padding() {
    let (mut rng, pools) = (Rng(4), pools());
    for s in [1, 40, 128] {
        for (low, high) in [(0, 200), (0, 131), (70, 150), (64, 128), (3, 5), (0, 0)] {
            for queries in [false, true] {
                let mask = Some([true, false, queries, true]);
                let case = Case { b: 2, hkv: 1, group: 2, s, t: 200, d: 32, dv: 40, mask, ..Case::default() };
                let mut o: Operands<f32> = case.operands(&mut rng);
                for j in 0..case.t {
                    let seen = (low..high).contains(&j);
                    for b in 0..case.b {
                        for i in 0..if queries { s } else { 1 } {
                            let mask = o.mask.as_mut().unwrap();
                            let at = mask.index([b, 0, i, j]);
                            mask.data[at] = u8::from(seen);
                        }
                        if !seen {
                            let (k, v) = (o.k.index([b, 0, j, 0]), o.v.index([b, 0, j, 0]));
                            (o.k.data[k], o.v.data[v]) = (f32::NAN, f32::INFINITY);
                        }
                    }
                }
                compare_forward(&case, &mut o, &mut rng, &pools, 2e-5);
            }
        }
    }
}

/// Gradients, row-major in the shapes of their operands.
struct Grads {
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    bias: Vec<f64>,
    slopes: Vec<f64>,
}

/// The place of an element of a larger shape in the row-major order of the shape that is repeated to it.
fn place<const R: usize>(shape: [usize; R], at: [usize; R]) -> usize {
    (0..R).fold(0, |n, i| n * shape[i] + if shape[i] == 1 { 0 } else { at[i] })
}

impl Case {
    fn grads<T: Element>(&self, o: &Operands<T>) -> Grads {
        let size = |s: [usize; 4]| vec![0.0; s.iter().product()];
        let own = o.bias.as_ref().map_or([0; 4], |x| x.shape);
        let slopes = o.slopes.as_ref().map_or([0; 2], |x| x.shape);
        let mut g = Grads {
            q: size(o.q.shape),
            k: size(o.k.shape),
            v: size(o.v.shape),
            bias: size(own),
            slopes: vec![0.0; slopes[0] * slopes[1]],
        };
        for [b, h, i] in self.rows() {
            let (p, hk) = (self.weights(o, [b, h, i]), h / self.group);
            let dp: Vec<f64> = (0..self.t)
                .map(|j| (0..self.dv).map(|c| o.dy.get([b, h, i, c]) * o.v.get([b, hk, j, c])).sum())
                .collect();
            let seen = |j: &usize| p[*j] != 0.0;
            let mean: f64 = (0..self.t).filter(seen).map(|j| p[j] * dp[j]).sum();
            for j in (0..self.t).filter(seen) {
                let ds = p[j] * (dp[j] - mean);
                let far = ((i + self.t) as f64 - self.s as f64 - j as f64).abs();
                let bend = self
                    .softcap
                    .map_or(1.0, |cap| 1.0 - (self.score(o, [b, h, i, j]).0 / cap).tanh().powi(2));
                for c in 0..self.d {
                    g.q[place(o.q.shape, [b, h, i, c])] += ds * bend * o.scale * o.k.get([b, hk, j, c]);
                    g.k[place(o.k.shape, [b, hk, j, c])] += ds * bend * o.scale * o.q.get([b, h, i, c]);
                }
                for c in 0..self.dv {
                    g.v[place(o.v.shape, [b, hk, j, c])] += p[j] * o.dy.get([b, h, i, c]);
                }
                if o.bias.is_some() {
                    g.bias[place(own, [b, h, i, j])] += ds;
                }
                if o.slopes.is_some() {
                    g.slopes[place(slopes, [b, h])] -= ds * far;
                }
            }
        }
        g
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
    rng: &mut Rng,
    level: Level,
    pool: &Pool,
) -> Grads {
    fn like<T: Element, const R: usize>(rng: &mut Rng, x: &Tensor<T, R>, strange: bool) -> Tensor<T, R> {
        Tensor::new(rng, x.shape, strange, |_| f64::NAN)
    }
    let s = case.strange;
    let (mut dq, mut dk, mut dv) = (like(rng, &o.q, s), like(rng, &o.k, s), like(rng, &o.v, s));
    let mut dbias = o.bias.as_ref().map(|x| like(rng, x, s));
    let mut dslopes = o.slopes.as_ref().map(|x| like(rng, x, s));
    let a = AttentionGrad {
        scores: case.scores(o),
        v: o.v.view(),
        dy: o.dy.view(),
        dq: dq.view(),
        dk: dk.view(),
        dv: dv.view(),
        dbias: dbias.as_mut().map(Tensor::view),
        dslopes: dslopes.as_mut().map(Tensor::view),
    };
    with_scratch(a.scratch(), pool.threads(), |s| unsafe { a.run(level, pool, s) });
    Grads {
        q: flat(&dq),
        k: flat(&dk),
        v: flat(&dv),
        bias: dbias.as_ref().map_or(vec![], flat),
        slopes: dslopes.as_ref().map_or(vec![], flat),
    }
}

fn check_backward<T: Real + Element>(case: &Case, rng: &mut Rng, pools: &[Pool], tolerance: f64) {
    let mut o: Operands<T> = case.operands(rng);
    let want = case.grads(&o);
    for level in Level::available() {
        let mut first: Option<Vec<u64>> = None;
        for pool in pools {
            let got = run_backward(case, &mut o, rng, level, pool);
            let mut bits = Vec::new();
            for (name, got, want) in [
                ("dq", &got.q, &want.q),
                ("dk", &got.k, &want.k),
                ("dv", &got.v, &want.v),
                ("dbias", &got.bias, &want.bias),
                ("dslopes", &got.slopes, &want.slopes),
            ] {
                assert_eq!(got.len(), want.len());
                // The slopes' terms are as large as the distances.
                let size = if name == "dslopes" { case.t.max(case.s) as f64 } else { 1.0 };
                for (n, (got, want)) in got.iter().zip(want).enumerate() {
                    let error = (got - want).abs();
                    assert!(
                        error <= tolerance * (size + want.abs()),
                        "{level} {case:?} {name} {n}: {got} for {want}"
                    );
                    bits.push(got.to_bits());
                }
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

#[test]
fn backward_with_all_options() {
    let (mut rng, pools) = (Rng(5), pools());
    for i in 0..250 {
        let case = random_case(&mut rng, &SIZES);
        check_backward::<f32>(&case, &mut rng, &pools, 6e-5);
        if i % 4 == 0 {
            check_backward::<f64>(&case, &mut rng, &pools, 1e-11);
        }
    }
}

#[test]
fn backward_over_a_long_sequence() {
    let (mut rng, pools) = (Rng(6), pools());
    let case =
        Case { b: 1, hkv: 1, group: 2, s: 400, t: 500, d: 32, dv: 32, causal: true, ..Case::default() };
    check_backward::<f32>(&case, &mut rng, &pools, 3e-5);
    let case = Case { window: Some(100), bias: Some([false, true, true, true]), ..case };
    check_backward::<f32>(&case, &mut rng, &pools, 3e-5);
}

#[test]
fn gradients_are_the_slopes_of_the_forward_pass() {
    let (mut rng, pool) = (Rng(7), Pool::new(2));
    for round in 0..12 {
        let mut case = random_case(&mut rng, &[1, 2, 3, 5]);
        case = Case { d: 3, dv: 2, strange: false, ..case };
        if round % 2 == 0 {
            case = Case { bias: Some([true, round % 4 == 0, true, false]), slopes: Some(true), ..case };
        }
        let mut o: Operands<f64> = case.operands(&mut rng);
        let got = run_backward(&case, &mut o, &mut rng, Level::detect(), &pool);
        let loss = |o: &Operands<f64>| -> f64 {
            let of = |at: [usize; 3]| -> f64 {
                case.y(o, at).iter().enumerate().map(|(c, y)| y * o.dy.get([at[0], at[1], at[2], c])).sum()
            };
            case.rows().map(of).sum()
        };
        type Pick = fn(&mut Operands<f64>) -> Option<&mut [f64]>;
        let operands: [(&str, Pick, &Vec<f64>); 5] = [
            ("dq", |o| Some(&mut o.q.data), &got.q),
            ("dk", |o| Some(&mut o.k.data), &got.k),
            ("dv", |o| Some(&mut o.v.data), &got.v),
            ("dbias", |o| o.bias.as_mut().map(|x| &mut x.data[..]), &got.bias),
            ("dslopes", |o| o.slopes.as_mut().map(|x| &mut x.data[..]), &got.slopes),
        ];
        for (name, pick, got) in operands {
            for (n, got) in got.iter().enumerate() {
                let Some(x) = pick(&mut o) else { continue };
                let before = x[n];
                let mut at = |x: f64| {
                    pick(&mut o).unwrap()[n] = x;
                    loss(&o)
                };
                let slope = (at(before + 1e-5) - at(before - 1e-5)) / 2e-5;
                at(before);
                assert!((slope - got).abs() < 1e-7, "{case:?} {name} {n}: {got} for {slope}");
            }
        }
    }
}

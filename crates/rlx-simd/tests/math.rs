//! Vector functions against `f64`, over all exponents and signs, at every level.
#![allow(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rlx_simd::level::Level;
use rlx_simd::math::{self, double};

/// Bit patterns between two samples: a prime, so that mantissas of all kinds come up under every exponent.
const STRIDE: usize = 997;

/// How far `got` is from the exact value, in units of the last place of the exact value as an `f32`.
fn ulps(got: f32, want: f64) -> f64 {
    let rounded = want as f32;
    if got.to_bits() == rounded.to_bits() || got.is_nan() && rounded.is_nan() {
        return 0.0;
    }
    if got.is_nan() || rounded.is_nan() || got.is_infinite() || rounded.is_infinite() {
        return f64::INFINITY;
    }
    if got == 0.0 && rounded == 0.0 {
        return f64::INFINITY; // zeros of different sign
    }
    let exponent = ((rounded.to_bits() >> 23 & 0xff) as i32).max(1) - 150;
    (f64::from(got) - want).abs() / 2f64.powi(exponent)
}

type Slices = fn(Level, &mut [f32], &[f32]);

/// Runs over samples of all bit patterns and gives the worst error and where it is.
fn sweep(level: Level, f: Slices, reference: impl Fn(f64) -> f64) -> (f64, f32, f32) {
    let mut worst = (0.0, 0.0, 0.0);
    let (mut x, mut y) = (Vec::new(), Vec::new());
    let mut bits = 0u64;
    while bits < 1 << 32 {
        x.clear();
        while x.len() < 1 << 12 && bits < 1 << 32 {
            x.push(f32::from_bits(bits as u32));
            bits += STRIDE as u64;
        }
        y.resize(x.len(), 0.0);
        f(level, &mut y, &x);
        for (x, y) in x.iter().zip(&y) {
            let e = ulps(*y, reference(f64::from(*x)));
            if e > worst.0 {
                worst = (e, *x, *y);
            }
        }
    }
    worst
}

fn check(name: &str, f: Slices, reference: impl Fn(f64) -> f64, limit: f64) {
    let edges: Vec<f32> =
        [0.0, 1.0, f32::MIN_POSITIVE, 1e-45, f32::MAX, f32::INFINITY, f32::NAN, 0.5, 2.0, 88.8, 104.0]
            .into_iter()
            .flat_map(|x| [x, -x])
            .collect();
    for level in Level::available() {
        let (worst, x, y) = sweep(level, f, &reference);
        println!("{name:10} {level:9} {worst:.3} ulp at {x:e} ({:#x}): {y:e}", x.to_bits());
        assert!(worst <= limit, "{name} at {level}: {worst} ulp at {x:e}, got {y:e}");
        let mut got = vec![0.0; edges.len()];
        f(level, &mut got, &edges);
        for (x, y) in edges.iter().zip(&got) {
            let e = ulps(*y, reference(f64::from(*x)));
            assert!(e <= limit, "{name}({x:e}) at {level} is {y:e}: {e} ulp");
        }
    }
}

macro_rules! sweeps {
    ($($name:ident: $limit:expr;)*) => {$(
        #[test]
        fn $name() {
            check(stringify!($name), math::$name, double::$name, $limit);
        }
    )*};
}

sweeps! {
    exp: 1.0;
    expm1: 0.51;
    log: 1.0;
    log1p: 0.51;
    tanh: 2.0;
    erf: 1.2;
    erfc: 0.51;
    sin: 0.51;
    cos: 0.51;
    tan: 0.51;
    asin: 0.51;
    acos: 0.51;
    atan: 0.51;
    sinh: 0.51;
    cosh: 0.51;
    asinh: 0.51;
    acosh: 0.51;
    atanh: 0.51;
    sigmoid: 2.0;
    rsqrt: 1.5;
    recip: 0.5;
    sqrt: 0.5;
    floor: 0.0;
    ceil: 0.0;
    round: 0.0;
    trunc: 0.0;
}

/// The worst absolute error below `split` and the worst in ulp elsewhere.
fn tails(f: Slices, reference: fn(f64) -> f64, split: f32) -> (f64, f64) {
    let mut worst = (0f64, 0f64);
    for level in Level::available() {
        let x: Vec<f32> = (0..=u32::MAX).step_by(STRIDE).map(f32::from_bits).collect();
        let mut y = vec![0.0; x.len()];
        f(level, &mut y, &x);
        for (x, y) in x.iter().zip(&y) {
            let want = reference(f64::from(*x));
            let e = ulps(*y, want);
            if *x >= split || !e.is_finite() {
                worst.1 = worst.1.max(e);
            } else if e > 0.0 {
                worst.0 = worst.0.max((f64::from(*y) - want).abs());
            }
        }
    }
    println!("{worst:?}");
    worst
}

#[test]
fn silu() {
    let (tail, rest) = tails(math::silu, double::silu, -87.0);
    assert!(tail <= 2e-43 && rest <= 3.5);
}

#[test]
fn gelu() {
    let (tail, rest) = tails(math::gelu, double::gelu, -1.0);
    assert!(tail <= 2e-7 && rest <= 3.0);
}

#[test]
fn gelu_tanh() {
    let (tail, rest) = tails(math::gelu_tanh, double::gelu_tanh, -1.0);
    assert!(tail <= 2e-7 && rest <= 4.0);
}

/// Pairs of numbers: edges with edges, and random bits near and far.
fn pairs() -> (Vec<f32>, Vec<f32>) {
    let edges = [
        0.0,
        1.0,
        2.0,
        3.0,
        0.5,
        1.5,
        16_777_216.0,
        16_777_215.0,
        1e-45,
        1e30,
        f32::MAX,
        f32::INFINITY,
        f32::NAN,
    ];
    let edges: Vec<f32> = edges.into_iter().flat_map(|x| [x, -x]).collect();
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for x in &edges {
        for y in &edges {
            a.push(*x);
            b.push(*y);
        }
    }
    let mut seed = 1u64;
    let mut next = || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 32) as u32
    };
    for i in 0..400_000 {
        let (p, q) = (next(), next());
        // Exponents around 0, or anything.
        let near = |p: u32| f32::from_bits((p & 0x83ff_ffff) + 0x3e00_0000);
        let small = |p: u32| ((p >> 8) as f32 / 65536.0 - 128.0) / 2.0;
        a.push(if i % 4 == 0 { f32::from_bits(p) } else { near(p) });
        b.push(match i % 4 {
            0 => f32::from_bits(q),
            1 => near(q),
            2 => small(q),
            _ => small(q).round(),
        });
    }
    (a, b)
}

fn check2(name: &str, f: fn(Level, &mut [f32], &[f32], &[f32]), reference: fn(f64, f64) -> f64, limit: f64) {
    let (a, b) = pairs();
    for level in Level::available() {
        let mut got = vec![0.0; a.len()];
        f(level, &mut got, &a, &b);
        let mut worst = 0f64;
        for ((a, b), y) in a.iter().zip(&b).zip(&got) {
            let want = reference(f64::from(*a), f64::from(*b));
            let e = ulps(*y, want);
            assert!(e <= limit, "{name}({a:e}, {b:e}) at {level} is {y:e}, not {want:e}: {e} ulp");
            worst = worst.max(e);
        }
        println!("{name} {level}: {worst:.3} ulp");
    }
}

#[test]
fn pow() {
    check2("pow", math::pow, double::pow, 0.51);
}

#[test]
fn atan2() {
    check2("atan2", math::atan2, double::atan2, 0.51);
}

/// A level that the machine has not is refused, whatever the build: its instructions would end the process, or worse.
#[test]
fn a_missing_level_is_refused() {
    let all = [Level::Baseline, Level::Neon, Level::Avx2, Level::Avx512];
    for level in all.into_iter().filter(|l| !l.is_available()) {
        let panics = |f: fn(Level)| std::panic::catch_unwind(|| f(level)).is_err();
        assert!(panics(|l| math::exp(l, &mut [0.0], &[1.0])), "{level}");
        assert!(panics(|l| math::pow(l, &mut [0.0], &[1.0], &[1.0])), "{level}");
        assert!(panics(|l| math::atan2(l, &mut [0.0], &[1.0], &[1.0])), "{level}");
    }
}

//! The `f64` insides of [`super::lane`]: arguments and results are those of `f32` functions, so that relative errors of 2⁻³⁴
//! are enough and the exponent never comes near the ends of `f64`.

use super::lane::poly;
use std::f64::consts::{FRAC_2_PI, FRAC_PI_2, LN_2, LOG2_E, PI};

#[inline(always)]
fn madd<const FMA: bool>(a: f64, b: f64, c: f64) -> f64 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// Adding this to a number below 2³¹ leaves the number rounded to an integer in the low 32 bits of the sum.
const ROUND: f64 = 6_755_399_441_055_744.0;

/// (r, n): x = r + n·ln 2 with |r| at most ln √2; x is first brought into the range where `f32` results are neither 0 nor
/// infinite, and some more.
#[inline(always)]
fn split<const FMA: bool>(x: f64) -> (f64, i32) {
    // The comparisons keep NaN.
    let x = if x > 200.0 { 200.0 } else { x };
    let x = if x < -200.0 { -200.0 } else { x };
    let t = madd::<FMA>(x, LOG2_E, ROUND);
    (madd::<FMA>(ROUND - t, LN_2, x), t.to_bits() as i32)
}

#[inline(always)]
fn exp2i(n: i32) -> f64 {
    f64::from_bits((i64::from(n.wrapping_add(1023)) << 52) as u64)
}

/// (eʳ − 1)/r.
#[inline(always)]
fn growth<const FMA: bool>(r: f64) -> f64 {
    poly!(madd::<FMA>, r; 0.9999999999951341, 0.4999999999961018, 0.16666666793716495, 0.0416666670161999,
        0.00833328150559052, 0.001388880076941917, 0.00019908908982818694, 2.488613919457575e-05)
}

/// eˣ.
#[inline(always)]
pub(super) fn exp<const FMA: bool>(x: f64) -> f64 {
    let (r, n) = split::<FMA>(x);
    madd::<FMA>(growth::<FMA>(r), r, 1.0) * exp2i(n)
}

/// eˣ − 1; the sign of a zero is lost.
#[inline(always)]
pub(super) fn expm1<const FMA: bool>(x: f64) -> f64 {
    let (r, n) = split::<FMA>(x);
    let scale = exp2i(n);
    madd::<FMA>(growth::<FMA>(r) * r, scale, scale - 1.0)
}

/// ln x.
#[inline(always)]
pub(super) fn log<const FMA: bool>(x: f64) -> f64 {
    let bits = x.to_bits();
    // The exponent that leaves a mantissa within √½..√2.
    let e = (((bits >> 32) as i32).wrapping_sub(0x3fe6_a09e)) >> 20;
    let f = f64::from_bits(bits.wrapping_sub((i64::from(e) << 52) as u64)) - 1.0;
    let p = poly!(madd::<FMA>, f; 1.0000000000000606, -0.5000000000017065, 0.33333333327120707, -0.2499999993524062,
        0.20000001010180662, -0.16666674172400825, 0.14285655287778845, -0.1249960347772233, 0.11112614926092061,
        -0.10010882505639895, 0.09075817865658967, -0.08175195342097295, 0.07669655405318017, -0.08248207256273293,
        0.08033225116473774, -0.03995700582301767);
    let y = madd::<FMA>(f64::from(e), LN_2, f * p);
    let y = if x == f64::INFINITY { x } else { y };
    let y = if x > 0.0 { y } else { f64::NAN };
    if x == 0.0 { f64::NEG_INFINITY } else { y }
}

/// ln(1 + x).
#[inline(always)]
pub(super) fn log1p<const FMA: bool>(x: f64) -> f64 {
    let tiny = x * madd::<FMA>(x, madd::<FMA>(x, 1.0 / 3.0, -0.5), 1.0);
    if x.abs() < 1.0 / 1_048_576.0 { tiny } else { log::<FMA>(1.0 + x) }
}

/// erfc x = e^(−x²) · p((x − 3)/(x + 3)).
#[inline(always)]
pub(super) fn erfc<const FMA: bool>(x: f64) -> f64 {
    let a = x.abs();
    // Beyond this the result is 0, or 2.
    let a = if a > 10.3 { 10.3 } else { a };
    let p = poly!(madd::<FMA>, (a - 3.0) / (a + 3.0); 0.17900115117958326, -0.3262335600597396, 0.24560380208119692,
        -0.15011593570952672, 0.07166582567967955, -0.024392513437427456, 0.00426926593015293, 0.0007078926645677537,
        -0.0005977163014866694, 4.4398971116906546e-05, 6.549836664528002e-05, -1.0353689577791406e-05,
        -8.683742605892572e-06, -7.855346862487915e-07);
    let y = exp::<FMA>(-a * a) * p;
    if x < 0.0 { 2.0 - y } else { y }
}

/// (sin r, cos r, n): x = r + n·π/2 with |r| at most π/4.
#[inline(always)]
fn turn<const FMA: bool>(x: f64) -> (f64, f64, i32) {
    /// π/2 in two parts: the first has 33 bits, so that its product with n < 2²⁰ is exact.
    const HALF_PI: (f64, f64) = (1.570_796_326_734_125_6, 6.077_100_506_506_192e-11);
    let t = madd::<FMA>(x, FRAC_2_PI, ROUND);
    let n = t - ROUND;
    let r = madd::<FMA>(-n, HALF_PI.1, madd::<FMA>(-n, HALF_PI.0, x));
    let s = r * r;
    let sin = r * poly!(madd::<FMA>, s; 0.9999999999952175, -0.16666666628967156, 0.008333328548932874,
        -0.00019839136250773576, 2.716767560534995e-06);
    let cos = poly!(madd::<FMA>, s; 0.9999999999999302, -0.4999999999923325, 0.041666666528187825,
        -0.001388887965849792, 2.479878835753294e-05, -2.7164048703188357e-07);
    (sin, cos, t.to_bits() as i32)
}

/// The sine, for |x| up to 2²⁰.
#[inline(always)]
pub(super) fn sin<const FMA: bool>(x: f64) -> f64 {
    let (s, c, n) = turn::<FMA>(x);
    let y = if n & 1 == 0 { s } else { c };
    if n & 2 == 0 { y } else { -y }
}

/// The cosine, for |x| up to 2²⁰.
#[inline(always)]
pub(super) fn cos<const FMA: bool>(x: f64) -> f64 {
    let (s, c, n) = turn::<FMA>(x);
    let y = if n & 1 == 0 { c } else { s };
    if n.wrapping_add(1) & 2 == 0 { y } else { -y }
}

/// The tangent, for |x| up to 2²⁰.
#[inline(always)]
pub(super) fn tan<const FMA: bool>(x: f64) -> f64 {
    let (s, c, n) = turn::<FMA>(x);
    let odd = n & 1 == 1;
    (if odd { c } else { s }) / (if odd { -s } else { c })
}

/// The angle of the point (x, y).
#[inline(always)]
pub(super) fn atan2<const FMA: bool>(y: f64, x: f64) -> f64 {
    let (ay, ax) = (y.abs(), x.abs());
    let steep = ay > ax;
    let (lo, hi) = if steep { (ax, ay) } else { (ay, ax) };
    // 0/0 stands for no angle, ∞/∞ for the diagonal.
    let t = if lo == hi { if hi == 0.0 { 0.0 } else { 1.0 } } else { lo / hi };
    let p = poly!(madd::<FMA>, t * t; 0.9999999999906554, -0.3333333300534249, 0.1999998083832963, -0.14285271451179968,
        0.11105741868314753, -0.0905162122193047, 0.07503965822143986, -0.060426429931821686, 0.04396738529637319,
        -0.026338750666257814, 0.011646697827313698, -0.003278330826627751, 0.0004329632117980838);
    let a = t * p;
    let a = if steep { FRAC_PI_2 - a } else { a };
    let a = if x.is_sign_negative() { PI - a } else { a };
    let a = if x.is_nan() || y.is_nan() { f64::NAN } else { a };
    a.copysign(y)
}

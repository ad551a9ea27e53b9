//! Functions of one `f32`, without branches, so that a loop over them becomes vector code at every level.
//!
//! `FMA` says whether a fused multiply-add is one instruction (see [`each_level!`](crate::each_level)). The functions of
//! the common activations work in `f32`; the others work in `f64` inside, at half the width, and are all but correctly
//! rounded. The stated errors are the largest seen in sweeps over all exponents; NaN, infinities, zeros, denormal numbers,
//! overflow and underflow are as if computed without error and rounded.

use super::wide;

/// The polynomial c0 + c1·x + c2·x² + …
macro_rules! poly {
    ($madd:path, $x:expr; $c:expr) => { $c };
    ($madd:path, $x:expr; $c:expr, $($rest:expr),+ $(,)?) => {
        $madd($crate::math::lane::poly!($madd, $x; $($rest),+), $x, $c)
    };
}
pub(crate) use poly;

/// a·b + c, with one rounding where that is one instruction.
#[inline(always)]
pub fn madd<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// Adding this to a number below 2²² leaves the number rounded to an integer in the low bits of the sum.
const ROUND: f32 = 12_582_912.0;

/// ln 2 in two parts: the first has few bits, so that its product with an exponent is exact.
const LN2_HI: f32 = 0.693_359_4;
const LN2_LO: f32 = -2.121_944_4e-4;

/// 2ⁿ for a normal result.
#[inline(always)]
fn exp2i(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) << 23) as u32)
}

/// (p, n) with eˣ = p·2ⁿ and p about 1, for |x| below 2²⁰.
#[inline(always)]
fn exp_parts<const FMA: bool>(x: f32) -> (f32, i32) {
    let t = madd::<FMA>(x, std::f32::consts::LOG2_E, ROUND);
    let n = t - ROUND;
    let r = madd::<FMA>(-n, LN2_LO, madd::<FMA>(-n, LN2_HI, x));
    let q = poly!(madd::<FMA>, r; 4.9999994e-1, 1.6666515e-1, 4.1668456e-2, 8.369419e-3, 1.3813179e-3);
    let p = madd::<FMA>(q, r * r, r) + 1.0;
    (p, (t.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32))
}

/// eˣ for x <= 88; below -87 it is 0.
#[inline(always)]
fn exp_normal<const FMA: bool>(x: f32) -> f32 {
    // The comparison keeps NaN.
    let (p, n) = exp_parts::<FMA>(if x < -87.0 { -87.0 } else { x });
    if x < -87.0 { 0.0 } else { p * exp2i(n) }
}

/// eˣ. At most 1 ulp off.
#[inline(always)]
pub fn exp<const FMA: bool>(x: f32) -> f32 {
    let x = if x > 89.0 { 89.0 } else { x };
    let (p, n) = exp_parts::<FMA>(if x < -104.5 { -104.5 } else { x });
    // Two steps reach beyond the normal exponents, and only the second can round.
    p * exp2i(n >> 1) * exp2i(n.wrapping_sub(n >> 1))
}

/// eˣ − 1. At most 1 ulp off.
#[inline(always)]
pub fn expm1<const FMA: bool>(x: f32) -> f32 {
    (wide::expm1::<FMA>(x.into()) as f32).copysign(x)
}

/// ln x. At most 1 ulp off.
#[inline(always)]
pub fn log<const FMA: bool>(x: f32) -> f32 {
    let tiny = x < f32::MIN_POSITIVE;
    let bits = (if tiny { x * 8_388_608.0 } else { x }).to_bits() as i32;
    // The exponent that leaves a mantissa within √½..√2.
    let e = bits.wrapping_sub(0x3f35_04f3) >> 23;
    let f = f32::from_bits(bits.wrapping_sub(e << 23) as u32) - 1.0;
    let e = (e - if tiny { 23 } else { 0 }) as f32;
    let s = f * f;
    let q = poly!(madd::<FMA>, f; 3.333331e-1, -2.500001e-1, 2.0002167e-1, -1.66681e-1, 1.4218552e-1,
        -1.24029234e-1, 1.1893373e-1, -1.1695167e-1, 6.7588195e-2);
    let y = madd::<FMA>(e, LN2_LO, s * (f * q));
    let y = madd::<FMA>(e, LN2_HI, f + madd::<FMA>(-0.5, s, y));
    let y = if x == f32::INFINITY { x } else { y };
    let y = if x > 0.0 { y } else { f32::NAN };
    if x == 0.0 { f32::NEG_INFINITY } else { y }
}

/// ln(1 + x). At most 1 ulp off.
#[inline(always)]
pub fn log1p<const FMA: bool>(x: f32) -> f32 {
    wide::log1p::<FMA>(x.into()) as f32
}

/// The hyperbolic tangent. At most 2 ulp off.
#[inline(always)]
pub fn tanh<const FMA: bool>(x: f32) -> f32 {
    let (a, s) = (x.abs(), x * x);
    let q = poly!(madd::<FMA>, s; -3.333327e-1, 1.3331093e-1, -5.3709656e-2, 2.0538803e-2, -5.5909962e-3);
    let small = madd::<FMA>(q * s, x, x);
    let large = 1.0 - 2.0 / (exp_normal::<FMA>(2.0 * if a > 20.0 { 20.0 } else { a }) + 1.0);
    (if a < 0.625 { small } else { large }).copysign(x)
}

/// Where the two forms of the error function meet.
const ERF_SPLIT: f32 = 1.0;

/// erf x for |x| below [`ERF_SPLIT`].
#[inline(always)]
fn erf_small<const FMA: bool>(x: f32) -> f32 {
    let s = x * x;
    let p = poly!(madd::<FMA>, s; 1.2837917e-1, -3.7612626e-1, 1.12835854e-1, -2.6853813e-2, 5.1883277e-3,
        -8.010192e-4, 7.853852e-5);
    madd::<FMA>(p, x, x)
}

/// erfc a for a from [`ERF_SPLIT`] on, to within 1e-8.
#[inline(always)]
fn erfc_large<const FMA: bool>(a: f32) -> f32 {
    // Without bounds: the leading coefficient takes it to −∞.
    exp_normal::<FMA>(
        poly!(madd::<FMA>, a; 1.8846552e-4, -1.1295803, -6.3321644e-1, -1.0842208e-1, 2.5210328e-2,
        -4.2052804e-3, 4.4147178e-4, -2.1697542e-5),
    )
}

/// The error function. At most 1.2 ulp off.
#[inline(always)]
pub fn erf<const FMA: bool>(x: f32) -> f32 {
    let a = x.abs();
    let large = 1.0 - erfc_large::<FMA>(a);
    if a < ERF_SPLIT { erf_small::<FMA>(x) } else { large.copysign(x) }
}

/// 1 − erf x. At most 1 ulp off.
#[inline(always)]
pub fn erfc<const FMA: bool>(x: f32) -> f32 {
    wide::erfc::<FMA>(x.into()) as f32
}

/// 1 / (1 + e⁻ˣ). At most 2 ulp off.
#[inline(always)]
pub fn sigmoid<const FMA: bool>(x: f32) -> f32 {
    let e = exp::<FMA>(-x.abs());
    let sum = 1.0 + e;
    let y = (if x < 0.0 { e } else { 1.0 }) / sum;
    // What the sum lost, divided by it: 1/(1 + e) is about 1 − e/2.
    madd::<FMA>(y * (sum - 1.0 - e), madd::<FMA>(-0.5, e, 1.0), y)
}

/// x · sigmoid x. At most 3.5 ulp off for x > -87, and by 2e-43 below.
#[inline(always)]
pub fn silu<const FMA: bool>(x: f32) -> f32 {
    x * sigmoid::<FMA>(x)
}

/// x · Φ(x), Φ being the cumulative normal distribution. Off by at most 3 ulp for x > -1, else by 2e-7.
#[inline(always)]
pub fn gelu<const FMA: bool>(x: f32) -> f32 {
    let z = x * std::f32::consts::FRAC_1_SQRT_2;
    let tail = 0.5 * erfc_large::<FMA>(z.abs());
    let large = if z < 0.0 { tail } else { 1.0 - tail };
    x * if z.abs() < ERF_SPLIT { madd::<FMA>(0.5, erf_small::<FMA>(z), 0.5) } else { large }
}

/// x · sigmoid(√(8/π) · (x + 0.044715·x³)): gelu by tanh. Off by at most 4 ulp for x > -1, else by 2e-7.
#[inline(always)]
pub fn gelu_tanh<const FMA: bool>(x: f32) -> f32 {
    const ONE: f32 = 1.595_769_2;
    const CUBE: f32 = 0.071_354_814;
    x * sigmoid::<FMA>(x * madd::<FMA>(CUBE, x * x, ONE))
}

/// Above this the vector form of the sine and its kin is not valid; the loops of [`super`] mend such elements.
pub const ANGLE_MAX: f32 = 1_048_576.0;

/// The sine, for |x| up to [`ANGLE_MAX`]. At most 1 ulp off.
#[inline(always)]
pub fn sin<const FMA: bool>(x: f32) -> f32 {
    wide::sin::<FMA>(x.into()) as f32
}

/// The cosine, for |x| up to [`ANGLE_MAX`]. At most 1 ulp off.
#[inline(always)]
pub fn cos<const FMA: bool>(x: f32) -> f32 {
    wide::cos::<FMA>(x.into()) as f32
}

/// The tangent, for |x| up to [`ANGLE_MAX`]. At most 1 ulp off.
#[inline(always)]
pub fn tan<const FMA: bool>(x: f32) -> f32 {
    wide::tan::<FMA>(x.into()) as f32
}

/// The angle whose sine is x. At most 1 ulp off.
#[inline(always)]
pub fn asin<const FMA: bool>(x: f32) -> f32 {
    let x: f64 = x.into();
    wide::atan2::<FMA>(x, ((1.0 - x) * (1.0 + x)).sqrt()) as f32
}

/// The angle whose cosine is x. At most 1 ulp off.
#[inline(always)]
pub fn acos<const FMA: bool>(x: f32) -> f32 {
    let x: f64 = x.into();
    wide::atan2::<FMA>(((1.0 - x) * (1.0 + x)).sqrt(), x) as f32
}

/// The angle whose tangent is x. At most 1 ulp off.
#[inline(always)]
pub fn atan<const FMA: bool>(x: f32) -> f32 {
    wide::atan2::<FMA>(x.into(), 1.0) as f32
}

/// The angle of the point (x, y). At most 1 ulp off.
#[inline(always)]
pub fn atan2<const FMA: bool>(y: f32, x: f32) -> f32 {
    wide::atan2::<FMA>(y.into(), x.into()) as f32
}

/// The hyperbolic sine. At most 1 ulp off.
#[inline(always)]
pub fn sinh<const FMA: bool>(x: f32) -> f32 {
    let u = wide::expm1::<FMA>(f64::from(x).abs());
    ((0.5 * (u + u / (u + 1.0))) as f32).copysign(x)
}

/// The hyperbolic cosine. At most 1 ulp off.
#[inline(always)]
pub fn cosh<const FMA: bool>(x: f32) -> f32 {
    let e = wide::expm1::<FMA>(f64::from(x).abs()) + 1.0;
    (0.5 * (e + 1.0 / e)) as f32
}

/// The number whose hyperbolic sine is x. At most 1 ulp off.
#[inline(always)]
pub fn asinh<const FMA: bool>(x: f32) -> f32 {
    let a = f64::from(x).abs();
    let s = a * a;
    // s / (1 + √(s + 1)) is √(s + 1) − 1 without loss; both are infinite where x is.
    let t = if a == f64::INFINITY { a } else { a + s / (1.0 + (s + 1.0).sqrt()) };
    (wide::log1p::<FMA>(t) as f32).copysign(x)
}

/// The number from 0 on whose hyperbolic cosine is x. At most 1 ulp off.
#[inline(always)]
pub fn acosh<const FMA: bool>(x: f32) -> f32 {
    let d = f64::from(x) - 1.0;
    let y = wide::log1p::<FMA>(d + (d * (d + 2.0)).sqrt()) as f32;
    if x < 1.0 { f32::NAN } else { y }
}

/// The number whose hyperbolic tangent is x. At most 1 ulp off.
#[inline(always)]
pub fn atanh<const FMA: bool>(x: f32) -> f32 {
    let a = f64::from(x).abs();
    ((0.5 * wide::log1p::<FMA>(2.0 * a / (1.0 - a))) as f32).copysign(x)
}

/// xʸ. At most 1 ulp off.
#[inline(always)]
pub fn pow<const FMA: bool>(x: f32, y: f32) -> f32 {
    let size = wide::exp::<FMA>(f64::from(y) * wide::log::<FMA>(f64::from(x.abs()))) as f32;
    let size = if y == 0.0 || x.abs() == 1.0 { 1.0 } else { size };
    let size = if y.is_nan() && x != 1.0 { y } else { size };
    // From 2²⁴ on every number is an even integer.
    let big = y.abs() >= 16_777_216.0;
    // SAFETY: what is below 2²⁴ in size is an `i32` when cut; NaN is not.
    let whole = unsafe { (if y.abs() < 16_777_216.0 { y } else { 0.0 }).to_int_unchecked::<i32>() };
    let odd = !big && whole as f32 == y && whole & 1 == 1;
    let signed = if odd { size.copysign(x) } else { size };
    let fraction = !big && whole as f32 != y && !y.is_nan();
    if fraction && x < 0.0 && x != f32::NEG_INFINITY { f32::NAN } else { signed }
}

/// 1/√x. At most 1.5 ulp off.
#[inline(always)]
pub fn rsqrt<const FMA: bool>(x: f32) -> f32 {
    1.0 / x.sqrt()
}

/// 1/x, correctly rounded.
#[inline(always)]
pub fn recip<const FMA: bool>(x: f32) -> f32 {
    1.0 / x
}

/// √x, correctly rounded.
#[inline(always)]
pub fn sqrt<const FMA: bool>(x: f32) -> f32 {
    x.sqrt()
}

/// The nearest integer, ties to the even one. Exact.
#[inline(always)]
pub fn round<const FMA: bool>(x: f32) -> f32 {
    if FMA {
        return x.round_ties_even();
    }
    // Levels without FMA have no instruction for it: numbers from 2²³ on are integers, and adding 2²³ rounds the others.
    let a = x.abs();
    let r = (a + 8_388_608.0) - 8_388_608.0;
    if a < 8_388_608.0 { r.copysign(x) } else { x }
}

/// The largest integer not above x. Exact.
#[inline(always)]
pub fn floor<const FMA: bool>(x: f32) -> f32 {
    if FMA {
        return x.floor();
    }
    let r = round::<FMA>(x);
    (if r > x { r - 1.0 } else { r }).copysign(x)
}

/// The smallest integer not below x. Exact.
#[inline(always)]
pub fn ceil<const FMA: bool>(x: f32) -> f32 {
    if FMA {
        return x.ceil();
    }
    let r = round::<FMA>(x);
    (if r < x { r + 1.0 } else { r }).copysign(x)
}

/// x without its fraction. Exact.
#[inline(always)]
pub fn trunc<const FMA: bool>(x: f32) -> f32 {
    if FMA {
        return x.trunc();
    }
    let (r, a) = (round::<FMA>(x.abs()), x.abs());
    (if r > a { r - 1.0 } else { r }).copysign(x)
}

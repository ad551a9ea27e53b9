//! The same functions of `f64`, an element at a time.

/// Functions of the standard library.
macro_rules! std_functions {
    ($($(#[$doc:meta])* $name:ident = $method:ident;)*) => {$(
        $(#[$doc])*
        #[inline]
        pub fn $name(x: f64) -> f64 {
            x.$method()
        }
    )*};
}

std_functions! {
    /// eˣ.
    exp = exp;
    /// eˣ − 1.
    expm1 = exp_m1;
    /// ln x.
    log = ln;
    /// ln(1 + x).
    log1p = ln_1p;
    /// √x.
    sqrt = sqrt;
    /// 1/x.
    recip = recip;
    /// The sine.
    sin = sin;
    /// The cosine.
    cos = cos;
    /// The tangent.
    tan = tan;
    /// The angle whose sine is x.
    asin = asin;
    /// The angle whose cosine is x.
    acos = acos;
    /// The angle whose tangent is x.
    atan = atan;
    /// The hyperbolic sine.
    sinh = sinh;
    /// The hyperbolic cosine.
    cosh = cosh;
    /// The hyperbolic tangent.
    tanh = tanh;
    /// The largest integer not above x.
    floor = floor;
    /// The smallest integer not below x.
    ceil = ceil;
    /// The nearest integer, ties to the even one.
    round = round_ties_even;
    /// x without its fraction.
    trunc = trunc;
}

/// 1/√x.
#[inline]
pub fn rsqrt(x: f64) -> f64 {
    1.0 / x.sqrt()
}

/// The number whose hyperbolic sine is x.
#[inline]
pub fn asinh(x: f64) -> f64 {
    libm::asinh(x)
}

/// The number from 0 on whose hyperbolic cosine is x.
#[inline]
pub fn acosh(x: f64) -> f64 {
    // The library's own answer to numbers below −1 is no NaN.
    if x < 1.0 { f64::NAN } else { libm::acosh(x) }
}

/// The number whose hyperbolic tangent is x.
#[inline]
pub fn atanh(x: f64) -> f64 {
    libm::atanh(x)
}

/// The error function.
#[inline]
pub fn erf(x: f64) -> f64 {
    libm::erf(x)
}

/// 1 − erf x.
#[inline]
pub fn erfc(x: f64) -> f64 {
    libm::erfc(x)
}

/// 1 / (1 + e⁻ˣ).
#[inline]
pub fn sigmoid(x: f64) -> f64 {
    let e = (-x.abs()).exp();
    (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)
}

/// x · sigmoid x.
#[inline]
pub fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

/// x · Φ(x), Φ being the cumulative normal distribution.
#[inline]
pub fn gelu(x: f64) -> f64 {
    x * 0.5 * libm::erfc(x * -std::f64::consts::FRAC_1_SQRT_2)
}

/// Gelu by tanh: x · sigmoid(√(8/π) · (x + 0.044715·x³)).
#[inline]
pub fn gelu_tanh(x: f64) -> f64 {
    let slope = (8.0 / std::f64::consts::PI).sqrt();
    x * sigmoid(slope * (x + 0.044715 * x * x * x))
}

/// xʸ.
#[inline]
pub fn pow(x: f64, y: f64) -> f64 {
    x.powf(y)
}

/// The angle of the point (x, y).
#[inline]
pub fn atan2(y: f64, x: f64) -> f64 {
    y.atan2(x)
}

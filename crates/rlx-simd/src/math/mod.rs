//! Vector functions: exponentials, logarithms, angles, the error function, rounding, and the fused activations.
//!
//! [`lane`] has every function of one `f32` as generic code that other kernels put into their own loops; [`double`] has them
//! for `f64`. The functions here run over slices, compiled for every level; the errors are those stated in [`lane`]. They
//! panic if the machine has not the level.

pub mod double;
pub mod lane;
pub(crate) mod loops;
mod wide;

use crate::level::Level;
use crate::tile::{Binary, Form, Store, binary};
use loops::{CHUNK, Kernel1, Loop1, heavy1, light1, one};

/// Nothing to mend.
#[inline(always)]
fn whole(_: &[f32; CHUNK], _: &mut [f32; CHUNK]) {}

/// Puts right the elements whose angle is beyond the reach of the vector form.
#[inline(always)]
fn mend(x: &[f32; CHUNK], r: &mut [f32; CHUNK], exact: fn(f64) -> f64) {
    // An OR over the chunk first, for far angles are rare.
    if x.iter().fold(false, |far, x| far | (x.abs() > lane::ANGLE_MAX)) {
        for (r, x) in r.iter_mut().zip(x) {
            if x.abs() > lane::ANGLE_MAX {
                *r = exact(f64::from(*x)) as f32;
            }
        }
    }
}

#[inline(always)]
fn mend_sin(x: &[f32; CHUNK], r: &mut [f32; CHUNK]) {
    mend(x, r, f64::sin);
}
#[inline(always)]
fn mend_cos(x: &[f32; CHUNK], r: &mut [f32; CHUNK]) {
    mend(x, r, f64::cos);
}
#[inline(always)]
fn mend_tan(x: &[f32; CHUNK], r: &mut [f32; CHUNK]) {
    mend(x, r, f64::tan);
}

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident: $loop:ident($($fix:ident)?);)*) => {
        $(
            $(#[$doc])*
            pub fn $name(level: Level, dst: &mut [f32], x: &[f32]) {
                let n = dst.len().min(x.len());
                assert!(level.is_available(), "this machine has no {level}");
                // SAFETY: both slices have n elements and do not overlap; the machine has the level.
                unsafe { kernel::$name(level)(n, dst.as_mut_ptr().cast(), x.as_ptr().cast()) }
            }
        )*
        /// The loops behind the functions, resolved for a level.
        pub(crate) mod kernel {
            use super::*;
            $(
                pub(crate) fn $name(level: Level) -> Loop1 {
                    struct K;
                    impl Kernel1 for K {
                        #[inline(always)]
                        unsafe fn run<const FMA: bool>(n: usize, dst: *mut u8, a: *const u8) {
                            // SAFETY: the contract of the pointer is that of the loop.
                            unsafe { $loop::<f32, f32>(n, dst, a, lane::$name::<FMA> $(, $fix)?) }
                        }
                    }
                    one::at_level::<K>(level)
                }
            )*
        }
    };
}

functions! {
    /// dst = eˣ, over the shorter of the slices.
    exp: heavy1(whole);
    /// dst = eˣ − 1.
    expm1: heavy1(whole);
    /// dst = ln x.
    log: heavy1(whole);
    /// dst = ln(1 + x).
    log1p: heavy1(whole);
    /// dst = tanh x.
    tanh: heavy1(whole);
    /// dst = erf x.
    erf: heavy1(whole);
    /// dst = 1 − erf x.
    erfc: heavy1(whole);
    /// dst = sin x, for any x.
    sin: heavy1(mend_sin);
    /// dst = cos x, for any x.
    cos: heavy1(mend_cos);
    /// dst = tan x, for any x.
    tan: heavy1(mend_tan);
    /// dst = asin x.
    asin: heavy1(whole);
    /// dst = acos x.
    acos: heavy1(whole);
    /// dst = atan x.
    atan: heavy1(whole);
    /// dst = sinh x.
    sinh: heavy1(whole);
    /// dst = cosh x.
    cosh: heavy1(whole);
    /// dst = asinh x.
    asinh: heavy1(whole);
    /// dst = acosh x.
    acosh: heavy1(whole);
    /// dst = atanh x.
    atanh: heavy1(whole);
    /// dst = 1 / (1 + e⁻ˣ).
    sigmoid: heavy1(whole);
    /// dst = x · sigmoid x.
    silu: heavy1(whole);
    /// dst = x · Φ(x).
    gelu: heavy1(whole);
    /// dst = gelu by tanh.
    gelu_tanh: heavy1(whole);
    /// dst = 1/√x.
    rsqrt: light1();
    /// dst = 1/x.
    recip: light1();
    /// dst = √x.
    sqrt: light1();
    /// dst = the nearest integer, ties to the even one.
    round: light1();
    /// dst = the largest integer not above x.
    floor: light1();
    /// dst = the smallest integer not below x.
    ceil: light1();
    /// dst = x without its fraction.
    trunc: light1();
}

/// dst = xʸ, over the shortest of the slices.
pub fn pow(level: Level, dst: &mut [f32], x: &[f32], y: &[f32]) {
    run2(level, Binary::Pow, dst, x, y);
}

/// dst = the angle of the point (x, y).
pub fn atan2(level: Level, dst: &mut [f32], y: &[f32], x: &[f32]) {
    run2(level, Binary::Atan2, dst, y, x);
}

fn run2(level: Level, op: Binary, dst: &mut [f32], a: &[f32], b: &[f32]) {
    assert!(level.is_available(), "this machine has no {level}");
    let n = dst.len().min(a.len()).min(b.len());
    if let Some(f) = binary(level, op, Store::F32, Form::TileTile) {
        // SAFETY: all slices have n elements and do not overlap; the machine has the level.
        unsafe { f(n, dst.as_mut_ptr().cast(), a.as_ptr().cast(), b.as_ptr().cast()) }
    }
}

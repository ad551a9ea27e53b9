//! The ops of floats, and the choice between two registers.

use super::{Arg, Binary, BinaryFn, Form, TernaryFn, Unary, UnaryFn};
use crate::level::Level;
use crate::math::loops::{
    Kernel1, Kernel2, Kernel3, heavy1, heavy2, light1, light2, light3, one, three, two,
};
use crate::math::{double, kernel, lane};
use std::marker::PhantomData;
use std::ops::{Add, Div, Mul, Neg, Rem, Sub};

/// What the ops need of a float.
pub(super) trait Float:
    Copy
    + Default
    + PartialOrd
    + Neg<Output = Self>
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Rem<Output = Self>
    + 'static
{
    fn nan(self) -> bool;
    fn infinite(self) -> bool;
    fn absolute(self) -> Self;
    fn one() -> Self;
    fn madd<const FMA: bool>(self, b: Self, c: Self) -> Self;
    fn power<const FMA: bool>(self, b: Self) -> Self;
    fn angle<const FMA: bool>(self, b: Self) -> Self;
}

macro_rules! floats {
    ($($t:ty, $pow:expr, $atan2:expr;)*) => {$(
        impl Float for $t {
            #[inline(always)]
            fn nan(self) -> bool {
                self.is_nan()
            }
            #[inline(always)]
            fn infinite(self) -> bool {
                self.is_infinite()
            }
            #[inline(always)]
            fn absolute(self) -> $t {
                self.abs()
            }
            #[inline(always)]
            fn one() -> $t {
                1.0
            }
            #[inline(always)]
            fn madd<const FMA: bool>(self, b: $t, c: $t) -> $t {
                if FMA { self.mul_add(b, c) } else { self * b + c }
            }
            #[inline(always)]
            fn power<const FMA: bool>(self, b: $t) -> $t {
                $pow(self, b)
            }
            #[inline(always)]
            fn angle<const FMA: bool>(self, b: $t) -> $t {
                $atan2(self, b)
            }
        }
    )*};
}

floats! {
    f32, lane::pow::<FMA>, lane::atan2::<FMA>;
    f64, double::pow, double::atan2;
}

/// Declares ops of one operand as kernels, `T` being the type of the operand.
macro_rules! unary_ops {
    ($loop:ident: $($name:ident($a:ident) -> $r:ty = $f:expr;)*) => {$(
        struct $name<T>(PhantomData<T>);
        impl<T: Float> Kernel1 for $name<T> {
            #[inline(always)]
            unsafe fn run<const FMA: bool>(n: usize, dst: *mut u8, a: *const u8) {
                #[inline(always)]
                fn f<T: Float>($a: T) -> $r {
                    $f
                }
                // SAFETY: the contract of the pointer is that of the loop.
                unsafe { $loop::<T, $r>(n, dst, a, f::<T>) }
            }
        }
    )*};
}

unary_ops! { light1:
    Negative(a) -> T = -a;
    Absolute(a) -> T = a.absolute();
    // NaN has no sign.
    Signum(a) -> T = if a > T::default() { T::one() } else if a < T::default() { -T::one() } else { T::default() };
    Squared(a) -> T = a * a;
    IsNan(a) -> i32 = a.nan() as i32;
    IsInf(a) -> i32 = a.infinite() as i32;
}

/// The ops that are written once for both floats.
fn unary<T: Float>(level: Level, op: Unary) -> Option<UnaryFn> {
    Some(match op {
        Unary::Neg => one::at_level::<Negative<T>>(level),
        Unary::Abs => one::at_level::<Absolute<T>>(level),
        Unary::Sign => one::at_level::<Signum<T>>(level),
        Unary::Square => one::at_level::<Squared<T>>(level),
        Unary::IsNan => one::at_level::<IsNan<T>>(level),
        Unary::IsInf => one::at_level::<IsInf<T>>(level),
        _ => return None,
    })
}

pub(super) fn unary_f32(level: Level, op: Unary) -> Option<UnaryFn> {
    use Unary::*;
    Some(match op {
        Exp => kernel::exp(level),
        Expm1 => kernel::expm1(level),
        Log => kernel::log(level),
        Log1p => kernel::log1p(level),
        Sqrt => kernel::sqrt(level),
        Rsqrt => kernel::rsqrt(level),
        Recip => kernel::recip(level),
        Sin => kernel::sin(level),
        Cos => kernel::cos(level),
        Tan => kernel::tan(level),
        Asin => kernel::asin(level),
        Acos => kernel::acos(level),
        Atan => kernel::atan(level),
        Sinh => kernel::sinh(level),
        Cosh => kernel::cosh(level),
        Asinh => kernel::asinh(level),
        Acosh => kernel::acosh(level),
        Atanh => kernel::atanh(level),
        Tanh => kernel::tanh(level),
        Erf => kernel::erf(level),
        Erfc => kernel::erfc(level),
        Sigmoid => kernel::sigmoid(level),
        Floor => kernel::floor(level),
        Ceil => kernel::ceil(level),
        Round => kernel::round(level),
        Trunc => kernel::trunc(level),
        Gelu => kernel::gelu(level),
        GeluTanh => kernel::gelu_tanh(level),
        Silu => kernel::silu(level),
        Neg | Abs | Sign | Not | IsNan | IsInf | Square => return unary::<f32>(level, op),
    })
}

/// A function of one `f64`, run an element at a time: the same for every level.
macro_rules! scalar {
    ($f:path) => {{
        unsafe fn each(n: usize, dst: *mut u8, a: *const u8) {
            // SAFETY: the contract of the pointer is that of the loop.
            unsafe { heavy1::<f64, f64>(n, dst, a, $f, |_, _| {}) }
        }
        each as UnaryFn
    }};
}

pub(super) fn unary_f64(level: Level, op: Unary) -> Option<UnaryFn> {
    use Unary::*;
    Some(match op {
        Exp => scalar!(double::exp),
        Expm1 => scalar!(double::expm1),
        Log => scalar!(double::log),
        Log1p => scalar!(double::log1p),
        Sqrt => scalar!(double::sqrt),
        Rsqrt => scalar!(double::rsqrt),
        Recip => scalar!(double::recip),
        Sin => scalar!(double::sin),
        Cos => scalar!(double::cos),
        Tan => scalar!(double::tan),
        Asin => scalar!(double::asin),
        Acos => scalar!(double::acos),
        Atan => scalar!(double::atan),
        Sinh => scalar!(double::sinh),
        Cosh => scalar!(double::cosh),
        Asinh => scalar!(double::asinh),
        Acosh => scalar!(double::acosh),
        Atanh => scalar!(double::atanh),
        Tanh => scalar!(double::tanh),
        Erf => scalar!(double::erf),
        Erfc => scalar!(double::erfc),
        Sigmoid => scalar!(double::sigmoid),
        Floor => scalar!(double::floor),
        Ceil => scalar!(double::ceil),
        Round => scalar!(double::round),
        Trunc => scalar!(double::trunc),
        Gelu => scalar!(double::gelu),
        GeluTanh => scalar!(double::gelu_tanh),
        Silu => scalar!(double::silu),
        Neg | Abs | Sign | Not | IsNan | IsInf | Square => return unary::<f64>(level, op),
    })
}

/// A function of two floats.
trait Op2<T> {
    type Out: Copy + Default;
    fn f<const FMA: bool>(a: T, b: T) -> Self::Out;
}

macro_rules! binary_ops {
    ($($name:ident($a:ident, $b:ident) -> $r:ty = $f:expr;)*) => {$(
        struct $name;
        impl<T: Float> Op2<T> for $name {
            type Out = $r;
            #[inline(always)]
            fn f<const FMA: bool>($a: T, $b: T) -> $r {
                $f
            }
        }
    )*};
}

binary_ops! {
    Plus(a, b) -> T = a + b;
    Minus(a, b) -> T = a - b;
    Times(a, b) -> T = a * b;
    Over(a, b) -> T = a / b;
    Remainder(a, b) -> T = a % b;
    Power(a, b) -> T = a.power::<FMA>(b);
    Angle(a, b) -> T = a.angle::<FMA>(b);
    // NaN wins: where b is NaN no comparison holds.
    Larger(a, b) -> T = if a > b || a.nan() { a } else { b };
    Smaller(a, b) -> T = if a < b || a.nan() { a } else { b };
    Equal(a, b) -> i32 = (a == b) as i32;
    Unequal(a, b) -> i32 = (a != b) as i32;
    Less(a, b) -> i32 = (a < b) as i32;
    LessEqual(a, b) -> i32 = (a <= b) as i32;
    Greater(a, b) -> i32 = (a > b) as i32;
    GreaterEqual(a, b) -> i32 = (a >= b) as i32;
}

struct Light<T, O, const SA: bool, const SB: bool>(PhantomData<(T, O)>);

impl<T: Float, O: Op2<T>, const SA: bool, const SB: bool> Kernel2 for Light<T, O, SA, SB> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(n: usize, dst: *mut u8, a: *const u8, b: *const u8) {
        // SAFETY: the contract of the pointer is that of the loop.
        unsafe { light2::<T, T, O::Out, SA, SB>(n, dst, a, b, O::f::<FMA>) }
    }
}

fn light<T: Float, O: Op2<T>>(level: Level, form: Form) -> BinaryFn {
    match form {
        Form::TileTile => two::at_level::<Light<T, O, false, false>>(level),
        Form::SplatTile => two::at_level::<Light<T, O, true, false>>(level),
        Form::TileSplat => two::at_level::<Light<T, O, false, true>>(level),
    }
}

struct Heavy<T, O, const SA: bool, const SB: bool>(PhantomData<(T, O)>);

impl<T: Float, O: Op2<T>, const SA: bool, const SB: bool> Kernel2 for Heavy<T, O, SA, SB> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(n: usize, dst: *mut u8, a: *const u8, b: *const u8) {
        // SAFETY: the contract of the pointer is that of the loop.
        unsafe { heavy2::<T, T, O::Out>(n, dst, (a, SA), (b, SB), O::f::<FMA>) }
    }
}

fn heavy<T: Float, O: Op2<T>>(level: Level, form: Form) -> BinaryFn {
    match form {
        Form::TileTile => two::at_level::<Heavy<T, O, false, false>>(level),
        Form::SplatTile => two::at_level::<Heavy<T, O, true, false>>(level),
        Form::TileSplat => two::at_level::<Heavy<T, O, false, true>>(level),
    }
}

pub(super) fn binary<T: Float>(level: Level, op: Binary, form: Form) -> Option<BinaryFn> {
    use Binary::*;
    Some(match op {
        Add => light::<T, Plus>(level, form),
        Sub => light::<T, Minus>(level, form),
        Mul => light::<T, Times>(level, form),
        Div => light::<T, Over>(level, form),
        Rem => heavy::<T, Remainder>(Level::Baseline, form),
        Pow => heavy::<T, Power>(level, form),
        Atan2 => heavy::<T, Angle>(level, form),
        Max => light::<T, Larger>(level, form),
        Min => light::<T, Smaller>(level, form),
        Eq => light::<T, Equal>(level, form),
        Ne => light::<T, Unequal>(level, form),
        Lt => light::<T, Less>(level, form),
        Le => light::<T, LessEqual>(level, form),
        Gt => light::<T, Greater>(level, form),
        Ge => light::<T, GreaterEqual>(level, form),
        And | Or | Xor | Shl | Shr => return None,
    })
}

struct MulAdd<T, const SA: bool, const SB: bool, const SC: bool>(PhantomData<T>);

impl<T: Float, const SA: bool, const SB: bool, const SC: bool> Kernel3 for MulAdd<T, SA, SB, SC> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(n: usize, dst: *mut u8, a: *const u8, b: *const u8, c: *const u8) {
        // SAFETY: the contract of the pointer is that of the loop.
        unsafe { light3::<T, T, T, T, SA, SB, SC>(n, dst, (a, b, c), T::madd::<FMA>) }
    }
}

pub(super) fn mul_add<T: Float>(level: Level, form: [Arg; 3]) -> TernaryFn {
    use Arg::{Splat, Tile};
    match form {
        [Tile, Tile, Tile] => three::at_level::<MulAdd<T, false, false, false>>(level),
        [Splat, Tile, Tile] => three::at_level::<MulAdd<T, true, false, false>>(level),
        [Tile, Splat, Tile] => three::at_level::<MulAdd<T, false, true, false>>(level),
        [Tile, Tile, Splat] => three::at_level::<MulAdd<T, false, false, true>>(level),
        [Splat, Tile, Splat] => three::at_level::<MulAdd<T, true, false, true>>(level),
        [Tile, Splat, Splat] => three::at_level::<MulAdd<T, false, true, true>>(level),
        [Splat, Splat, Tile] => three::at_level::<MulAdd<T, true, true, false>>(level),
        [Splat, Splat, Splat] => three::at_level::<MulAdd<T, true, true, true>>(level),
    }
}

/// Chooses between bits of a register's width.
struct Choose<T, const SA: bool, const SB: bool>(PhantomData<T>);

impl<T: Copy + Default, const SA: bool, const SB: bool> Kernel3 for Choose<T, SA, SB> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(n: usize, dst: *mut u8, c: *const u8, a: *const u8, b: *const u8) {
        #[inline(always)]
        fn choose<T>(c: i32, a: T, b: T) -> T {
            if c != 0 { a } else { b }
        }
        // SAFETY: the contract of the pointer is that of the loop.
        unsafe { light3::<i32, T, T, T, false, SA, SB>(n, dst, (c, a, b), choose::<T>) }
    }
}

pub(super) fn select<T: Copy + Default>(level: Level, a: Arg, b: Arg) -> TernaryFn {
    match (a, b) {
        (Arg::Tile, Arg::Tile) => three::at_level::<Choose<T, false, false>>(level),
        (Arg::Splat, Arg::Tile) => three::at_level::<Choose<T, true, false>>(level),
        (Arg::Tile, Arg::Splat) => three::at_level::<Choose<T, false, true>>(level),
        (Arg::Splat, Arg::Splat) => three::at_level::<Choose<T, true, true>>(level),
    }
}

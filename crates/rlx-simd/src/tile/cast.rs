//! Casts from register to register. Floats become integers by cutting toward zero and clamping to the type's range, NaN
//! by 0; integers wrap; a bool is `x != 0`; a float is rounded to the type's values.

use super::convert::{BF16, F8E4M3, F8E5M2, F16, Small, to_odd};
use super::{Store, UnaryFn};
use crate::level::Level;
use crate::math::loops::{Kernel1, heavy1, one};
use std::marker::PhantomData;

/// A number as a register holds it, before a cast.
trait Source: Copy + Default + 'static {
    /// The element of the register.
    type Reg: Copy + Default + 'static;
    fn of(r: Self::Reg) -> Self;
}

macro_rules! sources {
    ($($t:ty: $reg:ty;)*) => {$(
        impl Source for $t {
            type Reg = $reg;
            #[inline(always)]
            fn of(r: $reg) -> $t {
                r as $t
            }
        }
    )*};
}

sources! {
    f32: f32;
    f64: f64;
    i32: i32;
    u32: i32;
    i64: i64;
    u64: i64;
}

/// A type that numbers of type `S` are cast to.
trait Target<S> {
    type Reg: Copy + Default + 'static;
    fn cast(x: S) -> Self::Reg;
}

/// Marks a type of at most 16 bits as a target.
struct Rounded<T>(PhantomData<T>);
struct Truth;

/// Rust's own casts have the semantics wanted, but for wide integers, which go through `f64` as all numbers of the oracle do.
macro_rules! targets {
    ($s:ty: $($t:ty => $reg:ty),*) => {
        $(
            impl Target<$s> for $t {
                type Reg = $reg;
                #[inline(always)]
                fn cast(x: $s) -> $reg {
                    x as $t as $reg
                }
            }
        )*
    };
}

macro_rules! truth {
    ($s:ty) => {
        impl Target<$s> for Truth {
            type Reg = i32;
            #[inline(always)]
            fn cast(x: $s) -> i32 {
                (x != <$s>::default()) as i32
            }
        }
    };
}

macro_rules! all_targets {
    ($($s:ty),*) => {$(
        targets!($s: f64 => f64, i32 => i32, i64 => i64, u32 => i32, u64 => i64);
        targets!($s: i8 => i32, i16 => i32, u8 => i32, u16 => i32);
        truth!($s);
    )*};
}

all_targets!(f64, i32, u32, i64, u64);
targets!(f32: f64 => f64, i64 => i64, u32 => i32, u64 => i64);
truth!(f32);

/// `x as i32`, in a form that becomes vector code.
#[inline(always)]
fn to_i32(x: f32) -> i32 {
    const END: f32 = 2_147_483_648.0;
    // SAFETY: a number below 2³¹ in size, cut, is an `i32`.
    let y = unsafe { (if x.abs() < END { x } else { 0.0 }).to_int_unchecked::<i32>() };
    let y = if x >= END { i32::MAX } else { y };
    if x <= -END { i32::MIN } else { y }
}

impl Target<f32> for i32 {
    type Reg = i32;
    #[inline(always)]
    fn cast(x: f32) -> i32 {
        to_i32(x)
    }
}

/// Narrow integers, clamped as `i32`.
macro_rules! narrow_targets {
    ($($t:ty),*) => {$(
        impl Target<f32> for $t {
            type Reg = i32;
            #[inline(always)]
            fn cast(x: f32) -> i32 {
                to_i32(x).clamp(<$t>::MIN as i32, <$t>::MAX as i32)
            }
        }
    )*};
}

narrow_targets!(i8, i16, u8, u16);

macro_rules! float_targets {
    ($($s:ty),*) => {$(
        impl Target<$s> for f32 {
            type Reg = f32;
            #[inline(always)]
            fn cast(x: $s) -> f32 {
                x as f64 as f32
            }
        }
        impl<T: Small> Target<$s> for Rounded<T> {
            type Reg = f32;
            #[inline(always)]
            fn cast(x: $s) -> f32 {
                T::round(to_odd(x as f64))
            }
        }
    )*};
}

float_targets!(f64, u32, i64, u64);

impl Target<f32> for f32 {
    type Reg = f32;
    #[inline(always)]
    fn cast(x: f32) -> f32 {
        x
    }
}
impl<T: Small> Target<f32> for Rounded<T> {
    type Reg = f32;
    #[inline(always)]
    fn cast(x: f32) -> f32 {
        T::round(x)
    }
}
impl Target<i32> for f32 {
    type Reg = f32;
    #[inline(always)]
    fn cast(x: i32) -> f32 {
        x as f32
    }
}
impl<T: Small> Target<i32> for Rounded<T> {
    type Reg = f32;
    #[inline(always)]
    fn cast(x: i32) -> f32 {
        T::round(to_odd(f64::from(x)))
    }
}

struct Cast<S, D>(PhantomData<(S, D)>);

impl<S: Source, D: Target<S>> Kernel1 for Cast<S, D> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(n: usize, dst: *mut u8, a: *const u8) {
        #[inline(always)]
        fn f<S: Source, D: Target<S>>(x: S::Reg) -> D::Reg {
            D::cast(S::of(x))
        }
        // SAFETY: the contract of the pointer is that of the loop.
        unsafe { heavy1::<S::Reg, D::Reg>(n, dst, a, f::<S, D>, |_, _| {}) }
    }
}

/// The cast of one kind of number to every type. The common kinds are compiled for every level, the others once.
macro_rules! cast_from {
    ($s:ty, $to:expr, |$k:ident| $pick:expr) => {{
        macro_rules! to {
            ($d:ty) => {{
                type $k = Cast<$s, $d>;
                $pick
            }};
        }
        match $to {
            Store::F64 => to!(f64),
            Store::F32 => to!(f32),
            Store::F16 => to!(Rounded<F16>),
            Store::BF16 => to!(Rounded<BF16>),
            Store::F8E4M3 => to!(Rounded<F8E4M3>),
            Store::F8E5M2 => to!(Rounded<F8E5M2>),
            Store::I8 => to!(i8),
            Store::I16 => to!(i16),
            Store::I32 => to!(i32),
            Store::I64 => to!(i64),
            Store::U8 => to!(u8),
            Store::U16 => to!(u16),
            Store::U32 => to!(u32),
            Store::U64 => to!(u64),
            Store::Bool => to!(Truth),
        }
    }};
}

/// The loop that casts a register of one type to one of another. Where `dst` has wider elements than the source, in
/// place means that the source begins where `dst` does.
pub fn cast(level: Level, from: Store, to: Store) -> UnaryFn {
    match from {
        Store::F32 | Store::F16 | Store::BF16 | Store::F8E4M3 | Store::F8E5M2 => {
            cast_from!(f32, to, |K| one::at_level::<K>(level))
        }
        Store::F64 => cast_from!(f64, to, |K| one::baseline::<K>),
        Store::I8 | Store::I16 | Store::I32 | Store::U8 | Store::U16 | Store::Bool => {
            cast_from!(i32, to, |K| one::at_level::<K>(level))
        }
        Store::U32 => cast_from!(u32, to, |K| one::baseline::<K>),
        Store::I64 => cast_from!(i64, to, |K| one::baseline::<K>),
        Store::U64 => cast_from!(u64, to, |K| one::baseline::<K>),
    }
}

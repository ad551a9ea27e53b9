//! The ops of integers and bools.
//!
//! The types of everyday work (`I32`, `I64`, `Bool`) are compiled for every level, the others once.

use super::{Binary, BinaryFn, Form, Store, Unary, UnaryFn};
use crate::level::Level;
use crate::math::loops::{Kernel1, heavy1, heavy2, kernels, one};
use std::marker::PhantomData;

/// An integer type, or bool, as held in a register.
pub(super) trait Int: Copy + Ord + 'static {
    /// For which levels its ops are compiled.
    type Levels: Levels;
    /// The element of its register.
    type Reg: Copy + Default + 'static;
    fn of(r: Self::Reg) -> Self;
    fn reg(self) -> Self::Reg;
    fn one() -> Self;
    fn neg(self) -> Self;
    fn abs(self) -> Self;
    fn sign(self) -> Self;
    fn not(self) -> Self;
    fn add(self, b: Self) -> Self;
    fn sub(self, b: Self) -> Self;
    fn mul(self, b: Self) -> Self;
    fn div(self, b: Self) -> Self;
    fn rem(self, b: Self) -> Self;
    fn pow(self, b: Self) -> Self;
    fn and(self, b: Self) -> Self;
    fn or(self, b: Self) -> Self;
    fn xor(self, b: Self) -> Self;
    fn shl(self, b: Self) -> Self;
    fn shr(self, b: Self) -> Self;
}

macro_rules! ints {
    ($($t:ident: $reg:ident, $sign:ident, $levels:ident;)*) => {$(
        impl Int for $t {
            type Levels = $levels;
            type Reg = $reg;
            #[inline(always)]
            fn of(r: $reg) -> $t {
                r as $t
            }
            #[inline(always)]
            fn reg(self) -> $reg {
                self as $reg
            }
            #[inline(always)]
            fn one() -> $t {
                1
            }
            #[inline(always)]
            fn neg(self) -> $t {
                self.wrapping_neg()
            }
            ints!($sign $t);
            #[inline(always)]
            fn not(self) -> $t {
                !self
            }
            #[inline(always)]
            fn add(self, b: $t) -> $t {
                self.wrapping_add(b)
            }
            #[inline(always)]
            fn sub(self, b: $t) -> $t {
                self.wrapping_sub(b)
            }
            #[inline(always)]
            fn mul(self, b: $t) -> $t {
                self.wrapping_mul(b)
            }
            #[inline(always)]
            fn div(self, b: $t) -> $t {
                if b == 0 { 0 } else { self.wrapping_div(b) }
            }
            #[inline(always)]
            fn rem(self, b: $t) -> $t {
                if b == 0 { 0 } else { self.wrapping_rem(b) }
            }
            #[inline(always)]
            fn and(self, b: $t) -> $t {
                self & b
            }
            #[inline(always)]
            fn or(self, b: $t) -> $t {
                self | b
            }
            #[inline(always)]
            fn xor(self, b: $t) -> $t {
                self ^ b
            }
            #[inline(always)]
            fn shl(self, b: $t) -> $t {
                // A negative count is a huge one when seen without sign; so is one that wraps.
                if (b as u64) < $t::BITS as u64 { self.wrapping_shl(b as u32) } else { 0 }
            }
            #[inline(always)]
            fn shr(self, b: $t) -> $t {
                let most = $t::BITS - 1;
                if (b as u64) <= most as u64 { self.wrapping_shr(b as u32) } else { self.wrapping_shr(most).wrapping_shr(1) }
            }
        }
    )*};
    (signed $t:ident) => {
        #[inline(always)]
        fn abs(self) -> $t {
            self.wrapping_abs()
        }
        #[inline(always)]
        fn sign(self) -> $t {
            (self > 0) as $t - (self < 0) as $t
        }
        #[inline(always)]
        fn pow(self, b: $t) -> $t {
            match (self, b < 0) {
                (_, false) => power(self, b as u64),
                (1, true) => 1,
                (-1, true) => 1 - 2 * (b & 1),
                _ => 0,
            }
        }
    };
    (unsigned $t:ident) => {
        #[inline(always)]
        fn abs(self) -> $t {
            self
        }
        #[inline(always)]
        fn sign(self) -> $t {
            (self > 0) as $t
        }
        #[inline(always)]
        fn pow(self, b: $t) -> $t {
            power(self, b as u64)
        }
    };
}

ints! {
    i8: i32, signed, Once;
    i16: i32, signed, Once;
    i32: i32, signed, Every;
    i64: i64, signed, Every;
    u8: i32, unsigned, Once;
    u16: i32, unsigned, Once;
    u32: i32, unsigned, Once;
    u64: i64, unsigned, Once;
}

/// Integer power by squaring.
#[inline(always)]
fn power<T: Int>(mut base: T, mut exponent: u64) -> T {
    let mut result = T::one();
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = result.mul(base);
        }
        base = base.mul(base);
        exponent >>= 1;
    }
    result
}

/// Numbers of which only `!= 0` is kept.
impl Int for bool {
    type Levels = Every;
    type Reg = i32;
    #[inline(always)]
    fn of(r: i32) -> bool {
        r != 0
    }
    #[inline(always)]
    fn reg(self) -> i32 {
        self as i32
    }
    #[inline(always)]
    fn one() -> bool {
        true
    }
    #[inline(always)]
    fn neg(self) -> bool {
        self
    }
    #[inline(always)]
    fn abs(self) -> bool {
        self
    }
    #[inline(always)]
    fn sign(self) -> bool {
        self
    }
    #[inline(always)]
    fn not(self) -> bool {
        !self
    }
    #[inline(always)]
    fn add(self, b: bool) -> bool {
        self | b
    }
    #[inline(always)]
    fn sub(self, b: bool) -> bool {
        self ^ b
    }
    #[inline(always)]
    fn mul(self, b: bool) -> bool {
        self & b
    }
    #[inline(always)]
    fn div(self, b: bool) -> bool {
        self & b
    }
    #[inline(always)]
    fn rem(self, _: bool) -> bool {
        false
    }
    #[inline(always)]
    fn pow(self, b: bool) -> bool {
        self | !b
    }
    #[inline(always)]
    fn and(self, b: bool) -> bool {
        self & b
    }
    #[inline(always)]
    fn or(self, b: bool) -> bool {
        self | b
    }
    #[inline(always)]
    fn xor(self, b: bool) -> bool {
        self ^ b
    }
    // Bools are not shifted: `binary` gives no loop for it.
    #[inline(always)]
    fn shl(self, _: bool) -> bool {
        self
    }
    #[inline(always)]
    fn shr(self, b: bool) -> bool {
        self & !b
    }
}

macro_rules! unary_ops {
    ($($name:ident($a:ident) = $f:expr;)*) => {$(
        struct $name<T>(PhantomData<T>);
        impl<T: Int> Kernel1 for $name<T> {
            #[inline(always)]
            unsafe fn run<const FMA: bool>(n: usize, dst: *mut u8, a: *const u8) {
                #[inline(always)]
                fn f<T: Int>(a: T::Reg) -> T::Reg {
                    let $a = T::of(a);
                    T::reg($f)
                }
                // SAFETY: the contract of the pointer is that of the loop.
                unsafe { heavy1::<T::Reg, T::Reg>(n, dst, a, f::<T>, |_, _| {}) }
            }
        }
    )*};
}

unary_ops! {
    Negative(a) = a.neg();
    Absolute(a) = a.abs();
    Signum(a) = a.sign();
    Complement(a) = a.not();
    Squared(a) = a.mul(a);
}

/// An integer is its own floor.
unsafe fn same<T>(n: usize, dst: *mut u8, a: *const u8) {
    // SAFETY: both have n elements; the same address is allowed.
    unsafe { std::ptr::copy(a.cast::<T>(), dst.cast::<T>(), n) }
}

/// No integer is NaN or infinite.
unsafe fn never(n: usize, dst: *mut u8, _: *const u8) {
    // SAFETY: `dst` has room for n elements.
    unsafe { std::ptr::write_bytes(dst.cast::<i32>(), 0, n) }
}

fn unary_of<T: Int>(level: Level, op: Unary) -> Option<UnaryFn> {
    use Unary::*;
    Some(match op {
        Neg => T::Levels::unary::<Negative<T>>(level),
        Abs => T::Levels::unary::<Absolute<T>>(level),
        Sign => T::Levels::unary::<Signum<T>>(level),
        Not => T::Levels::unary::<Complement<T>>(level),
        Square => T::Levels::unary::<Squared<T>>(level),
        Floor | Ceil | Round | Trunc => same::<T::Reg>,
        IsNan | IsInf => never,
        _ => return None,
    })
}

/// A function of two integers, from register to register.
pub(super) trait Op2<T: Int> {
    type Out: Copy + Default;
    fn f(a: T::Reg, b: T::Reg) -> Self::Out;
}

macro_rules! binary_ops {
    (numbers { $($name:ident = $method:ident;)* } truths { $($truth:ident($a:ident, $b:ident) = $test:expr;)* }) => {
        $(
            struct $name;
            impl<T: Int> Op2<T> for $name {
                type Out = T::Reg;
                #[inline(always)]
                fn f(a: T::Reg, b: T::Reg) -> T::Reg {
                    T::of(a).$method(T::of(b)).reg()
                }
            }
        )*
        $(
            struct $truth;
            impl<T: Int> Op2<T> for $truth {
                type Out = i32;
                #[inline(always)]
                fn f(a: T::Reg, b: T::Reg) -> i32 {
                    let ($a, $b) = (T::of(a), T::of(b));
                    ($test) as i32
                }
            }
        )*
    };
}

binary_ops! {
    numbers {
    Plus = add;
    Minus = sub;
    Times = mul;
    Over = div;
    Remainder = rem;
    Power = pow;
    Larger = max;
    Smaller = min;
    Both = and;
    Either = or;
    Differ = xor;
    Left = shl;
    Right = shr;
    }
    truths {
    Equal(a, b) = a == b;
    Unequal(a, b) = a != b;
    Less(a, b) = a < b;
    LessEqual(a, b) = a <= b;
    Greater(a, b) = a > b;
    GreaterEqual(a, b) = a >= b;
    }
}

/// A loop that is told when running which operand is one element, so that the three forms share its code.
type Flagged = unsafe fn(n: usize, dst: *mut u8, a: (*const u8, bool), b: (*const u8, bool));

kernels! {
    /// A function of two operands, each a tile or one element.
    FlaggedKernel, Flagged, flagged(n: usize, dst: *mut u8, a: (*const u8, bool), b: (*const u8, bool))
}

struct Loop<T, O>(PhantomData<(T, O)>);

impl<T: Int, O: Op2<T>> FlaggedKernel for Loop<T, O> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(n: usize, dst: *mut u8, a: (*const u8, bool), b: (*const u8, bool)) {
        // SAFETY: the contract of the pointer is that of the loop.
        unsafe { heavy2::<T::Reg, T::Reg, O::Out>(n, dst, a, b, O::f) }
    }
}

/// For which levels a kernel is compiled.
pub(super) trait Levels {
    fn unary<K: Kernel1>(level: Level) -> UnaryFn;
    fn binary<K: FlaggedKernel>(level: Level, form: Form) -> BinaryFn;
}

/// For all.
pub(super) struct Every;
/// For the baseline, which serves the others too.
pub(super) struct Once;

/// The three forms of a compiled kernel.
macro_rules! forms {
    ($level:ident, $form:expr, $kernel:ident) => {{
        unsafe fn shaped<K: FlaggedKernel, const A: bool, const B: bool>(
            n: usize,
            dst: *mut u8,
            a: *const u8,
            b: *const u8,
        ) {
            // SAFETY: the caller keeps the contract, which includes that the machine has the level.
            unsafe { flagged::$level::<K>(n, dst, (a, A), (b, B)) }
        }
        match $form {
            Form::TileTile => shaped::<$kernel, false, false> as BinaryFn,
            Form::SplatTile => shaped::<$kernel, true, false>,
            Form::TileSplat => shaped::<$kernel, false, true>,
        }
    }};
}

impl Levels for Every {
    fn unary<K: Kernel1>(level: Level) -> UnaryFn {
        one::at_level::<K>(level)
    }
    fn binary<K: FlaggedKernel>(level: Level, form: Form) -> BinaryFn {
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => forms!(avx512, form, K),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => forms!(avx2, form, K),
            _ => forms!(baseline, form, K),
        }
    }
}

impl Levels for Once {
    fn unary<K: Kernel1>(_: Level) -> UnaryFn {
        one::baseline::<K>
    }
    fn binary<K: FlaggedKernel>(_: Level, form: Form) -> BinaryFn {
        forms!(baseline, form, K)
    }
}

fn binary_of<T: Int>(level: Level, op: Binary, form: Form) -> Option<BinaryFn> {
    use Binary::*;
    Some(match op {
        Add => T::Levels::binary::<Loop<T, Plus>>(level, form),
        Sub => T::Levels::binary::<Loop<T, Minus>>(level, form),
        Mul => T::Levels::binary::<Loop<T, Times>>(level, form),
        Div => Once::binary::<Loop<T, Over>>(level, form),
        Rem => Once::binary::<Loop<T, Remainder>>(level, form),
        Pow => Once::binary::<Loop<T, Power>>(level, form),
        Max => T::Levels::binary::<Loop<T, Larger>>(level, form),
        Min => T::Levels::binary::<Loop<T, Smaller>>(level, form),
        And => T::Levels::binary::<Loop<T, Both>>(level, form),
        Or => T::Levels::binary::<Loop<T, Either>>(level, form),
        Xor => T::Levels::binary::<Loop<T, Differ>>(level, form),
        Shl => T::Levels::binary::<Loop<T, Left>>(level, form),
        Shr => T::Levels::binary::<Loop<T, Right>>(level, form),
        Eq => T::Levels::binary::<Loop<T, Equal>>(level, form),
        Ne => T::Levels::binary::<Loop<T, Unequal>>(level, form),
        Lt => T::Levels::binary::<Loop<T, Less>>(level, form),
        Le => T::Levels::binary::<Loop<T, LessEqual>>(level, form),
        Gt => T::Levels::binary::<Loop<T, Greater>>(level, form),
        Ge => T::Levels::binary::<Loop<T, GreaterEqual>>(level, form),
        Atan2 => return None,
    })
}

pub(super) fn unary(level: Level, op: Unary, ty: Store) -> Option<UnaryFn> {
    match ty {
        Store::I8 => unary_of::<i8>(level, op),
        Store::I16 => unary_of::<i16>(level, op),
        Store::I32 => unary_of::<i32>(level, op),
        Store::I64 => unary_of::<i64>(level, op),
        Store::U8 => unary_of::<u8>(level, op),
        Store::U16 => unary_of::<u16>(level, op),
        Store::U32 => unary_of::<u32>(level, op),
        Store::U64 => unary_of::<u64>(level, op),
        Store::Bool => unary_of::<bool>(level, op),
        _ => None,
    }
}

pub(super) fn binary(level: Level, op: Binary, ty: Store, form: Form) -> Option<BinaryFn> {
    match ty {
        Store::I8 => binary_of::<i8>(level, op, form),
        Store::I16 => binary_of::<i16>(level, op, form),
        Store::I32 => binary_of::<i32>(level, op, form),
        Store::I64 => binary_of::<i64>(level, op, form),
        Store::U8 => binary_of::<u8>(level, op, form),
        Store::U16 => binary_of::<u16>(level, op, form),
        Store::U32 => binary_of::<u32>(level, op, form),
        Store::U64 => binary_of::<u64>(level, op, form),
        // A bool cannot be shifted.
        Store::Bool if matches!(op, Binary::Shl | Binary::Shr) => None,
        Store::Bool => binary_of::<bool>(level, op, form),
        _ => None,
    }
}

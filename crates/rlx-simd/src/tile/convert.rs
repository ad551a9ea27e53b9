//! How elements of every type go between memory and registers: branch-free, so that loops over them become vector code.

/// An element type as it lies in memory.
pub(super) trait Memory: 'static {
    /// The element in memory.
    type Mem: Copy + Default + 'static;
    /// The element in a register.
    type Reg: Copy + Default + 'static;
    fn load(x: Self::Mem) -> Self::Reg;
    /// Rounds floats to nearest, ties to even; cuts integers.
    fn store(x: Self::Reg) -> Self::Mem;
}

macro_rules! plain {
    ($($name:ident: $mem:ty, $reg:ty;)*) => {$(
        pub(super) struct $name;
        impl Memory for $name {
            type Mem = $mem;
            type Reg = $reg;
            #[inline(always)]
            fn load(x: $mem) -> $reg {
                x as $reg
            }
            #[inline(always)]
            fn store(x: $reg) -> $mem {
                x as $mem
            }
        }
    )*};
}

plain! {
    F64: f64, f64;
    F32: f32, f32;
    I8: i8, i32;
    I16: i16, i32;
    I32: i32, i32;
    I64: i64, i64;
    U8: u8, i32;
    U16: u16, i32;
    U32: u32, i32;
    U64: u64, i64;
}

/// A byte that is 0 or not; any other than 0 loads as 1.
pub(super) struct Bool;

impl Memory for Bool {
    type Mem = u8;
    type Reg = i32;
    #[inline(always)]
    fn load(x: u8) -> i32 {
        (x != 0) as i32
    }
    #[inline(always)]
    fn store(x: i32) -> u8 {
        (x != 0) as u8
    }
}

/// A float type of at most 16 bits, computed as `f32`.
pub(super) trait Small: Memory<Reg = f32> {
    /// x rounded to the type's nearest value, ties to even.
    #[inline(always)]
    fn round(x: f32) -> f32 {
        Self::load(Self::store(x))
    }
}

/// The upper half of an `f32`.
pub(super) struct BF16;

impl Memory for BF16 {
    type Mem = u16;
    type Reg = f32;
    #[inline(always)]
    fn load(x: u16) -> f32 {
        f32::from_bits(u32::from(x) << 16)
    }
    #[inline(always)]
    fn store(x: f32) -> u16 {
        let u = x.to_bits();
        let rounded = u.wrapping_add(0x7fff + (u >> 16 & 1)) >> 16;
        (if x.is_nan() { u >> 16 | 0x40 } else { rounded }) as u16
    }
}
impl Small for BF16 {}

/// A layout of sign, exponent and mantissa below 32 bits: mantissa bits, exponent bias, and the magnitude codes of the largest
/// finite value, of what lies beyond, and of NaN.
struct Layout {
    mantissa: u32,
    bias: u32,
    largest: u32,
    overflow: u32,
    nan: u32,
}

impl Layout {
    /// The magnitude code nearest to |x|, ties to even.
    #[inline(always)]
    const fn magnitude(&self, x: f32) -> u32 {
        let u = x.to_bits() & 0x7fff_ffff;
        let drop = 23 - self.mantissa;
        // A carry out of the mantissa falls into the exponent, which is the right code.
        let rounded = (u + ((1 << (drop - 1)) - 1) + (u >> drop & 1)) >> drop;
        let normal = rounded.wrapping_sub((127 - self.bias) << self.mantissa);
        // Below the first normal the steps are even: adding a number whose ulp is a step rounds to steps.
        let base = (127 + 24 - self.bias - self.mantissa) << 23;
        let subnormal = (f32::from_bits(u) + f32::from_bits(base)).to_bits().wrapping_sub(base);
        let code = if u < (128 - self.bias) << 23 { subnormal } else { normal };
        let code = if code > self.largest { self.overflow } else { code };
        if u > 0x7f80_0000 { self.nan } else { code }
    }

    /// The value of a magnitude code of a finite number.
    #[inline(always)]
    const fn value(&self, code: u32) -> f32 {
        f32::from_bits(code << (23 - self.mantissa)) * f32::from_bits((254 - self.bias) << 23)
    }
}

macro_rules! small {
    ($($(#[$doc:meta])* $name:ident: $mem:ty, $bits:expr, $layout:expr, |$code:ident| $special:expr;)*) => {$(
        $(#[$doc])*
        pub(super) struct $name;
        impl $name {
            const LAYOUT: Layout = $layout;
        }
        impl Memory for $name {
            type Mem = $mem;
            type Reg = f32;
            #[inline(always)]
            fn load(x: $mem) -> f32 {
                let (sign, $code) = (u32::from(x) >> ($bits - 1) << 31, u32::from(x) & ((1 << ($bits - 1)) - 1));
                let value = if $code > Self::LAYOUT.largest { $special } else { Self::LAYOUT.value($code) };
                f32::from_bits(value.to_bits() | sign)
            }
            #[inline(always)]
            fn store(x: f32) -> $mem {
                (Self::LAYOUT.magnitude(x) | x.to_bits() >> 31 << ($bits - 1)) as $mem
            }
        }
        impl Small for $name {}
    )*};
}

small! {
    /// IEEE half.
    F16: u16, 16, Layout { mantissa: 10, bias: 15, largest: 0x7bff, overflow: 0x7c00, nan: 0x7e00 },
        |code| f32::from_bits(code << 13 | 0x7f80_0000);
    /// OCP FP8 with 5 exponent bits, laid out like the upper byte of a half.
    F8E5M2: u8, 8, Layout { mantissa: 2, bias: 15, largest: 0x7b, overflow: 0x7c, nan: 0x7e },
        |code| f32::from_bits(code << 21 | 0x7f80_0000);
    /// OCP FP8 with 4 exponent bits: no infinity, one NaN for each sign.
    F8E4M3: u8, 8, Layout { mantissa: 3, bias: 7, largest: 0x7e, overflow: 0x7f, nan: 0x7f },
        |_code| f32::NAN;
}

/// x as an `f32` whose last bit is set if anything was cut off, so that rounding it once more to a type of fewer bits gives
/// what rounding x at once does.
#[inline(always)]
pub(super) fn to_odd(x: f64) -> f32 {
    let f = x as f32;
    let back = f64::from(f);
    let toward_zero = f.to_bits().wrapping_sub((back.abs() > x.abs()) as u32);
    if back == x || x.is_nan() { f } else { f32::from_bits(toward_zero | 1) }
}

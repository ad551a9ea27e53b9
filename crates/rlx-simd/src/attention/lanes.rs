//! Vectors of floats: one trait over the registers of every level, and the functions that attention and scans need.

use std::ops::{Add, Div, Mul, Sub};

use crate::level::Level;

/// The most lanes of any vector.
pub const MAX_LANES: usize = 16;

/// A float that the kernels compute in: f32 or f64.
pub trait Real:
    Copy + PartialOrd + Send + Sync + 'static + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self>
{
    /// 0.
    const ZERO: Self;
    /// −inf.
    const NEG_INFINITY: Self;
    /// The least finite number.
    const MIN: Self;
    /// The nearest to an f64.
    fn of(x: f64) -> Self;
    /// As an f64.
    fn wide(self) -> f64;
    /// Neither infinite nor NaN.
    fn is_finite(self) -> bool;
    /// Writes four rows of four as the columns of four others, times a factor; the rows lie `from_step` and `to_step`
    /// apart.
    ///
    /// # Safety
    /// The rows can be read and written, and do not overlap.
    #[inline(always)]
    unsafe fn turn4(from: *const Self, from_step: isize, to: *mut Self, to_step: isize, factor: Self) {
        for i in 0..4 {
            for j in 0..4 {
                // SAFETY: by the contract.
                unsafe { *to.offset(j * to_step + i) = *from.offset(i * from_step + j) * factor };
            }
        }
    }
    /// Runs a kernel in the vectors of a level, which the machine must have.
    fn at_level<K: Kernel<Self>>(level: Level, kernel: K);
}

/// A piece of work that is compiled for every kind of vector.
pub trait Kernel<T> {
    /// Does the work; `#[inline(always)]`, so that it is compiled with the level's instructions.
    fn run<V: Lanes<T = T>>(self);
}

/// A vector of floats. Values of a type whose instructions the machine lacks must not be made: only [`Real::at_level`]
/// picks the type.
pub trait Lanes:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// The element.
    type T: Real;
    /// How many there are.
    const N: usize;
    /// How many vectors the processor holds.
    const REGISTERS: usize;

    /// The same in every lane.
    fn splat(x: Self::T) -> Self;
    /// # Safety
    /// `N` elements can be read.
    unsafe fn load(p: *const Self::T) -> Self;
    /// # Safety
    /// `N` elements can be written.
    unsafe fn store(self, p: *mut Self::T);
    /// The first `n < N` elements, then 0.
    ///
    /// # Safety
    /// `n` elements can be read.
    #[inline(always)]
    unsafe fn load_part(p: *const Self::T, n: usize) -> Self {
        let mut x = [Self::T::ZERO; MAX_LANES];
        // SAFETY: n < N <= MAX_LANES elements can be read, by the contract.
        unsafe {
            std::ptr::copy_nonoverlapping(p, x.as_mut_ptr(), n);
            Self::load(x.as_ptr())
        }
    }
    /// Stores the first `n < N` lanes.
    ///
    /// # Safety
    /// `n` elements can be written.
    #[inline(always)]
    unsafe fn store_part(self, p: *mut Self::T, n: usize) {
        let mut x = [Self::T::ZERO; MAX_LANES];
        // SAFETY: as above.
        unsafe {
            self.store(x.as_mut_ptr());
            std::ptr::copy_nonoverlapping(x.as_ptr(), p, n);
        }
    }

    /// 0 where a byte is not 0, −inf where it is.
    ///
    /// # Safety
    /// `N` bytes can be read.
    #[inline(always)]
    unsafe fn seen(p: *const u8) -> Self {
        let mut x = [Self::T::ZERO; MAX_LANES];
        for (i, x) in x.iter_mut().enumerate().take(Self::N) {
            // SAFETY: i < N bytes can be read, by the contract; a vector has at most that many lanes.
            *x = if unsafe { *p.add(i) } != 0 { Self::T::ZERO } else { Self::T::NEG_INFINITY };
        }
        // SAFETY: as above.
        unsafe { Self::load(x.as_ptr()) }
    }
    /// 1 in the first `n` lanes, then 0.
    #[inline(always)]
    fn first(n: usize) -> Self {
        let mut x = [Self::T::ZERO; MAX_LANES];
        x.iter_mut().take(n).for_each(|x| *x = Self::T::of(1.0));
        // SAFETY: N <= MAX_LANES.
        unsafe { Self::load(x.as_ptr()) }
    }

    /// Asks for the memory there, which need not exist.
    #[inline(always)]
    fn prefetch(_: *const Self::T) {}

    /// self · b + c; in one rounding where the level has that.
    fn fma(self, b: Self, c: Self) -> Self;
    /// The greater; `other` where either is NaN.
    fn max(self, other: Self) -> Self;
    /// The lesser; `other` where either is NaN.
    fn min(self, other: Self) -> Self;
    /// `yes` where self < other, else `no`.
    fn if_less(self, other: Self, yes: Self, no: Self) -> Self;
    /// The next integer at or below.
    fn floor(self) -> Self;
    /// self · 2ⁿ for whole n, self in [1, 2]; 0 below the normal numbers, inf above them.
    fn scale2(self, n: Self) -> Self;

    /// `x` as lanes.
    #[inline(always)]
    fn of(x: f64) -> Self {
        Self::splat(Self::T::of(x))
    }
    /// |self|.
    #[inline(always)]
    fn abs(self) -> Self {
        self.max(Self::of(0.0) - self)
    }
    /// 2ˣ within 2 units in the last place of f32.
    #[inline(always)]
    fn exp2(self) -> Self {
        // Beyond these ends the result is 0 and inf; infinities would spoil the fraction.
        let x = Self::of(129.0).min(Self::of(-151.0).max(self));
        let n = x.floor();
        exp2_fraction(x - n).scale2(n)
    }
    /// eˣ within 2 units in the last place of f32.
    #[inline(always)]
    fn exp(self) -> Self {
        let x = Self::of(89.5).min(Self::of(-104.5).max(self));
        // log2(e) in two parts, the first what f32 can hold.
        let high = Self::of(f64::from(std::f32::consts::LOG2_E));
        let low = Self::of(std::f64::consts::LOG2_E - f64::from(std::f32::consts::LOG2_E));
        let n = (x * high).floor();
        let f = x.fma(low, x.fma(high, Self::of(0.0) - n));
        exp2_fraction(f).scale2(n)
    }
    /// The hyperbolic tangent.
    #[inline(always)]
    fn tanh(self) -> Self {
        let one = Self::of(1.0);
        let x = self.abs();
        // Near 0 an odd polynomial (minimax on |x| <= 0.65), for 1 − 2 / (e²ˣ + 1) would lose the small digits.
        let u = x * x;
        let mut p = Self::of(-0.00552863403);
        for c in [0.0204833165, -0.0536929682, 0.133308998, -0.333332629] {
            p = p.fma(u, Self::of(c));
        }
        let near = (x * u).fma(p, x);
        let far = one - Self::of(2.0) / ((x + x).exp() + one);
        let y = x.if_less(Self::of(0.625), near, far);
        self.if_less(Self::of(0.0), Self::of(0.0) - y, y)
    }
    /// 1 / (1 + e⁻ˣ).
    #[inline(always)]
    fn sigmoid(self) -> Self {
        Self::of(1.0) / (Self::of(1.0) + (Self::of(0.0) - self).exp())
    }
    /// ln(1 + eˣ) = max(x, 0) + ln(1 + u) with u = e^−|x|, where ln(1 + u) = 2 · artanh(u / (2 + u)).
    #[inline(always)]
    fn softplus(self) -> Self {
        let u = (Self::of(0.0) - self.abs()).exp();
        let s = u / (u + Self::of(2.0));
        let v = s * s;
        // Minimax of artanh(s) / s − 1 on s <= 1/3.
        let mut p = Self::of(0.140122294);
        for c in [0.139995705, 0.200108495, 0.333332066] {
            p = p.fma(v, Self::of(c));
        }
        let s2 = s + s;
        Self::of(0.0).max(self) + (s2 * v).fma(p, s2)
    }

    /// The sum of the lanes.
    #[inline(always)]
    fn sum(self) -> Self::T {
        self.fold(Self::T::ZERO, |a, b| a + b)
    }
    /// The greatest of the lanes.
    #[inline(always)]
    fn top(self) -> Self::T {
        self.fold(Self::T::NEG_INFINITY, |a, b| if b > a { b } else { a })
    }
    /// The lanes, taken together one after the other.
    #[inline(always)]
    fn fold(self, start: Self::T, f: impl Fn(Self::T, Self::T) -> Self::T) -> Self::T {
        let mut x = [Self::T::ZERO; MAX_LANES];
        // SAFETY: N <= MAX_LANES.
        unsafe { self.store(x.as_mut_ptr()) };
        x.into_iter().take(Self::N).fold(start, f)
    }
    /// The sums of the first `N` vectors, one in each lane.
    #[inline(always)]
    fn sums(rows: &[Self; MAX_LANES]) -> Self {
        let mut x = [Self::T::ZERO; MAX_LANES];
        for (x, row) in x.iter_mut().zip(rows).take(Self::N) {
            *x = row.sum();
        }
        // SAFETY: N <= MAX_LANES.
        unsafe { Self::load(x.as_ptr()) }
    }
}

/// 2ᶠ for f in [0, 1], exactly 1 at 0: the minimax polynomial of its relative error, 8e-8.
#[inline(always)]
pub(super) fn exp2_fraction<V: Lanes>(f: V) -> V {
    let mut p = V::of(0.00186713008);
    for c in [0.00901703028, 0.0557999131, 0.24016445, 0.693151312, 1.0] {
        p = p.fma(f, V::of(c));
    }
    p
}

/// Plain lanes, for the compiler to vectorise.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub struct Array<T, const N: usize>([T; N]);

macro_rules! array_operator {
    ($($name:ident $f:ident $op:tt),*) => {$(
        impl<T: Copy + $name<Output = T>, const N: usize> $name for Array<T, N> {
            type Output = Self;
            #[inline(always)]
            fn $f(mut self, other: Self) -> Self {
                for (x, y) in self.0.iter_mut().zip(other.0) {
                    *x = *x $op y;
                }
                self
            }
        }
    )*};
}
array_operator!(Add add +, Sub sub -, Mul mul *, Div div /);

macro_rules! array_lanes {
    ($t:ty, { $($functions:item)* }) => {
        impl<const N: usize> Lanes for Array<$t, N> {
            type T = $t;
            const N: usize = N;
            const REGISTERS: usize = 16;
            #[inline(always)]
            fn splat(x: $t) -> Self {
                Array([x; N])
            }
            #[inline(always)]
            unsafe fn load(p: *const $t) -> Self {
                // SAFETY: N elements can be read, by the contract.
                Array(unsafe { p.cast::<[$t; N]>().read_unaligned() })
            }
            #[inline(always)]
            unsafe fn store(self, p: *mut $t) {
                // SAFETY: N elements can be written, by the contract.
                unsafe { p.cast::<[$t; N]>().write_unaligned(self.0) }
            }
            #[inline(always)]
            fn fma(self, b: Self, c: Self) -> Self {
                if cfg!(target_arch = "aarch64") {
                    let mut out = c;
                    for ((x, y), z) in out.0.iter_mut().zip(self.0).zip(b.0) {
                        *x = y.mul_add(z, *x);
                    }
                    return out;
                }
                self * b + c
            }
            #[inline(always)]
            fn max(mut self, other: Self) -> Self {
                for (x, y) in self.0.iter_mut().zip(other.0) {
                    *x = if *x > y { *x } else { y };
                }
                self
            }
            #[inline(always)]
            fn min(mut self, other: Self) -> Self {
                for (x, y) in self.0.iter_mut().zip(other.0) {
                    *x = if *x < y { *x } else { y };
                }
                self
            }
            #[inline(always)]
            fn if_less(self, other: Self, mut yes: Self, no: Self) -> Self {
                for (((x, y), a), b) in self.0.into_iter().zip(other.0).zip(yes.0.iter_mut()).zip(no.0) {
                    *a = if x < y { *a } else { b };
                }
                yes
            }
            #[inline(always)]
            fn floor(mut self) -> Self {
                for x in &mut self.0 {
                    // Without SSE4.1 `floor` is a call; the arguments fit an i32.
                    let t = *x as i32 as $t;
                    *x = if t > *x { t - 1.0 } else { t };
                }
                self
            }
            $($functions)*
        }
    };
}

array_lanes!(f32, {
    #[inline(always)]
    fn scale2(mut self, n: Self) -> Self {
        for (x, n) in self.0.iter_mut().zip(n.0) {
            // The biased exponent is cut to 0 (the number 0) and 255 (infinity).
            *x *= f32::from_bits(((n as i32 + 127).clamp(0, 255) as u32) << 23);
        }
        self
    }
});
array_lanes!(f64, {
    #[inline(always)]
    fn scale2(self, n: Self) -> Self {
        self * n.exp2()
    }
    // The polynomials above are good to f32 only; these are the library's.
    #[inline(always)]
    fn exp2(self) -> Self {
        Array(self.0.map(f64::exp2))
    }
    #[inline(always)]
    fn exp(self) -> Self {
        Array(self.0.map(f64::exp))
    }
    #[inline(always)]
    fn tanh(self) -> Self {
        Array(self.0.map(f64::tanh))
    }
    #[inline(always)]
    fn softplus(self) -> Self {
        Array(self.0.map(|x| x.max(0.0) + (-x.abs()).exp().ln_1p()))
    }
});

impl Real for f32 {
    const ZERO: f32 = 0.0;
    const NEG_INFINITY: f32 = f32::NEG_INFINITY;
    const MIN: f32 = f32::MIN;
    #[inline(always)]
    fn of(x: f64) -> f32 {
        x as f32
    }
    #[inline(always)]
    fn wide(self) -> f64 {
        self.into()
    }
    #[inline(always)]
    fn is_finite(self) -> bool {
        self.is_finite()
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn turn4(from: *const f32, from_step: isize, to: *mut f32, to_step: isize, factor: f32) {
        // SAFETY: by the contract, and the instructions are those of every x86-64.
        unsafe { super::x86::turn4(from, from_step, to, to_step, factor) }
    }
    #[inline]
    fn at_level<K: Kernel<f32>>(level: Level, kernel: K) {
        match level {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the machine has the level, for levels come from `Level::available`.
            Level::Avx512 => unsafe { super::x86::avx512::<f32, super::x86::Zmm, K>(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Level::Avx2 => unsafe { super::x86::avx2::<f32, super::x86::Ymm, K>(kernel) },
            _ => kernel.run::<Array<f32, 4>>(),
        }
    }
}

impl Real for f64 {
    const ZERO: f64 = 0.0;
    const NEG_INFINITY: f64 = f64::NEG_INFINITY;
    const MIN: f64 = f64::MIN;
    #[inline(always)]
    fn of(x: f64) -> f64 {
        x
    }
    #[inline(always)]
    fn wide(self) -> f64 {
        self
    }
    #[inline(always)]
    fn is_finite(self) -> bool {
        self.is_finite()
    }
    #[inline]
    fn at_level<K: Kernel<f64>>(level: Level, kernel: K) {
        match level {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the machine has the level, for levels come from `Level::available`.
            Level::Avx512 => unsafe { super::x86::avx512::<f64, Array<f64, 8>, K>(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Level::Avx2 => unsafe { super::x86::avx2::<f64, Array<f64, 4>, K>(kernel) },
            _ => kernel.run::<Array<f64, 2>>(),
        }
    }
}

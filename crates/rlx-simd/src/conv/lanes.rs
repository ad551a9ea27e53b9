//! Vectors of the levels, as the kernels of convolution use them.

use crate::level::Level;
use std::ops::Range;

/// A number that convolutions are made of: `f32`, `f64` or (wrapping) `i64`.
pub trait Number: Copy + Send + Sync + PartialEq + std::fmt::Debug + 'static {
    /// Nothing.
    const ZERO: Self;
    /// `self + x`.
    fn plus(self, x: Self) -> Self;
    /// `self + a · b`, fused if `FMA`.
    fn plus_product<const FMA: bool>(self, a: Self, b: Self) -> Self;
    #[doc(hidden)]
    fn at_level<W: Work<Self>>(level: Level, work: W) -> W::Out;
}

/// Something that is compiled for every level.
#[doc(hidden)]
pub trait Work<T: Number> {
    type Out;
    /// # Safety
    /// The machine has the instructions of the lanes, and the promises made with the work hold.
    unsafe fn run<L: Lanes<T = T>>(self) -> Self::Out;
}

/// A vector register.
///
/// # Safety
/// Every function is safe where the machine has its instructions, and pointers are valid for the lanes that it says.
#[doc(hidden)]
#[allow(clippy::missing_safety_doc)]
pub trait Lanes: 'static {
    type T: Number;
    type V: Copy;
    /// How many numbers a vector holds.
    const N: usize;
    /// How many rows of weights the largest micro-kernel takes; with three vectors of positions they fill the registers.
    const ROWS: usize;
    /// Whether there are registers for 24 sums rather than 12.
    const WIDE: bool;

    unsafe fn splat(x: Self::T) -> Self::V;
    unsafe fn load(p: *const Self::T) -> Self::V;
    unsafe fn store(p: *mut Self::T, v: Self::V);
    /// `c + a · b`.
    unsafe fn plus_product(c: Self::V, a: Self::V, b: Self::V) -> Self::V;
    /// The sum of the lanes, in a fixed order.
    unsafe fn sum(v: Self::V) -> Self::T;
    /// The lanes of set bits; 0 elsewhere.
    unsafe fn keep(v: Self::V, bits: u32) -> Self::V;
    /// Writes the lanes of set bits side by side; up to `N` numbers at `p` are overwritten.
    unsafe fn compress(p: *mut Self::T, v: Self::V, bits: u32);
    /// Reads as many numbers as there are set bits into these lanes; 0 elsewhere.
    unsafe fn expand(p: *const Self::T, bits: u32) -> Self::V;
    /// The sums of four vectors.
    #[inline(always)]
    unsafe fn sum4(v: [Self::V; 4]) -> [Self::T; 4] {
        // SAFETY: as for one.
        v.map(|v| unsafe { Self::sum(v) })
    }
    /// Writes `n` numbers: those of `held` from `from` on, zeros before and behind them.
    #[inline(always)]
    unsafe fn pad(to: *mut Self::T, from: *const Self::T, held: Range<usize>, n: usize) {
        let zero = |range: Range<usize>| {
            for i in range {
                // SAFETY: the caller promises `n` numbers.
                unsafe { to.add(i).write(Self::T::ZERO) };
            }
        };
        zero(0..held.start);
        let (mut i, count) = (0, held.len());
        // SAFETY: the caller promises the numbers on both sides.
        unsafe {
            let to = to.add(held.start);
            while i + Self::N <= count {
                Self::store(to.add(i), Self::load(from.add(i)));
                i += Self::N;
            }
            while i < count {
                to.add(i).write(from.add(i).read());
                i += 1;
            }
        }
        zero(held.end..n);
    }
}

/// Plain arrays, left to the compiler.
pub struct Plain<T, const N: usize, const FMA: bool>(std::marker::PhantomData<T>);

impl<T: Number, const N: usize, const FMA: bool> Lanes for Plain<T, N, FMA> {
    type T = T;
    type V = [T; N];
    const N: usize = N;
    const ROWS: usize = 4;
    const WIDE: bool = false;

    #[inline(always)]
    unsafe fn splat(x: T) -> [T; N] {
        [x; N]
    }
    #[inline(always)]
    unsafe fn load(p: *const T) -> [T; N] {
        // SAFETY: the caller promises `N` numbers.
        unsafe { p.cast::<[T; N]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(p: *mut T, v: [T; N]) {
        // SAFETY: as above.
        unsafe { p.cast::<[T; N]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn plus_product(mut c: [T; N], a: [T; N], b: [T; N]) -> [T; N] {
        for (c, (a, b)) in c.iter_mut().zip(a.into_iter().zip(b)) {
            *c = c.plus_product::<FMA>(a, b);
        }
        c
    }
    #[inline(always)]
    unsafe fn sum(v: [T; N]) -> T {
        v.into_iter().fold(T::ZERO, T::plus)
    }
    #[inline(always)]
    unsafe fn keep(mut v: [T; N], bits: u32) -> [T; N] {
        for (i, x) in v.iter_mut().enumerate() {
            *x = if bits >> i & 1 == 1 { *x } else { T::ZERO };
        }
        v
    }
    #[inline(always)]
    unsafe fn compress(p: *mut T, v: [T; N], bits: u32) {
        let mut to = p;
        for (i, x) in v.into_iter().enumerate() {
            if bits >> i & 1 == 1 {
                // SAFETY: at most `N` numbers are written.
                unsafe {
                    to.write(x);
                    to = to.add(1);
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn expand(p: *const T, bits: u32) -> [T; N] {
        let (mut from, mut v) = (p, [T::ZERO; N]);
        for (i, x) in v.iter_mut().enumerate() {
            if bits >> i & 1 == 1 {
                // SAFETY: the caller promises a number per set bit.
                unsafe {
                    *x = from.read();
                    from = from.add(1);
                }
            }
        }
        v
    }
}

#[cfg(target_arch = "x86_64")]
pub mod x86 {
    //! The registers of AVX-512 and AVX2.
    // Every block is safe for the reasons that the trait states: the machine has the level, and the pointers are good.
    #![allow(clippy::undocumented_unsafe_blocks)]

    use super::{Lanes, Plain};
    use std::arch::x86_64::*;
    use std::ops::Range;

    /// Adds neighbours of all four at once.
    #[target_feature(enable = "avx512f,avx512dq")]
    #[inline]
    fn sum4_ps([a, b, c, d]: [__m512; 4]) -> [f32; 4] {
        let pairs = |a, b| _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        let (ab, cd) = (pairs(a, b), pairs(c, d));
        let low = _mm512_shuffle_ps::<0b01_00_01_00>(ab, cd);
        let all = _mm512_add_ps(low, _mm512_shuffle_ps::<0b11_10_11_10>(ab, cd));
        let half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps::<1>(all));
        let sums = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps::<1>(half));
        let mut out = [0.0; 4];
        // SAFETY: the array holds four numbers.
        unsafe { _mm_storeu_ps(out.as_mut_ptr(), sums) };
        out
    }
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn sum4_pd(v: [__m512d; 4]) -> [f64; 4] {
        let [a, b, c, d] = v;
        [_mm512_reduce_add_pd(a), _mm512_reduce_add_pd(b), _mm512_reduce_add_pd(c), _mm512_reduce_add_pd(d)]
    }

    macro_rules! avx512 {
        ($name:ident, $t:ty, $v:ty, $n:literal, $mask:ty, $set:ident, $load:ident, $store:ident, $fma:ident, $sum:ident,
         $keep:ident, $compress:ident, $expand:ident, $part:ident, $store_part:ident, $sum4:ident) => {
            /// A register of 512 bits.
            pub struct $name;
            impl Lanes for $name {
                type T = $t;
                type V = $v;
                const N: usize = $n;
                const ROWS: usize = 8;
                const WIDE: bool = true;
                #[inline(always)]
                unsafe fn splat(x: $t) -> $v {
                    unsafe { $set(x) }
                }
                #[inline(always)]
                unsafe fn load(p: *const $t) -> $v {
                    unsafe { $load(p) }
                }
                #[inline(always)]
                unsafe fn store(p: *mut $t, v: $v) {
                    unsafe { $store(p, v) }
                }
                #[inline(always)]
                unsafe fn plus_product(c: $v, a: $v, b: $v) -> $v {
                    unsafe { $fma(a, b, c) }
                }
                #[inline(always)]
                unsafe fn sum(v: $v) -> $t {
                    unsafe { $sum(v) }
                }
                #[inline(always)]
                unsafe fn keep(v: $v, bits: u32) -> $v {
                    unsafe { $keep(bits as $mask, v) }
                }
                #[inline(always)]
                unsafe fn compress(p: *mut $t, v: $v, bits: u32) {
                    unsafe { $store(p, $compress(bits as $mask, v)) }
                }
                #[inline(always)]
                unsafe fn expand(p: *const $t, bits: u32) -> $v {
                    unsafe { $expand(bits as $mask, p) }
                }
                #[inline(always)]
                unsafe fn sum4(v: [$v; 4]) -> [$t; 4] {
                    unsafe { $sum4(v) }
                }
                #[inline(always)]
                unsafe fn pad(to: *mut $t, from: *const $t, held: Range<usize>, n: usize) {
                    let from = from.wrapping_sub(held.start);
                    for i in (0..n).step_by($n) {
                        let below = |x: usize| (1u32 << x.saturating_sub(i).min($n)) - 1;
                        let held = (below(held.end) & !below(held.start)) as $mask;
                        let lanes = unsafe { $part(held, from.wrapping_add(i)) };
                        unsafe { $store_part(to.add(i), below(n) as $mask, lanes) };
                    }
                }
            }
        };
    }
    avx512!(
        F32x16,
        f32,
        __m512,
        16,
        u16,
        _mm512_set1_ps,
        _mm512_loadu_ps,
        _mm512_storeu_ps,
        _mm512_fmadd_ps,
        _mm512_reduce_add_ps,
        _mm512_maskz_mov_ps,
        _mm512_maskz_compress_ps,
        _mm512_maskz_expandloadu_ps,
        _mm512_maskz_loadu_ps,
        _mm512_mask_storeu_ps,
        sum4_ps
    );
    avx512!(
        F64x8,
        f64,
        __m512d,
        8,
        u8,
        _mm512_set1_pd,
        _mm512_loadu_pd,
        _mm512_storeu_pd,
        _mm512_fmadd_pd,
        _mm512_reduce_add_pd,
        _mm512_maskz_mov_pd,
        _mm512_maskz_compress_pd,
        _mm512_maskz_expandloadu_pd,
        _mm512_maskz_loadu_pd,
        _mm512_mask_storeu_pd,
        sum4_pd
    );

    macro_rules! avx2 {
        ($name:ident, $t:ty, $v:ty, $n:literal, $set:ident, $load:ident, $store:ident, $fma:ident) => {
            /// A register of 256 bits.
            pub struct $name;
            impl Lanes for $name {
                type T = $t;
                type V = $v;
                const N: usize = $n;
                const ROWS: usize = 4;
                const WIDE: bool = false;
                #[inline(always)]
                unsafe fn splat(x: $t) -> $v {
                    unsafe { $set(x) }
                }
                #[inline(always)]
                unsafe fn load(p: *const $t) -> $v {
                    unsafe { $load(p) }
                }
                #[inline(always)]
                unsafe fn store(p: *mut $t, v: $v) {
                    unsafe { $store(p, v) }
                }
                #[inline(always)]
                unsafe fn plus_product(c: $v, a: $v, b: $v) -> $v {
                    unsafe { $fma(a, b, c) }
                }
                #[inline(always)]
                unsafe fn sum(v: $v) -> $t {
                    let mut lanes = [0.0; $n];
                    unsafe { $store(lanes.as_mut_ptr(), v) };
                    let (mut x, mut n) = (lanes, $n / 2);
                    while n > 0 {
                        let (low, high) = x.split_at_mut(n);
                        low.iter_mut().zip(high).for_each(|(a, b)| *a += *b);
                        n /= 2;
                    }
                    let [first, ..] = x;
                    first
                }
                #[inline(always)]
                unsafe fn keep(v: $v, bits: u32) -> $v {
                    if bits == (1 << $n) - 1 {
                        return v;
                    }
                    let mut lanes = [0.0; $n];
                    unsafe {
                        $store(lanes.as_mut_ptr(), v);
                        $load(Plain::<$t, $n, true>::keep(lanes, bits).as_ptr())
                    }
                }
                #[inline(always)]
                unsafe fn compress(p: *mut $t, v: $v, bits: u32) {
                    if bits == (1 << $n) - 1 {
                        return unsafe { $store(p, v) };
                    }
                    let mut lanes = [0.0; $n];
                    unsafe {
                        $store(lanes.as_mut_ptr(), v);
                        Plain::<$t, $n, true>::compress(p, lanes, bits)
                    }
                }
                #[inline(always)]
                unsafe fn expand(p: *const $t, bits: u32) -> $v {
                    if bits == (1 << $n) - 1 {
                        return unsafe { $load(p) };
                    }
                    unsafe { $load(Plain::<$t, $n, true>::expand(p, bits).as_ptr()) }
                }
            }
        };
    }
    avx2!(F32x8, f32, __m256, 8, _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_fmadd_ps);
    avx2!(F64x4, f64, __m256d, 4, _mm256_set1_pd, _mm256_loadu_pd, _mm256_storeu_pd, _mm256_fmadd_pd);
}

macro_rules! number {
    ($t:ty, $zero:expr, |$c:ident, $a:ident, $b:ident| $sum:expr, $product:expr, $fused:expr, $wide:ty, $narrow:ty, $plain:ty) => {
        impl Number for $t {
            const ZERO: $t = $zero;
            #[inline(always)]
            fn plus(self, x: $t) -> $t {
                let ($c, $a) = (self, x);
                $sum
            }
            #[inline(always)]
            fn plus_product<const FMA: bool>(self, a: $t, b: $t) -> $t {
                let ($c, $a, $b) = (self, a, b);
                if FMA { $fused } else { $product }
            }
            fn at_level<W: Work<$t>>(level: Level, work: W) -> W::Out {
                #[cfg(target_arch = "x86_64")]
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
                unsafe fn avx512<W: Work<$t>>(work: W) -> W::Out {
                    // SAFETY: the machine has the level; the rest is promised with the work.
                    unsafe { work.run::<$wide>() }
                }
                #[cfg(target_arch = "x86_64")]
                #[target_feature(enable = "avx2,fma,f16c")]
                unsafe fn avx2<W: Work<$t>>(work: W) -> W::Out {
                    // SAFETY: as above.
                    unsafe { work.run::<$narrow>() }
                }
                debug_assert!(level.is_available());
                match level {
                    #[cfg(target_arch = "x86_64")]
                    // SAFETY: levels come from `Level::available`.
                    Level::Avx512 => unsafe { avx512(work) },
                    #[cfg(target_arch = "x86_64")]
                    // SAFETY: as above.
                    Level::Avx2 => unsafe { avx2(work) },
                    // SAFETY: every machine has these.
                    _ => unsafe { work.run::<$plain>() },
                }
            }
        }
    };
}

/// Whether the plain code of the architecture has a fused multiply-add.
const FUSED: bool = cfg!(target_arch = "aarch64");
number!(f32, 0.0, |c, a, b| c + a, c + a * b, a.mul_add(b, c), x86::F32x16, x86::F32x8, Plain<f32, 4, FUSED>);
number!(f64, 0.0, |c, a, b| c + a, c + a * b, a.mul_add(b, c), x86::F64x8, x86::F64x4, Plain<f64, 2, FUSED>);
number!(
    i64, 0, |c, a, b| c.wrapping_add(a), c.wrapping_add(a.wrapping_mul(b)), c.wrapping_add(a.wrapping_mul(b)),
    Plain<i64, 8, false>, Plain<i64, 4, false>, Plain<i64, 2, false>
);

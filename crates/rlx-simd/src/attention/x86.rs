//! The registers of x86-64.

use std::arch::x86_64::*;
use std::ops::{Add, Div, Mul, Sub};

use super::lanes::{Kernel, Lanes, MAX_LANES, Real};

/// Compiles a kernel with AVX-512.
///
/// # Safety
/// The machine has AVX-512 F, BW, DQ and VL, FMA and F16C.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub unsafe fn avx512<T: Real, V: Lanes<T = T>, K: Kernel<T>>(kernel: K) {
    kernel.run::<V>()
}

/// Compiles a kernel with AVX2.
///
/// # Safety
/// The machine has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn avx2<T: Real, V: Lanes<T = T>, K: Kernel<T>>(kernel: K) {
    kernel.run::<V>()
}

/// [`Real::turn4`] for f32.
///
/// # Safety
/// The rows can be read and written, and do not overlap.
#[inline(always)]
pub unsafe fn turn4(from: *const f32, from_step: isize, to: *mut f32, to_step: isize, factor: f32) {
    // SAFETY: SSE is part of x86-64; four elements of each row can be touched.
    unsafe {
        let factor = _mm_set1_ps(factor);
        let [mut a, mut b, mut c, mut d] =
            [0, 1, 2, 3].map(|i| _mm_mul_ps(_mm_loadu_ps(from.offset(i * from_step)), factor));
        _MM_TRANSPOSE4_PS(&mut a, &mut b, &mut c, &mut d);
        for (i, row) in [a, b, c, d].into_iter().enumerate() {
            _mm_storeu_ps(to.offset(i as isize * to_step), row);
        }
    }
}

/// Sixteen floats.
#[derive(Clone, Copy)]
pub struct Zmm(__m512);
/// Eight floats.
#[derive(Clone, Copy)]
pub struct Ymm(__m256);

macro_rules! operators {
    ($v:ident: $($name:ident $f:ident $intrinsic:ident),*) => {$(
        impl $name for $v {
            type Output = $v;
            #[inline(always)]
            fn $f(self, other: $v) -> $v {
                // SAFETY: a value of the type exists only where the machine has its instructions.
                $v(unsafe { $intrinsic(self.0, other.0) })
            }
        }
    )*};
}
operators!(Zmm: Add add _mm512_add_ps, Sub sub _mm512_sub_ps, Mul mul _mm512_mul_ps, Div div _mm512_div_ps);
operators!(Ymm: Add add _mm256_add_ps, Sub sub _mm256_sub_ps, Mul mul _mm256_mul_ps, Div div _mm256_div_ps);

impl Lanes for Zmm {
    type T = f32;
    const N: usize = 16;
    const REGISTERS: usize = 32;
    #[inline(always)]
    fn splat(x: f32) -> Zmm {
        // SAFETY: the machine has the instructions, see `operators`; so for all of these.
        Zmm(unsafe { _mm512_set1_ps(x) })
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Zmm {
        // SAFETY: 16 elements can be read.
        Zmm(unsafe { _mm512_loadu_ps(p) })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: 16 elements can be written.
        unsafe { _mm512_storeu_ps(p, self.0) }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> Zmm {
        // SAFETY: only the first n elements are touched.
        Zmm(unsafe { _mm512_maskz_loadu_ps(((1u32 << n) - 1) as __mmask16, p) })
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize) {
        // SAFETY: as above.
        unsafe { _mm512_mask_storeu_ps(p, ((1u32 << n) - 1) as __mmask16, self.0) }
    }
    #[inline(always)]
    unsafe fn seen(p: *const u8) -> Zmm {
        // SAFETY: 16 bytes can be read.
        unsafe {
            let bytes = _mm_loadu_si128(p.cast());
            Zmm(_mm512_mask_mov_ps(
                _mm512_set1_ps(f32::NEG_INFINITY),
                _mm_test_epi8_mask(bytes, bytes),
                _mm512_setzero_ps(),
            ))
        }
    }
    #[inline(always)]
    fn prefetch(p: *const f32) {
        // SAFETY: a prefetch of any address is allowed.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    fn fma(self, b: Zmm, c: Zmm) -> Zmm {
        // SAFETY: as for `splat`.
        Zmm(unsafe { _mm512_fmadd_ps(self.0, b.0, c.0) })
    }
    #[inline(always)]
    fn max(self, other: Zmm) -> Zmm {
        // SAFETY: as for `splat`.
        Zmm(unsafe { _mm512_max_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn min(self, other: Zmm) -> Zmm {
        // SAFETY: as for `splat`.
        Zmm(unsafe { _mm512_min_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn if_less(self, other: Zmm, yes: Zmm, no: Zmm) -> Zmm {
        // SAFETY: as for `splat`.
        Zmm(unsafe { _mm512_mask_mov_ps(no.0, _mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, other.0), yes.0) })
    }
    #[inline(always)]
    fn floor(self) -> Zmm {
        // SAFETY: as for `splat`.
        Zmm(unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC }>(self.0) })
    }
    #[inline(always)]
    fn scale2(self, n: Zmm) -> Zmm {
        // SAFETY: as for `splat`.
        Zmm(unsafe { _mm512_scalef_ps(self.0, n.0) })
    }
    #[inline(always)]
    fn exp2(self) -> Zmm {
        // SAFETY: as for `splat`. The fraction of an infinity is 0, and `scalef` takes the floor itself.
        let f = Zmm(unsafe { _mm512_reduce_ps::<{ _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC }>(self.0) });
        super::lanes::exp2_fraction(f).scale2(self)
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        // SAFETY: as for `splat`.
        unsafe { _mm512_reduce_add_ps(self.0) }
    }
    #[inline(always)]
    fn top(self) -> f32 {
        // SAFETY: as for `splat`.
        unsafe { _mm512_reduce_max_ps(self.0) }
    }
    #[inline(always)]
    fn sums(rows: &[Zmm; MAX_LANES]) -> Zmm {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = *rows;
        // Of each quarter register: [a, b, c, d], each the sum of its four lanes.
        #[inline(always)]
        fn four(a: Zmm, b: Zmm, c: Zmm, d: Zmm) -> Zmm {
            // SAFETY: as for `splat`.
            unsafe {
                let ab = Zmm(_mm512_unpacklo_ps(a.0, b.0)) + Zmm(_mm512_unpackhi_ps(a.0, b.0));
                let cd = Zmm(_mm512_unpacklo_ps(c.0, d.0)) + Zmm(_mm512_unpackhi_ps(c.0, d.0));
                let (ab, cd) = (_mm512_castps_pd(ab.0), _mm512_castps_pd(cd.0));
                Zmm(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)))
                    + Zmm(_mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)))
            }
        }
        // The quarters of two registers, added in pairs.
        #[inline(always)]
        fn halve(x: Zmm, y: Zmm) -> Zmm {
            // SAFETY: as for `splat`.
            unsafe {
                Zmm(_mm512_shuffle_f32x4::<0x88>(x.0, y.0)) + Zmm(_mm512_shuffle_f32x4::<0xdd>(x.0, y.0))
            }
        }
        halve(halve(four(a, b, c, d), four(e, f, g, h)), halve(four(i, j, k, l), four(m, n, o, p)))
    }
}

impl Lanes for Ymm {
    type T = f32;
    const N: usize = 8;
    const REGISTERS: usize = 16;
    #[inline(always)]
    fn splat(x: f32) -> Ymm {
        // SAFETY: the machine has the instructions, see `operators`; so for all of these.
        Ymm(unsafe { _mm256_set1_ps(x) })
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Ymm {
        // SAFETY: 8 elements can be read.
        Ymm(unsafe { _mm256_loadu_ps(p) })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: 8 elements can be written.
        unsafe { _mm256_storeu_ps(p, self.0) }
    }
    #[inline(always)]
    unsafe fn seen(p: *const u8) -> Ymm {
        // SAFETY: 8 bytes can be read.
        unsafe {
            let bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()));
            let hidden = _mm256_castsi256_ps(_mm256_cmpeq_epi32(bytes, _mm256_setzero_si256()));
            Ymm(_mm256_and_ps(hidden, _mm256_set1_ps(f32::NEG_INFINITY)))
        }
    }
    #[inline(always)]
    fn prefetch(p: *const f32) {
        // SAFETY: a prefetch of any address is allowed.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    fn fma(self, b: Ymm, c: Ymm) -> Ymm {
        // SAFETY: as for `splat`.
        Ymm(unsafe { _mm256_fmadd_ps(self.0, b.0, c.0) })
    }
    #[inline(always)]
    fn max(self, other: Ymm) -> Ymm {
        // SAFETY: as for `splat`.
        Ymm(unsafe { _mm256_max_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn min(self, other: Ymm) -> Ymm {
        // SAFETY: as for `splat`.
        Ymm(unsafe { _mm256_min_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn if_less(self, other: Ymm, yes: Ymm, no: Ymm) -> Ymm {
        // SAFETY: as for `splat`.
        Ymm(unsafe { _mm256_blendv_ps(no.0, yes.0, _mm256_cmp_ps::<_CMP_LT_OQ>(self.0, other.0)) })
    }
    #[inline(always)]
    fn floor(self) -> Ymm {
        // SAFETY: as for `splat`.
        Ymm(unsafe { _mm256_floor_ps(self.0) })
    }
    #[inline(always)]
    fn scale2(self, n: Ymm) -> Ymm {
        // SAFETY: as for `splat`. The biased exponent is cut to 0 (the number 0) and 255 (infinity).
        unsafe {
            let e = _mm256_add_epi32(_mm256_cvtps_epi32(n.0), _mm256_set1_epi32(127));
            let e = _mm256_min_epi32(_mm256_max_epi32(e, _mm256_setzero_si256()), _mm256_set1_epi32(255));
            Ymm(_mm256_mul_ps(self.0, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(e))))
        }
    }
    #[inline(always)]
    fn sums(rows: &[Ymm; MAX_LANES]) -> Ymm {
        let [a, b, c, d, e, f, g, h, ..] = *rows;
        // Of each half register: [a, b, c, d], each the sum of its four lanes.
        #[inline(always)]
        fn four(a: Ymm, b: Ymm, c: Ymm, d: Ymm) -> Ymm {
            // SAFETY: as for `splat`.
            unsafe {
                let ab = Ymm(_mm256_unpacklo_ps(a.0, b.0)) + Ymm(_mm256_unpackhi_ps(a.0, b.0));
                let cd = Ymm(_mm256_unpacklo_ps(c.0, d.0)) + Ymm(_mm256_unpackhi_ps(c.0, d.0));
                let (ab, cd) = (_mm256_castps_pd(ab.0), _mm256_castps_pd(cd.0));
                Ymm(_mm256_castpd_ps(_mm256_unpacklo_pd(ab, cd)))
                    + Ymm(_mm256_castpd_ps(_mm256_unpackhi_pd(ab, cd)))
            }
        }
        let (x, y) = (four(a, b, c, d), four(e, f, g, h));
        // SAFETY: as for `splat`.
        unsafe {
            Ymm(_mm256_permute2f128_ps::<0x20>(x.0, y.0)) + Ymm(_mm256_permute2f128_ps::<0x31>(x.0, y.0))
        }
    }
}

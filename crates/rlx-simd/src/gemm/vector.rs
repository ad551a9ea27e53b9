//! The vectors of each level, as the micro-kernels see them.

/// A register of f32 lanes.
///
/// # Safety
/// Every function needs the instructions of the vector's level; loads and stores need that many floats behind the pointer.
pub(super) trait Vector: Copy {
    /// Floats in a register.
    const LANES: usize;
    unsafe fn zero() -> Self;
    unsafe fn load(p: *const f32) -> Self;
    unsafe fn store(self, p: *mut f32);
    /// The float at `p` in every lane.
    unsafe fn splat(p: *const f32) -> Self;
    /// `self * b + c`, fused where the level can.
    unsafe fn mul_add(self, b: Self, c: Self) -> Self;
    /// Of pairs of bf16, the first ones and the second ones as f32.
    unsafe fn load_pairs(p: *const f32) -> (Self, Self);
    /// Asks for the cache line at `p`, which need not be valid.
    unsafe fn prefetch(p: *const f32);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Vector;
    use std::arch::x86_64::*;

    macro_rules! vector {
        ($v:ty, $lanes:literal, $zero:ident, $load:ident, $store:ident, $splat:ident, |$a:ident, $b:ident, $c:ident| $fma:expr,
         |$p:ident| $pairs:expr) => {
            // SAFETY, of every block: the caller has the level and the memory, see the trait.
            impl Vector for $v {
                const LANES: usize = $lanes;
                #[inline(always)]
                unsafe fn zero() -> Self {
                    // SAFETY: see the trait.
                    unsafe { $zero() }
                }
                #[inline(always)]
                unsafe fn load(p: *const f32) -> Self {
                    // SAFETY: see the trait.
                    unsafe { $load(p) }
                }
                #[inline(always)]
                unsafe fn store(self, p: *mut f32) {
                    // SAFETY: see the trait.
                    unsafe { $store(p, self) }
                }
                #[inline(always)]
                unsafe fn splat(p: *const f32) -> Self {
                    // SAFETY: see the trait.
                    unsafe { $splat(*p) }
                }
                #[inline(always)]
                unsafe fn mul_add(self, $b: Self, $c: Self) -> Self {
                    let $a = self;
                    // SAFETY: see the trait.
                    unsafe { $fma }
                }
                #[inline(always)]
                unsafe fn load_pairs($p: *const f32) -> (Self, Self) {
                    // SAFETY: see the trait.
                    unsafe { $pairs }
                }
                #[inline(always)]
                unsafe fn prefetch(p: *const f32) {
                    // SAFETY: a prefetch of any address is allowed.
                    unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
                }
            }
        };
    }

    vector!(
        __m512,
        16,
        _mm512_setzero_ps,
        _mm512_loadu_ps,
        _mm512_storeu_ps,
        _mm512_set1_ps,
        |a, b, c| _mm512_fmadd_ps(a, b, c),
        |p| {
            let v = _mm512_loadu_si512(p.cast());
            let second = _mm512_and_si512(v, _mm512_set1_epi32(0xffff_0000_u32.cast_signed()));
            (_mm512_castsi512_ps(_mm512_slli_epi32::<16>(v)), _mm512_castsi512_ps(second))
        }
    );
    vector!(
        __m256,
        8,
        _mm256_setzero_ps,
        _mm256_loadu_ps,
        _mm256_storeu_ps,
        _mm256_set1_ps,
        |a, b, c| _mm256_fmadd_ps(a, b, c),
        |p| {
            let v = _mm256_loadu_si256(p.cast());
            let second = _mm256_and_si256(v, _mm256_set1_epi32(0xffff_0000_u32.cast_signed()));
            (_mm256_castsi256_ps(_mm256_slli_epi32::<16>(v)), _mm256_castsi256_ps(second))
        }
    );
    vector!(
        __m128,
        4,
        _mm_setzero_ps,
        _mm_loadu_ps,
        _mm_storeu_ps,
        _mm_set1_ps,
        |a, b, c| _mm_add_ps(_mm_mul_ps(a, b), c),
        |p| {
            let v = _mm_loadu_si128(p.cast());
            let second = _mm_and_si128(v, _mm_set1_epi32(0xffff_0000_u32.cast_signed()));
            (_mm_castsi128_ps(_mm_slli_epi32::<16>(v)), _mm_castsi128_ps(second))
        }
    );
}

#[cfg(target_arch = "aarch64")]
mod neon {
    use super::Vector;
    use std::arch::aarch64::*;

    // SAFETY, of every block: every aarch64 machine has NEON, and the caller has the memory.
    impl Vector for float32x4_t {
        const LANES: usize = 4;
        #[inline(always)]
        unsafe fn zero() -> Self {
            // SAFETY: see above.
            unsafe { vdupq_n_f32(0.0) }
        }
        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self {
            // SAFETY: see above.
            unsafe { vld1q_f32(p) }
        }
        #[inline(always)]
        unsafe fn store(self, p: *mut f32) {
            // SAFETY: see above.
            unsafe { vst1q_f32(p, self) }
        }
        #[inline(always)]
        unsafe fn splat(p: *const f32) -> Self {
            // SAFETY: see above.
            unsafe { vld1q_dup_f32(p) }
        }
        #[inline(always)]
        unsafe fn mul_add(self, b: Self, c: Self) -> Self {
            // SAFETY: see above.
            unsafe { vfmaq_f32(c, self, b) }
        }
        #[inline(always)]
        unsafe fn load_pairs(p: *const f32) -> (Self, Self) {
            // SAFETY: see above.
            unsafe {
                let v = vld1q_u32(p.cast());
                let second = vandq_u32(v, vdupq_n_u32(0xffff_0000));
                (vreinterpretq_f32_u32(vshlq_n_u32::<16>(v)), vreinterpretq_f32_u32(second))
            }
        }
        #[inline(always)]
        unsafe fn prefetch(_: *const f32) {}
    }
}

/// Lanes of an architecture without intrinsics here.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod plain {
    use super::Vector;

    // SAFETY, of every block: the caller has the memory.
    impl Vector for [f32; 4] {
        const LANES: usize = 4;
        #[inline(always)]
        unsafe fn zero() -> Self {
            [0.0; 4]
        }
        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self {
            // SAFETY: see above.
            unsafe { p.cast::<[f32; 4]>().read_unaligned() }
        }
        #[inline(always)]
        unsafe fn store(self, p: *mut f32) {
            // SAFETY: see above.
            unsafe { p.cast::<[f32; 4]>().write_unaligned(self) }
        }
        #[inline(always)]
        unsafe fn splat(p: *const f32) -> Self {
            // SAFETY: see above.
            unsafe { [*p; 4] }
        }
        #[inline(always)]
        unsafe fn mul_add(self, b: Self, c: Self) -> Self {
            let [a0, a1, a2, a3] = self;
            let ([b0, b1, b2, b3], [c0, c1, c2, c3]) = (b, c);
            [a0 * b0 + c0, a1 * b1 + c1, a2 * b2 + c2, a3 * b3 + c3]
        }
        #[inline(always)]
        unsafe fn load_pairs(p: *const f32) -> (Self, Self) {
            // SAFETY: see above.
            let v = unsafe { p.cast::<[u32; 4]>().read_unaligned() };
            (v.map(|x| f32::from_bits(x << 16)), v.map(|x| f32::from_bits(x & 0xffff_0000)))
        }
        #[inline(always)]
        unsafe fn prefetch(_: *const f32) {}
    }
}

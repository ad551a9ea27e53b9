//! The innermost loops of products of bytes: as those of [`super::micro`], with sums in i32.
//!
//! B is signed. A is unsigned on x86, as the instruction for four bytes has it, and signed on ARM. Every product and every
//! sum is exact: nothing passes through saturating 16 bits.

use super::micro::{Args, LDA};

/// A register of i32 lanes; each lane of an operand holds four bytes or two i16.
///
/// # Safety
/// Every function needs the instructions of the vector's level; loads and stores need that many lanes behind the pointer.
pub(super) trait Lanes: Copy {
    /// Lanes of a register.
    const LANES: usize;
    unsafe fn zero() -> Self;
    unsafe fn load(p: *const i32) -> Self;
    unsafe fn store(self, p: *mut i32);
    /// The lane at `p` everywhere.
    unsafe fn splat(p: *const i32) -> Self;
    /// Asks for the cache line at `p`, which need not be valid.
    unsafe fn prefetch(p: *const i32);
}

/// What multiplies four bytes at once: AVX-512 with VNNI, and NEON.
///
/// # Safety
/// As for [`Lanes`].
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) trait Dot: Lanes {
    /// `self` plus the products of four bytes of A and of B, lane by lane.
    unsafe fn dot(self, a: Self, b: Self) -> Self;
}

/// What multiplies pairs of i16: all but NEON.
///
/// # Safety
/// As for [`Lanes`].
#[cfg(not(target_arch = "aarch64"))]
pub(super) trait Widen: Lanes {
    /// Of four signed bytes in each lane, the even ones and the odd ones as i16.
    unsafe fn halves(self) -> [Self; 2];
    /// `self` plus the products of two i16 of A and of B, lane by lane.
    unsafe fn pairs(self, a: Self, b: Self) -> Self;
}

#[inline(always)]
unsafe fn load_c<V: Lanes, const R: usize, const N: usize>(x: &Args) -> [[V; N]; R] {
    // SAFETY: the caller has R rows of N registers to begin with.
    unsafe {
        let mut acc = [[V::zero(); N]; R];
        if !x.from.is_null() {
            for (r, row) in acc.iter_mut().enumerate() {
                for (v, sum) in row.iter_mut().enumerate() {
                    *sum = V::load(x.from.offset(r as isize * x.from_rows).add(v * V::LANES).cast());
                }
            }
        }
        acc
    }
}

#[inline(always)]
unsafe fn store_c<V: Lanes, const R: usize, const N: usize>(x: &Args, acc: &[[V; N]; R]) {
    // SAFETY: as above.
    unsafe {
        for (r, row) in acc.iter().enumerate() {
            for (v, sum) in row.iter().enumerate() {
                sum.store(x.c.offset(r as isize * x.ldc).add(v * V::LANES).cast());
            }
        }
    }
}

/// Where register `v` of a row of B lies: two registers to a panel.
#[inline(always)]
fn at<V: Lanes>(x: &Args, v: usize) -> usize {
    v / 2 * x.panel + v % 2 * V::LANES
}

#[inline(always)]
unsafe fn fetch<V: Lanes, const N: usize>(x: &Args, step: usize) {
    let ahead = x.ahead.row(x.step, step);
    for v in 0..N {
        // SAFETY: any address may be fetched.
        unsafe { V::prefetch(ahead.wrapping_add(at::<V>(x, v)).cast()) }
    }
}

/// R rows times N registers, four bytes at a step.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline(always)]
pub(super) unsafe fn product<V: Dot, const R: usize, const N: usize>(x: &Args) {
    // SAFETY: the caller has k steps of R rows in A, k rows of N registers in B, and the tile of C.
    unsafe {
        let mut acc = load_c::<V, R, N>(x);
        let (mut a, mut b) = (x.a, x.b);
        for step in 0..x.k {
            fetch::<V, N>(x, step);
            let mut row = [V::zero(); N];
            for (v, reg) in row.iter_mut().enumerate() {
                *reg = V::load(b.add(at::<V>(x, v)).cast());
            }
            for (r, sums) in acc.iter_mut().enumerate() {
                let s = V::splat(a.add(r * LDA).cast());
                for (sum, reg) in sums.iter_mut().zip(row) {
                    *sum = sum.dot(s, reg);
                }
            }
            a = a.add(1);
            b = b.wrapping_offset(x.step);
        }
        store_c(x, &acc);
    }
}

/// R rows times N registers, two bytes at a step, four in a row of B.
#[cfg(not(target_arch = "aarch64"))]
#[inline(always)]
pub(super) unsafe fn product_widen<V: Widen, const R: usize, const N: usize>(x: &Args) {
    // SAFETY: as for `product`, with half as many rows of B; k is even.
    unsafe {
        let mut acc = load_c::<V, R, N>(x);
        let (mut a, mut b) = (x.a, x.b);
        for step in 0..x.k.div_ceil(2) {
            fetch::<V, N>(x, step);
            let mut rows = [[V::zero(); 2]; N];
            for (v, regs) in rows.iter_mut().enumerate() {
                *regs = V::load(b.add(at::<V>(x, v)).cast()).halves();
            }
            for (r, sums) in acc.iter_mut().enumerate() {
                let [even, odd] = [0, 1].map(|i| V::splat(a.add(r * LDA + i).cast()));
                for (sum, [b_even, b_odd]) in sums.iter_mut().zip(rows) {
                    *sum = sum.pairs(even, b_even).pairs(odd, b_odd);
                }
            }
            a = a.add(2);
            b = b.wrapping_offset(x.step);
        }
        store_c(x, &acc);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Dot, Lanes, Widen};
    use std::arch::x86_64::*;

    macro_rules! lanes {
        ($v:ty, $lanes:literal, $zero:ident, $load:ident, $store:ident, $splat:ident,
         $left:ident, $right:ident, $madd:ident, $add:ident) => {
            // SAFETY, of every block: the caller has the level and the memory, see the trait.
            impl Lanes for $v {
                const LANES: usize = $lanes;
                #[inline(always)]
                unsafe fn zero() -> Self {
                    // SAFETY: see the trait.
                    unsafe { $zero() }
                }
                #[inline(always)]
                unsafe fn load(p: *const i32) -> Self {
                    // SAFETY: see the trait.
                    unsafe { $load(p.cast()) }
                }
                #[inline(always)]
                unsafe fn store(self, p: *mut i32) {
                    // SAFETY: see the trait.
                    unsafe { $store(p.cast(), self) }
                }
                #[inline(always)]
                unsafe fn splat(p: *const i32) -> Self {
                    // SAFETY: see the trait.
                    unsafe { $splat(p.read()) }
                }
                #[inline(always)]
                unsafe fn prefetch(p: *const i32) {
                    // SAFETY: a prefetch of any address is allowed.
                    unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
                }
            }
            impl Widen for $v {
                #[inline(always)]
                unsafe fn halves(self) -> [Self; 2] {
                    // SAFETY: see the trait.
                    unsafe { [$right::<8>($left::<8>(self)), $right::<8>(self)] }
                }
                #[inline(always)]
                unsafe fn pairs(self, a: Self, b: Self) -> Self {
                    // SAFETY: see the trait.
                    unsafe { $add(self, $madd(a, b)) }
                }
            }
        };
    }

    lanes!(
        __m512i,
        16,
        _mm512_setzero_si512,
        _mm512_loadu_si512,
        _mm512_storeu_si512,
        _mm512_set1_epi32,
        _mm512_slli_epi16,
        _mm512_srai_epi16,
        _mm512_madd_epi16,
        _mm512_add_epi32
    );
    lanes!(
        __m256i,
        8,
        _mm256_setzero_si256,
        _mm256_loadu_si256,
        _mm256_storeu_si256,
        _mm256_set1_epi32,
        _mm256_slli_epi16,
        _mm256_srai_epi16,
        _mm256_madd_epi16,
        _mm256_add_epi32
    );
    lanes!(
        __m128i,
        4,
        _mm_setzero_si128,
        _mm_loadu_si128,
        _mm_storeu_si128,
        _mm_set1_epi32,
        _mm_slli_epi16,
        _mm_srai_epi16,
        _mm_madd_epi16,
        _mm_add_epi32
    );

    impl Dot for __m512i {
        #[inline(always)]
        unsafe fn dot(self, a: Self, b: Self) -> Self {
            // SAFETY: see the trait.
            unsafe { _mm512_dpbusd_epi32(self, a, b) }
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod neon {
    use super::{Dot, Lanes};
    use std::arch::aarch64::*;

    // SAFETY, of every block: every aarch64 machine has NEON, and the caller has the memory.
    impl Lanes for int32x4_t {
        const LANES: usize = 4;
        #[inline(always)]
        unsafe fn zero() -> Self {
            // SAFETY: see above.
            unsafe { vdupq_n_s32(0) }
        }
        #[inline(always)]
        unsafe fn load(p: *const i32) -> Self {
            // SAFETY: see above.
            unsafe { vld1q_s32(p) }
        }
        #[inline(always)]
        unsafe fn store(self, p: *mut i32) {
            // SAFETY: see above.
            unsafe { vst1q_s32(p, self) }
        }
        #[inline(always)]
        unsafe fn splat(p: *const i32) -> Self {
            // SAFETY: see above.
            unsafe { vld1q_dup_s32(p) }
        }
        #[inline(always)]
        unsafe fn prefetch(_: *const i32) {}
    }

    impl Dot for int32x4_t {
        /// Without the instruction: products of i8 fit 16 bits, and are added in pairs to 32.
        #[inline(always)]
        unsafe fn dot(self, a: Self, b: Self) -> Self {
            // SAFETY: see above.
            unsafe {
                let (a, b) = (vreinterpretq_s8_s32(a), vreinterpretq_s8_s32(b));
                let low = vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)));
                let high = vpaddlq_s16(vmull_high_s8(a, b));
                vaddq_s32(self, vpaddq_s32(low, high))
            }
        }
    }

    /// Lanes of a machine with the instruction for four bytes.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Sdot(int32x4_t);

    impl Lanes for Sdot {
        const LANES: usize = 4;
        #[inline(always)]
        unsafe fn zero() -> Self {
            // SAFETY: see above.
            Sdot(unsafe { <int32x4_t as Lanes>::zero() })
        }
        #[inline(always)]
        unsafe fn load(p: *const i32) -> Self {
            // SAFETY: see above.
            Sdot(unsafe { <int32x4_t as Lanes>::load(p) })
        }
        #[inline(always)]
        unsafe fn store(self, p: *mut i32) {
            // SAFETY: see above.
            unsafe { self.0.store(p) }
        }
        #[inline(always)]
        unsafe fn splat(p: *const i32) -> Self {
            // SAFETY: see above.
            Sdot(unsafe { <int32x4_t as Lanes>::splat(p) })
        }
        #[inline(always)]
        unsafe fn prefetch(_: *const i32) {}
    }

    impl Dot for Sdot {
        #[inline(always)]
        unsafe fn dot(self, a: Self, b: Self) -> Self {
            let mut sum = self.0;
            // SAFETY: the caller has the instruction, which touches nothing but these registers. It has no stable function.
            unsafe {
                std::arch::asm!(
                    ".arch_extension dotprod",
                    "sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b",
                    sum = inout(vreg) sum,
                    a = in(vreg) a.0,
                    b = in(vreg) b.0,
                    options(pure, nomem, nostack, preserves_flags),
                );
            }
            Sdot(sum)
        }
    }
}

#[cfg(target_arch = "aarch64")]
pub(super) use neon::Sdot;

/// Lanes of an architecture without intrinsics here.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod plain {
    use super::{Lanes, Widen};

    // SAFETY, of every block: the caller has the memory.
    impl Lanes for [i32; 4] {
        const LANES: usize = 4;
        #[inline(always)]
        unsafe fn zero() -> Self {
            [0; 4]
        }
        #[inline(always)]
        unsafe fn load(p: *const i32) -> Self {
            // SAFETY: see above.
            unsafe { p.cast::<[i32; 4]>().read_unaligned() }
        }
        #[inline(always)]
        unsafe fn store(self, p: *mut i32) {
            // SAFETY: see above.
            unsafe { p.cast::<[i32; 4]>().write_unaligned(self) }
        }
        #[inline(always)]
        unsafe fn splat(p: *const i32) -> Self {
            // SAFETY: see above.
            unsafe { [p.read_unaligned(); 4] }
        }
        #[inline(always)]
        unsafe fn prefetch(_: *const i32) {}
    }

    impl Widen for [i32; 4] {
        #[inline(always)]
        unsafe fn halves(self) -> [Self; 2] {
            let pair = |low: i32, high: i32| low & 0xffff | high << 16;
            let even = |x: i32| pair(x << 24 >> 24, x << 8 >> 24);
            let odd = |x: i32| pair(x << 16 >> 24, x >> 24);
            [self.map(even), self.map(odd)]
        }
        #[inline(always)]
        unsafe fn pairs(self, a: Self, b: Self) -> Self {
            let [s0, s1, s2, s3] = self;
            let ([a0, a1, a2, a3], [b0, b1, b2, b3]) = (a, b);
            let one = |s: i32, a: i32, b: i32| {
                let (low, high) = ((a << 16 >> 16) * (b << 16 >> 16), (a >> 16) * (b >> 16));
                s.wrapping_add(low).wrapping_add(high)
            };
            [one(s0, a0, b0), one(s1, a1, b1), one(s2, a2, b2), one(s3, a3, b3)]
        }
    }
}

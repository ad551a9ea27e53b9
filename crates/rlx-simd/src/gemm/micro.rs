//! The innermost loops: a few rows of A times one or more panels of B, summed in registers.
//!
//! Every element of C is one chain of multiply-adds in the order of k, whatever the blocks, so that no choice of sizes
//! here or in the plan changes a bit of the result.

use super::vector::Vector;
use super::{PackKind, bytes};
use crate::level::Level;

/// The longest run of k in one call.
pub(super) const KC: usize = 512;
/// Floats from one row of packed A to the next: constant, so that all rows are reached from one register; and an odd number
/// of cache lines, so that the rows fall into different sets of the cache.
pub(super) const LDA: usize = KC + 16;
/// The widest panel of any level.
pub(super) const WIDEST: usize = 32;

/// One call.
pub(super) struct Args {
    /// Steps of k.
    pub k: usize,
    /// The first row of packed A: f32, or what [`Kind`] says in the size of an f32.
    pub a: *const f32,
    /// The first panel of B: f32, or pairs of bf16 or four bytes in the size of an f32.
    pub b: *const f32,
    /// Floats from one row of B to the next, and from one panel to the next.
    pub step: isize,
    pub panel: usize,
    /// The first element of C, f32 or i32, and the floats from one row to the next.
    pub c: *mut f32,
    pub ldc: isize,
    /// What the sums begin with, C itself if it holds the sums of earlier steps, and the floats from one row to the next;
    /// null for zeros.
    pub from: *const f32,
    pub from_rows: isize,
    /// What to fetch into the cache on the way.
    pub ahead: Ahead,
}

/// B that later calls read: step t of a call fetches a row of it. Several streams at once keep more of the machine's own
/// prefetchers at work, which stop at every page.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    pub b: *const f32,
    /// One less than the number of streams, a power of two, and the floats from one to the next.
    pub mask: usize,
    pub apart: isize,
    /// Every stream goes on by one row in 2^shift steps.
    pub shift: u32,
}

impl Ahead {
    /// The row to fetch at a step, where rows are that far apart.
    #[inline(always)]
    pub fn row(&self, rows: isize, step: usize) -> *const f32 {
        self.b
            .wrapping_offset((step & self.mask) as isize * self.apart + (step >> self.shift) as isize * rows)
    }

    #[inline(always)]
    fn fetch<V: Vector, const N: usize>(&self, x: &Args, step: usize) {
        let row = self.row(x.step, step);
        for v in 0..N {
            // SAFETY: any address may be fetched.
            unsafe { V::prefetch(row.wrapping_add(at::<V>(x, v))) }
        }
    }
}

pub(super) type Kernel = unsafe fn(&Args);

/// How a level multiplies one kind of numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// f32.
    F32,
    /// B in bf16, widened in registers; A rounded to bf16 but stored as f32.
    Bf16Widen,
    /// Both in bf16, for the instruction that multiplies pairs.
    Bf16Dot,
    /// Bytes, for instructions that multiply four at once. A step of k is four bytes of each.
    Bytes,
    /// Bytes that are widened in registers. A step of k is two bytes of A, as i16: of four, the even ones and then the odd
    /// ones. A row of B has four of each column, as for [`Kind::Bytes`].
    BytesWiden,
}

impl Kind {
    pub fn of(level: Level, kind: PackKind) -> Kind {
        match kind {
            PackKind::F32 => Kind::F32,
            PackKind::Bf16 if level.has_bf16_dot() => Kind::Bf16Dot,
            PackKind::Bf16 => Kind::Bf16Widen,
        }
    }
    /// As bytes are multiplied at a level.
    pub fn of_bytes(level: Level) -> Kind {
        if level.has_int8_dot() || cfg!(target_arch = "aarch64") { Kind::Bytes } else { Kind::BytesWiden }
    }
    /// Rows of registers that so many steps of k take in a panel of B.
    pub fn steps(self, k: usize) -> usize {
        match self {
            Kind::F32 | Kind::Bytes => k,
            Kind::Bf16Widen | Kind::Bf16Dot | Kind::BytesWiden => k.div_ceil(2),
        }
    }
    /// Whether a panel of B begins with the sums of its columns.
    pub fn has_head(self) -> bool {
        matches!(self, Kind::Bytes | Kind::BytesWiden)
    }
    /// Units in front of the first row of a panel of B.
    pub fn head(self, shape: Shape) -> usize {
        if self.has_head() { shape.width } else { 0 }
    }
    /// Units of a panel of B.
    pub fn panel(self, shape: Shape, k: usize) -> usize {
        self.head(shape) + shape.width * self.steps(k)
    }
}

/// The shape of the micro-kernels of a level.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// The most rows of one call.
    pub rows: usize,
    /// Columns of a panel of B: two registers.
    pub width: usize,
    /// The most rows of a call that takes four panels.
    pub quad: usize,
}

/// The shape at a level. Widened numbers take registers of their own, so there are fewer rows.
pub(super) fn shape(level: Level, kind: Kind) -> Shape {
    let widen = matches!(kind, Kind::Bf16Widen | Kind::BytesWiden);
    match level {
        Level::Avx2 if kind == Kind::BytesWiden => Shape { rows: 4, width: 16, quad: 1 },
        Level::Avx512 if widen => Shape { rows: 12, width: 32, quad: 2 },
        Level::Avx512 => Shape { rows: 14, width: 32, quad: 3 },
        Level::Avx2 if widen => Shape { rows: 5, width: 16, quad: 1 },
        Level::Avx2 => Shape { rows: 6, width: 16, quad: 1 },
        Level::Neon => Shape { rows: 12, width: 8, quad: if widen { 2 } else { 3 } },
        Level::Baseline => Shape { rows: 4, width: 8, quad: 1 },
    }
}

impl Shape {
    /// How many panels one call should take when there are so few rows: enough sums in flight to hide the latency of an
    /// addition, and several streams of B for the memory.
    pub fn panels(self, rows: usize) -> usize {
        if rows <= self.quad {
            4
        } else if rows * 3 <= self.rows {
            2
        } else {
            1
        }
    }
}

#[inline(always)]
unsafe fn load_c<V: Vector, const R: usize, const N: usize>(x: &Args) -> [[V; N]; R] {
    // SAFETY: the caller has R rows of N registers to begin with.
    unsafe {
        let mut acc = [[V::zero(); N]; R];
        if !x.from.is_null() {
            for (r, row) in acc.iter_mut().enumerate() {
                for (v, sum) in row.iter_mut().enumerate() {
                    *sum = V::load(x.from.offset(r as isize * x.from_rows).add(v * V::LANES));
                }
            }
        }
        acc
    }
}

#[inline(always)]
unsafe fn store_c<V: Vector, const R: usize, const N: usize>(x: &Args, acc: &[[V; N]; R]) {
    // SAFETY: as above.
    unsafe {
        for (r, row) in acc.iter().enumerate() {
            for (v, sum) in row.iter().enumerate() {
                sum.store(x.c.offset(r as isize * x.ldc).add(v * V::LANES));
            }
        }
    }
}

/// Where register `v` of a row of B lies: two registers to a panel.
#[inline(always)]
fn at<V: Vector>(x: &Args, v: usize) -> usize {
    v / 2 * x.panel + v % 2 * V::LANES
}

/// R rows times N registers, f32.
#[inline(always)]
unsafe fn product<V: Vector, const R: usize, const N: usize>(x: &Args) {
    // SAFETY: the caller has k columns of R rows in A, k rows of N registers in B, and the tile of C.
    unsafe {
        let mut acc = load_c::<V, R, N>(x);
        let (mut a, mut b) = (x.a, x.b);
        let ahead = x.ahead;
        for step in 0..x.k {
            ahead.fetch::<V, N>(x, step);
            let mut row = [V::zero(); N];
            for (v, reg) in row.iter_mut().enumerate() {
                *reg = V::load(b.add(at::<V>(x, v)));
            }
            for (r, sums) in acc.iter_mut().enumerate() {
                let s = V::splat(a.add(r * LDA));
                for (sum, reg) in sums.iter_mut().zip(row) {
                    *sum = s.mul_add(reg, *sum);
                }
            }
            a = a.add(1);
            b = b.wrapping_offset(x.step);
        }
        store_c(x, &acc);
    }
}

/// R rows times N registers, B in pairs of bf16.
#[inline(always)]
unsafe fn product_widen<V: Vector, const R: usize, const N: usize>(x: &Args) {
    // SAFETY: as for `product`, with half as many rows of B; an odd k has a zero after its last column of A and row of B.
    unsafe {
        let mut acc = load_c::<V, R, N>(x);
        let (mut a, mut b, ahead) = (x.a, x.b, x.ahead);
        for step in 0..x.k.div_ceil(2) {
            ahead.fetch::<V, N>(x, step);
            let mut rows = [[V::zero(); N]; 2];
            let [first, second] = &mut rows;
            for (v, (first, second)) in first.iter_mut().zip(second).enumerate() {
                (*first, *second) = V::load_pairs(b.add(at::<V>(x, v)));
            }
            for (k, row) in rows.iter().enumerate() {
                for (r, sums) in acc.iter_mut().enumerate() {
                    let s = V::splat(a.add(r * LDA + k));
                    for (sum, reg) in sums.iter_mut().zip(row) {
                        *sum = s.mul_add(*reg, *sum);
                    }
                }
            }
            a = a.add(2);
            b = b.wrapping_offset(x.step);
        }
        store_c(x, &acc);
    }
}

/// Chooses the compiled kernel: up to `rows` rows with half a panel or a whole one, few rows with two or four panels.
macro_rules! pick {
    ($f:ident, $rows:expr, $regs:expr; $($r:literal)*; $($r2:literal)*; $($r4:literal)*) => {
        match ($regs, $rows) {
            $((1, $r) => $f::<$r, 1> as Kernel, (2, $r) => $f::<$r, 2>,)*
            $((4, $r2) => $f::<$r2, 4>,)*
            $((8, $r4) => $f::<$r4, 8>,)*
            other => unreachable!("no micro-kernel for {other:?}"),
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::*;
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    unsafe fn f32<const R: usize, const N: usize>(x: &Args) {
        // SAFETY: the caller has the level and the memory.
        unsafe { product::<__m512, R, N>(x) }
    }
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    unsafe fn widen<const R: usize, const N: usize>(x: &Args) {
        // SAFETY: as above.
        unsafe { product_widen::<__m512, R, N>(x) }
    }
    /// As [`product`], two steps of k in one instruction.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")]
    unsafe fn dot<const R: usize, const N: usize>(x: &Args) {
        // SAFETY: as above; rows of A are pairs of bf16, an f32 in size.
        unsafe {
            let mut acc = load_c::<__m512, R, N>(x);
            let (mut a, mut b, ahead) = (x.a, x.b, x.ahead);
            for step in 0..x.k.div_ceil(2) {
                ahead.fetch::<__m512, N>(x, step);
                let mut row = [_mm512_setzero_si512(); N];
                for (v, reg) in row.iter_mut().enumerate() {
                    *reg = _mm512_loadu_si512(b.add(at::<__m512>(x, v)).cast());
                }
                for (r, sums) in acc.iter_mut().enumerate() {
                    let s = _mm512_set1_epi32(a.add(r * LDA).cast::<i32>().read());
                    for (sum, reg) in sums.iter_mut().zip(row) {
                        // SAFETY: both are 512 bits, and all bits are pairs of bf16.
                        let (s, reg) = (
                            std::mem::transmute::<__m512i, __m512bh>(s),
                            std::mem::transmute::<__m512i, __m512bh>(reg),
                        );
                        *sum = _mm512_dpbf16_ps(*sum, s, reg);
                    }
                }
                a = a.add(1);
                b = b.wrapping_offset(x.step);
            }
            store_c(x, &acc);
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
    unsafe fn bytes<const R: usize, const N: usize>(x: &Args) {
        // SAFETY: as above.
        unsafe { bytes::product::<__m512i, R, N>(x) }
    }
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    unsafe fn bytes_widen<const R: usize, const N: usize>(x: &Args) {
        // SAFETY: as above.
        unsafe { bytes::product_widen::<__m512i, R, N>(x) }
    }

    pub fn kernel(kind: Kind, rows: usize, regs: usize) -> Kernel {
        match kind {
            Kind::F32 => pick!(f32, rows, regs; 1 2 3 4 5 6 7 8 9 10 11 12 13 14; 1 2 3 4; 1 2 3),
            Kind::Bf16Widen => pick!(widen, rows, regs; 1 2 3 4 5 6 7 8 9 10 11 12; 1 2 3 4; 1 2),
            Kind::Bf16Dot => pick!(dot, rows, regs; 1 2 3 4 5 6 7 8 9 10 11 12 13 14; 1 2 3 4; 1 2 3),
            Kind::Bytes => pick!(bytes, rows, regs; 1 2 3 4 5 6 7 8 9 10 11 12 13 14; 1 2 3 4; 1 2 3),
            Kind::BytesWiden => pick!(bytes_widen, rows, regs; 1 2 3 4 5 6 7 8 9 10 11 12; 1 2 3 4; 1 2),
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::*;
    use std::arch::x86_64::{__m256, __m256i};

    #[target_feature(enable = "avx2,fma")]
    unsafe fn f32<const R: usize, const N: usize>(x: &Args) {
        // SAFETY: the caller has the level and the memory.
        unsafe { product::<__m256, R, N>(x) }
    }
    #[target_feature(enable = "avx2,fma")]
    unsafe fn widen<const R: usize, const N: usize>(x: &Args) {
        // SAFETY: as above.
        unsafe { product_widen::<__m256, R, N>(x) }
    }
    #[target_feature(enable = "avx2,fma")]
    unsafe fn bytes_widen<const R: usize, const N: usize>(x: &Args) {
        // SAFETY: as above.
        unsafe { bytes::product_widen::<__m256i, R, N>(x) }
    }

    pub fn kernel(kind: Kind, rows: usize, regs: usize) -> Kernel {
        match kind {
            Kind::F32 => pick!(f32, rows, regs; 1 2 3 4 5 6; 1 2; 1),
            Kind::Bf16Widen | Kind::Bf16Dot => pick!(widen, rows, regs; 1 2 3 4 5; 1; 1),
            Kind::Bytes | Kind::BytesWiden => pick!(bytes_widen, rows, regs; 1 2 3 4; 1; 1),
        }
    }
}

mod base {
    use super::*;
    #[cfg(target_arch = "aarch64")]
    use std::arch::aarch64::{float32x4_t as Lanes, int32x4_t as Sums};
    #[cfg(target_arch = "x86_64")]
    use std::arch::x86_64::{__m128 as Lanes, __m128i as Sums};
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    type Lanes = [f32; 4];
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    type Sums = [i32; 4];

    unsafe fn f32<const R: usize, const N: usize>(x: &Args) {
        // SAFETY: every machine of the architecture has these vectors; the caller has the memory.
        unsafe { product::<Lanes, R, N>(x) }
    }
    unsafe fn widen<const R: usize, const N: usize>(x: &Args) {
        // SAFETY: as above.
        unsafe { product_widen::<Lanes, R, N>(x) }
    }
    #[cfg(not(target_arch = "aarch64"))]
    unsafe fn bytes<const R: usize, const N: usize>(x: &Args) {
        // SAFETY: as above.
        unsafe { bytes::product_widen::<Sums, R, N>(x) }
    }
    #[cfg(target_arch = "aarch64")]
    unsafe fn bytes<const R: usize, const N: usize>(x: &Args) {
        // SAFETY: as above.
        unsafe { bytes::product::<Sums, R, N>(x) }
    }
    #[cfg(target_arch = "aarch64")]
    #[target_feature(enable = "dotprod")]
    unsafe fn bytes_dot<const R: usize, const N: usize>(x: &Args) {
        // SAFETY: as above, and the caller has the instruction.
        unsafe { bytes::product::<bytes::Sdot, R, N>(x) }
    }

    pub fn kernel(kind: Kind, rows: usize, regs: usize) -> Kernel {
        match kind {
            Kind::F32 => pick!(f32, rows, regs; 1 2 3 4 5 6 7 8 9 10 11 12; 1 2 3 4; 1 2 3),
            Kind::Bf16Widen | Kind::Bf16Dot => {
                pick!(widen, rows, regs; 1 2 3 4 5 6 7 8 9 10 11 12; 1 2 3 4; 1 2)
            }
            #[cfg(target_arch = "aarch64")]
            Kind::Bytes if Level::Neon.has_int8_dot() => {
                pick!(bytes_dot, rows, regs; 1 2 3 4 5 6 7 8 9 10 11 12; 1 2 3 4; 1 2 3)
            }
            Kind::Bytes | Kind::BytesWiden => {
                pick!(bytes, rows, regs; 1 2 3 4 5 6 7 8 9 10 11 12; 1 2 3 4; 1 2 3)
            }
        }
    }
}

/// The kernel for so many rows (1 up to the shape's) and registers of columns (1, 2, or 2 × [`Shape::panels`]).
pub(super) fn kernel(level: Level, kind: Kind, rows: usize, regs: usize) -> Kernel {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => avx512::kernel(kind, rows, regs),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => avx2::kernel(kind, rows, regs),
        _ => base::kernel(kind, rows, regs),
    }
}

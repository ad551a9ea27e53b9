//! The product for types that need no tuning: f64, and i64 that wraps.

use super::BatchOffsets;
use crate::each_level;
use crate::level::Level;
use crate::mem::{Ptr, Scratch, ScratchSize};
use crate::pool::Pool;

/// Columns of a panel of B.
const WIDTH: usize = 16;
/// Rows of A that share a load of B.
const ROWS: usize = 4;
/// The longest run of k packed at once.
const DEPTH: usize = 256;
/// Rows of a task.
const TASK_ROWS: usize = 64;

/// A type that the generic product takes.
pub trait Element: Copy + Send + Sync + 'static {
    /// What a sum begins with.
    const ZERO: Self;
    /// `self * b + c`; `FMA` says whether a fused one is one instruction.
    fn mul_add<const FMA: bool>(self, b: Self, c: Self) -> Self;
    #[doc(hidden)]
    #[allow(clippy::missing_safety_doc)]
    unsafe fn rows(level: Level, x: &Panel<Self>);
}

/// Some rows of A times one packed panel of B.
#[doc(hidden)]
pub struct Panel<T> {
    rows: usize,
    k: usize,
    a: *const T,
    a_strides: [isize; 2],
    b: *const T,
    c: *mut T,
    row_stride: isize,
    cols: usize,
    accumulate: bool,
}

macro_rules! element {
    ($t:ty, $zero:literal, |$a:ident, $b:ident, $c:ident, $fma:ident| $e:expr) => {
        impl Element for $t {
            const ZERO: $t = $zero;
            #[inline(always)]
            fn mul_add<const $fma: bool>(self, $b: $t, $c: $t) -> $t {
                let $a = self;
                $e
            }
            unsafe fn rows(level: Level, x: &Panel<$t>) {
                each_level!(level, FMA, rows::<$t, FMA> => (x: &Panel<$t>));
            }
        }
    };
}
element!(f64, 0.0, |a, b, c, FMA| if FMA { f64::mul_add(a, b, c) } else { a * b + c });
element!(i64, 0, |a, b, c, _FMA| a.wrapping_mul(b).wrapping_add(c));

#[inline(always)]
unsafe fn rows<T: Element, const FMA: bool>(x: &Panel<T>) {
    let mut r = 0;
    while r < x.rows {
        // SAFETY: the caller has the rows.
        unsafe {
            if r + ROWS <= x.rows {
                tile::<T, FMA, ROWS>(x, r);
                r += ROWS;
            } else {
                tile::<T, FMA, 1>(x, r);
                r += 1;
            }
        }
    }
}

#[inline(always)]
unsafe fn tile<T: Element, const FMA: bool, const R: usize>(x: &Panel<T>, r0: usize) {
    // SAFETY: the caller has R rows of A and C from `r0` on, and the panel.
    unsafe {
        let mut acc = [[T::ZERO; WIDTH]; R];
        let c = |r: usize| x.c.offset((r0 + r) as isize * x.row_stride);
        if x.accumulate {
            for (r, row) in acc.iter_mut().enumerate() {
                for (j, sum) in row.iter_mut().take(x.cols).enumerate() {
                    *sum = *c(r).add(j);
                }
            }
        }
        for k in 0..x.k {
            let b = x.b.add(k * WIDTH).cast::<[T; WIDTH]>().read();
            for (r, row) in acc.iter_mut().enumerate() {
                let s = *x.a.offset((r0 + r) as isize * x.a_strides[0] + k as isize * x.a_strides[1]);
                for (sum, b) in row.iter_mut().zip(b) {
                    *sum = s.mul_add::<FMA>(b, *sum);
                }
            }
        }
        for (r, row) in acc.iter().enumerate() {
            for (j, sum) in row.iter().take(x.cols).enumerate() {
                *c(r).add(j) = *sum;
            }
        }
    }
}

/// A product as [`super::Gemm`] has it, of another type, with both operands and the output in memory.
#[derive(Clone, Copy, Debug)]
pub struct Generic<'a, T> {
    /// The instructions to use.
    pub level: Level,
    /// Rows of A and C.
    pub m: usize,
    /// Columns of B and C.
    pub n: usize,
    /// Columns of A and rows of B.
    pub k: usize,
    /// A, and the distance to the next row and column.
    pub a: (*const T, [isize; 2]),
    /// B, and the distance to the next row and column.
    pub b: (*const T, [isize; 2]),
    /// C, and the distance to the next row; columns are beside each other.
    pub c: (*mut T, isize),
    /// One entry for each product.
    pub batches: &'a [BatchOffsets],
}

/// The scratch space of [`gemm_generic`], for any sizes.
pub fn gemm_generic_scratch<T>() -> ScratchSize {
    ScratchSize { each: DEPTH * WIDTH * size_of::<T>(), shared: 0 }
}

/// Computes the product.
///
/// # Safety
/// As for [`super::Gemm::run`], with scratch of at least [`gemm_generic_scratch`].
pub unsafe fn gemm_generic<T: Element>(x: &Generic<'_, T>, pool: &Pool, scratch: &Scratch) {
    let (row_blocks, panels) = (x.m.div_ceil(TASK_ROWS), x.n.div_ceil(WIDTH));
    let (a, b, c) = (Ptr(x.a.0.cast_mut()), Ptr(x.b.0.cast_mut()), Ptr(x.c.0));
    let (level, batches, (m, n, k)) = (x.level, x.batches, (x.m, x.n, x.k));
    let (a_strides, b_strides, row_stride) = (x.a.1, x.b.1, x.c.1);
    pool.run(batches.len() * row_blocks * panels, |i, worker| {
        let (a, b, c) = (a, b, c);
        let (block, p) = (i / panels, i % panels);
        let at = batches.get(block / row_blocks).copied().unwrap_or_default();
        let r0 = block % row_blocks * TASK_ROWS;
        let (c0, cols) = (p * WIDTH, WIDTH.min(n - p * WIDTH));
        let own = scratch.each::<T>(worker, DEPTH * WIDTH);
        let mut k0 = 0;
        loop {
            let depth = DEPTH.min(k - k0);
            // SAFETY: the caller has the operands and the output; tasks write disjoint blocks; `own` is the worker's.
            unsafe {
                for kk in 0..depth {
                    let src =
                        b.0.offset(at.b + (k0 + kk) as isize * b_strides[0] + c0 as isize * b_strides[1]);
                    for j in 0..WIDTH {
                        *own.add(kk * WIDTH + j) =
                            if j < cols { *src.offset(j as isize * b_strides[1]) } else { T::ZERO };
                    }
                }
                let panel = Panel {
                    rows: TASK_ROWS.min(m - r0),
                    k: depth,
                    a: a.0.offset(at.a + r0 as isize * a_strides[0] + k0 as isize * a_strides[1]),
                    a_strides,
                    b: own,
                    c: c.0.offset(at.c + r0 as isize * row_stride + c0 as isize),
                    row_stride,
                    cols,
                    accumulate: k0 > 0,
                };
                T::rows(level, &panel);
            }
            k0 += depth;
            if k0 >= k {
                break;
            }
        }
    });
}

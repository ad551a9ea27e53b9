//! Moving operands into the order in which the micro-kernels read them.
//!
//! B becomes panels of [`micro::Shape::width`] columns, each panel k rows of that many floats, zeros beyond the last column. In
//! bf16 a panel holds pairs of rows: column by column the element of the even row and that of the odd one. A is only copied
//! row by row, so that whoever makes up rows ([`super::RowSource`]) can write them in place.

use super::PackKind;
use super::micro::{self, Kind, WIDEST};
use crate::each_level;
use crate::level::Level;
use crate::mem::{Buffer, Ptr};
use crate::pool::Pool;
use std::ops::Range;

/// Rows of B that are packed at a time.
const ROWS: usize = 64;

/// B of a product, packed once for many.
#[derive(Debug)]
pub struct PackedB {
    level: Level,
    kind: PackKind,
    k: usize,
    n: usize,
    data: Buffer,
}

impl PackedB {
    /// Packs a k × n matrix with any strides (in elements), so a transposed one too.
    ///
    /// # Safety
    /// The matrix is within readable memory.
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn pack(
        level: Level,
        kind: PackKind,
        k: usize,
        n: usize,
        src: *const f32,
        row_stride: isize,
        col_stride: isize,
        pool: &Pool,
    ) -> PackedB {
        let src = Ptr(src.cast_mut());
        PackedB::pack_with(level, kind, k, n, pool, |rows, cols, dst, stride| {
            let (strides, src) = ([row_stride, col_stride], src);
            // SAFETY: the caller has the matrix; `pack_with` gives room for the block.
            unsafe {
                let src = src.0.offset(rows.start as isize * row_stride + cols.start as isize * col_stride);
                copy(level, src, strides, [rows.len(), cols.len()], dst, stride)
            }
        })
    }

    /// Packs a k × n matrix that `fill(rows, cols, dst, stride)` writes out block by block: row `r` of the block begins at
    /// `dst + r * stride`. So a matrix of another type is converted on the way.
    pub fn pack_with(
        level: Level,
        kind: PackKind,
        k: usize,
        n: usize,
        pool: &Pool,
        fill: impl Fn(Range<usize>, Range<usize>, *mut f32, usize) + Sync,
    ) -> PackedB {
        let order = Kind::of(level, kind);
        let shape = micro::shape(level, order);
        let (panels, floats) = (n.div_ceil(shape.width), order.panel(shape, k));
        let data = Buffer::new(panels * floats * size_of::<f32>());
        let all = Ptr(data.ptr().cast::<f32>());
        pool.run(panels, |p, _| {
            let (to, cols) = (all, p * shape.width..n.min((p + 1) * shape.width));
            // SAFETY: the panel is within the buffer, and this task's alone.
            unsafe {
                panel(level, kind, 0..k, cols, to.0.add(p * floats), &fill);
            }
        });
        PackedB { level, kind, k, n, data }
    }

    /// Rows.
    pub fn k(&self) -> usize {
        self.k
    }
    /// Columns.
    pub fn n(&self) -> usize {
        self.n
    }
    /// The type of the elements.
    pub fn kind(&self) -> PackKind {
        self.kind
    }
    /// The level whose kernels read this order.
    pub fn level(&self) -> Level {
        self.level
    }
    /// The size in memory.
    pub fn bytes(&self) -> usize {
        self.data.len()
    }
    pub(super) fn ptr(&self) -> *const f32 {
        self.data.ptr().cast()
    }
}

/// Packs the rows `ks` (beginning at an even one) of one panel.
///
/// # Safety
/// The panel's piece for these rows begins at `dst`.
pub(super) unsafe fn panel(
    level: Level,
    kind: PackKind,
    ks: Range<usize>,
    cols: Range<usize>,
    dst: *mut f32,
    fill: &dyn Fn(Range<usize>, Range<usize>, *mut f32, usize),
) {
    let order = Kind::of(level, kind);
    let (width, used) = (micro::shape(level, order).width, cols.len());
    let mut block = [0f32; ROWS * WIDEST];
    for k0 in ks.clone().step_by(ROWS) {
        let rows = ROWS.min(ks.end - k0);
        // SAFETY: the caller has room for the rows; the block has room for `ROWS` of the widest.
        unsafe {
            let at = dst.add(order.steps(k0 - ks.start) * width);
            let out = if kind == PackKind::F32 { at } else { block.as_mut_ptr() };
            fill(k0..k0 + rows, cols.clone(), out, width);
            if used < width {
                for r in 0..rows {
                    out.add(r * width + used).write_bytes(0, width - used);
                }
            }
            if rows % 2 == 1 && kind == PackKind::Bf16 {
                out.add(rows * width).write_bytes(0, width);
            }
        }
        if kind == PackKind::Bf16 {
            let (src, dst, pairs) = (
                block.as_ptr(),
                dst.wrapping_add((k0 - ks.start) / 2 * width).cast::<u32>(),
                rows.div_ceil(2),
            );
            each_level!(level, _FMA, pair_rows => (src: *const f32, dst: *mut u32, pairs: usize, width: usize));
        }
    }
}

/// An f32 as the nearest bf16, ties to even; a NaN stays one.
#[inline(always)]
fn bf16_bits(x: f32) -> u32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if x.is_nan() { bits >> 16 | 0x40 } else { rounded }
}

#[inline(always)]
unsafe fn pair_rows(src: *const f32, dst: *mut u32, pairs: usize, width: usize) {
    for p in 0..pairs {
        for c in 0..width {
            // SAFETY: the caller has the rows.
            unsafe {
                let (first, second) = (*src.add(2 * p * width + c), *src.add((2 * p + 1) * width + c));
                *dst.add(p * width + c) = bf16_bits(first) | bf16_bits(second) << 16;
            }
        }
    }
}

/// Rounds rows to bf16 in place: `dot` as pairs at the beginning of each row, else still as f32. An odd length gets a zero.
///
/// # Safety
/// There are that many rows, with room for an even length.
pub(super) unsafe fn round_rows(
    level: Level,
    dot: bool,
    rows: usize,
    len: usize,
    ptr: *mut f32,
    stride: usize,
) {
    if len % 2 == 1 {
        for r in 0..rows {
            // SAFETY: the caller has the rows.
            unsafe { *ptr.add(r * stride + len) = 0.0 }
        }
    }
    let len = len.next_multiple_of(2);
    if dot {
        each_level!(level, _FMA, narrow => (ptr: *mut f32, rows: usize, len: usize, stride: usize));
    } else {
        each_level!(level, _FMA, round => (ptr: *mut f32, rows: usize, len: usize, stride: usize));
    }
}

#[inline(always)]
unsafe fn round(ptr: *mut f32, rows: usize, len: usize, stride: usize) {
    for r in 0..rows {
        for i in 0..len {
            // SAFETY: the caller has the rows.
            unsafe {
                let x = ptr.add(r * stride + i);
                *x = f32::from_bits(bf16_bits(*x) << 16);
            }
        }
    }
}

#[inline(always)]
unsafe fn narrow(ptr: *mut f32, rows: usize, len: usize, stride: usize) {
    let mut chunk = [0u16; 16];
    for r in 0..rows {
        for i in (0..len).step_by(16) {
            let n = (len - i).min(16);
            // SAFETY: the caller has the rows; what is written lies before what is still to be read.
            unsafe {
                let row = ptr.add(r * stride);
                for (j, c) in chunk.iter_mut().take(n).enumerate() {
                    *c = bf16_bits(*row.add(i + j)) as u16;
                }
                row.cast::<u16>().add(i).copy_from_nonoverlapping(chunk.as_ptr(), n);
            }
        }
    }
}

/// Copies a block of rows × cols with any strides into rows at `stride`.
///
/// # Safety
/// Both blocks are within their memory and do not overlap.
pub(super) unsafe fn copy(
    level: Level,
    src: *const f32,
    strides: [isize; 2],
    size: [usize; 2],
    dst: *mut f32,
    stride: usize,
) {
    let ([row, col], [rows, cols]) = (strides, size);
    if col == 1 || cols <= 1 {
        each_level!(level, _FMA, copy_rows => (
            src: *const f32, row: isize, rows: usize, cols: usize, dst: *mut f32, stride: usize,
        ));
        return;
    }
    #[cfg(target_arch = "x86_64")]
    if row == 1 && matches!(level, Level::Avx2 | Level::Avx512) {
        // SAFETY: as above, and the level has AVX.
        return unsafe { transpose(src, col, rows, cols, dst, stride) };
    }
    each_level!(level, _FMA, gather => (
        src: *const f32, row: isize, col: isize, rows: usize, cols: usize, dst: *mut f32, stride: usize,
    ));
}

/// Rows are often only a few vectors long: too short for a call of `memcpy`.
#[inline(always)]
unsafe fn copy_rows(src: *const f32, row: isize, rows: usize, cols: usize, dst: *mut f32, stride: usize) {
    const PIECE: usize = 16;
    for r in 0..rows {
        // SAFETY: the caller has both blocks.
        unsafe {
            let (src, dst) = (src.offset(r as isize * row), dst.add(r * stride));
            let whole = cols / PIECE * PIECE;
            for c in (0..whole).step_by(PIECE) {
                dst.add(c)
                    .cast::<[f32; PIECE]>()
                    .write_unaligned(src.add(c).cast::<[f32; PIECE]>().read_unaligned());
            }
            for c in whole..cols {
                *dst.add(c) = *src.add(c);
            }
        }
    }
}

/// The block in squares, so that neither side runs through more cache lines than stay at hand.
#[inline(always)]
unsafe fn gather(
    src: *const f32,
    row: isize,
    col: isize,
    rows: usize,
    cols: usize,
    dst: *mut f32,
    stride: usize,
) {
    const SIDE: usize = 16;
    for c0 in (0..cols).step_by(SIDE) {
        for r0 in (0..rows).step_by(SIDE) {
            // SAFETY: the caller has both blocks.
            unsafe {
                let (src, dst) =
                    (src.offset(r0 as isize * row + c0 as isize * col), dst.add(r0 * stride + c0));
                for c in 0..SIDE.min(cols - c0) {
                    for r in 0..SIDE.min(rows - r0) {
                        *dst.add(r * stride + c) = *src.offset(r as isize * row + c as isize * col);
                    }
                }
            }
        }
    }
}

/// As [`gather`], for columns whose elements lie beside each other: squares of 8 are turned over in registers.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn transpose(src: *const f32, col: isize, rows: usize, cols: usize, dst: *mut f32, stride: usize) {
    use std::arch::x86_64::*;
    let (whole_rows, whole_cols) = (rows / 8 * 8, cols / 8 * 8);
    // SAFETY: the caller has both blocks.
    unsafe {
        for c in (0..whole_cols).step_by(8) {
            for r in (0..whole_rows).step_by(8) {
                let from = src.offset(c as isize * col + r as isize);
                // Half of the rows at a time: columns i and i + 4 in the halves of one register.
                for half in [0, 4] {
                    let pair = |i: isize| {
                        let (low, high) = (from.offset(i * col + half), from.offset((i + 4) * col + half));
                        _mm256_insertf128_ps::<1>(
                            _mm256_castps128_ps256(_mm_loadu_ps(low)),
                            _mm_loadu_ps(high),
                        )
                    };
                    let [a, b, c4, d] = [pair(0), pair(1), pair(2), pair(3)];
                    let (ab, cd) = (_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c4, d));
                    let (ab2, cd2) = (_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c4, d));
                    let to = dst.add((r + half as usize) * stride + c);
                    _mm256_storeu_ps(to, _mm256_shuffle_ps::<0x44>(ab, cd));
                    _mm256_storeu_ps(to.add(stride), _mm256_shuffle_ps::<0xee>(ab, cd));
                    _mm256_storeu_ps(to.add(2 * stride), _mm256_shuffle_ps::<0x44>(ab2, cd2));
                    _mm256_storeu_ps(to.add(3 * stride), _mm256_shuffle_ps::<0xee>(ab2, cd2));
                }
            }
        }
        gather(
            src.offset(whole_cols as isize * col),
            1,
            col,
            rows,
            cols - whole_cols,
            dst.add(whole_cols),
            stride,
        );
        gather(
            src.add(whole_rows),
            1,
            col,
            rows - whole_rows,
            whole_cols,
            dst.add(whole_rows * stride),
            stride,
        );
    }
}

//! Copies between strided arrays: permutes, slices, flips, broadcasts, and fills.
//!
//! Whatever the caller's axes are, they come down to one of three loops: rows that are contiguous on both sides, blocks
//! that are transposed, or elements one by one. The byte within an element is an axis like any other at first, so that
//! pairs and short rows are moved as one wider element where that is possible.

mod transpose;

use crate::level::Level;
use crate::mem::Ptr;
use crate::pool::Pool;
use std::ops::Range;

/// Axes that are left after merging; an array with more is copied slice by slice.
const MAX_AXES: usize = 12;
/// Bytes that a task moves: enough that starting it costs nothing beside it.
const TASK_BYTES: usize = 64 << 10;
/// Bytes of a cache line.
const LINE: usize = 64;
/// Bytes along either side of a block that is transposed: few enough pages that their addresses stay cached.
const BLOCK_BYTES: usize = 256;
/// A copy of so many bytes does not stay in the cache of a core, and is written past it: a line that is going to be
/// overwritten need not be read first.
const STREAM_BYTES: usize = 8 << 20;

/// Runs `f(range, worker)` over `0..count`, cut into ranges of `grain`.
pub(crate) fn pieces(pool: &Pool, count: usize, grain: usize, f: impl Fn(Range<usize>, usize) + Sync) {
    let grain = grain.max(1);
    pool.run(count.div_ceil(grain), |task, worker| {
        f(task * grain..(task * grain + grain).min(count), worker)
    });
}

/// The address of element `i`. A closure that uses it captures the whole [`Ptr`], which may cross threads.
#[inline(always)]
pub(crate) fn at<T>(ptr: Ptr<T>, i: usize) -> *mut T {
    ptr.0.wrapping_add(i)
}

/// Copies `len` bytes.
///
/// # Safety
/// Both sides have that many bytes and do not overlap.
#[inline(always)]
pub(crate) unsafe fn copy_row(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: every access is within `len`, by the caller's promise; the last piece overlaps the one before it.
    unsafe {
        if len > 256 {
            return src.copy_to_nonoverlapping(dst, len);
        }
        if len >= 16 {
            let piece = |i: usize| {
                dst.add(i).cast::<u128>().write_unaligned(src.add(i).cast::<u128>().read_unaligned())
            };
            (0..len / 16).for_each(|i| piece(i * 16));
            return piece(len - 16);
        }
        macro_rules! two_pieces {
            ($($t:ty),*) => {$(
                if len >= size_of::<$t>() {
                    let last = len - size_of::<$t>();
                    let pair = (src.cast::<$t>().read_unaligned(), src.add(last).cast::<$t>().read_unaligned());
                    dst.cast::<$t>().write_unaligned(pair.0);
                    return dst.add(last).cast::<$t>().write_unaligned(pair.1);
                }
            )*};
        }
        two_pieces!(u64, u32, u16, u8);
    }
}

/// Copies `len` bytes past the cache; [`end_if`] comes after the last.
///
/// # Safety
/// As [`copy_row`].
unsafe fn stream_row(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: head, lines and tail make up the row; the lines are aligned.
    unsafe {
        let head = dst.align_offset(LINE).min(len);
        copy_row(dst, src, head);
        let lines = (len - head) / LINE;
        for i in 0..lines {
            let from = src.add(head + i * LINE).cast::<[u128; LINE / 16]>();
            stream_line(dst.add(head + i * LINE).cast(), from.read_unaligned());
        }
        let tail = head + lines * LINE;
        copy_row(dst.add(tail), src.add(tail), len - tail);
    }
}

/// Writes a value again and again, past the cache; [`end_if`] comes after the last.
///
/// # Safety
/// `n` elements may be written.
unsafe fn stream_value<T: Copy>(dst: *mut u8, v: T, n: usize) {
    let wide = size_of::<T>();
    let mut line = [0u128; LINE / 16];
    let some = LINE / wide;
    // SAFETY: a line has room for `some` elements; the elements before and after the lines make up the row.
    unsafe {
        (0..some).for_each(|i| line.as_mut_ptr().cast::<T>().add(i).write_unaligned(v));
        let write = |i: usize| dst.add(i * wide).cast::<T>().write_unaligned(v);
        // Elements that lie across lines are never in step with them.
        let head = if (dst as usize).is_multiple_of(wide) { dst.align_offset(LINE) / wide } else { n }.min(n);
        (0..head).for_each(write);
        let lines = (n - head) / some;
        (0..lines).for_each(|i| stream_line(dst.add(head * wide + i * LINE).cast(), line));
        (head + lines * some..n).for_each(write);
    }
}

/// Writes a line past the cache.
///
/// # Safety
/// The line may be written, and is aligned.
#[inline(always)]
unsafe fn stream_line(to: *mut u128, line: [u128; LINE / 16]) {
    #[cfg(target_arch = "x86_64")]
    for (i, v) in line.into_iter().enumerate() {
        use std::arch::x86_64::{__m128i, _mm_stream_si128};
        // SAFETY: a vector of 16 bytes is as good as an integer; aligned as the caller promises.
        unsafe { _mm_stream_si128(to.add(i).cast(), std::mem::transmute::<u128, __m128i>(v)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: as the caller promises.
    unsafe {
        to.cast::<[u128; LINE / 16]>().write(line)
    };
}

/// Ends a task: what it wrote past the cache, if it did, is then there for all who learn that the task has ended.
#[inline(always)]
fn end_if(stream: bool) {
    #[cfg(target_arch = "x86_64")]
    if stream {
        // SAFETY: every processor of the architecture has it.
        unsafe { std::arch::x86_64::_mm_sfence() };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = stream;
}

/// An axis of a copy; strides in bytes.
#[derive(Clone, Copy, Default)]
struct Axis {
    n: usize,
    dst: isize,
    src: isize,
}

/// A copy brought into order: destination strides are positive and fall from axis to axis, and no two axes can be merged.
struct Plan {
    axes: [Axis; MAX_AXES],
    rank: usize,
    dst: Ptr<u8>,
    src: Ptr<u8>,
}

impl Plan {
    fn axes(&self) -> &[Axis] {
        self.axes.get(..self.rank).unwrap_or_default()
    }

    /// Adds an axis inside the others; `false` if there is no room for it.
    fn push(&mut self, axis: Axis) -> bool {
        let outer = self.rank.checked_sub(1).and_then(|last| self.axes.get_mut(last));
        let span = |stride: isize| stride.wrapping_mul(axis.n as isize);
        if axis.n == 1 {
            return true;
        }
        if let Some(outer) = outer
            && outer.dst == span(axis.dst)
            && outer.src == span(axis.src)
        {
            *outer = Axis { n: outer.n * axis.n, ..axis };
            return true;
        }
        let Some(slot) = self.axes.get_mut(self.rank) else { return false };
        *slot = axis;
        self.rank += 1;
        true
    }

    /// Takes the innermost axis off.
    fn pop(&mut self) -> Option<Axis> {
        self.rank = self.rank.checked_sub(1)?;
        self.axes.get(self.rank).copied()
    }

    fn sort(&mut self) {
        let rank = self.rank;
        let (mut dst, mut src) = (self.dst.0, self.src.0);
        let mut old = self.axes;
        let live = old.get_mut(..rank).unwrap_or_default();
        for axis in live.iter_mut().filter(|a| a.dst < 0) {
            let last = axis.n as isize - 1;
            (dst, src) = (dst.wrapping_offset(axis.dst * last), src.wrapping_offset(axis.src * last));
            (axis.dst, axis.src) = (-axis.dst, -axis.src);
        }
        // The unstable sort, for it never allocates; axes that compare equal lead to the same copy in either order.
        live.sort_unstable_by_key(|a| std::cmp::Reverse((a.dst, a.src.unsigned_abs())));
        (self.rank, self.dst, self.src) = (0, Ptr(dst), Ptr(src));
        for axis in live.iter() {
            self.push(*axis);
        }
    }

    /// Calls `f(dst, src, count)` for runs along the innermost axis of `range`, which counts the index space of the axes in
    /// row-major order: `count` elements from those addresses.
    fn runs(&self, range: Range<usize>, mut f: impl FnMut(*mut u8, *const u8, usize, Axis)) {
        let axes = self.axes();
        let one = Axis { n: 1, dst: 0, src: 0 };
        let (inner, outer) = axes.split_last().map_or((one, axes), |(inner, outer)| (*inner, outer));
        let mut at = range.start;
        while at < range.end {
            let (mut row, first) = (at / inner.n, at % inner.n);
            let count = (inner.n - first).min(range.end - at);
            let (mut d, mut s) = (first as isize * inner.dst, first as isize * inner.src);
            for axis in outer.iter().rev() {
                let i = (row % axis.n) as isize;
                row /= axis.n;
                (d, s) = (d + i * axis.dst, s + i * axis.src);
            }
            f(self.dst.0.wrapping_offset(d), self.src.0.wrapping_offset(s), count, inner);
            at += count;
        }
    }

    fn count(&self) -> usize {
        self.axes().iter().map(|a| a.n).product()
    }
}

/// Copies an array of `shape`: strides count elements of `elem_bytes`, 0 reads an element again and again, and a negative
/// stride runs backwards.
///
/// # Safety
/// Every element that the strides reach is within memory that may be read (`src`) or written (`dst`). The elements of `dst`
/// are distinct, and none of them overlaps an element of `src`. Addresses need no alignment.
#[allow(clippy::too_many_arguments)]
pub unsafe fn copy(
    level: Level,
    elem_bytes: usize,
    shape: &[usize],
    dst: *mut u8,
    dst_strides: &[isize],
    src: *const u8,
    src_strides: &[isize],
    pool: &Pool,
) {
    debug_assert!(shape.len() == dst_strides.len() && shape.len() == src_strides.len());
    if elem_bytes == 0 || shape.contains(&0) {
        return;
    }
    let wide = elem_bytes as isize;
    let mut plan = Plan { axes: Default::default(), rank: 0, dst: Ptr(dst), src: Ptr(src.cast_mut()) };
    let mut strides = dst_strides.iter().zip(src_strides);
    let mut all =
        shape.iter().zip(&mut strides).map(|(n, (d, s))| Axis { n: *n, dst: d * wide, src: s * wide });
    if all.all(|axis| plan.push(axis)) && plan.push(Axis { n: elem_bytes, dst: 1, src: 1 }) {
        plan.sort();
        // SAFETY: the plan reaches the same elements.
        return unsafe { run(level, plan, pool) };
    }
    if let ([n, shape @ ..], [d, dst_strides @ ..], [s, src_strides @ ..]) = (shape, dst_strides, src_strides)
    {
        for i in 0..*n as isize {
            let (dst, src) = (dst.wrapping_offset(i * d * wide), src.wrapping_offset(i * s * wide));
            // SAFETY: slice `i` of the caller's arrays.
            unsafe { copy(level, elem_bytes, shape, dst, dst_strides, src, src_strides, pool) };
        }
    }
}

/// Writes one value to every element of a strided array; `value` has the bytes of one element.
///
/// # Safety
/// Every element that the strides reach is within memory that may be written, and the elements are distinct.
pub unsafe fn fill(
    level: Level,
    shape: &[usize],
    dst: *mut u8,
    strides: &[isize],
    value: &[u8],
    pool: &Pool,
) {
    let still = [0; MAX_AXES];
    match (still.get(..shape.len()), shape, strides) {
        // SAFETY: as the caller promises; `value` is read with strides of 0.
        (Some(still), ..) => unsafe {
            copy(level, value.len(), shape, dst, strides, value.as_ptr(), still, pool)
        },
        (None, [n, shape @ ..], [stride, strides @ ..]) => {
            for i in 0..*n as isize {
                let dst = dst.wrapping_offset(i * stride * value.len() as isize);
                // SAFETY: slice `i` of the caller's array.
                unsafe { fill(level, shape, dst, strides, value, pool) };
            }
        }
        _ => {}
    }
}

/// # Safety
/// Every element that the plan reaches may be read, or written.
unsafe fn run(level: Level, mut plan: Plan, pool: &Pool) {
    // The run of bytes that is contiguous on both sides, and the widest unit that it and all strides are multiples of.
    let row = match plan.axes().last() {
        Some(Axis { n, dst: 1, src: 1 }) => {
            let n = *n;
            plan.pop();
            n
        }
        _ => 1,
    };
    let all = plan.axes().iter().fold(row, |all, a| all | a.dst.unsigned_abs() | a.src.unsigned_abs());
    let unit = 1 << all.trailing_zeros().min(4);
    if row > unit {
        // SAFETY: as the caller promises.
        return unsafe { rows(plan, row, pool) };
    }
    let count = plan.count();
    let nearest = |a: &&Axis| a.src.unsigned_abs().wrapping_sub(1);
    let inner = plan.rank.wrapping_sub(1);
    let along_src = plan.axes().iter().enumerate().rev().min_by_key(|(_, a)| nearest(a));
    if let (Some((s, sa)), Some(da)) = (along_src, plan.axes().last().copied())
        && s != inner
        && (da.dst, sa.src) == (unit as isize, unit as isize)
        && unit < 16
    {
        let sa = *sa;
        plan.pop();
        plan.axes.copy_within(s + 1.., s);
        plan.rank -= 1;
        // SAFETY: as the caller promises.
        return unsafe { transposed(level, plan, unit, da, sa, pool) };
    }
    let stream = count * unit >= STREAM_BYTES;
    pieces(pool, count, TASK_BYTES / unit, |range, _| {
        plan.runs(range, |d, s, n, inner| {
            // SAFETY: `n` elements along the innermost axis, within the plan.
            unsafe {
                match unit {
                    1 => elements::<u8>(d, s, n, inner, stream),
                    2 => elements::<u16>(d, s, n, inner, stream),
                    4 => elements::<u32>(d, s, n, inner, stream),
                    8 => elements::<u64>(d, s, n, inner, stream),
                    _ => elements::<u128>(d, s, n, inner, stream),
                }
            }
        });
        end_if(stream);
    });
}

/// Rows of `row` bytes, contiguous on both sides.
///
/// # Safety
/// As [`run`].
unsafe fn rows(plan: Plan, row: usize, pool: &Pool) {
    let count = plan.count();
    let stream = count * row >= STREAM_BYTES && row >= 4 * LINE;
    if row <= TASK_BYTES {
        return pieces(pool, count, TASK_BYTES / row, |range, _| {
            plan.runs(range, |d, s, n, inner| {
                let at = |i: usize| {
                    let i = i as isize;
                    (d.wrapping_offset(i * inner.dst), s.wrapping_offset(i * inner.src))
                };
                // SAFETY: rows of the plan.
                unsafe {
                    if stream {
                        (0..n).map(at).for_each(|(d, s)| stream_row(d, s, row));
                    } else {
                        (0..n).map(at).for_each(|(d, s)| copy_row(d, s, row));
                    }
                }
            });
            end_if(stream);
        });
    }
    let parts = row.div_ceil(TASK_BYTES);
    pieces(pool, count * parts, 1, |range, _| {
        let (from, at) = (range.start % parts * TASK_BYTES, range.start / parts);
        plan.runs(at..at + 1, |d, s, _, _| {
            let (len, d, s) = (TASK_BYTES.min(row - from), d.wrapping_add(from), s.wrapping_add(from));
            // SAFETY: a part of a row of the plan.
            unsafe { if stream { stream_row(d, s, len) } else { copy_row(d, s, len) } };
        });
        end_if(stream);
    });
}

/// Elements along one axis.
///
/// # Safety
/// `n` elements from both addresses, a stride apart, may be written and read.
#[inline(always)]
unsafe fn elements<T: Copy>(dst: *mut u8, src: *const u8, n: usize, axis: Axis, stream: bool) {
    let wide = size_of::<T>() as isize;
    // SAFETY: the caller promises that the elements are there.
    unsafe {
        let read = |i: isize| src.offset(i * axis.src).cast::<T>().read_unaligned();
        let n = n as isize;
        if axis.dst != wide {
            return (0..n).for_each(|i| dst.offset(i * axis.dst).cast::<T>().write_unaligned(read(i)));
        }
        let write = |i: isize, v: T| dst.offset(i * wide).cast::<T>().write_unaligned(v);
        if axis.src == 0 {
            let v = read(0);
            if stream {
                return stream_value(dst, v, n as usize);
            }
            (0..n).for_each(|i| write(i, v));
        } else if axis.src == -wide {
            (0..n).for_each(|i| write(i, src.offset(-i * wide).cast::<T>().read_unaligned()));
        } else {
            (0..n).for_each(|i| write(i, read(i)));
        }
    }
}

/// Blocks of which the destination is contiguous along `da` and the source along `sa`, for every index of the plan.
///
/// # Safety
/// As [`run`], with the two axes.
unsafe fn transposed(level: Level, plan: Plan, unit: usize, da: Axis, sa: Axis, pool: &Pool) {
    // The last block takes the rest, so that every block is large enough for the vectors.
    // A block that is short along one side is longer along the other.
    let side = BLOCK_BYTES / unit;
    let (side_d, side_s) = (side * side / sa.n.min(side), side * side / da.n.min(side));
    let (blocks_d, blocks_s) = ((da.n / side_d).max(1), (sa.n / side_s).max(1));
    let part = |i: usize, side: usize, blocks: usize, n: usize| {
        let start = i * side;
        (start, if i + 1 == blocks { n - start } else { side })
    };
    let block = blocks_d * blocks_s;
    let stream = plan.count() * da.n * sa.n * unit >= STREAM_BYTES;
    let grain = (TASK_BYTES / (unit * (da.n / blocks_d) * (sa.n / blocks_s))).max(1);
    pieces(pool, plan.count() * block, grain, |range, _| {
        for task in range {
            let (at, b) = (task / block, task % block);
            let ((d0, nd), (s0, ns)) =
                (part(b / blocks_s, side_d, blocks_d, da.n), part(b % blocks_s, side_s, blocks_s, sa.n));
            plan.runs(at..at + 1, |d, s, _, _| {
                let dst = d.wrapping_offset(d0 as isize * da.dst + s0 as isize * sa.dst);
                let src = s.wrapping_offset(d0 as isize * da.src + s0 as isize * sa.src);
                // SAFETY: a block of the plan, `nd` columns by `ns` rows of the destination.
                unsafe { transpose::block(level, unit, dst, sa.dst, src, da.src, nd, ns, stream) };
            });
        }
        end_if(stream);
    });
}

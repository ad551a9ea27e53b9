//! Reading and writing rows by index, along the middle axis of a dense `[outer, n, inner]`.
//!
//! An index that is negative counts from the end; one outside of the axis reads 0 and writes nothing.

mod combine;

pub use combine::{Combine, Element, scatter, scatter_scratch};

use crate::copy::{at, copy_row, pieces};
use crate::mem::{Ptr, Scratch, ScratchSize};
use crate::pool::Pool;
use std::slice::from_raw_parts;

/// Bytes that a task moves.
const TASK_BYTES: usize = 64 << 10;
/// A row of at most so many bytes is moved sooner than it is decided who moves it.
const NARROW_BYTES: usize = 64;

/// The address of indices, dense.
#[derive(Clone, Copy, Debug)]
pub enum Indices {
    /// Signed, 32 bits.
    I32(*const i32),
    /// Signed, 64 bits.
    I64(*const i64),
    /// Unsigned, 32 bits.
    U32(*const u32),
    /// Unsigned, 64 bits.
    U64(*const u64),
}

/// Calls `$f(slice of indices)` for the type of the indices.
macro_rules! with_indices {
    ($indices:expr, $m:expr, |$slice:ident| $body:expr) => {
        match $indices {
            Indices::I32(p) => {
                let $slice = slice(p, $m);
                $body
            }
            Indices::I64(p) => {
                let $slice = slice(p, $m);
                $body
            }
            Indices::U32(p) => {
                let $slice = slice(p, $m);
                $body
            }
            Indices::U64(p) => {
                let $slice = slice(p, $m);
                $body
            }
        }
    };
}

use with_indices;

/// A slice, also of nothing at no address.
///
/// # Safety
/// `len` elements may be read as long as the slice is used.
unsafe fn slice<'a, T>(p: *const T, len: usize) -> &'a [T] {
    // SAFETY: as the caller promises.
    if len == 0 { &[] } else { unsafe { from_raw_parts(p, len) } }
}

trait Index: Copy + Sync {
    fn wide(self) -> i64;

    /// The place along an axis of size `n`, or `n` and above for none.
    #[inline(always)]
    fn place(self, n: usize) -> usize {
        let i = self.wide();
        // What is still negative becomes a place far outside.
        (if i < 0 { i + n as i64 } else { i }) as usize
    }
}
impl Index for i32 {
    #[inline(always)]
    fn wide(self) -> i64 {
        self.into()
    }
}
impl Index for i64 {
    #[inline(always)]
    fn wide(self) -> i64 {
        self
    }
}
impl Index for u32 {
    #[inline(always)]
    fn wide(self) -> i64 {
        self.into()
    }
}
impl Index for u64 {
    #[inline(always)]
    fn wide(self) -> i64 {
        i64::try_from(self).unwrap_or(i64::MAX)
    }
}

/// The arrays of a gather or scatter: `[outer, n, inner]` on one side, `[outer, m, inner]` on the other, and `m` indices.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// The product of the axes before the indexed one.
    pub outer: usize,
    /// The size of the indexed axis.
    pub n: usize,
    /// The product of the axes after it.
    pub inner: usize,
    /// The number of indices.
    pub m: usize,
}

/// Reads `y[o, j, i] = x[o, indices[j], i]`, elements of `elem_bytes`.
///
/// # Safety
/// `x` has `outer · n · inner` readable elements, `indices` has `m`, and `y` has `outer · m · inner` writable ones; `y`
/// overlaps neither. `x` and `y` need no alignment.
pub unsafe fn gather(elem_bytes: usize, r: Rows, x: *const u8, indices: Indices, y: *mut u8, pool: &Pool) {
    // SAFETY: as the caller promises.
    unsafe { with_indices!(indices, r.m, |all| gather_rows(elem_bytes * r.inner, r, x, all, y, pool)) }
}

/// # Safety
/// As [`gather`], with rows of `row` bytes.
unsafe fn gather_rows<I: Index>(row: usize, r: Rows, x: *const u8, indices: &[I], y: *mut u8, pool: &Pool) {
    let (x, y, n) = (Ptr(x.cast_mut()), Ptr(y), r.n);
    if row == 0 || r.m == 0 {
        return;
    }
    if row > TASK_BYTES {
        let parts = row.div_ceil(TASK_BYTES);
        return pieces(pool, r.outer * r.m * parts, 1, |range, _| {
            let (to, part) = (range.start / parts, range.start % parts * TASK_BYTES);
            let (o, j) = (to / r.m, to % r.m);
            let len = TASK_BYTES.min(row - part);
            let place = indices.get(j).map_or(n, |i| i.place(n));
            // SAFETY: a part of a row of both arrays.
            unsafe {
                read_row(
                    at(y, to * row + part),
                    at(x, (o * n).wrapping_add(place).wrapping_mul(row) + part),
                    place < n,
                    len,
                )
            };
        });
    }
    pieces(pool, r.outer * r.m, TASK_BYTES / row, |range, _| {
        let mut to = range.start;
        while to < range.end {
            let (o, j) = (to / r.m, to % r.m);
            let count = (r.m - j).min(range.end - to);
            let some = indices.get(j..j + count).unwrap_or_default();
            let (from, into) = (at(x, o * n * row).cast_const(), at(y, to * row));
            // SAFETY: rows of one of the `outer` slices of both arrays.
            unsafe {
                match row {
                    1 => gather_elements::<u8, I>(from, n, some, into),
                    2 => gather_elements::<u16, I>(from, n, some, into),
                    4 => gather_elements::<u32, I>(from, n, some, into),
                    8 => gather_elements::<u64, I>(from, n, some, into),
                    16 => gather_elements::<u128, I>(from, n, some, into),
                    _ => {
                        for (k, i) in some.iter().enumerate() {
                            let place = i.place(n);
                            read_row(
                                into.add(k * row),
                                from.wrapping_add(place.wrapping_mul(row)),
                                place < n,
                                row,
                            );
                        }
                    }
                }
            }
            to += count;
        }
    });
}

/// # Safety
/// `to` has `len` writable bytes; `from` has as many readable ones if there is such a row.
#[inline(always)]
unsafe fn read_row(to: *mut u8, from: *const u8, is_there: bool, len: usize) {
    // SAFETY: as the caller promises.
    unsafe { if is_there { copy_row(to, from, len) } else { to.write_bytes(0, len) } }
}

/// # Safety
/// `x` has `n` readable elements, and `y` a writable one for each index.
#[inline(always)]
unsafe fn gather_elements<T: Copy, I: Index>(x: *const u8, n: usize, indices: &[I], y: *mut u8) {
    let (x, y) = (x.cast::<T>(), y.cast::<T>());
    for (j, i) in indices.iter().enumerate() {
        let place = i.place(n);
        // SAFETY: a place within the axis; an element of all zero bytes is that of any width of bits.
        unsafe {
            let v = if place < n { x.add(place).read_unaligned() } else { std::mem::zeroed() };
            y.add(j).write_unaligned(v);
        }
    }
}

/// The scratch that [`scatter_set`] needs.
pub fn scatter_set_scratch(r: Rows) -> ScratchSize {
    ScratchSize { each: 0, shared: r.n * size_of::<usize>() }
}

/// Writes `y[o, indices[j], i] = updates[o, j, i]`, elements of `elem_bytes`; of several updates for a place the last one
/// stands. What no index names stays.
///
/// # Safety
/// `y` has `outer · n · inner` writable elements, `indices` has `m` readable ones and `updates` `outer · m · inner`; `y`
/// overlaps neither. `y` and `updates` need no alignment.
#[allow(clippy::too_many_arguments)]
pub unsafe fn scatter_set(
    elem_bytes: usize,
    r: Rows,
    indices: Indices,
    updates: *const u8,
    y: *mut u8,
    pool: &Pool,
    scratch: &Scratch,
) {
    // SAFETY: as the caller promises.
    unsafe {
        with_indices!(indices, r.m, |all| set_rows(elem_bytes * r.inner, r, all, updates, y, pool, scratch))
    }
}

/// # Safety
/// As [`scatter_set`], with rows of `row` bytes.
unsafe fn set_rows<I: Index>(
    row: usize,
    r: Rows,
    indices: &[I],
    updates: *const u8,
    y: *mut u8,
    pool: &Pool,
    scratch: &Scratch,
) {
    let (updates, y, n) = (Ptr(updates.cast_mut()), Ptr(y), r.n);
    if row == 0 {
        return;
    }
    if row <= NARROW_BYTES {
        return pieces(pool, r.outer, 1, |range, _| {
            let (from, to) = (at(updates, range.start * r.m * row), at(y, range.start * n * row));
            // SAFETY: one of the `outer` slices of both arrays.
            unsafe {
                match row {
                    1 => set_elements::<u8, I>(from, n, indices, to),
                    2 => set_elements::<u16, I>(from, n, indices, to),
                    4 => set_elements::<u32, I>(from, n, indices, to),
                    8 => set_elements::<u64, I>(from, n, indices, to),
                    16 => set_elements::<u128, I>(from, n, indices, to),
                    _ => {
                        for (j, place) in
                            indices.iter().map(|i| i.place(n)).enumerate().filter(|(_, p)| *p < n)
                        {
                            copy_row(to.add(place * row), from.add(j * row), row);
                        }
                    }
                }
            }
        });
    }
    // Which update stands at a place: only places that an index names are written, and only those are read.
    let last = Ptr(scratch.shared::<usize>(n));
    for (j, i) in indices.iter().enumerate() {
        let place = i.place(n);
        if place < n {
            // SAFETY: a place within the axis.
            unsafe { at(last, place).write(j) };
        }
    }
    let parts = row.div_ceil(TASK_BYTES);
    pieces(pool, r.outer * r.m * parts, TASK_BYTES / row, |range, _| {
        for task in range {
            let (from, part) = (task / parts, task % parts * TASK_BYTES);
            let (o, j) = (from / r.m, from % r.m);
            let place = indices.get(j).map_or(n, |i| i.place(n));
            // SAFETY: the place was written above; a part of a row of both arrays, written by this task alone.
            unsafe {
                if place < n && at(last, place).read() == j {
                    let to = at(y, (o * n + place) * row + part);
                    copy_row(to, at(updates, from * row + part), TASK_BYTES.min(row - part));
                }
            }
        }
    });
}

/// # Safety
/// `y` has `n` writable elements, and `updates` a readable one for each index.
#[inline(always)]
unsafe fn set_elements<T: Copy, I: Index>(updates: *const u8, n: usize, indices: &[I], y: *mut u8) {
    let (updates, y) = (updates.cast::<T>(), y.cast::<T>());
    for (j, place) in indices.iter().map(|i| i.place(n)).enumerate() {
        if place < n {
            // SAFETY: a place within the axis.
            unsafe { y.add(place).write_unaligned(updates.add(j).read_unaligned()) };
        }
    }
}

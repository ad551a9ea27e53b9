//! Reading and writing rows by index, along the middle axis of a dense `[outer, n, inner]`.
//!
//! An index that is negative counts from the end; one outside of the axis reads 0 and writes nothing.

use crate::copy::{at, copy_row, pieces};
use crate::each_level;
use crate::level::Level;
use crate::mem::{Ptr, Scratch, ScratchSize};
use crate::pool::Pool;
use std::slice::from_raw_parts;

/// Bytes that a task moves.
const TASK_BYTES: usize = 64 << 10;
/// Columns of a row that are combined at once, so that their totals stay in the L1 cache.
const COLUMNS: usize = 256;

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

/// How an update is combined with what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combine {
    /// The sum.
    Add,
    /// The larger one; NaN wins.
    Max,
    /// The smaller one; NaN wins.
    Min,
    /// The product.
    Mul,
}

/// An element that updates can be combined with: f32, f64, i64. Totals of f32 are kept in f64 while they are made.
pub trait Element: Copy + Send + Sync {
    #[doc(hidden)]
    /// # Safety
    /// As [`combine_row`].
    unsafe fn combine(level: Level, how: Combine, row: Row<Self>);
}

/// Updates for one row of the destination.
#[doc(hidden)]
#[derive(Debug)]
pub struct Row<T> {
    y: *mut T,
    width: usize,
    /// The first of all updates; they are rows of `inner`, and those at `order` are for this row.
    updates: *const T,
    inner: usize,
    order: *const usize,
    count: usize,
}

trait Op<T> {
    type Acc: Copy;
    fn lift(v: T) -> Self::Acc;
    fn join(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn lower(v: Self::Acc) -> T;
}

struct Add;
struct Mul;
struct Max;
struct Min;

#[inline(always)]
fn larger<T: PartialOrd + Copy>(a: T, b: T) -> T {
    #[allow(clippy::eq_op)]
    if (b > a) | (b != b) { b } else { a }
}

#[inline(always)]
fn smaller<T: PartialOrd + Copy>(a: T, b: T) -> T {
    #[allow(clippy::eq_op)]
    if (b < a) | (b != b) { b } else { a }
}

macro_rules! elements {
    ($($t:ident: $($op:ident in $acc:ty: $join:expr),*;)*) => {$(
        $(impl Op<$t> for $op {
            type Acc = $acc;
            #[inline(always)]
            fn lift(v: $t) -> $acc {
                v as $acc
            }
            #[inline(always)]
            fn join(a: $acc, b: $acc) -> $acc {
                $join(a, b)
            }
            #[inline(always)]
            fn lower(v: $acc) -> $t {
                v as $t
            }
        })*
        impl Element for $t {
            unsafe fn combine(level: Level, how: Combine, row: Row<$t>) {
                match how {
                    $(Combine::$op => each_level!(level, _FMA, combine_row::<$t, $op> => (row: Row<$t>)),)*
                }
            }
        }
    )*};
}
elements! {
    f32: Add in f64: |a, b| a + b, Mul in f64: |a, b| a * b, Max in f32: larger, Min in f32: smaller;
    f64: Add in f64: |a, b| a + b, Mul in f64: |a, b| a * b, Max in f64: larger, Min in f64: smaller;
    i64: Add in i64: i64::wrapping_add, Mul in i64: i64::wrapping_mul, Max in i64: i64::max, Min in i64: i64::min;
}

/// # Safety
/// `y` has `width` writable elements, and the rows of `updates` at `order` as many readable ones.
#[inline(always)]
unsafe fn combine_row<T: Copy, O: Op<T>>(r: Row<T>) {
    // SAFETY: as the caller promises.
    unsafe {
        let order = from_raw_parts(r.order, r.count);
        for first in (0..r.width).step_by(COLUMNS) {
            let (y, updates) = (r.y.add(first), r.updates.wrapping_add(first));
            match COLUMNS.min(r.width - first) {
                COLUMNS => combine_columns::<T, O>(y, COLUMNS, updates, r.inner, order),
                width => combine_columns::<T, O>(y, width, updates, r.inner, order),
            }
        }
    }
}

/// # Safety
/// As [`combine_row`], at most [`COLUMNS`] of it.
#[inline(always)]
unsafe fn combine_columns<T: Copy, O: Op<T>>(
    y: *mut T,
    width: usize,
    updates: *const T,
    inner: usize,
    order: &[usize],
) {
    // SAFETY: as the caller promises.
    unsafe {
        let y = std::slice::from_raw_parts_mut(y, width);
        let row = |j: usize| from_raw_parts(updates.wrapping_add(j * inner), width);
        if let [j] = order {
            for (y, u) in y.iter_mut().zip(row(*j)) {
                *y = O::lower(O::join(O::lift(*y), O::lift(*u)));
            }
            return;
        }
        let mut totals = [O::lift(y[0]); COLUMNS];
        for (t, y) in totals.iter_mut().zip(&*y) {
            *t = O::lift(*y);
        }
        for j in order {
            for (t, u) in totals.iter_mut().zip(row(*j)) {
                *t = O::join(*t, O::lift(*u));
            }
        }
        for (t, y) in totals.iter().zip(y) {
            *y = O::lower(*t);
        }
    }
}

/// The scratch that [`scatter`] needs.
pub fn scatter_scratch(r: Rows) -> ScratchSize {
    ScratchSize { each: 0, shared: (r.n + 4 * r.m + 1) * size_of::<usize>() }
}

/// Combines `y[o, indices[j], i]` with `updates[o, j, i]`, in the order of the indices.
///
/// # Safety
/// `y` has `outer · n · inner` writable elements, `indices` has `m` readable ones and `updates` `outer · m · inner`, all
/// aligned; `y` overlaps neither.
#[allow(clippy::too_many_arguments)]
pub unsafe fn scatter<T: Element>(
    level: Level,
    how: Combine,
    r: Rows,
    indices: Indices,
    updates: *const T,
    y: *mut T,
    pool: &Pool,
    scratch: &Scratch,
) {
    let Rows { outer, n, inner, m } = r;
    if outer * n * inner * m == 0 {
        return;
    }
    let memory = Ptr(scratch.shared::<usize>(n + 4 * m + 1));
    // SAFETY: the pieces of the scratch are disjoint, as long as asked for; the rest as the caller promises.
    let groups = unsafe {
        let groups = Groups {
            number: at(memory, 0),
            place: at(memory, n),
            of: at(memory, n + m),
            order: at(memory, n + 2 * m),
            end: at(memory, n + 3 * m),
            count: 0,
        };
        with_indices!(indices, m, |all| groups.sort(all, n))
    };
    let (place, end, order) = (Ptr(groups.place), Ptr(groups.end), Ptr(groups.order));
    let (updates, y) = (Ptr(updates.cast_mut()), Ptr(y));
    let count = groups.count;
    let tiles = inner.div_ceil(4 * COLUMNS);
    let work = (m / count.max(1) + 1) * inner.min(4 * COLUMNS) * size_of::<T>();
    pieces(pool, outer * count * tiles, TASK_BYTES / work, |range, _| {
        for task in range {
            let (tile, row) = (task % tiles, task / tiles);
            let (g, o) = (row % count, row / count);
            let column = tile * 4 * COLUMNS;
            // SAFETY: a group's place, and the indices in it; each row of `y` belongs to one group, each tile to one task.
            unsafe {
                let first = if g == 0 { 0 } else { at(end, g - 1).read() };
                T::combine(
                    level,
                    how,
                    Row {
                        y: at(y, (o * n + at(place, g).read()) * inner + column),
                        width: (4 * COLUMNS).min(inner - column),
                        updates: at(updates, o * m * inner + column),
                        inner,
                        order: at(order, first),
                        count: at(end, g).read() - first,
                    },
                );
            }
        }
    });
}

/// The indices grouped by place, each group in their order.
struct Groups {
    /// Of every place, the number of its group; meaningless where no index points.
    number: *mut usize,
    /// Of every group, the place.
    place: *mut usize,
    /// Of every index, its group.
    of: *mut usize,
    /// The indices, group by group.
    order: *mut usize,
    /// Of every group, where it ends in the order.
    end: *mut usize,
    count: usize,
}

impl Groups {
    /// # Safety
    /// There is memory for `n` places and as many groups as indices, and one more.
    unsafe fn sort<I: Index>(mut self, indices: &[I], n: usize) -> Groups {
        let none = usize::MAX;
        // SAFETY: groups are fewer than indices, and places below `n`.
        unsafe {
            for (j, i) in indices.iter().enumerate() {
                let place = i.place(n);
                if place >= n {
                    self.of.add(j).write(none);
                    continue;
                }
                // A number is true only if the group that it names says so: whatever the memory held needs no clearing.
                let mut g = self.number.add(place).read();
                if g >= self.count || self.place.add(g).read() != place {
                    g = self.count;
                    self.count += 1;
                    self.number.add(place).write(g);
                    self.place.add(g).write(place);
                    self.end.add(g).write(0);
                }
                self.of.add(j).write(g);
                *self.end.add(g) += 1;
            }
            let mut start = 0;
            for g in 0..self.count {
                start += self.end.add(g).replace(start);
            }
            // Each start moves on to its end.
            for j in 0..indices.len() {
                let g = self.of.add(j).read();
                if g != none {
                    let to = self.end.add(g);
                    self.order.add(*to).write(j);
                    *to += 1;
                }
            }
        }
        self
    }
}

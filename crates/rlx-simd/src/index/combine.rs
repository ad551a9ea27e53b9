//! Scatters that combine: updates for one place are joined in the order of their indices.
//!
//! Wide rows are grouped by place, and each group makes its row. Narrow rows are sorted into buckets, ranges of places whose
//! totals fit into a core's cache, and each bucket is worked through in order.

use super::{Index, Indices, NARROW_BYTES, Rows, TASK_BYTES, slice, with_indices};
use crate::copy::{at, pieces};
use crate::each_level;
use crate::level::Level;
use crate::mem::{Ptr, Scratch, ScratchSize};
use crate::pool::Pool;
use std::slice::from_raw_parts;

/// Columns of a row that are combined at once, so that their totals stay in the L1 cache.
const COLUMNS: usize = 256;
/// Bytes of the totals of a bucket.
const BUCKET_BYTES: usize = 128 << 10;

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
    #[doc(hidden)]
    /// # Safety
    /// As [`combine_bucket`].
    unsafe fn combine_bucket(how: Combine, bucket: Bucket<Self>, totals: *mut u64);
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
            unsafe fn combine_bucket(how: Combine, bucket: Bucket<$t>, totals: *mut u64) {
                match how {
                    // SAFETY: as the caller promises; a total has at most 8 bytes.
                    $(Combine::$op => unsafe { combine_bucket::<$t, $op>(bucket, totals.cast()) },)*
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
        let Some(first) = y.first() else { return };
        let mut totals = [O::lift(*first); COLUMNS];
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

/// Updates for a range of places.
#[doc(hidden)]
#[derive(Debug)]
pub struct Bucket<T> {
    /// The first of the places.
    y: *mut T,
    /// How many places there are.
    places: usize,
    inner: usize,
    updates: *const T,
    /// The updates in order: place within the bucket above, index below.
    entries: *const u64,
    count: usize,
}

/// # Safety
/// The places and updates that the entries name are there, rows of `inner`; `totals` has room for all places.
unsafe fn combine_bucket<T: Copy, O: Op<T>>(b: Bucket<T>, totals: *mut O::Acc) {
    // SAFETY: as the caller promises. The commonest widths are known to the compiler.
    unsafe {
        match b.inner {
            1 => combine_entries::<T, O>(&b, totals, 1),
            2 => combine_entries::<T, O>(&b, totals, 2),
            4 => combine_entries::<T, O>(&b, totals, 4),
            inner => combine_entries::<T, O>(&b, totals, inner),
        }
    }
}

/// # Safety
/// As [`combine_bucket`].
#[inline(always)]
unsafe fn combine_entries<T: Copy, O: Op<T>>(b: &Bucket<T>, totals: *mut O::Acc, inner: usize) {
    // SAFETY: as the caller promises.
    unsafe {
        let entries = from_raw_parts(b.entries, b.count);
        let touched = || {
            let first = |e: &u64| (e >> 32) as usize * inner;
            entries.iter().flat_map(move |e| first(e)..first(e) + inner)
        };
        let load = |i: usize| totals.add(i).write(O::lift(*b.y.add(i)));
        let store = |i: usize| *b.y.add(i) = O::lower(totals.add(i).read());
        // Few updates are followed to their places rather than all places loaded.
        let few = b.count < b.places;
        if few {
            touched().for_each(load)
        } else {
            (0..b.places * inner).for_each(load)
        }
        for e in entries {
            let (place, j) = ((e >> 32) as usize * inner, *e as u32 as usize * inner);
            for c in 0..inner {
                let t = totals.add(place + c);
                t.write(O::join(t.read(), O::lift(*b.updates.add(j + c))));
            }
        }
        if few { touched().for_each(store) } else { (0..b.places * inner).for_each(store) }
    }
}

/// How the places are cut into buckets: how many places each has, and how many buckets there are; `None` for wide rows.
fn buckets<T>(r: Rows) -> Option<(usize, usize)> {
    let short = |n: usize| u32::try_from(n).is_ok();
    if r.inner * size_of::<T>() > NARROW_BYTES || !short(r.n) || !short(r.m) {
        return None;
    }
    let places = (BUCKET_BYTES / (r.inner.max(1) * size_of::<u64>())).next_power_of_two();
    Some((places, r.n.div_ceil(places)))
}

/// The scratch that [`scatter`] needs.
pub fn scatter_scratch<T: Element>(r: Rows) -> ScratchSize {
    let (each, shared) = match buckets::<T>(r) {
        Some((places, count)) => (places.min(r.n) * r.inner, r.m + count + 1),
        None => (0, r.n + 4 * r.m + 1),
    };
    ScratchSize { each: each * size_of::<u64>(), shared: shared * size_of::<u64>() }
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
    if [outer, n, inner, m].contains(&0) {
        return;
    }
    if let Some((places, count)) = buckets::<T>(r) {
        let memory = Ptr(scratch.shared::<u64>(m + count + 1));
        let (ends, entries) = (memory, Ptr(at(memory, count + 1)));
        // SAFETY: as the caller promises; the scratch has room for both.
        unsafe { with_indices!(indices, m, |all| sort_into_buckets(all, n, places, count, ends, entries)) };
        let (updates, y) = (Ptr(updates.cast_mut()), Ptr(y));
        return pieces(pool, outer * count, 1, |range, worker| {
            let (o, b) = (range.start / count, range.start % count);
            let totals = scratch.each::<u64>(worker, places.min(n) * inner);
            // SAFETY: the places of a bucket belong to one task, and the scratch to the worker.
            unsafe {
                let (first, end) = (at(ends, b).read() as usize, at(ends, b + 1).read() as usize);
                let bucket = Bucket {
                    y: at(y, (o * n + b * places) * inner),
                    places: places.min(n - b * places),
                    inner,
                    updates: at(updates, o * m * inner),
                    entries: at(entries, first),
                    count: end - first,
                };
                if end > first {
                    T::combine_bucket(how, bucket, totals);
                }
            }
        });
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

/// Writes the entries of the indices bucket by bucket; bucket `b` is then from `ends[b]` to `ends[b + 1]`.
///
/// # Safety
/// `ends` has room for `count + 1`, and `entries` for as many as there are indices.
unsafe fn sort_into_buckets<I: Index>(
    indices: &[I],
    n: usize,
    places: usize,
    count: usize,
    ends: Ptr<u64>,
    entries: Ptr<u64>,
) {
    let shift = places.trailing_zeros();
    let found = || indices.iter().map(|i| i.place(n)).enumerate().filter(|(_, place)| *place < n);
    // SAFETY: a place below `n` is in one of the buckets, and there are no more entries than indices.
    unsafe {
        ends.0.write_bytes(0, count + 1);
        found().for_each(|(_, place)| *at(ends, (place >> shift) + 1) += 1);
        // From how many there are to where each begins; writing moves that on to the end, which is where the next begins.
        let mut start = 0;
        for b in 0..=count {
            start += at(ends, b).read();
            at(ends, b).write(start);
        }
        for (j, place) in found() {
            let next = at(ends, place >> shift);
            let within = place & (places - 1);
            at(entries, *next as usize).write((within as u64) << 32 | j as u64);
            *next += 1;
        }
        for b in (1..=count).rev() {
            at(ends, b).write(at(ends, b - 1).read());
        }
        at(ends, 0).write(0);
    }
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

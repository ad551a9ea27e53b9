//! Sorting along the middle axis of a dense `[outer, n, inner]`, and the first few of the sorted.
//!
//! Every element is packed into one integer: its rank among all values above, its position below. Packed elements are
//! distinct, so that any way to sort them gives the one stable order.

use crate::copy::{at, pieces};
use crate::each_level;
use crate::level::Level;
use crate::mem::{Ptr, Scratch, ScratchSize};
use crate::pool::Pool;
use std::slice::{from_raw_parts, from_raw_parts_mut};

/// Elements of a line that one task searches for the first ones.
const CHUNK: usize = 32 << 10;
/// Elements of a line that one task sorts: a multiple of what a merging task writes.
const RUN: usize = 64 << 10;
/// Elements that a merging task writes.
const MERGE: usize = 16 << 10;
/// With so many lines or more there is enough to do without cutting them.
const MANY_LINES: usize = 8;
/// Elements that a task sorts, at least.
const TASK_LEN: usize = 2 << 10;
/// From so many elements on, ranks are sorted digit by digit.
const RADIX_LEN: usize = 512;
/// Elements that are compared with the threshold at once.
const LANES: usize = 32;

/// What is sorted, and how much of it is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// The product of the axes before the sorted one.
    pub outer: usize,
    /// The size of the sorted axis.
    pub n: usize,
    /// The product of the axes after it.
    pub inner: usize,
    /// How many of each sorted line are wanted, from its beginning: at most `n`.
    pub keep: usize,
    /// The largest first; NaN is larger than every number.
    pub descending: bool,
}

impl Order {
    fn lines(&self) -> usize {
        self.outer * self.inner
    }

    /// Whether the first ones are picked out before anything is sorted.
    fn picks(&self) -> bool {
        self.inner == 1 && self.keep <= self.n / 8 && self.keep <= CHUNK / 8
    }

    fn chunks(&self) -> usize {
        self.n.div_ceil(CHUNK)
    }

    /// Whether chunks of a line are sorted side by side and then merged.
    fn merges(&self) -> bool {
        self.n > RUN && self.lines() < MANY_LINES
    }

    /// Elements of a buffer from which the first ones are picked.
    fn room(&self) -> usize {
        (2 * self.keep).max(self.keep + 2 * LANES) + LANES
    }
}

/// A rank above and a position below.
trait Packed: Copy + Ord + Send + Sync {
    /// Bytes of a rank.
    const DIGITS: usize;
    fn new(rank: u64, position: usize) -> Self;
    fn position(self) -> usize;
    fn rank(self) -> u64;
}
impl Packed for u64 {
    const DIGITS: usize = 4;
    #[inline(always)]
    fn new(rank: u64, position: usize) -> u64 {
        rank << 32 | position as u64
    }
    #[inline(always)]
    fn position(self) -> usize {
        self as u32 as usize
    }
    #[inline(always)]
    fn rank(self) -> u64 {
        self >> 32
    }
}
impl Packed for u128 {
    const DIGITS: usize = 8;
    #[inline(always)]
    fn new(rank: u64, position: usize) -> u128 {
        (rank as u128) << 64 | position as u128
    }
    #[inline(always)]
    fn position(self) -> usize {
        self as u64 as usize
    }
    #[inline(always)]
    fn rank(self) -> u64 {
        (self >> 64) as u64
    }
}

/// An element that can be sorted: f32, f64, i64.
pub trait Element: Copy + Send + Sync {
    /// Whether ranks have 32 bits.
    #[doc(hidden)]
    const NARROW: bool;
    /// The rank in the order, of [`Element::NARROW`] bits; equal for elements that count as equal.
    #[doc(hidden)]
    fn rank(self, descending: bool) -> u64;
    /// Whether any element of the block ranks before the threshold.
    #[doc(hidden)]
    fn any_before(level: Level, block: &[Self; 32], descending: bool, threshold: u64) -> bool;
}

macro_rules! elements {
    ($($t:ident as $bits:ident, $narrow:literal: |$v:ident| $rank:expr;)*) => {$(
        impl Element for $t {
            const NARROW: bool = $narrow;
            #[inline(always)]
            fn rank(self, descending: bool) -> u64 {
                let $v = self;
                let rank: $bits = $rank;
                (if descending { !rank } else { rank }).into()
            }
            #[inline(always)]
            fn any_before(level: Level, block: &[$t; LANES], descending: bool, threshold: u64) -> bool {
                #[inline(always)]
                fn any(block: &[$t; LANES], descending: bool, threshold: u64) -> bool {
                    let (flip, threshold) = (if descending { $bits::MAX } else { 0 }, threshold as $bits);
                    block.iter().fold(false, |any, $v| {
                        let $v = *$v;
                        let rank: $bits = $rank;
                        any | ((rank ^ flip) < threshold)
                    })
                }
                each_level!(level, _FMA, any => (block: &[$t; LANES], descending: bool, threshold: u64) -> bool)
            }
        }
    )*};
}
elements! {
    f32 as u32, true: |v| {
        // Both zeros rank alike, and all NaN.
        let bits = (v + 0.0).to_bits();
        let rank = bits ^ (((bits as i32 >> 31) as u32) | 1 << 31);
        if v.is_nan() { u32::MAX } else { rank }
    };
    f64 as u64, false: |v| {
        let bits = (v + 0.0).to_bits();
        let rank = bits ^ (((bits as i64 >> 63) as u64) | 1 << 63);
        if v.is_nan() { u64::MAX } else { rank }
    };
    i64 as u64, false: |v| v as u64 ^ 1 << 63;
}

fn is_short<T: Element>(o: &Order) -> bool {
    T::NARROW && u32::try_from(o.n).is_ok()
}

/// The scratch that [`sort`] needs.
pub fn sort_scratch<T: Element>(o: Order) -> ScratchSize {
    let wide = if is_short::<T>(&o) { size_of::<u64>() } else { size_of::<u128>() };
    let (each, shared) = if o.picks() {
        (o.room(), if o.chunks() > 1 { o.lines() * o.chunks() * o.keep } else { 0 })
    } else if o.merges() {
        (0, 2 * o.n)
    } else {
        (2 * o.n, 0)
    };
    ScratchSize { each: each * wide, shared: shared * wide }
}

/// Writes the first `keep` elements of each line of `x[outer, n, inner]` in order to `values[outer, keep, inner]`, and where
/// they stood to `indices` of the same shape; either may be null if it is not wanted. Equal elements keep their order, in
/// both directions.
///
/// # Safety
/// `x` has `outer · n · inner` readable elements; `values` and `indices`, where not null, have `outer · keep · inner`
/// writable ones; all are aligned, and none overlaps another.
#[allow(clippy::too_many_arguments)]
pub unsafe fn sort<T: Element>(
    level: Level,
    o: Order,
    x: *const T,
    values: *mut T,
    indices: *mut i64,
    pool: &Pool,
    scratch: &Scratch,
) {
    let o = Order { keep: o.keep.min(o.n), ..o };
    if o.lines() * o.keep == 0 {
        return;
    }
    let s = Space { o, x: Ptr(x.cast_mut()), values: Ptr(values), indices: Ptr(indices) };
    // SAFETY: as the caller promises; positions fit.
    unsafe {
        match is_short::<T>(&o) {
            true => run::<T, u64>(level, s, pool, scratch),
            false => run::<T, u128>(level, s, pool, scratch),
        }
    }
}

#[derive(Clone, Copy)]
struct Space<T> {
    o: Order,
    x: Ptr<T>,
    values: Ptr<T>,
    indices: Ptr<i64>,
}

impl<T: Element> Space<T> {
    /// The first element of a line; the next ones are `inner` apart.
    fn line(&self, line: usize) -> *const T {
        at(self.x, line / self.o.inner * self.o.n * self.o.inner + line % self.o.inner)
    }

    /// Packs the elements of a line from a position on.
    ///
    /// # Safety
    /// The positions are within the line.
    unsafe fn pack<P: Packed>(&self, line: usize, first: usize, to: &mut [P]) {
        let (from, inner) = (self.line(line), self.o.inner);
        for (position, to) in (first..).zip(to) {
            // SAFETY: as the caller promises.
            let v = unsafe { *from.add(position * inner) };
            *to = P::new(v.rank(self.o.descending), position);
        }
    }

    /// Writes the results of a line from a position on.
    ///
    /// # Safety
    /// The positions are within those kept, and each is written by one task.
    unsafe fn write<P: Packed>(&self, line: usize, first: usize, sorted: &[P]) {
        let Order { inner, keep, .. } = self.o;
        let (from, first) = (self.line(line), line / inner * keep * inner + line % inner + first * inner);
        let (values, indices) = (!self.values.0.is_null(), !self.indices.0.is_null());
        for (k, p) in sorted.iter().enumerate() {
            let to = first + k * inner;
            // SAFETY: as the caller promises.
            unsafe {
                if values {
                    *at(self.values, to) = *from.add(p.position() * inner);
                }
                if indices {
                    *at(self.indices, to) = p.position() as i64;
                }
            }
        }
    }
}

/// The first `keep` in order. The elements come in the order of their positions, and `spare` is as long as they.
fn sort_first<'a, P: Packed>(all: &'a mut [P], spare: &'a mut [P], keep: usize) -> &'a [P] {
    let sorted = if keep < all.len() / 4 {
        pick_first(all, keep).sort_unstable();
        all
    } else {
        sort_all(all, spare)
    };
    sorted.get(..keep).unwrap_or_default()
}

/// The first `keep`, in no order.
fn pick_first<P: Packed>(all: &mut [P], keep: usize) -> &mut [P] {
    if (1..all.len()).contains(&keep) {
        all.select_nth_unstable(keep - 1);
    }
    let keep = keep.min(all.len());
    all.get_mut(..keep).unwrap_or_default()
}

/// All elements in order, in one of the two slices. They come in the order of their positions.
fn sort_all<'a, P: Packed>(mut all: &'a mut [P], mut spare: &'a mut [P]) -> &'a mut [P] {
    let n = all.len();
    if n < RADIX_LEN || u32::try_from(n).is_err() {
        all.sort_unstable();
        return all;
    }
    let digit = |p: P, d: usize| (p.rank() >> (8 * d)) as u8;
    let mut counts = [[0u32; 256]; 8];
    for p in all.iter() {
        for (d, counts) in counts.iter_mut().enumerate().take(P::DIGITS) {
            if let Some(count) = counts.get_mut(usize::from(digit(*p, d))) {
                *count += 1;
            }
        }
    }
    // From the least digit up, each time keeping the order of those before.
    for (d, counts) in counts.iter_mut().enumerate().take(P::DIGITS) {
        if counts.contains(&(n as u32)) {
            continue;
        }
        let mut start = 0;
        for count in counts.iter_mut() {
            start += std::mem::replace(count, start);
        }
        for p in all.iter() {
            if let Some(next) = counts.get_mut(usize::from(digit(*p, d)))
                && let Some(to) = spare.get_mut(*next as usize)
            {
                *to = *p;
                *next += 1;
            }
        }
        std::mem::swap(&mut all, &mut spare);
    }
    all
}

/// # Safety
/// As [`sort`], and positions fit into `P`.
unsafe fn run<T: Element, P: Packed>(level: Level, s: Space<T>, pool: &Pool, scratch: &Scratch) {
    let o = s.o;
    if o.picks() {
        // SAFETY: as the caller promises.
        return unsafe { pick::<T, P>(level, s, pool, scratch) };
    }
    if o.merges() {
        for line in 0..o.lines() {
            // SAFETY: as above.
            unsafe { merge_sort::<T, P>(s, line, pool, scratch) };
        }
        return;
    }
    pieces(pool, o.lines(), TASK_LEN / o.n, |range, worker| {
        for line in range {
            // SAFETY: the scratch is the worker's, and the line the task's.
            unsafe {
                let (all, spare) =
                    from_raw_parts_mut(scratch.each::<P>(worker, 2 * o.n), 2 * o.n).split_at_mut(o.n);
                s.pack(line, 0, all);
                s.write(line, 0, sort_first(all, spare, o.keep));
            }
        }
    });
}

/// Sorts a long line: chunks side by side, then pairs of chunks merged until one is left.
///
/// # Safety
/// As [`run`].
unsafe fn merge_sort<T: Element, P: Packed>(s: Space<T>, line: usize, pool: &Pool, scratch: &Scratch) {
    let n = s.o.n;
    let memory = Ptr(scratch.shared::<P>(2 * n));
    let (mut from, mut to) = (memory, Ptr(at(memory, n)));
    pieces(pool, n, RUN, |range, _| {
        // SAFETY: the chunk is the task's.
        unsafe {
            let chunk = from_raw_parts_mut(at(from, range.start), range.len());
            s.pack(line, range.start, chunk);
            let sorted = sort_all(chunk, from_raw_parts_mut(at(to, range.start), range.len()));
            let home = at(from, range.start);
            if sorted.as_ptr() != home {
                home.copy_from_nonoverlapping(sorted.as_ptr(), sorted.len());
            }
        }
    });
    let mut length = RUN;
    while length < n {
        pieces(pool, n, MERGE, |range, _| {
            // The pair of runs that this piece of the result comes from: a pair is a multiple of the piece.
            let pair = range.start / (2 * length) * 2 * length;
            let (middle, end) = ((pair + length).min(n), (pair + 2 * length).min(n));
            // SAFETY: all of `from` is read only, and the range of `to` is the task's.
            unsafe {
                let a = from_raw_parts(at(from, pair), middle - pair);
                let b = from_raw_parts(at(from, middle), end - middle);
                merge(a, b, range.start - pair, from_raw_parts_mut(at(to, range.start), range.len()));
            }
        });
        (from, to) = (to, from);
        length *= 2;
    }
    pieces(pool, s.o.keep, MERGE, |range, _| {
        // SAFETY: sorted above; the results in the range are the task's.
        unsafe { s.write(line, range.start, from_raw_parts(at(from, range.start), range.len())) };
    });
}

/// Writes that part of the merged runs that begins at `skip`.
fn merge<P: Packed>(a: &[P], b: &[P], skip: usize, to: &mut [P]) {
    // How many of the first `skip` come from `a`: the least number so that what `b` gives lies before the rest of `a`.
    let (mut low, mut high) = (skip.saturating_sub(b.len()), skip.min(a.len()));
    while low < high {
        let i = low.midpoint(high);
        match (a.get(i), b.get(skip - i - 1)) {
            (Some(a), Some(b)) if a < b => low = i + 1,
            _ => high = i,
        }
    }
    let (a, b) = (a.get(low..).unwrap_or_default(), b.get(skip - low..).unwrap_or_default());
    let (mut i, mut j, mut k) = (0, 0, 0);
    while i < a.len() && j < b.len() && k < to.len() {
        // So many steps can be made before a run or the room ends: without a branch, which no processor could foresee.
        for _ in 0..(a.len() - i).min(b.len() - j).min(to.len() - k) {
            // SAFETY: each step moves one of the two on by one, and the room by one.
            unsafe {
                let (x, y) = (*a.get_unchecked(i), *b.get_unchecked(j));
                let first = x < y;
                *to.get_unchecked_mut(k) = if first { x } else { y };
                (i, j, k) = (i + usize::from(first), j + usize::from(!first), k + 1);
            }
        }
    }
    let rest = a.get(i..).unwrap_or_default().iter().chain(b.get(j..).unwrap_or_default());
    to.get_mut(k..).unwrap_or_default().iter_mut().zip(rest).for_each(|(to, v)| *to = *v);
}

/// Picks the first few of each line without sorting it: of each chunk, then of what the chunks gave.
///
/// # Safety
/// As [`run`], with contiguous lines.
unsafe fn pick<T: Element, P: Packed>(level: Level, s: Space<T>, pool: &Pool, scratch: &Scratch) {
    let (o, chunks) = (s.o, s.o.chunks());
    let found = if chunks > 1 {
        Ptr(scratch.shared::<P>(o.lines() * chunks * o.keep))
    } else {
        Ptr(std::ptr::null_mut())
    };
    pieces(pool, o.lines() * chunks, TASK_LEN / o.n, |range, worker| {
        for task in range {
            let (line, first) = (task / chunks, task % chunks * CHUNK);
            // SAFETY: a chunk of the line; the scratch is the worker's, and the results are the task's.
            unsafe {
                let room = from_raw_parts_mut(scratch.each::<P>(worker, o.room()), o.room());
                let chunk = from_raw_parts(s.line(line).add(first), CHUNK.min(o.n - first));
                let few = pick_from(level, chunk, first, o, room);
                if chunks == 1 {
                    few.sort_unstable();
                    s.write(line, 0, few);
                } else {
                    // Only the last chunk may give fewer, so that there are no gaps.
                    at(found, task * o.keep).copy_from_nonoverlapping(few.as_ptr(), few.len());
                }
            }
        }
    });
    if chunks == 1 {
        return;
    }
    let last = o.keep.min(o.n - (chunks - 1) * CHUNK);
    let count = (chunks - 1) * o.keep + last;
    pieces(pool, o.lines(), 1, |range, _| {
        // SAFETY: what the chunks of this line gave.
        unsafe {
            let all = from_raw_parts_mut(at(found, range.start * chunks * o.keep), count);
            let few = pick_first(all, o.keep);
            few.sort_unstable();
            s.write(range.start, 0, few);
        }
    });
}

/// The first `keep` of a chunk that begins at a position, in no order; all of it if it is shorter.
fn pick_from<'a, T: Element, P: Packed>(
    level: Level,
    chunk: &[T],
    first: usize,
    o: Order,
    room: &'a mut [P],
) -> &'a mut [P] {
    // Candidates gather in the room; whenever it is full, the best remain, and the worst of them is the threshold.
    let (mut count, mut threshold) = (0, None::<P>);
    let full = room.len() - LANES;
    let (blocks, rest) = chunk.as_chunks::<LANES>();
    let mut position = first;
    let mut add = |some: &[T], position: usize, threshold: &mut Option<P>| {
        for (i, v) in (position..).zip(some) {
            let p = P::new(v.rank(o.descending), i);
            if threshold.is_none_or(|t| p < t)
                && let Some(slot) = room.get_mut(count)
            {
                *slot = p;
                count += 1;
            }
        }
        if count > full {
            let some = room.get_mut(..count).unwrap_or_default();
            *threshold = Some(*some.select_nth_unstable(o.keep - 1).1);
            count = o.keep;
        }
    };
    for block in blocks {
        if threshold.is_none_or(|t| T::any_before(level, block, o.descending, t.rank())) {
            add(block, position, &mut threshold);
        }
        position += LANES;
    }
    add(rest, position, &mut threshold);
    pick_first(room.get_mut(..count).unwrap_or_default(), o.keep)
}

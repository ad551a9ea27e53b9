//! The position of the largest or smallest element along an axis of a dense `[outer, n, inner]`.

use crate::copy::{at, pieces};
use crate::each_level;
use crate::level::Level;
use crate::mem::{Ptr, Scratch, ScratchSize};
use crate::pool::Pool;
use std::ops::Range;

/// Elements of a line that one task looks at.
const CHUNK: usize = 64 << 10;
/// Columns that are worked on side by side.
const COLUMNS: usize = 64;
/// Elements that a task looks at, at least.
const TASK_LEN: usize = 16 << 10;
/// Elements of a row that are compared side by side.
const LANES: usize = 64;

/// An element that can be compared.
pub trait Element: Copy + Send + Sync + PartialOrd {
    /// Whether it beats every number.
    fn is_nan(self) -> bool;
    /// An element that no number is worse than, if the largest (`max`) or smallest is looked for.
    fn worst(max: bool) -> Self;
    #[doc(hidden)]
    /// # Safety
    /// The rows are within `x`.
    unsafe fn row(level: Level, which: Which, x: *const Self, rows: Range<usize>) -> i64;
    #[doc(hidden)]
    /// # Safety
    /// The rows of `width` elements, `inner` apart, are within `x`, and `y` has `width` elements.
    unsafe fn columns(
        level: Level,
        which: Which,
        x: *const Self,
        inner: usize,
        rows: Range<usize>,
        width: usize,
        y: *mut i64,
    );
}

macro_rules! elements {
    ($($t:ident: $nan:expr, $low:expr, $high:expr;)*) => {$(
        impl Element for $t {
            #[inline(always)]
            fn is_nan(self) -> bool {
                $nan(self)
            }
            #[inline(always)]
            fn worst(max: bool) -> $t {
                if max { $low } else { $high }
            }
            unsafe fn row(level: Level, which: Which, x: *const $t, rows: Range<usize>) -> i64 {
                match (which.largest, which.last) {
                    (true, true) => each_level!(level, _FMA, row::<$t, true, true> => (x: *const $t, rows: Range<usize>) -> i64),
                    (true, false) => each_level!(level, _FMA, row::<$t, true, false> => (x: *const $t, rows: Range<usize>) -> i64),
                    (false, true) => each_level!(level, _FMA, row::<$t, false, true> => (x: *const $t, rows: Range<usize>) -> i64),
                    (false, false) => each_level!(level, _FMA, row::<$t, false, false> => (x: *const $t, rows: Range<usize>) -> i64),
                }
            }
            unsafe fn columns(level: Level, which: Which, x: *const $t, inner: usize, rows: Range<usize>, width: usize, y: *mut i64) {
                let s = Columns { x, inner, rows, width, y };
                match (which.largest, which.last) {
                    (true, true) => each_level!(level, _FMA, columns::<$t, true, true> => (s: Columns<$t>)),
                    (true, false) => each_level!(level, _FMA, columns::<$t, true, false> => (s: Columns<$t>)),
                    (false, true) => each_level!(level, _FMA, columns::<$t, false, true> => (s: Columns<$t>)),
                    (false, false) => each_level!(level, _FMA, columns::<$t, false, false> => (s: Columns<$t>)),
                }
            }
        }
    )*};
}
elements! {
    f32: f32::is_nan, f32::NEG_INFINITY, f32::INFINITY;
    f64: f64::is_nan, f64::NEG_INFINITY, f64::INFINITY;
    i64: |_| false, i64::MIN, i64::MAX;
}

/// What is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Which {
    /// The largest element; else the smallest.
    pub largest: bool,
    /// The last of equal ones; else the first.
    pub last: bool,
}

#[inline(always)]
fn beats<T: Element, const MAX: bool>(a: T, b: T) -> bool {
    if MAX { a > b } else { a < b }
}

/// Whether the later `v` takes the place of `best`.
#[inline(always)]
fn replaces<T: Element, const MAX: bool, const LAST: bool>(v: T, best: T) -> bool {
    // Without branches, so that columns are compared as vectors.
    let (v_nan, best_nan) = (v.is_nan(), best.is_nan());
    (v_nan & (LAST | !best_nan)) | (!best_nan & (beats::<T, MAX>(v, best) | (LAST & (v == best))))
}

fn chunks(n: usize) -> usize {
    n.div_ceil(CHUNK)
}

/// The scratch that [`argreduce`] needs.
pub fn argreduce_scratch(outer: usize, n: usize, inner: usize) -> ScratchSize {
    let split = chunks(n) > 1;
    ScratchSize { each: 0, shared: if split { outer * chunks(n) * inner * size_of::<i64>() } else { 0 } }
}

/// Writes to `y[outer, inner]` where along the axis of `x[outer, n, inner]` the element stands that is looked for. NaN beats
/// every number; over nothing, the position is 0.
///
/// # Safety
/// `x` has `outer · n · inner` readable elements and `y` has `outer · inner` writable ones, aligned; they do not overlap.
#[allow(clippy::too_many_arguments)]
pub unsafe fn argreduce<T: Element>(
    level: Level,
    which: Which,
    outer: usize,
    n: usize,
    inner: usize,
    x: *const T,
    y: *mut i64,
    pool: &Pool,
    scratch: &Scratch,
) {
    let (x, y) = (Ptr(x.cast_mut()), Ptr(y));
    let parts = chunks(n).max(1);
    // With several chunks per line, each chunk's winner waits in the scratch for the others.
    let found = if parts > 1 { Ptr(scratch.shared::<i64>(outer * parts * inner)) } else { y };
    let tiles = inner.div_ceil(COLUMNS);
    let each = n.min(CHUNK) * inner.min(COLUMNS);
    pieces(pool, outer * parts * tiles, TASK_LEN / each.max(1), |range, _| {
        for task in range {
            let (tile, line) = (task % tiles, task / tiles);
            let (part, o) = (line % parts, line / parts);
            let (column, rows) = (tile * COLUMNS, part * CHUNK..n.min(part * CHUNK + CHUNK));
            let width = COLUMNS.min(inner - column);
            let from = at(x, o * n * inner + column).cast_const();
            let to = at(found, line * inner + column);
            // SAFETY: the columns and rows are within `x`, and those elements of `found` are this task's.
            unsafe {
                match inner {
                    1 => *to = T::row(level, which, from, rows),
                    _ => T::columns(level, which, from, inner, rows, width, to),
                }
            }
        }
    });
    if parts == 1 {
        return;
    }
    pieces(pool, outer * inner, TASK_LEN, |range, _| {
        for line in range {
            let (o, i) = (line / inner, line % inner);
            let element = |k: i64| at(x, (o * n + k as usize) * inner + i);
            // SAFETY: winners are positions within the line, written above.
            unsafe {
                let winner = |part: usize| *at(found, (o * parts + part) * inner + i);
                let later = |best: i64, k: i64| {
                    if replaces_dyn(which, *element(k), *element(best)) { k } else { best }
                };
                *at(y, line) = (1..parts).map(winner).fold(winner(0), later);
            }
        }
    });
}

fn replaces_dyn<T: Element>(which: Which, v: T, best: T) -> bool {
    match (which.largest, which.last) {
        (true, true) => replaces::<T, true, true>(v, best),
        (true, false) => replaces::<T, true, false>(v, best),
        (false, true) => replaces::<T, false, true>(v, best),
        (false, false) => replaces::<T, false, false>(v, best),
    }
}

/// The position within `rows` of a contiguous line.
///
/// # Safety
/// The rows are within `x`.
#[inline(always)]
unsafe fn row<T: Element, const MAX: bool, const LAST: bool>(x: *const T, rows: Range<usize>) -> i64 {
    // SAFETY: as the caller promises.
    let line = unsafe { std::slice::from_raw_parts(x.wrapping_add(rows.start), rows.len()) };
    // First the value, then where it stands: both are plain loops over vectors.
    let (blocks, rest) = line.as_chunks::<LANES>();
    let (mut best, mut nan) = ([T::worst(MAX); LANES], [false; LANES]);
    for block in blocks {
        for ((best, nan), v) in best.iter_mut().zip(&mut nan).zip(block) {
            *best = if beats::<T, MAX>(*v, *best) { *v } else { *best };
            *nan |= v.is_nan();
        }
    }
    let nan = nan.into_iter().any(|n| n) || rest.iter().any(|v| v.is_nan());
    let better = |a: T, b: T| if beats::<T, MAX>(b, a) { b } else { a };
    let best = best.into_iter().chain(rest.iter().copied()).fold(T::worst(MAX), better);
    let found =
        if nan { find::<T, LAST>(line, |v| v.is_nan()) } else { find::<T, LAST>(line, |v| v == best) };
    found.map_or(0, |i| (rows.start + i) as i64)
}

/// The first or last element that `hit` holds for.
#[inline(always)]
fn find<T: Element, const LAST: bool>(line: &[T], hit: impl Fn(T) -> bool) -> Option<usize> {
    let (blocks, rest) = line.as_chunks::<LANES>();
    let any = |block: &&[T; LANES]| block.iter().fold(false, |any, v| any | hit(*v));
    let hits = |v: &T| hit(*v);
    let within = |i: usize, block: &[T; LANES]| {
        let at = if LAST { block.iter().rposition(hits) } else { block.iter().position(hits) };
        at.map(|k| i * LANES + k)
    };
    let in_rest = |all: &[T]| {
        let at = if LAST { rest.iter().rposition(hits) } else { rest.iter().position(hits) };
        at.map(|k| all.len() - rest.len() + k)
    };
    let mut numbered = blocks.iter().enumerate();
    if LAST {
        in_rest(line).or_else(|| numbered.rfind(|(_, b)| any(b)).and_then(|(i, b)| within(i, b)))
    } else {
        numbered.find(|(_, b)| any(b)).and_then(|(i, b)| within(i, b)).or_else(|| in_rest(line))
    }
}

/// Neighbouring lines: `width` columns of rows that are `inner` apart.
struct Columns<T> {
    x: *const T,
    inner: usize,
    rows: Range<usize>,
    width: usize,
    y: *mut i64,
}

/// # Safety
/// The rows are within `x`, and `y` has `width` elements, at most [`COLUMNS`].
#[inline(always)]
unsafe fn columns<T: Element, const MAX: bool, const LAST: bool>(s: Columns<T>) {
    // SAFETY: as the caller promises. A full tile has a width that the compiler knows.
    unsafe {
        if s.width == COLUMNS { tile::<T, MAX, LAST>(&s, COLUMNS) } else { tile::<T, MAX, LAST>(&s, s.width) }
    }
}

/// # Safety
/// As [`columns`].
#[inline(always)]
unsafe fn tile<T: Element, const MAX: bool, const LAST: bool>(s: &Columns<T>, width: usize) {
    let (mut best, mut at) = ([T::worst(MAX); COLUMNS], [0i64; COLUMNS]);
    for r in s.rows.clone() {
        // SAFETY: a row of the caller's.
        let row = unsafe { std::slice::from_raw_parts(s.x.wrapping_add(r * s.inner), width) };
        let first = r == s.rows.start;
        for ((v, best), at) in row.iter().zip(&mut best).zip(&mut at) {
            let take = first | replaces::<T, MAX, LAST>(*v, *best);
            *best = if take { *v } else { *best };
            *at = if take { r as i64 } else { *at };
        }
    }
    // SAFETY: `y` has `width` elements.
    unsafe { s.y.copy_from_nonoverlapping(at.as_ptr(), width) };
}

//! Running totals along an axis of a dense `[outer, n, inner]`.
//!
//! Totals of f32 are kept in f64. A long contiguous line is cut into chunks of a fixed length: each goes on from the joined
//! totals of those before it, whether the chunks are run one after the other or side by side.

use crate::copy::{at, pieces};
use crate::each_level;
use crate::level::Level;
use crate::mem::{Ptr, Scratch, ScratchSize};
use crate::pool::Pool;

/// Elements of a contiguous line that are run without a break.
const CHUNK: usize = 8 << 10;
/// Lines of so many chunks, all together, are worth cutting.
const FEW_LINES: usize = 16;
/// Columns that are run side by side.
const COLUMNS: usize = 64;
/// Elements that a task runs through, at least.
const TASK_LEN: usize = 8 << 10;
/// Elements of a line whose totals are made as a tree, so that the next ones wait for one step only.
const BLOCK: usize = 8;
/// Partial totals of a chunk, so that they do not wait for one another.
const LANES: usize = 16;

/// What is accumulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The sum; 0 for nothing.
    Sum,
    /// The product; 1 for nothing.
    Prod,
    /// The largest, NaN from the first NaN on; −∞ or the smallest integer for nothing.
    Max,
    /// The smallest, NaN from the first NaN on; ∞ or the largest integer for nothing.
    Min,
    /// ln Σ eˣ, of floats only; −∞ for nothing.
    LogSumExp,
}

/// How a line is run through.
#[derive(Clone, Copy, Debug)]
pub struct Running<T> {
    /// What is accumulated.
    pub kind: Kind,
    /// Leave out the element itself.
    pub exclusive: bool,
    /// Run from the end.
    pub reverse: bool,
    /// What the largest or smallest of nothing is, where that is not the limit of `T`: for a narrower type's numbers.
    pub nothing: Option<T>,
}

/// A step of a running total over elements `T`.
trait Op<T>: Sized {
    /// What a total is kept in.
    type Acc: Copy;
    const NOTHING: Self::Acc;
    /// Whether a line may be cut, and totals made as a tree. Not products of floats: a part may overflow where the line as
    /// a whole does not.
    const SPLIT: bool;
    const TREE: bool;
    fn lift(v: T) -> Self::Acc;
    fn join(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn lower(v: Self::Acc) -> T;
    /// # Safety
    /// As [`row`].
    unsafe fn row(level: Level, r: Row<T, Self::Acc>);
    /// # Safety
    /// As [`total`].
    unsafe fn total(level: Level, x: *const T, n: usize) -> Self::Acc;
    /// # Safety
    /// As [`columns`].
    unsafe fn columns(level: Level, c: Columns<T, Self::Acc>);
}

struct Sum;
struct Prod;
struct Max;
struct Min;
struct LogSumExp;

#[inline(always)]
fn larger<T: PartialOrd + Copy>(a: T, b: T) -> T {
    // NaN is not equal to itself; once it is the total it stays.
    #[allow(clippy::eq_op)]
    if (b > a) | (b != b) { b } else { a }
}

#[inline(always)]
fn smaller<T: PartialOrd + Copy>(a: T, b: T) -> T {
    #[allow(clippy::eq_op)]
    if (b < a) | (b != b) { b } else { a }
}

#[inline(always)]
fn log_sum_exp(t: f64, x: f64) -> f64 {
    let (lo, hi) = if t < x { (t, x) } else { (x, t) };
    if lo == hi { hi + std::f64::consts::LN_2 } else { hi + (lo - hi).exp().ln_1p() }
}

macro_rules! ops {
    ($($op:ident($t:ty) in $acc:ty, from $nothing:expr, split $split:literal tree $tree:literal: $join:expr;)*) => {$(
        impl Op<$t> for $op {
            type Acc = $acc;
            const NOTHING: $acc = $nothing;
            const SPLIT: bool = $split;
            const TREE: bool = $tree;
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
            unsafe fn row(level: Level, r: Row<$t, $acc>) {
                each_level!(level, _FMA, row::<$t, $op> => (r: Row<$t, $acc>));
            }
            unsafe fn total(level: Level, x: *const $t, n: usize) -> $acc {
                each_level!(level, _FMA, total::<$t, $op> => (x: *const $t, n: usize) -> $acc)
            }
            unsafe fn columns(level: Level, c: Columns<$t, $acc>) {
                each_level!(level, _FMA, columns::<$t, $op> => (c: Columns<$t, $acc>));
            }
        }
    )*};
}
ops! {
    Sum(f32) in f64, from 0.0, split true tree true: |a, b| a + b;
    Sum(f64) in f64, from 0.0, split true tree true: |a, b| a + b;
    Sum(i64) in i64, from 0, split true tree true: i64::wrapping_add;
    Prod(f32) in f64, from 1.0, split false tree false: |a, b| a * b;
    Prod(f64) in f64, from 1.0, split false tree false: |a, b| a * b;
    Prod(i64) in i64, from 1, split true tree true: i64::wrapping_mul;
    Max(f32) in f32, from f32::NEG_INFINITY, split true tree true: larger;
    Max(f64) in f64, from f64::NEG_INFINITY, split true tree true: larger;
    Max(i64) in i64, from i64::MIN, split true tree true: i64::max;
    Min(f32) in f32, from f32::INFINITY, split true tree true: smaller;
    Min(f64) in f64, from f64::INFINITY, split true tree true: smaller;
    Min(i64) in i64, from i64::MAX, split true tree true: i64::min;
    LogSumExp(f32) in f64, from f64::NEG_INFINITY, split true tree false: log_sum_exp;
    LogSumExp(f64) in f64, from f64::NEG_INFINITY, split true tree false: log_sum_exp;
}

/// An element whose running totals can be made: f32, f64, i64.
pub trait Element: Copy + Send + Sync {
    #[doc(hidden)]
    /// # Safety
    /// As [`cumulative`].
    unsafe fn run(level: Level, how: Running<Self>, s: Space<Self>, pool: &Pool, scratch: &Scratch);
}

macro_rules! elements {
    ($($t:ty: $($kind:ident)*;)*) => {$(
        impl Element for $t {
            unsafe fn run(level: Level, how: Running<$t>, s: Space<$t>, pool: &Pool, scratch: &Scratch) {
                match how.kind {
                    // SAFETY: as the caller promises.
                    $(Kind::$kind => unsafe { run::<$t, $kind>(level, how, s, pool, scratch) },)*
                    #[allow(unreachable_patterns)]
                    _ => debug_assert!(false, "{:?} of integers", how.kind),
                }
            }
        }
    )*};
}
elements! {
    f32: Sum Prod Max Min LogSumExp;
    f64: Sum Prod Max Min LogSumExp;
    i64: Sum Prod Max Min;
}

/// The arrays of a call.
#[doc(hidden)]
#[derive(Debug)]
pub struct Space<T> {
    outer: usize,
    n: usize,
    inner: usize,
    x: Ptr<T>,
    y: Ptr<T>,
}

fn is_cut(outer: usize, n: usize, inner: usize) -> bool {
    inner == 1 && n > CHUNK && outer < FEW_LINES
}

/// The scratch that [`cumulative`] needs.
pub fn cumulative_scratch(outer: usize, n: usize, inner: usize) -> ScratchSize {
    let totals = if is_cut(outer, n, inner) { outer * n.div_ceil(CHUNK) } else { 0 };
    ScratchSize { each: 0, shared: totals * size_of::<u64>() }
}

/// Writes to `y` the running total of each line along the middle axis of `x[outer, n, inner]`.
///
/// # Safety
/// `x` has `outer · n · inner` readable elements and `y` as many writable ones, aligned; they are the same array or do not
/// overlap.
#[allow(clippy::too_many_arguments)]
pub unsafe fn cumulative<T: Element>(
    level: Level,
    how: Running<T>,
    outer: usize,
    n: usize,
    inner: usize,
    x: *const T,
    y: *mut T,
    pool: &Pool,
    scratch: &Scratch,
) {
    let space = Space { outer, n, inner, x: Ptr(x.cast_mut()), y: Ptr(y) };
    // SAFETY: as the caller promises.
    unsafe { T::run(level, how, space, pool, scratch) }
}

/// # Safety
/// As [`cumulative`].
unsafe fn run<T: Element, O: Op<T>>(
    level: Level,
    how: Running<T>,
    s: Space<T>,
    pool: &Pool,
    scratch: &Scratch,
) where
    O::Acc: Send + Sync,
{
    let Space { outer, n, inner, x, y } = s;
    if outer * n * inner == 0 {
        return;
    }
    let nothing =
        how.nothing.filter(|_| matches!(how.kind, Kind::Max | Kind::Min)).map_or(O::NOTHING, O::lift);
    let Running { exclusive, reverse, .. } = how;
    if inner > 1 {
        let tiles = inner.div_ceil(COLUMNS);
        let grain = TASK_LEN / (n * inner.min(COLUMNS));
        return pieces(pool, outer * tiles, grain, |range, _| {
            for task in range {
                let column = task % tiles * COLUMNS;
                let first = task / tiles * n * inner + column;
                let (x, y, width) = (at(x, first).cast_const(), at(y, first), COLUMNS.min(inner - column));
                // SAFETY: those columns of one of the `outer` slices; no other task has them.
                unsafe {
                    O::columns(level, Columns { x, y, n, inner, width, start: nothing, exclusive, reverse })
                };
            }
        });
    }
    let chunks = if O::SPLIT { n.div_ceil(CHUNK) } else { 1 };
    let length = if O::SPLIT { CHUNK } else { n };
    // The address and length of a chunk, counted in the order of the run.
    let chunk = move |line: usize, c: usize| {
        let (from, to) = (c * length, (c * length + length).min(n));
        let (from, to) = if reverse { (n - to, n - from) } else { (from, to) };
        (line * n + from, to - from)
    };
    // SAFETY: a chunk is within its line, and is given to one task at a time.
    let total_of = move |line, c| unsafe {
        let (first, len) = chunk(line, c);
        O::total(level, at(x, first), len)
    };
    // SAFETY: as above.
    let scan = move |line, c, start| unsafe {
        let (first, n) = chunk(line, c);
        O::row(level, Row { x: at(x, first), y: at(y, first), n, start, exclusive, reverse });
    };
    if chunks == 1 || !is_cut(outer, n, inner) {
        return pieces(pool, outer, TASK_LEN / n, |range, _| {
            for line in range {
                let mut start = nothing;
                for c in 0..chunks {
                    // Before the run, for it may write over its elements.
                    let next = if c + 1 < chunks { O::join(start, total_of(line, c)) } else { start };
                    scan(line, c, start);
                    start = next;
                }
            }
        });
    }
    let totals = Ptr(scratch.shared::<O::Acc>(outer * chunks));
    pieces(pool, outer * chunks, 1, |range, _| {
        let i = range.start;
        // SAFETY: one total for each chunk.
        unsafe { at(totals, i).write(total_of(i / chunks, i % chunks)) };
    });
    for line in 0..outer {
        let mut start = nothing;
        for c in 0..chunks {
            let slot = at(totals, line * chunks + c);
            // SAFETY: as above; from the total of a chunk to that of all before it.
            start = unsafe { O::join(start, slot.replace(start)) };
        }
    }
    pieces(pool, outer * chunks, 1, |range, _| {
        let i = range.start;
        // SAFETY: as above.
        scan(i / chunks, i % chunks, unsafe { at(totals, i).read() });
    });
}

/// A contiguous line.
struct Row<T, A> {
    x: *const T,
    y: *mut T,
    n: usize,
    start: A,
    exclusive: bool,
    reverse: bool,
}

/// # Safety
/// `n` elements may be read at `x` and written at `y`, which are equal or do not overlap.
#[inline(always)]
unsafe fn row<T: Copy, O: Op<T>>(r: Row<T, O::Acc>) {
    match (r.exclusive, r.reverse) {
        // SAFETY: as the caller promises.
        (false, false) => unsafe { row_of::<T, O, false, false>(r) },
        // SAFETY: as above.
        (false, true) => unsafe { row_of::<T, O, false, true>(r) },
        // SAFETY: as above.
        (true, false) => unsafe { row_of::<T, O, true, false>(r) },
        // SAFETY: as above.
        (true, true) => unsafe { row_of::<T, O, true, true>(r) },
    }
}

/// # Safety
/// As [`row`].
#[inline(always)]
#[allow(clippy::indexing_slicing)] // Within blocks of a known length, by constants after unrolling.
unsafe fn row_of<T: Copy, O: Op<T>, const EXCLUSIVE: bool, const REVERSE: bool>(r: Row<T, O::Acc>) {
    let n = r.n;
    let place = |i: usize| if REVERSE { n - 1 - i } else { i };
    let (mut t, mut done) = (r.start, 0);
    if O::TREE {
        while done + BLOCK <= n {
            let first = if REVERSE { n - done - BLOCK } else { done };
            let order = |v: [T; BLOCK]| if REVERSE { std::array::from_fn(|i| v[BLOCK - 1 - i]) } else { v };
            // SAFETY: a block within the line, read before it is written.
            unsafe {
                let mut p = order(r.x.add(first).cast::<[T; BLOCK]>().read()).map(O::lift);
                for s in [1, 2, 4] {
                    p = std::array::from_fn(|i| if i >= s { O::join(p[i - s], p[i]) } else { p[i] });
                }
                let all: [O::Acc; BLOCK] = p.map(|p| O::join(t, p));
                let out = if EXCLUSIVE {
                    std::array::from_fn(|i| O::lower(if i == 0 { t } else { all[i - 1] }))
                } else {
                    all.map(O::lower)
                };
                t = all[BLOCK - 1];
                r.y.add(first).cast::<[T; BLOCK]>().write(order(out));
            }
            done += BLOCK;
        }
    }
    for i in (done..n).map(place) {
        // SAFETY: an element of the line.
        unsafe {
            let next = O::join(t, O::lift(*r.x.add(i)));
            *r.y.add(i) = O::lower(if EXCLUSIVE { t } else { next });
            t = next;
        }
    }
}

/// The total of a contiguous line.
///
/// # Safety
/// `n` elements may be read at `x`.
#[inline(always)]
unsafe fn total<T: Copy, O: Op<T>>(x: *const T, n: usize) -> O::Acc {
    // SAFETY: as the caller promises.
    let (blocks, rest) = unsafe { std::slice::from_raw_parts(x, n) }.as_chunks::<LANES>();
    let mut lanes = [O::NOTHING; LANES];
    for block in blocks {
        for (t, v) in lanes.iter_mut().zip(block) {
            *t = O::join(*t, O::lift(*v));
        }
    }
    let rest = rest.iter().map(|v| O::lift(*v));
    lanes.into_iter().chain(rest).fold(O::NOTHING, O::join)
}

/// Neighbouring lines: `width` columns of rows that are `inner` apart.
struct Columns<T, A> {
    x: *const T,
    y: *mut T,
    n: usize,
    inner: usize,
    width: usize,
    start: A,
    exclusive: bool,
    reverse: bool,
}

/// # Safety
/// `n` rows of `width` elements (at most [`COLUMNS`]) may be read at `x` and written at `y`.
#[inline(always)]
unsafe fn columns<T: Copy, O: Op<T>>(c: Columns<T, O::Acc>) {
    // SAFETY: as the caller promises. A full tile has a width that the compiler knows.
    unsafe {
        match (c.width == COLUMNS, c.exclusive) {
            (true, false) => tile::<T, O, false>(&c, COLUMNS),
            (true, true) => tile::<T, O, true>(&c, COLUMNS),
            (false, false) => tile::<T, O, false>(&c, c.width),
            (false, true) => tile::<T, O, true>(&c, c.width),
        }
    }
}

/// # Safety
/// As [`columns`].
#[inline(always)]
unsafe fn tile<T: Copy, O: Op<T>, const EXCLUSIVE: bool>(c: &Columns<T, O::Acc>, width: usize) {
    let mut totals = [c.start; COLUMNS];
    for i in 0..c.n {
        let row = if c.reverse { c.n - 1 - i } else { i } * c.inner;
        for (j, t) in totals.iter_mut().enumerate().take(width) {
            // SAFETY: an element of one of the rows.
            unsafe {
                let next = O::join(*t, O::lift(*c.x.add(row + j)));
                *c.y.add(row + j) = O::lower(if EXCLUSIVE { *t } else { next });
                *t = next;
            }
        }
    }
}

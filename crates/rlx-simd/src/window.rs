//! Windows that slide over the last axes of a dense tensor: sums, extremes, and where the extremes are.
//!
//! A row of results is reduced over the other axes first, while neighbours in memory are neighbours in the vectors, and then
//! along the row. Every result is computed by one worker, in an order that depends on the sizes alone.
// Axes are indexed by numbers below `Form::axes`, itself at most `AXES`.
#![allow(clippy::indexing_slicing)]

use crate::each_level;
use crate::level::Level;
use crate::mem::{Ptr, Scratch, ScratchSize};
use crate::pool::Pool;

/// How a window is reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The sum; 0 of nothing. Integers wrap.
    Sum,
    /// The largest, NaN before all others; the least number of nothing.
    Max,
    /// The smallest, NaN before all others; the greatest number of nothing.
    Min,
}

/// The sizes of a window kernel: x is `[lead, spatial..]`. Every list has an entry per windowed axis: element k of window o is
/// `x[.., o · stride + k · dilation − pad_lo]`, and padding has no elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window<'a> {
    /// The product of all axes before the windowed ones.
    pub lead: usize,
    /// The sizes of the windowed axes.
    pub spatial: &'a [usize],
    /// The sizes of a window; at least 1.
    pub kernel: &'a [usize],
    /// From window to window; at least 1.
    pub stride: &'a [usize],
    /// From element to element of a window; at least 1.
    pub dilation: &'a [usize],
    /// Places without elements before each axis; negative ones cut elements off.
    pub pad_lo: &'a [isize],
    /// Places behind each axis.
    pub pad_hi: &'a [isize],
}

/// The most windowed axes.
const AXES: usize = 32;
/// Results of a row that are computed at a time: with what they are computed from, they stay in the L1 cache.
const SEGMENT: usize = 1024;
/// Elements of windows that make a task worth starting.
const WORK: usize = 1 << 16;

#[derive(Clone, Copy, Debug)]
struct Axis {
    size: isize,
    out: usize,
    kernel: usize,
    stride: isize,
    dilation: isize,
    lo: isize,
}

impl Axis {
    /// Every window is one element, in its place.
    fn is_plain(&self) -> bool {
        self.kernel == 1 && self.stride == 1 && self.lo == 0 && self.out as isize == self.size
    }
    /// There is one window, and it has all elements.
    fn is_whole(&self) -> bool {
        self.kernel as isize == self.size
            && self.out == 1
            && self.lo == 0
            && (self.dilation == 1 || self.size == 1)
    }
    /// The elements of window `o` that are not padding.
    #[inline(always)]
    fn taps(&self, o: usize) -> (usize, usize) {
        let at = o as isize * self.stride - self.lo;
        let up = |x: isize| (-(-x).div_euclid(self.dilation)).clamp(0, self.kernel as isize) as usize;
        (up(-at), up(self.size - at).max(up(-at)))
    }
    /// The windows within `from..to` whose element `k` is not padding.
    #[inline(always)]
    fn windows(&self, k: usize, from: usize, to: usize) -> (usize, usize) {
        let at = k as isize * self.dilation - self.lo;
        let up = |x: isize| (-(-x).div_euclid(self.stride)).clamp(from as isize, to as isize) as usize;
        (up(-at), up(self.size - at).max(up(-at)))
    }
    #[inline(always)]
    fn place(&self, o: usize, k: usize) -> isize {
        o as isize * self.stride + k as isize * self.dilation - self.lo
    }
}

/// The sizes, with axes merged where they can be.
#[derive(Clone, Copy, Debug)]
struct Form {
    lead: usize,
    axes: usize,
    axis: [Axis; AXES],
}

impl Form {
    fn last(&self) -> &Axis {
        &self.axis[self.axes - 1]
    }
    /// Rows of results.
    fn rows(&self) -> usize {
        self.lead * self.axis[..self.axes - 1].iter().map(|a| a.out).product::<usize>()
    }
    fn segments(&self) -> usize {
        self.last().out.div_ceil(SEGMENT)
    }
    /// The elements of a row that the windows `from..to` cover.
    #[inline(always)]
    fn span(&self, from: usize, to: usize) -> (isize, isize) {
        let a = self.last();
        let first = a.place(from, 0).clamp(0, a.size);
        (first, (a.place(to - 1, a.kernel - 1) + 1).clamp(first, a.size))
    }

    /// Calls `f` with where each row of elements starts that the windows of a row of results cover, in order.
    #[inline(always)]
    fn each_row(&self, row: usize, mut f: impl FnMut(usize)) {
        let n = self.axes - 1;
        let (mut rest, mut count) = (row, 1);
        let (mut first, mut taps, mut begin) = ([0; AXES], [1; AXES], [0; AXES]);
        for i in (0..n).rev() {
            let a = &self.axis[i];
            let o = rest % a.out;
            rest /= a.out;
            let (lo, hi) = a.taps(o);
            (first[i], taps[i], begin[i]) = (lo, hi - lo, a.place(o, 0));
            count *= hi - lo;
        }
        for tuple in 0..count {
            let (mut at, mut scale, mut t) = (0, self.last().size, tuple);
            for i in (0..n).rev() {
                let a = &self.axis[i];
                at += (begin[i] + (first[i] + t % taps[i]) as isize * a.dilation) * scale;
                t /= taps[i];
                scale *= a.size;
            }
            f((rest as isize * scale + at) as usize);
        }
    }
}

impl Window<'_> {
    /// Whether the lists fit together. All other functions do nothing where this is not so.
    pub fn is_valid(&self) -> bool {
        let n = self.spatial.len();
        let lists =
            [self.kernel.len(), self.stride.len(), self.dilation.len(), self.pad_lo.len(), self.pad_hi.len()];
        n <= AXES
            && lists.iter().all(|l| *l == n)
            && self.kernel.iter().chain(self.stride).chain(self.dilation).all(|s| *s > 0)
    }

    fn axes(&self) -> impl Iterator<Item = Axis> {
        let lists = self.spatial.iter().zip(self.kernel).zip(self.stride.iter().zip(self.dilation));
        lists.zip(self.pad_lo.iter().zip(self.pad_hi)).map(
            |(((size, kernel), (stride, dilation)), (lo, hi))| {
                let (size, stride, dilation) = (*size as isize, *stride as isize, *dilation as isize);
                let room = size + lo + hi - (*kernel as isize - 1) * dilation - 1;
                let out = (room.div_euclid(stride) + 1).max(0) as usize;
                Axis { size, out, kernel: *kernel, stride, dilation, lo: *lo }
            },
        )
    }

    /// How many windows there are along each axis.
    pub fn out_spatial(&self) -> impl Iterator<Item = usize> {
        self.axes().map(|a| a.out)
    }
    /// Numbers of the result.
    pub fn outputs(&self) -> usize {
        self.lead * self.out_spatial().product::<usize>()
    }
    /// Numbers of the operand.
    pub fn inputs(&self) -> usize {
        self.lead * self.spatial.iter().product::<usize>()
    }

    /// Where nothing slides, all is one long row if the images may be taken together.
    fn form(&self, together: bool) -> Option<Form> {
        if !self.is_valid() {
            return None;
        }
        let unit = Axis { size: 1, out: 1, kernel: 1, stride: 1, dilation: 1, lo: 0 };
        let mut f = Form { lead: self.lead, axes: 0, axis: [unit; AXES] };
        for a in self.axes() {
            let Some(last) = f.axes.checked_sub(1).and_then(|i| f.axis.get_mut(i)) else {
                (f.axes, f.axis[0]) = (1, a);
                continue;
            };
            let merged = Axis { size: last.size * a.size, lo: last.lo * a.size, ..*last };
            if a.is_plain() && last.stride == 1 {
                *last = Axis { out: last.out * a.out, dilation: last.dilation * a.size.max(1), ..merged };
            } else if a.is_whole() && (last.dilation == 1 || last.kernel == 1) {
                let (kernel, stride) = (last.kernel * a.kernel, last.stride * a.size);
                *last = Axis { kernel, stride, dilation: 1, ..merged };
            } else {
                f.axis[f.axes] = a;
                f.axes += 1;
            }
        }
        let [first, ..] = f.axis;
        if f.axes == 0 || together && f.axes == 1 && first.is_plain() {
            let n = self.lead * first.out;
            f = Form { lead: 1, axes: 1, axis: [Axis { size: n as isize, out: n, ..unit }; AXES] };
        }
        Some(f)
    }

    /// The scratch of [`Window::reduce`] and [`Window::argmax`].
    pub fn scratch<T: Element>(&self) -> ScratchSize {
        let Some(f) = self.form(true).filter(|_| self.outputs() > 0) else { return ScratchSize::default() };
        let (a, n) = (f.last(), SEGMENT.min(f.last().out));
        let span = (n - 1).saturating_mul(a.stride as usize);
        let span = span.saturating_add((a.kernel - 1).saturating_mul(a.dilation as usize)).saturating_add(1);
        // What a segment covers, or a place and an element for each of its windows.
        let each = (span.min(a.size as usize) * size_of::<T>()).max(n * (size_of::<i64>() + size_of::<T>()));
        ScratchSize { each, shared: 0 }
    }

    /// Reduces every window.
    ///
    /// # Safety
    /// `x` and `y` point to dense tensors of these sizes that do not overlap, and the scratch is as large as
    /// [`Window::scratch`] asks.
    pub unsafe fn reduce<T: Element>(
        &self,
        level: Level,
        pool: &Pool,
        scratch: &Scratch,
        kind: Kind,
        x: *const T,
        y: *mut T,
    ) {
        // SAFETY: the caller promises the tensors.
        unsafe { self.run::<T, T>(pool, scratch, true, (x, y), |job| T::reduce(level, kind, job)) }
    }

    /// Where the largest element of each window is (the smallest for `Min`, and `Sum` counts as `Max`): its place in the
    /// windowed axes, flattened. Of equal elements it is the first, NaN before all others; −1 of nothing.
    ///
    /// # Safety
    /// As [`Window::reduce`].
    pub unsafe fn argmax<T: Element>(
        &self,
        level: Level,
        pool: &Pool,
        scratch: &Scratch,
        kind: Kind,
        x: *const T,
        y: *mut i64,
    ) {
        if self.spatial.is_empty() {
            // Every element is a window of its own, without axes to be placed in.
            for i in 0..self.lead {
                // SAFETY: the caller promises the result.
                unsafe { y.add(i).write(0) };
            }
            return;
        }
        // SAFETY: the caller promises the tensors.
        unsafe { self.run::<T, i64>(pool, scratch, false, (x, y), |job| T::argmax(level, kind, job)) }
    }

    unsafe fn run<T: Element, Y>(
        &self,
        pool: &Pool,
        scratch: &Scratch,
        together: bool,
        (x, y): (*const T, *mut Y),
        work: impl Fn(&Job<'_, T, Y>) + Sync,
    ) {
        let Some(form) = self.form(together).filter(|_| self.outputs() > 0) else { return };
        // A place is counted from the start of the windowed axes.
        let image = self.spatial.iter().product::<usize>().max(1);
        let units = form.rows() * form.segments();
        let taps: usize = form.axis[..form.axes].iter().map(|a| a.kernel).product();
        let each = (WORK / (form.last().out.min(SEGMENT) * taps).max(1)).clamp(1, units.div_ceil(16));
        let (x, y) = (Ptr(x.cast_mut()), Ptr(y));
        let room = self.scratch::<T>().each;
        pool.run(units.div_ceil(each), |i, worker| {
            let units = (i * each, ((i + 1) * each).min(units));
            work(&Job {
                form: &form,
                x,
                y,
                image,
                buffer: Ptr(scratch.each::<u8>(worker, room).cast()),
                units,
            });
        });
    }
}

/// Some rows of results.
#[doc(hidden)]
pub struct Job<'a, T, Y> {
    form: &'a Form,
    x: Ptr<T>,
    y: Ptr<Y>,
    image: usize,
    buffer: Ptr<T>,
    units: (usize, usize),
}

/// The windows of a segment that have an element `k`; the first are known, for kernels seldom have more.
struct Having<'a> {
    axis: &'a Axis,
    range: (usize, usize),
    known: [(usize, usize); 16],
}

impl<'a> Having<'a> {
    #[inline(always)]
    fn new(axis: &'a Axis) -> Having<'a> {
        Having { axis, range: (0, 0), known: [(0, 0); 16] }
    }
    /// Turns to the windows `from..to`.
    #[inline(always)]
    fn turn(&mut self, from: usize, to: usize) {
        if self.range != (from, to) {
            self.range = (from, to);
            for (k, known) in self.known.iter_mut().enumerate().take(self.axis.kernel) {
                *known = self.axis.windows(k, from, to);
            }
        }
    }
    #[inline(always)]
    fn element(&self, k: usize) -> (usize, usize) {
        self.known.get(k).copied().unwrap_or_else(|| self.axis.windows(k, self.range.0, self.range.1))
    }
}

impl<T, Y> Job<'_, T, Y> {
    /// A unit: the row of results, and its windows.
    #[inline(always)]
    fn unit(&self, i: usize) -> (usize, usize, usize) {
        let segments = self.form.segments();
        let from = i % segments * SEGMENT;
        (i / segments, from, (from + SEGMENT).min(self.form.last().out))
    }
}

/// A number that windows are made of: `f32`, `f64` or `i64`.
pub trait Element: Copy + Send + Sync + 'static {
    /// 0.
    const ZERO: Self;
    /// Nothing is less.
    const LEAST: Self;
    /// Nothing is greater.
    const GREATEST: Self;
    /// `self + x`, wrapping.
    fn plus(self, x: Self) -> Self;
    /// Whether it is greater.
    fn above(self, x: Self) -> bool;
    /// Whether it is no number.
    fn is_none(self) -> bool;
    #[doc(hidden)]
    fn reduce(level: Level, kind: Kind, job: &Job<'_, Self, Self>);
    #[doc(hidden)]
    fn argmax(level: Level, kind: Kind, job: &Job<'_, Self, i64>);
}

macro_rules! element {
    ($t:ty, $place:ty, $zero:expr, $least:expr, $greatest:expr, |$a:ident, $b:ident| $plus:expr, $none:path) => {
        impl Element for $t {
            const ZERO: $t = $zero;
            const LEAST: $t = $least;
            const GREATEST: $t = $greatest;
            #[inline(always)]
            fn plus(self, x: $t) -> $t {
                let ($a, $b) = (self, x);
                $plus
            }
            #[inline(always)]
            fn above(self, x: $t) -> bool {
                self > x
            }
            #[inline(always)]
            fn is_none(self) -> bool {
                $none(self)
            }
            fn reduce(level: Level, kind: Kind, job: &Job<'_, $t, $t>) {
                match kind {
                    Kind::Sum => each_level!(level, _FMA, reduce::<$t, Sum> => (job: &Job<'_, $t, $t>)),
                    Kind::Max => each_level!(level, _FMA, reduce::<$t, Max> => (job: &Job<'_, $t, $t>)),
                    Kind::Min => each_level!(level, _FMA, reduce::<$t, Min> => (job: &Job<'_, $t, $t>)),
                }
            }
            fn argmax(level: Level, kind: Kind, job: &Job<'_, $t, i64>) {
                match kind {
                    Kind::Min => each_level!(level, _FMA, argmax::<$t, Min, $place> => (job: &Job<'_, $t, i64>)),
                    _ => each_level!(level, _FMA, argmax::<$t, Max, $place> => (job: &Job<'_, $t, i64>)),
                }
            }
        }
    };
}
element!(f32, i32, 0.0, f32::NEG_INFINITY, f32::INFINITY, |a, b| a + b, f32::is_nan);
element!(f64, i64, 0.0, f64::NEG_INFINITY, f64::INFINITY, |a, b| a + b, f64::is_nan);
element!(i64, i64, 0, i64::MIN, i64::MAX, |a, b| a.wrapping_add(b), no);

fn no(_: i64) -> bool {
    false
}

/// What is done with two elements.
trait Join<T> {
    const NONE: T;
    fn join(a: T, b: T) -> T;
    /// Whether `new` takes the place of `old` as the extreme of a window.
    fn beats(new: T, old: T) -> bool;
}
struct Sum;
struct Max;
struct Min;

impl<T: Element> Join<T> for Sum {
    const NONE: T = T::ZERO;
    #[inline(always)]
    fn join(a: T, b: T) -> T {
        a.plus(b)
    }
    #[inline(always)]
    fn beats(_: T, _: T) -> bool {
        false
    }
}
impl<T: Element> Join<T> for Max {
    const NONE: T = T::LEAST;
    #[inline(always)]
    fn join(a: T, b: T) -> T {
        let m = if b.above(a) { b } else { a };
        if b.is_none() { b } else { m }
    }
    #[inline(always)]
    fn beats(new: T, old: T) -> bool {
        new.above(old) | (new.is_none() & !old.is_none())
    }
}
impl<T: Element> Join<T> for Min {
    const NONE: T = T::GREATEST;
    #[inline(always)]
    fn join(a: T, b: T) -> T {
        let m = if a.above(b) { b } else { a };
        if b.is_none() { b } else { m }
    }
    #[inline(always)]
    fn beats(new: T, old: T) -> bool {
        old.above(new) | (new.is_none() & !old.is_none())
    }
}

/// Joins `n` elements of `x`, `stride` apart, to those of `y`.
#[inline(always)]
unsafe fn join_row<T: Element, J: Join<T>>(y: *mut T, x: *const T, n: usize, stride: isize) {
    // SAFETY: the caller promises the elements on both sides.
    unsafe {
        match stride {
            1 => (0..n).for_each(|i| *y.add(i) = J::join(*y.add(i), *x.add(i))),
            2 => (0..n).for_each(|i| *y.add(i) = J::join(*y.add(i), *x.add(2 * i))),
            _ => (0..n).for_each(|i| *y.add(i) = J::join(*y.add(i), *x.offset(i as isize * stride))),
        }
    }
}

/// All of `n` elements, joined in a fixed order.
#[inline(always)]
unsafe fn join_all<T: Element, J: Join<T>>(x: *const T, n: usize) -> T {
    const LANES: usize = 32;
    let mut lanes = [J::NONE; LANES];
    let whole = n / LANES * LANES;
    // SAFETY: the caller promises `n` elements.
    unsafe {
        for i in (0..whole).step_by(LANES) {
            for (j, lane) in lanes.iter_mut().enumerate() {
                *lane = J::join(*lane, *x.add(i + j));
            }
        }
        for (j, lane) in lanes.iter_mut().enumerate().take(n - whole) {
            *lane = J::join(*lane, *x.add(whole + j));
        }
    }
    lanes.into_iter().fold(J::NONE, J::join)
}

#[inline(always)]
fn reduce<T: Element, J: Join<T>>(job: &Job<'_, T, T>) {
    let (f, a) = (job.form, job.form.last());
    let mut having = Having::new(a);
    for unit in job.units.0..job.units.1 {
        let (row, from, to) = job.unit(unit);
        having.turn(from, to);
        let (y, n) = (job.y.0.wrapping_add(row * a.out + from), to - from);
        let (first, end) = f.span(from, to);
        let width = (end - first) as usize;
        // The rows under the windows, joined: in the buffer, or in place if there is one.
        let (mut rows, mut joined) = (0, job.buffer.0.cast_const());
        f.each_row(row, |at| {
            let x = job.x.0.wrapping_add(at + first as usize);
            // SAFETY: the row is within x, and the buffer has room for what the windows of a segment cover.
            unsafe {
                match rows {
                    0 => joined = x,
                    1 => {
                        let one = joined;
                        joined = job.buffer.0;
                        (0..width).for_each(|i| *job.buffer.0.add(i) = J::join(*one.add(i), *x.add(i)));
                    }
                    _ => join_row::<T, J>(job.buffer.0, x, width, 1),
                }
            }
            rows += 1;
        });
        // SAFETY: the results are those of this unit, and `windows` and `taps` say which elements are no padding.
        unsafe {
            if rows > 0 && a.dilation == 1 && n * 4 <= a.kernel {
                for o in from..to {
                    let (lo, hi) = a.taps(o);
                    let x = joined.wrapping_offset(a.place(o, lo) - first);
                    y.add(o - from).write(join_all::<T, J>(x, hi - lo));
                }
                continue;
            }
            (0..n).for_each(|i| y.add(i).write(J::NONE));
            for k in 0..if rows > 0 { a.kernel } else { 0 } {
                let (lo, hi) = having.element(k);
                let x = joined.wrapping_offset(a.place(lo, k) - first);
                join_row::<T, J>(y.add(lo - from), x, hi - lo, a.stride);
            }
        }
    }
}

/// A place as wide as the elements, so that both fill the same vectors.
trait Place: Copy + PartialOrd + std::ops::Add<Output = Self> {
    const NONE: Self;
    fn new(at: isize) -> Self;
    fn wide(self) -> i64;
}
macro_rules! place {
    ($($t:ty),*) => { $(impl Place for $t {
        const NONE: $t = -1;
        #[inline(always)]
        fn new(at: isize) -> $t {
            at as $t
        }
        #[inline(always)]
        fn wide(self) -> i64 {
            self as i64
        }
    })* };
}
place!(i32, i64);

/// Lets `n` elements of `x`, `stride` apart, compete with the best so far. A `S` other than 0 is the stride.
#[inline(always)]
unsafe fn compete<T: Element, J: Join<T>, P: Place, const S: isize>(
    (best, places): (*mut T, *mut P),
    x: *const T,
    n: usize,
    (place, stride): (isize, isize),
) {
    const LANES: usize = 8;
    let step = if S > 0 { S } else { stride };
    let one = |new: T, here: P, (old, at): (T, P)| {
        let wins = (at < P::new(0)) | J::beats(new, old);
        (if wins { new } else { old }, if wins { here } else { at })
    };
    let lanes: [P; LANES] = std::array::from_fn(|j| P::new(j as isize * step));
    let mut i = 0;
    // SAFETY: the caller promises the elements on both sides.
    unsafe {
        while i + LANES <= n {
            let (from, here) = (x.offset(i as isize * step), P::new(place + i as isize * step));
            let new: [T; LANES] = std::array::from_fn(|j| *from.offset(j as isize * step));
            let (to, at) = (best.add(i).cast::<[T; LANES]>(), places.add(i).cast::<[P; LANES]>());
            let (mut old, mut old_at) = (to.read_unaligned(), at.read_unaligned());
            for ((old, at), (new, lane)) in old.iter_mut().zip(&mut old_at).zip(new.into_iter().zip(lanes)) {
                (*old, *at) = one(new, here + lane, (*old, *at));
            }
            to.write_unaligned(old);
            at.write_unaligned(old_at);
            i += LANES;
        }
        for i in i..n {
            let (at, old) = (i as isize * step, (*best.add(i), *places.add(i)));
            (*best.add(i), *places.add(i)) = one(*x.offset(at), P::new(place + at), old);
        }
    }
}

#[inline(always)]
fn argmax<T: Element, J: Join<T>, P: Place>(job: &Job<'_, T, i64>) {
    // SAFETY: the work is the same, with places that are wide enough.
    unsafe {
        if job.image <= i32::MAX as usize { argmax_at::<T, J, P>(job) } else { argmax_at::<T, J, i64>(job) }
    }
}

#[inline(always)]
unsafe fn argmax_at<T: Element, J: Join<T>, P: Place>(job: &Job<'_, T, i64>) {
    let (f, a) = (job.form, job.form.last());
    let mut having = Having::new(a);
    for unit in job.units.0..job.units.1 {
        let (row, from, to) = job.unit(unit);
        having.turn(from, to);
        let (y, n) = (job.y.0.wrapping_add(row * a.out + from), to - from);
        let (places, best) =
            (job.buffer.0.cast::<P>(), job.buffer.0.cast::<i64>().wrapping_add(n).cast::<T>());
        // SAFETY: the results are those of this unit, the buffer has room for a place and an element per window, and
        // `windows` says which elements are no padding.
        unsafe {
            for i in 0..n {
                places.add(i).write(P::NONE);
                best.add(i).write(J::NONE);
            }
            f.each_row(row, |at| {
                for k in 0..a.kernel {
                    let (lo, hi) = having.element(k);
                    let place = at as isize + a.place(lo, k);
                    let x = job.x.0.wrapping_offset(place);
                    let place = place - (at / job.image * job.image) as isize;
                    let old = (best.add(lo - from), places.add(lo - from));
                    match a.stride {
                        1 => compete::<T, J, P, 1>(old, x, hi - lo, (place, 1)),
                        2 => compete::<T, J, P, 2>(old, x, hi - lo, (place, 2)),
                        _ => compete::<T, J, P, 0>(old, x, hi - lo, (place, a.stride)),
                    }
                }
            });
            for i in 0..n {
                y.add(i).write((*places.add(i)).wide());
            }
        }
    }
}

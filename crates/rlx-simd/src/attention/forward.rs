//! The forward pass.

use super::lanes::{Kernel, Lanes};
use super::narrow::Narrow;
use super::panel::{Matrix, Spread, Start, all_finite, careful_panel, copy_scaled, panel};
use super::{Addend, Block, LANES, ROWS, Real, Scores};
use crate::level::Level;
use crate::mem::{Ptr, Scratch, ScratchSize, View};
use crate::pool::Pool;
use crate::sink::Sink;

/// Attention: softmax(scores) · v, of the shape `[b, hq, s, dv]`.
#[derive(Clone, Copy, Debug)]
pub struct Attention<T> {
    /// The scores.
    pub scores: Scores<T>,
    /// `[b, hkv, t, dv]`.
    pub v: View<T, 4>,
}

/// Where the result goes.
#[derive(Clone, Copy)]
pub enum Out<'a, T> {
    /// Into memory, with any strides.
    Direct(View<T, 4>),
    /// To a sink, in blocks of whole rows. A row is a query of a head, and heads are counted over all entries of the
    /// batch.
    Sink(&'a dyn Sink<T>),
}

impl<T: Real> Attention<T> {
    /// The scratch space of a run.
    pub fn scratch(&self) -> ScratchSize {
        match self.narrow() {
            Some(narrow) => narrow.scratch(),
            None => ScratchSize {
                each: Wide::<T>::len(&self.scores, self.v.shape[3]) * size_of::<T>(),
                shared: 0,
            },
        }
    }

    /// Computes the result; every part of it goes out once.
    ///
    /// # Safety
    /// The views are valid for their shapes, what is written overlaps none that is read, and nobody else touches it
    /// meanwhile.
    pub unsafe fn run(&self, level: Level, pool: &Pool, scratch: &Scratch, out: Out<'_, T>) {
        let x = self.scores.sizes();
        if let Some(narrow) = self.narrow() {
            narrow.run(level, pool, scratch, out);
            return;
        }
        let blocks = x.s.div_ceil(LANES);
        pool.run(x.b * x.hq * blocks, |task, worker| {
            let each = scratch.each::<T>(worker, Wide::<T>::len(&self.scores, self.v.shape[3]));
            // Of a head, so that its keys stay in the cache, the blocks that see most come first.
            let (head, block) = (task / blocks, blocks - 1 - task % blocks);
            let from = block * LANES;
            let at = [head / x.hq, head % x.hq];
            let wide = Wide {
                scores: &self.scores,
                v: self.v,
                at,
                from,
                to: (from + LANES).min(x.s),
                each: Ptr(each),
            };
            T::at_level(level, WideTask { wide, out, worker });
        });
    }

    /// For few queries the lanes are better used along d, if that is contiguous.
    fn narrow(&self) -> Option<Narrow<'_, T>> {
        let contiguous = |x: &View<T, 4>| x.strides[3] == 1 || x.shape[3] <= 1;
        let x = self.scores.sizes();
        let few = x.s <= super::narrow::QUERIES;
        (few && contiguous(&self.scores.k) && contiguous(&self.v)).then_some(Narrow { attention: self })
    }
}

/// A block of queries of one head, and the state of their softmax; the queries are lanes.
pub(super) struct Wide<'a, T> {
    pub scores: &'a Scores<T>,
    pub v: View<T, 4>,
    pub at: [usize; 2],
    pub from: usize,
    pub to: usize,
    pub each: Ptr<T>,
}

/// The parts of the scratch space.
#[derive(Clone, Copy)]
pub(super) struct Parts<T> {
    /// q as `[d][lanes]`, scaled.
    pub q: *mut T,
    /// A block of scores, then of weights.
    pub s: *mut T,
    /// The sums of weights and values, `[dv][lanes]`.
    pub o: *mut T,
    pub add: *mut T,
    /// The greatest score, the sum of the weights, and the factor of what came before.
    pub top: *mut T,
    pub sum: *mut T,
    pub fade: *mut T,
    /// What is left.
    pub rest: *mut T,
}

impl<T: Real> Wide<'_, T> {
    /// The elements of scratch that a block takes.
    pub fn len(scores: &Scores<T>, dv: usize) -> usize {
        let d = scores.sizes().d;
        (d + Self::block_rows(d, dv) + dv + ROWS + 3) * LANES
    }

    /// The rows of a block of scores: with q there is room for a result.
    fn block_rows(d: usize, dv: usize) -> usize {
        ROWS.max(dv.saturating_sub(d))
    }

    pub fn parts(&self) -> Parts<T> {
        let x = self.scores.sizes();
        let mut rest = self.each.0;
        let mut next = |rows: usize| {
            let part = rest;
            rest = rest.wrapping_add(rows * LANES);
            part
        };
        let dv = self.v.shape[3];
        let (q, s, o, add) = (next(x.d), next(Self::block_rows(x.d, dv)), next(dv), next(ROWS));
        let (top, sum, fade) = (next(1), next(1), next(1));
        Parts { q, s, o, add, top, sum, fade, rest: next(0) }
    }

    /// The key head.
    pub fn shared_head(&self) -> [usize; 2] {
        let [b, h] = self.at;
        [b, h / self.scores.sizes().group]
    }

    /// The block of scores with keys `j..j + rows`.
    pub fn block(&self, j: usize, rows: usize) -> Block {
        let lanes = self.to - self.from;
        Block { at: self.at, row: j, rows, lane: self.from, lanes, keys_in_lanes: false }
    }

    /// Rows of k or v (`[b, hkv, t, _]`) from key `j` on.
    ///
    /// # Safety
    /// The view is valid and the key within it.
    pub unsafe fn keys(&self, x: &View<T, 4>, j: usize) -> Spread<T> {
        let [b, h] = self.shared_head();
        // SAFETY: within the view.
        Spread { ptr: unsafe { x.at([b, h, j, 0]) }, row: x.strides[2], inner: x.strides[3] }
    }

    /// Packs queries (rows of `[b, hq, s, _]`) as `[d][lanes]`.
    ///
    /// # Safety
    /// The view is valid, and `to` has room.
    #[inline(always)]
    pub unsafe fn pack<V: Lanes<T = T>>(&self, x: &View<T, 4>, to: *mut T, factor: T) {
        let [b, h] = self.at;
        // SAFETY: the queries are within the view.
        unsafe { pack_lanes::<V>(x, [b, h], self.from, self.to, to, factor) }
    }

    /// Computes a block of scores into `to`.
    ///
    /// # Safety
    /// The views are valid, the block within them, and the parts are those of this block.
    #[inline(always)]
    pub unsafe fn score<V: Lanes<T = T>>(
        &self,
        x: &Block,
        p: &Parts<T>,
        to: *mut T,
        addend: Option<Addend<T>>,
        bend: *mut T,
    ) {
        let vectors = x.lanes.div_ceil(V::N);
        // SAFETY: passes on the contract.
        unsafe {
            let k = self.keys(&self.scores.k, x.row);
            panel::<V>(to, x.rows, k, self.scores.sizes().d, p.q, vectors, Start::Zero);
            self.scores.finish::<V>(x, to, addend, bend);
        }
    }

    /// Goes over all keys; leaves the greatest scores, the sums of weights and the weighted sums of v.
    ///
    /// # Safety
    /// The views and the scratch space are valid.
    #[inline(always)]
    pub unsafe fn gather<V: Lanes<T = T>>(&self, p: &Parts<T>) {
        let dv = self.v.shape[3];
        let vectors = (self.to - self.from).div_ceil(V::N);
        let width = vectors * V::N;
        // SAFETY: passes on the contract; the parts hold rows of at most LANES >= width elements.
        unsafe {
            self.pack::<V>(&self.scores.q, p.q, T::of(self.scores.factor()));
            for v in (0..width).step_by(V::N) {
                V::splat(T::NEG_INFINITY).store(p.top.add(v));
                V::of(0.0).store(p.sum.add(v));
                for c in 0..dv {
                    V::of(0.0).store(p.o.add(c * width + v));
                }
            }
            let (mut j, end) = self.scores.keys_of(self.from, self.to);
            while j < end {
                let mut block = self.block(j, ROWS.min(end - j));
                j += block.rows;
                let addend = self.scores.addend::<V>(&block, p.add);
                if addend.is_some_and(|a| a.nothing) {
                    continue;
                }
                let addend = addend.and_then(|a| a.trim(&mut block));
                self.score::<V>(&block, p, p.s, addend, std::ptr::null_mut());
                softmax::<V>(p, block.rows, width);
                let v = self.keys(&self.v, block.row);
                let v = Spread { row: v.inner, inner: v.row, ..v };
                let times = Start::Times(p.fade.cast_const());
                let hides = addend.is_some_and(|a| a.hides) || self.scores.is_partial(&block);
                if hides && !all_finite::<V>(v, dv, block.rows) {
                    careful_panel::<V>(p.o, dv, v, block.rows, p.s, vectors, times);
                } else {
                    panel::<V>(p.o, dv, v, block.rows, p.s, vectors, times);
                }
            }
        }
    }
}

/// One step of the online softmax: scores become weights against the greatest score so far.
#[inline(always)]
unsafe fn softmax<V: Lanes>(p: &Parts<V::T>, rows: usize, width: usize) {
    let lowest = V::splat(V::T::MIN);
    for v in (0..width).step_by(V::N) {
        // SAFETY: within the block.
        unsafe {
            let before = V::load(p.top.add(v));
            // Four at a time, for one long chain would wait on itself.
            let mut tops = [before; 4];
            for r in (0..rows).step_by(tops.len()) {
                for (i, top) in tops.iter_mut().enumerate() {
                    *top = V::load(p.s.add((r + i).min(rows - 1) * width + v)).max(*top);
                }
            }
            let [a, b, c, d] = tops;
            let top = a.max(b).max(c.max(d));
            top.store(p.top.add(v));
            // Where nothing was seen yet, the greatest score is −inf, and all weights must be 0.
            let base = top.if_less(lowest, V::of(0.0), top);
            let fade = (before - base).exp2();
            fade.store(p.fade.add(v));
            let mut sum = V::load(p.sum.add(v)) * fade;
            for r in 0..rows {
                let at = p.s.add(r * width + v);
                let weight = (V::load(at) - base).exp2();
                weight.store(at);
                sum = sum + weight;
            }
            sum.store(p.sum.add(v));
        }
    }
}

/// Packs rows `from..to` of a head of `[b, h, _, d]` as `[d][lanes]`, 0 in lanes that are not used.
///
/// # Safety
/// The view is valid, and `out` holds d rows of whole vectors.
#[inline(always)]
pub(super) unsafe fn pack_lanes<V: Lanes>(
    x: &View<V::T, 4>,
    [b, h]: [usize; 2],
    from: usize,
    to: usize,
    out: *mut V::T,
    factor: V::T,
) {
    let (lanes, d) = (to - from, x.shape[3]);
    let width = lanes.next_multiple_of(V::N);
    // SAFETY: passes on the contract.
    unsafe {
        let rows = Matrix { ptr: x.at([b, h, from, 0]), strides: [x.strides[3], x.strides[2]] };
        copy_scaled(rows, Matrix { ptr: out, strides: [width as isize, 1] }, [d, lanes], factor);
        for c in 0..d {
            for l in lanes..width {
                *out.add(c * width + l) = V::T::ZERO;
            }
        }
    }
}

/// The reverse: writes `[d][lanes]` to rows `from..to` of a head.
///
/// # Safety
/// As for [`pack_lanes`], and nobody else touches those rows.
#[inline(always)]
pub(super) unsafe fn unpack_lanes<V: Lanes>(
    from_lanes: *mut V::T,
    x: &View<V::T, 4>,
    [b, h]: [usize; 2],
    from: usize,
    to: usize,
    factor: V::T,
) {
    let (lanes, d) = (to - from, x.shape[3]);
    let width = lanes.next_multiple_of(V::N) as isize;
    // SAFETY: passes on the contract.
    unsafe {
        let rows = Matrix { ptr: x.at([b, h, from, 0]), strides: [x.strides[2], x.strides[3]] };
        copy_scaled(Matrix { ptr: from_lanes, strides: [1, width] }, rows, [lanes, d], factor);
    }
}

struct WideTask<'a, T> {
    wide: Wide<'a, T>,
    out: Out<'a, T>,
    worker: usize,
}

impl<T: Real> Kernel<T> for WideTask<'_, T> {
    #[inline(always)]
    fn run<V: Lanes<T = T>>(self) {
        let w = &self.wide;
        let p = w.parts();
        let width = (w.to - w.from).next_multiple_of(V::N);
        // SAFETY: `Attention::run` has valid views and scratch, and only this task writes these rows of the result.
        unsafe {
            w.gather::<V>(&p);
            for v in (0..width).step_by(V::N) {
                let sum = V::load(p.sum.add(v));
                let share = V::of(0.0).if_less(sum, V::of(1.0) / sum, sum);
                share.store(p.fade.add(v));
            }
            for c in 0..w.v.shape[3] {
                for v in (0..width).step_by(V::N) {
                    let at = p.o.add(c * width + v);
                    (V::load(at) * V::load(p.fade.add(v))).store(at);
                }
            }
            match self.out {
                Out::Direct(y) => unpack_lanes::<V>(p.o, &y, w.at, w.from, w.to, T::of(1.0)),
                Out::Sink(sink) => {
                    let (lanes, dv, [b, h]) = (w.to - w.from, w.v.shape[3], w.at);
                    let from = Matrix { ptr: p.o, strides: [1, width as isize] };
                    let to = Matrix { ptr: p.q, strides: [dv as isize, 1] };
                    copy_scaled(from, to, [lanes, dv], T::of(1.0));
                    let head = b * w.scores.sizes().hq + h;
                    sink.block(self.worker, head, w.from..w.to, 0..dv, p.q, dv);
                }
            }
        }
    }
}

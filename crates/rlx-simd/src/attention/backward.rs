//! The gradients. Three passes, each free of races and of an order of its own:
//!
//! 1. for each block of queries: the softmax once more, which leaves a few numbers for each query, and from them dq;
//! 2. for each block of keys: dk and dv, over all queries that see them;
//! 3. where they are asked for: dbias for each block of the bias, dslopes.
//!
//! The scores are computed anew in each pass, so that nothing as large as they are is ever kept.

use super::forward::{Parts, Wide, pack_lanes, unpack_lanes};
use super::lanes::{Kernel, Lanes};
use super::panel::{Spread, Start, all_finite, careful_panel, panel};
use super::{Addend, Block, LANES, ROWS, Real, Scores};
use crate::level::Level;
use crate::mem::{Ptr, Scratch, ScratchSize, View};
use crate::pool::Pool;

/// The gradients of [`Attention`](super::Attention).
#[derive(Clone, Copy, Debug)]
pub struct AttentionGrad<T> {
    /// The scores.
    pub scores: Scores<T>,
    /// `[b, hkv, t, dv]`.
    pub v: View<T, 4>,
    /// The gradient of the result, `[b, hq, s, dv]`.
    pub dy: View<T, 4>,
    /// The gradient of q.
    pub dq: View<T, 4>,
    /// The gradient of k.
    pub dk: View<T, 4>,
    /// The gradient of v.
    pub dv: View<T, 4>,
    /// The gradient of the bias, in the bias's own shape: 1 along an axis where it is repeated.
    pub dbias: Option<View<T, 4>>,
    /// The gradient of the slopes, `[b, hq]` or `[1, hq]`.
    pub dslopes: Option<View<T, 2>>,
}

/// What the first pass leaves for each query: planes of `[b, hq, s]`.
#[derive(Clone, Copy)]
enum Plane {
    /// The greatest score, 0 if there is none.
    Base,
    /// 1 / Σ 2^(score − base), 0 if nothing is seen.
    Share,
    /// Σ dy · y.
    Delta,
    /// Σ −|distance| · ds.
    Near,
}

impl<T: Real> AttentionGrad<T> {
    fn each_len(&self) -> usize {
        (2 * self.scores.sizes().d + 2 * self.v.shape[3] + 5 * ROWS + 8) * LANES
    }
    fn plane_len(&self) -> usize {
        let x = self.scores.sizes();
        x.b * x.hq * x.s
    }

    /// The scratch space of a run.
    pub fn scratch(&self) -> ScratchSize {
        ScratchSize { each: self.each_len() * size_of::<T>(), shared: 4 * self.plane_len() * size_of::<T>() }
    }

    /// Computes the gradients.
    ///
    /// # Safety
    /// The views are valid for their shapes, the gradients overlap no other, and nobody else touches them meanwhile.
    pub unsafe fn run(&self, level: Level, pool: &Pool, scratch: &Scratch) {
        let x = self.scores.sizes();
        let shared = Ptr(scratch.shared::<T>(4 * self.plane_len()));
        let each = |worker: usize| Ptr(scratch.each::<T>(worker, self.each_len()));
        let (blocks, heads) = (x.s.div_ceil(LANES), x.b * x.hq);
        pool.run(heads * blocks, |task, worker| {
            let (head, block) = (task / blocks, blocks - 1 - task % blocks);
            let at = [head / x.hq, head % x.hq];
            T::at_level(level, QueryTask(self.rows(at, block * LANES, each(worker), shared)));
        });
        let (blocks, heads) = (x.t.div_ceil(LANES), x.b * x.hkv);
        pool.run(heads * blocks, |task, worker| {
            let (head, from) = (task / blocks, task % blocks * LANES);
            let at = [head / x.hkv, head % x.hkv];
            let to = (from + LANES).min(x.t);
            T::at_level(level, KeyTask { grad: self, at, from, to, each: each(worker), shared });
        });
        if let Some(dbias) = self.dbias {
            let [b, h, s, t] = dbias.shape;
            let whole = [s == x.s && s != 1, t == x.t && t != 1];
            let blocks =
                [if whole[0] { s.div_ceil(LANES) } else { s }, if whole[1] { t.div_ceil(ROWS) } else { t }];
            pool.run(b * h * blocks[0] * blocks[1], |task, worker| {
                let block = [task / blocks[1] % blocks[0], task % blocks[1]];
                let head = task / (blocks[0] * blocks[1]);
                let at = [head / h, head % h];
                T::at_level(
                    level,
                    BiasTask { grad: self, dbias, whole, at, block, each: each(worker), shared },
                );
            });
        }
        if let Some(dslopes) = self.dslopes {
            let [b, h] = dslopes.shape;
            pool.run(b * h, |task, _| {
                let at = [task / h, task % h];
                // SAFETY: the first pass is complete, and only this task writes the element.
                unsafe {
                    let mut total = 0.0;
                    for batch in if b == x.b { at[0]..at[0] + 1 } else { 0..x.b } {
                        let near = self.plane(shared, Plane::Near, [batch, at[1]], 0);
                        total += (0..x.s).map(|i| (*near.add(i)).wide()).sum::<f64>();
                    }
                    *dslopes.at(at) = T::of(total);
                }
            });
        }
    }

    /// The numbers of a head from query `i` on.
    unsafe fn plane(&self, shared: Ptr<T>, plane: Plane, [b, h]: [usize; 2], i: usize) -> *mut T {
        let x = self.scores.sizes();
        // SAFETY: the caller names a query within the sizes.
        unsafe { shared.0.add(plane as usize * self.plane_len() + (b * x.hq + h) * x.s + i) }
    }

    /// The queries from `from` on, as lanes.
    fn rows(&self, at: [usize; 2], from: usize, each: Ptr<T>, shared: Ptr<T>) -> Rows<'_, T> {
        let to = (from + LANES).min(self.scores.sizes().s);
        let wide = Wide { scores: &self.scores, v: self.v, at, from, to, each };
        let p = wide.parts();
        let mut rest = p.rest;
        let mut next = |rows: usize| {
            let part = rest;
            rest = rest.wrapping_add(rows * LANES);
            part
        };
        let (dy, ds, bend) = (next(self.v.shape[3]), next(ROWS), next(ROWS));
        let (delta, near) = (next(1), next(1));
        Rows { grad: self, wide, p, dy, ds, bend, delta, near, rest: next(0), shared }
    }
}

/// A block of queries of one head, as lanes, and what their gradients need.
struct Rows<'a, T> {
    grad: &'a AttentionGrad<T>,
    wide: Wide<'a, T>,
    p: Parts<T>,
    /// dy as `[dv][lanes]`.
    dy: *mut T,
    /// A block of the gradient of the scores.
    ds: *mut T,
    /// The derivative of the soft cap.
    bend: *mut T,
    delta: *mut T,
    near: *mut T,
    /// What is left: room for d or `ROWS` rows.
    rest: *mut T,
    shared: Ptr<T>,
}

impl<T: Real> Rows<'_, T> {
    fn vectors<V: Lanes>(&self) -> usize {
        (self.wide.to - self.wide.from).div_ceil(V::N)
    }

    /// Reads or writes a plane's numbers of these queries.
    #[inline(always)]
    unsafe fn exchange<V: Lanes<T = T>>(&self, plane: Plane, lanes: *mut T, write: bool) {
        let n = self.wide.to - self.wide.from;
        // SAFETY: the queries are within the plane, and only this task writes them.
        unsafe {
            let there = self.grad.plane(self.shared, plane, self.wide.at, self.wide.from);
            if write {
                std::ptr::copy_nonoverlapping(lanes, there, n);
            } else {
                std::ptr::copy_nonoverlapping(there, lanes, n);
                (n..self.vectors::<V>() * V::N).for_each(|l| *lanes.add(l) = T::ZERO);
            }
        }
    }

    /// Computes ds of a block, before it goes through the bend; `base`, `share` and `delta` are in `p.top`, `p.sum` and
    /// `delta`.
    #[inline(always)]
    unsafe fn score_grads<V: Lanes<T = T>>(&self, x: &Block, addend: Option<Addend<T>>) {
        let (p, vectors) = (&self.p, self.vectors::<V>());
        let width = vectors * V::N;
        // SAFETY: the parts have room for a block, and the views are valid.
        unsafe {
            self.wide.score::<V>(x, p, p.s, addend, self.bend);
            let v = self.wide.keys(&self.grad.v, x.row);
            panel::<V>(self.ds, x.rows, v, self.grad.v.shape[3], self.dy, vectors, Start::Zero);
            for v in (0..width).step_by(V::N) {
                let [base, share, delta] = [p.top, p.sum, self.delta].map(|x| V::load(x.add(v)));
                for r in 0..x.rows {
                    let o = r * width + v;
                    let weight = (V::load(p.s.add(o)) - base).exp2() * share;
                    through(weight, V::load(self.ds.add(o)) - delta).store(self.ds.add(o));
                }
            }
        }
    }
}

/// weight · x, and 0 where the weight is, whatever x.
#[inline(always)]
fn through<V: Lanes>(weight: V, x: V) -> V {
    weight.if_less(V::of(f64::from(f32::MIN_POSITIVE)), V::of(0.0), weight * x)
}

/// The first pass.
struct QueryTask<'a, T>(Rows<'a, T>);

impl<T: Real> Kernel<T> for QueryTask<'_, T> {
    #[inline(always)]
    fn run<V: Lanes<T = T>>(self) {
        let x = self.0;
        let (w, p, vectors) = (&x.wide, &x.p, x.vectors::<V>());
        let (width, scores, d) = (vectors * V::N, w.scores, w.scores.sizes().d);
        let zero = V::of(0.0);
        // SAFETY: `AttentionGrad::run` has valid views and scratch, and these queries are this task's alone.
        unsafe {
            w.gather::<V>(p);
            w.pack::<V>(&x.grad.dy, x.dy, T::of(1.0));
            for v in (0..width).step_by(V::N) {
                let (top, sum) = (V::load(p.top.add(v)), V::load(p.sum.add(v)));
                top.if_less(V::splat(T::MIN), zero, top).store(p.top.add(v));
                let share = zero.if_less(sum, V::of(1.0) / sum, sum);
                share.store(p.sum.add(v));
                let mut delta = zero;
                for c in 0..x.grad.v.shape[3] {
                    delta = V::load(p.o.add(c * width + v)).fma(V::load(x.dy.add(c * width + v)), delta);
                }
                (delta * share).store(x.delta.add(v));
                zero.store(x.near.add(v));
            }
            let dq = x.rest;
            for i in (0..d * width).step_by(V::N) {
                zero.store(dq.add(i));
            }
            let (mut j, end) = scores.keys_of(w.from, w.to);
            while j < end {
                let mut block = w.block(j, ROWS.min(end - j));
                j += block.rows;
                let addend = scores.addend::<V>(&block, p.add);
                if addend.is_some_and(|a| a.nothing) {
                    continue;
                }
                let addend = addend.and_then(|a| a.trim(&mut block));
                x.score_grads::<V>(&block, addend);
                if scores.slopes.is_some() {
                    for v in (0..width).step_by(V::N) {
                        let mut near = V::load(x.near.add(v));
                        for r in 0..block.rows {
                            let far = scores.distance::<V>(&block, r, v).abs();
                            near = near - far * V::load(x.ds.add(r * width + v));
                        }
                        near.store(x.near.add(v));
                    }
                }
                if scores.softcap.is_some() {
                    for i in (0..block.rows * width).step_by(V::N) {
                        (V::load(x.ds.add(i)) * V::load(x.bend.add(i))).store(x.ds.add(i));
                    }
                }
                let k = w.keys(&scores.k, block.row);
                let k = Spread { row: k.inner, inner: k.row, ..k };
                let hides = addend.is_some_and(|a| a.hides) || scores.is_partial(&block);
                if hides && !all_finite::<V>(k, d, block.rows) {
                    careful_panel::<V>(dq, d, k, block.rows, x.ds, vectors, Start::There);
                } else {
                    panel::<V>(dq, d, k, block.rows, x.ds, vectors, Start::There);
                }
            }
            unpack_lanes::<V>(dq, &x.grad.dq, w.at, w.from, w.to, T::of(scores.scale));
            let planes =
                [(Plane::Base, p.top), (Plane::Share, p.sum), (Plane::Delta, x.delta), (Plane::Near, x.near)];
            for (plane, lanes) in planes {
                x.exchange::<V>(plane, lanes, true);
            }
        }
    }
}

/// The second pass: the keys `from..to` of a key head, as lanes.
struct KeyTask<'a, T> {
    grad: &'a AttentionGrad<T>,
    at: [usize; 2],
    from: usize,
    to: usize,
    each: Ptr<T>,
    shared: Ptr<T>,
}

impl<T: Real> Kernel<T> for KeyTask<'_, T> {
    #[inline(always)]
    fn run<V: Lanes<T = T>>(self) {
        let (g, scores) = (self.grad, &self.grad.scores);
        let x = scores.sizes();
        let d_v = g.v.shape[3];
        let vectors = (self.to - self.from).div_ceil(V::N);
        let width = vectors * V::N;
        let [b, hkv] = self.at;
        let mut rest = self.each.0;
        let mut next = |rows: usize| {
            let part = rest;
            rest = rest.wrapping_add(rows * LANES);
            part
        };
        let (k, v, dk, dv) = (next(x.d), next(d_v), next(x.d), next(d_v));
        let (s, ds, bend, add) = (next(ROWS), next(ROWS), next(ROWS), next(ROWS));
        // SAFETY: `AttentionGrad::run` has valid views and scratch, these keys are this task's alone, and the first pass
        // is complete.
        unsafe {
            pack_lanes::<V>(&scores.k, self.at, self.from, self.to, k, T::of(scores.factor()));
            pack_lanes::<V>(&g.v, self.at, self.from, self.to, v, T::of(1.0));
            for i in (0..x.d * width).step_by(V::N) {
                V::of(0.0).store(dk.add(i));
            }
            for i in (0..d_v * width).step_by(V::N) {
                V::of(0.0).store(dv.add(i));
            }
            let (low, high) = scores.queries_of(self.from, self.to);
            for h in hkv * x.group..(hkv + 1) * x.group {
                let mut i = low;
                while i < high {
                    let (rows, lanes) = (ROWS.min(high - i), self.to - self.from);
                    let block =
                        Block { at: [b, h], row: i, rows, lane: self.from, lanes, keys_in_lanes: true };
                    i += rows;
                    let addend = scores.addend::<V>(&block, add);
                    if addend.is_some_and(|a| a.nothing) {
                        continue;
                    }
                    let of = |x: &View<T, 4>| Spread {
                        ptr: x.at([b, h, block.row, 0]).cast_const(),
                        row: x.strides[2],
                        inner: x.strides[3],
                    };
                    let (q, dy) = (of(&scores.q), of(&g.dy));
                    panel::<V>(s, rows, q, x.d, k, vectors, Start::Zero);
                    scores.finish::<V>(&block, s, addend, bend);
                    panel::<V>(ds, rows, dy, d_v, v, vectors, Start::Zero);
                    let [base, share, delta] = [Plane::Base, Plane::Share, Plane::Delta]
                        .map(|plane| g.plane(self.shared, plane, block.at, block.row));
                    for r in 0..rows {
                        let [base, share, delta] = [base, share, delta].map(|x| V::splat(*x.add(r)));
                        for v in (0..width).step_by(V::N) {
                            let o = r * width + v;
                            let weight = (V::load(s.add(o)) - base).exp2() * share;
                            weight.store(s.add(o));
                            let mut x = through(weight, V::load(ds.add(o)) - delta);
                            if scores.softcap.is_some() {
                                x = x * V::load(bend.add(o));
                            }
                            x.store(ds.add(o));
                        }
                    }
                    let turned = |x: Spread<T>| Spread { row: x.inner, inner: x.row, ..x };
                    panel::<V>(dv, d_v, turned(dy), rows, s, vectors, Start::There);
                    panel::<V>(dk, x.d, turned(q), rows, ds, vectors, Start::There);
                }
            }
            unpack_lanes::<V>(dk, &g.dk, self.at, self.from, self.to, T::of(scores.scale));
            unpack_lanes::<V>(dv, &g.dv, self.at, self.from, self.to, T::of(1.0));
        }
    }
}

/// The third pass: a block of the bias, over everything that it is repeated along.
struct BiasTask<'a, T> {
    grad: &'a AttentionGrad<T>,
    dbias: View<T, 4>,
    /// Whether the bias has its own numbers along the queries and along the keys.
    whole: [bool; 2],
    at: [usize; 2],
    /// The block of queries and of keys.
    block: [usize; 2],
    each: Ptr<T>,
    shared: Ptr<T>,
}

impl<T: Real> Kernel<T> for BiasTask<'_, T> {
    #[inline(always)]
    fn run<V: Lanes<T = T>>(self) {
        let (g, scores) = (self.grad, &self.grad.scores);
        let x = scores.sizes();
        let [own_b, own_h, ..] = self.dbias.shape;
        let along = |own: usize, all: usize, i: usize| if own == all { i..i + 1 } else { 0..all };
        let blocks = |whole: bool, i: usize, all: usize, size: usize| {
            if whole { i..i + 1 } else { 0..all.div_ceil(size) }
        };
        let [i, j] = self.block;
        // SAFETY: `AttentionGrad::run` has valid views and scratch, this block is this task's alone, and the first pass
        // is complete. The sums have rows of LANES elements.
        unsafe {
            let total = self.each.0.add(self.grad.each_len() - ROWS * LANES);
            (0..ROWS * LANES).for_each(|i| *total.add(i) = T::ZERO);
            for b in along(own_b, x.b, self.at[0]) {
                for h in along(own_h, x.hq, self.at[1]) {
                    for i in blocks(self.whole[0], i, x.s, LANES) {
                        let rows = g.rows([b, h], i * LANES, self.each, self.shared);
                        let (w, p) = (&rows.wide, &rows.p);
                        w.pack::<V>(&scores.q, p.q, T::of(scores.factor()));
                        w.pack::<V>(&g.dy, rows.dy, T::of(1.0));
                        rows.exchange::<V>(Plane::Base, p.top, false);
                        rows.exchange::<V>(Plane::Share, p.sum, false);
                        rows.exchange::<V>(Plane::Delta, rows.delta, false);
                        let width = rows.vectors::<V>() * V::N;
                        let (low, high) = scores.keys_of(w.from, w.to);
                        for j in blocks(self.whole[1], j, x.t, ROWS) {
                            let block = w.block(j * ROWS, ROWS.min(x.t - j * ROWS));
                            if block.row >= high || block.row + block.rows <= low {
                                continue;
                            }
                            let addend = scores.addend::<V>(&block, p.add);
                            if addend.is_some_and(|a| a.nothing) {
                                continue;
                            }
                            rows.score_grads::<V>(&block, addend);
                            for r in 0..block.rows {
                                for v in (0..width).step_by(V::N) {
                                    let to = total.add(r * LANES + v);
                                    (V::load(to) + V::load(rows.ds.add(r * width + v))).store(to);
                                }
                            }
                        }
                    }
                }
            }
            self.write(total, [i * LANES, j * ROWS]);
        }
    }
}

impl<T: Real> BiasTask<'_, T> {
    /// Writes the sums, added up along the axes where the bias is repeated.
    unsafe fn write(&self, total: *mut T, [i, j]: [usize; 2]) {
        let [.., s, t] = self.dbias.shape;
        let [b, h] = self.at;
        let (lanes, rows) = (LANES.min(s - i), ROWS.min(t - j));
        // SAFETY: the sums are a block, and the block is within the view.
        unsafe {
            if !self.whole[1] {
                for r in 1..ROWS {
                    for l in 0..LANES {
                        *total.add(l) = *total.add(l) + *total.add(r * LANES + l);
                    }
                }
            }
            for r in 0..rows {
                let row = total.add(r * LANES);
                if !self.whole[0] {
                    for l in 1..LANES {
                        *row = *row + *row.add(l);
                    }
                }
                for l in 0..lanes {
                    *self.dbias.at([b, h, i + l, j + r]) = *row.add(l);
                }
            }
        }
    }
}

//! The gradients of the selective scan.
//!
//! A task has some channels of a sequence. It first goes forward and keeps the states at the starts of chunks of about
//! √s steps; then it goes through the chunks from the last to the first, computes the states of each once more, and
//! takes the gradients back through it. What is summed over channels (dB, dC) or over batches (dA, dD, dbias) is left
//! in parts, which a second pass adds up in their order.

use std::f64::consts::LN_2;

use super::forward::{Chunk, Rows, load_channels};
use super::{ScanInputs, fetch, get, put, vectors};
use crate::attention::Real;
use crate::attention::lanes::{Kernel, Lanes, MAX_LANES};
use crate::level::Level;
use crate::mem::{Ptr, Scratch, ScratchSize, View};
use crate::pool::Pool;

/// The least channels of a task, fewer if there would be few tasks.
const CHANNELS: usize = 64;
/// With as many tasks all threads have enough to do; and at most as many parts of dB and dC are kept for a batch.
const ENOUGH: usize = 16;
/// Elements of a task that adds up parts.
const SUMS: usize = 2048;

/// The gradients of [`SelectiveScan`](super::SelectiveScan), in the shapes of their operands.
#[derive(Clone, Copy, Debug)]
pub struct SelectiveScanGrad<T> {
    /// What the recurrence is made of.
    pub inputs: ScanInputs<T>,
    /// The gradient of y.
    pub dy: View<T, 3>,
    /// The gradient of the last state; 0 without.
    pub dlast: Option<View<T, 3>>,
    /// The gradient of x.
    pub dx: View<T, 3>,
    /// The gradient of delta.
    pub ddelta: View<T, 3>,
    /// The gradient of A.
    pub da: View<T, 2>,
    /// The gradient of B.
    pub db: View<T, 3>,
    /// The gradient of C.
    pub dc: View<T, 3>,
    /// The gradient of the skip.
    pub dd: Option<View<T, 1>>,
    /// The gradient of the gate.
    pub dz: Option<View<T, 3>>,
    /// The gradient of delta's bias.
    pub ddelta_bias: Option<View<T, 1>>,
    /// The gradient of the first state.
    pub dstate: Option<View<T, 3>>,
}

/// How the work is cut, by the sizes alone.
#[derive(Clone, Copy)]
struct Plan {
    /// Channels of a task, and how many blocks of them there are.
    channels: usize,
    blocks: usize,
    /// Steps of a chunk, and how many chunks there are.
    steps: usize,
    chunks: usize,
    /// All channels, rounded up to whole vectors.
    padded: usize,
}

/// The parts in the shared scratch space.
#[derive(Clone, Copy)]
struct Shared<T> {
    /// `[b, blocks, s, n]`.
    db: Ptr<T>,
    dc: Ptr<T>,
    /// `[b, n, padded]`.
    da: Ptr<T>,
    /// `[b, padded]`.
    dd: Ptr<T>,
    dbias: Ptr<T>,
}

impl<T: Real> SelectiveScanGrad<T> {
    fn plan(&self) -> Plan {
        let x = self.inputs.sizes();
        let channels = if x.b * x.h.div_ceil(CHANNELS) < ENOUGH {
            MAX_LANES
        } else {
            CHANNELS.max(x.h.div_ceil(ENOUGH).next_multiple_of(MAX_LANES))
        };
        let steps = ((x.s as f64).sqrt().ceil() as usize).max(MAX_LANES);
        let padded = x.h.next_multiple_of(MAX_LANES);
        Plan { channels, blocks: x.h.div_ceil(channels), steps, chunks: x.s.div_ceil(steps), padded }
    }

    /// Elements of scratch for a worker: `n` rows for A, the state, its gradient, dA and each chunk's start, rows for
    /// the steps' numbers, and the states, decays and sums of one vector.
    fn each_len(&self) -> usize {
        let (p, n) = (self.plan(), self.inputs.sizes().n);
        ((4 + p.chunks) * n + ROWS * p.steps + 2) * p.channels + (4 * p.steps + 1) * n * MAX_LANES
    }

    fn shared_lens(&self) -> [usize; 5] {
        let (p, x) = (self.plan(), self.inputs.sizes());
        let rows = x.b * p.padded;
        [x.b * p.blocks * x.s * x.n, x.b * p.blocks * x.s * x.n, rows * x.n, rows, rows]
    }

    /// The scratch space of a run.
    pub fn scratch(&self) -> ScratchSize {
        let shared: usize = self.shared_lens().iter().sum();
        ScratchSize { each: self.each_len() * size_of::<T>(), shared: shared * size_of::<T>() }
    }

    /// Computes the gradients.
    ///
    /// # Safety
    /// The views are valid for their shapes, the gradients overlap no other, and nobody else touches them meanwhile.
    pub unsafe fn run(&self, level: Level, pool: &Pool, scratch: &Scratch) {
        let (p, x) = (self.plan(), self.inputs.sizes());
        let lens = self.shared_lens();
        let mut rest = scratch.shared::<T>(lens.iter().sum());
        let [db, dc, da, dd, dbias] = lens.map(|len| {
            let part = Ptr(rest);
            rest = rest.wrapping_add(len);
            part
        });
        let shared = Shared { db, dc, da, dd, dbias };
        pool.run(x.b * p.blocks, |task, worker| {
            let each = Ptr(scratch.each::<T>(worker, self.each_len()));
            let (batch, block) = (task / p.blocks, task % p.blocks);
            let from = block * p.channels;
            let to = (from + p.channels).min(x.h);
            T::at_level(level, Task { grad: self, plan: p, batch, block, from, to, each, shared });
        });
        let pieces = (x.s * x.n).div_ceil(SUMS);
        pool.run(x.b * pieces, |task, _| {
            let (batch, from) = (task / pieces, task % pieces * SUMS);
            for i in from..(from + SUMS).min(x.s * x.n) {
                for (parts, to) in [(db, &self.db), (dc, &self.dc)] {
                    // SAFETY: the first pass is complete, and only this task writes these elements.
                    unsafe {
                        let part = |block: usize| *parts.0.add((batch * p.blocks + block) * x.s * x.n + i);
                        *to.at([batch, i / x.n, i % x.n]) =
                            (0..p.blocks).fold(T::ZERO, |sum, b| sum + part(b));
                    }
                }
            }
        });
        pool.run(x.h.div_ceil(CHANNELS), |task, _| {
            for h in task * CHANNELS..((task + 1) * CHANNELS).min(x.h) {
                // SAFETY: as above.
                unsafe {
                    let total = |parts: Ptr<T>, rows: usize, row: usize| {
                        (0..x.b).fold(T::ZERO, |sum, b| sum + *parts.0.add((b * rows + row) * p.padded + h))
                    };
                    for n in 0..x.n {
                        *self.da.at([h, n]) = total(da, x.n, n);
                    }
                    for (to, parts) in [(&self.dd, dd), (&self.ddelta_bias, dbias)] {
                        if let Some(to) = to {
                            *to.at([h]) = total(parts, 1, 0);
                        }
                    }
                }
            }
        });
    }
}

/// The channels `from..to` of a sequence.
struct Task<'a, T> {
    grad: &'a SelectiveScanGrad<T>,
    plan: Plan,
    batch: usize,
    block: usize,
    from: usize,
    to: usize,
    each: Ptr<T>,
    shared: Shared<T>,
}

/// The numbers of the steps of a chunk that [`Local`] has a row for each.
const ROWS: usize = 7;

/// The scratch space of a task, with rows of `channels` elements.
#[derive(Clone, Copy)]
struct Local<T> {
    /// `[n]`: A times log2 e, the state, the gradient of the state, that of A.
    a: *mut T,
    state: *mut T,
    ds: *mut T,
    da: *mut T,
    /// `[1]`.
    dd: *mut T,
    dbias: *mut T,
    /// `[chunks][n]`.
    starts: *mut T,
    /// `[steps]`: the time step and its derivative by delta; the input, and that times the step; the result; its
    /// gradient before the gate; what the gate's gradient has beside the result.
    dt: *mut T,
    slope: *mut T,
    x: *mut T,
    dtx: *mut T,
    y: *mut T,
    dy: *mut T,
    gate: *mut T,
    /// Of one vector, `[steps + 1][n]` and `[steps][n]`: the states, the decays, and the sums for dB and dC over the
    /// vectors.
    states: *mut T,
    decay: *mut T,
    db: *mut T,
    dc: *mut T,
}

impl<T: Real> Task<'_, T> {
    fn local(&self) -> Local<T> {
        let (p, n) = (self.plan, self.grad.inputs.sizes().n);
        let mut rest = self.each.0;
        let mut next = |len: usize| {
            let part = rest;
            rest = rest.wrapping_add(len);
            part
        };
        let [a, state, ds, da] = [(); 4].map(|_| next(n * p.channels));
        let [dd, dbias] = [(); 2].map(|_| next(p.channels));
        let starts = next(p.chunks * n * p.channels);
        let [dt, slope, x, dtx, y, dy, gate] = [(); ROWS].map(|_| next(p.steps * p.channels));
        let states = next((p.steps + 1) * n * MAX_LANES);
        let [decay, db, dc] = [(); 3].map(|_| next(p.steps * n * MAX_LANES));
        Local { a, state, ds, da, dd, dbias, starts, dt, slope, x, dtx, y, dy, gate, states, decay, db, dc }
    }

    /// The numbers of the steps of a chunk; with `back` also those that only the way back needs.
    #[inline(always)]
    unsafe fn prepare<V: Lanes<T = T>>(&self, l: &Local<T>, t0: usize, steps: usize, back: bool) {
        let (g, x, one) = (self.grad, &self.grad.inputs, V::of(1.0));
        // SAFETY: the steps and channels are within the views and the scratch space.
        unsafe {
            for t in 0..steps {
                for (v, h, lanes) in vectors::<V>(self.from, self.to) {
                    let (at, o) = ([self.batch, t0 + t, h], t * self.plan.channels + v);
                    fetch::<V>(&x.x, at);
                    fetch::<V>(&x.delta, at);
                    let (raw, dt) = x.time_step::<V>(at, lanes);
                    let input = get::<V, 3>(&x.x, at, 2, lanes);
                    dt.store(l.dt.add(o));
                    (dt * input).store(l.dtx.add(o));
                    input.store(l.x.add(o));
                    if !back {
                        continue;
                    }
                    (if x.softplus { raw.sigmoid() } else { one }).store(l.slope.add(o));
                    fetch::<V>(&g.dy, at);
                    let mut dy = get::<V, 3>(&g.dy, at, 2, lanes);
                    if let Some(z) = &x.z {
                        let z = get::<V, 3>(z, at, 2, lanes);
                        let s = z.sigmoid();
                        (dy * s * z.fma(one - s, one)).store(l.gate.add(o));
                        dy = dy * z * s;
                    }
                    dy.store(l.dy.add(o));
                    let mut skip = V::of(0.0);
                    if let Some(d) = &x.d {
                        skip = get::<V, 1>(d, [h], 0, lanes) * input;
                    }
                    skip.store(l.y.add(o));
                }
            }
        }
    }

    /// Computes the states and decays of a chunk for one vector, from the chunk's start, and the results.
    #[inline(always)]
    unsafe fn recompute<V: Lanes<T = T>>(&self, l: &Local<T>, chunk: usize, steps: usize, v: usize) {
        let (x, p, all) = (&self.grad.inputs, self.plan, self.grad.inputs.sizes().n);
        // SAFETY: as above.
        unsafe {
            let start = l.starts.add(chunk * all * p.channels + v);
            for n in 0..all {
                V::load(start.add(n * p.channels)).store(l.states.add(n * V::N));
            }
            for t in 0..steps {
                let o = t * p.channels + v;
                let (dt, dtx) = (V::load(l.dt.add(o)), V::load(l.dtx.add(o)));
                let at = [self.batch, chunk * p.steps + t, 0];
                let [b, c] = [&x.b, &x.c].map(|x| x.at(at));
                let mut y = V::load(l.y.add(o));
                for n in 0..all {
                    let from = l.states.add((t * all + n) * V::N);
                    let decay = (dt * V::load(l.a.add(n * p.channels + v))).exp2();
                    let b = V::splat(*b.offset(n as isize * x.b.strides[2]));
                    let c = V::splat(*c.offset(n as isize * x.c.strides[2]));
                    let next = decay.fma(V::load(from), dtx * b);
                    y = next.fma(c, y);
                    next.store(from.add(all * V::N));
                    decay.store(l.decay.add((t * all + n) * V::N));
                }
                y.store(l.y.add(o));
            }
        }
    }

    /// Takes the gradients of one vector back through a chunk.
    #[inline(always)]
    unsafe fn back<V: Lanes<T = T>>(
        &self,
        l: &Local<T>,
        chunk: usize,
        steps: usize,
        (v, h, lanes): (usize, usize, usize),
    ) {
        let (g, x, p) = (self.grad, &self.grad.inputs, self.plan);
        let all = x.sizes().n;
        // SAFETY: as above.
        unsafe {
            for t in (0..steps).rev() {
                let o = t * p.channels + v;
                let at = [self.batch, chunk * p.steps + t, h];
                let [dt, dtx, dy, input] = [l.dt, l.dtx, l.dy, l.x].map(|x| V::load(x.add(o)));
                let [b, c] = [&x.b, &x.c].map(|x| x.at([at[0], at[1], 0]));
                // The gradients of dt · x, and of dt through the decays.
                let (mut of_input, mut of_decays) = (V::of(0.0), V::of(0.0));
                for n in 0..all {
                    let (i, row) = ((t * all + n) * V::N, n * p.channels + v);
                    let b = V::splat(*b.offset(n as isize * x.b.strides[2]));
                    let c = V::splat(*c.offset(n as isize * x.c.strides[2]));
                    let (before, after) = (V::load(l.states.add(i)), V::load(l.states.add(i + all * V::N)));
                    let ds = dy.fma(c, V::load(l.ds.add(row)));
                    dy.fma(after, V::load(l.dc.add(i))).store(l.dc.add(i));
                    ds.fma(dtx, V::load(l.db.add(i))).store(l.db.add(i));
                    of_input = ds.fma(b, of_input);
                    let ds = ds * V::load(l.decay.add(i));
                    ds.store(l.ds.add(row));
                    let through = ds * before;
                    of_decays = through.fma(V::load(l.a.add(row)), of_decays);
                    through.fma(dt, V::load(l.da.add(row))).store(l.da.add(row));
                }
                let mut dx = of_input * dt;
                if let Some(d) = &x.d {
                    dx = dy.fma(get::<V, 1>(d, [h], 0, lanes), dx);
                    dy.fma(input, V::load(l.dd.add(v))).store(l.dd.add(v));
                }
                put(dx, &g.dx, at, 2, lanes);
                // A is kept times log2 e.
                let ddelta = of_decays.fma(V::of(LN_2), of_input * input) * V::load(l.slope.add(o));
                put(ddelta, &g.ddelta, at, 2, lanes);
                (V::load(l.dbias.add(v)) + ddelta).store(l.dbias.add(v));
                if let Some(dz) = &g.dz {
                    put(V::load(l.gate.add(o)) * V::load(l.y.add(o)), dz, at, 2, lanes);
                }
            }
        }
    }

    /// Adds up the lanes of the sums for dB and dC.
    #[inline(always)]
    unsafe fn add_lanes<V: Lanes<T = T>>(&self, l: &Local<T>, t0: usize, steps: usize) {
        let size = self.grad.inputs.sizes();
        let first = ((self.batch * self.plan.blocks + self.block) * size.s + t0) * size.n;
        // SAFETY: the parts have room for every step, and these are this task's alone.
        unsafe {
            for (from, to) in [(l.db, self.shared.db), (l.dc, self.shared.dc)] {
                let (to, count) = (to.0.add(first), steps * size.n);
                for i in (0..count).step_by(V::N) {
                    let mut rows = [V::of(0.0); MAX_LANES];
                    for (r, row) in rows.iter_mut().enumerate().take(V::N.min(count - i)) {
                        *row = V::load(from.add((i + r) * V::N));
                    }
                    let sums = V::sums(&rows);
                    if count - i >= V::N {
                        sums.store(to.add(i))
                    } else {
                        sums.store_part(to.add(i), count - i)
                    }
                }
            }
        }
    }
}

impl<T: Real> Kernel<T> for Task<'_, T> {
    #[inline(always)]
    fn run<V: Lanes<T = T>>(self) {
        let (g, x, p) = (self.grad, &self.grad.inputs, self.plan);
        let (size, l, zero) = (x.sizes(), self.local(), V::of(0.0));
        let row = p.channels;
        // SAFETY: `SelectiveScanGrad::run` has valid views and scratch of the sizes in `local`; these channels, and
        // their parts, are this task's alone.
        unsafe {
            for (v, h, lanes) in vectors::<V>(self.from, self.to) {
                load_channels::<V>(x, self.batch, h, lanes, l.a.add(v), l.state.add(v), row);
                for n in 0..size.n {
                    let last = match &g.dlast {
                        Some(d) => get::<V, 3>(d, [self.batch, h, n], 1, lanes),
                        None => zero,
                    };
                    last.store(l.ds.add(n * row + v));
                    zero.store(l.da.add(n * row + v));
                }
                zero.store(l.dd.add(v));
                zero.store(l.dbias.add(v));
            }
            for chunk in 0..p.chunks {
                std::ptr::copy_nonoverlapping(l.state, l.starts.add(chunk * size.n * row), size.n * row);
                if chunk + 1 == p.chunks {
                    break;
                }
                let t0 = chunk * p.steps;
                self.prepare::<V>(&l, t0, p.steps, false);
                // Only the states matter: the gradient of the skip, still 0, serves as the skip.
                let rows = [l.x, l.dt, l.y].map(|ptr| Rows { ptr, stride: row as isize });
                let forward = Chunk { steps: p.steps, a: l.a, state: l.state, skip: l.dd, rows, width: row };
                for (v, _, _) in vectors::<V>(self.from, self.to) {
                    forward.advance::<V>(x, self.batch, t0, v);
                }
            }
            for chunk in (0..p.chunks).rev() {
                let t0 = chunk * p.steps;
                let steps = p.steps.min(size.s - t0);
                self.prepare::<V>(&l, t0, steps, true);
                for i in (0..steps * size.n * V::N).step_by(V::N) {
                    zero.store(l.db.add(i));
                    zero.store(l.dc.add(i));
                }
                for (v, h, lanes) in vectors::<V>(self.from, self.to) {
                    self.recompute::<V>(&l, chunk, steps, v);
                    self.back::<V>(&l, chunk, steps, (v, h, lanes));
                }
                self.add_lanes::<V>(&l, t0, steps);
            }
            for (v, h, lanes) in vectors::<V>(self.from, self.to) {
                let part = |n: usize| (self.batch * n) * p.padded + h;
                for n in 0..size.n {
                    if let Some(dstate) = &g.dstate {
                        put(V::load(l.ds.add(n * row + v)), dstate, [self.batch, h, n], 1, lanes);
                    }
                    V::load(l.da.add(n * row + v)).store(self.shared.da.0.add(part(size.n) + n * p.padded));
                }
                V::load(l.dd.add(v)).store(self.shared.dd.0.add(part(1)));
                V::load(l.dbias.add(v)).store(self.shared.dbias.0.add(part(1)));
            }
        }
    }
}

//! The selective scan.

use std::f64::consts::LOG2_E;

use super::{ScanInputs, get, put, vectors};
use crate::attention::Real;
use crate::attention::lanes::{Kernel, Lanes};
use crate::level::Level;
use crate::mem::{Ptr, Scratch, ScratchSize, View};
use crate::pool::Pool;
use crate::sink::Sink;

/// Channels of a task, so that rows of memory are read in long runs; fewer if there would be few tasks.
const CHANNELS: usize = 64;
/// With as many tasks all threads have enough to do.
const ENOUGH: usize = 16;
/// Steps of a chunk: its time steps, inputs and results of all channels stay in the L1 cache.
const CHUNK: usize = 32;

/// Where the results of a scan go.
#[derive(Clone, Copy)]
pub enum Out<'a, T> {
    /// To memory, `[b, s, h]`.
    Direct(View<T, 3>),
    /// To a sink, every element once. A row is a time step, a column a channel; no block has more than a few channels
    /// of many, and one worker gets all steps of a channel, in their order.
    Sink(&'a dyn Sink<T>),
}

/// The selective scan of Mamba-1.
#[derive(Clone, Copy)]
pub struct SelectiveScan<'a, T> {
    /// What the recurrence is made of.
    pub inputs: ScanInputs<T>,
    /// The results.
    pub y: Out<'a, T>,
    /// The last state, `[b, h, n]`.
    pub last: Option<View<T, 3>>,
}

impl<T: Real> SelectiveScan<'_, T> {
    fn channels(&self) -> usize {
        let x = self.inputs.sizes();
        if x.b * x.h.div_ceil(CHANNELS) >= ENOUGH { CHANNELS } else { CHANNELS / 4 }
    }
    fn len(&self) -> usize {
        (2 * self.inputs.sizes().n + 3 * CHUNK) * CHANNELS
    }

    /// The scratch space of a run.
    pub fn scratch(&self) -> ScratchSize {
        ScratchSize { each: self.len() * size_of::<T>(), shared: 0 }
    }

    /// Computes y and the last state.
    ///
    /// # Safety
    /// The views are valid for their shapes, y (or what the sink writes to) and the last state overlap no other (the
    /// last state may be the first, element for element), and nobody else touches them meanwhile.
    pub unsafe fn run(&self, level: Level, pool: &Pool, scratch: &Scratch) {
        let (x, channels) = (self.inputs.sizes(), self.channels());
        let blocks = x.h.div_ceil(channels);
        pool.run(x.b * blocks, |task, worker| {
            let each = Ptr(scratch.each::<T>(worker, self.len()));
            let (batch, from) = (task / blocks, task % blocks * channels);
            T::at_level(
                level,
                Task { scan: self, worker, batch, from, to: (from + channels).min(x.h), each },
            );
        });
    }
}

/// The channels `from..to` of a sequence.
struct Task<'a, T> {
    scan: &'a SelectiveScan<'a, T>,
    worker: usize,
    batch: usize,
    from: usize,
    to: usize,
    each: Ptr<T>,
}

impl<T: Real> Kernel<T> for Task<'_, T> {
    #[inline(always)]
    fn run<V: Lanes<T = T>>(self) {
        let (x, size) = (&self.scan.inputs, self.scan.inputs.sizes());
        // SAFETY: `SelectiveScan::run` has valid views and scratch, and these channels are this task's alone.
        unsafe {
            let (a, state) = (self.each.0, self.each.0.add(size.n * CHANNELS));
            let dt = state.add(size.n * CHANNELS);
            let (dx, y) = (dt.add(CHUNK * CHANNELS), dt.add(2 * CHUNK * CHANNELS));
            for (v, h, lanes) in vectors::<V>(self.from, self.to) {
                load_channels::<V>(x, self.batch, h, lanes, a.add(v), state.add(v), CHANNELS);
            }
            let mut t0 = 0;
            while t0 < size.s {
                let steps = CHUNK.min(size.s - t0);
                for t in 0..steps {
                    for (v, h, lanes) in vectors::<V>(self.from, self.to) {
                        let (at, o) = ([self.batch, t0 + t, h], t * CHANNELS + v);
                        let (_, step) = x.time_step::<V>(at, lanes);
                        let input = get::<V, 3>(&x.x, at, 2, lanes);
                        step.store(dt.add(o));
                        (step * input).store(dx.add(o));
                        let skip = x.d.map_or(V::of(0.0), |d| get::<V, 1>(&d, [h], 0, lanes) * input);
                        skip.store(y.add(o));
                    }
                }
                let next = [self.batch, (t0 + CHUNK).min(size.s - 1), self.from];
                // What a sink writes to, it fetches itself.
                let to = match &self.scan.y {
                    Out::Direct(y) => y,
                    Out::Sink(_) => &x.x,
                };
                let coming = [&x.x, &x.delta, to].map(|x| (x.at(next).cast_const(), x.strides[1]));
                let chunk = Chunk { steps, a, state, dt, dx, y, width: CHANNELS, coming };
                for (v, _, _) in vectors::<V>(self.from, self.to) {
                    chunk.advance::<V>(x, self.batch, t0, v);
                }
                for t in 0..steps {
                    for (v, h, lanes) in vectors::<V>(self.from, self.to) {
                        let (at, from) = ([self.batch, t0 + t, h], y.add(t * CHANNELS + v));
                        let mut out = V::load(from);
                        if let Some(z) = &x.z {
                            let z = get::<V, 3>(z, at, 2, lanes);
                            out = out * z * z.sigmoid();
                        }
                        match &self.scan.y {
                            Out::Direct(y) => put(out, y, at, 2, lanes),
                            Out::Sink(_) => out.store(from),
                        }
                    }
                }
                if let Out::Sink(sink) = self.scan.y {
                    sink.block(self.worker, self.batch, t0..t0 + steps, self.from..self.to, y, CHANNELS);
                }
                t0 += steps;
            }
            if let Some(last) = &self.scan.last {
                for (v, h, lanes) in vectors::<V>(self.from, self.to) {
                    for n in 0..size.n {
                        put(V::load(state.add(n * CHANNELS + v)), last, [self.batch, h, n], 1, lanes);
                    }
                }
            }
        }
    }
}

/// Loads A (times log2 e) and the first state of a vector of channels, as `[n][width]`.
///
/// # Safety
/// The views are valid, the channels within them, and there is room for n rows.
#[inline(always)]
pub(super) unsafe fn load_channels<V: Lanes>(
    x: &ScanInputs<V::T>,
    batch: usize,
    h: usize,
    lanes: usize,
    a: *mut V::T,
    state: *mut V::T,
    width: usize,
) {
    for n in 0..x.sizes().n {
        // SAFETY: by the contract.
        unsafe {
            (get::<V, 2>(&x.a, [h, n], 0, lanes) * V::of(LOG2_E)).store(a.add(n * width));
            let first = x.state.map_or(V::of(0.0), |s| get::<V, 3>(&s, [batch, h, n], 1, lanes));
            first.store(state.add(n * width));
        }
    }
}

/// A chunk of the sequence, with rows of `width` channels.
#[derive(Clone, Copy)]
pub(super) struct Chunk<T> {
    pub steps: usize,
    /// A (times log2 e) and the states, `[n]`.
    pub a: *const T,
    pub state: *mut T,
    /// The time steps, the inputs times the step, and the results, `[steps]`.
    pub dt: *const T,
    pub dx: *const T,
    pub y: *mut T,
    pub width: usize,
    /// What the next chunk reads and writes: rows too far apart for the processor to foresee.
    pub coming: [(*const T, isize); 3],
}

/// B or C: the address, and the distances of steps and of states.
type Steps<T> = (*const T, isize, isize);

impl<T: Real> Chunk<T> {
    /// Takes the states of a vector of channels through the chunk, which begins at step `t`.
    ///
    /// # Safety
    /// The views are valid, and so is the chunk for `n` states.
    #[inline(always)]
    pub unsafe fn advance<V: Lanes<T = T>>(&self, x: &ScanInputs<T>, batch: usize, t: usize, v: usize) {
        let all = x.sizes().n;
        let mut n = 0;
        while n < all {
            // SAFETY: passes on the contract; the states from n on are within the sizes.
            n += unsafe {
                let [b, c] =
                    [&x.b, &x.c].map(|x| (x.at([batch, t, n]).cast_const(), x.strides[1], x.strides[2]));
                match all - n {
                    16.. if V::REGISTERS >= 32 && b.2 == 1 && c.2 == 1 => {
                        self.states::<V, 16, true>(b, c, n, v)
                    }
                    8.. => self.states::<V, 8, false>(b, c, n, v),
                    4.. => self.states::<V, 4, false>(b, c, n, v),
                    _ => self.states::<V, 1, false>(b, c, n, v),
                }
            };
        }
    }

    /// With `DENSE` the states of B and C lie side by side: sixteen distances each would take the registers of all
    /// other addresses.
    #[inline(always)]
    unsafe fn states<V: Lanes<T = T>, const N: usize, const DENSE: bool>(
        &self,
        (b, bt, bn): Steps<T>,
        (c, ct, cn): Steps<T>,
        n: usize,
        v: usize,
    ) -> usize {
        let width = self.width;
        let (bn, cn) = if DENSE { (1, 1) } else { (bn, cn) };
        // SAFETY: as above.
        unsafe {
            let (a, state) = (self.a.add(n * width + v), self.state.add(n * width + v));
            // A on the stack, at distances known beforehand.
            let a: [V; N] = std::array::from_fn(|i| V::load(a.add(i * width)));
            let mut h: [V; N] = std::array::from_fn(|i| V::load(state.add(i * width)));
            for t in 0..self.steps {
                let o = t * width + v;
                let (dt, dx) = (V::load(self.dt.add(o)), V::load(self.dx.add(o)));
                let (b, c) = (b.offset(t as isize * bt), c.offset(t as isize * ct));
                for (ptr, stride) in self.coming {
                    V::prefetch(ptr.wrapping_offset(t as isize * stride).wrapping_add(v));
                }
                // Two sums, so that neither is one long chain.
                let (mut even, mut odd) = (V::load(self.y.add(o)), V::of(0.0));
                // Written out, for states that a loop goes over would live in memory.
                macro_rules! each {
                    ($($i:literal $sum:ident)*) => {$(
                        if let (Some(h), Some(a)) = (h.get_mut($i), a.get($i)) {
                            let decay = (dt * *a).exp2();
                            *h = decay.fma(*h, dx * V::splat(*b.offset($i * bn)));
                            $sum = h.fma(V::splat(*c.offset($i * cn)), $sum);
                        }
                    )*};
                }
                each!(0 even 1 odd 2 even 3 odd 4 even 5 odd 6 even 7 odd);
                each!(8 even 9 odd 10 even 11 odd 12 even 13 odd 14 even 15 odd);
                (even + odd).store(self.y.add(o));
            }
            for (i, h) in h.into_iter().enumerate() {
                h.store(state.add(i * width));
            }
        }
        N
    }
}

//! The selective scan.

use std::f64::consts::LOG2_E;

use super::{AHEAD, ScanInputs, fetch, get, put, vectors};
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
/// Steps of a chunk: what goes through the scratch space stays in the L1 cache.
const CHUNK: usize = 32;
/// Steps of a chunk that is used as it lies: the pages of its rows stay known to the processor until every vector of
/// channels has been there.
const LONG: usize = 128;

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
        (2 * self.inputs.sizes().n + 1 + 3 * CHUNK) * CHANNELS
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

impl<T: Real> Task<'_, T> {
    /// The rows of a view from the task's first channel on, if whole vectors can be read from it or written to it.
    #[inline(always)]
    unsafe fn rows<V: Lanes<T = T>>(&self, x: &View<T, 3>) -> Option<Rows<T>> {
        let whole = x.strides[2] == 1 && (self.to - self.from).is_multiple_of(V::N);
        // SAFETY: there is a first step, for the caller is at one, and the channel is within the view.
        whole.then(|| unsafe { Rows { ptr: x.at([self.batch, 0, self.from]), stride: x.strides[1] } })
    }

    /// Gates the results of a chunk and passes them on.
    #[inline(always)]
    unsafe fn finish<V: Lanes<T = T>>(&self, y: *mut T, t0: usize, steps: usize) {
        // SAFETY: the steps are within the views, the results within the scratch space.
        unsafe {
            for t in 0..steps {
                for (v, h, lanes) in vectors::<V>(self.from, self.to) {
                    let (at, from) = ([self.batch, t0 + t, h], y.add(t * CHANNELS + v));
                    let mut out = V::load(from);
                    if let Some(z) = &self.scan.inputs.z {
                        fetch::<V>(z, at);
                        let z = get::<V, 3>(z, at, 2, lanes);
                        out = out * z * z.sigmoid();
                    }
                    match &self.scan.y {
                        Out::Direct(y) => {
                            fetch::<V>(y, at);
                            put(out, y, at, 2, lanes)
                        }
                        Out::Sink(_) => out.store(from),
                    }
                }
            }
            if let Out::Sink(sink) = self.scan.y {
                sink.block(self.worker, self.batch, t0..t0 + steps, self.from..self.to, y, CHANNELS);
            }
        }
    }
}

impl<T: Real> Kernel<T> for Task<'_, T> {
    #[inline(always)]
    fn run<V: Lanes<T = T>>(self) {
        let (x, size) = (&self.scan.inputs, self.scan.inputs.sizes());
        // SAFETY: `SelectiveScan::run` has valid views and scratch, and these channels are this task's alone.
        unsafe {
            let (a, state) = (self.each.0, self.each.0.add(size.n * CHANNELS));
            let skip = state.add(size.n * CHANNELS);
            let staged = [0, 1, 2].map(|i| skip.add(CHANNELS * (1 + i * CHUNK)));
            for (v, h, lanes) in vectors::<V>(self.from, self.to) {
                load_channels::<V>(x, self.batch, h, lanes, a.add(v), state.add(v), CHANNELS);
                x.d.map_or(V::of(0.0), |d| get::<V, 1>(&d, [h], 0, lanes)).store(skip.add(v));
            }
            // What is not used as it lies goes through the scratch space, a chunk at a time.
            let direct = match size.s {
                0 => [None; 3],
                _ => [
                    self.rows::<V>(&x.x),
                    self.rows::<V>(&x.delta).filter(|_| !x.softplus && x.delta_bias.is_none()),
                    match &self.scan.y {
                        Out::Direct(y) => self.rows::<V>(y).filter(|_| x.z.is_none()),
                        Out::Sink(_) => None,
                    },
                ],
            };
            let length = if direct.iter().all(Option::is_some) { LONG } else { CHUNK };
            let mut t0 = 0;
            while t0 < size.s {
                let steps = length.min(size.s - t0);
                let [input, dt, y] = direct.map(|x| x.map(|x| x.skip(t0)));
                let [own_x, own_dt, own_y] = staged.map(|ptr| Rows { ptr, stride: CHANNELS as isize });
                if input.is_none() || dt.is_none() {
                    for t in 0..steps {
                        for (v, h, lanes) in vectors::<V>(self.from, self.to) {
                            let (at, o) = ([self.batch, t0 + t, h], t * CHANNELS + v);
                            if input.is_none() {
                                fetch::<V>(&x.x, at);
                                get::<V, 3>(&x.x, at, 2, lanes).store(own_x.ptr.add(o));
                            }
                            if dt.is_none() {
                                fetch::<V>(&x.delta, at);
                                x.time_step::<V>(at, lanes).1.store(own_dt.ptr.add(o));
                            }
                        }
                    }
                }
                let rows = [input.unwrap_or(own_x), dt.unwrap_or(own_dt), y.unwrap_or(own_y)];
                let chunk = Chunk { steps, a, state, skip, rows, width: CHANNELS };
                for (v, _, _) in vectors::<V>(self.from, self.to) {
                    chunk.advance::<V>(x, self.batch, t0, v);
                }
                if y.is_none() {
                    self.finish::<V>(own_y.ptr, t0, steps);
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

/// Rows of neighbouring channels, one for each step.
#[derive(Clone, Copy)]
pub(super) struct Rows<T> {
    pub ptr: *mut T,
    pub stride: isize,
}

impl<T> Rows<T> {
    #[inline(always)]
    fn skip(self, steps: usize) -> Rows<T> {
        Rows { ptr: self.ptr.wrapping_offset(steps as isize * self.stride), ..self }
    }
}

/// A chunk of the sequence.
#[derive(Clone, Copy)]
pub(super) struct Chunk<T> {
    pub steps: usize,
    /// A (times log2 e) and the states, `[n, width]`.
    pub a: *const T,
    pub state: *mut T,
    pub width: usize,
    /// The factor of the inputs that go past the states, `[width]`.
    pub skip: *const T,
    /// The inputs, the time steps, and the results.
    pub rows: [Rows<T>; 3],
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
        loop {
            // SAFETY: passes on the contract; the states from n on are within the sizes.
            n += unsafe {
                let [b, c] = [&x.b, &x.c].map(|x| {
                    let [batches, steps, states] = x.strides;
                    let at = batch as isize * batches + t as isize * steps + n as isize * states;
                    // Without states there is nothing there.
                    (x.ptr.wrapping_offset(at).cast_const(), steps, states)
                });
                match all - n {
                    16.. if V::REGISTERS >= 32 && b.2 == 1 && c.2 == 1 => {
                        self.states::<V, 16, true>(b, c, n, v)
                    }
                    8.. => self.states::<V, 8, false>(b, c, n, v),
                    4.. => self.states::<V, 4, false>(b, c, n, v),
                    1.. => self.states::<V, 1, false>(b, c, n, v),
                    0 => self.states::<V, 0, false>(b, c, n, v),
                }
            };
            if n >= all {
                break;
            }
        }
    }

    /// With `DENSE` the states of B and C lie side by side: sixteen distances each would take the registers of all
    /// other addresses.
    #[inline(always)]
    unsafe fn states<V: Lanes<T = T>, const N: usize, const DENSE: bool>(
        &self,
        (mut b, bt, bn): Steps<T>,
        (mut c, ct, cn): Steps<T>,
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
            let skip = V::load(self.skip.add(v));
            let [mut x, mut dt, mut y] = self.rows.map(|r| r.ptr.add(v));
            let strides = self.rows.map(|r| r.stride);
            for _ in 0..self.steps {
                let (input, step) = (V::load(x), V::load(dt));
                let dx = step * input;
                for (ptr, stride) in [x, dt, y].into_iter().zip(strides) {
                    V::prefetch(ptr.wrapping_offset(AHEAD * stride));
                }
                // Two sums, so that neither is one long chain.
                let (mut even, mut odd) = (if n == 0 { skip * input } else { V::load(y) }, V::of(0.0));
                // Written out, for states that a loop goes over would live in memory.
                macro_rules! each {
                    ($($i:literal $sum:ident)*) => {$(
                        if let (Some(h), Some(a)) = (h.get_mut($i), a.get($i)) {
                            let decay = (step * *a).exp2();
                            *h = decay.fma(*h, dx * V::splat(*b.offset($i * bn)));
                            $sum = h.fma(V::splat(*c.offset($i * cn)), $sum);
                        }
                    )*};
                }
                each!(0 even 1 odd 2 even 3 odd 4 even 5 odd 6 even 7 odd);
                each!(8 even 9 odd 10 even 11 odd 12 even 13 odd 14 even 15 odd);
                (even + odd).store(y);
                let [next_x, next_dt, next_y] = strides;
                (x, dt, y) =
                    (x.wrapping_offset(next_x), dt.wrapping_offset(next_dt), y.wrapping_offset(next_y));
                (b, c) = (b.wrapping_offset(bt), c.wrapping_offset(ct));
            }
            for (i, h) in h.into_iter().enumerate() {
                h.store(state.add(i * width));
            }
        }
        N
    }
}

//! The products: rows of weights times positions, a block at a time.

use super::Sink;
use super::form::{AXES, Block, Form, Layout, Tables};
use super::lanes::{Lanes, Number, Work};
use crate::level::Level;
use crate::mem::{Ptr, Scratch, ScratchSize, round_up};
use crate::pool::Pool;

/// What a level computes with: the lanes of a vector, and the rows of weights in a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub lanes: usize,
    pub rows: usize,
}

impl Shape {
    pub(super) fn of<T: Number>(level: Level) -> Shape {
        struct Ask;
        impl<T: Number> Work<T> for Ask {
            type Out = Shape;
            #[inline(always)]
            unsafe fn run<L: Lanes<T = T>>(self) -> Shape {
                Shape { lanes: L::N, rows: L::ROWS }
            }
        }
        T::at_level(level, Ask)
    }

    /// The tiles of `n` rows: full ones, then what is left in powers of two. Gives the first row and the rows of each.
    pub(super) fn tiles(self, rows: std::ops::Range<usize>) -> impl Iterator<Item = (usize, usize)> {
        let (mut at, end, most) = (rows.start, rows.end, self.rows);
        std::iter::from_fn(move || {
            let left = end.checked_sub(at).filter(|n| *n > 0)?;
            let n = if left >= most { most } else { 1 << left.ilog2() };
            at += n;
            Some((at - n, n))
        })
    }
}

/// How the work is cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    form: Form,
    shape: Shape,
    /// The positions of a block, and how many blocks there are.
    size: [usize; AXES],
    blocks: usize,
    /// Groups and rows of a task.
    groups: usize,
    rows: usize,
    /// Channels whose input is copied at a time.
    channels: usize,
    layout: Layout,
    /// From row to row of the sums.
    stride: usize,
    /// Rows of sums that are kept at a time.
    kept: usize,
    tasks: usize,
}

/// Positions of a block, at least and at most.
const POSITIONS: (usize, usize) = (96, 512);
/// Blocks that are enough to keep the workers busy.
const TASKS: usize = 16;
/// Products of a task that is worth starting.
const PRODUCTS: usize = 1 << 18;
/// Bytes of a copy: a part of the L2 cache.
const COPY: usize = 512 << 10;

impl Plan {
    /// For that many threads; the plan for one needs as much scratch as any other. No result depends on how rows are shared out.
    pub(super) fn new<T: Number>(form: Form, level: Level, threads: usize) -> Plan {
        let shape = Shape::of::<T>(level);
        let all = form.batch * form.positions();
        // Groups are tasks too, and a single channel leaves room for more positions.
        let most = if form.channels < 8 { 4 * POSITIONS.1 } else { POSITIONS.1 };
        let target = (all / TASKS.div_ceil(form.groups.max(1))).clamp(POSITIONS.0, most);
        let size = form.block_size(target, shape.lanes);
        let layout = form.layout(&size, shape.lanes, true);
        let blocks = form.blocks(&size);
        let per_group = size.iter().product::<usize>() * form.rows * form.depth();
        let groups = PRODUCTS.div_ceil(per_group.max(1)).clamp(1, form.groups.max(1));
        // Every part copies the same input.
        let wanted = if threads > 1 { 4 * threads } else { 1 };
        let parts = wanted.div_ceil((blocks * form.groups.div_ceil(groups)).max(1));
        let rows = form.rows.div_ceil(parts).next_multiple_of(shape.rows).max(1);
        let each = (layout.len(1, 0) * size_of::<T>()).max(1);
        let most = (COPY / each).clamp(1, form.channels.max(1));
        let channels = form.channels.div_ceil(form.channels.div_ceil(most).max(1)).max(1);
        let kept = if channels < form.channels { rows } else { shape.rows };
        let tasks = blocks * form.groups.div_ceil(groups) * form.rows.div_ceil(rows);
        let stride = (layout.vectors * shape.lanes).next_multiple_of(16) + 16;
        Plan { form, shape, size, blocks, groups, rows, channels, layout, stride, kept, tasks }
    }

    /// Where the pieces of a worker's scratch are: tables, copy, sums, end.
    fn pieces<T>(&self) -> [usize; 6] {
        let vectors = self.layout.vectors;
        let sizes = [
            vectors * size_of::<usize>(),
            vectors * size_of::<usize>(),
            vectors * size_of::<u32>(),
            self.channels * self.form.taps() * size_of::<usize>(),
            self.layout.len(self.channels, self.shape.lanes) * size_of::<T>(),
            self.kept * self.stride * size_of::<T>(),
        ];
        let mut end = 0;
        sizes.map(|n| {
            end += round_up(n);
            end
        })
    }

    pub(super) fn scratch<T>(&self) -> ScratchSize {
        let [.., end] = self.pieces::<T>();
        ScratchSize { each: end, shared: 0 }
    }

    /// Runs the convolution over packed weights.
    ///
    /// # Safety
    /// `x` is a whole input, `weights` come from [`pack`], and the scratch is as large as [`Plan::scratch`] asks.
    pub(super) unsafe fn run<T: Number>(
        &self,
        level: Level,
        pool: &Pool,
        scratch: &Scratch,
        (x, weights): (*const T, *const T),
        sink: &dyn Sink<T>,
    ) {
        if self.form.batch * self.form.groups * self.form.rows * self.form.positions() == 0 {
            return;
        }
        let (x, weights) = (Ptr(x.cast_mut()), Ptr(weights.cast_mut()));
        pool.run(self.tasks, |index, worker| {
            T::at_level(level, Task { plan: self, x, weights, scratch, sink, index, worker })
        });
    }
}

struct Task<'a, T> {
    plan: &'a Plan,
    x: Ptr<T>,
    weights: Ptr<T>,
    scratch: &'a Scratch,
    sink: &'a dyn Sink<T>,
    index: usize,
    worker: usize,
}

impl<T: Number> Work<T> for Task<'_, T> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes<T = T>>(self) {
        let (p, f) = (self.plan, &self.plan.form);
        let [before, mask, offset, copy, sums, end] = p.pieces::<T>();
        let memory: *mut u8 = self.scratch.each(self.worker, end);
        let at = |n: usize| memory.wrapping_add(n);
        let tables = Tables {
            base: memory.cast(),
            before: at(before).cast(),
            mask: at(mask).cast(),
            offset: at(offset).cast(),
        };
        let (copy, sums) = (at(copy).cast::<T>(), at(sums).cast::<T>());

        let (block, rest) = (self.index % p.blocks, self.index / p.blocks);
        let parts = f.rows.div_ceil(p.rows);
        let rows = rest % parts * p.rows..(rest % parts * p.rows + p.rows).min(f.rows);
        let groups = rest / parts * p.groups..(rest / parts * p.groups + p.groups).min(f.groups);

        let b = f.block(&p.size, block);
        let layout = f.layout(&b.size, L::N, true);
        let (taps, depth) = (f.taps(), f.depth());
        // SAFETY: the tables have room for a whole block and all channels of a copy.
        unsafe { f.fill(&b, &layout, p.channels, L::N, tables) };
        for g in groups {
            let mut from = 0;
            loop {
                let channels = p.channels.min(f.channels - from);
                let last = from + channels >= f.channels;
                if depth > 0 {
                    // SAFETY: the copy has room for a whole block of that many channels.
                    unsafe { f.copy::<L>(&b, &layout, self.x.0, (g * f.channels + from, channels), copy) };
                }
                for (row, n) in p.shape.tiles(rows.clone()) {
                    let kept = if p.kept < p.rows { 0 } else { row - rows.start };
                    let sums = sums.wrapping_add(kept * p.stride);
                    let tile = Tile {
                        depth: if depth > 0 { channels * taps } else { 0 },
                        weights: self.weights.0.wrapping_add((g * f.rows + row) * depth + from * taps * n),
                        copy,
                        tables,
                        sums,
                        stride: p.stride,
                        first: from == 0,
                        last,
                    };
                    // SAFETY: weights, copy and tables are those of the block, and there is room for the sums.
                    unsafe {
                        match n {
                            8 => tile.run::<L, 8>(layout.vectors),
                            4 => tile.run::<L, 4>(layout.vectors),
                            2 => tile.run_few::<L, 2>(layout.vectors),
                            _ => tile.run_few::<L, 1>(layout.vectors),
                        }
                        if last {
                            self.finish(&b, g * f.rows + row..g * f.rows + row + n, sums);
                        }
                    }
                }
                from += channels;
                if last {
                    break;
                }
            }
        }
    }
}

impl<T: Number> Task<'_, T> {
    /// Hands finished sums to the sink, an image at a time.
    #[inline(always)]
    unsafe fn finish(&self, b: &Block, channels: std::ops::Range<usize>, sums: *mut T) {
        let (first, n) = self.plan.form.flat(b);
        let [start, ..] = b.start;
        let [images, ..] = b.size;
        for i in 0..images {
            let acc = sums.wrapping_add(i * n);
            // SAFETY: the sums of the block lie side by side, image after image.
            unsafe {
                self.sink.block(
                    self.worker,
                    start + i,
                    channels.clone(),
                    first..first + n,
                    acc,
                    self.plan.stride,
                )
            };
        }
    }
}

/// Some rows of weights and all positions of a block.
struct Tile<T> {
    depth: usize,
    weights: *const T,
    copy: *const T,
    tables: Tables,
    sums: *mut T,
    stride: usize,
    /// Whether the sums start from 0, and whether they end here.
    first: bool,
    last: bool,
}

impl<T: Number> Tile<T> {
    #[inline(always)]
    unsafe fn run<L: Lanes<T = T>, const R: usize>(&self, vectors: usize) {
        let mut v = 0;
        // SAFETY: there are that many vectors.
        unsafe {
            while v < vectors {
                match vectors - v {
                    1 => self.micro::<L, R, 1>(v),
                    2 | 4 => self.micro::<L, R, 2>(v),
                    _ => self.micro::<L, R, 3>(v),
                }
                v += match vectors - v {
                    1 => 1,
                    2 | 4 => 2,
                    _ => 3,
                };
            }
        }
    }

    /// With more vectors for want of rows.
    #[inline(always)]
    unsafe fn run_few<L: Lanes<T = T>, const R: usize>(&self, vectors: usize) {
        let mut v = 0;
        // SAFETY: there are that many vectors.
        unsafe {
            while v + 6 <= vectors {
                self.micro::<L, R, 6>(v);
                v += 6;
            }
            while v < vectors {
                if vectors - v >= 3 {
                    self.micro::<L, R, 3>(v);
                    v += 3;
                } else {
                    self.micro::<L, R, 1>(v);
                    v += 1;
                }
            }
        }
    }

    /// `R` rows times `V` vectors of positions, from vector `v` on.
    #[inline(always)]
    unsafe fn micro<L: Lanes<T = T>, const R: usize, const V: usize>(&self, v: usize) {
        let t = self.tables;
        // SAFETY: the tables have entries for the vectors and for the depth; the copy is readable at their sums, the weights
        // have `R` numbers for each step, and the sums have `R` rows.
        unsafe {
            let mut x = [std::ptr::null::<T>(); V];
            for (i, x) in x.iter_mut().enumerate() {
                *x = self.copy.add(*t.base.add(v + i));
            }
            let sums = self.sums.add(v * L::N);
            let mut acc = [[L::splat(T::ZERO); V]; R];
            if !self.first {
                for (r, acc) in acc.iter_mut().enumerate() {
                    for (i, acc) in acc.iter_mut().enumerate() {
                        *acc = L::load(sums.add(r * self.stride + i * L::N));
                    }
                }
            }
            let mut w = self.weights;
            for k in 0..self.depth {
                let offset = *t.offset.add(k);
                let x = x.map(|x| L::load(x.add(offset)));
                for (r, acc) in acc.iter_mut().enumerate() {
                    let w = L::splat(*w.add(r));
                    for (acc, x) in acc.iter_mut().zip(x) {
                        *acc = L::plus_product(*acc, w, x);
                    }
                }
                w = w.add(R);
            }
            for (r, acc) in acc.into_iter().enumerate() {
                let row = self.sums.add(r * self.stride);
                for (v, acc) in (v..).zip(acc) {
                    if self.last {
                        L::compress(row.add(*t.before.add(v)), acc, *t.mask.add(v));
                    } else {
                        L::store(row.add(v * L::N), acc);
                    }
                }
            }
        }
    }
}

/// Weights in the order in which the tiles read them: for each tile of rows, for each channel and tap, the rows side by side.
///
/// `row(i)` is where the weights of row `i` (of all groups) start, `channel` the distance from channel to channel.
///
/// # Safety
/// `weights` is readable there, `packed` has room for `groups · rows · depth` numbers.
pub(super) unsafe fn pack<T: Number>(
    pool: &Pool,
    form: &Form,
    shape: Shape,
    (weights, channel): (*const T, usize),
    row: impl Fn(usize) -> usize + Sync,
    packed: *mut T,
) {
    let (taps, depth, first) = (form.taps(), form.depth(), form.dropped());
    if depth == 0 {
        return;
    }
    let tiles = form.rows.div_ceil(shape.rows);
    // Where the first taps are; kernels seldom have more.
    let mut known = [0; 64];
    known.iter_mut().enumerate().take(taps).for_each(|(i, at)| *at = form.tap_in_kernel(i));
    let (weights, packed) = (Ptr(weights.cast_mut()), Ptr(packed));
    pool.run(form.groups * tiles, |i, _| {
        let packed = &packed;
        let (g, tile) = (i / tiles, i % tiles);
        let rows = tile * shape.rows..((tile + 1) * shape.rows).min(form.rows);
        for (start, n) in shape.tiles(rows) {
            let (start, weights) = (g * form.rows + start, weights);
            let mut to = packed.0.wrapping_add(start * depth);
            let mut from = [0; 8];
            from.iter_mut().zip(start..start + n).for_each(|(from, i)| *from = row(i) + first);
            for c in 0..form.channels {
                for tap in 0..taps {
                    let at = known.get(tap).copied().unwrap_or_else(|| form.tap_in_kernel(tap)) + c * channel;
                    // SAFETY: the caller promises the place; there are `groups · rows · depth` of them in all.
                    unsafe {
                        if n == 8 {
                            for (i, from) in from.iter().enumerate() {
                                to.add(i).write(weights.0.add(from + at).read());
                            }
                        } else {
                            for (i, from) in from.iter().enumerate().take(n) {
                                to.add(i).write(weights.0.add(from + at).read());
                            }
                        }
                        to = to.add(n);
                    }
                }
            }
        }
    });
}

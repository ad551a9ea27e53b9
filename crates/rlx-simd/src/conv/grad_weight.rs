//! The gradient with respect to the weights: dot products over positions of the result's gradient with the input at each tap.
//!
//! The sums over images and positions are cut into parts by the sizes alone, each added up block by block; the parts are
//! then added in order.

use super::form::{AXES, Block, Form, Layout, Tables};
use super::kernel::Shape;
use super::lanes::{Lanes, Number, Work};
use super::{Conv, clear};
use crate::level::Level;
use crate::mem::{Ptr, Scratch, ScratchSize, round_up};
use crate::pool::Pool;

struct Plan {
    form: Form,
    lanes: usize,
    /// Taps of the whole kernel.
    kernel: usize,
    size: [usize; AXES],
    blocks: usize,
    /// Parts of the sums.
    parts: usize,
    /// Groups, rows and input channels of a task.
    groups: usize,
    rows: usize,
    channels: usize,
    layout: Layout,
}

/// Positions of a block.
const POSITIONS: usize = 1024;
/// Tasks that are enough to keep the workers busy.
const TASKS: usize = 16;
/// Products of a task that is worth starting.
const PRODUCTS: usize = 1 << 18;
/// Bytes of the copy of the input, and of the gradient's rows.
const COPY: usize = 128 << 10;
const ROWS: usize = 256 << 10;

impl Plan {
    fn new<T: Number>(form: Form, kernel: usize, level: Level) -> Plan {
        let lanes = Shape::of::<T>(level).lanes;
        let size = form.block_size(POSITIONS, lanes);
        let layout = form.layout(&size, lanes, false);
        let blocks = form.blocks(&size);
        let most = (COPY / (layout.len(1, 0) * size_of::<T>()).max(1)).clamp(1, form.channels.max(1));
        let channels = form.channels.div_ceil(form.channels.div_ceil(most).max(1)).max(1);
        let row = layout.vectors * lanes * size_of::<T>();
        let rows = (ROWS / row.max(1)).max(4).next_multiple_of(4).min(form.rows.next_multiple_of(4)).max(1);
        let all = form.batch * form.positions();
        let groups =
            PRODUCTS.div_ceil((all * rows * channels * form.taps()).max(1)).clamp(1, form.groups.max(1));
        let tasks =
            form.groups.div_ceil(groups) * form.rows.div_ceil(rows) * form.channels.div_ceil(channels);
        let parts = TASKS.div_ceil(tasks.max(1)).min(blocks).max(1);
        Plan { form, lanes, kernel, size, blocks, parts, groups, rows, channels, layout }
    }

    fn pieces<T>(&self) -> [usize; 7] {
        let vectors = self.layout.vectors;
        let (words, taps) =
            (vectors * size_of::<usize>(), self.channels * self.form.taps() * size_of::<usize>());
        let sizes = [
            words,
            words,
            vectors * size_of::<u32>(),
            taps,
            taps,
            self.layout.len(self.channels, self.lanes) * size_of::<T>(),
            self.rows * vectors * self.lanes * size_of::<T>(),
        ];
        let mut end = 0;
        sizes.map(|n| {
            end += round_up(n);
            end
        })
    }

    /// Numbers of the result.
    fn results(&self) -> usize {
        self.form.groups * self.form.rows * self.form.channels * self.kernel
    }
    /// Numbers of all parts, if there is more than one.
    fn partial(&self) -> usize {
        if self.parts > 1 { self.parts * self.results() } else { 0 }
    }
}

struct Task<'a, T> {
    plan: &'a Plan,
    x: Ptr<T>,
    dy: Ptr<T>,
    to: Ptr<T>,
    scratch: &'a Scratch,
    index: usize,
    worker: usize,
}

impl<T: Number> Work<T> for Task<'_, T> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes<T = T>>(self) {
        let (p, f) = (self.plan, &self.plan.form);
        let [before, mask, offset, target, copy, gradient, end] = p.pieces::<T>();
        let memory: *mut u8 = self.scratch.each(self.worker, end);
        let at = |n: usize| memory.wrapping_add(n);
        let tables = Tables {
            base: memory.cast(),
            before: at(before).cast(),
            mask: at(mask).cast(),
            offset: at(offset).cast(),
        };
        let target = at(target).cast::<usize>();
        let (copy, gradient) = (at(copy).cast::<T>(), at(gradient).cast::<T>());

        let take = |rest: &mut usize, all: usize, each: usize| {
            let n = all.div_ceil(each);
            let i = *rest % n;
            *rest /= n;
            i * each..(i * each + each).min(all)
        };
        let mut rest = self.index;
        let channels = take(&mut rest, f.channels, p.channels);
        let rows = take(&mut rest, f.rows, p.rows);
        let groups = take(&mut rest, f.groups, p.groups);
        let part = rest;
        let (taps, depth) = (f.taps(), f.channels * p.kernel);
        let to = self.to.0.wrapping_add(part * p.results() + channels.start * p.kernel);
        for row in groups.clone().flat_map(|g| rows.clone().map(move |r| g * f.rows + r)) {
            for i in 0..channels.len() * p.kernel {
                // SAFETY: the task's own results.
                unsafe { to.add(row * depth + i).write(T::ZERO) };
            }
        }
        if taps == 0 {
            return;
        }
        for i in 0..channels.len() * taps {
            let at = i / taps * p.kernel + f.dropped() + f.tap_in_kernel(i % taps);
            // SAFETY: the table has an entry for each tap of each channel.
            unsafe { target.add(i).write(at) };
        }
        for block in p.blocks * part / p.parts..p.blocks * (part + 1) / p.parts {
            let b = f.block(&p.size, block);
            let layout = f.layout(&b.size, L::N, false);
            // SAFETY: tables, copy and gradient have room for a whole block; the results are the task's own.
            unsafe {
                f.fill(&b, &layout, channels.len(), L::N, tables);
                for g in groups.clone() {
                    f.copy::<L>(
                        &b,
                        &layout,
                        self.x.0,
                        (g * f.channels + channels.start, channels.len()),
                        copy,
                    );
                    self.expand::<L>(&b, &layout, tables, g * f.rows + rows.start, rows.len(), gradient);
                    let dots = Dots {
                        vectors: layout.vectors,
                        copy,
                        gradient,
                        tables,
                        target,
                        to: to.add((g * f.rows + rows.start) * depth),
                        stride: depth,
                    };
                    dots.all::<L>(rows.len(), channels.len() * taps);
                }
            }
        }
    }
}

impl<T: Number> Task<'_, T> {
    /// Copies rows of the gradient into the vectors of a block, with zeros where a lane is no position.
    #[inline(always)]
    unsafe fn expand<L: Lanes<T = T>>(
        &self,
        b: &Block,
        l: &Layout,
        t: Tables,
        first: usize,
        rows: usize,
        to: *mut T,
    ) {
        let f = &self.plan.form;
        let (start, n) = f.flat(b);
        let ([image, ..], channels, positions) = (b.start, f.groups * f.rows, f.positions());
        for v in 0..l.vectors {
            // SAFETY: the tables hold the vectors of the block; as many numbers are read as there are positions.
            unsafe {
                let (mask, before) = (*t.mask.add(v), *t.before.add(v));
                let from = ((image + before / n) * channels + first) * positions + start + before % n;
                for r in 0..rows {
                    let lanes = L::expand(self.dy.0.wrapping_add(from + r * positions), mask);
                    L::store(to.add((r * l.vectors + v) * L::N), lanes);
                }
            }
        }
    }
}

/// Dot products of rows of the gradient and channels with taps, over a block.
struct Dots<T> {
    vectors: usize,
    copy: *const T,
    gradient: *const T,
    tables: Tables,
    target: *const usize,
    to: *mut T,
    stride: usize,
}

impl<T: Number> Dots<T> {
    #[inline(always)]
    unsafe fn all<L: Lanes<T = T>>(&self, rows: usize, columns: usize) {
        let mut r = 0;
        // SAFETY: rows and columns are within the block.
        unsafe {
            // Columns run faster: neighbours are taps of the same channel, and read almost the same.
            while r < rows {
                let (m, mut c) = (if rows - r >= 4 { 4 } else { 1 }, 0);
                while c < columns {
                    let n = match columns - c {
                        6.. if L::WIDE => 6,
                        3.. => 3,
                        _ => 1,
                    };
                    match (m, n) {
                        (4, 6) => self.micro::<L, 4, 6>(r, c),
                        (4, 3) => self.micro::<L, 4, 3>(r, c),
                        (4, _) => self.micro::<L, 4, 1>(r, c),
                        (_, 6) => self.micro::<L, 1, 6>(r, c),
                        (_, 3) => self.micro::<L, 1, 3>(r, c),
                        _ => self.micro::<L, 1, 1>(r, c),
                    }
                    c += n;
                }
                r += m;
            }
        }
    }

    #[inline(always)]
    unsafe fn micro<L: Lanes<T = T>, const R: usize, const C: usize>(&self, r: usize, c: usize) {
        let t = self.tables;
        // SAFETY: the caller promises the rows and columns; the copy is readable at every sum of table entries.
        unsafe {
            let mut x = [std::ptr::null::<T>(); C];
            for (i, x) in x.iter_mut().enumerate() {
                *x = self.copy.add(*t.offset.add(c + i));
            }
            let mut g = [std::ptr::null::<T>(); R];
            for (i, g) in g.iter_mut().enumerate() {
                *g = self.gradient.add((r + i) * self.vectors * L::N);
            }
            let mut acc = [[L::splat(T::ZERO); C]; R];
            for v in 0..self.vectors {
                let (base, mask) = (*t.base.add(v), *t.mask.add(v));
                let g = g.map(|g| L::load(g.add(v * L::N)));
                // What stands beside the positions may be infinite: 0 times it would not be 0.
                let x = x.map(|x| L::keep(L::load(x.add(base)), mask));
                for (acc, g) in acc.iter_mut().zip(g) {
                    for (acc, x) in acc.iter_mut().zip(x) {
                        *acc = L::plus_product(*acc, g, x);
                    }
                }
            }
            for j in 0..C {
                let mut column = [L::splat(T::ZERO); 4];
                for (to, acc) in column.iter_mut().zip(&acc) {
                    *to = acc.get(j).copied().unwrap_or(*to);
                }
                let at = self.to.add(r * self.stride + *self.target.add(c + j));
                for (i, sum) in L::sum4(column).into_iter().enumerate().take(R) {
                    let at = at.add(i * self.stride);
                    at.write((*at).plus(sum));
                }
            }
        }
    }
}

impl Conv<'_> {
    /// The scratch of [`Conv::grad_weight`].
    pub fn grad_weight_scratch<T: Number>(&self, level: Level) -> ScratchSize {
        let Some(form) = self.form() else { return ScratchSize::default() };
        let plan = Plan::new::<T>(form, self.taps(), level);
        let [.., end] = plan.pieces::<T>();
        ScratchSize { each: end, shared: plan.partial() * size_of::<T>() }
    }

    /// The gradient with respect to the weights, `dw`, given that of the result.
    ///
    /// # Safety
    /// `x`, `dy` and `dw` point to dense tensors of these sizes, and `dw` overlaps nothing else.
    pub unsafe fn grad_weight<T: Number>(
        &self,
        level: Level,
        pool: &Pool,
        scratch: &Scratch,
        x: *const T,
        dy: *const T,
        dw: *mut T,
    ) {
        let Some(form) = self.form() else { return };
        if self.outputs() == 0 || self.weights() == 0 {
            // SAFETY: the caller promises the room.
            return unsafe { clear(pool, dw, self.weights()) };
        }
        let plan = &Plan::new::<T>(form, self.taps(), level);
        let partial = scratch.shared::<T>(plan.partial());
        let to = Ptr(if plan.parts > 1 { partial } else { dw });
        let (x, dy) = (Ptr(x.cast_mut()), Ptr(dy.cast_mut()));
        let tasks = form.groups.div_ceil(plan.groups)
            * form.rows.div_ceil(plan.rows)
            * form.channels.div_ceil(plan.channels);
        pool.run(tasks * plan.parts, |index, worker| {
            T::at_level(level, Task { plan, x, dy, to, scratch, index, worker })
        });
        if plan.parts > 1 {
            const PIECE: usize = 4096;
            let (n, dw) = (plan.results(), Ptr(dw));
            pool.run(n.div_ceil(PIECE), |i, _| {
                let (dw, to) = (dw, to);
                for j in i * PIECE..((i + 1) * PIECE).min(n) {
                    // SAFETY: the parts have all been written, and this is the only task for the result.
                    unsafe {
                        let sum = (1..plan.parts).fold(*to.0.add(j), |sum, p| sum.plus(*to.0.add(p * n + j)));
                        dw.0.add(j).write(sum);
                    }
                }
            });
        }
    }
}

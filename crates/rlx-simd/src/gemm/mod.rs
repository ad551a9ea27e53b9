//! Matrix products: C = A · B in f32, with B in f32 or bf16.
//!
//! B is read in panels of a few columns ([`PackedB`]; a B that is not packed is packed on the way), A in blocks of rows that
//! are copied into the L2 cache. A task takes a block of rows and walks over panels of B; `micro` holds the loops in
//! registers, `plan` the sizes of the blocks, `pack` the copying. Results go straight to memory or, block by block while
//! they are in the cache, to a [`Sink`]. [`generic`] has the plain product for other types.
//!
//! An element of C is always one chain of multiply-adds in the order of k: not only the number of threads leaves its bits
//! alone, but also the number of rows beside it.

pub mod generic;
mod micro;
mod pack;
mod plan;
mod vector;

use crate::level::Level;
use crate::mem::{Scratch, ScratchSize};
use crate::pool::Pool;
pub use crate::sink::Sink;
use micro::{Ahead, Args, Kind, LDA, Shape};
pub use pack::PackedB;
pub use plan::fills;
use plan::{Pieces, Plan, Size, TAG};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How the elements of a packed B are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PackKind {
    /// As they are.
    F32,
    /// Rounded to bf16, half the memory. A is rounded to bf16 too, and products are added in f32.
    Bf16,
}

/// Writes out the rows of A when they are needed.
pub trait RowSource: Sync {
    /// Writes the columns `ks` of some rows: row `rows.start + i` begins at `dst + i * stride`. How often an element is asked
    /// for, [`fills`] says; where k is cut depends on k alone.
    ///
    /// # Safety
    /// There is room for the rows, and for nothing else.
    unsafe fn fill(
        &self,
        worker: usize,
        batch: usize,
        rows: Range<usize>,
        ks: Range<usize>,
        dst: *mut f32,
        stride: usize,
    );

    /// Whether a row costs so much that no two threads should make the same one.
    fn costly(&self) -> bool {
        true
    }
}

/// The left operand.
#[derive(Clone, Copy)]
pub enum A<'a> {
    /// In memory.
    Strided {
        /// The first element of the batch at offset 0.
        ptr: *const f32,
        /// The distance to the next row and column, in elements.
        strides: [isize; 2],
    },
    /// Made row by row.
    Rows(&'a dyn RowSource),
}

/// The right operand.
#[derive(Clone, Copy)]
pub enum B<'a> {
    /// Packed before, and the same for all batches.
    Packed(&'a PackedB),
    /// In memory, packed on the way.
    Strided {
        /// The first element of the batch at offset 0.
        ptr: *const f32,
        /// The distance to the next row and column, in elements.
        strides: [isize; 2],
    },
}

/// Where the matrices of a batch begin, in elements from the first; what is not in memory ([`A::Rows`], [`B::Packed`],
/// [`Out::Sink`]) has no use for its offset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchOffsets {
    /// Of A.
    pub a: isize,
    /// Of B.
    pub b: isize,
    /// Of C.
    pub c: isize,
}

/// Where results go.
#[derive(Clone, Copy)]
pub enum Out<'a> {
    /// To memory, with neighbouring columns beside each other.
    Direct {
        /// The first element of the batch at offset 0.
        ptr: *mut f32,
        /// The distance to the next row, in elements.
        row_stride: isize,
    },
    /// To a sink; every element once.
    Sink {
        /// The sink.
        sink: &'a dyn Sink,
        /// Whether every block must have all columns.
        whole_rows: bool,
    },
}

/// A product, or a batch of them: C (m × n) = A (m × k) · B (k × n) for each batch.
#[derive(Clone, Copy)]
pub struct Gemm<'a> {
    /// The instructions to use; a packed B must be packed for them.
    pub level: Level,
    /// Rows of A and C.
    pub m: usize,
    /// Columns of B and C.
    pub n: usize,
    /// Columns of A and rows of B.
    pub k: usize,
    /// The left operand.
    pub a: A<'a>,
    /// The right operand.
    pub b: B<'a>,
    /// One entry for each product.
    pub batches: &'a [BatchOffsets],
}

impl Gemm<'_> {
    fn kind(&self) -> PackKind {
        match self.b {
            B::Packed(b) => b.kind(),
            B::Strided { .. } => PackKind::F32,
        }
    }

    fn size(&self, sink: bool, whole_rows: bool) -> Size {
        Size {
            m: self.m,
            n: self.n,
            k: self.k,
            batches: self.batches.len(),
            loose_b: matches!(self.b, B::Strided { .. }),
            costly_a: matches!(self.a, A::Rows(source) if source.costly()),
            sink,
            whole_rows,
        }
    }

    /// The scratch space of a run with such an output: enough for any number of threads, and for any smaller m, n, k.
    pub fn scratch(&self, out: &Out<'_>) -> ScratchSize {
        let (sink, whole_rows) = match *out {
            Out::Direct { .. } => (false, false),
            Out::Sink { whole_rows, .. } => (true, whole_rows),
        };
        let (pieces, shared) =
            Plan::scratch(micro::shape(self.level, self.kind()), self.size(sink, whole_rows));
        ScratchSize { each: pieces.bytes(), shared: shared * size_of::<f32>() }
    }

    /// Computes the product.
    ///
    /// # Safety
    /// The operands are readable and the output writable for all batches, the output overlaps nothing, and rows of the
    /// output do not overlap each other. A packed B has this k and n. Scratch has at least [`Gemm::scratch`] for the pool.
    pub unsafe fn run(&self, pool: &Pool, scratch: &Scratch, out: Out<'_>) {
        if self.m == 0 || self.n == 0 || self.batches.is_empty() {
            return;
        }
        if let B::Packed(b) = self.b {
            assert!(
                b.k() == self.k && b.n() == self.n && b.level() == self.level,
                "B is packed for another product"
            );
        }
        let (sink, whole_rows) = match out {
            Out::Direct { .. } => (false, false),
            Out::Sink { whole_rows, .. } => (true, whole_rows),
        };
        let (shape, size) = (micro::shape(self.level, self.kind()), self.size(sink, whole_rows));
        let plan = Plan::new(shape, size, pool.threads());
        let (pieces, _) = Plan::scratch(shape, size);
        let run =
            Run { gemm: self, out, scratch, shape, plan, pieces, kind: Kind::of(self.level, self.kind()) };
        // SAFETY: the caller's promises are the same.
        unsafe { run.all(pool) }
    }
}

/// Steps of k, over the panels read at once, that B is fetched ahead when few rows use it.
const AHEAD: usize = 64;
/// Streams in which the next block of B is fetched meanwhile when one call has all rows.
const STREAMS: usize = 4;

/// Floats of B that stay in the cache while they are read again and again with gaps between the rows.
const IN_PLACE: usize = 16 * 1024;

/// The most blocks of rows that the workers choose from; more are taken in order.
const GROUPS: usize = 64;

/// A product under way.
struct Run<'a> {
    gemm: &'a Gemm<'a>,
    out: Out<'a>,
    scratch: &'a Scratch,
    shape: Shape,
    plan: Plan,
    pieces: Pieces,
    kind: Kind,
}

// SAFETY: the addresses are only used by tasks that write disjoint blocks, see `Gemm::run`.
unsafe impl Sync for Run<'_> {}

/// A block of C and where B for it is found.
struct Task {
    batch: usize,
    row_block: usize,
    panels: Range<usize>,
    /// The packing of B that the tasks share begins with this panel.
    first_shared: usize,
}

/// Panels that one call of the micro-kernel takes.
struct Group {
    /// The first, and how many.
    p: usize,
    count: usize,
    cols: Range<usize>,
    /// No column is missing.
    whole: bool,
}

/// What the packed A of a worker holds: batch, block of rows, piece of k.
type Tag = [usize; 3];
const NOTHING: Tag = [usize::MAX; 3];

impl Run<'_> {
    /// # Safety
    /// As for [`Gemm::run`].
    unsafe fn all(&self, pool: &Pool) {
        for worker in 0..pool.threads() {
            // SAFETY: the piece of a worker begins with its tag, and no worker runs yet.
            unsafe { self.scratch.each::<u8>(worker, self.pieces.bytes()).cast::<Tag>().write(NOTHING) }
        }
        let batches = self.gemm.batches;
        if !self.plan.pack_first {
            // SAFETY: the caller's promises are the same.
            return unsafe { self.tasks(pool, 0..batches.len(), 0..self.plan.shared.len) };
        }
        let mut first = 0;
        for same in batches.chunk_by(|x, y| x.b == y.b) {
            for i in 0..self.plan.shared.count() {
                let panels = self.plan.shared.range(i);
                // SAFETY: as above; batches of one chunk have the same B.
                unsafe {
                    self.pack_shared(pool, first, panels.clone());
                    self.tasks(pool, first..first + same.len(), panels);
                }
            }
            first += same.len();
        }
    }

    unsafe fn tasks(&self, pool: &Pool, batches: Range<usize>, panels: Range<usize>) {
        let across = panels.len().div_ceil(self.plan.panels).max(1);
        let rows = self.plan.rows.count();
        let groups = batches.len() * rows;
        // Each worker begins with rows of its own, for which it packs A once, and then helps the others.
        let taken = [const { AtomicUsize::new(0) }; GROUPS];
        let pick = |i: usize, worker: usize| {
            let start = worker * groups / pool.threads();
            let mut free = (0..groups).map(|g| (start + g) % groups).filter_map(|g| {
                let col = taken.get(g)?.fetch_add(1, Ordering::Relaxed);
                (col < across).then_some((g, col))
            });
            // There is always one: there are as many calls as tasks, and every call takes one.
            free.next().unwrap_or((i / across, i % across))
        };
        let grouped = across > 1 && (2..=GROUPS).contains(&groups);
        pool.run(groups * across, |i, worker| {
            let (by_rows, col) = if grouped { pick(i, worker) } else { (i / across, i % across) };
            let start = panels.start + col * self.plan.panels;
            let task = Task {
                batch: batches.start + by_rows / rows,
                row_block: by_rows % rows,
                panels: start..(start + self.plan.panels).min(panels.end),
                first_shared: panels.start,
            };
            // SAFETY: the caller of `run` has the memory; tasks differ in rows, columns or batch.
            unsafe { self.task(worker, &task) }
        });
    }

    fn offsets(&self, batch: usize) -> BatchOffsets {
        self.gemm.batches.get(batch).copied().unwrap_or_default()
    }

    fn cols(&self, panel: usize) -> Range<usize> {
        panel * self.shape.width..((panel + 1) * self.shape.width).min(self.gemm.n)
    }

    /// Packs rows of one panel of B.
    unsafe fn pack_panel(&self, batch: usize, panel: usize, ks: Range<usize>, dst: *mut f32) {
        if let B::Strided { ptr, strides } = self.gemm.b {
            let level = self.gemm.level;
            let ptr = ptr.wrapping_offset(self.offsets(batch).b);
            let fill = |rows: Range<usize>, cols: Range<usize>, dst: *mut f32, stride: usize| {
                let at = rows.start as isize * strides[0] + cols.start as isize * strides[1];
                // SAFETY: the caller has B of this batch, and room for the rows.
                unsafe { pack::copy(level, ptr.offset(at), strides, [rows.len(), cols.len()], dst, stride) }
            };
            // SAFETY: as above.
            unsafe { pack::panel(level, PackKind::F32, ks, self.cols(panel), dst, &fill) }
        }
    }

    unsafe fn pack_shared(&self, pool: &Pool, batch: usize, panels: Range<usize>) {
        let floats = self.shape.width * self.gemm.k;
        pool.run(panels.len(), |i, _| {
            let dst = self.scratch.shared::<f32>(floats * panels.len());
            // SAFETY: the panels of the shared scratch are disjoint.
            unsafe { self.pack_panel(batch, panels.start + i, 0..self.gemm.k, dst.add(i * floats)) }
        });
    }

    /// Packs a block of A, unless the worker still has it: blocks of [`micro::KC`] columns, each rows at a distance of [`LDA`].
    unsafe fn pack_a(
        &self,
        worker: usize,
        task: &Task,
        long: usize,
        rows: &Range<usize>,
        steps: plan::Cut,
    ) -> *const f32 {
        let base = self.scratch.each::<u8>(worker, self.pieces.bytes());
        let k0 = self.plan.long.range(long).start;
        // SAFETY: the worker's piece is its own; the plan keeps the block within it.
        unsafe {
            let (held, a) = (base.cast::<Tag>(), base.add(TAG).cast::<f32>());
            let tag = [task.batch, task.row_block, long];
            if *held == tag {
                return a;
            }
            for i in 0..steps.count() {
                let ks = steps.range(i);
                let (ks, dst) = (k0 + ks.start..k0 + ks.end, a.add(i * rows.len() * LDA));
                match self.gemm.a {
                    A::Rows(source) => source.fill(worker, task.batch, rows.clone(), ks.clone(), dst, LDA),
                    A::Strided { ptr, strides } => {
                        let at = rows.start as isize * strides[0] + ks.start as isize * strides[1];
                        let src = ptr.wrapping_offset(self.offsets(task.batch).a).wrapping_offset(at);
                        pack::copy(self.gemm.level, src, strides, [rows.len(), ks.len()], dst, LDA);
                    }
                }
                if self.kind != Kind::F32 {
                    let dot = self.kind == Kind::Bf16Dot;
                    pack::round_rows(self.gemm.level, dot, rows.len(), ks.len(), dst, LDA);
                }
            }
            *held = tag;
            a
        }
    }

    unsafe fn task(&self, worker: usize, task: &Task) {
        let (plan, width) = (&self.plan, self.shape.width);
        let rows = plan.rows.range(task.row_block);
        let pieces = plan.long.count();
        // SAFETY: the worker's piece of scratch is its own, and large enough for the pieces.
        let b_own = unsafe {
            self.scratch.each::<u8>(worker, self.pieces.bytes()).add(TAG).cast::<f32>().add(self.pieces.a)
        };
        // SAFETY: as above.
        let c_own = unsafe { b_own.add(self.pieces.b) };
        let at_once = self.shape.panels(rows.len());
        // Columns of the scratch of C, when results go to a sink.
        let own_cols = (task.panels.len() * width).min(plan.sink_cols.next_multiple_of(width));
        for long in 0..pieces {
            let ks = plan.long.range(long);
            let steps = Plan::steps(ks.len());
            // SAFETY: as above.
            let a = unsafe { self.pack_a(worker, task, long, &rows, steps) };
            let mut p = task.panels.start;
            // The first panel that the sink does not have yet.
            let mut waiting = p;
            while p < task.panels.end {
                let full = self.cols(p + at_once - 1).len() == width && p + at_once <= task.panels.end;
                let count = if full { at_once } else { 1 };
                let cols = self.cols(p).start..self.cols(p + count - 1).end;
                let group = Group { p, count, cols: cols.clone(), whole: cols.len() == count * width };
                // SAFETY: the scratch of C has room for the rows and the columns that wait; the rest is as above.
                unsafe {
                    let own = (b_own, c_own.add((p - waiting) * width), own_cols);
                    self.group(task, &rows, ks.clone(), a, &group, own);
                }
                p += count;
                let Out::Sink { sink, .. } = self.out else { continue };
                let next = at_once.min(task.panels.end - p);
                if long + 1 == pieces && (next == 0 || (p - waiting + next) * width > own_cols) {
                    let cols = self.cols(waiting).start..cols.end;
                    // SAFETY: the block is finished, and in the worker's own scratch.
                    unsafe { sink.block(worker, task.batch, rows.clone(), cols, c_own, own_cols) }
                    waiting = p;
                }
            }
        }
    }

    /// Some panels with all rows and a long piece of k; `own` is scratch for B, and for C with its row stride.
    unsafe fn group(
        &self,
        task: &Task,
        rows: &Range<usize>,
        ks: Range<usize>,
        a: *const f32,
        group: &Group,
        (b_own, c_own, own_cols): (*mut f32, *mut f32, usize),
    ) {
        let (width, steps) = (self.shape.width, Plan::steps(ks.len()));
        let Group { count, ref cols, whole, .. } = *group;
        // SAFETY: the caller of `run` has the output; the caller has the scratch and packed A.
        unsafe {
            let (c, ldc) = match self.out {
                Out::Direct { ptr, row_stride } if whole => {
                    let at = rows.start as isize * row_stride + cols.start as isize;
                    (ptr.offset(self.offsets(task.batch).c + at), row_stride)
                }
                Out::Direct { .. } => (c_own, width as isize),
                Out::Sink { .. } => (c_own, own_cols as isize),
            };
            let edge = !whole && matches!(self.out, Out::Direct { .. });
            if edge && ks.start > 0 {
                self.copy_edge(task, rows, cols, c, true);
            }
            for i in 0..steps.count() {
                let span = steps.range(i);
                let k0 = ks.start + span.start;
                let half = cols.len() * 2 <= width;
                let (b, step, panel) = self.b(task, group, k0..k0 + span.len(), b_own);
                let next = match i + 1 < steps.count() {
                    true => b.wrapping_offset(self.kind.steps(span.len()) as isize * step),
                    false => {
                        let back = self.kind.steps(span.start) as isize * step;
                        b.wrapping_offset(-back).wrapping_add(count * panel)
                    }
                };
                let args = Args {
                    k: span.len(),
                    a: a.add(i * rows.len() * LDA),
                    b,
                    step,
                    panel,
                    c,
                    ldc,
                    accumulate: k0 > 0,
                    ahead: Ahead { b: next, mask: 0, apart: 0, shift: 0 },
                };
                self.row_panels(rows.len(), if half { 1 } else { 2 * count }, args);
            }
            if edge {
                self.copy_edge(task, rows, cols, c, false);
            }
        }
    }

    /// B from row `ks.start` of a panel on, and the distances to the next row and the next panel: where it is, if the kernel
    /// can read it there; else packed into `own`.
    unsafe fn b(
        &self,
        task: &Task,
        &Group { p, count, whole, .. }: &Group,
        ks: Range<usize>,
        own: *mut f32,
    ) -> (*const f32, isize, usize) {
        let (width, k) = (self.shape.width, self.gemm.k);
        // SAFETY: a packed B has all panels; the shared scratch has those of the tasks; `own` has room for the rows.
        unsafe {
            match self.gemm.b {
                B::Packed(packed) => {
                    let panel = pack::panel_floats(self.shape, packed.kind(), k);
                    (
                        packed.ptr().add(p * panel + packed.kind().steps(ks.start) * width),
                        width as isize,
                        panel,
                    )
                }
                B::Strided { .. } if self.plan.pack_first => {
                    let shared = self.scratch.shared::<f32>(0).cast_const();
                    (
                        shared.add((p - task.first_shared) * width * k + ks.start * width),
                        width as isize,
                        width * k,
                    )
                }
                B::Strided { ptr, strides: [step, 1] } if whole && self.reads_in_place(step) => {
                    let at = ks.start as isize * step + (p * width) as isize;
                    (ptr.offset(self.offsets(task.batch).b + at), step, width)
                }
                B::Strided { .. } => {
                    let panel = width * ks.len();
                    for i in 0..count {
                        self.pack_panel(task.batch, p + i, ks.clone(), own.add(i * panel));
                    }
                    (own, width as isize, panel)
                }
            }
        }
    }

    /// Whether rows of B at such a distance are best read where they are: when few rows use them, or when all of them stay
    /// in the cache.
    fn reads_in_place(&self, step: isize) -> bool {
        self.gemm.m <= self.shape.quad || step.unsigned_abs().saturating_mul(self.gemm.k) <= IN_PLACE
    }

    /// Calls the micro-kernel for all rows of a block, in panels of nearly one height.
    unsafe fn row_panels(&self, rows: usize, regs: usize, mut args: Args) {
        let count = rows.div_ceil(self.shape.rows).max(1);
        let (low, more) = (rows / count, rows % count);
        let steps = self.kind.steps(args.k);
        // Spread over as many calls as make a power of two; the others fetch what they have.
        let mut spread = 1usize << count.ilog2();
        args.ahead.shift = count.ilog2();
        if regs == 2 && count == 1 {
            args.ahead = Ahead {
                mask: STREAMS - 1,
                apart: (steps / STREAMS) as isize * args.step,
                shift: STREAMS.ilog2(),
                ..args.ahead
            };
        } else if count == 1 {
            args.ahead.b = args.b.wrapping_offset((AHEAD / (regs / 2).max(1)) as isize * args.step);
        }
        for (height, count) in [(low + 1, more), (low, count - more)] {
            if count == 0 {
                continue;
            }
            let kernel = micro::kernel(self.gemm.level, self.kind, height, regs);
            for _ in 0..count {
                // SAFETY: the caller has all rows of A and C.
                unsafe {
                    kernel(&args);
                    spread = spread.saturating_sub(1);
                    args.ahead.b = match spread {
                        1.. => args.ahead.b.wrapping_offset((steps >> args.ahead.shift) as isize * args.step),
                        0 => args.b,
                    };
                    args.a = args.a.add(height * LDA);
                    args.c = args.c.offset(height as isize * args.ldc);
                }
            }
        }
    }

    /// Moves the last columns, fewer than a panel, from the output to a whole panel in scratch, or back.
    unsafe fn copy_edge(
        &self,
        task: &Task,
        rows: &Range<usize>,
        cols: &Range<usize>,
        own: *mut f32,
        fetch: bool,
    ) {
        let Out::Direct { ptr, row_stride } = self.out else { return };
        for (i, r) in rows.clone().enumerate() {
            // SAFETY: the caller has the output and the scratch.
            unsafe {
                let c =
                    ptr.offset(self.offsets(task.batch).c + r as isize * row_stride + cols.start as isize);
                let own = own.add(i * self.shape.width);
                if fetch {
                    own.copy_from_nonoverlapping(c, cols.len());
                } else {
                    c.copy_from_nonoverlapping(own, cols.len());
                }
            }
        }
    }
}

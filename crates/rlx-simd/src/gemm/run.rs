//! A product under way: blocks of rows and panels of columns go through the micro-kernel, by many threads.
//!
//! What is multiplied ([`Numbers`]) is apart: floats and bytes have this in common. All of it is counted in units of four
//! bytes, which are an f32, a pair of bf16, four bytes, or a sum in i32; the steps of k are those of a row of packed A.

use super::BatchOffsets;
use super::micro::{self, Ahead, Args, Kind, LDA, Shape};
use super::plan::{self, Pieces, Plan, Size, TAG};
use crate::level::Level;
use crate::mem::{Scratch, ScratchSize};
use crate::pool::Pool;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What a product multiplies, and what becomes of its results.
pub(super) trait Numbers: Sync {
    fn level(&self) -> Level;
    fn kind(&self) -> Kind;
    fn size(&self) -> Size;
    fn batches(&self) -> &[BatchOffsets];
    /// Packs steps of k of some rows of A: row `rows.start + i` begins at `dst + i * LDA`. The worker has notes about the rows
    /// that it packs; whether the steps are the first of a long piece of k comes last.
    ///
    /// # Safety
    /// There is room for the rows, at most [`plan::ROWS`], and for as many notes; the caller of the product has A.
    unsafe fn left(
        &self,
        worker: usize,
        batch: usize,
        rows: Range<usize>,
        ks: Range<usize>,
        into: (*mut f32, *mut [i32; 2], bool),
    );
    /// B, if all of it is packed, and the same for all batches.
    fn packed(&self) -> Option<*const f32>;
    /// B of a batch and the distance of its rows, if the micro-kernel can read it as it lies.
    fn in_place(&self, batch: usize) -> Option<(*const f32, isize)>;
    /// Packs steps of k of a panel of B, head and all if they begin with the first.
    ///
    /// # Safety
    /// There is room for them; the caller of the product has B.
    unsafe fn right(&self, batch: usize, cols: Range<usize>, ks: Range<usize>, dst: *mut f32);
    /// Says what the sums of these rows and panels begin with, for the long piece of k of that number: in `row`, if it is the
    /// same for all rows.
    ///
    /// # Safety
    /// `c` has the rows at that distance, `heads` are those of the panels, at that distance.
    unsafe fn begin(&self, piece: usize, start: &Start, row: &mut FirstRow) -> Begin {
        let _ = (piece, start, row);
        Begin::Nothing
    }
    /// Hands a finished block to the sink, if there is one.
    ///
    /// # Safety
    /// As for [`crate::sink::Sink::block`].
    unsafe fn give(
        &self,
        worker: usize,
        batch: usize,
        rows: Range<usize>,
        cols: Range<usize>,
        acc: *mut f32,
        stride: usize,
    );
    /// Where results go that go to memory: the first element of the batch at offset 0, and the distance of rows.
    fn direct(&self) -> Option<(*mut f32, isize)>;
}

/// A row of as many panels as one call takes.
pub(super) type FirstRow = [i32; 4 * micro::WIDEST];

/// What sums begin with, beyond those of earlier pieces of k.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Begin {
    Nothing,
    /// A row, the same for all.
    Row,
    /// What was written to C.
    Written,
}

/// What begins a tile of C: see [`Numbers::begin`].
pub(super) struct Start {
    pub notes: *const [i32; 2],
    pub rows: usize,
    pub cols: Range<usize>,
    /// The heads of the panels, and the distance from one to the next.
    pub heads: *const f32,
    pub panel: usize,
    pub width: usize,
    pub c: *mut f32,
    pub ldc: isize,
}

/// The scratch space of a run: enough for any number of threads, and for any smaller m, n, k.
pub(super) fn scratch(level: Level, kind: Kind, size: Size) -> ScratchSize {
    let (pieces, shared) = Plan::scratch(micro::shape(level, kind), kind, size);
    ScratchSize { each: pieces.bytes(), shared: shared * size_of::<f32>() }
}

/// Computes a product.
///
/// # Safety
/// The operands are readable and the output writable for all batches, the output overlaps nothing, and rows of the
/// output do not overlap each other. Scratch has at least [`scratch`] for the pool.
pub(super) unsafe fn run<N: Numbers>(numbers: &N, pool: &Pool, scratch: &Scratch) {
    let (kind, size) = (numbers.kind(), numbers.size());
    if size.m == 0 || size.n == 0 || size.batches == 0 {
        return;
    }
    let shape = micro::shape(numbers.level(), kind);
    let plan = Plan::new(shape, size, pool.threads());
    let (pieces, _) = Plan::scratch(shape, kind, size);
    // SAFETY: the caller's promises are the same.
    unsafe { Run { numbers, size, scratch, shape, plan, pieces, kind }.all(pool) }
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
struct Run<'a, N> {
    numbers: &'a N,
    size: Size,
    scratch: &'a Scratch,
    shape: Shape,
    plan: Plan,
    pieces: Pieces,
    kind: Kind,
}

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

impl<N: Numbers> Run<'_, N> {
    /// # Safety
    /// As for [`run`].
    unsafe fn all(&self, pool: &Pool) {
        for worker in 0..pool.threads() {
            // SAFETY: the piece of a worker begins with its tag, and no worker runs yet.
            unsafe { self.scratch.each::<u8>(worker, self.pieces.bytes()).cast::<Tag>().write(NOTHING) }
        }
        let batches = self.numbers.batches();
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
        self.numbers.batches().get(batch).copied().unwrap_or_default()
    }

    fn cols(&self, panel: usize) -> Range<usize> {
        panel * self.shape.width..((panel + 1) * self.shape.width).min(self.size.n)
    }

    unsafe fn pack_shared(&self, pool: &Pool, batch: usize, panels: Range<usize>) {
        let floats = self.kind.panel(self.shape, self.size.k);
        pool.run(panels.len(), |i, _| {
            let dst = self.scratch.shared::<f32>(floats * panels.len());
            // SAFETY: the panels of the shared scratch are disjoint; the caller of the product has B.
            unsafe {
                let cols = self.cols(panels.start + i);
                self.numbers.right(batch, cols, 0..self.size.k, dst.add(i * floats));
            }
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
                let into = (dst, self.notes(worker), i == 0);
                self.numbers.left(worker, task.batch, rows.clone(), ks, into);
            }
            *held = tag;
            a
        }
    }

    /// What a worker notes about the rows that it has packed.
    fn notes(&self, worker: usize) -> *mut [i32; 2] {
        let base = self.scratch.each::<u8>(worker, self.pieces.bytes());
        base.wrapping_add(TAG).cast::<f32>().wrapping_add(self.pieces.notes()).cast()
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
                    self.group(task, &rows, (long, ks.clone()), (a, self.notes(worker)), &group, own);
                }
                p += count;
                if self.numbers.direct().is_some() {
                    continue;
                }
                let next = at_once.min(task.panels.end - p);
                if long + 1 == pieces && (next == 0 || (p - waiting + next) * width > own_cols) {
                    let cols = self.cols(waiting).start..cols.end;
                    // SAFETY: the block is finished, and in the worker's own scratch.
                    unsafe { self.numbers.give(worker, task.batch, rows.clone(), cols, c_own, own_cols) }
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
        (long, ks): (usize, Range<usize>),
        (a, notes): (*const f32, *const [i32; 2]),
        group: &Group,
        (b_own, c_own, own_cols): (*mut f32, *mut f32, usize),
    ) {
        let (width, steps) = (self.shape.width, Plan::steps(ks.len()));
        let Group { count, ref cols, whole, .. } = *group;
        // SAFETY: the caller of `run` has the output; the caller has the scratch and packed A.
        unsafe {
            let direct = self.numbers.direct();
            let (c, ldc) = match direct {
                Some((ptr, row_stride)) if whole => {
                    let at = rows.start as isize * row_stride + cols.start as isize;
                    (ptr.offset(self.offsets(task.batch).c + at), row_stride)
                }
                Some(_) => (c_own, width as isize),
                None => (c_own, own_cols as isize),
            };
            let edge = !whole && direct.is_some();
            if edge && ks.start > 0 {
                self.copy_edge(task, rows, cols, c, true);
            }
            let mut row: FirstRow = [0; 4 * micro::WIDEST];
            let mut begin = if ks.start > 0 { Begin::Written } else { Begin::Nothing };
            for i in 0..steps.count() {
                let span = steps.range(i);
                let k0 = ks.start + span.start;
                let half = cols.len() * 2 <= width;
                let (b, step, panel) = self.b(task, group, k0..k0 + span.len(), b_own);
                if i == 0 {
                    let heads = b.wrapping_sub(self.kind.head(self.shape) + self.kind.steps(k0) * width);
                    let (rows, cols) = (rows.len(), cols.clone());
                    let start = Start { notes, rows, cols, heads, panel, width, c, ldc };
                    let more = self.numbers.begin(long, &start, &mut row);
                    begin = if begin == Begin::Nothing { more } else { begin };
                } else {
                    begin = Begin::Written;
                }
                let (from, from_rows) = match begin {
                    Begin::Nothing => (std::ptr::null(), 0),
                    Begin::Row => (row.as_ptr().cast(), 0),
                    Begin::Written => (c.cast_const(), ldc),
                };
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
                    from,
                    from_rows,
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
        let width = self.shape.width;
        let panel = self.kind.panel(self.shape, self.size.k);
        let at = self.kind.head(self.shape) + self.kind.steps(ks.start) * width;
        // SAFETY: a packed B has all panels; the shared scratch has those of the tasks; `own` has room for the rows.
        unsafe {
            if let Some(packed) = self.numbers.packed() {
                return (packed.add(p * panel + at), width as isize, panel);
            }
            if self.plan.pack_first {
                let shared = self.scratch.shared::<f32>(0).cast_const();
                return (shared.add((p - task.first_shared) * panel + at), width as isize, panel);
            }
            if let Some((ptr, step)) = self.numbers.in_place(task.batch)
                && whole
                && self.reads_in_place(step)
            {
                return (ptr.offset(ks.start as isize * step + (p * width) as isize), step, width);
            }
            let panel = width * ks.len();
            for i in 0..count {
                self.numbers.right(task.batch, self.cols(p + i), ks.clone(), own.add(i * panel));
            }
            (own, width as isize, panel)
        }
    }

    /// Whether rows of B at such a distance are best read where they are: when few rows use them, or when all of them stay
    /// in the cache.
    fn reads_in_place(&self, step: isize) -> bool {
        self.size.m <= self.shape.quad || step.unsigned_abs().saturating_mul(self.size.k) <= IN_PLACE
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
            let kernel = micro::kernel(self.numbers.level(), self.kind, height, regs);
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
                    args.from = args.from.wrapping_offset(height as isize * args.from_rows);
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
        let Some((ptr, row_stride)) = self.numbers.direct() else { return };
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

//! Running a bound region.

use super::{BoundArg, BoundRegion, Lanes, Mode, Op, Place};
use rlx_ir::op::step::Fold;
use rlx_simd::mem::{Ptr, Scratch, ScratchSize};
use rlx_simd::pool::Pool;
use rlx_simd::tile::{self, Store};
use std::ops::Range;

/// Bytes of a small slot: a cache line, so that a vector load stays within it.
const SLOT: usize = 64;
/// Rows of a task that joins the parts of rows.
const ROWS: usize = 64;

/// The memory that a task works in.
pub(super) struct Work<'a> {
    pub region: &'a BoundRegion,
    pub args: &'a [Ptr<u8>],
    /// The address of each argument at the current row.
    pub at: *mut *mut u8,
    pub slots: *mut u8,
    pub accs: *mut u8,
    pub tiles: *mut u8,
    /// Bytes of a tile buffer.
    pub tile_bytes: usize,
    /// The tile that the kernel in front left, or the one behind takes.
    pub front: *mut u8,
    /// The first lane of the tile.
    pub lane: usize,
    /// The row.
    pub row: usize,
}

impl BoundRegion {
    /// The scratch space that a run needs with so many threads.
    pub fn scratch(&self, threads: usize) -> ScratchSize {
        if let Some(c) = &self.columns {
            return c.scratch();
        }
        match self.few(threads) {
            Some(tasks) => ScratchSize { each: 0, shared: tasks * self.each() },
            None => ScratchSize { each: self.each(), shared: self.parts_bytes() },
        }
    }

    /// Rows of a task.
    fn task_rows(&self) -> usize {
        (self.grain / self.lanes.max(1)).max(1)
    }

    /// The number of tasks, if there are fewer than threads and each holds whole rows, which may be long: then tasks have
    /// memory of their own rather than workers.
    fn few(&self, threads: usize) -> Option<usize> {
        let tasks = self.count.div_ceil(self.task_rows());
        (self.mode == Mode::Resident && self.lanes > 0 && (1..threads).contains(&tasks)).then_some(tasks)
    }

    fn parts_bytes(&self) -> usize {
        if self.parts > 1 { self.count * self.parts * self.folds.len() * 8 } else { 0 }
    }

    fn tile_bytes(&self) -> usize {
        (self.tile.max(1) * self.width).div_ceil(64) * 64
    }

    fn each(&self) -> usize {
        (self.args.len() * 8).div_ceil(64) * 64
            + self.slots * SLOT
            + (self.folds.len() * 8).div_ceil(64) * 64
            + self.tiles * self.tile_bytes()
    }

    /// A worker's memory behind what the kernel in front uses.
    fn piece(&self, scratch: &Scratch, worker: usize, skip: usize) -> *mut u8 {
        scratch.each::<u8>(worker, skip + self.each()).wrapping_add(skip)
    }

    /// Work in memory, at the first row, with what is computed once computed.
    ///
    /// # Safety
    /// The memory is as large as [`BoundRegion::each`] says, and nobody else uses it.
    unsafe fn work<'a>(&'a self, args: &'a [Ptr<u8>], base: *mut u8) -> Work<'a> {
        // SAFETY: as promised by the caller.
        unsafe {
            let slots = base.add((self.args.len() * 8).div_ceil(64) * 64);
            let accs = slots.add(self.slots * SLOT);
            let tiles = accs.add((self.folds.len() * 8).div_ceil(64) * 64);
            let mut w = Work {
                region: self,
                args,
                at: base.cast(),
                slots,
                accs,
                tiles,
                tile_bytes: self.tile_bytes(),
                front: std::ptr::null_mut(),
                lane: 0,
                row: 0,
            };
            w.start(0);
            w.go(&self.once, 1);
            w
        }
    }

    /// Runs the region.
    ///
    /// # Safety
    /// `args` are the addresses of the kernel's arguments, each valid for all that its strides reach; arguments that are
    /// written overlap no other, but the one that they replace.
    pub unsafe fn run(&self, pool: &Pool, scratch: &Scratch, args: &[Ptr<u8>]) {
        if let Some(c) = &self.columns {
            // SAFETY: as promised by the caller.
            return unsafe { c.run(pool, scratch, args) };
        }
        match self.mode {
            _ if self.lanes == 0 && !self.keeps_rows() => {}
            Mode::Flat => {
                pool.run(self.lanes.div_ceil(self.grain), |task, worker| {
                    // SAFETY: tasks have lanes of their own, workers scratch of their own.
                    unsafe {
                        let mut w = self.work(args, self.piece(scratch, worker, 0));
                        let from = task * self.grain;
                        w.lanes(from..(from + self.grain).min(self.lanes));
                    }
                });
            }
            _ if self.parts > 1 => self.run_parts(pool, scratch, args),
            _ => {
                let each = self.task_rows();
                let own = self.few(pool.threads()).map(|n| Ptr(scratch.shared::<u8>(n * self.each())));
                pool.run(self.count.div_ceil(each), |task, worker| {
                    let base = own.map(|p| p.0.wrapping_add(task * self.each()));
                    // SAFETY: tasks have rows of their own, tasks or workers scratch of their own.
                    unsafe {
                        let base = base.unwrap_or_else(|| self.piece(scratch, worker, 0));
                        let mut w = self.work(args, base);
                        for row in task * each..((task + 1) * each).min(self.count) {
                            w.start(row);
                            w.whole_row();
                        }
                        if self.is_one() {
                            w.go(&self.only, 1);
                        }
                    }
                });
            }
        }
        let first = match self.few(pool.threads()) {
            Some(_) => scratch.shared::<u8>(self.each()),
            None => self.piece(scratch, 0, 0),
        };
        // SAFETY: as promised by the caller; no task runs any more.
        unsafe { self.finish_in(first, args) };
    }

    /// Stores what is stored only once: behind all blocks or lanes, which may read what it replaces.
    ///
    /// # Safety
    /// As for [`BoundRegion::run`]; `skip` as for [`BoundRegion::run_block`]; no task runs any more.
    pub(crate) unsafe fn finish(&self, scratch: &Scratch, skip: usize, args: &[Ptr<u8>]) {
        // SAFETY: as promised by the caller.
        unsafe { self.finish_in(self.piece(scratch, 0, skip), args) };
    }

    /// # Safety
    /// As for [`BoundRegion::finish`] and [`BoundRegion::work`].
    unsafe fn finish_in(&self, base: *mut u8, args: &[Ptr<u8>]) {
        if !self.only.is_empty() && !self.is_one() {
            // SAFETY: as promised by the caller.
            unsafe { self.work(args, base).go(&self.only, 1) };
        }
    }

    /// Whether rows have but one element in all. Then the element may be stored where something was read that is read once,
    /// so that what is stored once must be computed before, and is stored with the rest.
    fn is_one(&self) -> bool {
        self.mode != Mode::Flat && self.count == 1 && self.lanes == 1
    }

    /// Whether a row gives something even if it has no lanes.
    fn keeps_rows(&self) -> bool {
        self.body.iter().chain(&self.tail).any(|op| matches!(op, Op::StoreOne { .. }))
    }

    /// Long rows: parts of them side by side, then what they give in order.
    fn run_parts(&self, pool: &Pool, scratch: &Scratch, args: &[Ptr<u8>]) {
        let (parts, folds) = (self.parts, self.folds.len());
        let partial = Ptr(scratch.shared::<[u8; 8]>(self.count * parts * folds));
        pool.run(self.count * parts, |task, worker| {
            let (row, part) = (task / parts, task % parts);
            // SAFETY: tasks have lanes and partial results of their own, workers scratch of their own.
            unsafe {
                let mut w = self.work(args, self.piece(scratch, worker, 0));
                w.start(row);
                w.go(&self.head, 1);
                let from = part * self.grain;
                w.lanes(from..(from + self.grain).min(self.lanes));
                std::ptr::copy_nonoverlapping(w.accs.cast::<[u8; 8]>(), partial.add(task * folds).0, folds);
            }
        });
        pool.run(self.count.div_ceil(ROWS), |task, worker| {
            // SAFETY: the parts are done; tasks have rows of their own, workers scratch of their own.
            unsafe {
                let mut w = self.work(args, self.piece(scratch, worker, 0));
                for row in task * ROWS..((task + 1) * ROWS).min(self.count) {
                    w.start(row);
                    w.go(&self.head, 1);
                    for (k, f) in self.folds.iter().enumerate() {
                        let acc = w.accs.cast::<[u8; 8]>().add(k);
                        for part in 0..parts {
                            let own = *partial.add((row * parts + part) * folds + k).0;
                            *acc = combine(f.kind, f.ty, *acc, own);
                        }
                    }
                    w.go(&self.tail, 1);
                }
            }
        });
    }

    /// Runs these lanes of a flat region on the worker itself.
    ///
    /// # Safety
    /// As for [`BoundRegion::run`]; `skip` as for [`BoundRegion::run_block`].
    pub(super) unsafe fn run_lanes(
        &self,
        scratch: &Scratch,
        skip: usize,
        worker: usize,
        args: &[Ptr<u8>],
        lanes: Range<usize>,
    ) {
        // SAFETY: as promised by the caller.
        unsafe { self.work(args, self.piece(scratch, worker, skip)).lanes(lanes) };
    }

    /// Source, destination and bytes of an element, where all that the region does is to copy.
    pub(crate) fn copied(&self) -> Option<(u32, u32, usize)> {
        self.copy
    }

    /// The number of lanes.
    pub(crate) fn lanes(&self) -> usize {
        self.lanes
    }

    /// Whether a block must hold whole rows.
    pub(crate) fn needs_rows(&self) -> bool {
        !self.folds.is_empty()
    }

    /// Bytes of a worker's scratch space.
    pub(crate) fn each_bytes(&self) -> usize {
        self.each()
    }

    /// Runs the region on a block that the kernel in front left, or that the one behind takes: these rows and lanes. `skip`:
    /// bytes of the worker's scratch that others use.
    ///
    /// # Safety
    /// As for [`BoundRegion::run`]; `block` holds the rows at that distance in bytes, and may be overwritten.
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn run_block(
        &self,
        scratch: &Scratch,
        skip: usize,
        worker: usize,
        args: &[Ptr<u8>],
        rows: Range<usize>,
        lanes: Range<usize>,
        block: *mut u8,
        row_bytes: usize,
        element: usize,
    ) {
        // SAFETY: as promised by the caller.
        unsafe {
            let mut w = self.work(args, self.piece(scratch, worker, skip));
            for row in rows.clone() {
                w.start(row);
                let front = block.add((row - rows.start) * row_bytes);
                if self.mode == Mode::Resident {
                    w.front = front;
                    w.whole_row();
                } else {
                    w.go(&self.head, 1);
                    let mut from = lanes.start;
                    while from < lanes.end {
                        let n = (lanes.end - from).min(self.tile);
                        w.front = front.add((from - lanes.start) * element);
                        w.lane = from;
                        w.go(&self.body, n);
                        from += n;
                    }
                    // Of the blocks beside each other one stores what is stored once per row; with folds there is only one.
                    if lanes.start == 0 {
                        w.go(&self.tail, 1);
                    }
                }
            }
            if self.is_one() {
                w.go(&self.only, 1);
            }
        }
    }

    /// What no block holds, behind all of them: rows without lanes, and what is stored only once.
    ///
    /// # Safety
    /// As for [`BoundRegion::run_block`]; no task runs any more.
    pub(crate) unsafe fn run_rest(&self, scratch: &Scratch, skip: usize, args: &[Ptr<u8>]) {
        // SAFETY: as promised by the caller.
        unsafe {
            if self.lanes == 0 && self.keeps_rows() {
                let mut w = self.work(args, self.piece(scratch, 0, skip));
                for row in 0..self.count {
                    w.start(row);
                    w.whole_row();
                }
            }
            self.finish(scratch, skip, args);
        }
    }
}

/// Two accumulators into one.
pub(super) fn combine(kind: Fold, ty: Store, a: [u8; 8], b: [u8; 8]) -> [u8; 8] {
    if ty.is_float() {
        let (x, y) = (f64::from_ne_bytes(a), f64::from_ne_bytes(b));
        let z = match kind {
            Fold::Sum => x + y,
            Fold::Prod => x * y,
            Fold::Max | Fold::Any if x.is_nan() || y.is_nan() => f64::NAN,
            Fold::Max | Fold::Any => x.max(y),
            Fold::Min | Fold::All if x.is_nan() || y.is_nan() => f64::NAN,
            Fold::Min | Fold::All => x.min(y),
        };
        return z.to_ne_bytes();
    }
    let (x, y) = (i64::from_ne_bytes(a), i64::from_ne_bytes(b));
    let unsigned = ty == Store::U64;
    let z = match kind {
        Fold::Sum => x.wrapping_add(y),
        Fold::Prod => x.wrapping_mul(y),
        Fold::Max if unsigned => (x as u64).max(y as u64) as i64,
        Fold::Min if unsigned => (x as u64).min(y as u64) as i64,
        Fold::Max | Fold::Any => x.max(y),
        Fold::Min | Fold::All => x.min(y),
    };
    z.to_ne_bytes()
}

impl Lanes {
    /// Calls `f(done, n, offset, stride)` for each run of at most `n` lanes from `from` on that one stride describes.
    #[inline]
    pub(super) fn each(&self, from: usize, n: usize, mut f: impl FnMut(usize, usize, isize, isize)) {
        if let [(_, stride)] = self.0.as_slice() {
            return f(0, n, from as isize * stride, *stride);
        }
        let Some((inner, stride)) = self.0.last().copied() else { return };
        let mut done = 0;
        while done < n {
            let at = from + done;
            let (mut rest, within) = (at / inner.max(1), at % inner.max(1));
            let mut offset = within as isize * stride;
            for (size, s) in self.0.iter().rev().skip(1) {
                offset += (rest % size) as isize * s;
                rest /= size;
            }
            let len = (inner - within).min(n - done);
            f(done, len, offset, stride);
            done += len;
        }
    }
}

impl Work<'_> {
    /// Moves to a row.
    unsafe fn start(&mut self, row: usize) {
        self.row = row;
        let args = &self.region.args;
        for (k, base) in self.args.iter().enumerate().take(args.len()) {
            // SAFETY: the table has room for every argument.
            unsafe { *self.at.add(k) = base.0 };
        }
        let mut rest = row;
        for (axis, size) in self.region.rows.iter().enumerate().rev() {
            // The outermost axis needs no division, and most rows have no other.
            let outer = if axis == 0 { 0 } else { rest / size.max(&1) };
            let index = (rest - outer * size) as isize;
            rest = outer;
            for (k, stride) in args.iter().map(|a| a.rows.get(axis).copied().unwrap_or(0)).enumerate() {
                // SAFETY: as above; a row that exists lies within the argument.
                unsafe { *self.at.add(k) = (*self.at.add(k)).wrapping_offset(index * stride) };
            }
        }
        for (k, f) in self.region.folds.iter().enumerate() {
            // SAFETY: there is an accumulator for every fold.
            unsafe { *self.accs.cast::<[u8; 8]>().add(k) = f.init };
        }
    }

    unsafe fn whole_row(&mut self) {
        let r = self.region;
        // SAFETY: as promised to `BoundRegion::run`.
        unsafe {
            if r.mode == Mode::Resident {
                self.lane = 0;
                self.go(&r.body, r.lanes);
                return;
            }
            self.go(&r.head, 1);
            self.lanes(0..r.lanes);
            self.go(&r.tail, 1);
        }
    }

    unsafe fn lanes(&mut self, range: Range<usize>) {
        let mut from = range.start;
        while from < range.end {
            let n = (range.end - from).min(self.region.tile);
            self.lane = from;
            // SAFETY: as promised to `BoundRegion::run`.
            unsafe { self.go(&self.region.body, n) };
            from += n;
        }
    }

    /// The address of a register.
    #[inline(always)]
    unsafe fn place(&self, p: Place) -> *mut u8 {
        // SAFETY: places are within the memory of the worker, and tiles in memory within their argument.
        unsafe {
            match p {
                Place::Slot(k) => self.slots.add(k as usize * SLOT),
                Place::Tile(k) => self.tiles.add(k as usize * self.tile_bytes),
                Place::Memory(k) => {
                    let bytes = self.region.args.get(k as usize).map_or(1, |a| a.bytes);
                    (*self.at.add(k as usize)).wrapping_add(self.lane * bytes)
                }
                Place::Front => self.front,
            }
        }
    }

    #[inline(always)]
    fn arg(&self, k: u32) -> (&BoundArg, *mut u8) {
        static NONE: BoundArg = BoundArg { bytes: 1, width: 4, rows: Vec::new(), lanes: Lanes(Vec::new()) };
        match self.region.args.get(k as usize) {
            // SAFETY: the table has an entry for every argument, set by `start`.
            Some(a) => (a, unsafe { *self.at.add(k as usize) }),
            None => (&NONE, std::ptr::null_mut()),
        }
    }

    /// Runs instructions on tiles of `n` lanes.
    ///
    /// # Safety
    /// As promised to [`BoundRegion::run`]: what the instructions read and write is valid at this row and these lanes.
    unsafe fn go(&self, ops: &[Op], n: usize) {
        let count = |p: Place| if matches!(p, Place::Slot(_)) { 1 } else { n };
        for op in ops {
            // SAFETY: the binder chose loops for the registers' types; registers have room for a tile, and arguments are
            // valid at this row and these lanes.
            unsafe {
                match op {
                    Op::Load { f, arg, dst } => {
                        let ((a, base), to) = (self.arg(*arg), self.place(*dst));
                        a.lanes.each(self.lane, n, |done, len, offset, stride| {
                            let from = base.wrapping_offset(offset * a.bytes as isize);
                            f(len, to.add(done * a.width), from, stride);
                        });
                    }
                    Op::LoadOne { f, arg, dst } => f(1, self.place(*dst), self.arg(*arg).1, 1),
                    Op::Fill { f, src, dst } => f(n, self.place(*dst), self.place(*src), 0),
                    Op::Number { bytes, dst } => *self.place(*dst).cast::<[u8; 8]>() = *bytes,
                    Op::Iota { f, offset, rows, lanes, dst, width } => {
                        let mut rest = self.row;
                        let mut start = *offset;
                        for (size, stride) in self.region.rows.iter().zip(rows).rev() {
                            start += (rest % size.max(&1)) as i64 * stride;
                            rest /= size.max(&1);
                        }
                        let to = self.place(*dst);
                        lanes.each(self.lane, count(*dst), |done, len, offset, stride| {
                            f(len, to.add(done * width), start + offset as i64, stride as i64);
                        });
                    }
                    Op::Take { .. } => self.take(op, n),
                    Op::Unary { f, a, dst } => f(count(*dst), self.place(*dst), self.place(*a)),
                    Op::Binary { f, a, b, dst } => {
                        f(count(*dst), self.place(*dst), self.place(*a), self.place(*b))
                    }
                    Op::Ternary { f, a, b, c, dst } => {
                        f(count(*dst), self.place(*dst), self.place(*a), self.place(*b), self.place(*c))
                    }
                    Op::Fold { f, fold, a } => f(n, self.accs.add(*fold as usize * 8), self.place(*a)),
                    Op::Finish { fold, dst } => {
                        let acc = *self.accs.cast::<[u8; 8]>().add(*fold as usize);
                        let ty = self.region.folds.get(*fold as usize).map_or(Store::F32, |f| f.ty);
                        *self.place(*dst).cast::<[u8; 8]>() = tile::fold_finish(ty, acc);
                    }
                    Op::Store { f, arg, src } => {
                        let ((a, base), from) = (self.arg(*arg), self.place(*src));
                        a.lanes.each(self.lane, n, |done, len, offset, stride| {
                            let to = base.wrapping_offset(offset * a.bytes as isize);
                            f(len, to, stride, from.add(done * a.width));
                        });
                    }
                    Op::StoreOne { f, arg, src } => f(1, self.arg(*arg).1, 1, self.place(*src)),
                }
            }
        }
    }

    /// Loads entries by index.
    unsafe fn take(&self, op: &Op, n: usize) {
        let Op::Take { f, one, arg, index, index_ty, stride, len, dst, width } = op else { return };
        let (a, base) = self.arg(*arg);
        // SAFETY: the index's register holds a number for this row, or for each of these lanes; an index within `len` lies
        // within the argument.
        unsafe {
            let (index_at, to) = (self.place(*index), self.place(*dst));
            let read = |i: usize| -> Option<isize> {
                let k = match index_ty {
                    Store::I64 | Store::U64 => *index_at.cast::<i64>().add(i),
                    Store::U32 => i64::from(*index_at.cast::<u32>().add(i)),
                    _ => i64::from(*index_at.cast::<i32>().add(i)),
                };
                let k = if k < 0 && *index_ty != Store::U64 { k + len } else { k };
                (0..*len).contains(&k).then(|| k as isize * stride)
            };
            let single = matches!(dst, Place::Slot(_));
            if single || matches!(index, Place::Slot(_)) {
                let n = if single { 1 } else { n };
                match read(0) {
                    None => std::ptr::write_bytes(to, 0, n * width),
                    Some(entry) if single => one(1, to, base.wrapping_offset(entry), 1),
                    Some(entry) => a.lanes.each(self.lane, n, |done, len, offset, stride| {
                        let from = base.wrapping_offset(entry + offset * a.bytes as isize);
                        f(len, to.add(done * width), from, stride);
                    }),
                }
                return;
            }
            a.lanes.each(self.lane, n, |done, run, offset, lane_stride| {
                for k in 0..run {
                    let to = to.add((done + k) * width);
                    let offset = (offset + k as isize * lane_stride) * a.bytes as isize;
                    match read(done + k) {
                        None => std::ptr::write_bytes(to, 0, *width),
                        Some(entry) => one(1, to, base.wrapping_offset(entry + offset), 1),
                    }
                }
            });
        }
    }
}

//! Reductions of lanes that lie apart, while neighbouring rows lie side by side: the sum over a batch, say. Tiles of rows are
//! taken lane by lane and added to accumulators that are tiles themselves.
//!
//! It is done with three flat regions over the rows: one that adds a lane, one that joins the accumulators of two parts of the
//! lanes, one that computes what follows from the totals.

use super::bind::{bind, merge};
use super::bind::{fold_of, reads, store_of};
use super::{BoundRegion, Lanes};
use rlx_compile::program::{Arg, Inst, Kernel, Reg, Region, SizeId, Work};
use rlx_ir::op::step::Fold;
use rlx_ir::scalar::Scalar;
use rlx_ir::{DType, Result};
use rlx_simd::level::Level;
use rlx_simd::mem::{Ptr, Scratch, ScratchSize, round_up};
use rlx_simd::pool::Pool;
use rlx_simd::tile;
use std::ops::Range;

/// Rows of a tile of accumulators: with its operands it stays in the L1 cache.
const ROWS: usize = 1024;
/// Lanes of a part.
const PART: usize = 64;
/// Tiles that are enough for many threads: then a task does all parts of a tile.
const ENOUGH: usize = 16;

/// A reduction by columns.
#[derive(Clone, Debug)]
pub(crate) struct Columns {
    /// Adds a lane to the accumulators.
    step: Box<BoundRegion>,
    /// Computes what follows from the totals.
    post: Box<BoundRegion>,
    /// Joins the accumulators of two parts.
    join: Box<BoundRegion>,
    /// How the lanes of each argument lie, and the bytes of its elements.
    lanes: Vec<(Lanes, usize)>,
    rows: usize,
    lane_count: usize,
    parts: usize,
    accs: Vec<Acc>,
}

#[derive(Clone, Copy, Debug)]
struct Acc {
    bytes: usize,
    init: [u8; 8],
}

/// The dtype of an accumulator, which lies in memory as in a register, and what joins two.
fn accumulator(kind: Fold, dtype: DType) -> (DType, Scalar) {
    let float = dtype.is_float();
    let wide = if float { DType::F64 } else { DType::I64 };
    let own = match dtype {
        DType::F64 | DType::I64 | DType::U64 | DType::U32 => dtype,
        _ if float => DType::F32,
        _ => DType::I32,
    };
    match kind {
        Fold::Sum => (wide, Scalar::Add),
        Fold::Prod => (wide, Scalar::Mul),
        Fold::Max | Fold::Any => (own, Scalar::Max),
        Fold::Min | Fold::All => (own, Scalar::Min),
    }
}

/// The form by columns, where it pays: some operand lies row beside row, and its lanes apart.
pub(super) fn bind_columns(
    level: Level,
    sizes: &[i64],
    kernel: &Kernel,
    region: &Region,
    row_sizes: &[usize],
    lane_sizes: &[usize],
) -> Result<Option<Columns>> {
    let split = row_sizes.len();
    let stride = |id: &SizeId| sizes.get(id.0 as usize).copied().unwrap_or(0);
    let last_row = row_sizes.iter().rposition(|n| *n > 1);
    let last_lane = lane_sizes.iter().rposition(|n| *n > 1).map(|k| k + split);
    let (Some(last_row), Some(last_lane)) = (last_row, last_lane) else { return Ok(None) };
    let beside = |a: &Arg| {
        a.strides.get(last_row).is_some_and(|s| stride(s) == 1)
            && a.strides.get(last_lane).is_some_and(|s| stride(s) > 1)
    };
    let loads = region
        .code
        .iter()
        .filter_map(|i| if let Inst::Load(a) = i { kernel.args.get(*a as usize) } else { None });
    let takes = region.code.iter().any(|i| matches!(i, Inst::Take { .. } | Inst::Iota { .. }));
    let inner = row_sizes.get(last_row).copied().unwrap_or(0);
    if takes || inner < 16 || !loads.clone().any(beside) {
        return Ok(None);
    }
    // The regions' own sizes stand behind those of the program.
    let mut own = sizes.to_vec();
    let mut size = |n: i64| {
        own.push(n);
        SizeId(own.len() as u32 - 1)
    };
    let rows: usize = row_sizes.iter().product();
    let mut dense = Vec::new();
    let mut n = 1;
    for d in row_sizes.iter().rev() {
        dense.push(size(n));
        n *= *d as i64;
    }
    dense.reverse();
    let space: Vec<SizeId> = region.space.iter().take(split).copied().collect();
    let folds: Vec<(usize, Fold, Reg, DType)> = region
        .code
        .iter()
        .enumerate()
        .filter_map(|(r, i)| {
            if let Inst::Fold { kind, arg, dtype } = i { Some((r, *kind, *arg, *dtype)) } else { None }
        })
        .collect();
    let over_rows = |a: &Arg| Arg {
        shape: space.clone(),
        strides: a.strides.iter().take(split).copied().collect(),
        ..a.clone()
    };
    let mut args: Vec<Arg> = kernel.args.iter().map(over_rows).collect();
    let first = args.len() as u32;
    let mut accs = Vec::new();
    for (_, kind, _, dtype) in &folds {
        let wide = accumulator(*kind, *dtype).0;
        let init = tile::fold_init(fold_of(*kind), store_of(*dtype)?);
        let store = store_of(wide)?;
        accs.push(Acc { bytes: store.kind().bytes(), init: tile::fold_finish(store, init) });
        args.push(acc_arg(wide, &space, &dense, false, None));
    }
    // Which registers change from lane to lane.
    let lanes_move = |a: &Arg| a.strides.iter().skip(split).any(|s| stride(s) != 0);
    let mut moving: Vec<bool> = Vec::new();
    let mut late: Vec<bool> = Vec::new();
    for i in &region.code {
        let by_args = |v: &[bool]| reads(i).iter().any(|r| v.get(*r as usize).copied().unwrap_or(false));
        let fold = matches!(i, Inst::Fold { .. });
        let load =
            if let Inst::Load(a) = i { kernel.args.get(*a as usize).is_some_and(lanes_move) } else { false };
        moving.push(!fold && (load || by_args(&moving)));
        late.push(fold || by_args(&late));
    }
    let is = |v: &[bool], r: usize| v.get(r).copied().unwrap_or(false);

    let mut step: Vec<Inst> = Vec::new();
    let mut step_args = args.clone();
    let mut reg: Vec<Reg> = Vec::new();
    for (r, i) in region.code.iter().enumerate() {
        let skip = is(&late, r) || matches!(i, Inst::Store { value, .. } if !is(&moving, *value as usize));
        reg.push(step.len() as Reg);
        if !skip {
            step.push(renumber(i, &reg));
        }
    }
    for (k, (_, kind, arg, dtype)) in folds.iter().enumerate() {
        let (wide, op) = accumulator(*kind, *dtype);
        let mut value = reg.get(*arg as usize).copied().unwrap_or(0);
        if wide != *dtype {
            step.push(Inst::Cast { arg: value, from: *dtype, to: wide });
            value = step.len() as Reg - 1;
        }
        step.push(Inst::Load(first + k as u32));
        let before = step.len() as Reg - 1;
        step.push(Inst::Scalar { op, dtype: wide, args: vec![before, value] });
        let sum = step.len() as Reg - 1;
        step.push(Inst::Store { arg: step_args.len() as u32, value: sum });
        step_args.push(acc_arg(wide, &space, &dense, true, Some(first + k as u32)));
    }

    let mut post: Vec<Inst> = Vec::new();
    let mut reg: Vec<Reg> = Vec::new();
    for (r, i) in region.code.iter().enumerate() {
        let fold = folds.iter().position(|f| f.0 == r);
        let skip = is(&moving, r) || matches!(i, Inst::Store { value, .. } if is(&moving, *value as usize));
        if let (Some(k), Inst::Fold { kind, dtype, .. }) = (fold, i) {
            post.push(Inst::Load(first + k as u32));
            let wide = accumulator(*kind, *dtype).0;
            if wide != *dtype {
                post.push(Inst::Cast { arg: post.len() as Reg - 1, from: wide, to: *dtype });
            }
            reg.push(post.len() as Reg - 1);
        } else {
            reg.push(post.len() as Reg);
            if !skip {
                post.push(renumber(i, &reg));
            }
        }
    }

    let mut join: Vec<Inst> = Vec::new();
    let mut join_args: Vec<Arg> = Vec::new();
    let count = folds.len() as u32;
    for (k, (_, kind, _, dtype)) in folds.iter().enumerate() {
        let (wide, op) = accumulator(*kind, *dtype);
        let (a, r) = (k as u32, join.len() as Reg);
        join.extend([
            Inst::Load(a),
            Inst::Load(count + a),
            Inst::Scalar { op, dtype: wide, args: vec![r, r + 1] },
            Inst::Store { arg: 2 * count + a, value: r + 2 },
        ]);
        join_args.push(acc_arg(wide, &space, &dense, false, None));
    }
    join_args.extend(join_args.clone());
    for (k, a) in join_args.clone().iter().take(folds.len()).enumerate() {
        join_args.push(Arg { write: true, over: Some(k as u32), ..a.clone() });
    }
    let make = |code: Vec<Inst>, args: Vec<Arg>| {
        let region = Region { space: space.clone(), lanes: 0, code };
        let kernel = Kernel { work: Work::Region(region.clone()), args };
        bind(level, &own, &kernel, &region, false).map(Box::new)
    };
    let lane_count: usize = lane_sizes.iter().product();
    let lanes = kernel.args.iter().map(|a| {
        let strides = a.strides.iter().skip(split).map(|s| stride(s) as isize);
        (merge(lane_sizes.iter().copied().zip(strides)), a.dtype.bytes().unwrap_or(1))
    });
    // As the lanes alone say: the bits of a column must not depend on the columns beside it.
    let parts = lane_count.div_ceil(PART).clamp(1, 16);
    Ok(Some(Columns {
        lanes: lanes.collect(),
        step: make(step, step_args)?,
        post: make(post, args)?,
        join: make(join, join_args)?,
        rows,
        lane_count,
        parts,
        accs,
    }))
}

/// An instruction with its registers renumbered.
fn renumber(i: &Inst, map: &[Reg]) -> Inst {
    let new = |r: &Reg| map.get(*r as usize).copied().unwrap_or(0);
    let mut i = i.clone();
    match &mut i {
        Inst::Scalar { args, .. } => args.iter_mut().for_each(|r| *r = new(r)),
        Inst::Cast { arg, .. } | Inst::Fold { arg, .. } => *arg = new(arg),
        Inst::Take { index, .. } => *index = new(index),
        Inst::Store { value, .. } | Inst::Give(value) => *value = new(value),
        _ => {}
    }
    i
}

fn acc_arg(dtype: DType, space: &[SizeId], dense: &[SizeId], write: bool, over: Option<u32>) -> Arg {
    Arg { dtype, shape: space.to_vec(), strides: dense.to_vec(), write, over }
}

impl Columns {
    /// Where the accumulators of a fold begin among those of a part for so many rows; for the number of folds, all their bytes.
    fn acc_bytes(&self, k: usize, rows: usize) -> usize {
        self.accs.iter().take(k).map(|a| round_up(a.bytes * rows)).sum()
    }

    fn table_bytes(&self) -> usize {
        round_up((self.lanes.len() + 3 * self.accs.len()) * size_of::<Ptr<u8>>())
    }

    /// Whether the parts of a tile are tasks of their own.
    fn apart(&self) -> bool {
        self.parts > 1 && self.rows.div_ceil(ROWS) < ENOUGH
    }

    /// Bytes of a worker's scratch in front of the regions' own: a table of addresses, and accumulators of two parts.
    fn skip(&self) -> usize {
        let own = if self.apart() { 0 } else { 2 * self.acc_bytes(self.accs.len(), ROWS) };
        self.table_bytes() + own
    }

    pub(super) fn scratch(&self) -> ScratchSize {
        let each = self.step.each_bytes().max(self.post.each_bytes()).max(self.join.each_bytes());
        let shared = if self.apart() { self.parts * self.acc_bytes(self.accs.len(), self.rows) } else { 0 };
        ScratchSize { each: self.skip() + each, shared }
    }

    /// # Safety
    /// As for [`BoundRegion::run`].
    pub(super) unsafe fn run(&self, pool: &Pool, scratch: &Scratch, args: &[Ptr<u8>]) {
        let (tiles, count) = (self.rows.div_ceil(ROWS), self.accs.len());
        let rows = |tile: usize| tile * ROWS..((tile + 1) * ROWS).min(self.rows);
        // Tasks have rows or parts of their own, workers have memory of their own, and addresses are within the arguments, as
        // promised by the caller, or within the scratch space.
        if self.apart() {
            let part_bytes = self.acc_bytes(count, self.rows);
            let shared = Ptr(scratch.shared::<u8>(self.parts * part_bytes));
            let acc = |part: usize, k: usize| {
                // SAFETY: that much was asked for.
                unsafe { shared.add(part * part_bytes + self.acc_bytes(k, self.rows)) }
            };
            pool.run(tiles * self.parts, |task, worker| {
                let (part, tile) = (task / tiles, task % tiles);
                // SAFETY: as above.
                unsafe { self.part(scratch, worker, args, part, rows(tile), &|k| acc(part, k)) };
            });
            pool.run(tiles, |tile, worker| {
                // SAFETY: as above; the parts are done.
                unsafe {
                    for part in 1..self.parts {
                        self.add(scratch, worker, rows(tile), &|k| acc(0, k), &|k| acc(part, k));
                    }
                    self.totals(scratch, worker, args, rows(tile), &|k| acc(0, k));
                }
            });
        } else {
            pool.run(tiles, |tile, worker| {
                let own = Ptr(scratch.each::<u8>(worker, self.skip()).wrapping_add(self.table_bytes()));
                let acc = |set: usize, k: usize| {
                    let at = set * self.acc_bytes(count, ROWS) + self.acc_bytes(k, ROWS);
                    let before = rows(tile).start * self.accs.get(k).map_or(0, |a| a.bytes);
                    Ptr(own.0.wrapping_add(at).wrapping_sub(before))
                };
                // SAFETY: as above.
                unsafe {
                    self.part(scratch, worker, args, 0, rows(tile), &|k| acc(0, k));
                    for part in 1..self.parts {
                        self.part(scratch, worker, args, part, rows(tile), &|k| acc(1, k));
                        self.add(scratch, worker, rows(tile), &|k| acc(0, k), &|k| acc(1, k));
                    }
                    self.totals(scratch, worker, args, rows(tile), &|k| acc(0, k));
                }
            });
        }
        // SAFETY: no task runs any more; what is stored once reads no accumulator.
        unsafe {
            let args = self.table(scratch, 0, args, |_, base| base, &[&|_| Ptr(std::ptr::null_mut())]);
            self.post.finish(scratch, self.skip(), args);
        }
    }

    /// A worker's table of addresses: those of the arguments, then those of accumulators.
    ///
    /// # Safety
    /// No other task of the worker runs while the table is in use.
    unsafe fn table<'a>(
        &self,
        scratch: &'a Scratch,
        worker: usize,
        args: &[Ptr<u8>],
        at: impl Fn(usize, Ptr<u8>) -> Ptr<u8>,
        accs: &[&dyn Fn(usize) -> Ptr<u8>],
    ) -> &'a [Ptr<u8>] {
        let count = self.accs.len();
        let table = scratch.each::<Ptr<u8>>(worker, self.lanes.len() + 3 * count);
        let given = args.iter().take(self.lanes.len()).enumerate().map(|(k, base)| at(k, *base));
        let mut len = 0;
        for p in given.chain(accs.iter().flat_map(|acc| (0..count).map(acc))) {
            // SAFETY: the table has room for the arguments and three accumulators of each fold.
            unsafe { *table.add(len) = p };
            len += 1;
        }
        // SAFETY: so many were just written.
        unsafe { std::slice::from_raw_parts(table, len) }
    }

    /// Adds up the lanes of a part.
    ///
    /// # Safety
    /// As for [`BoundRegion::run`]; accumulators are valid for these rows, and no other task's.
    unsafe fn part(
        &self,
        scratch: &Scratch,
        worker: usize,
        args: &[Ptr<u8>],
        part: usize,
        rows: Range<usize>,
        acc: &dyn Fn(usize) -> Ptr<u8>,
    ) {
        for (k, a) in self.accs.iter().enumerate() {
            for r in rows.clone() {
                let to = acc(k).0.wrapping_add(r * a.bytes);
                // SAFETY: as promised by the caller.
                unsafe { std::ptr::copy_nonoverlapping(a.init.as_ptr(), to, a.bytes) };
            }
        }
        let each = self.lane_count.div_ceil(self.parts).max(1);
        for lane in part * each..((part + 1) * each).min(self.lane_count) {
            let at = |k: usize, base: Ptr<u8>| {
                let mut p = base;
                if let Some((lanes, bytes)) = self.lanes.get(k) {
                    lanes.each(lane, 1, |_, _, offset, _| {
                        p = Ptr(base.0.wrapping_offset(offset * *bytes as isize));
                    });
                }
                p
            };
            // SAFETY: as promised by the caller.
            unsafe {
                let args = self.table(scratch, worker, args, at, &[acc, acc]);
                self.step.run_lanes(scratch, self.skip(), worker, args, rows.clone());
            }
        }
    }

    /// Adds the accumulators of a part to those of another.
    ///
    /// # Safety
    /// As for [`Columns::part`].
    unsafe fn add(
        &self,
        scratch: &Scratch,
        worker: usize,
        rows: Range<usize>,
        to: &dyn Fn(usize) -> Ptr<u8>,
        part: &dyn Fn(usize) -> Ptr<u8>,
    ) {
        // SAFETY: as promised by the caller.
        unsafe {
            let args = self.table(scratch, worker, &[], |_, base| base, &[to, part, to]);
            self.join.run_lanes(scratch, self.skip(), worker, args, rows);
        }
    }

    /// Computes what follows from the totals.
    ///
    /// # Safety
    /// As for [`Columns::part`].
    unsafe fn totals(
        &self,
        scratch: &Scratch,
        worker: usize,
        args: &[Ptr<u8>],
        rows: Range<usize>,
        acc: &dyn Fn(usize) -> Ptr<u8>,
    ) {
        // SAFETY: as promised by the caller.
        unsafe {
            let args = self.table(scratch, worker, args, |_, base| base, &[acc]);
            self.post.run_lanes(scratch, self.skip(), worker, args, rows);
        }
    }
}

//! Reductions of lanes that lie apart, while neighbouring rows lie side by side: the sum over a batch, say. Tiles of rows are
//! taken lane by lane and added to accumulators that are tiles themselves.
//!
//! It is done with three flat regions over the rows: one that adds a lane, one that joins the accumulators of two parts of the
//! lanes, one that computes what follows from the totals.

use super::bind::{bind, merge};
use super::bind::{number, reads, store_of};
use super::{BoundRegion, Lanes};
use rlx_compile::program::{Arg, Inst, Kernel, Reg, Region, SizeId, Work};
use rlx_ir::op::step::Fold;
use rlx_ir::scalar::Scalar;
use rlx_ir::{DType, Result, Tensor};
use rlx_simd::level::Level;
use rlx_simd::mem::{Ptr, Scratch, ScratchSize, round_up};
use rlx_simd::pool::Pool;

/// Rows of a tile of accumulators: with its operands it stays in the L1 cache.
const ROWS: usize = 1024;
/// Lanes of a part, where there are too few rows for many threads.
const PART: usize = 64;

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

/// The dtype of an accumulator, what it starts from, and what joins two.
fn accumulator(kind: Fold, dtype: DType) -> (DType, f64, Scalar) {
    let float = dtype.is_float();
    let wide = if float { DType::F64 } else { DType::I64 };
    let own = if float && dtype != DType::F64 { DType::F32 } else { dtype };
    let range =
        dtype.int_range().map_or((f64::NEG_INFINITY, f64::INFINITY), |(lo, hi)| (lo as f64, hi as f64));
    match kind {
        Fold::Sum => (wide, 0.0, Scalar::Add),
        Fold::Prod => (wide, 1.0, Scalar::Mul),
        Fold::Max => (own, range.0, Scalar::Max),
        Fold::Min => (own, range.1, Scalar::Min),
        Fold::Any => (DType::Bool, 0.0, Scalar::Or),
        Fold::All => (DType::Bool, 1.0, Scalar::And),
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
        let (wide, init, _) = accumulator(*kind, *dtype);
        let t = Tensor::from_f64s(wide, &[1], &[init]);
        let init = number(wide, t.as_ref().map(Tensor::bytes).unwrap_or_default())?;
        accs.push(Acc { bytes: store_of(wide)?.kind().bytes(), init });
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
        let (wide, _, op) = accumulator(*kind, *dtype);
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
    for (_, kind, _, dtype) in &folds {
        let (wide, _, op) = accumulator(*kind, *dtype);
        let (a, r) = (join_args.len() as u32, join.len() as Reg);
        join.extend([
            Inst::Load(a),
            Inst::Load(a + 1),
            Inst::Scalar { op, dtype: wide, args: vec![r, r + 1] },
        ]);
        join.push(Inst::Store { arg: a + 2, value: r + 2 });
        join_args.push(acc_arg(wide, &space, &dense, false, None));
        join_args.push(acc_arg(wide, &space, &dense, false, None));
        join_args.push(acc_arg(wide, &space, &dense, true, Some(a)));
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
    let parts = if rows.div_ceil(ROWS) < 16 { lane_count.div_ceil(PART).clamp(1, 16) } else { 1 };
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
    /// Bytes of the accumulators of a part, and where each begins.
    fn acc_bytes(&self, k: usize) -> usize {
        self.accs.iter().take(k).map(|a| round_up(a.bytes * self.rows)).sum()
    }

    fn table_bytes(&self) -> usize {
        round_up((self.lanes.len() + 3 * self.accs.len()) * size_of::<Ptr<u8>>())
    }

    pub(super) fn scratch(&self) -> ScratchSize {
        let each = self.step.each_bytes().max(self.post.each_bytes()).max(self.join.each_bytes());
        ScratchSize { each: self.table_bytes() + each, shared: self.parts * self.acc_bytes(self.accs.len()) }
    }

    /// # Safety
    /// As for [`BoundRegion::run`].
    pub(super) unsafe fn run(&self, pool: &Pool, scratch: &Scratch, args: &[Ptr<u8>]) {
        let (tiles, count) = (self.rows.div_ceil(ROWS), self.accs.len());
        let part_bytes = self.acc_bytes(count);
        let shared = Ptr(scratch.shared::<u8>(self.parts * part_bytes));
        let skip = self.table_bytes();
        let table = |worker: usize| scratch.each::<Ptr<u8>>(worker, self.lanes.len() + 3 * count);
        let lanes_each = self.lane_count.div_ceil(self.parts).max(1);
        // SAFETY (of all below): tasks have rows or parts of their own, workers have tables of their own, and addresses are
        // within the arguments, as promised by the caller, or within the shared scratch space.
        let acc = |part: usize, k: usize| {
            // SAFETY: as above.
            unsafe { shared.add(part * part_bytes + self.acc_bytes(k)) }
        };
        pool.run(tiles * self.parts, |task, worker| {
            let (part, tile) = (task / tiles, task % tiles);
            let rows = tile * ROWS..((tile + 1) * ROWS).min(self.rows);
            for (k, a) in self.accs.iter().enumerate() {
                for r in rows.clone() {
                    let init = a.init.as_ptr();
                    // SAFETY: as above.
                    unsafe { std::ptr::copy_nonoverlapping(init, acc(part, k).0.add(r * a.bytes), a.bytes) };
                }
            }
            for lane in part * lanes_each..((part + 1) * lanes_each).min(self.lane_count) {
                // SAFETY: as above.
                unsafe {
                    let to = table(worker);
                    for (k, ((lanes, bytes), base)) in self.lanes.iter().zip(args).enumerate() {
                        lanes.each(lane, 1, |_, _, offset, _| {
                            *to.add(k) = Ptr(base.0.wrapping_offset(offset * *bytes as isize));
                        });
                    }
                    for k in 0..count {
                        *to.add(self.lanes.len() + k) = acc(part, k);
                        *to.add(self.lanes.len() + count + k) = acc(part, k);
                    }
                    let args = std::slice::from_raw_parts(to, self.lanes.len() + 2 * count);
                    self.step.run_lanes(scratch, skip, worker, args, rows.clone());
                }
            }
        });
        pool.run(tiles, |tile, worker| {
            let rows = tile * ROWS..((tile + 1) * ROWS).min(self.rows);
            // SAFETY: as above.
            unsafe {
                let to = table(worker);
                for part in 1..self.parts {
                    for k in 0..count {
                        *to.add(3 * k) = acc(0, k);
                        *to.add(3 * k + 1) = acc(part, k);
                        *to.add(3 * k + 2) = acc(0, k);
                    }
                    let args = std::slice::from_raw_parts(to, 3 * count);
                    self.join.run_lanes(scratch, skip, worker, args, rows.clone());
                }
                for (k, base) in args.iter().take(self.lanes.len()).enumerate() {
                    *to.add(k) = *base;
                }
                for k in 0..count {
                    *to.add(self.lanes.len() + k) = acc(0, k);
                }
                let args = std::slice::from_raw_parts(to, self.lanes.len() + count);
                self.post.run_lanes(scratch, skip, worker, args, rows);
            }
        });
    }
}

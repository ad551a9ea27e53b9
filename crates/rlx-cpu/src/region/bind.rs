//! From a region of a program and concrete sizes to resolved instructions.

use super::known;
use super::{BoundArg, BoundRegion, Folding, Lanes, Mode, Op, Place, columns};
use rlx_compile::program::{Inst, Kernel, Reg, Region, SizeId, fault};
use rlx_ir::op::step::Fold;
use rlx_ir::scalar::Scalar;
use rlx_ir::{Code, DType, Error, Result};
use rlx_simd::level::Level;
use rlx_simd::tile::{self, Arg as Form3, Binary, Form, LoadStride, Store, Unary};

/// How often a register changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Splat,
    Row,
    Full,
}

/// The bytes that the tiles of a worker may take: half of a small L1 cache.
const TILE_BYTES: usize = 24 << 10;
/// The work of a task, in elements times instructions: some twenty microseconds.
const TASK: usize = 1 << 17;

/// How a dtype lies in memory.
pub(crate) fn store_of(d: DType) -> Result<Store> {
    Ok(match d {
        DType::F64 => Store::F64,
        DType::F32 => Store::F32,
        DType::F16 => Store::F16,
        DType::BF16 => Store::BF16,
        DType::F8E4M3 => Store::F8E4M3,
        DType::F8E5M2 => Store::F8E5M2,
        DType::I8 => Store::I8,
        DType::I16 => Store::I16,
        DType::I32 => Store::I32,
        DType::I64 => Store::I64,
        DType::U8 => Store::U8,
        DType::U16 => Store::U16,
        DType::U32 => Store::U32,
        DType::U64 => Store::U64,
        DType::Bool => Store::Bool,
        DType::Packed(_) => {
            return Err(Error::new(Code::Device, format!("{d} has no elements to compute with")));
        }
    })
}

pub(super) fn fold_of(f: Fold) -> tile::Fold {
    match f {
        Fold::Sum => tile::Fold::Sum,
        Fold::Prod => tile::Fold::Prod,
        Fold::Max => tile::Fold::Max,
        Fold::Min => tile::Fold::Min,
        Fold::Any => tile::Fold::Any,
        Fold::All => tile::Fold::All,
    }
}

enum Resolved {
    One(Unary),
    Two(Binary),
    Select,
}

#[rustfmt::skip]
fn resolve(s: Scalar) -> Resolved {
    macro_rules! table {
        ($($one:ident)* ; $($two:ident)*) => {
            match s {
                $(Scalar::$one => Resolved::One(Unary::$one),)*
                $(Scalar::$two => Resolved::Two(Binary::$two),)*
                Scalar::Select => Resolved::Select,
            }
        };
    }
    table!(
        Neg Abs Sign Exp Expm1 Log Log1p Sqrt Rsqrt Recip Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh Tanh
        Erf Erfc Sigmoid Floor Ceil Round Trunc Not IsNan IsInf ;
        Add Sub Mul Div Rem Pow Atan2 Max Min And Or Xor Shl Shr Eq Ne Lt Le Gt Ge
    )
}

/// Drops axes of size 1 and joins neighbours that one stride describes. At least one axis remains.
pub(crate) fn merge(axes: impl Iterator<Item = (usize, isize)>) -> Lanes {
    let mut out: Vec<(usize, isize)> = Vec::new();
    for (n, s) in axes.filter(|a| a.0 != 1) {
        match out.last_mut() {
            Some(last) if last.1 == s * n as isize => *last = (last.0 * n, s),
            _ => out.push((n, s)),
        }
    }
    if out.is_empty() {
        out.push((1, 0));
    }
    Lanes(out)
}

impl Lanes {
    /// The stride, if there is only one.
    pub(crate) fn single(&self) -> Option<isize> {
        match self.0.as_slice() {
            [(_, s)] => Some(*s),
            _ => None,
        }
    }
    fn is_splat(&self) -> bool {
        self.0.iter().all(|(n, s)| *s == 0 || *n == 1)
    }
}

/// What a bound region is made of while it is being made.
struct Binder<'a> {
    level: Level,
    sizes: &'a [i64],
    kernel: &'a Kernel,
    region: &'a Region,
    /// Functions of the scalar language that together are one loop: which, and of what.
    known: Vec<Option<(Unary, Reg)>>,
    /// Whether a register is only part of such a function.
    dead: Vec<bool>,
    /// The row axes of the space that remain, each standing for those joined with it.
    row_axes: Vec<usize>,
    split: usize,
    lane_sizes: Vec<usize>,
    class: Vec<Class>,
    /// Whether a register depends on a fold.
    late: Vec<bool>,
    place: Vec<Place>,
    free: Vec<u32>,
    last_use: Vec<usize>,
    out: BoundRegion,
}

/// Binds the region of a kernel. `front`: a kernel in front of it gives blocks of rows.
pub fn bind(
    level: Level,
    sizes: &[i64],
    kernel: &Kernel,
    region: &Region,
    front: bool,
) -> Result<BoundRegion> {
    let size = |id: &SizeId| sizes.get(id.0 as usize).copied().unwrap_or(0);
    let space: Vec<usize> = region.space.iter().map(|d| size(d).max(0) as usize).collect();
    // The compiler sets lanes where a row or a fold asks for them; else the whole space is lanes.
    let lanes = if region.lanes > 0 { region.lanes } else { space.len() };
    let split = space.len().saturating_sub(lanes);
    let (row_sizes, lane_sizes) = space.split_at(split);
    let (count, lanes) = (row_sizes.iter().product::<usize>(), lane_sizes.iter().product::<usize>());
    let work = region.code.iter().filter(|i| !matches!(i, Inst::Number(..) | Inst::Size(..))).count().max(1);
    let flops = region.code.iter().filter(|i| matches!(i, Inst::Scalar { .. } | Inst::Fold { .. })).count();
    let mut b = Binder {
        level,
        sizes,
        kernel,
        region,
        known: Vec::new(),
        dead: vec![false; region.code.len()],
        row_axes: Vec::new(),
        split,
        lane_sizes: lane_sizes.to_vec(),
        class: Vec::new(),
        late: Vec::new(),
        place: Vec::new(),
        free: Vec::new(),
        last_use: vec![0; region.code.len()],
        out: BoundRegion {
            mode: Mode::Flat,
            rows: Vec::new(),
            count,
            lanes,
            args: Vec::new(),
            once: Vec::new(),
            only: Vec::new(),
            head: Vec::new(),
            body: Vec::new(),
            tail: Vec::new(),
            folds: Vec::new(),
            slots: 0,
            tiles: 0,
            tile: 0,
            width: 4,
            grain: 0,
            parts: 1,
            copy: None,
            columns: None,
            flops: count as u64 * lanes as u64 * flops as u64,
        },
    };
    (b.known, b.dead) = known::recognise(region);
    b.arguments(row_sizes);
    b.classify();
    let folds = region.code.iter().any(|i| matches!(i, Inst::Fold { .. }));
    let resident = b.lanes_are_late();
    b.out.mode = match () {
        () if split == 0 && !folds && !front => Mode::Flat,
        () if resident => Mode::Resident,
        () => Mode::Streaming,
    };
    b.emit()?;
    let mut out = b.out;
    out.tile = match out.mode {
        Mode::Resident => lanes,
        _ => (TILE_BYTES / (8 * out.tiles.max(1))).clamp(128, 2048) / 64 * 64,
    };
    out.grain = (TASK / work).clamp(2048, TASK);
    if out.mode != Mode::Resident {
        out.grain = out.grain / out.tile * out.tile; // no tile is larger than the least of these
    }
    if !front {
        out.copy = copy(kernel, region);
        if folds && !resident {
            out.columns = columns::bind_columns(level, sizes, kernel, region, row_sizes, lane_sizes)?;
        }
        // Long rows are cut into parts, however many there are: a row's bits must not depend on the rows beside it.
        if out.mode == Mode::Streaming && folds && lanes > 4 * out.grain {
            out.parts = lanes.div_ceil(out.grain);
        }
    }
    Ok(out)
}

/// Source, destination and bytes of an element, where all that a region does is to copy.
fn copy(kernel: &Kernel, region: &Region) -> Option<(u32, u32, usize)> {
    let [Inst::Load(from), Inst::Store { arg, value: 0 }] = region.code.as_slice() else { return None };
    let dtype = |a: u32| kernel.args.get(a as usize).map(|a| a.dtype);
    let bytes = dtype(*from).filter(|d| dtype(*arg) == Some(*d))?.bytes()?;
    Some((*from, *arg, bytes))
}

/// The registers that an instruction reads.
pub(crate) fn reads(i: &Inst) -> &[Reg] {
    match i {
        Inst::Scalar { args, .. } => args,
        Inst::Cast { arg, .. } | Inst::Fold { arg, .. } => std::slice::from_ref(arg),
        Inst::Take { index, .. } => std::slice::from_ref(index),
        Inst::Store { value, .. } | Inst::Give(value) => std::slice::from_ref(value),
        _ => &[],
    }
}

/// The dtype of the register that an instruction sets.
pub(crate) fn result(kernel: &Kernel, i: &Inst) -> DType {
    let arg = |a: u32| kernel.args.get(a as usize).map_or(DType::F32, |a| a.dtype);
    match i {
        Inst::Load(a) | Inst::Take { arg: a, .. } => arg(*a),
        Inst::Produced(d) | Inst::Number(d, _) | Inst::Size(_, d) | Inst::Iota { dtype: d, .. } => *d,
        Inst::Scalar { op, dtype, .. } => {
            if op.gives_bool() {
                DType::Bool
            } else {
                *dtype
            }
        }
        Inst::Cast { to, .. } => *to,
        Inst::Fold { dtype, .. } => *dtype,
        Inst::Store { arg: a, .. } => arg(*a),
        // Only products in f32 have a region in front of them.
        Inst::Give(_) => DType::F32,
    }
}

/// A number as a register holds it.
pub(crate) fn number(dtype: DType, bytes: &[u8]) -> Result<[u8; 8]> {
    let mut wide = [0u8; 64];
    let load = tile::load(Level::Baseline, store_of(dtype)?, LoadStride::One);
    let mut aligned = [0u64; 1];
    let from = bytes.iter().take(8);
    aligned.iter_mut().for_each(|w| {
        let mut b = [0u8; 8];
        b.iter_mut().zip(from.clone()).for_each(|(a, b)| *a = *b);
        *w = u64::from_le_bytes(b);
    });
    // SAFETY: both buffers hold the one element that is converted.
    unsafe { load(1, wide.as_mut_ptr(), aligned.as_ptr().cast(), 1) };
    let mut out = [0u8; 8];
    out.iter_mut().zip(wide).for_each(|(a, b)| *a = b);
    Ok(out)
}

/// A size as a register of that dtype holds it.
pub(crate) fn size_number(dtype: DType, n: i64) -> Result<[u8; 8]> {
    let mut wide = [0u64; 8];
    let count = tile::iota(Level::Baseline, store_of(dtype)?);
    // SAFETY: the buffer holds the one element that is written.
    unsafe { count(1, wide.as_mut_ptr().cast(), n, 0) };
    Ok(wide.first().copied().unwrap_or(0).to_ne_bytes())
}

impl Binder<'_> {
    fn size(&self, id: SizeId) -> i64 {
        self.sizes.get(id.0 as usize).copied().unwrap_or(0)
    }

    /// Strides of all arguments; row axes that one stride describes in every argument are joined.
    fn arguments(&mut self, row_sizes: &[usize]) {
        let mut strides: Vec<Vec<isize>> = Vec::new();
        // Those of a kernel in front of the region, or of another region of it, are not over its space.
        let mut own = vec![false; self.kernel.args.len()];
        for i in &self.region.code {
            if let Inst::Load(a) | Inst::Take { arg: a, .. } | Inst::Store { arg: a, .. } = i
                && let Some(own) = own.get_mut(*a as usize)
            {
                *own = true;
            }
        }
        for (a, own) in self.kernel.args.iter().zip(own) {
            let s = a.strides.iter().map(|s| self.size(*s) as isize);
            strides.push(if own { s.collect() } else { vec![0; self.region.space.len()] });
        }
        for i in &self.region.code {
            if let Inst::Iota { strides: s, .. } = i {
                strides.push(s.iter().map(|s| self.size(*s) as isize).collect());
            }
        }
        for (axis, n) in row_sizes.iter().enumerate().filter(|(_, n)| **n != 1) {
            let joins = self.row_axes.last().is_some_and(|before| {
                strides.iter().all(|s| match (s.get(*before), s.get(axis)) {
                    (Some(outer), Some(inner)) => *outer == *inner * *n as isize,
                    _ => false,
                })
            });
            match (self.row_axes.last_mut(), self.out.rows.last_mut()) {
                (Some(a), Some(size)) if joins => (*a, *size) = (axis, *size * n),
                _ => {
                    self.row_axes.push(axis);
                    self.out.rows.push(*n);
                }
            }
        }
        for (a, s) in self.kernel.args.iter().zip(&strides) {
            let bytes = a.dtype.bytes().unwrap_or(1);
            let rows =
                self.row_axes.iter().map(|k| s.get(*k).copied().unwrap_or(0) * bytes as isize).collect();
            let lanes = self.lane_sizes.iter().copied().zip(s.iter().skip(self.split).copied());
            let width = store_of(a.dtype).map_or(4, |s| s.kind().bytes());
            self.out.args.push(BoundArg { bytes, width, rows, lanes: merge(lanes) });
        }
    }

    /// The registers that instruction `r` reads.
    fn reads(&self, r: usize) -> &[Reg] {
        match (self.known.get(r), self.region.code.get(r)) {
            (Some(Some((_, x))), _) => std::slice::from_ref(x),
            (_, Some(i)) => reads(i),
            _ => &[],
        }
    }

    fn is_dead(&self, r: usize) -> bool {
        self.dead.get(r).copied().unwrap_or(false)
    }

    fn classify(&mut self) {
        for (r, i) in self.region.code.iter().enumerate() {
            let by = |rows: bool, lanes: &Lanes| {
                if !lanes.is_splat() {
                    Class::Full
                } else if rows {
                    Class::Row
                } else {
                    Class::Splat
                }
            };
            let arg = |a: u32| {
                self.out
                    .args
                    .get(a as usize)
                    .map_or(Class::Full, |a| by(a.rows.iter().any(|s| *s != 0), &a.lanes))
            };
            let mut class = match i {
                Inst::Load(a) | Inst::Take { arg: a, .. } => arg(*a),
                Inst::Produced(_) => Class::Full,
                Inst::Iota { strides, .. } => {
                    let s = |k: &SizeId| self.size(*k) as isize;
                    let lanes = self.lane_sizes.iter().copied().zip(strides.iter().skip(self.split).map(s));
                    let moves = |k: &usize| strides.get(*k).is_some_and(|k| s(k) != 0);
                    by(self.row_axes.iter().any(moves), &merge(lanes))
                }
                _ => Class::Splat,
            };
            let mut late = false;
            for a in self.reads(r).to_vec() {
                class = class.max(self.class.get(a as usize).copied().unwrap_or(Class::Splat));
                late |= self.late.get(a as usize).copied().unwrap_or(false);
                let dead = self.is_dead(r);
                if let Some(l) = self.last_use.get_mut(a as usize).filter(|_| !dead) {
                    *l = r;
                }
            }
            if let Inst::Fold { .. } = i {
                (class, late) = (Class::Row, true);
            }
            self.class.push(class);
            self.late.push(late);
        }
    }

    /// Whether something that is done lane by lane depends on a fold.
    fn lanes_are_late(&self) -> bool {
        let late = |r: &Reg| self.late.get(*r as usize).copied().unwrap_or(false);
        self.region.code.iter().zip(&self.class).any(|(i, class)| match i {
            Inst::Fold { arg, .. } => late(arg),
            Inst::Store { arg, value } => {
                late(value) && self.out.args.get(*arg as usize).is_some_and(|a| !a.lanes.is_splat())
            }
            i => *class == Class::Full && reads(i).iter().any(late),
        })
    }

    fn class(&self, r: Reg) -> Class {
        self.class.get(r as usize).copied().unwrap_or(Class::Splat)
    }

    fn reg(&self, r: Reg) -> Place {
        self.place.get(r as usize).copied().unwrap_or(Place::Slot(0))
    }

    fn slot(&mut self) -> Place {
        self.out.slots += 1;
        Place::Slot(self.out.slots as u32 - 1)
    }

    fn tile(&mut self) -> Place {
        Place::Tile(self.free.pop().unwrap_or_else(|| {
            self.out.tiles += 1;
            self.out.tiles as u32 - 1
        }))
    }

    /// Gives back the tiles of registers that instruction `r` reads for the last time.
    fn release(&mut self, r: usize) {
        for a in self.reads(r).to_vec() {
            if self.last_use.get(a as usize) == Some(&r)
                && let Place::Tile(t) = self.reg(a)
                && !self.free.contains(&t)
            {
                self.free.push(t);
            }
        }
    }

    /// The list that an instruction belongs to.
    fn list(&mut self, class: Class, late: bool) -> &mut Vec<Op> {
        match (class, self.out.mode) {
            (Class::Splat, _) => &mut self.out.once,
            (_, Mode::Flat | Mode::Resident) | (Class::Full, _) => &mut self.out.body,
            (Class::Row, _) if late => &mut self.out.tail,
            _ => &mut self.out.head,
        }
    }

    fn emit(&mut self) -> Result<()> {
        for r in 0..self.region.code.len() {
            let Some(i) = self.region.code.get(r) else { continue };
            let (class, late) = (self.class(r as Reg), self.late.get(r).copied().unwrap_or(false));
            if let Inst::Store { arg, value } = i {
                self.store(*arg, *value)?;
                self.place.push(Place::Slot(0));
                continue;
            }
            if let Inst::Give(value) = i {
                self.give(*value);
                self.place.push(Place::Slot(0));
                continue;
            }
            if self.is_dead(r) {
                self.place.push(Place::Slot(0));
                continue;
            }
            let ty = store_of(result(self.kernel, i))?;
            let same_width = self.reads(r).iter().all(|a| {
                let from = self.region.code.get(*a as usize).map(|i| result(self.kernel, i));
                from.and_then(|d| store_of(d).ok()).is_some_and(|s| s.kind().bytes() == ty.kind().bytes())
            });
            let in_place = same_width && matches!(i, Inst::Scalar { .. } | Inst::Cast { .. });
            if in_place {
                self.release(r);
            }
            let dst = match i {
                Inst::Produced(_) => Place::Front,
                _ if class == Class::Full && self.region.code.last() == Some(&Inst::Give(r as Reg)) => {
                    Place::Front
                }
                Inst::Load(a) if class == Class::Full && self.direct(*a, ty) => Place::Memory(*a),
                Inst::Scalar { .. } | Inst::Cast { .. } if class == Class::Full => {
                    match self.target(r as Reg, ty) {
                        Some(a) => Place::Memory(a),
                        None => self.tile(),
                    }
                }
                _ if class == Class::Full => self.tile(),
                _ => self.slot(),
            };
            if matches!(dst, Place::Tile(_)) {
                self.out.width = self.out.width.max(ty.kind().bytes());
            }
            if !in_place {
                self.release(r);
            }
            self.place.push(dst);
            if let Some((unary, x)) = self.known.get(r).copied().flatten() {
                let f = tile::unary(self.level, unary, ty).ok_or_else(|| fault("a function has no loop"))?;
                let op = Op::Unary { f, a: self.reg(x), dst };
                self.list(class, late).push(op);
            } else if let Some(op) = self.op(i, class, dst, ty)? {
                self.list(class, late).push(op);
            }
        }
        Ok(())
    }

    /// Whether the tiles of an argument can be used where they lie.
    fn direct(&self, a: u32, ty: Store) -> bool {
        let native =
            matches!(ty, Store::F32 | Store::F64 | Store::I32 | Store::I64 | Store::U32 | Store::U64);
        let overwritten = self.kernel.args.iter().any(|w| w.over == Some(a));
        let lanes = self.out.args.get(a as usize).and_then(|a| a.lanes.single());
        native && !overwritten && lanes == Some(1)
    }

    /// The argument that a register can be computed into, because it is stored there.
    fn target(&self, r: Reg, ty: Store) -> Option<u32> {
        self.region.code.iter().find_map(|i| match i {
            Inst::Store { arg, value } if *value == r => {
                let own = self.kernel.args.get(*arg as usize)?;
                (own.over.is_none() && self.direct(*arg, ty)).then_some(*arg)
            }
            _ => None,
        })
    }

    fn store(&mut self, arg: u32, value: Reg) -> Result<()> {
        let dtype = self.kernel.args.get(arg as usize).ok_or_else(|| fault("an argument is missing"))?.dtype;
        let ty = store_of(dtype)?;
        let f = tile::store(self.level, ty);
        let (mut src, class) = (self.reg(value), self.class(value));
        if src == Place::Memory(arg) {
            return Ok(()); // computed there
        }
        let own = self.out.args.get(arg as usize).ok_or_else(|| fault("an argument is missing"))?;
        let (wide, rows) = (!own.lanes.is_splat(), own.rows.iter().any(|s| *s != 0));
        if wide && class != Class::Full {
            src = self.fill(src, ty);
            let op = Op::Store { f, arg, src };
            self.out.body.push(op);
        } else if class == Class::Full {
            self.out.body.push(Op::Store { f, arg, src });
        } else if class == Class::Splat && !rows {
            self.out.only.push(Op::StoreOne { f, arg, src });
        } else {
            // Behind the lanes also what is known before them: a row may be done in parts, but is stored once.
            let op = Op::StoreOne { f, arg, src };
            self.list(Class::Row, true).push(op);
        }
        Ok(())
    }

    /// What varies over the lanes was computed where the kernel behind the region wants it; the rest is repeated there.
    fn give(&mut self, value: Reg) {
        let src = self.reg(value);
        if src != Place::Front {
            let f = tile::load(self.level, Store::F32, LoadStride::Zero);
            self.out.body.push(Op::Fill { f, src, dst: Place::Front });
        }
    }

    /// A tile that is one number everywhere.
    fn fill(&mut self, src: Place, ty: Store) -> Place {
        // Not a tile that was given back: the instruction that wants this one may still read that.
        self.out.tiles += 1;
        let dst = Place::Tile(self.out.tiles as u32 - 1);
        self.out.width = self.out.width.max(ty.kind().bytes());
        // A register's own form is that of one of these in memory.
        let plain = if ty.kind().bytes() == 8 { Store::F64 } else { Store::F32 };
        let f = tile::load(self.level, plain, LoadStride::Zero);
        self.out.body.push(Op::Fill { f, src, dst });
        dst
    }

    fn op(&mut self, i: &Inst, class: Class, dst: Place, ty: Store) -> Result<Option<Op>> {
        let level = self.level;
        let unknown = || fault("a scalar function has no loop");
        Ok(Some(match i {
            Inst::Produced(_) => return Ok(None),
            Inst::Load(arg) => {
                if dst == Place::Memory(*arg) {
                    return Ok(None);
                }
                let stride =
                    self.out.args.get(*arg as usize).and_then(|a| a.lanes.0.last()).map_or(0, |l| l.1);
                match class {
                    Class::Full => Op::Load { f: tile::load(level, ty, load_stride(stride)), arg: *arg, dst },
                    _ => Op::LoadOne { f: tile::load(level, ty, LoadStride::One), arg: *arg, dst },
                }
            }
            Inst::Number(dtype, bytes) => Op::Number { bytes: number(*dtype, bytes)?, dst },
            Inst::Size(id, dtype) => Op::Number { bytes: size_number(*dtype, self.size(*id))?, dst },
            Inst::Iota { strides, offset, .. } => {
                let s = |k: &SizeId| self.size(*k);
                let lanes = self
                    .lane_sizes
                    .iter()
                    .copied()
                    .zip(strides.iter().skip(self.split).map(|k| s(k) as isize));
                let rows = self.row_axes.iter().map(|k| strides.get(*k).map_or(0, s)).collect();
                Op::Iota {
                    f: tile::iota(level, ty),
                    offset: self.size(*offset),
                    rows,
                    lanes: merge(lanes),
                    dst,
                    width: ty.kind().bytes(),
                }
            }
            Inst::Take { arg, index, index_dtype, stride, len } => {
                let own = self.out.args.get(*arg as usize).ok_or_else(|| fault("an argument is missing"))?;
                let inner = own.lanes.0.last().map_or(0, |l| l.1);
                Op::Take {
                    f: tile::load(level, ty, load_stride(inner)),
                    one: tile::load(level, ty, LoadStride::One),
                    arg: *arg,
                    index: self.reg(*index),
                    index_ty: store_of(*index_dtype)?,
                    stride: self.size(*stride) as isize * own.bytes as isize,
                    len: self.size(*len),
                    dst,
                    width: ty.kind().bytes(),
                }
            }
            Inst::Scalar { op, dtype, args } => {
                let from = store_of(*dtype)?;
                let at = |k: usize| args.get(k).copied().ok_or_else(|| fault("an operand is missing"));
                let full: Vec<bool> =
                    args.iter().map(|r| class != Class::Full || self.class(*r) == Class::Full).collect();
                let tile = |k: usize| full.get(k).copied().unwrap_or(true);
                match resolve(*op) {
                    Resolved::One(u) => {
                        let f = tile::unary(level, u, from).ok_or_else(unknown)?;
                        Op::Unary { f, a: self.reg(at(0)?), dst }
                    }
                    Resolved::Two(two) => {
                        let (a, b) = (at(0)?, at(1)?);
                        let form = match (tile(0), tile(1)) {
                            (true, true) => Form::TileTile,
                            (false, _) => Form::SplatTile,
                            _ => Form::TileSplat,
                        };
                        let f = tile::binary(level, two, from, form).ok_or_else(unknown)?;
                        Op::Binary { f, a: self.reg(a), b: self.reg(b), dst }
                    }
                    Resolved::Select => {
                        let (c, a, b) = (at(0)?, at(1)?, at(2)?);
                        let mut condition = self.reg(c);
                        if !tile(0) {
                            condition = self.fill(condition, Store::Bool);
                        }
                        let form = |k: usize| if tile(k) { Form3::Tile } else { Form3::Splat };
                        let f = tile::select(level, from, form(1), form(2));
                        Op::Ternary { f, a: condition, b: self.reg(a), c: self.reg(b), dst }
                    }
                }
            }
            Inst::Cast { arg, from, .. } => {
                Op::Unary { f: tile::cast(level, store_of(*from)?, ty), a: self.reg(*arg), dst }
            }
            Inst::Fold { kind, arg, dtype } => {
                let from = store_of(*dtype)?;
                let f = tile::fold(level, fold_of(*kind), from).ok_or_else(unknown)?;
                let mut a = self.reg(*arg);
                if self.class(*arg) != Class::Full {
                    a = self.fill(a, from);
                }
                let fold = self.out.folds.len() as u32;
                self.out.folds.push(Folding {
                    kind: *kind,
                    ty: from,
                    init: tile::fold_init(fold_of(*kind), from),
                });
                self.out.body.push(Op::Fold { f, fold, a });
                Op::Finish { fold, dst }
            }
            Inst::Store { .. } | Inst::Give(_) => return Ok(None),
        }))
    }
}

fn load_stride(s: isize) -> LoadStride {
    match s {
        0 => LoadStride::Zero,
        1 => LoadStride::One,
        _ => LoadStride::Any,
    }
}

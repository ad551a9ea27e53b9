//! From groups to a [`Program`]: their order, the kernels and the memory.

use crate::access::{Access, dense_strides};
use crate::fuse::{Class, Fused, Group, is_free, operand_access, widen};
use crate::items::{Doing, Item, Items, Point, Source, Value};
use crate::plan::{Buffer, Life, Plan};
use crate::program::{
    Arg, Call, Inst, Kernel, Named, Place, Product, Program, Reg, Region, SizeId, Sizes, Slot, SlotId, Work,
    fault,
};
use crate::schedule::{Schedule, schedule};
use rlx_ir::func::PortKind;
use rlx_ir::op::Step;
use rlx_ir::types::product;
use rlx_ir::{Code, DType, Dim, Error, Result, Type};
use std::collections::HashMap;

/// Makes programs of the regions of control flow.
pub type Nested<'a> = dyn Fn(&rlx_ir::Func) -> Result<Program> + 'a;

/// Puts the groups in order, and makes kernels, calls and slots of them.
pub fn build(items: &Items<'_>, fused: &Fused, nested: &Nested<'_>) -> Result<Program> {
    let mut sizes = Sizes::default();
    let Schedule { order, reads, graph, at } = schedule(items, fused, &mut sizes)?;
    let mut b = Builder {
        items,
        fused,
        nested,
        program: Program {
            name: items.func.name.clone(),
            symbols: Vec::new(),
            sizes,
            checks: Vec::new(),
            slots: Vec::new(),
            kernels: Vec::new(),
            calls: Vec::new(),
            inputs: Vec::new(),
            params: Vec::new(),
            prepared: Vec::new(),
            outputs: Vec::new(),
            prepare: None,
            plan: Plan::default(),
            notes: Vec::new(),
        },
        slot_of: vec![None; items.values.len()],
        last_read: vec![0; items.values.len()],
        buffers: Vec::new(),
        held: Vec::new(),
        output_of: items.outputs.iter().enumerate().map(|(k, v)| (*v, k as u32)).collect(),
        known: HashMap::new(),
    };
    for (name, max) in items.func.symbols()? {
        b.program.symbols.push(rlx_ir::dim::Symbol { name, max });
    }
    b.ports()?;
    for (t, g) in order.iter().enumerate() {
        for v in reads.get(*g).into_iter().flatten() {
            if let Some(l) = b.last_read.get_mut(*v) {
                *l = t;
            }
        }
    }
    for v in &items.outputs {
        if let Some(l) = b.last_read.get_mut(*v) {
            *l = usize::MAX;
        }
    }
    for (t, g) in order.iter().enumerate() {
        b.group(*g, t)?;
    }
    b.finish(graph, &at)
}

/// The values that a group reads from memory.
pub(crate) fn reads(items: &Items<'_>, fused: &Fused, g: usize) -> Result<Vec<Value>> {
    let group = fused.groups.get(g).ok_or_else(|| fault("a group is missing"))?;
    let mut out = Vec::new();
    for i in group.items() {
        let item = items.items.get(i).ok_or_else(|| fault("an item is missing"))?;
        for v in item.operands.iter().flatten() {
            let base = items.value(*v)?.base;
            match items.value(base)?.source {
                Source::Item(j) if fused.group_of.get(j) == Some(&Some(g)) => {}
                ref s if is_free(s) => {}
                _ => out.push(base),
            }
        }
    }
    out.sort_unstable();
    out.dedup();
    Ok(out)
}

/// The arguments of a kernel and the slots of a call of it.
#[derive(Default)]
struct Args {
    args: Vec<Arg>,
    slots: Vec<(SlotId, Dim)>,
}

/// The instructions of a region while they are written.
#[derive(Default)]
struct Written {
    code: Vec<Inst>,
    regs: HashMap<Value, Reg>,
    /// What each load reads: the base, the access, and whether the whole buffer is read in order.
    loads: Vec<(Value, Access, Reg)>,
    free: HashMap<String, Reg>,
}

struct Builder<'a, 'f> {
    items: &'a Items<'f>,
    fused: &'a Fused,
    nested: &'a Nested<'a>,
    program: Program,
    slot_of: Vec<Option<SlotId>>,
    /// The last group, by its place in the order, that reads a value.
    last_read: Vec<usize>,
    buffers: Vec<Buffer>,
    /// The slot that took each buffer last.
    held: Vec<SlotId>,
    /// The number of the output that a value is.
    output_of: HashMap<Value, u32>,
    known: HashMap<String, u32>,
}

impl Builder<'_, '_> {
    fn slot(&mut self, dtype: DType, shape: &[Dim], place: Place) -> SlotId {
        let id = SlotId(self.program.slots.len() as u32);
        let (len, shape) = (self.program.sizes.id(&product(shape)), self.program.sizes.ids(shape));
        self.program.slots.push(Slot { dtype, shape, len, place });
        id
    }

    fn ports(&mut self) -> Result<()> {
        for p in &self.items.func.ports {
            let ty = self.items.func.ty(p.value)?.clone();
            let list = if p.kind == PortKind::Param { &self.program.params } else { &self.program.inputs };
            let k = list.len() as u32;
            let place = if p.kind == PortKind::Param { Place::Param(k) } else { Place::Input(k) };
            let slot = self.slot(ty.dtype, &ty.shape, place);
            if let Some(s) = self.slot_of.get_mut(p.value.0 as usize) {
                *s = Some(slot);
            }
            let named = Named { name: p.name.clone(), dtype: ty.dtype, shape: ty.shape, slot };
            let list =
                if p.kind == PortKind::Param { &mut self.program.params } else { &mut self.program.inputs };
            list.push(named);
        }
        Ok(())
    }

    /// The slot that a value is read from.
    fn read(&mut self, base: Value, t: usize) -> Result<SlotId> {
        if let Some(Some(s)) = self.slot_of.get(base) {
            let s = *s;
            if let Some(Slot { place: Place::Arena(b), .. }) = self.program.slots.get(s.0 as usize)
                && let Some(b) = self.buffers.get_mut(*b as usize)
            {
                b.last = b.last.max(t as u32);
            }
            return Ok(s);
        }
        let info = self.items.value(base)?;
        let Source::Constant(data) = &info.source else {
            return Err(fault("a value is read that lies nowhere"));
        };
        let (ty, data) = (info.ty.clone(), data.clone());
        let slot = self.slot(ty.dtype, &ty.shape, Place::Constant(data));
        if let Some(s) = self.slot_of.get_mut(base) {
            *s = Some(slot);
        }
        Ok(slot)
    }

    /// The slot that a value is written to; `over`: a slot whose memory it may take.
    fn write(&mut self, v: Value, t: usize, over: Option<SlotId>) -> Result<SlotId> {
        if let Some(Some(s)) = self.slot_of.get(v) {
            return Ok(*s);
        }
        let ty = self.items.value(v)?.ty.clone();
        let place = match self.output_of.get(&v) {
            Some(k) => Place::Output(*k),
            None => match over.and_then(|s| self.program.slots.get(s.0 as usize)) {
                Some(Slot { place: Place::Arena(b), .. }) => {
                    let b = *b;
                    if let Some(buffer) = self.buffers.get_mut(b as usize) {
                        buffer.last = buffer.last.max(t as u32);
                    }
                    Place::Arena(b)
                }
                _ => {
                    let bytes = self.program.sizes.id(&byte_size(&ty)?);
                    let slot = SlotId(self.program.slots.len() as u32);
                    self.buffers.push(Buffer { slot, bytes, first: t as u32, last: t as u32 });
                    Place::Arena(self.buffers.len() as u32 - 1)
                }
            },
        };
        let buffer = if let Place::Arena(b) = &place { Some(*b as usize) } else { None };
        let slot = self.slot(ty.dtype, &ty.shape, place);
        if let Some(b) = buffer {
            self.held.resize(self.held.len().max(b + 1), slot);
            self.held.get_mut(b).into_iter().for_each(|h| *h = slot);
        }
        if let Some(s) = self.slot_of.get_mut(v) {
            *s = Some(slot);
        }
        Ok(slot)
    }

    fn arg(&mut self, dtype: DType, access: &Access, write: bool) -> Arg {
        let sizes = &mut self.program.sizes;
        Arg { dtype, shape: sizes.ids(&access.shape), strides: sizes.ids(&access.strides), write, over: None }
    }

    fn kernel(&mut self, kernel: Kernel) -> u32 {
        let next = self.program.kernels.len() as u32;
        if !matches!(kernel.work, Work::Flow { .. }) {
            let id = *self.known.entry(format!("{kernel:?}")).or_insert(next);
            if id < next {
                return id;
            }
        }
        self.program.kernels.push(kernel);
        next
    }

    fn call(&mut self, kernel: Kernel, args: Vec<(SlotId, Dim)>, label: String, note: String) {
        let args = args.into_iter().map(|(s, o)| (s, self.program.sizes.id(&o))).collect();
        let kernel = self.kernel(kernel);
        self.program.calls.push(Call { kernel, args, label });
        self.program.notes.push(note);
    }

    fn group(&mut self, g: usize, t: usize) -> Result<()> {
        let fused = self.fused;
        let group = fused.groups.get(g).ok_or_else(|| fault("a group is missing"))?;
        match group.alone {
            Some(i) => self.alone(i, g, t),
            None => self.region(g, group, t),
        }
    }

    fn note(&self, items: impl Iterator<Item = usize>) -> String {
        let line = |i: usize| {
            let name = self.items.items.get(i).map_or("", |i| i.name);
            format!("{name}: {}", self.fused.reasons.get(i).map_or("", String::as_str))
        };
        items.map(line).collect::<Vec<_>>().join("\n")
    }

    /// The operands of an item; the left one of a product is computed on the way, if the group has a prologue.
    fn operands(&mut self, p: usize, g: usize, t: usize, out: &mut Args) -> Result<Option<Region>> {
        let item = self.items.items.get(p).ok_or_else(|| fault("an item is missing"))?;
        let members = self.fused.groups.get(g).map(|g| g.prologue.as_slice()).unwrap_or_default();
        for v in item.operands.iter().flatten().skip(!members.is_empty() as usize) {
            let info = self.items.value(*v)?;
            let (dtype, access, base) = (info.ty.dtype, info.access.clone(), info.base);
            out.args.push(self.arg(dtype, &access, false));
            out.slots.push((self.read(base, t)?, access.offset));
        }
        let Some(x) = item.operands.first().copied().flatten().filter(|_| !members.is_empty()) else {
            return Ok(None);
        };
        let (space, base) = (self.items.value(x)?.access.shape.clone(), self.items.value(x)?.base);
        let mut written = Written::default();
        self.members(g, members, &space, t, out, &mut written)?;
        let given = *written.regs.get(&base).ok_or_else(|| fault("a register is missing"))?;
        written.code.push(Inst::Give(given));
        Ok(Some(Region { space: self.program.sizes.ids(&space), lanes: 1, code: written.code }))
    }

    fn region(&mut self, g: usize, group: &Group, t: usize) -> Result<()> {
        let space = group.space.clone();
        let (mut call, mut written) = (Args::default(), Written::default());
        let mut prologue = None;
        let producer = group.producer.and_then(|p| self.items.items.get(p));
        if let (Some(item), Some(p)) = (producer, group.producer) {
            prologue = self.operands(p, g, t, &mut call)?;
            let Some((r, others)) = item.results.split_first() else { return Err(fault("no result")) };
            for v in others {
                self.result(*v, t, None, &mut call)?;
            }
            written.regs.insert(*r, 0);
            written.code.push(Inst::Produced(self.items.dtype(*r)?));
        }
        let own = call.args.len();
        self.members(g, &group.members, &space, t, &mut call, &mut written)?;
        let (Args { mut args, mut slots }, Written { mut code, regs, loads, .. }) = (call, written);
        let mut stores: Vec<(Value, Class)> = Vec::new();
        if let Some(p) = group.producer {
            let r = self.items.items.get(p).and_then(|i| i.results.first().copied());
            stores.extend(r.map(|r| (r, Class::Full)));
        }
        for (i, class) in group.members.iter().rev() {
            let r = self.items.items.get(*i).and_then(|i| i.results.first().copied());
            stores.extend(r.map(|r| (r, *class)));
        }
        stores.retain(|(v, _)| self.fused.stored.get(*v).copied().unwrap_or(false));
        for (v, class) in stores {
            let rows = match class {
                Class::Full => space.as_slice(),
                Class::Row(n) => space.get(..space.len() - n).unwrap_or_default(),
                Class::Splat => &[],
            };
            let access = widen(&Access::dense(rows), &space);
            let over = self.replaceable(v, class, &space, &loads, &slots, t)?;
            let dtype = self.items.dtype(v)?;
            let slot = self.write(v, t, over)?;
            let value = *regs.get(&v).ok_or_else(|| fault("a register is missing"))?;
            code.push(Inst::Store { arg: args.len() as u32, value });
            let mut arg = self.arg(dtype, &access, true);
            let same = |o: &SlotId| {
                let place = |s: SlotId| self.program.slots.get(s.0 as usize).map(|s| &s.place);
                place(*o) == place(slot)
            };
            let taken = over.filter(same);
            arg.over = taken.and_then(|o| slots.iter().position(|s| s.0 == o)).map(|k| k as u32);
            args.push(arg);
            slots.push((slot, Dim::constant(0)));
        }
        let lanes = group.lanes.unwrap_or(0);
        let mut region = Region { space: self.program.sizes.ids(&space), lanes, code };
        if let Some(order) = producer.and_then(|p| p.written.as_ref()) {
            reorder(&mut region, args.get_mut(own..).unwrap_or_default(), order);
        }
        let label = self.label(group.items());
        let note = self.note(group.items());
        let work = match producer {
            Some(Item { doing: Doing::Product { batch, .. }, .. }) => {
                let zeros = producer.and_then(Item::zeros);
                Work::Product(Product { batch: *batch, zeros, prologue, epilogue: Some(region) })
            }
            Some(Item { doing: Doing::Step(step), operands, .. }) => {
                let given = operands.iter().map(Option::is_some).collect();
                Work::Kernel { step: step.clone(), given, epilogue: Some(region) }
            }
            _ => Work::Region(region),
        };
        self.call(Kernel { work, args }, slots, label, note);
        Ok(())
    }

    /// The instructions of the members of a region, which come from the last to the first.
    fn members(
        &mut self,
        g: usize,
        members: &[(usize, Class)],
        space: &[Dim],
        t: usize,
        Args { args, slots }: &mut Args,
        Written { code, regs, loads, free }: &mut Written,
    ) -> Result<()> {
        for (i, class) in members.iter().rev() {
            let item = self.items.items.get(*i).ok_or_else(|| fault("an item is missing"))?;
            let mut ins: Vec<Reg> = Vec::new();
            let mut dtypes = Vec::new();
            let mut table = None;
            for (k, o) in item.operands.iter().enumerate() {
                let Some(v) = o else { continue };
                let info = self.items.value(*v)?;
                dtypes.push(info.ty.dtype);
                let own = operand_access(self.items, *i, k, *v)?
                    .ok_or_else(|| fault("an operand has no access"))?;
                let access = match (&item.doing, class) {
                    (Doing::Point(Point::Fold(..)), _) | (_, Class::Full) => own.reshape(space),
                    (_, Class::Row(n)) => own
                        .reshape(space.get(..space.len() - n).unwrap_or_default())
                        .map(|a| widen(&a, space)),
                    (_, Class::Splat) => Some(widen(
                        &Access { shape: vec![], strides: vec![], offset: own.offset.clone() },
                        space,
                    )),
                };
                let access = access.ok_or_else(|| fault("an operand has no strides over its space"))?;
                let base = info.base;
                let source = &self.items.value(base)?.source;
                if k == 0 && matches!(item.doing, Doing::Point(Point::Take(_))) {
                    table = Some((args.len() as u32, info.access.clone()));
                    args.push(self.arg(info.ty.dtype, &access, false));
                    slots.push((self.read(base, t)?, access.offset.clone()));
                    continue;
                }
                let inst = match source {
                    Source::Number(bytes) => Inst::Number(info.ty.dtype, bytes.clone()),
                    Source::Size(d) => Inst::Size(self.program.sizes.id(d), info.ty.dtype),
                    Source::Iota => Inst::Iota {
                        strides: self.program.sizes.ids(&access.strides),
                        offset: self.program.sizes.id(&access.offset),
                        dtype: info.ty.dtype,
                    },
                    Source::Item(j) if self.fused.group_of.get(*j) == Some(&Some(g)) => {
                        ins.push(*regs.get(&base).ok_or_else(|| fault("a register is missing"))?);
                        continue;
                    }
                    _ => {
                        if let Some((.., r)) = loads.iter().find(|l| l.0 == base && l.1 == access) {
                            ins.push(*r);
                            continue;
                        }
                        let r = code.len() as Reg;
                        code.push(Inst::Load(args.len() as u32));
                        let dtype = self.items.dtype(base)?;
                        args.push(self.arg(dtype, &access, false));
                        slots.push((self.read(base, t)?, access.offset.clone()));
                        loads.push((base, access, r));
                        ins.push(r);
                        continue;
                    }
                };
                let r = *free.entry(format!("{inst:?}")).or_insert(code.len() as Reg);
                if r as usize == code.len() {
                    code.push(inst);
                }
                ins.push(r);
            }
            let result = item.results.first().copied().ok_or_else(|| fault("an item has no result"))?;
            let to = self.items.dtype(result)?;
            let first = ins.first().copied();
            let missing = || fault("an operand is missing");
            let inst = match &item.doing {
                Doing::Point(Point::Scalar(op)) => {
                    Some(Inst::Scalar { op: *op, dtype: dtypes.last().copied().unwrap_or(to), args: ins })
                }
                Doing::Point(Point::Cast) => Some(Inst::Cast {
                    arg: first.ok_or_else(missing)?,
                    from: dtypes.first().copied().unwrap_or(to),
                    to,
                }),
                Doing::Point(Point::Fold(kind, _)) => {
                    Some(Inst::Fold { kind: *kind, arg: first.ok_or_else(missing)?, dtype: to })
                }
                Doing::Point(Point::Take(axis)) => {
                    let (arg, access) = table.ok_or_else(missing)?;
                    let stride = access.strides.get(*axis).cloned().unwrap_or(Dim::constant(0));
                    let len = access.shape.get(*axis).cloned().unwrap_or(Dim::constant(0));
                    Some(Inst::Take {
                        arg,
                        index: first.ok_or_else(missing)?,
                        index_dtype: dtypes.get(1).copied().unwrap_or(DType::I64),
                        stride: self.program.sizes.id(&stride),
                        len: self.program.sizes.id(&len),
                    })
                }
                _ => None,
            };
            let reg = match inst {
                Some(inst) => {
                    code.push(inst);
                    code.len() as Reg - 1
                }
                None => first.ok_or_else(missing)?,
            };
            regs.insert(result, reg);
        }
        Ok(())
    }

    /// A slot that is read here for the last time, element by element in the order in which `v` is written.
    fn replaceable(
        &self,
        v: Value,
        class: Class,
        space: &[Dim],
        loads: &[(Value, Access, Reg)],
        reads: &[(SlotId, Dim)],
        t: usize,
    ) -> Result<Option<SlotId>> {
        if class != Class::Full {
            return Ok(None);
        }
        let own = self.items.value(v)?;
        let dense = dense_strides(space);
        for (base, access, _) in loads {
            let info = self.items.value(*base)?;
            let slot = self.slot_of.get(*base).copied().flatten();
            let fits = access.offset.is(0)
                && access.strides == dense
                && info.ty.dtype.bytes() == own.ty.dtype.bytes()
                && info.ty.numel() == own.ty.numel()
                && self.last_read.get(*base) == Some(&t)
                && slot.is_some_and(|s| reads.iter().filter(|r| r.0 == s).count() == 1);
            let Some(slot) = slot.filter(|_| fits) else { continue };
            let Some(Slot { place: Place::Arena(b), .. }) = self.program.slots.get(slot.0 as usize) else {
                continue;
            };
            // Another value may have taken it in this very call.
            if self.held.get(*b as usize) == Some(&slot) {
                return Ok(Some(slot));
            }
        }
        Ok(None)
    }

    fn label(&self, items: impl Iterator<Item = usize>) -> String {
        let mut names: Vec<&str> = Vec::new();
        for i in items {
            if let Some(item) = self.items.items.get(i) {
                names.push(item.name);
            }
        }
        let mut out: Vec<String> = Vec::new();
        for n in names {
            match out.last_mut() {
                Some(last) if last.as_str() == n || last.starts_with(&format!("{n}×")) => {
                    let count = last.rsplit_once('×').and_then(|(_, c)| c.parse::<usize>().ok()).unwrap_or(1);
                    *last = format!("{n}×{}", count + 1);
                }
                _ => out.push(n.to_string()),
            }
        }
        out.join("+")
    }

    /// What a kernel writes, as a further argument; dense unless an access is given.
    fn result(
        &mut self,
        v: Value,
        t: usize,
        access: Option<Access>,
        Args { args, slots }: &mut Args,
    ) -> Result<()> {
        let ty = self.items.value(v)?.ty.clone();
        let slot = self.write(v, t, None)?;
        args.push(self.arg(ty.dtype, &access.unwrap_or_else(|| Access::dense(&ty.shape)), true));
        slots.push((slot, Dim::constant(0)));
        Ok(())
    }

    fn alone(&mut self, i: usize, g: usize, t: usize) -> Result<()> {
        let item = self.items.items.get(i).ok_or_else(|| fault("an item is missing"))?;
        let mut call = Args::default();
        let prologue = self.operands(i, g, t, &mut call)?;
        let given: Vec<bool> = item.operands.iter().map(Option::is_some).collect();
        for v in &item.results {
            let access = match &item.doing {
                // The product's own form: rows and columns merged.
                Doing::Product { .. } => {
                    let shape = |k: usize| -> Result<Vec<Dim>> {
                        let v = item.operands.get(k).copied().flatten();
                        let v = v.ok_or_else(|| fault("a product has two operands"))?;
                        Ok(self.items.value(v)?.access.shape.clone())
                    };
                    let (mut rows, columns) = (shape(0)?, shape(1)?);
                    rows.pop();
                    rows.extend(columns.last().cloned());
                    Some(Access::dense(&rows))
                }
                _ => match &item.written {
                    Some(order) => Some(Access::dense(&self.items.value(*v)?.ty.shape).permute(order)),
                    None => None,
                },
            };
            self.result(*v, t, access, &mut call)?;
        }
        let Args { args, slots } = call;
        let group = self.fused.groups.get(g).ok_or_else(|| fault("a group is missing"))?;
        let (label, note) = (self.label(group.items()), self.note(group.items()));
        match &item.doing {
            Doing::Product { batch, .. } => {
                let work =
                    Work::Product(Product { batch: *batch, zeros: item.zeros(), prologue, epilogue: None });
                self.call(Kernel { work, args }, slots, label, note);
            }
            Doing::Step(Step::Concat(axis)) => self.concat(*axis, args, slots, label, note)?,
            Doing::Step(Step::Pad { lo, interior }) => self.pad(lo, interior, args, slots, label, note)?,
            Doing::Step(step @ (Step::If | Step::While { .. } | Step::Scan { .. })) => {
                let node = item.node.and_then(|n| self.items.func.nodes.get(n));
                let regions = node.map(|n| n.regions.as_slice()).unwrap_or_default();
                let bodies = regions.iter().map(|r| (self.nested)(r)).collect::<Result<Vec<_>>>()?;
                let work = Work::Flow { step: step.clone(), bodies };
                self.call(Kernel { work, args }, slots, label, note);
            }
            Doing::Step(step) => {
                let work = Work::Kernel { step: step.clone(), given, epilogue: None };
                self.call(Kernel { work, args }, slots, label, note);
            }
            Doing::Point(_) => return Err(fault("element-wise work stands alone")),
        }
        Ok(())
    }

    /// Each operand is copied into its part of the result.
    fn concat(
        &mut self,
        axis: usize,
        mut args: Vec<Arg>,
        mut slots: Vec<(SlotId, Dim)>,
        label: String,
        note: String,
    ) -> Result<()> {
        let (Some(whole), Some((slot, _))) = (args.pop(), slots.pop()) else {
            return Err(fault("no result"));
        };
        let mut at = Dim::constant(0);
        let stride = whole.strides.get(axis).map_or(Dim::constant(0), |s| self.program.sizes.dim(*s));
        for (arg, from) in args.into_iter().zip(slots) {
            let part = Arg { shape: arg.shape.clone(), ..whole.clone() };
            let len = arg.shape.get(axis).map_or(Dim::constant(0), |s| self.program.sizes.dim(*s));
            let to = (slot, &at * &stride);
            at += len;
            let kernel = Kernel { work: Work::Copy, args: vec![arg, part] };
            self.call(kernel, vec![from, to], label.clone(), note.clone());
        }
        Ok(())
    }

    /// The value everywhere, then the operand into its part.
    fn pad(
        &mut self,
        lo: &[Dim],
        interior: &[i64],
        args: Vec<Arg>,
        slots: Vec<(SlotId, Dim)>,
        label: String,
        note: String,
    ) -> Result<()> {
        let wrong = || fault("pad has two operands");
        let [x, value, whole] = <[Arg; 3]>::try_from(args).map_err(|_| wrong())?;
        let [from, fill, (slot, _)] = <[(SlotId, Dim); 3]>::try_from(slots).map_err(|_| wrong())?;
        let zero = self.program.sizes.id(&Dim::constant(0));
        let everywhere = Arg { shape: whole.shape.clone(), strides: vec![zero; whole.shape.len()], ..value };
        let code = vec![Inst::Load(0), Inst::Store { arg: 1, value: 0 }];
        let region = Region { space: whole.shape.clone(), lanes: 0, code };
        let kernel = Kernel { work: Work::Region(region), args: vec![everywhere, whole.clone()] };
        self.call(kernel, vec![fill, (slot, Dim::constant(0))], format!("{label} fill"), note.clone());
        let mut offset = Dim::constant(0);
        let mut strides = Vec::new();
        for (i, s) in whole.strides.iter().enumerate() {
            let own = self.program.sizes.dim(*s);
            offset += lo.get(i).cloned().unwrap_or(Dim::constant(0)) * &own;
            strides.push(own * interior.get(i).map_or(1, |n| n.saturating_add(1)));
        }
        let part = Arg { shape: x.shape.clone(), strides: self.program.sizes.ids(&strides), ..whole };
        self.call(Kernel { work: Work::Copy, args: vec![x, part] }, vec![from, (slot, offset)], label, note);
        Ok(())
    }

    fn finish(mut self, graph: Vec<Life>, at: &[Vec<i64>]) -> Result<Program> {
        for (o, v) in self.items.func.outputs.iter().zip(&self.items.outputs) {
            let ty = self.items.func.ty(o.value)?.clone();
            let slot =
                self.slot_of.get(*v).copied().flatten().ok_or_else(|| fault("an output is not written"))?;
            self.program.outputs.push(Named { name: o.name.clone(), dtype: ty.dtype, shape: ty.shape, slot });
        }
        self.program.plan = Plan::new(self.buffers, graph, at, &self.program.sizes);
        Ok(self.program)
    }
}

/// Lets a region go through its space in another order of axes: that of the kernel in front of it.
fn reorder(region: &mut Region, args: &mut [Arg], order: &[usize]) {
    let pick = |v: &mut Vec<SizeId>| *v = order.iter().filter_map(|a| v.get(*a).copied()).collect();
    pick(&mut region.space);
    for a in args {
        pick(&mut a.shape);
        pick(&mut a.strides);
    }
    for i in &mut region.code {
        if let Inst::Iota { strides, .. } = i {
            pick(strides);
        }
    }
}

/// The size of a tensor in memory, in bytes. The planes of a packed one lie one behind the other, each aligned.
pub fn byte_size(ty: &Type) -> Result<Dim> {
    let DType::Packed(scheme) = ty.dtype else {
        return Ok(ty.numel() * ty.dtype.bytes().unwrap_or(1) as i64);
    };
    let shape: Option<Vec<usize>> =
        ty.shape.iter().map(|d| d.as_const().and_then(|n| usize::try_from(n).ok())).collect();
    // The planes of sizes that are known only at run time: no scheme takes more than 16 bytes for an element.
    let Some(shape) = shape else { return Ok(ty.numel() * 16 + 4096) };
    let planes = scheme.planes(&shape);
    let planes = planes.map_err(|e| Error::new(Code::Quant, e.to_string()))?;
    let bytes = planes.iter().map(|p| p.bytes.div_ceil(64) * 64).sum::<usize>();
    Ok(Dim::constant(i64::try_from(bytes).unwrap_or(i64::MAX)))
}

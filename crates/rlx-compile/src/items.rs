//! The graph as the fuser sees it: views are resolved to strided accesses of what they view, so that only work remains.

use crate::access::Access;
use crate::program::fault;
use rlx_ir::func::ValueId;
use rlx_ir::func::{Def, Func};
use rlx_ir::op::Step;
use rlx_ir::op::step::{Blocks, Fold};
use rlx_ir::scalar::Scalar;
use rlx_ir::types::{inverse, product};
use rlx_ir::{DType, Dim, Result, Tensor, Type};
use std::collections::HashSet;

/// A value, by its place in [`Items::values`]; the first ones are those of the graph.
pub type Value = usize;

/// Where a value comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// The port of that number.
    Port(usize),
    /// One number.
    Number(Vec<u8>),
    /// Data.
    Constant(Tensor),
    /// A size.
    Size(Dim),
    /// The index along an axis.
    Iota,
    /// A result of an item.
    Item(usize),
    /// A view of another value.
    View,
}

/// A value and how it is read.
#[derive(Clone, Debug)]
pub struct ValueInfo {
    /// Its type.
    pub ty: Type,
    /// Where it comes from.
    pub source: Source,
    /// What it is a view of: itself, if it is none.
    pub base: Value,
    /// How its elements are found in the base. For an iota: how the number is computed from the index.
    pub access: Access,
}

/// Work that is done element by element.
#[derive(Clone, Debug, PartialEq)]
pub enum Point {
    /// A function of the scalar language.
    Scalar(Scalar),
    /// A conversion.
    Cast,
    /// A copy.
    Copy,
    /// An entry along an axis, by index: operands are the table and the index.
    Take(usize),
    /// A reduction over axes.
    Fold(Fold, Vec<usize>),
}

/// What an item does.
#[derive(Clone, Debug)]
pub enum Doing {
    /// Something that can be part of a region.
    Point(Point),
    /// A matrix product of operands in the form `[batch.., m, k]` and `[batch.., k, n]`.
    Product {
        /// The number of batch axes of the operands.
        batch: usize,
        /// How many of the result's last axes are the columns.
        columns: usize,
        /// Of bytes less their zero points: operands 2 and 3, if they are given.
        bytes: bool,
    },
    /// A step with a kernel of its own.
    Step(Step),
}

impl Doing {
    /// The blocks in which a first result of that rank is handed on; `None`: it is only written to memory.
    pub fn blocks(&self, rank: usize) -> Option<Blocks> {
        match self {
            Doing::Point(_) => None,
            Doing::Product { columns, .. } => Some(Blocks { columns: *columns, whole_rows: true }),
            Doing::Step(step) => step.blocks(rank),
        }
    }

    /// Whether what is handed on in that dtype can go to an epilogue: f32, and the sums of products of bytes.
    pub fn feeds(&self, dtype: DType) -> bool {
        dtype == DType::F32 || matches!(self, Doing::Product { bytes: true, .. })
    }
}

/// Something to do.
#[derive(Clone, Debug)]
pub struct Item {
    /// What.
    pub doing: Doing,
    /// The operands, as they are given.
    pub operands: Vec<Option<Value>>,
    /// The results.
    pub results: Vec<Value>,
    /// The shape that is iterated over: that of the result, or of the operand for a copy.
    pub shape: Vec<Dim>,
    /// The node that it stands for.
    pub node: Option<usize>,
    /// The op's name.
    pub name: &'static str,
    /// For a kernel that can write with any strides: axis i of its result is axis `written[i]` of what lies in memory.
    /// `None`: the same axes.
    pub written: Option<Vec<usize>>,
}

impl Item {
    /// Which operands of a product of bytes have zero points.
    pub fn zeros(&self) -> Option<[bool; 2]> {
        let given = |k: usize| self.operands.get(k).is_some_and(Option::is_some);
        matches!(self.doing, Doing::Product { bytes: true, .. }).then(|| [given(2), given(3)])
    }
}

/// The graph without views.
pub struct Items<'f> {
    /// The graph.
    pub func: &'f Func,
    /// Every value.
    pub values: Vec<ValueInfo>,
    /// The work, each item after those it needs.
    pub items: Vec<Item>,
    /// The outputs: each a value with memory of its own.
    pub outputs: Vec<Value>,
    /// How often each value of the graph is used; an output counts as two uses, since it has to be what it is.
    uses: Vec<u32>,
}

fn uses(func: &Func) -> Vec<u32> {
    let mut uses = vec![0; func.values.len()];
    let mut add = |v: ValueId, by: u32| uses.get_mut(v.0 as usize).into_iter().for_each(|u| *u += by);
    func.nodes.iter().flat_map(|n| n.operands.iter().flatten()).for_each(|v| add(*v, 1));
    func.outputs.iter().for_each(|o| add(o.value, 2));
    uses
}

fn iota_access(shape: &[Dim], axis: usize) -> Access {
    let stride = |i: usize| Dim::constant((i == axis) as i64);
    Access {
        shape: shape.to_vec(),
        strides: (0..shape.len()).map(stride).collect(),
        offset: Dim::constant(0),
    }
}

impl<'f> Items<'f> {
    /// Resolves a graph in which every op has a step kind.
    pub fn new(func: &'f Func) -> Result<Items<'f>> {
        let mut out =
            Items { func, values: Vec::new(), items: Vec::new(), outputs: Vec::new(), uses: uses(func) };
        for (i, v) in func.values.iter().enumerate() {
            let source = match v.def {
                Def::Port(p) => Source::Port(p as usize),
                Def::Node(..) => Source::View,
            };
            out.values.push(ValueInfo {
                ty: v.ty.clone(),
                source,
                base: i,
                access: Access::dense(&v.ty.shape),
            });
        }
        for i in 0..func.nodes.len() {
            out.node(i)?;
        }
        out.finish_outputs()?;
        Ok(out)
    }

    /// What is known of a value.
    pub fn value(&self, v: Value) -> Result<&ValueInfo> {
        self.values.get(v).ok_or_else(|| fault("a value is missing"))
    }

    fn set(&mut self, v: Value, source: Source, base: Value, access: Access) {
        if let Some(info) = self.values.get_mut(v) {
            (info.source, info.base, info.access) = (source, base, access);
        }
    }

    fn make(&mut self, ty: Type) -> Value {
        let v = self.values.len();
        let access = Access::dense(&ty.shape);
        self.values.push(ValueInfo { ty, source: Source::View, base: v, access });
        v
    }

    fn push(&mut self, item: Item) {
        let n = self.items.len();
        for r in item.results.clone() {
            let access =
                self.values.get(r).map_or_else(|| Access::dense(&[]), |v| Access::dense(&v.ty.shape));
            self.set(r, Source::Item(n), r, access);
        }
        self.items.push(item);
    }

    /// A view of a value that need not be a value of the graph.
    fn view(&mut self, of: Value, access: Access) -> Result<Value> {
        let info = self.value(of)?;
        let (base, dtype) = (info.base, info.ty.dtype);
        let v = self.make(Type::new(dtype, access.shape.clone()));
        self.set(v, Source::View, base, access);
        Ok(v)
    }

    /// A dense copy of a value.
    fn copy(&mut self, of: Value, name: &'static str) -> Result<Value> {
        let ty = self.value(of)?.ty.clone();
        let shape = ty.shape.clone();
        let v = self.make(ty);
        let doing = Doing::Point(Point::Copy);
        self.push(Item {
            doing,
            operands: vec![Some(of)],
            results: vec![v],
            shape,
            node: None,
            name,
            written: None,
        });
        Ok(v)
    }

    /// The value itself if it lies in memory, dense; else a copy.
    fn dense(&mut self, v: Value) -> Result<Value> {
        let info = self.value(v)?;
        let base = self.value(info.base)?;
        let in_memory = match &base.source {
            Source::Port(_) | Source::Item(_) | Source::Constant(_) => info.access.is_dense(),
            _ => false,
        };
        if in_memory { Ok(v) } else { self.copy(v, "copy") }
    }

    /// The value itself if it lies in memory with any strides; else a copy.
    fn in_memory(&mut self, v: Value) -> Result<Value> {
        let base = self.value(self.value(v)?.base)?;
        match &base.source {
            Source::Port(_) | Source::Item(_) | Source::Constant(_) => Ok(v),
            _ => self.copy(v, "copy"),
        }
    }

    fn node(&mut self, i: usize) -> Result<()> {
        let func = self.func;
        let node = func.nodes.get(i).ok_or_else(|| fault("a node is missing"))?;
        let types: Vec<Option<Type>> = node
            .operands
            .iter()
            .map(|o| o.map(|v| func.ty(v).cloned()).transpose())
            .collect::<Result<_>>()?;
        let step = node.step(&types).ok_or_else(|| fault("an op has no step kind"))??;
        let operands: Vec<Option<Value>> = node.operands.iter().map(|o| o.map(|v| v.0 as usize)).collect();
        let results: Vec<Value> = node.results.iter().map(|v| v.0 as usize).collect();
        let first = operands.first().copied().flatten();
        let result = results.first().copied();
        let shape = match result {
            Some(r) => self.value(r)?.ty.shape.clone(),
            None => Vec::new(),
        };
        let x = first.map(|v| self.value(v).cloned()).transpose()?;
        let one = |x: Option<ValueInfo>| x.ok_or_else(|| fault("an operand is missing"));
        let point = |p: Point| Doing::Point(p);
        let doing = match step {
            Step::Constant(t) => {
                let r = result.ok_or_else(|| fault("a constant has no result"))?;
                let access = Access::dense(&shape);
                let source = if t.len() == 1 && !t.dtype().is_packed() {
                    Source::Number(t.bytes().to_vec())
                } else {
                    Source::Constant(t)
                };
                self.set(r, source, r, access);
                return Ok(());
            }
            Step::SizeOf(d) => {
                let r = result.ok_or_else(|| fault("a size has no result"))?;
                self.set(r, Source::Size(d), r, Access::dense(&shape));
                return Ok(());
            }
            Step::Iota(axis) => {
                let r = result.ok_or_else(|| fault("an iota has no result"))?;
                self.set(r, Source::Iota, r, iota_access(&shape, axis));
                return Ok(());
            }
            Step::Same => {
                for (o, r) in operands.iter().zip(&results) {
                    let x = self.value(o.ok_or_else(|| fault("an operand is missing"))?)?.clone();
                    self.set(*r, Source::View, x.base, x.access);
                }
                return Ok(());
            }
            Step::Reshape | Step::Permute(_) | Step::Broadcast | Step::Slice { .. } | Step::Flip(_) => {
                let (x, r) = (one(x)?, result.ok_or_else(|| fault("a view has no result"))?);
                let access = match &step {
                    Step::Permute(axes) => Some(x.access.permute(axes)),
                    Step::Broadcast => Some(x.access.broadcast(&shape)),
                    Step::Slice { start, step } => Some(x.access.slice(start, step, &shape)),
                    Step::Flip(axes) => Some(x.access.flip(axes)),
                    _ => x.access.reshape(&shape),
                };
                if let (Step::Permute(axes), Some(v)) = (&step, first)
                    && self.write_permuted(v, r, axes)?
                {
                    return Ok(());
                }
                if let Some(access) = access {
                    self.set(r, Source::View, x.base, access);
                    return Ok(());
                }
                let doing = point(Point::Copy);
                let shape = x.ty.shape;
                self.push(Item {
                    doing,
                    operands,
                    results,
                    shape,
                    node: Some(i),
                    name: "reshape",
                    written: None,
                });
                return Ok(());
            }
            Step::Scalar(s) => point(Point::Scalar(s)),
            Step::Cast => point(Point::Cast),
            Step::Gather(axis) => {
                let mut operands = operands;
                if let Some(Some(table)) = operands.first_mut() {
                    *table = self.in_memory(*table)?;
                }
                let doing = point(Point::Take(axis));
                self.push(Item {
                    doing,
                    operands,
                    results,
                    shape,
                    node: Some(i),
                    name: node.op.name,
                    written: None,
                });
                return Ok(());
            }
            Step::Fold(_, axes) if axes.is_empty() => point(Point::Copy),
            Step::Fold(kind, axes) => point(Point::Fold(kind, axes)),
            Step::Dot { contract, batch } => return self.product(i, contract, batch),
            Step::MatmulInteger => return self.integer_product(i),
            step => Doing::Step(step),
        };
        let mut operands = operands;
        if let Doing::Step(step) = &doing {
            let strided = matches!(
                step,
                Step::Attention(_)
                    | Step::AttentionGrad(_)
                    | Step::SelectiveScan { .. }
                    | Step::SelectiveScanGrad { .. }
                    | Step::Concat(_)
                    | Step::Pad { .. }
            );
            for o in operands.iter_mut().flatten() {
                *o = if strided { self.in_memory(*o)? } else { self.dense(*o)? };
            }
        }
        self.push(Item { doing, operands, results, shape, node: Some(i), name: node.op.name, written: None });
        Ok(())
    }

    /// Lets a kernel that can write with any strides write the order of axes that its only user wants.
    fn write_permuted(&mut self, v: Value, r: Value, axes: &[usize]) -> Result<bool> {
        let info = self.value(v)?;
        let Source::Item(i) = info.source else { return Ok(false) };
        let able = |i: &Item| matches!(i.doing, Doing::Step(Step::Attention(_))) && i.written.is_none();
        if !self.items.get(i).is_some_and(able) || self.uses.get(v) != Some(&1) {
            return Ok(false);
        }
        let shape = self.value(r)?.ty.shape.clone();
        let Some(item) = self.items.get_mut(i) else { return Ok(false) };
        let back = inverse(axes);
        let access = Access::dense(&shape).permute(&back);
        item.results = vec![r];
        item.written = Some(back);
        self.set(r, Source::Item(i), r, Access::dense(&shape));
        self.set(v, Source::View, r, access);
        Ok(true)
    }

    /// A dot product as a product of matrices: axes in order, the summed ones and the columns merged.
    fn product(&mut self, i: usize, contract: [Vec<usize>; 2], batch: [Vec<usize>; 2]) -> Result<()> {
        let node = self.func.nodes.get(i).ok_or_else(|| fault("a node is missing"))?;
        let operand = |k: usize| {
            let v = node.operands.get(k).copied().flatten().map(|v: ValueId| v.0 as usize);
            v.ok_or_else(|| fault("an operand is missing"))
        };
        let (mut x, mut y) = (operand(0)?, operand(1)?);
        let (mut contract, mut batch) = (contract, batch);
        let result = node.results.first().map(|v| v.0 as usize).ok_or_else(|| fault("no result"))?;
        let free = |this: &Self, v: Value, k: usize, contract: &[Vec<usize>; 2], batch: &[Vec<usize>; 2]| {
            let rank = this.value(v)?.ty.rank();
            let named = |a: &usize| {
                contract.get(k).is_some_and(|c| c.contains(a)) || batch.get(k).is_some_and(|b| b.contains(a))
            };
            Ok::<Vec<usize>, rlx_ir::Error>((0..rank).filter(|a| !named(a)).collect())
        };
        let (mut fx, mut fy) = (free(self, x, 0, &contract, &batch)?, free(self, y, 1, &contract, &batch)?);
        // A column is a row on the other side; the left operand is what is packed anew in every run.
        let single = |this: &Self, v: Value, axes: &[usize]| {
            Ok::<bool, rlx_ir::Error>(
                axes.iter()
                    .all(|a| this.values.get(v).is_some_and(|i| i.ty.shape.get(*a).is_some_and(|d| d.is(1)))),
            )
        };
        let mut columns = fy.len();
        if single(self, y, &fy)? && !single(self, x, &fx)? {
            std::mem::swap(&mut x, &mut y);
            std::mem::swap(&mut fx, &mut fy);
            contract.reverse();
            batch.reverse();
            columns += fy.len();
        }
        let (nb, nm, nk) = (batch[0].len(), fx.len(), contract[0].len());
        let order: Vec<usize> = batch[0].iter().chain(&fx).chain(&contract[0]).copied().collect();
        let x = self.arrange(x, &order, |s: &[Dim]| {
            let (lead, k) = s.split_at((nb + nm).min(s.len()));
            lead.iter().cloned().chain([product(k)]).collect()
        })?;
        let order: Vec<usize> = batch[1].iter().chain(&contract[1]).chain(&fy).copied().collect();
        let y = self.arrange(y, &order, |s: &[Dim]| {
            let (lead, rest) = s.split_at(nb.min(s.len()));
            let (k, n) = rest.split_at(nk.min(rest.len()));
            lead.iter().cloned().chain([product(k), product(n)]).collect()
        })?;
        // Rows become one axis; those that no stride can join are further batch axes, with the same y for each.
        let (ax, ay) = (self.value(x)?.access.clone(), self.value(y)?.access.clone());
        let rows = |apart: usize| {
            let (lead, rest) = ax.shape.split_at((nb + apart).min(ax.shape.len()));
            let (m, k) = rest.split_at(nm.saturating_sub(apart).min(rest.len()));
            ax.reshape(&lead.iter().cloned().chain([product(m)]).chain(k.iter().cloned()).collect::<Vec<_>>())
        };
        let merged = (0..=nm).find_map(|apart| rows(apart).map(|a| (apart, a)));
        let (apart, ax) = merged.ok_or_else(|| fault("the rows of a product have no form"))?;
        let (mut shape, mut strides) = (ay.shape, ay.strides);
        let zeros = std::iter::repeat_n(Dim::constant(0), apart);
        shape.splice(nb..nb, ax.shape.get(nb..nb + apart).unwrap_or_default().iter().cloned());
        strides.splice(nb..nb, zeros);
        let ay = Access { shape, strides, offset: ay.offset };
        let (x, y) = (self.view(x, ax)?, self.view(y, ay)?);
        let shape = self.value(result)?.ty.shape.clone();
        let doing = Doing::Product { batch: nb + apart, columns, bytes: false };
        let operands = vec![Some(x), Some(y)];
        self.push(Item {
            doing,
            operands,
            results: vec![result],
            shape,
            node: Some(i),
            name: node.op.name,
            written: None,
        });
        Ok(())
    }

    /// A product of bytes. Where all rows have the same right operand and zero point they are one axis; else leading axes are
    /// batch axes.
    fn integer_product(&mut self, i: usize) -> Result<()> {
        let node = self.func.nodes.get(i).ok_or_else(|| fault("a node is missing"))?;
        let operand = |k: usize| node.operands.get(k).copied().flatten().map(|v: ValueId| v.0 as usize);
        let result = node.results.first().map(|v| v.0 as usize).ok_or_else(|| fault("no result"))?;
        let missing = || fault("an operand is missing");
        let x = self.in_memory(operand(0).ok_or_else(missing)?)?;
        let y = self.in_memory(operand(1).ok_or_else(missing)?)?;
        let zeros = [2, 3].map(|k| operand(k).map(|v| self.stored(v)).transpose());
        let [x_zero, y_zero] = zeros;
        let (x_zero, y_zero) = (x_zero?, y_zero?);
        let shape = self.value(result)?.ty.shape.clone();
        let (ax, ay) = (self.value(x)?.access.clone(), self.value(y)?.access.clone());
        let split = |s: &[Dim]| {
            let (lead, last) = s.split_at(s.len().saturating_sub(2));
            (lead.to_vec(), last.to_vec())
        };
        let ((lead, _), (x_lead, mk), (y_lead, kn)) = (split(&shape), split(&ax.shape), split(&ay.shape));
        let of_row =
            |v: &Option<Value>| v.is_some_and(|v| self.values.get(v).is_some_and(|i| i.ty.rank() > 0));
        let alike = product(&y_lead).is(1) && (product(&x_lead).is(1) || !of_row(&x_zero));
        let [m, k] = mk.as_slice() else { return Err(fault("an operand of a product is no matrix")) };
        let rows = alike.then(|| ax.reshape(&[product(&x_lead) * m, k.clone()])).flatten();
        let (batch, ax, ay) = match (rows, ay.reshape(&kn)) {
            (Some(ax), Some(ay)) => (0, ax, ay),
            _ => {
                let wide = |last: Vec<Dim>| lead.iter().cloned().chain(last).collect::<Vec<_>>();
                (lead.len(), ax.broadcast(&wide(mk)), ay.broadcast(&wide(kn)))
            }
        };
        let (x, y) = (self.view(x, ax)?, self.view(y, ay)?);
        self.push(Item {
            doing: Doing::Product { batch, columns: 1, bytes: true },
            operands: vec![Some(x), Some(y), x_zero, y_zero],
            results: vec![result],
            shape,
            node: Some(i),
            name: node.op.name,
            written: None,
        });
        Ok(())
    }

    /// The value itself if it lies in memory with any strides, a constant for a number that is known; else a copy.
    fn stored(&mut self, v: Value) -> Result<Value> {
        let info = self.value(v)?.clone();
        let Source::Number(bytes) = self.value(info.base)?.source.clone() else { return self.in_memory(v) };
        let base = self.make(Type::new(info.ty.dtype, Vec::new()));
        let data = Tensor::from_bytes(info.ty.dtype, &[], bytes)?;
        self.set(base, Source::Constant(data), base, Access::dense(&[]));
        self.view(
            base,
            Access { shape: info.access.shape, strides: info.access.strides, offset: Dim::constant(0) },
        )
    }

    /// A value with its axes in another order and some of them merged; copied if no stride can say that.
    fn arrange(&mut self, v: Value, order: &[usize], merge: impl Fn(&[Dim]) -> Vec<Dim>) -> Result<Value> {
        let v = self.in_memory(v)?;
        let access = self.value(v)?.access.permute(order);
        let shape = merge(&access.shape);
        if let Some(merged) = access.reshape(&shape) {
            return self.view(v, merged);
        }
        let turned = self.view(v, access)?;
        let copy = self.copy(turned, "arrange")?;
        self.view(copy, Access::dense(&shape))
    }

    /// Gives every output memory of its own: a view, a port, a constant or a value that is an output already is copied.
    fn finish_outputs(&mut self) -> Result<()> {
        let mut taken: HashSet<Value> = HashSet::new();
        for o in &self.func.outputs {
            let v = o.value.0 as usize;
            let info = self.value(v)?;
            let base = info.base;
            // A part from the start is dense too, but is not the whole.
            let own = info.access.is_dense()
                && info.ty.numel() == self.value(base)?.ty.numel()
                && matches!(self.value(base)?.source, Source::Item(_))
                && !taken.contains(&base);
            let out = if own { base } else { self.copy(v, "copy")? };
            taken.insert(out);
            self.outputs.push(out);
        }
        Ok(())
    }

    /// The dtype of a value.
    pub fn dtype(&self, v: Value) -> Result<DType> {
        Ok(self.value(v)?.ty.dtype)
    }
}

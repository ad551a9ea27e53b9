//! Prologues: what only a product reads, as its left operand, is computed block by block when the product packs it, and is
//! never written to memory.

use super::{Class, Fuser, class_of, is_free};
use crate::items::{Doing, Items, Point, Source, Value};
use crate::program::fault;
use rlx_ir::scalar::Scalar;
use rlx_ir::{DType, Dim, Result};

/// What a prologue costs and saves, each for an element; the unit is an addition in the L1 cache.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// The longest k for which a product packs its left operand once.
    pub once: i64,
    /// The columns of the product after which a longer one is packed again.
    pub columns: i64,
    /// The elements of a right operand that is not packed beforehand after which the left one is packed again.
    pub elements: i64,
    /// Writing an element to memory and reading it back.
    pub memory: i64,
    /// Reading four bytes again, soon after they were read.
    pub again: i64,
    /// A function that is more than arithmetic: exp, tanh, a power.
    pub function: i64,
    /// A division, a square root, an index.
    pub slow: i64,
}

impl Default for Costs {
    fn default() -> Costs {
        Costs { once: 1536, columns: 256, elements: 4 << 20, memory: 16, again: 3, function: 24, slow: 4 }
    }
}

impl Costs {
    /// How often the left operand of a product is packed: at most, for the largest sizes. `loose`: the right operand is not
    /// packed beforehand.
    pub fn packings(&self, k: &Dim, n: &Dim, loose: bool) -> i64 {
        let most = |d: &Dim| d.upper().unwrap_or(i64::MAX).max(0);
        let (k, n) = (most(k), most(n));
        let parts = |all: i64, each: i64| all.saturating_add(each - 1) / each.max(1);
        let long = if k > self.once { parts(n, self.columns) } else { 1 };
        let split = if loose { parts(n.saturating_mul(k), self.elements) } else { 1 };
        long.max(split).max(1)
    }

    /// Whether computing an element at every packing, from so many bytes, costs no more than once and through memory.
    fn pays(&self, packings: i64, work: i64, bytes: i64) -> bool {
        let more = packings - 1;
        let computed = more.saturating_mul(work + self.again * bytes / 4);
        computed <= self.memory.saturating_add(more.saturating_mul(self.again))
    }

    fn of(&self, op: Scalar) -> i64 {
        use Scalar::*;
        match op {
            Neg | Abs | Sign | Floor | Ceil | Round | Trunc | Not | IsNan | IsInf | Add | Sub | Mul | Max
            | Min | And | Or | Xor | Shl | Shr | Eq | Ne | Lt | Le | Gt | Ge | Select => 1,
            Div | Sqrt | Rsqrt | Recip => self.slow,
            _ => self.function,
        }
    }
}

impl Fuser<'_, '_> {
    /// Puts an item into the prologue of a group's product, or says why not.
    pub(super) fn try_prologue(&mut self, i: usize, g: usize, users: &[usize]) -> Result<Result<(), String>> {
        let items = self.items;
        let item = items.items.get(i).ok_or_else(|| fault("an item is missing"))?;
        let group = self.out.groups.get(g).ok_or_else(|| fault("a group is missing"))?;
        let result = item.results.first().copied().ok_or_else(|| fault("an item has no result"))?;
        let product = group.producer.or(group.alone).ok_or_else(|| fault("a prologue has no product"))?;
        let (x, y) = operands(items, product)?;
        let point = match &item.doing {
            Doing::Point(Point::Fold(..)) => {
                return Ok(Err("a product packs parts of the rows that it reduces".into()));
            }
            Doing::Point(p) => p,
            _ => return Ok(Err("it has a kernel of its own".into())),
        };
        if items.dtype(x)? != DType::F32 {
            return Ok(Err("only products in f32 have a prologue".into()));
        }
        if self.out.stored.get(result).copied().unwrap_or(false) {
            return Ok(Err("it is an output, and in memory for the product too".into()));
        }
        let uses = || self.uses.get(result).into_iter().flatten();
        if users.len() > 1 || uses().any(|u| !u.front) {
            return Ok(Err("not only a product's left operand, so it lies in memory anyway".into()));
        }
        let members = group.prologue.len() + group.members.len();
        if members >= self.limits.members {
            return Ok(Err(format!("the group has {members} members already")));
        }
        let space = items.value(x)?.access.shape.clone();
        let numel = items.value(result)?.ty.numel();
        let mut class = None;
        for u in uses() {
            let own = u.access.as_ref().and_then(|a| class_of(a, &space, &numel));
            match (own, class) {
                (None, _) => return Ok(Err("the product reads it in another order".into())),
                (Some(c), None) => class = Some(c),
                (Some(c), Some(d)) if c == d => {}
                _ => return Ok(Err("the prologue reads it in two ways".into())),
            }
        }
        let class = match class {
            Some(c @ Class::Full) => c,
            // The row of a product is one axis.
            Some(c @ (Class::Row(1) | Class::Splat)) if !group.prologue.is_empty() => c,
            _ => return Ok(Err("the product's rows are not those that it has".into())),
        };
        if let Some(name) = self.taker(i)? {
            return Ok(Err(format!("it is better computed behind the {name} in front of it")));
        }
        let Some(reads) = self.reads(i, class, &space)? else {
            return Ok(Err("its operands have no strides over the product's rows".into()));
        };
        let mut members = group.prologue.clone();
        members.push((i, class));
        let loose = !is_fixed(items, y)?;
        let columns = items.value(y)?.access.shape.last().cloned().unwrap_or(Dim::constant(1));
        let k = space.last().cloned().unwrap_or(Dim::constant(1));
        let packings = self.limits.prologue.packings(&k, &columns, loose);
        let (work, bytes) = self.cost(&members)?;
        if !self.limits.prologue.pays(packings, work, bytes) {
            return Ok(Err(format!(
                "the product packs it {packings} times ({columns} columns of {k}): computing it each time, {work} units \
                 from {bytes} bytes, costs more than to write and read it"
            )));
        }
        let text = match point {
            Point::Take(_) => "found",
            _ => "computed",
        };
        let times = if packings > 1 { format!(" ({packings} times)") } else { String::new() };
        let note =
            format!("{text} when its product packs it{times}: saves writing and reading {numel} elements");
        let group = self.out.groups.get_mut(g).ok_or_else(|| fault("a group is missing"))?;
        group.prologue = members;
        self.place(i, g);
        self.note(i, note);
        self.register(g, reads, true);
        Ok(Ok(()))
    }

    /// What stands in front of an item, with only element-wise work between, and would take that as its epilogue: there it
    /// is computed once, and from the cache.
    pub(super) fn taker(&self, i: usize) -> Result<Option<&'static str>> {
        let items = self.items;
        let size = |v: Value| items.value(v).map(|i| i.ty.numel());
        let item = |i: usize| items.items.get(i).ok_or_else(|| fault("an item is missing"));
        let all = item(i)?.results.first().map(|r| size(*r)).transpose()?;
        let (mut seen, mut next) = (vec![i], 0);
        while let Some(i) = seen.get(next).copied() {
            next += 1;
            let item = item(i)?;
            let table = matches!(item.doing, Doing::Point(Point::Take(_)));
            for v in item.operands.iter().skip(table as usize).flatten() {
                let base = items.value(*v)?.base;
                let Source::Item(j) = items.value(base)?.source else { continue };
                let before = items.items.get(j).ok_or_else(|| fault("an item is missing"))?;
                match &before.doing {
                    Doing::Point(Point::Fold(..)) => return Ok(Some(before.name)),
                    Doing::Point(_) if !seen.contains(&j) && seen.len() < self.limits.members => seen.push(j),
                    Doing::Point(_) => {}
                    doing => {
                        let able =
                            doing.blocks(before.shape.len()).is_some() && doing.feeds(items.dtype(base)?);
                        if able && Some(size(base)?) == all {
                            return Ok(Some(before.name));
                        }
                    }
                }
            }
        }
        Ok(None)
    }

    /// The work for an element of a prologue, and the bytes that it reads from memory.
    fn cost(&self, members: &[(usize, Class)]) -> Result<(i64, i64)> {
        let costs = &self.limits.prologue;
        let (mut work, mut bytes) = (0, 0);
        let inside = |v: Value| match self.items.value(v).map(|i| &i.source) {
            Ok(Source::Item(j)) => members.iter().any(|m| m.0 == *j),
            _ => false,
        };
        let mut read: Vec<Value> = Vec::new();
        for (i, class) in members {
            if *class != Class::Full {
                continue; // once per row
            }
            let item = self.items.items.get(*i).ok_or_else(|| fault("an item is missing"))?;
            work += match &item.doing {
                Doing::Point(Point::Scalar(op)) => costs.of(*op),
                Doing::Point(Point::Take(_)) => costs.slow,
                _ => 1,
            };
            for (k, v) in item.operands.iter().enumerate() {
                let Some(v) = *v else { continue };
                let info = self.items.value(v)?;
                let moves = info.access.strides.last().is_some_and(|s| !s.is(0));
                let index = k == 1 && matches!(item.doing, Doing::Point(Point::Take(_)));
                if moves
                    && !index
                    && !is_free(&self.items.value(info.base)?.source)
                    && !inside(info.base)
                    && !read.contains(&v)
                {
                    read.push(v);
                    bytes += info.ty.dtype.bytes().unwrap_or(1) as i64;
                }
            }
        }
        Ok((work, bytes))
    }
}

/// The left and the right operand of a product.
fn operands(items: &Items<'_>, product: usize) -> Result<(Value, Value)> {
    match items.items.get(product).map(|i| i.operands.as_slice()) {
        Some([Some(x), Some(y), ..]) => Ok((*x, *y)),
        _ => Err(fault("a product has two operands")),
    }
}

/// Whether a value is the same in every run.
fn is_fixed(items: &Items<'_>, v: Value) -> Result<bool> {
    Ok(match items.value(items.value(v)?.base)?.source {
        Source::Port(p) => items.func.ports.get(p).is_some_and(|p| p.kind == rlx_ir::func::PortKind::Param),
        Source::Constant(_) => true,
        _ => false,
    })
}

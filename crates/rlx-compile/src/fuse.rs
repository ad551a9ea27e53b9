//! Fusion: which items are computed together.
//!
//! Items are visited from the last to the first. An item joins the group of an item that uses it if both can be computed at
//! the same index of one space: as one element each (*full*), once per row (*row*, such as a mean that is subtracted), or
//! once in all (*splat*). A reduction joins as a row whose lanes it reduces; a matrix product joins as what stands in front
//! of a region: its epilogue.
//!
//! When an item is visited everything behind it is placed, so whether joining would make a cycle is known at once: it would
//! if a value that leaves the group on another way came back to it.

use crate::access::{Access, dense_strides};
use crate::items::{Doing, Items, Point, Source, Value};
use crate::program::fault;
use rlx_ir::types::product;
use rlx_ir::{DType, Dim, Result};

/// How often an item of a group is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// At every index.
    Full,
    /// Once per row, where the last so many axes are the lanes.
    Row(usize),
    /// Once.
    Splat,
}

/// Items that are computed together.
#[derive(Clone, Debug)]
pub struct Group {
    /// The items, with the class of each, from the last to the first.
    pub members: Vec<(usize, Class)>,
    /// The space of a region: rows, then lanes.
    pub space: Vec<Dim>,
    /// The number of lane axes, once something depends on it.
    pub lanes: Option<usize>,
    /// Whether lanes are reduced.
    pub folds: bool,
    /// The item whose results the region is an epilogue of.
    pub producer: Option<usize>,
    /// An item that is no region.
    pub alone: Option<usize>,
}

/// Somebody reads a value.
#[derive(Clone, Debug)]
struct Use {
    group: usize,
    /// How a region reads it: over the first axes of its space. `None`: only memory will do.
    access: Option<Access>,
}

/// A value that a group reads, and how; `None`: only memory will do.
type Read = (Value, Option<Access>);

/// The groups of a graph.
pub struct Fused {
    /// The groups, in no particular order.
    pub groups: Vec<Group>,
    /// The group of each item; `None` for one that nobody needs.
    pub group_of: Vec<Option<usize>>,
    /// Whether each value lies in memory.
    pub stored: Vec<bool>,
    /// Why each item stands where it does.
    pub reasons: Vec<String>,
}

/// Sets of groups.
#[derive(Default)]
struct Reach(Vec<Vec<u64>>);

impl Reach {
    fn has(&self, from: usize, to: usize) -> bool {
        self.0.get(from).and_then(|r| r.get(to / 64)).is_some_and(|w| w >> (to % 64) & 1 == 1)
    }
    fn join(&mut self, into: usize, others: &[u64]) {
        if self.0.len() <= into {
            self.0.resize(into + 1, Vec::new());
        }
        if let Some(r) = self.0.get_mut(into) {
            if r.len() < others.len() {
                r.resize(others.len(), 0);
            }
            r.iter_mut().zip(others).for_each(|(a, b)| *a |= b);
        }
    }
    fn row(&self, g: usize) -> Vec<u64> {
        self.0.get(g).cloned().unwrap_or_default()
    }
    /// Notes that `to`, and all behind it, is behind `from` and all before that.
    fn edge(&mut self, from: usize, to: usize) {
        let mut behind = self.row(to);
        if behind.len() <= to / 64 {
            behind.resize(to / 64 + 1, 0);
        }
        if let Some(w) = behind.get_mut(to / 64) {
            *w |= 1 << (to % 64);
        }
        self.join(from, &behind);
        for g in 0..self.0.len() {
            if self.has(g, from) {
                self.join(g, &behind);
            }
        }
    }
}

/// What fusion may do.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Whether items are fused at all.
    pub fuse: bool,
    /// The largest number of members of a group: beyond it a tile's registers leave the L1 cache.
    pub members: usize,
    /// The largest number of lanes of an epilogue that reduces them: a block of whole rows must stay in the L2 cache.
    pub epilogue_lanes: i64,
    /// The largest number of groups whose order is tracked; in a larger graph an item joins only if all its users are in
    /// one group.
    pub tracked: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { fuse: true, members: 96, epilogue_lanes: 8192, tracked: 4096 }
    }
}

/// The most users of an item whose groups it tries to join.
const ATTEMPTS: usize = 8;

struct Fuser<'a, 'f> {
    items: &'a Items<'f>,
    limits: Limits,
    uses: Vec<Vec<Use>>,
    reach: Reach,
    out: Fused,
}

/// Groups the items.
pub fn fuse(items: &Items<'_>, limits: Limits) -> Result<Fused> {
    let out = Fused {
        groups: Vec::new(),
        group_of: vec![None; items.items.len()],
        stored: vec![false; items.values.len()],
        reasons: vec![String::new(); items.items.len()],
    };
    let uses = vec![Vec::new(); items.values.len()];
    let mut f = Fuser { items, limits, uses, reach: Reach::default(), out };
    for v in &items.outputs {
        if let Some(s) = f.out.stored.get_mut(*v) {
            *s = true;
        }
    }
    for i in (0..items.items.len()).rev() {
        f.item(i)?;
    }
    Ok(f.out)
}

/// The access extended to a space with more lanes.
pub fn widen(access: &Access, space: &[Dim]) -> Access {
    let mut a = access.clone();
    while let (true, Some(d)) = (a.shape.len() < space.len(), space.get(a.shape.len())) {
        a.shape.push(d.clone());
        a.strides.push(Dim::constant(0));
    }
    a
}

/// How a dense buffer of so many elements is read over a space, if each index of some leading axes reads its own element.
fn class_of(access: &Access, space: &[Dim], numel: &Dim) -> Option<Class> {
    if !access.offset.is(0) {
        return None;
    }
    let a = widen(access, space);
    if numel.is(1) && a.is_splat() {
        return Some(Class::Splat);
    }
    for lead in (0..=space.len()).rev() {
        let (rows, lanes) = (space.get(..lead)?, a.strides.get(lead..)?);
        if lanes.iter().any(|s| !s.is(0)) {
            return None;
        }
        if a.strides.get(..lead)? == dense_strides(rows) && product(rows) == *numel {
            return Some(if lead == space.len() { Class::Full } else { Class::Row(space.len() - lead) });
        }
    }
    None
}

impl Fuser<'_, '_> {
    fn item(&mut self, i: usize) -> Result<()> {
        let item = self.items.items.get(i).ok_or_else(|| fault("an item is missing"))?;
        let mut users: Vec<usize> = Vec::new();
        let mut output = false;
        for r in &item.results {
            users.extend(self.uses.get(*r).into_iter().flatten().map(|u| u.group));
            output |= self.out.stored.get(*r).copied().unwrap_or(false);
        }
        users.sort_unstable();
        users.dedup();
        if users.is_empty() && !output {
            return Ok(()); // nobody needs it
        }
        let mut reason = String::new();
        if self.limits.fuse && item.results.len() == 1 {
            // The nearest ones: whoever has very many users rarely fits far ones.
            for g in users.iter().rev().take(ATTEMPTS) {
                match self.try_join(i, *g, &users)? {
                    Ok(()) => {
                        self.leave(i, *g, &users);
                        return Ok(());
                    }
                    Err(why) => reason = why,
                }
            }
        }
        let g = self.start(i)?;
        self.note(
            i,
            if reason.is_empty() { "computed on its own".into() } else { format!("apart: {reason}") },
        );
        self.leave(i, g, &users);
        Ok(())
    }

    fn note(&mut self, i: usize, text: String) {
        if let Some(r) = self.out.reasons.get_mut(i) {
            *r = text;
        }
    }

    /// Marks the results that must lie in memory, and what is now behind the group.
    fn leave(&mut self, i: usize, g: usize, users: &[usize]) {
        let Some(item) = self.items.items.get(i) else { return };
        let elsewhere = users.iter().any(|u| *u != g);
        let alone = self.out.groups.get(g).is_some_and(|g| g.alone.is_some());
        for r in &item.results {
            if let Some(s) = self.out.stored.get_mut(*r) {
                *s |= elsewhere || alone;
            }
        }
        if self.out.groups.len() <= self.limits.tracked {
            for u in users.iter().filter(|u| **u != g) {
                self.reach.edge(g, *u);
            }
        }
    }

    /// Puts an item into a group of its users, or says why not.
    fn try_join(&mut self, i: usize, g: usize, users: &[usize]) -> Result<Result<(), String>> {
        let item = self.items.items.get(i).ok_or_else(|| fault("an item is missing"))?;
        let group = self.out.groups.get(g).ok_or_else(|| fault("a group is missing"))?.clone();
        let result = item.results.first().copied().ok_or_else(|| fault("an item has no result"))?;
        if group.alone.is_some() {
            return Ok(Err("its user has a kernel of its own".into()));
        }
        if group.members.len() >= self.limits.members {
            return Ok(Err(format!("the group has {} members already", group.members.len())));
        }
        if users.len() > 1 && self.out.groups.len() > self.limits.tracked {
            return Ok(Err("used by several in a very large graph".into()));
        }
        if users.iter().any(|u| *u != g && self.reach.has(*u, g)) {
            return Ok(Err("what it gives to others comes back to the group".into()));
        }
        // Every read of the group must be of the element that is computed there.
        let numel = self.items.value(result)?.ty.numel();
        let mut class = None;
        for u in self.uses.get(result).into_iter().flatten().filter(|u| u.group == g) {
            let own = u.access.as_ref().and_then(|a| class_of(a, &group.space, &numel));
            match (own, class) {
                (None, _) => return Ok(Err("the group reads it in another order".into())),
                (Some(c), None) => class = Some(c),
                (Some(c), Some(d)) if c == d => {}
                _ => return Ok(Err("the group reads it in two ways".into())),
            }
        }
        let Some(mut class) = class else { return Ok(Err("the group does not read it".into())) };
        let (mut space, mut lanes) = (group.space.clone(), group.lanes);
        if let Class::Row(n) = class {
            if lanes.is_some_and(|l| l != n) {
                return Ok(Err("its rows are not those of the group".into()));
            }
            lanes = Some(n);
        }
        match &item.doing {
            Doing::Step(_) => return Ok(Err("it has a kernel of its own".into())),
            Doing::Product { columns, .. } => {
                if self.items.dtype(result)? != DType::F32 {
                    return Ok(Err("only products in f32 have an epilogue".into()));
                }
                if class != Class::Full || item.shape != space || *columns == 0 {
                    return Ok(Err("the region does not run over the product".into()));
                }
                if group.producer.is_some() {
                    return Ok(Err("the region has a product in front of it already".into()));
                }
                if lanes.is_some_and(|l| l != *columns) {
                    return Ok(Err("the region's rows are not those of the product".into()));
                }
                let width = product(space.get(space.len() - columns..).unwrap_or_default());
                if group.folds && width.upper().is_none_or(|w| w > self.limits.epilogue_lanes) {
                    return Ok(Err(format!("rows of {width} do not stay in the cache")));
                }
                let group = self.out.groups.get_mut(g).ok_or_else(|| fault("a group is missing"))?;
                group.lanes = Some(*columns);
                group.producer = Some(i);
                self.place(i, g);
                self.note(i, format!("in front of its epilogue: saves writing and reading {numel} elements"));
                self.read_memory(i, g);
                return Ok(Ok(()));
            }
            Doing::Point(Point::Fold(_, axes)) => {
                let reduced: Vec<Dim> =
                    axes.iter().filter_map(|a| self.operand_shape(i)?.get(*a).cloned()).collect();
                if class == Class::Splat {
                    // The one row of a space without any other.
                    let fits = |n: &usize| {
                        let (rows, own) = space.split_at(space.len() - n);
                        product(rows).is(1) && product(own) == product(&reduced)
                    };
                    let n = lanes.map_or(1..=space.len(), |l| l..=l).find(fits);
                    if let Some(n) = n {
                        (class, lanes) = (Class::Row(n), Some(n));
                    }
                }
                match class {
                    Class::Row(_) => {}
                    Class::Full if lanes.is_none_or(|l| l == 0) && group.producer.is_none() => {
                        class = Class::Row(reduced.len());
                        lanes = Some(reduced.len());
                        space.extend(reduced.iter().cloned());
                    }
                    _ => return Ok(Err("it reduces other lanes than the group".into())),
                }
                let own = product(space.get(space.len() - lanes.unwrap_or(0)..).unwrap_or_default());
                if product(&reduced) != own {
                    return Ok(Err("it reduces other lanes than the group".into()));
                }
                if let Some(p) = group.producer {
                    let name = self.items.items.get(p).map_or("", |p| p.name);
                    if own.upper().is_none_or(|w| w > self.limits.epilogue_lanes) {
                        return Ok(Err(format!("rows of {own} behind a {name} do not stay in the cache")));
                    }
                }
            }
            // An index is read once per row, if the entries that it finds are rows.
            Doing::Point(Point::Take(axis))
                if class == Class::Full && lanes.is_none() && item.shape == space =>
            {
                let behind = self.operand_shape(i).map_or(0, |s| s.len().saturating_sub(axis + 1));
                lanes = (behind > 0).then_some(behind);
            }
            Doing::Point(_) => {}
        }
        let Some(reads) = self.reads(i, class, &space)? else {
            return Ok(Err("its operands have no strides over the group's space".into()));
        };
        let wide = space.len() - group.space.len();
        let group = self.out.groups.get_mut(g).ok_or_else(|| fault("a group is missing"))?;
        if wide > 0 {
            for m in &mut group.members {
                m.1 = match m.1 {
                    Class::Full | Class::Row(0) => Class::Row(wide),
                    c => c,
                };
            }
        }
        group.members.push((i, class));
        group.folds |= matches!(item.doing, Doing::Point(Point::Fold(..)));
        (group.space, group.lanes) = (space, lanes);
        self.place(i, g);
        self.note(i, format!("joined its user: saves writing and reading {numel} elements"));
        self.register(g, reads);
        Ok(Ok(()))
    }

    fn place(&mut self, i: usize, g: usize) {
        if let Some(slot) = self.out.group_of.get_mut(i) {
            *slot = Some(g);
        }
    }

    fn operand_shape(&self, i: usize) -> Option<&[Dim]> {
        let v = self.items.items.get(i)?.operands.first().copied().flatten()?;
        Some(&self.items.value(v).ok()?.ty.shape)
    }

    /// How each operand of an item is read over a space.
    fn reads(&self, i: usize, class: Class, space: &[Dim]) -> Result<Option<Vec<Read>>> {
        let item = self.items.items.get(i).ok_or_else(|| fault("an item is missing"))?;
        let mut out = Vec::new();
        for (k, o) in item.operands.iter().enumerate() {
            let Some(v) = o else { continue };
            let info = self.items.value(*v)?;
            let Some(access) = operand_access(self.items, i, k, *v)? else { return Ok(None) };
            let over = match (&item.doing, class) {
                (Doing::Point(Point::Fold(..)), _) | (_, Class::Full) => access.reshape(space),
                (_, Class::Row(n)) => {
                    access.reshape(space.get(..space.len() - n).unwrap_or_default()).map(|a| widen(&a, space))
                }
                (_, Class::Splat) => access.is_splat().then(|| {
                    widen(&Access { shape: vec![], strides: vec![], offset: access.offset.clone() }, space)
                }),
            };
            let Some(over) = over else { return Ok(None) };
            // A table is only ever read from memory.
            let table = k == 0 && matches!(item.doing, Doing::Point(Point::Take(_)));
            out.push((info.base, (!table).then_some(over)));
        }
        Ok(Some(out))
    }

    fn register(&mut self, g: usize, reads: Vec<Read>) {
        for (base, access) in reads {
            if let Some(u) = self.uses.get_mut(base) {
                u.push(Use { group: g, access });
            }
        }
    }

    /// Notes that an item reads its operands from memory.
    fn read_memory(&mut self, i: usize, g: usize) {
        let Some(item) = self.items.items.get(i) else { return };
        let bases: Vec<Value> = item
            .operands
            .iter()
            .flatten()
            .filter_map(|v| self.items.value(*v).ok().map(|i| i.base))
            .collect();
        self.register(g, bases.into_iter().map(|b| (b, None)).collect());
    }

    /// A new group for an item.
    fn start(&mut self, i: usize) -> Result<usize> {
        let item = self.items.items.get(i).ok_or_else(|| fault("an item is missing"))?;
        let g = self.out.groups.len();
        let mut group = Group {
            members: Vec::new(),
            space: item.shape.clone(),
            lanes: None,
            folds: false,
            producer: None,
            alone: None,
        };
        self.place(i, g);
        match &item.doing {
            Doing::Point(p) => {
                let mut class = Class::Full;
                if let Point::Fold(_, axes) = p {
                    let from = self.operand_shape(i).unwrap_or_default();
                    let kept = (0..from.len()).filter(|a| !axes.contains(a));
                    let order: Vec<usize> = kept.chain(axes.iter().copied()).collect();
                    group.space = order.iter().filter_map(|a| from.get(*a).cloned()).collect();
                    group.lanes = Some(axes.len());
                    group.folds = true;
                    class = Class::Row(axes.len());
                }
                if let Point::Take(axis) = p {
                    let behind = self.operand_shape(i).map_or(0, |s| s.len().saturating_sub(axis + 1));
                    group.lanes = (behind > 0).then_some(behind);
                }
                let reads = self.reads(i, class, &group.space)?;
                let reads = reads.ok_or_else(|| fault("an item cannot be read over its own space"))?;
                group.members.push((i, class));
                self.out.groups.push(group);
                self.register(g, reads);
            }
            _ => {
                group.alone = Some(i);
                self.out.groups.push(group);
                self.read_memory(i, g);
            }
        }
        Ok(g)
    }
}

/// How operand `k` of an item is read over the shape that the item iterates over (for a fold: kept axes, then reduced
/// ones; for the table of a take: with stride 0 along the axes of the index).
pub fn operand_access(items: &Items<'_>, i: usize, k: usize, v: Value) -> Result<Option<Access>> {
    let item = items.items.get(i).ok_or_else(|| fault("an item is missing"))?;
    let access = &items.value(v)?.access;
    Ok(Some(match &item.doing {
        Doing::Point(Point::Fold(_, axes)) => {
            let kept = (0..access.shape.len()).filter(|a| !axes.contains(a));
            access.permute(&kept.chain(axes.iter().copied()).collect::<Vec<_>>())
        }
        Doing::Point(Point::Take(axis)) => {
            let count = item.shape.len() + 1 - table_rank(items, i)?;
            let zero = Dim::constant(0);
            let strides = item.shape.iter().enumerate().map(|(a, _)| {
                let at = if k == 0 {
                    if a < *axis { Some(a) } else { (a + 1).checked_sub(count).filter(|t| t > axis) }
                } else {
                    a.checked_sub(*axis).filter(|t| *t < count)
                };
                at.and_then(|t| access.strides.get(t).cloned()).unwrap_or_else(|| zero.clone())
            });
            Access { shape: item.shape.clone(), strides: strides.collect(), offset: access.offset.clone() }
        }
        Doing::Point(Point::Copy) => access.clone(),
        _ => access.broadcast(&item.shape),
    }))
}

fn table_rank(items: &Items<'_>, i: usize) -> Result<usize> {
    let table = items.items.get(i).and_then(|i| i.operands.first().copied().flatten());
    Ok(items.value(table.ok_or_else(|| fault("a take has no table"))?)?.access.shape.len())
}

/// Whether a value is computed from nothing wherever it is needed.
pub fn is_free(source: &Source) -> bool {
    matches!(source, Source::Number(_) | Source::Size(_) | Source::Iota)
}

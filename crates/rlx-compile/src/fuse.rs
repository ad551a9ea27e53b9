//! Fusion: which items are computed together.
//!
//! Items are visited from the last to the first. An item joins the group of an item that uses it if both can be computed at
//! the same index of one space: as one element each (*full*), once per row (*row*, such as a mean that is subtracted), or
//! once in all (*splat*). A reduction joins as a row whose lanes it reduces; a matrix product, or a step whose kernel hands
//! its result on in blocks, joins as what stands in front of a region: its epilogue. What only a product reads, as its left
//! operand, may become its prologue: see [`prologue`].
//!
//! When an item is visited everything behind it is placed, so whether joining would make a cycle is known at once: it would
//! if a value that leaves the group on another way came back to it.

mod entries;
pub mod prologue;
mod reach;
mod whole;

use crate::access::{Access, dense_strides};
use crate::items::{Doing, Items, Point, Source, Value};
use crate::program::fault;
use reach::Reach;
use rlx_ir::types::product;
use rlx_ir::{Dim, Result};

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
    /// What computes the left operand of the group's product, from the last item to the first.
    pub prologue: Vec<(usize, Class)>,
}

impl Group {
    /// All items of the group, in the order in which they are computed.
    pub fn items(&self) -> impl Iterator<Item = usize> {
        let before = self.prologue.iter().rev().map(|m| m.0).chain(self.producer).chain(self.alone);
        before.chain(self.members.iter().rev().map(|m| m.0))
    }
}

/// Somebody reads a value.
#[derive(Clone, Debug)]
struct Use {
    group: usize,
    /// How a region reads it: over the first axes of its space. `None`: only memory will do.
    access: Option<Access>,
    /// The reader is the group's prologue, or a product that reads it as its left operand: the space is that of the operand.
    front: bool,
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
    /// The largest number of elements that one thread reduces to one number, together with what waits for that.
    pub whole: i64,
    /// The smallest number of elements of an entry that is found by its index and is a row.
    pub entry: i64,
    /// What decides on prologues.
    pub prologue: prologue::Costs,
}

impl Default for Limits {
    fn default() -> Limits {
        let prologue = prologue::Costs::default();
        Limits {
            fuse: true,
            members: 96,
            epilogue_lanes: 8192,
            tracked: 4096,
            whole: 1 << 15,
            entry: 32,
            prologue,
        }
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
        // Of several results only the first can go to a region.
        let joins = item.results.len() == 1 || item.doing.blocks(item.shape.len()).is_some();
        if self.limits.fuse && joins {
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
        let alone = self.out.groups.get(g).is_some_and(|g| g.alone == Some(i));
        for (k, r) in item.results.iter().enumerate() {
            let elsewhere = self.uses.get(*r).into_iter().flatten().any(|u| u.group != g);
            if let Some(s) = self.out.stored.get_mut(*r) {
                *s |= elsewhere || alone || k > 0;
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
        if self.uses.get(result).into_iter().flatten().any(|u| u.group == g && u.front) {
            return self.try_prologue(i, g, users);
        }
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
        if class == Class::Splat && lanes.is_none() && product(&space).is(1) {
            class = Class::Full; // there is but one index
        }
        if let Some(why) = self.waits(i, &group, class)? {
            return Ok(Err(why));
        }
        match &item.doing {
            Doing::Step(_) | Doing::Product { .. } => return self.in_front(i, g, class),
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
                if let Some(p) = group.producer.and_then(|p| self.items.items.get(p)) {
                    let name = p.name;
                    if !p.doing.blocks(p.shape.len()).is_some_and(|b| b.whole_rows) {
                        return Ok(Err(format!(
                            "{name} in front of the group gives no whole rows to reduce"
                        )));
                    }
                    if own.upper().is_none_or(|w| w > self.limits.epilogue_lanes) {
                        return Ok(Err(format!("rows of {own} behind a {name} do not stay in the cache")));
                    }
                }
            }
            // An index is read once per row, if the entries that it finds are rows.
            Doing::Point(Point::Take(axis))
                if class == Class::Full && lanes.is_none() && item.shape == space =>
            {
                lanes = self.found_lanes(i, *axis);
            }
            Doing::Point(_) => {}
        }
        if let Class::Row(n) = class
            && self.finds(&group, result)
        {
            let own = product(space.get(space.len() - n..).unwrap_or_default());
            if !self.is_long(&own) {
                return Ok(Err(format!("entries of {own} are too short to compute an index for each apart")));
            }
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
        self.register(g, reads, false);
        Ok(Ok(()))
    }

    /// Puts an item in front of a group, whose region then runs on the blocks that it gives, or says why not.
    fn in_front(&mut self, i: usize, g: usize, class: Class) -> Result<Result<(), String>> {
        let item = self.items.items.get(i).ok_or_else(|| fault("an item is missing"))?;
        let group = self.out.groups.get(g).ok_or_else(|| fault("a group is missing"))?;
        let Some((result, others)) = item.results.split_first() else {
            return Err(fault("an item has no result"));
        };
        let (ty, name) = (&self.items.value(*result)?.ty, item.name);
        let Some(blocks) = item.doing.blocks(item.shape.len()) else {
            return Ok(Err("it has a kernel of its own".into()));
        };
        if !item.doing.feeds(ty.dtype) {
            return Ok(Err("only what is computed in f32 has an epilogue".into()));
        }
        if let Some(p) = group.producer.and_then(|p| self.items.items.get(p)) {
            return Ok(Err(format!("the region has {} in front of it already", p.name)));
        }
        if others.iter().any(|r| self.uses.get(*r).into_iter().flatten().any(|u| u.group == g)) {
            return Ok(Err("the group reads another of its results too".into()));
        }
        if class != Class::Full || blocks.columns == 0 {
            return Ok(Err(format!("the region does not run over what {name} gives")));
        }
        // What lies in memory may have other rows, but not other columns.
        let rows = ty.rank() - blocks.columns.min(ty.rank());
        if item
            .written
            .as_ref()
            .is_some_and(|w| w.iter().skip(rows).ne(&(rows..ty.rank()).collect::<Vec<_>>()))
        {
            return Ok(Err(format!("the last axes are not the columns of {name}")));
        }
        let mut moved = None;
        if group.space != ty.shape {
            moved = self.over(group, &ty.shape)?;
            if moved.is_none() {
                return Ok(Err(format!("the region does not run over what {name} gives")));
            }
        }
        if group.lanes.is_some_and(|l| l != blocks.columns) {
            return Ok(Err(format!("the region's rows are not those of {name}")));
        }
        if group.folds && !blocks.whole_rows {
            return Ok(Err(format!("{name} gives no whole rows to reduce")));
        }
        let width = product(ty.shape.get(rows..).unwrap_or_default());
        if group.folds && width.upper().is_none_or(|w| w > self.limits.epilogue_lanes) {
            return Ok(Err(format!("rows of {width} do not stay in the cache")));
        }
        let (numel, space) = (ty.numel(), ty.shape.clone());
        let group = self.out.groups.get_mut(g).ok_or_else(|| fault("a group is missing"))?;
        (group.space, group.lanes, group.producer) = (space, Some(blocks.columns), Some(i));
        if let Some(reads) = moved {
            for (base, _) in &reads {
                if let Some(u) = self.uses.get_mut(*base) {
                    u.retain(|u| u.group != g);
                }
            }
            self.register(g, reads, false);
        }
        self.place(i, g);
        self.note(i, format!("in front of its epilogue: saves writing and reading {numel} elements"));
        self.read_memory(i, g);
        Ok(Ok(()))
    }

    /// What a group reads if it runs over as many elements of another shape; `None` if strides cannot say that.
    fn over(&self, group: &Group, space: &[Dim]) -> Result<Option<Vec<Read>>> {
        if group.lanes.is_some() {
            return Ok(None);
        }
        let mut out = Vec::new();
        for (i, class) in &group.members {
            let Some(reads) = self.reads(*i, *class, space)? else { return Ok(None) };
            out.extend(reads);
        }
        Ok(Some(out))
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

    fn register(&mut self, g: usize, reads: Vec<Read>, front: bool) {
        for (base, access) in reads {
            if let Some(u) = self.uses.get_mut(base) {
                u.push(Use { group: g, access, front });
            }
        }
    }

    /// Notes that an item reads its operands from memory; the left one of a product may be computed on the way instead.
    fn read_memory(&mut self, i: usize, g: usize) {
        let Some(item) = self.items.items.get(i) else { return };
        for (k, v) in item.operands.iter().enumerate() {
            let Some(info) = v.and_then(|v| self.items.value(v).ok()) else { continue };
            let front = k == 0 && matches!(item.doing, Doing::Product { .. });
            self.register(g, vec![(info.base, front.then(|| info.access.clone()))], front);
        }
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
            prologue: Vec::new(),
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
                    group.lanes = self.found_lanes(i, *axis);
                }
                let reads = self.reads(i, class, &group.space)?;
                let reads = reads.ok_or_else(|| fault("an item cannot be read over its own space"))?;
                group.members.push((i, class));
                self.out.groups.push(group);
                self.register(g, reads, false);
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

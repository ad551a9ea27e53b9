//! Reductions of whole tensors: what many threads reduce together is not computed in one row with what waits for it.

use super::{Class, Fuser, Group};
use crate::items::{Doing, Point, Source, Value};
use crate::program::fault;
use rlx_ir::types::product;
use rlx_ir::{Dim, Result};

impl Fuser<'_, '_> {
    /// Whether so many elements are reduced by many threads.
    fn is_large(&self, elements: &Dim) -> bool {
        elements.upper().is_none_or(|n| n > self.limits.whole)
    }

    /// Why an item must not join a group, if a reduction of a whole tensor is the reason.
    pub(super) fn waits(&self, i: usize, group: &Group, class: Class) -> Result<Option<String>> {
        let item = self.items.items.get(i).ok_or_else(|| fault("an item is missing"))?;
        let (rows, lanes) = group.space.split_at(group.space.len().saturating_sub(group.lanes.unwrap_or(0)));
        let reduces = group.folds && product(rows).is(1) && self.is_large(&product(lanes));
        match class {
            Class::Full if reduces => Ok(self
                .taker(i)?
                .map(|name| format!("it is better computed behind the {name} in front of it"))),
            Class::Splat if !reduces => {
                if let Some(n) = self.whole_fold(i)? {
                    return Ok(Some(format!("many threads reduce {n} elements before the group begins")));
                }
                let mut waiting: Vec<Value> = Vec::new();
                for v in item.operands.iter().flatten() {
                    if !waiting.contains(v) && self.waits_for_fold(*v)? {
                        waiting.push(*v);
                    }
                }
                // Several are done in one pass, in a group of their own.
                Ok((waiting.len() > 1).then(|| "reductions of whole tensors meet here".into()))
            }
            _ => Ok(None),
        }
    }

    /// The number of elements, if the item is a reduction of all of them and they are many.
    fn whole_fold(&self, i: usize) -> Result<Option<Dim>> {
        let item = self.items.items.get(i).ok_or_else(|| fault("an item is missing"))?;
        let (Doing::Point(Point::Fold(..)), Some(Some(x))) = (&item.doing, item.operands.first()) else {
            return Ok(None);
        };
        let n = self.items.value(*x)?.ty.numel();
        Ok(product(&item.shape).is(1).then_some(n).filter(|n| self.is_large(n)))
    }

    /// Whether a number is computed from the reduction of a whole tensor.
    fn waits_for_fold(&self, v: Value) -> Result<bool> {
        let (mut next, mut seen) = (vec![v], Vec::new());
        while let Some(v) = next.pop() {
            let base = self.items.value(v)?.base;
            let Source::Item(i) = self.items.value(base)?.source else { continue };
            if seen.contains(&i) || seen.len() >= self.limits.members {
                continue;
            }
            seen.push(i);
            if self.whole_fold(i)?.is_some() {
                return Ok(true);
            }
            let item = self.items.items.get(i).ok_or_else(|| fault("an item is missing"))?;
            if matches!(item.doing, Doing::Point(_)) && product(&item.shape).is(1) {
                next.extend(item.operands.iter().flatten());
            }
        }
        Ok(false)
    }
}

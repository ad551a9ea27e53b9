//! Entries that are found by an index: long ones are rows, and what the index is made of is computed once for each.

use super::{Fuser, Group};
use crate::items::{Doing, Point, Value};
use rlx_ir::Dim;
use rlx_ir::types::product;

impl Fuser<'_, '_> {
    /// Whether an entry of so many elements is worth what it costs to begin a row.
    pub(super) fn is_long(&self, lanes: &Dim) -> bool {
        lanes.upper().is_none_or(|n| n >= self.limits.entry)
    }

    /// The lanes of a region that finds entries: those of an entry, if it is long enough to be a row.
    pub(super) fn found_lanes(&self, i: usize, axis: usize) -> Option<usize> {
        let entry = self.operand_shape(i)?.get(axis + 1..)?;
        (!entry.is_empty() && self.is_long(&product(entry))).then_some(entry.len())
    }

    /// Whether the group finds entries by that value.
    pub(super) fn finds(&self, group: &Group, index: Value) -> bool {
        let by = |i: usize| {
            let item = self.items.items.get(i)?;
            let v = item.operands.get(1).copied().flatten()?;
            Some(
                matches!(item.doing, Doing::Point(Point::Take(_))) && self.items.value(v).ok()?.base == index,
            )
        };
        group.members.iter().any(|m| by(m.0).unwrap_or(false))
    }
}

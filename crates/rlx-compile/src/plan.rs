//! The arena: where each buffer lies, so that those that live at the same time do not overlap.
//!
//! Sizes are symbolic, so what is planned is an order: of two buffers that live at the same time, which one lies below. Offsets
//! follow from the sizes in one pass when the symbols are bound; whatever the sizes, nothing overlaps. The order is that of
//! the best of a few greedy layouts at the largest sizes; where this one leaves gaps at other sizes, that of a layout which
//! leaves fewer there and is as good at the largest.

use crate::program::{SizeId, Sizes, SlotId};
use std::cmp::Reverse;

/// Every buffer starts at a multiple of this many bytes: a cache line.
pub const ALIGN: i64 = 64;
/// A peak may be so many times what lives before other layouts are tried.
const GAPS: f64 = 1.03;
/// How many pairs of buffers may be compared on the way to such layouts, for each of the ways to place them.
const EFFORT: usize = 1 << 19;

/// Memory that lives from one group to another.
#[derive(Clone, Debug, PartialEq)]
pub struct Buffer {
    /// The first slot in it.
    pub slot: SlotId,
    /// Its size in bytes.
    pub bytes: SizeId,
    /// The first group that touches it, by its place in the order; a group is mostly one call, but may be several.
    pub first: u32,
    /// The last one.
    pub last: u32,
}

/// Memory of an order that need not be the one that was taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Life {
    /// Its size in bytes.
    pub bytes: SizeId,
    /// The first group that touches it, by its place in the order.
    pub first: u32,
    /// The last one.
    pub last: u32,
}

/// The layout of the arena.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The buffers.
    pub buffers: Vec<Buffer>,
    /// The buffers from the lowest to the highest.
    order: Vec<u32>,
    /// For each buffer, those that live at the same time and lie below it.
    below: Vec<Vec<u32>>,
    /// What the graph's order would take.
    graph: Vec<Life>,
}

/// Where everything lies for some sizes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Layout {
    /// The offset of each buffer in bytes.
    pub offsets: Vec<i64>,
    /// The size of the arena.
    pub peak: i64,
}

/// How good a layout is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    /// The size of the arena in bytes.
    pub peak: i64,
    /// The largest sum of bytes that live at the same time: no layout can do with less.
    pub bound: i64,
    /// The same sum if the groups came in the graph's order.
    pub graph: i64,
}

impl Report {
    /// What part of the arena is lost to gaps.
    pub fn waste(&self) -> f64 {
        if self.peak == 0 { 0.0 } else { 1.0 - self.bound as f64 / self.peak as f64 }
    }
}

pub(crate) fn round_up(n: i64) -> i64 {
    n.saturating_add(ALIGN - 1) / ALIGN * ALIGN
}

fn overlap(a: &Buffer, b: &Buffer) -> bool {
    a.first <= b.last && b.first <= a.last
}

/// Offsets by placing buffers in an order, each into the first gap that holds it.
fn place(buffers: &[Buffer], sizes: &[i64], order: &[usize]) -> (Vec<i64>, i64) {
    let mut offsets = vec![0i64; buffers.len()];
    let mut placed: Vec<usize> = Vec::new(); // by offset
    let mut peak = 0;
    for &i in order {
        let (Some(b), Some(&size)) = (buffers.get(i), sizes.get(i)) else { continue };
        let mut at = 0i64;
        for &p in &placed {
            let (Some(other), Some(&from), Some(&len)) = (buffers.get(p), offsets.get(p), sizes.get(p))
            else {
                continue;
            };
            if !overlap(b, other) {
                continue;
            }
            if from.saturating_sub(at) >= size && size > 0 {
                break;
            }
            at = at.max(from.saturating_add(len));
        }
        if let Some(o) = offsets.get_mut(i) {
            *o = at;
        }
        peak = peak.max(at.saturating_add(size));
        let slot = placed.partition_point(|p| offsets.get(*p).is_some_and(|o| *o <= at));
        placed.insert(slot, i);
    }
    (offsets, peak)
}

/// The orders in which buffers are placed.
fn orders(buffers: &[Buffer], bytes: &[i64]) -> [Vec<usize>; 4] {
    let size = |i: &usize| bytes.get(*i).copied().unwrap_or(0);
    let life = |i: &usize| buffers.get(*i).map_or(0, |b| i64::from(b.last - b.first) + 1);
    let first = |i: &usize| buffers.get(*i).map_or(0, |b| b.first);
    let all: Vec<usize> = (0..buffers.len()).collect();
    let mut by_size = all.clone();
    by_size.sort_by_key(|i| (Reverse(size(i)), Reverse(life(i)), first(i)));
    let mut by_life = all.clone();
    by_life.sort_by_key(|i| (Reverse(life(i)), Reverse(size(i)), first(i)));
    let mut by_area = all.clone();
    by_area.sort_by_key(|i| (Reverse(size(i) as i128 * life(i) as i128), first(i)));
    let mut by_time = all;
    by_time.sort_by_key(|i| (first(i), Reverse(life(i)), Reverse(size(i))));
    [by_size, by_life, by_area, by_time]
}

/// The peak at some sizes if the buffers are stacked in an order, each on those that live at the same time.
fn stacked(buffers: &[Buffer], order: &[usize], bytes: &[i64], tops: &mut [i64]) -> i64 {
    tops.fill(0);
    for i in order {
        let (Some(b), Some(size)) = (buffers.get(*i), bytes.get(*i)) else { continue };
        let own = tops.get_mut(b.first as usize..=b.last as usize).unwrap_or_default();
        let top = own.iter().copied().max().unwrap_or(0).saturating_add(*size);
        own.fill(top);
    }
    tops.iter().copied().max().unwrap_or(0)
}

/// The buffers from the lowest to the highest of the best layout at the largest sizes, or of another that is as good there
/// and better at the sizes `at`.
fn lowest_first(buffers: &[Buffer], largest: &[i64], at: &[Vec<i64>]) -> Vec<usize> {
    let sorted = |offsets: Vec<i64>| {
        let mut order: Vec<usize> = (0..buffers.len()).collect();
        order.sort_by_key(|i| offsets.get(*i).copied().unwrap_or(0));
        order
    };
    let laid = |bytes: &[i64]| orders(buffers, bytes).map(|order| place(buffers, bytes, &order));
    let mut all: Vec<(i64, Vec<usize>)> =
        laid(largest).into_iter().map(|(offsets, peak)| (peak, sorted(offsets))).collect();
    all.sort_by_key(|l| l.0);
    let mut all = all.into_iter();
    let Some((peak, best)) = all.next() else { return Vec::new() };
    let live = |bytes: &Vec<i64>| most(buffers.iter().zip(bytes).map(|(b, bytes)| (*bytes, b.first, b.last)));
    let bounds: Vec<i64> = at.iter().map(live).collect();
    let mut tops = vec![0; buffers.iter().map(|b| b.last as usize + 1).max().unwrap_or(0)];
    // The worst ratio of a peak to what lives, as far as it is below a limit.
    let mut worst = |order: &[usize], limit: f64| {
        let mut ratio = 1.0f64;
        if stacked(buffers, order, largest, &mut tops) > peak.saturating_add(peak / 100) {
            return f64::INFINITY;
        }
        for (bytes, live) in at.iter().zip(&bounds) {
            ratio = ratio.max(stacked(buffers, order, bytes, &mut tops) as f64 / (*live).max(1) as f64);
            if ratio >= limit {
                break;
            }
        }
        ratio
    };
    let mut found = (worst(&best, f64::INFINITY), best);
    // Placing takes a time that grows with the square of the number of buffers.
    let tries = EFFORT / buffers.len().saturating_mul(buffers.len()).max(1);
    let others = at.iter().take(tries).flat_map(|bytes| laid(bytes)).map(|l| sorted(l.0));
    let mut others = all.map(|l| l.1).chain(others);
    while found.0 > GAPS
        && let Some(order) = others.next()
    {
        let ratio = worst(&order, found.0);
        if ratio < found.0 {
            found = (ratio, order);
        }
    }
    found.1
}

impl Plan {
    /// Plans the arena. `graph`: what the graph's order would take; `at`: sizes at which there should be no gaps either.
    pub fn new(buffers: Vec<Buffer>, graph: Vec<Life>, at: &[Vec<i64>], sizes: &Sizes) -> Plan {
        let largest: Vec<i64> =
            buffers.iter().map(|b| round_up(sizes.dim(b.bytes).upper().unwrap_or(i64::MAX / 4))).collect();
        let bytes = |at: &Vec<i64>| buffers.iter().map(|b| bytes_of(b.bytes, at)).collect();
        let order = lowest_first(&buffers, &largest, &at.iter().map(bytes).collect::<Vec<_>>());
        let order: Vec<u32> = order.into_iter().map(|i| i as u32).collect();
        let mut below: Vec<Vec<u32>> = vec![Vec::new(); buffers.len()];
        for (k, i) in order.iter().enumerate() {
            let Some(own) = buffers.get(*i as usize) else { continue };
            // Those just below are enough: what lies below one of them lies below this one too.
            let mut near: Vec<u32> = Vec::new();
            for j in order.get(..k).unwrap_or_default().iter().rev() {
                let Some(other) = buffers.get(*j as usize) else { continue };
                let hidden = near.iter().any(|n| buffers.get(*n as usize).is_some_and(|n| overlap(n, other)));
                if overlap(own, other) && !hidden {
                    near.push(*j);
                }
            }
            if let Some(b) = below.get_mut(*i as usize) {
                *b = near;
            }
        }
        Plan { buffers, order, below, graph }
    }

    /// Where everything lies, given every size of the program.
    pub fn layout(&self, sizes: &[i64], out: &mut Layout) {
        out.offsets.clear();
        out.offsets.resize(self.buffers.len(), 0);
        out.peak = 0;
        let bytes = |i: u32| {
            let b = self.buffers.get(i as usize).and_then(|b| sizes.get(b.bytes.0 as usize));
            round_up(b.copied().unwrap_or(0))
        };
        for i in &self.order {
            let below = self.below.get(*i as usize).map(Vec::as_slice).unwrap_or_default();
            let top = |j: &u32| out.offsets.get(*j as usize).copied().unwrap_or(0).saturating_add(bytes(*j));
            let at = below.iter().map(top).max().unwrap_or(0);
            if let Some(o) = out.offsets.get_mut(*i as usize) {
                *o = at;
            }
            out.peak = out.peak.max(at.saturating_add(bytes(*i)));
        }
    }

    /// The arena's size and the least that any layout needs, given every size of the program.
    pub fn report(&self, sizes: &[i64]) -> Report {
        let mut layout = Layout::default();
        self.layout(sizes, &mut layout);
        let bound = most(self.buffers.iter().map(|b| (bytes_of(b.bytes, sizes), b.first, b.last)));
        let graph = most(self.graph.iter().map(|l| (bytes_of(l.bytes, sizes), l.first, l.last)));
        Report { peak: layout.peak, bound, graph }
    }
}

fn bytes_of(id: SizeId, sizes: &[i64]) -> i64 {
    round_up(sizes.get(id.0 as usize).copied().unwrap_or(0))
}

/// The most bytes that live at the same time.
fn most(lives: impl Iterator<Item = (i64, u32, u32)> + Clone) -> i64 {
    let end = lives.clone().map(|l| l.2 as usize + 2).max().unwrap_or(0);
    let mut change = vec![0i64; end];
    for (bytes, first, last) in lives {
        if let Some(c) = change.get_mut(first as usize) {
            *c = c.saturating_add(bytes);
        }
        if let Some(c) = change.get_mut(last as usize + 1) {
            *c = c.saturating_sub(bytes);
        }
    }
    let mut live = 0i64;
    let sums = change.iter().map(|c| {
        live = live.saturating_add(*c);
        live
    });
    sums.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlx_ir::{Bindings, dim, sample::Rng};

    /// Layouts of random lifetimes: nothing overlaps at any size, and little is wasted.
    #[test]
    fn nothing_overlaps_at_any_size() {
        let mut rng = Rng::new(7);
        for round in 0..50 {
            let mut sizes = Sizes::default();
            let s = dim("s", 1000);
            let buffers: Vec<Buffer> = (0..60)
                .map(|i| {
                    let first = rng.below(100) as u32;
                    let bytes = if rng.below(2) == 0 {
                        &s * (rng.below(50) as i64)
                    } else {
                        (rng.below(9000) as i64).into()
                    };
                    Buffer {
                        slot: SlotId(i),
                        bytes: sizes.id(&bytes),
                        first,
                        last: first + rng.below(20) as u32,
                    }
                })
                .collect();
            let plan = Plan::new(buffers, Vec::new(), &[], &sizes);
            for n in [0, 1, 13, 1000] {
                let b: Bindings = [("s", n)].into_iter().collect();
                let mut bound = Vec::new();
                sizes.bind(&b, &mut bound).unwrap();
                let mut l = Layout::default();
                plan.layout(&bound, &mut l);
                for (i, x) in plan.buffers.iter().enumerate() {
                    for (j, y) in plan.buffers.iter().enumerate().skip(i + 1) {
                        let (sx, sy) = (bound[x.bytes.0 as usize], bound[y.bytes.0 as usize]);
                        let apart = l.offsets[i] + sx <= l.offsets[j] || l.offsets[j] + sy <= l.offsets[i];
                        assert!(
                            !overlap(x, y) || apart || sx == 0 || sy == 0,
                            "round {round}, s = {n}: {i} and {j}"
                        );
                    }
                }
                let r = plan.report(&bound);
                assert!(r.peak >= r.bound);
            }
        }
    }
}

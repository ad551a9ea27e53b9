//! ONNX ops that cut tensors, repeat them and add to their ends.

use super::Call;
use crate::dim::Dim;
use crate::error::{Code, Error, Result};
use crate::graph::Var;
use crate::ops::arrange::PadMode;
use crate::tensor::Tensor;
use crate::types::{Shape, resolve_axes, resolve_axis};

/// No axis is longer. ONNX writes the ends of all numbers for "to the end", with which nothing can be computed.
const FAR: i64 = 1 << 53;

fn missing(what: &str) -> Error {
    Error::new(Code::Operands, format!("{what} missing"))
}

/// Whether a is at least b for all sizes.
fn at_least(a: &Dim, b: &Dim) -> bool {
    (a - b).lower().is_some_and(|gap| gap >= 0)
}

/// A place in an axis of size n, brought into 0..=n. What may lie on either side is taken to be within: `slice` makes that a
/// condition on the symbols.
fn within(at: Dim, n: &Dim) -> Dim {
    let zero = Dim::constant(0);
    if at_least(&zero, &at) {
        zero
    } else if at_least(&at, n) {
        n.clone()
    } else {
        at
    }
}

/// A start or end of a slice as a place in the axis in the direction of the step; a negative one counts from the end.
fn place(at: &Dim, n: &Dim, backwards: bool) -> Dim {
    let at = at.as_const().map_or(at.clone(), |at| Dim::constant(at.clamp(-FAR, FAR)));
    let from_end = at.upper().is_some_and(|hi| hi < 0);
    let place = match (backwards, from_end) {
        (false, false) => at,
        (false, true) => n + at,
        (true, false) => n - 1 - at,
        (true, true) => -1 - at,
    };
    within(place, n)
}

/// Part of each axis, by attributes or operands.
pub(crate) fn slice<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let x = c.x(0)?;
    let starts = c.dims_or("starts", 1)?.ok_or_else(|| missing("the starts are"))?;
    let ends = c.dims_or("ends", 2)?.ok_or_else(|| missing("the ends are"))?;
    let axes = c.ints_or("axes", 3)?.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let axes = resolve_axes(&axes, x.rank())?;
    let steps = match c.opt(4) {
        Some(_) => c.const_ints(4)?,
        None => vec![1; axes.len()],
    };
    if [ends.len(), axes.len(), steps.len()].iter().any(|n| *n != starts.len()) {
        return Err(Error::new(Code::Rank, "starts, ends, axes and steps differ in number"));
    }
    let rank = x.rank();
    let (mut from, mut to, mut by, mut flips) =
        (vec![Dim::constant(0); rank], x.shape(), vec![1i64; rank], vec![]);
    for (((axis, start), end), step) in axes.iter().zip(&starts).zip(&ends).zip(&steps) {
        let n = x.dim(*axis as i64);
        if *step == 0 {
            return Err(Error::new(Code::Attribute, "a step is 0").axis(*axis));
        }
        if *step < 0 {
            flips.push(*axis as i64);
        }
        let (start, end) = (place(start, &n, *step < 0), place(end, &n, *step < 0));
        let end = if at_least(&start, &end) { start.clone() } else { end };
        from.get_mut(*axis).into_iter().for_each(|d| *d = start.clone());
        to.get_mut(*axis).into_iter().for_each(|d| *d = end.clone());
        // A step beyond the axis takes one element, as a step of its length does.
        by.get_mut(*axis).into_iter().for_each(|d| *d = step.unsigned_abs().min(FAR as u64) as i64);
    }
    let y = if flips.is_empty() { x } else { x.flip(flips) };
    let whole = from.iter().all(|d| d.is(0)) && to == x.shape() && by.iter().all(|s| *s == 1);
    Ok(vec![if whole { y } else { y.slice(from, to, by) }])
}

/// Parts along an axis: of given sizes, or as many as there are results, the last of which may be smaller.
pub(crate) fn split<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let x = c.x(0)?;
    let axis = resolve_axis(c.int_or("axis", 0)?, x.rank())? as i64;
    let sizes = match c.dims_or("split", 1)? {
        Some(sizes) => sizes,
        None => {
            let count = c.int("num_outputs")?.unwrap_or(c.wanted.len() as i64);
            if count < 1 || count > c.wanted.len() as i64 {
                return Err(Error::new(
                    Code::Attribute,
                    format!("{count} parts for {} results", c.wanted.len()),
                ));
            }
            let n = x.dim(axis);
            let part = n.ceil_div(count);
            let rest = n - &part * (count - 1);
            let mut sizes = vec![part; count as usize];
            sizes.last_mut().into_iter().for_each(|d| *d = rest.clone());
            sizes
        }
    };
    Ok(if sizes.len() == 1 { vec![x] } else { x.split(axis, sizes) })
}

/// x with elements cut off where a count is negative, and the counts that add elements.
fn cut<'g>(x: Var<'g>, lo: &mut [Dim], hi: &mut [Dim]) -> Var<'g> {
    let shape = x.shape();
    let (mut from, mut to) = (vec![Dim::constant(0); shape.len()], shape.clone());
    let taken = |by: &mut Dim| match by.upper() {
        Some(most) if most < 0 => std::mem::replace(by, Dim::constant(0)),
        _ => Dim::constant(0),
    };
    for (start, by) in from.iter_mut().zip(lo) {
        *start = 0 - taken(by);
    }
    for (end, by) in to.iter_mut().zip(hi) {
        *end = &*end + taken(by);
    }
    if to == shape && from.iter().all(|d| d.is(0)) { x } else { x.slice(from, to, vec![1i64; shape.len()]) }
}

/// Which element of an axis of n stands at each place of the longer axis.
fn sources(n: i64, lo: i64, hi: i64, mode: PadMode) -> Vec<i64> {
    let at = |i: i64| match mode {
        PadMode::Edge => i.clamp(0, n - 1),
        PadMode::Wrap => i.rem_euclid(n),
        // There and back again.
        PadMode::Reflect => (i.rem_euclid((2 * (n - 1)).max(1)) - (n - 1)).abs().abs_diff(n - 1) as i64,
    };
    (-lo..n + hi).map(at).collect()
}

/// x with more elements at the ends of its axes; the counts are an attribute or the second operand.
pub(crate) fn pad<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let x = c.x(0)?;
    let rank = x.rank();
    let pads = match c.ints("paddings")? {
        Some(old) => Some(old.into_iter().map(Dim::constant).collect()),
        None => c.dims_or("pads", 1)?,
    };
    let pads: Vec<Dim> = pads.ok_or_else(|| missing("the counts are"))?;
    let axes = match c.opt(3) {
        Some(_) => resolve_axes(&c.const_ints(3)?, rank)?,
        None => (0..rank).collect(),
    };
    if pads.len() != 2 * axes.len() {
        return Err(Error::new(
            Code::Rank,
            format!("{} counts for the ends of {} axes", pads.len(), axes.len()),
        ));
    }
    let (before, after) = pads.split_at(axes.len());
    let spread = |counts: &[Dim]| -> Vec<Dim> {
        let of = |i| axes.iter().position(|a| *a == i).and_then(|k| counts.get(k).cloned());
        (0..rank).map(|i| of(i).unwrap_or(Dim::constant(0))).collect()
    };
    let (mut lo, mut hi) = (spread(before), spread(after));
    let y = cut(x, &mut lo, &mut hi);
    if lo.iter().chain(&hi).all(|d| d.is(0)) {
        return Ok(vec![y]);
    }
    let mode = match c.text("mode", "constant")? {
        "constant" => {
            let value = match c.opt(2) {
                Some(value) => value.reshape(Shape::new()),
                None => x.scalar(c.float_or("value", 0.0)?),
            };
            return Ok(vec![y.pad(value, lo, hi, vec![0i64; rank])]);
        }
        "reflect" => PadMode::Reflect,
        "edge" => PadMode::Edge,
        "wrap" => PadMode::Wrap,
        other => return Err(c.cannot(format!("the mode {other:?}"))),
    };
    // What goes round or back and forth more than once is read by index.
    let mut y = y;
    for axis in 0..rank {
        let (Some(a), Some(b)) = (lo.get_mut(axis), hi.get_mut(axis)) else { continue };
        let (Some(n), Some(l), Some(h)) = (y.dim(axis as i64).as_const(), a.as_const(), b.as_const()) else {
            continue;
        };
        let once = if mode == PadMode::Reflect { n - 1 } else { n };
        if mode != PadMode::Edge && l.max(h) > once && n > 0 && l.checked_add(h).is_some_and(|m| m < FAR) {
            let from = sources(n, l, h, mode);
            y = y.gather(c.g.constant(Tensor::new(&[from.len()], &from)?), axis as i64);
            (*a, *b) = (Dim::constant(0), Dim::constant(0));
        }
    }
    Ok(vec![if lo.iter().chain(&hi).all(|d| d.is(0)) { y } else { y.pad_mode(lo, hi, mode) }])
}

/// The middle of each axis, or x in the middle of zeros.
pub(crate) fn center_crop_pad<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let (x, sizes) = (c.x(0)?, c.dims(1)?);
    let rank = x.rank();
    let axes = c.ints("axes")?.unwrap_or_else(|| (0..rank as i64).collect());
    let axes = resolve_axes(&axes, rank)?;
    if axes.len() != sizes.len() {
        return Err(Error::new(Code::Rank, format!("{} sizes for {} axes", sizes.len(), axes.len())));
    }
    let (mut lo, mut hi) = (vec![Dim::constant(0); rank], vec![Dim::constant(0); rank]);
    for (axis, size) in axes.iter().zip(&sizes) {
        let n = x.dim(*axis as i64);
        let (before, after) = if at_least(size, &n) {
            let more = size - &n;
            (more.floor_div(2), more.ceil_div(2))
        } else if at_least(&n, size) {
            let less = &n - size;
            (0 - less.floor_div(2), 0 - less.ceil_div(2))
        } else {
            return Err(c.cannot(format!("whether {size} is more than {n} depends on sizes")));
        };
        lo.get_mut(*axis).into_iter().for_each(|d| *d = before.clone());
        hi.get_mut(*axis).into_iter().for_each(|d| *d = after.clone());
    }
    let y = cut(x, &mut lo, &mut hi);
    Ok(vec![if lo.iter().chain(&hi).all(|d| d.is(0)) { y } else { y.pad(0.0, lo, hi, vec![0i64; rank]) }])
}

/// Copies along each axis; of old, along one axis.
pub(crate) fn tile<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let x = c.x(0)?;
    let given = c.dims(1)?;
    let repeats = match c.opt(2) {
        None => given,
        Some(_) => {
            let axis = match c.const_ints(2)?[..] {
                [axis] => resolve_axis(axis, x.rank())?,
                _ => return Err(missing("the axis is")),
            };
            let times = given.into_iter().next().ok_or_else(|| missing("the count is"))?;
            (0..x.rank()).map(|i| if i == axis { times.clone() } else { Dim::constant(1) }).collect()
        }
    };
    Ok(vec![x.tile(repeats)])
}

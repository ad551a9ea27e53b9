//! ONNX ops that give the same elements under another shape, or in another order.

use super::Call;
use crate::dim::Dim;
use crate::error::{Code, Error, Result};
use crate::graph::Var;
use crate::types::{Shape, broadcast, product, resolve_axes, resolve_axis};

/// A 0 in the shape copies the size that x has there, unless `allowzero` says that it is one; a −1 takes what is left.
pub(crate) fn reshape<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let x = c.x(0)?;
    let mut shape =
        c.dims_or("shape", 1)?.ok_or_else(|| Error::new(Code::Operands, "the shape is missing"))?;
    let copies = !c.flag("allowzero", false)?;
    for (i, d) in shape.iter_mut().enumerate().filter(|(_, d)| copies && d.is(0)) {
        let own = x.shape().get(i).cloned();
        *d = own.ok_or_else(|| {
            Error::new(Code::Reshape, "a 0 copies the size of an axis that x has not").axis(i)
        })?;
    }
    let open: Vec<usize> = shape.iter().enumerate().filter(|(_, d)| d.is(-1)).map(|(i, _)| i).collect();
    match open[..] {
        [] => {}
        [at] => {
            let given: Shape = shape.iter().filter(|d| !d.is(-1)).cloned().collect();
            let (all, given) = (x.ty().numel(), product(&given));
            let rest = all.exact_div(&given).ok_or_else(|| {
                Error::new(Code::Reshape, format!("{all} elements cannot be split into parts of {given}"))
                    .axis(at)
            })?;
            shape.get_mut(at).into_iter().for_each(|d| *d = rest.clone());
        }
        _ => return Err(Error::new(Code::Reshape, "only one size may be −1")),
    }
    Ok(vec![to_shape(x, shape)])
}

/// x under a shape; x itself if it has that shape.
fn to_shape(x: Var<'_>, shape: Shape) -> Var<'_> {
    if x.shape() == shape { x } else { x.reshape(shape) }
}

/// Two axes: those before `axis` and those from it on.
pub(crate) fn flatten<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let x = c.x(0)?;
    let shape = x.shape();
    let axis = match c.int_or("axis", 1)? {
        axis if axis == x.rank() as i64 => x.rank(),
        axis => resolve_axis(axis, x.rank())?,
    };
    let (rows, columns) = shape.split_at(axis.min(shape.len()));
    Ok(vec![to_shape(x, vec![product(rows), product(columns)])])
}

/// Without the axes named; without any named, those of size 1 go, a symbol being no such size. A symbol that is named must
/// be 1 when the graph runs. (Not within a branch: it need not be taken, but what it asks of symbols would count.)
pub(crate) fn squeeze<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let x = c.x(0)?;
    let axes = c.ints_or("axes", 1)?.map(|axes| resolve_axes(&axes, x.rank())).transpose()?;
    let mut x = x;
    for axis in axes.iter().flatten() {
        let n = x.dim(*axis as i64);
        if n.is_const() && !n.is(1) || c.g.in_region() && !n.is_const() {
            return Err(Error::new(Code::Dim, format!("axis {axis} of size {n} cannot go")).axis(*axis));
        }
        if !n.is_const() {
            // One element from 1 − n on: that is within the axis for n = 1 alone.
            x = x.narrow(*axis as i64, 1 - n, 1);
        }
    }
    let goes = |(i, d): (usize, &Dim)| axes.as_ref().map_or(d.is(1), |axes| axes.contains(&i));
    let shape = x.shape();
    let left = shape.iter().enumerate().filter(|at| !goes(*at)).map(|(_, d)| d.clone()).collect();
    Ok(vec![to_shape(x, left)])
}

/// With new axes of size 1, named by their place in the result.
pub(crate) fn unsqueeze<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let x = c.x(0)?;
    let axes = c.ints_or("axes", 1)?.ok_or_else(|| Error::new(Code::Operands, "the axes are missing"))?;
    let rank = x.rank() + axes.len();
    let axes = resolve_axes(&axes, rank)?;
    let mut own = x.shape().into_iter();
    let at = |i| if axes.contains(&i) { Some(Dim::constant(1)) } else { own.next() };
    Ok(vec![to_shape(x, (0..rank).filter_map(at).collect())])
}

/// Axes in the order of `perm`, or the other way round.
pub(crate) fn transpose<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let x = c.x(0)?;
    let turned = || (0..x.rank() as i64).rev().collect();
    let axes = c.ints("perm")?.unwrap_or_else(turned);
    Ok(vec![if axes.iter().enumerate().all(|(i, a)| i as i64 == *a) && axes.len() == x.rank() {
        x
    } else {
        x.permute(axes)
    }])
}

/// Broadcast against a shape, which may have axes of size 1 where x has more.
pub(crate) fn expand<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let x = c.x(0)?;
    let shape = broadcast(&x.shape(), &c.dims(1)?)?;
    Ok(vec![if shape == x.shape() { x } else { x.broadcast(shape) }])
}

/// The side of a block, and whether channels come before the places in it.
fn blocks(c: &Call<'_, '_>) -> Result<(i64, bool)> {
    let side = c.int("blocksize")?.filter(|b| *b > 0);
    let side = side.ok_or_else(|| Error::new(Code::Attribute, "blocksize must be a positive number"))?;
    match c.text("mode", "DCR")? {
        "DCR" => Ok((side, false)),
        "CRD" => Ok((side, true)),
        other => Err(c.cannot(format!("the mode {other:?}"))),
    }
}

/// The sizes of an image `[n, c, h, w]`.
fn image(x: Var<'_>) -> Result<[Dim; 4]> {
    let rank = || Error::new(Code::Rank, format!("x has {} axes, but must have 4", x.rank()));
    x.shape().try_into().map_err(|_| rank())
}

/// A size in so many parts.
fn parts(n: &Dim, of: i64) -> Result<Dim> {
    let error = || Error::new(Code::Dim, format!("a size of {n} is no multiple of {of}"));
    n.exact_div(&Dim::constant(of)).ok_or_else(error)
}

/// Channels become the places of blocks.
pub(crate) fn depth_to_space<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let (x, (side, channels_first)) = (c.x(0)?, blocks(c)?);
    let [n, channels, h, w] = image(x)?;
    let (channels, b) = (parts(&channels, side * side)?, Dim::constant(side));
    let (split, order) = match channels_first {
        true => {
            ([n.clone(), channels.clone(), b.clone(), b.clone(), h.clone(), w.clone()], [0, 1, 4, 2, 5, 3])
        }
        false => {
            ([n.clone(), b.clone(), b.clone(), channels.clone(), h.clone(), w.clone()], [0, 3, 4, 1, 5, 2])
        }
    };
    Ok(vec![x.reshape(split).permute(order).reshape([n, channels, h * side, w * side])])
}

/// The places of blocks become channels.
pub(crate) fn space_to_depth<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let (x, (side, channels_first)) = (c.x(0)?, blocks(c)?);
    let [n, channels, h, w] = image(x)?;
    let (h, w, b) = (parts(&h, side)?, parts(&w, side)?, Dim::constant(side));
    let split = [n.clone(), channels.clone(), h.clone(), b.clone(), w.clone(), b];
    let order = if channels_first { [0, 1, 3, 5, 2, 4] } else { [0, 3, 5, 1, 2, 4] };
    Ok(vec![x.reshape(split).permute(order).reshape([n, channels * side * side, h, w])])
}

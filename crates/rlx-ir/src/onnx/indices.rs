//! ONNX ops that read and write by index, and those whose results are as long as data say.

use super::Call;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::graph::{Known, Var};
use crate::ops::scatter::ScatterMode;
use crate::tensor::Tensor;
use crate::types::{Shape, resolve_axis};
use std::collections::BTreeMap;

/// How updates are joined with what is there.
pub(crate) fn mode(c: &Call<'_, '_>) -> Result<ScatterMode> {
    Ok(match c.text("reduction", "none")? {
        "none" => ScatterMode::Set,
        "add" => ScatterMode::Add,
        "mul" => ScatterMode::Mul,
        "max" => ScatterMode::Max,
        "min" => ScatterMode::Min,
        other => return Err(c.cannot(format!("the reduction {other:?}"))),
    })
}

pub(crate) fn scatter_elements<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let [x, indices, updates] = c.xs()?;
    Ok(vec![x.scatter_elements(indices, updates, c.int_or("axis", 0)?, mode(c)?)])
}

pub(crate) fn scatter_nd<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let [x, indices, updates] = c.xs()?;
    Ok(vec![x.scatter_nd(indices, updates, mode(c)?)])
}

/// The index along an axis of a shape of that rank, with all other axes of size 1.
fn along<'g>(c: &Call<'g, '_>, axis: usize, rank: usize, n: Dim) -> Var<'g> {
    let shape: Shape = (0..rank).map(|i| if i == axis { n.clone() } else { Dim::constant(1) }).collect();
    c.g.iota(shape, axis as i64, DType::I64)
}

/// A value per entry of an axis, with all other axes of size 1.
fn per_entry<'g>(x: Var<'g>, axis: usize, rank: usize) -> Var<'g> {
    let n = x.ty().numel();
    x.reshape((0..rank).map(|i| if i == axis { n.clone() } else { Dim::constant(1) }).collect::<Shape>())
}

/// Entries of a cache along an axis written from a place on that is another for each entry of the batch.
pub(crate) fn tensor_scatter<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let [cache, update] = c.xs()?;
    let rank = cache.rank();
    let axis = resolve_axis(c.int_or("axis", -2)?, rank)?;
    let mut places = along(c, axis, rank, update.dim(axis as i64));
    if let Some(first) = c.opt(2) {
        places = places + per_entry(first.to(DType::I64), 0, rank);
    }
    match c.text("mode", "linear")? {
        "linear" => {}
        "circular" => places = places % places.size_scalar(&cache.dim(axis as i64)),
        other => return Err(c.cannot(format!("the mode {other:?}"))),
    }
    let places = places.broadcast(update.shape());
    Ok(vec![cache.scatter_elements(places, update, axis as i64, ScatterMode::Set)])
}

/// The first entries of each sequence the other way round, as many as it is long.
pub(crate) fn reverse_sequence<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let [x, lengths] = c.xs()?;
    let rank = x.rank();
    let time = resolve_axis(c.int_or("time_axis", 0)?, rank)?;
    let batch = resolve_axis(c.int_or("batch_axis", 1)?, rank)?;
    let (at, n) = (along(c, time, rank, x.dim(time as i64)), per_entry(lengths.to(DType::I64), batch, rank));
    let from = at.less(n).select(n - 1.0 - at, at);
    Ok(vec![x.gather_elements(from.broadcast(x.shape()), time as i64)])
}

/// Integers as data.
fn data<'g>(c: &Call<'g, '_>, shape: &[usize], v: &[i64]) -> Result<Var<'g>> {
    Ok(c.g.constant(Tensor::new(shape, v)?))
}

/// Entries along an axis, or elements, where a condition holds. How many they are must be known.
pub(crate) fn compress<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let x = c.x(0)?;
    let held = c.const_ints(1)?;
    let places: Vec<i64> = (0..).zip(&held).filter(|(_, t)| **t != 0).map(|(i, _)| i).collect();
    let places = data(c, &[places.len()], &places)?;
    Ok(vec![match c.int("axis")? {
        Some(axis) => x.gather(places, axis),
        None => x.reshape([x.ty().numel()]).gather(places, 0),
    }])
}

/// Where elements are not 0, an index for each axis. Which those are must be known.
pub(crate) fn non_zero<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let known = c.known(0)?;
    let elements = known.floats().ok_or_else(|| c.cannot("elements that depend on sizes"))?;
    let hits: Vec<usize> = elements.iter().enumerate().filter(|(_, x)| **x != 0.0).map(|(i, _)| i).collect();
    let mut inner: usize = known.shape().iter().product();
    let mut out = Vec::new();
    for n in known.shape() {
        inner /= (*n).max(1);
        out.extend(hits.iter().map(|i| (i / inner.max(1) % (*n).max(1)) as i64));
    }
    Ok(vec![data(c, &[known.shape().len(), hits.len()], &out)?])
}

/// Numbers in the order of elements: integers as they are, of floats the bits, with all NaN last and both zeros one.
fn keys(known: &Known) -> Option<Vec<i64>> {
    if let Some(dims) = known.dims() {
        return dims.iter().map(Dim::as_const).collect();
    }
    let key = |x: f64| {
        let bits = if x.is_nan() { f64::NAN.to_bits() } else { (x + 0.0).to_bits() } as i64;
        if bits < 0 { bits ^ i64::MAX } else { bits }
    };
    Some(known.floats()?.into_iter().map(key).collect())
}

/// Entries along an axis, or elements, each once; where each stands first, which of them each entry is, and how often each
/// occurs. The elements must be known.
pub(crate) fn unique<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let (x, known) = (c.x(0)?, c.known(0)?);
    let elements = keys(&known).ok_or_else(|| c.cannot("elements that depend on sizes"))?;
    let (x, axis, shape) = match c.int("axis")? {
        Some(axis) => (x, resolve_axis(axis, x.rank())?, known.shape().to_vec()),
        None => (x.reshape([x.ty().numel()]), 0, vec![elements.len()]),
    };
    let n = shape.get(axis).copied().unwrap_or(0);
    let inner: usize = shape.iter().skip(axis + 1).product();
    let entry = |k: usize| -> Vec<i64> {
        let own = elements.iter().enumerate().filter(|(i, _)| i / inner.max(1) % n.max(1) == k);
        own.map(|(_, x)| *x).collect()
    };
    let mut groups: BTreeMap<Vec<i64>, Vec<usize>> = BTreeMap::new();
    for k in 0..n {
        groups.entry(entry(k)).or_default().push(k);
    }
    let mut runs: Vec<Vec<usize>> = groups.into_values().collect();
    if !c.flag("sorted", true)? {
        runs.sort_by_key(|run| run.first().copied());
    }
    let firsts: Vec<i64> = runs.iter().filter_map(|run| run.first()).map(|i| *i as i64).collect();
    let counts: Vec<i64> = runs.iter().map(|run| run.len() as i64).collect();
    let mut inverse = vec![0i64; n];
    for (k, i) in runs.iter().enumerate().flat_map(|(k, run)| run.iter().map(move |i| (k, *i))) {
        inverse.get_mut(i).into_iter().for_each(|slot| *slot = k as i64);
    }
    let indices = data(c, &[firsts.len()], &firsts)?;
    let y = x.gather(indices, axis as i64);
    Ok(vec![y, indices, data(c, &[n], &inverse)?, data(c, &[counts.len()], &counts)?])
}

/// Two given values, by whether a place along a new axis is that of the index.
pub(crate) fn one_hot<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let [indices, _, values] = c.xs()?;
    let depth =
        c.dims(1)?.into_iter().next().ok_or_else(|| Error::new(Code::Operands, "the depth is missing"))?;
    let hot = indices.to(DType::I64).one_hot(depth, c.int_or("axis", -1)?, DType::Bool);
    let [off, on] = [0, 1].map(|k| values.narrow(0, k, 1).reshape(Shape::new()));
    Ok(vec![hot.select(on, off)])
}

//! Reductions over axes.

use crate::prelude::*;

fn reduced(c: &Infer<'_>, axes: &[i64], keep: bool) -> Result<Shape> {
    let (x, axes) = (c.ty(0)?, c.axes(0, axes)?);
    let keep_axis = |(i, d): (usize, &Dim)| match axes.contains(&i) {
        true => keep.then_some(Dim::constant(1)),
        false => Some(d.clone()),
    };
    Ok(x.shape.iter().enumerate().filter_map(keep_axis).collect())
}

/// Folds the elements along the axes, in row-major order of those axes.
fn fold(e: &Eval<'_>, axes: &[i64], keep: bool, mut f: impl FnMut(&mut dyn Iterator<Item = Num>) -> Num) -> Result<Arr> {
    let x = e.x(0)?;
    let axes = resolve_axes(axes, x.rank())?;
    let inner: Vec<usize> = x.shape().iter().enumerate().filter(|(i, _)| axes.contains(i)).map(|(_, d)| *d).collect();
    e.make(0, |ix| {
        let mut outer = ix.iter().enumerate().filter(|(i, _)| !keep || !axes.contains(i)).map(|(_, v)| *v);
        let mut from: Vec<usize> = (0..x.rank()).map(|i| if axes.contains(&i) { 0 } else { outer.next().unwrap_or(0) }).collect();
        let mut indices = crate::oracle::Indices::new(&inner);
        f(&mut std::iter::from_fn(|| {
            let k = indices.next()?;
            let mut k = k.iter();
            for axis in 0..x.rank() {
                if axes.contains(&axis) && let (Some(slot), Some(v)) = (from.get_mut(axis), k.next()) {
                    *slot = *v;
                }
            }
            Some(x.at(&from))
        }))
    })
}

/// A reduced value with its axes back as axes of size 1, so that it broadcasts against x.
pub(crate) fn restore<'g>(y: Var<'g>, x: Var<'g>, axes: &[i64]) -> Result<Var<'g>> {
    let axes = resolve_axes(axes, x.rank())?;
    let shape: Shape =
        x.shape().iter().enumerate().map(|(i, d)| if axes.contains(&i) { Dim::constant(1) } else { d.clone() }).collect();
    Ok(if y.shape() == shape { y } else { y.reshape(shape) })
}

ops! {
    /// The sum over the axes; 0 over nothing. `keep` leaves the axes with size 1. No axes: x itself.
    sum: Sum(x: Num) { axes: Vec<i64>, keep: bool = false } -> y;
    constraints = ["each axis exists and is named once"];
    infer = |c, a| Ok(vec![c.ty(0)?.with_shape(reduced(c, &a.axes, a.keep)?)]);
    eval = |e, a| Ok(vec![fold(e, &a.axes, a.keep, |xs| {
        xs.reduce(|a, b| Scalar::Add.eval(DType::I64, &[a, b])).unwrap_or(Num::I(0))
    })?]);
    vjp = |c, a| Ok([restore(c.dy(0), c.x(0), &a.axes)?.broadcast_like(c.x(0))].into());
    vmap = |c, a| Ok(vec![c.x(0).sum(c.shift_all(0, &a.axes)?, a.keep)]);
    onnx = ["ReduceSum"];
    samples = |s| {
        s.case("last", Sum { axes: vec![-1], keep: false }, [f([3, 4])]);
        s.case("keep", Sum { axes: vec![0, 2], keep: true }, [f([2, 3, 4])]);
        s.case("all", Sum { axes: vec![0, 1], keep: false }, [f([3, 4])]);
        s.case("none", Sum { axes: vec![], keep: false }, [f([3])]);
        s.case("empty", Sum { axes: vec![0], keep: false }, [f([0, 3])]);
    };

    /// The mean over the axes; NaN over nothing.
    mean: Mean(x: Float) { axes: Vec<i64>, keep: bool = false } -> y;
    constraints = ["each axis exists and is named once"];
    infer = |c, a| Ok(vec![c.ty(0)?.with_shape(reduced(c, &a.axes, a.keep)?)]);
    body = |c, a| {
        let x = c.x(0);
        let shape = x.shape();
        let n = product(&resolve_axes(&a.axes, x.rank())?.iter().filter_map(|i| shape.get(*i).cloned()).collect::<Vec<_>>());
        Ok(vec![x.sum(a.axes.clone(), a.keep) / x.size_scalar(&n)])
    };
    vmap = |c, a| Ok(vec![c.x(0).mean(c.shift_all(0, &a.axes)?, a.keep)]);
    onnx = ["ReduceMean"];
    samples = |s| {
        s.case("last", Mean { axes: vec![-1], keep: false }, [f([3, 4])]);
        s.case("keep", Mean { axes: vec![0, 2], keep: true }, [f([2, 3, 4])]);
    };
}

//! Reductions over axes.

use crate::prelude::*;

fn reduced(c: &Infer<'_>, axes: &[i64], keep: bool) -> Result<Shape> {
    let (x, axes) = (c.ty(0)?, c.axes(1, 0, axes)?);
    let keep_axis = |(i, d): (usize, &Dim)| match axes.contains(&i) {
        true => keep.then_some(Dim::constant(1)),
        false => Some(d.clone()),
    };
    Ok(x.shape.iter().enumerate().filter_map(keep_axis).collect())
}

/// Folds the elements along the axes, in row-major order of those axes.
fn fold(
    e: &Eval<'_>,
    axes: &[i64],
    keep: bool,
    mut f: impl FnMut(&mut dyn Iterator<Item = Num>) -> Num,
) -> Result<Arr> {
    let x = e.x(0)?;
    let axes = resolve_axes(axes, x.rank())?;
    let own = |(i, d): (usize, &usize)| axes.contains(&i).then_some(*d);
    let inner: Vec<usize> = x.shape().iter().enumerate().filter_map(own).collect();
    e.make(0, |ix| {
        let mut outer = ix.iter().enumerate().filter(|(i, _)| !keep || !axes.contains(i)).map(|(_, v)| *v);
        let start = |i| if axes.contains(&i) { 0 } else { outer.next().unwrap_or(0) };
        let mut from: Vec<usize> = (0..x.rank()).map(start).collect();
        let mut indices = crate::oracle::Indices::new(&inner);
        f(&mut std::iter::from_fn(|| {
            let k = indices.next()?;
            let mut k = k.iter();
            for axis in 0..x.rank() {
                if axes.contains(&axis)
                    && let (Some(slot), Some(v)) = (from.get_mut(axis), k.next())
                {
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
    let kept = |(i, d): (usize, &Dim)| if axes.contains(&i) { Dim::constant(1) } else { d.clone() };
    let shape: Shape = x.shape().iter().enumerate().map(kept).collect();
    Ok(if y.shape() == shape { y } else { y.reshape(shape) })
}

/// The number of elements along the axes, as a number of x's dtype.
pub(crate) fn count<'g>(x: Var<'g>, axes: &[i64]) -> Result<Var<'g>> {
    let (shape, axes) = (x.shape(), resolve_axes(axes, x.rank())?);
    let sizes: Shape = axes.iter().filter_map(|i| shape.get(*i).cloned()).collect();
    Ok(x.size_scalar(&product(&sizes)))
}

/// The gradient of a reduction that picks elements: spread evenly over the elements that equal the result.
fn to_equal<'g>(c: &VjpCx<'g>, axes: &[i64]) -> Result<Var<'g>> {
    let x = c.x(0);
    let dy = restore(c.dy(0), x, axes)?.wide();
    let hit = x.equal(restore(c.y(0), x, axes)?).cast(dy.dtype());
    Ok((dy / hit.sum(axes.to_vec(), true) * hit).to(x.dtype()))
}

/// The position along an axis of the element that beats those before it; NaN beats every number.
fn position(e: &Eval<'_>, axis: i64, keep: bool, last: bool, beats: Scalar) -> Result<Arr> {
    let dtype = e.x(0)?.dtype();
    fold(e, &[axis], keep, |xs| {
        let mut best: Option<(usize, Num)> = None;
        for (i, v) in xs.enumerate() {
            let wins = |b: Num| match (v.f().is_nan(), b.f().is_nan()) {
                (true, false) => true,
                (false, true) => false,
                (true, true) => last,
                _ => beats.eval(dtype, &[v, b]).truth() || (last && v == b),
            };
            if best.is_none_or(|(_, b)| wins(b)) {
                best = Some((i, v));
            }
        }
        Num::I(best.map_or(0, |(i, _)| i as i128))
    })
}

fn truth(t: bool) -> Num {
    Num::I(t as i128)
}

/// The shape rule of a reduction over axes.
pub(crate) fn over_axes(c: &Infer<'_>, axes: &[i64], keep: bool) -> Result<Vec<Type>> {
    Ok(vec![c.ty(0)?.with_shape(reduced(c, axes, keep)?)])
}

/// A reduction as ONNX writes it: the axes are an attribute or the second operand; none are all, unless the node says that
/// none are none.
pub(crate) fn onnx_reduce<'g>(
    c: &Call<'g, '_>,
    reduce: impl FnOnce(Var<'g>, Vec<i64>, bool) -> Var<'g>,
) -> Result<Vec<Var<'g>>> {
    let x = c.x(0)?;
    let axes = match c.ints_or("axes", 1)? {
        Some(axes) if !axes.is_empty() => axes,
        _ if c.flag("noop_with_empty_axes", false)? => Vec::new(),
        _ => (0..x.rank() as i64).collect(),
    };
    Ok(vec![reduce(x, axes, c.flag("keepdims", true)?)])
}

/// Axis, `keep` and `last` of a position, as ONNX gives them.
fn onnx_position(c: &Call<'_, '_>) -> Result<(i64, bool, bool)> {
    Ok((c.int_or("axis", 0)?, c.flag("keepdims", true)?, c.flag("select_last_index", false)?))
}

/// The shape rule of a position along an axis.
fn positions(c: &Infer<'_>, axis: i64, keep: bool) -> Result<Vec<Type>> {
    Ok(vec![Type::new(DType::I64, reduced(c, &[axis], keep)?)])
}

ops! {
    /// The sum over the axes; 0 over nothing. `keep` leaves the axes with size 1. No axes: x itself.
    sum: Sum(x: Num) { axes: Vec<i64>, keep: bool = false } -> y;
    constraints = ["each axis exists and is named once"];
    infer = |c, a| over_axes(c, &a.axes, a.keep);
    step = |c, a| Ok(Step::Fold(Fold::Sum, resolve_axes(&a.axes, c.ty(0)?.rank())?));
    eval = |e, a| Ok(vec![fold(e, &a.axes, a.keep, |xs| {
        xs.reduce(|a, b| Scalar::Add.eval(DType::I64, &[a, b])).unwrap_or(Num::I(0))
    })?]);
    vjp = |c, a| Ok([restore(c.dy(0), c.x(0), &a.axes)?.broadcast_like(c.x(0))].into());
    vmap = |c, a| Ok(vec![c.x(0).sum(c.shift_all(0, &a.axes)?, a.keep)]);
    onnx = [rule("ReduceSum", 1, |c| onnx_reduce(c, |x, axes, keep| x.sum(axes, keep)))];
    samples = |s| {
        s.case("last", Sum { axes: vec![-1], keep: false }, [f([3, 4])]);
        s.case("keep", Sum { axes: vec![0, 2], keep: true }, [f([2, 3, 4])]);
        s.case("all", Sum { axes: vec![0, 1], keep: false }, [f([3, 4])]);
        s.case("none", Sum { axes: vec![], keep: false }, [f([3])]);
        s.case("empty", Sum { axes: vec![0], keep: false }, [f([0, 3])]);
        s.rough("int", Sum { axes: vec![1], keep: false }, [int([3, 4], -9, 9)]);
    };

    /// The mean over the axes; NaN over nothing.
    mean: Mean(x: Float) { axes: Vec<i64>, keep: bool = false } -> y;
    constraints = ["each axis exists and is named once"];
    infer = |c, a| over_axes(c, &a.axes, a.keep);
    body = |c, a| {
        let x = c.x(0).wide();
        Ok(vec![(x.sum(a.axes.clone(), a.keep) / count(x, &a.axes)?).to(c.x(0).dtype())])
    };
    vjp = |c, a| {
        let dy = c.dy(0).wide() / count(c.x(0).wide(), &a.axes)?;
        Ok([restore(dy.to(c.x(0).dtype()), c.x(0), &a.axes)?.broadcast_like(c.x(0))].into())
    };
    vmap = |c, a| Ok(vec![c.x(0).mean(c.shift_all(0, &a.axes)?, a.keep)]);
    onnx = [rule("ReduceMean", 1, |c| onnx_reduce(c, |x, axes, keep| {
        if x.dtype().is_float() {
            return x.mean(axes, keep);
        }
        // Integers are cut toward zero, as a division of them is.
        let wide = x.to(DType::I64);
        match count(wide, &axes) {
            Ok(n) => (wide.sum(axes, keep) / n).to(x.dtype()),
            Err(e) => x.graph().fail(e),
        }
    }))];
    samples = |s| {
        s.case("last", Mean { axes: vec![-1], keep: false }, [f([3, 4])]);
        s.case("keep", Mean { axes: vec![0, 2], keep: true }, [f([2, 3, 4])]);
        s.case("none", Mean { axes: vec![], keep: false }, [f([3])]);
        s.rough("empty", Mean { axes: vec![0], keep: false }, [f([0, 3])]);
    };

    /// The largest element over the axes; NaN if there is one; −∞, or the smallest integer, over nothing. The
    /// gradient is shared evenly by all elements that are equal to the result.
    max: Max(x: Num) { axes: Vec<i64>, keep: bool = false } -> y;
    constraints = ["each axis exists and is named once"];
    infer = |c, a| over_axes(c, &a.axes, a.keep);
    step = |c, a| Ok(Step::Fold(Fold::Max, resolve_axes(&a.axes, c.ty(0)?.rank())?));
    eval = |e, a| {
        let dtype = e.x(0)?.dtype();
        let nothing = dtype.int_range().map_or(Num::F(f64::NEG_INFINITY), |r| Num::I(r.0));
        Ok(vec![fold(e, &a.axes, a.keep, |xs| {
            xs.fold(nothing, |a, b| Scalar::Max.eval(dtype, &[a, b]))
        })?])
    };
    vjp = |c, a| Ok([to_equal(c, &a.axes)?].into());
    vmap = |c, a| Ok(vec![c.x(0).max(c.shift_all(0, &a.axes)?, a.keep)]);
    onnx = [rule("ReduceMax", 1, |c| onnx_reduce(c, |x, axes, keep| match x.dtype() {
        DType::Bool => x.any(axes, keep),
        _ => x.max(axes, keep),
    }))];
    samples = |s| {
        s.case("last", Max { axes: vec![-1], keep: false }, [f([3, 4]).distinct(-2.0, 2.0)]);
        s.case("keep", Max { axes: vec![0, 2], keep: true }, [f([2, 3, 2]).distinct(-2.0, 2.0)]);
        s.case("none", Max { axes: vec![], keep: false }, [f([3])]);
        s.rough("ties", Max { axes: vec![0], keep: false }, [f([3, 2]).values(&[1.0, 2.0, 1.0])]);
        s.rough("nan", Max { axes: vec![1], keep: false }, [f([2, 2]).values(&[1.0, f64::NAN, 0.0])]);
        s.rough("empty", Max { axes: vec![0], keep: false }, [f([0, 3])]);
        s.rough("int", Max { axes: vec![1], keep: false }, [int([3, 4], -9, 9)]);
    };

    /// The smallest element over the axes; NaN if there is one; ∞, or the largest integer, over nothing. The
    /// gradient is shared evenly by all elements that are equal to the result.
    min: Min(x: Num) { axes: Vec<i64>, keep: bool = false } -> y;
    constraints = ["each axis exists and is named once"];
    infer = |c, a| over_axes(c, &a.axes, a.keep);
    step = |c, a| Ok(Step::Fold(Fold::Min, resolve_axes(&a.axes, c.ty(0)?.rank())?));
    eval = |e, a| {
        let dtype = e.x(0)?.dtype();
        let nothing = dtype.int_range().map_or(Num::F(f64::INFINITY), |r| Num::I(r.1));
        Ok(vec![fold(e, &a.axes, a.keep, |xs| {
            xs.fold(nothing, |a, b| Scalar::Min.eval(dtype, &[a, b]))
        })?])
    };
    vjp = |c, a| Ok([to_equal(c, &a.axes)?].into());
    vmap = |c, a| Ok(vec![c.x(0).min(c.shift_all(0, &a.axes)?, a.keep)]);
    onnx = [rule("ReduceMin", 1, |c| onnx_reduce(c, |x, axes, keep| match x.dtype() {
        DType::Bool => x.all(axes, keep),
        _ => x.min(axes, keep),
    }))];
    samples = |s| {
        s.case("last", Min { axes: vec![-1], keep: false }, [f([3, 4]).distinct(-2.0, 2.0)]);
        s.case("keep", Min { axes: vec![0, 2], keep: true }, [f([2, 3, 2]).distinct(-2.0, 2.0)]);
        s.case("none", Min { axes: vec![], keep: false }, [f([3])]);
        s.rough("ties", Min { axes: vec![0], keep: false }, [f([3, 2]).values(&[1.0, 2.0, 1.0])]);
        s.rough("nan", Min { axes: vec![1], keep: false }, [f([2, 2]).values(&[1.0, f64::NAN, 0.0])]);
        s.rough("empty", Min { axes: vec![0], keep: false }, [f([0, 3])]);
        s.rough("int", Min { axes: vec![1], keep: false }, [int([3, 4], -9, 9)]);
    };

    /// The product over the axes; 1 over nothing. The gradient is exact also where elements are 0.
    prod: Prod(x: Num) { axes: Vec<i64>, keep: bool = false } -> y;
    constraints = ["each axis exists and is named once"];
    infer = |c, a| over_axes(c, &a.axes, a.keep);
    step = |c, a| Ok(Step::Fold(Fold::Prod, resolve_axes(&a.axes, c.ty(0)?.rank())?));
    eval = |e, a| {
        let dtype = e.x(0)?.dtype();
        Ok(vec![fold(e, &a.axes, a.keep, |xs| {
            xs.reduce(|a, b| Scalar::Mul.eval(dtype, &[a, b])).unwrap_or(Num::I(1))
        })?])
    };
    vjp = |c, a| {
        // The product of all others: of those before, times those after, with the axes merged into one.
        let x = c.x(0);
        let axes = resolve_axes(&a.axes, x.rank())?;
        let outer = (0..x.rank()).filter(|i| !axes.contains(i));
        let order: Vec<usize> = outer.chain(axes.iter().copied()).collect();
        let ints = |axes: &[usize]| axes.iter().map(|i| *i as i64).collect::<Vec<_>>();
        let turned = x.permute(ints(&order));
        let shape = turned.shape();
        let (outer, inner) = shape.split_at(x.rank() - axes.len());
        let flat = turned.reshape([product(outer), product(inner)]);
        let others = flat.cumprod(1, true, false) * flat.cumprod(1, true, true);
        let others = others.reshape(shape.clone()).permute(ints(&inverse(&order)));
        Ok([restore(c.dy(0), x, &a.axes)? * others].into())
    };
    vmap = |c, a| Ok(vec![c.x(0).prod(c.shift_all(0, &a.axes)?, a.keep)]);
    onnx = [rule("ReduceProd", 1, |c| onnx_reduce(c, |x, axes, keep| x.prod(axes, keep)))];
    samples = |s| {
        s.case("last", Prod { axes: vec![-1], keep: false }, [f([2, 3])]);
        s.case("keep", Prod { axes: vec![2, 0], keep: true }, [f([2, 2, 2])]);
        s.case("zeros", Prod { axes: vec![1], keep: false }, [f([2, 3]).values(&[0.0, 2.0, 0.5, 0.0, 3.0])]);
        s.case("none", Prod { axes: vec![], keep: false }, [f([3])]);
        s.case("empty", Prod { axes: vec![0], keep: false }, [f([0, 3])]);
        s.rough("int", Prod { axes: vec![1], keep: false }, [int([3, 4], -9, 9)]);
    };

    /// Whether any element over the axes holds; false over nothing.
    any: Any(x: Bool) { axes: Vec<i64>, keep: bool = false } -> y;
    constraints = ["each axis exists and is named once"];
    infer = |c, a| over_axes(c, &a.axes, a.keep);
    step = |c, a| Ok(Step::Fold(Fold::Any, resolve_axes(&a.axes, c.ty(0)?.rank())?));
    eval = |e, a| Ok(vec![fold(e, &a.axes, a.keep, |mut xs| truth(Iterator::any(&mut xs, Num::truth)))?]);
    vmap = |c, a| Ok(vec![c.x(0).any(c.shift_all(0, &a.axes)?, a.keep)]);
    samples = |s| {
        s.rough("last", Any { axes: vec![-1], keep: false }, [boolean([5, 2])]);
        s.rough("keep", Any { axes: vec![0, 2], keep: true }, [boolean([2, 3, 1])]);
        s.rough("empty", Any { axes: vec![0], keep: false }, [boolean([0, 2])]);
    };

    /// Whether all elements over the axes hold; true over nothing.
    all: All(x: Bool) { axes: Vec<i64>, keep: bool = false } -> y;
    constraints = ["each axis exists and is named once"];
    infer = |c, a| over_axes(c, &a.axes, a.keep);
    step = |c, a| Ok(Step::Fold(Fold::All, resolve_axes(&a.axes, c.ty(0)?.rank())?));
    eval = |e, a| Ok(vec![fold(e, &a.axes, a.keep, |mut xs| truth(Iterator::all(&mut xs, Num::truth)))?]);
    vmap = |c, a| Ok(vec![c.x(0).all(c.shift_all(0, &a.axes)?, a.keep)]);
    samples = |s| {
        s.rough("last", All { axes: vec![-1], keep: false }, [boolean([5, 2])]);
        s.rough("keep", All { axes: vec![0, 2], keep: true }, [boolean([2, 3, 1])]);
        s.rough("empty", All { axes: vec![0], keep: false }, [boolean([0, 2])]);
    };

    /// The position of the largest element along an axis; of several equal ones the first, or the last with
    /// `last`. NaN counts as the largest. 0 along an empty axis.
    argmax: Argmax(x: Num) { axis: i64, keep: bool = false, last: bool = false } -> y;
    constraints = ["the axis exists"];
    infer = |c, a| positions(c, a.axis, a.keep);
    step = |c, a| Ok(Step::ArgFold { axis: resolve_axis(a.axis, c.ty(0)?.rank())?, min: false, last: a.last });
    eval = |e, a| Ok(vec![position(e, a.axis, a.keep, a.last, Scalar::Gt)?]);
    vmap = |c, a| Ok(vec![c.x(0).argmax(c.shift(0, a.axis)?, a.keep, a.last)]);
    onnx = [
        rule("ArgMax", 1, |c| {
            let (axis, keep, last) = onnx_position(c)?;
            Ok(vec![c.x(0)?.argmax(axis, keep, last)])
        }),
        // 1 at the first largest element. Of old, the axes from `axis` on count as one.
        rule("Hardmax", 1, |c| {
            let x = c.x(0)?;
            let rank = x.rank();
            let axis = resolve_axis(c.int_or("axis", if c.opset < 13 { 1 } else { -1 })?, rank)?;
            let (y, axis) = if c.opset < 13 {
                let shape = x.shape();
                let (rows, columns) = shape.split_at(axis.min(rank));
                (x.reshape([product(rows), product(columns)]), 1)
            } else {
                (x, axis as i64)
            };
            let hot = y.argmax(axis, false, false).one_hot(y.dim(axis), axis, x.dtype());
            Ok(vec![hot.reshape(x.shape())])
        }),
    ];
    samples = |s| {
        s.rough("last_axis", Argmax { axis: -1, keep: false, last: false }, [f([3, 4])]);
        s.rough("keep", Argmax { axis: 0, keep: true, last: false }, [f([3, 2])]);
        s.rough("first_of_ties", Argmax { axis: 0, keep: false, last: false }, [int([6], 0, 1)]);
        s.rough("last_of_ties", Argmax { axis: 0, keep: false, last: true }, [int([6], 0, 1)]);
        s.rough("nan", Argmax { axis: 0, keep: false, last: false }, [f([4]).values(&[1.0, f64::NAN])]);
        s.rough("empty", Argmax { axis: 1, keep: false, last: false }, [f([2, 0])]);
    };

    /// The position of the smallest element along an axis; of several equal ones the first, or the last with
    /// `last`. NaN counts as the smallest. 0 along an empty axis.
    argmin: Argmin(x: Num) { axis: i64, keep: bool = false, last: bool = false } -> y;
    constraints = ["the axis exists"];
    infer = |c, a| positions(c, a.axis, a.keep);
    step = |c, a| Ok(Step::ArgFold { axis: resolve_axis(a.axis, c.ty(0)?.rank())?, min: true, last: a.last });
    eval = |e, a| Ok(vec![position(e, a.axis, a.keep, a.last, Scalar::Lt)?]);
    vmap = |c, a| Ok(vec![c.x(0).argmin(c.shift(0, a.axis)?, a.keep, a.last)]);
    onnx = [rule("ArgMin", 1, |c| {
        let (axis, keep, last) = onnx_position(c)?;
        Ok(vec![c.x(0)?.argmin(axis, keep, last)])
    })];
    samples = |s| {
        s.rough("last_axis", Argmin { axis: -1, keep: false, last: false }, [f([3, 4])]);
        s.rough("keep", Argmin { axis: 0, keep: true, last: false }, [f([3, 2])]);
        s.rough("first_of_ties", Argmin { axis: 0, keep: false, last: false }, [int([6], 0, 1)]);
        s.rough("last_of_ties", Argmin { axis: 0, keep: false, last: true }, [int([6], 0, 1)]);
        s.rough("nan", Argmin { axis: 0, keep: false, last: false }, [f([4]).values(&[1.0, f64::NAN])]);
        s.rough("empty", Argmin { axis: 1, keep: false, last: false }, [f([2, 0])]);
    };
}

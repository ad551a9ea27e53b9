//! Ops that move elements without changing them: reshape, permute, broadcast, slice, pad, flip.

use crate::onnx;
use crate::prelude::*;
use crate::transform::vmap_loop;

/// The number at a position of a list; `d` beyond its end.
fn at<T: Copy>(v: &[T], i: usize, d: T) -> T {
    v.get(i).copied().unwrap_or(d)
}

/// The size at a position of a list; invalid beyond its end.
fn size_at(v: &[Dim], i: usize) -> Dim {
    v.get(i).cloned().unwrap_or_else(Dim::invalid)
}

ops! {
    /// The same elements in row-major order under another shape.
    reshape: Reshape(x: Any) { shape: Dims } -> y;
    constraints = ["the new shape has as many elements as the old one"];
    infer = |c, a| {
        let x = c.ty(0)?;
        if x.numel().unify(&product(&a.shape)).is_none() {
            let text = format!("{} elements cannot become {}", x.numel(), product(&a.shape));
            return Err(c.fail(Code::Reshape, 1, text).operand("x").sizes(&x.numel(), &product(&a.shape)));
        }
        Ok(vec![x.with_shape(&a.shape[..])])
    };
    step = |_, _| Ok(Step::Reshape);
    eval = |e, _| Ok(vec![e.x(0)?.reshaped(e.out(0)?.1)?]);
    vjp = |c, _| Ok([c.dy(0).reshape(c.x(0).shape())].into());
    vmap = |c, a| {
        let shape: Shape = std::iter::once(c.size.clone()).chain(a.shape.iter().cloned()).collect();
        Ok(vec![c.bx(0).reshape(shape)])
    };
    onnx = [
        rule("Reshape", 1, onnx::views::reshape),
        rule("Flatten", 1, onnx::views::flatten),
        rule("Squeeze", 1, onnx::views::squeeze),
        rule("Unsqueeze", 1, onnx::views::unsqueeze),
        rule("Identity", 1, |c| Ok(vec![c.x(0)?])),
    ];
    samples = |s| {
        s.case("merge", Reshape { shape: [6, 4].into() }, [f([2, 3, 4])]);
        s.case("split", Reshape { shape: [2, 1, 6].into() }, [f([12])]);
        s.case("scalar", Reshape { shape: Dims(vec![]) }, [f([1, 1])]);
        s.case("empty", Reshape { shape: [3, 0].into() }, [f([0, 5])]);
    };

    /// Axis i of the result is axis `axes[i]` of x.
    permute: Permute(x: Any) { axes: Vec<i64> } -> y;
    constraints = ["axes names every axis of x once"];
    infer = |c, a| {
        let (x, axes) = (c.ty(0)?, c.axes(1, 0, &a.axes)?);
        if axes.len() != x.rank() {
            return Err(c.fail(Code::Axis, 1, format!("{} axes are named, x has {}", axes.len(), x.rank())));
        }
        Ok(vec![x.with_shape(axes.iter().filter_map(|i| x.shape.get(*i).cloned()).collect::<Shape>())])
    };
    step = |c, a| Ok(Step::Permute(resolve_axes(&a.axes, c.ty(0)?.rank())?));
    eval = |e, a| {
        let x = e.x(0)?;
        let axes = resolve_axes(&a.axes, x.rank())?;
        let mut from = vec![0; x.rank()];
        Ok(vec![e.make(0, |ix| {
            for (to, axis) in axes.iter().enumerate() {
                if let Some(slot) = from.get_mut(*axis) {
                    *slot = at(ix, to, 0);
                }
            }
            x.at(&from)
        })?])
    };
    vjp = |c, a| {
        let axes = resolve_axes(&a.axes, c.x(0).rank())?;
        let mut inverse = vec![0i64; axes.len()];
        for (to, from) in axes.iter().enumerate() {
            if let Some(slot) = inverse.get_mut(*from) {
                *slot = to as i64;
            }
        }
        Ok([c.dy(0).permute(inverse)].into())
    };
    vmap = |c, a| {
        let axes: Vec<i64> = std::iter::once(0).chain(c.shift_all(0, &a.axes)?).collect();
        Ok(vec![c.x(0).permute(axes)])
    };
    onnx = [
        rule("Transpose", 1, onnx::views::transpose),
        rule("DepthToSpace", 1, onnx::views::depth_to_space),
        rule("SpaceToDepth", 1, onnx::views::space_to_depth),
    ];
    samples = |s| {
        s.case("turn", Permute { axes: vec![1, 0] }, [f([3, 4])]);
        s.case("cycle", Permute { axes: vec![2, 0, 1] }, [f([2, 3, 4])]);
        s.case("from_end", Permute { axes: vec![-1, 1, 0] }, [f([2, 1, 3])]);
        s.case("empty", Permute { axes: vec![1, 0] }, [f([0, 2])]);
    };

    /// x repeated along new leading axes and along its axes of size 1, as NumPy broadcasts.
    broadcast: Broadcast(x: Any) { shape: Dims } -> y;
    constraints = ["x broadcasts to exactly the new shape"];
    infer = |c, a| {
        let x = c.ty(0)?;
        let both = broadcast(&a.shape, &x.shape).map_err(|e| e.operand("x"))?;
        if both != a.shape.0 {
            let text = format!("{x} does not broadcast to {}", crate::types::ShapeText(&a.shape));
            return Err(c.fail(Code::Broadcast, 1, text).operand("x"));
        }
        Ok(vec![x.with_shape(&a.shape[..])])
    };
    step = |_, _| Ok(Step::Broadcast);
    eval = |e, _| {
        let x = e.x(0)?;
        Ok(vec![e.make(0, |ix| x.at_broadcast(ix))?])
    };
    vjp = |c, _| Ok([c.dy(0).sum_to(c.x(0))].into());
    vmap = |c, a| {
        let shape: Shape = std::iter::once(c.size.clone()).chain(a.shape.iter().cloned()).collect();
        Ok(vec![c.x(0).align_batch(a.shape.len()).broadcast(shape)])
    };
    onnx = [rule("Expand", 8, onnx::views::expand)];
    samples = |s| {
        s.case("rows", Broadcast { shape: [4, 3].into() }, [f([3])]);
        s.case("columns", Broadcast { shape: [2, 3, 4].into() }, [f([3, 1])]);
        s.case("scalar", Broadcast { shape: [2, 2].into() }, [f([])]);
        s.case("to_empty", Broadcast { shape: [0, 3].into() }, [f([1, 3])]);
    };

    /// Every `step[i]`-th element of axis i from `start[i]` up to, not including, `stop[i]`.
    slice: Slice(x: Any) { start: Dims, stop: Dims, step: Vec<i64> } -> y;
    constraints = ["start, stop and step have an entry for every axis of x", "0 <= start <= stop <= the axis", "step >= 1"];
    infer = |c, a| {
        let x = c.ty(0)?;
        if a.start.len() != x.rank() || a.stop.len() != x.rank() || a.step.len() != x.rank() {
            return Err(c.fail(Code::Rank, 1, format!("x has {} axes", x.rank())).operand("x"));
        }
        let mut shape = Shape::new();
        for (i, d) in x.shape.iter().enumerate() {
            let (start, stop, step) = (&size_at(&a.start, i), &size_at(&a.stop, i), at(&a.step, i, 1));
            if step < 1 {
                return Err(c.fail(Code::Attribute, 3, format!("step {step}")).axis(i));
            }
            if ![start, &(stop - start), &(d - stop)].into_iter().all(|d| c.at_least(2, d, 0)) {
                return Err(c.fail(Code::Size, 2, format!("{start}..{stop} of {d}")).operand("x").axis(i));
            }
            shape.push((stop - start).ceil_div(step));
        }
        Ok(vec![x.with_shape(shape)])
    };
    step = |_, a| Ok(Step::Slice { start: a.start.0, step: a.step });
    eval = |e, a| {
        let x = e.x(0)?;
        let mut start = Vec::new();
        for (i, n) in x.shape().iter().enumerate() {
            let (lo, hi) = (e.n(&size_at(&a.start, i))?, e.n(&size_at(&a.stop, i))?);
            if lo > hi || hi > *n {
                return Err(Error::new(Code::Size, format!("slice {lo}..{hi} of an axis of {n}")).axis(i));
            }
            start.push(lo);
        }
        let mut from = start.clone();
        Ok(vec![e.make(0, |ix| {
            for (i, slot) in from.iter_mut().enumerate() {
                *slot = at(&start, i, 0) + at(ix, i, 0) * at(&a.step, i, 1) as usize;
            }
            x.at(&from)
        })?])
    };
    vjp = |c, a| {
        let (x, dy) = (c.x(0), c.dy(0));
        let interior: Vec<i64> = a.step.iter().map(|s| s - 1).collect();
        let mut hi = Vec::new();
        for (i, d) in x.shape().iter().enumerate() {
            let n = dy.dim(i as i64);
            // The last element taken stands at start + (n-1)*step; an empty slice spans nothing.
            let span = if n.is(0) { Dim::constant(0) } else { (&n - 1) * at(&a.step, i, 1) + 1 };
            hi.push(d - size_at(&a.start, i) - span);
        }
        Ok([dy.pad(0.0, a.start.clone(), hi, interior)].into())
    };
    vmap = |c, a| {
        let lead = |first: Dim, rest: &Dims| std::iter::once(first).chain(rest.iter().cloned()).collect::<Vec<_>>();
        let step: Vec<i64> = std::iter::once(1).chain(a.step.iter().copied()).collect();
        Ok(vec![c.x(0).slice(lead(0.into(), &a.start), lead(c.size.clone(), &a.stop), step)])
    };
    onnx = [rule("Slice", 1, onnx::slices::slice)];
    samples = |s| {
        s.case("middle", Slice { start: [1, 0].into(), stop: [3, 2].into(), step: vec![1, 1] }, [f([4, 3])]);
        s.case("stride", Slice { start: [1, 0].into(), stop: [7, 5].into(), step: vec![3, 2] }, [f([7, 5])]);
        s.case("nothing", Slice { start: [2].into(), stop: [2].into(), step: vec![1] }, [f([4])]);
        s.case("scalar", Slice { start: Dims(vec![]), stop: Dims(vec![]), step: vec![] }, [f([])]);
    };

    /// x with `lo[i]` elements of `value` before axis i, `hi[i]` after it, and `interior[i]` between neighbours.
    pad: Pad(x: Any, value: Any) { lo: Dims, hi: Dims, interior: Vec<i64> } -> y;
    constraints = ["lo, hi and interior have an entry for every axis of x", "no entry is negative", "value has no axes"];
    infer = |c, a| {
        let x = c.ty(0)?;
        c.rank(3, 1, 0)?;
        if a.lo.len() != x.rank() || a.hi.len() != x.rank() || a.interior.len() != x.rank() {
            return Err(c.fail(Code::Rank, 1, format!("x has {} axes", x.rank())).operand("x"));
        }
        let mut shape = Shape::new();
        for (i, d) in x.shape.iter().enumerate() {
            let (lo, hi, inside) = (&size_at(&a.lo, i), &size_at(&a.hi, i), at(&a.interior, i, 0));
            if inside < 0 || !c.at_least(2, lo, 0) || !c.at_least(2, hi, 0) {
                return Err(c.fail(Code::Attribute, 2, format!("{lo}, {hi}, {inside}")).operand("x").axis(i));
            }
            let spread = if inside == 0 || d.is(0) { d.clone() } else { (d - 1) * (Dim::constant(inside) + 1) + 1 };
            shape.push(spread + lo + hi);
        }
        Ok(vec![x.with_shape(shape)])
    };
    step = |_, a| Ok(Step::Pad { lo: a.lo.0, interior: a.interior });
    eval = |e, a| {
        let (x, value) = (e.x(0)?, e.x(1)?.flat(0));
        let lo = a.lo.iter().map(|d| e.n(d)).collect::<Result<Vec<_>>>()?;
        a.hi.iter().try_for_each(|d| e.n(d).map(|_| ()))?;
        let mut from = vec![0; x.rank()];
        Ok(vec![e.make(0, |ix| {
            for (i, slot) in from.iter_mut().enumerate() {
                let every = at(&a.interior, i, 0) as usize + 1;
                match at(ix, i, 0).checked_sub(at(&lo, i, 0)) {
                    Some(k) if k % every == 0 && k / every < at(x.shape(), i, 0) => *slot = k / every,
                    _ => return value,
                }
            }
            x.at(&from)
        })?])
    };
    vjp = |c, a| {
        let (x, dy) = (c.x(0), c.dy(0));
        let step: Vec<i64> = a.interior.iter().map(|i| i.saturating_add(1)).collect();
        let stop: Vec<Dim> = dy.shape().iter().zip(a.hi.iter()).map(|(d, hi)| d - hi).collect();
        let stop = if x.shape().iter().any(|d| d.is(0)) { a.lo.0.clone() } else { stop };
        let dx = if x.ty().numel().is(0) { x.zeros_like() } else { dy.slice(a.lo.clone(), stop, step) };
        Ok([dx, dy.sum_all() - dx.sum_all()].into())
    };
    vmap = |c, a| {
        if c.is_batched(1) {
            return vmap_loop(c);
        }
        let lead = |rest: &Dims| std::iter::once(Dim::constant(0)).chain(rest.iter().cloned()).collect::<Vec<_>>();
        let interior: Vec<i64> = std::iter::once(0).chain(a.interior.iter().copied()).collect();
        Ok(vec![c.x(0).pad(c.x(1), lead(&a.lo), lead(&a.hi), interior)])
    };
    onnx = [rule("CenterCropPad", 18, onnx::slices::center_crop_pad)];
    samples = |s| {
        s.case("edges", Pad { lo: [1, 0].into(), hi: [0, 2].into(), interior: vec![0, 0] }, [f([2, 3]), f([])]);
        s.case("spread", Pad { lo: [0, 1].into(), hi: [1, 0].into(), interior: vec![1, 2] }, [f([3, 2]), f([])]);
        s.case("from_empty", Pad { lo: [2].into(), hi: [1].into(), interior: vec![0] }, [f([0]), f([])]);
    };

    /// x with the elements of the named axes in reverse order.
    flip: Flip(x: Any) { axes: Vec<i64> } -> y;
    constraints = ["each axis exists and is named once"];
    infer = |c, a| { c.axes(1, 0, &a.axes)?; Ok(vec![c.ty(0)?.clone()]) };
    step = |c, a| Ok(Step::Flip(resolve_axes(&a.axes, c.ty(0)?.rank())?));
    eval = |e, a| {
        let x = e.x(0)?;
        let axes = resolve_axes(&a.axes, x.rank())?;
        let mut from = vec![0; x.rank()];
        Ok(vec![e.make(0, |ix| {
            for (i, slot) in from.iter_mut().enumerate() {
                *slot = if axes.contains(&i) { at(x.shape(), i, 1) - 1 - at(ix, i, 0) } else { at(ix, i, 0) };
            }
            x.at(&from)
        })?])
    };
    vjp = |c, a| Ok([c.dy(0).flip(a.axes.clone())].into());
    vmap = |c, a| Ok(vec![c.x(0).flip(c.shift_all(0, &a.axes)?)]);
    samples = |s| {
        s.case("one", Flip { axes: vec![1] }, [f([2, 3])]);
        s.case("both", Flip { axes: vec![0, -1] }, [f([2, 3])]);
        s.case("empty", Flip { axes: vec![0] }, [f([0, 3])]);
    };
}

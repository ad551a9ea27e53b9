//! Writing by index. Indices may count from the end; what they write outside of x is dropped.

use crate::onnx;
use crate::ops::gather::{element_index, flat_index, gathered, iota_along, tuple_index, tuple_len, within_x};
use crate::prelude::*;

attr_enum! {
    /// How `scatter` combines an update with what is there.
    ScatterMode {
        /// The update replaces it; of several, the last one stands.
        Set = "set",
        /// The sum.
        Add = "add",
        /// The larger one; NaN wins.
        Max = "max",
        /// The smaller one; NaN wins.
        Min = "min",
        /// The product.
        Mul = "mul",
    }
}

impl ScatterMode {
    fn combine(self, dtype: DType, old: Num, new: Num) -> Num {
        match self {
            ScatterMode::Set => new,
            ScatterMode::Add => Scalar::Add.eval(dtype, &[old, new]),
            ScatterMode::Max => Scalar::Max.eval(dtype, &[old, new]),
            ScatterMode::Min => Scalar::Min.eval(dtype, &[old, new]),
            ScatterMode::Mul => Scalar::Mul.eval(dtype, &[old, new]),
        }
    }
}

/// A value per index as one per update: axes before the indices and after them are of size 1.
fn per_update<'g>(v: Var<'g>, axis: usize, rank: usize) -> Var<'g> {
    let after = rank.saturating_sub(axis + v.rank());
    let ones = |n: usize| std::iter::repeat_n(Dim::constant(1), n);
    v.reshape(ones(axis).chain(v.shape()).chain(ones(after)).collect::<Shape>())
}

/// The gradients of a scatter to x and to the updates.
fn grads<'g>(c: &VjpCx<'g>, axis: i64, mode: ScatterMode) -> Result<(Var<'g>, Var<'g>)> {
    let [x, indices, updates] = c.xs();
    let (y, dy) = (c.y(0), c.dy(0));
    let (zero, one) = (dy.scalar(0.0), dy.scalar(1.0));
    let add = |to: Var<'g>, what: Var<'g>| to.scatter(indices, what, axis, ScatterMode::Add);
    Ok(match mode {
        ScatterMode::Add => (dy, dy.gather(indices, axis)),
        ScatterMode::Set => {
            let k = resolve_axis(axis, x.rank())?;
            let dx = dy.scatter(indices, updates.zeros_like(), axis, ScatterMode::Set);
            // Each update has a number, in order; the greatest one that goes to a place is the one that
            // stands.
            let number = c.g.iota(vec![indices.ty().numel()], 0, DType::I64).reshape(indices.shape());
            let last =
                c.g.full(DType::I64, &[x.dim(axis)], -1.0).scatter(indices, number, 0, ScatterMode::Max);
            let stands = per_update(last.gather(indices, 0).equal(number), k, updates.rank());
            (dx, stands.select(dy.gather(indices, axis), zero))
        }
        // Equal winners share the gradient evenly.
        ScatterMode::Max | ScatterMode::Min => {
            let (won_x, won_u) = (x.equal(y), updates.equal(y.gather(indices, axis)));
            let winners = add(won_x.select(one, zero), won_u.select(one, zero));
            let share = dy / winners;
            (won_x.select(share, zero), won_u.select(share.gather(indices, axis), zero))
        }
        // The product of the other updates: that of the non-zero ones without the own one, or 0 if another is
        // 0.
        ScatterMode::Mul => {
            let ones = x.ones_like();
            let dx = dy * ones.scatter(indices, updates, axis, ScatterMode::Mul);
            let none = updates.equal(0.0);
            let safe = none.select(one, updates);
            let none = none.select(one, zero);
            let product = ones.scatter(indices, safe, axis, ScatterMode::Mul).gather(indices, axis);
            let zeros = add(x.zeros_like(), none).gather(indices, axis);
            let others = zeros.equal(none).select(product / safe, zero);
            (dx, (dy * x).gather(indices, axis) * others)
        }
    })
}

ops! {
    /// x with the updates written at places along an axis given by index: the inverse of `gather`. The
    /// updates have the axes of the indices in place of the axis. Indices count from the end if they are
    /// negative; one outside of the axis writes nothing. Updates for one place are combined in row-major
    /// order of the indices, so the result is always the same. On bools, `add` and `max` are or, `mul` and
    /// `min` are and. Gradients: of `set`, only the last update for a place gets one; of `max` and `min`,
    /// equal winners share it. The second derivative of `mul` counts as 0 where an update is exactly 0.
    scatter: Scatter(x: Any, indices: Index, updates: Any) {
        axis: i64 = 0, mode: ScatterMode = ScatterMode::Set
    } -> y;
    constraints = [
        "the axis exists",
        "updates has the shape of x with the axes of the indices in place of the axis",
    ];
    infer = |c, a| {
        let (x, indices) = (c.ty(0)?, c.ty(1)?);
        let axis = c.axis(1, 0, a.axis)?;
        c.expect_shape(2, 2, &gathered(&x.shape, &indices.shape, axis))?;
        Ok(vec![x.clone()])
    };
    step = |c, a| Ok(Step::Scatter { axis: resolve_axis(a.axis, c.ty(0)?.rank())?, mode: a.mode });
    eval = |e, a| {
        let (x, indices, updates) = (e.x(0)?, e.x(1)?, e.x(2)?);
        let axis = resolve_axis(a.axis, x.rank())?;
        let n = x.shape().get(axis).copied().unwrap_or(0) as i128;
        let mut out: Vec<Num> = (0..x.len()).map(|i| x.flat(i)).collect();
        let mut it = crate::oracle::Indices::new(updates.shape());
        while let Some(ix) = it.next() {
            let (before, rest) = ix.split_at(axis.min(ix.len()));
            let (at, after) = rest.split_at(indices.rank().min(rest.len()));
            let i = indices.at(at).i();
            let i = if i < 0 { i + n } else { i };
            if !(0..n).contains(&i) {
                continue;
            }
            let to: Vec<usize> = before.iter().chain(&[i as usize]).chain(after).copied().collect();
            if let Some(slot) = out.get_mut(x.offset(&to)) {
                *slot = a.mode.combine(x.dtype(), *slot, updates.at(ix));
            }
        }
        let mut out = out.into_iter();
        Ok(vec![e.make(0, |_| out.next().unwrap_or(Num::I(0)))?])
    };
    vjp = |c, a| {
        let (dx, du) = grads(c, a.axis, a.mode)?;
        Ok([Some(dx), None, Some(du)].into())
    };
    vmap = |c, a| {
        let axis = resolve_axis(a.axis, c.rank(0))?;
        if !c.is_batched(1) {
            return Ok(vec![c.bx(0).scatter(c.x(1), c.bx(2), axis as i64 + 1, a.mode)]);
        }
        // The batch and the axis become one axis, first.
        let x = c.bx(0).move_axis(axis as i64 + 1, 1);
        let (n, len, turned) = (x.dim(1), &c.size * x.dim(1), x.shape());
        let indices = c.x(1);
        let batch = iota_along(c.g, &indices.shape(), 0);
        let flat = flat_index(&[(batch, c.size.clone()), (indices, n)], &len).unwrap_or_else(|| c.g.poison());
        // The updates: from batch, before, indices, after to batch, indices, before, after.
        let (k, before) = (indices.rank() as i64 - 1, axis as i64);
        let order = std::iter::once(0).chain(1 + before..1 + before + k).chain(1..1 + before);
        let updates = c.bx(2);
        let updates = updates.permute(order.chain(1 + before + k..updates.rank() as i64).collect::<Vec<_>>());
        let flat_x = x.reshape(std::iter::once(len).chain(turned.iter().skip(2).cloned()).collect::<Shape>());
        Ok(vec![flat_x.scatter(flat, updates, 0, a.mode).reshape(turned).move_axis(1, axis as i64 + 1)])
    };
    samples = |s| {
        let at = |axis, mode| Scatter { axis, mode };
        use ScatterMode::{Add, Max, Min, Mul, Set};
        s.case("set", at(0, Set), [f([4, 3]), int([2], 0, 4).values(&[2.0, -4.0]), f([2, 3])]);
        s.case("set_twice", at(1, Set), [f([2, 3]), int([4], 0, 2).values(&[1.0, 0.0, 1.0, 1.0]), f([2, 4])]);
        s.case("add", at(0, Add), [f([3, 2]), int([2, 3], 0, 3), f([2, 3, 2])]);
        s.case("middle", at(1, Add), [f([2, 3, 2]), int([4], 0, 3), f([2, 4, 2])]);
        let distinct = [f([2, 3]).distinct(-1.0, 1.0), int([4], 0, 3), f([2, 4]).distinct(-1.1, 0.9)];
        s.case("max", at(-1, Max), distinct);
        s.case("min", at(0, Min), [f([3]).distinct(-1.0, 1.0), int([5], 0, 3), f([5]).distinct(-1.1, 0.9)]);
        s.case("mul", at(0, Mul), [f([3, 2]), int([4], 0, 3), f([4, 2])]);
        let zeros = [f([3]).values(&[2.0, 0.0, 3.0]), int([5], 0, 3), f([5]).values(&[0.0, 2.0, 0.0])];
        s.rough("mul_zeros", at(0, Mul), zeros);
        s.case("one", at(0, Add), [f([3, 2]), int([], 1, 2), f([2])]);
        s.case("outside", at(0, Set), [f([3]), int([3], 0, 9).values(&[3.0, -4.0, -3.0]), f([3])]);
        s.case("nothing", at(0, Set), [f([3, 2]), int([0], 0, 1), f([0, 2])]);
        let ties = [f([2]).values(&[1.0, 2.0]), int([4], 0, 2), f([4]).values(&[2.0, 1.0, 2.0])];
        s.rough("ties", at(0, Max), ties);
    };

    /// x with one element written for every index: along the axis where the index says, along the others
    /// where the index stands (PyTorch's `scatter`). Otherwise as `scatter`.
    scatter_elements: ScatterElements(x: Any, indices: Index, updates: Any) {
        axis: i64 = 0, mode: ScatterMode = ScatterMode::Set
    } -> y;
    constraints = [
        "x has an axis, and indices has as many axes as x",
        "the axis exists",
        "every other axis of indices is at most that of x",
        "updates has the shape of indices",
    ];
    infer = |c, a| {
        c.rank_at_least(1, 0, 1)?;
        c.rank(1, 1, c.ty(0)?.rank())?;
        within_x(c, 3, 1, c.axis(2, 0, a.axis)?)?;
        c.expect_shape(4, 2, &c.ty(1)?.shape)?;
        Ok(vec![c.ty(0)?.clone()])
    };
    body = |c, a| {
        let [x, indices, updates] = c.xs();
        let flat = element_index(&x.shape(), indices, resolve_axis(a.axis, x.rank())?);
        let y = x.reshape(vec![x.ty().numel()]).scatter(flat, updates, 0, a.mode);
        Ok(vec![y.reshape(x.shape())])
    };
    vmap = |c, a| Ok(vec![c.bx(0).scatter_elements(c.bx(1), c.bx(2), c.shift(0, a.axis)?, a.mode)]);
    onnx = [
        rule("ScatterElements", 11, onnx::indices::scatter_elements),
        rule("Scatter", 9, onnx::indices::scatter_elements),
        rule("TensorScatter", 24, onnx::indices::tensor_scatter),
    ];
    samples = |s| {
        let at = |axis, mode| ScatterElements { axis, mode };
        s.case("set", at(1, ScatterMode::Set), [f([3, 4]), int([3, 2], -4, 4), f([3, 2])]);
        s.case("add", at(0, ScatterMode::Add), [f([3, 4]), int([5, 2], 0, 3), f([5, 2])]);
        s.case("outside", at(-1, ScatterMode::Add), [f([5]), int([4], -9, 9), f([4])]);
        s.case("none", at(0, ScatterMode::Set), [f([2, 3]), int([0, 3], 0, 1), f([0, 3])]);
    };

    /// x with slices written at tuples of indices, which stand along the last axis of `indices`:
    /// `y[indices[i.., 0], indices[i.., 1], .., ..]` is combined with `updates[i.., ..]`. Otherwise as
    /// `scatter`; a tuple with an index outside of its axis writes nothing.
    scatter_nd: ScatterNd(x: Any, indices: Index, updates: Any) { mode: ScatterMode = ScatterMode::Set } -> y;
    constraints = [
        "the last axis of indices is a constant, at most the number of axes of x",
        "updates has the other axes of indices, then the axes of x that the tuples do not name",
    ];
    infer = |c, _| {
        let (x, indices) = (c.ty(0)?, c.ty(1)?);
        let k = tuple_len(c, 1, 1, x.rank())?;
        let lead = indices.shape.iter().take(indices.rank() - 1);
        let want: Shape = lead.chain(x.shape.iter().skip(k)).cloned().collect();
        c.expect_shape(2, 2, &want)?;
        Ok(vec![x.clone()])
    };
    body = |c, a| {
        let [x, indices, updates] = c.xs();
        let shape = x.shape();
        let k = indices.dim(-1).as_const().unwrap_or(0) as usize;
        let flat = tuple_index(&shape, indices, 0).unwrap_or_else(|| c.g.poison());
        let rows = product(shape.get(..k).unwrap_or_default());
        let table: Shape = std::iter::once(rows).chain(shape.iter().skip(k).cloned()).collect();
        Ok(vec![x.reshape(table).scatter(flat, updates, 0, a.mode).reshape(shape)])
    };
    vmap = |c, a| {
        // The batch becomes the first entry of every tuple.
        let indices = c.bx(1).to(DType::I64);
        let mut shape = indices.shape();
        shape.pop();
        shape.push(Dim::constant(1));
        let batch = iota_along(c.g, &shape, 0).broadcast(&shape);
        let tuples = c.g.concat(&[batch, indices], -1);
        Ok(vec![c.bx(0).scatter_nd(tuples, c.bx(2), a.mode)])
    };
    onnx = [rule("ScatterND", 11, onnx::indices::scatter_nd)];
    samples = |s| {
        let with = |mode| ScatterNd { mode };
        s.case("elements", with(ScatterMode::Add), [f([3, 4]), int([5, 2], -3, 3), f([5])]);
        s.case("rows", with(ScatterMode::Set), [f([3, 2]), int([2, 2, 1], 0, 3), f([2, 2, 2])]);
        s.case("outside", with(ScatterMode::Add), [f([2, 2]), int([6, 2], -4, 4), f([6])]);
        s.case("empty_tuple", with(ScatterMode::Add), [f([2, 2]), int([3, 0], 0, 1), f([3, 2, 2])]);
    };
}

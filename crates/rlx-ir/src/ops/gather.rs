//! Reading by index. Indices may count from the end; what they read outside of x is 0.

use crate::onnx;
use crate::ops::scatter::ScatterMode;
use crate::prelude::*;

/// Indices into an axis of size `n` as `i64` from the start, and whether each is within the axis.
fn resolved<'g>(indices: Var<'g>, n: &Dim) -> (Var<'g>, Var<'g>) {
    let wide = match indices.dtype() {
        // What an i64 does not hold is beyond every axis, and must stay so.
        DType::U64 => indices.minimum(indices.size_scalar(n)).to(DType::I64),
        _ => indices.to(DType::I64),
    };
    let n = wide.size_scalar(n);
    let from_start = wide.less(0.0).select(wide + n, wide);
    (from_start, from_start.greater_equal(0.0).and(from_start.less(n)))
}

/// Positions in the flattened axes of these sizes, from one index per axis; `len` (just outside) where any
/// index is outside its axis. All indices broadcast together.
pub(crate) fn flat_index<'g>(parts: &[(Var<'g>, Dim)], len: &Dim) -> Option<Var<'g>> {
    let mut out: Option<(Var<'g>, Var<'g>)> = None;
    for (index, n) in parts {
        let (i, ok) = resolved(*index, n);
        out = Some(match out {
            None => (i, ok),
            Some((flat, all_ok)) => (flat * flat.size_scalar(n) + i, all_ok.and(ok)),
        });
    }
    out.map(|(flat, ok)| ok.select(flat, flat.size_scalar(len)))
}

/// The index along an axis of a shape, with all other axes of size 1.
pub(crate) fn iota_along<'g>(g: &'g Graph, shape: &[Dim], axis: usize) -> Var<'g> {
    let n = shape.get(axis).cloned().unwrap_or(Dim::constant(1));
    let one_axis: Shape =
        (0..shape.len()).map(|i| if i == axis { n.clone() } else { Dim::constant(1) }).collect();
    g.iota(&one_axis, axis as i64, DType::I64)
}

/// Positions of `indices` (along `axis`, else where they stand) in x of `shape`, flattened.
pub(crate) fn element_index<'g>(shape: &[Dim], indices: Var<'g>, axis: usize) -> Var<'g> {
    let at = |(i, n): (usize, &Dim)| {
        let index = if i == axis { indices } else { iota_along(indices.graph(), &indices.shape(), i) };
        (index, n.clone())
    };
    let parts: Vec<_> = shape.iter().enumerate().map(at).collect();
    flat_index(&parts, &product(shape)).unwrap_or_else(|| indices.graph().poison())
}

/// Positions of index tuples (the last axis of `indices`) in the first axes of x, flattened.
pub(crate) fn tuple_index<'g>(shape: &[Dim], indices: Var<'g>, batch_dims: usize) -> Option<Var<'g>> {
    let lead: Shape = indices.shape().into_iter().rev().skip(1).rev().collect();
    let tuple = indices.dim(-1).as_const()?;
    let mut parts = Vec::new();
    for (i, n) in shape.iter().enumerate().take(batch_dims + tuple as usize) {
        let index = match i.checked_sub(batch_dims) {
            None => iota_along(indices.graph(), &lead, i),
            Some(k) => indices.narrow(-1, k as i64, 1).reshape(&lead),
        };
        parts.push((index, n.clone()));
    }
    let end = product(shape.get(..parts.len()).unwrap_or_default());
    let zeros = || indices.graph().zeros(DType::I64, &lead);
    let flat = flat_index(&parts, &end).unwrap_or_else(zeros);
    Some(if flat.shape() == lead { flat } else { flat.broadcast(&lead) })
}

/// The shape of what `gather` reads: the axis is replaced by the axes of the indices.
pub(crate) fn gathered(x: &[Dim], indices: &[Dim], axis: usize) -> Shape {
    x.iter().take(axis).chain(indices).chain(x.iter().skip(axis + 1)).cloned().collect()
}

/// The number of entries of an index tuple, checked: at most `room`.
pub(crate) fn tuple_len(c: &Infer<'_>, n: usize, operand: usize, room: usize) -> Result<usize> {
    let t = c.ty(operand)?;
    let name = c.def.operand_name(operand);
    let last = t.rank().checked_sub(1);
    let d = last
        .and_then(|i| t.shape.get(i))
        .ok_or_else(|| c.fail(Code::Rank, n, format!("{name} has no axis")).operand(&*name))?;
    match d.as_const().and_then(|k| usize::try_from(k).ok()).filter(|k| *k <= room) {
        Some(k) => Ok(k),
        None => {
            let text = format!("index tuples have {d} entries, x has {room} axes for them");
            Err(c.fail(Code::Dim, n, text).operand(name).axis(last.unwrap_or(0)))
        }
    }
}

/// Every axis of operand `i` but `axis` is at most that of x.
pub(crate) fn within_x(c: &Infer<'_>, n: usize, i: usize, axis: usize) -> Result<()> {
    for k in (0..c.ty(i)?.rank()).filter(|k| *k != axis) {
        let (x, d) = (c.dim(0, k)?, c.dim(i, k)?);
        if !c.at_least(n, &(x - d), 0) {
            let name = c.def.operand_name(i);
            let text = format!("axis {k} of {name} is {d}, but axis {k} of x is {x}");
            return Err(c.fail(Code::Dim, n, text).operand(name).axis(k));
        }
    }
    Ok(())
}

/// Starts of a slice of `sizes`, moved so that it fits into `shape`.
fn fitted<'g>(starts: &[Var<'g>], shape: &[Dim], sizes: &[Dim]) -> Vec<Var<'g>> {
    let fit = |((start, n), size): ((&Var<'g>, &Dim), &Dim)| {
        // The last start may not fit into a narrow dtype, and a u64 not into an i64.
        let start = if start.dtype() == DType::U64 { *start } else { start.to(DType::I64) };
        start.minimum(start.size_scalar(&(n - size))).to(DType::I64).maximum(0.0)
    };
    starts.iter().zip(shape).zip(sizes).map(fit).collect()
}

/// The positions that a slice covers: along the only axis that it does not cover whole, or in x flattened.
fn covered<'g>(g: &'g Graph, starts: &[Var<'g>], shape: &[Dim], sizes: &[Dim]) -> (Option<usize>, Var<'g>) {
    let starts = fitted(starts, shape, sizes);
    let partial: Vec<usize> = (0..shape.len()).filter(|i| shape.get(*i) != sizes.get(*i)).collect();
    let along = |i: usize| {
        let steps = iota_along(g, sizes, i);
        starts.get(i).map_or(steps, |s| *s + steps)
    };
    match partial[..] {
        [axis] => {
            let n = sizes.get(axis).cloned().unwrap_or(Dim::constant(1));
            (Some(axis), along(axis).reshape(vec![n]))
        }
        _ => {
            let parts: Vec<_> = shape.iter().enumerate().map(|(i, n)| (along(i), n.clone())).collect();
            let flat = flat_index(&parts, &product(shape)).unwrap_or_else(|| g.zeros(DType::I64, sizes));
            (None, if flat.shape() == sizes { flat } else { flat.broadcast(sizes) })
        }
    }
}

/// One start without axes for every axis of x, from operand `first` on.
fn check_starts(c: &Infer<'_>, n: usize, first: usize) -> Result<()> {
    let rank = c.ty(0)?.rank();
    if c.operands.len() != first + rank {
        let text = format!("x has {rank} axes, {} starts are given", c.operands.len().saturating_sub(first));
        return Err(c.fail(Code::Operands, n, text));
    }
    (first..first + rank).try_for_each(|i| c.rank(n, i, 0))
}

ops! {
    /// Slices of x along an axis, by index: NumPy's `take`. The result has the axes of the indices in place
    /// of the axis. An index counts from the end if it is negative; one outside of the axis reads 0.
    gather: Gather(x: Any, indices: Index) { axis: i64 = 0 } -> y;
    constraints = ["the axis exists"];
    infer = |c, a| {
        let (x, indices) = (c.ty(0)?, c.ty(1)?);
        let axis = c.axis(1, 0, a.axis)?;
        Ok(vec![x.with_shape(gathered(&x.shape, &indices.shape, axis))])
    };
    step = |c, a| Ok(Step::Gather(resolve_axis(a.axis, c.ty(0)?.rank())?));
    eval = |e, a| {
        let (x, indices) = (e.x(0)?, e.x(1)?);
        let axis = resolve_axis(a.axis, x.rank())?;
        let n = x.shape().get(axis).copied().unwrap_or(0) as i128;
        Ok(vec![e.make(0, |ix| {
            let (before, rest) = ix.split_at(axis.min(ix.len()));
            let (at, after) = rest.split_at(indices.rank().min(rest.len()));
            let i = indices.at(at).i();
            let i = if i < 0 { i + n } else { i };
            if !(0..n).contains(&i) {
                return if x.dtype().is_float() { Num::F(0.0) } else { Num::I(0) };
            }
            let from: Vec<usize> = before.iter().chain(&[i as usize]).chain(after).copied().collect();
            x.at(&from)
        })?])
    };
    vjp = |c, a| Ok([Some(c.x(0).zeros_like().scatter(c.x(1), c.dy(0), a.axis, ScatterMode::Add)), None].into());
    vmap = |c, a| {
        let axis = resolve_axis(a.axis, c.rank(0))?;
        Ok(vec![match (c.is_batched(0), c.is_batched(1)) {
            (true, false) => c.x(0).gather(c.x(1), axis as i64 + 1),
            (false, _) => c.x(0).gather(c.x(1), axis as i64).move_axis(axis as i64, 0),
            (true, true) => {
                // The batch and the axis become one axis, first.
                let x = c.x(0).move_axis(axis as i64 + 1, 1);
                let rest: Shape = x.shape().into_iter().skip(2).collect();
                let (n, len) = (x.dim(1), &c.size * x.dim(1));
                let indices = c.x(1);
                let batch = iota_along(c.g, &indices.shape(), 0);
                let flat = flat_index(&[(batch, c.size.clone()), (indices, n)], &len);
                let x = x.reshape(std::iter::once(len).chain(rest).collect::<Shape>());
                let y = x.gather(flat.unwrap_or_else(|| c.g.poison()), 0);
                // Now: batch, indices, before, after; wanted: batch, before, indices, after.
                let (k, before) = (indices.rank() as i64 - 1, axis as i64);
                let order = std::iter::once(0).chain(1 + k..1 + k + before).chain(1..1 + k);
                y.permute(order.chain(1 + k + before..y.rank() as i64).collect::<Vec<_>>())
            }
        }])
    };
    onnx = [
        same("Gather"),
        rule("Compress", 9, onnx::indices::compress),
        rule("Unique", 11, onnx::indices::unique),
    ];
    samples = |s| {
        s.case("rows", Gather { axis: 0 }, [f([4, 3]), int([5], -4, 4)]);
        s.case("matrix_of_columns", Gather { axis: -1 }, [f([2, 4]), int([2, 3], 0, 4)]);
        s.case("middle", Gather { axis: 1 }, [f([2, 3, 2]), int([2, 1], 0, 3)]);
        s.case("scalar_index", Gather { axis: 1 }, [f([2, 3]), int([], 0, 3)]);
        s.case("outside", Gather { axis: 0 }, [f([3, 2]), int([4], 0, 9).values(&[3.0, -4.0, -3.0, 2.0])]);
        s.case("no_indices", Gather { axis: 0 }, [f([3, 2]), int([0], 0, 1)]);
        s.case("from_nothing", Gather { axis: 0 }, [f([0, 2]), int([3], 0, 2)]);
        let u64s = int([3], 0, 3).dtype(DType::U64);
        s.rough("of_integers", Gather { axis: 0 }, [int([3, 2], -9, 9), u64s]);
    };

    /// One element of x for every index: along the axis where the index says, along the others where the
    /// index stands (PyTorch's `gather`). An index counts from the end if it is negative; one outside of the
    /// axis reads 0.
    gather_elements: GatherElements(x: Any, indices: Index) { axis: i64 = 0 } -> y;
    constraints = [
        "x has an axis, and indices has as many axes as x",
        "the axis exists",
        "every other axis of indices is at most that of x",
    ];
    infer = |c, a| {
        c.rank_at_least(1, 0, 1)?;
        c.rank(1, 1, c.ty(0)?.rank())?;
        within_x(c, 3, 1, c.axis(2, 0, a.axis)?)?;
        Ok(vec![c.ty(0)?.with_shape(c.ty(1)?.shape.clone())])
    };
    body = |c, a| {
        let [x, indices] = c.xs();
        let flat = element_index(&x.shape(), indices, resolve_axis(a.axis, x.rank())?);
        Ok(vec![x.reshape(vec![x.ty().numel()]).gather(flat, 0)])
    };
    vjp = |c, a| {
        Ok([Some(c.x(0).zeros_like().scatter_elements(c.x(1), c.dy(0), a.axis, ScatterMode::Add)), None].into())
    };
    vmap = |c, a| Ok(vec![c.bx(0).gather_elements(c.bx(1), c.shift(0, a.axis)?)]);
    onnx = [same("GatherElements"), rule("ReverseSequence", 10, onnx::indices::reverse_sequence)];
    samples = |s| {
        s.case("columns", GatherElements { axis: 1 }, [f([3, 4]), int([3, 2], -4, 4)]);
        s.case("fewer", GatherElements { axis: 0 }, [f([3, 4]), int([5, 2], 0, 3)]);
        s.case("outside", GatherElements { axis: -1 }, [f([5]), int([4], -9, 9)]);
        s.case("none", GatherElements { axis: 0 }, [f([2, 3]), int([0, 3], 0, 1)]);
    };

    /// Slices of x by tuples of indices, which stand along the last axis of `indices`:
    /// `y[b.., i.., ..] = x[b.., indices[b.., i.., 0], indices[b.., i.., 1], .., ..]`.
    /// The first `batch_dims` axes are common to both. An index counts from the end if it is negative; a
    /// tuple with one outside of its axis reads 0. Empty tuples read x itself.
    gather_nd: GatherNd(x: Any, indices: Index) { batch_dims: i64 = 0 } -> y;
    constraints = [
        "batch_dims is not negative, and less than the number of axes of indices",
        "the last axis of indices is a constant, at most the number of axes of x without the batch",
        "the batch axes agree",
    ];
    infer = |c, a| {
        let (x, indices) = (c.ty(0)?, c.ty(1)?);
        let batch = usize::try_from(a.batch_dims).ok().filter(|b| *b < indices.rank() && *b <= x.rank());
        let batch = batch.ok_or_else(|| {
            c.fail(Code::Attribute, 1, format!("batch_dims is {}", a.batch_dims)).operand("indices")
        })?;
        let k = tuple_len(c, 2, 1, x.rank() - batch)?;
        for i in 0..batch {
            c.same_dim(3, (0, i), (1, i))?;
        }
        let lead = indices.shape.iter().take(indices.rank() - 1);
        Ok(vec![x.with_shape(lead.chain(x.shape.iter().skip(batch + k)).cloned().collect::<Shape>())])
    };
    body = |c, a| {
        let [x, indices] = c.xs();
        let (shape, batch) = (x.shape(), a.batch_dims as usize);
        let k = indices.dim(-1).as_const().unwrap_or(0) as usize;
        let flat = tuple_index(&shape, indices, batch).unwrap_or_else(|| c.g.poison());
        let rows = product(shape.get(..batch + k).unwrap_or_default());
        let table: Shape = std::iter::once(rows).chain(shape.into_iter().skip(batch + k)).collect();
        Ok(vec![x.reshape(table).gather(flat, 0)])
    };
    vmap = |c, a| Ok(vec![match (c.is_batched(0), a.batch_dims) {
        (false, 0) => c.x(0).gather_nd(c.x(1), 0),
        _ => c.bx(0).gather_nd(c.bx(1), a.batch_dims + 1),
    }]);
    onnx = [same("GatherND")];
    samples = |s| {
        s.case("elements", GatherNd { batch_dims: 0 }, [f([3, 4]), int([5, 2], -3, 3)]);
        s.case("rows", GatherNd { batch_dims: 0 }, [f([3, 4]), int([2, 2, 1], 0, 3)]);
        s.case("batch", GatherNd { batch_dims: 1 }, [f([2, 3, 4]), int([2, 3, 1], 0, 3)]);
        s.case("outside", GatherNd { batch_dims: 0 }, [f([2, 2]), int([6, 2], -4, 4)]);
        s.case("empty_tuple", GatherNd { batch_dims: 0 }, [f([2, 2]), int([3, 0], 0, 1)]);
    };

    /// The part of x of the given sizes that begins at `starts`, one number per axis. Starts are moved as
    /// little as needed for the part to lie within x.
    dynamic_slice: DynamicSlice(x: Any, starts: many Index) { sizes: Dims } -> y;
    constraints = [
        "there is one start without axes for every axis of x",
        "sizes has an entry for every axis of x",
        "no size exceeds its axis",
    ];
    infer = |c, a| {
        let x = c.ty(0)?;
        check_starts(c, 1, 1)?;
        if a.sizes.len() != x.rank() {
            let text = format!("x has {} axes, {} sizes are given", x.rank(), a.sizes.len());
            return Err(c.fail(Code::Rank, 2, text).operand("x"));
        }
        for (i, (d, n)) in x.shape.iter().zip(a.sizes.iter()).enumerate() {
            if !c.at_least(3, &(d - n), 0) {
                return Err(c.fail(Code::Size, 3, format!("{n} of {d}")).operand("x").axis(i));
            }
        }
        Ok(vec![x.with_shape(&a.sizes[..])])
    };
    body = |c, a| {
        let x = c.x(0);
        let starts: Vec<Var<'_>> = c.given().into_iter().skip(1).collect();
        if x.shape() == a.sizes.0 {
            return Ok(vec![x]);
        }
        Ok(vec![match covered(c.g, &starts, &x.shape(), &a.sizes) {
            (Some(axis), at) => x.gather(at, axis as i64),
            (None, at) => x.reshape(vec![x.ty().numel()]).gather(at, 0),
        }])
    };
    vjp = |c, _| {
        let starts: Vec<Var<'_>> = c.given().into_iter().skip(1).collect();
        let mut grads = vec![None; c.operands.len()];
        if let Some(slot) = grads.first_mut() {
            *slot = Some(c.x(0).zeros_like().dynamic_update_slice(c.dy(0), &starts[..]));
        }
        Ok(grads.into())
    };
    samples = |s| {
        let at = |i: i64| int([], i, i + 1);
        s.case("inside", DynamicSlice { sizes: [2, 2].into() }, [f([4, 3]), at(1), at(0)]);
        s.case("moved", DynamicSlice { sizes: [2, 3].into() }, [f([4, 3]), at(9), at(-5)]);
        s.case("one_axis", DynamicSlice { sizes: [2, 1, 3].into() }, [f([2, 4, 3]), at(0), at(2), at(0)]);
        s.case("whole", DynamicSlice { sizes: [3].into() }, [f([3]), at(2)]);
        s.case("nothing", DynamicSlice { sizes: [0, 2].into() }, [f([3, 3]), at(1), at(1)]);
    };

    /// x with `update` written over the part that begins at `starts`, one number per axis. Starts are moved
    /// as little as needed for the update to lie within x.
    dynamic_update_slice: DynamicUpdateSlice(x: Any, update: Any, starts: many Index) -> y;
    constraints = [
        "there is one start without axes for every axis of x",
        "update has as many axes as x",
        "no axis of update exceeds that of x",
    ];
    infer = |c, _| {
        let x = c.ty(0)?;
        c.rank(2, 1, x.rank())?;
        check_starts(c, 1, 2)?;
        within_x(c, 3, 1, usize::MAX)?;
        Ok(vec![x.clone()])
    };
    body = |c, _| {
        let [x, update] = c.xs();
        let starts: Vec<Var<'_>> = c.given().into_iter().skip(2).collect();
        if x.shape() == update.shape() {
            return Ok(vec![update]);
        }
        Ok(vec![match covered(c.g, &starts, &x.shape(), &update.shape()) {
            (Some(axis), at) => x.scatter(at, update, axis as i64, ScatterMode::Set),
            (None, at) => x.reshape(vec![x.ty().numel()]).scatter(at, update, 0, ScatterMode::Set).reshape(x.shape()),
        }])
    };
    vjp = |c, _| {
        let starts: Vec<Var<'_>> = c.given().into_iter().skip(2).collect();
        let (dy, update) = (c.dy(0), c.x(1));
        let mut grads = vec![
            Some(dy.dynamic_update_slice(update.zeros_like(), &starts[..])),
            Some(dy.dynamic_slice(&starts[..], update.shape())),
        ];
        grads.resize(c.operands.len(), None);
        Ok(grads.into())
    };
    samples = |s| {
        let at = |i: i64| int([], i, i + 1);
        s.case("inside", DynamicUpdateSlice {}, [f([4, 3]), f([2, 2]), at(1), at(0)]);
        s.case("moved", DynamicUpdateSlice {}, [f([4, 3]), f([2, 3]), at(9), at(-5)]);
        s.case("one_axis", DynamicUpdateSlice {}, [f([2, 4, 3]), f([2, 1, 3]), at(0), at(2), at(0)]);
        s.case("whole", DynamicUpdateSlice {}, [f([3]), f([3]), at(2)]);
        s.case("nothing", DynamicUpdateSlice {}, [f([3, 3]), f([0, 2]), at(1), at(1)]);
    };

    /// Rows of a table by id. The row `padding_idx` (which may count from the end) is read like any other,
    /// but never gets a gradient. An id outside of the table reads 0.
    embedding: Embedding(table: Any, ids: Index) { padding_idx: Option<i64> = None } -> y;
    constraints = ["table has two axes", "padding_idx is a row of the table"];
    infer = |c, a| {
        c.rank(1, 0, 2)?;
        let (table, ids) = (c.ty(0)?, c.ty(1)?);
        if let Some(row) = a.padding_idx {
            let n = c.dim(0, 0)?;
            let room = if row < 0 { n + row } else { n - row - 1 };
            if !c.at_least(2, &room, 0) {
                return Err(c.fail(Code::Attribute, 2, format!("row {row} of {n}")).operand("table").axis(0));
            }
        }
        Ok(vec![table.with_shape(gathered(&table.shape, &ids.shape, 0))])
    };
    body = |c, _| Ok(vec![c.x(0).gather(c.x(1), 0)]);
    vjp = |c, a| {
        let [table, ids] = c.xs();
        let mut dy = c.dy(0);
        if let Some(row) = a.padding_idx {
            let n = table.dim(0);
            let (id, _) = resolved(ids, &n);
            let row = if row < 0 { id.size_scalar(&(n + row)) } else { id.size_scalar(&Dim::constant(row)) };
            dy = id.equal(row).unsqueeze(-1).select(dy.scalar(0.0), dy);
        }
        Ok([Some(table.zeros_like().scatter(ids, dy, 0, ScatterMode::Add)), None].into())
    };
    samples = |s| {
        s.case("words", Embedding { padding_idx: None }, [f([5, 3]), int([2, 4], 0, 5)]);
        s.rough("padding", Embedding { padding_idx: Some(-1) }, [f([3, 2]), int([6], 0, 3)]);
        s.case("none", Embedding { padding_idx: None }, [f([5, 3]), int([0, 4], 0, 5)]);
    };
}

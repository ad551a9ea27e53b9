//! Products summed over axes: `dot_general`, which all of linear algebra is made of, and `matmul`.

use crate::prelude::*;

/// What each axis of the two operands of a `dot_general` is for.
struct Roles {
    contract: [Vec<usize>; 2],
    batch: [Vec<usize>; 2],
    free: [Vec<usize>; 2],
}

impl Roles {
    /// Resolves the axes. Those named once neither as contracted nor as batch are free, in order.
    fn new(a: &DotGeneral, ranks: [usize; 2]) -> Result<Roles> {
        let side = |contract: &[i64], batch: &[i64], rank: usize| -> Result<[Vec<usize>; 3]> {
            let named: Vec<i64> = batch.iter().chain(contract).copied().collect();
            let mut batch = resolve_axes(&named, rank)?;
            let free = (0..rank).filter(|i| !batch.contains(i)).collect();
            let contract = batch.split_off(batch.len() - contract.len());
            Ok([contract, batch, free])
        };
        let [cx, bx, fx] = side(&a.contract_x, &a.batch_x, ranks[0])?;
        let [cy, by, fy] = side(&a.contract_y, &a.batch_y, ranks[1])?;
        Ok(Roles { contract: [cx, cy], batch: [bx, by], free: [fx, fy] })
    }
}

fn ints(v: impl IntoIterator<Item = usize>) -> Vec<i64> {
    v.into_iter().map(|i| i as i64).collect()
}

/// The distance in memory between neighbours along each axis, in elements.
fn strides(shape: &[usize]) -> Vec<usize> {
    let mut out: Vec<usize> = shape.iter().rev().scan(1, |n, d| Some(std::mem::replace(n, *n * d))).collect();
    out.reverse();
    out
}

fn pick<T: Copy>(v: &[T], at: &[usize]) -> Vec<T> {
    at.iter().filter_map(|i| v.get(*i).copied()).collect()
}

/// The gradient of a `dot_general` with respect to operand `i` (0 or 1), in the axis order of that operand.
fn grad<'g>(c: &VjpCx<'g>, a: &DotGeneral, i: usize) -> Result<Var<'g>> {
    let Roles { contract, batch, free } = Roles::new(a, [c.x(0).rank(), c.x(1).rank()])?;
    // What is known of the operand itself first, then of the other one.
    let turn = |[x, y]: [Vec<usize>; 2]| if i == 0 { [x, y] } else { [y, x] };
    let [[own_contract, contract], [own_batch, batch], [own_free, free]] = [contract, batch, free].map(turn);
    let first_free = batch.len() + if i == 0 { own_free.len() } else { 0 };
    let of_dy = ints(first_free..first_free + free.len());
    let batches = ints(0..batch.len());
    let d = c.dy(0).dot_general(c.x(1 - i), of_dy, ints(free), batches, ints(batch));
    // The axes of d: batch, own free axes, then the contracted ones in the order in which the other operand
    // has them.
    let mut pairs: Vec<(usize, usize)> =
        contract.into_iter().zip(own_contract).collect();
    pairs.sort_unstable();
    let order: Vec<usize> =
        own_batch.into_iter().chain(own_free).chain(pairs.iter().map(|p| p.1)).collect();
    let back = ints(inverse(&order));
    Ok(if back.iter().enumerate().all(|(i, b)| i as i64 == *b) { d } else { d.permute(back) })
}

/// The axes of a matmul's operands: rank, then the axis that is contracted.
fn inner_axes(x: usize, y: usize) -> (usize, usize) {
    (x.saturating_sub(1), y.saturating_sub(2))
}

/// `matmul` as one `dot_general`. A leading axis is a batch where both operands have it, and a free axis of
/// the one that has it: nothing is repeated. An axis of size 1 is taken out, and put back at the end.
fn product_of<'g>(x: Var<'g>, y: Var<'g>) -> Var<'g> {
    let (lx, ly) = (x.rank().saturating_sub(2), y.rank().saturating_sub(2));
    let lead = lx.max(ly);
    let (rows, columns) = ((x.rank() > 1) as usize, (y.rank() > 1) as usize);
    let (mut batch, mut only_x, mut only_y) = (vec![], vec![], vec![]);
    let (mut batch_x, mut batch_y) = (vec![], vec![]);
    let (mut x_shape, mut y_shape, mut z_shape) = (Shape::new(), Shape::new(), Shape::new());
    for i in 0..lead {
        let dx = (i + lx).checked_sub(lead).map(|i| x.dim(i as i64)).filter(|d| !d.is(1));
        let dy = (i + ly).checked_sub(lead).map(|i| y.dim(i as i64)).filter(|d| !d.is(1));
        match (&dx, &dy) {
            (Some(_), Some(_)) => {
                batch.push(i);
                batch_x.push(x_shape.len() as i64);
                batch_y.push(y_shape.len() as i64);
            }
            (Some(_), None) => only_x.push(i),
            (None, Some(_)) => only_y.push(i),
            (None, None) => {}
        }
        z_shape.push(dx.clone().or(dy.clone()).unwrap_or(Dim::constant(1)));
        x_shape.extend(dx);
        y_shape.extend(dy);
    }
    let contract = (vec![(x_shape.len() + rows) as i64], vec![y_shape.len() as i64]);
    x_shape.extend(x.shape().into_iter().skip(lx));
    y_shape.extend(y.shape().into_iter().skip(ly));
    z_shape.extend((rows == 1).then(|| x.dim(-2)));
    z_shape.extend((columns == 1).then(|| y.dim(-1)));
    let shaped = |v: Var<'g>, s: Shape| if v.shape() == s { v } else { v.reshape(s) };
    let (x, y) = (shaped(x, x_shape), shaped(y, y_shape));
    let z = x.dot_general(y, contract.0, contract.1, batch_x, batch_y);
    // The axes of z: batches, leading axes of x, rows, leading axes of y, columns.
    let names = batch.iter().chain(&only_x).copied().chain((0..rows).map(|_| lead));
    let names: Vec<usize> =
        names.chain(only_y.iter().copied()).chain((0..columns).map(|_| lead + 1)).collect();
    let mut order: Vec<usize> = (0..names.len()).collect();
    order.sort_by_key(|i| names.get(*i));
    shaped(if order.is_sorted() { z } else { z.permute(ints(order)) }, z_shape)
}

/// The shape of a matrix product, by constraints 1 to 3 of `matmul`.
pub(super) fn product_shape(c: &Infer<'_>) -> Result<Shape> {
    c.rank_at_least(1, 0, 1)?;
    c.rank_at_least(1, 1, 1)?;
    let (x, y) = (c.ty(0)?, c.ty(1)?);
    let (kx, ky) = inner_axes(x.rank(), y.rank());
    let (dx, dy) = (c.dim(0, kx)?, c.dim(1, ky)?);
    if dx.unify(dy).is_none() {
        let text = format!("axis {ky} of y is {dy}, but axis {kx} of x is {dx}");
        return Err(c.fail(Code::Dim, 2, text).operand(c.def.operand_name(1)).axis(ky).sizes(dx, dy));
    }
    let lead = |t: &Type| t.leading(2).to_vec();
    let mut shape = broadcast(&lead(x), &lead(y)).map_err(|e| {
        c.fail(Code::Broadcast, 3, e.message()).operand(c.def.operand_name(1)).axis(e.bad_axis().unwrap_or(0))
    })?;
    if x.rank() > 1 {
        shape.push(c.dim(0, x.rank() - 2)?.clone());
    }
    if y.rank() > 1 {
        shape.push(c.dim(1, y.rank() - 1)?.clone());
    }
    Ok(shape)
}

/// `alpha · x · y`, each operand perhaps transposed, as ONNX Runtime fuses it.
fn onnx_fused_matmul<'g>(c: &onnx::Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let [x, y] = c.xs()?;
    let turned = |v: Var<'g>, side: &str| -> Result<Var<'g>> {
        // The batches may be transposed too: the first axis then stands behind the rows.
        let v = if c.flag(&format!("transBatch{side}"), false)? { v.move_axis(0, -2) } else { v };
        Ok(if c.flag(&format!("trans{side}"), false)? && v.rank() > 1 { v.t() } else { v })
    };
    let z = turned(x, "A")?.matmul(turned(y, "B")?);
    let alpha = c.float_or("alpha", 1.0)?;
    Ok(vec![if alpha == 1.0 { z } else { z * alpha }])
}

ops! {
    /// Products of x and y summed over pairs of axes, for every pair of batch positions:
    /// `z[b.., i.., j..] = Σ_k x[b.., i.., k..] · y[b.., j.., k..]` with each operand's axes in any order.
    /// `contract_x[n]` pairs with `contract_y[n]`, `batch_x[n]` with `batch_y[n]`; the other axes are free.
    /// The result's axes: batch in the order named, free axes of x, free axes of y. A sum over nothing is 0.
    /// Floats are accumulated in at least `f32`; integers wrap in their own dtype.
    dot_general: DotGeneral(x: Num, y: Num) {
        contract_x: Vec<i64>, contract_y: Vec<i64>, batch_x: Vec<i64> = vec![], batch_y: Vec<i64> = vec![]
    } -> z;
    constraints = [
        "contract_x and contract_y have one entry per pair, and so have batch_x and batch_y",
        "each axis exists and is named once",
        "contracted axes agree",
        "batch axes agree",
    ];
    infer = |c, a| {
        let (x, y) = (c.ty(0)?, c.ty(1)?);
        if a.contract_x.len() != a.contract_y.len() || a.batch_x.len() != a.batch_y.len() {
            let text = format!(
                "{} and {} contracted axes, {} and {} batch axes",
                a.contract_x.len(), a.contract_y.len(), a.batch_x.len(), a.batch_y.len()
            );
            return Err(c.fail(Code::Attribute, 1, text));
        }
        for (i, named) in [(0, [&a.batch_x, &a.contract_x]), (1, [&a.batch_y, &a.contract_y])] {
            let all: Vec<i64> = named.into_iter().flatten().copied().collect();
            c.axes(2, i, &all)?;
        }
        let r = Roles::new(a, [x.rank(), y.rank()])?;
        for (i, j) in r.contract[0].iter().zip(&r.contract[1]) {
            c.same_dim(3, (0, *i), (1, *j))?;
        }
        let mut shape = Shape::new();
        for (i, j) in r.batch[0].iter().zip(&r.batch[1]) {
            shape.push(c.same_dim(4, (0, *i), (1, *j))?);
        }
        for (operand, free) in r.free.iter().enumerate() {
            for i in free {
                shape.push(c.dim(operand, *i)?.clone());
            }
        }
        Ok(vec![x.with_shape(shape)])
    };
    step = |c, a| {
        let Roles { contract, batch, .. } = Roles::new(&a, [c.ty(0)?.rank(), c.ty(1)?.rank()])?;
        Ok(Step::Dot { contract, batch })
    };
    eval = |e, a| {
        let (x, y) = (e.x(0)?, e.x(1)?);
        let r = Roles::new(a, [x.rank(), y.rank()])?;
        let [sx, sy] = [strides(x.shape()), strides(y.shape())];
        let offset = |ix: &[usize], strides: &[usize]| ix.iter().zip(strides).map(|(i, s)| i * s).sum::<usize>();
        // Where the terms of one sum stand, from the first on.
        let (kx, ky) = (pick(&sx, &r.contract[0]), pick(&sy, &r.contract[1]));
        let sizes = pick(x.shape(), &r.contract[0]);
        let mut terms = Vec::new();
        let mut it = crate::oracle::Indices::new(&sizes);
        while let Some(k) = it.next() {
            terms.push((offset(k, &kx), offset(k, &ky)));
        }
        let (nb, nx) = (r.batch[0].len(), r.free[0].len());
        let (bx, by) = (pick(&sx, &r.batch[0]), pick(&sy, &r.batch[1]));
        let (fx, fy) = (pick(&sx, &r.free[0]), pick(&sy, &r.free[1]));
        let float = x.dtype().is_float();
        Ok(vec![e.make(0, |ix| {
            let (b, free) = ix.split_at(nb.min(ix.len()));
            let (i, j) = free.split_at(nx.min(free.len()));
            let (ox, oy) = (offset(b, &bx) + offset(i, &fx), offset(b, &by) + offset(j, &fy));
            let pairs = terms.iter().map(|(p, q)| (x.flat(ox + p), y.flat(oy + q)));
            if float {
                Num::F(pairs.fold(0.0, |s, (p, q)| s + p.f() * q.f()))
            } else {
                Num::I(pairs.fold(0, |s: i128, (p, q)| s.wrapping_add(p.i().wrapping_mul(q.i()))))
            }
        })?])
    };
    vjp = |c, a| {
        let want = |i: usize| if c.wants(i) { grad(c, a, i).map(Some) } else { Ok(None) };
        Ok([want(0)?, want(1)?].into())
    };
    vmap = |c, a| {
        let (mut bx, mut by) = (vec![], vec![]);
        let all = |i: usize, axes: &[i64]| -> Result<Vec<i64>> {
            let resolved = resolve_axes(axes, c.rank(i))?;
            Ok(resolved.into_iter().map(|k| k as i64 + c.is_batched(i) as i64).collect())
        };
        if c.is_batched(0) && c.is_batched(1) {
            (bx, by) = (vec![0], vec![0]);
        }
        bx.extend(all(0, &a.batch_x)?);
        by.extend(all(1, &a.batch_y)?);
        let (nb, nx) = (bx.len(), c.x(0).rank() - bx.len() - a.contract_x.len());
        let z = c.x(0).dot_general(c.x(1), all(0, &a.contract_x)?, all(1, &a.contract_y)?, bx, by);
        // A batch of only one operand is the first of that operand's free axes.
        Ok(vec![match (c.is_batched(0), c.is_batched(1)) {
            (true, true) => z,
            (true, false) => z.move_axis(nb as i64, 0),
            _ => z.move_axis((nb + nx) as i64, 0),
        }])
    };
    samples = |s| {
        let dot = |cx: &[i64], cy: &[i64], bx: &[i64], by: &[i64]| DotGeneral {
            contract_x: cx.to_vec(), contract_y: cy.to_vec(), batch_x: bx.to_vec(), batch_y: by.to_vec(),
        };
        s.case("matrix", dot(&[1], &[0], &[], &[]), [f([3, 4]), f([4, 2])]);
        s.case("batch", dot(&[-1], &[1], &[0], &[2]), [f([2, 3, 4]), f([3, 4, 2])]);
        s.case("two_contracted", dot(&[2, 0], &[0, 1], &[], &[]), [f([2, 3, 4]), f([4, 2, 5])]);
        s.case("two_batches", dot(&[3], &[2], &[0, 2], &[1, 0]), [f([2, 3, 1, 4]), f([1, 2, 4])]);
        s.case("outer", dot(&[], &[], &[], &[]), [f([2]), f([3])]);
        s.case("inner", dot(&[0], &[0], &[], &[]), [f([5]), f([5])]);
        s.case("sum_over_nothing", dot(&[1], &[0], &[], &[]), [f([2, 0]), f([0, 3])]);
        let i8s = |shape| int(shape, -128, 128).dtype(DType::I8);
        s.rough("wrapping", dot(&[1], &[0], &[], &[]), [i8s([2, 7]), i8s([7, 2])]);
    };
    tolerance = tol(1e-5, 5e-3, 4e-2);

    /// The matrix product `z[.., i, j] = Σ_k x[.., i, k] · y[.., k, j]`, as NumPy's `@`: leading axes
    /// broadcast; a vector x is a row and a vector y a column, and their axis is left out of the result.
    matmul: Matmul(x: Num, y: Num) -> z;
    constraints = [
        "x and y have at least one axis",
        "the last axis of x agrees with the second last of y (the only one of a vector)",
        "the axes before the last two broadcast",
    ];
    infer = |c, _| {
        let shape = product_shape(c)?;
        Ok(vec![c.ty(0)?.with_shape(shape)])
    };
    body = |c, _| Ok(vec![product_of(c.x(0), c.x(1))]);
    vmap = |c, _| {
        // Vectors become matrices of one row or column, so that the batch is a leading axis.
        let wide = |i: usize, at: i64| if c.rank(i) == 1 { c.x(i).unsqueeze(at) } else { c.x(i) };
        let rank = c.rank(0).max(c.rank(1)).max(2);
        let align = |i: usize, at: i64| if c.is_batched(i) { wide(i, at).align_batch(rank) } else { wide(i, at) };
        let mut z = align(0, -2).matmul(align(1, -1));
        if c.rank(1) == 1 {
            z = z.squeeze(-1);
        }
        if c.rank(0) == 1 {
            z = z.squeeze(if c.rank(1) == 1 { -1 } else { -2 });
        }
        Ok(vec![z])
    };
    onnx = [same("MatMul"), microsoft("FusedMatMul", onnx_fused_matmul)];
    samples = |s| {
        s.case("matrix", Matmul {}, [f([3, 4]), f([4, 2])]);
        s.case("batch", Matmul {}, [f([2, 3, 4]), f([2, 4, 2])]);
        s.case("shared_right", Matmul {}, [f([2, 3, 4]), f([4, 5])]);
        s.case("shared_left", Matmul {}, [f([3, 4]), f([2, 4, 2])]);
        s.case("broadcast", Matmul {}, [f([2, 1, 3, 2]), f([3, 2, 2])]);
        s.case("broadcast_inside", Matmul {}, [f([1, 3, 2, 2]), f([2, 3, 2, 1])]);
        s.case("vectors", Matmul {}, [f([5]), f([5])]);
        s.case("row", Matmul {}, [f([3]), f([2, 3, 2])]);
        s.case("column", Matmul {}, [f([2, 2, 3]), f([3])]);
        s.case("sum_over_nothing", Matmul {}, [f([2, 0]), f([0, 3])]);
        s.case("empty", Matmul {}, [f([0, 2, 3]), f([3, 2])]);
        let i32s = |shape| int(shape, -9, 9);
        s.rough("integers", Matmul {}, [i32s([2, 3]), i32s([3, 2])]);
    };
    tolerance = tol(1e-5, 5e-3, 4e-2);
}

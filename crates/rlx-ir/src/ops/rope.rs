//! Rotary position embedding.

use crate::ops::cross_entropy::index_dtype;
use crate::prelude::*;
use crate::transform::vmap_through;

/// What the form of the op says about a head: its parts that turn, and the part that passes.
struct Halves<'g> {
    first: Var<'g>,
    second: Var<'g>,
    rest: Option<Var<'g>>,
}

/// x `[b, s, h]` as heads `[b, s, heads, …]`, with the pairs that turn together apart.
fn halves<'g>(x: Var<'g>, a: &Rope) -> Result<Halves<'g>> {
    let heads = x.dim(2).exact_div(&Dim::constant(a.head_dim));
    let heads = heads.ok_or_else(|| Error::new(Code::Dim, "the heads differ in size").axis(2))?;
    let x = x.reshape(vec![x.dim(0), x.dim(1), heads.clone(), Dim::constant(a.head_dim)]);
    let r = a.n_rot / 2;
    let (first, second) = if a.interleaved {
        let pairs = x.narrow(-1, 0, a.n_rot).reshape(vec![x.dim(0), x.dim(1), heads, r.into(), 2.into()]);
        (pairs.narrow(-1, 0, 1).squeeze(-1), pairs.narrow(-1, 1, 1).squeeze(-1))
    } else {
        (x.narrow(-1, 0, r), x.narrow(-1, r, r))
    };
    let rest = (a.n_rot < a.head_dim).then(|| x.narrow(-1, a.n_rot, a.head_dim - a.n_rot));
    Ok(Halves { first, second, rest })
}

/// The row of the tables for every position: `[b, s]`, or `[s]` if all rows of the batch have the same.
fn table_rows<'g>(x: Var<'g>, rows: &Dim, positions: Option<Var<'g>>) -> Var<'g> {
    let g = x.graph();
    let count = |p: Var<'g>| {
        let n = g.size_of(rows.clone(), p.dtype());
        // Below 0 the remainder is too, and counts from the end of the table: still modulo its rows.
        p.rem(n)
    };
    match positions {
        // A u64 may exceed every signed integer: its remainder does not.
        Some(p) if p.dtype() == DType::U64 => count(p),
        Some(p) => count(p.to(index_dtype(p.dtype()))),
        None => count(g.iota(vec![x.dim(1)], 0, DType::I32)),
    }
}

/// The entries of a table for every position and pair, so that they broadcast against the heads.
fn looked_up<'g>(table: Var<'g>, rows: Var<'g>, a: &Rope, dtype: DType) -> Var<'g> {
    table.narrow(1, 0, a.n_rot / 2).gather(rows, 0).to(dtype).unsqueeze(-2)
}

/// The gradients of the two tables: each entry collects from all positions and heads that used it.
fn table_grads<'g>(c: &VjpCx<'g>, a: &Rope) -> Result<[Var<'g>; 2]> {
    let [x, dy] = [c.x(0), c.dy(0)].map(Var::wide);
    let (x, dy) = (halves(x, a)?, halves(dy, a)?);
    let rows = table_rows(c.x(0), &c.x(1).dim(0), c.opt(3));
    let dcos = dy.first * x.first + dy.second * x.second;
    let dsin = dy.second * x.first - dy.first * x.second;
    let dsin = if a.inverse { -dsin } else { dsin };
    let collect = |d: Var<'g>, table: Var<'g>| {
        let per_position = d.sum(vec![2], false).to(table.dtype());
        let updates = if rows.rank() == 1 { per_position.sum(vec![0], false) } else { per_position };
        let columns = table.narrow(1, 0, a.n_rot / 2).zeros_like();
        let summed = columns.scatter(rows, updates, 0, crate::ops::scatter::ScatterMode::Add);
        let unused = table.dim(1) - a.n_rot / 2;
        summed.pad(0.0, vec![Dim::constant(0); 2], vec![Dim::constant(0), unused], vec![0, 0])
    };
    Ok([collect(dcos, c.x(1)), collect(dsin, c.x(2))])
}

ops! {
    /// Turns pairs of elements of each head by an angle that depends on the position.
    ///
    /// - x is `[b, s, heads · head_dim]`; cos and sin are `[positions, w]`, a row per position and a column per
    ///   pair, for any w from n_rot / 2 up. They may be of another float dtype than x.
    /// - The position is the index along s, or `positions[b, s]`, modulo the number of rows.
    /// - With r = n_rot / 2, element d < r of a head pairs with d + r (`interleaved`: 2d with 2d + 1) and turns
    ///   by column d: y₁ = x₁ · cos − x₂ · sin, y₂ = x₁ · sin + x₂ · cos. `inverse` turns back.
    /// - Elements from n_rot on pass unchanged.
    rope: Rope(x: Float, cos: Free, sin: Free, positions: opt Index)
        { head_dim: i64, n_rot: i64, interleaved: bool = false, inverse: bool = false } -> y;
    constraints = [
        "x has three axes",
        "1 <= head_dim <= 65536, and it divides axis 2 of x",
        "n_rot is even and 0 <= n_rot <= head_dim",
        "cos and sin are float, of one dtype and shape, and have two axes",
        "cos and sin have at least one row and n_rot / 2 columns",
        "positions have the shape of the first two axes of x",
    ];
    infer = |c, a| {
        c.rank(1, 0, 3)?;
        let h = c.dim(0, 2)?;
        if !(1..=65536).contains(&a.head_dim) || h.exact_div(&Dim::constant(a.head_dim)).is_none() {
            let text = format!("{h} elements in heads of {}", a.head_dim);
            return Err(c.fail(Code::Attribute, 2, text).operand("x").axis(2));
        }
        if a.n_rot < 0 || a.n_rot > a.head_dim || a.n_rot % 2 != 0 {
            return Err(c.fail(Code::Attribute, 3, format!("n_rot is {}, head_dim {}", a.n_rot, a.head_dim)));
        }
        let (cos, sin) = (c.ty(1)?, c.ty(2)?);
        if !cos.dtype.is_float() || sin.dtype != cos.dtype {
            let text = format!("cos is {}, sin is {}", cos.dtype, sin.dtype);
            return Err(c.fail(Code::DType, 4, text).operand("sin"));
        }
        c.rank(4, 1, 2)?;
        c.expect_shape(4, 2, &cos.shape)?;
        if !c.at_least(5, c.dim(1, 0)?, 1) {
            return Err(c.fail(Code::Dim, 5, "the tables have no rows").operand("cos").axis(0));
        }
        let w = c.dim(1, 1)?;
        if !c.at_least(5, w, a.n_rot / 2) {
            let text = format!("{w} columns for {} pairs", a.n_rot / 2);
            return Err(c.fail(Code::Dim, 5, text).operand("cos").axis(1));
        }
        if c.opt(3).is_some() {
            c.expect_shape(6, 3, &[c.dim(0, 0)?.clone(), c.dim(0, 1)?.clone()])?;
        }
        Ok(vec![c.ty(0)?.clone()])
    };
    body = |c, a| {
        let x = c.x(0).wide();
        let rows = table_rows(x, &c.x(1).dim(0), c.opt(3));
        let cos = looked_up(c.x(1), rows, a, x.dtype());
        let sin = looked_up(c.x(2), rows, a, x.dtype());
        let sin = if a.inverse { -sin } else { sin };
        let Halves { first, second, rest } = halves(x, a)?;
        let (y1, y2) = (first * cos - second * sin, first * sin + second * cos);
        let mut parts = if a.interleaved {
            let mut flat = y1.shape();
            flat.pop();
            flat.push(a.n_rot.into());
            vec![c.g.stack(&[y1, y2], -1).reshape(flat)]
        } else {
            vec![y1, y2]
        };
        parts.extend(rest);
        Ok(vec![c.g.concat(&parts, -1).reshape(x.shape()).to(c.x(0).dtype())])
    };
    vjp = |c, a| {
        let dx = c.dy(0).rope(c.x(1), c.x(2), c.opt(3), a.head_dim, a.n_rot, a.interleaved, !a.inverse);
        let [dcos, dsin] = match c.wants(1) || c.wants(2) {
            true => table_grads(c, a)?.map(Some),
            false => [None, None],
        };
        Ok([Some(dx), dcos, dsin, None].into())
    };
    vmap = |c, a| {
        if c.is_batched(1) || c.is_batched(2) {
            return vmap_through(c);
        }
        // Without tables of its own, a batch of batches is a longer batch.
        let fold = |v: Var<'_>| -> Shape {
            let shape = v.shape();
            std::iter::once(product(shape.get(..2).unwrap_or(&[]))).chain(shape.iter().skip(2).cloned()).collect()
        };
        let x = c.bx(0);
        let positions = c.bopt(3).map(|p| p.reshape(fold(p)));
        let folded = x.reshape(fold(x));
        let y = folded.rope(c.x(1), c.x(2), positions, a.head_dim, a.n_rot, a.interleaved, a.inverse);
        Ok(vec![y.reshape(x.shape())])
    };
    onnx = [rule("RotaryEmbedding", 23, onnx::attention::rotary_embedding)];
    samples = |s| {
        let a = Rope { head_dim: 4, n_rot: 4, interleaved: false, inverse: false };
        let table = || f([5, 2]);
        s.case("halves", a.clone(), [f([2, 3, 8]), table(), table()]);
        s.case("pairs", Rope { interleaved: true, ..a.clone() }, [f([2, 3, 8]), table(), table()]);
        s.case("inverse", Rope { inverse: true, ..a.clone() }, [f([1, 3, 4]), table(), table()]);
        let positions = int([2, 3], 0, 5);
        s.case("positions", a.clone(), [f([2, 3, 4]), table(), table(), positions.clone()]);
        s.case("wrapped", a.clone(), [f([1, 5, 4]), f([2, 2]), f([2, 2])]);
        let far = int([2, 3], 0, 5).values(&[-1.0, 7.0, 5.0, -6.0, 0.0, 120.0]).dtype(DType::I64);
        s.case("far_positions", a.clone(), [f([2, 3, 4]), table(), table(), far]);
        let partial = Rope { head_dim: 6, n_rot: 4, ..a.clone() };
        s.case("partial", partial.clone(), [f([1, 2, 12]), f([3, 2]), f([3, 2])]);
        s.case("wide_table", partial.clone(), [f([1, 3, 6]), f([3, 5]), f([3, 5])]);
        let partial_pairs = Rope { interleaved: true, inverse: true, ..partial };
        s.case("partial_pairs", partial_pairs, [f([1, 2, 6]), f([3, 3]), f([3, 3]), int([1, 2], 0, 9)]);
        s.case("nothing_turns", Rope { n_rot: 0, ..a.clone() }, [f([1, 2, 4]), f([2, 0]), f([2, 0])]);
        s.case("empty", a, [f([2, 0, 4]), table(), table()]);
    };
    tolerance = tol(2e-6, 2e-3, 2e-2);
}

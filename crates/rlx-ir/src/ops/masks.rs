//! Ops that place zeros by position: triangles and one-hot vectors.

use crate::prelude::*;

/// Row and column of each place in the last two axes, the row moved by `k`.
fn row_and_column<'g>(x: Var<'g>, k: i64) -> (Var<'g>, Var<'g>) {
    // No axis is longer than this, so a bound on k changes nothing and keeps the sum within i64.
    const FAR: i64 = 1 << 53;
    let (rows, columns) = (x.dim(-2), x.dim(-1));
    let row = x.graph().iota([rows, 1.into()], 0, DType::I64);
    (row + k.clamp(-FAR, FAR) as f64, x.graph().iota([columns], 0, DType::I64))
}

fn triangle(c: &Infer<'_>) -> Result<Vec<Type>> {
    c.rank_at_least(1, 0, 2)?;
    Ok(vec![c.ty(0)?.clone()])
}

ops! {
    /// The elements of the last two axes on and below diagonal k, the others 0: what has column − row <= k.
    tril: Tril(x: Any) { k: i64 = 0 } -> y;
    constraints = ["x has 2 axes at least"];
    infer = |c, _| triangle(c);
    body = |c, a| {
        let (row, column) = row_and_column(c.x(0), a.k);
        Ok(vec![row.greater_equal(column).select(c.x(0), c.x(0).scalar(0.0))])
    };
    vjp = |c, a| Ok([c.dy(0).tril(a.k)].into());
    vmap = |c, a| Ok(vec![c.x(0).tril(a.k)]);
    onnx = [rule("Trilu", 14, |c| {
        let k = c.int_at("k", 1)?.unwrap_or(0);
        Ok(vec![if c.flag("upper", true)? { c.x(0)?.triu(k) } else { c.x(0)?.tril(k) }])
    })];
    samples = |s| {
        s.case("square", Tril { k: 0 }, [f([3, 3])]);
        s.case("above", Tril { k: 1 }, [f([2, 2, 4])]);
        s.case("below", Tril { k: -1 }, [f([4, 2])]);
        s.case("far", Tril { k: i64::MIN }, [f([2, 2])]);
        s.case("empty", Tril { k: 0 }, [f([0, 2])]);
        s.rough("bool", Tril { k: 0 }, [boolean([2, 3])]);
    };

    /// The elements of the last two axes on and above diagonal k, the others 0: what has column − row >= k.
    triu: Triu(x: Any) { k: i64 = 0 } -> y;
    constraints = ["x has 2 axes at least"];
    infer = |c, _| triangle(c);
    body = |c, a| {
        let (row, column) = row_and_column(c.x(0), a.k);
        Ok(vec![row.less_equal(column).select(c.x(0), c.x(0).scalar(0.0))])
    };
    vjp = |c, a| Ok([c.dy(0).triu(a.k)].into());
    vmap = |c, a| Ok(vec![c.x(0).triu(a.k)]);
    samples = |s| {
        s.case("square", Triu { k: 0 }, [f([3, 3])]);
        s.case("above", Triu { k: 1 }, [f([2, 2, 4])]);
        s.case("below", Triu { k: -1 }, [f([4, 2])]);
        s.case("far", Triu { k: i64::MAX }, [f([2, 2])]);
        s.case("empty", Triu { k: 0 }, [f([0, 2])]);
        s.rough("bool", Triu { k: 0 }, [boolean([2, 3])]);
    };

    /// A new axis of `depth` places for each index: 1 at the index, 0 elsewhere. A negative index counts from
    /// the end; one out of range gives zeros only.
    one_hot: OneHot(indices: Index) { depth: Dim, axis: i64 = -1, dtype: DType = DType::F32 } -> y;
    constraints = ["the axis exists in the result", "depth is not negative", "dtype is not packed"];
    infer = |c, a| {
        let x = c.ty(0)?;
        let axis = c.axis_of(1, 0, a.axis, x.rank() + 1)?;
        if !c.at_least(2, &a.depth, 0) {
            return Err(c.fail(Code::Attribute, 2, format!("depth is {}", a.depth)));
        }
        if a.dtype.is_packed() {
            return Err(c.fail(Code::DType, 3, format!("dtype is {}", a.dtype)));
        }
        let mut shape = x.shape.clone();
        shape.insert(axis, a.depth.clone());
        Ok(vec![Type::new(a.dtype, shape)])
    };
    body = |c, a| {
        let x = c.x(0);
        let axis = resolve_axis(a.axis, x.rank() + 1)?;
        // What an i64 does not hold is beyond every depth, and must stay so.
        let x = if x.dtype() == DType::U64 { x.minimum(x.size_scalar(&a.depth)) } else { x };
        let x = x.to(DType::I64).unsqueeze(axis as i64);
        let from_start = x.less(0.0).select(x + x.size_scalar(&a.depth), x);
        let place = |i| if i == axis { a.depth.clone() } else { Dim::constant(1) };
        let places = c.g.iota((0..x.rank()).map(place).collect::<Vec<_>>(), axis as i64, DType::I64);
        Ok(vec![from_start.equal(places).to(a.dtype)])
    };
    vmap = |c, a| {
        let axis = resolve_axis(a.axis, c.rank(0) + 1)? as i64 + 1;
        Ok(vec![c.x(0).one_hot(a.depth.clone(), axis, a.dtype)])
    };
    onnx = [rule("OneHot", 9, crate::onnx::indices::one_hot)];
    samples = |s| {
        s.rough("last", OneHot { depth: 4.into(), axis: -1, dtype: DType::F32 }, [int([2, 3], 0, 4)]);
        s.rough("first", OneHot { depth: 3.into(), axis: 0, dtype: DType::I32 }, [int([2, 2], 0, 3)]);
        s.rough("outside", OneHot { depth: 3.into(), axis: 1, dtype: DType::Bool }, [int([8], 0, 1).values(&[
            -5.0, -4.0, -3.0, -1.0, 0.0, 2.0, 3.0, 9.0,
        ])]);
        let byte = int([], 255, 256).dtype(DType::U8);
        s.rough("narrow_index", OneHot { depth: 300.into(), axis: 0, dtype: DType::F32 }, [byte]);
        s.rough("nothing", OneHot { depth: 0.into(), axis: -1, dtype: DType::F32 }, [int([2], 0, 1)]);
    };
}

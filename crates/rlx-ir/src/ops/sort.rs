//! Sorting along an axis. NaN counts as the largest value, as in PyTorch.

use crate::ops::scatter::ScatterMode;
use crate::prelude::*;
use std::cmp::Ordering;

fn order(a: Num, b: Num) -> Ordering {
    match (a, b) {
        (Num::I(a), Num::I(b)) => a.cmp(&b),
        (a, b) => {
            let (a, b) = (a.f(), b.f());
            a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
        }
    }
}

/// The gradient of picking elements along an axis by index.
fn put_back<'g>(c: &VjpCx<'g>, axis: i64) -> Grads<'g> {
    [c.x(0).zeros_like().scatter_elements(c.y(1), c.dy(0), axis, ScatterMode::Add)].into()
}

ops! {
    /// x in order along an axis, and where each element came from. Equal elements keep their order, in both
    /// directions; NaN is larger than every number.
    sort: Sort(x: Any) { axis: i64 = -1, descending: bool = false } -> (values, indices);
    constraints = ["the axis exists"];
    infer = |c, a| {
        c.axis(1, 0, a.axis)?;
        let x = c.ty(0)?;
        Ok(vec![x.clone(), x.with_dtype(DType::I64)])
    };
    step = |c, a| Ok(Step::Sort { axis: resolve_axis(a.axis, c.ty(0)?.rank())?, descending: a.descending });
    eval = |e, a| {
        let x = e.x(0)?;
        let axis = resolve_axis(a.axis, x.rank())?;
        let n = x.shape().get(axis).copied().unwrap_or(0);
        let lines: Vec<usize> = x.shape().iter().enumerate().map(|(i, d)| if i == axis { 1 } else { *d }).collect();
        let inner: usize = x.shape().iter().skip(axis + 1).product();
        let mut from = vec![0; x.len()];
        let mut it = crate::oracle::Indices::new(&lines);
        while let Some(ix) = it.next() {
            let first = x.offset(ix);
            let mut line: Vec<usize> = (0..n).collect();
            line.sort_by(|i, j| {
                let o = order(x.flat(first + i * inner), x.flat(first + j * inner));
                if a.descending { o.reverse() } else { o }
            });
            for (to, i) in line.into_iter().enumerate() {
                if let Some(slot) = from.get_mut(first + to * inner) {
                    *slot = i;
                }
            }
        }
        let pick = |ix: &[usize]| from.get(x.offset(ix)).copied().unwrap_or(0);
        let values = e.make(0, |ix| {
            let mut source = ix.to_vec();
            if let Some(slot) = source.get_mut(axis) {
                *slot = pick(ix);
            }
            x.at(&source)
        })?;
        Ok(vec![values, e.make(1, |ix| Num::I(pick(ix) as i128))?])
    };
    vjp = |c, a| Ok(put_back(c, a.axis));
    vmap = |c, a| Ok(c.x(0).sort(c.shift(0, a.axis)?, a.descending).into());
    samples = |s| {
        s.case("rows", Sort { axis: -1, descending: false }, [f([3, 5]).distinct(-1.0, 1.0)]);
        s.case("columns", Sort { axis: 0, descending: true }, [f([4, 2, 2]).distinct(-1.0, 1.0)]);
        let odd = f([8]).values(&[1.0, f64::NAN, -1.0, 1.0, f64::INFINITY, 0.0, -0.0, f64::NEG_INFINITY]);
        s.rough("special", Sort { axis: 0, descending: false }, [odd.clone()]);
        s.rough("special_descending", Sort { axis: 0, descending: true }, [odd]);
        s.rough("integers", Sort { axis: 0, descending: false }, [int([7, 2], -3, 3)]);
        s.case("empty", Sort { axis: 0, descending: false }, [f([0, 2])]);
    };

    /// Where the elements of x stand that are in order along an axis: the indices of `sort`.
    argsort: Argsort(x: Any) { axis: i64 = -1, descending: bool = false } -> indices;
    constraints = ["the axis exists"];
    infer = |c, a| {
        c.axis(1, 0, a.axis)?;
        Ok(vec![c.ty(0)?.with_dtype(DType::I64)])
    };
    body = |c, a| {
        let [_, indices] = c.x(0).sort(a.axis, a.descending);
        Ok(vec![indices])
    };
    vmap = |c, a| Ok(vec![c.x(0).argsort(c.shift(0, a.axis)?, a.descending)]);
    samples = |s| {
        s.rough("rows", Argsort { axis: -1, descending: false }, [f([3, 5])]);
        s.rough("ties", Argsort { axis: 0, descending: true }, [int([6, 2], 0, 3)]);
    };

    /// The k largest elements along an axis, largest first, and where they stand; the smallest if not
    /// `largest`. Equal elements keep their order; NaN is larger than every number.
    top_k: TopK(x: Any) { k: i64, axis: i64 = -1, largest: bool = true } -> (values, indices);
    constraints = ["the axis exists", "k is not negative and at most the axis"];
    infer = |c, a| {
        let (x, axis) = (c.ty(0)?, c.axis(1, 0, a.axis)?);
        let n = c.dim(0, axis)?;
        if a.k < 0 || !c.at_least(2, n, a.k) {
            return Err(c.fail(Code::Size, 2, format!("{} of {n}", a.k)).operand("x").axis(axis));
        }
        let values = x.clone().with_axis(axis, Dim::constant(a.k));
        let indices = values.with_dtype(DType::I64);
        Ok(vec![values, indices])
    };
    body = |c, a| Ok(c.x(0).sort(a.axis, a.largest).map(|y| y.narrow(a.axis, 0, a.k)).into());
    vjp = |c, a| Ok(put_back(c, a.axis));
    vmap = |c, a| Ok(c.x(0).top_k(a.k, c.shift(0, a.axis)?, a.largest).into());
    onnx = [rule("TopK", 1, |c| {
        // Without `sorted` any order will do.
        let k = c.int_at("k", 1)?.ok_or_else(|| Error::new(Code::Operands, "k is missing"))?;
        Ok(c.x(0)?.top_k(k, c.int_or("axis", -1)?, c.flag("largest", true)?).into())
    })];
    samples = |s| {
        s.case("largest", TopK { k: 2, axis: -1, largest: true }, [f([3, 5]).distinct(-1.0, 1.0)]);
        s.case("smallest", TopK { k: 3, axis: 0, largest: false }, [f([4, 2]).distinct(-1.0, 1.0)]);
        s.rough("ties", TopK { k: 4, axis: 0, largest: true }, [int([6], 0, 2)]);
        s.case("none", TopK { k: 0, axis: 0, largest: true }, [f([3, 2])]);
    };
}

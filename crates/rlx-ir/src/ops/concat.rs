//! Joining tensors and taking them apart.

use crate::prelude::*;

ops! {
    /// The tensors one after the other along an axis.
    concat: Concat(xs: many Any) { axis: i64 } -> y;
    constraints = ["there is at least one tensor", "all have the same number of axes", "all other axes agree",
        "the axis exists"];
    infer = |c, a| {
        let first = c.ty(0).map_err(|_| c.fail(Code::Operands, 1, "nothing to join"))?;
        let axis = c.axis(4, 0, a.axis)?;
        let mut total = c.dim(0, axis)?.clone();
        for i in 1..c.operands.len() {
            c.rank(2, i, first.rank())?;
            for k in (0..first.rank()).filter(|k| *k != axis) {
                c.same_dim(3, (0, k), (i, k))?;
            }
            total += c.dim(i, axis)?;
        }
        Ok(vec![first.clone().with_axis(axis, total)])
    };
    step = |c, a| Ok(Step::Concat(resolve_axis(a.axis, c.ty(0)?.rank())?));
    eval = |e, a| {
        let xs = e.given();
        let axis = resolve_axis(a.axis, e.x(0)?.rank())?;
        Ok(vec![e.make(0, |ix| {
            let mut from = ix.to_vec();
            for x in &xs {
                let n = x.shape().get(axis).copied().unwrap_or(0);
                match from.get_mut(axis) {
                    Some(k) if *k >= n => *k -= n,
                    _ => return x.at(&from),
                }
            }
            Num::I(0)
        })?])
    };
    vjp = |c, a| {
        let mut start = Dim::constant(0);
        let part = |x: &Option<Var<'_>>| x.map(|x| {
            let n = x.dim(a.axis);
            let dx = c.dy(0).narrow(a.axis, start.clone(), n.clone());
            start = &start + n;
            dx
        });
        Ok(c.operands.iter().map(part).collect::<Vec<_>>().into())
    };
    vmap = |c, a| {
        let xs: Vec<_> = c.all_batched().into_iter().flatten().collect();
        Ok(vec![c.g.concat(&xs, c.shift(0, a.axis)?)])
    };
    onnx = [rule("Concat", 1, |c| {
        // The first operator sets had a default.
        let axis = c.int("axis")?.or((c.opset < 4).then_some(1));
        let axis = axis.ok_or_else(|| Error::new(Code::Attribute, "attribute axis is missing"))?;
        Ok(vec![match c.given()[..] {
            [x] => x,
            ref xs => c.g.concat(xs, axis),
        }])
    })];
    samples = |s| {
        s.case("rows", Concat { axis: 0 }, [f([2, 3]), f([1, 3]), f([3, 3])]);
        s.case("columns", Concat { axis: -1 }, [f([2, 3]), f([2, 1])]);
        s.case("one", Concat { axis: 0 }, [f([4])]);
        s.case("empty", Concat { axis: 1 }, [f([2, 0]), f([2, 2])]);
    };

    /// x cut along an axis into parts of the given sizes.
    split: Split(x: Any) { axis: i64, sizes: Dims } -> [parts];
    constraints = [
        "the axis exists",
        "there is at least one part",
        "no size is negative",
        "the sizes add up to the axis",
    ];
    infer = |c, a| {
        let (x, axis) = (c.ty(0)?, c.axis(1, 0, a.axis)?);
        if a.sizes.is_empty() {
            return Err(c.fail(Code::Attribute, 2, "no sizes"));
        }
        if let Some(n) = a.sizes.iter().find(|n| !c.at_least(3, n, 0)) {
            return Err(c.fail(Code::Attribute, 3, format!("a part of {n}")));
        }
        let total = a.sizes.iter().fold(Dim::constant(0), |t, n| t + n);
        if total.unify(c.dim(0, axis)?).is_none() {
            let text = format!("axis {axis} of x is {}, but the parts are {total}", c.dim(0, axis)?);
            return Err(c.fail(Code::Dim, 4, text).operand("x").axis(axis).sizes(&total, c.dim(0, axis)?));
        }
        let part = |n: &Dim| {
            let sized = |(i, d): (usize, &Dim)| if i == axis { n.clone() } else { d.clone() };
            x.with_shape(x.shape.iter().enumerate().map(sized).collect::<Shape>())
        };
        Ok(a.sizes.iter().map(part).collect())
    };
    body = |c, a| {
        let mut start = Dim::constant(0);
        let part = |n: &Dim| {
            let y = c.x(0).narrow(a.axis, start.clone(), n.clone());
            start = &start + n;
            y
        };
        Ok(a.sizes.iter().map(part).collect())
    };
    vjp = |c, a| {
        let parts: Vec<_> = (0..c.results.len()).map(|i| c.dy(i)).collect();
        Ok([c.g.concat(&parts, a.axis)].into())
    };
    vmap = |c, a| Ok(c.x(0).split(c.shift(0, a.axis)?, a.sizes.clone()));
    onnx = [rule("Split", 1, crate::onnx::slices::split)];
    samples = |s| {
        s.case("columns", Split { axis: -1, sizes: [1, 2, 1].into() }, [f([2, 4])]);
        s.case("rows", Split { axis: 0, sizes: [2, 1].into() }, [f([3, 2])]);
        s.case("one", Split { axis: 0, sizes: [3].into() }, [f([3])]);
        s.case("empty_part", Split { axis: 0, sizes: [0, 2].into() }, [f([2])]);
    };
}

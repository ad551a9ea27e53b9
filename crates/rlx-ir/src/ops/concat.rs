//! Joining tensors.

use crate::prelude::*;

ops! {
    /// The tensors one after the other along an axis.
    concat: Concat(xs: many Any) { axis: i64 } -> y;
    constraints = ["there is at least one tensor", "all have the same number of axes", "all other axes agree"];
    infer = |c, a| {
        let first = c.ty(0).map_err(|_| c.fail(Code::Operands, 1, "nothing to join"))?;
        let axis = c.axis(0, a.axis)?;
        let mut shape = first.shape.clone();
        for i in 1..c.operands.len() {
            c.rank(2, i, first.rank())?;
            for k in (0..first.rank()).filter(|k| *k != axis) {
                c.same_dim(3, (0, k), (i, k))?;
            }
            shape[axis] = &shape[axis] + c.dim(i, axis)?;
        }
        Ok(vec![first.with_shape(shape)])
    };
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
    onnx = ["Concat"];
    samples = |s| {
        s.case("rows", Concat { axis: 0 }, [f([2, 3]), f([1, 3]), f([3, 3])]);
        s.case("columns", Concat { axis: -1 }, [f([2, 3]), f([2, 1])]);
        s.case("one", Concat { axis: 0 }, [f([4])]);
        s.case("empty", Concat { axis: 1 }, [f([2, 0]), f([2, 2])]);
    };
}

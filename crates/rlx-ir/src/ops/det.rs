//! The determinant.

use crate::prelude::*;

/// The body has a few nodes per row.
const MAX_ROWS: i64 = 64;

ops! {
    /// The determinant of the matrices in the last two axes, by elimination with the largest pivot of each column. A matrix
    /// without rows has 1. The gradient is that of the elimination: where x is singular it is not what limits would give.
    det: Det(x: Float) -> y;
    constraints = ["x has 2 axes at least", "the last two have one constant size, at most 64"];
    infer = |c, _| {
        c.rank_at_least(1, 0, 2)?;
        let x = c.ty(0)?;
        let rows = c.dim(0, x.rank() - 2)?;
        c.expect_dim(2, 0, x.rank() - 1, rows)?;
        if rows.as_const().is_none_or(|n| n > MAX_ROWS) {
            return Err(c.fail(Code::Dim, 2, format!("{rows} rows")).operand("x").axis(x.rank() - 2));
        }
        Ok(vec![x.with_shape(x.leading(2))])
    };
    body = |c, _| {
        let mut m = c.x(0).wide();
        let lead = m.ty().leading(2).to_vec();
        let mut det = c.g.full(m.dtype(), &lead, 1.0);
        for rows in (1..=m.dim(-1).as_const().unwrap_or(0)).rev() {
            let (zero, one) = (m.scalar(0.0), m.scalar(1.0));
            let place = m.narrow(-1, 0, 1).abs().argmax(-2, true, false);
            let here = c.g.iota([rows, 1], 0, DType::I64).equal(place);
            let pivot_row = here.select(m, zero).sum(vec![-2], true);
            let pivot = pivot_row.narrow(-1, 0, 1);
            let sign = place.equal(0.0).select(one, -one);
            det = det * (pivot * sign).reshape(&lead);
            // The first row goes where the pivot's was.
            let others = here.select(m.narrow(-2, 0, 1), m).narrow(-2, 1, rows - 1);
            // A pivot of 0 has nothing but zeros below.
            let by = others.narrow(-1, 0, 1) / pivot.equal(zero).select(one, pivot);
            m = others.narrow(-1, 1, rows - 1) - by * pivot_row.narrow(-1, 1, rows - 1);
        }
        Ok(vec![det.to(c.x(0).dtype())])
    };
    onnx = [same("Det")];
    samples = |s| {
        s.case("three", Det {}, [f([3, 3]).distinct(-1.5, 1.5)]);
        s.case("batch", Det {}, [f([2, 3, 2, 2]).distinct(-1.5, 1.5)]);
        s.case("turned", Det {}, [f([3, 3]).values(&[0.0, 2.0, 1.0, 1.5, 0.0, 0.5, 0.25, 1.0, 0.0])]);
        s.case("one", Det {}, [f([2, 1, 1])]);
        s.rough("singular", Det {}, [f([3, 3]).values(&[1.0])]);
        s.rough("zero", Det {}, [f([2, 2]).values(&[0.0])]);
        s.case("no_rows", Det {}, [f([2, 0, 0])]);
        s.case("empty", Det {}, [f([0, 2, 2])]);
    };
    tolerance = tol(2e-5, 4e-3, 3e-2);
}

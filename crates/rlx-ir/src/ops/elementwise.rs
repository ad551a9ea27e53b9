//! Element-wise ops: each a function of the scalar language, or a body over such functions.

use crate::prelude::*;
use crate::tensor::Tensor;

ops! {
    /// Data written in the graph.
    constant: Constant() { value: Tensor } -> value;
    infer = |_, a| Ok(vec![a.value.ty()]);
    eval = |_, a| Ok(vec![Arr::from_tensor(&a.value)?]);
    onnx = ["Constant"];

    /// x + y.
    add: Add(x: Num, y: Num) -> z;
    scalar = Scalar::Add;
    vjp = |c, _| Ok([c.dy(0).sum_to(c.x(0)), c.dy(0).sum_to(c.x(1))].into());
    onnx = ["Add"];
    samples = |s| s.binary((-1.5, 1.5), (-1.5, 1.5));

    /// x · y.
    mul: Mul(x: Num, y: Num) -> z;
    scalar = Scalar::Mul;
    vjp = |c, _| Ok([(c.dy(0) * c.x(1)).sum_to(c.x(0)), (c.dy(0) * c.x(0)).sum_to(c.x(1))].into());
    onnx = ["Mul"];
    samples = |s| s.binary((-1.5, 1.5), (-1.5, 1.5));

    /// x − y.
    sub: Sub(x: Num, y: Num) -> z;
    scalar = Scalar::Sub;
    vjp = |c, _| Ok([c.dy(0).sum_to(c.x(0)), (-c.dy(0)).sum_to(c.x(1))].into());
    onnx = ["Sub"];
    samples = |s| s.binary((-1.5, 1.5), (-1.5, 1.5));

    /// x / y. Integers are cut toward zero; an integer divided by 0 is 0.
    div: Div(x: Num, y: Num) -> z;
    scalar = Scalar::Div;
    vjp = |c, _| {
        let dx = c.dy(0) / c.x(1);
        Ok([dx.sum_to(c.x(0)), (-dx * c.y(0)).sum_to(c.x(1))].into())
    };
    onnx = ["Div"];
    samples = |s| s.binary((-1.5, 1.5), (0.5, 2.0));

    /// The remainder of x / y with the sign of x; an integer by 0 gives 0.
    rem: Rem(x: Num, y: Num) -> z;
    scalar = Scalar::Rem;
    vjp = |c, _| {
        let whole = (c.x(0) / c.x(1)).trunc();
        Ok([c.dy(0).sum_to(c.x(0)), (-c.dy(0) * whole).sum_to(c.x(1))].into())
    };
    onnx = ["Mod"];
    samples = |s| s.binary((5.1, 5.9), (2.1, 2.4));

    /// −x.
    neg: Neg(x: Num) -> y;
    scalar = Scalar::Neg;
    vjp = |c, _| Ok([-c.dy(0)].into());
    onnx = ["Neg"];
    samples = |s| s.unary(-1.5, 1.5);

    /// x cut toward zero.
    trunc: Trunc(x: Num) -> y;
    scalar = Scalar::Trunc;
    samples = |s| s.unary(1.1, 1.9);

    /// `if_true` where the condition holds, else `if_false`.
    select: Select(condition: Bool, if_true: Any, if_false: Any) -> y;
    scalar = Scalar::Select;
    infer = |c, _| Ok(vec![Type::new(c.ty(1)?.dtype, c.broadcast_all()?)]);
    vjp = |c, _| {
        let (dy, zero) = (c.dy(0), c.y(0).zeros_like());
        Ok([None, Some(c.x(0).select(dy, zero).sum_to(c.x(1))), Some(c.x(0).select(zero, dy).sum_to(c.x(2)))].into())
    };
    onnx = ["Where"];
    samples = |s| {
        s.case("same", Select {}, [boolean([3, 4]), f([3, 4]), f([3, 4])]);
        s.case("broadcast", Select {}, [boolean([3, 1]), f([4]), f([])]);
        s.case("empty", Select {}, [boolean([0]), f([0]), f([1])]);
    };

    /// Whether x > y; false if either is NaN.
    greater: Greater(x: Any, y: Any) -> z;
    scalar = Scalar::Gt;
    infer = |c, _| Ok(vec![Type::new(DType::Bool, c.broadcast_all()?)]);
    onnx = ["Greater"];
    samples = |s| s.binary((-1.5, 1.5), (-1.5, 1.5));

    /// x · x.
    square: Square(x: Num) -> y;
    each = |c, _| Ok(vec![c.x(0) * c.x(0)]);
    samples = |s| s.unary(-1.5, 1.5);

    /// x as another dtype. Floats are rounded to nearest, ties to even; floats become integers by cutting toward zero
    /// and clamping (NaN gives 0); integers wrap; bool is `x != 0`.
    cast: Cast(x: Any) { dtype: DType } -> y;
    constraints = ["dtype is not packed"];
    infer = |c, a| {
        if a.dtype.is_packed() {
            return Err(c.fail(Code::DType, 1, format!("{} is packed: use quantize", a.dtype)));
        }
        Ok(vec![c.ty(0)?.with_dtype(a.dtype)])
    };
    eval = |e, a| {
        let x = e.x(0)?;
        let range = a.dtype.int_range();
        Ok(vec![e.make(0, |ix| match (x.at(ix), range) {
            (v, _) if a.dtype == DType::Bool => Num::I(v.truth() as i128),
            (Num::F(v), Some((lo, hi))) => Num::I((v as i128).clamp(lo, hi)),
            (v, Some(_)) => v,
            (v, None) => Num::F(a.dtype.round_f64(v.f())),
        })?])
    };
    vjp = |c, _| Ok([c.x(0).dtype().is_float().then(|| c.dy(0).cast(c.x(0).dtype()))].into());
    vmap = |c, a| Ok(vec![c.x(0).cast(a.dtype)]);
    onnx = ["Cast", "CastLike"];
    samples = |s| {
        s.case("widen", Cast { dtype: DType::F64 }, [f([3, 4])]);
        s.rough("narrow", Cast { dtype: DType::F16 }, [f([3, 4])]);
        s.rough("to_int", Cast { dtype: DType::I8 }, [f([7]).values(&[-1e9, -128.6, -0.9, 0.9, 127.4, 300.0, 1e30])]);
        s.rough("to_bool", Cast { dtype: DType::Bool }, [f([4]).values(&[0.0, -0.0, 0.1, -3.0])]);
        s.rough("from_int", Cast { dtype: DType::F32 }, [int([4], -100, 100)]);
    };
}

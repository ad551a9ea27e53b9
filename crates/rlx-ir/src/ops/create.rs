//! Ops that make values from nothing but attributes.

use crate::prelude::*;

ops! {
    /// A size as a number: symbolic sizes become values here.
    size_of: SizeOf() { value: Dim, dtype: DType = DType::I64 } -> n;
    constraints = ["dtype is a float or an integer"];
    infer = |c, a| {
        if !a.dtype.is_float() && !a.dtype.is_int() {
            return Err(c.fail(Code::DType, 1, format!("{} cannot hold a size", a.dtype)));
        }
        Type::new(a.dtype, vec![a.value.clone()]).check()?;
        Ok(vec![Type::new(a.dtype, vec![])])
    };
    step = |_, a| Ok(Step::SizeOf(a.value));
    eval = |e, a| { let n = e.n(&a.value)?; Ok(vec![e.make(0, |_| Num::I(n as i128))?]) };
    onnx = [same("Size")];
    samples = |s| s.rough("seven", SizeOf { value: 7.into(), dtype: DType::F32 }, []);

    /// The index along one axis.
    iota: Iota() { shape: Dims, axis: i64, dtype: DType = DType::I64 } -> y;
    constraints = ["dtype is a float or an integer", "the axis exists"];
    infer = |c, a| {
        if !a.dtype.is_float() && !a.dtype.is_int() {
            return Err(c.fail(Code::DType, 1, format!("{} cannot count", a.dtype)));
        }
        resolve_axis(a.axis, a.shape.len()).map_err(|e| c.breaks(2, e))?;
        Ok(vec![Type::new(a.dtype, &a.shape[..])])
    };
    step = |_, a| Ok(Step::Iota(resolve_axis(a.axis, a.shape.len())?));
    eval = |e, a| {
        let axis = resolve_axis(a.axis, e.out(0)?.1.len())?;
        Ok(vec![e.make(0, |ix| Num::I(ix.get(axis).map_or(0, |i| *i as i128)))?])
    };
    onnx = [same("Range"), same("EyeLike")];
    samples = |s| {
        s.rough("rows", Iota { shape: [3, 2].into(), axis: 0, dtype: DType::I32 }, []);
        s.rough("columns", Iota { shape: [3, 2].into(), axis: -1, dtype: DType::F32 }, []);
        s.rough("empty", Iota { shape: [0].into(), axis: 0, dtype: DType::I64 }, []);
    };
}

//! Ops that make values from nothing but attributes.

use crate::prelude::*;
use crate::tensor::Tensor;

/// The sizes of x, or some of them, as a vector.
fn onnx_shape<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let shape = c.x(0)?.shape();
    let n = shape.len() as i64;
    let place = |at: i64| if at < 0 { at.saturating_add(n) } else { at }.clamp(0, n) as usize;
    let (from, to) = (place(c.int_or("start", 0)?), place(c.int_or("end", n)?));
    let wanted = shape.get(from..to.max(from)).unwrap_or_default();
    let numbers: Option<Vec<i64>> = wanted.iter().map(Dim::as_const).collect();
    if let Some(numbers) = numbers {
        return Ok(vec![c.g.constant(Tensor::new(&[numbers.len()], &numbers)?)]);
    }
    let sizes: Vec<Var<'g>> = wanted.iter().map(|d| c.g.size_of(d.clone(), DType::I64).reshape([1])).collect();
    Ok(vec![if let [one] = sizes[..] { one } else { c.g.concat(&sizes, 0) }])
}

/// Numbers from a start to a limit. How many they are must be known, and may be symbolic.
fn onnx_range<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let [start, _, step] = c.xs()?;
    let ratio = |i: usize| -> Result<(Dim, i64)> {
        let of_floats = || c.cannot(format!("operand {i} decides a shape, but is no simple fraction"));
        c.known(i)?.ratios().and_then(|v| v.into_iter().next()).ok_or_else(of_floats)
    };
    let numbers: Option<Vec<f64>> = (0..3)
        .map(|i| c.known(i).map(|k| k.floats().and_then(|v| v.first().copied())))
        .collect::<Result<Option<Vec<f64>>>>()?;
    let count = match numbers.as_deref() {
        Some([from, to, by]) => {
            let n = ((to - from) / by).ceil();
            if *by == 0.0 || n.is_nan() || n > f64::from(i32::MAX) {
                return Err(Error::new(Code::Size, format!("from {from} to {to} by {by}")));
            }
            Dim::constant(n.max(0.0) as i64)
        }
        _ => {
            // (b/m − a/n) / (p/q), rounded up.
            let ((a, n), (b, m), (p, q)) = (ratio(0)?, ratio(1)?, ratio(2)?);
            let by = p.as_const().filter(|p| *p != 0).ok_or_else(|| c.cannot("a step that depends on sizes"))?;
            let gap = (b * n - a * m) * q * by.signum();
            gap.ceil_div(n.saturating_mul(m).saturating_mul(by.saturating_abs()))
        }
    };
    let dtype = start.dtype();
    // Half floats count in the dtype that `stash_type` names, by default f32.
    let wide = match c.dtype("stash_type")? {
        Some(stash) if dtype.is_float() && dtype != DType::F64 => stash,
        _ if dtype.is_float() => dtype.wide(),
        _ => dtype,
    };
    let [start, step] = [start, step].map(|v| v.reshape(Dims(vec![])).to(wide));
    Ok(vec![(c.g.iota([count], 0, wide) * step + start).to(dtype)])
}

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
    onnx = [
        rule("Size", 1, |c| Ok(vec![c.g.size_of(c.x(0)?.ty().numel(), DType::I64)])),
        rule("Shape", 1, onnx_shape),
    ];
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
    onnx = [
        rule("Range", 11, onnx_range),
        rule("EyeLike", 9, |c| {
            let x = c.x(0)?;
            let dtype = c.dtype("dtype")?.unwrap_or(x.dtype());
            let row = c.g.iota([x.dim(0), 1.into()], 0, DType::I64);
            let diagonal = row + c.int_or("k", 0)? as f64;
            let ones = diagonal.equal(c.g.iota([x.dim(1)], 0, DType::I64));
            Ok(vec![ones.to(dtype)])
        }),
        rule("NonZero", 9, crate::onnx::indices::non_zero),
        rule("ConstantOfShape", 9, |c| {
            let shape = c.dims(0)?;
            let value = match c.tensor("value")? {
                Some(t) => c.g.constant(t.clone()).reshape(Dims(vec![])),
                None => c.g.scalar(DType::F32, 0.0),
            };
            Ok(vec![if shape.is_empty() { value } else { value.broadcast(shape) }])
        }),
    ];
    samples = |s| {
        s.rough("rows", Iota { shape: [3, 2].into(), axis: 0, dtype: DType::I32 }, []);
        s.rough("columns", Iota { shape: [3, 2].into(), axis: -1, dtype: DType::F32 }, []);
        s.rough("empty", Iota { shape: [0].into(), axis: 0, dtype: DType::I64 }, []);
    };
}

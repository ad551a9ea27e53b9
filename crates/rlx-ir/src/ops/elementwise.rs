//! Element-wise ops: each a function of the scalar language, or a body over such functions.

use crate::onnx::narrow;
use crate::prelude::*;
use crate::tensor::Tensor;

/// The shape rule of comparisons.
fn truths(c: &Infer<'_>) -> Result<Vec<Type>> {
    Ok(vec![Type::new(DType::Bool, c.broadcast_all()?)])
}

/// The shape rule of shifts.
fn shifted(c: &Infer<'_>) -> Result<Vec<Type>> {
    if c.ty(0)?.dtype == DType::Bool {
        return Err(c.fail(Code::DType, 1, "a bool cannot be shifted").operand("x"));
    }
    c.elementwise()
}

fn compared<A: Attributes + Clone>(s: &mut Samples, a: A) {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    s.binary((-1.5, 1.5), (-1.5, 1.5));
    let special = [f([5]).values(&[1.0, -0.0, inf, nan, nan]), f([5]).values(&[1.0, 0.0, -inf, 1.0, nan])];
    s.rough("special", a.clone(), special);
    s.rough("int", a.clone(), [int([5, 1], -2, 3), int([4], -2, 3)]);
    s.rough("bool", a, [boolean([4, 1]), boolean([3])]);
}

fn bitwise<A: Attributes + Clone>(s: &mut Samples, a: A) {
    s.rough("bool", a.clone(), [boolean([4, 1]), boolean([3])]);
    s.rough("int", a.clone(), [int([3, 2], -9, 9), int([2], -9, 9)]);
    s.rough("u8", a.clone(), [int([5], 0, 256).dtype(DType::U8), int([], 0, 256).dtype(DType::U8)]);
    s.rough("empty", a, [boolean([0]), boolean([1])]);
}

fn shifts<A: Attributes + Clone>(s: &mut Samples, a: A) {
    let count = || int([6], 0, 1).values(&[0.0, 1.0, 7.0, 31.0, 32.0, -1.0]);
    s.rough("int", a.clone(), [int([5, 1], -99, 99), count()]);
    s.rough("u8", a.clone(), [int([7], 0, 256).dtype(DType::U8), int([7], 0, 10).dtype(DType::U8)]);
    s.rough("empty", a, [int([0], 0, 9), int([1], 0, 9)]);
}

/// All operands joined, from the first to the last.
fn joined<'g>(c: &Call<'g, '_>, join: fn(Var<'g>, Var<'g>) -> Var<'g>) -> Result<Vec<Var<'g>>> {
    let first = c.given().into_iter().reduce(join);
    first.map(|y| vec![y]).ok_or_else(|| Error::new(Code::Operands, "there is no operand"))
}

/// The attribute says of which dtype and shape the data are.
fn onnx_constant<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let value = if let Some(t) = c.tensor("value")? {
        t.clone()
    } else if let Some(x) = c.float("value_float")? {
        Tensor::scalar(x as f32)
    } else if let Some(xs) = c.floats("value_floats")? {
        Tensor::new(&[xs.len()], &xs.iter().map(|x| *x as f32).collect::<Vec<_>>())?
    } else if let Some(i) = c.int("value_int")? {
        Tensor::scalar(i)
    } else if let Some(v) = c.ints("value_ints")? {
        Tensor::new(&[v.len()], &v)?
    } else {
        return Err(c.cannot("a constant that is sparse or a text"));
    };
    Ok(vec![c.g.constant(value)])
}

/// Without `fmod` the result has the sign of y, also where it is 0.
fn onnx_mod<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let [x, y] = c.xs()?;
    let r = x % y;
    let dtype = x.dtype();
    // Sizes have no sign, and a plain remainder of sizes can be followed when it decides a shape.
    let unsigned = |v: Var<'g>| {
        let dims = c.g.known(v).and_then(|k| k.dims());
        dims.is_some_and(|v| v.iter().all(|d| d.lower().is_some_and(|lo| lo >= 0)))
    };
    let plain = dtype.int_range().is_some_and(|(lo, _)| lo == 0 || (unsigned(x) && unsigned(y)));
    if plain || c.flag("fmod", false)? {
        return Ok(vec![r]);
    }
    let zero = x.scalar(0.0);
    let off = r.not_equal(zero).and(r.less(zero).not_equal(y.less(zero)));
    let moved = off.select(r + y, r);
    Ok(vec![match dtype.is_float() {
        true => r.equal(zero).select(y.less(zero).select(x.scalar(-0.0), zero), moved),
        false => moved,
    }])
}

/// The result has the dtype of x, whatever that of y.
fn onnx_pow<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let [x, y] = c.pair()?;
    Ok(vec![match (x.dtype(), y.dtype()) {
        (a, b) if a == b => x.pow(y),
        (a, _) if a.is_float() => x.pow(y.to(a)),
        (a, b) if b.is_float() => x.to(DType::F64).pow(y.to(DType::F64)).to(a),
        (a, _) => x.to(DType::I64).pow(y.to(DType::I64)).to(a),
    }])
}

/// The bounds are attributes in older operator sets, operands of one element in newer ones.
fn onnx_clip<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let x = c.x(0)?;
    let bound = |name: &str, i: usize| match c.float(name)? {
        Some(b) => Ok((Some(b), None)),
        None => {
            let b = c.opt(i);
            let known = b.filter(|_| x.dtype().is_float()).and_then(|b| c.g.known(b)?.floats());
            let number = known.as_deref().and_then(|v| v.first().copied()).filter(|b| !b.is_nan());
            // A bound of one axis must not give the result an axis.
            Ok((number, b.filter(|_| number.is_none()).map(|b| b.reshape(Dims(vec![])))))
        }
    };
    let ((lo, lower), (hi, upper)) = (bound("min", 1)?, bound("max", 2)?);
    let y = if lower.is_some() || upper.is_some() {
        let low = lower.or_else(|| lo.map(|b| x.scalar(b))).map_or(x, |b| x.maximum(b));
        upper.or_else(|| hi.map(|b| x.scalar(b))).map_or(low, |b| low.minimum(b))
    } else if lo.is_some() || hi.is_some() {
        x.clamp(lo, hi)
    } else {
        x
    };
    Ok(vec![y])
}

/// The lowest bits of integers, as a number of so many bits.
fn cut<'g>(x: Var<'g>, bits: u32, signed: bool) -> Var<'g> {
    let (x, rest) = (x.to(DType::I32), f64::from(32 - bits));
    if signed { x.shl(rest).shr(rest) } else { x.and(f64::from((1u32 << bits) - 1)) }
}

/// Small floats stop at their largest number if they are to saturate; without that, what is beyond is infinite or NaN.
fn onnx_cast<'g>(x: Var<'g>, to: DType, saturate: bool) -> Var<'g> {
    let small = matches!(to, DType::F8E4M3 | DType::F8E5M2);
    match to.float_max() {
        Some(max) if small && saturate => x.to(x.dtype().wide()).clamp(-max, max).to(to),
        _ => x.to(to),
    }
}

ops! {
    /// Data written in the graph.
    constant: Constant() { value: Tensor } -> value;
    infer = |_, a| Ok(vec![a.value.ty()]);
    step = |_, a| Ok(Step::Constant(a.value));
    eval = |_, a| Ok(vec![Arr::from_tensor(&a.value)?]);
    onnx = [rule("Constant", 1, onnx_constant)];

    /// x + y.
    add: Add(x: Num, y: Num) -> z;
    scalar = Scalar::Add;
    vjp = |c, _| Ok([c.dy(0).sum_to(c.x(0)), c.dy(0).sum_to(c.x(1))].into());
    onnx = [
        rule("Add", 1, |c| { let [x, y] = c.pair()?; Ok(vec![x + y]) }),
        rule("Sum", 1, |c| joined(c, |x, y| x + y)),
        rule("Mean", 1, |c| Ok(joined(c, |x, y| x + y)?.into_iter().map(|y| y / c.given().len() as f64).collect())),
    ];
    samples = |s| s.binary((-1.5, 1.5), (-1.5, 1.5));

    /// x · y.
    mul: Mul(x: Num, y: Num) -> z;
    scalar = Scalar::Mul;
    vjp = |c, _| Ok([(c.dy(0) * c.x(1)).sum_to(c.x(0)), (c.dy(0) * c.x(0)).sum_to(c.x(1))].into());
    onnx = [rule("Mul", 1, |c| { let [x, y] = c.pair()?; Ok(vec![x * y]) })];
    samples = |s| s.binary((-1.5, 1.5), (-1.5, 1.5));

    /// x − y.
    sub: Sub(x: Num, y: Num) -> z;
    scalar = Scalar::Sub;
    vjp = |c, _| Ok([c.dy(0).sum_to(c.x(0)), (-c.dy(0)).sum_to(c.x(1))].into());
    onnx = [rule("Sub", 1, |c| { let [x, y] = c.pair()?; Ok(vec![x - y]) })];
    samples = |s| s.binary((-1.5, 1.5), (-1.5, 1.5));

    /// x / y. Integers are cut toward zero; an integer divided by 0 is 0.
    div: Div(x: Num, y: Num) -> z;
    scalar = Scalar::Div;
    vjp = |c, _| {
        let dx = c.dy(0) / c.x(1);
        Ok([dx.sum_to(c.x(0)), (-dx * c.y(0)).sum_to(c.x(1))].into())
    };
    onnx = [rule("Div", 1, |c| { let [x, y] = c.pair()?; Ok(vec![x / y]) })];
    samples = |s| s.binary((-1.5, 1.5), (0.5, 2.0));

    /// The remainder of x / y with the sign of x; an integer by 0 gives 0.
    rem: Rem(x: Num, y: Num) -> z;
    scalar = Scalar::Rem;
    vjp = |c, _| {
        let whole = (c.x(0) / c.x(1)).trunc();
        Ok([c.dy(0).sum_to(c.x(0)), (-c.dy(0) * whole).sum_to(c.x(1))].into())
    };
    onnx = [rule("Mod", 10, onnx_mod)];
    samples = |s| s.binary((5.1, 5.9), (2.1, 2.4));

    /// The largest whole number that is not above x / y. An integer by 0 gives 0; a float by 0 gives x / y.
    /// The gradient is zero.
    floor_div: FloorDiv(x: Num, y: Num) -> z;
    each = |c, _| {
        let [x, y] = c.xs();
        let (r, zero) = (x % y, x.scalar(0.0));
        let below = r.not_equal(zero).and(r.less(zero).not_equal(y.less(zero))).cast(x.dtype());
        let whole = ((x - r) / y - below).round();
        Ok(vec![if x.dtype().is_float() { y.equal(zero).select(x / y, whole) } else { whole }])
    };
    vjp = |_, _| Ok(vec![None, None].into());
    samples = |s| {
        s.binary((5.1, 5.9), (2.1, 2.4));
        s.rough("signs", FloorDiv {}, [f([2]).values(&[7.0, -7.0]), f([2, 1]).values(&[2.0, -2.0])]);
        s.rough("int", FloorDiv {}, [int([7, 1], -9, 9), int([5], -2, 3)]);
        s.rough("zero", FloorDiv {}, [f([3]).values(&[-1.0, 0.0, 1.0]), f([]).values(&[0.0])]);
    };

    /// xʸ. x⁰ is 1 for every x. The gradient to x where x and y are 0, and the gradient to y where x is 0 and
    /// y >= 0, are 0. An integer to a negative power is the value cut toward zero (0 for x = 0).
    pow: Pow(x: Num, y: Num) -> z;
    scalar = Scalar::Pow;
    vjp = |c, _| {
        let ([x, y], dz) = (c.xs(), c.dy(0));
        let (zero, one) = (x.scalar(0.0), x.scalar(1.0));
        // y · x^(y−1) is 0 · ∞ where y is 0 and 1/x is not finite; 0 is right there.
        let pole = y.equal(zero).and(x.recip().is_finite().not());
        let dx = || (dz * (y * pole.select(one, x).pow(y - 1.0))).sum_to(x);
        let flat = x.equal(zero).and(y.greater_equal(zero));
        let dy = || (dz * (c.y(0) * flat.select(one, x).log())).sum_to(y);
        Ok([c.wants(0).then(dx), c.wants(1).then(dy)].into())
    };
    onnx = [rule("Pow", 1, onnx_pow)];
    samples = |s| {
        s.binary((0.3, 2.0), (-1.5, 2.5));
        s.rough("zero_base", Pow {}, [f([4]).values(&[0.0]), f([4]).values(&[-1.0, 0.0, 0.5, 2.0])]);
        s.rough("negative_base", Pow {}, [f([3]).values(&[-2.0]), f([3]).values(&[3.0, -2.0, 0.5])]);
        s.rough("int", Pow {}, [int([7, 1], -3, 4), int([5], -2, 5)]);
    };
    tolerance = tol(2e-5, 8e-3, 6e-2);

    /// The angle within ±π of the point (y, x): its tangent is x / y. The gradient at (0, 0) is 0.
    atan2: Atan2(x: Float, y: Float) -> z;
    scalar = Scalar::Atan2;
    vjp = |c, _| {
        let ([x, y], dz) = (c.xs(), c.dy(0));
        let r = x * x + y * y;
        let w = dz / r.equal(r.scalar(0.0)).select(r.scalar(1.0), r);
        Ok([(w * y).sum_to(x), (-w * x).sum_to(y)].into())
    };
    samples = |s| {
        s.binary((0.3, 1.5), (-1.5, 1.5));
        s.rough("axes", Atan2 {}, [f([3, 1]).values(&[0.0, -0.0, 1.0]), f([3]).values(&[0.0, -1.0, 1.0])]);
    };
    tolerance = tol(1e-5, 4e-3, 3e-2);

    /// The larger of x and y; NaN if either is. Where they are equal each gets half of the gradient.
    maximum: Maximum(x: Num, y: Num) -> z;
    scalar = Scalar::Max;
    vjp = |c, _| {
        let ([x, y], dz) = (c.xs(), c.dy(0));
        let half = x.equal(y).select(dz * 0.5, dz);
        let dx = x.less(y).select(dz.zeros_like(), half);
        let dy = y.less(x).select(dz.zeros_like(), half);
        Ok([dx.sum_to(x), dy.sum_to(y)].into())
    };
    onnx = [rule("Max", 1, |c| joined(c, |x, y| x.maximum(y)))];
    samples = |s| {
        s.binary((-1.5, 0.4), (0.5, 1.5));
        s.case("above", Maximum {}, [f([2, 3]).within(0.5, 1.5), f([3]).within(-1.5, 0.4)]);
        let x = f([4, 1]).values(&[1.0, f64::NAN, f64::INFINITY, -0.0]);
        s.rough("ties", Maximum {}, [x, f([2]).values(&[1.0, 0.0])]);
        s.rough("int", Maximum {}, [int([3, 1], -9, 9), int([4], -9, 9)]);
    };

    /// The smaller of x and y; NaN if either is. Where they are equal each gets half of the gradient.
    minimum: Minimum(x: Num, y: Num) -> z;
    scalar = Scalar::Min;
    vjp = |c, _| {
        let ([x, y], dz) = (c.xs(), c.dy(0));
        let half = x.equal(y).select(dz * 0.5, dz);
        let dx = x.greater(y).select(dz.zeros_like(), half);
        let dy = y.greater(x).select(dz.zeros_like(), half);
        Ok([dx.sum_to(x), dy.sum_to(y)].into())
    };
    onnx = [rule("Min", 1, |c| joined(c, |x, y| x.minimum(y)))];
    samples = |s| {
        s.binary((-1.5, 0.4), (0.5, 1.5));
        s.case("above", Minimum {}, [f([2, 3]).within(0.5, 1.5), f([3]).within(-1.5, 0.4)]);
        let x = f([4, 1]).values(&[1.0, f64::NAN, f64::INFINITY, -0.0]);
        s.rough("ties", Minimum {}, [x, f([2]).values(&[1.0, 0.0])]);
        s.rough("int", Minimum {}, [int([3, 1], -9, 9), int([4], -9, 9)]);
    };

    /// −x.
    neg: Neg(x: Num) -> y;
    scalar = Scalar::Neg;
    vjp = |c, _| Ok([-c.dy(0)].into());
    onnx = [same("Neg")];
    samples = |s| s.unary(-1.5, 1.5);

    /// `if_true` where the condition holds, else `if_false`.
    select: Select(condition: Bool, if_true: Any, if_false: Any) -> y;
    scalar = Scalar::Select;
    infer = |c, _| Ok(vec![Type::new(c.ty(1)?.dtype, c.broadcast_all()?)]);
    vjp = |c, _| {
        let (dy, zero) = (c.dy(0), c.y(0).zeros_like());
        let (dx, dy) = (c.x(0).select(dy, zero).sum_to(c.x(1)), c.x(0).select(zero, dy).sum_to(c.x(2)));
        Ok([None, Some(dx), Some(dy)].into())
    };
    onnx = [same("Where")];
    samples = |s| {
        s.case("same", Select {}, [boolean([3, 4]), f([3, 4]), f([3, 4])]);
        s.case("broadcast", Select {}, [boolean([3, 1]), f([4]), f([])]);
        s.case("empty", Select {}, [boolean([0]), f([0]), f([1])]);
    };

    /// x brought into lo..hi: min(max(x, lo), hi), so hi wins if lo > hi; NaN stays. A bound that is left out
    /// does not bind. The gradient is 1 strictly between the bounds, else 0, as in PyTorch.
    clamp: Clamp(x: Num) { lo: Option<f64>, hi: Option<f64> } -> y;
    constraints = ["each bound is a number of x's dtype"];
    each = |c, a| {
        let low = a.lo.map_or(c.x(0), |lo| c.x(0).maximum(lo));
        Ok(vec![a.hi.map_or(low, |hi| low.minimum(hi))])
    };
    infer = |c, a| {
        let x = c.ty(0)?;
        for b in [a.lo, a.hi].into_iter().flatten() {
            let held = |(lo, hi): (i128, i128)| b.fract() == 0.0 && (lo as f64..=hi as f64).contains(&b);
            if b.is_nan() || !x.dtype.int_range().is_none_or(held) {
                return Err(c.fail(Code::Attribute, 1, format!("{b} is no {}", x.dtype)));
            }
        }
        c.elementwise()
    };
    vjp = |c, a| {
        let (x, dy) = (c.x(0), c.dy(0));
        let inside = [a.lo.map(|lo| x.greater(lo)), a.hi.map(|hi| x.less(hi))];
        let inside = inside.into_iter().flatten().reduce(|a, b| a.and(b));
        Ok([inside.map_or(dy, |t| t.select(dy, dy.zeros_like()))].into())
    };
    onnx = [rule("Clip", 1, onnx_clip)];
    samples = |s| {
        s.case("inside", Clamp { lo: Some(-2.0), hi: Some(2.0) }, [f([3, 2])]);
        s.case("low", Clamp { lo: Some(-0.5), hi: None }, [f([4]).values(&[-1.2, -0.3, 0.1, 0.7])]);
        s.case("high", Clamp { lo: None, hi: Some(0.5) }, [f([4]).values(&[-1.2, -0.3, 0.1, 0.7])]);
        s.case("free", Clamp { lo: None, hi: None }, [f([0, 2])]);
        s.special(Clamp { lo: Some(-1.0), hi: Some(1.0) });
        s.rough("int", Clamp { lo: Some(-3.0), hi: Some(3.0) }, [int([6], -9, 9)]);
    };

    /// x + weight · (y − x): x at weight 0, exactly y at weight 1.
    lerp: Lerp(x: Float, y: Float, weight: Float) -> z;
    each = |c, _| {
        let [x, y, w] = c.xs();
        Ok(vec![w.less(0.5).select(x + w * (y - x), y - (1.0 - w) * (y - x))])
    };
    vjp = |c, _| {
        let ([x, y, w], dz) = (c.xs(), c.dy(0));
        Ok([(dz * (1.0 - w)).sum_to(x), (dz * w).sum_to(y), (dz * (y - x)).sum_to(w)].into())
    };
    samples = |s| {
        s.case("same", Lerp {}, [f([3, 2]), f([3, 2]), f([3, 2]).within(0.0, 1.0)]);
        s.case("broadcast", Lerp {}, [f([3, 1]), f([2]), f([])]);
        s.case("empty", Lerp {}, [f([0]), f([1]), f([])]);
        s.rough("ends", Lerp {}, [f([2]), f([2]), f([2]).values(&[0.0, 1.0])]);
    };

    /// x itself, whose gradient is taken to be zero.
    stop_gradient: StopGradient(x: Any) -> y;
    each = |c, _| Ok(vec![c.x(0)]);
    vjp = |_, _| Ok(vec![None].into());
    samples = |s| {
        s.rough("matrix", StopGradient {}, [f([2, 3])]);
        s.rough("int", StopGradient {}, [int([3], -9, 9)]);
        s.rough("empty", StopGradient {}, [f([0])]);
    };

    /// Whether x == y; false if either is NaN.
    equal: Equal(x: Any, y: Any) -> z;
    scalar = Scalar::Eq;
    infer = |c, _| truths(c);
    onnx = [rule("Equal", 1, |c| { let [x, y] = c.pair()?; Ok(vec![x.equal(y)]) })];
    samples = |s| compared(s, Equal {});

    /// Whether x != y; true if either is NaN.
    not_equal: NotEqual(x: Any, y: Any) -> z;
    scalar = Scalar::Ne;
    infer = |c, _| truths(c);
    samples = |s| compared(s, NotEqual {});

    /// Whether x < y; false if either is NaN.
    less: Less(x: Any, y: Any) -> z;
    scalar = Scalar::Lt;
    infer = |c, _| truths(c);
    onnx = [rule("Less", 1, |c| { let [x, y] = c.pair()?; Ok(vec![x.less(y)]) })];
    samples = |s| compared(s, Less {});

    /// Whether x <= y; false if either is NaN.
    less_equal: LessEqual(x: Any, y: Any) -> z;
    scalar = Scalar::Le;
    infer = |c, _| truths(c);
    onnx = [same("LessOrEqual")];
    samples = |s| compared(s, LessEqual {});

    /// Whether x > y; false if either is NaN.
    greater: Greater(x: Any, y: Any) -> z;
    scalar = Scalar::Gt;
    infer = |c, _| truths(c);
    onnx = [rule("Greater", 1, |c| { let [x, y] = c.pair()?; Ok(vec![x.greater(y)]) })];
    samples = |s| compared(s, Greater {});

    /// Whether x >= y; false if either is NaN.
    greater_equal: GreaterEqual(x: Any, y: Any) -> z;
    scalar = Scalar::Ge;
    infer = |c, _| truths(c);
    onnx = [same("GreaterOrEqual")];
    samples = |s| compared(s, GreaterEqual {});

    /// Whether x is NaN; false for integers.
    is_nan: IsNan(x: Num) -> y;
    scalar = Scalar::IsNan;
    infer = |c, _| truths(c);
    onnx = [same("IsNaN")];
    samples = |s| { s.special(IsNan {}); s.rough("int", IsNan {}, [int([3], -2, 3)]); };

    /// Whether x is ∞ or −∞; false for integers.
    is_inf: IsInf(x: Num) -> y;
    scalar = Scalar::IsInf;
    infer = |c, _| truths(c);
    onnx = [rule("IsInf", 10, |c| {
        let x = c.x(0)?;
        Ok(vec![match (c.flag("detect_negative", true)?, c.flag("detect_positive", true)?) {
            (true, true) => x.is_inf(),
            (true, false) => x.equal(f64::NEG_INFINITY),
            (false, true) => x.equal(f64::INFINITY),
            (false, false) => c.g.zeros(DType::Bool, &x.shape()),
        }])
    })];
    samples = |s| { s.special(IsInf {}); s.rough("int", IsInf {}, [int([3], -2, 3)]); };

    /// Whether x is neither infinite nor NaN; true for integers.
    is_finite: IsFinite(x: Num) -> y;
    each = |c, _| Ok(vec![c.x(0).is_nan().or(c.x(0).is_inf()).not()]);
    infer = |c, _| truths(c);
    samples = |s| { s.special(IsFinite {}); s.rough("int", IsFinite {}, [int([3], -2, 3)]); };

    /// Both bits; for bool, whether both hold.
    and: And(x: Bits, y: Bits) -> z;
    scalar = Scalar::And;
    onnx = [rule("And", 1, |c| { let [x, y] = c.pair()?; Ok(vec![x.and(y)]) }), same("BitwiseAnd")];
    samples = |s| bitwise(s, And {});

    /// Either bit; for bool, whether one holds or both do.
    or: Or(x: Bits, y: Bits) -> z;
    scalar = Scalar::Or;
    onnx = [rule("Or", 1, |c| { let [x, y] = c.pair()?; Ok(vec![x.or(y)]) }), same("BitwiseOr")];
    samples = |s| bitwise(s, Or {});

    /// Where the bits differ; for bool, whether exactly one holds.
    xor: Xor(x: Bits, y: Bits) -> z;
    scalar = Scalar::Xor;
    onnx = [rule("Xor", 1, |c| { let [x, y] = c.pair()?; Ok(vec![x.xor(y)]) }), same("BitwiseXor")];
    samples = |s| bitwise(s, Xor {});

    /// Every bit the other way round; for bool, whether x does not hold.
    not: Not(x: Bits) -> y;
    scalar = Scalar::Not;
    onnx = [same("Not"), same("BitwiseNot")];
    samples = |s| {
        s.rough("bool", Not {}, [boolean([2, 3])]);
        s.rough("int", Not {}, [int([5], -9, 9)]);
        s.rough("u8", Not {}, [int([3], 0, 9).dtype(DType::U8)]);
        s.rough("empty", Not {}, [boolean([0])]);
    };

    /// x · 2ʸ, wrapped. A count y that is negative, or not below the width in bits, gives 0.
    shl: Shl(x: Bits, y: Bits) -> z;
    scalar = Scalar::Shl;
    constraints = ["the operands are integers"];
    infer = |c, _| shifted(c);
    onnx = [rule("BitShift", 11, |c| {
        let [x, y] = c.xs()?;
        match c.text("direction", "")? {
            "LEFT" => Ok(vec![x.shl(y)]),
            "RIGHT" => Ok(vec![x.shr(y)]),
            other => Err(c.cannot(format!("a shift in the direction {other:?}"))),
        }
    })];
    samples = |s| shifts(s, Shl {});

    /// x / 2ʸ, rounded down. A count y that is negative, or not below the width in bits, gives 0 (−1 for x <
    /// 0).
    shr: Shr(x: Bits, y: Bits) -> z;
    scalar = Scalar::Shr;
    constraints = ["the operands are integers"];
    infer = |c, _| shifted(c);
    samples = |s| shifts(s, Shr {});

    /// x as another dtype. Floats are rounded to nearest, ties to even; floats become integers by cutting
    /// toward zero and clamping (NaN gives 0); integers wrap; bool is `x != 0`.
    cast: Cast(x: Any) { dtype: DType } -> y;
    constraints = ["dtype is not packed"];
    infer = |c, a| {
        if a.dtype.is_packed() {
            return Err(c.fail(Code::DType, 1, format!("{} is packed: use quantize", a.dtype)));
        }
        Ok(vec![c.ty(0)?.with_dtype(a.dtype)])
    };
    step = |_, _| Ok(Step::Cast);
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
    onnx = [
        rule("Cast", 1, |c| {
            let to = c.dtype("to")?.ok_or_else(|| c.cannot("a cast without a dtype"))?;
            let x = match c.int("to")?.and_then(narrow) {
                Some((bits, signed)) => cut(c.x(0)?, bits, signed),
                None => c.x(0)?,
            };
            Ok(vec![onnx_cast(x, to, c.flag("saturate", true)?)])
        }),
        rule("CastLike", 15, |c| Ok(vec![onnx_cast(c.x(0)?, c.x(1)?.dtype(), c.flag("saturate", true)?)])),
    ];
    samples = |s| {
        s.case("widen", Cast { dtype: DType::F64 }, [f([3, 4])]);
        s.rough("narrow", Cast { dtype: DType::F16 }, [f([3, 4])]);
        let edges = f([8]).values(&[-1e9, -128.6, -0.9, 0.9, 127.4, 300.0, 1e30, f64::NAN]);
        s.rough("to_int", Cast { dtype: DType::I8 }, [edges]);
        s.rough("to_bool", Cast { dtype: DType::Bool }, [f([4]).values(&[0.0, -0.0, 0.1, -3.0])]);
        s.rough("from_int", Cast { dtype: DType::F32 }, [int([4], -100, 100)]);
        s.rough("wrap", Cast { dtype: DType::U8 }, [int([4], -1000, 1000)]);
        s.rough("from_bool", Cast { dtype: DType::F32 }, [boolean([3])]);
    };

    /// The bits of x, read as a dtype of the same width.
    bitcast: Bitcast(x: Any) { dtype: DType } -> y;
    constraints = ["dtype has the width of x's, and every pattern of bits is one of its numbers"];
    infer = |c, a| {
        let x = c.ty(0)?;
        if a.dtype == DType::Bool || a.dtype.bytes() != x.dtype.bytes() {
            return Err(c.fail(Code::DType, 1, format!("the bits of {} are no {}", x.dtype, a.dtype)).operand("x"));
        }
        Ok(vec![x.with_dtype(a.dtype)])
    };
    step = |_, _| Ok(Step::Bits);
    eval = |e, a| {
        let x = e.x(0)?.to_tensor()?;
        Ok(vec![Arr::from_tensor(&Tensor::from_bytes(a.dtype, x.shape(), x.bytes().to_vec())?)?])
    };
    vjp = |_, _| Ok(vec![None].into());
    vmap = |c, a| Ok(vec![c.x(0).bitcast(a.dtype)]);
    onnx = [rule("BitCast", 26, |c| {
        let to = c.dtype("to")?.ok_or_else(|| c.cannot("a cast without a dtype"))?;
        Ok(vec![c.x(0)?.bitcast(to)])
    })];
    samples = |s| {
        s.rough("to_int", Bitcast { dtype: DType::I32 }, [f([3, 4]).dtype(DType::F32)]);
        s.rough("to_float", Bitcast { dtype: DType::F32 }, [int([5], -99, 99)]);
        s.rough("sign", Bitcast { dtype: DType::U8 }, [int([4], -128, 128).dtype(DType::I8)]);
        s.rough("from_bool", Bitcast { dtype: DType::I8 }, [boolean([3])]);
        s.rough("wide", Bitcast { dtype: DType::F64 }, [int([2, 2], 0, 1 << 40).dtype(DType::I64)]);
        s.rough("empty", Bitcast { dtype: DType::I32 }, [f([0]).dtype(DType::F32)]);
    };

    // <walk-through>
}

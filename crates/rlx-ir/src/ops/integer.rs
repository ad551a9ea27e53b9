//! Products of bytes, exact in 32 bits: what quantised layers are made of.

use super::conv::{Conv, output_shape};
use super::dot::product_shape;
use crate::prelude::*;
use crate::transform::vmap_through;

/// Operands 0 and 1 are bytes (constraint `n`), and each zero point behind them has the dtype of its operand (`n + 1`).
fn check_bytes(c: &Infer<'_>, n: usize) -> Result<()> {
    for i in [0, 1] {
        let (name, dtype) = (c.def.operand_name(i), c.ty(i)?.dtype);
        if !matches!(dtype, DType::I8 | DType::U8) {
            return Err(c.fail(Code::DType, n, format!("{name} is {dtype}")).operand(name));
        }
        if let Some(z) = c.opt(i + 2).filter(|z| z.dtype != dtype) {
            let zero = c.def.operand_name(i + 2);
            let text = format!("{zero} is {}, {name} is {dtype}", z.dtype);
            return Err(c.fail(Code::DType, n + 1, text).operand(zero));
        }
    }
    Ok(())
}

/// Operand `i`, if given, has no axes or is as long as `each`, or constraint `n` is broken.
fn check_zero(c: &Infer<'_>, n: usize, i: usize, each: Option<&Dim>) -> Result<()> {
    match (c.opt(i), each) {
        (Some(z), Some(each)) if z.rank() > 0 => c.expect_shape(n, i, std::slice::from_ref(each)),
        (Some(_), _) => c.rank(n, i, 0),
        (None, _) => Ok(()),
    }
}

/// x less its zero point, as numbers of `dtype`.
fn centred<'g>(x: Var<'g>, zero: Option<Var<'g>>, dtype: DType) -> Var<'g> {
    zero.map_or(x.cast(dtype), |z| x.cast(dtype) - z.cast(dtype))
}

/// A zero point per entry of an axis as one that broadcasts, with `behind` axes after it.
fn spread(zero: Var<'_>, behind: usize) -> Var<'_> {
    if zero.rank() == 0 {
        return zero;
    }
    let ones = std::iter::repeat_n(Dim::constant(1), behind);
    zero.reshape(zero.shape().into_iter().chain(ones).collect::<Shape>())
}

ops! {
    /// The matrix product of bytes less their zero points, exact in i32:
    /// `z[.., i, j] = Σ_k (x[.., i, k] − x_zero[i]) · (w[.., k, j] − w_zero[j])`; shapes are those of `matmul`.
    ///
    /// A zero point without axes is that of all rows or columns, and none is 0. Sums wrap, which takes over 33,000 terms.
    /// A layer with scales is `z.cast(f32) · (x_scale · w_scale)`, and one that gives bytes again, as ONNX's QLinearMatMul, is
    /// `quantize_linear` of that by the scale and zero point of the result: both are fused into the product.
    matmul_integer: MatmulInteger(x: Free, w: Free, x_zero: opt Free, w_zero: opt Free) -> z;
    constraints = [
        "x and w have at least one axis",
        "the last axis of x agrees with the second last of w (the only one of a vector)",
        "the axes before the last two broadcast",
        "x_zero has no axes or one entry per row of x",
        "w_zero has no axes or one entry per column of w",
        "x and w are i8 or u8",
        "a zero point has the dtype of what it belongs to",
    ];
    infer = |c, _| {
        check_bytes(c, 6)?;
        let shape = product_shape(c)?;
        let from_end = |i: usize, back: usize| -> Result<Option<&Dim>> {
            let t = c.ty(i)?;
            Ok(t.rank().checked_sub(back).filter(|_| t.rank() > 1).and_then(|k| t.shape.get(k)))
        };
        check_zero(c, 4, 2, from_end(0, 2)?)?;
        check_zero(c, 5, 3, from_end(1, 1)?)?;
        Ok(vec![Type::new(DType::I32, shape)])
    };
    body = |c, _| {
        let x = centred(c.x(0), c.opt(2).map(|z| spread(z, 1)), DType::I32);
        Ok(vec![x.matmul(centred(c.x(1), c.opt(3), DType::I32))])
    };
    step = |_, _| Ok(Step::MatmulInteger);
    vmap = |c, _| {
        if c.is_batched(2) || c.is_batched(3) || c.rank(0) < 2 || c.rank(1) < 2 {
            return vmap_through(c);
        }
        let rank = c.rank(0).max(c.rank(1));
        let lead = |i: usize| if c.is_batched(i) { c.x(i).align_batch(rank) } else { c.x(i) };
        Ok(vec![lead(0).matmul_integer(lead(1), c.opt(2), c.opt(3))])
    };
    onnx = [rule("MatMulInteger", 10, onnx::quantize::matmul_integer),
        rule("QLinearMatMul", 10, onnx::quantize::qlinear_matmul)];
    samples = |s| {
        let i8s = |shape| int(shape, -128, 128).dtype(DType::I8);
        let u8s = |shape| int(shape, 0, 256).dtype(DType::U8);
        let (i8s3, u8s3) = (
            |shape: [usize; 3]| int(shape, -128, 128).dtype(DType::I8),
            |shape: [usize; 3]| int(shape, 0, 256).dtype(DType::U8),
        );
        let zero = |d: DType, z: f64| Some(f([]).values(&[z]).dtype(d));
        let plain = || MatmulInteger {};
        s.rough("plain", plain(), [i8s([3, 5]), i8s([5, 4])]);
        s.rough("mixed", plain(), [u8s([2, 9]), i8s([9, 3])]);
        s.rough("unsigned", plain(), [i8s([4, 3]), u8s([3, 17])]);
        s.rough_opt("zeros", plain(), [
            Some(u8s([3, 6])), Some(u8s([6, 2])), zero(DType::U8, 131.0), zero(DType::U8, 7.0),
        ]);
        s.rough_opt("rows_and_columns", plain(), [
            Some(u8s([3, 7])), Some(i8s([7, 5])), Some(int([3], 0, 256).dtype(DType::U8)),
            Some(int([5], -128, 128).dtype(DType::I8)),
        ]);
        s.rough_opt("only_left", plain(), [Some(u8s([1, 70])), Some(i8s([70, 33])), zero(DType::U8, 128.0), None]);
        s.rough_opt("only_right", plain(), [Some(i8s([2, 4])), Some(i8s([4, 2])), None, zero(DType::I8, -3.0)]);
        s.rough_opt("shared", plain(), [Some(u8s3([2, 3, 5])), Some(i8s([5, 4])), zero(DType::U8, 3.0), None]);
        s.rough_opt("batch", plain(), [
            Some(u8s3([2, 3, 4])), Some(i8s3([2, 4, 3])), Some(int([3], 0, 9).dtype(DType::U8)), zero(DType::I8, 1.0),
        ]);
        s.rough_opt("shared_rows", plain(), [
            Some(u8s3([2, 3, 4])), Some(i8s([4, 3])), Some(int([3], 0, 256).dtype(DType::U8)), None,
        ]);
        s.rough("broadcast", plain(), [i8s([3, 4]), i8s3([2, 4, 2])]);
        s.rough("vectors", plain(), [int([5], 0, 256).dtype(DType::U8), int([5], -128, 128).dtype(DType::I8)]);
        s.rough("column", plain(), [u8s([2, 3]), int([3], -128, 128).dtype(DType::I8)]);
        s.rough_opt("extremes", plain(), [
            Some(f([2, 64]).values(&[255.0]).dtype(DType::U8)), Some(f([64, 3]).values(&[-128.0, 127.0]).dtype(DType::I8)),
            zero(DType::U8, 0.0), zero(DType::I8, 127.0),
        ]);
        s.rough("sum_over_nothing", plain(), [i8s([2, 0]), i8s([0, 3])]);
        s.rough("empty", plain(), [u8s([0, 3]), i8s([3, 2])]);
    };

    /// The convolution of bytes less their zero points, exact in i32: `conv` of `x − x_zero` and `w − w_zero`, so that what
    /// lies outside of x counts as its zero point. `w_zero` has no axes or one entry per output channel.
    ///
    /// Sums wrap. As for `matmul_integer`, scales and quantisation of the result (ONNX's QLinearConv) follow as ops on floats.
    conv_integer: ConvInteger(x: Free, w: Free, x_zero: opt Free, w_zero: opt Free) with {
        stride: Vec<i64> = vec![], padding_lo: Vec<i64> = vec![], padding_hi: Vec<i64> = vec![],
        dilation: Vec<i64> = vec![], groups: i64 = 1
    } -> y;
    constraints = [
        "x has a batch, a channel and at least one spatial axis, and w has as many axes",
        "the lists are empty or have an entry per spatial axis; stride, dilation >= 1",
        "groups >= 1",
        "axis 1 of w times groups is axis 1 of x",
        "groups divides axis 0 of w",
        "x_zero has no axes, w_zero none or one entry per output channel",
        "the kernel has at least one element and fits into the padded input",
        "x and w are i8 or u8",
        "a zero point has the dtype of what it belongs to",
    ];
    infer = |c, a| {
        check_bytes(c, 8)?;
        let shape = output_shape(c, &a.as_conv())?;
        check_zero(c, 6, 2, None)?;
        check_zero(c, 6, 3, Some(c.dim(1, 0)?))?;
        Ok(vec![Type::new(DType::I32, shape)])
    };
    body = |c, a| {
        // Sums in f64 are exact as long as they fit 53 bits, and casts between integers wrap.
        let [x, w] = c.xs();
        let x = centred(x, c.opt(2), DType::F64);
        let w = centred(w, c.opt(3).map(|z| spread(z, w.rank() - 1)), DType::F64);
        Ok(vec![x.conv(w, None, a.as_conv()).cast(DType::I64).cast(DType::I32)])
    };
    vjp = |c, _| Ok(vec![None; c.operands.len()].into());
    onnx = [rule("ConvInteger", 10, onnx::quantize::conv_integer), rule("QLinearConv", 10, onnx::quantize::qlinear_conv)];
    samples = |s| {
        let i8s = |shape: [usize; 4]| int(shape, -128, 128).dtype(DType::I8);
        let u8s = |shape: [usize; 4]| int(shape, 0, 256).dtype(DType::U8);
        let zero = |d: DType, z: f64| Some(f([]).values(&[z]).dtype(d));
        let d = ConvInteger::default;
        s.rough("plain", d(), [u8s([1, 2, 5, 4]), i8s([3, 2, 3, 2])]);
        let line = |shape: [usize; 3], lo, hi, dtype| int(shape, lo, hi).dtype(dtype);
        s.rough("line", d(), [line([2, 3, 7], -128, 128, DType::I8), line([2, 3, 3], 0, 256, DType::U8)]);
        let padded = ConvInteger { padding_lo: vec![1, 1], padding_hi: vec![1, 2], stride: vec![2, 1], ..d() };
        s.rough_opt("padded", padded, [
            Some(u8s([2, 2, 5, 5])), Some(u8s([4, 2, 3, 3])), zero(DType::U8, 100.0), zero(DType::U8, 131.0),
        ]);
        let grouped = ConvInteger { groups: 2, dilation: vec![1, 2], ..d() };
        s.rough_opt("grouped", grouped, [
            Some(u8s([1, 4, 4, 6])), Some(i8s([4, 2, 2, 2])), None, Some(int([4], -9, 9).dtype(DType::I8)),
        ]);
        s.rough_opt("only_left", d(), [Some(u8s([1, 1, 3, 3])), Some(i8s([1, 1, 1, 1])), zero(DType::U8, 128.0), None]);
        s.rough("empty", d(), [u8s([0, 2, 3, 3]), i8s([3, 2, 2, 2])]);
    };
}

impl ConvInteger {
    /// The convolution of numbers with these attributes.
    pub fn as_conv(&self) -> Conv {
        let ConvInteger { stride, padding_lo, padding_hi, dilation, groups } = self.clone();
        Conv { stride, padding_lo, padding_hi, dilation, groups }
    }
}

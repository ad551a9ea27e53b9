//! Matrix products with packed weights.

use super::quantize::{fit_scheme, scheme_rules};
use crate::prelude::*;
use crate::quant::Scheme;

/// Inner and outer size of the product with a packed matrix: `[k, n]`, or `[n, k]` for the ggml kinds, or their reverse
/// when transposed.
fn sizes(c: &Infer<'_>, i: usize, scheme: Scheme, transpose: bool) -> Result<(Dim, Dim)> {
    let rank = c.ty(i)?.rank();
    let (a, b) = (c.dim(i, rank - 2)?.clone(), c.dim(i, rank - 1)?.clone());
    Ok(if scheme.is_ggml() != transpose { (b, a) } else { (a, b) })
}

/// The constraint `n` that the last axis of x is the inner size.
fn check_inner(c: &Infer<'_>, n: usize, k: &Dim) -> Result<()> {
    let last = c.ty(0)?.rank() - 1;
    let d = c.dim(0, last)?;
    match d.unify(k) {
        Some(_) => Ok(()),
        None => Err(c
            .fail(Code::Dim, n, format!("axis {last} of x is {d}, but w has {k} along its inner axis"))
            .operand("x")
            .axis(last)),
    }
}

/// The decoded matrix as `[.., inner, outer]`.
fn decoded<'g>(w: Var<'g>, dtype: DType, transpose: bool) -> Var<'g> {
    let ggml = matches!(w.dtype(), DType::Packed(s) if s.is_ggml());
    let w = w.dequantize(dtype, true);
    if ggml != transpose { w.t() } else { w }
}

ops! {
    /// `x · W (+ bias)` with packed weights W, decoded on the way.
    ///
    /// x is `[.., k]`; W is `[k, n]`, for the ggml kinds `[n, k]`; the result is `[.., n]`. With `transpose` it is
    /// x `[.., n]` times Wᵀ and gives `[.., k]`: the gradient to x. A W of more than two axes is a batch of matrices,
    /// whose leading axes broadcast against those of x as in `matmul`. Elements and scales in fp8 (and powers of two)
    /// that are NaN or infinite count as 0, as in `dequantize` with `finite`; a scale in f32 or f16 counts as it is. Products are added up in f32 (f64 for an x of f64). There is no gradient to the codes.
    dequant_matmul: DequantMatmul(x: Float, w: Packed, bias: opt Float) { transpose: bool = false } -> y;
    constraints = scheme_rules!("x has an axis, and two if w is a batch; w has at least two",
        "the last axis of x is the inner axis of w", "bias is [the outer axis of w]",
        "the leading axes of x and w broadcast");
    infer = |c, a| {
        let (x, w) = (c.ty(0)?, c.ty(1)?);
        let scheme = fit_scheme(c, 1, w.dtype, &w.shape).map_err(|e| e.operand("w"))?;
        c.rank_at_least(3, 1, 2)?;
        c.rank_at_least(3, 0, if w.rank() > 2 { 2 } else { 1 })?;
        let (k, n) = sizes(c, 1, scheme, a.transpose)?;
        check_inner(c, 4, &k)?;
        if c.opt(2).is_some() {
            c.expect_shape(5, 2, std::slice::from_ref(&n))?;
        }
        let shape = if w.rank() == 2 {
            x.leading(1).iter().cloned().chain([n]).collect::<Shape>()
        } else {
            let lead = broadcast(x.leading(2), w.leading(2));
            let lead = lead.map_err(|e| c.fail(Code::Broadcast, 6, e.message()).operand("w"))?;
            lead.into_iter().chain([c.dim(0, x.rank() - 2)?.clone(), n]).collect()
        };
        Ok(vec![x.with_shape(shape)])
    };
    body = |c, a| {
        let (x, dtype) = (c.x(0), c.x(0).dtype().wide());
        let y = x.to(dtype).matmul(decoded(c.x(1), dtype, a.transpose));
        Ok(vec![c.opt(2).map_or(y, |b| y + b.to(dtype)).to(x.dtype())])
    };
    vjp = |c, a| {
        let (x, dy) = (c.x(0), c.dy(0));
        let dx = c.wants(0).then(|| dy.dequant_matmul(c.x(1), None, !a.transpose).sum_to(x));
        Ok([dx, None, c.opt(2).map(|b| dy.sum_to(b))].into())
    };
    vmap = |c, a| {
        let (x, w) = (c.bx(0), c.x(1));
        let y = match (c.is_batched(1), c.rank(1)) {
            (false, 2) => x.dequant_matmul(w, None, a.transpose),
            (true, 2) => {
                // All rows of an element of the batch share its one matrix.
                let shape = x.shape();
                let rows = product(shape.get(1..c.rank(0)).unwrap_or_default());
                let y = x.reshape(vec![x.dim(0), rows, x.dim(-1)]).dequant_matmul(w, None, a.transpose);
                y.reshape(shape.iter().take(c.rank(0)).cloned().chain([y.dim(-1)]).collect::<Shape>())
            }
            _ => return crate::transform::vmap_through(c),
        };
        Ok(vec![c.opt(2).map_or(y, |b| y + if c.is_batched(2) { b.align_batch(y.rank() - 1) } else { b })])
    };
    onnx = [microsoft("MatMulNBits", onnx::quantize::matmul_nbits)];
    tolerance = tol(2e-5, 4e-3, 3e-2);
    samples = |s| {
        let plain = || DequantMatmul { transpose: false };
        let w = |name| move |shape: [usize; 2]| packed(Scheme::parse(name), shape);
        s.case("int8", plain(), [f([2, 6]), w("int8:4")([6, 3]), f([3])]);
        s.case("int8_asym", plain(), [f([1, 5]), w("int8_asym:2")([5, 3])]);
        s.case("int4", plain(), [f([2, 2, 5]), w("int4:2")([5, 3])]);
        s.case("fp8", plain(), [f([3]), w("fp8_e4m3")([3, 4])]);
        s.case("nvfp4", plain(), [f([2, 5]), w("nvfp4:4")([5, 2])]);
        s.case("ggml", plain(), [f([2, 32]), w("q4_0")([3, 32]), f([3])]);
        s.case("transpose", DequantMatmul { transpose: true }, [f([2, 3]), w("int8:4")([6, 3])]);
        s.case("ggml_transpose", DequantMatmul { transpose: true }, [f([2, 2]), w("q8_0")([2, 32])]);
        s.case("batch", plain(), [f([2, 2, 5]), packed(Scheme::parse("int8:4"), [2, 5, 3])]);
        s.case("empty", plain(), [f([0, 5]), w("int8:4")([5, 3])]);
    };

    /// Each row of x times the packed matrix of its expert: the matmul of a mixture of experts.
    ///
    /// x is `[.., k]`, W `[e, k, n]` (ggml kinds: `[e, n, k]`), `experts` has the shape of x without its last axis, and the
    /// result is `[.., n]`. An expert counts from the end if it is negative; one that does not exist gives 0. `transpose`
    /// and the treatment of codes are those of `dequant_matmul`.
    dequant_matmul_grouped: DequantMatmulGrouped(x: Float, w: Packed, experts: Index, bias: opt Float)
        { transpose: bool = false } -> y;
    constraints = scheme_rules!("x has at least one axis, w has three", "the last axis of x is the inner axis of w",
        "experts has the shape of x without its last axis", "bias is [e, the outer axis of w]");
    infer = |c, a| {
        let (x, w) = (c.ty(0)?, c.ty(1)?);
        let scheme = fit_scheme(c, 1, w.dtype, &w.shape).map_err(|e| e.operand("w"))?;
        c.rank(3, 1, 3)?;
        c.rank_at_least(3, 0, 1)?;
        let (k, n) = sizes(c, 1, scheme, a.transpose)?;
        check_inner(c, 4, &k)?;
        let lead = x.leading(1);
        c.expect_shape(5, 2, lead)?;
        if c.opt(3).is_some() {
            c.expect_shape(6, 3, &[c.dim(1, 0)?.clone(), n.clone()])?;
        }
        Ok(vec![x.with_shape(lead.iter().cloned().chain([n]).collect::<Shape>())])
    };
    body = |c, a| {
        let (x, experts, dtype) = (c.x(0), c.x(2), c.x(0).dtype().wide());
        let own = decoded(c.x(1), dtype, a.transpose).gather(experts, 0);
        let y = x.to(dtype).unsqueeze(-2).matmul(own).squeeze(-2);
        Ok(vec![c.opt(3).map_or(y, |b| y + b.to(dtype).gather(experts, 0)).to(x.dtype())])
    };
    vjp = |c, a| {
        let (dy, experts) = (c.dy(0), c.x(2));
        let dx = c.wants(0).then(|| dy.dequant_matmul_grouped(c.x(1), experts, None, !a.transpose));
        let db = c.opt(3).map(|b| b.zeros_like().scatter(experts, dy, 0, crate::ops::scatter::ScatterMode::Add));
        Ok([dx, None, None, db].into())
    };
    vmap = |c, a| {
        if c.is_batched(1) || c.is_batched(3) {
            return crate::transform::vmap_through(c);
        }
        Ok(vec![c.bx(0).dequant_matmul_grouped(c.x(1), c.bx(2), c.opt(3), a.transpose)])
    };
    tolerance = tol(2e-5, 4e-3, 3e-2);
    samples = |s| {
        let w = |name, shape: [usize; 3]| packed(Scheme::parse(name), shape);
        let plain = || DequantMatmulGrouped { transpose: false };
        s.case("int8", plain(), [f([4, 5]), w("int8:4", [3, 5, 2]), int([4], 0, 3), f([3, 2])]);
        s.case("ggml", plain(), [f([2, 32]), w("q8_0", [2, 3, 32]), int([2], -2, 2)]);
        s.case("missing", plain(), [f([3, 4]), w("int4:4", [2, 4, 2]), int([3], 1, 4)]);
        s.case("transpose", DequantMatmulGrouped { transpose: true }, [f([2, 2, 2]), w("int8:4", [3, 5, 2]), int([2, 2], 0, 3)]);
        s.case("empty", plain(), [f([0, 4]), w("int8:4", [2, 4, 3]), int([0], 0, 2)]);
    };
}

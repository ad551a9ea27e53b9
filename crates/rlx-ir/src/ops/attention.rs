//! Scaled dot-product attention, with everything that language models hang on it.

use crate::prelude::*;

/// The operands of attention that are not q, k and v.
#[derive(Clone, Copy)]
struct Extras<'g> {
    mask: Option<Var<'g>>,
    bias: Option<Var<'g>>,
    slopes: Option<Var<'g>>,
}

/// How much each query takes of each key, and what its gradient needs.
struct Weights<'g> {
    /// `[b, hq, s, t]`; each row adds up to 1, or is 0 throughout.
    p: Var<'g>,
    /// The derivative of the soft cap.
    cap_slope: Option<Var<'g>>,
    /// −|distance| of query and key, `[s, t]`, where there are slopes.
    nearness: Option<Var<'g>>,
    /// The scale of the scores.
    scale: Var<'g>,
}

/// `[b, hq, …]` as `[b, hkv, hq / hkv, …]`: the query heads that share a key head, together.
fn share<'g>(x: Var<'g>, hkv: &Dim) -> Result<Var<'g>> {
    let shape = x.shape();
    let group =
        x.dim(1).exact_div(hkv).ok_or_else(|| Error::new(Code::Dim, "the heads do not group").axis(1))?;
    let heads = [x.dim(0), hkv.clone(), group];
    Ok(x.reshape(heads.into_iter().chain(shape.into_iter().skip(2)).collect::<Shape>()))
}

/// The reverse of [`share`].
fn unshare<'g>(x: Var<'g>, hq: &Dim) -> Var<'g> {
    let shape = x.shape();
    let heads = [x.dim(0), hq.clone()];
    x.reshape(heads.into_iter().chain(shape.into_iter().skip(3)).collect::<Shape>())
}

/// Products per batch and key head, summed along the given axes.
fn dot<'g>(x: Var<'g>, y: Var<'g>, along_x: &[i64], along_y: &[i64]) -> Var<'g> {
    x.dot_general(y, along_x.to_vec(), along_y.to_vec(), vec![0, 1], vec![0, 1])
}

fn weights<'g>(q: Var<'g>, k: Var<'g>, x: Extras<'g>, a: &Attention) -> Result<Weights<'g>> {
    let g = q.graph();
    let (s, t) = (q.dim(2), k.dim(2));
    let scale = a.scale.map_or_else(|| q.size_scalar(&q.dim(3)).rsqrt(), |x| q.scalar(x));
    let mut scores = unshare(dot(share(q * scale, &k.dim(1))?, k, &[4], &[3]), &q.dim(1));
    let mut cap_slope = None;
    if let Some(cap) = a.softcap {
        let bent = (scores / cap).tanh();
        cap_slope = Some(1.0 - bent.square());
        scores = bent * cap;
    }
    if let Some(bias) = x.bias {
        scores = scores + bias.wide();
    }
    // How far the key lies before the query, whose last one stands at the last key.
    let distance = || {
        let (i, j) =
            (g.iota(vec![s.clone(), 1.into()], 0, DType::I32), g.iota(vec![t.clone()], 0, DType::I32));
        i + g.size_of(t.clone(), DType::I32) - g.size_of(s.clone(), DType::I32) - j
    };
    let mut nearness = None;
    if let Some(slopes) = x.slopes {
        let near = -distance().abs().to(scores.dtype());
        let mut per_head = slopes.shape();
        per_head.extend([Dim::constant(1), Dim::constant(1)]);
        scores = scores + slopes.wide().reshape(per_head) * near;
        nearness = Some(near);
    }
    let causal = a.causal.then(|| distance().greater_equal(0.0));
    let near = a.window.map(|w| distance().abs().less(w.min(i32::MAX.into()) as f64));
    if let Some(visible) = [causal, near, x.mask].into_iter().flatten().reduce(|a, b| a.and(b)) {
        scores = visible.select(scores, scores.scalar(f64::NEG_INFINITY));
    }
    // A row that sees nothing has the maximum −inf and the sum 0; both are replaced, and its weights are 0.
    let top = scores.max(vec![-1], true).stop_gradient();
    let e = (scores - top.equal(f64::NEG_INFINITY).select(top.zeros_like(), top)).exp();
    let sum = e.sum(vec![-1], true);
    Ok(Weights { p: e / sum.equal(0.0).select(sum.ones_like(), sum), cap_slope, nearness, scale })
}

/// The shape rules that attention and its gradient share; the operands from `extras` on are mask, bias and
/// slopes.
fn check(c: &Infer<'_>, a: &Attention, extras: usize) -> Result<Type> {
    (0..3).try_for_each(|i| c.rank(1, i, 4))?;
    let b = c.same_dim(2, (0, 0), (1, 0))?;
    c.same_dim(2, (0, 0), (2, 0))?;
    c.same_dim(2, (0, 3), (1, 3))?;
    let hkv = c.same_dim(2, (1, 1), (2, 1))?;
    let t = c.same_dim(2, (1, 2), (2, 2))?;
    let (hq, s) = (c.dim(0, 1)?.clone(), c.dim(0, 2)?.clone());
    if hq.exact_div(&hkv).is_none() {
        return Err(c
            .fail(Code::Dim, 3, format!("{hq} query heads on {hkv} key heads"))
            .operand("k")
            .axis(1));
    }
    let full = vec![b.clone(), hq.clone(), s.clone(), t];
    for i in [extras, extras + 1] {
        let Some(x) = c.opt(i) else { continue };
        let both = broadcast(&full, &x.shape);
        if both.as_ref().is_ok_and(|s| *s == full) {
            continue;
        }
        let text = format!("{x} against {}", Type::new(x.dtype, full));
        let e = c.fail(Code::Broadcast, 4, text).operand(c.def.operand_name(i));
        return Err(match both.as_ref().err().and_then(Error::bad_sizes) {
            Some((a, b)) => e.sizes(a, b),
            None => e,
        });
    }
    if let Some(x) = c.opt(extras + 2) {
        let want = if x.rank() == 1 { vec![hq.clone()] } else { vec![b.clone(), hq.clone()] };
        c.expect_shape(5, extras + 2, &want)?;
    }
    if a.scale.is_some_and(|x| !x.is_finite()) || a.softcap.is_some_and(|x| !x.is_finite() || x <= 0.0) {
        return Err(c.fail(Code::Attribute, 6, format!("scale {:?}, softcap {:?}", a.scale, a.softcap)));
    }
    if a.window.is_some_and(|w| w < 1) {
        return Err(c.fail(Code::Attribute, 7, format!("window {:?}", a.window)));
    }
    Ok(c.ty(0)?.with_shape(vec![b, hq, s, c.dim(2, 3)?.clone()]))
}

/// The batch of a transform, folded into the batch of attention.
struct Fold<'c, 'g> {
    c: &'c VmapCx<'g>,
    /// The batch of attention itself.
    b: Dim,
}

impl<'g> Fold<'_, 'g> {
    /// `[batch, b, …]` as `[batch · b, …]`.
    fn merge(&self, x: Var<'g>) -> Var<'g> {
        let tail = x.shape().into_iter().skip(2);
        x.reshape(std::iter::once(&self.c.size * &self.b).chain(tail).collect::<Shape>())
    }
    /// The reverse.
    fn split(&self, x: Var<'g>) -> Var<'g> {
        let tail = x.shape().into_iter().skip(1);
        x.reshape([self.c.size.clone(), self.b.clone()].into_iter().chain(tail).collect::<Shape>())
    }
    fn operand(&self, i: usize) -> Var<'g> {
        self.merge(self.c.bx(i))
    }
    /// An operand that broadcasts to `rank` axes: as it is if nothing in it depends on the batches and it may
    /// be, else with both batches written out.
    fn broadcasting(&self, i: usize, rank: usize, may_stay: bool) -> Option<Var<'g>> {
        let x = self.c.opt(i)?;
        let whole = !self.c.is_batched(i) && (x.rank() < rank || x.dim(0).is(1));
        if whole && may_stay {
            return Some(x);
        }
        let x = self.c.bx(i).align_batch(rank);
        let mut shape = x.shape();
        if let Some(b) = shape.get_mut(1) {
            *b = self.b.clone();
        }
        Some(self.merge(if x.shape() == shape { x } else { x.broadcast(shape) }))
    }
    /// The gradient of such an operand, from the form with both batches written out.
    fn unbroadcast(&self, i: usize, dx: Var<'g>) -> Var<'g> {
        let Some(x) = self.c.opt(i) else { return dx };
        let own: Shape = x.shape().into_iter().skip(self.c.is_batched(i) as usize).collect();
        let dx = self.split(dx);
        let repeated = own.len() + 1 < dx.rank() || own.first() != Some(&self.b);
        let dx = if repeated { dx.sum(vec![1], false) } else { dx };
        dx.reshape(std::iter::once(self.c.size.clone()).chain(own).collect::<Shape>())
    }
}

ops! {
    /// Attention of q `[b, hq, s, d]` on k `[b, hkv, t, d]` and v `[b, hkv, t, dv]`: softmax(scores) · v, with
    /// scores = scale · q · kᵀ; query head i uses key head i / (hq / hkv). In this order:
    ///
    /// - `scale` is 1 / √d if left out;
    /// - `softcap` bends the scores to softcap · tanh(scores / softcap);
    /// - `bias`, which broadcasts to `[b, hq, s, t]`, is added;
    /// - −slope · |i + t − s − j| is added (ALiBi), with a slope for each head, `[hq]` or `[b, hq]`.
    ///
    /// Query i stands at key i + t − s: the last query at the last key. It sees every key but these: with
    /// `causal` those after its own, with `window` w those at a distance of w or more, those where `mask` (it
    /// broadcasts to `[b, hq, s, t]`) is false, those where the bias is −inf. A query that sees nothing gives 0,
    /// and so are its gradients.
    attention: Attention(q: Float, k: Float, v: Float, mask: opt Bool, bias: opt Float, slopes: opt Float)
        with {
            scale: Option<f64> = None, causal: bool = false, window: Option<i64> = None,
            softcap: Option<f64> = None,
        } -> y;
    constraints = [
        "q, k and v have four axes",
        "q, k, v agree in b; q, k in d; k, v in hkv and t",
        "hkv divides hq",
        "mask and bias broadcast to [b, hq, s, t]",
        "slopes are [hq] or [b, hq]",
        "scale is finite, softcap finite and more than 0",
        "window >= 1",
    ];
    infer = |c, a| Ok(vec![check(c, a, 3)?]);
    step = |_, a| Ok(Step::Attention(a));
    body = |c, a| {
        let [q, k, v] = c.xs().map(Var::wide);
        let w = weights(q, k, Extras { mask: c.opt(3), bias: c.opt(4), slopes: c.opt(5) }, a)?;
        let y = dot(share(w.p, &k.dim(1))?, v, &[4], &[2]);
        Ok(vec![unshare(y, &q.dim(1)).to(c.x(0).dtype())])
    };
    vjp = |c, a| {
        let (a, [q, k, v]) = (AttentionGrad::from(a), c.xs());
        let mut d = q.attention_grad(k, v, c.dy(0), c.opt(3), c.opt(4), c.opt(5), a).into_iter();
        let (dq, dk, dv) = (d.next(), d.next(), d.next());
        let dbias = c.opt(4).and_then(|_| d.next());
        Ok([dq, dk, dv, None, dbias, d.next()].into())
    };
    vmap = |c, a| {
        let fold = Fold { c, b: c.x(0).dim(c.is_batched(0) as i64) };
        let [q, k, v] = [0, 1, 2].map(|i| fold.operand(i));
        let (mask, bias) = (fold.broadcasting(3, 4, true), fold.broadcasting(4, 4, true));
        Ok(vec![fold.split(q.attention(k, v, mask, bias, fold.broadcasting(5, 2, true), a.clone()))])
    };
    onnx = [rule("Attention", 23, onnx::attention::attention), preview("FlexAttention", onnx::attention::flex_attention)];
    samples = |s| {
        let a = Attention::default();
        let qkv = || [Some(f([2, 2, 3, 4])), Some(f([2, 2, 4, 4])), Some(f([2, 2, 4, 3]))];
        let small = || [f([1, 2, 3, 2]), f([1, 1, 3, 2]), f([1, 1, 3, 2])];
        s.case("plain", a.clone(), [f([2, 2, 3, 4]), f([2, 2, 4, 4]), f([2, 2, 4, 3])]);
        s.case("shared_heads", a.clone(), [f([1, 4, 2, 3]), f([1, 2, 3, 3]), f([1, 2, 3, 2])]);
        s.case("scale", Attention { scale: Some(0.3), ..a.clone() }, small());
        s.case("causal", Attention { causal: true, ..a.clone() }, small());
        let decode = [f([2, 2, 1, 2]), f([2, 1, 5, 2]), f([2, 1, 5, 2])];
        s.case("causal_decode", Attention { causal: true, ..a.clone() }, decode);
        // The first two queries stand before the first key.
        let early = [f([1, 1, 4, 2]), f([1, 1, 2, 2]), f([1, 1, 2, 2])];
        s.case("causal_sees_nothing", Attention { causal: true, ..a.clone() }, early);
        let long = || [f([1, 1, 5, 2]), f([1, 1, 5, 2]), f([1, 1, 5, 2])];
        s.case("window", Attention { window: Some(2), ..a.clone() }, long());
        s.case("causal_window", Attention { causal: true, window: Some(3), ..a.clone() }, long());
        s.case("softcap", Attention { softcap: Some(1.5), scale: Some(1.0), ..a.clone() }, small());
        let [q, k, v] = qkv();
        s.case_opt("mask", a.clone(), [q, k, v, Some(boolean([2, 1, 3, 4]))]);
        let [q, k, v] = qkv();
        s.case_opt("mask_of_keys", a.clone(), [q, k, v, Some(boolean([4]))]);
        let [q, k, v] = qkv();
        s.case_opt("bias", Attention { causal: true, ..a.clone() }, [q, k, v, None, Some(f([2, 2, 3, 4]))]);
        let [q, k, v] = qkv();
        s.case_opt("bias_of_heads", a.clone(), [q, k, v, Some(boolean([3, 4])), Some(f([2, 1, 4]))]);
        let slopes = f([2]).within(0.1, 1.0);
        let [q, k, v] = qkv();
        s.case_opt("slopes", Attention { causal: true, ..a.clone() }, [q, k, v, None, None, Some(slopes)]);
        let [q, k, v] = qkv();
        let all = Attention { causal: true, softcap: Some(2.0), window: Some(3), scale: Some(0.7) };
        let slopes = f([2, 2]).within(0.1, 1.0);
        s.case_opt("all", all, [q, k, v, Some(boolean([2, 1, 3, 4])), Some(f([1, 2, 1, 4])), Some(slopes)]);
        s.case("no_keys", a.clone(), [f([1, 2, 2, 2]), f([1, 1, 0, 2]), f([1, 1, 0, 3])]);
        s.case("no_queries", a.clone(), [f([1, 2, 0, 2]), f([1, 1, 3, 2]), f([1, 1, 3, 2])]);
        let [q, k, v] = small();
        let inf = f64::INFINITY;
        let bias = f([3, 3]).values(&[0.0, -inf, 0.5, -inf, -inf, -inf, 0.0, 0.0, -inf]);
        s.rough("infinite_bias", a, [q, k, v, boolean([1]).values(&[1.0]), bias]);
    };
    tolerance = tol(4e-6, 4e-3, 3e-2);

    /// The gradients of `attention`: dq, dk and dv, then dbias if there is a bias, then dslopes if there are
    /// slopes, each with the shape of its operand. With p the softmax: dv = pᵀ · dy, ds = p · (dp − Σ p · dp)
    /// with dp = dy · vᵀ, dq = scale · ds · k and dk = scale · dsᵀ · q (through the soft cap), dbias is ds
    /// summed to the bias, and dslopes is −|distance| · ds summed.
    attention_grad: AttentionGrad(q: Float, k: Float, v: Float, dy: Float, mask: opt Bool, bias: opt Float,
        slopes: opt Float)
        with {
            scale: Option<f64> = None, causal: bool = false, window: Option<i64> = None,
            softcap: Option<f64> = None,
        } -> [grads];
    constraints = [
        "q, k and v have four axes",
        "q, k, v agree in b; q, k in d; k, v in hkv and t",
        "hkv divides hq",
        "mask and bias broadcast to [b, hq, s, t]",
        "slopes are [hq] or [b, hq]",
        "scale is finite, softcap finite and more than 0",
        "window >= 1",
        "dy has the shape of the result, [b, hq, s, dv]",
    ];
    infer = |c, a| {
        c.expect_shape(8, 3, &check(c, &Attention::from(a), 4)?.shape)?;
        Ok([0, 1, 2, 5, 6].into_iter().filter_map(|i| c.opt(i).cloned()).collect())
    };
    step = |_, a| Ok(Step::AttentionGrad(Attention::from(&a)));
    body = |c, a| {
        let (bias, slopes) = (c.opt(5), c.opt(6));
        let [q, k, v, dy] = c.xs().map(Var::wide);
        let (hq, hkv) = (q.dim(1), k.dim(1));
        let w = weights(q, k, Extras { mask: c.opt(4), bias, slopes }, &Attention::from(a))?;
        let (p, dy) = (share(w.p, &hkv)?, share(dy, &hkv)?);
        let dv = dot(p, dy, &[2, 3], &[2, 3]);
        let dp = unshare(dot(dy, v, &[4], &[3]), &hq);
        let ds = w.p * (dp - (w.p * dp).sum(vec![-1], true));
        let du = share(w.cap_slope.map_or(ds, |slope| ds * slope) * w.scale, &hkv)?;
        let dq = unshare(dot(du, k, &[4], &[2]), &hq);
        let dk = dot(du, share(q, &hkv)?, &[2, 3], &[2, 3]);
        let mut grads = vec![dq, dk, dv];
        grads.extend(bias.map(|bias| ds.sum_to(bias)));
        if let (Some(slopes), Some(near)) = (slopes, w.nearness) {
            grads.push((ds * near).sum(vec![-2, -1], false).sum_to(slopes));
        }
        Ok(grads.into_iter().map(|v| v.to(c.x(0).dtype())).collect())
    };
    vmap = |c, a| {
        let fold = Fold { c, b: c.x(0).dim(c.is_batched(0) as i64) };
        let [q, k, v, dy] = [0, 1, 2, 3].map(|i| fold.operand(i));
        let mask = fold.broadcasting(4, 4, true);
        // Their gradients differ within the batch, even where they themselves do not.
        let (bias, slopes) = (fold.broadcasting(5, 4, false), fold.broadcasting(6, 2, false));
        let mut d = q.attention_grad(k, v, dy, mask, bias, slopes, a.clone()).into_iter();
        let mut grads: Vec<Var<'_>> = d.by_ref().take(3).map(|d| fold.split(d)).collect();
        let given = [5, 6].into_iter().filter(|i| c.opt(*i).is_some());
        grads.extend(given.zip(d).map(|(i, d)| fold.unbroadcast(i, d)));
        Ok(grads)
    };
    samples = |s| {
        let a = AttentionGrad::default();
        let qkv = || [f([1, 2, 3, 2]), f([1, 1, 3, 2]), f([1, 1, 3, 3]), f([1, 2, 3, 3])].map(Some);
        s.case_opt("plain", a.clone(), qkv());
        s.case_opt("causal_window", AttentionGrad { causal: true, window: Some(2), ..a.clone() }, qkv());
        s.case_opt("softcap", AttentionGrad { softcap: Some(1.5), scale: Some(0.8), ..a.clone() }, qkv());
        let [q, k, v, dy] = qkv();
        s.case_opt("mask", a.clone(), [q, k, v, dy, Some(boolean([2, 3, 3]))]);
        let [q, k, v, dy] = qkv();
        s.case_opt("bias", a.clone(), [q, k, v, dy, None, Some(f([1, 2, 1, 3]))]);
        let [q, k, v, dy] = qkv();
        let slopes = Some(f([2]).within(0.1, 1.0));
        s.case_opt("slopes", AttentionGrad { causal: true, ..a.clone() }, [q, k, v, dy, None, None, slopes]);
        let qkv = [f([2, 2, 2, 2]), f([2, 2, 3, 2]), f([2, 2, 3, 1]), f([2, 2, 2, 1])];
        let [q, k, v, dy] = qkv.map(Some);
        let slopes = Some(f([2, 2]).within(0.1, 1.0));
        let all = AttentionGrad { causal: true, softcap: Some(2.0), window: Some(3), scale: Some(0.7) };
        s.case_opt("all", all, [q, k, v, dy, Some(boolean([2, 1, 2, 3])), Some(f([2, 3])), slopes]);
        let early = [f([1, 1, 3, 2]), f([1, 1, 1, 2]), f([1, 1, 1, 2]), f([1, 1, 3, 2])];
        s.case("sees_nothing", AttentionGrad { causal: true, ..a }, early);
    };
    tolerance = tol(2e-5, 1e-2, 6e-2);
}

impl From<&Attention> for AttentionGrad {
    fn from(a: &Attention) -> AttentionGrad {
        AttentionGrad { scale: a.scale, causal: a.causal, window: a.window, softcap: a.softcap }
    }
}

impl From<&AttentionGrad> for Attention {
    fn from(a: &AttentionGrad) -> Attention {
        Attention { scale: a.scale, causal: a.causal, window: a.window, softcap: a.softcap }
    }
}

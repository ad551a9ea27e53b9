//! The gated delta rule: a matrix memory that decays and is corrected at each step.

use super::selective_scan::{grad_types, grads_by, state_dtype, vmap_merged};
use crate::prelude::*;
use crate::recurrence::{Gradients, Recurrence, TurnGrads, first, in_dtypes};

/// Entries: q, k `[b, h, dk]`, v `[b, h, dv]`, g, beta `[b, h]`; state `[b, h, dk, dv]`.
const DELTA_RULE: Recurrence = Recurrence {
    step: |state, xs, _| {
        let [q, k, v, g, beta] = first(state, xs);
        let decayed = state * column(g.exp()).unsqueeze(-1);
        let change = column(beta) * (v - read(decayed, k));
        let next = decayed + outer(k, change);
        (next, read(next, q))
    },
    back: |state, xs, _, dy, ds| {
        let [q, k, v, g, beta] = first(state, xs);
        let decay = column(g.exp()).unsqueeze(-1);
        let decayed = state * decay;
        let error = v - read(decayed, k);
        let change = column(beta) * error;
        let next = decayed + outer(k, change);

        let ds = ds + outer(q, dy);
        let dchange = read(ds, k);
        let dv = column(beta) * dchange;
        let ddecayed = ds - outer(k, dv);
        TurnGrads {
            state: ddecayed * decay,
            xs: vec![
                project(next, dy),
                project(ds, change) - project(decayed, dv),
                dv,
                (ddecayed * decayed).sum(vec![-2, -1], false),
                (dchange * error).sum(vec![-1], false),
            ],
            fixed: Vec::new(),
        }
    },
};

fn column<'a>(x: Var<'a>) -> Var<'a> {
    x.unsqueeze(-1)
}
/// `Sᵀk`.
fn read<'a>(s: Var<'a>, k: Var<'a>) -> Var<'a> {
    (s * column(k)).sum(vec![-2], false)
}
/// `S·v`.
fn project<'a>(s: Var<'a>, v: Var<'a>) -> Var<'a> {
    (s * v.unsqueeze(-2)).sum(vec![-1], false)
}
/// `k ⊗ v`.
fn outer<'a>(k: Var<'a>, v: Var<'a>) -> Var<'a> {
    column(k) * v.unsqueeze(-2)
}

/// Keeps the length of a vector of zeros from being divided by.
const EPS: f64 = 1e-6;

/// One over the length of each vector.
fn inverse_length<'g>(x: Var<'g>) -> Var<'g> {
    ((x * x).sum(vec![-1], true) + EPS).rsqrt()
}

/// Each head of q or k repeated for the heads of v that share it.
fn repeated<'g>(x: Var<'g>, heads: &Dim) -> Var<'g> {
    let (own, shape) = (x.dim(2), x.shape());
    if own == *heads {
        return x;
    }
    let times = heads.exact_div(&own).unwrap_or(Dim::invalid());
    let [b, s, _, d] = [0, 1, 2, 3].map(|i| shape.get(i).cloned().unwrap_or(Dim::invalid()));
    let wide = x.unsqueeze(3).broadcast(vec![b.clone(), s.clone(), own, times, d.clone()]);
    wide.reshape(vec![b, s, heads.clone(), d])
}

/// The gradient of [`repeated`].
fn unrepeated<'g>(dy: Var<'g>, like: Var<'g>) -> Var<'g> {
    let own = like.dim(2);
    if own == dy.dim(2) {
        return dy;
    }
    let times = dy.dim(2).exact_div(&own).unwrap_or(Dim::invalid());
    dy.reshape(vec![dy.dim(0), dy.dim(1), own, times, dy.dim(3)]).sum(vec![3], false)
}

/// q or k as the recurrence takes it: of length 1 if `normalize`, times `scale`, once for each head.
fn prepared<'g>(x: Var<'g>, heads: &Dim, normalize: bool, scale: Var<'g>) -> Var<'g> {
    repeated(if normalize { x * inverse_length(x) } else { x } * scale, heads).move_axis(1, 0)
}

/// The gradient of [`prepared`].
fn unprepared<'g>(dy: Var<'g>, x: Var<'g>, normalize: bool, scale: Var<'g>) -> Var<'g> {
    let dy = unrepeated(dy.move_axis(0, 1), x) * scale;
    if !normalize {
        return dy;
    }
    let inverse = inverse_length(x);
    inverse * (dy - x * inverse * inverse * (dy * x).sum(vec![-1], true))
}

/// The scale of the queries: the attribute, or 1/√dk, which may be symbolic.
fn query_scale<'g>(q: Var<'g>, scale: Option<f64>) -> Var<'g> {
    scale.map_or_else(|| q.size_scalar(&q.dim(3)).rsqrt(), |s| q.scalar(s))
}

fn memory<'g>(g: &'g Graph, q: Var<'g>, v: Var<'g>, state: Option<Var<'g>>) -> Var<'g> {
    state.unwrap_or_else(|| g.zeros(q.dtype(), &[v.dim(0), v.dim(2), q.dim(3), v.dim(3)]))
}

ops! {
    /// The gated delta rule: attention with a memory of fixed size that decays and is corrected.
    ///
    /// Per batch and head, from `S[0] = state`, or 0:
    /// `S′ = exp(g[t]) · S[t−1]`, `S[t] = S′ + k[t] ⊗ beta[t]·(v[t] − S′ᵀ k[t])`, `y[t] = scale · S[t]ᵀ q[t]`.
    /// q and k are `[b, s, hk, dk]`, v `[b, s, h, dv]`, where hk divides h and head i of v uses head `i / (h/hk)` of q and k;
    /// g (the logarithm of the decay) and beta are `[b, s, h]`; the state is `[b, h, dk, dv]`, the last one the second
    /// result. `scale` is 1/√dk unless given. With `normalize`, q and k are divided by `√(Σ x² + 1e-6)` first. All is
    /// computed in f32 (f64 for operands of f64); the last state has the dtype of `state`, or that one.
    gated_delta_net: GatedDeltaNet(q: Float, k: Float, v: Float, g: Float, beta: Float, state: opt Free)
        with { scale: Option<f64> = None, normalize: bool = false } -> (y, last_state);
    constraints = ["q and k are [b, s, hk, dk]", "v is [b, s, h, dv]", "hk divides h", "g and beta are [b, s, h]",
        "state is a float [b, h, dk, dv]", "scale is finite"];
    infer = |c, a| {
        c.rank(1, 0, 4)?;
        c.rank(2, 2, 4)?;
        let dim = |i, axis| c.dim(i, axis).cloned();
        let (b, s, hk, dk, h, dv) = (dim(0, 0)?, dim(0, 1)?, dim(0, 2)?, dim(0, 3)?, dim(2, 2)?, dim(2, 3)?);
        c.expect_shape(1, 1, &c.ty(0)?.shape)?;
        c.expect_dim(2, 2, 0, &b)?;
        c.expect_dim(2, 2, 1, &s)?;
        if h.exact_div(&hk).is_none() {
            return Err(c.fail(Code::Dim, 3, format!("{hk} heads of keys for {h} of values")).operand("v").axis(2));
        }
        let per_head = [b.clone(), s, h.clone()];
        c.expect_shape(4, 3, &per_head)?;
        c.expect_shape(4, 4, &per_head)?;
        if a.scale.is_some_and(|s| !s.is_finite()) {
            return Err(c.fail(Code::Attribute, 6, format!("scale {:?}", a.scale)));
        }
        let shape = vec![b, h, dk, dv];
        let last = state_dtype(c, 5, 5, &shape)?;
        Ok(vec![c.ty(2)?.clone(), Type::new(last, shape)])
    };
    body = |c, a| {
        let dtype = c.x(0).dtype().wide();
        let [q, k, v, g, beta] = [0, 1, 2, 3, 4].map(|i| c.x(i).to(dtype));
        let heads = v.dim(2);
        let xs = [
            prepared(q, &heads, a.normalize, query_scale(q, a.scale)),
            prepared(k, &heads, a.normalize, k.scalar(1.0)),
            v.move_axis(1, 0), g.move_axis(1, 0), beta.move_axis(1, 0),
        ];
        let state = memory(c.g, q, v, c.opt(5).map(|s| s.to(dtype)));
        let (y, last) = DELTA_RULE.run(c.g, &v.dim(1), state, &xs, &[]);
        let own = c.opt(5).map_or(dtype, |s| s.dtype());
        Ok(vec![y.move_axis(0, 1).to(c.x(0).dtype()), last.to(own)])
    };
    vjp = |c, _| Ok(grads_by(c, GatedDeltaNetGrad::DEF, 6));
    vmap = |c, _| vmap_merged(c, &[]);
    onnx = [rule("LinearAttention", 27, onnx::attention::linear_attention)];
    tolerance = tol(4e-5, 1e-2, 8e-2);
    samples = |s| {
        let plain = GatedDeltaNet::default;
        let g = |shape: [usize; 3]| f(shape).within(-1.0, -0.1);
        let beta = |shape: [usize; 3]| f(shape).within(0.1, 0.9);
        s.case("plain", plain(), [f([1, 3, 2, 2]), f([1, 3, 2, 2]), f([1, 3, 2, 1]), g([1, 3, 2]), beta([1, 3, 2])]);
        s.case("all", GatedDeltaNet { scale: Some(0.7), normalize: true },
            [f([2, 2, 1, 3]), f([2, 2, 1, 3]), f([2, 2, 2, 2]), g([2, 2, 2]), beta([2, 2, 2]), f([2, 2, 3, 2])]);
        s.case("token", plain(), [f([1, 1, 1, 2]), f([1, 1, 1, 2]), f([1, 1, 1, 2]), g([1, 1, 1]), beta([1, 1, 1]), f([1, 1, 2, 2])]);
        s.case("nothing", plain(), [f([1, 0, 1, 2]), f([1, 0, 1, 2]), f([1, 0, 1, 2]), g([1, 0, 1]), beta([1, 0, 1])]);
    };

    /// The gradients of `gated_delta_net`: one for each of its operands that is given, in order. `dy` and `dlast` are the
    /// gradients of its results; without `dlast` that is 0. States are computed again in chunks, as in
    /// `selective_scan_grad`.
    gated_delta_net_grad: GatedDeltaNetGrad(dy: Float, q: Float, k: Float, v: Float, g: Float, beta: Float, state: opt Free,
        dlast: opt Free) with { scale: Option<f64> = None, normalize: bool = false } -> {grads};
    constraints = ["the operands from q to state are those of gated_delta_net", "dy and dlast have the types of its results"];
    infer = |c, _| grad_types(c, GatedDeltaNet::DEF, 6);
    body = |c, a| {
        let dtype = c.x(1).dtype().wide();
        let [dy, q, k, v, g, beta] = [0, 1, 2, 3, 4, 5].map(|i| c.x(i).to(dtype));
        let (heads, scale, one) = (v.dim(2), query_scale(q, a.scale), k.scalar(1.0));
        let xs = [
            prepared(q, &heads, a.normalize, scale),
            prepared(k, &heads, a.normalize, one),
            v.move_axis(1, 0), g.move_axis(1, 0), beta.move_axis(1, 0),
        ];
        let state = memory(c.g, q, v, c.opt(6).map(|s| s.to(dtype)));
        let dlast = c.opt(7).map_or_else(|| state.zeros_like(), |d| d.to(dtype));
        let Gradients { state, xs, .. } =
            DELTA_RULE.gradient(c.g, &v.dim(1), state, &xs, &[], dy.move_axis(1, 0), dlast);
        let [dq, dk, dv, dg, dbeta] = first(q, &xs);
        in_dtypes(vec![
            (c.opt(1), Some(unprepared(dq, q, a.normalize, scale))),
            (c.opt(2), Some(unprepared(dk, k, a.normalize, one))),
            (c.opt(3), Some(dv.move_axis(0, 1))),
            (c.opt(4), Some(dg.move_axis(0, 1))),
            (c.opt(5), Some(dbeta.move_axis(0, 1))),
            (c.opt(6), Some(state)),
        ])
    };
    tolerance = tol(8e-5, 2e-2, 1e-1);
    samples = |s| {
        let g = |shape: [usize; 3]| f(shape).within(-1.0, -0.1);
        let beta = |shape: [usize; 3]| f(shape).within(0.1, 0.9);
        s.case("plain", GatedDeltaNetGrad::default(),
            [f([1, 3, 1, 2]), f([1, 3, 1, 2]), f([1, 3, 1, 2]), f([1, 3, 1, 2]), g([1, 3, 1]), beta([1, 3, 1])]);
        s.case("all", GatedDeltaNetGrad { scale: Some(0.5), normalize: true },
            [f([1, 2, 2, 1]), f([1, 2, 1, 2]), f([1, 2, 1, 2]), f([1, 2, 2, 1]), g([1, 2, 2]), beta([1, 2, 2]), f([1, 2, 2, 1])]);
    };
}

//! The selective scan of Mamba-1, and what it shares with Mamba-2 (`ssd`).

use crate::prelude::*;
use crate::recurrence::{Gradients, Recurrence, TurnGrads, first, in_dtypes};

/// The recurrence of both Mambas over values of `[s, b, g, ..]`: g groups of c channels, each channel with n states.
/// Entries: x, dt `[b, g, c]` and B, C `[b, g, n]`; fixed: A `[g, c, n]` or `[g, c, 1]`; state `[b, g, c, n]`.
pub(crate) const MAMBA: Recurrence = Recurrence {
    step: |state, xs, fixed| {
        let ([x, dt, b, c], [a]) = (first(state, xs), first(state, fixed));
        let decay = (dt.unsqueeze(-1) * a).exp();
        let next = decay * state + (dt * x).unsqueeze(-1) * b.unsqueeze(-2);
        (next, (next * c.unsqueeze(-2)).sum(vec![-1], false))
    },
    back: |state, xs, fixed, dy, ds| {
        let ([x, dt, b, c], [a]) = (first(state, xs), first(state, fixed));
        let decay = (dt.unsqueeze(-1) * a).exp();
        let next = decay * state + (dt * x).unsqueeze(-1) * b.unsqueeze(-2);
        let ds = ds + dy.unsqueeze(-1) * c.unsqueeze(-2);
        let dc = (dy.unsqueeze(-1) * next).sum(vec![-2], false);
        let through = ds * state * decay; // the gradient of dt·A
        let input = (ds * b.unsqueeze(-2)).sum(vec![-1], false); // of dt·x
        TurnGrads {
            state: ds * decay,
            xs: vec![
                input * dt,
                input * x + (through * a).sum(vec![-1], false),
                (ds * (dt * x).unsqueeze(-1)).sum(vec![-2], false),
                dc,
            ],
            fixed: vec![(through * dt.unsqueeze(-1)).sum_to(a)],
        }
    },
};

/// The time step before and after softplus.
pub(crate) fn time_step<'g>(delta: Var<'g>, bias: Option<Var<'g>>, softplus: bool) -> (Var<'g>, Var<'g>) {
    let raw = bias.map_or(delta, |b| delta + b);
    (raw, if softplus { raw.softplus() } else { raw })
}

/// The gradients of delta and its bias.
pub(crate) fn time_step_grad<'g>(
    d: Var<'g>,
    raw: Var<'g>,
    bias: Option<Var<'g>>,
    softplus: bool,
) -> (Var<'g>, Option<Var<'g>>) {
    let d = if softplus { d * raw.sigmoid() } else { d };
    (d, bias.map(|b| d.sum_to(b)))
}

/// What follows the recurrence: the skip `+ d·x`, then the gate `· silu(z)`.
pub(crate) fn skip_and_gate<'g>(y: Var<'g>, x: Var<'g>, d: Option<Var<'g>>, z: Option<Var<'g>>) -> Var<'g> {
    let y = d.map_or(y, |d| y + x * d);
    z.map_or(y, |z| y * z.silu())
}

/// The gradients of what follows the recurrence.
pub(crate) struct TailGrads<'g> {
    /// Of the recurrence's result.
    pub y: Var<'g>,
    /// Of the skip's weights.
    pub d: Option<Var<'g>>,
    /// Of the gate; needs the recurrence's result.
    pub gate: Option<Var<'g>>,
}

/// The gradient that reaches the recurrence, and that of the skip's weights.
pub(crate) fn tail_grads<'g>(
    dy: Var<'g>,
    x: Var<'g>,
    d: Option<Var<'g>>,
    z: Option<Var<'g>>,
) -> TailGrads<'g> {
    let through = z.map_or(dy, |z| dy * z.silu());
    // d silu(z) = σ(z)·(1 + z·(1 − σ(z)))
    let gate = z.map(|z| {
        let s = z.sigmoid();
        dy * s * (1.0 + z * (1.0 - s))
    });
    TailGrads { y: through, d: d.map(|d| (through * x).sum_to(d)), gate }
}

/// Checks an optional operand against a shape.
pub(crate) fn expect_opt(c: &Infer<'_>, n: usize, i: usize, want: &[Dim]) -> Result<()> {
    if c.opt(i).is_some() { c.expect_shape(n, i, want) } else { Ok(()) }
}

/// Checks an optional state, which may have a float dtype of its own, and gives the dtype of the last state.
pub(crate) fn state_dtype(c: &Infer<'_>, n: usize, i: usize, want: &[Dim]) -> Result<DType> {
    expect_opt(c, n, i, want)?;
    match c.opt(i) {
        Some(t) if !t.dtype.is_float() => {
            Err(c.fail(Code::DType, n, format!("the state is {}", t.dtype)).operand("state"))
        }
        Some(t) => Ok(t.dtype),
        None => Ok(c.ty(0)?.dtype.wide()),
    }
}

/// The types of a gradient op's results: those of the operands of `forward` that are given. The gradient op's operands
/// are dy, then those of the op, `count` in number, then the gradient of the last state.
pub(crate) fn grad_types(
    c: &Infer<'_>,
    forward: &'static crate::op::OpDef,
    count: usize,
) -> Result<Vec<Type>> {
    let own: Vec<Option<Type>> = (1..=count).map(|i| c.opt(i).cloned()).collect();
    // The forward op's own numbers mean nothing to a reader of this op's list.
    let outs = forward.infer_types(c.attrs, &own, &[]).map_err(|e| {
        let mut broken = c.fail(e.code(), 1, e.message());
        if let Some(name) = e.bad_operand() {
            broken = broken.operand(name);
        }
        if let Some(axis) = e.bad_axis() {
            broken = broken.axis(axis);
        }
        broken
    })?;
    let dlast = c.opt(count + 1);
    for (name, given, want) in [("dy", c.opt(0), outs.first()), ("dlast", dlast, outs.get(1))] {
        if given.is_some() && given != want {
            let shown = |t: Option<&Type>| t.map(Type::to_string).unwrap_or_default();
            let text = format!("{name} is {}, but the result {}", shown(given), shown(want));
            return Err(c.fail(Code::Dim, 2, text).operand(name));
        }
    }
    Ok(own.into_iter().flatten().collect())
}

/// Applies a gradient op with those operands, and spreads its results over the operands of the forward op.
pub(crate) fn grads_by<'g>(c: &VjpCx<'g>, op: &'static crate::op::OpDef, count: usize) -> Grads<'g> {
    let dlast = c.cts.get(1).copied().flatten();
    let operands = [Some(c.dy(0))].into_iter().chain((0..count).map(|i| c.opt(i))).chain([dlast]).collect();
    let mut grads = c.g.emit(op, c.attrs.clone(), operands, Vec::new()).into_iter();
    c.operands.iter().map(|o| o.and_then(|_| grads.next())).collect::<Vec<_>>().into()
}

/// Merges the batch of vmap into the first axis of every operand but `shared` ones, if those are not batched.
pub(crate) fn vmap_merged<'g>(c: &VmapCx<'g>, shared: &[usize]) -> Result<Vec<Var<'g>>> {
    if shared.iter().any(|i| c.is_batched(*i)) {
        return crate::transform::vmap_through(c);
    }
    let merge = |i: usize| {
        if shared.contains(&i) {
            return c.opt(i);
        }
        c.bopt(i).map(|x| {
            let shape = x.shape();
            let merged = std::iter::once(x.dim(0) * x.dim(1)).chain(shape.iter().skip(2).cloned());
            x.reshape(merged.collect::<Shape>())
        })
    };
    let inner = c.bx(0).dim(1);
    let results = c.again(c.attrs.clone(), (0..c.operands.len()).map(merge).collect());
    let part = |y: Var<'g>| {
        let shape = [c.size.clone(), inner.clone()].into_iter().chain(y.shape().into_iter().skip(1));
        y.reshape(shape.collect::<Shape>())
    };
    Ok(results.into_iter().map(part).collect())
}

/// The operands of a selective scan as the recurrence takes them.
struct Parts<'g> {
    xs: Vec<Var<'g>>,
    a: Var<'g>,
    state: Var<'g>,
}

/// From `[b, s, ..]` to `[s, b, 1, ..]`.
fn over_time<'g>(x: Var<'g>) -> Var<'g> {
    x.move_axis(1, 0).unsqueeze(2)
}

/// And back.
fn over_batch<'g>(x: Var<'g>) -> Var<'g> {
    x.squeeze(2).move_axis(0, 1)
}

fn parts<'g>(
    g: &'g Graph,
    x: Var<'g>,
    dt: Var<'g>,
    [a, b, c]: [Var<'g>; 3],
    state: Option<Var<'g>>,
) -> Parts<'g> {
    let shape = [x.dim(0), Dim::constant(1), x.dim(2), a.dim(1)];
    let state = state.map_or_else(|| g.zeros(x.dtype(), &shape), |s| s.unsqueeze(1));
    Parts { xs: [x, dt, b, c].map(over_time).to_vec(), a: a.unsqueeze(0), state }
}

ops! {
    /// The selective scan of Mamba-1: a linear recurrence whose coefficients depend on the input.
    ///
    /// With `dt = delta (+ delta_bias)`, through softplus if `softplus` is set,
    /// `state[t] = exp(dt[t]·A) · state[t−1] + dt[t]·B[t]·x[t]` and `y[t] = Σ_n C[t]·state[t]`; then `y += D·x` and
    /// `y ·= silu(z)` where they are given.
    /// x, delta and z are `[b, s, h]`; A is `[h, n]`; B and C are `[b, s, n]`; D and delta_bias are `[h]`; the state is
    /// `[b, h, n]` and starts at `state`, or 0. The last state is the second result: scanning a sequence in pieces, each
    /// from the last state of the one before, gives the same as scanning it at once.
    /// All is computed in f32 (f64 for an x of f64); the last state has the dtype of `state`, or that one.
    selective_scan: SelectiveScan(x: Float, delta: Float, a: Float, b: Float, c: Float, d: opt Float, z: opt Float,
        delta_bias: opt Float, state: opt Free) { softplus: bool = false } -> (y, last_state);
    constraints = ["x is [b, s, h]", "delta has the shape of x", "a is [h, n]", "b and c are [b, s, n]", "d is [h]",
        "z has the shape of x", "delta_bias is [h]", "state is a float [b, h, n]"];
    infer = |c, _| {
        c.rank(1, 0, 3)?;
        c.rank(3, 2, 2)?;
        let x = c.ty(0)?.clone();
        let [batch, s, h] = [0, 1, 2].map(|i| c.dim(0, i).cloned());
        let (batch, s, h, n) = (batch?, s?, h?, c.dim(2, 1)?.clone());
        c.expect_shape(2, 1, &x.shape)?;
        c.expect_dim(3, 2, 0, &h)?;
        c.expect_shape(4, 3, &[batch.clone(), s.clone(), n.clone()])?;
        c.expect_shape(4, 4, &[batch.clone(), s, n.clone()])?;
        expect_opt(c, 5, 5, std::slice::from_ref(&h))?;
        expect_opt(c, 6, 6, &x.shape)?;
        expect_opt(c, 7, 7, std::slice::from_ref(&h))?;
        let shape = vec![batch, h, n];
        let last = state_dtype(c, 8, 8, &shape)?;
        Ok(vec![x, Type::new(last, shape)])
    };
    step = |_, a| Ok(Step::SelectiveScan { softplus: a.softplus });
    body = |c, a| {
        let dtype = c.x(0).dtype().wide();
        let up = |i: usize| c.opt(i).map(|v| v.to(dtype));
        let x = c.x(0).to(dtype);
        let (_, dt) = time_step(c.x(1).to(dtype), up(7), a.softplus);
        let p = parts(c.g, x, dt, [2, 3, 4].map(|i| c.x(i).to(dtype)), up(8));
        let (y, last) = MAMBA.run(c.g, &x.dim(1), p.state, &p.xs, &[p.a]);
        let y = skip_and_gate(over_batch(y), x, up(5), up(6));
        Ok(vec![y.to(c.x(0).dtype()), last.squeeze(1).to(c.opt(8).map_or(dtype, |s| s.dtype()))])
    };
    vjp = |c, _| Ok(grads_by(c, SelectiveScanGrad::DEF, 9));
    vmap = |c, _| vmap_merged(c, &[2, 5, 7]);
    tolerance = tol(2e-5, 8e-3, 6e-2);
    samples = |s| {
        let raw = || SelectiveScan { softplus: false };
        let dt = |shape| f(shape).within(0.1, 1.0);
        let a = |shape: [usize; 2]| f(shape).within(-1.5, -0.2);
        s.case("plain", raw(), [f([2, 3, 2]), dt([2, 3, 2]), a([2, 2]), f([2, 3, 2]), f([2, 3, 2])]);
        s.case("all", SelectiveScan { softplus: true }, [f([1, 5, 2]), f([1, 5, 2]), a([2, 3]), f([1, 5, 3]), f([1, 5, 3]),
            f([2]), f([1, 5, 2]), f([2]), f([1, 2, 3])]);
        s.case_opt("gate", raw(), [Some(f([1, 2, 3])), Some(dt([1, 2, 3])), Some(a([3, 1])), Some(f([1, 2, 1])),
            Some(f([1, 2, 1])), None, Some(f([1, 2, 3]))]);
        s.case_opt("token", SelectiveScan { softplus: true }, [Some(f([2, 1, 1])), Some(f([2, 1, 1])), Some(a([1, 2])),
            Some(f([2, 1, 2])), Some(f([2, 1, 2])), Some(f([1])), None, None, Some(f([2, 1, 2]))]);
        s.case("nothing", raw(), [f([1, 0, 2]), f([1, 0, 2]), a([2, 2]), f([1, 0, 2]), f([1, 0, 2])]);
    };

    /// The gradients of `selective_scan`: one for each of its operands that is given, in order.
    ///
    /// `dy` and `dlast` are the gradients of its results; without `dlast` that is 0. States are computed again in chunks
    /// of about √s, so that only those at the starts of chunks are kept.
    selective_scan_grad: SelectiveScanGrad(dy: Float, x: Float, delta: Float, a: Float, b: Float, c: Float, d: opt Float,
        z: opt Float, delta_bias: opt Float, state: opt Free, dlast: opt Free) { softplus: bool = false } -> {grads};
    constraints = ["the operands from x to state are those of selective_scan", "dy and dlast have the types of its results"];
    infer = |c, _| grad_types(c, SelectiveScan::DEF, 9);
    step = |_, a| Ok(Step::SelectiveScanGrad { softplus: a.softplus });
    body = |c, a| {
        let dtype = c.x(1).dtype().wide();
        let up = |i: usize| c.opt(i).map(|v| v.to(dtype));
        let x = c.x(1).to(dtype);
        let (raw, dt) = time_step(c.x(2).to(dtype), up(8), a.softplus);
        let p = parts(c.g, x, dt, [3, 4, 5].map(|i| c.x(i).to(dtype)), up(9));
        let tail = tail_grads(c.x(0).to(dtype), x, up(6), up(7));
        let dlast = up(10).map_or_else(|| p.state.zeros_like(), |d| d.unsqueeze(1));
        let Gradients { y, state, xs, fixed } =
            MAMBA.gradient(c.g, &x.dim(1), p.state, &p.xs, &[p.a], over_time(tail.y), dlast);
        let [dx, ddt, db, dc] = first(x, &xs).map(over_batch);
        let [da] = first(x, &fixed);
        let (ddelta, dbias) = time_step_grad(ddt, raw, up(8), a.softplus);
        let dz = tail.gate.map(|gate| gate * skip_and_gate(over_batch(y), x, up(6), None));
        in_dtypes(vec![
            (c.opt(1), Some(up(6).map_or(dx, |d| dx + tail.y * d))),
            (c.opt(2), Some(ddelta)),
            (c.opt(3), Some(da.squeeze(0))),
            (c.opt(4), Some(db)),
            (c.opt(5), Some(dc)),
            (c.opt(6), tail.d),
            (c.opt(7), dz),
            (c.opt(8), dbias),
            (c.opt(9), Some(state.squeeze(1))),
        ])
    };
    tolerance = tol(4e-5, 1e-2, 8e-2);
    samples = |s| {
        let a = |shape: [usize; 2]| f(shape).within(-1.5, -0.2);
        s.case("plain", SelectiveScanGrad { softplus: false },
            [f([1, 3, 2]), f([1, 3, 2]), f([1, 3, 2]), a([2, 2]), f([1, 3, 2]), f([1, 3, 2])]);
        s.case("all", SelectiveScanGrad { softplus: true }, [f([1, 2, 2]), f([1, 2, 2]), f([1, 2, 2]), a([2, 1]), f([1, 2, 1]),
            f([1, 2, 1]), f([2]), f([1, 2, 2]), f([2]), f([1, 2, 1]), f([1, 2, 1])]);
    };
}

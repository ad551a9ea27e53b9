//! The state-space duality of Mamba-2: a selective scan with one decay per head.

use super::selective_scan::{
    MAMBA, expect_opt, grad_types, grads_by, skip_and_gate, state_dtype, tail_grads, time_step,
    time_step_grad, vmap_merged,
};
use crate::prelude::*;
use crate::recurrence::{Gradients, first, in_dtypes};

/// How the operands lie as the recurrence takes them: g groups of c = h/g · p channels.
struct Layout {
    batch: Dim,
    s: Dim,
    heads: Dim,
    p: Dim,
    groups: Dim,
    n: Dim,
}

impl Layout {
    fn of(x: Var<'_>, b: Var<'_>) -> Layout {
        let [batch, s, heads, p] = [0, 1, 2, 3].map(|i| x.dim(i));
        Layout { batch, s, heads, p, groups: b.dim(2), n: b.dim(3) }
    }
    fn channels(&self) -> Dim {
        (&self.heads * &self.p).exact_div(&self.groups).unwrap_or(Dim::invalid())
    }
    /// `[b, s, h, p]` as `[s, b, g, c]`.
    fn over_time<'g>(&self, x: Var<'g>) -> Var<'g> {
        let shape = vec![self.batch.clone(), self.s.clone(), self.groups.clone(), self.channels()];
        x.reshape(shape).move_axis(1, 0)
    }
    /// And back.
    fn over_batch<'g>(&self, x: Var<'g>) -> Var<'g> {
        let shape = vec![self.batch.clone(), self.s.clone(), self.heads.clone(), self.p.clone()];
        x.move_axis(0, 1).reshape(shape)
    }
    /// `[b, s, h]` once for every p, as `[s, b, g, c]`.
    fn per_head<'g>(&self, x: Var<'g>) -> Var<'g> {
        self.over_time(
            x.unsqueeze(-1).broadcast([&self.batch, &self.s, &self.heads, &self.p].map(Dim::clone)),
        )
    }
    /// A `[h]` as `[g, c, 1]`.
    fn decay<'g>(&self, a: Var<'g>) -> Var<'g> {
        let wide = a.unsqueeze(-1).broadcast([self.heads.clone(), self.p.clone()]);
        wide.reshape(vec![self.groups.clone(), self.channels(), Dim::constant(1)])
    }
    /// The state `[b, h, p, n]` as `[b, g, c, n]`, zeros if there is none.
    fn state<'g>(&self, g: &'g Graph, dtype: DType, state: Option<Var<'g>>) -> Var<'g> {
        let shape = vec![self.batch.clone(), self.groups.clone(), self.channels(), self.n.clone()];
        state.map_or_else(|| g.zeros(dtype, &shape), |s| s.reshape(shape.clone()))
    }
    /// And back.
    fn own_state<'g>(&self, s: Var<'g>) -> Var<'g> {
        s.reshape(vec![self.batch.clone(), self.heads.clone(), self.p.clone(), self.n.clone()])
    }
}

ops! {
    /// The scan of Mamba-2 (SSD): each head decays as a whole.
    ///
    /// With `dt (+ dt_bias)`, through softplus if `softplus` is set, head i in group `j = i / (h/g)`:
    /// `state[t] = exp(dt[t]·A) · state[t−1] + dt[t] · x[t] ⊗ B[t]` and `y[t] = state[t] · C[t]`; then `y += D·x` and
    /// `y ·= silu(z)` where they are given.
    /// x and z are `[b, s, h, p]`; dt is `[b, s, h]`; A, D and dt_bias are `[h]`; B and C are `[b, s, g, n]`; the state is
    /// `[b, h, p, n]` and starts at `state`, or 0. The last state is the second result, as in `selective_scan`, and the
    /// dtypes are as there.
    ssd: Ssd(x: Float, dt: Float, a: Float, b: Float, c: Float, d: opt Float, z: opt Float, dt_bias: opt Float,
        state: opt Free) { softplus: bool = false } -> (y, last_state);
    constraints = ["x is [b, s, h, p]", "dt is [b, s, h]", "a is [h]", "b and c are [b, s, g, n]", "g divides h", "d is [h]",
        "z has the shape of x", "dt_bias is [h]", "state is a float [b, h, p, n]"];
    infer = |c, _| {
        c.rank(1, 0, 4)?;
        c.rank(4, 3, 4)?;
        let x = c.ty(0)?.clone();
        let dim = |i, axis| c.dim(i, axis).cloned();
        let (batch, s, h, p, g, n) = (dim(0, 0)?, dim(0, 1)?, dim(0, 2)?, dim(0, 3)?, dim(3, 2)?, dim(3, 3)?);
        c.expect_shape(2, 1, &[batch.clone(), s.clone(), h.clone()])?;
        c.expect_shape(3, 2, std::slice::from_ref(&h))?;
        let coefficients = [batch.clone(), s, g.clone(), n.clone()];
        c.expect_shape(4, 3, &coefficients)?;
        c.expect_shape(4, 4, &coefficients)?;
        if h.exact_div(&g).is_none() {
            return Err(c.fail(Code::Dim, 5, format!("{g} groups for {h} heads")).operand("b").axis(2));
        }
        expect_opt(c, 6, 5, std::slice::from_ref(&h))?;
        expect_opt(c, 7, 6, &x.shape)?;
        expect_opt(c, 8, 7, std::slice::from_ref(&h))?;
        let shape = vec![batch, h, p, n];
        let last = state_dtype(c, 9, 8, &shape)?;
        Ok(vec![x, Type::new(last, shape)])
    };
    body = |c, a| {
        let dtype = c.x(0).dtype().wide();
        let up = |i: usize| c.opt(i).map(|v| v.to(dtype));
        let [x, dt, decay, b, cc] = [0, 1, 2, 3, 4].map(|i| c.x(i).to(dtype));
        let l = Layout::of(x, b);
        let (_, dt) = time_step(dt, up(7), a.softplus);
        let xs = [l.over_time(x), l.per_head(dt), b.move_axis(1, 0), cc.move_axis(1, 0)];
        let (y, last) = MAMBA.run(c.g, &l.s, l.state(c.g, dtype, up(8)), &xs, &[l.decay(decay)]);
        let y = skip_and_gate(l.over_batch(y), x, up(5).map(|d| d.unsqueeze(-1)), up(6));
        Ok(vec![y.to(c.x(0).dtype()), l.own_state(last).to(c.opt(8).map_or(dtype, |s| s.dtype()))])
    };
    vjp = |c, _| Ok(grads_by(c, SsdGrad::DEF, 9));
    vmap = |c, _| vmap_merged(c, &[2, 5, 7]);
    tolerance = tol(2e-5, 8e-3, 6e-2);
    samples = |s| {
        let raw = || Ssd { softplus: false };
        let dt = |shape: [usize; 3]| f(shape).within(0.1, 1.0);
        let a = |n: usize| f([n]).within(-1.5, -0.2);
        s.case("plain", raw(), [f([1, 3, 2, 2]), dt([1, 3, 2]), a(2), f([1, 3, 1, 2]), f([1, 3, 1, 2])]);
        s.case("all", Ssd { softplus: true }, [f([1, 2, 4, 1]), f([1, 2, 4]), a(4), f([1, 2, 2, 2]), f([1, 2, 2, 2]), f([4]),
            f([1, 2, 4, 1]), f([4]), f([1, 4, 1, 2])]);
        s.case_opt("token", raw(), [Some(f([2, 1, 2, 1])), Some(dt([2, 1, 2])), Some(a(2)), Some(f([2, 1, 2, 1])),
            Some(f([2, 1, 2, 1])), None, None, None, Some(f([2, 2, 1, 1]))]);
        s.case("nothing", raw(), [f([1, 0, 2, 2]), f([1, 0, 2]), a(2), f([1, 0, 1, 2]), f([1, 0, 1, 2])]);
    };

    /// The gradients of `ssd`: one for each of its operands that is given, in order. Otherwise as `selective_scan_grad`.
    ssd_grad: SsdGrad(dy: Float, x: Float, dt: Float, a: Float, b: Float, c: Float, d: opt Float, z: opt Float,
        dt_bias: opt Float, state: opt Free, dlast: opt Free) { softplus: bool = false } -> {grads};
    constraints = ["the operands from x to state are those of ssd", "dy and dlast have the types of its results"];
    infer = |c, _| grad_types(c, Ssd::DEF, 9);
    body = |c, a| {
        let dtype = c.x(1).dtype().wide();
        let up = |i: usize| c.opt(i).map(|v| v.to(dtype));
        let [dy, x, dt, decay, b, cc] = [0, 1, 2, 3, 4, 5].map(|i| c.x(i).to(dtype));
        let l = Layout::of(x, b);
        let (raw, dt) = time_step(dt, up(8), a.softplus);
        let xs = [l.over_time(x), l.per_head(dt), b.move_axis(1, 0), cc.move_axis(1, 0)];
        let skip = up(6).map(|d| d.unsqueeze(-1));
        let tail = tail_grads(dy, x, skip, up(7));
        let state = l.state(c.g, dtype, up(9));
        let dlast = l.state(c.g, dtype, up(10));
        let Gradients { y, state, xs, fixed } =
            MAMBA.gradient(c.g, &l.s, state, &xs, &[l.decay(decay)], l.over_time(tail.y), dlast);
        let ([dx, ddt, db, dc], [da]) = (first(x, &xs), first(x, &fixed));
        let dx = l.over_batch(dx);
        let (ddt, dbias) = time_step_grad(l.over_batch(ddt).sum(vec![-1], false), raw, up(8), a.softplus);
        let da = da.reshape(vec![l.heads.clone(), l.p.clone()]).sum(vec![-1], false);
        let dz = tail.gate.map(|gate| gate * skip_and_gate(l.over_batch(y), x, skip, None));
        in_dtypes(vec![
            (c.opt(1), Some(skip.map_or(dx, |d| dx + tail.y * d))),
            (c.opt(2), Some(ddt)),
            (c.opt(3), Some(da)),
            (c.opt(4), Some(db.move_axis(0, 1))),
            (c.opt(5), Some(dc.move_axis(0, 1))),
            (c.opt(6), tail.d.map(|d| d.squeeze(-1))),
            (c.opt(7), dz),
            (c.opt(8), dbias),
            (c.opt(9), Some(l.own_state(state))),
        ])
    };
    tolerance = tol(4e-5, 1e-2, 8e-2);
    samples = |s| {
        let a = |n: usize| f([n]).within(-1.5, -0.2);
        s.case("plain", SsdGrad { softplus: false },
            [f([1, 3, 2, 1]), f([1, 3, 2, 1]), f([1, 3, 2]), a(2), f([1, 3, 1, 2]), f([1, 3, 1, 2])]);
        s.case_opt("bias", SsdGrad { softplus: true }, [Some(f([1, 2, 2, 1])), Some(f([1, 2, 2, 1])), Some(f([1, 2, 2])),
            Some(a(2)), Some(f([1, 2, 1, 1])), Some(f([1, 2, 1, 1])), Some(f([2])), Some(f([1, 2, 2, 1])), Some(f([2]))]);
    };
}

//! Normalisation of images `[n, c, spatial…]`: group norm, instance norm, batch norm.

use crate::ops::norm::{affine, check_eps};
use crate::prelude::*;

/// Whether x is `[n, c, …]` (constraint 1) and the operands at `params` are `[c]` (constraint 2); gives c.
fn channels<'a>(c: &'a Infer<'_>, params: &[usize]) -> Result<&'a Dim> {
    c.rank_at_least(1, 0, 2)?;
    let channels = c.dim(0, 1)?;
    for i in params.iter().filter(|i| c.opt(**i).is_some()) {
        c.expect_shape(2, *i, std::slice::from_ref(channels))?;
    }
    Ok(channels)
}

/// Constraint 3: the groups are of equal size.
fn check_groups(c: &Infer<'_>, channels: &Dim, groups: i64) -> Result<()> {
    if groups >= 1 && channels.exact_div(&Dim::constant(groups)).is_some() {
        return Ok(());
    }
    Err(c.fail(Code::Attribute, 3, format!("{channels} channels in {groups} groups")).operand("x").axis(1))
}

/// x as `[n, groups, elements of a group]`.
fn grouped<'g>(x: Var<'g>, groups: &Dim) -> Result<Var<'g>> {
    let per_group = product(x.shape().get(1..).unwrap_or(&[])).exact_div(groups);
    let per_group = per_group.ok_or_else(|| Error::new(Code::Dim, "the groups differ in size").axis(1))?;
    Ok(x.reshape(vec![x.dim(0), groups.clone(), per_group]))
}

/// A vector over the channels, so that it broadcasts against x.
fn per_channel<'g>(v: Option<Var<'g>>, x: Var<'g>) -> Option<Var<'g>> {
    let shape =
        std::iter::once(x.dim(1)).chain(std::iter::repeat_n(Dim::constant(1), x.rank().saturating_sub(2)));
    v.map(|v| v.reshape(shape.collect::<Shape>()))
}

/// The axes that a statistic over the channels runs over: all but 1.
fn all_but_channels(x: Var<'_>) -> Vec<i64> {
    (0..x.rank() as i64).filter(|i| *i != 1).collect()
}

/// Batches an op over `[n, c, …]` by folding the batch into n, if only x is batched.
fn fold_batch<'g>(c: &VmapCx<'g>, f: impl Fn(Var<'g>) -> Var<'g>) -> Result<Vec<Var<'g>>> {
    if !c.only_first() {
        return crate::transform::vmap_through(c);
    }
    let shape = c.x(0).shape();
    let n = product(shape.get(..2).unwrap_or(&[]));
    let folded: Shape = std::iter::once(n).chain(shape.iter().skip(2).cloned()).collect();
    Ok(vec![f(c.x(0).reshape(folded)).reshape(shape)])
}

ops! {
    /// The channels (axis 1) in `groups` equal groups, each normalised together with all axes behind it, per
    /// sample: (x − mean) / sqrt(variance + eps) · gamma + beta, with the population variance and one gamma
    /// and beta per channel.
    group_norm: GroupNorm(x: Float, gamma: opt Float, beta: opt Float) { groups: i64, eps: f64 = 1e-5 } -> y;
    constraints = [
        "x has at least two axes",
        "gamma and beta have the shape of axis 1 of x",
        "groups >= 1 divides the number of channels",
        "eps is finite and not negative",
    ];
    infer = |c, a| {
        check_groups(c, channels(c, &[1, 2])?, a.groups)?;
        check_eps(c, 4, a.eps)?;
        Ok(vec![c.ty(0)?.clone()])
    };
    body = |c, a| {
        let x = c.x(0).wide();
        let y = grouped(x, &a.groups.into())?.layer_norm(None, None, a.eps, 1).reshape(x.shape());
        Ok(vec![affine(y, per_channel(c.opt(1), x), per_channel(c.opt(2), x)).to(c.x(0).dtype())])
    };
    vjp = |c, a| {
        let [dx, dgamma, dbeta] = c.x(0).group_norm_grad(c.dy(0), c.opt(1), a.groups, a.eps);
        Ok([Some(dx), c.opt(1).map(|_| dgamma), c.opt(2).map(|_| dbeta)].into())
    };
    vmap = |c, a| fold_batch(c, |x| x.group_norm(c.opt(1), c.opt(2), a.groups, a.eps));
    onnx = [rule("GroupNormalization", 18, onnx::norm::group_normalization)];
    samples = |s| {
        s.case("affine", GroupNorm { groups: 2, eps: 1e-5 }, [f([2, 4, 3]), f([4]), f([4])]);
        s.case("image", GroupNorm { groups: 3, eps: 1e-3 }, [f([1, 3, 2, 3]), f([3])]);
        s.case_opt("beta", GroupNorm { groups: 1, eps: 1e-5 }, [Some(f([2, 3, 2])), None, Some(f([3]))]);
        s.case("vectors", GroupNorm { groups: 2, eps: 1e-5 }, [f([3, 6])]);
        s.case("empty", GroupNorm { groups: 2, eps: 1e-5 }, [f([0, 4, 3]), f([4]), f([4])]);
    };
    tolerance = tol(4e-6, 4e-3, 3e-2);

    /// The gradients of `group_norm`: dx as of layer_norm within each group, with g = dy · gamma; dgamma and
    /// dbeta are dy · x̂ and dy summed over all axes but the channels.
    group_norm_grad: GroupNormGrad(x: Float, dy: Float, gamma: opt Float) { groups: i64, eps: f64 = 1e-5 }
        -> (dx, dgamma, dbeta);
    constraints = [
        "x has at least two axes",
        "gamma has the shape of axis 1 of x",
        "groups >= 1 divides the number of channels",
        "eps is finite and not negative",
        "dy has the shape of x",
    ];
    infer = |c, a| {
        let (x, channels) = (c.ty(0)?, channels(c, &[2])?);
        check_groups(c, channels, a.groups)?;
        check_eps(c, 4, a.eps)?;
        c.expect_shape(5, 1, &x.shape)?;
        let param = x.with_shape(vec![channels.clone()]);
        Ok(vec![x.clone(), param.clone(), param])
    };
    body = |c, a| {
        let (dtype, groups) = (c.x(0).dtype(), Dim::constant(a.groups));
        let [x, dy] = c.xs().map(Var::wide);
        let rows = grouped(x, &groups)?;
        let n = rows.layer_norm(None, None, a.eps, 1).reshape(x.shape());
        let g = grouped(affine(dy, per_channel(c.opt(2), x), None), &groups)?;
        let [dx, _, _] = rows.layer_norm_grad(g, None, a.eps, 1);
        let axes = all_but_channels(x);
        let dgamma = (dy * n).sum(axes.clone(), false);
        Ok([dx.reshape(x.shape()), dgamma, dy.sum(axes, false)].map(|v| v.to(dtype)).into())
    };
    samples = |s| {
        let a = GroupNormGrad { groups: 2, eps: 1e-5 };
        s.case("gamma", a.clone(), [f([2, 4, 3]), f([2, 4, 3]), f([4])]);
        s.case("plain", GroupNormGrad { groups: 1, eps: 1e-3 }, [f([1, 3, 2, 2]), f([1, 3, 2, 2])]);
        s.case("empty", a, [f([0, 4, 3]), f([0, 4, 3]), f([4])]);
    };
    tolerance = tol(1e-5, 1e-2, 6e-2);

    /// Every channel of every sample normalised over the axes behind it: group norm with a group per channel.
    instance_norm: InstanceNorm(x: Float, gamma: opt Float, beta: opt Float) { eps: f64 = 1e-5 } -> y;
    constraints = [
        "x has at least two axes",
        "gamma and beta have the shape of axis 1 of x",
        "eps is finite and not negative",
    ];
    infer = |c, a| {
        channels(c, &[1, 2])?;
        check_eps(c, 3, a.eps)?;
        Ok(vec![c.ty(0)?.clone()])
    };
    body = |c, a| {
        let x = c.x(0).wide();
        let shape = x.shape();
        let flat = vec![x.dim(0), x.dim(1), product(shape.get(2..).unwrap_or(&[]))];
        let y = x.reshape(flat).layer_norm(None, None, a.eps, 1).reshape(shape);
        Ok(vec![affine(y, per_channel(c.opt(1), x), per_channel(c.opt(2), x)).to(c.x(0).dtype())])
    };
    vmap = |c, a| fold_batch(c, |x| x.instance_norm(c.opt(1), c.opt(2), a.eps));
    onnx = [rule("InstanceNormalization", 1, onnx::norm::instance_normalization)];
    samples = |s| {
        let a = InstanceNorm { eps: 1e-5 };
        s.case("affine", a.clone(), [f([2, 3, 4]), f([3]), f([3])]);
        s.case_opt("beta", a.clone(), [Some(f([1, 2, 2, 3])), None, Some(f([2]))]);
        s.case("plain", InstanceNorm { eps: 0.1 }, [f([2, 2, 3])]);
        s.case("empty", a, [f([2, 0, 3])]);
    };
    tolerance = tol(4e-6, 4e-3, 3e-2);

    /// (x − mean) / sqrt(var + eps) · gamma + beta per channel (axis 1), with statistics that are given:
    /// inference.
    batch_norm: BatchNorm(x: Float, gamma: opt Float, beta: opt Float, mean: Float, var: Float)
        { eps: f64 = 1e-5 } -> y;
    constraints = [
        "x has at least two axes",
        "gamma, beta, mean and var have the shape of axis 1 of x",
        "eps is finite and not negative",
    ];
    infer = |c, a| {
        channels(c, &[1, 2, 3, 4])?;
        check_eps(c, 3, a.eps)?;
        Ok(vec![c.ty(0)?.clone()])
    };
    body = |c, a| {
        let x = c.x(0).wide();
        let param = |i| per_channel(c.opt(i).map(Var::wide), x).unwrap_or_else(|| c.g.poison());
        let y = (x - param(3)) * (param(4) + a.eps).rsqrt();
        Ok(vec![affine(y, per_channel(c.opt(1), x), per_channel(c.opt(2), x)).to(c.x(0).dtype())])
    };
    vmap = |c, a| fold_batch(c, |x| x.batch_norm(c.opt(1), c.opt(2), c.x(3), c.x(4), a.eps));
    onnx = [rule("BatchNormalization", 1, onnx::norm::batch_normalization)];
    samples = |s| {
        let a = BatchNorm { eps: 1e-5 };
        let (mean, var) = (f([3]), f([3]).within(0.5, 2.0));
        s.case("affine", a.clone(), [f([2, 3, 2]), f([3]), f([3]), mean.clone(), var.clone()]);
        let plain = [Some(f([2, 3])), None, None, Some(mean.clone()), Some(var.clone())];
        s.case_opt("plain", BatchNorm { eps: 0.1 }, plain);
        s.case("empty", a, [f([0, 3, 2]), f([3]), f([3]), mean, var]);
    };
    tolerance = tol(4e-6, 4e-3, 3e-2);

    /// (x − mean) / sqrt(var + eps) · gamma + beta per channel (axis 1), with the mean and the population
    /// variance of this batch, which are results too. (A running variance as PyTorch keeps it takes var · n /
    /// (n − 1).)
    batch_norm_train: BatchNormTrain(x: Float, gamma: opt Float, beta: opt Float) { eps: f64 = 1e-5 }
        -> (y, mean, var);
    constraints = [
        "x has at least two axes",
        "gamma and beta have the shape of axis 1 of x",
        "eps is finite and not negative",
    ];
    infer = |c, a| {
        let (x, channels) = (c.ty(0)?, channels(c, &[1, 2])?);
        check_eps(c, 3, a.eps)?;
        let stat = x.with_shape(vec![channels.clone()]);
        Ok(vec![x.clone(), stat.clone(), stat])
    };
    body = |c, a| {
        let (x, dtype) = (c.x(0).wide(), c.x(0).dtype());
        let axes = all_but_channels(x);
        let mean = x.mean(axes.clone(), true);
        let d = x - mean;
        let var = d.square().mean(axes, true);
        let y = affine(d * (var + a.eps).rsqrt(), per_channel(c.opt(1), x), per_channel(c.opt(2), x));
        let flat = vec![x.dim(1)];
        Ok([y, mean.reshape(flat.clone()), var.reshape(flat)].map(|v| v.to(dtype)).into())
    };
    vjp = |c, a| {
        let [dx, dgamma, dbeta] = c.x(0).batch_norm_grad(c.dy(0), c.opt(1), a.eps);
        let (x, mut dx) = (c.x(0).wide(), dx.wide());
        // The statistics depend on x too, where somebody differentiates them.
        let axes = all_but_channels(x);
        let n: Shape = axes.iter().map(|i| x.dim(*i)).collect();
        let n = x.size_scalar(&product(&n));
        let reached = |i: usize| per_channel(c.cts.get(i).copied().flatten().map(Var::wide), x);
        if let Some(dmean) = reached(1) {
            dx = dx + dmean / n;
        }
        if let Some(dvar) = reached(2) {
            dx = dx + (x - x.mean(axes, true)) * (dvar * 2.0 / n);
        }
        let dx = dx.to(c.x(0).dtype());
        Ok([Some(dx), c.opt(1).map(|_| dgamma), c.opt(2).map(|_| dbeta)].into())
    };
    samples = |s| {
        let a = BatchNormTrain { eps: 1e-5 };
        s.case("affine", a.clone(), [f([3, 2, 2]), f([2]), f([2])]);
        s.case_opt("beta", a.clone(), [Some(f([4, 3])), None, Some(f([3]))]);
        s.case("plain", BatchNormTrain { eps: 0.1 }, [f([2, 1, 2, 2])]);
        s.rough("empty", a, [f([0, 2, 3]), f([2])]);
    };
    tolerance = tol(4e-6, 4e-3, 3e-2);

    /// The gradients of the first result of `batch_norm_train`. With x̂ = (x − mean) · r, r = 1 / sqrt(var +
    /// eps) and g = dy · gamma: dx = r · (g − mean g − x̂ · mean(g · x̂)); dgamma and dbeta are dy · x̂ and
    /// dy, summed. Means and sums run over all axes but the channels.
    batch_norm_grad: BatchNormGrad(x: Float, dy: Float, gamma: opt Float) { eps: f64 = 1e-5 }
        -> (dx, dgamma, dbeta);
    constraints = [
        "x has at least two axes",
        "gamma has the shape of axis 1 of x",
        "eps is finite and not negative",
        "dy has the shape of x",
    ];
    infer = |c, a| {
        let (x, channels) = (c.ty(0)?, channels(c, &[2])?);
        check_eps(c, 3, a.eps)?;
        c.expect_shape(4, 1, &x.shape)?;
        let param = x.with_shape(vec![channels.clone()]);
        Ok(vec![x.clone(), param.clone(), param])
    };
    body = |c, a| {
        let (dtype, axes) = (c.x(0).dtype(), all_but_channels(c.x(0)));
        let [x, dy] = c.xs().map(Var::wide);
        let d = x - x.mean(axes.clone(), true);
        let r = (d.square().mean(axes.clone(), true) + a.eps).rsqrt();
        let n = d * r;
        let g = affine(dy, per_channel(c.opt(2), x), None);
        let dx = r * (g - g.mean(axes.clone(), true) - n * (g * n).mean(axes.clone(), true));
        Ok([dx, (dy * n).sum(axes.clone(), false), dy.sum(axes, false)].map(|v| v.to(dtype)).into())
    };
    samples = |s| {
        let a = BatchNormGrad { eps: 1e-5 };
        s.case("gamma", a.clone(), [f([3, 2, 2]), f([3, 2, 2]), f([2])]);
        s.case("plain", a.clone(), [f([4, 3]), f([4, 3])]);
        s.case("empty", a, [f([0, 2]), f([0, 2]), f([2])]);
    };
    tolerance = tol(1e-5, 1e-2, 6e-2);
}

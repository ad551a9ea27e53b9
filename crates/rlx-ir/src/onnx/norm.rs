//! ONNX's normalisations.

use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::graph::Var;
use crate::onnx::Call;
use crate::ops::norm::affine;
use crate::ops::window::WindowKind;
use crate::types::{Shape, product, resolve_axis};

/// How many of the last axes are normalised.
fn axes(c: &Call<'_, '_>, x: Var<'_>) -> Result<usize> {
    Ok(x.rank() - resolve_axis(c.int_or("axis", -1)?, x.rank())?)
}

fn last(n: usize) -> Vec<i64> {
    (-(n as i64)..0).collect()
}

/// Whether a scale or bias has the shape of the last `n` axes of x, or is not given.
fn fits(p: Option<Var<'_>>, x: Var<'_>, n: usize) -> bool {
    p.is_none_or(|p| p.shape().as_slice() == x.shape().get(x.rank().saturating_sub(n)..).unwrap_or_default())
}

/// x normalised over its last `n` axes, times gamma, plus beta, which may be of any shape that broadcasts to x.
fn layer_norm<'g>(x: Var<'g>, gamma: Option<Var<'g>>, beta: Option<Var<'g>>, eps: f64, n: usize) -> Var<'g> {
    let own = |p: Option<Var<'g>>| p.map(|p| p.to(x.dtype()));
    if fits(gamma, x, n) && fits(beta, x, n) {
        return x.layer_norm(own(gamma), own(beta), eps, n as i64);
    }
    affine(x.wide().layer_norm(None, None, eps, n as i64), gamma, beta).to(x.dtype())
}

/// The mean over the last `n` axes, and one over the deviation.
fn statistics<'g>(x: Var<'g>, eps: f64, n: usize, dtype: DType) -> [Var<'g>; 2] {
    let x = x.wide();
    let inverse = (x.var(last(n), true, 0) + eps).rsqrt();
    [x.mean(last(n), true).to(dtype), inverse.to(dtype)]
}

pub(crate) fn layer_normalization<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let x = c.x(0)?;
    let (n, eps) = (axes(c, x)?, c.float_or("epsilon", 1e-5)?);
    let mut out = vec![layer_norm(x, c.opt(1), c.opt(2), eps, n)];
    if c.wants(1) || c.wants(2) {
        out.extend(statistics(x, eps, n, c.dtype("stash_type")?.unwrap_or(DType::F32)));
    }
    Ok(out)
}

/// `rms_norm` over the last `n` axes, times gamma of any shape that broadcasts to x.
fn rms_norm<'g>(x: Var<'g>, gamma: Option<Var<'g>>, eps: f64, n: usize) -> Var<'g> {
    let shape = x.shape();
    let (lead, rest) = shape.split_at(shape.len().saturating_sub(n));
    let flat = |v: Var<'g>, lead: &[Dim]| match n {
        1 => v,
        _ => v.reshape(lead.iter().cloned().chain([product(rest)]).collect::<Shape>()),
    };
    let rows = flat(x, lead);
    if fits(gamma, x, n) {
        let gamma = gamma.map(|p| flat(p, &[]).to(x.dtype()));
        return rows.rms_norm(gamma, None, eps).reshape(shape.clone());
    }
    affine(rows.wide().rms_norm(None, None, eps).reshape(shape.clone()), gamma, None).to(x.dtype())
}

pub(crate) fn rms_normalization<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let x = c.x(0)?;
    // Computed in f32 at least, as every stash_type asks.
    c.dtype("stash_type")?;
    Ok(vec![rms_norm(x, c.opt(1), c.float_or("epsilon", 1e-5)?, axes(c, x)?)])
}

/// `SkipLayerNormalization`, which normalises the sum of its operands; with `mean` false by the root mean square alone.
fn skip<'g>(c: &Call<'g, '_>, mean: bool) -> Result<Vec<Var<'g>>> {
    let [x, skip, gamma] = c.xs()?;
    let (beta, bias) = if mean { (c.opt(3), c.opt(4)) } else { (None, c.opt(3)) };
    let sum = bias.map_or(x + skip, |b| x + skip + b);
    let eps = c.float_or("epsilon", 1e-12)?;
    let y =
        if mean { layer_norm(sum, Some(gamma), beta, eps, 1) } else { rms_norm(sum, Some(gamma), eps, 1) };
    let mut out = vec![y];
    if (1..4).any(|i| c.wants(i)) {
        out.extend(statistics(sum, eps, 1, DType::F32));
        out.push(sum);
    }
    Ok(out)
}

pub(crate) fn skip_layer_normalization<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    skip(c, true)
}

pub(crate) fn skip_rms_normalization<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    if c.wants(1) || c.wants(2) {
        return Err(c.cannot("the statistics of a norm without a mean"));
    }
    skip(c, false)
}

pub(crate) fn group_normalization<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let [x, scale, bias] = c.xs()?;
    let groups = c.int("num_groups")?;
    let groups = groups.ok_or_else(|| Error::new(Code::Attribute, "attribute num_groups is missing"))?;
    // Computed in f32 at least, as every stash_type asks.
    c.dtype("stash_type")?;
    let per_channel = |p: Var<'g>| -> Result<Var<'g>> {
        if c.opset >= 21 {
            return Ok(p);
        }
        // Older sets give a number per group.
        let each = x.dim(1).exact_div(&groups.into());
        let each =
            each.ok_or_else(|| Error::new(Code::Dim, format!("{} in {groups} groups", x.ty())).axis(1))?;
        Ok(p.unsqueeze(1).broadcast(vec![groups.into(), each]).reshape(vec![x.dim(1)]))
    };
    let (gamma, beta) = (per_channel(scale)?, per_channel(bias)?);
    Ok(vec![x.group_norm(gamma, beta, groups, c.float_or("epsilon", 1e-5)?)])
}

pub(crate) fn instance_normalization<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let [x, scale, bias] = c.xs()?;
    Ok(vec![x.instance_norm(scale, bias, c.float_or("epsilon", 1e-5)?)])
}

pub(crate) fn batch_normalization<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let [x, scale, bias, mean, var] = c.xs()?;
    let (eps, momentum) = (c.float_or("epsilon", 1e-5)?, c.float_or("momentum", 0.9)?);
    let training = match c.opset {
        14.. => c.flag("training_mode", false)?,
        // Between 7 and 13 it is the number of outputs that tells.
        7..14 => (1..5).any(|i| c.wants(i)),
        _ => !c.flag("is_test", false)?,
    };
    let per_element = c.opset < 9 && !c.flag("spatial", true)? && x.rank() > 2;
    // The statistics may be of a wider dtype than x.
    let given = [x, scale, bias, mean, var];
    let dtype = if given.iter().all(|v| v.dtype() == x.dtype()) { x.dtype() } else { widest(&given) };
    let [wx, gamma, beta, mu, sigma] = given.map(|v| v.to(dtype));
    if per_element {
        if training {
            return Err(c.cannot("training with statistics per element"));
        }
        let [wx, mu, sigma] = [wx, mu, sigma].map(Var::wide);
        let y = (wx - mu) * (sigma + eps).rsqrt();
        return Ok(vec![affine(y, Some(gamma), Some(beta)).to(x.dtype())]);
    }
    if !training {
        return Ok(vec![wx.batch_norm(gamma, beta, mu, sigma, eps).to(x.dtype())]);
    }
    let [y, batch_mean, batch_var] = wx.batch_norm_train(gamma, beta, eps);
    let running =
        |old: Var<'g>, new: Var<'g>| old.wide() * momentum + new.to(old.dtype().wide()) * (1.0 - momentum);
    let [m, v] = [running(mean, batch_mean).to(mean.dtype()), running(var, batch_var).to(var.dtype())];
    // Older sets also give what backward would need of this batch.
    Ok(vec![y.to(x.dtype()), m, v, batch_mean, batch_var])
}

/// The widest dtype of some floats: that in which they are computed with.
fn widest(xs: &[Var<'_>]) -> DType {
    xs.iter().map(|x| x.dtype().wide()).find(|d| *d == DType::F64).unwrap_or(DType::F32)
}

pub(crate) fn lrn<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let x = c.x(0)?;
    let size = c.int("size")?.filter(|n| *n > 0);
    let size = size.ok_or_else(|| Error::new(Code::Attribute, "attribute size must be positive"))?;
    let (alpha, beta, bias) =
        (c.float_or("alpha", 1e-4)?, c.float_or("beta", 0.75)?, c.float_or("bias", 1.0)?);
    // A window over the channels: one place along every axis behind them.
    let over_channels = |n: i64, rest: i64| -> Vec<i64> {
        std::iter::once(n).chain(std::iter::repeat_n(rest, x.rank().saturating_sub(2))).collect()
    };
    let (before, after) = ((size - 1) / 2, size / 2);
    let squares = x.wide().square().reduce_window(
        WindowKind::Sum,
        over_channels(size, 1),
        vec![],
        vec![],
        over_channels(before, 0),
        over_channels(after, 0),
    );
    let y = x.wide() / (squares * (alpha / size as f64) + bias).pow(beta);
    Ok(vec![y.to(x.dtype())])
}

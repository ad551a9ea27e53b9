//! ONNX's attention ops.

use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::graph::Var;
use crate::onnx::{Attr, Call};
use crate::ops::attention::Attention;
use crate::ops::gated_delta_net::GatedDeltaNet;
use crate::ops::rope::Rope;

/// An attribute that counts heads.
fn heads(c: &Call<'_, '_>, name: &str) -> Result<i64> {
    c.int(name)?
        .filter(|n| *n > 0)
        .ok_or_else(|| Error::new(Code::Attribute, format!("attribute {name} must be positive")))
}

/// `[b, s, h · d]` as `[b, s, h, d]`.
fn split_heads<'g>(x: Var<'g>, heads: i64) -> Result<Var<'g>> {
    let d = x.dim(2).exact_div(&Dim::constant(heads)).filter(|_| x.rank() == 3);
    let d =
        d.ok_or_else(|| Error::new(Code::Dim, format!("{} has not {heads} heads of one size", x.ty())))?;
    Ok(x.reshape(vec![x.dim(0), x.dim(1), heads.into(), d]))
}

/// `[b, s, h, d]` as `[b, s, h · d]`.
fn join_heads<'g>(x: Var<'g>) -> Var<'g> {
    x.reshape(vec![x.dim(0), x.dim(1), x.dim(2) * x.dim(3)])
}

/// `[b, s, h, d]` as `[b, h, s, d]`, and back.
fn swap<'g>(x: Var<'g>) -> Var<'g> {
    x.permute(vec![0, 2, 1, 3])
}

/// Products of each query head `[b, hq, s, n]` with the matrix `[b, hkv, n, m]` of its key head.
fn per_head<'g>(x: Var<'g>, y: Var<'g>) -> Result<Var<'g>> {
    let group = x.dim(1).exact_div(&y.dim(1));
    let group =
        group.ok_or_else(|| Error::new(Code::Dim, "the heads of keys do not divide those of queries"))?;
    if group.is(1) {
        return Ok(x.matmul(y));
    }
    let z = x.reshape(vec![x.dim(0), y.dim(1), group, x.dim(2), x.dim(3)]).matmul(y.unsqueeze(2));
    Ok(z.reshape(vec![x.dim(0), x.dim(1), x.dim(2), y.dim(3)]))
}

/// Which keys a query may see, and what is added to the scores.
#[derive(Default)]
struct Sight<'g> {
    mask: Option<Var<'g>>,
    bias: Option<Var<'g>>,
}

impl<'g> Sight<'g> {
    fn only(&mut self, visible: Var<'g>) {
        self.mask = Some(self.mask.map_or(visible, |m| m.and(visible)));
    }

    /// The mask operand, which may be shorter than the keys: what it leaves out is not seen.
    fn take(&mut self, mask: Var<'g>, keys: &Dim, extend: bool) {
        let short = keys - mask.dim(-1);
        let mask = if extend && mask.rank() > 0 && !short.is(0) {
            let hidden = if mask.dtype() == DType::Bool { 0.0 } else { f64::NEG_INFINITY };
            let mut hi = vec![Dim::constant(0); mask.rank()];
            hi.last_mut().into_iter().for_each(|d| *d = short.clone());
            mask.pad(hidden, vec![Dim::constant(0); mask.rank()], hi, vec![0; mask.rank()])
        } else {
            mask
        };
        match mask.dtype() {
            DType::Bool => self.only(mask),
            _ => self.bias = Some(mask),
        }
    }

    /// All that is added to the scores, with what is not seen as −inf.
    fn added(&self, like: Var<'g>) -> Option<Var<'g>> {
        let bias = self.bias.map(|b| b.to(like.dtype()));
        let Some(mask) = self.mask else { return bias };
        let zero = bias.unwrap_or_else(|| like.scalar(0.0));
        Some(mask.select(zero, like.scalar(f64::NEG_INFINITY)))
    }
}

/// The operands q, k and v as `[b, h, s, d]`.
fn operands<'g>(c: &Call<'g, '_>) -> Result<[Var<'g>; 3]> {
    let [q, k, v] = c.xs()?;
    if q.rank() != 3 {
        return Ok([q, k, v]);
    }
    let (hq, hkv) = (heads(c, "q_num_heads")?, heads(c, "kv_num_heads")?);
    Ok([swap(split_heads(q, hq)?), swap(split_heads(k, hkv)?), swap(split_heads(v, hkv)?)])
}

pub(crate) fn attention<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let packed = c.x(0)?.rank() == 3;
    let [q, k, v] = operands(c)?;
    let with = |past: Option<Var<'g>>, x: Var<'g>| past.map_or(x, |p| c.g.concat(&[p, x], 2));
    let (keys, values) = (with(c.opt(4), k), with(c.opt(5), v));
    let (s, t) = (q.dim(2), keys.dim(2));

    let mut sight = Sight::default();
    if let Some(mask) = c.opt(3) {
        sight.take(mask, &t, c.opset >= 24);
    }
    let causal = c.flag("is_causal", false)?;
    let (left, right) = (c.int_or("left_window_size", -1)?, c.int_or("right_window_size", -1)?);
    let seen = c.opt(6);
    // How many keys stand before the first query: the past, or what a cache holds beyond the queries.
    let before = match (c.opt(4), seen) {
        (None, Some(n)) => {
            n.to(DType::I64).reshape(vec![q.dim(0), 1.into(), 1.into(), 1.into()])
                - c.g.size_of(s.clone(), DType::I64)
        }
        (Some(past), _) => c.g.size_of(past.dim(2), DType::I64),
        (None, None) => c.g.scalar(DType::I64, 0.0),
    };
    let key = c.g.iota(vec![t.clone()], 0, DType::I64);
    if let Some(n) = seen {
        let n = n.to(DType::I64).reshape(vec![q.dim(0), 1.into(), 1.into(), 1.into()]);
        sight.only(key.less(n));
    }
    let mut attrs = Attention {
        scale: c.float("scale")?,
        softcap: c.float("softcap")?.filter(|cap| *cap != 0.0),
        ..Attention::default()
    };
    // `attention` has the last query at the last key, which is the same if as many keys as queries are new.
    let at_end = (c.opt(4).is_some() || seen.is_none()) && k.dim(2).unify(&s).is_some();
    let plain = !c.wants(3);
    if plain && at_end && causal && right < 0 {
        attrs.causal = true;
        attrs.window = (left >= 0).then(|| left.saturating_add(1));
    } else {
        let query = c.g.iota(vec![s, 1.into()], 0, DType::I64) + before;
        let last = if causal { 0 } else { right };
        if last >= 0 {
            sight.only(key.less_equal(query + last as f64));
        }
        if left >= 0 {
            sight.only(key.greater_equal(query - left as f64));
        }
    }

    // Scores are computed in f32 at least; f64 only if it is asked for.
    let dtype = match c.dtype("softmax_precision")? {
        Some(DType::F64) => DType::F64,
        _ => q.dtype(),
    };
    let [wq, wk, wv] = [q, keys, values].map(|x| x.to(dtype));
    let (y, scores) = if plain {
        (wq.attention(wk, wv, sight.mask, sight.bias.map(|b| b.to(dtype)), None, attrs), None)
    } else {
        let (y, scores) = written_out(c, [wq, wk, wv], &sight, &attrs)?;
        (y, Some(scores.to(q.dtype())))
    };
    let y = y.to(q.dtype());
    let y = if packed { join_heads(swap(y)) } else { y };
    Ok([y, keys, values].into_iter().chain(scores).collect())
}

/// Attention as ONNX writes it out, and the scores at the stage that `qk_matmul_output_mode` names.
fn written_out<'g>(
    c: &Call<'g, '_>,
    [q, k, v]: [Var<'g>; 3],
    sight: &Sight<'g>,
    a: &Attention,
) -> Result<(Var<'g>, Var<'g>)> {
    let scale = a.scale.map_or_else(|| q.size_scalar(&q.dim(3)).rsqrt(), |x| q.scalar(x));
    let raw = per_head(q * scale, k.t())?.wide();
    let capped = a.softcap.map_or(raw, |cap| (raw / cap).tanh() * cap);
    let added = sight.added(capped);
    let biased = added.map_or(capped, |b| capped + b);
    let mut p = biased.softmax(-1);
    // A query that sees no key takes nothing.
    if let Some(added) = added {
        let blind = added.max(vec![-1], true).equal(f64::NEG_INFINITY);
        p = blind.select(p.scalar(0.0), p);
    }
    let y = per_head(p.to(v.dtype()), v)?;
    let shown = match c.int_or("qk_matmul_output_mode", 0)? {
        0 => raw,
        1 => capped,
        2 => biased,
        3 => p,
        n => return Err(Error::new(Code::Attribute, format!("qk_matmul_output_mode is {n}"))),
    };
    Ok((y, shown))
}

pub(crate) fn flex_attention<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let [q, k, v] = c.xs()?;
    let modify = |name: &str, x: Var<'g>| match c.attrs.get(name) {
        None => Ok(x),
        Some(Attr::Graph(f)) => match f.build(&[x])?.as_slice() {
            [y] => Ok(*y),
            other => Err(Error::new(Code::Operands, format!("{name} gives {} values, not one", other.len()))),
        },
        Some(_) => Err(Error::new(Code::Attribute, format!("attribute {name} must be a graph"))),
    };
    let dtype = c.dtype("softmax_precision")?.unwrap_or(q.dtype().wide());
    let scale = match c.float("scale")? {
        Some(scale) => q.scalar(scale),
        None => q.size_scalar(&q.dim(3)).rsqrt(),
    };
    let scores = modify("score_mod", per_head(q * scale, k.t())?.to(dtype))?;
    let p = modify("prob_mod", scores.softmax(-1))?;
    Ok(vec![per_head(p, v.to(dtype))?.to(v.dtype())])
}

/// How linear attention updates its state: whether it decays, and whether values are corrected by what the keys find.
struct Update {
    gated: bool,
    delta: bool,
}

pub(crate) fn linear_attention<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let (hq, hkv) = (heads(c, "q_num_heads")?, heads(c, "kv_num_heads")?);
    let rule = match c.text("update_rule", "gated_delta")? {
        "linear" => Update { gated: false, delta: false },
        "gated" => Update { gated: true, delta: false },
        "delta" => Update { gated: false, delta: true },
        "gated_delta" => Update { gated: true, delta: true },
        other => return Err(Error::new(Code::Attribute, format!("update_rule is {other:?}"))),
    };
    let [q, k, v] = c.xs()?;
    let (dtype, own) = (q.dtype().wide(), q.dtype());
    let [q, k, v] = [split_heads(q, hq)?, split_heads(k, hkv)?, split_heads(v, hkv)?];
    let scale = c.float("scale")?.filter(|s| *s != 0.0);
    let (past, decay, beta) = (c.opt(3), c.opt(4), c.opt(5));
    let need = |x: Option<Var<'g>>, wanted: bool, name: &str| match (x, wanted) {
        (Some(_), true) | (None, false) => Ok(()),
        _ => Err(Error::new(Code::Operands, format!("{name} is given, or missing, against the update rule"))),
    };
    need(decay, rule.gated, "decay")?;
    need(beta, rule.delta, "beta")?;
    let state_dtype = past.map_or(own, |s| s.dtype());
    if hq == hkv
        && rule.delta
        && let (Some(g), Some(beta)) = (decay, beta)
        && g.dim(2).is(hkv)
        && beta.dim(2).is(hkv)
    {
        let [y, last] = q.gated_delta_net(k, v, g, beta, past, GatedDeltaNet { scale, normalize: false });
        return Ok(vec![join_heads(y), last.to(state_dtype)]);
    }
    let time_first = |x: Var<'g>| x.to(dtype).move_axis(1, 0);
    let mut xs = vec![time_first(q), time_first(k), time_first(v)];
    // [b, s, h] as [b, s, h, 1], and [b, s, h · dk] as [b, s, h, dk].
    xs.extend(match decay {
        Some(g) if g.dim(2).is(hkv) => Some(time_first(g.unsqueeze(-1))),
        Some(g) => Some(time_first(split_heads(g, hkv)?)),
        None => None,
    });
    xs.extend(beta.map(|b| time_first(b.unsqueeze(-1))));
    let (dk, dv) = (k.dim(3), v.dim(3));
    let state = past
        .map_or_else(|| c.g.zeros(dtype, &[q.dim(0), hkv.into(), dk.clone(), dv.clone()]), |s| s.to(dtype));
    let scale = scale.map_or_else(|| state.size_scalar(&dk).rsqrt(), |s| state.scalar(s));
    let (last, ys) = c.g.scan(&[state], &xs, q.dim(1), false, |state, xs| {
        let [mut s, q, k, mut v] = [state.first(), xs.first(), xs.get(1), xs.get(2)]
            .map(|x| x.copied().unwrap_or_else(|| c.g.poison()));
        let mut more = xs.iter().skip(3).copied();
        if let Some(g) = more.next().filter(|_| rule.gated) {
            s = s * g.exp().unsqueeze(-1);
        }
        let row = |x: Var<'g>| x.unsqueeze(-2);
        if let Some(beta) = xs.last().filter(|_| rule.delta) {
            v = *beta * (v - row(k).matmul(s).squeeze(-2));
        }
        let next = s + k.unsqueeze(-1) * row(v);
        let group = vec![q.dim(0), hkv.into(), (hq / hkv.max(1)).into(), dk.clone()];
        let read = q.reshape(group).matmul(next) * scale;
        (vec![next], vec![read.reshape(vec![q.dim(0), hq.into(), dv.clone()])])
    });
    let get = |v: &[Var<'g>]| v.first().copied().unwrap_or_else(|| c.g.poison());
    Ok(vec![join_heads(get(&ys).move_axis(0, 1).to(own)), get(&last).to(state_dtype)])
}

pub(crate) fn causal_conv<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let [x, w] = c.xs()?;
    let silu = match c.text("activation", "none")? {
        "none" => false,
        "silu" | "swish" => true,
        other => return Err(Error::new(Code::Attribute, format!("activation is {other:?}"))),
    };
    let [y, last] = x.t().causal_conv1d(w.squeeze(1), c.opt(2), c.opt(3).map(Var::t), silu);
    Ok(vec![y.t(), last.t()])
}

/// `rope` of x, `[b, s, h · d]` with a number of heads or `[b, h, s, d]`, by tables and positions.
fn rotated<'g>(
    c: &Call<'g, '_>,
    x: Var<'g>,
    [cos, sin]: [Var<'g>; 2],
    positions: Option<Var<'g>>,
) -> Result<Var<'g>> {
    let by_head = match x.rank() {
        3 => split_heads(x, heads(c, "num_heads")?)?,
        4 => swap(x),
        n => return Err(Error::new(Code::Rank, format!("x has {n} axes, not 3 or 4"))),
    };
    let head_dim = by_head.dim(3).as_const();
    let head_dim = head_dim.ok_or_else(|| c.cannot("heads whose size is not constant"))?;
    let n_rot = c.int("rotary_embedding_dim")?.filter(|n| *n != 0).unwrap_or(head_dim);
    let (b, s) = (by_head.dim(0), by_head.dim(1));
    // Without positions the tables have a row for every element of the batch and the sequence.
    let (cos, sin, positions) = match positions {
        Some(p) => (cos, sin, p),
        None => {
            let rows = |t: Var<'g>| t.reshape(vec![t.dim(0) * t.dim(1), t.dim(2)]);
            let places = c.g.iota(vec![&b * &s], 0, DType::I64).reshape(vec![b, s]);
            (rows(cos), rows(sin), places)
        }
    };
    let a = Rope { head_dim, n_rot, interleaved: c.flag("interleaved", false)?, inverse: false };
    let y = join_heads(by_head).rope(cos, sin, positions, a.head_dim, a.n_rot, a.interleaved, a.inverse);
    Ok(match x.rank() {
        3 => y,
        _ => swap(y.reshape(by_head.shape())),
    })
}

pub(crate) fn rotary_embedding<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let [x, cos, sin] = c.xs()?;
    Ok(vec![rotated(c, x, [cos, sin], c.opt(3))?])
}

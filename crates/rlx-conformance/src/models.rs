//! Graphs of models that benches and tests share: a decoder and its training, a block of Mamba, one graph with every kind of
//! step that models seldom have; and data for any graph.

use rlx::func::PortKind;
use rlx::ops::attention::Attention;
use rlx::ops::conv::Conv;
use rlx::ops::loss::Reduction;
use rlx::ops::scatter::ScatterMode;
use rlx::sample::{Arg, ArgType, Fill};
use rlx::{Bindings, DType, Func, Graph, Result, Tensor, Var, dim, transform};

/// The sizes of a decoder such as GPT-2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpt {
    /// The number of layers.
    pub layers: i64,
    /// The width of a token.
    pub hidden: i64,
    /// The number of attention heads.
    pub heads: i64,
    /// The number of words.
    pub vocab: i64,
    /// The largest number of tokens.
    pub positions: i64,
    /// The largest batch.
    pub batch: i64,
}

impl Gpt {
    /// The graph: `ids` and `targets`, both i64 `[batch, seq]`, to `loss` (of the next word) and `logits`.
    pub fn graph(&self) -> Result<Func> {
        let g = Graph::new("gpt");
        let (b, s) = (dim("batch", self.batch), dim("seq", self.positions));
        let ids = g.input("ids", DType::I64, [b.clone(), s.clone()]);
        let targets = g.input("targets", DType::I64, [b, s.clone()]);
        let words = g.param("wte", DType::F32, [self.vocab, self.hidden]);
        let places = g.param("wpe", DType::F32, [self.positions, self.hidden]);
        let mut x = words.gather(ids, 0) + places.narrow(0, 0, s);
        for i in 0..self.layers {
            x = self.layer(&g, x, &format!("h.{i}"));
        }
        let logits = self.norm(&g, x, "ln_f").matmul(words.t());
        g.output("loss", logits.cross_entropy(targets, -100, 0.0, Reduction::Mean));
        g.output("logits", logits);
        g.finish()
    }

    /// The loss and its gradients.
    pub fn training(&self) -> Result<Func> {
        training(self.graph()?)
    }

    fn linear<'g>(&self, g: &'g Graph, x: Var<'g>, name: &str, from: i64, to: i64) -> Var<'g> {
        let w = g.param(&format!("{name}.weight"), DType::F32, [from, to]);
        x.matmul(w) + g.param(&format!("{name}.bias"), DType::F32, [to])
    }

    fn norm<'g>(&self, g: &'g Graph, x: Var<'g>, name: &str) -> Var<'g> {
        let param = |end: &str| g.param(&format!("{name}.{end}"), DType::F32, [self.hidden]);
        x.layer_norm(Some(param("weight")), Some(param("bias")), 1e-5, 1)
    }

    fn layer<'g>(&self, g: &'g Graph, x: Var<'g>, name: &str) -> Var<'g> {
        let (h, width) = (self.heads, self.hidden);
        let (b, s) = (x.dim(0), x.dim(1));
        let normed = self.norm(g, x, &format!("{name}.ln_1"));
        let heads = |which: &str| {
            let y = self.linear(g, normed, &format!("{name}.attn.{which}"), width, width);
            y.reshape([b.clone(), s.clone(), h.into(), (width / h).into()]).permute(vec![0, 2, 1, 3])
        };
        let (q, k, v) = (heads("query"), heads("key"), heads("value"));
        let causal = Attention { causal: true, ..Attention::default() };
        let y = q.attention(k, v, None, None, None, causal);
        let y = y.permute(vec![0, 2, 1, 3]).reshape([b.clone(), s.clone(), width.into()]);
        let x = x + self.linear(g, y, &format!("{name}.attn.out"), width, width);
        let y = self.norm(g, x, &format!("{name}.ln_2"));
        let y = self.linear(g, y, &format!("{name}.mlp.up"), width, 4 * width).gelu();
        x + self.linear(g, y, &format!("{name}.mlp.down"), 4 * width, width)
    }
}

/// The sizes of a block of Mamba-1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mamba {
    /// The width of a token.
    pub hidden: i64,
    /// The width within the block.
    pub inner: i64,
    /// The states of a channel.
    pub states: i64,
    /// The width of what the time steps are made from.
    pub rank: i64,
    /// The largest number of tokens.
    pub positions: i64,
    /// The largest batch.
    pub batch: i64,
}

impl Mamba {
    /// The graph: `x` `[batch, seq, hidden]` to `y` of the same shape and `loss`, the mean of its squares.
    pub fn graph(&self) -> Result<Func> {
        let g = Graph::new("mamba");
        let Mamba { hidden, inner, states, rank, .. } = *self;
        let param = |name: &str, shape: &[i64]| g.param(name, DType::F32, shape.to_vec());
        let (b, s) = (dim("batch", self.batch), dim("seq", self.positions));
        let x = g.input("x", DType::F32, [b, s, hidden.into()]);
        let normed = x.rms_norm(Some(param("norm", &[hidden])), None, 1e-5);
        let both = normed.matmul(param("in_proj", &[hidden, 2 * inner]));
        let (main, gate) = (both.narrow(2, 0, inner), both.narrow(2, inner, inner));
        let [main, _] = main.causal_conv1d(
            param("conv.weight", &[inner, 4]),
            Some(param("conv.bias", &[inner])),
            None,
            true,
        );
        let mixed = main.matmul(param("x_proj", &[inner, rank + 2 * states]));
        let dt = mixed.narrow(2, 0, rank).matmul(param("dt_proj.weight", &[rank, inner]));
        let (b, c) = (mixed.narrow(2, rank, states), mixed.narrow(2, rank + states, states));
        let a = -param("a_log", &[inner, states]).exp();
        let (d, bias) = (param("d", &[inner]), param("dt_proj.bias", &[inner]));
        let [y, _] = main.selective_scan(dt, a, b, c, Some(d), Some(gate), Some(bias), None, true);
        let y = x + y.matmul(param("out_proj", &[inner, hidden]));
        g.output("y", y);
        g.output("loss", (y * y).mean_all());
        g.finish()
    }

    /// The loss and its gradients.
    pub fn training(&self) -> Result<Func> {
        training(self.graph()?)
    }
}

/// The loss of a graph with its gradients with respect to all params.
fn training(mut f: Func) -> Result<Func> {
    f.outputs.retain(|o| o.name == "loss");
    let f = transform::dce(&f)?;
    gradients(&f, &["loss"])
}

/// An element of a list.
fn pick<'g>(g: &'g Graph, list: &[Var<'g>], k: usize) -> Var<'g> {
    list.get(k).copied().unwrap_or_else(|| g.poison())
}

/// A residual block of convolutions: `x` `[n, channels, side, side]` to `y` of the same shape, `down` (of half the size),
/// `each` (channel by channel) and `line` (one axis).
pub fn residual(channels: i64) -> Result<Func> {
    let g = Graph::new("residual");
    let (n, side) = (dim("n", 4), dim("side", 64));
    let x = g.input("x", DType::F32, [n, channels.into(), side.clone(), side]);
    let param = |name: &str, shape: &[i64]| g.param(name, DType::F32, shape.to_vec());
    let same = Conv { padding_lo: vec![1, 1], padding_hi: vec![1, 1], ..Conv::default() };
    let filter = |name: &str, inner: i64| param(name, &[channels, inner, 3, 3]);
    let up = x.conv(filter("a.weight", channels), Some(param("a.bias", &[channels])), same.clone()).relu();
    let [scale, shift, mean, var] =
        ["scale", "shift", "mean", "var"].map(|k| param(&format!("norm.{k}"), &[channels]));
    let y = up.conv(filter("b.weight", channels), None, same.clone());
    let y = y.batch_norm(Some(scale), Some(shift), mean, var * var + 0.5, 1e-5);
    let y = (y + x).relu();
    let half = Conv { stride: vec![2, 2], ..same.clone() };
    let down = y.conv(filter("c.weight", channels), None, half).sigmoid();
    let apart = Conv { groups: channels, ..same };
    let each = y.conv(filter("d.weight", 1), None, apart).silu() * y;
    let flat = y.reshape([y.dim(0), channels.into(), y.dim(2) * y.dim(3)]);
    let line = flat.conv(param("e.weight", &[5, channels, 1]), Some(param("e.bias", &[5])), Conv::default());
    g.output("y", y);
    g.output("down", down);
    g.output("each", each);
    g.output("line", line.tanh());
    g.finish()
}

/// Attention with a gate: `x` `[batch, seq, heads · width]` to `y` of the same shape, gated behind the heads, and to
/// `normed`, every head's result over its length.
pub fn gated(heads: i64, width: i64) -> Result<Func> {
    let g = Graph::new("gated");
    let hidden = heads * width;
    let (b, s) = (dim("batch", 4), dim("seq", 80));
    let x = g.input("x", DType::F32, [b.clone(), s.clone(), hidden.into()]);
    let param = |name: &str, shape: &[i64]| g.param(name, DType::F32, shape.to_vec());
    let split = |name: &str| {
        let y = x.matmul(param(name, &[hidden, hidden]));
        y.reshape([b.clone(), s.clone(), heads.into(), width.into()]).permute(vec![0, 2, 1, 3])
    };
    let causal = Attention { causal: true, ..Attention::default() };
    let (q, k, v) = (split("q"), split("k"), split("v"));
    let y = q.attention(k, v, None, None, None, causal.clone());
    let y = y.permute(vec![0, 2, 1, 3]).reshape([b, s, hidden.into()]);
    let y = y * x.matmul(param("gate", &[hidden, hidden])).sigmoid() + x;
    let normed =
        k.attention(q, v, None, None, None, causal).rms_norm(Some(param("norm", &[width])), None, 1e-5);
    g.output("y", y);
    g.output("normed", normed);
    g.finish()
}

/// The gradients of all params of a graph, from those of some outputs.
pub fn gradients(f: &Func, of: &[&str]) -> Result<Func> {
    let params: Vec<&str> = f.ports.iter().filter(|p| p.diff).map(|p| p.name.as_str()).collect();
    transform::vjp(f, of, &params)
}

/// Every kind of step that models seldom have: loops, branches, transforms, sorts, convolutions, scatters, random numbers …
/// `x` is f32 `[n, 12]` with n up to 9.
pub fn medley() -> Result<Func> {
    let g = Graph::new("medley");
    let x = g.input("x", DType::F32, [dim("n", 9), 12.into()]);
    let seed = g.input("seed", DType::U32, [2]);
    let w = g.param("w", DType::F32, [12, 12]);
    let (last, steps) = g.scan(&[x.sum(vec![0], false)], &[x], x.dim(0), true, |c, e| {
        let y = (pick(&g, c, 0).unsqueeze(0).matmul(w).squeeze(0) * 0.1 + pick(&g, e, 0)).tanh();
        (vec![y], vec![y * 2.0])
    });
    let branch = g.cond(
        x.sum_all().greater(0.0),
        || vec![x.sin().matmul(w).gelu()],
        || vec![(x * 0.5).matmul(w.t()).softmax(-1)],
    );
    let turns = g.scalar(DType::I32, 3.0);
    let looped = g.while_loop(
        &[x, turns],
        5,
        |c| pick(&g, c, 1).greater(0.0),
        |c| vec![(pick(&g, c, 0).matmul(w) * 0.2).tanh(), pick(&g, c, 1) - 1.0],
    );
    let pairs = x.reshape([x.dim(0), 6.into(), 2.into()]);
    let heads = x.reshape([1.into(), x.dim(0), 2.into(), 6.into()]).permute(vec![0, 2, 1, 3]);
    let [sorted, order] = x.sort(-1, true);
    let [top, _] = x.top_k(3i64, -1, true);
    let image = x.reshape([x.dim(0), 1.into(), 3.into(), 4.into()]);
    let kernel = w.narrow(0, 0, 6).reshape([8, 1, 3, 3]);
    let conv = Conv { padding_lo: vec![1, 1], padding_hi: vec![1, 1], ..Conv::default() };
    let noise = seed.uniform(vec![x.dim(0), 12.into()], -1.0, 1.0, DType::F32, 3i64);
    let all = [
        ("last", pick(&g, &last, 0)),
        ("steps", pick(&g, &steps, 0)),
        ("branch", pick(&g, &branch, 0)),
        ("looped", pick(&g, &looped, 0)),
        ("fft", pairs.fft(false)),
        ("attention", heads.attention(heads, heads, None, None, None, Attention::default())),
        ("sorted", sorted),
        ("order", order),
        ("top", top),
        ("conv", image.conv(kernel, None, conv)),
        ("sums", x.cumsum(0, false, false)),
        ("linear_scan", x.tanh().linear_scan(x, 0, false)),
        ("joined", g.concat(&[x, noise, x.flip(vec![1])], 1)),
        ("scattered", w.scatter(x.argmax(1, false, false), x, 0, ScatterMode::Add)),
        ("half", (x.to(DType::BF16) * 1.5).to(DType::F16)),
        ("rows", x.layer_norm(None, None, 1e-5, 1).matmul(w) + x),
        ("gram", x.t().matmul(x)),
        ("mean", x.mean(vec![0], true) - x),
    ];
    for (name, v) in all {
        g.output(name, v);
    }
    g.finish()
}

/// Data for the ports of a graph, symbols bound to `sizes`: floats within ±0.6, any bytes,
/// other integers from 0 to 9, masks of 0 and 1.
pub fn data(f: &Func, sizes: &[(&str, i64)], seed: u64) -> Result<Vec<(String, Tensor)>> {
    let sizes: Bindings = sizes.iter().copied().collect();
    let mut out = Vec::new();
    for (i, p) in f.ports.iter().enumerate() {
        let ty = f.ty(p.value)?;
        let size = |d: &rlx::Dim| d.eval(&sizes).map(|n| n as usize);
        let shape = ty.shape.iter().map(size).collect::<std::result::Result<_, _>>();
        let shape = shape.map_err(|e| rlx::Error::new(rlx::Code::Unbound, e.to_string()))?;
        let fill = match ty.dtype {
            d if d.is_float() => Fill::Uniform(-0.6, 0.6),
            DType::Bool => Fill::Ints(0, 2),
            DType::I8 => Fill::Ints(-128, 128),
            DType::U8 => Fill::Ints(0, 256),
            _ if p.name.contains("mask") => Fill::Ints(0, 2),
            _ => Fill::Ints(0, 10),
        };
        let arg = Arg { shape, dtype: ArgType::Fixed(ty.dtype), fill };
        out.push((p.name.clone(), arg.tensor(ty.dtype, seed.wrapping_add(31 * i as u64))?));
    }
    Ok(out)
}

/// The graph with constants in place of its symbols.
pub fn fixed(f: &Func, sizes: &[(&str, i64)]) -> Result<Func> {
    let sizes: Bindings = sizes.iter().copied().collect();
    let unbound = |e: rlx::dim::DimError| rlx::Error::new(rlx::Code::Unbound, e.to_string());
    let g = Graph::new(f.name.clone());
    let mut ports = Vec::new();
    for p in &f.ports {
        let ty = f.ty(p.value)?;
        let shape = ty.shape.iter().map(|d| d.eval(&sizes).map(rlx::Dim::constant));
        let shape = shape.collect::<std::result::Result<Vec<_>, _>>().map_err(unbound)?;
        ports.push(g.port(&p.name, ty.with_shape(shape), p.kind, p.source.clone()));
    }
    let results = g.inline_with(f, &ports, &mut |g, node, operands| {
        let attrs = node.attrs.iter().map(|a| a.bind(&sizes)).collect::<std::result::Result<Vec<_>, _>>();
        Ok(g.emit(node.op, attrs.map_err(unbound)?, operands, node.regions.clone()))
    })?;
    for (o, v) in f.outputs.iter().zip(results) {
        g.output(&o.name, v);
    }
    g.finish()
}

/// The part of the data that are inputs, or that are params.
pub fn ports<'a>(f: &Func, data: &'a [(String, Tensor)], kind: PortKind) -> Vec<(&'a str, &'a Tensor)> {
    let of_kind = |n: &str| f.port(n).is_some_and(|p| p.kind == kind);
    data.iter().filter(|(n, _)| of_kind(n)).map(|(n, t)| (n.as_str(), t)).collect()
}

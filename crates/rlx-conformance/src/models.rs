//! Small models for tests: a decoder, a state-space model, the graphs of their training, one graph with every kind of step
//! that models seldom have, and data for any graph.

use rlx_ir::func::PortKind;
use rlx_ir::ops::attention::Attention;
use rlx_ir::ops::conv::Conv;
use rlx_ir::ops::loss::Reduction;
use rlx_ir::ops::scatter::ScatterMode;
use rlx_ir::sample::{Arg, ArgType, Fill};
use rlx_ir::{Bindings, DType, Func, Graph, Result, Tensor, Var, dim, transform};

const F: DType = DType::F32;

/// The sizes of a small language model.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// The number of layers.
    pub layers: i64,
    /// The width of a token.
    pub hidden: i64,
    /// The number of attention heads.
    pub heads: i64,
    /// The number of words.
    pub vocab: i64,
    /// The bound of `seq`.
    pub positions: i64,
    /// The bound of `batch`.
    pub batch: i64,
}

impl Sizes {
    /// Sizes at which the oracle takes no time.
    pub fn tiny(layers: i64) -> Sizes {
        Sizes { layers, hidden: 16, heads: 2, vocab: 13, positions: 12, batch: 6 }
    }
}

/// A graph from the last hidden states to logits, or to the loss and the gradients of all params.
fn finish<'g>(g: &'g Graph, x: Var<'g>, words: Var<'g>, training: bool) -> Result<Func> {
    let logits = x.matmul(words.t());
    if !training {
        g.output("logits", logits);
        return g.finish();
    }
    let targets = g.input("targets", DType::I32, [x.dim(0), x.dim(1)]);
    g.output("loss", logits.cross_entropy(targets, -100, 0.0, Reduction::Mean));
    let f = g.finish()?;
    let params = f.ports.iter().filter(|p| p.kind == PortKind::Param);
    let wrt: Vec<&str> = params.map(|p| p.name.as_str()).collect();
    transform::vjp(&f, &["loss"], &wrt)
}

/// `x · wᵀ + bias`.
fn linear<'g>(x: Var<'g>, name: &str, to: i64, bias: bool) -> Var<'g> {
    let g = x.graph();
    let y = x.matmul(g.param(&format!("{name}.weight"), F, [to.into(), x.dim(-1)]).t());
    if bias { y + g.param(&format!("{name}.bias"), F, [to]) } else { y }
}

/// The table of words, and the words of `ids`: `[batch, seq, hidden]`.
fn embedded<'g>(g: &'g Graph, s: &Sizes) -> (Var<'g>, Var<'g>) {
    let ids = g.input("ids", DType::I32, [dim("batch", s.batch), dim("seq", s.positions)]);
    let words = g.param("words", F, [s.vocab, s.hidden]);
    (words, words.gather(ids, 0))
}

/// A decoder such as GPT: norms in front, causal attention, gelu, the head tied to the words.
pub fn gpt(s: &Sizes, training: bool) -> Result<Func> {
    let g = Graph::new("gpt");
    let (words, x) = embedded(&g, s);
    let mut x = x + g.param("places", F, [s.positions, s.hidden]).narrow(0, 0, x.dim(1));
    for l in 0..s.layers {
        let n = norm(x, &format!("layer{l}.norm1"));
        let split = [x.dim(0), x.dim(1), s.heads.into(), (s.hidden / s.heads).into()];
        let [q, k, v] = ["q", "k", "v"].map(|p| {
            let y = linear(n, &format!("layer{l}.{p}"), s.hidden, true);
            y.reshape(split.clone()).permute(vec![0, 2, 1, 3])
        });
        let y = q.attention(k, v, None, None, None, Attention { causal: true, ..Attention::default() });
        let y = y.permute(vec![0, 2, 1, 3]).reshape([x.dim(0), x.dim(1), s.hidden.into()]);
        x = x + linear(y, &format!("layer{l}.out"), s.hidden, true);
        let n = norm(x, &format!("layer{l}.norm2"));
        let y = linear(n, &format!("layer{l}.up"), 4 * s.hidden, true).gelu();
        x = x + linear(y, &format!("layer{l}.down"), s.hidden, true);
    }
    finish(&g, norm(x, "norm"), words, training)
}

fn norm<'g>(x: Var<'g>, name: &str) -> Var<'g> {
    let [gamma, beta] = ["weight", "bias"].map(|p| x.graph().param(&format!("{name}.{p}"), F, [x.dim(-1)]));
    x.layer_norm(gamma, beta, 1e-5, 1)
}

/// A state-space model such as Mamba.
pub fn mamba(s: &Sizes, training: bool) -> Result<Func> {
    const STATES: i64 = 4;
    let g = Graph::new("mamba");
    let (words, mut x) = embedded(&g, s);
    let (inner, rank) = (2 * s.hidden, 1 + s.hidden / 16);
    for l in 0..s.layers {
        let param =
            |name: &str, shape: &[i64]| g.param(&format!("layer{l}.{name}"), F, shape.iter().copied());
        let n = x.rms_norm(param("norm", &[s.hidden]), None, 1e-5);
        let y = linear(n, &format!("layer{l}.in"), 2 * inner, false);
        let (y, z) = (y.narrow(2, 0, inner), y.narrow(2, inner, inner));
        let [y, _] = y.causal_conv1d(param("conv", &[inner, 4]), param("conv.bias", &[inner]), None, true);
        let t = linear(y, &format!("layer{l}.x"), rank + 2 * STATES, false);
        let delta = linear(t.narrow(2, 0, rank), &format!("layer{l}.dt"), inner, false);
        let (b, c) = (t.narrow(2, rank, STATES), t.narrow(2, rank + STATES, STATES));
        let a = -param("a", &[inner, STATES]).exp();
        let [y, _] =
            y.selective_scan(delta, a, b, c, param("d", &[inner]), z, param("dt.bias", &[inner]), None, true);
        x = x + linear(y, &format!("layer{l}.out"), s.hidden, false);
    }
    finish(&g, x, words, training)
}

/// An element of a list.
fn pick<'g>(g: &'g Graph, list: &[Var<'g>], k: usize) -> Var<'g> {
    list.get(k).copied().unwrap_or_else(|| g.poison())
}

/// Every kind of step that models seldom have: loops, branches, transforms, sorts, convolutions, scatters, random numbers …
/// `x` is f32 `[n, 12]` with n up to 9.
pub fn medley() -> Result<Func> {
    let g = Graph::new("medley");
    let x = g.input("x", F, [dim("n", 9), 12.into()]);
    let seed = g.input("seed", DType::U32, [2]);
    let w = g.param("w", F, [12, 12]);
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
    let noise = seed.uniform(vec![x.dim(0), 12.into()], -1.0, 1.0, F, 3i64);
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

/// Data for the ports of a graph, symbols bound to `sizes`: floats within ±0.6, integers from 0 to 9, masks of 0 and 1.
pub fn data(f: &Func, sizes: &[(&str, i64)], seed: u64) -> Result<Vec<(String, Tensor)>> {
    let sizes: Bindings = sizes.iter().copied().collect();
    let mut out = Vec::new();
    for (i, p) in f.ports.iter().enumerate() {
        let ty = f.ty(p.value)?;
        let size = |d: &rlx_ir::Dim| d.eval(&sizes).map(|n| n as usize);
        let shape = ty.shape.iter().map(size).collect::<std::result::Result<_, _>>();
        let shape = shape.map_err(|e| rlx_ir::Error::new(rlx_ir::Code::Unbound, e.to_string()))?;
        let fill = match ty.dtype {
            d if d.is_float() => Fill::Uniform(-0.6, 0.6),
            DType::Bool => Fill::Ints(0, 2),
            _ if p.name.contains("mask") => Fill::Ints(0, 2),
            _ => Fill::Ints(0, 10),
        };
        let arg = Arg { shape, dtype: ArgType::Fixed(ty.dtype), fill };
        out.push((p.name.clone(), arg.tensor(ty.dtype, seed.wrapping_add(31 * i as u64))?));
    }
    Ok(out)
}

/// The part of the data that are inputs, or that are params.
pub fn ports<'a>(f: &Func, data: &'a [(String, Tensor)], kind: PortKind) -> Vec<(&'a str, &'a Tensor)> {
    let of_kind = |n: &str| f.port(n).is_some_and(|p| p.kind == kind);
    data.iter().filter(|(n, _)| of_kind(n)).map(|(n, t)| (n.as_str(), t)).collect()
}

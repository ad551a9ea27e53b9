//! Graphs of models that benches and tests share: a decoder and its training, a block of Mamba.

use rlx::ops::attention::Attention;
use rlx::ops::loss::Reduction;
use rlx::{DType, Func, Graph, Result, Var, dim, transform};

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
    let params: Vec<&str> = f.ports.iter().filter(|p| p.diff).map(|p| p.name.as_str()).collect();
    transform::vjp(&f, &["loss"], &params)
}

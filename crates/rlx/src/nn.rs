//! Graphs of known models, built from their sizes.

use rlx_ir::ops::attention::Attention;
use rlx_ir::{DType, Dim, Graph, Result, Var, dim};

/// The sizes of a transformer encoder such as BERT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoder {
    /// The number of layers.
    pub layers: i64,
    /// The width of a token.
    pub hidden: i64,
    /// The number of attention heads.
    pub heads: i64,
    /// The width of the feed-forward network.
    pub inner: i64,
    /// The number of words.
    pub vocab: i64,
    /// The largest number of tokens.
    pub positions: i64,
    /// The largest batch.
    pub batch: i64,
}

impl Encoder {
    /// all-MiniLM-L6-v2.
    pub fn minilm() -> Encoder {
        Encoder { layers: 6, hidden: 384, heads: 12, inner: 1536, vocab: 30522, positions: 512, batch: 64 }
    }

    /// BERT-base.
    pub fn bert_base() -> Encoder {
        Encoder { layers: 12, hidden: 768, heads: 12, inner: 3072, vocab: 30522, positions: 512, batch: 64 }
    }

    /// The graph: `ids` and `mask` (1 for tokens, 0 for padding), both i64 `[batch, seq]`, to `hidden` `[batch, seq, hidden]`.
    /// Params have the names and layouts of the usual safetensors files (linear weights are `[out, in]`).
    pub fn graph(&self) -> Result<Graph> {
        let g = Graph::new("encoder");
        {
            let (b, s) = (dim("batch", self.batch), dim("seq", self.positions));
            let ids = g.input("ids", DType::I64, [b.clone(), s.clone()]);
            let mask = g.input("mask", DType::I64, [b.clone(), s.clone()]);
            let words = g.param("embeddings.word_embeddings.weight", DType::F32, [self.vocab, self.hidden]);
            let places =
                g.param("embeddings.position_embeddings.weight", DType::F32, [self.positions, self.hidden]);
            let kinds = g.param("embeddings.token_type_embeddings.weight", DType::F32, [2, self.hidden]);
            let zero = Dim::constant(0);
            let places = places.narrow(0, zero.clone(), s.clone());
            let kind = kinds.narrow(0, zero, 1).reshape([self.hidden]);
            let x = words.gather(ids, 0) + places + kind;
            let mut x = self.norm(&g, x, "embeddings.LayerNorm");
            let visible = mask.not_equal(0.0).reshape([b, 1.into(), 1.into(), s]);
            for i in 0..self.layers {
                x = self.layer(&g, x, visible, &format!("encoder.layer.{i}"));
            }
            g.output("hidden", x);
        }
        match g.errors().into_iter().next() {
            Some(e) => Err(e),
            None => Ok(g),
        }
    }

    fn linear<'g>(&self, g: &'g Graph, x: Var<'g>, name: &str, from: i64, to: i64) -> Var<'g> {
        let w = g.param(&format!("{name}.weight"), DType::F32, [to, from]);
        let bias = g.param(&format!("{name}.bias"), DType::F32, [to]);
        x.matmul(w.t()) + bias
    }

    fn norm<'g>(&self, g: &'g Graph, x: Var<'g>, name: &str) -> Var<'g> {
        let gamma = g.param(&format!("{name}.weight"), DType::F32, [self.hidden]);
        let beta = g.param(&format!("{name}.bias"), DType::F32, [self.hidden]);
        x.layer_norm(Some(gamma), Some(beta), 1e-12, 1)
    }

    fn layer<'g>(&self, g: &'g Graph, x: Var<'g>, visible: Var<'g>, name: &str) -> Var<'g> {
        let (h, d) = (self.heads, self.hidden / self.heads);
        let (b, s) = (x.dim(0), x.dim(1));
        let heads = |which: &str| {
            let y = self.linear(g, x, &format!("{name}.attention.self.{which}"), self.hidden, self.hidden);
            y.reshape([b.clone(), s.clone(), h.into(), d.into()]).permute(vec![0, 2, 1, 3])
        };
        let (q, k, v) = (heads("query"), heads("key"), heads("value"));
        let y = q.attention(k, v, Some(visible), None, None, Attention::default());
        let y = y.permute(vec![0, 2, 1, 3]).reshape([b.clone(), s.clone(), self.hidden.into()]);
        let y = self.linear(g, y, &format!("{name}.attention.output.dense"), self.hidden, self.hidden);
        let x = self.norm(g, x + y, &format!("{name}.attention.output.LayerNorm"));
        let y = self.linear(g, x, &format!("{name}.intermediate.dense"), self.hidden, self.inner).gelu();
        let y = self.linear(g, y, &format!("{name}.output.dense"), self.inner, self.hidden);
        self.norm(g, x + y, &format!("{name}.output.LayerNorm"))
    }
}

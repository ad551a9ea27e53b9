//! Layers of real models, written in primitives as exporters write them: each becomes a handful of composite ops.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use common::{agree, check, data, refs};
use rlx_compile::rewrite::{Options, rewrite, simplify};
use rlx_ir::{DType, Dim, Func, Graph, Tensor, Var, dim, text};
use std::collections::BTreeMap;

const F: DType = DType::F32;

/// How often each op occurs, constants and views left out.
fn census(f: &Func) -> BTreeMap<&'static str, usize> {
    let mut out = BTreeMap::new();
    let views = ["constant", "reshape", "permute", "slice", "concat", "broadcast"];
    for n in f.nodes.iter().filter(|n| !views.contains(&n.op.name)) {
        *out.entry(n.op.name).or_default() += 1;
    }
    out
}

fn count(f: &Func, op: &str) -> usize {
    f.nodes.iter().filter(|n| n.op.name == op).count()
}

/// `x · wᵀ + b`, as PyTorch exports a linear layer.
fn linear<'g>(g: &'g Graph, name: &str, x: Var<'g>, n: i64, bias: bool) -> Var<'g> {
    let k = x.dim(-1);
    let w = g.param(&format!("{name}.weight"), F, [Dim::constant(n), k]);
    let y = x.matmul(w.permute(vec![1i64, 0]));
    if bias { g.param(&format!("{name}.bias"), F, [n]) + y } else { y }
}

fn layer_norm<'g>(g: &'g Graph, name: &str, x: Var<'g>) -> Var<'g> {
    let h = x.dim(-1);
    let d = x - x.mean(vec![-1i64], true);
    let v = d.pow(2.0).mean(vec![-1i64], true);
    let y = d / (v + 1e-12).sqrt();
    y * g.param(&format!("{name}.gamma"), F, [h.clone()]) + g.param(&format!("{name}.beta"), F, [h])
}

fn softmax<'g>(x: Var<'g>) -> Var<'g> {
    let e = (x - x.max(vec![-1i64], true)).exp();
    e / e.sum(vec![-1i64], true)
}

/// An encoder of BERT in primitives.
fn bert(layers: usize, hidden: i64, heads: i64, batch: Dim, seq: Dim) -> Func {
    let g = Graph::new("bert");
    {
        let mut x = g.input("x", F, [batch.clone(), seq.clone(), hidden.into()]);
        let mask = g.input("mask", F, [batch.clone(), seq.clone()]);
        let bias = (1.0 - mask.unsqueeze(1).unsqueeze(1)) * -10000.0;
        let d = hidden / heads;
        for l in 0..layers {
            let name = |s: &str| format!("l{l}.{s}");
            let split = |v: Var<'_>| -> Vec<Dim> { vec![v.dim(0), v.dim(1), heads.into(), d.into()] };
            let q = linear(&g, &name("q"), x, hidden, true);
            let k = linear(&g, &name("k"), x, hidden, true);
            let v = linear(&g, &name("v"), x, hidden, true);
            let q = q.reshape(split(q)).permute(vec![0i64, 2, 1, 3]);
            let k = k.reshape(split(k)).permute(vec![0i64, 2, 3, 1]);
            let v = v.reshape(split(v)).permute(vec![0i64, 2, 1, 3]);
            let p = softmax(q.matmul(k) / (d as f64).sqrt() + bias);
            let o = p.matmul(v).permute(vec![0i64, 2, 1, 3]).reshape(x.shape());
            x = layer_norm(&g, &name("n1"), linear(&g, &name("o"), o, hidden, true) + x);
            let u = linear(&g, &name("up"), x, 4 * hidden, true);
            let u = u * ((u / std::f64::consts::SQRT_2).erf() + 1.0) * 0.5;
            x = layer_norm(&g, &name("n2"), linear(&g, &name("down"), u, hidden, true) + x);
        }
        g.output("y", x);
    }
    g.finish().unwrap()
}

#[test]
fn a_bert_layer_is_recognised() {
    for (batch, seq) in [(dim("b", 4), dim("s", 16)), (1.into(), 5.into()), (2.into(), 5.into())] {
        let f = bert(1, 8, 2, batch, seq);
        let r = check(&f, &data(&f, 5)).unwrap();
        let want = BTreeMap::from([
            ("qkv", 1),
            ("attention", 1),
            ("layer_norm", 2),
            ("gelu", 1),
            ("dot_general", 3),
            // Three biases, two residuals.
            ("add", 5),
            ("mul", 1),
            ("sub", 1),
        ]);
        assert_eq!(census(&r), want, "{}", text::print(&r));
        // The heads of q, k and v, and back.
        assert!(count(&r, "permute") <= 4 + 6, "{}", text::print(&r));
    }
}

fn rms_norm<'g>(g: &'g Graph, name: &str, x: Var<'g>) -> Var<'g> {
    let v = x.pow(2.0).mean(vec![-1i64], true);
    g.param(name, F, [x.dim(-1)]) * (x * (v + 1e-5).rsqrt())
}

fn rotate_half(x: Var<'_>) -> Var<'_> {
    let d = x.dim(-1).as_const().unwrap();
    x.graph().concat(&[-x.narrow(-1, d / 2, d / 2), x.narrow(-1, 0, d / 2)], -1)
}

/// A decoder of Llama in primitives, with grouped heads.
fn llama(layers: usize, hidden: i64, heads: i64, groups: i64, batch: Dim, seq: Dim) -> Func {
    let g = Graph::new("llama");
    {
        let mut x = g.input("x", F, [batch.clone(), seq.clone(), hidden.into()]);
        let d = hidden / heads;
        let freqs: Vec<f32> = (0..d / 2).map(|i| 10000f32.powf(-2.0 * i as f32 / d as f32)).collect();
        let freqs = g.constant(Tensor::new(&[1, d as usize / 2], &freqs).unwrap());
        let angles = g.iota([seq.clone()], 0, F).unsqueeze(-1) * freqs;
        let both = g.concat(&[angles, angles], -1);
        let (cos, sin) = (both.cos().unsqueeze(0).unsqueeze(0), both.sin().unsqueeze(0).unsqueeze(0));
        let hidden_keys = g.full(F, &[seq.clone(), seq.clone()], f32::MIN as f64).triu(1);
        let mask = hidden_keys.unsqueeze(0).unsqueeze(0);
        for l in 0..layers {
            let name = |s: &str| format!("l{l}.{s}");
            let n = rms_norm(&g, &name("n1"), x);
            let split = |v: Var<'_>, h: i64| vec![v.dim(0), v.dim(1), Dim::constant(h), Dim::constant(d)];
            let part = |s: &str, h: i64| linear(&g, &name(s), n, h * d, false);
            let (q, k, v) = (part("q", heads), part("k", groups), part("v", groups));
            let q = q.reshape(split(q, heads)).permute(vec![0i64, 2, 1, 3]);
            let k = k.reshape(split(k, groups)).permute(vec![0i64, 2, 1, 3]);
            let v = v.reshape(split(v, groups)).permute(vec![0i64, 2, 1, 3]);
            let (q, k) = (q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin);
            let repeated = |v: Var<'_>| -> [Vec<Dim>; 3] {
                let (b, t) = (v.dim(0), v.dim(2));
                let times = Dim::constant(heads / groups);
                [
                    vec![b.clone(), groups.into(), 1.into(), t.clone(), d.into()],
                    vec![b.clone(), groups.into(), times, t.clone(), d.into()],
                    vec![b, heads.into(), t, d.into()],
                ]
            };
            let [a, b, c] = repeated(k);
            let k = k.reshape(a).broadcast(b).reshape(c);
            let [a, b, c] = repeated(v);
            let v = v.reshape(a).broadcast(b).reshape(c);
            let p = softmax(q.matmul(k.permute(vec![0i64, 1, 3, 2])) * (1.0 / (d as f64).sqrt()) + mask);
            let o = p.matmul(v).permute(vec![0i64, 2, 1, 3]).reshape(x.shape());
            x = x + linear(&g, &name("o"), o, hidden, false);
            let n = rms_norm(&g, &name("n2"), x);
            let gate = linear(&g, &name("gate"), n, 3 * hidden, false);
            let up = linear(&g, &name("up"), n, 3 * hidden, false);
            x = x + linear(&g, &name("down"), gate * gate.sigmoid() * up, hidden, false);
        }
        g.output("y", x);
    }
    g.finish().unwrap()
}

#[test]
fn a_llama_layer_is_recognised() {
    for (batch, seq) in [(dim("b", 4), dim("s", 16)), (1.into(), 5.into()), (2.into(), 5.into())] {
        let f = llama(1, 16, 4, 2, batch, seq);
        let r = check(&f, &data(&f, 5)).unwrap();
        let c = census(&r);
        for (op, n) in [
            ("qkv", 1),
            ("attention", 1),
            ("rms_norm", 2),
            ("rope", 2),
            ("swiglu", 1),
            ("dot_general", 3),
            ("add", 2),
        ] {
            assert_eq!(c.get(op), Some(&n), "{op}\n{}", text::print(&r));
        }
        let a = r.nodes.iter().find(|n| n.op.name == "attention").unwrap();
        let attrs: rlx_ir::ops::attention::Attention = a.typed().unwrap();
        assert!(attrs.causal && attrs.scale.is_none() && a.operands.len() == 3, "{}", text::print(&r));
        assert_eq!(r.ty(a.operands[1].unwrap()).unwrap().shape[1], 2.into());
    }
}

#[test]
fn expanded_layers_simplify_and_are_raised_again() {
    let f = bert(1, 8, 2, dim("b", 4), dim("s", 16));
    let raised = rewrite(&f, &Options::default()).unwrap().func;
    let g = Graph::new("again");
    {
        let args = g.declare_ports(&raised);
        let outs = g
            .inline_with(&raised, &args, &mut |g, node, operands| {
                let types: Vec<_> = operands.iter().map(|o| o.map(|v| v.ty())).collect();
                match Graph::body_of(node.op, &node.attrs, &types, &node.regions) {
                    Ok(body) => g.inline(&body, &operands.into_iter().flatten().collect::<Vec<_>>()),
                    Err(_) => Ok(g.emit_at(node, operands)),
                }
            })
            .unwrap();
        g.output("y", outs[0]);
    }
    let expanded = g.finish().unwrap();
    let simple = simplify(&expanded).unwrap();
    agree(&f, &simple, &refs(&data(&f, 2))).unwrap();
    assert_eq!(count(&simple, "layer_norm") + count(&simple, "gelu") + count(&simple, "attention"), 0);
    assert!(simple.nodes.len() < expanded.nodes.len());
}

#[test]
fn training_graphs_keep_their_meaning() {
    let f = bert(1, 8, 2, 2.into(), 3.into());
    let wrt: Vec<&str> = f.ports.iter().filter(|p| p.diff).map(|p| p.name.as_str()).collect();
    let step = rlx_ir::transform::vjp(&f, &["y"], &wrt).unwrap();
    check(&step, &data(&step, 4)).unwrap();
}

/// A linear layer as one op.
fn dense<'g>(g: &'g Graph, name: &str, x: Var<'g>, n: i64) -> Var<'g> {
    let w = g.param(&format!("{name}.weight"), F, [x.dim(-1), n.into()]);
    x.linear(w, g.param(&format!("{name}.bias"), F, [n]), false)
}

fn norm<'g>(g: &'g Graph, name: &str, x: Var<'g>) -> Var<'g> {
    let param = |s: &str| g.param(&format!("{name}.{s}"), F, [x.dim(-1)]);
    x.layer_norm(param("gamma"), param("beta"), 1e-12, 1)
}

/// An encoder of BERT in composite ops.
fn composite(layers: usize, hidden: i64, heads: i64, batch: Dim, seq: Dim) -> Func {
    let g = Graph::new("composite");
    {
        let mut x = g.input("x", F, [batch.clone(), seq.clone(), hidden.into()]);
        let shape = [batch, seq, heads.into(), (hidden / heads).into()].to_vec();
        for l in 0..layers {
            let name = |s: &str| format!("l{l}.{s}");
            let part = |s| dense(&g, &name(s), x, hidden).reshape(shape.clone()).permute(vec![0i64, 2, 1, 3]);
            let o = part("q").attention(part("k"), part("v"), None, None, None, Default::default());
            let o = o.permute(vec![0i64, 2, 1, 3]).reshape(x.shape());
            x = norm(&g, &name("n1"), dense(&g, &name("o"), o, hidden) + x);
            let u = dense(&g, &name("up"), x, 4 * hidden).gelu();
            x = norm(&g, &name("n2"), dense(&g, &name("down"), u, hidden) + x);
        }
        g.output("y", x);
    }
    g.finish().unwrap()
}

/// What attention becomes of ways to write it: causal, whether it has a mask, whether it has a bias.
#[test]
fn attention_is_recognised_in_all_its_forms() {
    let qkv = "input q: f32[2, 2, 3, 4] input k: f32[2, 2, 3, 4] input v: f32[2, 2, 3, 4]";
    let scores = "s = einsum(q, k) {equation: \"bhid,bhjd->bhij\"}";
    let rest = "p = softmax(e) y = matmul(p, v) output y = y";
    let triangle = "bool[3, 3] [true, false, false, true, true, false, true, true, true]";
    let inf = "i = constant() {value: f32[] -inf}";
    let cases = [
        // A triangle as data.
        (
            format!("{qkv} {inf} c = constant() {{value: {triangle}}} {scores} e = select(c, s, i)"),
            (true, false, false),
        ),
        // masked_fill with what is hidden.
        (
            format!(
                "{qkv} {inf} a = constant() {{value: bool[3, 3] [true, true, true, true, true, true, true, true, true]}} \
                     c = triu(a) {{k: 1}} {scores} e = select(c, i, s)"
            ),
            (true, false, false),
        ),
        // tril(ones) == 0.
        (
            format!(
                "{qkv} {inf} o = constant() {{value: f32[] 1}} z = constant() {{value: f32[] 0}} \
                     a = broadcast(o) {{shape: [3, 3]}} t = tril(a) c = equal(t, z) {scores} e = select(c, i, s)"
            ),
            (true, false, false),
        ),
        // A triangle and the keys that are no padding.
        (
            format!(
                "{qkv} input m: bool[2, 1, 1, 3] {inf} c = constant() {{value: {triangle}}} d = and(c, m) {scores} \
                     e = select(d, s, i)"
            ),
            (true, true, false),
        ),
        // An added mask.
        (
            format!(
                "{qkv} input m: bool[2, 1, 1, 3] {inf} z = constant() {{value: f32[] 0}} {scores} \
                     b = select(m, z, i) e = add(b, s)"
            ),
            (false, true, false),
        ),
        // Keys hidden by a large number: a query that sees none takes the mean, which only a bias does.
        (
            format!(
                "{qkv} input m: bool[2, 1, 1, 3] i = constant() {{value: f32[] -1e9}} {scores} e = select(m, s, i)"
            ),
            (false, false, true),
        ),
        // A bias and a triangle.
        (
            format!(
                "{qkv} input b: f32[2, 3, 3] {inf} c = constant() {{value: {triangle}}} {scores} a = add(s, b) \
                     e = select(c, a, i)"
            ),
            (true, false, true),
        ),
    ];
    for (head, want) in cases {
        let f = text::parse(&format!("graph t {{ {head} {rest} }}")).unwrap_or_else(|e| panic!("{e}"));
        // Every query sees a key: for one that does not, attention says 0 and softmax says NaN.
        let mut data = data(&f, 9);
        data.iter_mut().filter(|d| d.0 == "m").for_each(|d| {
            d.1 = Tensor::new(&[2, 1, 1, 3], &[true, false, true, true, true, false]).unwrap();
        });
        let r = check(&f, &data).unwrap();
        let a = r
            .nodes
            .iter()
            .find(|n| n.op.name == "attention")
            .unwrap_or_else(|| panic!("{}", text::print(&r)));
        let causal = a.typed::<rlx_ir::ops::attention::Attention>().unwrap().causal;
        let has = |i: usize| a.operands.get(i).copied().flatten().is_some();
        assert_eq!((causal, has(3), has(4)), want, "{}", text::print(&r));
    }
}

/// Batch and heads merged into one axis for the products, and apart for the mask, as in BART.
#[test]
fn attention_over_merged_heads_is_recognised() {
    let f = text::parse(
        "graph t { dim b <= 3 input q: f32[b, 3, 8] input k: f32[b, 5, 8] input v: f32[b, 5, 8] input m: f32[b, 1, 3, 5] \
         c = constant() {value: f32[] 0.5} qs = mul(q, c) \
         q4 = reshape(qs) {shape: [b, 3, 2, 4]} qt = permute(q4) {axes: [0, 2, 1, 3]} q3 = reshape(qt) {shape: [2*b, 3, 4]} \
         k4 = reshape(k) {shape: [b, 5, 2, 4]} kt = permute(k4) {axes: [0, 2, 1, 3]} k3 = reshape(kt) {shape: [2*b, 5, 4]} \
         v4 = reshape(v) {shape: [b, 5, 2, 4]} vt = permute(v4) {axes: [0, 2, 1, 3]} v3 = reshape(vt) {shape: [2*b, 5, 4]} \
         kk = permute(k3) {axes: [0, 2, 1]} s = matmul(q3, kk) s4 = reshape(s) {shape: [b, 2, 3, 5]} e = add(s4, m) \
         e3 = reshape(e) {shape: [2*b, 3, 5]} p = softmax(e3) y = matmul(p, v3) y4 = reshape(y) {shape: [b, 2, 3, 4]} \
         yt = permute(y4) {axes: [0, 2, 1, 3]} o = reshape(yt) {shape: [b, 3, 8]} output o = o }",
    )
    .unwrap();
    let r = check(&f, &data(&f, 9)).unwrap();
    assert_eq!(count(&r, "attention"), 1, "{}", text::print(&r));
}

/// Every layer of a deep model is recognised, and rewriting again changes nothing.
#[test]
fn twelve_layers() {
    let cases = [
        ("bert, composite", composite(12, 768, 12, dim("b", 32), dim("s", 512))),
        ("bert, decomposed", bert(12, 768, 12, dim("b", 32), dim("s", 512))),
        ("llama, decomposed", llama(12, 768, 12, 4, dim("b", 32), dim("s", 512))),
    ];
    for (name, f) in cases {
        let r = rewrite(&f, &Options::default()).unwrap().func;
        assert_eq!(count(&r, "attention"), 12, "{name}");
        assert_eq!(rewrite(&r, &Options::default()).unwrap().func, r, "{name}");
    }
}

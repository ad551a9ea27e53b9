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

/// Run with `--release -- --ignored --nocapture`: prints times, asserts none.
#[test]
#[ignore = "a measurement"]
fn time_of_twelve_layers() {
    let cases = [
        ("bert, decomposed", bert(12, 768, 12, dim("b", 32), dim("s", 512))),
        ("llama, decomposed", llama(12, 768, 12, 4, dim("b", 32), dim("s", 512))),
    ];
    for (name, f) in cases {
        let mut r = rewrite(&f, &Options::default()).unwrap();
        for (what, f) in [(name, f), ("the same, raised", r.func.clone())] {
            let mut times = Vec::new();
            for _ in 0..15 {
                let start = std::time::Instant::now();
                r = rewrite(&f, &Options::default()).unwrap();
                times.push(start.elapsed().as_secs_f64() * 1e3);
            }
            times.sort_by(f64::total_cmp);
            println!(
                "{what}: {} nodes -> {}, {:.2} ms (median)",
                f.nodes.len(),
                r.func.nodes.len(),
                times[7]
            );
        }
    }
}

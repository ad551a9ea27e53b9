//! Whole models against the oracle, with their gradients, fused and not, in one and in two threads.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx::nn::Encoder;
use rlx::ops::conv::Conv;
use rlx::{CompileOptions, DType, Device, Engine, Func, Graph, Settings, dim, transform};
use rlx_conformance::device::{Limit, Subject};
use rlx_conformance::models::{self, Gpt, Mamba};

fn judge(f: &Func, sizes: &[(&str, i64)]) {
    let data = models::data(f, sizes, 5).unwrap();
    for (threads, fuse, rewrite) in [(2, true, true), (1, true, false), (1, false, true)] {
        let engine = Engine::new(Settings { threads: Some(threads), level: None }).unwrap();
        let options = CompileOptions { engine: Some(engine), fuse, rewrite, ..CompileOptions::default() };
        let subject = Subject { device: Device::Cpu, options };
        // Steps in bf16 may round or not. Some gradients are nothing but rounding, such as that of a bias of keys.
        let tol = |d: DType| if d == DType::BF16 { 1e-2 } else { 2e-4 };
        let limit = Limit { tol: &tol, floor: 1.0, rounded: false };
        let name = &f.name;
        subject
            .check(f, &data, &limit)
            .unwrap_or_else(|e| panic!("{name} {sizes:?}, fused {fuse}, rewritten {rewrite}: {e}"));
    }
}

#[test]
fn encoders() {
    let e = Encoder { layers: 2, hidden: 24, heads: 3, inner: 40, vocab: 20, positions: 9, batch: 3 };
    let f = e.graph().unwrap().finish().unwrap();
    let params: Vec<&str> = f.ports.iter().filter(|p| p.diff).map(|p| p.name.as_str()).collect();
    let gradient = transform::vjp(&f, &["hidden"], &params).unwrap();
    for sizes in [[("batch", 3), ("seq", 9)], [("batch", 1), ("seq", 1)], [("batch", 2), ("seq", 5)]] {
        judge(&f, &sizes);
        judge(&gradient, &sizes);
    }
}

#[test]
fn decoders() {
    let gpt = Gpt { layers: 2, hidden: 24, heads: 3, vocab: 17, positions: 9, batch: 3 };
    for sizes in [[("batch", 3), ("seq", 9)], [("batch", 1), ("seq", 1)], [("batch", 2), ("seq", 5)]] {
        judge(&gpt.graph().unwrap(), &sizes);
        judge(&gpt.training().unwrap(), &sizes);
    }
}

#[test]
fn state_spaces() {
    let mamba = Mamba { hidden: 12, inner: 20, states: 3, rank: 2, positions: 30, batch: 3 };
    for sizes in [[("batch", 3), ("seq", 30)], [("batch", 1), ("seq", 1)], [("batch", 2), ("seq", 5)]] {
        judge(&mamba.graph().unwrap(), &sizes);
        judge(&mamba.training().unwrap(), &sizes);
    }
}

#[test]
fn residual_blocks() {
    for (channels, sizes) in [(3, [1, 1]), (5, [2, 7]), (8, [3, 5]), (9, [1, 23])] {
        let f = models::residual(channels).unwrap();
        let [n, side] = sizes;
        judge(&f, &[("n", n), ("side", side)]);
        judge(&models::gradients(&f, &["y", "down", "each"]).unwrap(), &[("n", n), ("side", side)]);
    }
}

#[test]
fn gated_attention() {
    for (heads, width, batch, seq) in [(1, 1, 1, 1), (3, 5, 2, 3), (2, 8, 3, 13), (2, 17, 1, 70)] {
        let f = models::gated(heads, width).unwrap();
        judge(&f, &[("batch", batch), ("seq", seq)]);
        judge(&models::gradients(&f, &["y", "normed"]).unwrap(), &[("batch", batch), ("seq", seq)]);
    }
}

/// Epilogues that store more than their end: what stands in front, a number, a number per row; also where there are no
/// columns, so that no block ever comes.
#[test]
fn epilogues_with_several_results() {
    let g = Graph::new("several");
    // A kernel does not fit into an image without columns.
    let (n, m, wide) = (dim("n", 5), dim("m", 40), dim("wide", 40));
    let x = g.input("x", DType::F32, [n.clone(), 6.into()]);
    let y = g.input("y", DType::F32, [6.into(), m]);
    let image = g.input("image", DType::F32, [n.clone(), 6.into(), wide]);
    let (scale, w) = (g.param("scale", DType::F32, [1]), g.param("w", DType::F32, [3, 6, 1]));
    let number = (scale.squeeze(0) + x.sum_all()).exp();
    let each = (x.sum(vec![1], true) * 0.5).tanh();
    let product = x.matmul(y) * number + each;
    let raw = image.conv(w, None, Conv::default());
    let per_image = each.reshape([n, 1.into(), 1.into()]);
    let all = [
        ("number", number),
        ("each", each),
        ("product", product),
        ("total", (x.matmul(y) + 1.0).sum(vec![1], false)),
        ("raw", raw),
        ("conv", (raw * number + per_image).relu()),
    ];
    for (name, v) in all {
        g.output(name, v);
    }
    let f = g.finish().unwrap();
    for (n, m) in [(5, 40), (3, 7), (1, 1), (4, 0), (0, 3)] {
        judge(&f, &[("n", n), ("m", m), ("wide", m.max(1))]);
    }
}

#[test]
fn a_medley_of_steps() {
    let all = models::medley().unwrap();
    let mut exact = all.clone();
    exact.outputs.retain(|o| o.name != "half");
    let exact = transform::dce(&exact).unwrap();
    for n in [1, 5, 9] {
        judge(&all, &[("n", n)]);
        judge(&exact, &[("n", n)]);
    }
}

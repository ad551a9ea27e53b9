//! The same input gives the same bits, whatever the number of threads and whatever else is in the batch.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use common::{Model, encoder, engine, mamba, same_bits, wide_gpt};
use rlx::func::PortKind;
use rlx::nn::Encoder;
use rlx::quant::{Decode, Scheme};
use rlx::{CompileOptions, DType, Func, Graph, Precision, Tensor, transform};
use rlx_conformance::models;
use rlx_conformance::random::{self, Kind};
use rlx_conformance::sampled;

/// The options for 1, 2, 3 and 4 threads.
fn teams(precision: Precision) -> Vec<CompileOptions> {
    let options = |n| CompileOptions { engine: Some(engine(n)), precision, ..CompileOptions::default() };
    (1..=4).map(options).collect()
}

fn judge(func: &Func, data: &[(String, Tensor)], teams: &[CompileOptions], failures: &mut Vec<String>) {
    let runs: Vec<_> = teams.iter().map(|o| Model::with(func, data.to_vec(), o).run()).collect();
    for (n, run) in runs.iter().enumerate().skip(1) {
        if let Err(e) = same_bits(&runs[0], run) {
            failures.push(format!("{} on {} threads: {e}", func.name, n + 1));
        }
    }
}

/// The encoder and the gradients of all its params.
fn encoder_gradient(e: &Encoder) -> Func {
    let f = e.graph().unwrap().finish().unwrap();
    let params = f.ports.iter().filter(|p| p.kind == PortKind::Param);
    let wrt: Vec<&str> = params.map(|p| p.name.as_str()).collect();
    transform::vjp(&f, &["hidden"], &wrt).unwrap()
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let wide = Encoder { hidden: 192, heads: 6, inner: 512, batch: 8, positions: 80, ..encoder() };
    let text = [("batch", 5), ("seq", 37)];
    let long = [("batch", 3), ("seq", 77)];
    let cases = [
        (encoder().graph().unwrap().finish().unwrap(), &text[..]),
        (wide.graph().unwrap().finish().unwrap(), &long[..]),
        (encoder_gradient(&encoder()), &text[..]),
        (encoder_gradient(&wide), &long[..]),
        (wide_gpt(2).training().unwrap(), &[("batch", 5), ("seq", 66)][..]),
        (mamba(64).training().unwrap(), &[("batch", 5), ("seq", 66)][..]),
        (models::medley().unwrap(), &[("n", 9)][..]),
        (models::residual(9).unwrap(), &[("n", 3), ("side", 29)][..]),
        (models::gated(3, 20).unwrap(), &[("batch", 3), ("seq", 3)][..]),
        (
            models::gradients(&models::gated(3, 20).unwrap(), &["y", "normed"]).unwrap(),
            &[("batch", 3), ("seq", 77)][..],
        ),
    ];
    let mut failures = Vec::new();
    for precision in [Precision::F32, Precision::Bf16] {
        let teams = teams(precision);
        for (f, sizes) in &cases {
            judge(f, &models::data(f, sizes, 3).unwrap(), &teams, &mut failures);
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn every_op_and_random_graphs_give_the_same_bits() {
    let teams = teams(Precision::F32);
    let mut failures = Vec::new();
    for (_, case) in sampled::all(DType::F32, |_| true) {
        let mut case = case.unwrap();
        case.func.name = case.name;
        judge(&case.func, &case.data, &teams, &mut failures);
    }
    for seed in 0..150 {
        let mut r = random::graph(seed, 12, Kind::Any).unwrap();
        r.func.name = format!("random graph {seed}");
        judge(&r.func, &r.data(seed).unwrap(), &teams, &mut failures);
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// Entries `from..from + n` along the first axis.
fn rows(t: &Tensor, from: usize, n: usize) -> Tensor {
    let mut shape = t.shape().to_vec();
    let row = t.bytes().len() / shape[0];
    shape[0] = n;
    Tensor::from_bytes(t.dtype(), &shape, &t.bytes()[from * row..(from + n) * row]).unwrap()
}

/// The output that has a row for each token.
fn states(all: rlx::Outputs) -> Tensor {
    ["hidden", "logits", "y"].iter().find_map(|n| all.get(n)).unwrap().clone()
}

/// What a sequence gives does not depend on its neighbours in the batch.
#[test]
fn neighbours_in_the_batch_change_nothing() {
    let wide = Encoder { hidden: 192, heads: 6, inner: 512, batch: 8, positions: 80, ..encoder() };
    let cases = [
        encoder().graph().unwrap().finish().unwrap(),
        wide.graph().unwrap().finish().unwrap(),
        wide_gpt(2).graph().unwrap(),
        mamba(64).graph().unwrap(),
    ];
    let mut failures = Vec::new();
    for threads in [1, 2] {
        for precision in [Precision::F32, Precision::Bf16] {
            let options =
                CompileOptions { engine: Some(engine(threads)), precision, ..CompileOptions::default() };
            for f in &cases {
                for seq in [1, 2, 7, 16, 33, 40] {
                    let mut m = Model::new(f, &[("batch", 5), ("seq", seq)], &options);
                    let all = states(m.run());
                    let inputs = models::data(f, &[("batch", 5), ("seq", seq)], 11).unwrap();
                    for (from, n) in [(0, 1), (3, 1), (4, 1), (1, 3)] {
                        for ((name, whole), own) in inputs.iter().zip(&mut m.data) {
                            if f.port(name).unwrap().kind == PortKind::Input {
                                own.1 = rows(whole, from, n);
                            }
                        }
                        let alone = states(m.run());
                        let there = rows(&all, from, n);
                        if alone.bytes() != there.bytes() {
                            let (a, b) = (alone.to_f64s().unwrap(), there.to_f64s().unwrap());
                            let off = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                            let name = &f.name;
                            let case =
                                format!("{threads} threads, {precision:?}, seq {seq}, rows {from}+{n}");
                            failures.push(format!("{name}, {case}: off by {off:.1e}"));
                        }
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} differ: {failures:#?}", failures.len());
}

/// Nor does a row of a product depend on how many rows there are, whatever the path that the sizes take.
#[test]
fn rows_of_a_product_do_not_depend_on_their_number() {
    let mut failures = Vec::new();
    for (k, n) in [(7, 5), (384, 384), (1536, 384), (384, 1536), (5000, 40), (33, 1)] {
        let g = rlx::Graph::new("product");
        let x = g.input("x", DType::F32, [rlx::dim("m", 300), k.into()]);
        let w = g.param("w", DType::F32, [n, k]);
        g.output("y", x.matmul(w.t()).gelu());
        let f = g.finish().unwrap();
        for precision in [Precision::F32, Precision::Bf16] {
            let options = CompileOptions { engine: Some(engine(2)), precision, ..CompileOptions::default() };
            let mut m = Model::new(&f, &[("m", 300)], &options);
            let whole = m.data[0].1.clone();
            let all = m.run().into_vec().remove(0).1;
            for (from, count) in [(0, 1), (299, 1), (1, 2), (5, 4), (17, 13), (64, 64), (0, 299)] {
                m.data[0].1 = rows(&whole, from, count);
                let alone = m.run().into_vec().remove(0).1;
                if alone.bytes() != rows(&all, from, count).bytes() {
                    failures.push(format!("k {k}, n {n}, {precision:?}: rows {from}+{count}"));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// Packed weights of several pieces, of odd sizes too, come out as the codec makes them on its own.
#[test]
fn any_number_of_threads_packs_the_same_bits() {
    let odd = ["int4:7", "nvfp4:3", "int8_asym:1000"].map(|s| Scheme::parse(s).unwrap());
    let teams = teams(Precision::F32);
    for scheme in Scheme::all().iter().copied().chain(odd) {
        let shape = if scheme.is_ggml() { vec![130, 512] } else { vec![3, 101, 167] };
        let g = Graph::new(scheme.to_string());
        let x = g.input("x", DType::F32, shape.clone());
        let w = x.quantize(DType::Packed(scheme));
        g.output("w", w);
        g.output("y", w.dequantize(DType::F32, false));
        let f = g.finish().unwrap();
        let data = models::data(&f, &[], 5).unwrap();
        let want = scheme.encode(&shape, &data[0].1.to_vec::<f32>().unwrap()).unwrap();
        let planes: Vec<&[u8]> = want.iter().map(Vec::as_slice).collect();
        let back = scheme.decode(&shape, &planes, Decode::AsStored).unwrap();
        for o in &teams {
            let out = Model::with(&f, data.clone(), o).run();
            let got: Vec<&[u8]> = out["w"].planes().iter().map(|p| &p[..]).collect();
            assert!(got == planes, "{scheme}");
            assert!(out["y"].to_vec::<f32>().unwrap() == back, "{scheme}");
        }
    }
}

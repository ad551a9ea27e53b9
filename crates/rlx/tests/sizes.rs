//! One compilation serves all sizes up to the bounds.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use common::{Model, encoder, options, same_bits};
use rlx::nn::Encoder;
use rlx::{DType, Graph, Tensor, dim};
use std::time::Instant;

/// The bound of an encoder is the size at which it is run, and nothing else.
#[test]
fn a_graph_with_bounds_gives_what_one_with_constants_gives() {
    let options = options(2);
    let e = encoder();
    let f = e.graph().unwrap().finish().unwrap();
    let mut m = Model::new(&f, &[("batch", 1), ("seq", 1)], &options);
    for (batch, seq) in [(1, 1), (1, 40), (6, 40), (2, 17), (5, 3), (3, 32), (0, 4), (4, 0), (1, 1), (6, 40)]
    {
        let sizes = [("batch", batch), ("seq", seq)];
        m.resize(&sizes);
        let got = m.run();
        assert_eq!(got["hidden"].shape(), [batch as usize, seq as usize, 48]);
        let fixed = rlx_conformance::models::fixed(&f, &sizes).unwrap();
        assert!(fixed.symbols().unwrap().is_empty());
        let want = Model::with(&fixed, m.data.clone(), &options).run();
        // A loop over one sequence may be written otherwise, but rounds the same.
        same_bits(&got, &want).unwrap_or_else(|e| panic!("batch {batch}, seq {seq}: {e}"));
    }
}

/// Plans are kept for the sizes that were used last, and no more than a few.
#[test]
fn many_sizes_leave_few_plans() {
    let g = Graph::new("chain");
    let x = g.input("x", DType::F32, [dim("n", 1 << 20)]);
    let mut y = x;
    for _ in 0..50 {
        y = y.cumsum(0, false, false).sin();
    }
    g.output("y", y);
    let e = rlx::compile_with(&g, rlx::Device::Cpu, &options(1)).unwrap();
    let run = |n: usize| e.run(&[("x", &Tensor::new(&[n], &vec![0.5f32; n]).unwrap())]).unwrap();
    let kept = |n: usize| e.on_cpu().has_plan(&[("x", common::view(&common::floats(&[n])))]);
    for n in 10..2000 {
        assert_eq!(run(n)["y"].shape(), [n]);
        assert_eq!(run(7)["y"].shape(), [7]);
        assert!(e.on_cpu().plans() <= 16, "{} plans are kept", e.on_cpu().plans());
        // Those that were used last, whenever they were made.
        assert!(kept(7) && (n.max(24) - 14..=n).all(kept) && !kept(n.max(24) - 15), "at {n}");
    }
    assert!(!kept(10));
    assert_eq!(run(10)["y"].shape(), [10]); // long forgotten
}

/// To bind a transformer to new sizes takes a small part of the time that compiling it takes.
#[test]
fn rebinding() {
    let f = Encoder { vocab: 100, ..Encoder::bert_base() }.graph().unwrap().finish().unwrap();
    let start = Instant::now();
    let e = rlx::compile_with(&f, rlx::Device::Cpu, &options(2)).unwrap();
    let compiling = start.elapsed();
    let ask = |batch: usize, seq: usize| {
        let t = Tensor::new(&[batch, seq], &vec![1i64; batch * seq]).unwrap();
        let views = [("ids", common::view(&t)), ("mask", common::view(&t))];
        let start = Instant::now();
        e.on_cpu().output_shapes(&views).unwrap();
        start.elapsed()
    };
    ask(1, 1);
    let mut times: Vec<_> = (2..60).map(|s| ask(1 + s % 7, s)).collect();
    times.sort();
    let program = e.program();
    println!(
        "binding {} calls of {} kernels takes {:?}, at best {:?}",
        program.calls.len(),
        program.kernels.len(),
        times[times.len() / 2],
        times[0]
    );
    assert!(times[0] * 10 < compiling, "binding takes {:?}, compiling {compiling:?}", times[0]);
}

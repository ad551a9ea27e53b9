//! Random numbers: which bits go where, and whether they are distributed as they should be.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx_ir::ops::random::philox;
use rlx_ir::{DType, Graph, Options, Tensor, Var, eval};

fn run(seed: &[u32], build: impl for<'g> Fn(Var<'g>) -> Var<'g>) -> Vec<f64> {
    let shape = if seed.len() == 2 { vec![2] } else { vec![seed.len() / 2, 2] };
    let g = Graph::new("random");
    {
        let s = g.input("seed", DType::U32, shape.iter().copied());
        g.output("y", build(s));
    }
    let t = Tensor::new(&shape, seed).unwrap();
    eval(&g.finish().unwrap(), &[("seed", &t)], &Options::default()).unwrap().remove(0).1.f64s()
}

#[test]
fn element_i_is_word_i_mod_4_of_block_i_div_4() {
    let (lo, hi) = (0x1234_5678, 0x9abc_def0);
    let stream = (7i64 << 32) | 5;
    let bits = run(&[lo, hi], |s| s.random_bits([2, 5], stream));
    for (i, b) in bits.iter().enumerate() {
        assert_eq!(*b, f64::from(philox([i as u32 / 4, 0, 5, 7], [lo, hi])[i % 4]));
    }
    let uniform = run(&[lo, hi], |s| s.uniform([10], 0.0, 1.0, DType::F32, stream));
    for (u, b) in uniform.iter().zip(&bits) {
        assert_eq!(*u, (*b as u32 >> 8) as f64 / 16_777_216.0);
    }
    // Each seed of a batch counts for itself.
    let batch = run(&[1, 2, lo, hi], |s| s.random_bits([10], stream));
    assert_eq!(batch[10..], bits[..]);
    assert_ne!(batch[..10], bits[..]);
}

/// What the Python package `randomgen` gives: `Philox(key, number=4, width=32, counter)`, which counts up before each block.
#[test]
fn bits_are_those_of_randomgen() {
    let seed = [0x1234_5678, 0x9abc_def0];
    let blocks = |stream: i64| {
        run(&seed, |s| s.random_bits([13], stream))[4..].iter().map(|x| *x as u32).collect::<Vec<_>>()
    };
    assert_eq!(
        blocks(0),
        [
            0xeb89_7a36,
            0x4fcd_f6b6,
            0xfba2_3d8c,
            0x6eed_5b47,
            0x207b_164b,
            0x5d52_b9ca,
            0xba2c_9175,
            0x19de_e812,
            0x79a1_5f39,
        ]
    );
    assert_eq!(
        blocks((7i64 << 32) | 5),
        [
            0x3447_53e3,
            0x8fd3_dfb1,
            0x0cd6_46fc,
            0xcf44_a45b,
            0xed2b_c180,
            0xeb3e_88db,
            0x1911_416a,
            0x82d3_b22a,
            0x829d_4c9a,
        ]
    );
}

#[test]
fn moments_are_those_of_the_distributions() {
    let n = 20_000usize;
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
    let var = |v: &[f64]| mean(&v.iter().map(|x| (x - mean(v)).powi(2)).collect::<Vec<_>>());
    let near = |a: f64, b: f64, by: f64| assert!((a - b).abs() < by, "{a}, want {b}");

    let u = run(&[1, 2], |s| s.uniform([n], -1.0, 3.0, DType::F32, 0));
    near(mean(&u), 1.0, 0.04);
    near(var(&u), 16.0 / 12.0, 0.05);
    assert!(u.iter().all(|x| (-1.0..3.0).contains(x)));
    let z = run(&[3, 4], |s| s.normal([n], 2.0, 0.5, DType::F32, 1));
    near(mean(&z), 2.0, 0.02);
    near(var(&z), 0.25, 0.01);
    // Pairs share a radius: neighbours must not be correlated all the same.
    let pairs = z.chunks(2).map(|p| (p[0] - 2.0) * (p[1] - 2.0)).collect::<Vec<_>>();
    near(mean(&pairs), 0.0, 0.02);
    let g = run(&[5, 6], |s| s.gumbel([n], DType::F32, 2));
    near(mean(&g), 0.577_215_66, 0.04);
    near(var(&g), std::f64::consts::PI.powi(2) / 6.0, 0.1);
    let b = run(&[7, 8], |s| s.bernoulli([n], 0.3, 3));
    near(mean(&b), 0.3, 0.015);
    let d = run(&[9, 10], |s| {
        let x = s.graph().full(DType::F32, &[n.into()], 1.0);
        x.dropout(s, 0.25, 0)
    });
    near(mean(&d), 1.0, 0.02);
    assert!(d.iter().all(|x| *x == 0.0 || (*x - 4.0 / 3.0).abs() < 1e-6));
}

#[test]
fn shapes_may_be_symbolic() {
    let (s, t) = (rlx_ir::dim("s", 9), rlx_ir::dim("t", 9));
    let g = Graph::new("symbols");
    let seed = g.input("seed", DType::U32, [2]);
    let x = g.input("x", DType::F32, [s.clone(), t.clone()]);
    g.output("normal", seed.normal([s.clone(), t.clone()], 0.0, 1.0, DType::F32, 0));
    g.output("dropped", x.dropout(seed, 0.5, 0));
    let narrow = rlx_ir::ops::sample::Sample { top_k: 2, top_p: 0.9, min_p: 0.1, ..Default::default() };
    g.output("ids", x.sample(seed, narrow));
    let f = g.finish().unwrap();
    let (seed, x) = (Tensor::new(&[2], &[1u32, 2]).unwrap(), Tensor::new(&[3, 5], &[0.5f32; 15]).unwrap());
    let out = eval(&f, &[("seed", &seed), ("x", &x)], &Options::default()).unwrap();
    assert_eq!(out[0].1.f64s(), run(&[1, 2], |s| s.normal([15], 0.0, 1.0, DType::F32, 0)));
    assert_eq!(out[2].1.shape(), [3]);
}

//! Collectives over three ranks: what each rank gets, and gradients of the sum of all ranks' losses.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx_ir::ops::collective::Join;
use rlx_ir::oracle::eval_ranks;
use rlx_ir::{Code, DType, Func, Graph, Options, Tensor, Var, eval, transform};

const RANKS: i64 = 3;

fn graph(shape: &[usize], build: impl for<'g> Fn(Var<'g>) -> Var<'g>) -> Func {
    let g = Graph::new("ranks");
    {
        let x = g.input("x", DType::F64, shape.iter().copied());
        g.output("y", build(x));
    }
    g.finish().unwrap()
}

fn run(f: &Func, ranks: &[Vec<(&str, Tensor)>], name: &str) -> Vec<Vec<f64>> {
    let inputs: Vec<Vec<(&str, &Tensor)>> =
        ranks.iter().map(|r| r.iter().map(|(n, t)| (*n, t)).collect()).collect();
    let inputs: Vec<&[(&str, &Tensor)]> = inputs.iter().map(Vec::as_slice).collect();
    let out = eval_ranks(f, &inputs, &Options::default()).unwrap();
    out.into_iter().map(|r| r.into_iter().find(|(n, _)| n == name).unwrap().1.f64s()).collect()
}

fn inputs(shape: &[usize]) -> Vec<Vec<(&'static str, Tensor)>> {
    let n: usize = shape.iter().product();
    let value = |r: usize, i: usize| ((r * n + i) as f64 * 0.7).sin();
    let rank =
        |r| vec![("x", Tensor::new(shape, &(0..n).map(|i| value(r, i)).collect::<Vec<f64>>()).unwrap())];
    (0..RANKS as usize).map(rank).collect()
}

fn whole(shape: &[usize]) -> Vec<Vec<(&'static str, Tensor)>> {
    let n: usize = shape.iter().product();
    let rank = |r: usize| {
        vec![("x", Tensor::new(shape, &(0..n).map(|i| (10 * r + i) as f64).collect::<Vec<f64>>()).unwrap())]
    };
    (0..RANKS as usize).map(rank).collect()
}

#[test]
fn each_rank_gets_its_share() {
    let out = |shape: &[usize], build: for<'g> fn(Var<'g>) -> Var<'g>| {
        run(&graph(shape, build), &whole(shape), "y")
    };
    assert_eq!(out(&[2], |x| x.all_reduce(Join::Sum, RANKS)), vec![vec![30.0, 33.0]; 3]);
    assert_eq!(out(&[2], |x| x.all_reduce(Join::Mean, RANKS)), vec![vec![10.0, 11.0]; 3]);
    assert_eq!(out(&[2], |x| x.all_reduce(Join::Max, RANKS)), vec![vec![20.0, 21.0]; 3]);
    assert_eq!(out(&[2], |x| x.all_reduce(Join::Min, RANKS)), vec![vec![0.0, 1.0]; 3]);
    assert_eq!(out(&[2, 1], |x| x.all_gather(1, RANKS)), vec![vec![0.0, 10.0, 20.0, 1.0, 11.0, 21.0]; 3]);
    assert_eq!(out(&[3], |x| x.reduce_scatter(0, RANKS)), [[30.0], [33.0], [36.0]]);
    assert_eq!(out(&[2], |x| x.broadcast_rank(1, RANKS)), vec![vec![10.0, 11.0]; 3]);
    assert_eq!(out(&[2], |x| x.reduce_rank(2, RANKS)), [[0.0, 0.0], [0.0, 0.0], [30.0, 33.0]]);
    assert_eq!(
        out(&[3], |x| x.all_to_all(0, 0, RANKS)),
        [[0.0, 10.0, 20.0], [1.0, 11.0, 21.0], [2.0, 12.0, 22.0]]
    );
    assert_eq!(out(&[1], |x| x.rotate_ranks(1, RANKS)), [[20.0], [0.0], [10.0]]);
    assert_eq!(out(&[1], |x| x.rotate_ranks(-1, RANKS)), [[10.0], [20.0], [0.0]]);
}

/// Differences of the summed loss with respect to every input of every rank.
fn check_gradient(shape: &[usize], build: impl for<'g> Fn(Var<'g>) -> Var<'g>) {
    // A loss that treats elements differently: Σ w·y + y²/2 with w from the element's position.
    let f = graph(shape, |x| {
        let y = build(x);
        let n = y.ty().numel();
        let w = y.graph().iota(vec![n.clone()], 0, DType::F64) * 0.3 + 1.0;
        (y.reshape(vec![n]) * w).sum_all() + (y * y).sum_all() * 0.5
    });
    let back = transform::vjp(&f, &["y"], &["x"]).unwrap();
    let base = inputs(shape);
    let grads = run(&back, &base, "grad.x");
    let loss = |data: &[Vec<(&'static str, Tensor)>]| run(&f, data, "y").iter().map(|y| y[0]).sum::<f64>();
    let step = 1e-5;
    for r in 0..base.len() {
        for i in 0..grads[r].len() {
            let moved = |by: f64| {
                let mut data = base.clone();
                let mut v = data[r][0].1.to_f64s().unwrap();
                v[i] += by;
                data[r][0].1 = Tensor::new(shape, &v).unwrap();
                loss(&data)
            };
            let want = (moved(step) - moved(-step)) / (2.0 * step);
            assert!(
                (grads[r][i] - want).abs() < 1e-8 * want.abs().max(1.0),
                "rank {r}, {i}: {} {want}",
                grads[r][i]
            );
        }
    }
}

#[test]
fn gradients_cross_ranks() {
    check_gradient(&[2, 2], |x| x.all_reduce(Join::Sum, RANKS));
    check_gradient(&[2, 2], |x| x.all_reduce(Join::Mean, RANKS));
    check_gradient(&[2, 2], |x| x.all_reduce(Join::Max, RANKS));
    check_gradient(&[2, 2], |x| x.all_reduce(Join::Min, RANKS));
    check_gradient(&[2, 2], |x| x.all_gather(1, RANKS));
    check_gradient(&[2, 3], |x| x.reduce_scatter(1, RANKS));
    check_gradient(&[2], |x| x.broadcast_rank(2, RANKS));
    check_gradient(&[2], |x| x.reduce_rank(1, RANKS));
    check_gradient(&[3, 2], |x| x.all_to_all(0, 1, RANKS));
    check_gradient(&[2], |x| x.rotate_ranks(2, RANKS));
}

#[test]
fn a_graph_for_three_ranks_needs_three() {
    let f = graph(&[2], |x| x.all_reduce(Join::Sum, RANKS));
    let x = Tensor::new(&[2], &[1.0f64, 2.0]).unwrap();
    let e = eval(&f, &[("x", &x)], &Options::default()).unwrap_err();
    assert_eq!(e.code(), Code::BadInput);
}

#[test]
fn ranks_meet_inside_a_checkpoint() {
    fn plain(x: Var<'_>) -> Var<'_> {
        (x * x).all_reduce(Join::Sum, RANKS).sin()
    }
    let data = inputs(&[2]);
    let [a, b] = [
        graph(&[2], |x| x.graph().checkpoint(|| vec![plain(x)])[0].sum_all()),
        graph(&[2], |x| plain(x).sum_all()),
    ];
    assert_eq!(run(&a, &data, "y"), run(&b, &data, "y"));
    let grad = |f| transform::vjp(f, &["y"], &["x"]).unwrap();
    assert_eq!(run(&grad(&a), &data, "grad.x"), run(&grad(&b), &data, "grad.x"));
}

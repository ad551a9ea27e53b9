//! Symbolic sizes flow through products, windows, indexing and transforms, and through their gradients.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx_ir::ops::conv::{Conv, ConvTranspose};
use rlx_ir::ops::pool::{AvgPool, MaxPool};
use rlx_ir::ops::scatter::ScatterMode;
use rlx_ir::{DType, Dim, Graph, Options, Tensor, Var, dim, eval, transform};

fn wave(shape: &[usize]) -> Tensor {
    let n: usize = shape.iter().product();
    let v: Vec<f64> = (0..n).map(|i| (i as f64 * 1.3).sin()).collect();
    Tensor::new(shape, &v).unwrap()
}

/// The loss and gradients of `Σ sin(f(x, w))` at symbolic sizes are those at constant ones, alone and batched.
fn check(
    name: &str,
    x: (Vec<Dim>, &[usize]),
    w: (Vec<Dim>, &[usize]),
    f: impl for<'g> Fn(Var<'g>, Var<'g>) -> Var<'g>,
) {
    let build = |xs: Vec<Dim>, ws: Vec<Dim>| {
        let g = Graph::new("symbolic");
        let (x, w) = (g.input("x", DType::F64, xs), g.input("w", DType::F64, ws));
        let loss = f(x, w).sin().sum_all();
        g.output("loss", loss);
        g.vjp(loss, &[x, w]).unwrap_or_else(|e| panic!("{name}: {e}"))
    };
    let constant = |s: &[usize]| s.iter().map(|n| Dim::from(*n)).collect::<Vec<_>>();
    let (symbolic, plain) = (build(x.0, w.0), build(constant(x.1), constant(w.1)));
    let (tx, tw) = (wave(x.1), wave(w.1));
    let data = [("x", &tx), ("w", &tw)];
    let run = |f| eval(f, &data, &Options::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
    let want = run(&plain);
    assert_eq!(run(&symbolic), want, "{name}");

    let batch = dim("batch", 5);
    for ports in [&[("x", 0)][..], &[("w", 0)], &[("x", 0), ("w", 0)]] {
        let mapped = transform::vmap(&symbolic, ports, &batch, 0).unwrap_or_else(|e| panic!("{name}: {e}"));
        let twice = |t: &Tensor, name: &str| match ports.iter().any(|p| p.0 == name) {
            true => {
                let shape: Vec<usize> = std::iter::once(2).chain(t.shape().iter().copied()).collect();
                Tensor::from_bytes(DType::F64, &shape, [t.bytes(), t.bytes()].concat()).unwrap()
            }
            false => t.clone(),
        };
        let (tx, tw) = (twice(&tx, "x"), twice(&tw, "w"));
        let got = eval(&mapped, &[("x", &tx), ("w", &tw)], &Options::default())
            .unwrap_or_else(|e| panic!("{name} batched: {e}"));
        for ((n, a), (_, b)) in got.iter().zip(&want) {
            let (a, b) = (a.f64s(), b.f64s());
            let off = a.iter().zip(b.iter().cycle()).any(|(p, q)| (p - q).abs() > 1e-9);
            assert!(a.len() == 2 * b.len() && !off, "{name} batched over {ports:?}: {n}");
        }
    }
}

#[test]
fn products() {
    let (b, s) = (dim("b", 8), dim("s", 64));
    let x = || (vec![b.clone(), s.clone(), 3.into()], &[2usize, 4, 3][..]);
    let w = || (vec![3.into(), 2.into()], &[3usize, 2][..]);
    check("matmul", x(), w(), |x, w| x.matmul(w));
    check("scores", x(), w(), |x, w| x.matmul(x.t()).matmul(x).matmul(w));
    check("linear", x(), w(), |x, w| x.linear(w, None, false));
    check("einsum", x(), w(), |x, w| x.graph().einsum(&[x, w, x], "bsk,kj,btk->bstj"));
}

#[test]
fn windows() {
    let (b, h, w) = (dim("b", 8), dim("h", 64), dim("w", 64));
    let x = || (vec![b.clone(), 4.into(), h.clone(), w.clone()], &[2usize, 4, 6, 7][..]);
    let k = || (vec![2.into(), 2.into(), 3.into(), 2.into()], &[2usize, 2, 3, 2][..]);
    check("conv", x(), k(), |x, w| {
        let (stride, padding_lo, padding_hi) = (vec![2, 3], vec![1, 0], vec![0, 2]);
        x.conv(w, None, Conv { stride, padding_lo, padding_hi, groups: 2, ..Conv::default() })
    });
    let k = || (vec![4.into(), 1.into(), 3.into(), 2.into()], &[4usize, 1, 3, 2][..]);
    check("conv_transpose", x(), k(), |x, w| {
        let (stride, output_padding) = (vec![2, 3], vec![1, 2]);
        x.conv_transpose(
            w,
            None,
            ConvTranspose { stride, output_padding, groups: 2, ..ConvTranspose::default() },
        )
    });
    let one = || (vec![1.into()], &[1usize][..]);
    let padding = || (vec![1, 1], vec![1, 1]);
    check("max_pool", x(), one(), |x, w| {
        let (padding_lo, padding_hi) = padding();
        let (kernel, stride) = (vec![2, 3], vec![2, 2]);
        x.max_pool(MaxPool { kernel, stride, padding_lo, padding_hi, ceil_mode: true, ..MaxPool::default() })
            * w
    });
    check("avg_pool", x(), one(), |x, w| {
        let (padding_lo, padding_hi) = padding();
        let (kernel, stride) = (vec![3, 3], vec![2, 2]);
        x.avg_pool(AvgPool { kernel, stride, padding_lo, padding_hi, ceil_mode: true, ..AvgPool::default() })
            * w
    });
}

#[test]
fn indexing() {
    let (b, s) = (dim("b", 8), dim("s", 64));
    let x = || (vec![b.clone(), s.clone()], &[3usize, 5][..]);
    let w = || (vec![2.into(), s.clone()], &[2usize, 5][..]);
    fn ids<'g>(x: Var<'g>, n: Vec<i32>) -> Var<'g> {
        x.graph().constant(Tensor::new(&[n.len()], &n).unwrap())
    }
    check("gather", x(), w(), |x, w| {
        x.gather(ids(x, vec![1, -1, 1]), 1).matmul(w.gather(ids(x, vec![0, 2, 4]), 1).t())
    });
    check("scatter", x(), w(), |x, w| x.scatter(ids(x, vec![2, 0]), w, 0, ScatterMode::Add));
    check("scatter_set", x(), w(), |x, w| x.scatter(ids(x, vec![2, 2]), w, 0, ScatterMode::Set));
    check("elements", x(), w(), |x, w| {
        let [_, order] = w.sort(1, true);
        x.gather_elements(order, 1)
    });
    check("dynamic", x(), w(), |x, w| {
        let at = |n: i32| x.graph().constant(Tensor::new(&[], &[n]).unwrap());
        let (s, two) = (x.dim(1), Dim::constant(2));
        let part = x.dynamic_slice(&[at(7), at(0)][..], vec![two, s]);
        x.dynamic_update_slice(part * w, &[at(-1), at(3)][..])
    });
    check("top_k", x(), w(), |x, w| x.top_k(2, 1, true)[0].sum_all() * w);
}

#[test]
fn transforms() {
    let (b, s) = (dim("b", 8), dim("s", 64));
    let x = || (vec![b.clone(), s.clone()], &[3usize, 5][..]);
    let w = || (vec![s.clone()], &[5usize][..]);
    check("fourier", x(), w(), |x, w| {
        let n = x.dim(1);
        (x.rfft(-1) * w.rfft(0)).irfft(n)
    });
}

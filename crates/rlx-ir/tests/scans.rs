//! The state-space ops against plain loops, in pieces, and at symbolic lengths.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx_ir::ops::gated_delta_net::GatedDeltaNet;
use rlx_ir::sample::Rng;
use rlx_ir::{DType, Func, Graph, Options, Tensor, dim, eval, transform};

type Named = Vec<(&'static str, Tensor)>;

fn random(rng: &mut Rng, shape: &[usize], lo: f64, hi: f64) -> Tensor {
    let n = shape.iter().product();
    Tensor::new(shape, &(0..n).map(|_| lo + (hi - lo) * rng.unit()).collect::<Vec<f64>>()).unwrap()
}

fn run(f: &Func, data: &Named) -> Vec<Vec<f64>> {
    let inputs: Vec<(&str, &Tensor)> = data.iter().map(|(n, t)| (*n, t)).collect();
    eval(f, &inputs, &Options::default()).unwrap().into_iter().map(|(_, a)| a.f64s()).collect()
}

fn close(a: &[f64], b: &[f64]) {
    assert_eq!(a.len(), b.len());
    for (i, (x, y)) in a.iter().zip(b).enumerate() {
        assert!((x - y).abs() <= 1e-10 * y.abs().max(1.0), "element {i}: {x}, want {y}");
    }
}

fn at(t: &Tensor, ix: &[usize]) -> f64 {
    let flat = ix.iter().zip(t.shape()).fold(0, |o, (i, d)| o * d + i);
    t.to_f64s().unwrap()[flat]
}

/// The times `from..to` (axis 1) of a tensor.
fn times(t: &Tensor, from: usize, to: usize) -> Tensor {
    let (b, s) = (t.shape()[0], t.shape()[1]);
    let inner: usize = t.shape()[2..].iter().product();
    let v = t.to_f64s().unwrap();
    let part: Vec<f64> =
        (0..b).flat_map(|i| v[(i * s + from) * inner..(i * s + to) * inner].to_vec()).collect();
    let shape: Vec<usize> = [b, to - from].iter().chain(&t.shape()[2..]).copied().collect();
    Tensor::new(&shape, &part).unwrap()
}

fn softplus(x: f64) -> f64 {
    x.exp().ln_1p()
}
fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// One graph of an op whose first outputs are y and the last state; ports get the shapes of the data.
fn graph(data: &Named, build: impl for<'g> Fn(&[rlx_ir::Var<'g>]) -> [rlx_ir::Var<'g>; 2]) -> Func {
    let g = Graph::new("scan");
    {
        let ports: Vec<_> =
            data.iter().map(|(n, t)| g.input(n, DType::F64, t.shape().iter().copied())).collect();
        let [y, last] = build(&ports);
        g.output("y", y);
        g.output("last", last);
    }
    g.finish().unwrap()
}

const MAMBA: [&str; 9] = ["x", "delta", "a", "b", "c", "d", "z", "bias", "state"];

fn mamba_data(batch: usize, s: usize, h: usize, n: usize) -> Named {
    let rng = &mut Rng::new(3);
    let shapes: [(&[usize], f64, f64); 9] = [
        (&[batch, s, h], -1.0, 1.0),
        (&[batch, s, h], -1.0, 1.0),
        (&[h, n], -2.0, -0.1),
        (&[batch, s, n], -1.0, 1.0),
        (&[batch, s, n], -1.0, 1.0),
        (&[h], -1.0, 1.0),
        (&[batch, s, h], -2.0, 2.0),
        (&[h], -0.5, 0.5),
        (&[batch, h, n], -1.0, 1.0),
    ];
    MAMBA.iter().zip(shapes).map(|(name, (shape, lo, hi))| (*name, random(rng, shape, lo, hi))).collect()
}

fn selective_scan<'g>(v: &[rlx_ir::Var<'g>]) -> [rlx_ir::Var<'g>; 2] {
    v[0].selective_scan(v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], true)
}

#[test]
fn selective_scan_is_its_formula() {
    let (batch, s, h, n) = (2, 7, 3, 5);
    let data = mamba_data(batch, s, h, n);
    let [x, delta, a, b, c, d, z, bias, state] = std::array::from_fn(|i| &data[i].1);
    let mut want = vec![0.0; batch * s * h];
    let mut last = state.to_f64s().unwrap();
    for i in 0..batch {
        for t in 0..s {
            for j in 0..h {
                let dt = softplus(at(delta, &[i, t, j]) + at(bias, &[j]));
                let mut y = at(d, &[j]) * at(x, &[i, t, j]);
                for k in 0..n {
                    let st = &mut last[(i * h + j) * n + k];
                    *st = (dt * at(a, &[j, k])).exp() * *st + dt * at(b, &[i, t, k]) * at(x, &[i, t, j]);
                    y += at(c, &[i, t, k]) * *st;
                }
                want[(i * s + t) * h + j] = y * silu(at(z, &[i, t, j]));
            }
        }
    }
    let got = run(&graph(&data, selective_scan), &data);
    close(&got[0], &want);
    close(&got[1], &last);
}

/// Runs a scan in pieces of the sequence, each from the last state of the one before, and compares with one run.
fn in_pieces(
    data: &Named,
    timed: &[&str],
    cuts: &[usize],
    build: impl for<'g> Fn(&[rlx_ir::Var<'g>]) -> [rlx_ir::Var<'g>; 2],
) {
    let whole = run(&graph(data, &build), data);
    let y_shape = |s: usize| {
        let x = &data[0].1;
        let v = &data.iter().find(|(n, _)| *n == "v").map_or(x, |(_, v)| v);
        (v.shape()[0], s, v.shape()[2..].iter().product::<usize>())
    };
    let s = data[0].1.shape()[1];
    let mut state = data.last().unwrap().1.clone();
    let mut joined = vec![0.0; whole[0].len()];
    for w in cuts.windows(2) {
        let piece: Named = data
            .iter()
            .map(|(n, t)| match *n {
                "state" => (*n, state.clone()),
                n if timed.contains(&n) => (n, times(t, w[0], w[1])),
                n => (n, t.clone()),
            })
            .collect();
        let out = run(&graph(&piece, &build), &piece);
        let (b, len, inner) = y_shape(w[1] - w[0]);
        for i in 0..b {
            let to = (i * s + w[0]) * inner;
            joined[to..to + len * inner].copy_from_slice(&out[0][i * len * inner..(i + 1) * len * inner]);
        }
        state = Tensor::new(state.shape(), &out[1]).unwrap();
    }
    close(&joined, &whole[0]);
    close(&state.to_f64s().unwrap(), &whole[1]);
}

#[test]
fn decoding_token_by_token_is_one_long_scan() {
    let tokens: Vec<usize> = (0..=7).collect();
    let data = mamba_data(2, 7, 3, 4);
    in_pieces(&data, &["x", "delta", "b", "c", "z"], &tokens, selective_scan);
    in_pieces(&data, &["x", "delta", "b", "c", "z"], &[0, 3, 3, 4, 7], selective_scan);

    let rng = &mut Rng::new(5);
    let ssd: Named = vec![
        ("x", random(rng, &[2, 7, 4, 3], -1.0, 1.0)),
        ("dt", random(rng, &[2, 7, 4], -1.0, 1.0)),
        ("a", random(rng, &[4], -2.0, -0.1)),
        ("b", random(rng, &[2, 7, 2, 3], -1.0, 1.0)),
        ("c", random(rng, &[2, 7, 2, 3], -1.0, 1.0)),
        ("state", random(rng, &[2, 4, 3, 3], -1.0, 1.0)),
    ];
    in_pieces(&ssd, &["x", "dt", "b", "c"], &tokens, |v| {
        v[0].ssd(v[1], v[2], v[3], v[4], None, None, None, v[5], true)
    });

    let delta = delta_data(2, 7);
    in_pieces(&delta, &["q", "k", "v", "g", "beta"], &tokens, delta_net);

    let conv: Named = vec![
        ("x", random(rng, &[2, 7, 3], -1.0, 1.0)),
        ("w", random(rng, &[3, 4], -1.0, 1.0)),
        ("bias", random(rng, &[3], -1.0, 1.0)),
        ("state", random(rng, &[2, 3, 3], -1.0, 1.0)),
    ];
    in_pieces(&conv, &["x"], &tokens, |v| v[0].causal_conv1d(v[1], v[2], v[3], true));
}

#[test]
fn ssd_is_a_selective_scan_with_one_decay_a_head() {
    let (b, s, h, p, n) = (2, 5, 3, 2, 4);
    let rng = &mut Rng::new(9);
    let data: Named = vec![
        ("x", random(rng, &[b, s, h, p], -1.0, 1.0)),
        ("dt", random(rng, &[b, s, h], 0.1, 1.0)),
        ("a", random(rng, &[h], -2.0, -0.1)),
        ("b", random(rng, &[b, s, 1, n], -1.0, 1.0)),
        ("c", random(rng, &[b, s, 1, n], -1.0, 1.0)),
        ("d", random(rng, &[h], -1.0, 1.0)),
    ];
    let got = run(&graph(&data, |v| v[0].ssd(v[1], v[2], v[3], v[4], v[5], None, None, None, false)), &data);
    let want = run(
        &graph(&data, |v| {
            let dt = v[1].unsqueeze(-1).broadcast([b, s, h, p]).reshape([b, s, h * p]);
            let a = v[2].reshape([h, 1, 1]).broadcast([h, p, n]).reshape([h * p, n]);
            let d = v[5].unsqueeze(-1).broadcast([h, p]).reshape([h * p]);
            let (x, bb, cc) = (v[0].reshape([b, s, h * p]), v[3].reshape([b, s, n]), v[4].reshape([b, s, n]));
            x.selective_scan(dt, a, bb, cc, d, None, None, None, false)
        }),
        &data,
    );
    close(&got[0], &want[0]);
    close(&got[1], &want[1]);
}

fn delta_data(b: usize, s: usize) -> Named {
    let rng = &mut Rng::new(7);
    vec![
        ("q", random(rng, &[b, s, 2, 3], -1.0, 1.0)),
        ("k", random(rng, &[b, s, 2, 3], -1.0, 1.0)),
        ("v", random(rng, &[b, s, 4, 2], -1.0, 1.0)),
        ("g", random(rng, &[b, s, 4], -1.0, 0.0)),
        ("beta", random(rng, &[b, s, 4], 0.0, 1.0)),
        ("state", random(rng, &[b, 4, 3, 2], -1.0, 1.0)),
    ]
}

fn delta_net<'g>(v: &[rlx_ir::Var<'g>]) -> [rlx_ir::Var<'g>; 2] {
    v[0].gated_delta_net(v[1], v[2], v[3], v[4], v[5], GatedDeltaNet { scale: None, normalize: true })
}

#[test]
fn gated_delta_net_is_its_formula() {
    let (b, s, h, dk, dv) = (2, 5, 4, 3, 2);
    let data = delta_data(b, s);
    let [q, k, v, g, beta, state] = std::array::from_fn(|i| &data[i].1);
    let mut mem = state.to_f64s().unwrap();
    let mut want = vec![0.0; b * s * h * dv];
    let unit = |x: &Tensor, i: usize, t: usize, j: usize| -> Vec<f64> {
        let v: Vec<f64> = (0..dk).map(|e| at(x, &[i, t, j / 2, e])).collect();
        let len = (v.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
        v.iter().map(|x| x / len).collect()
    };
    for i in 0..b {
        for t in 0..s {
            for j in 0..h {
                let (qq, kk) = (unit(q, i, t, j), unit(k, i, t, j));
                let m = &mut mem[(i * h + j) * dk * dv..(i * h + j + 1) * dk * dv];
                m.iter_mut().for_each(|x| *x *= at(g, &[i, t, j]).exp());
                for e in 0..dv {
                    let read: f64 = (0..dk).map(|r| m[r * dv + e] * kk[r]).sum();
                    let change = at(beta, &[i, t, j]) * (at(v, &[i, t, j, e]) - read);
                    (0..dk).for_each(|r| m[r * dv + e] += kk[r] * change);
                    let y: f64 = (0..dk).map(|r| m[r * dv + e] * qq[r]).sum();
                    want[((i * s + t) * h + j) * dv + e] = y / (dk as f64).sqrt();
                }
            }
        }
    }
    let got = run(&graph(&data, delta_net), &data);
    close(&got[0], &want);
    close(&got[1], &mem);
}

/// The gradient at a symbolic length, where chunks are cut for the longest sequence, is that at the length itself.
#[test]
fn gradients_do_not_depend_on_the_planned_length() {
    let data = mamba_data(2, 7, 2, 3);
    let build = |s: rlx_ir::Dim| {
        let g = Graph::new("scan");
        {
            let port = |(name, t): &(&'static str, Tensor)| {
                let timed = ["x", "delta", "b", "c", "z"].contains(name);
                let size = |(i, d): (usize, &usize)| if timed && i == 1 { s.clone() } else { (*d).into() };
                g.input(name, DType::F64, t.shape().iter().enumerate().map(size).collect::<Vec<_>>())
            };
            let ports: Vec<_> = data.iter().map(port).collect();
            let [y, last] = selective_scan(&ports);
            g.output("loss", (y * y).sum_all() + last.sum_all());
        }
        transform::vjp(&g.finish().unwrap(), &["loss"], &MAMBA).unwrap()
    };
    let want = run(&build(7.into()), &data);
    for planned in [dim("s", 7), dim("s", 50)] {
        let got = run(&build(planned), &data);
        got.iter().zip(&want).for_each(|(a, b)| close(a, b));
    }
}

/// Every size a symbol: the graphs, their gradients and their batches can be built, and give what constant sizes give.
#[test]
fn all_sizes_may_be_symbols() {
    let (b, s, h, p, n) = (dim("b", 4), dim("s", 40), dim("h", 6), dim("p", 5), dim("n", 9));
    let (two_h, k) = (&h * 2, dim("k", 20) + 1);
    let check = |build: &dyn for<'g> Fn(&'g Graph) -> [rlx_ir::Var<'g>; 2], wrt: &[&str]| {
        let g = Graph::new("symbols");
        {
            let [y, last] = build(&g);
            g.output("loss", y.sum_all() + last.sum_all());
        }
        let f = g.finish().unwrap();
        let back = transform::vjp(&f, &["loss"], wrt).unwrap();
        let axes: Vec<(&str, i64)> = wrt.iter().map(|n| (*n, 0)).collect();
        transform::vmap(&back, &axes, &dim("batch", 8), 0).unwrap();
        transform::vmap(&f, &axes[..1], &dim("batch", 8), 0).unwrap();
        let data: Named = back
            .ports
            .iter()
            .map(|port| {
                let sizes = [("b", 2), ("s", 5), ("h", 2), ("p", 3), ("n", 2), ("k", 2)];
                let mut bindings = rlx_ir::Bindings::new();
                for (n, v) in sizes {
                    bindings.insert(n, v);
                }
                let shape =
                    back.ty(port.value).unwrap().shape.iter().map(|d| d.eval(&bindings).unwrap() as usize);
                let name: &'static str = wrt_name(&port.name);
                (name, random(&mut Rng::new(4), &shape.collect::<Vec<_>>(), 0.1, 0.9))
            })
            .collect();
        assert!(run(&back, &data).iter().flatten().all(|x| x.is_finite()));
    };
    let f = DType::F64;
    check(
        &|g| {
            let x = g.input("x", f, [&b, &s, &two_h, &p].map(Clone::clone));
            let dt = g.input("dt", f, [&b, &s, &two_h].map(Clone::clone));
            let a = g.input("a", f, [two_h.clone()]);
            let bb = g.input("b", f, [&b, &s, &h, &n].map(Clone::clone));
            x.ssd(dt, a, bb, bb, a, x, a, None, true)
        },
        &["x", "dt", "a", "b"],
    );
    check(
        &|g| {
            let q = g.input("q", f, [&b, &s, &h, &p].map(Clone::clone));
            let v = g.input("v", f, [&b, &s, &two_h, &n].map(Clone::clone));
            let beta = g.input("beta", f, [&b, &s, &two_h].map(Clone::clone));
            q.gated_delta_net(q, v, beta, beta, None, GatedDeltaNet::default())
        },
        &["q", "v", "beta"],
    );
    check(
        &|g| {
            let x = g.input("x", f, [&b, &s, &h].map(Clone::clone));
            let w = g.input("w", f, [&h, &k].map(Clone::clone));
            x.causal_conv1d(w, None, None, true)
        },
        &["x", "w"],
    );
}

fn wrt_name(name: &str) -> &'static str {
    ["x", "dt", "a", "b", "q", "v", "beta", "w"].into_iter().find(|n| *n == name).unwrap()
}

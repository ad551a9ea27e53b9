//! Corners of differentiation and batching: control flow within control flow, state that is not a float, operands used
//! twice, results that nobody uses. Each graph is judged by finite differences and its batched form by stacking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx_conformance::fd::Problem;
use rlx_ir::DType::{F64, I32, I64};
use rlx_ir::transform::{dce, hvp, jvp, vjp, vmap};
use rlx_ir::{Dim, Func, Graph, Options, Tensor, Var, dim, eval};

type Named = Vec<(String, Tensor)>;

/// Two members of a batch: the inputs of shape `[3]` are `x`, `w`, …, each different in each member.
fn data(f: &Func, member: usize) -> Named {
    let value = |p: usize, i: usize| 0.3 + ((p * 7 + i * 3 + member * 5) as f64 * 0.61).sin() * 0.6;
    let tensor = |(p, port): (usize, &rlx_ir::func::Port)| {
        let ty = f.ty(port.value).unwrap();
        let bind = |d: &Dim| d.as_const().unwrap_or(3) as usize;
        let shape: Vec<usize> = ty.shape.iter().map(bind).collect();
        let n: usize = shape.iter().product();
        let values: Vec<f64> = (0..n).map(|i| if ty.dtype == F64 { value(p, i) } else { 2.0 }).collect();
        (port.name.clone(), Tensor::from_f64s(ty.dtype, &shape, &values).unwrap())
    };
    f.ports.iter().enumerate().map(tensor).collect()
}

fn run(f: &Func, data: &[(String, Tensor)]) -> Vec<(String, Vec<f64>)> {
    let refs: Vec<(&str, &Tensor)> = data.iter().map(|(n, t)| (n.as_str(), t)).collect();
    let out =
        eval(f, &refs, &Options::default()).unwrap_or_else(|e| panic!("{e}\n{}", rlx_ir::text::print(f)));
    out.into_iter().map(|(n, a)| (n, a.f64s())).collect()
}

fn sound(what: &str, f: &Func) {
    rlx_ir::verify::verify(f).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(&dce(f).unwrap(), f, "{what} has dead code");
    let text = rlx_ir::text::print(f);
    assert_eq!(&rlx_ir::text::parse(&text).unwrap_or_else(|e| panic!("{what}: {e}\n{text}")), f, "{what}");
}

fn agree(f: &Func, data: &Named, what: &str) {
    let wrt: Vec<&str> = data.iter().filter(|(_, t)| t.dtype().is_float()).map(|(n, _)| n.as_str()).collect();
    let types = f.output_types().unwrap();
    let outputs = f.outputs.iter().zip(types).filter(|(_, t)| t.dtype.is_float());
    let outputs: Vec<&str> = outputs.map(|(o, _)| o.name.as_str()).collect();
    let p = Problem { func: f, data, wrt: &wrt, outputs: &outputs };
    for (order, gap) in [("vjp", p.vjp(1)), ("jvp", p.jvp(2)), ("hvp", p.hvp(3))] {
        let gap = gap.unwrap_or_else(|e| panic!("{what}: {order}: {e}"));
        assert!(gap.relative() < 1e-7, "{what}: {order}: {gap:?}");
    }
}

fn stacked(a: &Tensor, b: &Tensor) -> Tensor {
    let shape: Vec<usize> = std::iter::once(2).chain(a.shape().iter().copied()).collect();
    Tensor::from_bytes(a.dtype(), &shape, [a.bytes(), b.bytes()].concat()).unwrap()
}

fn judge(what: &str, build: impl for<'g> Fn(&'g Graph, Var<'g>, Var<'g>) -> Vec<Var<'g>>) {
    for n in [Dim::constant(3), dim("n", 5)] {
        let g = Graph::new("corner");
        {
            let x = g.input("x", F64, [n.clone()]);
            let w = g.input("w", F64, [n.clone()]);
            for (i, y) in build(&g, x, w).into_iter().enumerate() {
                g.output(&format!("y{i}"), y);
            }
        }
        let f = g.finish().unwrap_or_else(|e| panic!("{what}: {e}"));
        let (a, b) = (data(&f, 0), data(&f, 1));
        agree(&f, &a, what);

        // The scalar whose gradient is batched, and the batched graph that is differentiated.
        let h = Graph::new("loss");
        let args = h.declare_ports(&f);
        let floats = h.inline(&f, &args).unwrap().into_iter().filter(|v| v.dtype().is_float());
        let loss = floats.map(|v| (v * v).sum_all()).reduce(|a, b| a + b).unwrap();
        h.output("loss", loss);
        let loss = h.finish().unwrap();
        let grad = vjp(&loss, &["loss"], &["x", "w"]).unwrap_or_else(|e| panic!("{what}: {e}"));
        let axes = [("x", 0), ("w", 0)];
        let two = Dim::constant(2);
        let batched_grad = vmap(&grad, &axes, &two, 0).unwrap_or_else(|e| panic!("{what}: vmap of vjp: {e}"));
        let batched = vmap(&f, &axes, &two, 0).unwrap_or_else(|e| panic!("{what}: vmap: {e}"));
        for (kind, f) in [
            ("vjp", grad.clone()),
            ("vmap of vjp", batched_grad.clone()),
            ("vmap", batched.clone()),
            ("jvp", jvp(&f, &["x"]).unwrap()),
            ("hvp", hvp(&loss, "loss", &["x", "w"]).unwrap()),
        ] {
            sound(&format!("{what}: {kind}"), &f);
        }
        let both: Named = a.iter().zip(&b).map(|((n, a), (_, b))| (n.clone(), stacked(a, b))).collect();
        agree(&batched, &both, &format!("{what}, batched"));
        for (mapped, single) in [(&batched_grad, &grad), (&batched, &f)] {
            let each = [run(single, &a), run(single, &b)];
            for (i, (name, got)) in run(mapped, &both).into_iter().enumerate() {
                let want: Vec<f64> = each.iter().flat_map(|e| e[i].1.clone()).collect();
                let far = got.iter().zip(&want).any(|(x, y)| (x - y).abs() > 1e-9 * y.abs().max(1.0));
                assert!(!far && got.len() == want.len(), "{what}: {name}: {got:?}, want {want:?}");
            }
        }
    }
}

#[test]
fn shared_values_and_operands_used_twice() {
    judge("square", |_, x, w| vec![x * x, x * x + w]);
    judge("concat", |g, x, w| vec![g.concat(&[x, x, w], 0) * 2.0]);
    judge("outer", |_, x, _| vec![x.unsqueeze(1).matmul(x.unsqueeze(0))]);
    judge("ports as outputs", |_, x, w| vec![x, x, w, x * w]);
    judge("nothing of w", |_, x, w| vec![x.sin(), w.zeros_like()]);
    judge("stopped", |_, x, w| vec![x.stop_gradient().zeros_like() + w * x]);
}

#[test]
fn one_of_several_results() {
    judge("sorted", |_, x, w| {
        let [values, _] = (x + w).sort(0, false);
        vec![values * w]
    });
    judge("stack only", |g, x, w| {
        g.scan(&[x], &[w], w.dim(0), false, |c, e| (vec![c[0] * e[0]], vec![c[0]])).1
    });
    judge("state only", |g, x, w| {
        g.scan(&[x], &[w], w.dim(0), true, |c, e| (vec![c[0] * e[0]], vec![c[0]])).0
    });
    judge("one call", |g, x, w| vec![g.checkpoint(|| vec![x * w, x.exp(), w.cast(I32)])[0]]);
}

#[test]
fn state_that_is_no_float() {
    judge("count in a scan", |g, x, w| {
        let zero = g.scalar(I32, 0.0);
        let (last, ys) = g.scan(&[zero, x], &[w], w.dim(0), false, |c, e| {
            let k = c[0].cast(F64);
            (vec![c[0] + 1.0, c[1].sin() + e[0] * k], vec![c[0], c[1] * k])
        });
        last.into_iter().chain(ys).collect()
    });
    judge("count in a while", |g, x, w| {
        let n = g.scalar(I64, 3.0);
        g.while_loop(
            &[x, n, w],
            5,
            |c| c[1].greater(0.0),
            |c| {
                let k = c[1].cast(F64);
                vec![(c[0] * c[2]).sin() * k, c[1] - 1.0, c[2] * w]
            },
        )
    });
}

#[test]
fn loops_that_hardly_run() {
    judge("no turns of a scan", |g, x, w| {
        let (last, ys) = g.scan(&[x], &[], 0, false, |c, _| (vec![c[0] * w], vec![c[0] + w]));
        vec![last[0], ys[0], w.sin()]
    });
    judge("no turns of a while", |g, x, w| {
        g.while_loop(&[x], 4, |c| c[0].sum_all().greater(1e9), |c| vec![c[0] * w])
    });
    judge("a while that may not turn", |g, x, w| {
        g.while_loop(&[x], 0, |c| c[0].sum_all().greater(-1e9), |c| vec![c[0] * w])
    });
    judge("a scan of nothing", |g, x, w| g.scan(&[], &[], 2, false, |_, _| (vec![], vec![x * w])).1);
}

#[test]
fn results_that_pass_through() {
    judge("stacked as they are", |g, x, w| {
        let (last, ys) =
            g.scan(&[x, w], &[w], w.dim(0), false, |c, e| (vec![c[1], c[0]], vec![e[0], x, c[0], c[0]]));
        last.into_iter().chain(ys).collect()
    });
    judge("exchanged", |g, x, w| {
        let n = g.scalar(I32, 3.0);
        let out = g.while_loop(&[x, w, n], 5, |c| c[2].greater(0.0), |c| vec![c[1], c[0] * x, c[2] - 1.0]);
        vec![out[0], out[1]]
    });
    judge("a branch that gives its operand", |g, x, w| {
        g.cond(x.sum_all().greater(0.0), || vec![x, x * w], || vec![w, w])
    });
    judge("a call that gives its operand", |g, x, w| g.checkpoint(|| vec![x, w, x]));
}

#[test]
fn branches() {
    for limit in [-1e9, 1e9] {
        judge("captured", |g, x, w| {
            g.cond(
                x.sum_all().greater(limit),
                || vec![(x * w).exp(), x.sin()],
                || vec![w.tanh(), w.zeros_like()],
            )
        });
        judge("a loop in a branch", |g, x, w| {
            let turns = || g.scan(&[x], &[w], w.dim(0), false, |c, e| (vec![c[0] * e[0] + w], vec![])).0;
            g.cond(x.sum_all().greater(limit), turns, || vec![x * w])
        });
    }
    judge("a branch in a loop", |g, x, w| {
        let (last, ys) = g.scan(&[x], &[w], w.dim(0), false, |c, e| {
            let y = g.cond(e[0].greater(0.3), || vec![c[0] * e[0]], || vec![c[0].sin() + w]);
            (y.clone(), y)
        });
        last.into_iter().chain(ys).collect()
    });
}

#[test]
fn loops_in_loops() {
    judge("a while in a scan", |g, x, w| {
        let n = g.scalar(I32, 2.0);
        g.scan(&[x], &[w], w.dim(0), false, |c, e| {
            let y = g.while_loop(
                &[c[0], n],
                3,
                |c| c[1].greater(0.0),
                |c| vec![c[0].sin() * e[0] + w, c[1] - 1.0],
            );
            (vec![y[0]], vec![y[0] * x])
        })
        .1
    });
    judge("a scan in a while", |g, x, w| {
        let n = g.scalar(I32, 2.0);
        let out = g.while_loop(
            &[x, n],
            3,
            |c| c[1].greater(0.0),
            |c| {
                let y = g.scan(&[c[0]], &[w], w.dim(0), true, |c, e| (vec![(c[0] * e[0]).cos()], vec![])).0;
                vec![y[0] + c[0], c[1] - 1.0]
            },
        );
        vec![out[0]]
    });
    fn ask<'g>(c: &[Var<'g>]) -> Var<'g> {
        c[1].greater(0.0)
    }
    judge("a while that asks a while", |g, x, w| {
        let n = g.scalar(I32, 2.0);
        let out = g.while_loop(
            &[x, n],
            3,
            |c| g.while_loop(&[c[0], c[1]], 2, ask, |c| vec![c[0], c[1] - 1.0])[1].less(1.0).and(ask(c)),
            |c| vec![c[0] * w, c[1] - 1.0],
        );
        vec![out[0]]
    });
}

#[test]
fn checkpoints() {
    judge("in a scan", |g, x, w| {
        let (last, _) = g.scan(&[x], &[w], w.dim(0), false, |c, e| {
            (g.checkpoint(|| vec![(c[0] * e[0]).sin() * w]), vec![])
        });
        last
    });
    judge("around a scan", |g, x, w| {
        g.checkpoint(|| g.scan(&[x], &[w], w.dim(0), false, |c, e| (vec![(c[0] * e[0]).sin()], vec![])).0)
    });
    judge("in a checkpoint", |g, x, w| {
        g.checkpoint(|| {
            let a = g.checkpoint(|| vec![(x * w).sin()]);
            g.checkpoint(|| vec![a[0] * x.exp()])
        })
    });
}

#[test]
fn own_gradients() {
    // x·eʷ with the right gradient, told by hand.
    fn own<'g>(g: &'g Graph, x: Var<'g>, w: Var<'g>) -> Var<'g> {
        let forward = |a: &[Var<'g>]| vec![a[0] * a[1].exp()];
        g.with_gradient(&[x, w], forward, |a| vec![a[3] * a[1].exp(), a[3] * a[2]])[0]
    }
    judge("plain", |g, x, w| vec![own(g, x, w), own(g, w, x).sin()]);
    judge("the same twice", |g, x, _| vec![own(g, x, x)]);
    judge("in a scan", |g, x, w| {
        g.scan(&[x], &[w], w.dim(0), false, |c, e| (vec![own(g, c[0] * e[0], w)], vec![])).0
    });
    judge("in a while", |g, x, w| {
        let n = g.scalar(I32, 2.0);
        vec![g.while_loop(&[x, n], 3, |c| c[1].greater(0.0), |c| vec![own(g, c[0], w).sin(), c[1] - 1.0])[0]]
    });
}

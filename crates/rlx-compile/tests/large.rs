//! Large graphs of shapes that could take the compiler more than linear work.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx_compile::expand::Target;
use rlx_compile::rewrite::{self, UNFINISHED, rewrite};
use rlx_ir::op::Step;
use rlx_ir::{Code, DType, Dim, Func, Graph, Tensor, Type, Var};

/// A device that has a kernel for everything but what is named.
struct Without(&'static [&'static str]);

impl Target for Without {
    fn has_kernel(&self, step: &Step, _: &[Option<Type>]) -> bool {
        let text = format!("{step:?}");
        !self.0.iter().any(|s| text.starts_with(s))
    }
}

fn finish(g: &Graph) -> Func {
    g.finish().unwrap()
}

/// Rewritten to the end, with the number of nodes of that op.
fn rewritten(f: &Func) -> (Func, impl Fn(&str) -> usize + use<>) {
    let r = rewrite(f, &rewrite::Options::default()).unwrap();
    assert!(r.fired.iter().all(|f| f.0 != UNFINISHED), "{:?}", r.fired);
    let names: Vec<&str> = r.func.nodes.iter().map(|n| n.op.name).collect();
    (r.func.clone(), move |name: &str| names.iter().filter(|n| **n == name).count())
}

/// Each is flattened once, with all that it joins.
#[test]
fn a_long_chain_of_concats_becomes_one() {
    let g = Graph::new("chain");
    {
        let x = g.input("x", DType::F32, [1]);
        let mut y = x;
        for _ in 0..20_000 {
            y = g.concat(&[y, x], 0);
        }
        g.output("y", y);
    }
    let (f, count) = rewritten(&finish(&g));
    assert_eq!((f.nodes.len(), count("concat")), (1, 1));
    assert_eq!(f.nodes[0].operands.len(), 20_001);
}

/// Rules must not undo each other when no more data are folded.
#[test]
fn differences_of_more_data_than_are_folded() {
    let g = Graph::new("subs");
    {
        let mut y = g.input("x", DType::F32, [4096]);
        for k in 0..1100usize {
            let data: Vec<f32> = (0..4096).map(|i| ((i * 31 + k * 17) % 4093) as f32).collect();
            y = (y - g.constant(Tensor::new(&[4096], &data).unwrap())).sin();
        }
        g.output("y", y);
    }
    let (_, count) = rewritten(&finish(&g));
    assert_eq!((count("sub"), count("neg"), count("add")), (0, 0, 1100));
}

/// Data that begin alike are told apart by their hashes, and equal ones are merged.
#[test]
fn many_constants_that_begin_alike() {
    let g = Graph::new("constants");
    {
        let x = g.input("x", DType::F32, [64]);
        let outs: Vec<Var<'_>> = (0..4000usize)
            .map(|k| {
                let mut data = vec![1f32; 64];
                data[63] = (k / 2) as f32 + 2.0;
                (x * g.constant(Tensor::new(&[64], &data).unwrap())).cumsum(0, false, false)
            })
            .collect();
        g.output("y", g.concat(&outs, 0));
    }
    let (_, count) = rewritten(&finish(&g));
    assert_eq!((count("constant"), count("cumsum")), (2000, 2000));
}

/// Products that cannot be merged are each looked at once.
#[test]
fn many_products_of_one_value() {
    let g = Graph::new("products");
    {
        let (x, w) = (g.input("x", DType::F32, [2, 4]), g.input("w", DType::F32, [4, 3]));
        let outs: Vec<Var<'_>> = (0..4000).map(|k| x.matmul(w.sin() * (k as f64 + 2.0))).collect();
        g.output("y", g.concat(&outs, 0));
    }
    let (_, count) = rewritten(&finish(&g));
    assert_eq!(count("dot_general"), 4000);
}

/// Slices of a concat, values with many users, permutes and outputs: all the way to a program.
#[test]
fn wide_graphs_become_programs() {
    let n = 1500usize;
    let g = Graph::new("wide");
    {
        let e = g.input("x", DType::F32, [n, 2]).exp();
        let rows: Vec<Var<'_>> = (0..n)
            .map(|i| {
                let v = e.narrow(0, Dim::from(i), Dim::from(1usize));
                v.cumsum(1, false, false).permute(vec![1, 0]).cumsum(0, false, false).permute(vec![1, 0])
            })
            .collect();
        let y = g.concat(&rows, 0);
        for i in 0..n - 1 {
            g.output(&format!("y{i}"), y.narrow(0, Dim::from(i), Dim::from(2usize)).cumsum(0, false, false));
        }
    }
    let p = rlx_compile::compile(&finish(&g), &Without(&[]), &rlx_compile::Options::default()).unwrap();
    assert_eq!(p.outputs.len(), n - 1);
}

/// What a device has no kernel for, and no body either, is an error that lists all of it.
#[test]
fn every_node_that_a_device_refuses_is_listed() {
    let g = Graph::new("refused");
    {
        let x = g.input("x", DType::F32, [2, 4]);
        let [v, _] = x.sort(-1, false);
        g.output("y", v.cumsum(0, false, false).matmul(x.t()).sin());
    }
    let options = rlx_compile::Options::default();
    let f = finish(&g);
    let e =
        rlx_compile::compile(&f, &Without(&["Sort", "Running", "Scalar"]), &options).map(drop).unwrap_err();
    assert_eq!(e.code(), Code::Device);
    for word in ["3 of the nodes", "sort", "cumsum", "sin"] {
        assert!(e.to_string().contains(word), "{e} does not say {word}");
    }
    rlx_compile::compile(&f, &Without(&[]), &options).map(drop).unwrap();
}

//! Large graphs go through everything that can be done with a graph. Nothing here may grow with the square of the graph
//! or recurse along it: at these sizes the test would run for minutes, or overflow the stack.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx_ir::DType::F64;
use rlx_ir::transform::{dce, hvp, jvp, vjp, vmap};
use rlx_ir::{Dim, Func, Graph, Options, Tensor, eval, text, verify};

fn chain(n: usize) -> Func {
    let g = Graph::new("chain");
    let x = g.input("x", F64, [2]);
    let y = (0..n).fold(x, |y, i| if i % 2 == 0 { y.sin() } else { y * x });
    g.output("y", y.sum_all());
    g.finish().unwrap()
}

#[test]
fn a_chain_of_fifty_thousand_ops() {
    let f = chain(50_000);
    verify::verify(&f).unwrap();
    assert_eq!(dce(&f).unwrap(), f);
    assert_eq!(text::parse(&text::print(&f)).unwrap(), f);
    vmap(&f, &[("x", 0)], &Dim::constant(2), 0).unwrap();
    let x = Tensor::new(&[2], &[0.5, 0.7]).unwrap();
    eval(&vjp(&f, &["y"], &["x"]).unwrap(), &[("x", &x)], &Options::default()).unwrap();
    let f = chain(10_000);
    jvp(&f, &["x"]).unwrap();
    hvp(&f, "y", &["x"]).unwrap();
}

#[test]
fn composites_one_after_the_other() {
    let g = Graph::new("composites");
    let x = g.input("x", F64, [4]);
    g.output("y", (0..2_000).fold(x, |y, _| y.softmax(-1) + x).sum_all());
    let f = g.finish().unwrap();
    hvp(&f, "y", &["x"]).unwrap();
    vmap(&f, &[("x", 0)], &Dim::constant(2), 0).unwrap();
    let x = Tensor::new(&[4], &[0.1, 0.2, 0.3, 0.4]).unwrap();
    eval(&vjp(&f, &["y"], &["x"]).unwrap(), &[("x", &x)], &Options::default()).unwrap();
}

#[test]
fn many_ports_and_outputs() {
    let g = Graph::new("ports");
    let names: Vec<String> = (0..50_000).map(|i| format!("w{i}")).collect();
    let ports: Vec<_> = names.iter().map(|n| g.param(n, F64, [0i64; 0])).collect();
    names.iter().zip(&ports).for_each(|(n, p)| g.output(&format!("{n}.out"), *p));
    g.output("y", ports.iter().copied().reduce(|a, b| a + b).unwrap());
    let f = g.finish().unwrap();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let axes: Vec<(&str, i64)> = names.iter().map(|n| (*n, 0)).collect();
    vjp(&f, &["y"], &names).unwrap();
    vmap(&f, &axes, &Dim::constant(2), 0).unwrap();
    assert_eq!(text::parse(&text::print(&f)).unwrap(), f);
}

#[test]
fn a_loop_with_a_lot_of_state() {
    let g = Graph::new("state");
    let x = g.input("x", F64, [2]);
    let n = 500;
    // Each state reads the next, so that all are needed for one.
    let (last, _) = g.scan(&vec![x; n], &[], 2, false, |c, _| {
        ((0..n).map(|i| c[i].sin() + c[(i + 1) % n]).collect(), vec![])
    });
    g.output("y", last[0].sum_all());
    hvp(&g.finish().unwrap(), "y", &["x"]).unwrap();
}

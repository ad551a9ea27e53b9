//! The names that transforms take and give: what is named twice, taken, foreign or unknown is an error.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx_ir::DType::{F64, I32};
use rlx_ir::transform::{hvp, jvp, vjp, vmap};
use rlx_ir::{Code, Dim, Func, Graph, Options, Result, Tensor, eval};

fn code(f: Result<Func>) -> Code {
    f.expect_err("an error").code()
}

fn func(outputs: &[&str], inputs: &[&str]) -> Func {
    let g = Graph::new("f");
    let x = g.input("x", F64, [0i64; 0]);
    g.input("i", I32, [0i64; 0]);
    for name in inputs {
        g.input(name, F64, [0i64; 0]);
    }
    g.output("y", x * x * x);
    outputs.iter().for_each(|n| g.output(n, x * 2.0));
    g.finish().unwrap()
}

#[test]
fn what_is_named_twice_or_unknown_is_refused() {
    let f = func(&[], &[]);
    assert_eq!(code(vjp(&f, &["y"], &["x", "x"])), Code::Gradient);
    assert_eq!(code(vjp(&f, &["y", "y"], &["x"])), Code::Gradient);
    assert_eq!(code(jvp(&f, &["x", "x"])), Code::Gradient);
    assert_eq!(code(hvp(&f, "y", &["x", "x"])), Code::Gradient);
    assert_eq!(code(vmap(&f, &[("x", 0), ("x", 0)], &Dim::constant(2), 0)), Code::Vmap);
    for e in [vjp(&f, &["y"], &["i"]), jvp(&f, &["i"]), hvp(&f, "y", &["i"])] {
        assert_eq!(code(e), Code::Gradient);
    }
    for e in [vjp(&f, &["z"], &["x"]), vjp(&f, &["y"], &["z"]), jvp(&f, &["z"]), hvp(&f, "z", &["x"])] {
        assert_eq!(code(e), Code::UnknownName);
    }
}

#[test]
fn names_that_are_taken_are_refused() {
    assert_eq!(code(vjp(&func(&["grad.x"], &[]), &["y"], &["x"])), Code::Name);
    assert_eq!(code(jvp(&func(&["tan.y"], &[]), &["x"])), Code::Name);
    assert_eq!(code(jvp(&func(&[], &["tan.x"]), &["x"])), Code::Name);
    assert_eq!(code(hvp(&func(&[], &["vec.x"]), "y", &["x"])), Code::Name);
    assert_eq!(code(hvp(&func(&["hvp.x"], &[]), "y", &["x"])), Code::Name);
}

#[test]
fn the_outputs_of_a_graph_keep_their_names() {
    let f = func(&["grad.z", "first.x", "hvp.dot"], &[]);
    let h = hvp(&f, "y", &["x"]).unwrap();
    let names: Vec<&str> = h.outputs.iter().map(|o| o.name.as_str()).collect();
    assert_eq!(names, ["y", "grad.z", "first.x", "hvp.dot", "grad.x", "hvp.x"]);
    let (x, v, i) = (Tensor::scalar(2.0), Tensor::scalar(1.0), Tensor::scalar(0i32));
    let out = eval(&h, &[("x", &x), ("vec.x", &v), ("i", &i)], &Options::default()).unwrap();
    let values: Vec<f64> = out.iter().map(|(_, a)| a.f64s()[0]).collect();
    assert_eq!(values, [8.0, 4.0, 4.0, 4.0, 12.0, 12.0]);
}

#[test]
fn gradients_come_in_the_order_asked_for() {
    let g = Graph::new("order");
    let (a, b) = (g.input("a", F64, [2]), g.input("b", F64, [2]));
    g.output("y", (a * b).sum_all());
    let f = vjp(&g.finish().unwrap(), &["y"], &["b", "a"]).unwrap();
    let names: Vec<&str> = f.outputs.iter().map(|o| o.name.as_str()).collect();
    assert_eq!(names, ["y", "grad.b", "grad.a"]);
}

#[test]
fn values_of_another_graph_have_no_gradient_here() {
    let (a, b) = (Graph::new("a"), Graph::new("b"));
    let (x, z) = (a.input("x", F64, [0i64; 0]), b.input("x", F64, [0i64; 0]));
    a.output("y", x * x);
    b.output("y", z * z);
    assert_eq!(code(a.vjp(z, &[x])), Code::UnknownName);
    assert_eq!(code(a.vjp(x, &[x])), Code::UnknownName, "x is no output");
    let y = x * 2.0;
    a.output("z", y);
    assert_eq!(code(a.vjp(y, &[z])), Code::UnknownName);
    a.vjp(y, &[x]).unwrap();
}

//! Regions through the builder: what a closure writes is in its region, and errors in it are neither lost nor panics.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx_ir::DType::{F32, F64, I32};
use rlx_ir::func::{PortKind, Source};
use rlx_ir::transform::vjp;
use rlx_ir::{Code, Func, Graph, Options, Tensor, Type, dim, eval};

const SCALAR: [i64; 0] = [];

fn ops(f: &Func) -> Vec<&str> {
    f.nodes.iter().map(|n| n.op.name).collect()
}

#[test]
fn what_a_closure_makes_of_outer_values_is_in_the_region() {
    let g = Graph::new("inside");
    let x = g.input("x", F64, [3]);
    let y = g.checkpoint(|| vec![(x * x).exp()]);
    g.output("y", y[0]);
    let f = g.finish().unwrap();
    assert_eq!(ops(&f), ["call"]);
    assert_eq!(ops(&f.nodes[0].regions[0]), ["mul", "exp"]);
}

#[test]
fn the_gradient_of_a_checkpoint_keeps_only_its_operands() {
    let g = Graph::new("kept");
    let x = g.input("x", F64, [3]);
    let y = g.checkpoint(|| vec![(x * x).exp().sin()]);
    g.output("loss", y[0].sum_all());
    let f = vjp(&g.finish().unwrap(), &["loss"], &["x"]).unwrap();
    let fence = f.nodes.iter().find(|n| n.op.name == "barrier").unwrap();
    assert_eq!(fence.operands[0], Some(f.ports[0].value), "x itself, not what was computed from it");
    assert!(!ops(&f).contains(&"exp"));
}

#[test]
fn the_branch_not_taken_does_not_spoil_the_gradient() {
    // 1/x outside of the region would have the gradient 0·∞ at 0.
    let g = Graph::new("guarded");
    let x = g.input("x", F64, SCALAR);
    let y = g.cond(x.greater(0.0), || vec![x.sqrt().recip()], || vec![x * 3.0]);
    g.output("y", y[0]);
    let f = vjp(&g.finish().unwrap(), &["y"], &["x"]).unwrap();
    let out = eval(&f, &[("x", &Tensor::scalar(0.0))], &Options::default()).unwrap();
    assert_eq!((out[0].1.f64s(), out[1].1.f64s()), (vec![0.0], vec![3.0]));
}

#[test]
fn a_value_does_not_leave_its_region() {
    let g = Graph::new("leak");
    let x = g.input("x", F64, [2]);
    let mut leaked = None;
    g.checkpoint(|| {
        leaked = Some(x * x);
        vec![x]
    });
    g.output("y", leaked.unwrap() + x);
    assert_eq!(g.finish().unwrap_err().code(), Code::Foreign);
}

#[test]
fn ports_and_outputs_do_not_belong_in_regions() {
    let g = Graph::new("port");
    let x = g.input("x", F64, [2]);
    g.checkpoint(|| vec![x + g.input("y", F64, [2])]);
    assert_eq!(g.finish().unwrap_err().code(), Code::Region);

    let g = Graph::new("output");
    let x = g.input("x", F64, [2]);
    g.checkpoint(|| {
        g.output("y", x);
        vec![x]
    });
    assert_eq!(g.finish().unwrap_err().code(), Code::Region);

    let g = Graph::new("unfinished");
    let x = g.input("x", F64, [2]);
    g.checkpoint(|| {
        assert_eq!(g.finish().unwrap_err().code(), Code::Region);
        vec![x]
    });
}

#[test]
fn errors_leave_handles_to_index() {
    let g = Graph::new("poisoned");
    let x = g.input("x", F64, [2]);
    let bad = x + g.input("y", F64, [3]);
    let line = line!() - 1;
    let (last, ys) = g.scan(&[x, bad], &[x], 2, false, |c, e| (vec![c[0], c[1]], vec![e[0], c[0]]));
    let sides = g.cond(bad.sum_all().greater(0.0), || vec![x, x], || vec![x, bad]);
    let turns = g.while_loop(&[bad, x], 2, |c| c[0].sum_all().greater(0.0), |c| vec![c[1], c[0]]);
    let own = g.with_gradient(&[x, bad], |a| vec![a[0], a[1]], |a| vec![a[4], a[5]]);
    let sum = last[1] + ys[1] + sides[1] + turns[1] + own[1] + g.checkpoint(|| vec![x, bad])[1];
    g.output("sum", sum);
    assert_eq!(g.errors().len(), 1, "{:?}", g.errors());
    let e = g.finish().unwrap_err();
    assert_eq!(e.code(), Code::Broadcast);
    assert!(e.to_string().contains(&format!("regions.rs:{line}:")), "{e}");
}

#[test]
fn a_region_that_does_not_fit_is_an_error_not_a_panic() {
    let g = Graph::new("fit");
    let x = g.input("x", F64, [2]);
    // Too few states, and states of other types.
    let (last, _) = g.scan(&[x, x], &[], 2, false, |c, _| (vec![c[0]], vec![]));
    g.output("a", last[1]);
    let turns = g.while_loop(&[x, x], 2, |c| c[0].sum_all(), |c| vec![c[0], c[1]]);
    g.output("b", turns[1]);
    let sides = g.cond(x.sum_all().greater(0.0), || vec![x, x], || vec![x]);
    g.output("c", sides[1]);
    let codes: Vec<Code> = g.errors().iter().map(|e| e.code()).collect();
    assert_eq!(codes, [Code::Region; 3]);
}

#[test]
fn an_error_in_a_value_that_nobody_uses_is_reported() {
    let g = Graph::new("unused");
    let x = g.input("x", F64, [2]);
    let y = g.checkpoint(|| {
        let _unused = x.reshape([3]);
        vec![x + 1.0]
    });
    g.output("y", y[0]);
    assert_eq!(g.finish().unwrap_err().code(), Code::Reshape);
}

#[test]
fn a_missing_value_is_an_error() {
    let g = Graph::new("nothing");
    g.output("y", g.poison());
    assert!(g.finish().is_err());

    let (a, b) = (Graph::new("a"), Graph::new("b"));
    let bad = a.input("x", F64, [2]).reshape([3]);
    b.output("y", bad);
    assert_eq!(b.finish().unwrap_err().code(), Code::Foreign);
}

#[test]
fn names_inside_a_region_do_not_meet_those_of_captures() {
    let g = Graph::new("names");
    let x = g.input("x", F64, [2]);
    let y = g.scan(&[x], &[], 2, false, |c, _| (vec![(c[0] * c[0]).named("cap0") + x], vec![])).0;
    g.output("y", y[0].named("c0"));
    rlx_ir::verify::verify(&g.finish().unwrap()).unwrap();
}

#[test]
fn many_values_of_one_name_get_numbers() {
    let g = Graph::new("numbered");
    let x = g.input("x", F64, [2]);
    let last = (0..20_000).fold(x, |y, _| (y + x).named("y"));
    g.output("last", last);
    let f = g.finish().unwrap();
    assert_eq!(f.values.last().unwrap().name.as_deref(), Some("y.19999"));
}

#[test]
fn a_copy_needs_an_argument_for_each_port() {
    let g = Graph::new("f");
    let x = g.input("x", F64, [2]);
    g.output("y", x + g.input("z", F64, [2]));
    let f = g.finish().unwrap();
    let h = Graph::new("h");
    let x = h.input("x", F64, [2]);
    assert_eq!(h.inline(&f, &[x]).err().unwrap().code(), Code::Operands);
    let bad = x.reshape([3]);
    h.output("y", h.inline(&f, &[x, bad]).unwrap()[0]);
    assert_eq!(h.finish().unwrap_err().code(), Code::Reshape);
}

#[test]
fn marks_sources_and_bounds_are_checked_by_the_builder() {
    let g = Graph::new("marks");
    g.input("i", I32, [2]).set_diff(true);
    assert_eq!(g.finish().unwrap_err().code(), Code::Gradient);

    let g = Graph::new("source");
    let data = Tensor::new(&[1], &[1f32]).unwrap();
    g.port("x", Type::new(F32, vec![1.into()]), PortKind::Input, Some(Source::Inline(data)));
    assert_eq!(g.finish().unwrap_err().code(), Code::BadInput);

    let g = Graph::new("bounds");
    g.input("x", F32, [dim("n", 4)]);
    g.input("y", F32, [dim("n", 8)]);
    assert_eq!(g.finish().unwrap_err().code(), Code::Symbol);
}

//! Errors of the builder: the code, the op, the operand, the axis, the constraint and the caller's line.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx_ir::{Code, DType::*, Dim, Graph, Loc, dim};

#[test]
fn a_mismatched_matmul_never_gets_past_the_builder() {
    let g = Graph::new("bad");
    let x = g.input("x", F32, [1, 4]);
    let y = g.input("y", F32, [5, 2]);
    let line = line!() + 1;
    let z = x.matmul(y);
    assert!(z.is_poison());
    // What is built on it stays poisoned, and adds no errors of its own.
    g.output("z", (z + 1.0).relu());
    assert_eq!(g.errors().len(), 1);
    let e = g.finish().unwrap_err();
    assert_eq!(e.code(), Code::Dim);
    assert_eq!(e.op(), Some("matmul"));
    assert_eq!((e.bad_operand(), e.bad_axis()), (Some("y"), Some(0)));
    assert!(e.bad_constraint().is_some());
    let Loc::Rust(at) = e.loc() else { panic!("no place in {e}") };
    assert_eq!((at.file(), at.line()), (file!(), line));
    let text = e.to_string();
    for part in ["E0101", "axis 0 of y is 5, but axis 1 of x is 4", "x: f32[1, 4]", "y: f32[5, 2]"] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}

#[test]
fn the_line_is_the_callers_through_operators_and_regions() {
    let g = Graph::new("lines");
    let x = g.input("x", F32, [2]);
    let y = g.input("y", F32, [3]);
    let operator = line!() + 1;
    let _ = x + y;
    let inside = line!() + 2;
    g.scan(&[x], &[], 3, false, |c, _| {
        let bad = c[0] * y;
        (vec![bad], vec![])
    });
    let lines: Vec<u32> = g
        .errors()
        .iter()
        .filter_map(|e| if let Loc::Rust(l) = e.loc() { Some(l.line()) } else { None })
        .collect();
    assert_eq!(lines, [operator, inside]);
}

#[test]
fn absurd_shapes_are_refused_where_they_are_declared() {
    let refused = |shape: Vec<Dim>| {
        let g = Graph::new("absurd");
        g.input("x", F32, shape);
        g.finish().unwrap_err().code()
    };
    assert_eq!(refused(vec![i64::MAX.into(), 2.into()]), Code::Size);
    assert_eq!(refused(vec![0.into(), i64::MAX.into(), i64::MAX.into()]), Code::Size);
    assert_eq!(refused(vec![1.into(); 33]), Code::Size);
    assert_eq!(refused(vec![(-1).into()]), Code::Size);
    assert_eq!(refused(vec![dim("n", i64::MAX) * dim("m", 3)]), Code::Size);
    assert_eq!(refused(vec![dim("bad name", 3)]), Code::Size);
}

#[test]
fn dtypes_do_not_mix() {
    let g = Graph::new("mixed");
    let x = g.input("x", F32, [2]);
    let y = g.input("y", F16, [2]);
    let _ = x * y;
    let e = g.finish().unwrap_err();
    assert_eq!((e.code(), e.bad_operand()), (Code::DType, Some("y")));
    // A number that the dtype cannot hold is refused, not rounded.
    let g = Graph::new("fraction");
    let i = g.input("i", I32, [2]);
    let _ = i + 0.5;
    assert_eq!(g.finish().unwrap_err().code(), Code::DType);
}

#[test]
fn names_are_checked() {
    let twice = Graph::new("twice");
    twice.input("x", F32, [1]);
    twice.input("x", F32, [1]);
    assert_eq!(twice.finish().unwrap_err().code(), Code::Name);
    let odd = Graph::new("odd");
    odd.input("a b", F32, [1]);
    assert_eq!(odd.finish().unwrap_err().code(), Code::Name);
}

#[test]
fn gradients_that_do_not_exist_are_refused() {
    let g = Graph::new("g");
    let x = g.input("x", F32, [2]);
    let t = g.input("t", I32, [2]);
    g.output("y", x.sum_all());
    g.output("t", t + t);
    let f = g.finish().unwrap();
    let code = |outputs: &[&str], wrt: &[&str]| rlx_ir::transform::vjp(&f, outputs, wrt).unwrap_err().code();
    assert_eq!(code(&["y"], &["t"]), Code::Gradient);
    assert_eq!(code(&["t"], &["x"]), Code::Gradient);
    assert_eq!(code(&["y"], &["z"]), Code::UnknownName);
    assert_eq!(code(&["z"], &["x"]), Code::UnknownName);
    let map =
        |axes: &[(&str, i64)], out| rlx_ir::transform::vmap(&f, axes, &2.into(), out).unwrap_err().code();
    assert_eq!(map(&[("x", 5)], 0), Code::Vmap);
    assert_eq!(map(&[("x", 0)], 9), Code::Vmap);
    assert_eq!(map(&[("q", 0)], 0), Code::UnknownName);
}

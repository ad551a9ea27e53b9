//! Products and indexing against values worked out by hand.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx_ir::ops::scatter::ScatterMode;
use rlx_ir::{DType, Graph, Options, Tensor, Var, dim, eval};

fn f(shape: &[usize], v: &[f32]) -> Tensor {
    Tensor::new(shape, v).unwrap()
}
fn i(shape: &[usize], v: &[i32]) -> Tensor {
    Tensor::new(shape, v).unwrap()
}

/// Applies a function of constants and gives the elements of its result.
fn run<const N: usize>(args: [Tensor; N], op: impl for<'g> Fn([Var<'g>; N]) -> Var<'g>) -> Vec<f64> {
    let g = Graph::new("test");
    let vars = args.map(|t| g.constant(t));
    g.output("y", op(vars));
    eval(&g.finish().unwrap(), &[], &Options::default()).unwrap()[0].1.f64s()
}

#[test]
fn a_matmul_that_does_not_fit_names_the_axis() {
    let g = Graph::new("bad");
    let x = g.input("x", DType::F32, [1, 4]);
    let w = g.param("w", DType::F32, [5, 2]);
    let y = x.matmul(w);
    assert!(y.is_poison());
    let e = g.finish().unwrap_err();
    assert_eq!(e.code().id(), "E0101");
    assert_eq!(e.message(), "axis 0 of y is 5, but axis 1 of x is 4");
    assert_eq!((e.bad_operand(), e.bad_axis(), e.bad_constraint()), (Some("y"), Some(0), Some(2)));
}

#[test]
fn matmul_keeps_symbols() {
    let g = Graph::new("symbols");
    let (b, s) = (dim("b", 8), dim("s", 512));
    let x = g.input("x", DType::F32, [b.clone(), s.clone(), 4.into()]);
    let w = g.param("w", DType::F32, [4, 6]);
    assert_eq!(x.matmul(w).shape(), [b.clone(), s.clone(), 6.into()]);
    assert_eq!(x.matmul(x.t()).shape(), [b.clone(), s.clone(), s.clone()]);
    assert!(g.errors().is_empty());
}

#[test]
fn matmul_broadcasts() {
    let x = f(&[2, 1, 1, 2], &[1., 2., 3., 4.]);
    let y = f(&[2, 2, 1], &[1., 10., 2., 20.]);
    assert_eq!(run([x, y], |[x, y]| x.matmul(y)), [21., 42., 43., 86.]);
    let (row, m) = (f(&[2], &[1., 2.]), f(&[2, 2, 1], &[1., 10., 2., 20.]));
    assert_eq!(run([row, m], |[x, y]| x.matmul(y)), [21., 42.]);
}

#[test]
fn gather_reads_from_the_end_and_nothing_outside() {
    let x = f(&[3, 2], &[1., 2., 3., 4., 5., 6.]);
    let y = run([x.clone(), i(&[4], &[-1, 3, 0, -4])], |[x, i]| x.gather(i, 0));
    assert_eq!(y, [5., 6., 0., 0., 1., 2., 0., 0.]);
    let y = run([x.clone(), i(&[1, 2], &[2, 1])], |[x, i]| x.gather_elements(i, 0));
    assert_eq!(y, [5., 4.]);
    let y = run([x, i(&[3, 2], &[0, 1, -1, -1, 3, 0])], |[x, i]| x.gather_nd(i, 0));
    assert_eq!(y, [2., 6., 0.]);
}

#[test]
fn scatter_combines_in_order() {
    let x = || f(&[3], &[1., 2., 3.]);
    let (at, u) = (|| i(&[4], &[0, 2, 0, 7]), || f(&[4], &[5., -1., 4., 9.]));
    let go = |mode| run([x(), at(), u()], |[x, i, u]| x.scatter(i, u, 0, mode));
    assert_eq!(go(ScatterMode::Set), [4., 2., -1.]);
    assert_eq!(go(ScatterMode::Add), [10., 2., 2.]);
    assert_eq!(go(ScatterMode::Max), [5., 2., 3.]);
    assert_eq!(go(ScatterMode::Min), [1., 2., -1.]);
    assert_eq!(go(ScatterMode::Mul), [20., 2., -3.]);
}

#[test]
fn dynamic_slices_are_moved_inside() {
    let x = f(&[2, 3], &[1., 2., 3., 4., 5., 6.]);
    let starts = || [i(&[], &[5]), i(&[], &[-3])];
    let [a, b] = starts();
    let y = run([x.clone(), a, b], |[x, a, b]| x.dynamic_slice(&[a, b][..], [1, 2]));
    assert_eq!(y, [4., 5.]);
    let [a, b] = starts();
    let y = run([x, f(&[1, 2], &[8., 9.]), a, b], |[x, u, a, b]| x.dynamic_update_slice(u, &[a, b][..]));
    assert_eq!(y, [1., 2., 3., 8., 9., 6.]);
}

/// Every sample of these files evaluates to what its shape rule says (the oracle checks it).
#[test]
fn samples_evaluate() {
    let mine = ["dot", "linear", "gather", "scatter", "sort", "conv", "window", "pool", "fft"];
    let files =
        rlx_ir::ops::all().iter().filter(|d| mine.iter().any(|m| d.file.ends_with(&format!("/{m}.rs"))));
    for def in files {
        for s in def.sample_list() {
            let rlx_ir::sample::SampleKind::Op { args, attrs } = s.what else { continue };
            let g = Graph::new("sample");
            let make =
                |(k, a): (usize, rlx_ir::sample::Arg)| g.constant(a.tensor(DType::F32, k as u64).unwrap());
            let vars = args.into_iter().enumerate().map(|(k, a)| a.map(|a| make((k, a)))).collect();
            for (k, v) in g.emit(def, attrs, vars, vec![]).into_iter().enumerate() {
                g.output(&format!("y{k}"), v);
            }
            let f = g.finish().unwrap_or_else(|e| panic!("{}/{}: {e}", def.name, s.name));
            eval(&f, &[], &Options::default()).unwrap_or_else(|e| panic!("{}/{}: {e}", def.name, s.name));
        }
    }
}

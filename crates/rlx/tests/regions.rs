//! Fused regions where sizes put them into another form: values stored once or once per row, reductions by columns of every
//! dtype, rows cut into parts, spaces without elements.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use common::options;
use rlx::{DType, Device, Executable, Func, Graph, Outputs, Tensor, dim, text};

fn compiled(f: &Func, threads: usize) -> Executable {
    rlx::compile_with(f, Device::Cpu, &options(threads)).unwrap_or_else(|e| panic!("{e}"))
}

/// Numbers that no dtype rounds, from `low` on.
fn tensor(dtype: DType, shape: &[usize], low: i64, high: i64) -> Tensor {
    let n: usize = shape.iter().product();
    let span = (high - low + 1) as usize;
    let values: Vec<f64> = (0..n).map(|i| (low + (i * 7 % span) as i64) as f64).collect();
    Tensor::from_f64s(dtype, shape, &values).unwrap()
}

/// Runs a graph that has inputs only, several times and with several threads, against the oracle. Exactly, for integers.
fn agrees(f: &Func, data: &[(&str, &Tensor)]) {
    let want = rlx::eval(f, data, &rlx::Options::default()).unwrap();
    for threads in [1, 2, 3] {
        let e = compiled(f, threads);
        for _ in 0..2 {
            let got = e.run(data).unwrap();
            for (name, want) in &want {
                let tol = if matches!(want.dtype(), DType::F16 | DType::BF16) { 1e-2 } else { 1e-5 };
                rlx_conformance::device::agree(want, &got[name.as_str()], tol, 0.0)
                    .unwrap_or_else(|e| panic!("{}: {name} with {threads} threads: {e}", f.name));
            }
        }
    }
}

#[test]
fn a_number_computed_behind_a_product_is_stored() {
    let g = Graph::new("number");
    let x = g.input("x", DType::F32, [dim("b", 64), 8.into()]);
    let w = g.input("w", DType::F32, [8, 24]);
    let s = g.input("s", DType::F32, [0i64; 0]);
    let e = s.exp();
    g.output("z", x.matmul(w) * e);
    g.output("e", e);
    let f = g.finish().unwrap();
    let (w, s) = (tensor(DType::F32, &[8, 24], -3, 3), Tensor::new(&[], &[0.5f32]).unwrap());
    for b in [33, 1, 0] {
        agrees(&f, &[("x", &tensor(DType::F32, &[b, 8], -3, 3)), ("w", &w), ("s", &s)]);
    }
}

/// One number per row, which is one number in all where there is one row.
#[test]
fn a_number_per_row_computed_behind_a_product_is_stored() {
    for columns in [1, 24, 3000] {
        let g = Graph::new("rows");
        let x = g.input("x", DType::F32, [dim("b", 400), 4.into()]);
        let w = g.input("w", DType::F32, [4, columns]);
        let e = g.input("r", DType::F32, [dim("b", 400), 1.into()]).exp();
        g.output("z", x.matmul(w) + e);
        g.output("e", e);
        let f = g.finish().unwrap();
        let w = tensor(DType::F32, &[4, columns as usize], -3, 3);
        for b in [1, 2, 400, 0] {
            let (x, r) = (tensor(DType::F32, &[b, 4], -3, 3), tensor(DType::F32, &[b, 1], -3, 3));
            agrees(&f, &[("x", &x), ("w", &w), ("r", &r)]);
        }
    }
}

/// Where everything is one element, a result may be stored where something was read that another one needs.
#[test]
fn one_element_behind_a_product_replaces_nothing_too_early() {
    let g = Graph::new("one");
    let x = g.input("x", DType::F32, [dim("n", 8), 1.into()]);
    let w = g.input("w", DType::F32, [1, 1]);
    let r = x.cumsum(0, false, false);
    let e = r.tanh();
    let z = x.matmul(w) + e;
    g.output("e", e);
    g.output("s", z.sin().cumsum(0, false, false));
    let f = g.finish().unwrap();
    for n in [1, 8] {
        let x = tensor(DType::F32, &[n, 1], 1, 3);
        agrees(&f, &[("x", &x), ("w", &tensor(DType::F32, &[1, 1], 2, 3))]);
    }
}

/// A product of no columns still has rows, and what is computed once per row is stored.
#[test]
fn rows_of_a_product_without_columns_are_stored() {
    let g = Graph::new("none");
    let x = g.input("x", DType::F32, [5, 4]);
    let w = g.input("w", DType::F32, [4.into(), dim("n", 8)]);
    let e = g.input("r", DType::F32, [5, 1]).exp();
    let z = x.matmul(w) + e;
    g.output("e", e);
    g.output("sum", z.sum([1], false));
    g.output("z", z);
    let f = g.finish().unwrap();
    let (x, r) = (tensor(DType::F32, &[5, 4], -3, 3), tensor(DType::F32, &[5, 1], -3, 3));
    for n in [0, 8] {
        agrees(&f, &[("x", &x), ("w", &tensor(DType::F32, &[4, n], -3, 3)), ("r", &r)]);
    }
}

#[test]
fn a_number_computed_behind_a_reduction_by_columns_is_stored() {
    let g = Graph::new("columns");
    let x = g.input("x", DType::F32, [64, 32]);
    let e = g.input("s", DType::F32, [0i64; 0]).exp();
    g.output("z", x.sum([0], false) * e);
    g.output("e", e);
    let f = g.finish().unwrap();
    let s = Tensor::new(&[], &[0.5f32]).unwrap();
    agrees(&f, &[("x", &tensor(DType::F32, &[64, 32], -9, 9)), ("s", &s)]);
}

/// Every fold of every dtype over columns: with few rows and with more than a tile of them, with one part and with many.
#[test]
fn columns_of_every_dtype_reduce() {
    use DType::*;
    for (lanes, columns) in [(5, 17), (64, 32), (200, 1100), (2, 3000)] {
        for dtype in [F32, F64, F16, BF16, I8, I16, I32, I64, U8, U16, U32, U64] {
            let (low, high) = match dtype {
                U8 | U16 | U32 | U64 => (1, 100),
                _ => (-100, -50),
            };
            let x = tensor(dtype, &[lanes, columns], low, high);
            for op in ["sum", "max", "min"] {
                let text = format!(
                    "graph {op}_{dtype} {{\n  input x: {dtype}[{lanes},{columns}]\n  y = {op}(x) {{axes: [0]}}\n  output y = y\n}}\n"
                );
                let f = text::parse(&text).unwrap_or_else(|e| panic!("{text}{e}"));
                agrees(&f, &[("x", &x)]);
            }
        }
        for op in ["any", "all"] {
            let text = format!(
                "graph {op} {{\n  input x: bool[{lanes},{columns}]\n  y = {op}(x) {{axes: [0]}}\n  output y = y\n}}\n"
            );
            let f = text::parse(&text).unwrap_or_else(|e| panic!("{text}{e}"));
            for (low, high) in [(0, 0), (1, 1), (0, 1)] {
                agrees(&f, &[("x", &tensor(Bool, &[lanes, columns], low, high))]);
            }
        }
    }
}

/// The extremes of integers that an f64 does not hold.
#[test]
fn columns_of_extremes_reduce() {
    let text = "graph ends {\n  input a: i64[64,32]\n  input b: u64[64,32]\n  p = min(a) {axes: [0]}\n  q = max(a) {axes: [0]}\n  r = min(b) {axes: [0]}\n  s = max(b) {axes: [0]}\n  output p = p\n  output q = q\n  output r = r\n  output s = s\n}\n";
    let f = text::parse(text).unwrap();
    for k in [0, 5] {
        let a = Tensor::new(&[64, 32], &[i64::MAX - k; 2048]).unwrap();
        let b = Tensor::new(&[64, 32], &[u64::MAX - k as u64; 2048]).unwrap();
        let out = compiled(&f, 1).run(&[("a", &a), ("b", &b)]).unwrap();
        for name in ["p", "q"] {
            assert_eq!(out[name].to_vec::<i64>().unwrap(), [i64::MAX - k; 32], "{name}");
        }
        for name in ["r", "s"] {
            assert_eq!(out[name].to_vec::<u64>().unwrap(), [u64::MAX - k as u64; 32], "{name}");
        }
    }
}

/// Row 0 has the same bits however many rows stand beside it.
#[test]
fn rows_beside_do_not_change_a_reduction() {
    let bits = |out: &Outputs, n: usize| out["y"].bytes()[..4 * n].to_vec();
    let wave = |n: usize| (0..n).map(|i| (i as f32 * 0.37).sin()).collect::<Vec<f32>>();
    let g = Graph::new("long");
    let x = g.input("x", DType::F32, [dim("b", 40), 300_000.into()]);
    g.output("y", x.sum([1], false));
    let e = compiled(&g.finish().unwrap(), 2);
    let run = |b: usize| {
        let one = wave(300_000);
        bits(&e.run(&[("x", &Tensor::new(&[b, 300_000], &one.repeat(b)).unwrap())]).unwrap(), 1)
    };
    let want = run(1);
    for b in [2, 15, 16, 40] {
        assert_eq!(run(b), want, "{b} rows");
    }
    let g = Graph::new("tall");
    let x = g.input("x", DType::F32, [dim("b", 600), 300.into(), 32.into()]);
    g.output("y", (x * 1.5).sum([1], false));
    let e = compiled(&g.finish().unwrap(), 2);
    let run = |b: usize| {
        let one = wave(300 * 32);
        bits(&e.run(&[("x", &Tensor::new(&[b, 300, 32], &one.repeat(b)).unwrap())]).unwrap(), 32)
    };
    let want = run(1);
    for b in [2, 33, 600] {
        assert_eq!(run(b), want, "{b} columns");
    }
}

/// Nothing is to be done, and nothing is done a thousand million times.
#[test]
fn spaces_without_elements_take_no_time() {
    let g = Graph::new("empty");
    let x = g.input("x", DType::F32, [dim("b", 1 << 40), 0.into()]);
    g.output("y", x.softmax(-1));
    let a = g.input("a", DType::F32, [dim("b", 1 << 40), 0.into(), 4.into()]);
    let w = g.input("w", DType::F32, [dim("b", 1 << 40), 4.into(), 0.into()]);
    g.output("z", a.matmul(w).tanh());
    let e = compiled(&g.finish().unwrap(), 2);
    let b = 3_000_000_000;
    let of = |shape: &[usize]| Tensor::new(shape, &[0f32; 0]).unwrap();
    let out = e.run(&[("x", &of(&[b, 0])), ("a", &of(&[b, 0, 4])), ("w", &of(&[b, 4, 0]))]).unwrap();
    assert_eq!((out["y"].shape(), out["z"].shape()), (&[b, 0][..], &[b, 0, 0][..]));
}

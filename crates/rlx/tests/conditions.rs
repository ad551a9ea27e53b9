//! Constraints that could not be proven while sizes were symbols are checked when they are bound, as the oracle does it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use common::{Model, agrees, options};
use rlx::condition::{Condition, Demand, conditions};
use rlx::{Bindings, Code, Device, Loc, dim, text};
use rlx_conformance::models;

/// Bodies of graphs with `x: f32[4, n]`, n up to 9, and the values of n at which they are errors.
const GRAPHS: &[(&str, &str, &[i64])] = &[
    ("slice", "y = slice(x) {start: [0, 0], stop: [2, 3], step: [1, 1]} output y = y", &[0, 1, 2]),
    ("slice", "y = slice(x) {start: [0, n - 3], stop: [2, n], step: [1, 1]} output y = y", &[0, 1, 2]),
    ("slice", "y = slice(x) {start: [0, 2], stop: [2, n], step: [1, 3]} output y = y", &[0, 1]),
    (
        "slice",
        "z = slice(x) {start: [0, 0], stop: [4, 5], step: [1, 1]}
         y = slice(z) {start: [0, 0], stop: [4, 2], step: [1, 1]} output y = y",
        &[0, 1, 2, 3, 4],
    ),
    ("slice", "y = slice(x) {start: [0, 0], stop: [2, 3], step: [1, 1]} output z = x", &[0, 1, 2]),
    (
        "pad",
        "z = constant() {value: f32[] 0} y = pad(x, z) {lo: [1, n - 3], hi: [0, 3], interior: [0, 0]} output y = y",
        &[0, 1, 2],
    ),
    (
        "pad",
        "z = constant() {value: f32[] 0} y = pad(x, z) {lo: [1, 0], hi: [0, n - 2], interior: [0, 0]} output y = y",
        &[0, 1],
    ),
    ("size_of", "s = size_of() {value: n - 4, dtype: f32} y = mul(x, s) output y = y", &[0, 1, 2, 3]),
    ("iota", "y = iota() {shape: [n - 1], axis: 0, dtype: i32} output y = y", &[0]),
    ("pad_mode", "y = pad_mode(x) {lo: [0, 1], hi: [0, 0], mode: edge} output y = y", &[0]),
    ("pad_mode", "y = pad_mode(x) {lo: [0, 1], hi: [0, 2], mode: reflect} output y = y", &[0, 1, 2]),
    ("pad_mode", "y = pad_mode(x) {lo: [0, 3], hi: [0, 0], mode: wrap} output y = y", &[0, 1, 2]),
    ("top_k", "v, i = top_k(x) {k: 3} output v = v", &[0, 1, 2]),
    ("rfft", "y = rfft(x) output y = y", &[0]),
    ("split", "a, b = split(x) {axis: 1, sizes: [2, n - 2]} output a = a output b = b", &[0, 1]),
    (
        "dynamic_slice",
        "k = constant() {value: i64[] 1} y = dynamic_slice(x, k, k) {sizes: [2, 2]} output y = y",
        &[0, 1],
    ),
    ("reduce_window", "y = reduce_window(x) {kind: max, kernel: [1, 3]} output y = y", &[0, 1, 2]),
    (
        "slice",
        "p = constant() {value: bool[] false}
         y = if(p, x) then (a: f32[4, n]) {
             b = slice(a) {start: [0, 0], stop: [4, 3], step: [1, 1]} yield r0 = b
         } else (a: f32[4, n]) {
             z = constant() {value: f32[] 1} b = broadcast(z) {shape: [4, 3]} yield r0 = b
         } output y = y",
        &[0, 1, 2],
    ),
];

#[test]
fn sizes_that_break_a_constraint_are_errors_that_name_the_op() {
    let options = options(2);
    for (op, body, wrong) in GRAPHS {
        let f = text::parse(&format!("graph t {{ dim n <= 9 input x: f32[4, n] {body} }}")).unwrap();
        let e = rlx::compile_with(&f, Device::Cpu, &options).unwrap();
        let plain = rlx::CompileOptions { rewrite: false, fuse: false, ..options.clone() };
        let plain = rlx::compile_with(&f, Device::Cpu, &plain).unwrap();
        for n in 0..=9 {
            let data = models::data(&f, &[("n", n)], 7).unwrap();
            let inputs: Vec<_> = data.iter().map(|(n, t)| (n.as_str(), t)).collect();
            let oracle = rlx::eval(&f, &inputs, &rlx::Options::default());
            if wrong.contains(&n) {
                let want = oracle.expect_err(body);
                for got in [&e, &plain].map(|e| e.run(&inputs).expect_err(body)) {
                    assert_eq!((got.code(), want.code()), (Code::Size, Code::Size), "{body} at {n}: {got}");
                    assert!(got.to_string().contains(op), "{body} at {n}: {got}");
                    assert_eq!(got.to_string(), want.to_string(), "{body} at {n}");
                }
            } else {
                let want = oracle.unwrap_or_else(|e| panic!("{body} at {n}: {e}"));
                agrees(&e.run(&inputs).unwrap_or_else(|e| panic!("{body} at {n}: {e}")), &want)
                    .unwrap_or_else(|e| panic!("{body} at {n}: {e}"));
            }
        }
    }
}

#[test]
fn what_is_certain_is_not_checked() {
    let f = common::encoder().graph().unwrap().finish().unwrap();
    let checks = Model::new(&f, &[("batch", 1), ("seq", 1)], &options(1)).exe.program().checks.len();
    assert!(checks <= 2, "{checks} checks");
    let body = "y = slice(x) {start: [0, 0], stop: [2, n], step: [1, 1]} output y = y";
    let f = text::parse(&format!("graph t {{ dim n <= 9 input x: f32[4, n] {body} }}")).unwrap();
    assert!(conditions(&f).unwrap().is_empty());
}

#[test]
fn sizes_that_must_be_equal() {
    let (n, m) = (dim("n", 9), dim("m", 9));
    let equal = |a, b| Demand::Equal(a, b);
    assert!(equal(&n + &n, &n * 2).certain() && !equal(n.clone(), m.clone()).certain());
    let why = "both speak of the same tokens";
    let condition =
        Condition { demand: equal(n.clone(), &m + 1), op: "add", loc: Loc::Unknown, constraint: 2, why };
    let bind = |n: i64, m: i64| [("n", n), ("m", m)].into_iter().collect::<Bindings>();
    condition.check(&bind(3, 2)).unwrap();
    let e = condition.check(&bind(3, 3)).unwrap_err();
    assert_eq!(e.code(), Code::Size);
    let text = e.to_string();
    assert!(text.contains("n is 3") && text.contains("m+1") && text.contains(why), "{text}");
    // The same in a program.
    let g = rlx::Graph::new("sum");
    {
        let (x, y) = (g.input("x", rlx::DType::F32, [n]), g.input("y", rlx::DType::F32, [m]));
        g.output("x", x.exp());
        g.output("y", y.exp());
    }
    let mut program = rlx::compile(&g, Device::Cpu).unwrap().program().clone();
    program.demand(vec![condition]);
    let sizes = |n: i64, m: i64| {
        let mut out = Vec::new();
        program.sizes.bind(&bind(n, m), &mut out).unwrap();
        out
    };
    program.check(&sizes(5, 4)).unwrap();
    assert_eq!(program.check(&sizes(5, 5)).unwrap_err().code(), Code::Size);
}

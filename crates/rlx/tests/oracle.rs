//! Small graphs that a rule or a kernel's dtype could get wrong, against the oracle.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use common::{agrees, options};
use rlx::{CompileOptions, Device, Tensor, text};

/// Runs the graph as it is and rewritten, and compares both with the oracle.
#[track_caller]
fn check(graph: &str, inputs: &[(&str, &Tensor)]) {
    let f = text::parse(graph).unwrap();
    let rounded = rlx::Options { rounding: rlx::Rounding::Declared, ..rlx::Options::default() };
    let want = rlx::eval(&f, inputs, &rounded).unwrap();
    for rewrite in [false, true] {
        let e = rlx::compile_with(&f, Device::Cpu, &CompileOptions { rewrite, ..options(2) }).unwrap();
        for (name, t) in inputs.iter().filter(|i| e.params().missing().contains(&i.0)) {
            e.params().set(name, (*t).clone()).unwrap();
        }
        let is_input = |n: &str| f.port(n).is_some_and(|p| p.kind == rlx::func::PortKind::Input);
        let given: Vec<_> = inputs.iter().copied().filter(|i| is_input(i.0)).collect();
        let got = e.run(&given).unwrap_or_else(|e| panic!("{graph}: {e}"));
        agrees(&got, &want).unwrap_or_else(|e| panic!("{graph} (rewritten: {rewrite}): {e}"));
    }
}

/// What asks which number is larger sees the upper half of u64 above the lower one.
#[test]
fn order_of_large_unsigned_numbers() {
    let big = u64::MAX - 1;
    let x = Tensor::new(&[5], &[1u64, big, 0, 1 << 63, 7]).unwrap();
    let graph = "graph t {
        input x: u64[5] v, i = sort(x) d, j = sort(x) {descending: true} a = argmax(x) {axis: 0}
        b = argmin(x) {axis: 0} c = cummax(x) {axis: 0} e = cummin(x) {axis: 0}
        p = cummax(x) {axis: 0, exclusive: true} q = cummin(x) {axis: 0, exclusive: true}
        w = reduce_window(x) {kind: max, kernel: [2], padding_lo: [3]}
        u = reduce_window(x) {kind: min, kernel: [2], padding_lo: [3]}
        k = constant() {value: i64[3] [0, 1, 2]} y = constant() {value: u64[3] [9223372036854775809, 3, 9223372036854775809]}
        s = scatter(x, k, y) {axis: 0, mode: max} r = scatter(x, k, y) {axis: 0, mode: min}
        t, n = top_k(x) {k: 2}
        output v = v output i = i output d = d output j = j output a = a output b = b output c = c output e = e
        output p = p output q = q output w = w output u = u output s = s output r = r output t = t output n = n }";
    check(graph, &[("x", &x)]);
    // An f64 does not tell neighbours apart.
    let e = rlx::compile(&text::parse(graph).unwrap(), Device::Cpu).unwrap();
    let out = e.run(&[("x", &x)]).unwrap();
    assert_eq!(out["v"].to_vec::<u64>().unwrap(), [0, 1, 7, 1 << 63, big]);
    assert_eq!(out["c"].to_vec::<u64>().unwrap(), [1, big, big, big, big]);
    assert_eq!(out["s"].to_vec::<u64>().unwrap(), [(1 << 63) + 1, big, (1 << 63) + 1, 1 << 63, 7]);
}

/// A window that sees nothing but padding gives the extreme of its dtype.
#[test]
fn windows_of_padding_alone() {
    for dtype in ["i8", "u8", "i16", "u16", "i32", "u32", "i64"] {
        let f = format!(
            "graph t {{ input x: {dtype}[4] y = reduce_window(x) {{kind: max, kernel: [2], padding_lo: [3]}}
             z = reduce_window(x) {{kind: min, kernel: [2], padding_hi: [4]}} output y = y output z = z }}"
        );
        let t = rlx::DType::parse(dtype).unwrap();
        check(&f, &[("x", &Tensor::from_f64s(t, &[4], &[3.0, 1.0, 4.0, 1.0]).unwrap())]);
    }
}

/// What a region says of symbols cannot be computed before they are bound.
#[test]
fn symbols_in_regions_of_params() {
    let x = Tensor::new(&[4], &[1f32, 2.0, 3.0, 4.0]).unwrap();
    let w = Tensor::new(&[3], &[1f32, -2.0, 0.5]).unwrap();
    let p = Tensor::new(&[], &[true]).unwrap();
    check(
        "graph t { dim n <= 9 input x: f32[n] param w: f32[3] param p: bool[]
         z = if(p, w) then (a: f32[3]) { s = size_of() {value: n, dtype: f32} q = mul(a, s) yield r0 = q }
         else (a: f32[3]) { q = neg(a) yield r0 = q }
         s = sum(x) {axes: [0]} y = mul(z, s) output y = y }",
        &[("x", &x), ("w", &w), ("p", &p)],
    );
    check(
        "graph t { dim n <= 9 input x: f32[n] param w: f32[3]
         y0 = while(w, w) {carries: 1, max: 3}
         cond (a: f32[3], b: f32[3]) { t = constant() {value: bool[] true} yield r0 = t }
         body (a: f32[3], b: f32[3]) { i = iota() {shape: [n], axis: 0, dtype: f32} s = sum(i) {axes: [0]}
             q = mul(a, s) yield r0 = q } output y = y0 output x = x }",
        &[("x", &x), ("w", &w)],
    );
}

/// A sum is a mean only if it is divided by the very count, as far as the dtype can hold it.
#[test]
fn counts_that_are_nearly_right() {
    let x = Tensor::new(&[3], &[1f64, 2.0, 4.0]).unwrap();
    let f = text::parse(
        "graph t { input x: f64[3] c = constant() {value: f64[] 3.000002} s = sum(x) {axes: [0]}
         y = div(s, c) output y = y }",
    )
    .unwrap();
    let e = rlx::compile(&f, Device::Cpu).unwrap();
    let y = e.run(&[("x", &x)]).unwrap()["y"].to_f64s().unwrap();
    assert!((y[0] - 7.0 / 3.000002).abs() < 1e-12, "{y:?}");
    let ones = Tensor::from_f64s(rlx::DType::BF16, &[128], &[1.0; 128]).unwrap();
    let f =
        "graph t { input x: bf16[128] c = constant() {value: bf16[] 127} s = sum(x) {axes: [0]} y = div(s, c)
             z = cast(y) {dtype: f32} output z = z }";
    check(f, &[("x", &ones)]);
}

/// A triangle of halves is nothing as integers.
#[test]
fn masks_that_a_cast_empties() {
    let q = Tensor::new(&[1, 1, 3, 2], &[1f32, 0.5, -1.0, 2.0, 0.3, 0.7]).unwrap();
    for (number, dtype) in [("0.5", "i32"), ("1", "i32"), ("256", "u8"), ("3", "i8"), ("0.5", "bool")] {
        let test = if dtype == "bool" {
            "m = cast(l) {dtype: bool}".to_string()
        } else {
            format!(
                "c = cast(l) {{dtype: {dtype}}} z = constant() {{value: {dtype}[] 0}} m = not_equal(c, z)"
            )
        };
        let f = format!(
            "graph t {{ dim s <= 9 input q: f32[1, 1, s, 2] o = constant() {{value: f32[] {number}}}
             a = broadcast(o) {{shape: [s, s]}} l = tril(a) {test}
             kt = permute(q) {{axes: [0, 1, 3, 2]}} w = matmul(q, kt)
             f = constant() {{value: f32[] -1e9}} e = select(m, w, f) p = softmax(e) y = matmul(p, q) output y = y }}"
        );
        check(&f, &[("q", &q)]);
    }
}

//! Layers of bytes: what is fused into integer products, and that the results are right to the bit or to rounding.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use common::{Model, options, same_bits};
use rlx::{DType, Device, Func, Program};
use rlx_compile::program::{Inst, Place, Work};
use rlx_conformance::device::{Limit, Subject};
use rlx_conformance::models;

/// A feed-forward layer quantised as ONNX Runtime's tools do it: scales of the activations from their range, weights with one
/// scale, then with one for each column.
const DYNAMIC: &str = "
graph dynamic {
  dim seq <= 512
  input x: f32[1, seq, 192]
  param up: i8[192, 256] param up_scale: f32[] param up_bias: f32[256]
  param down: i8[256, 192] param down_zero: i8[192] param down_scale: f32[192] param down_bias: f32[192]
  param gamma: f32[192] param beta: f32[192]
  small = constant() {value: f32[] 0.01}
  xq, xs, xz = dynamic_quantize_linear(x)
  a = matmul_integer(xq, up, xz)
  af = cast(a) {dtype: f32}
  as = mul(xs, up_scale)
  ass = mul(as, small)
  ay = mul(af, ass)
  ab = add(ay, up_bias)
  h = gelu(ab)
  hq, hs, hz = dynamic_quantize_linear(h)
  b = matmul_integer(hq, down, hz, down_zero)
  bf = cast(b) {dtype: f32}
  bs = mul(hs, down_scale)
  bss = mul(bs, small)
  by = mul(bf, bss)
  bb = add(by, down_bias)
  r = add(bb, x)
  y = layer_norm(r, gamma, beta)
  output y = y
}";

/// Layers with scales that are known: bytes go in, and bytes come out.
const STATIC: &str = "
graph static {
  dim seq <= 300
  input x: u8[2, seq, 96]
  param w: i8[96, 80] param v: u8[80, 50]
  xz = constant() {value: u8[] 120}
  s = constant() {value: f32[] 0.0007}
  q = constant() {value: f32[] 0.35}
  z = constant() {value: u8[] 131}
  a = matmul_integer(x, w, xz)
  af = cast(a) {dtype: f32}
  as = mul(af, s)
  aq = quantize_linear(as, q, z) {dtype: u8}
  b = matmul_integer(aq, v, z, xz)
  bf = cast(b) {dtype: f32}
  bs = mul(bf, s)
  bq = quantize_linear(bs, q, z) {dtype: u8}
  output y = bq
}";

fn parse(text: &str) -> Func {
    rlx_ir::text::parse(text).unwrap()
}

fn program(f: &Func) -> Program {
    rlx::compile_with(f, Device::Cpu, &options(1)).unwrap().program().clone()
}

fn runs_as_the_oracle(f: &Func, seq: i64, tol: f64) {
    let data = models::data(f, &[("seq", seq)], 5).unwrap();
    let runs: Vec<_> = (1..=3).map(|t| Model::with(f, data.clone(), &options(t)).run()).collect();
    for other in &runs[1..] {
        same_bits(&runs[0], other).unwrap_or_else(|e| panic!("{} {seq}: {e}", f.name));
    }
    for (level, fuse) in rlx_cpu::Level::available().into_iter().flat_map(|l| [(l, true), (l, false)]) {
        let engine = rlx::Engine::new(rlx::Settings { threads: Some(2), level: Some(level) }).unwrap();
        let options = rlx::CompileOptions { engine: Some(engine), fuse, ..Default::default() };
        let limit = Limit { tol: &|_| tol, floor: 0.1, rounded: true };
        let done = Subject { device: Device::Cpu, options }.check(f, &data, &limit);
        done.unwrap_or_else(|e| panic!("{} {seq} {level} {fuse}: {e}", f.name));
    }
}

/// No sum in i32 lies in memory.
fn no_sums(p: &Program) {
    for s in p.slots.iter().filter(|s| matches!(s.place, Place::Arena(_))) {
        assert_ne!(s.dtype, DType::I32, "{}", rlx_compile::print::fusion(p));
    }
}

#[test]
fn a_layer_with_dynamic_scales_is_three_calls() {
    let f = parse(DYNAMIC);
    let p = program(&f);
    no_sums(&p);
    let text = rlx_compile::print::fusion(&p);
    // The range; the bytes; the product. The scales of the columns are a call of their own.
    assert_eq!(p.calls.len(), 7, "{text}");
    let products = p.kernels.iter().filter(|k| matches!(&k.work, Work::Product(p) if p.zeros.is_some()));
    assert_eq!(products.count(), 2, "{text}");
    // Both ends of a range are found in one pass.
    let folds = |k: &rlx_compile::program::Kernel| {
        let code = k.work.region().map(|r| r.code.as_slice()).unwrap_or_default();
        code.iter().filter(|i| matches!(i, Inst::Fold { .. })).count()
    };
    assert_eq!(
        p.kernels.iter().filter(|k| matches!(k.work, Work::Region(_)) && folds(k) == 2).count(),
        2,
        "{text}"
    );
    // A code may fall to either side of a tie: one in 255 of the range.
    for seq in [1, 7, 130] {
        runs_as_the_oracle(&f, seq, 2e-2);
    }
}

#[test]
fn a_layer_of_bytes_is_one_call() {
    let f = parse(STATIC);
    let p = program(&f);
    no_sums(&p);
    assert_eq!(p.calls.len(), 2, "{}", rlx_compile::print::fusion(&p));
    for seq in [1, 9, 140] {
        runs_as_the_oracle(&f, seq, 0.0);
    }
}

/// Weights are packed when they are set, and take no more than their bytes and a sum for each column.
#[test]
fn weights_are_packed_once() {
    let f = parse(STATIC);
    let m = Model::with(&f, models::data(&f, &[("seq", 3)], 5).unwrap(), &options(1));
    m.run();
    let packed = m.exe.on_cpu().packed_bytes();
    let columns = |n: usize| n.next_multiple_of(32);
    let most = (96 + 4) * columns(80) + (80 + 4) * columns(50);
    assert!((96 * 80 + 80 * 50..=most).contains(&packed), "{packed} bytes, {most} at most");
}

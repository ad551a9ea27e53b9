//! The oracle: where it rounds, and where it stops.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx_ir::DType::{BF16, F64};
use rlx_ir::func::PortKind;
use rlx_ir::oracle::Arr;
use rlx_ir::sample::SampleKind;
use rlx_ir::{Code, Func, Graph, Options, Rounding, Tensor, eval};
use std::time::Instant;

fn sampled(op: &str) -> (Func, Vec<(String, Tensor)>) {
    let op = rlx_ir::ops::find(op).unwrap();
    let samples = op.sample_list();
    let SampleKind::Op { args, attrs } = &samples[0].what else { panic!("a sample of text") };
    let g = Graph::new("sampled");
    let mut data = Vec::new();
    let mut operands = Vec::new();
    for (i, arg) in args.iter().enumerate() {
        operands.push(arg.as_ref().map(|a| {
            let t = a.tensor(BF16, i as u64).unwrap();
            let v = g.port(&format!("p{i}"), t.ty(), PortKind::Input, None);
            data.push((format!("p{i}"), t));
            v
        }));
    }
    for (i, v) in g.emit(op, attrs.clone(), operands, Vec::new()).into_iter().enumerate() {
        g.output(&format!("r{i}"), v);
    }
    (g.finish().unwrap(), data)
}

#[test]
fn nothing_is_rounded_inside_a_composite_not_even_in_its_loops() {
    for op in ["selective_scan", "gated_delta_net", "softmax", "layer_norm"] {
        let (f, data) = sampled(op);
        let inputs: Vec<(&str, &Tensor)> = data.iter().map(|(n, t)| (n.as_str(), t)).collect();
        let at = |rounding| eval(&f, &inputs, &Options { rounding, ..Options::default() }).unwrap();
        let rounded: Vec<Arr> = at(Rounding::Exact).into_iter().map(|(_, a)| a.rounded()).collect();
        let declared: Vec<Arr> = at(Rounding::Declared).into_iter().map(|(_, a)| a).collect();
        assert_eq!(rounded, declared, "{op}");
    }
}

#[test]
fn the_result_of_each_op_in_a_loop_of_the_graph_is_rounded() {
    let g = Graph::new("counting");
    let x = g.input("x", BF16, [0i64; 0]);
    let (last, _) = g.scan(&[x], &[], 1000, false, |c, _| (vec![c[0] + 1.0], vec![]));
    g.output("y", last[0]);
    let f = g.finish().unwrap();
    let x = Tensor::from_f64s(BF16, &[], &[0.0]).unwrap();
    let options = Options { rounding: Rounding::Declared, ..Options::default() };
    // bf16 has eight bits: 256 + 1 is 256 again.
    assert_eq!(eval(&f, &[("x", &x)], &options).unwrap()[0].1.f64s(), [256.0]);
}

#[test]
fn loops_that_do_nothing_come_to_an_end() {
    let endless = "graph t { input p: bool[] q = while(p) {carries: 1, max: 4611686018427387904}
        cond (a: bool[]) { yield r0 = a } body (a: bool[]) { yield r0 = a } output q = q }";
    let long = "graph t { input p: bool[] q = scan(p) {carries: 1, xs: 0, length: 1099511627776}
        body (a: bool[]) { yield r0 = a } output q = q }";
    let p = Tensor::scalar(true);
    let options = Options { max_steps: 100_000, ..Options::default() };
    for text in [endless, long] {
        let f = rlx_ir::text::parse(text).unwrap();
        assert_eq!(eval(&f, &[("p", &p)], &options).unwrap_err().code(), Code::Limit);
    }
}

#[test]
fn a_stack_that_is_too_large_is_refused_before_it_is_filled() {
    let g = Graph::new("stack");
    let x = g.input("x", F64, [0i64; 0]);
    let (_, ys) = g.scan(&[x], &[], 1i64 << 40, false, |c, _| (vec![c[0]], vec![c[0] + 1.0]));
    g.output("ys", ys[0]);
    let start = Instant::now();
    let e = eval(&g.finish().unwrap(), &[("x", &Tensor::scalar(0.0))], &Options::default()).unwrap_err();
    assert_eq!(e.code(), Code::Limit);
    assert!(start.elapsed().as_secs() < 5);
}

#[test]
fn a_graph_of_many_ports_is_evaluated_in_reasonable_time() {
    let g = Graph::new("many");
    let names: Vec<String> = (0..20_000).map(|i| format!("w{i}")).collect();
    let sum = names.iter().map(|n| g.param(n, F64, [0i64; 0])).reduce(|a, b| a + b).unwrap();
    g.output("y", sum);
    let one = Tensor::scalar(1.0);
    let inputs: Vec<(&str, &Tensor)> = names.iter().map(|n| (n.as_str(), &one)).collect();
    let out = eval(&g.finish().unwrap(), &inputs, &Options::default()).unwrap();
    assert_eq!(out[0].1.f64s(), [20_000.0]);
}

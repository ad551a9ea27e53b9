//! Control flow, checkpoints and custom gradients through the builder: values, gradients, batching.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx_ir::DType::{F64, I32};
use rlx_ir::transform::{hvp, jvp, vjp, vmap};
use rlx_ir::{Dim, Func, Graph, Options, Tensor, eval};

fn run(f: &Func, data: &[(&str, &Tensor)]) -> Vec<(String, Vec<f64>)> {
    let out = eval(f, data, &Options::default()).unwrap();
    out.into_iter().map(|(n, a)| (n, a.f64s())).collect()
}

fn get<'a>(out: &'a [(String, Vec<f64>)], name: &str) -> &'a [f64] {
    &out.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("no output {name}")).1
}

fn scalar(x: f64) -> Tensor {
    Tensor::scalar(x)
}

/// y = x·w applied n times by a scan whose body captures w from outside.
fn power_by_scan() -> Func {
    let g = Graph::new("power");
    let x = g.input("x", F64, [0i64; 0]);
    let w = g.input("w", F64, [0i64; 0]);
    let (last, ys) = g.scan(&[x], &[], 3, false, |c, _| {
        let y = c[0] * w;
        (vec![y], vec![y])
    });
    g.output("y", last[0]);
    g.output("ys", ys[0]);
    g.finish().unwrap()
}

#[test]
fn scan_captures_and_differentiates() {
    let f = power_by_scan();
    let d = vjp(&f, &["y"], &["x", "w"]).unwrap();
    let out = run(&d, &[("x", &scalar(2.0)), ("w", &scalar(3.0))]);
    assert_eq!(get(&out, "y"), [54.0]);
    assert_eq!(get(&out, "ys"), [6.0, 18.0, 54.0]);
    assert_eq!(get(&out, "grad.x"), [27.0]);
    assert_eq!(get(&out, "grad.w"), [54.0]);
}

#[test]
fn scan_has_second_derivatives_and_tangents() {
    let f = power_by_scan();
    let h = hvp(&f, "y", &["x", "w"]).unwrap();
    let one = scalar(1.0);
    let zero = scalar(0.0);
    let data = [("x", &scalar(2.0)), ("w", &scalar(3.0)), ("vec.x", &zero), ("vec.w", &one)];
    let out = run(&h, &data);
    // y = x·w³: d²y/dw² = 6·x·w, d²y/dwdx = 3·w².
    assert_eq!(get(&out, "hvp.w"), [36.0]);
    assert_eq!(get(&out, "hvp.x"), [27.0]);
    let t = jvp(&f, &["w"]).unwrap();
    let out = run(&t, &[("x", &scalar(2.0)), ("w", &scalar(3.0)), ("tan.w", &one)]);
    assert_eq!(get(&out, "tan.y"), [54.0]);
    assert_eq!(get(&out, "tan.ys"), [2.0, 12.0, 54.0]);
}

/// Halves x until it is at most 1, at most ten times, counting the turns.
fn halve() -> Func {
    let g = Graph::new("halve");
    let x = g.input("x", F64, [0i64; 0]);
    let zero = g.scalar(I32, 0.0);
    let out = g.while_loop(&[x, zero], 10, |c| c[0].greater(1.0), |c| vec![c[0] * c[0] * 0.1, c[1] + 1.0]);
    g.output("y", out[0]);
    g.output("turns", out[1]);
    g.finish().unwrap()
}

#[test]
fn while_differentiates_through_the_turns_taken() {
    let f = halve();
    let d = vjp(&f, &["y"], &["x"]).unwrap();
    let out = run(&d, &[("x", &scalar(6.0))]);
    // 6 → 3.6 → 1.296 → 0.16796: three turns, dy/dx = 2·0.1·6 · 2·0.1·3.6 · 2·0.1·1.296.
    assert_eq!(get(&out, "turns"), [3.0]);
    let want = 1.2 * 0.72 * 0.2592;
    assert!((get(&out, "grad.x")[0] - want).abs() < 1e-12);
    let t = run(&jvp(&f, &["x"]).unwrap(), &[("x", &scalar(6.0)), ("tan.x", &scalar(1.0))]);
    assert!((get(&t, "tan.y")[0] - want).abs() < 1e-12);
}

#[test]
fn while_stops_at_its_bound() {
    let g = Graph::new("endless");
    let x = g.input("x", F64, [0i64; 0]);
    let out = g.while_loop(&[x], 4, |c| c[0].greater(-1.0), |c| vec![c[0] + 1.0]);
    g.output("y", out[0]);
    assert_eq!(get(&run(&g.finish().unwrap(), &[("x", &scalar(0.0))]), "y"), [4.0]);
}

#[test]
fn a_batched_while_takes_each_members_turns() {
    let f = vmap(&halve(), &[("x", 0)], &Dim::constant(3), 0).unwrap();
    let out = run(&f, &[("x", &Tensor::new(&[3], &[0.5, 6.0, 2.0]).unwrap())]);
    assert_eq!(get(&out, "turns"), [0.0, 3.0, 1.0]);
    assert_eq!(get(&out, "y")[0], 0.5);
    assert_eq!(get(&out, "y")[2], 2.0 * 2.0 * 0.1);
    // The gradient of the batched loop, and the batched gradient, agree with one at a time.
    let d = vjp(&f, &["y"], &["x"]).unwrap();
    let one = Tensor::new(&[3], &[1.0, 1.0, 1.0]).unwrap();
    let x = Tensor::new(&[3], &[0.5, 6.0, 2.0]).unwrap();
    let grads = get(&run(&d, &[("x", &x), ("ct.y", &one)]), "grad.x").to_vec();
    let each = vjp(&halve(), &["y"], &["x"]).unwrap();
    let mapped = vmap(&each, &[("x", 0)], &Dim::constant(3), 0).unwrap();
    let other = get(&run(&mapped, &[("x", &x)]), "grad.x").to_vec();
    for (i, v) in [0.5, 6.0, 2.0].into_iter().enumerate() {
        let want = get(&run(&each, &[("x", &scalar(v))]), "grad.x")[0];
        assert!(
            (grads[i] - want).abs() < 1e-12 && (other[i] - want).abs() < 1e-12,
            "{grads:?} {other:?} {want}"
        );
    }
}

#[test]
fn if_takes_one_side_and_its_gradient() {
    let g = Graph::new("branch");
    let x = g.input("x", F64, [2]);
    let w = g.input("w", F64, [2]);
    let p = x.sum_all().greater(0.0);
    let y = g.cond(p, || vec![x * x * w], || vec![-x]);
    g.output("y", y[0]);
    let f = vjp(&g.finish().unwrap(), &["y"], &["x", "w"]).unwrap();
    let w = Tensor::new(&[2], &[5.0, 7.0]).unwrap();
    let ct = Tensor::new(&[2], &[1.0, 10.0]).unwrap();
    let at = |x: &Tensor| run(&f, &[("x", x), ("w", &w), ("ct.y", &ct)]);
    let up = at(&Tensor::new(&[2], &[1.0, 2.0]).unwrap());
    assert_eq!(get(&up, "grad.x"), [10.0, 280.0]);
    assert_eq!(get(&up, "grad.w"), [1.0, 40.0]);
    let down = at(&Tensor::new(&[2], &[-1.0, -2.0]).unwrap());
    assert_eq!(get(&down, "grad.x"), [-1.0, -10.0]);
    assert_eq!(get(&down, "grad.w"), [0.0, 0.0]);
}

#[test]
fn a_checkpoint_computes_again_and_keeps_nothing() {
    let g = Graph::new("checkpointed");
    let x = g.input("x", F64, [3]);
    let y = g.checkpoint(|| {
        let a = x * x;
        let b = a * x;
        vec![b * b]
    });
    g.output("loss", y[0].sum_all());
    let plain = g.finish().unwrap();
    let f = vjp(&plain, &["loss"], &["x"]).unwrap();
    let out = run(&f, &[("x", &Tensor::new(&[3], &[1.0, 2.0, -1.0]).unwrap())]);
    assert_eq!(get(&out, "loss"), [66.0]);
    assert_eq!(get(&out, "grad.x"), [6.0, 192.0, -6.0]);
    // Nothing from inside the region crosses to the backward pass: it starts from a barrier over x and the cotangent.
    let fences: Vec<_> = f.nodes.iter().filter(|n| n.op.name == "barrier").collect();
    assert_eq!(fences.len(), 1);
    let calls: Vec<_> = f.nodes.iter().filter(|n| n.op.name == "call").collect();
    assert_eq!(calls.len(), 2, "forward, and forward again with the backward pass");
    assert_eq!(calls[0].results.len(), 1, "the forward call gives its result only");
}

#[test]
fn a_custom_gradient_is_used() {
    let g = Graph::new("custom");
    let x = g.input("x", F64, [2]);
    let y = g.with_gradient(&[x], |a| vec![a[0] * a[0]], |a| vec![a[2] * 100.0]);
    g.output("y", y[0]);
    let f = vjp(&g.finish().unwrap(), &["y"], &["x"]).unwrap();
    let (x, ct) = (Tensor::new(&[2], &[3.0, 4.0]).unwrap(), Tensor::new(&[2], &[1.0, 2.0]).unwrap());
    let out = run(&f, &[("x", &x), ("ct.y", &ct)]);
    assert_eq!(get(&out, "y"), [9.0, 16.0]);
    assert_eq!(get(&out, "grad.x"), [100.0, 200.0]);
}

#[test]
fn loops_nest_and_capture_across_two_levels() {
    let g = Graph::new("nested");
    let x = g.input("x", F64, [0i64; 0]);
    let w = g.input("w", F64, [0i64; 0]);
    let (y, _) = g.scan(&[x], &[], 2, false, |c, _| {
        let (inner, _) = g.scan(&[c[0]], &[], 2, false, |c, _| (vec![c[0] * w], vec![]));
        (vec![inner[0] + w], vec![])
    });
    g.output("y", y[0]);
    let f = vjp(&g.finish().unwrap(), &["y"], &["w", "x"]).unwrap();
    let out = run(&f, &[("x", &scalar(2.0)), ("w", &scalar(3.0))]);
    // y = (x·w² + w)·w² + w = x·w⁴ + w³ + w.
    assert_eq!(get(&out, "y"), [192.0]);
    assert_eq!(get(&out, "grad.x"), [81.0]);
    assert_eq!(get(&out, "grad.w"), [4.0 * 2.0 * 27.0 + 27.0 + 1.0]);
}

#[test]
fn values_of_another_graph_are_refused() {
    let (a, b) = (Graph::new("a"), Graph::new("b"));
    let x = a.input("x", F64, [2]);
    let y = b.input("y", F64, [2]);
    let z = x + y;
    a.output("z", z);
    b.output("z", z);
    assert!(a.finish().is_err() || b.finish().is_err());
}

#[test]
fn nothing_dead_is_left_by_transforms() {
    let f = power_by_scan();
    let cases = [
        vjp(&f, &["y"], &["x"]).unwrap(),
        vjp(&f, &["ys"], &["w"]).unwrap(),
        jvp(&f, &["w"]).unwrap(),
        hvp(&f, "y", &["w"]).unwrap(),
        vmap(&f, &[("w", 0)], &Dim::constant(2), 0).unwrap(),
    ];
    for c in cases {
        assert_eq!(rlx_ir::transform::dce(&c).unwrap(), c);
        let mut used = std::collections::HashSet::new();
        used.extend(c.outputs.iter().map(|o| o.value));
        for n in c.nodes.iter().rev() {
            assert!(n.results.iter().any(|r| used.contains(r)), "{} is dead", n.op.name);
            used.extend(n.operands.iter().flatten());
        }
    }
}

/// Scans within scans, each with a state that only the state below reads.
fn nest<'g>(g: &'g Graph, x: rlx_ir::Var<'g>, depth: usize) -> rlx_ir::Var<'g> {
    if depth == 0 {
        return x.sin();
    }
    let (last, _) = g.scan(&[x, x], &[], 1, false, |c, _| {
        let y = nest(g, c[1], depth - 1);
        (vec![y, c[1] * 0.5], vec![y])
    });
    last[0]
}

#[test]
fn deep_loops_are_transformed_in_reasonable_time() {
    let g = Graph::new("deep");
    let x = g.input("x", F64, [0i64; 0]);
    g.output("y", nest(&g, x, 50));
    let f = g.finish().unwrap();
    let d = vjp(&f, &["y"], &["x"]).unwrap();
    assert!(d.size() < 20 * f.size(), "{} nodes from {}", d.size(), f.size());
    vmap(&d, &[("x", 0)], &Dim::constant(2), 0).unwrap();
    let out = run(&d, &[("x", &scalar(0.5))]);
    assert_eq!(get(&out, "grad.x"), [0.5f64.cos()]);
}

#[test]
fn dead_state_goes_even_in_a_circle_through_an_inner_loop() {
    // The inner loop's second state feeds the outer loop's second, and the other way round; nobody reads them.
    let g = Graph::new("circle");
    let x = g.input("x", F64, [0i64; 0]);
    let (last, _) = g.scan(&[x, x], &[], 2, false, |c, _| {
        let (inner, _) = g.scan(&[c[0], c[1]], &[], 2, false, |c, _| (vec![c[0].sin(), c[1].cos()], vec![]));
        (inner, vec![])
    });
    g.output("y", last[0]);
    let f = rlx_ir::transform::dce(&g.finish().unwrap()).unwrap();
    assert_eq!(f.nodes[0].operands.len(), 1);
    assert_eq!(f.nodes[0].regions[0].nodes[0].operands.len(), 1);
    assert_eq!(f.size(), 3);
}

#[test]
fn a_loop_that_saves_its_state_drops_what_nobody_reads() {
    let text = "graph t { input x: f64[] input n: i32[]
        y, z, k, turns, ys, zs, ks = while(x, x, n) {carries: 3, max: 4, save: true}
        cond (a: f64[], b: f64[], i: i32[]) { o = constant() {value: i32[] [0]} p = greater(i, o) yield r0 = p }
        body (a: f64[], b: f64[], i: i32[]) { s = sin(a) c = cos(b) o = constant() {value: i32[] [1]} j = sub(i, o)
            yield r0 = s, r1 = c, r2 = j }
        output ys = ys }";
    let f = rlx_ir::text::parse(text).unwrap();
    let lean = rlx_ir::transform::dce(&f).unwrap();
    assert_eq!(lean.nodes[0].operands.len(), 2);
    assert_eq!(lean.nodes[0].results.len(), 5);
    let n = Tensor::scalar(3i32);
    let data = [("x", &scalar(0.5)), ("n", &n)];
    assert_eq!(run(&f, &data), run(&lean, &data));
}

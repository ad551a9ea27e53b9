//! Every rule on its samples, and the whole stage on random graphs, gradients and the op table: the rewritten graph is
//! valid, means the same, and is as simple as it gets.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use common::{agree, check, data, fired, refs};
use proptest::prelude::*;
use rlx_compile::rewrite::{RULES, rewrite, simplify};
use rlx_conformance::random::{Kind, RandomGraph, graph};
use rlx_conformance::sampled;
use rlx_ir::{DType, Func, text, transform};
use std::collections::HashSet;

#[test]
fn every_rule_fires_on_its_samples_and_refuses_the_others() {
    let mut failures = Vec::new();
    for rule in RULES.iter().flat_map(|t| t.iter()) {
        let all = rule.samples.iter().map(|s| (s, true)).chain(rule.refuses.iter().map(|s| (s, false)));
        for (sample, fires) in all {
            let f = text::parse(sample).unwrap_or_else(|e| panic!("{}: {e}\n{sample}", rule.name));
            let names = fired(&f);
            if names.contains(rule.name) != fires {
                let text = text::print(&rewrite(&f, &Default::default()).unwrap().func);
                failures.push(format!("{} on {sample}\nfired {names:?}\n{text}", rule.name));
            }
            if let Err(e) = check(&f, &data(&f, 7)) {
                failures.push(format!("{} on {sample}\n{e}", rule.name));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn rules_are_complete_and_named_once() {
    let mut names = HashSet::new();
    for rule in RULES.iter().flat_map(|t| t.iter()) {
        assert!(names.insert(rule.name), "{} twice", rule.name);
        assert!(!rule.algebra.is_empty() && !rule.samples.is_empty(), "{}", rule.name);
    }
}

fn make(seed: u64, size: usize, kind: Kind) -> RandomGraph {
    graph(seed, size, kind).unwrap_or_else(|e| panic!("seed {seed}: {e}"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_graphs_mean_the_same(seed: u64) {
        let r = make(seed, 14, Kind::Any);
        check(&r.func, &r.data(seed).unwrap()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }

    #[test]
    fn smooth_graphs_mean_the_same(seed: u64) {
        let r = make(seed, 24, Kind::Smooth);
        check(&r.func, &r.data(seed).unwrap()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }

    #[test]
    fn gradients_of_random_graphs_mean_the_same(seed: u64) {
        let r = make(seed, 8, Kind::Smooth);
        let Some(g) = gradient(&r.func) else { return Ok(()) };
        check(&g, &data_at(&g, &r, seed)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

/// The graph with the gradients of all its float outputs with respect to all its float ports.
fn gradient(f: &Func) -> Option<Func> {
    let float = |v| f.ty(v).is_ok_and(|t| t.dtype.is_float());
    let wrt: Vec<&str> = f.ports.iter().filter(|p| float(p.value)).map(|p| p.name.as_str()).collect();
    let outs: Vec<&str> = f.outputs.iter().filter(|o| float(o.value)).map(|o| o.name.as_str()).collect();
    if wrt.is_empty() || outs.is_empty() {
        return None;
    }
    transform::vjp(f, &outs, &wrt).ok()
}

fn data_at(f: &Func, r: &RandomGraph, seed: u64) -> Vec<(String, rlx_ir::Tensor)> {
    RandomGraph { func: f.clone(), sizes: r.sizes.clone(), wide: r.wide }.data(seed).unwrap()
}

/// Samples whose value hangs on the last bit of what goes in: rounding alone decides between neighbours.
const TOUCHY: &[&str] = &["quantize", "fake_quantize", "dequant", "sample"];

#[test]
fn the_samples_of_the_op_table_mean_the_same() {
    let mut failures = Vec::new();
    for dtype in [DType::F32, DType::F64] {
        for (name, case) in sampled::all(dtype, |n| !TOUCHY.iter().any(|t| n.starts_with(t))) {
            let case = match case {
                Ok(case) => case,
                Err(e) => panic!("{name}: {e}"),
            };
            if let Err(e) = check(&case.func, &case.data) {
                failures.push(format!("{name} {dtype}: {e}"));
            }
            let Some(g) = gradient(&case.func).filter(|_| case.smooth && dtype == DType::F64) else {
                continue;
            };
            let mut all = data(&g, 3);
            all.iter_mut().for_each(|(n, t)| {
                if let Some(d) = case.data.iter().find(|d| d.0 == *n) {
                    *t = d.1.clone();
                }
            });
            if let Err(e) = check(&g, &all) {
                failures.push(format!("gradient of {name}: {e}"));
            }
        }
    }
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn bodies_of_composite_ops_simplify_to_the_same() {
    for (name, case) in sampled::all(DType::F64, |n| !TOUCHY.iter().any(|t| n.starts_with(t))) {
        let case = case.unwrap();
        let Some(node) =
            case.func.nodes.first().filter(|n| matches!(n.op.meaning, rlx_ir::op::Meaning::Body(_)))
        else {
            continue;
        };
        let types: Vec<_> =
            node.operands.iter().map(|o| o.map(|v| case.func.ty(v).unwrap().clone())).collect();
        let body = rlx_ir::Graph::body_of(node.op, &node.attrs, &types, &node.regions).unwrap();
        let simple = simplify(&body).unwrap_or_else(|e| panic!("{name}: {e}"));
        rlx_ir::verify::verify(&simple).unwrap_or_else(|e| panic!("{name}: {e}\n{}", text::print(&simple)));
        agree(&body, &simple, &refs(&case.data)).unwrap_or_else(|e| panic!("{name}: {e}"));
        check(&body, &case.data).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

#[test]
fn nothing_looks_through_a_barrier() {
    let f = text::parse(
        "graph t { input x: f32[3] a = exp(x) b = barrier(x) c = exp(b) d = neg(c) e = barrier(d) f = neg(e) \
         g = barrier(x) h = exp(g) output a = a output f = f output h = h }",
    )
    .unwrap();
    let r = rewrite(&f, &Default::default()).unwrap().func;
    assert_eq!(r.nodes.iter().filter(|n| n.op.name == "barrier").count(), 3, "{}", text::print(&r));
    assert_eq!(r.nodes.len(), f.nodes.len());
}

#[test]
fn ports_names_and_flags_stay() {
    let f = text::parse(
        "graph t { dim n <= 7 input x: f32[n, 2] diff input unused: i32[n] param w: f32[2, 2] diff = [1, 2, 3, 4] \
         named = matmul(x, w) a = reshape(named) {shape: [n, 2]} output y = a output z = x output again = a }",
    )
    .unwrap();
    let r = rewrite(&f, &Default::default()).unwrap().func;
    assert_eq!(r.ports, f.ports);
    assert_eq!(r.outputs.iter().map(|o| o.name.as_str()).collect::<Vec<_>>(), ["y", "z", "again"]);
    assert_eq!(r.nodes.len(), 1);
    assert_eq!(r.values[3].name.as_deref(), Some("named"));
}

#[test]
fn loops_and_branches_are_rewritten_inside() {
    let f = text::parse(
        "graph t { input c: f32[2] input x: f32[4, 2] input p: bool[] \
         y, dead = scan(c, x) {carries: 1, xs: 1, length: 4} body (a: f32[2], b: f32[2]) \
         { n = neg(b) m = neg(n) s = add(a, m) t = add(m, a) u = mul(s, t) yield r0 = s, r1 = u } \
         z = if(p, y) then (a: f32[2]) { k = constant() {value: f32[] 1} q = mul(a, k) yield r0 = q } \
         else (a: f32[2]) { q = sub(a, a) yield r0 = q } output z = z }",
    )
    .unwrap();
    check(&f, &data(&f, 1)).unwrap();
    let r = rewrite(&f, &Default::default()).unwrap().func;
    assert_eq!(r.nodes[0].results.len(), 1, "{}", text::print(&r));
    assert_eq!(r.nodes[0].regions[0].nodes.len(), 1, "{}", text::print(&r));
    assert_eq!(r.nodes[1].regions[0].nodes.len(), 0);
}

/// Long chains neither exhaust the stack nor take quadratic time.
#[test]
fn large_graphs_are_rewritten() {
    let chains: [fn(rlx_ir::Var<'_>, usize) -> rlx_ir::Var<'_>; 4] = [
        |x, i| (x + 0.5) * (1.0 + i as f64 * 1e-9),
        |x, i| if i % 2 == 0 { x.reshape([6]) } else { x.reshape([2, 3]) },
        |x, i| if i % 2 == 0 { x.permute(vec![1i64, 0]).reshape([2, 3]) } else { x.sin() - x },
        |x, _| -(-(x * 1.0)),
    ];
    for (k, chain) in chains.iter().enumerate() {
        let g = rlx_ir::Graph::new("large");
        {
            let mut x = g.input("x", DType::F64, [2, 3]);
            for i in 0..10_000 {
                x = chain(x, i);
            }
            g.output("y", x);
        }
        let f = g.finish().unwrap();
        let r = rewrite(&f, &Default::default()).unwrap().func;
        rlx_ir::verify::verify(&r).unwrap();
        agree(&f, &r, &refs(&data(&f, k as u64))).unwrap();
    }
}

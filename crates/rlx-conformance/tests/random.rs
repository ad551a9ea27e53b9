//! Random graphs: the verifier, the oracle, the text format and the transforms must agree on all of them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use proptest::prelude::*;
use rlx_conformance::fd::Problem;
use rlx_conformance::random::{Kind, RandomGraph, graph};
use rlx_ir::{Dim, Options, Tensor, eval};

fn make(seed: u64, size: usize, kind: Kind) -> RandomGraph {
    graph(seed, size, kind).unwrap_or_else(|e| panic!("seed {seed}: {e}"))
}

fn refs(data: &[(String, Tensor)]) -> Vec<(&str, &Tensor)> {
    data.iter().map(|(n, t)| (n.as_str(), t)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_verifier_accepts_what_the_builder_makes(seed: u64) {
        rlx_ir::verify::verify(&make(seed, 12, Kind::Any).func).unwrap();
    }

    #[test]
    fn parsing_undoes_printing(seed: u64) {
        let f = make(seed, 12, Kind::Any).func;
        let text = rlx_ir::text::print(&f);
        let back = rlx_ir::text::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        prop_assert_eq!(&back, &f);
        prop_assert_eq!(rlx_ir::text::print(&back), text);
    }

    #[test]
    fn inferred_shapes_are_what_the_oracle_makes(seed: u64) {
        // The oracle refuses a result whose shape is not the inferred one.
        let r = make(seed, 12, Kind::Any);
        let data = r.data(seed).unwrap();
        eval(&r.func, &refs(&data), &Options::default()).unwrap();
    }

    #[test]
    fn dead_code_goes_once_and_changes_nothing(seed: u64) {
        let r = make(seed, 12, Kind::Any);
        let lean = rlx_ir::transform::dce(&r.func).unwrap();
        prop_assert_eq!(&rlx_ir::transform::dce(&lean).unwrap(), &lean);
        let data = r.data(seed).unwrap();
        let run = |f| -> Vec<Vec<u64>> {
            let out = eval(f, &refs(&data), &Options::default()).unwrap();
            out.iter().map(|(_, a)| a.f64s().iter().map(|x| x.to_bits()).collect()).collect()
        };
        prop_assert_eq!(run(&r.func), run(&lean));
    }
}

/// The float ports and outputs of a smooth graph, or nothing if it has none.
fn differentiable(r: &RandomGraph) -> Option<(Vec<String>, Vec<String>)> {
    let names = |types: Vec<rlx_ir::Type>, names: Vec<&String>| -> Vec<String> {
        types.iter().zip(names).filter(|(t, _)| t.dtype.is_float()).map(|(_, n)| n.clone()).collect()
    };
    let wrt = names(r.func.port_types().ok()?, r.func.ports.iter().map(|p| &p.name).collect());
    let out = names(r.func.output_types().ok()?, r.func.outputs.iter().map(|o| &o.name).collect());
    (!wrt.is_empty() && !out.is_empty()).then_some((wrt, out))
}

#[test]
fn gradients_of_random_graphs_agree_with_finite_differences() {
    let (mut judged, mut failures) = (0, Vec::new());
    for seed in 0..60 {
        let r = make(seed, 8, Kind::Smooth);
        let Some((wrt, outputs)) = differentiable(&r) else { continue };
        let data = r.data(seed).unwrap();
        let wrt: Vec<&str> = wrt.iter().map(String::as_str).collect();
        let outputs: Vec<&str> = outputs.iter().map(String::as_str).collect();
        let p = Problem { func: &r.func, data: &data, wrt: &wrt, outputs: &outputs };
        judged += 1;
        for (what, gap, limit) in
            [("vjp", p.vjp(seed), 1e-7), ("jvp", p.jvp(seed), 1e-7), ("hvp", p.hvp(seed), 1e-6)]
        {
            match gap {
                Ok(g) if g.relative() <= limit => {}
                Ok(g) => failures.push(format!("seed {seed} {what}: {g:?}")),
                Err(e) => failures.push(format!("seed {seed} {what}: {e}")),
            }
        }
    }
    assert!(judged >= 20, "only {judged} graphs could be judged");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn batched_random_graphs_are_stacks() {
    for seed in 0..120 {
        let r = make(seed, 8, Kind::Smooth);
        let data: Vec<_> = (0..2).map(|k| r.data(seed + 1000 * k).unwrap()).collect();
        let axes: Vec<(&str, i64)> = r.func.ports.iter().map(|p| (p.name.as_str(), 0)).collect();
        let mapped = rlx_ir::transform::vmap(&r.func, &axes, &Dim::constant(2), 0)
            .unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let both: Vec<(String, Tensor)> = data[0]
            .iter()
            .zip(&data[1])
            .map(|((n, a), (_, b))| {
                let shape: Vec<usize> = std::iter::once(2).chain(a.shape().iter().copied()).collect();
                let bytes = [a.bytes(), b.bytes()].concat();
                (n.clone(), Tensor::from_bytes(a.dtype(), &shape, bytes).unwrap())
            })
            .collect();
        let got =
            eval(&mapped, &refs(&both), &Options::default()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let each: Vec<_> =
            data.iter().map(|d| eval(&r.func, &refs(d), &Options::default()).unwrap()).collect();
        for (i, (name, a)) in got.iter().enumerate() {
            let want: Vec<f64> = each.iter().flat_map(|e| e[i].1.f64s()).collect();
            let far = a.f64s().iter().zip(&want).any(|(x, y)| (x - y).abs() > 1e-9 * y.abs().max(1.0));
            assert!(!far && a.len() == want.len(), "seed {seed} {name}: {:?}, want {want:?}", a.f64s());
        }
    }
}

#[test]
fn a_wrong_gradient_is_caught() {
    // The judge itself: x² whose gradient claims to be 2.1·x.
    let g = rlx_ir::Graph::new("wrong");
    let x = g.input("x", rlx_ir::DType::F64, [3]);
    let y = g.with_gradient(&[x], |a| vec![a[0] * a[0]], |a| vec![a[0] * a[2] * 2.1]);
    g.output("y", y[0]);
    let f = g.finish().unwrap();
    let data = vec![("x".to_string(), Tensor::new(&[3], &[0.5, -1.0, 2.0]).unwrap())];
    let p = Problem { func: &f, data: &data, wrt: &["x"], outputs: &["y"] };
    assert!(p.vjp(1).unwrap().relative() > 1e-3);
    assert!(p.jvp(1).unwrap().relative() > 1e-3);
}

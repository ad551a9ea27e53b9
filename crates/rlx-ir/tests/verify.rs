//! Each invariant of the verifier, broken by hand.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx_ir::func::{Def, PortKind, Source};
use rlx_ir::verify::verify;
use rlx_ir::{Code, DType::*, Dim, Func, Graph, Tensor, Type, ValueId, dim};

/// y = relu(x·w) with a scan behind it.
fn sound() -> Func {
    let g = Graph::new("sound");
    let x = g.input("x", F32, [dim("n", 8), 4.into()]);
    let w = g.param("w", F32, [4, 4]);
    let h = x.matmul(w).named("h");
    let (last, _) = g.scan(&[h.relu()], &[], 2, false, |c, _| (vec![c[0] * 0.5], vec![]));
    g.output("y", last[0]);
    g.finish().unwrap()
}

/// The message after breaking the sound graph.
fn broken(how: impl FnOnce(&mut Func)) -> String {
    let mut f = sound();
    verify(&f).unwrap();
    how(&mut f);
    let e = verify(&f).expect_err("the verifier accepts a broken graph");
    assert_eq!(e.code(), Code::Verify);
    e.to_string()
}

fn breaks(n: usize, how: impl FnOnce(&mut Func)) {
    let message = broken(how);
    assert!(message.contains(&format!("V{n}:")), "{message}");
}

#[test]
fn values_are_defined_once_and_in_order() {
    breaks(1, |f| f.values.swap(0, 2));
    breaks(1, |f| f.values[2].def = Def::Port(0));
    breaks(1, |f| f.values.truncate(3));
    breaks(1, |f| f.nodes[1].results = vec![ValueId(2)]);
    breaks(1, |f| f.ports[0].value = ValueId(900));
}

#[test]
fn uses_come_after_definitions() {
    // A cycle: the first node reads the second one's result.
    breaks(2, |f| f.nodes[0].operands[0] = Some(f.nodes[1].results[0]));
    breaks(2, |f| f.nodes[0].operands[0] = Some(f.nodes[0].results[0]));
    // Dangling.
    breaks(2, |f| f.nodes[0].operands[1] = Some(ValueId(77)));
    breaks(2, |f| f.outputs[0].value = ValueId(u32::MAX));
}

#[test]
fn types_are_what_the_rules_infer() {
    breaks(3, |f| f.values[2].ty = Type::new(F32, vec![Dim::constant(3)]));
    breaks(3, |f| f.nodes[0].operands.truncate(1));
    breaks(3, |f| f.nodes[0].operands.push(Some(ValueId(0))));
    breaks(3, |f| f.nodes.last_mut().unwrap().attrs.clear());
    breaks(3, |f| f.nodes.last_mut().unwrap().regions.clear());
    breaks(3, |f| f.values[0].ty = Type::new(I32, f.values[0].ty.shape.clone()));
}

#[test]
fn sizes_are_bounded() {
    breaks(4, |f| f.values[0].ty = Type::new(F32, vec![Dim::constant(i64::MAX); 2]));
    breaks(4, |f| f.values[0].ty = Type::new(F32, vec![Dim::constant(1); 40]));
    breaks(4, |f| f.values[0].ty = Type::new(F32, vec![Dim::constant(-1)]));
    breaks(4, |f| f.values[0].ty = Type::new(F32, vec![Dim::invalid()]));
}

#[test]
fn names_are_names_and_differ() {
    breaks(5, |f| f.ports[1].name = "x".into());
    breaks(5, |f| f.values[2].name = Some("w".into()));
    breaks(5, |f| f.ports[0].name = "no name".into());
    breaks(5, |f| f.outputs.push(f.outputs[0].clone()));
}

#[test]
fn a_symbol_has_one_bound() {
    let g = Graph::new("two_bounds");
    let x = g.input("x", F32, [dim("n", 8)]);
    g.output("x", x * 2.0);
    g.output("y", g.input("y", F32, [dim("n", 8)]));
    let mut f = g.finish().unwrap();
    f.values[1].ty.shape = vec![dim("n", 9)];
    let e = verify(&f).expect_err("two bounds");
    assert!(e.to_string().contains("V6:"), "{e}");
}

#[test]
fn regions_are_closed_functions() {
    let region = |f: &mut Func, how: &dyn Fn(&mut Func)| {
        let node = f.nodes.last_mut().unwrap();
        let mut r = (*node.regions[0]).clone();
        how(&mut r);
        node.regions[0] = r.into();
    };
    breaks(7, |f| region(f, &|r| r.ports[0].kind = PortKind::Param));
    breaks(2, |f| region(f, &|r| r.outputs[0].value = ValueId(50)));
    // Too deep, built by hand around the builder's own limit.
    breaks(7, |f| {
        let scan = f.nodes.last().unwrap().clone();
        for _ in 0..80 {
            let mut inner = (*scan.regions[0]).clone();
            let mut node = f.nodes.last().unwrap().clone();
            node.results = vec![ValueId(1)];
            node.operands = vec![Some(ValueId(0))];
            inner.values.truncate(1);
            inner.values.push(inner.values[0].clone());
            inner.values[1].def = Def::Node(0, 0);
            inner.values[1].name = None;
            inner.nodes = vec![node];
            inner.outputs[0].value = ValueId(1);
            f.nodes.last_mut().unwrap().regions = vec![inner.into()];
        }
    });
}

#[test]
fn sources_and_marks_fit_their_ports() {
    let data = || Tensor::new(&[4, 4], &[0f32; 16]).unwrap();
    breaks(8, |f| f.ports[0].source = Some(Source::Inline(data())));
    breaks(8, |f| f.ports[1].source = Some(Source::Inline(Tensor::scalar(1f32))));
    let mut f = sound();
    f.ports[1].source = Some(Source::Inline(data()));
    verify(&f).unwrap();
    let g = Graph::new("marked");
    let t = g.input("t", I32, [2]);
    g.output("t", t);
    let mut f = g.finish().unwrap();
    f.ports[0].diff = true;
    assert!(verify(&f).expect_err("an integer marked diff").to_string().contains("V8:"));
}

#[test]
fn attributes_are_of_their_kinds_even_where_no_shape_depends_on_them() {
    use rlx_ir::attr::AttrValue;
    for name in rlx_ir::ops::all().iter().filter(|d| d.regions.is_empty()).map(|d| d.name) {
        let op = rlx_ir::ops::find(name).unwrap();
        for sample in op.sample_list() {
            let rlx_ir::sample::SampleKind::Op { args, attrs } = &sample.what else { continue };
            let tensors = args.iter().enumerate();
            let types: Vec<_> = tensors
                .map(|(i, a)| a.as_ref().map(|a| a.tensor(F32, i as u64).map(|t| t.ty()).unwrap()))
                .collect();
            for i in 0..attrs.len() {
                let mut attrs = attrs.clone();
                attrs[i] = AttrValue::Word("nonsense");
                let e = op.infer_types(&attrs, &types, &[]).expect_err(name);
                assert_eq!(e.code(), rlx_ir::Code::Attribute, "{name}: {e}");
            }
        }
    }
}

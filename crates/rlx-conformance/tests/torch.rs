//! The oracle and its gradients against PyTorch.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx_conformance::vectors::{self, Case};
use rlx_ir::attr::AttrValue;
use rlx_ir::op::Arity;
use rlx_ir::{Func, Tensor};
use std::collections::BTreeSet;

/// Ops that mean nothing in PyTorch.
const WITHOUT_MEANING: &[(&str, &str)] =
    &[("barrier", "an instruction to the compiler"), ("size_of", "a size of a symbolic shape")];

fn family(name: &str) {
    let cases = vectors::load(name).unwrap();
    assert!(!cases.is_empty(), "{name} has no cases");
    let failure = |c: &Case| c.check().err().map(|e| format!("{}: {e}\n    {}", c.name, body(&c.text)));
    let failures: Vec<String> = cases.iter().filter_map(failure).collect();
    assert!(
        failures.is_empty(),
        "{} of {} cases fail:\n{}",
        failures.len(),
        cases.len(),
        failures.join("\n")
    );
}

/// The lines of the graph that say something.
fn body(text: &str) -> String {
    let lines = text.lines().map(str::trim);
    lines
        .filter(|l| l.contains('=') && !l.starts_with("output") || l.starts_with("input"))
        .collect::<Vec<_>>()
        .join("; ")
}

macro_rules! families {
    ($($name:ident)*) => {
        $(#[test] fn $name() { family(stringify!($name)); })*

        #[test]
        fn every_file_has_a_test() {
            let mut here = vec![$(stringify!($name)),*];
            here.sort_unstable();
            assert_eq!(vectors::families().unwrap(), here);
        }
    };
}

families! {
    arithmetic math activations casts reductions cumulative shapes indexing sorting linear convolution pooling images fourier
    softmax norms losses rope attention ssm recurrent quantized random collectives control
}

/// The tensor with another last element.
fn spoilt(t: &Tensor) -> Option<Tensor> {
    let mut bytes = t.bytes().to_vec();
    let size = t.dtype().bytes()?;
    let last = bytes.len().checked_sub(size)?;
    let old = Tensor::from_bytes(t.dtype(), &[1], bytes.get(last..)?.to_vec()).ok()?;
    let change = |x: f64| if x.is_finite() { x + x.abs() + 0.5 } else { 0.0 };
    let new = match t.dtype().is_float() {
        true => Tensor::from_f64s(t.dtype(), &[1], &[change(*old.to_f64s()?.first()?)]),
        false => Tensor::from_i128s(t.dtype(), &[1], &[*old.to_i128s()?.first()? ^ 1]),
    };
    bytes.splice(last.., new?.bytes().iter().copied());
    Tensor::from_bytes(t.dtype(), t.shape(), bytes).ok()
}

/// The comparison is no formality: every case fails as soon as any of its results is another.
#[test]
fn wrong_vectors_are_noticed() {
    let (mut tried, mut blind) = (0, Vec::new());
    for name in vectors::families().unwrap() {
        for mut case in vectors::load(&name).unwrap() {
            let results: Vec<String> = case
                .tensors
                .keys()
                .filter(|k| k.starts_with("out.") || k.starts_with("grad."))
                .cloned()
                .collect();
            for key in results {
                let Some(wrong) = spoilt(&case.tensors[&key]) else { continue };
                let right = case.tensors.insert(key.clone(), wrong).unwrap();
                if case.check().is_ok() {
                    blind.push(format!("{name}: {} does not notice a wrong {key}", case.name));
                }
                case.tensors.insert(key, right);
                tried += 1;
            }
        }
    }
    assert!(blind.is_empty(), "{}", blind.join("\n"));
    assert!(tried > 3000, "{tried} results");
}

/// The graph of a case, and the one with its gradients.
fn graphs(case: &Case) -> Vec<Func> {
    let Ok(f) = case.func() else { return Vec::new() };
    let gradient = case.gradient(&f).ok().flatten();
    std::iter::once(f).chain(gradient).collect()
}

fn collect(f: &Func, into: &mut BTreeSet<&'static str>) {
    for node in &f.nodes {
        into.insert(node.op.name);
        node.regions.iter().for_each(|r| collect(r, into));
    }
}

#[test]
fn every_op_is_checked() {
    let mut seen = BTreeSet::new();
    for name in vectors::families().unwrap() {
        for case in vectors::load(&name).unwrap() {
            case.func().iter().for_each(|f| collect(f, &mut seen));
        }
    }
    let named: BTreeSet<&str> = WITHOUT_MEANING.iter().map(|(op, _)| *op).collect();
    let all: BTreeSet<&str> = rlx_ir::ops::all().iter().map(|d| d.name).collect();
    let missing: Vec<&&str> = all.iter().filter(|op| !seen.contains(**op) && !named.contains(*op)).collect();
    assert!(missing.is_empty(), "ops that no case checks: {missing:?}");
    let stale: Vec<&&str> = named.iter().filter(|op| !all.contains(*op) || seen.contains(**op)).collect();
    assert!(stale.is_empty(), "named as unchecked, but checked or no op at all: {stale:?}");
}

/// Notes that an attribute of an op had another value than its default, and that an operand was given or left out.
fn note(f: &Func, into: &mut BTreeSet<String>) {
    for node in &f.nodes {
        for (spec, value) in node.op.attrs.iter().zip(&node.attrs) {
            if spec.default.is_none_or(|d| d() != *value) && *value != AttrValue::Absent {
                into.insert(format!("{}.{} changed", node.op.name, spec.name));
            }
        }
        for (i, spec) in node.op.operands.iter().enumerate() {
            let given = node.operands.get(i).is_some_and(Option::is_some);
            into.insert(format!(
                "{}.{} {}",
                node.op.name,
                spec.name,
                if given { "given" } else { "left out" }
            ));
        }
        node.regions.iter().for_each(|r| note(r, into));
    }
}

#[test]
fn every_attribute_and_operand_is_checked() {
    let mut seen = BTreeSet::new();
    for name in vectors::families().unwrap() {
        for case in vectors::load(&name).unwrap() {
            graphs(&case).iter().for_each(|f| note(f, &mut seen));
        }
    }
    let mut missing = Vec::new();
    let direct = |d: &&&rlx_ir::op::OpDef| seen.iter().any(|s| s.starts_with(&format!("{}.", d.name)));
    for op in rlx_ir::ops::all().iter().filter(direct) {
        let mut want = |what: String| {
            if !seen.contains(&what) {
                missing.push(what)
            }
        };
        op.attrs.iter().for_each(|a| want(format!("{}.{} changed", op.name, a.name)));
        for o in op.operands.iter().filter(|o| o.arity == Arity::Optional) {
            want(format!("{}.{} given", op.name, o.name));
            want(format!("{}.{} left out", op.name, o.name));
        }
    }
    assert!(missing.is_empty(), "never so in any case:\n{}", missing.join("\n"));
}

//! The oracle and its gradients against PyTorch.

use rlx_conformance::vectors::{self, Case};
use rlx_ir::Func;
use std::collections::BTreeSet;

/// Ops that mean nothing in PyTorch.
const WITHOUT_MEANING: &[(&str, &str)] = &[
    ("barrier", "an instruction to the compiler"),
    ("constant", "data in the text: every case's inputs are data"),
    ("size_of", "a size of a symbolic shape"),
];

fn family(name: &str) {
    let cases = vectors::load(name).unwrap();
    assert!(!cases.is_empty(), "{name} has no cases");
    let failure = |c: &Case| c.check().err().map(|e| format!("{}: {e}\n    {}", c.name, body(&c.text)));
    let failures: Vec<String> = cases.iter().filter_map(failure).collect();
    assert!(failures.is_empty(), "{} of {} cases fail:\n{}", failures.len(), cases.len(), failures.join("\n"));
}

/// The lines of the graph that say something.
fn body(text: &str) -> String {
    let lines = text.lines().map(str::trim);
    lines.filter(|l| l.contains('=') && !l.starts_with("output") || l.starts_with("input")).collect::<Vec<_>>().join("; ")
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
    arithmetic math activations casts reductions cumulative shapes indexing sorting linear convolution pooling fourier
    softmax norms losses rope attention ssm quantized random collectives control
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
            let Ok(f) = case.func() else { continue };
            collect(&f, &mut seen);
            if let Ok(Some(g)) = case.gradient(&f) {
                collect(&g, &mut seen);
            }
        }
    }
    let named: BTreeSet<&str> = WITHOUT_MEANING.iter().map(|(op, _)| *op).collect();
    let all: BTreeSet<&str> = rlx_ir::ops::all().iter().map(|d| d.name).collect();
    let missing: Vec<&&str> = all.iter().filter(|op| !seen.contains(**op) && !named.contains(*op)).collect();
    assert!(missing.is_empty(), "ops that no case checks: {missing:?}");
    let stale: Vec<&&str> = named.iter().filter(|op| !all.contains(*op)).collect();
    assert!(stale.is_empty(), "no such ops: {stale:?}");
}

//! ONNX's backend suite: what passed before passes still, and the page about it is true.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx_conformance::onnx::Outcome;
use rlx_conformance::onnx::page::{self, listed};
use rlx_conformance::onnx::suite::{self, Case, close};
use rlx_ir::{DType, Tensor};
use std::fs;

#[test]
fn the_suite_passes_where_it_passed() {
    let cases = suite::cases().unwrap();
    let begun = std::time::Instant::now();
    let results: Vec<(&Case, Outcome)> = cases.iter().zip(suite::run(&cases)).collect();
    println!("{} cases in {:.1} s", cases.len(), begun.elapsed().as_secs_f64());
    let mut wrong = Vec::new();
    for (kind, counted, aside) in page::shares(&results) {
        // Random numbers of another generator and images to decode are out of reach.
        let least = if kind == "node" { 0.95 } else { 1.0 };
        if counted.ratio() < least {
            wrong.push(format!("of {kind} only {} of {} pass", counted.passing, counted.all));
        }
        let percent = counted.ratio() * 100.0;
        println!(
            "{kind}: {} of {} ({percent:.1} %); aside {} of {}",
            counted.passing, counted.all, aside.passing, aside.all
        );
    }
    let list = listed(&fs::read_to_string(page::list_path()).unwrap_or_default());
    wrong.extend(page::disagreements(&list, results.iter().map(|(c, o)| (c.name.as_str(), o))));
    let known = |name: &str| name.starts_with("model/") || cases.iter().any(|c| c.name == name);
    for name in list.iter().filter(|n| !known(n)) {
        wrong.push(format!("{name} is listed, but there is no such case"));
    }
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
    let old = fs::read_to_string(page::page_path()).unwrap_or_default();
    assert!(old == page::render(&results, &list), "docs/onnx.md is stale: cargo xtask bless");
}

#[test]
fn elements_are_compared_as_the_suite_does() {
    let t = |v: &[f32]| Tensor::new(&[v.len()], v).unwrap();
    let nan = f32::NAN;
    assert_eq!(close(&t(&[1.0, nan, f32::INFINITY]), &t(&[1.0009, nan, f32::INFINITY]), 1e-3, 0.0), Ok(()));
    for (want, got) in [(1.0, 1.002), (nan, 1.0), (1.0, nan), (f32::INFINITY, 1.0), (1.0, -1.0), (0.0, 1e-6)]
    {
        let e = close(&t(&[2.0, want]), &t(&[2.0, got]), 1e-3, 1e-7).unwrap_err();
        assert!(e.starts_with("1 of 2 elements are wrong: element 1"), "{e}");
    }
    assert!(
        close(&t(&[1.0]), &t(&[1.0, 2.0]), 1.0, 1.0)
            .unwrap_err()
            .contains("f32[1] is wanted, but f32[2] came")
    );
    let ints = Tensor::new(&[1], &[1i64]).unwrap();
    assert!(close(&t(&[1.0]), &ints, 1.0, 1.0).unwrap_err().contains("i64[1] came"));
    let half = |x: f64| Tensor::from_f64s(DType::BF16, &[1], &[x]).unwrap();
    assert_eq!(close(&half(1.0), &half(1.0078125), 1e-3, 0.0), Ok(()));
}

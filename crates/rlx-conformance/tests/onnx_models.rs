//! Real ONNX models beside ONNX Runtime: one import and compilation each, all sizes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx::model::{ImportOptions, Model};
use rlx::{Device, Tensor};
use rlx_conformance::onnx::{Outcome, page, real};
use std::fs;

#[test]
fn real_models_agree_with_onnx_runtime() {
    println!("model, time, and for each case the distance from ONNX Runtime and (of it from itself)");
    let list = page::listed(&fs::read_to_string(page::list_path()).unwrap_or_default());
    let mut results = Vec::new();
    for model in real::models().unwrap() {
        let begun = std::time::Instant::now();
        let (outcome, far) = model.run();
        let far: Vec<String> = far
            .iter()
            .zip(&model.spread)
            .map(|(far, own)| format!("{:.0e} ({:.0e})", far.most, own.most))
            .collect();
        println!("{:<20} {:>5.1} s  {}", model.name, begun.elapsed().as_secs_f64(), far.join(", "));
        if let Outcome::Fail(e) | Outcome::Panic(e) = &outcome {
            println!("    {e}");
        }
        results.push((model.list_name(), outcome));
    }
    let mut wrong = page::disagreements(&list, results.iter().map(|(n, o)| (n.as_str(), o)));
    for name in list.iter().filter(|n| n.starts_with("model/") && !results.iter().any(|(m, _)| m == *n)) {
        wrong.push(format!("{name} is listed, but there is no such model"));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The branches of this model fit one length each, and which one is taken is an input.
#[test]
fn a_call_settles_what_a_model_leaves_open() {
    let models = real::models().unwrap();
    let model = models.iter().find(|m| m.name == "silero-vad-8k").unwrap();
    let given = model.inputs(1).unwrap();
    let inputs: Vec<(&str, &Tensor)> = given.iter().map(|(n, t)| (n.as_str(), t)).collect();
    assert!(Model::open(model.path()).is_err());
    let (opened, rest) = Model::open_for(model.path(), &ImportOptions::default(), &inputs).unwrap();
    let got = opened.compile(Device::Cpu).unwrap().run(&rest).unwrap();
    for (name, want) in model.outputs(1).unwrap() {
        assert!(real::difference(&want, &got[name.as_str()]).most < 1e-4, "{name}");
    }
}

#[test]
fn differences_are_relative_to_the_largest_number() {
    let t = |v: &[f32]| Tensor::new(&[v.len()], v).unwrap();
    let far = real::difference(&t(&[3.0, -4.0]), &t(&[3.5, -4.0]));
    assert_eq!((far.most, far.mean), (0.125, 0.1));
    assert_eq!(real::difference(&t(&[0.0, f32::NAN]), &t(&[0.0, f32::NAN])).most, 0.0);
    for (a, b) in [(vec![1.0], vec![1.0, 2.0]), (vec![f32::NAN], vec![1.0]), (vec![1.0], vec![f32::INFINITY])]
    {
        assert_eq!(real::difference(&t(&a), &t(&b)).most, f64::INFINITY);
    }
    let ints = Tensor::new(&[1], &[1i64]).unwrap();
    assert_eq!(real::difference(&t(&[1.0]), &ints).most, f64::INFINITY);
}

//! ONNX models: run, shown, written as graphs; and what a caller is told about those that cannot be.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use rlx::Tensor;
use rlx::formats::{View, npz, open};
use rlx_conformance::onnxfile::{Message, graph, model, node, tensor, value};
use std::path::Path;
use support::{Folder, fails, works};

const F32: i64 = 1;
const I64: i64 = 7;

/// `y:0 = reshape(relu(x:0 · w), shape)`, with an open first axis; `w` is large enough to be a param.
fn written(f: &Folder, name: &str) -> String {
    let w: Vec<u8> = (0..8 * 8).flat_map(|i| (i as f32 / 64.0 - 0.5).to_le_bytes()).collect();
    let open = Message::new().text(2, "batch");
    let ty =
        Message::new().int(1, F32).with(2, &Message::new().with(1, &open).with(1, &Message::new().int(1, 8)));
    let x = Message::new().text(1, "x:0").with(2, &Message::new().with(1, &ty));
    let nodes = [
        node("MatMul", &["x:0", "w"], &["h"]),
        node("Relu", &["h"], &["r"]),
        node("Reshape", &["r", "shape"], &["y:0"]),
    ];
    let g = graph(
        &nodes,
        &[tensor("w", F32, &[8, 8], &w)],
        &[x, value("shape", I64, &[2])],
        &[value("y:0", F32, &[])],
    );
    let path = f.path(name);
    std::fs::write(&path, model(&g, 17, &[]).0).unwrap();
    path
}

fn given(f: &Folder, batch: usize) -> String {
    let x = Tensor::new(&[batch, 8], &vec![1f32; batch * 8]).unwrap();
    let shape = Tensor::new(&[2], &[-1i64, 4]).unwrap();
    let path = f.path(&format!("in{batch}.npz"));
    npz::write(Path::new(&path), &[("x:0", View::from(&x)), ("shape", View::from(&shape))]).unwrap();
    path
}

#[test]
fn a_model_runs_by_its_own_names_at_any_size() {
    let f = Folder::new("onnx_run");
    let path = written(&f, "m.onnx");
    for (batch, device) in [(1, "cpu"), (3, "cpu"), (3, "oracle")] {
        let out = f.path("y.safetensors");
        works(&["run", &path, "--in", &given(&f, batch), "--out", &out, "--device", device]);
        let y = open(&out).unwrap().tensor("y:0").unwrap().to_tensor().unwrap();
        assert_eq!(y.shape(), [batch * 2, 4]);
        // The sum of column c of w, which is (8 · 28 + 8 c) / 64 − 4.
        let want: Vec<f32> = (0..8).map(|c| ((224 + 8 * c) as f32 / 64.0 - 4.0).max(0.0)).collect();
        assert_eq!(y.to_vec::<f32>().unwrap()[..8], want);
    }
}

#[test]
fn a_model_is_shown_and_becomes_a_graph() {
    let f = Folder::new("onnx_convert");
    let path = written(&f, "m.onnx");
    let text = works(&["inspect", &path]);
    for part in ["ONNX, 1 tensor, ", "\"x:0: f32[batch, 8]\"", "nodes MatMul", "w  f32  [8, 8]"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let json: serde_json::Value =
        serde_json::from_str(&works(&["inspect", &path, "--format", "json"])).unwrap();
    assert_eq!(json["format"], "onnx");
    assert_eq!(json["tensors"][0]["shape"], serde_json::json!([8, 8]));
    // What decides shapes is not given.
    fails(&["inspect", &path, "--stage", "rewrite"], 1, "depends on the values of shape");
    fails(&["convert", &path, &f.path("m.rlx")], 1, "depends on the values of shape");

    let g = graph(&[node("Relu", &["x"], &["y"])], &[], &[value("x", F32, &[2, 3])], &[value("y", F32, &[])]);
    let small = f.path("small.onnx");
    std::fs::write(&small, model(&g, 17, &[]).0).unwrap();
    let to = f.path("small.rlx");
    works(&["convert", &small, &to]);
    let text = std::fs::read_to_string(&to).unwrap();
    assert!(text.contains("relu(x)"), "{text}");
    assert_eq!(works(&["inspect", &to]), works(&["inspect", &small, "--stage", "graph"]));
    let data = f.path("w.safetensors");
    works(&["convert", &path, &data]);
    assert_eq!(open(&data).unwrap().tensor("w").unwrap().shape(), [8, 8]);
    fails(&["convert", &data, &to], 2, "only ONNX models");
    fails(&["convert", &data, &f.path("w.onnx")], 2, "not written");
}

#[test]
fn what_cannot_be_imported_is_told_at_once() {
    let f = Folder::new("onnx_refused");
    let nodes = [
        node("Frob", &["x"], &["a"]),
        node("Relu", &["a"], &["b"]),
        node("Nicate", &["b"], &["y"]),
        node("Transpose", &["x"], &["t"]).attr_ints("perm", &[0, 0]),
    ];
    let g = graph(&nodes, &[], &[value("x", F32, &[2, 3])], &[value("y", F32, &[])]);
    let path = f.path("m.onnx");
    std::fs::write(&path, model(&g, 17, &[]).0).unwrap();
    for part in ["3 of 4 nodes", "the_Frob (Frob, version 17)", "the_Nicate", "the_Transpose", "twice"] {
        fails(&["run", &path], 1, part);
    }
    let path = written(&f, "two.onnx");
    fails(&["run", &path], 1, "depends on the values of shape");
    let lone = f.tensors("lone.safetensors", &[("x:0", &[1, 8], &[0.0; 8])]);
    fails(&["run", &path, "--in", &lone], 1, "depends on the values of shape");
    std::fs::write(f.path("cut.onnx"), &std::fs::read(&path).unwrap()[..40]).unwrap();
    fails(&["run", &f.path("cut.onnx")], 1, "ONNX");
    fails(&["run", &f.path("none.onnx")], 1, "none.onnx");
}

//! Files of tensors: what is in them, in other formats, as inputs and outputs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use rlx::formats::{Value, View, gguf, npy, npz, open, safetensors};
use rlx::{DType, Tensor};
use std::path::Path;
use support::{Folder, fails, floats, works};

fn packed(scheme: &str, shape: &[usize]) -> Tensor {
    let scheme = rlx::quant::Scheme::parse(scheme).unwrap();
    let xs: Vec<f32> = (0..shape.iter().product::<usize>()).map(|i| (i as f32).sin()).collect();
    let planes = scheme.encode(shape, &xs).unwrap();
    Tensor::packed(scheme, shape, planes.into_iter().map(Into::into).collect()).unwrap()
}

/// A model of two layers.
fn model() -> Vec<(&'static str, Tensor)> {
    vec![
        ("embed", Tensor::new(&[4, 32], &[0.5f32; 128]).unwrap()),
        ("layer.w", packed("q4_0", &[64, 32])),
        ("layer.b", Tensor::new(&[3], &[1f32, 2.0, 3.0]).unwrap()),
    ]
}

fn metadata() -> Vec<(String, Value)> {
    let tokens: Vec<String> = (0..9).map(|i| format!("t{i}")).collect();
    vec![
        ("general.architecture".into(), "toy".into()),
        ("toy.heads".into(), 12u32.into()),
        ("toy.eps".into(), 1e-5f32.into()),
        ("tokens".into(), tokens.into()),
    ]
}

fn views<'a>(list: &'a [(&'a str, Tensor)]) -> Vec<(&'a str, View<'a>)> {
    list.iter().map(|(n, t)| (*n, t.into())).collect()
}

#[test]
fn a_file_is_listed() {
    let f = Folder::new("listed");
    let path = f.path("toy.gguf");
    gguf::write(Path::new(&path), &views(&model()), &metadata()).unwrap();
    let text = works(&["inspect", &path]);
    let want = format!(
        "{path}: GGUF, 3 tensors, 1.6 KiB

metadata
  general.architecture  toy
  toy.heads             12
  toy.eps               1e-5
  tokens                [\"t0\", \"t1\", \"t2\", \"t3\", \"t4\", \"t5\", … 9 in all]

tensors
  embed    f32           [4, 32]   512 B
  layer.w  packed<q4_0>  [64, 32]  1.1 KiB
  layer.b  f32           [3]       12 B

bytes by dtype
  packed<q4_0>  1 tensor   1.1 KiB  {}
  f32           2 tensors  524 B    {}

tensors by size
  4 B to 16 B         1 tensor   {}
  16 B to 64 B        0 tensors
  64 B to 256 B       0 tensors
  256 B to 1.0 KiB    1 tensor   {}
  1.0 KiB to 4.0 KiB  1 tensor   {}
",
        "█".repeat(28),
        "█".repeat(13),
        "█".repeat(40),
        "█".repeat(40),
        "█".repeat(40),
    );
    assert_eq!(text, want);

    let json: serde_json::Value =
        serde_json::from_str(&works(&["inspect", &path, "--format", "json"])).unwrap();
    assert_eq!(json["format"], "gguf");
    assert_eq!(json["metadata"]["toy.heads"], 12);
    assert_eq!(json["metadata"]["tokens"][8], "t8");
    let w = serde_json::json!({"name": "layer.w", "dtype": "packed<q4_0>", "stored": "Q4_0", "shape": [64, 32], "bytes": 1152});
    assert_eq!(json["tensors"][1], w);
    assert_eq!(json["total"], serde_json::json!({"tensors": 3, "bytes": 1676}));
    assert_eq!(json["dtypes"]["f32"], serde_json::json!({"tensors": 2, "bytes": 524}));
    assert_eq!(json["sizes"][4], serde_json::json!({"from": 1024, "to": 4096, "tensors": 1, "bytes": 1152}));
}

#[test]
fn every_format_is_recognised_by_what_is_in_it() {
    let f = Folder::new("recognised");
    let (list, meta) = (model(), metadata());
    let path = f.path("no-name");
    let plain = Tensor::new(&[3], &[1f32, 2.0, 3.0]).unwrap();
    let listed = |format: &str, tensors: usize| {
        let text = works(&["inspect", &path]);
        assert!(text.starts_with(&format!("{path}: {format}, {tensors} tensor")), "{text}");
    };
    safetensors::write(Path::new(&path), &views(&list), &meta).unwrap();
    listed("safetensors", 3);
    gguf::write(Path::new(&path), &views(&list), &meta).unwrap();
    listed("GGUF", 3);
    npz::write(Path::new(&path), &views(&list)).unwrap();
    listed("npz", 3);
    npy::write(Path::new(&path), &(&plain).into()).unwrap();
    listed("npy", 1);
    let index = f.path("m.safetensors.index.json");
    safetensors::write_parts(Path::new(&index), &views(&list), &meta, 600).unwrap();
    assert!(works(&["inspect", &index]).contains("safetensors in 4 files, 3 tensors"));
    gguf::write_parts(Path::new(&f.path("m.gguf")), &views(&list), &meta, 600).unwrap();
    assert!(works(&["inspect", &f.path("m-00001-of-00003.gguf")]).contains("GGUF in 3 files, 3 tensors"));
}

#[test]
fn files_are_converted() {
    let f = Folder::new("converted");
    let (list, meta) = (model(), metadata());
    let start = f.path("a.gguf");
    gguf::write(Path::new(&start), &views(&list), &meta).unwrap();
    let convert = |from: &str, to: &str, more: &[&str]| {
        let (from, to) = (f.path(from), f.path(to));
        works(&[&["convert", from.as_str(), to.as_str()], more].concat())
    };
    let same = |file: &str| {
        let got = open(f.path(file)).unwrap();
        assert_eq!(got.entries().len(), 3);
        for (name, t) in &list {
            assert_eq!(&got.tensor(name).unwrap().to_tensor().unwrap(), t, "{file}: {name}");
        }
    };
    assert!(
        convert("a.gguf", "b.safetensors", &[]).ends_with("b.safetensors: safetensors, 3 tensors, 1.6 KiB\n")
    );
    same("b.safetensors");
    assert_eq!(open(f.path("b.safetensors")).unwrap().value("toy.heads"), Some(&"12".into()));
    convert("b.safetensors", "c.gguf", &[]);
    same("c.gguf");
    assert!(
        convert("a.gguf", "d.safetensors.index.json", &["--part", "600"]).contains(" in 4 files, 3 tensors")
    );
    same("d.safetensors.index.json");
    convert("d.safetensors.index.json", "e.gguf", &["--part", "1K"]);
    same("e-00002-of-00002.gguf");
    assert_eq!(open(f.path("a.gguf")).unwrap().metadata(), meta);
    let aligned: Vec<(String, Value)> = vec![("general.alignment".into(), 64u32.into())];
    gguf::write(Path::new(&f.path("aligned.gguf")), &views(&list), &aligned).unwrap();
    convert("aligned.gguf", "again.gguf", &[]);
    assert_eq!(open(f.path("again.gguf")).unwrap().metadata(), aligned);
    convert("aligned.gguf", "other.safetensors", &[]);
    assert!(open(f.path("other.safetensors")).unwrap().metadata().is_empty());
    let out = convert("a.gguf", "f.npz", &[]);
    assert!(out.ends_with("left out: 4 keys of metadata, for which npz has no place\n"), "{out}");
    let npz = open(f.path("f.npz")).unwrap();
    assert_eq!(npz.entry("layer.w.blocks").unwrap().dtype(), Some(DType::U8));
    // A file may be replaced by itself in another form.
    convert("a.gguf", "a.gguf", &[]);
    same("a.gguf");

    fails(&["convert", &start, &f.path("x.txt")], 2, "ends in .safetensors");
    fails(&["convert", &start, &f.path("x.rlx")], 2, "only ONNX models");
    fails(&["convert", &start], 2, "TO");
    fails(&["convert", &start, &f.path("x.npz"), "--part", "1G"], 2, "come in parts");
    for n in ["0", "1T", "-1", "", "99999999999G"] {
        fails(&["convert", &start, &f.path("x.gguf"), &format!("--part={n}")], 2, "--part");
    }
    fails(&["convert", &start, &f.path("x.npy")], 1, "one array, not 3");
    fails(&["convert", &start, &f.path("no/x.npz")], 1, "there is no folder");
    fails(&["convert", &f.path("gone"), &f.path("x.npz")], 1, "gone: ");
    let bf16 = Tensor::from_f64s(DType::BF16, &[1], &[1.0]).unwrap();
    safetensors::write(Path::new(&f.path("h")), &[("h", (&bf16).into())], &[]).unwrap();
    fails(&["convert", &f.path("h"), &f.path("x.npz")], 1, "\"h\": is bf16, which NumPy has not");
    assert!(!Path::new(&f.path("x.npz")).exists());
}

#[test]
fn graphs_run_on_arrays_of_numpy() {
    let f = Folder::new("arrays");
    let graph = f.graph("g.rlx", "graph g { dim n <= 9 input x: f32[n, 2] y = add(x, x) output y = y }");
    let x = Tensor::new(&[3, 2], &[1f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
    let (npy_in, npz_in) = (f.path("any name.npy"), f.path("x.npz"));
    npy::write(Path::new(&npy_in), &(&x).into()).unwrap();
    npz::write(Path::new(&npz_in), &[("x", (&x).into())]).unwrap();
    for from in [&npy_in, &npz_in] {
        for to in ["y.npz", "y.safetensors", "y.gguf", "y"] {
            let to = f.path(to);
            works(&["run", &graph, "--in", from, "--out", &to]);
            assert_eq!(floats(&to, "y"), [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]);
        }
    }
    works(&["run", &graph, "--in", &npy_in, "--out", &f.path("y.npy")]);
    assert_eq!(floats(&f.path("y.npy"), "y").len(), 6);
    let two =
        f.graph("h.rlx", "graph h { input a: f32[3, 2] input b: f32[3, 2] y = add(a, b) output y = y }");
    fails(&["run", &two, "--in", &npy_in], 1, "has any name, but the graph has only a, b");
}

#[test]
fn files_that_mean_no_good() {
    let f = Folder::new("no-good");
    let write = |name: &str, bytes: &[u8]| {
        std::fs::write(f.path(name), bytes).unwrap();
        f.path(name)
    };
    fails(&["inspect", &write("m.pt", b"\x80\x02}q\x00.")], 1, "save_file(torch.load(\"m.pt\"");
    fails(&["inspect", &write("x.gguf", b"GGUF\0\0\0\x03")], 1, "byte order");
    fails(&["inspect", &write("x.safetensors", b"hello")], 1, "header");
    fails(&["inspect", &write("x.npz", b"PK\x03\x04")], 1, "no directory");
    fails(&["inspect", &write("x.npy", b"\x93NUMPY\x01\x00\xff\xff{")], 1, "longer than the file");
    fails(&["inspect", &write("x.bin", b"what")], 2, "neither a graph");
    fails(&["inspect", &f.path("gone.gguf")], 1, "gone.gguf: ");
    let good = f.tensors("g.safetensors", &[("\u{1b}[2J\n", &[1], &[1.0])]);
    assert!(!works(&["inspect", &good]).contains('\u{1b}'));
    fails(&["inspect", &good, "--stage", "plan"], 2, "no stages");
    fails(&["inspect", &good, "--accuracy"], 2, "no stages");
    fails(&["inspect", &good, "--format", "dot"], 2, "no graph");
    fails(&["run", &good], 2, "neither a graph");
}

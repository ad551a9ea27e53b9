//! Files go both ways between RLX and the Python packages safetensors, gguf and numpy: `scripts/check_formats.py`, which says
//! how a folder of cases is laid out, is the other side.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use common::{Folder, dtypes};
use rlx_formats::{List, Value, View, archive::plane_names, gguf, npy, npz, open, safetensors};
use rlx_ir::{DType, Tensor};
use serde_json::json;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

fn script(what: &str, folder: &Path) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let python = root.join("target/material/venv").join(if cfg!(windows) {
        "Scripts/python.exe"
    } else {
        "bin/python"
    });
    assert!(python.exists(), "{}: no such interpreter; `cargo xtask material` makes it", python.display());
    let done = Command::new(python)
        .arg(root.join("scripts/check_formats.py"))
        .arg(what)
        .arg(folder)
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap().trim().into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, b| {
        write!(out, "{b:02x}").unwrap();
        out
    })
}

/// The kind of a value, and the value; a list is of one kind.
fn value(v: &Value) -> (String, serde_json::Value) {
    let name = |debug: String| debug.split('(').next().unwrap().to_string();
    match v {
        Value::List(list) => {
            (name(format!("{list:?}")), (0..list.len()).map(|i| value(&list.get(i).unwrap()).1).collect())
        }
        Value::U8(x) => (name(format!("{v:?}")), json!(x)),
        Value::I8(x) => (name(format!("{v:?}")), json!(x)),
        Value::U16(x) => (name(format!("{v:?}")), json!(x)),
        Value::I16(x) => (name(format!("{v:?}")), json!(x)),
        Value::U32(x) => (name(format!("{v:?}")), json!(x)),
        Value::I32(x) => (name(format!("{v:?}")), json!(x)),
        Value::U64(x) => (name(format!("{v:?}")), json!(x)),
        Value::I64(x) => (name(format!("{v:?}")), json!(x)),
        Value::F32(x) => (name(format!("{v:?}")), json!(x)),
        Value::F64(x) => (name(format!("{v:?}")), json!(x)),
        Value::Bool(x) => (name(format!("{v:?}")), json!(x)),
        Value::Text(x) => (name(format!("{v:?}")), json!(x)),
    }
}

fn described(metadata: &[(String, Value)]) -> Vec<serde_json::Value> {
    metadata.iter().map(|(key, v)| json!([key, value(v).0, value(v).1])).collect()
}

#[test]
fn files_that_python_wrote() {
    let folder = Folder::new();
    let count: usize = script("write", &folder.0).parse().unwrap();
    let cases: Vec<serde_json::Value> =
        serde_json::from_slice(&std::fs::read(folder.path("cases.json")).unwrap()).unwrap();
    assert!(count >= 50 && cases.len() == count, "{count}");
    let mut strange = 0;
    for case in &cases {
        let file = case["file"].as_str().unwrap();
        let got = open(folder.path(file)).unwrap();
        assert_eq!(got.format().to_string().to_lowercase(), case["format"], "{file}");
        assert_eq!(&json!(described(got.metadata())), &case["metadata"], "{file}");
        let tensors = case["tensors"].as_array().unwrap();
        assert_eq!(got.entries().len(), tensors.len(), "{file}");
        for t in tensors {
            let name = t["name"].as_str().unwrap();
            let entry = got.entry(name).unwrap_or_else(|| panic!("{file}: no {name}"));
            assert_eq!(json!(entry.shape()), t["shape"], "{file}: {name}");
            assert_eq!(json!(entry.dtype().map(|d| d.to_string())), t["dtype"], "{file}: {name}");
            match entry.dtype() {
                Some(_) => assert_eq!(hex(got.tensor(name).unwrap().bytes()), t["hex"], "{file}: {name}"),
                None => {
                    strange += 1;
                    assert_eq!(entry.stored(), t["stored"], "{file}: {name}");
                    assert!(
                        got.tensor(name).unwrap_err().to_string().contains("RLX has not"),
                        "{file}: {name}"
                    );
                }
            }
        }
    }
    assert!(strange > 10, "{strange}");
}

/// A tensor whose bytes tell it from others.
fn tensor(dtype: DType, shape: &[usize]) -> Tensor {
    let byte = |i: usize| (i * 37 + shape.len() * 11) as u8;
    if let DType::Packed(scheme) = dtype {
        let xs: Vec<f32> = (0..shape.iter().product()).map(|i| f32::from(byte(i)) / 16.0 - 8.0).collect();
        let planes = scheme.encode(shape, &xs).unwrap();
        return Tensor::packed(scheme, shape, planes.into_iter().map(Into::into).collect()).unwrap();
    }
    let len = shape.iter().product::<usize>() * dtype.bytes().unwrap();
    let bytes: Vec<u8> = (0..len).map(|i| if dtype == DType::Bool { byte(i) & 1 } else { byte(i) }).collect();
    Tensor::from_bytes(dtype, shape, bytes).unwrap()
}

/// Tensors of all dtypes that pass; a packed one has blocks along either axis.
fn tensors(has: impl Fn(DType) -> bool, shapes: &[&[usize]]) -> Vec<(String, Tensor)> {
    let mut out = Vec::new();
    for dtype in dtypes().into_iter().filter(|d| has(*d)) {
        match dtype {
            DType::Packed(scheme) => {
                let block = scheme.block as usize;
                let shape = if scheme.is_ggml() { [3, 2 * block] } else { [block + 1, 2] };
                out.push((scheme.to_string().replace(':', "_"), tensor(dtype, &shape)));
            }
            _ => {
                out.extend(shapes.iter().enumerate().map(|(i, s)| (format!("{dtype}.{i}"), tensor(dtype, s))))
            }
        }
    }
    out
}

fn views(list: &[(String, Tensor)]) -> Vec<(&str, View<'_>)> {
    list.iter().map(|(n, t)| (n.as_str(), t.into())).collect()
}

/// What Python is to find in a file; if it knows no packed tensors, their planes.
fn case(
    file: &str,
    format: &str,
    metadata: &[(String, Value)],
    list: &[(String, Tensor)],
) -> serde_json::Value {
    let mut tensors = Vec::new();
    for (name, t) in list {
        match t.dtype() {
            DType::Packed(scheme) if format != "gguf" => {
                let planes = scheme.planes(t.shape()).unwrap();
                let names = plane_names(name, scheme, t.shape()).unwrap();
                for ((name, plane), bytes) in names.iter().zip(planes).zip(t.planes()) {
                    let dtype = format!("{:?}", plane.elem).to_lowercase();
                    tensors
                        .push(json!({"name": name, "dtype": dtype, "shape": plane.shape, "hex": hex(bytes)}));
                }
            }
            d => tensors.push(
                json!({"name": name, "dtype": d.to_string(), "shape": t.shape(), "hex": hex(t.bytes())}),
            ),
        }
    }
    json!({"file": file, "format": format, "metadata": described(metadata), "tensors": tensors})
}

#[test]
fn files_that_python_reads() {
    let folder = Folder::new();
    let mut cases = Vec::new();
    let shapes: [&[usize]; 4] = [&[], &[3], &[2, 0, 2], &[2, 3, 1, 1, 2]];
    let texts: Vec<(String, Value)> = vec![("format".into(), "pt".into()), ("ö".into(), "ä\n\"x\"".into())];

    let all = tensors(|_| true, &shapes);
    safetensors::write(&folder.path("a.safetensors"), &views(&all), &texts).unwrap();
    cases.push(case("a.safetensors", "safetensors", &texts, &all));
    safetensors::write(&folder.path("none.safetensors"), &[], &[]).unwrap();
    cases.push(case("none.safetensors", "safetensors", &[], &[]));
    let index = folder.path("m.safetensors.index.json");
    let parts = safetensors::write_parts(&index, &views(&all), &texts, 1000).unwrap();
    assert!(parts.len() > 3);
    cases.push(case("m.safetensors.index.json", "safetensors", &texts, &all));

    // Halves are plain numbers there.
    let in_gguf = |d: DType| match d {
        DType::Packed(s) => s.is_ggml() && s.block > 1,
        d => ["f32", "f16", "bf16", "f64", "i8", "i16", "i32", "i64"].contains(&d.to_string().as_str()),
    };
    let mut quantised = tensors(in_gguf, &[&[], &[3], &[2, 1, 3, 2]]);
    // The package reads bf16 as bytes along the last axis, and here is none.
    quantised.retain(|(name, _)| name != "bf16.0");
    let mut metadata: Vec<(String, Value)> = vec![("general.architecture".into(), "toy".into())];
    for (i, list) in [
        List::U8(vec![0, 255]),
        List::I8(vec![-128, 127]),
        List::U16(vec![0, 65535]),
        List::I16(vec![-32768, 1]),
        List::U32(vec![u32::MAX]),
        List::I32(vec![i32::MIN, 7]),
        List::U64(vec![u64::MAX]),
        List::I64(vec![i64::MIN]),
        List::F32(vec![0.5, -2.0]),
        List::F64(vec![1e300, 0.1]),
        List::Bool(vec![true, false]),
        List::Text(vec![String::new(), "grüße \u{1f980}".into()]),
    ]
    .into_iter()
    .enumerate()
    {
        metadata.push((format!("one.{i}"), list.get(0).unwrap()));
        metadata.push((format!("list.{i}"), Value::List(list)));
    }
    metadata.push(("empty".into(), Value::List(List::U32(Vec::new()))));
    gguf::write(&folder.path("a.gguf"), &views(&quantised), &metadata).unwrap();
    cases.push(case("a.gguf", "gguf", &metadata, &quantised));
    metadata.push(("general.alignment".into(), Value::U32(512)));
    gguf::write(&folder.path("aligned.gguf"), &views(&quantised), &metadata).unwrap();
    cases.push(case("aligned.gguf", "gguf", &metadata, &quantised));
    let parts = gguf::write_parts(&folder.path("s.gguf"), &views(&quantised), &metadata, 2000).unwrap();
    assert!(parts.len() > 3);
    let first = parts[0].file_name().unwrap().to_str().unwrap();
    cases.push(case(first, "gguf", &metadata, &quantised));

    let in_numpy = |d: DType| !["bf16", "f8e4m3", "f8e5m2"].contains(&d.to_string().as_str());
    let arrays = tensors(in_numpy, &shapes);
    npz::write(&folder.path("a.npz"), &views(&arrays)).unwrap();
    cases.push(case("a.npz", "npz", &[], &arrays));
    for (name, t) in tensors(|d| in_numpy(d) && !d.is_packed(), &shapes) {
        let file = format!("{name}.npy");
        npy::write(&folder.path(&file), &(&t).into()).unwrap();
        cases.push(case(&file, "npy", &[], &[(name, t)]));
    }
    std::fs::write(folder.path("cases.json"), serde_json::to_vec(&cases).unwrap()).unwrap();
    assert_eq!(script("read", &folder.0), cases.len().to_string());
}

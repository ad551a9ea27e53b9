//! Runs cases of the ONNX backend suite on the reference interpreter alone, which needs no kernels to be built: for who writes
//! rules. `cargo run -p rlx-formats --example onnx_suite -- target/material/onnx-suite/node [part of a name …]`
//!
//! Prints what fails, with the reason, and a count. The suite as a test is in `rlx-conformance`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx_formats::onnx::{Model, Options, read_tensor};
use rlx_ir::Tensor;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn tensors(set: &Path, kind: &str) -> Vec<Result<Tensor, String>> {
    let name = |k: usize| set.join(format!("{kind}_{k}.pb"));
    (0..)
        .map(name)
        .take_while(|p| p.exists())
        .map(|p| {
            let array = read_tensor(std::fs::read(p).unwrap()).map_err(|e| e.to_string())?.1;
            array.to_tensor().map_err(|e| e.to_string())
        })
        .collect()
}

fn close(a: &Tensor, b: &Tensor, rtol: f64, atol: f64) -> Result<(), String> {
    if (a.dtype(), a.shape()) != (b.dtype(), b.shape()) {
        return Err(format!("gives {}, not {}", a.ty(), b.ty()));
    }
    let (xs, ys) = (a.to_f64s().unwrap(), b.to_f64s().unwrap());
    for (i, (x, y)) in xs.iter().zip(&ys).enumerate() {
        let same = x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= atol + rtol * y.abs();
        if !same {
            return Err(format!("element {i} is {x}, not {y}"));
        }
    }
    Ok(())
}

fn case(dir: &Path) -> Result<(), String> {
    let text = |e: rlx_ir::Error| e.to_string();
    let about = std::fs::read_to_string(dir.join("case.json")).unwrap();
    let number = |key: &str| -> f64 {
        let at = about.split(&format!("\"{key}\": ")).nth(1).unwrap();
        at.split([',', '}']).next().unwrap().trim().parse().unwrap()
    };
    let model = Model::open(dir.join("model.onnx")).map_err(text)?;
    let names: Vec<String> = model.summary().map_err(text)?.inputs.into_iter().map(|(n, _)| n).collect();
    for set in (0..).map(|k| dir.join(format!("test_data_set_{k}"))).take_while(|p| p.exists()) {
        let inputs: Vec<Tensor> = tensors(&set, "input").into_iter().collect::<Result<_, _>>()?;
        let mut options = Options::default();
        let imported = loop {
            match model.import(&options) {
                Ok(i) => break i,
                Err(e) if e.inputs().iter().any(|n| !options.values.contains_key(n)) => {
                    for n in e.inputs() {
                        let k = names.iter().position(|m| m == n).unwrap();
                        options.values.insert(n.clone(), inputs.get(k).ok_or("too few inputs")?.clone());
                    }
                }
                Err(e) => return Err(e.to_string()),
            }
        };
        let find = |onnx: &str| names.iter().position(|n| n == onnx).and_then(|k| inputs.get(k));
        let mut given = Vec::new();
        for n in &imported.inputs {
            given.push((n.name.as_str(), find(&n.onnx).ok_or_else(|| format!("no data for {}", n.onnx))?));
        }
        let how = rlx_ir::Options { rounding: rlx_ir::Rounding::Declared, ..rlx_ir::Options::default() };
        let out = rlx_ir::eval(&imported.func, &given, &how).map_err(text)?;
        for ((name, got), want) in out.iter().zip(tensors(&set, "output")) {
            let got = got.to_tensor().map_err(text)?;
            close(&got, &want?, number("rtol"), number("atol")).map_err(|e| format!("{name}: {e}"))?;
        }
    }
    Ok(())
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (dir, filters) = args.split_first().expect("a folder of cases");
    let mut dirs: Vec<PathBuf> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    dirs.sort();
    let (mut passed, mut failed) = (0, BTreeMap::new());
    for d in dirs {
        let name = d.file_name().unwrap().to_string_lossy().into_owned();
        let aside = !std::fs::read_to_string(d.join("case.json")).unwrap().contains("\"aside\": []");
        if aside || !(filters.is_empty() || filters.iter().any(|f| name.contains(f))) {
            continue;
        }
        match std::panic::catch_unwind(|| case(&d)).unwrap_or_else(|_| Err("PANIC".into())) {
            Ok(()) => passed += 1,
            Err(e) => drop(failed.insert(name, e)),
        }
    }
    for (name, e) in &failed {
        println!("{name}: {}", e.chars().take(300).collect::<String>());
    }
    println!("{passed} passed, {} failed", failed.len());
}

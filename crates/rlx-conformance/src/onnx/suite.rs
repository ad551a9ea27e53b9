//! The cases of ONNX's backend suite.

use super::{Outcome, material};
use rlx::model::{ImportOptions, Model};
use rlx::{DType, Device, Tensor, eval};
use rlx_formats::Array;
use rlx_formats::onnx::{self, read_tensor};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, thread};

/// The parts of the suite.
pub const KINDS: [&str; 4] = ["node", "simple", "pytorch-converted", "pytorch-operator"];

/// A case.
pub struct Case {
    /// `KIND/NAME`.
    pub name: String,
    /// The ops of its graph.
    pub ops: Vec<String>,
    /// Why it is not counted: types and kinds of ops that RLX does not aim at. Empty if it is.
    pub aside: Vec<String>,
    folder: PathBuf,
    rtol: f64,
    atol: f64,
}

impl Case {
    /// The part of the suite that it is of.
    pub fn kind(&self) -> &str {
        self.name.split('/').next().unwrap_or_default()
    }

    fn read(folder: &Path, kind: &str) -> Result<Case, String> {
        let text = fs::read(folder.join("case.json")).map_err(|e| e.to_string())?;
        let notes: Value = serde_json::from_slice(&text).map_err(|e| e.to_string())?;
        let texts = |key: &str| {
            let list = notes.get(key).and_then(Value::as_array).into_iter().flatten();
            list.filter_map(|v| v.as_str().map(str::to_owned)).collect()
        };
        let number = |key: &str| notes.get(key).and_then(Value::as_f64).ok_or_else(|| format!("no {key}"));
        Ok(Case {
            name: format!("{kind}/{}", folder.file_name().unwrap_or_default().to_string_lossy()),
            ops: texts("ops"),
            aside: texts("aside"),
            folder: folder.to_path_buf(),
            rtol: number("rtol")?,
            atol: number("atol")?,
        })
    }

    /// The inputs or outputs of a data set, in order.
    fn tensors(&self, set: usize, side: &str) -> Result<Vec<Tensor>, String> {
        let mut out = Vec::new();
        loop {
            let path = self.folder.join(format!("test_data_set_{set}/{side}_{}.pb", out.len()));
            let Ok(bytes) = fs::read(&path) else { return Ok(out) };
            let read = read_tensor(bytes).and_then(|(_, array)| array.to_tensor());
            out.push(read.map_err(|e| format!("data: {side} {}: {}", out.len(), e.message()))?);
        }
    }

    fn check(&self) -> Result<(), String> {
        let path = self.folder.join("model.onnx");
        let file = onnx::Model::open(&path).and_then(|m| m.summary()).map_err(|e| told("import", &e))?;
        let mut sets = 0;
        while self.folder.join(format!("test_data_set_{sets}")).is_dir() {
            // Without its data a graph can still tell what it lacks.
            let data = self.tensors(sets, "input");
            let names = file.inputs.iter().map(|(name, _)| name.as_str());
            let given: Vec<(&str, &Tensor)> = names.zip(data.iter().flatten()).collect();
            let opened = Model::open_for(&path, &ImportOptions::default(), &given);
            let (model, inputs) = opened.map_err(|e| told("import", &e))?;
            data.as_ref().map_err(String::clone)?;
            let want = self.tensors(sets, "output")?;
            for (device, run) in [("oracle", oracle as Run), ("cpu", cpu)] {
                let got = run(&model, &inputs).map_err(|e| told(device, &e))?;
                self.judge(&model, &want, &got).map_err(|e| format!("{device}: {e}"))?;
            }
            sets += 1;
        }
        if sets == 0 { Err("data: there are none".into()) } else { Ok(()) }
    }

    fn judge(&self, model: &Model, want: &[Tensor], got: &[(String, Tensor)]) -> Result<(), String> {
        if want.len() != model.outputs().len() {
            return Err(format!(
                "{} outputs are wanted, the graph has {}",
                want.len(),
                model.outputs().len()
            ));
        }
        for (port, want) in model.outputs().iter().zip(want) {
            let got = got.iter().find(|(n, _)| *n == port.onnx).map(|(_, t)| t);
            let got = got.ok_or_else(|| format!("output {} is missing", port.onnx))?;
            close(want, got, self.rtol, self.atol).map_err(|e| format!("output {}: {e}", port.onnx))?;
        }
        Ok(())
    }

    /// Runs it on all devices.
    pub fn run(&self) -> Outcome {
        Outcome::of(|| self.check())
    }
}

fn told(stage: &str, e: &rlx_ir::Error) -> String {
    format!("{stage}: {e}")
}

/// From a model and its inputs to its outputs, both by the names in the file.
type Run = fn(&Model, &[(&str, &Tensor)]) -> rlx_ir::Result<Vec<(String, Tensor)>>;

fn oracle(model: &Model, inputs: &[(&str, &Tensor)]) -> rlx_ir::Result<Vec<(String, Tensor)>> {
    let tensor = |(name, array): &(String, Array)| Ok((name.clone(), array.to_tensor()?));
    let params: Vec<(String, Tensor)> = model.params().iter().map(tensor).collect::<rlx_ir::Result<_>>()?;
    let own = |name: &str| model.inputs().iter().find(|n| n.onnx == name).map(|n| n.name.as_str());
    let mut all: Vec<(&str, &Tensor)> = params.iter().map(|(n, t)| (n.as_str(), t)).collect();
    all.extend(inputs.iter().map(|(n, t)| (own(n).unwrap_or(n), *t)));
    let out = eval(model.graph(), &all, &rlx_ir::Options::default())?;
    model.outputs().iter().zip(out).map(|(port, (_, a))| Ok((port.onnx.clone(), a.to_tensor()?))).collect()
}

fn cpu(model: &Model, inputs: &[(&str, &Tensor)]) -> rlx_ir::Result<Vec<(String, Tensor)>> {
    Ok(model.compile(Device::Cpu)?.run(inputs)?.into_vec())
}

/// Whether a result has the wanted shape and dtype and each element is within `atol + rtol·|wanted|`.
pub fn close(want: &Tensor, got: &Tensor, rtol: f64, atol: f64) -> Result<(), String> {
    if want.shape() != got.shape() || want.dtype() != got.dtype() {
        let wanted = format!("{}{:?}", want.dtype(), want.shape());
        return Err(format!("{wanted} is wanted, but {}{:?} came", got.dtype(), got.shape()));
    }
    // The suite's own runner allows two roundings of this dtype.
    let rtol = if want.dtype() == DType::BF16 { rtol.max(1.0 / 64.0) } else { rtol };
    let numbers = |t: &Tensor| -> Vec<f64> {
        let ints = || t.to_i128s().map(|v| v.into_iter().map(|i| i as f64).collect());
        t.to_f64s().or_else(ints).unwrap_or_default()
    };
    let (a, b) = (numbers(want), numbers(got));
    let near = |x: f64, y: f64| x.is_finite() && (x - y).abs() <= atol + rtol * x.abs();
    let fine = |x: f64, y: f64| x == y || (x.is_nan() && y.is_nan()) || near(x, y);
    let wrong: Vec<usize> =
        a.iter().zip(&b).enumerate().filter(|(_, (x, y))| !fine(**x, **y)).map(|(i, _)| i).collect();
    match wrong.first().and_then(|i| Some((i, a.get(*i)?, b.get(*i)?))) {
        None if a.len() == b.len() => Ok(()),
        None => Err(format!("{} elements came, not {}", b.len(), a.len())),
        Some((i, x, y)) => {
            Err(format!("{} of {} elements are wrong: element {i} is {y}, not {x}", wrong.len(), a.len()))
        }
    }
}

/// All cases, sorted by name.
pub fn cases() -> Result<Vec<Case>, String> {
    let suite = material()?.join("onnx-suite");
    let mut out = Vec::new();
    for kind in KINDS {
        let folder = suite.join(kind);
        let listing = fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        for entry in listing {
            let path = entry.map_err(|e| e.to_string())?.path();
            out.push(Case::read(&path, kind).map_err(|e| format!("{}: {e}", path.display()))?);
        }
    }
    out.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(out)
}

/// Runs cases, several at a time.
pub fn run(cases: &[Case]) -> Vec<Outcome> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(case) = cases.get(i) else { return done };
            done.push((i, case.run()));
        }
    };
    let threads = thread::available_parallelism().map_or(1, |n| n.get());
    let mut all: Vec<(usize, Outcome)> = thread::scope(|s| {
        let running: Vec<_> = (0..threads).map(|_| s.spawn(work)).collect();
        running.into_iter().flat_map(|t| t.join().unwrap_or_default()).collect()
    });
    all.sort_by_key(|(i, _)| *i);
    all.into_iter().map(|(_, outcome)| outcome).collect()
}

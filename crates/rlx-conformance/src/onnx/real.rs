//! Real models beside what ONNX Runtime computes of them.

use super::{Outcome, material};
use rlx::model::{ImportOptions, Model};
use rlx::{Device, Result, Tensor};
use rlx_formats::Entry;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;

/// A model of the material.
pub struct Real {
    /// Its name.
    pub name: String,
    /// Whether it keeps weights in int8, or computes so.
    pub int8: bool,
    /// What an import must know beyond the file.
    pub options: ImportOptions,
    /// For each case how far ONNX Runtime is from itself.
    pub spread: Vec<Apart>,
    folder: PathBuf,
}

/// How far results are apart, relative to the wanted ones.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Apart {
    /// The largest difference, relative to the largest number.
    pub most: f64,
    /// The same of square means.
    pub mean: f64,
}

impl Apart {
    fn max(self, other: Apart) -> Apart {
        Apart { most: self.most.max(other.most), mean: self.mean.max(other.mean) }
    }
}

/// All models, sorted by name.
pub fn models() -> std::result::Result<Vec<Real>, String> {
    let folder = material()?.join("models");
    let listing = fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut out = Vec::new();
    for entry in listing {
        let path = entry.map_err(|e| e.to_string())?.path();
        out.push(Real::read(path.clone()).map_err(|e| format!("{}: {e}", path.display()))?);
    }
    out.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(out)
}

impl Real {
    fn read(folder: PathBuf) -> std::result::Result<Real, String> {
        let text = fs::read(folder.join("model.json")).map_err(|e| e.to_string())?;
        let notes: Value = serde_json::from_slice(&text).map_err(|e| e.to_string())?;
        let list = |key: &str| notes.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
        let mut options = ImportOptions::default();
        for (name, size) in notes.get("bounds").and_then(Value::as_object).into_iter().flatten() {
            options.bounds.insert(name.clone(), size.as_i64().ok_or("a bound is no number")?);
        }
        for row in list("sizes") {
            let (name, axis, size) = serde_json::from_value(row).map_err(|e| e.to_string())?;
            options.axes.insert((name, axis), size);
        }
        let mut real = Real {
            name: folder.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            int8: notes.get("int8").and_then(Value::as_bool).ok_or("no int8")?,
            options,
            spread: list("spread").into_iter().map(apart).collect::<std::result::Result<_, _>>()?,
            folder,
        };
        let fixed = list("fixed");
        let first = if fixed.is_empty() { Vec::new() } else { real.inputs(0).map_err(|e| e.to_string())? };
        for name in fixed.iter().filter_map(Value::as_str) {
            let value = first.iter().find(|(n, _)| n == name).ok_or("a fixed input is not given")?;
            real.options.values.insert(name.to_owned(), value.1.clone());
        }
        Ok(real)
    }

    /// The file.
    pub fn path(&self) -> PathBuf {
        self.folder.join("model.onnx")
    }

    /// The file of a case's inputs.
    pub fn input_path(&self, case: usize) -> PathBuf {
        self.folder.join(format!("in_{case}.npz"))
    }

    /// Imports it once for all cases.
    pub fn open(&self) -> Result<Model> {
        Model::open_with(self.path(), &self.options)
    }

    /// The inputs of a case, by their names in the model.
    pub fn inputs(&self, case: usize) -> Result<Vec<(String, Tensor)>> {
        tensors(self.input_path(case))
    }

    /// The outputs of a case, by their names in the model.
    pub fn outputs(&self, case: usize) -> Result<Vec<(String, Tensor)>> {
        tensors(self.folder.join(format!("out_{case}.npz")))
    }

    /// Its name in the list of what passes.
    pub fn list_name(&self) -> String {
        format!("model/{}", self.name)
    }

    /// Imports and compiles it once, and runs all cases; also tells how far each is from ONNX Runtime.
    pub fn run(&self) -> (Outcome, Vec<Apart>) {
        let mut far = Vec::new();
        (Outcome::of(|| self.check(&mut far)), far)
    }

    fn check(&self, far: &mut Vec<Apart>) -> std::result::Result<(), String> {
        let model = self.open().map_err(|e| format!("import: {e}"))?;
        let compiled = model.compile(Device::Cpu).map_err(|e| format!("compile: {e}"))?;
        for case in 0..self.spread.len() {
            let at = |e: rlx::Error| format!("case {case}: {e}");
            let (given, want) = (self.inputs(case).map_err(at)?, self.outputs(case).map_err(at)?);
            let known = |name: &str| self.options.values.contains_key(name);
            let inputs: Vec<(&str, &Tensor)> =
                given.iter().filter(|(n, _)| !known(n)).map(|(n, t)| (n.as_str(), t)).collect();
            let got = compiled.run(&inputs).map_err(at)?;
            let mut all = Apart::default();
            for (name, wanted) in &want {
                let came = got.get(name).ok_or_else(|| format!("case {case}: no output {name}"))?;
                let off = difference(wanted, came);
                if off.most.is_infinite() {
                    let (w, c) = (wanted.ty(), came.ty());
                    return Err(format!("case {case}: output {name} is {c}, wanted is {w}, or not finite"));
                }
                all = all.max(off);
            }
            far.push(all);
        }
        match far.iter().enumerate().find(|(case, far)| !self.allows(*case, **far)) {
            None => Ok(()),
            Some((case, far)) => Err(format!(
                "case {case} differs from ONNX Runtime by {:.1e}, in the square mean by {:.1e}",
                far.most, far.mean
            )),
        }
    }

    /// Whether results may be so far off in a case. The arithmetic of a model can magnify a rounding beyond what is asked; then
    /// twice of what that does to ONNX Runtime itself is allowed.
    pub fn allows(&self, case: usize, far: Apart) -> bool {
        let asked = if self.int8 { 1e-2 } else { 1e-4 };
        let spread = self.spread.get(case).copied().unwrap_or_default();
        far.most <= asked || (far.most <= 2.0 * spread.most && far.mean <= 2.0 * spread.mean)
    }
}

fn apart(row: Value) -> std::result::Result<Apart, String> {
    let (most, mean) = serde_json::from_value(row).map_err(|e| e.to_string())?;
    Ok(Apart { most, mean })
}

fn tensors(path: PathBuf) -> Result<Vec<(String, Tensor)>> {
    let file = rlx_formats::open(path)?;
    let one = |e: &Entry| Ok((e.name().to_owned(), file.tensor(e.name())?.to_tensor()?));
    file.entries().iter().map(one).collect()
}

/// How far a result is from the wanted one; infinitely if shapes, dtypes or what is not finite disagree.
pub fn difference(want: &Tensor, got: &Tensor) -> Apart {
    let never = Apart { most: f64::INFINITY, mean: f64::INFINITY };
    if want.shape() != got.shape() || want.dtype() != got.dtype() {
        return never;
    }
    let numbers = |t: &Tensor| match t.dtype() {
        d if d.is_float() => t.to_f64s(),
        _ => t.to_i128s().map(|v| v.into_iter().map(|i| i as f64).collect()),
    };
    let (Some(a), Some(b)) = (numbers(want), numbers(got)) else { return never };
    let mut off = Vec::new();
    for (x, y) in a.iter().zip(&b) {
        let same = x == y || (x.is_nan() && y.is_nan());
        off.push(if same { 0.0 } else { (x - y).abs() });
    }
    if !off.iter().all(|d| d.is_finite()) {
        return never;
    }
    let most = |v: &[f64]| v.iter().filter(|x| x.is_finite()).fold(0f64, |m, x| m.max(x.abs()));
    let squares = |v: &[f64]| v.iter().filter(|x| x.is_finite()).map(|x| x * x).sum::<f64>().sqrt();
    let ratio = |x: f64, of: f64| if x == 0.0 { 0.0 } else { x / of };
    Apart { most: ratio(most(&off), most(&a)), mean: ratio(squares(&off), squares(&a)) }
}

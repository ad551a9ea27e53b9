//! PyTorch's vectors: `vectors/torch`, one file per family of ops, written by `scripts/vectors_torch.py` (which says
//! how a file is laid out). A case is a graph as text with its inputs, outputs and gradients.

use rlx_ir::oracle::{Arr, eval_ranks};
use rlx_ir::quant::Scheme;
use rlx_ir::{DType, Func, Options, Rounding, Tensor};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// One case.
pub struct Case {
    /// Its name within the family.
    pub name: String,
    /// The graph.
    pub text: String,
    /// The outputs that are differentiated.
    pub diff: Vec<String>,
    /// The ports with respect to which.
    pub wrt: Vec<String>,
    /// The largest error relative to the wanted number.
    pub rtol: f64,
    /// The largest error relative to 1 plus the largest number of the tensor.
    pub atol: f64,
    /// The number of ranks; if above 1, all tensors have one entry per rank along axis 0.
    pub ranks: usize,
    /// Whether every result is rounded to its dtype.
    pub rounded: bool,
    /// The tensors by name: `in.PORT`, `out.OUTPUT`, `ct.OUTPUT`, `grad.PORT`.
    pub tensors: BTreeMap<String, Tensor>,
}

/// The folder of the vectors.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/torch")
}

/// The names of all families, sorted.
pub fn families() -> Result<Vec<String>, String> {
    let listing = std::fs::read_dir(folder()).map_err(|e| format!("{}: {e}", folder().display()))?;
    let mut names = Vec::new();
    for entry in listing {
        let path = entry.map_err(|e| e.to_string())?.path();
        if path.extension().is_some_and(|e| e == "safetensors") {
            names.extend(path.file_stem().map(|s| s.to_string_lossy().into_owned()));
        }
    }
    names.sort();
    Ok(names)
}

/// All cases of a family.
pub fn load(family: &str) -> Result<Vec<Case>, String> {
    let path = folder().join(format!("{family}.safetensors"));
    let wrong = |e: rlx_ir::Error| format!("{family}: {e}");
    let file = rlx_formats::open(&path).map_err(wrong)?;
    let list = file.value("cases").and_then(|v| v.as_str()).ok_or("the file lists no cases")?;
    let list: Vec<serde_json::Value> = serde_json::from_str(list).map_err(|e| format!("{family}: {e}"))?;

    let mut tensors: BTreeMap<usize, BTreeMap<String, Tensor>> = BTreeMap::new();
    for name in file.entries().iter().map(|e| e.name()) {
        let (n, rest) = name.split_once('.').ok_or_else(|| format!("{family}: a tensor {name}"))?;
        let n: usize = n.parse().map_err(|_| format!("{family}: a tensor {name}"))?;
        let t = file.tensor(name).and_then(|t| t.to_tensor()).map_err(wrong)?;
        tensors.entry(n).or_default().insert(rest.to_string(), t);
    }
    let case = |(n, v): (usize, &serde_json::Value)| Case::read(v, tensors.remove(&n).unwrap_or_default());
    list.iter()
        .enumerate()
        .map(case)
        .collect::<Option<_>>()
        .ok_or_else(|| format!("{family}: a case is malformed"))
}

impl Case {
    fn read(v: &serde_json::Value, tensors: BTreeMap<String, Tensor>) -> Option<Case> {
        let text = |k: &str| v.get(k)?.as_str().map(str::to_string);
        let list = |k: &str| -> Option<Vec<String>> {
            v.get(k)?.as_array()?.iter().map(|s| s.as_str().map(str::to_string)).collect()
        };
        Some(Case {
            name: text("name")?,
            text: text("text")?,
            diff: list("diff")?,
            wrt: list("wrt")?,
            rtol: v.get("rtol")?.as_f64()?,
            atol: v.get("atol")?.as_f64()?,
            ranks: usize::try_from(v.get("ranks")?.as_u64()?).ok()?,
            rounded: v.get("rounded")?.as_bool()?,
            tensors,
        })
    }

    /// The graph.
    pub fn func(&self) -> Result<Func, String> {
        rlx_ir::text::parse(&self.text).map_err(|e| format!("does not parse: {e}"))
    }

    /// The graph with its gradients, if the case has some.
    pub fn gradient(&self, f: &Func) -> Result<Option<Func>, String> {
        if self.wrt.is_empty() {
            return Ok(None);
        }
        let diff: Vec<&str> = self.diff.iter().map(String::as_str).collect();
        let wrt: Vec<&str> = self.wrt.iter().map(String::as_str).collect();
        rlx_ir::transform::vjp(f, &diff, &wrt).map(Some).map_err(|e| format!("has no gradient: {e}"))
    }

    /// Compares the oracle's outputs, then its gradients, with PyTorch's.
    pub fn check(&self) -> Result<(), String> {
        let f = self.func()?;
        self.compare(&f, "out.", "")?;
        match self.gradient(&f)? {
            Some(g) => self.compare(&g, "grad.", "grad."),
            None => Ok(()),
        }
    }

    fn compare(&self, f: &Func, want: &str, output: &str) -> Result<(), String> {
        let rounding = if self.rounded { Rounding::Declared } else { Rounding::Exact };
        let options = Options { rounding, ..Options::default() };
        let data = (0..self.ranks).map(|r| self.data(f, r)).collect::<Result<Vec<_>, _>>()?;
        let data: Vec<Vec<(&str, &Tensor)>> =
            data.iter().map(|d| d.iter().map(|(n, t)| (n.as_str(), t)).collect()).collect();
        let ranks: Vec<&[(&str, &Tensor)]> = data.iter().map(Vec::as_slice).collect();
        let results = eval_ranks(f, &ranks, &options).map_err(|e| format!("cannot be evaluated: {e}"))?;
        let wanted = self.tensors.iter().filter_map(|(k, t)| k.strip_prefix(want).map(|k| (k, t)));
        for (name, t) in wanted {
            let key = format!("{output}{name}");
            for (rank, outputs) in results.iter().enumerate() {
                let got = outputs
                    .iter()
                    .find(|(n, _)| *n == key)
                    .ok_or_else(|| format!("there is no output {key}"))?;
                self.close(&got.1, &self.of_rank(t, rank)?).map_err(|e| match self.ranks {
                    1 => format!("{want}{name}: {e}"),
                    _ => format!("{want}{name} of rank {rank}: {e}"),
                })?;
            }
        }
        Ok(())
    }

    /// The inputs of a rank that the graph has ports for.
    fn data(&self, f: &Func, rank: usize) -> Result<Vec<(String, Tensor)>, String> {
        let mut data = Vec::new();
        for p in &f.ports {
            let key = if p.name.starts_with("ct.") { p.name.clone() } else { format!("in.{}", p.name) };
            let ty = f.ty(p.value).map_err(|e| e.to_string())?;
            let t = match ty.dtype {
                DType::Packed(scheme) => self.packed(&key, scheme, &ty.shape)?,
                _ => self.of_rank(self.tensors.get(&key).ok_or_else(|| format!("no tensor {key}"))?, rank)?,
            };
            data.push((p.name.clone(), t));
        }
        Ok(data)
    }

    fn packed(&self, key: &str, scheme: Scheme, shape: &[rlx_ir::Dim]) -> Result<Tensor, String> {
        let sizes = shape.iter().map(|d| d.as_const().and_then(|d| usize::try_from(d).ok()));
        let sizes: Vec<usize> = sizes.collect::<Option<_>>().ok_or("a packed input of symbolic sizes")?;
        let planes = (0..).map_while(|i| self.tensors.get(&format!("{key}.{i}")));
        let planes = planes.map(|t| t.bytes().into()).collect();
        Tensor::packed(scheme, &sizes, planes).map_err(|e| format!("{key}: {e}"))
    }

    fn of_rank(&self, t: &Tensor, rank: usize) -> Result<Tensor, String> {
        if self.ranks == 1 {
            return Ok(t.clone());
        }
        let (first, rest) = t.shape().split_first().ok_or("a tensor without an axis for the ranks")?;
        let size = t.bytes().len() / (*first).max(1);
        let part = t.bytes().get(rank * size..(rank + 1) * size).ok_or("a tensor lacks a rank")?;
        Tensor::from_bytes(t.dtype(), rest, part).map_err(|e| e.to_string())
    }

    /// NaN equals NaN, infinities and integers are exact, floats are close.
    fn close(&self, got: &Arr, want: &Tensor) -> Result<(), String> {
        if got.dtype() != want.dtype() || got.shape() != want.shape() {
            return Err(format!("is {}{:?}, want {}", got.dtype(), got.shape(), want.ty()));
        }
        if let Some(want) = want.to_i128s() {
            let mut pairs = got.ints().into_iter().zip(want).enumerate();
            return pairs.find(|(_, (g, w))| g != w).map_or(Ok(()), |(i, (g, w))| {
                Err(format!("element {}: {g}, want {w}", place(got.shape(), i)))
            });
        }
        let want = want.to_f64s().ok_or("a packed output")?;
        let got_values = got.f64s();
        let largest = want.iter().filter(|w| w.is_finite()).fold(0.0f64, |m, w| m.max(w.abs()));
        let error = |(g, w): (&f64, &f64)| match (g - w).abs() {
            _ if g == w || (g.is_nan() && w.is_nan()) => 0.0,
            e if e.is_finite() => {
                e / (self.rtol * w.abs() + self.atol * (1.0 + largest)).max(f64::MIN_POSITIVE)
            }
            _ => f64::INFINITY,
        };
        let errors = got_values.iter().zip(&want).map(|pair| (error(pair), pair)).enumerate();
        match errors.max_by(|a, b| a.1.0.total_cmp(&b.1.0)) {
            Some((i, (e, (g, w)))) if e > 1.0 => {
                let at = place(got.shape(), i);
                Err(format!(
                    "element {at}: {g:e}, want {w:e}: off by {:e}, {e:.1} times too much",
                    (g - w).abs()
                ))
            }
            _ => Ok(()),
        }
    }
}

/// The index of a flat position.
fn place(shape: &[usize], mut i: usize) -> String {
    let mut ix: Vec<usize> = shape
        .iter()
        .rev()
        .map(|d| {
            let k = i % d;
            i /= d;
            k
        })
        .collect();
    ix.reverse();
    format!("{ix:?}")
}

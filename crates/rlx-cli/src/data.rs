//! What a graph is given: its text, its inputs and params from files, or random ones.

use crate::failure::{Context, Failure, Result};
use crate::tensors::{self, read_file};
use rlx::formats::{Archive, Bytes, Entry, Format, paths};
use rlx::func::{PortKind, Source};
use rlx::machine::Machine;
use rlx::model::{ImportOptions, Model, Named};
use rlx::sample::{Arg, ArgType, Fill};
use rlx::{Bindings, DType, Func, Tensor, text};
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

/// Tensors by the names of ports.
pub(crate) type Given = Vec<(String, Tensor)>;

/// A graph as a command names it, by its file.
pub(crate) struct Subject {
    pub(crate) func: Func,
    /// The file.
    path: PathBuf,
    /// What the file itself calls inputs, where that is not a name of the graph: its name, then the graph's.
    inputs: Vec<(String, String)>,
    /// The same of outputs: the graph's name, then the file's.
    outputs: Vec<(String, String)>,
    /// Inputs whose values are part of the graph.
    fixed: Vec<String>,
}

/// Whether a file is an ONNX model.
pub(crate) fn is_model(path: &Path) -> bool {
    Format::of_name(path) == Some(Format::Onnx)
        || (path.is_file() && Bytes::open(path).is_ok_and(|b| Archive::format_of(&b) == Some(Format::Onnx)))
}

impl Subject {
    /// Reads a graph or a model; messages name the file as the caller does. Of a model, inputs whose values decide shapes
    /// take them from `inputs`, and with `whole` the graph has the data of its params in it.
    pub(crate) fn read(path: &Path, inputs: Option<&Path>, whole: bool) -> Result<Subject> {
        let plain = |func| Subject {
            func,
            path: path.into(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            fixed: Vec::new(),
        };
        if !is_model(path) {
            return Ok(plain(read_text(path)?));
        }
        let mut given = Vec::new();
        if let Some(inputs) = inputs {
            let file = tensors::open(inputs)?;
            for e in file.entries() {
                given.push((e.name().to_string(), file.tensor(e.name())?.to_tensor()?));
            }
        }
        let views: Vec<(&str, &Tensor)> = given.iter().map(|(n, t)| (n.as_str(), t)).collect();
        let (model, rest) = Model::open_for(path, &ImportOptions::default(), &views)?;
        let mut func = model.graph().clone();
        if whole {
            for (name, array) in model.params() {
                let data = array.to_tensor()?;
                let port = func.ports.iter_mut().find(|p| p.name == *name);
                port.into_iter().for_each(|p| p.source = Some(Source::Inline(data.clone())));
            }
        }
        let other = |list: &[Named]| -> Vec<(String, String)> {
            list.iter().filter(|n| n.onnx != n.name).map(|n| (n.onnx.clone(), n.name.clone())).collect()
        };
        let outputs = other(model.outputs()).into_iter().map(|(onnx, own)| (own, onnx)).collect();
        let fixed = views.iter().filter(|(n, _)| !rest.iter().any(|(r, _)| r == n));
        let fixed = fixed.map(|(n, _)| n.to_string()).collect();
        Ok(Subject { inputs: other(model.inputs()), outputs, fixed, ..plain(func) })
    }

    /// The name of an output in files.
    pub(crate) fn output<'s>(&'s self, name: &'s str) -> &'s str {
        self.outputs.iter().find(|(own, _)| own == name).map_or(name, |(_, file)| file)
    }

    /// The name of an input in files.
    fn input<'s>(&'s self, name: &'s str) -> &'s str {
        self.inputs.iter().find(|(_, own)| own == name).map_or(name, |(file, _)| file)
    }
}

fn read_text(path: &Path) -> Result<Func> {
    let name = path.display().to_string();
    if path.extension().is_some_and(|e| e != "rlx") {
        return Err(Failure::call(format!(
            "{name}: neither a graph in the text format (.rlx) nor an ONNX model"
        )));
    }
    let bytes = read_file(path)?;
    let text =
        String::from_utf8(bytes).map_err(|_| Failure::other(format!("{name}: not a text in UTF-8")))?;
    Ok(text::parse_named(&name, &text)?)
}

/// The data of all ports that the graph does not hold itself: from the file given, then from those it refers to.
pub(crate) fn gather(s: &Subject, inputs: Option<&Path>) -> Result<Given> {
    found(s, inputs, |names| {
        Err(match inputs {
            None => Failure::call(format!("missing {names}: give them with --in FILE")),
            Some(path) => Failure::other(format!("{} has no {names}", path.display())),
        })
    })
}

/// The same, with random data for what no file has.
pub(crate) fn gather_or_make(s: &Subject, inputs: Option<&Path>, asked: &[(String, i64)]) -> Result<Given> {
    let f = &s.func;
    let mut data = found(s, inputs, |_| Ok(()))?;
    let mut sizes = sizes(f, asked)?;
    for (name, n) in &bound(f, &data) {
        sizes.insert(name, n);
    }
    random(f, &sizes, &mut data)?;
    Ok(data)
}

/// What files have; `missing_is` is told what they have not.
fn found(s: &Subject, inputs: Option<&Path>, missing_is: impl FnOnce(String) -> Result<()>) -> Result<Given> {
    let f = &s.func;
    let mut data = match inputs {
        Some(path) => read_inputs(s, path)?,
        None => Vec::new(),
    };
    let given: HashSet<String> = data.iter().map(|(n, _)| n.clone()).collect();
    let mut files: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    let mut missing = Vec::new();
    for p in f.ports.iter().filter(|p| !given.contains(&p.name)) {
        match &p.source {
            Some(Source::Inline(_)) => {}
            Some(Source::File { file, tensor }) => {
                files.entry(file).or_default().push((&p.name, tensor));
            }
            None => {
                let what = if p.kind == PortKind::Input { "input" } else { "param" };
                missing.push(format!("{what} {} ({})", p.name, f.ty(p.value)?));
            }
        }
    }
    // Before anything large is read.
    if !missing.is_empty() {
        missing_is(missing.join(", "))?;
    }
    for (path, wanted) in files {
        // Below the graph's own folder, and nowhere else.
        let file = tensors::open(&paths::referred(&s.path, path)?)?;
        for (port, tensor) in wanted {
            data.push((port.into(), tensors::tensor(&file, tensor, f.ty(f.need_port(port)?.value)?)?));
        }
    }
    Ok(data)
}

/// Everything in the file; what the graph does not know is an error. The array of an npy file, which has no name but the
/// file's, goes to the only input of a graph that has one.
fn read_inputs(s: &Subject, path: &Path) -> Result<Given> {
    let f = &s.func;
    let file = tensors::open(path)?;
    if let (Format::Npy, [one]) = (file.format(), file.entries()) {
        let mut inputs = f.ports.iter().filter(|p| p.kind == PortKind::Input);
        if let (Some(input), None) = (inputs.next(), inputs.next()) {
            return Ok(vec![(input.name.clone(), tensors::tensor(&file, one.name(), f.ty(input.value)?)?)]);
        }
    }
    let (mut data, mut known) = (Vec::new(), HashSet::new());
    for p in &f.ports {
        let ty = f.ty(p.value)?;
        let name = s.input(&p.name);
        let parts = tensors::parts(name, ty)?;
        if parts.iter().any(|n| file.entry(n).is_some()) {
            data.push((p.name.clone(), tensors::tensor(&file, name, ty)?));
            known.extend(parts);
        }
    }
    let names = file.entries().iter().map(Entry::name);
    let mut strange: Vec<&str> =
        names.filter(|n| !known.contains(*n) && !s.fixed.iter().any(|f| f == n)).collect();
    if !strange.is_empty() {
        strange.sort_unstable();
        let ports: Vec<&str> = f.ports.iter().map(|p| s.input(&p.name)).collect();
        let message = format!("{} has {}", path.display(), strange.join(", "));
        return Err(Failure::other(format!("{message}, but the graph has only {}", ports.join(", "))));
    }
    Ok(data)
}

/// The names and values of symbols as a caller writes them: `batch=8`.
pub(crate) fn size(text: &str) -> std::result::Result<(String, i64), String> {
    let (name, value) = text.split_once('=').ok_or("a size is written NAME=VALUE")?;
    let value: i64 = value.trim().parse().map_err(|_| format!("{value:?} is no size"))?;
    if value < 0 {
        return Err(format!("{value} is no size"));
    }
    Ok((name.trim().to_string(), value))
}

/// Symbols without a value of their own get their bound, but no more than this.
const LARGEST: i64 = 512;

/// A value for every symbol of the graph: as asked for, or its bound if that is not too large.
pub(crate) fn sizes(f: &Func, asked: &[(String, i64)]) -> Result<Bindings> {
    let symbols = f.symbols()?;
    if let Some((name, _)) = asked.iter().find(|(n, _)| !symbols.contains_key(n.as_str())) {
        let names: Vec<&str> = symbols.keys().map(|k| &**k).collect();
        let there = if names.is_empty() { "none".into() } else { names.join(", ") };
        return Err(Failure::call(format!("the graph has no symbol {name:?}; there is {there}")));
    }
    let mut out = Bindings::new();
    for (name, max) in &symbols {
        let value = match asked.iter().rev().find(|(n, _)| **n == **name) {
            Some((_, v)) if v > max => {
                return Err(Failure::call(format!("{name} is {v}, but at most {max}")));
            }
            Some((_, v)) => *v,
            None => (*max).min(LARGEST),
        };
        out.insert(name, value);
    }
    Ok(out)
}

/// The values that the sizes of the inputs give to symbols, as far as they do.
pub(crate) fn bound(f: &Func, data: &[(String, Tensor)]) -> Bindings {
    let mut out = Bindings::new();
    // A size may need another one's symbol first.
    for _ in 0..2 {
        for (name, t) in data {
            let Some(ty) = f.port(name).and_then(|p| f.ty(p.value).ok()) else { continue };
            for (d, n) in ty.shape.iter().zip(t.shape()) {
                // The run itself says what does not fit.
                let _ = d.solve(i64::try_from(*n).unwrap_or(i64::MAX), &mut out);
            }
        }
    }
    out
}

/// Random data for every port that has none yet: floats within a range that keeps sums of products near 1, and integers that
/// are indices of anything.
fn random(f: &Func, sizes: &Bindings, data: &mut Given) -> Result<()> {
    for (i, p) in f.ports.iter().enumerate() {
        if matches!(p.source, Some(Source::Inline(_))) || data.iter().any(|(n, _)| *n == p.name) {
            continue;
        }
        let ty = f.ty(p.value)?;
        let mut shape = Vec::new();
        for d in &ty.shape {
            let n = d.eval(sizes).about(&p.name)?;
            shape.push(usize::try_from(n).about(&p.name)?);
        }
        let fill = match (ty.dtype, p.kind) {
            (DType::Bool, _) => Fill::Ints(0, 2),
            (d, _) if d.is_int() => Fill::Ints(0, 2),
            (_, PortKind::Param) => {
                let fan = shape.iter().rev().take(2).copied().max().unwrap_or(1).max(1);
                let most = (3.0 / fan as f64).sqrt();
                Fill::Uniform(-most, most)
            }
            _ => Fill::Uniform(-1.0, 1.0),
        };
        data.push((p.name.clone(), made(&p.name, ty.dtype, shape, fill, i)?));
    }
    Ok(())
}

/// A random tensor, unless it would take more memory than there is.
pub(crate) fn made(name: &str, dtype: DType, shape: Vec<usize>, fill: Fill, seed: usize) -> Result<Tensor> {
    // Numbers are made in f64 and then packed.
    let need = rlx::tensor::count(&shape)?.checked_mul(16).and_then(|n| u64::try_from(n).ok());
    let have = Machine::this().available.unwrap_or(u64::MAX);
    if need.is_none_or(|n| n > have) {
        return Err(Failure::other(format!(
            "there is not enough memory to make up {name}: {dtype}{shape:?}"
        )));
    }
    let arg = Arg { shape, dtype: ArgType::Fixed(dtype), fill };
    Ok(arg.tensor(dtype, 1 + seed as u64)?)
}

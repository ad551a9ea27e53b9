//! What a graph is given: its text, its inputs and params from files, or random ones.

use crate::failure::{Context, Failure, Result};
use crate::tensors::{self, read_file};
use rlx::formats::{Entry, Format, paths};
use rlx::func::{PortKind, Source};
use rlx::machine::Machine;
use rlx::sample::{Arg, ArgType, Fill};
use rlx::{Bindings, DType, Func, Tensor, text};
use std::collections::{BTreeMap, HashSet};
use std::path::Path;

/// Tensors by the names of ports.
pub(crate) type Given = Vec<(String, Tensor)>;

/// Reads a graph; messages name the file as the caller does.
pub(crate) fn read_graph(path: &Path) -> Result<Func> {
    let name = path.display().to_string();
    if path.extension().is_some_and(|e| e != "rlx") {
        return Err(Failure::call(format!("{name}: not a graph in the text format (.rlx)")));
    }
    let bytes = read_file(path)?;
    let text =
        String::from_utf8(bytes).map_err(|_| Failure::other(format!("{name}: not a text in UTF-8")))?;
    Ok(text::parse_named(&name, &text)?)
}

/// The data of all ports that the graph does not hold itself: from the file given, then from those it refers to.
pub(crate) fn gather(f: &Func, graph: &Path, inputs: Option<&Path>) -> Result<Given> {
    found(f, graph, inputs, |names| {
        Err(match inputs {
            None => Failure::call(format!("missing {names}: give them with --in FILE")),
            Some(path) => Failure::other(format!("{} has no {names}", path.display())),
        })
    })
}

/// The same, with random data for what no file has.
pub(crate) fn gather_or_make(
    f: &Func,
    graph: &Path,
    inputs: Option<&Path>,
    asked: &[(String, i64)],
) -> Result<Given> {
    let mut data = found(f, graph, inputs, |_| Ok(()))?;
    let mut sizes = sizes(f, asked)?;
    for (name, n) in &bound(f, &data) {
        sizes.insert(name, n);
    }
    random(f, &sizes, &mut data)?;
    Ok(data)
}

/// What files have; `missing_is` is told what they have not.
fn found(
    f: &Func,
    graph: &Path,
    inputs: Option<&Path>,
    missing_is: impl FnOnce(String) -> Result<()>,
) -> Result<Given> {
    let mut data = match inputs {
        Some(path) => read_inputs(f, path)?,
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
        let file = tensors::open(&paths::referred(graph, path)?)?;
        for (port, tensor) in wanted {
            data.push((port.into(), tensors::tensor(&file, tensor, f.ty(f.need_port(port)?.value)?)?));
        }
    }
    Ok(data)
}

/// Everything in the file; what the graph does not know is an error. The array of an npy file, which has no name but the
/// file's, goes to the only input of a graph that has one.
fn read_inputs(f: &Func, path: &Path) -> Result<Given> {
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
        let parts = tensors::parts(&p.name, ty)?;
        if parts.iter().any(|n| file.entry(n).is_some()) {
            data.push((p.name.clone(), tensors::tensor(&file, &p.name, ty)?));
            known.extend(parts);
        }
    }
    let names = file.entries().iter().map(Entry::name);
    let mut strange: Vec<&str> = names.filter(|n| !known.contains(*n)).collect();
    if !strange.is_empty() {
        strange.sort_unstable();
        let ports: Vec<&str> = f.ports.iter().map(|p| p.name.as_str()).collect();
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

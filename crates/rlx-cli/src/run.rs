//! `rlx run`: evaluates a graph.

use crate::failure::{Context, Failure, Result};
use crate::show;
use crate::tensors::{self, Reader, Stored, read_file};
use rlx_ir::func::{PortKind, Source};
use rlx_ir::{Func, Options, Tensor, eval, text, transform};
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::Write;
use std::path::{Component, Path, PathBuf};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The graph, in the text format.
    graph: PathBuf,
    /// What runs it; so far only `reference`: slow and exact.
    #[arg(long, default_value = "reference")]
    device: String,
    /// The inputs, by name, in a safetensors file.
    #[arg(long = "in", value_name = "FILE")]
    inputs: Option<PathBuf>,
    /// Writes the outputs, by name, to a safetensors file.
    #[arg(long = "out", value_name = "FILE")]
    outputs: Option<PathBuf>,
    /// Adds the gradient of the output `loss` as `grad.NAME` for everything marked `diff`.
    #[arg(long)]
    grad: bool,
}

/// Reads a graph; messages name the file as the caller does.
pub(crate) fn read_graph(path: &Path) -> Result<Func> {
    let name = path.display().to_string();
    if path.extension().is_some_and(|e| e != "rlx") {
        return Err(Failure::call(format!(
            "{name}: only graphs in the text format (.rlx) can be read so far"
        )));
    }
    let bytes = read_file(path)?;
    let text =
        String::from_utf8(bytes).map_err(|_| Failure::other(format!("{name}: not a text in UTF-8")))?;
    Ok(text::parse_named(&name, &text)?)
}

pub(crate) fn run(args: &Args, out: &mut impl Write) -> Result<()> {
    if args.device != "reference" {
        let message = format!("no device {:?}: so far there is only `reference`", args.device);
        return Err(Failure::call(message));
    }
    if let Some(path) = &args.outputs {
        can_write(path, &args.graph)?;
    }
    let mut func = read_graph(&args.graph)?;
    if args.grad {
        func = with_gradient(&func)?;
    }
    let data = gather(&func, args)?;
    let given: Vec<(&str, &Tensor)> = data.iter().map(|(n, t)| (n.as_str(), t)).collect();
    let mut results = Vec::new();
    for (name, array) in eval(&func, &given, &Options::default())? {
        results.push((name, array.to_tensor()?));
    }
    if let Some(path) = &args.outputs {
        tensors::write(path, &results)?;
    }
    for (name, t) in &results {
        out.write_all(show::tensor(name, t).as_bytes())?;
    }
    Ok(())
}

/// Says before a long run that its results could not be written after it.
fn can_write(path: &Path, graph: &Path) -> Result<()> {
    let name = path.display();
    if path.is_dir() {
        return Err(Failure::other(format!("{name}: is a folder")));
    }
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return Err(Failure::other(format!("{name}: there is no folder {}", folder.display())));
    }
    match (fs::canonicalize(path), fs::canonicalize(graph)) {
        (Ok(a), Ok(b)) if a == b => Err(Failure::call(format!("{name}: --out would overwrite the graph"))),
        _ => Ok(()),
    }
}

/// The graph with `grad.NAME` for everything marked `diff`.
fn with_gradient(f: &Func) -> Result<Func> {
    let ty = f.ty(f.need_output("loss")?.value)?;
    if ty.rank() != 0 {
        return Err(Failure::other(format!("--grad wants a scalar output `loss`; it is {ty}")));
    }
    let wrt: Vec<&str> = f.ports.iter().filter(|p| p.diff).map(|p| p.name.as_str()).collect();
    if wrt.is_empty() {
        return Err(Failure::other("--grad has nothing to do: no input or param is marked `diff`"));
    }
    Ok(transform::vjp(f, &["loss"], &wrt)?)
}

/// The data of all ports that the graph does not hold itself: from the file given, then from those it refers to.
fn gather(f: &Func, args: &Args) -> Result<Vec<(String, Tensor)>> {
    let mut data = match &args.inputs {
        Some(path) => read_inputs(f, path)?,
        None => Vec::new(),
    };
    let given: HashSet<String> = data.iter().map(|(n, _)| n.clone()).collect();
    let mut files: BTreeMap<PathBuf, Vec<(&str, &str)>> = BTreeMap::new();
    let mut missing = Vec::new();
    for p in f.ports.iter().filter(|p| !given.contains(&p.name)) {
        match &p.source {
            Some(Source::Inline(_)) => {}
            Some(Source::File { file, tensor }) => {
                files.entry(below(&args.graph, file)?).or_default().push((&p.name, tensor));
            }
            None => {
                let what = if p.kind == PortKind::Input { "input" } else { "param" };
                missing.push(format!("{what} {} ({})", p.name, f.ty(p.value)?));
            }
        }
    }
    // Before anything large is read.
    if !missing.is_empty() {
        let names = missing.join(", ");
        return Err(match &args.inputs {
            None => Failure::call(format!("missing {names}: give them with --in FILE")),
            Some(path) => Failure::other(format!("{} has no {names}", path.display())),
        });
    }
    for (path, wanted) in files {
        let stored = Stored::open(&inside(&args.graph, &path)?)?;
        let reader = stored.read()?;
        for (port, tensor) in wanted {
            data.push((port.into(), reader.tensor(tensor, f.ty(f.need_port(port)?.value)?)?));
        }
    }
    Ok(data)
}

/// Everything in the file; what the graph does not know is an error.
fn read_inputs(f: &Func, path: &Path) -> Result<Vec<(String, Tensor)>> {
    if path.extension().is_some_and(|e| e == "npz") {
        return Err(Failure::call(format!("{}: only safetensors files can be read so far", path.display())));
    }
    let stored = Stored::open(path)?;
    let reader = stored.read()?;
    let names: HashSet<&str> = reader.names().into_iter().collect();
    let (mut data, mut known) = (Vec::new(), HashSet::new());
    for p in &f.ports {
        let ty = f.ty(p.value)?;
        let parts = Reader::parts(&p.name, ty)?;
        if parts.iter().any(|n| names.contains(n.as_str())) {
            data.push((p.name.clone(), reader.tensor(&p.name, ty)?));
            known.extend(parts);
        }
    }
    let strange: Vec<&str> = reader.names().into_iter().filter(|n| !known.contains(*n)).collect();
    if !strange.is_empty() {
        let ports: Vec<&str> = f.ports.iter().map(|p| p.name.as_str()).collect();
        let message = format!("{} has {}", path.display(), strange.join(", "));
        return Err(Failure::other(format!("{message}, but the graph has only {}", ports.join(", "))));
    }
    Ok(data)
}

/// The file that a graph refers to: below the graph's own folder, and nowhere else.
fn below(graph: &Path, file: &str) -> Result<PathBuf> {
    let relative = Path::new(file);
    let tame = |c: Component<'_>| matches!(c, Component::Normal(_) | Component::CurDir);
    if file.is_empty() || !relative.components().all(tame) {
        return Err(outside(graph, relative));
    }
    Ok(graph.parent().unwrap_or(Path::new("")).join(relative))
}

/// The same path, if it is a file and no link leads out of the graph's own folder.
fn inside(graph: &Path, path: &Path) -> Result<PathBuf> {
    let real = fs::canonicalize(path).about(path.display())?;
    let folder = graph.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = fs::canonicalize(folder).about(folder.display())?;
    if !real.starts_with(folder) {
        return Err(outside(graph, path));
    }
    // A pipe would be waited for.
    if !real.is_file() {
        return Err(Failure::other(format!("{}: not a file", path.display())));
    }
    Ok(path.into())
}

fn outside(graph: &Path, file: &Path) -> Failure {
    Failure::other(format!("{}: refers to {file:?}, which is not below its own folder", graph.display()))
}

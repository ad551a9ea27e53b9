//! `rlx run`: runs a graph.

use crate::bisect::bisect;
use crate::data::{Given, Subject, gather};
use crate::engine::{self, EngineArgs, Place, Precision, Ready};
use crate::failure::{Failure, Result};
use crate::{profile, show, tensors};
use rlx::{CompileOptions, Func, Options, Tensor, eval, transform};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The graph: in the text format, or an ONNX model.
    graph: PathBuf,
    /// What runs it: `cpu`, or `oracle`, the reference interpreter: slow and exact.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// The inputs, by name, in a file of tensors: safetensors, npz, npy or GGUF.
    #[arg(long = "in", value_name = "FILE")]
    inputs: Option<PathBuf>,
    /// Writes the outputs, by name, to a file of tensors, in the format that its name ends in (else safetensors).
    #[arg(long = "out", value_name = "FILE")]
    outputs: Option<PathBuf>,
    /// Adds the gradient of the output `loss` as `grad.NAME` for everything marked `diff`.
    #[arg(long)]
    grad: bool,
    #[command(flatten)]
    engine: EngineArgs,
    /// The precision of products.
    #[arg(long, value_enum)]
    precision: Option<Precision>,
    /// Also prints what every step took, and how near to the machine's limits it came.
    #[arg(long)]
    profile: bool,
    /// Writes the steps as a trace for Perfetto or chrome://tracing.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Finds the first step that disagrees with the oracle, instead of printing outputs.
    #[arg(long, conflicts_with_all = ["profile", "trace", "outputs"])]
    bisect: bool,
}

pub(crate) fn run(args: &Args, out: &mut impl Write) -> Result<()> {
    let place = engine::place(&args.device)?;
    let engine_only = args.profile || args.trace.is_some() || args.bisect;
    if place == Place::Oracle && (engine_only || args.engine.given() || args.precision.is_some()) {
        return Err(Failure::call(
            "the oracle has no threads, levels, precision, profile or steps: use --device cpu",
        ));
    }
    for (flag, path) in [("--out", &args.outputs), ("--trace", &args.trace)] {
        if let Some(path) = path {
            can_write(path)?;
            if same_file(path, &args.graph) {
                let name = path.display();
                return Err(Failure::call(format!("{name}: {flag} would overwrite the graph")));
            }
        }
    }
    let mut subject = Subject::read(&args.graph, args.inputs.as_deref(), true)?;
    if args.grad {
        subject.func = with_gradient(&subject.func)?;
    }
    let data = gather(&subject, args.inputs.as_deref())?;
    let func = &subject.func;
    let results = match place {
        Place::Oracle => interpreted(func, &data)?,
        Place::Device(device) => {
            let options = args.engine.options(args.precision.unwrap_or(Precision::F32))?;
            if args.bisect {
                return bisect(func, device, &options, &data, out);
            }
            let ready = engine::ready(func, device, &options, &data)?;
            let results = ready.exe.run(&ready.inputs)?.into_vec();
            show_all(args, &subject, &results, out)?;
            if args.profile || args.trace.is_some() {
                profiled(args, &ready, &options, out)?;
            }
            return Ok(());
        }
    };
    show_all(args, &subject, &results, out)
}

/// Results as the oracle gives them.
fn interpreted(f: &Func, data: &Given) -> Result<Vec<(String, Tensor)>> {
    let given: Vec<(&str, &Tensor)> = data.iter().map(|(n, t)| (n.as_str(), t)).collect();
    let mut results = Vec::new();
    for (name, array) in eval(f, &given, &Options::default())? {
        results.push((name, array.to_tensor()?));
    }
    Ok(results)
}

/// Writes results to the file asked for, and for people.
fn show_all(
    args: &Args,
    subject: &Subject,
    results: &[(String, Tensor)],
    out: &mut impl Write,
) -> Result<()> {
    if let Some(path) = &args.outputs {
        let views: Vec<_> = results.iter().map(|(name, t)| (subject.output(name), t.into())).collect();
        tensors::write(path, &views, &[], None)?;
    }
    for (name, t) in results {
        out.write_all(show::tensor(subject.output(name), t).as_bytes())?;
    }
    Ok(())
}

/// The profile of the fastest of a few runs, as asked for.
fn profiled(args: &Args, ready: &Ready<'_>, options: &CompileOptions, out: &mut impl Write) -> Result<()> {
    let report = profile::Report::measure(ready, options)?;
    if let Some(path) = &args.trace {
        tensors::replace(path, report.trace().as_bytes())?;
    }
    if args.profile {
        writeln!(out, "\n{}", report.table())?;
    }
    Ok(())
}

/// Says before long work that its results could not be written after it.
pub(crate) fn can_write(path: &Path) -> Result<()> {
    let name = path.display();
    if path.is_dir() {
        return Err(Failure::other(format!("{name}: is a folder")));
    }
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return Err(Failure::other(format!("{name}: there is no folder {}", folder.display())));
    }
    Ok(())
}

fn same_file(a: &Path, b: &Path) -> bool {
    matches!((fs::canonicalize(a), fs::canonicalize(b)), (Ok(a), Ok(b)) if a == b)
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

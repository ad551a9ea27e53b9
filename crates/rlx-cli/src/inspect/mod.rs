//! `rlx inspect`: shows a graph, and what each stage of compilation makes of it; or what is in a file of tensors.

mod accuracy;
mod archive;
mod graph;
mod program;

pub(crate) use graph::names;

use crate::data::{Subject, is_model, size, sizes};
use crate::engine::{self, EngineArgs, Place, Precision};
use crate::failure::{Context, Failure, Result};
use crate::tensors;
use clap::ValueEnum;
use rlx::tools::{self, print};
use rlx::{CompileOptions, Device, Func, text};
use serde_json::Value;
use std::io::Write;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A graph in the text format, an ONNX model, or a file of tensors: safetensors (also an index of several), GGUF, npy or npz.
    file: PathBuf,
    /// The stage of compilation to show; the graph, unless given, and of an ONNX model what is in its file.
    #[arg(long, value_enum)]
    stage: Option<Stage>,
    /// What the graph is compiled for.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// The form to show it in.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// The value of a symbol, for the plan and for random inputs; the bound up to 512, unless given.
    #[arg(long = "size", value_name = "NAME=VALUE", value_parser = size)]
    sizes: Vec<(String, i64)>,
    /// Runs the graph and tells how far its outputs are from the oracle's.
    #[arg(long, conflicts_with_all = ["stage", "format"])]
    accuracy: bool,
    /// The inputs for --accuracy, in a file of tensors; random ones, unless given.
    #[arg(long = "in", value_name = "FILE", requires = "accuracy")]
    inputs: Option<PathBuf>,
    /// The precision of products.
    #[arg(long, value_enum, default_value_t = Precision::F32)]
    precision: Precision,
    #[command(flatten)]
    engine: EngineArgs,
}

/// The stages, in order.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Stage {
    /// The graph as it was read.
    Graph,
    /// The graph after rewriting, and how often each rule fired.
    Rewrite,
    /// What is computed together, and why.
    Fuse,
    /// Where everything lies, and when.
    Plan,
    /// What each kernel does.
    Kernels,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people.
    Text,
    /// For Graphviz.
    Dot,
    /// One object.
    Json,
    /// A picture, of the plan only.
    Svg,
}

pub(crate) fn inspect(args: &Args, out: &mut impl Write) -> Result<()> {
    let device = match engine::place(&args.device)? {
        Place::Device(d) => d,
        Place::Oracle => return Err(Failure::call("the oracle compiles nothing: use --device cpu")),
    };
    let as_graph = is_model(&args.file) && (args.stage.is_some() || args.accuracy);
    if tensors::is_archive(&args.file) && !as_graph {
        return archive::show(args, &tensors::open(&args.file)?, out);
    }
    let subject = Subject::read(&args.file, args.inputs.as_deref(), args.accuracy)?;
    let options = args.engine.options(args.precision)?;
    if args.accuracy {
        return accuracy::accuracy(args, &subject, device, &options, out);
    }
    Ok(out.write_all(shown(args, &subject.func, device, &options)?.as_bytes())?)
}

fn shown(args: &Args, f: &Func, device: Device, options: &CompileOptions) -> Result<String> {
    let stage = args.stage.unwrap_or(Stage::Graph);
    if args.format == Format::Svg && stage != Stage::Plan {
        return Err(Failure::call("only the plan is drawn: --stage plan --format svg"));
    }
    if args.format == Format::Dot && matches!(stage, Stage::Plan | Stage::Kernels) {
        return Err(Failure::call("plans and kernels are no graphs: dot shows graph, rewrite and fuse"));
    }
    if stage == Stage::Graph {
        return match args.format {
            Format::Dot => Ok(graph::dot(f)),
            Format::Json => pretty(&graph::object(f)),
            Format::Text | Format::Svg => Ok(text::print(f)),
        };
    }
    let stages = tools::stages(f, device, options)?;
    let p = &stages.program;
    match (stage, args.format) {
        (Stage::Graph | Stage::Rewrite, format) => {
            let done = &stages.rewritten;
            match format {
                Format::Dot => Ok(graph::dot(&done.func)),
                Format::Json => {
                    let fired = done.fired.iter().map(|(rule, n)| (rule.to_string(), (*n).into()));
                    let mut object = graph::object(&done.func);
                    if let Some(o) = object.as_object_mut() {
                        o.insert("fired".into(), Value::Object(fired.collect()));
                    }
                    pretty(&object)
                }
                _ => {
                    // As comments, so that the text is still a graph.
                    let fired = done.fired.iter().map(|(rule, n)| format!("; {rule}: {n}\n"));
                    Ok(fired.chain([text::print(&done.func)]).collect())
                }
            }
        }
        (Stage::Fuse, Format::Dot) => Ok(print::dot(p)),
        (Stage::Fuse, Format::Json) => pretty(&program::fusion(p)),
        (Stage::Fuse, _) => Ok(print::fusion(p)),
        (Stage::Plan, format) => {
            let sizes = sizes(f, &args.sizes)?;
            match format {
                Format::Svg => print::arena(p, &sizes).about("--size"),
                Format::Json => pretty(&program::plan(p, &sizes).about("--size")?),
                _ => print::plan(p, &sizes).about("--size"),
            }
        }
        (Stage::Kernels, Format::Json) => pretty(&program::kernels(p)),
        (Stage::Kernels, _) => Ok(print::kernels(p)),
    }
}

fn pretty(v: &Value) -> Result<String> {
    let mut text = serde_json::to_string_pretty(v).about("JSON")?;
    text.push('\n');
    Ok(text)
}

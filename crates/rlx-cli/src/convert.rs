//! `rlx convert`: writes a file of tensors in another format, or a model as a graph in the text format.

use crate::data::is_model;
use crate::failure::{Failure, Result, readable};
use crate::run::can_write;
use crate::show::count;
use crate::tensors;
use rlx::formats::{Archive, Array, Format, View, gguf};
use rlx::func::{PortKind, Source};
use rlx::tools::print;
use rlx::{Model, Tensor, text};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A file of tensors: safetensors (also an index of several), GGUF, npy or npz; or an ONNX model.
    from: PathBuf,
    /// What to write; the end of its name says in which format: .safetensors, .safetensors.index.json (several files), .gguf,
    /// .npz or .npy. An ONNX model becomes a graph, .rlx, with its params in a safetensors file beside it; else its data are
    /// written alone.
    to: PathBuf,
    /// Cuts a GGUF file, or what an index names, into parts with at most so many bytes of tensors: 500M, 2G.
    #[arg(long, value_name = "BYTES", value_parser = amount)]
    part: Option<u64>,
}

/// A number of bytes as a caller writes it: `4096`, `500M`, `2G`.
fn amount(text: &str) -> std::result::Result<u64, String> {
    let units = [("K", 1_000), ("M", 1_000_000), ("G", 1_000_000_000)];
    let unit = units.iter().find_map(|(u, n)| Some((text.strip_suffix(u)?, *n)));
    let (digits, unit) = unit.unwrap_or((text, 1u64));
    let n = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit)).filter(|n| *n > 0);
    n.ok_or_else(|| format!("{text:?} is no number of bytes, such as 500M or 2G"))
}

pub(crate) fn convert(args: &Args, out: &mut impl Write) -> Result<()> {
    if args.to.extension().is_some_and(|e| e == "rlx") {
        return graph(args, out);
    }
    let Some(format) = Format::of_name(&args.to) else {
        let text =
            format!("{}: a file of tensors ends in .safetensors, .safetensors.index.json", args.to.display());
        return Err(Failure::call(format!("{text}, .gguf, .npz or .npy")));
    };
    can_write(&args.to)?;
    let file = tensors::open(&args.from)?;
    let arrays = loaded(&file)?;
    let views: Vec<(&str, View<'_>)> = arrays.iter().map(|(name, a)| (*name, a.into())).collect();
    let has_metadata = matches!(format, Format::Safetensors | Format::Gguf);
    // How the data of a GGUF file are aligned is its own affair, and elsewhere only a text.
    let keeps = |key: &str| key != gguf::ALIGNMENT || (file.format(), format) == (Format::Gguf, Format::Gguf);
    let metadata: Vec<_> =
        file.metadata().iter().filter(|(k, _)| has_metadata && keeps(k)).cloned().collect();
    let files = tensors::write(&args.to, &views, &metadata, args.part)?;
    let bytes: u64 = file.entries().iter().map(|e| e.bytes()).sum();
    let bytes = print::bytes(i64::try_from(bytes).unwrap_or(i64::MAX));
    let to = files.first().unwrap_or(&args.to).display();
    let parts = if files.len() == 1 { String::new() } else { format!(" in {} files", files.len()) };
    writeln!(
        out,
        "{}: {format}{parts}, {}, {bytes}",
        readable(&to.to_string()),
        count(arrays.len(), "tensor")
    )?;
    if !has_metadata && !file.metadata().is_empty() {
        let keys = count(file.metadata().len(), "key");
        writeln!(out, "left out: {keys} of metadata, for which {format} has no place")?;
    }
    Ok(())
}

/// An ONNX model as a graph in the text format, and its params in a safetensors file beside it.
fn graph(args: &Args, out: &mut impl Write) -> Result<()> {
    let (from, to) = (args.from.display(), &args.to);
    if !is_model(&args.from) {
        return Err(Failure::call(format!("{from}: only ONNX models become graphs")));
    }
    let weights = to.with_extension("safetensors");
    [to, &weights].into_iter().try_for_each(|p| can_write(p))?;
    let model = Model::open(&args.from)?;
    let mut func = model.graph().clone();
    let file: Arc<str> = weights.file_name().unwrap_or_default().to_string_lossy().into();
    // Small ones too: numbers in a text are for people.
    let mut small: Vec<(String, Tensor)> = Vec::new();
    for p in func.ports.iter_mut().filter(|p| p.kind == PortKind::Param) {
        if let Some(Source::Inline(t)) = &p.source {
            small.push((p.name.clone(), t.clone()));
        }
        p.source = Some(Source::File { file: file.clone(), tensor: p.name.as_str().into() });
    }
    let large = model.params().iter().map(|(name, a)| (name.as_str(), a.into()));
    let views: Vec<(&str, View<'_>)> =
        large.chain(small.iter().map(|(name, t)| (name.as_str(), t.into()))).collect();
    if !views.is_empty() {
        tensors::write(&weights, &views, &[], None)?;
    }
    tensors::replace(to, text::print(&func).as_bytes())?;
    let nodes = func.nodes.len();
    writeln!(out, "{}: {nodes} nodes, {} params", readable(&to.display().to_string()), views.len())?;
    for words in model.assumed() {
        writeln!(out, "assumed: {words}")?;
    }
    Ok(())
}

fn loaded(file: &Archive) -> Result<Vec<(&str, Array)>> {
    file.entries().iter().map(|e| Ok((e.name(), file.tensor(e.name())?))).collect()
}

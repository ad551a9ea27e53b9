//! `rlx convert`: writes a file of tensors in another format.

use crate::failure::{Failure, Result, readable};
use crate::run::can_write;
use crate::tensors;
use rlx::formats::{Archive, Array, Format, View, gguf};
use rlx::tools::print;
use std::io::Write;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A file of tensors: safetensors (also an index of several), GGUF, npy or npz.
    from: PathBuf,
    /// What to write; the end of its name says in which format: .safetensors, .safetensors.index.json (several files), .gguf,
    /// .npz or .npy.
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
    let to = readable(&args.to.display().to_string());
    let parts = if files == 1 { String::new() } else { format!(" in {files} files") };
    writeln!(out, "{to}: {format}{parts}, {} tensors, {bytes}", arrays.len())?;
    if !has_metadata && !file.metadata().is_empty() {
        writeln!(
            out,
            "left out: {} keys of metadata, for which {format} has no place",
            file.metadata().len()
        )?;
    }
    Ok(())
}

fn loaded(file: &Archive) -> Result<Vec<(&str, Array)>> {
    file.entries().iter().map(|e| Ok((e.name(), file.tensor(e.name())?))).collect()
}

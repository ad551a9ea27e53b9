//! `rlx devices`: what graphs can run on here.

use crate::failure::Result;
use rlx::machine::Machine;
use rlx::tools::print::bytes;
use serde_json::json;
use std::io::Write;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Prints one object per line.
    #[arg(long)]
    json: bool,
}

pub(crate) fn devices(args: &Args, out: &mut impl Write) -> Result<()> {
    let m = Machine::this();
    let level = m.level();
    let levels: Vec<String> = m.levels.iter().map(ToString::to_string).collect();
    if args.json {
        let line = json!({
            "device": "cpu",
            "name": m.name,
            "cores": m.cores,
            "threads": m.threads,
            "levels": levels,
            "level": level.to_string(),
            "bf16_dot": level.has_bf16_dot(),
            "int8_dot": level.has_int8_dot(),
            "memory_bytes": m.memory,
            "memory_available_bytes": m.available,
        });
        return Ok(writeln!(out, "{line}")?);
    }
    let size = |b: Option<u64>| b.and_then(|b| i64::try_from(b).ok()).map_or("unknown".into(), bytes);
    let has = |yes: bool| if yes { "yes" } else { "no" };
    let cores = m.cores.map_or(String::new(), |c| format!("{c} cores, "));
    writeln!(out, "cpu  {}", m.name)?;
    writeln!(out, "     {cores}{} threads", m.threads)?;
    writeln!(out, "     instructions: {level} (of {})", levels.join(", "))?;
    writeln!(
        out,
        "     dot products of bf16: {}, of int8: {}",
        has(level.has_bf16_dot()),
        has(level.has_int8_dot())
    )?;
    writeln!(out, "     memory: {}, of which {} are free", size(m.memory), size(m.available))?;
    Ok(())
}

//! The `rlx` program: runs graphs, shows what becomes of them, measures, and tells about ops and devices.
//!
//! Exit code 0 on success, 2 for a bad call, 1 for the rest, with one line on stderr that says why. A file for each
//! command: `run` (with `profile` and `bisect`), `inspect`, `convert`, `bench`, `devices`. Below them, `engine` makes a graph ready to
//! run, `data` finds or makes what it is given, `tensors` is the way to and from files, `show` prints numbers, `compare`
//! measures errors, `failure` is what goes wrong.

mod bench;
mod bisect;
mod compare;
mod convert;
mod data;
mod devices;
mod engine;
mod failure;
mod inspect;
mod profile;
mod run;
mod show;
mod tensors;

use clap::{Parser, Subcommand};
use failure::{Failure, Result};
use rlx::{doc, ops, text};
use std::io::{self, Write};
use std::process::ExitCode;

/// RLX: an ML compiler and runtime.
#[derive(Parser)]
#[command(name = "rlx", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs a graph and prints its outputs.
    Run(run::Args),
    /// Shows a graph and what becomes of it, or what is in a file of tensors.
    Inspect(inspect::Args),
    /// Writes a file of tensors in another format.
    Convert(convert::Args),
    /// Measures how fast graphs run.
    Bench(bench::Args),
    /// Tells what graphs can run on.
    Devices(devices::Args),
    /// Lists the ops, or tells all about one.
    Ops {
        /// The op.
        name: Option<String>,
    },
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // Help and version are no errors, and go to stdout.
        Err(e) if !e.use_stderr() => return finish(e.print().map_err(Failure::from)),
        Err(e) => return finish(Err(Failure::call(first_paragraph(&e.to_string())))),
    };
    let mut out = io::stdout().lock();
    let done = match cli.command {
        Command::Run(args) => run::run(&args, &mut out),
        Command::Inspect(args) => inspect::inspect(&args, &mut out),
        Command::Convert(args) => convert::convert(&args, &mut out),
        Command::Bench(args) => bench::bench(&args, &mut out),
        Command::Devices(args) => devices::devices(&args, &mut out),
        Command::Ops { name } => show_ops(name.as_deref(), &mut out),
    };
    finish(done.and_then(|()| Ok(out.flush()?)))
}

fn finish(done: Result<()>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(f) => f.report(),
    }
}

/// The message of a bad call without usage and tips, on one line.
fn first_paragraph(message: &str) -> String {
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let lines: Vec<&str> = message.lines().take_while(|l| !l.trim().is_empty()).map(str::trim).collect();
    format!("{}; see rlx --help", lines.join(" "))
}

fn show_ops(name: Option<&str>, out: &mut impl Write) -> Result<()> {
    let Some(name) = name else {
        let width = ops::all().iter().map(|d| d.name.len()).max().unwrap_or(0);
        for op in ops::all() {
            writeln!(out, "{:width$}  {}", op.name, doc::summary(op))?;
        }
        return Ok(());
    };
    match ops::find(name) {
        Some(op) => Ok(out.write_all(doc::page(op).as_bytes())?),
        None => {
            let hint = text::nearest(name, ops::all().iter().map(|d| d.name));
            let hint = hint.map_or(String::new(), |h| format!("; did you mean {h}?"));
            Err(Failure::call(format!("there is no op {name:?}{hint}")))
        }
    }
}

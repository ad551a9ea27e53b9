//! The project's chores, each as one command: `cargo xtask NAME`.
//!
//! Read [`steps`] for what a change must pass, [`walkthrough`] (with [`blocks`]) for the proof that
//! ARCHITECTURE.md tells the truth, [`vectors`] for where test vectors come from, [`material`] for
//! what tests fetch, [`mod@bench`] for who RLX is measured beside. [`run`] starts processes.

mod bench;
mod blocks;
mod material;
mod run;
mod steps;
mod vectors;
mod venv;
mod walkthrough;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use run::{Cmd, Result};

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "Set-up, tests, vectors and benches of RLX"
)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run everything that a change must pass, in order, up to the first failure
    Test {
        /// Leave out the documentation and the walk-through
        #[arg(long)]
        fast: bool,
    },
    /// Follow ARCHITECTURE.md's walk-through in a copy of the workspace
    Walkthrough,
    /// Fetch what tests read and the repository does not hold: ONNX's own suite, real models (Python, 250 MB)
    Material,
    /// Rewrite the expected texts of the file tests and the generated pages
    Bless,
    /// Write the test vectors anew from the reference implementations (Python, large downloads)
    Vectors {
        /// Run scripts/vectors_NAME.py alone
        #[arg(long, value_name = "NAME")]
        only: Option<String>,
    },
    /// Run a bench beside its peers (Python, downloads)
    Bench {
        #[command(subcommand)]
        bench: bench::Bench,
    },
}

fn main() -> ExitCode {
    match perform(Cli::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

fn perform(task: Task) -> Result<()> {
    let root = workspace_root()?;
    match task {
        Task::Test { fast } => steps::test(&root, fast),
        Task::Walkthrough => walkthrough::run(&root),
        Task::Material => material::prepare(&root).map(drop),
        Task::Bless => Cmd::cargo("run --quiet --package rlx-conformance --bin bless").run(&root),
        Task::Vectors { only } => vectors::run(&root, only.as_deref()),
        Task::Bench { bench } => bench::run(&root, &bench),
    }
}

/// Where the workspace lies now, which need not be where this program was built.
fn workspace_root() -> Result<PathBuf> {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    match Path::new(&here).parent() {
        Some(root) => Ok(root.to_path_buf()),
        None => Err(format!("{} is not inside a workspace", Path::new(&here).display())),
    }
}

//! `cargo xtask bench NAME`: RLX beside its peers, which are installed first.

use std::path::Path;

use clap::Subcommand;

use crate::material;
use crate::run::{Cmd, Result};
use crate::venv::Venv;

#[derive(Subcommand)]
pub enum Bench {
    /// Building, differentiating and batching graphs, beside JAX
    Ir(Options),
    /// Running graphs on the CPU, beside ONNX Runtime, OpenVINO, faer and C by hand
    Cpu(Options),
    /// Running real ONNX models on the CPU, beside ONNX Runtime
    Onnx(Options),
}

#[derive(clap::Args)]
pub struct Options {
    /// Only the cases whose names start so, as `w1` or `w2/8x128`; several with commas
    #[arg(long, value_name = "NAMES")]
    only: Option<String>,
    /// Turns of each side
    #[arg(long, value_name = "COUNT", default_value_t = 15)]
    turns: usize,
    /// Print a JSON object per case instead of tables
    #[arg(long)]
    json: bool,
}

/// Installs the peers and runs a bench.
pub fn run(root: &Path, bench: &Bench) -> Result<()> {
    let (name, options) = match bench {
        Bench::Ir(options) => ("ir", options),
        Bench::Cpu(options) => ("cpu", options),
        Bench::Onnx(options) => ("onnx", options),
    };
    let venv = match bench {
        // The models and ONNX Runtime are those of the tests.
        Bench::Onnx(_) => material::prepare(root)?,
        _ => {
            let venv = Venv::open(root, &format!("target/venv-bench-{name}"))?;
            venv.install(&format!("requirements-bench-{name}.txt"))?;
            venv
        }
    };
    let mut args = vec![
        name.to_owned(),
        "--peer".to_owned(),
        venv.python.to_string_lossy().into_owned(),
        "--turns".to_owned(),
    ];
    args.push(options.turns.to_string());
    args.extend(options.only.iter().flat_map(|o| ["--only".to_owned(), o.clone()]));
    args.extend(options.json.then(|| "--json".to_owned()));
    Cmd::cargo("run --quiet --release --package rlx-conformance --features bench --bin bench --")
        .args(args)
        .run(root)
}

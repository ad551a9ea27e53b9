//! Benches: RLX and its peers by turns in one run, so that only their ratio counts.
//!
//! [`ir`]: graphs are built, differentiated and batched beside JAX. [`cpu`]: graphs are compiled and run on the CPU beside
//! ONNX Runtime, OpenVINO, faer and a loop by hand; its [`cases`], the [`side`]s that take turns, the [`table`] and the
//! [`compile`] figures. [`onnx`]: real ONNX models beside ONNX Runtime. Called by `cargo xtask bench NAME`, which installs the peers and passes their Python with `--peer`.

mod cases;
mod compile;
mod cpu;
#[cfg(feature = "bench")]
mod faer;
mod ir;
mod machine;
mod onnx;
mod peer;
mod side;
mod table;

use std::process::ExitCode;

/// An error is a message for a person.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// What a bench is asked to do.
#[derive(Default)]
pub struct Asked {
    /// The Python that has the peers; without it RLX runs alone.
    pub python: Option<String>,
    /// Starts of the names of the cases that are wanted; all if there is none.
    pub only: Vec<String>,
    /// Whether results are JSON lines.
    pub json: bool,
    /// Turns of each side.
    pub turns: usize,
    /// Milliseconds of untimed calls before short calls are timed.
    pub warm: f64,
}

impl Asked {
    /// Whether a case is wanted.
    pub fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|o| name.starts_with(o.as_str()))
    }
}

fn parse(args: impl Iterator<Item = String>) -> Result<(String, Asked)> {
    let (mut name, mut asked) = (None, Asked { turns: 15, warm: 10.0, ..Asked::default() });
    let mut args = args;
    while let Some(a) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{a} needs a value"));
        match a.as_str() {
            "--peer" => asked.python = Some(value()?),
            "--only" => asked.only.extend(value()?.split(',').map(str::to_owned)),
            "--turns" => asked.turns = value()?.parse().map_err(|e| format!("--turns: {e}"))?,
            "--warm" => asked.warm = value()?.parse().map_err(|e| format!("--warm: {e}"))?,
            "--json" => asked.json = true,
            _ if a.starts_with('-') => return Err(format!("no option {a}").into()),
            _ => name = Some(a),
        }
    }
    Ok((name.ok_or("which bench? there are: ir, cpu, onnx")?, asked))
}

fn main() -> ExitCode {
    let done = parse(std::env::args().skip(1)).and_then(|(name, asked)| match name.as_str() {
        "ir" => ir::run(&asked),
        "cpu" => cpu::run(&asked),
        "onnx" => onnx::run(&asked),
        _ => Err(format!("no bench {name:?}; there are: ir, cpu, onnx").into()),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

//! ONNX: its own backend suite and real models, imported, run, and compared with what they should give.
//!
//! [`suite`]: the cases of the suite; [`real`]: models from the registries beside ONNX Runtime's results; [`page`]: what
//! `docs/onnx.md` says of both. The material is fetched by `cargo xtask material`.

pub mod page;
pub mod real;
pub mod suite;

use crate::filetest;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

/// How a case went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All outputs are right, on all devices.
    Pass,
    /// An error, or a wrong result.
    Fail(String),
    /// The program broke down, which no file may bring about.
    Panic(String),
}

impl Outcome {
    /// What becomes of some work.
    pub fn of(work: impl FnOnce() -> Result<(), String>) -> Outcome {
        match catch_unwind(AssertUnwindSafe(work)) {
            Ok(Ok(())) => Outcome::Pass,
            Ok(Err(e)) => Outcome::Fail(e.replace('\n', " ")),
            Err(panic) => Outcome::Panic(panic_text(&*panic)),
        }
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message").to_owned()
}

/// The folder of fetched material, if it is there.
pub fn material() -> Result<PathBuf, String> {
    let dir = filetest::root().join("target/material");
    match dir.join("stamp").exists() {
        true => Ok(dir),
        false => Err("target/material is not there or not whole: cargo xtask material".into()),
    }
}

//! What runs a graph, from the options of the call, and a graph made ready to run.

use crate::data::{Given, bound};
use crate::failure::{Failure, Result};
use clap::ValueEnum;
use rlx::func::PortKind;
use rlx::tools::{self, Level};
use rlx::{CompileOptions, Device, Engine, Executable, Func, Settings, Tensor};

/// Options of everything that runs on the CPU.
#[derive(clap::Args)]
pub(crate) struct EngineArgs {
    /// The number of threads; as many as the machine runs at once, unless given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024))]
    threads: Option<u64>,
    /// The instruction set; the best there is, unless given.
    #[arg(long, value_parser = level)]
    level: Option<Level>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Precision {
    /// Everything in f32.
    F32,
    /// Weights and operands of products in bf16, sums in f32.
    Bf16,
}

impl Precision {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
        }
    }
}

fn level(name: &str) -> std::result::Result<Level, String> {
    let have = || Level::available().iter().map(Level::to_string).collect::<Vec<_>>().join(", ");
    let found = Level::parse(name).filter(|l| l.is_available());
    found.ok_or_else(|| format!("no instruction set {name:?}; this machine has {}", have()))
}

impl EngineArgs {
    pub(crate) fn options(&self, precision: Precision) -> Result<CompileOptions> {
        let threads = self.threads.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        let engine = Engine::new(Settings { threads, level: self.level })?;
        let precision = match precision {
            Precision::F32 => rlx::Precision::F32,
            Precision::Bf16 => rlx::Precision::Bf16,
        };
        Ok(CompileOptions { precision, engine: Some(engine), ..CompileOptions::default() })
    }

    /// Whether anything was asked for that only the CPU's engine can do.
    pub(crate) fn given(&self) -> bool {
        self.threads.is_some() || self.level.is_some()
    }
}

/// The engine that options name; those that [`EngineArgs`] make always do.
pub(crate) fn engine(options: &CompileOptions) -> Result<Engine> {
    options.engine.clone().map_or_else(|| Ok(Engine::new(Settings::default())?), Ok)
}

/// What a caller may run a graph on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Device(Device),
    /// The reference interpreter.
    Oracle,
}

pub(crate) fn place(name: &str) -> Result<Place> {
    match name {
        "oracle" | "reference" => Ok(Place::Oracle),
        _ => match Device::parse(name) {
            Ok(d) => Ok(Place::Device(d)),
            Err(_) => Err(Failure::call(format!("no device {name:?}: there are cpu and oracle"))),
        },
    }
}

/// A compiled graph with its params set, and its inputs.
pub(crate) struct Ready<'a> {
    pub(crate) exe: Executable,
    pub(crate) inputs: Vec<(&'a str, &'a Tensor)>,
}

/// Compiles a graph, sets its params and makes sure that the machine has the memory to run it.
pub(crate) fn ready<'a>(
    f: &Func,
    device: Device,
    options: &CompileOptions,
    data: &'a Given,
) -> Result<Ready<'a>> {
    let exe = rlx::compile_with(f, device, options)?;
    let sizes = bound(f, data);
    match tools::check_memory(&exe, &sizes) {
        // The run says better what is missing.
        Err(e) if e.code() == rlx::Code::Unbound => {}
        other => other?,
    }
    let mut inputs = Vec::new();
    for (name, t) in data {
        match f.need_port(name)?.kind {
            PortKind::Param => exe.params().set(name, t.clone())?,
            PortKind::Input => inputs.push((name.as_str(), t)),
        }
    }
    Ok(Ready { exe, inputs })
}

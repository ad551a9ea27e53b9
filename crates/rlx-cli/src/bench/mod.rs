//! `rlx bench`: how fast graphs run.

mod cases;

use crate::engine::{EngineArgs, Precision, Ready, engine, ready};
use crate::failure::{Failure, Result};
use cases::{Case, Work};
use clap::ValueEnum;
use rlx::{CompileOptions, DType, Device, View, ViewMut};
use serde_json::{Map, Value, json};
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// What is measured.
    #[arg(value_enum)]
    what: What,
    /// The graph, for `model`.
    path: Option<PathBuf>,
    /// What it runs on.
    #[arg(long, default_value = "cpu")]
    device: String,
    #[command(flatten)]
    engine: EngineArgs,
    /// The precision: of products, and of what softmax, layernorm and scan read and write.
    #[arg(long, alias = "precision", value_enum, default_value_t = Precision::F32)]
    dtype: Precision,
    /// The batch, instead of the standard cases.
    #[arg(long, value_name = "B", value_parser = clap::value_parser!(i64).range(1..=1 << 20))]
    batch: Option<i64>,
    /// The length of the sequence, instead of the standard cases.
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(i64).range(1..=1 << 24))]
    seq: Option<i64>,
    /// Only the cases whose name contains this.
    #[arg(long, value_name = "NAME")]
    case: Option<String>,
    /// Prints one object per line.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// Matrix products with constant weights, MxKxN.
    Gemm,
    /// The selective scan of Mamba.
    Scan,
    /// Attention with 12 heads of 64, causal too.
    Attention,
    /// Convolutions.
    Conv,
    /// Softmax over rows.
    Softmax,
    /// Layer norm over rows.
    Layernorm,
    /// A MiniLM-L6 encoder with random weights, batch x sequence.
    Encoder,
    /// A graph from a file; what the file does not give is random.
    Model,
}

impl What {
    fn name(self) -> String {
        self.to_possible_value().map_or(String::new(), |v| v.get_name().into())
    }
}

pub(crate) fn bench(args: &Args, out: &mut impl Write) -> Result<()> {
    let device = match crate::engine::place(&args.device)? {
        crate::engine::Place::Device(d) => d,
        crate::engine::Place::Oracle => {
            return Err(Failure::call("the oracle is not made for speed: use --device cpu"));
        }
    };
    match (args.what, &args.path) {
        (What::Model, None) => return Err(Failure::call("bench model needs the PATH of a graph")),
        (What::Model, Some(_)) | (_, None) => {}
        (what, Some(p)) => {
            return Err(Failure::call(format!("bench {} takes no path ({})", what.name(), p.display())));
        }
    }
    let options = args.engine.options(args.dtype)?;
    let mut cases = cases::all(args)?;
    if let Some(name) = &args.case {
        let names: Vec<String> = cases.iter().map(|c| c.name.clone()).collect();
        cases.retain(|c| c.name.contains(name.as_str()));
        if cases.is_empty() {
            return Err(Failure::call(format!("no case {name:?}; there are {}", names.join(", "))));
        }
    }
    for (i, case) in cases.iter().enumerate() {
        progress(&format!("{} {} …", args.what.name(), case.name));
        let taken = one(case, device, &options);
        progress("");
        let taken = taken?;
        if i == 0 && !args.json {
            writeln!(
                out,
                "{:10} {:24} {:>7} {:>5} {:>10} {:>10}",
                "bench", "case", "threads", "dtype", "ms", "median"
            )?;
        }
        report(args, case, &options, taken, out)?;
        out.flush()?;
    }
    Ok(())
}

/// A line on a terminal that the next one replaces.
fn progress(text: &str) {
    let mut err = io::stderr().lock();
    if err.is_terminal() {
        // Nobody is left to be told if this fails.
        let _ = write!(err, "\r\x1b[K{text}").and_then(|()| err.flush());
    }
}

/// The least and the median time of a run.
#[derive(Clone, Copy)]
struct Taken {
    least: Duration,
    median: Duration,
    /// Arithmetic operations of a run, and the bytes that its calls read and write, if they were asked for.
    flops: f64,
    bytes: f64,
}

fn one(case: &Case<'_>, device: Device, options: &CompileOptions) -> Result<Taken> {
    let (func, data) = (case.make)()?;
    let ready = ready(&func, device, options, &data)?;
    let taken = timed(&ready)?;
    if !case.work.iter().any(|w| matches!(w, Work::Runs)) {
        return Ok(taken);
    }
    let calls = ready.exe.profile(&ready.inputs)?.1.calls;
    let sum = |of: &dyn Fn(&rlx::Timed) -> u64| calls.iter().map(|c| of(c) as f64).sum();
    Ok(Taken { flops: sum(&|c| c.flops), bytes: sum(&|c| c.bytes), ..taken })
}

fn timed(ready: &Ready<'_>) -> Result<Taken> {
    // The first run packs the params, and says how large the outputs are.
    let outputs = ready.exe.run(&ready.inputs)?;
    let packed = ready.inputs.iter().map(|(_, t)| t.dtype()).chain(outputs.iter().map(|(_, t)| t.dtype()));
    if packed.into_iter().any(DType::is_packed) {
        return measure(|| {
            ready.exe.run(&ready.inputs)?;
            Ok(())
        });
    }
    let shapes: Vec<(DType, Vec<usize>, usize)> =
        outputs.iter().map(|(_, t)| (t.dtype(), t.shape().to_vec(), t.bytes().len())).collect();
    drop(outputs);
    into_memory(ready, &shapes)
}

/// Runs into the same memory again and again: no run asks for any.
fn into_memory(ready: &Ready<'_>, shapes: &[(DType, Vec<usize>, usize)]) -> Result<Taken> {
    const ALIGN: usize = 64;
    let inputs: Vec<(&str, View<'_>)> = ready
        .inputs
        .iter()
        .map(|(n, t)| (*n, View { dtype: t.dtype(), shape: t.shape(), bytes: t.bytes() }))
        .collect();
    let mut memory: Vec<Vec<u8>> = shapes.iter().map(|(.., bytes)| vec![0; bytes + ALIGN]).collect();
    let mut outputs: Vec<ViewMut<'_>> = Vec::new();
    for (m, (dtype, shape, bytes)) in memory.iter_mut().zip(shapes) {
        let from = m.as_ptr().align_offset(ALIGN);
        let bytes = m.get_mut(from..).and_then(|m| m.get_mut(..*bytes));
        outputs.push(ViewMut { dtype: *dtype, shape, bytes: bytes.unwrap_or_default() });
    }
    measure(|| Ok(ready.exe.run_into(&inputs, &mut outputs)?))
}

/// Warms up, then runs at least 10 times and for a second; what is very slow, for ten seconds at most.
fn measure(mut run: impl FnMut() -> Result<()>) -> Result<Taken> {
    let began = Instant::now();
    let mut warm = 0;
    while warm < 2 || (warm < 10 && began.elapsed() < Duration::from_millis(200)) {
        run()?;
        warm += 1;
    }
    let began = Instant::now();
    let mut times = Vec::new();
    loop {
        let start = Instant::now();
        run()?;
        times.push(start.elapsed());
        let (n, passed) = (times.len(), began.elapsed());
        if (n >= 10 && passed >= Duration::from_secs(1)) || (n >= 3 && passed >= Duration::from_secs(10)) {
            break;
        }
    }
    times.sort_unstable();
    let at = |i: usize| times.get(i).copied().unwrap_or_default();
    Ok(Taken { least: at(0), median: at(times.len() / 2), flops: 0.0, bytes: 0.0 })
}

fn report(
    args: &Args,
    case: &Case<'_>,
    options: &CompileOptions,
    t: Taken,
    out: &mut impl Write,
) -> Result<()> {
    let threads = engine(options)?.threads();
    let per = |n: f64, by: f64| n / t.least.as_secs_f64().max(1e-9) / by;
    let ms = |d: Duration| d.as_secs_f64() * 1e3;
    let rates: Vec<(&str, f64, &str)> = case
        .work
        .iter()
        .flat_map(|w| match w {
            Work::Flops(n) => vec![("gflops", per(*n, 1e9), "GFLOP/s")],
            Work::Bytes(n) => vec![("gbps", per(*n, 1e9), "GB/s")],
            Work::Tokens(n) => vec![("tokens_per_s", per(*n, 1.0), "tokens/s")],
            Work::Runs => vec![
                ("runs_per_s", per(1.0, 1.0), "runs/s"),
                ("gflops", per(t.flops, 1e9), "GFLOP/s"),
                ("gbps", per(t.bytes, 1e9), "GB/s"),
            ],
        })
        .collect();
    if !args.json {
        let shown: Vec<String> = rates.iter().map(|(_, x, unit)| format!("{x:.1} {unit}")).collect();
        return Ok(writeln!(
            out,
            "{:10} {:24} {threads:>7} {:>5} {:>10.4} {:>10.4}  {}",
            args.what.name(),
            case.name,
            args.dtype.name(),
            ms(t.least),
            ms(t.median),
            shown.join(", ")
        )?);
    }
    let mut line: Map<String, Value> = Map::new();
    line.insert("bench".into(), args.what.name().into());
    line.insert("case".into(), case.name.clone().into());
    line.insert("device".into(), "cpu".into());
    line.insert("dtype".into(), args.dtype.name().into());
    line.insert("threads".into(), threads.into());
    line.insert("ms".into(), ms(t.least).into());
    line.insert("ms_median".into(), ms(t.median).into());
    line.extend(rates.iter().map(|(key, x, _)| (key.to_string(), json!(x))));
    Ok(writeln!(out, "{}", Value::Object(line))?)
}

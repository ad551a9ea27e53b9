//! What compiling costs, what new sizes cost, and how well memory is planned.

use crate::table::median;
use crate::{Asked, Result};
use rlx::nn::Encoder;
use rlx::{
    Bindings, CompileOptions, DType, Device, Engine, Executable, Func, Report, Tensor, View, compile_with,
};
use rlx_conformance::models::{Gpt, Mamba};
use serde_json::json;
use std::time::Instant;

fn options(engine: &Engine) -> CompileOptions {
    CompileOptions { engine: Some(engine.clone()), ..CompileOptions::default() }
}

fn ms(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e3
}

/// The least and the middle.
fn summary(times: &[f64]) -> (f64, f64) {
    (times.iter().copied().fold(f64::INFINITY, f64::min), median(times))
}

/// Milliseconds from BERT-base's finished graph to an executable.
fn compiling(asked: &Asked, engine: &Engine) -> Result<(f64, f64)> {
    let func = Encoder::bert_base().graph()?.finish()?;
    let mut times = Vec::new();
    for _ in 0..asked.turns {
        let begun = Instant::now();
        std::hint::black_box(compile_with(&func, Device::Cpu, &options(engine))?);
        times.push(ms(begun));
    }
    Ok(summary(&times))
}

/// Milliseconds to bind 12 layers to sizes that were not seen before, without running them.
fn rebinding(engine: &Engine) -> Result<(f64, f64)> {
    let e = compile_with(&Encoder::bert_base().graph()?, Device::Cpu, &options(engine))?;
    let mut times = Vec::new();
    for seq in 16..80usize {
        let ids = Tensor::new(&[1, seq], &vec![0i64; seq])?;
        let view = View { dtype: DType::I64, shape: ids.shape(), bytes: ids.bytes() };
        let inputs = [("ids", view), ("mask", view)];
        let shapes = || -> Result<f64> {
            let begun = Instant::now();
            std::hint::black_box(e.on_cpu().output_shapes(&inputs)?);
            Ok(ms(begun))
        };
        // The second time the plan is found.
        times.push(shapes()? - shapes()?);
    }
    Ok(summary(&times))
}

/// The arena at some sizes.
fn planned(e: &Executable, sizes: &[(&str, i64)]) -> Result<Report> {
    let bindings: Bindings = sizes.iter().copied().collect();
    let mut bound = Vec::new();
    let program = e.program();
    program.sizes.bind(&bindings, &mut bound).map_err(|e| e.to_string())?;
    Ok(program.plan.report(&bound))
}

pub fn run(asked: &Asked, engine: &Engine) -> Result<()> {
    let figures = [
        ("compile/bert-base", "compile a 12-layer BERT", compiling(asked, engine)?),
        ("compile/rebind", "bind it to new sizes", rebinding(engine)?),
    ];
    if !asked.json {
        println!("\ncompile: ms\n{:<28} {:>9} {:>9}", "case", "min", "median");
    }
    for (name, title, (min, median)) in figures {
        match asked.json {
            true => println!("{}", json!({"case": name, "min_ms": min, "median_ms": median})),
            false => println!("{title:<28} {min:>9.3} {median:>9.3}"),
        }
    }
    let gpt = Gpt { layers: 6, hidden: 384, heads: 6, vocab: 8192, positions: 256, batch: 8 };
    let mamba = Mamba { hidden: 768, inner: 1536, states: 16, rank: 48, positions: 1024, batch: 4 };
    let minilm = Encoder::minilm().graph()?.finish()?;
    let bert = Encoder::bert_base().graph()?.finish()?;
    let graphs: [(&str, Func, [i64; 2]); 6] = [
        ("plan/minilm", minilm, [8, 128]),
        ("plan/bert-base", bert, [8, 128]),
        ("plan/gpt", gpt.graph()?, [8, 256]),
        ("plan/gpt-training", gpt.training()?, [8, 256]),
        ("plan/mamba", mamba.graph()?, [4, 1024]),
        ("plan/mamba-training", mamba.training()?, [4, 1024]),
    ];
    if !asked.json {
        let titles = ["calls", "compile ms", "peak MB", "bound MB", "waste"];
        println!(
            "\nplan: the arena and the least that any layout needs\n{:<28} {:>6} {:>10} {:>9} {:>9} {:>7}",
            "case", titles[0], titles[1], titles[2], titles[3], titles[4]
        );
    }
    for (name, func, [batch, seq]) in graphs {
        let begun = Instant::now();
        let e = match compile_with(&func, Device::Cpu, &options(engine)) {
            Ok(e) => e,
            Err(e) => return Err(format!("{name}: {e}").into()),
        };
        let took = ms(begun);
        let r = planned(&e, &[("batch", batch), ("seq", seq)])?;
        let (calls, ratio) = (e.program().calls.len(), r.peak as f64 / r.bound as f64);
        match asked.json {
            true => println!(
                "{}",
                json!({"case": name, "compile_ms": took, "calls": calls, "peak_bytes": r.peak, "bound_bytes": r.bound, "waste": r.waste(), "ratio": ratio})
            ),
            false => println!(
                "{:<28} {calls:>6} {took:>10.1} {:>9.2} {:>9.2} {:>6.2}%",
                format!("{} {batch}x{seq}", name.trim_start_matches("plan/")),
                r.peak as f64 / 1e6,
                r.bound as f64 / 1e6,
                r.waste() * 100.0
            ),
        }
    }
    Ok(())
}

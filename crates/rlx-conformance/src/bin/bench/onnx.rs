//! Real ONNX models beside ONNX Runtime, and how long a model takes from its file to the first call.
//!
//! The models and their inputs are those of the tests (`cargo xtask material`); turns go as in the bench `cpu`.

use crate::cases::{Case, WORKLOADS};
use crate::side::{Process, Rlx, Side, Sides, Turn, take_turns};
use crate::table::{Row, head, median};
use crate::{Asked, Result, machine};
use rlx::{CompileOptions, Data, Device, Engine, Executable, Model, Settings};
use rlx_conformance::onnx::real::{self, Real, difference};
use serde_json::json;
use std::path::Path;
use std::time::Instant;

const THREADS: usize = 2;

/// The sizes of a case, as `2x128`.
fn label(inputs: &[(String, Data)]) -> String {
    let largest = inputs.iter().map(|(_, d)| d.shape()).max_by_key(|s| s.iter().product::<usize>());
    largest.unwrap_or_default().iter().map(usize::to_string).collect::<Vec<_>>().join("x")
}

struct Bench<'a> {
    asked: &'a Asked,
    engine: Engine,
    ort: Option<Process>,
    ids: Vec<u32>,
    wrong: Vec<String>,
}

impl Bench<'_> {
    fn model(&mut self, real: &Real) -> Result<()> {
        let model = real.open()?;
        let options = CompileOptions { engine: Some(self.engine.clone()), ..CompileOptions::default() };
        let executable = model.compile_with(Device::Cpu, &options)?;
        if !self.asked.json {
            println!("{}", real.name);
        }
        for k in 0..real.spread.len() {
            let given = real.inputs(k)?;
            let mut inputs: Vec<(String, Data)> = Vec::new();
            for port in model.inputs() {
                let found = given.iter().find(|(n, _)| *n == port.onnx);
                let (_, t) = found.ok_or_else(|| format!("{} is not given", port.onnx))?;
                inputs.push((port.name.clone(), Data::Tensor(t.clone())));
            }
            let name = format!("{}/{}", real.name, label(&inputs));
            if self.asked.wants(&name) {
                self.case(&name, real, k, &model, &executable, &inputs)?;
            }
        }
        Ok(())
    }

    fn case(
        &mut self,
        name: &str,
        real: &Real,
        k: usize,
        model: &Model,
        executable: &Executable,
        inputs: &[(String, Data)],
    ) -> Result<()> {
        let mut sides: Sides<'_> = vec![("rlx", Box::new(Rlx::new(executable, inputs)?))];
        if let Some(ort) = &mut self.ort {
            ort.ask(&json!({"do": "prepare", "model": real.path(), "inputs": real.input_path(k)}))?;
            sides.push(("ort", Box::new(ort)));
        }
        machine::rest(&self.ids);
        let (mut times, others) = take_turns(self.asked, name, &mut sides, &self.ids)?;
        let file = Case::file("result-ort");
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let mut results = Vec::new();
        for (_, side) in &mut sides {
            results.push(side.result(&file)?);
        }
        drop(sides);
        if let ([own, peer], Some(t)) = (results.as_slice(), times.get_mut(1)) {
            let mut fine = true;
            for port in model.outputs() {
                let a = own.iter().find(|(n, _)| *n == port.name);
                let b = peer.iter().find(|(n, _)| *n == port.onnx);
                let (a, b) = a.zip(b).ok_or_else(|| format!("{name}: no output {}", port.onnx))?;
                let far = difference(&b.1, &a.1);
                t.error = t.error.max(far.most);
                fine &= real.allows(k, far);
            }
            if !fine {
                eprintln!("error: {name}: RLX and ONNX Runtime differ by {:.1e}", t.error);
                self.wrong.push(name.to_owned());
            }
        }
        let row = Row { case: name.to_owned(), flops: None, peak: 0.0, others, sides: times };
        match self.asked.json {
            true => println!("{}", row.json()),
            false => row.print(),
        }
        row.warn();
        Ok(())
    }

    /// From the file to the first call, for an encoder of 90 MB.
    fn opening(&mut self) -> Result<()> {
        let encoder = WORKLOADS.iter().find(|w| w.name == "w2").and_then(|w| Some((w, *w.models.first()?)));
        let (workload, model) = encoder.ok_or("there is no encoder among the workloads")?;
        let case = Case::new(workload, model);
        case.write()?;
        let path = Case::file("minilm-l6").with_extension("onnx");
        let Some(ort) = &mut self.ort else { return Ok(()) };
        ort.ask(&json!({"do": "prepare", "write": path, "weights": case.weights()}))?;
        let mut ort = ort;
        let peer = ort.turn(Turn { warm: 0.0, ms: 2e3 })?;
        let own: Vec<[f64; 3]> =
            (0..self.asked.turns).map(|_| opened(&self.engine, &path)).collect::<Result<_>>()?;
        let part = |i: usize| median(&own.iter().filter_map(|t| t.get(i).copied()).collect::<Vec<_>>());
        let (import, compile, pack) = (part(0), part(1), part(2));
        match self.asked.json {
            true => println!(
                "{}",
                json!({"case": "open/minilm-l6", "import_ms": import, "compile_ms": compile, "pack_ms": pack, "ort_ms": median(&peer)})
            ),
            false => println!(
                "\nopening a 90 MB encoder, ms: import {import:.1}, compile {compile:.1}, pack params {pack:.1}; ONNX Runtime {:.1}",
                median(&peer)
            ),
        }
        Ok(())
    }
}

/// Milliseconds of importing, compiling, and packing the params.
fn opened(engine: &Engine, path: &Path) -> Result<[f64; 3]> {
    let ms = |begun: Instant| begun.elapsed().as_secs_f64() * 1e3;
    let begun = Instant::now();
    let model = Model::open(path)?;
    let import = ms(begun);
    let begun = Instant::now();
    let options = CompileOptions { engine: Some(engine.clone()), ..CompileOptions::default() };
    let executable = model.compile_with(Device::Cpu, &options)?;
    let compile = ms(begun);
    let begun = Instant::now();
    executable.params().prepare()?;
    Ok([import, compile, ms(begun)])
}

pub fn run(asked: &Asked) -> Result<()> {
    let engine = Engine::new(Settings { threads: Some(THREADS), ..Settings::default() })?;
    let mut ids = vec![std::process::id()];
    let start = |python: &String| Process::start(python, "bench_models.py", "ort", &[&THREADS.to_string()]);
    let ort = asked.python.as_ref().map(start).transpose()?;
    ids.extend(ort.iter().map(|p| p.peer.id()));
    let mut bench = Bench { asked, engine, ort, ids, wrong: Vec::new() };
    if !asked.json {
        println!("real ONNX models; ms, {THREADS} threads; ratio: ONNX Runtime's time over RLX's");
        head(if bench.ort.is_some() { &["rlx", "ort"] } else { &["rlx"] });
    }
    for real in real::models()?.iter().filter(|m| asked.wants_workload(&m.name)) {
        if let Err(e) = bench.model(real) {
            eprintln!("error: {}: {e}", real.name);
            bench.wrong.push(real.name.clone());
        }
    }
    if asked.wants_workload("open") {
        bench.opening()?;
    }
    match bench.wrong.is_empty() {
        true => Ok(()),
        false => Err(format!("these failed: {}", bench.wrong.join(", ")).into()),
    }
}

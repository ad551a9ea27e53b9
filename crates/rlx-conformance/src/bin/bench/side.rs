//! The sides that take turns: RLX, and peers in processes of their own.

use crate::Result;
use crate::cases::Case;
use crate::peer::Peer;
use rlx::{CompileOptions, DType, Data, Device, Engine, Executable, Tensor, View, ViewMut, compile_with};
use rlx_simd::mem::Buffer;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Instant;

/// How a turn goes.
#[derive(Clone, Copy)]
pub struct Turn {
    /// Untimed calls fill at least this many milliseconds first; none if it is 0.
    pub warm: f64,
    /// Timed calls fill at least this many milliseconds; there is at least one.
    pub ms: f64,
}

/// Whoever can do a case.
pub trait Side {
    /// Does some calls and gives the milliseconds of each.
    fn turn(&mut self, turn: Turn) -> Result<Vec<f64>>;
    /// The numbers that the last call gave.
    fn result(&mut self, case: &Case) -> Result<Vec<f32>>;
}

/// Calls `run` as a turn wants it.
pub fn timed(turn: Turn, mut run: impl FnMut() -> Result<()>) -> Result<Vec<f64>> {
    let begun = Instant::now();
    while begun.elapsed().as_secs_f64() * 1e3 < turn.warm {
        run()?;
    }
    let (begun, mut times) = (Instant::now(), Vec::new());
    while times.is_empty() || begun.elapsed().as_secs_f64() * 1e3 < turn.ms {
        let start = Instant::now();
        run()?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    Ok(times)
}

/// The tensors of a file by name.
pub fn load(path: &Path) -> Result<Vec<(String, Data)>> {
    Ok(rlx::weights::open(path)?.into_iter().collect())
}

/// The floats of a tensor.
pub fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(<[u8; 4]>::try_from(b).unwrap_or_default())).collect()
}

/// An input or output in aligned memory.
struct Slot {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    memory: Buffer,
}

impl Slot {
    fn new(name: &str, dtype: DType, shape: &[usize], bytes: usize) -> Result<Slot> {
        let memory = Buffer::try_new(bytes).ok_or("no memory")?;
        Ok(Slot { name: name.to_owned(), dtype, shape: shape.to_vec(), memory })
    }
    fn view(&self) -> View<'_> {
        View { dtype: self.dtype, shape: &self.shape, bytes: self.memory.bytes() }
    }
    fn view_mut(&mut self) -> ViewMut<'_> {
        ViewMut { dtype: self.dtype, shape: &self.shape, bytes: self.memory.bytes_mut() }
    }
}

/// RLX, through its public interface.
pub struct Rlx {
    executable: Executable,
    inputs: Vec<Slot>,
    output: Slot,
}

impl Rlx {
    pub fn new(engine: &Engine, case: &Case) -> Result<Rlx> {
        let options = CompileOptions { engine: Some(engine.clone()), ..CompileOptions::default() };
        let executable = compile_with(&case.graph()?, Device::Cpu, &options)?;
        executable.params().load(case.weights())?;
        let mut inputs = Vec::new();
        for (name, data) in load(&case.inputs())? {
            let mut slot = Slot::new(&name, data.dtype(), data.shape(), data.bytes().len())?;
            slot.memory.bytes_mut().copy_from_slice(data.bytes());
            inputs.push(slot);
        }
        // In the program's order a run asks for no memory.
        let order = &executable.program().inputs;
        inputs.sort_by_key(|s| order.iter().position(|n| n.name == s.name));
        let views: Vec<(&str, View<'_>)> = inputs.iter().map(|s| (s.name.as_str(), s.view())).collect();
        let shapes = executable.on_cpu().output_shapes(&views)?;
        let shape = shapes.first().ok_or("the graph has no output")?;
        let output = Slot::new("", DType::F32, shape, shape.iter().product::<usize>() * 4)?;
        drop(views);
        Ok(Rlx { executable, inputs, output })
    }
}

impl Side for Rlx {
    fn turn(&mut self, turn: Turn) -> Result<Vec<f64>> {
        let Rlx { executable, inputs, output } = self;
        let views: Vec<(&str, View<'_>)> = inputs.iter().map(|s| (s.name.as_str(), s.view())).collect();
        let mut outputs = [output.view_mut()];
        timed(turn, || Ok(executable.run_into(&views, &mut outputs)?))
    }
    fn result(&mut self, _: &Case) -> Result<Vec<f32>> {
        Ok(floats(self.output.memory.bytes()))
    }
}

/// A library behind `scripts/bench_cpu.py`.
pub struct Process {
    name: &'static str,
    pub peer: Peer,
}

impl Process {
    pub fn start(python: &str, name: &'static str, threads: usize) -> Result<Process> {
        Ok(Process { name, peer: Peer::start(python, "bench_cpu.py", &[name, &threads.to_string()])? })
    }

    fn ask(&mut self, command: &Value) -> Result<Value> {
        let answer = self.peer.ask(&command.to_string())?;
        let value: Value =
            serde_json::from_str(&answer).map_err(|e| format!("{} answered {answer:?}: {e}", self.name))?;
        match value.get("error") {
            Some(e) => Err(format!("{}: {e}", self.name).into()),
            None => Ok(value),
        }
    }

    pub fn prepare(&mut self, case: &Case) -> Result<()> {
        let command = json!({"do": "prepare", "model": case.model.name(), "weights": case.weights(), "inputs": case.inputs()});
        self.ask(&command).map(drop)
    }
}

impl Side for &mut Process {
    fn turn(&mut self, turn: Turn) -> Result<Vec<f64>> {
        let answer = self.ask(&json!({"do": "run", "ms": turn.ms, "warm": turn.warm}))?;
        let times = answer.get("ms").and_then(Value::as_array).ok_or("no times")?;
        Ok(times.iter().filter_map(Value::as_f64).collect())
    }
    fn result(&mut self, case: &Case) -> Result<Vec<f32>> {
        let to = case.file(&format!("result-{}", self.name));
        self.ask(&json!({"do": "result", "to": to}))?;
        let tensors = load(&to)?;
        Ok(tensors.first().map(|(_, data)| floats(data.bytes())).unwrap_or_default())
    }
}

/// Writes tensors that both sides read.
pub fn save(path: &Path, tensors: &[(String, Tensor)]) -> Result<()> {
    let mut views = Vec::new();
    for (name, t) in tensors {
        let dtype = if t.dtype() == DType::I64 { Dtype::I64 } else { Dtype::F32 };
        views.push((name, TensorView::new(dtype, t.shape().to_vec(), t.bytes())?));
    }
    Ok(safetensors::serialize_to_file(views, None, path)?)
}

//! The sides that take turns: RLX, and peers in processes of their own.

use crate::cases::Case;
use crate::peer::Peer;
use crate::table::{Others, Times};
use crate::{Asked, Result, machine};
use rlx::{CompileOptions, DType, Data, Device, Engine, Executable, Tensor, View, ViewMut, compile_with};
use rlx_simd::mem::Buffer;
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
    /// What the last call gave, by name; `file` is free for use.
    fn result(&mut self, file: &Path) -> Result<Vec<(String, Tensor)>>;
}

/// RLX and its peers.
pub type Sides<'a> = Vec<(&'static str, Box<dyn Side + 'a>)>;

/// Lets sides take turns; also tells what others used of the machine meanwhile. `ids` are the processes whose threads must
/// sleep before a turn.
pub fn take_turns(
    asked: &Asked,
    case: &str,
    sides: &mut Sides<'_>,
    ids: &[u32],
) -> Result<(Vec<Times>, Others)> {
    // The first calls choose kernels, pack weights and grow arenas; the third tells how long a call takes.
    let mut turns = Vec::new();
    for (_, side) in sides.iter_mut() {
        let once = Turn { warm: 0.0, ms: 0.0 };
        side.turn(once)?;
        side.turn(once)?;
        let long = side.turn(once)?.iter().any(|ms| *ms > 25.0);
        // Threads that wake on the processor of another one, low clocks and cold caches are nothing to a long call.
        turns.push(if long { once } else { Turn { warm: asked.warm, ms: 10.0 } });
    }
    let watch = machine::Watch::new(ids);
    let mut times = vec![Vec::new(); sides.len()];
    for _ in 0..asked.turns {
        for (((name, side), turn), times) in sides.iter_mut().zip(&turns).zip(&mut times) {
            if !machine::rest(ids) {
                eprintln!("warning: threads were still busy before a turn of {name} in {case}");
            }
            times.push(side.turn(*turn)?);
        }
    }
    let others = watch.others();
    Ok((sides.iter().zip(&times).map(|((name, _), times)| Times::new(name, times)).collect(), others))
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
pub struct Rlx<'a> {
    executable: &'a Executable,
    inputs: Vec<Slot>,
    outputs: Vec<Slot>,
}

/// The executable of a case, with its weights.
pub fn compiled(engine: &Engine, case: &Case) -> Result<Executable> {
    let options = CompileOptions { engine: Some(engine.clone()), ..CompileOptions::default() };
    let executable = compile_with(&case.graph()?, Device::Cpu, &options)?;
    executable.params().load(case.weights())?;
    Ok(executable)
}

impl Rlx<'_> {
    pub fn new<'a, N: AsRef<str>>(executable: &'a Executable, given: &[(N, Data)]) -> Result<Rlx<'a>> {
        let mut inputs = Vec::new();
        for (name, data) in given {
            let mut slot = Slot::new(name.as_ref(), data.dtype(), data.shape(), data.bytes().len())?;
            slot.memory.bytes_mut().copy_from_slice(data.bytes());
            inputs.push(slot);
        }
        // In the program's order a run asks for no memory.
        let program = executable.program();
        inputs.sort_by_key(|s| program.inputs.iter().position(|n| n.name == s.name));
        let views: Vec<(&str, View<'_>)> = inputs.iter().map(|s| (s.name.as_str(), s.view())).collect();
        let mut outputs = Vec::new();
        for (port, shape) in program.outputs.iter().zip(executable.on_cpu().output_shapes(&views)?) {
            let size = port.dtype.bytes().ok_or("a packed output")?;
            outputs.push(Slot::new(&port.name, port.dtype, &shape, shape.iter().product::<usize>() * size)?);
        }
        drop(views);
        Ok(Rlx { executable, inputs, outputs })
    }
}

impl Side for Rlx<'_> {
    fn turn(&mut self, turn: Turn) -> Result<Vec<f64>> {
        let Rlx { executable, inputs, outputs } = self;
        let views: Vec<(&str, View<'_>)> = inputs.iter().map(|s| (s.name.as_str(), s.view())).collect();
        let mut outputs: Vec<ViewMut<'_>> = outputs.iter_mut().map(Slot::view_mut).collect();
        timed(turn, || Ok(executable.run_into(&views, &mut outputs)?))
    }
    fn result(&mut self, _: &Path) -> Result<Vec<(String, Tensor)>> {
        let one = |s: &Slot| Ok((s.name.clone(), Tensor::from_bytes(s.dtype, &s.shape, s.memory.bytes())?));
        self.outputs.iter().map(one).collect()
    }
}

/// A library behind a script of `scripts/` that answers as `bench_peer.py` says.
pub struct Process {
    name: &'static str,
    pub peer: Peer,
}

impl Process {
    pub fn start(python: &str, script: &str, name: &'static str, args: &[&str]) -> Result<Process> {
        Ok(Process { name, peer: Peer::start(python, script, args)? })
    }

    pub fn ask(&mut self, command: &Value) -> Result<Value> {
        let answer = self.peer.ask(&command.to_string())?;
        let value: Value =
            serde_json::from_str(&answer).map_err(|e| format!("{} answered {answer:?}: {e}", self.name))?;
        match value.get("error") {
            Some(e) => Err(format!("{}: {e}", self.name).into()),
            None => Ok(value),
        }
    }
}

impl Side for &mut Process {
    fn turn(&mut self, turn: Turn) -> Result<Vec<f64>> {
        let answer = self.ask(&json!({"do": "run", "ms": turn.ms, "warm": turn.warm}))?;
        let times = answer.get("ms").and_then(Value::as_array).ok_or("no times")?;
        Ok(times.iter().filter_map(Value::as_f64).collect())
    }
    fn result(&mut self, file: &Path) -> Result<Vec<(String, Tensor)>> {
        self.ask(&json!({"do": "result", "to": file}))?;
        let tensor =
            |(name, d): (String, Data)| Ok((name, Tensor::from_bytes(d.dtype(), d.shape(), d.bytes())?));
        load(file)?.into_iter().map(tensor).collect()
    }
}

/// Writes tensors that both sides read.
pub fn save(path: &Path, tensors: &[(String, Tensor)]) -> Result<()> {
    let views: Vec<_> = tensors.iter().map(|(name, t)| (name.as_str(), t.into())).collect();
    Ok(rlx_formats::safetensors::write(path, &views, &[])?)
}

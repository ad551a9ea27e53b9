//! Devices, compiling and running.

use rlx_compile::fuse::Limits;
use rlx_compile::program::Program;
use rlx_cpu::{Data, Engine, Precision, Profile, Settings, View, ViewMut};
use rlx_formats::onnx::Named;
use rlx_ir::func::Source;
use rlx_ir::{Code, Error, Func, Graph, Result, Tensor};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::ops::Index;
use std::sync::OnceLock;

/// Where a graph runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Device {
    /// The processor.
    Cpu,
}

impl Device {
    /// The best device of the machine.
    pub fn auto() -> Device {
        Device::Cpu
    }

    /// Every device of the machine.
    pub fn all() -> Vec<Device> {
        vec![Device::Cpu]
    }

    /// The device of that name.
    pub fn parse(name: &str) -> Result<Device> {
        match name {
            "cpu" => Ok(Device::Cpu),
            "auto" => Ok(Device::auto()),
            _ => Err(Error::new(Code::Device, format!("there is no device {name:?}; there is cpu"))),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Device::Cpu => "cpu",
        })
    }
}

/// How a graph is compiled.
#[derive(Clone, Debug)]
pub struct CompileOptions {
    /// The precision of products.
    pub precision: Precision,
    /// The engine to run on; `None` for the one that all executables share.
    pub engine: Option<Engine>,
    /// Whether steps are fused; only tests want them apart.
    pub fuse: bool,
    /// Whether the graph is rewritten first; only tests want it as it is.
    pub rewrite: bool,
}

impl Default for CompileOptions {
    fn default() -> CompileOptions {
        CompileOptions { precision: Precision::F32, engine: None, fuse: true, rewrite: true }
    }
}

/// Something that can be compiled.
pub trait AsFunc {
    /// The finished graph.
    fn func(&self) -> Result<Cow<'_, Func>>;
}

impl AsFunc for Func {
    fn func(&self) -> Result<Cow<'_, Func>> {
        Ok(Cow::Borrowed(self))
    }
}

impl AsFunc for Graph {
    fn func(&self) -> Result<Cow<'_, Func>> {
        self.finish().map(Cow::Owned)
    }
}

/// The engine that executables share unless they are given another one.
fn shared_engine() -> Result<Engine> {
    static ENGINE: OnceLock<Result<Engine>> = OnceLock::new();
    ENGINE.get_or_init(|| Engine::new(Settings::default())).clone()
}

/// Compiles a graph for a device.
pub fn compile(graph: &impl AsFunc, device: Device) -> Result<Executable> {
    compile_with(graph, device, &CompileOptions::default())
}

/// Compiles a graph for a device, with a choice.
pub fn compile_with(graph: &impl AsFunc, device: Device, options: &CompileOptions) -> Result<Executable> {
    let func = graph.func()?;
    let Device::Cpu = device;
    let engine = match &options.engine {
        Some(e) => e.clone(),
        None => shared_engine()?,
    };
    let limits = Limits { fuse: options.fuse, ..Limits::default() };
    let choice = rlx_compile::Options { limits, rewrite: options.rewrite };
    let program = rlx_compile::compile(&func, &rlx_cpu::Target, &choice)?;
    let inner = rlx_cpu::Executable::new(&engine, program, options.precision)?;
    for p in &func.ports {
        if let Some(Source::Inline(t)) = &p.source {
            inner.set_param(&p.name, Data::Tensor(t.clone()))?;
        }
    }
    Ok(Executable { inner, names: Names::default() })
}

/// A compiled graph. It can be shared among threads and run by all of them at once.
pub struct Executable {
    inner: rlx_cpu::Executable,
    names: Names,
}

/// The names that a model's own file has for inputs and outputs, where those of the graph are others.
#[derive(Default)]
struct Names {
    /// From the file's name to the graph's.
    inputs: HashMap<String, String>,
    /// From the graph's name to the file's.
    outputs: HashMap<String, String>,
}

impl Names {
    /// The name of an input in the graph.
    fn input<'n>(&'n self, name: &'n str) -> &'n str {
        self.inputs.get(name).map_or(name, String::as_str)
    }
}

/// The outputs of a run, in the graph's order.
#[derive(Clone, Debug)]
pub struct Outputs(Vec<(String, Tensor)>);

impl Outputs {
    /// The output of that name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.0.iter().find(|o| o.0 == name).map(|o| &o.1)
    }
    /// Names and tensors.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.0.iter().map(|(n, t)| (n.as_str(), t))
    }
    /// Names and tensors, to keep.
    pub fn into_vec(self) -> Vec<(String, Tensor)> {
        self.0
    }
}

impl Index<&str> for Outputs {
    type Output = Tensor;
    /// The output of that name.
    ///
    /// # Panics
    /// If there is none; [`Outputs::get`] does not panic.
    #[allow(clippy::panic)]
    fn index(&self, name: &str) -> &Tensor {
        match self.get(name) {
            Some(t) => t,
            None => panic!("the graph has no output {name:?}"),
        }
    }
}

/// The planes of packed tensors, joined; nothing for the others, which are read where they are.
fn joined(inputs: &[(&str, &Tensor)]) -> Vec<Vec<u8>> {
    inputs
        .iter()
        .map(|(_, t)| if t.dtype().is_packed() { rlx_cpu::data::planes(t) } else { Vec::new() })
        .collect()
}

fn views<'a>(inputs: &[(&'a str, &'a Tensor)], whole: &'a [Vec<u8>]) -> Vec<(&'a str, View<'a>)> {
    let one = |((name, t), whole): (&(&'a str, &'a Tensor), &'a Vec<u8>)| {
        let bytes = if t.dtype().is_packed() { whole.as_slice() } else { t.bytes() };
        (*name, View { dtype: t.dtype(), shape: t.shape(), bytes })
    };
    inputs.iter().zip(whole).map(one).collect()
}

impl Executable {
    /// The params.
    pub fn params(&self) -> Params<'_> {
        Params { inner: &self.inner }
    }

    /// Runs the graph on tensors by name.
    pub fn run(&self, inputs: &[(&str, &Tensor)]) -> Result<Outputs> {
        let whole = joined(inputs);
        self.run_views(&views(inputs, &whole))
    }

    /// With the names that a model's own file has.
    pub(crate) fn with_names(mut self, inputs: &[Named], outputs: &[Named]) -> Executable {
        let other = |n: &&Named| n.onnx != n.name;
        self.names.inputs = inputs.iter().filter(other).map(|n| (n.onnx.clone(), n.name.clone())).collect();
        self.names.outputs = outputs.iter().filter(other).map(|n| (n.name.clone(), n.onnx.clone())).collect();
        self
    }

    /// Inputs and what came of them, by the graph's names in and by the file's names out.
    fn named<T>(
        &self,
        inputs: &[(&str, View<'_>)],
        run: impl FnOnce(&[(&str, View<'_>)]) -> Result<(Vec<(String, Tensor)>, T)>,
    ) -> Result<(Outputs, T)> {
        let (mut out, more) = if self.names.inputs.is_empty() {
            run(inputs)?
        } else {
            let renamed: Vec<(&str, View<'_>)> =
                inputs.iter().map(|(n, v)| (self.names.input(n), *v)).collect();
            run(&renamed)?
        };
        for (name, _) in &mut out {
            if let Some(own) = self.names.outputs.get(name) {
                name.clone_from(own);
            }
        }
        Ok((Outputs(out), more))
    }

    /// Runs the graph on borrowed memory by name.
    pub fn run_views(&self, inputs: &[(&str, View<'_>)]) -> Result<Outputs> {
        Ok(self.named(inputs, |inputs| Ok((self.inner.run(inputs)?, ())))?.0)
    }

    /// Runs the graph into memory of the caller's, one view for each output in the graph's order. When the sizes of the
    /// inputs were seen before, no memory is asked for. Views of packed data hold all planes, as
    /// [`rlx_cpu::data::planes`] lays them out.
    pub fn run_into(&self, inputs: &[(&str, View<'_>)], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        if self.names.inputs.is_empty() {
            return self.inner.run_into(inputs, outputs);
        }
        let renamed: Vec<(&str, View<'_>)> = inputs.iter().map(|(n, v)| (self.names.input(n), *v)).collect();
        self.inner.run_into(&renamed, outputs)
    }

    /// Runs the graph and says what took how long.
    pub fn profile(&self, inputs: &[(&str, &Tensor)]) -> Result<(Outputs, Profile)> {
        let whole = joined(inputs);
        self.named(&views(inputs, &whole), |inputs| self.inner.run_profiled(inputs, true))
    }

    /// The program that runs.
    pub fn program(&self) -> &Program {
        self.inner.program()
    }

    /// What the device itself can tell.
    pub fn on_cpu(&self) -> &rlx_cpu::Executable {
        &self.inner
    }
}

impl fmt::Debug for Executable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let p = self.program();
        write!(f, "Executable({}: {} calls of {} kernels)", p.name, p.calls.len(), p.kernels.len())
    }
}

/// The params of an executable: set once, packed once.
pub struct Params<'a> {
    inner: &'a rlx_cpu::Executable,
}

impl Params<'_> {
    /// Sets a param.
    pub fn set(&self, name: &str, tensor: Tensor) -> Result<()> {
        self.inner.set_param(name, Data::Tensor(tensor))
    }

    /// Sets a param from bytes that something shared keeps, without a copy.
    pub fn set_data(&self, name: &str, data: Data) -> Result<()> {
        self.inner.set_param(name, data)
    }

    /// The params that are not set yet.
    pub fn missing(&self) -> Vec<&str> {
        self.inner.missing()
    }

    /// Packs the params now, rather than in the first run.
    pub fn prepare(&self) -> Result<()> {
        self.inner.prepare()
    }
}

//! For programs that look inside: the stages of compilation, the memory of a run, the limits of the machine.

use crate::exec::{AsFunc, CompileOptions, Device, Executable};
use crate::machine::Machine;
use rlx_compile::build::byte_size;
use rlx_compile::fuse::Limits;
use rlx_ir::dim::Bindings;
use rlx_ir::{Code, Error, Result, Type};

pub use rlx_compile::{Program, Stages, plan, print, program};
pub use rlx_cpu::Level;
pub use rlx_cpu::roofline::Roofline;

/// What each stage of compiling a graph for a device gives.
pub fn stages(graph: &impl AsFunc, device: Device, options: &CompileOptions) -> Result<Stages> {
    let Device::Cpu = device;
    let limits = Limits { fuse: options.fuse, ..Limits::default() };
    let choice = rlx_compile::Options { limits, rewrite: options.rewrite };
    rlx_compile::stages(&*graph.func()?, &rlx_cpu::Target, &choice)
}

/// The bytes that a run takes at these sizes: what it works in, the outputs, and what is made of params.
pub fn run_bytes(compiled: &Executable, bindings: &Bindings) -> Result<u64> {
    let unbound = |e: rlx_ir::dim::DimError| Error::new(Code::Unbound, e.to_string());
    let p = compiled.program();
    let mut total = compiled.on_cpu().working_bytes(bindings)?;
    for n in p.outputs.iter().chain(&p.prepared) {
        let bytes = byte_size(&Type::new(n.dtype, n.shape.clone()))?.eval(bindings).map_err(unbound)?;
        total = total.saturating_add(u64::try_from(bytes).unwrap_or(0));
    }
    Ok(total)
}

/// Refuses what the machine has not the memory for. Systems grant memory that they do not have and end the program when
/// it is used, so this is asked before a run of unknown size.
pub fn check_memory(compiled: &Executable, bindings: &Bindings) -> Result<()> {
    let need = run_bytes(compiled, bindings)?;
    let text = |n: u64| print::bytes(i64::try_from(n).unwrap_or(i64::MAX));
    match Machine::this().available {
        Some(have) if need > have => {
            let text = format!("a run needs {}, and the machine has {} left", text(need), text(have));
            Err(Error::new(Code::Device, text))
        }
        _ => Ok(()),
    }
}

//! Transforms: a graph in, a graph out. Each rebuilds the graph through the builder, so every shape is inferred
//! anew, and ends with the removal of dead code.
//!
//! | transform | adds inputs | adds outputs |
//! |---|---|---|
//! | [`vjp`] | `ct.OUT` for each output that is not a scalar | `grad.PORT` |
//! | [`jvp`] | `tan.PORT` | `tan.OUT` |
//! | [`hvp`] | `vec.PORT` | `grad.PORT`, `hvp.PORT` |
//! | [`vmap`] | | (a batch axis on ports and outputs) |
//!
//! `jvp` and `hvp` are `vjp` applied twice, so an op has one gradient rule.

mod batch;
mod dce;
mod forward;
mod reverse;

pub use batch::{vmap, vmap_func, vmap_loop, vmap_through};
pub use dce::{Marks, Pruned, dce, keep_outputs, keep_ports, reads};
pub use forward::{hvp, jvp};
pub use reverse::{pullback, vjp};

use crate::error::{Code, Error, Result};
use crate::func::Func;
use crate::graph::{Graph, Var};

impl Graph {
    /// This graph and the gradient of a scalar, named `grad.PORT` for each of the ports. The scalar must be an
    /// output.
    pub fn vjp(&self, loss: Var<'_>, wrt: &[Var<'_>]) -> Result<Func> {
        let f = self.finish()?;
        let output = self.output_name(loss).ok_or_else(|| {
            Error::new(Code::UnknownName, "the value to differentiate is not an output of the graph")
        })?;
        let port = |v: &Var<'_>| {
            v.port_name().filter(|_| std::ptr::eq(v.graph(), self)).ok_or_else(|| {
                let message = "gradients are taken with respect to inputs and params of the graph";
                Error::new(Code::UnknownName, message)
            })
        };
        let ports = wrt.iter().map(port).collect::<Result<Vec<_>>>()?;
        vjp(&f, &[&output], &ports.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

//! RLX: a graph becomes a fused, memory-planned program and runs on the device at hand.
//!
//! ```
//! use rlx::prelude::*;
//!
//! let g = Graph::new("classifier");
//! let x = g.input("x", F32, [dim("batch", 256), 4.into()]); // any batch up to 256
//! let w = g.param("w", F32, [4, 3]);
//! g.output("p", x.matmul(w).softmax(-1));
//!
//! let f = rlx::compile(&g, Device::auto())?;
//! f.params().set("w", Tensor::new(&[4, 3], &[0.5f32; 12])?)?;
//! let flowers = Tensor::new(&[2, 4], &[1f32; 8])?;
//! let out = f.run(&[("x", &flowers)])?;
//! assert_eq!(out["p"].shape(), [2, 3]);
//! # Ok::<(), rlx::Error>(())
//! ```
//!
//! Read in this order: [`exec`]: devices, compiling, running; [`weights`]: params from files; [`model`]: models from files; [`nn`]: graphs of known models;
//! [`machine`]: what it all runs on; [`tools`]: what programs that look inside need.

#![deny(unsafe_code)]

pub mod exec;
pub mod machine;
pub mod model;
pub mod nn;
pub mod tools;
pub mod weights;

pub use exec::{CompileOptions, Device, Executable, Outputs, Params, compile, compile_with};
pub use model::Model;
pub use rlx_compile::plan::Report;
pub use rlx_compile::program::Program;
pub use rlx_cpu::{Data, Engine, Precision, Profile, Settings, Timed, View, ViewMut};
pub use rlx_formats as formats;
pub use rlx_ir::*;

/// What most programs need.
pub mod prelude {
    pub use crate::{CompileOptions, Device, Executable, Precision, compile, compile_with};
    pub use rlx_ir::DType::*;
    pub use rlx_ir::{DType, Dim, Error, Func, Graph, Result, Tensor, Var, dim};
}

/// The README's examples, run as tests of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

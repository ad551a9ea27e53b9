//! The language of RLX: what a model is before anything compiles it.
//!
//! A model is a graph of ops over tensors. This crate holds the op table, the builder, the text format, the oracle
//! that says what a graph means, and the transforms that differentiate and batch it. It does no I/O.
//!
//! Read in this order:
//! 1. [`dtype`], [`mod@dim`], [`types`], [`tensor`]: what a value is; [`quant`]: packed ones;
//! 2. [`op`]: what an op is; [`mod@ops`]: the table, one file per op; [`scalar`], [`attr`], [`sample`]: its parts;
//! 3. [`graph`]: the builder; [`func`]: a finished graph; [`verify`]: what is always true of one; [`condition`]: what it asks
//!    of its symbols;
//! 4. [`text`]: graphs as text; [`oracle`]: graphs as numbers;
//! 5. [`transform`]: gradients, batching, removal of dead code; [`doc`]: the pages of the ops; [`onnx`]: how ONNX nodes become ops.
//!
//! ```
//! use rlx_ir::{DType::F32, Graph, Options, Tensor, dim};
//!
//! let g = Graph::new("affine");
//! let x = g.input("x", F32, [dim("batch", 64), 2.into()]);
//! let w = g.param("w", F32, [2, 1]);
//! let loss = (x.matmul(w) + 1.0).square().mean_all();
//! g.output("loss", loss);
//!
//! let step = g.vjp(loss, &[w])?;
//! let (x, w) = (Tensor::new(&[1, 2], &[3f32, 4.0])?, Tensor::new(&[2, 1], &[1f32, 0.0])?);
//! let out = rlx_ir::eval(&step, &[("x", &x), ("w", &w)], &Options::default())?;
//! assert_eq!(out[0].1.f64s(), [16.0]); // loss
//! assert_eq!(out[1].1.f64s(), [24.0, 32.0]); // grad.w
//! # Ok::<(), rlx_ir::Error>(())
//! ```

#![forbid(unsafe_code)]

pub mod attr;
pub mod condition;
pub mod dim;
pub mod doc;
pub mod dtype;
pub mod error;
mod flow;
pub mod func;
pub mod graph;
pub mod onnx;
pub mod op;
pub mod ops;
pub mod oracle;
pub mod prelude;
pub mod quant;
mod recurrence;
pub mod sample;
pub mod scalar;
mod sugar;
pub mod tensor;
pub mod text;
pub mod transform;
pub mod types;
pub mod verify;

pub use dim::{Bindings, Dim, dim};
pub use dtype::DType;
pub use error::{Code, Error, Loc, Result};
pub use func::{Func, Node, ValueId};
pub use graph::{Graph, Var};
pub use oracle::{Options, Rounding, eval};
pub use tensor::Tensor;
pub use types::Type;

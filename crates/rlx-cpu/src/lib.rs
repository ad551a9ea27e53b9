//! The CPU engine: binds a [`Program`](rlx_compile::Program) to sizes and runs it.
//!
//! Read in this order: [`exec`]: what a caller holds; `bind`: a program at known sizes; `kernels`, `product`, `flow`: what
//! each kernel calls; [`region`]: fused element-wise work; [`roofline`]: what the machine can do at most.

mod bind;
pub mod exec;
mod flow;
mod kernels;
mod product;
pub mod region;
pub mod roofline;

pub use exec::{Data, Engine, Executable, Precision, Settings, Target, View, ViewMut};
pub use rlx_simd::level::Level;

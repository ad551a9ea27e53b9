//! The CPU engine: binds a [`Program`](rlx_compile::Program) to sizes and runs it.
//!
//! Read in this order: [`exec`]: what a caller holds; [`data`]: what goes in and out; [`profile`]: what a run took; `bind`: a
//! program at known sizes; `kernels`, `product`, `prologue`, `flow`: what each kernel calls; [`region`]: fused element-wise work;
//! [`roofline`]: what the machine can do at most.

mod bind;
pub mod data;
mod epilogue;
pub mod exec;
mod flow;
mod kernels;
mod product;
pub mod profile;
mod prologue;
pub mod region;
pub mod roofline;

pub use data::{Data, View, ViewMut};
pub use exec::{Engine, Executable, Precision, Settings, Target};
pub use profile::{Profile, Timed};
pub use rlx_simd::level::Level;

//! The compiler: from a graph to a [`Program`], a flat list of kernel calls over planned memory.
//!
//! Each stage is one public function, in this order:
//! 1. [`mod@rewrite`]: folding, algebra, views, and raising patterns to composites;
//! 2. [`mod@expand`]: composites without a tuned kernel become their bodies; dtypes become those that kernels compute in;
//!    what comes out is simplified again;
//! 3. [`mod@hoist`]: what depends on params alone is computed once, when they are set;
//! 4. [`items`]: views become strided accesses ([`access`]);
//! 5. [`mod@fuse`]: what is computed together;
//! 6. [`mod@build`]: the kernels and the memory, in an order with a small peak ([`mod@schedule`]); [`plan`]: where each
//!    buffer lies.
//!
//! [`print`](mod@print) shows what comes out for people.
//!
//! Nothing here knows a device: a device says what it has kernels for through [`Target`], and reads the [`program`].

#![forbid(unsafe_code)]

pub mod access;
pub mod build;
pub mod expand;
pub mod fuse;
pub mod hoist;
pub mod items;
pub mod plan;
pub mod print;
pub mod program;
pub mod rewrite;
pub mod schedule;

pub use expand::Target;
pub use fuse::Limits;
pub use program::Program;

use rlx_ir::{Func, Result};

/// What the compiler may do.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The limits of fusion.
    pub limits: Limits,
    /// Whether the graph is rewritten; only tests want it as it is.
    pub rewrite: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { limits: Limits::default(), rewrite: true }
    }
}

/// The graph after each stage, as far as it is still a graph.
pub struct Stages {
    /// Rewritten, and how often each rule fired.
    pub rewritten: rewrite::Rewritten,
    /// With only such ops as have a step kind.
    pub expanded: Func,
    /// The program.
    pub program: Program,
}

/// Compiles a graph for a device.
pub fn compile(f: &Func, target: &dyn Target, options: &Options) -> Result<Program> {
    Ok(stages(f, target, options)?.program)
}

/// Compiles a graph and keeps what the stages gave.
pub fn stages(f: &Func, target: &dyn Target, options: &Options) -> Result<Stages> {
    let rewritten = if options.rewrite {
        // A graph with gradients reads the weights in the backward pass as well: joined ones would be kept twice.
        let training = f.outputs.iter().any(|o| o.name.starts_with("grad."));
        let choice = rewrite::Options { merge_projections: !training, ..rewrite::Options::default() };
        rewrite::rewrite(f, &choice)?
    } else {
        rewrite::Rewritten { func: f.clone(), fired: Vec::new() }
    };
    let mut expanded = expand::expand(&rewritten.func, target)?;
    if options.rewrite {
        expanded = rewrite::simplify(&expanded)?;
        // What the rules made of it may be composite again.
        expanded = expand::expand(&expanded, target)?;
    }
    let expanded = rlx_ir::transform::dce(&expanded)?;
    let (prepare, main) = hoist::hoist(&expanded)?;
    let mut program = lower(&main, options)?;
    // Before anything was rewritten away: the oracle checks the same.
    program.demand(rlx_ir::condition::conditions(f)?);
    if let Some(prepare) = prepare {
        let count = prepare.outputs.len();
        program.take_prepared(count)?;
        program.prepare = Some(Box::new(lower(&prepare, options)?));
    }
    Ok(Stages { rewritten, expanded, program })
}

/// From a graph in which every op has a step kind to a program.
fn lower(f: &Func, options: &Options) -> Result<Program> {
    let items = items::Items::new(f)?;
    let fused = fuse::fuse(&items, options.limits)?;
    build::build(&items, &fused, &|region| lower(region, options))
}

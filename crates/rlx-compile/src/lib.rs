//! The compiler: from a graph to a Program.

#![forbid(unsafe_code)]

pub mod rewrite;

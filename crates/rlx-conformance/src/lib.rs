//! The one harness: it runs the op table's samples, random graphs, file tests and PyTorch's vectors.

pub mod device;
pub mod errordoc;
pub mod fd;
pub mod filetest;
pub mod models;
pub mod opsdoc;
pub mod random;
pub mod sampled;
pub mod vectors;

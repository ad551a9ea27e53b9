//! The one harness: it runs the op table's samples, random graphs, file tests and PyTorch's vectors.

pub mod fd;
pub mod random;
pub mod sampled;
pub mod vectors;

//! The one harness: it runs the op table's samples, random graphs, file tests and PyTorch's vectors.
//!
//! Read in this order: [`sampled`] and [`random`]: where graphs and their data come from; [`fd`] and [`vectors`]: what judges
//! the oracle and the transforms; [`device`]: what judges a device; [`filetest`], [`opsdoc`], [`errordoc`]: texts that must be
//! true; [`models`]: graphs that tests and benches share; [`onnx`]: ONNX's own suite and real models; [`attacks`],
//! [`onnxfile`]: files that mean no good, and ONNX files by hand.

pub mod attacks;
pub mod device;
pub mod errordoc;
pub mod fd;
pub mod filetest;
pub mod models;
pub mod onnx;
pub mod onnxfile;
pub mod opsdoc;
pub mod random;
pub mod sampled;
pub mod vectors;

//! The files that tensors and models lie in.
//!
//! Files are mapped and tensors are read where they lie. Everything in a file is checked before it is believed: arithmetic
//! on its numbers is checked, and nothing is allocated for a length that the file itself is too short for.
//!
//! Read in this order:
//! 1. [`map`]: the bytes of a file, shared by all who use a part; the only `unsafe` code here;
//! 2. [`array`]: a tensor whose bytes somebody else keeps.

#![deny(unsafe_code)]

pub mod array;
mod error;
pub mod map;
pub mod onnx;

pub use array::Array;
pub use map::Bytes;

//! The language of RLX.

pub mod quant;

//! The language of RLX.

pub mod dim;

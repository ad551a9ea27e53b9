//! The language of RLX.

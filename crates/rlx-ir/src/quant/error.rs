//! What can be wrong with a request to pack or unpack weights.

use std::fmt;

/// Why planes could not be described, decoded or encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuantError {
    /// The scheme has a block size that its kind does not allow.
    Block {
        /// Name of the kind.
        scheme: &'static str,
        /// The refused number of elements per block.
        block: u32,
    },
    /// The shape has no axis to run blocks along.
    Rank {
        /// Name of the kind.
        scheme: &'static str,
    },
    /// The last axis of a ggml tensor is not a whole number of blocks.
    Ragged {
        /// Name of the kind.
        scheme: &'static str,
        /// Length of the last axis.
        axis: usize,
        /// Elements per block.
        block: u32,
    },
    /// The number of elements or bytes does not fit the address space.
    Overflow {
        /// The refused shape.
        shape: Vec<usize>,
    },
    /// The number of planes is not the one that the scheme stores.
    PlaneCount {
        /// Name of the kind.
        scheme: &'static str,
        /// Planes that the scheme stores.
        expected: usize,
        /// Planes that were given.
        got: usize,
    },
    /// A plane has the wrong number of bytes for the shape.
    PlaneLength {
        /// Name of the kind.
        scheme: &'static str,
        /// Name of the plane.
        plane: &'static str,
        /// Bytes that the shape asks for.
        expected: usize,
        /// Bytes that were given.
        got: usize,
    },
    /// The number of values to encode is not the product of the shape.
    ValueCount {
        /// Elements that the shape asks for.
        expected: usize,
        /// Values that were given.
        got: usize,
    },
    /// A scale is NaN or infinite.
    NotFinite {
        /// Name of the kind.
        scheme: &'static str,
        /// The first such block.
        block: usize,
    },
}

impl fmt::Display for QuantError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block { scheme, block } => write!(f, "{scheme} has no blocks of {block} elements"),
            Self::Rank { scheme } => write!(f, "{scheme} needs a shape of at least one axis"),
            Self::Ragged { scheme, axis, block } => {
                write!(f, "{scheme}: last axis of {axis} is not a multiple of the block of {block}")
            }
            Self::Overflow { shape } => write!(f, "shape {shape:?} is too large to address"),
            Self::PlaneCount { scheme, expected, got } => {
                write!(f, "{scheme} stores {expected} planes, got {got}")
            }
            Self::PlaneLength { scheme, plane, expected, got } => {
                write!(f, "{scheme}: plane `{plane}` needs {expected} bytes, got {got}")
            }
            Self::NotFinite { scheme, block } => {
                write!(f, "{scheme}: a scale of block {block} is NaN or infinite")
            }
            Self::ValueCount { expected, got } => write!(f, "shape holds {expected} values, got {got}"),
        }
    }
}

impl std::error::Error for QuantError {}

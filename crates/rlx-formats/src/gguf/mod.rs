//! GGUF files: metadata, then a table of tensors, then their data. A model may be cut into several files.
//!
//! Axes are counted from the fastest, so the sizes of a tensor stand in the file in the reverse of RLX's order. Versions 2 and
//! 3 are read and 3 is written, both little-endian.

mod read;
mod split;
mod write;

pub use split::write_parts;
pub use write::{write, write_to};

use crate::archive::Contents;
use crate::map::Bytes;
use rlx_ir::quant::Scheme;
use rlx_ir::{DType, Result};
use std::path::Path;

/// The key under which a file says to what its data are aligned.
pub const ALIGNMENT: &str = "general.alignment";
/// The alignment of files that say nothing.
const USUAL_ALIGNMENT: u32 = 32;
/// The most axes of a tensor.
const MAX_AXES: usize = 4;

/// A type of tensors in a file.
struct TensorType {
    id: u32,
    name: &'static str,
    /// Elements of a block, which lie along the fastest axis.
    block: usize,
    /// Bytes of a block.
    bytes: usize,
}

const fn tensor_type(id: u32, name: &'static str, block: usize, bytes: usize) -> TensorType {
    TensorType { id, name, block, bytes }
}

/// The types that files have today; numbers that are missing were given up.
const TYPES: &[TensorType] = &[
    tensor_type(0, "F32", 1, 4),
    tensor_type(1, "F16", 1, 2),
    tensor_type(2, "Q4_0", 32, 18),
    tensor_type(3, "Q4_1", 32, 20),
    tensor_type(6, "Q5_0", 32, 22),
    tensor_type(7, "Q5_1", 32, 24),
    tensor_type(8, "Q8_0", 32, 34),
    tensor_type(9, "Q8_1", 32, 36),
    tensor_type(10, "Q2_K", 256, 84),
    tensor_type(11, "Q3_K", 256, 110),
    tensor_type(12, "Q4_K", 256, 144),
    tensor_type(13, "Q5_K", 256, 176),
    tensor_type(14, "Q6_K", 256, 210),
    tensor_type(15, "Q8_K", 256, 292),
    tensor_type(16, "IQ2_XXS", 256, 66),
    tensor_type(17, "IQ2_XS", 256, 74),
    tensor_type(18, "IQ3_XXS", 256, 98),
    tensor_type(19, "IQ1_S", 256, 50),
    tensor_type(20, "IQ4_NL", 32, 18),
    tensor_type(21, "IQ3_S", 256, 110),
    tensor_type(22, "IQ2_S", 256, 82),
    tensor_type(23, "IQ4_XS", 256, 136),
    tensor_type(24, "I8", 1, 1),
    tensor_type(25, "I16", 1, 2),
    tensor_type(26, "I32", 1, 4),
    tensor_type(27, "I64", 1, 8),
    tensor_type(28, "F64", 1, 8),
    tensor_type(29, "IQ1_M", 256, 56),
    tensor_type(30, "BF16", 1, 2),
    tensor_type(34, "TQ1_0", 256, 54),
    tensor_type(35, "TQ2_0", 256, 66),
    tensor_type(39, "MXFP4", 32, 17),
    tensor_type(40, "NVFP4", 64, 36),
    tensor_type(41, "Q1_0", 128, 18),
];

/// The plain numbers among them.
const NUMBERS: &[(u32, DType)] = &[
    (0, DType::F32),
    (1, DType::F16),
    (24, DType::I8),
    (25, DType::I16),
    (26, DType::I32),
    (27, DType::I64),
    (28, DType::F64),
    (30, DType::BF16),
];

impl TensorType {
    fn find(id: u32) -> Option<&'static TensorType> {
        TYPES.iter().find(|t| t.id == id)
    }

    /// The type of a dtype, if files have one.
    fn of(dtype: DType) -> Option<&'static TensorType> {
        let id = match dtype {
            DType::Packed(scheme) => scheme.ggml_type_id(),
            _ => NUMBERS.iter().find(|(_, d)| *d == dtype).map(|(id, _)| *id),
        };
        id.and_then(TensorType::find)
    }

    /// The dtype of tensors of that type, if RLX has one.
    fn dtype(&self) -> Option<DType> {
        let number = NUMBERS.iter().find(|(id, _)| *id == self.id).map(|(_, d)| *d);
        number.or_else(|| Scheme::from_ggml_type_id(self.id).map(DType::Packed))
    }
}

/// Reads a file, and those that it is continued in.
pub(crate) fn read(bytes: &Bytes, path: Option<&Path>) -> Result<Contents> {
    split::joined(read::file(bytes)?, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_as_long_as_their_schemes_say() {
        for t in TYPES {
            let Some(dtype) = t.dtype() else { continue };
            match dtype {
                DType::Packed(scheme) => {
                    assert_eq!(scheme.block as usize, t.block, "{}", t.name);
                    assert_eq!(scheme.planes(&[3, t.block]).unwrap()[0].bytes, 3 * t.bytes, "{}", t.name);
                }
                _ => assert_eq!((1, dtype.bytes()), (t.block, Some(t.bytes)), "{}", t.name),
            }
            assert_eq!(TensorType::of(dtype).map(|t| t.id), Some(t.id), "{}", t.name);
        }
    }

    #[test]
    fn every_scheme_of_the_family_has_a_type() {
        for scheme in Scheme::all().iter().filter(|s| s.is_ggml()) {
            assert!(TensorType::of(DType::Packed(*scheme)).is_some(), "{scheme}");
        }
    }
}

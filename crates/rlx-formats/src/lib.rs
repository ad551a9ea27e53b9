//! The files that tensors and models lie in.
//!
//! Files are mapped and tensors are read where they lie. Everything in a file is checked before it is believed: arithmetic
//! on its numbers is checked, and nothing is allocated for a length that the file itself is too short for.
//!
//! Read in this order:
//! 1. [`map`]: the bytes of a file, shared by all who use a part; the only `unsafe` code here;
//! 2. [`mod@array`]: a tensor whose bytes somebody else keeps; [`metadata`]: what a file says about itself;
//! 3. [`archive`]: one view of all formats, which [`open`] gives;
//! 4. [`safetensors`], [`gguf`], [`npy`], [`npz`]: a format each, to read and to write; `zip` is below the last; [`onnx`]: models;
//! 5. [`paths`]: files that files refer to; [`replace`](mod@replace): files that are written as a whole or not at all.
//!
//! ```
//! use rlx_formats::{View, open, safetensors};
//! use rlx_ir::Tensor;
//!
//! let path = std::env::temp_dir().join(format!("rlx-formats-{}.safetensors", std::process::id()));
//! let w = Tensor::new(&[2, 2], &[1f32, 2.0, 3.0, 4.0])?;
//! safetensors::write(&path, &[("w", View::from(&w))], &[("by".into(), "me".into())])?;
//!
//! let file = open(&path)?;
//! assert_eq!(file.entries()[0].shape(), [2, 2]);
//! assert_eq!(file.tensor("w")?.to_tensor()?, w);
//! # std::fs::remove_file(path).ok();
//! # Ok::<(), rlx_ir::Error>(())
//! ```

#![deny(unsafe_code)]

pub mod archive;
pub mod array;
mod error;
pub mod gguf;
pub mod map;
pub mod metadata;
pub mod npy;
pub mod npz;
pub mod onnx;
mod parts;
pub mod paths;
pub mod replace;
pub mod safetensors;
mod zip;

pub use archive::{Archive, Entry, Format, open};
pub use array::{Array, View};
pub use map::Bytes;
pub use metadata::{List, Value};

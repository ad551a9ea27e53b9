//! Quantised weights: which schemes there are, what each stores, and how numbers become codes and back.
//!
//! Read `table` first: one line per kind. `columns` holds the schemes whose scales lie in planes of their own,
//! `ggml` the block formats of GGUF files, `codec` what runs either piece by piece, [`lowfloat`] the scalars that both are made of.
//!
//! ```
//! use rlx_ir::quant::{Decode, Scheme};
//!
//! let scheme = Scheme::parse("int4:2").unwrap();
//! let planes = scheme.encode(&[3, 1], &[7.0, -3.0, 0.5]).unwrap(); // the last block is short
//! let views: Vec<&[u8]> = planes.iter().map(Vec::as_slice).collect();
//! let back = scheme.decode(&[3, 1], &views, Decode::AsStored).unwrap();
//! assert_eq!(back, [7.0, -3.0, 0.5]);
//! ```

use std::fmt;

mod codec;
#[allow(clippy::indexing_slicing, reason = "`Codec` checks all lengths before it runs")]
mod columns;
mod error;
#[allow(
    clippy::indexing_slicing,
    reason = "blocks have a fixed size, which `Codec` checks before a codec runs"
)]
mod ggml;
pub mod lowfloat;
mod table;

pub use codec::Codec;
pub use error::QuantError;
pub use table::SchemeKind;

use columns::Geometry;
use table::{ALL, Layout, ROWS, Row};

/// A quantisation scheme: a kind, and how many elements share a scale.
///
/// [`Scheme::new`] refuses a block that the kind does not allow; a scheme put together by hand is checked again
/// wherever it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scheme {
    /// What is stored.
    pub kind: SchemeKind,
    /// Elements per block: fixed by the format for the ggml kinds, 1 for plain fp8, free for the others.
    pub block: u32,
}

/// What the elements of a plane are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PlaneElem {
    /// Signed bytes.
    I8,
    /// Bytes: codes, packed nibbles or whole blocks.
    U8,
    /// `f32`, little-endian.
    F32,
}

impl PlaneElem {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::F32 => 4,
        }
    }
}

/// One of the buffers that a quantised tensor is stored in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plane {
    /// `codes`, `scale`, `zero` or `global`; a ggml tensor has the one plane `blocks`.
    pub name: &'static str,
    /// Length of the buffer.
    pub bytes: usize,
    /// What it holds.
    pub elem: PlaneElem,
    /// Its shape in elements. Nibbles are packed across rows, so theirs is flat; `global` is `[1]`.
    pub shape: Vec<usize>,
}

impl Plane {
    fn new(name: &'static str, elem: PlaneElem, shape: Vec<usize>) -> Result<Self, QuantError> {
        let bytes = product(&shape)?
            .checked_mul(elem.size())
            .ok_or_else(|| QuantError::Overflow { shape: shape.clone() })?;
        Ok(Self { name, bytes, elem, shape })
    }
}

/// What becomes of the codes that stand for NaN and infinity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Decode {
    /// They are decoded as they are.
    AsStored,
    /// An fp8 element, or an E4M3 or E8M0 scale of a block, that is NaN or infinite counts as 0: the rule of a matmul.
    /// What is stored as `f32` or half is taken as it is, so the ggml kinds decode alike in both modes, and a product
    /// of finite codes and scales may still overflow.
    Finite,
}

impl Scheme {
    /// A scheme, unless the kind has no blocks of this size (0 is never allowed).
    pub fn new(kind: SchemeKind, block: u32) -> Option<Self> {
        kind.row().block.allows(block).then_some(Self { kind, block })
    }

    /// Reads what `Display` writes, for example `int8:32`, `fp8_e4m3` or `q4_k`.
    pub fn parse(s: &str) -> Option<Self> {
        let (name, block) = match s.split_once(':') {
            Some((name, block)) => (name, Some(block.parse().ok()?)),
            None => (s, None),
        };
        let customary = ALL.iter().find(|scheme| scheme.kind.row().name == name)?;
        let scheme = Self::new(customary.kind, block.unwrap_or(customary.block))?;
        // One spelling each: no `q4_0:32`, no `int8:+32`.
        (scheme.to_string() == s).then_some(scheme)
    }

    /// One representative of each kind, with its customary block.
    pub fn all() -> &'static [Self] {
        ALL
    }

    /// Whether this is a block format of GGUF files: `W` is `[.., n, k]` with blocks along the last axis. For the
    /// others `W` is `[.., k, n]`, flat element order, blocks along `k` and one scale per block and column.
    pub fn is_ggml(self) -> bool {
        matches!(self.kind.row().layout, Layout::Rows(_))
    }

    /// The number that GGUF files know the format by.
    pub fn ggml_type_id(self) -> Option<u32> {
        self.kind.row().ggml_type
    }

    /// The scheme of a GGUF tensor type; `None` for types that are not in the table.
    pub fn from_ggml_type_id(id: u32) -> Option<Self> {
        ALL.iter().copied().find(|scheme| scheme.ggml_type_id() == Some(id))
    }

    /// One line about the kind, for listings.
    pub fn summary(self) -> &'static str {
        self.kind.row().summary.trim()
    }

    /// The buffers that a tensor of this shape is stored in, in the order that `decode` and `encode` use.
    pub fn planes(self, shape: &[usize]) -> Result<Vec<Plane>, QuantError> {
        let row = self.checked_row()?;
        let (last, leading) = shape.split_last().ok_or(QuantError::Rank { scheme: row.name })?;
        product(shape)?;
        match &row.layout {
            Layout::Columns(codec) => codec.planes(shape, &Geometry::new(shape, self.block)?),
            Layout::Rows(codec) => {
                let block = self.block as usize;
                if !last.is_multiple_of(block) {
                    return Err(QuantError::Ragged { scheme: row.name, axis: *last, block: self.block });
                }
                let stride = (last / block)
                    .checked_mul(codec.bytes)
                    .ok_or_else(|| QuantError::Overflow { shape: shape.to_vec() })?;
                let shape = leading.iter().copied().chain([stride]).collect();
                Ok(vec![Plane::new("blocks", PlaneElem::U8, shape)?])
            }
        }
    }

    /// An error if a scale or minimum within ggml blocks is NaN or infinite. What the other schemes keep in planes of their own
    /// is not looked at.
    pub fn check_scales(self, blocks: &[u8]) -> Result<(), QuantError> {
        let row = self.checked_row()?;
        let Layout::Rows(codec) = &row.layout else { return Ok(()) };
        match codec.not_finite(blocks) {
            Some(block) => Err(QuantError::NotFinite { scheme: row.name, block }),
            None => Ok(()),
        }
    }

    /// The numbers that the planes stand for, in the element order of `shape`.
    pub fn decode(self, shape: &[usize], planes: &[&[u8]], mode: Decode) -> Result<Vec<f32>, QuantError> {
        self.codec(shape)?.decode_all(planes, mode)
    }

    /// Packs numbers, rounding to nearest.
    ///
    /// - fp8 without scales saturates finite values and keeps NaN; E5M2 keeps infinity, E4M3 turns it into NaN.
    /// - ggml kinds that the Python package `gguf` can write come out with the same bytes; they inherit the range of
    ///   their half scales (q4_0 overflows above 8 · 65504, say).
    /// - elsewhere NaN is packed as 0 and infinity as the largest `f32`.
    pub fn encode(self, shape: &[usize], values: &[f32]) -> Result<Vec<Vec<u8>>, QuantError> {
        self.codec(shape)?.encode_all(values)
    }

    fn checked_row(self) -> Result<&'static Row, QuantError> {
        let row = self.kind.row();
        if row.block.allows(self.block) {
            Ok(row)
        } else {
            Err(QuantError::Block { scheme: row.name, block: self.block })
        }
    }
}

impl SchemeKind {
    fn row(self) -> &'static Row {
        #[allow(clippy::indexing_slicing, reason = "the enum and its rows are written by one macro")]
        &ROWS[self as usize]
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = self.kind.row();
        match row.block {
            table::BlockRule::Fixed(_) => f.write_str(row.name),
            table::BlockRule::Free(_) => write!(f, "{}:{}", row.name, self.block),
        }
    }
}

/// Elements of a shape; an axis of 0 makes it 0 whatever the others are.
fn product(shape: &[usize]) -> Result<usize, QuantError> {
    if shape.contains(&0) {
        return Ok(0);
    }
    shape
        .iter()
        .try_fold(1usize, |total, &axis| total.checked_mul(axis))
        .ok_or_else(|| QuantError::Overflow { shape: shape.to_vec() })
}

/// A number that quantisers can do arithmetic on: NaN is 0 and infinity the largest `f32`.
fn tame(x: f32) -> f32 {
    if x.is_nan() { 0.0 } else { x.clamp(-f32::MAX, f32::MAX) }
}

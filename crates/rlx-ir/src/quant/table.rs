//! The table of schemes: each kind is declared once, and the enum, the names and the codecs follow from it.

use super::columns::{self, ColumnCodec};
use super::ggml::{self, BlockCodec, iq4, kquant, legacy};
use super::{Scheme, SchemeKind::*};

/// Which block sizes a kind allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockRule {
    /// The format says how many.
    Fixed(u32),
    /// Any but 0; the number is the customary one.
    Free(u32),
}

impl BlockRule {
    pub(super) const fn customary(self) -> u32 {
        match self {
            Self::Fixed(n) | Self::Free(n) => n,
        }
    }

    pub(super) fn allows(self, block: u32) -> bool {
        match self {
            Self::Fixed(n) => block == n,
            Self::Free(_) => block != 0,
        }
    }
}

/// How the weights of a kind lie in memory, and the codec for it.
pub(super) enum Layout {
    /// `[.., k, n]`: codes in flat order, blocks down the columns, scales in planes of their own.
    Columns(ColumnCodec),
    /// `[.., n, k]`: blocks along the rows, each with its scales inside.
    Rows(BlockCodec),
}

/// One line of the table.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) summary: &'static str,
    pub(super) block: BlockRule,
    pub(super) ggml_type: Option<u32>,
    pub(super) layout: Layout,
}

macro_rules! schemes {
    ($( #[doc = $summary:literal] $kind:ident = $name:literal, $block:expr, $ggml_type:expr, $layout:expr; )+) => {
        /// The kinds of quantisation scheme.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[allow(non_camel_case_types, reason = "Q4_0 and its kin keep the names of their file format")]
        pub enum SchemeKind { $( #[doc = $summary] $kind, )+ }

        /// In the order of the enum, so that a kind is its own index.
        pub(super) static ROWS: &[Row] = &[$(
            Row { name: $name, summary: $summary, block: $block, ggml_type: $ggml_type, layout: $layout },
        )+];

        /// Each kind with its customary block.
        pub(super) static ALL: &[Scheme] = &[$( Scheme { kind: $kind, block: $block.customary() }, )+];
    };
}

use BlockRule::{Fixed, Free};
use Layout::{Columns, Rows};

schemes! {
    /// Signed bytes, an `f32` scale a block.
    Int8 = "int8", Free(32), None, Columns(columns::INT8);
    /// Signed bytes, an `f32` scale and an `f32` zero point a block: (q − zp) · scale.
    Int8Asym = "int8_asym", Free(32), None, Columns(columns::INT8_ASYM);
    /// Signed nibbles, an `f32` scale a block.
    Int4 = "int4", Free(32), None, Columns(columns::INT4);
    /// OCP FP8 E4M3 without scales.
    Fp8E4M3 = "fp8_e4m3", Fixed(1), None, Columns(columns::FP8_E4M3);
    /// OCP FP8 E5M2 without scales.
    Fp8E5M2 = "fp8_e5m2", Fixed(1), None, Columns(columns::FP8_E5M2);
    /// E2M1 nibbles, an E4M3 scale a block, one `f32` for the tensor.
    NvFp4 = "nvfp4", Free(16), None, Columns(columns::NVFP4);
    /// E2M1 nibbles, an E8M0 scale a block.
    MxFp4 = "mxfp4", Free(32), None, Columns(columns::MXFP4);
    /// E4M3 bytes, an E8M0 scale a block.
    MxFp8E4M3 = "mxfp8_e4m3", Free(32), None, Columns(columns::MXFP8_E4M3);
    /// E5M2 bytes, an E8M0 scale a block.
    MxFp8E5M2 = "mxfp8_e5m2", Free(32), None, Columns(columns::MXFP8_E5M2);
    /// ggml: 4 bits, a half scale for 32.
    Q4_0 = "q4_0", Fixed(32), Some(2), Rows(legacy::Q4_0);
    /// ggml: 4 bits, a half scale and a half minimum for 32.
    Q4_1 = "q4_1", Fixed(32), Some(3), Rows(legacy::Q4_1);
    /// ggml: 5 bits, a half scale for 32.
    Q5_0 = "q5_0", Fixed(32), Some(6), Rows(legacy::Q5_0);
    /// ggml: 5 bits, a half scale and a half minimum for 32.
    Q5_1 = "q5_1", Fixed(32), Some(7), Rows(legacy::Q5_1);
    /// ggml: signed bytes, a half scale for 32.
    Q8_0 = "q8_0", Fixed(32), Some(8), Rows(legacy::Q8_0);
    /// ggml: 2 bits, 4-bit scale and minimum for 16, in super-blocks of 256.
    Q2K = "q2_k", Fixed(256), Some(10), Rows(kquant::Q2K);
    /// ggml: 3 bits, 6-bit scale for 16, in super-blocks of 256.
    Q3K = "q3_k", Fixed(256), Some(11), Rows(kquant::Q3K);
    /// ggml: 4 bits, 6-bit scale and minimum for 32, in super-blocks of 256.
    Q4K = "q4_k", Fixed(256), Some(12), Rows(kquant::Q4K);
    /// ggml: 5 bits, 6-bit scale and minimum for 32, in super-blocks of 256.
    Q5K = "q5_k", Fixed(256), Some(13), Rows(kquant::Q5K);
    /// ggml: 6 bits, 8-bit scale for 16, in super-blocks of 256.
    Q6K = "q6_k", Fixed(256), Some(14), Rows(kquant::Q6K);
    /// ggml: signed bytes, an `f32` scale for 256, and sums of 16 that only its dot products read.
    Q8K = "q8_k", Fixed(256), Some(15), Rows(kquant::Q8K);
    /// ggml: 4-bit index into uneven levels, a half scale for 32.
    Iq4Nl = "iq4_nl", Fixed(32), Some(20), Rows(iq4::IQ4_NL);
    /// ggml: the levels of `iq4_nl`, 6-bit scale for 32, in super-blocks of 256.
    Iq4Xs = "iq4_xs", Fixed(256), Some(23), Rows(iq4::IQ4_XS);
    /// ggml: E2M1 nibbles, an E8M0 scale for 32.
    GgmlMxFp4 = "ggml_mxfp4", Fixed(32), Some(39), Rows(legacy::MXFP4);
    /// ggml: IEEE halves.
    GgmlF16 = "ggml_f16", Fixed(1), Some(1), Rows(ggml::F16);
    /// ggml: bfloat16.
    GgmlBf16 = "ggml_bf16", Fixed(1), Some(30), Rows(ggml::BF16);
}

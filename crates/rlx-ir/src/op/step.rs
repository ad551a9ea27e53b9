//! What a device does for an op: a small closed set of step kinds, which is all that a backend knows.
//!
//! An op's file says with `step = …` which kind it is. An op of the scalar language needs no such line; a composite without
//! one is run through its body; a composite with one has a tuned kernel, and its body is what the kernel is checked against.

use crate::attr::AttrValue;
use crate::dim::Dim;
use crate::func::Node;
use crate::op::{Infer, Meaning, OpDef};
use crate::ops::attention::Attention;
use crate::ops::scatter::ScatterMode;
use crate::ops::window::WindowKind;
use crate::scalar::Scalar;
use crate::tensor::Tensor;
use crate::types::Type;
use crate::{DType, Result};
use std::cell::RefCell;

/// How a reduction joins elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Fold {
    Sum,
    Prod,
    Max,
    Min,
    Any,
    All,
}

/// What a running total joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Running {
    Sum,
    Prod,
    Max,
    Min,
    LogSumExp,
}

/// How windows slide over the last axes: every list has an entry per axis, or is empty for the default.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub struct Sliding {
    pub stride: Vec<i64>,
    pub dilation: Vec<i64>,
    pub padding_lo: Vec<i64>,
    pub padding_hi: Vec<i64>,
}

/// Which of the three operands of the convolution's form is computed from the other two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum ConvPart {
    Output,
    Input,
    Weight,
}

/// A step kind with all that the op's attributes say about it. Axes are resolved.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// A function of the scalar language, element by element; operands broadcast.
    Scalar(Scalar),
    /// To the result's dtype.
    Cast,
    /// The same bits under the result's dtype.
    Bits,
    /// Data.
    Constant(Tensor),
    /// A size as a number.
    SizeOf(Dim),
    /// The index along an axis.
    Iota(usize),
    /// The same elements in order under the result's shape.
    Reshape,
    /// Result axis i is operand axis `axes[i]`.
    Permute(Vec<usize>),
    /// Broadcast to the result's shape.
    Broadcast,
    /// From `start` on, every `step`-th.
    Slice {
        /// The first element of each axis.
        start: Vec<Dim>,
        /// The distance between elements of each axis.
        step: Vec<i64>,
    },
    /// Each of these axes backwards.
    Flip(Vec<usize>),
    /// The second operand everywhere but where the first lies: from `lo` on, with `interior` gaps.
    Pad {
        /// Where the first element lies.
        lo: Vec<Dim>,
        /// How many elements stand between two.
        interior: Vec<i64>,
    },
    /// The operands one behind the other along an axis.
    Concat(usize),
    /// A reduction over axes.
    Fold(Fold, Vec<usize>),
    /// The position of the extreme along an axis.
    ArgFold {
        /// The axis.
        axis: usize,
        /// The smallest rather than the largest.
        min: bool,
        /// The last of equals rather than the first.
        last: bool,
    },
    /// Products summed over pairs of axes; the result has batch axes, free axes of x, free axes of y.
    Dot {
        /// Axes of x and y that are summed over, in pairs.
        contract: [Vec<usize>; 2],
        /// Axes of x and y that go together, in pairs.
        batch: [Vec<usize>; 2],
    },
    /// The matrix product of bytes less their zero points, in i32; leading axes broadcast.
    MatmulInteger,
    /// A convolution or one of its transposes; the bias is apart.
    Conv {
        /// What is computed.
        part: ConvPart,
        /// How the windows slide.
        sliding: Sliding,
        /// The number of groups.
        groups: i64,
    },
    /// A reduction over windows.
    Window {
        /// The reduction.
        kind: WindowKind,
        /// The windows' sizes.
        kernel: Vec<i64>,
        /// How they slide.
        sliding: Sliding,
        /// The position of the extreme rather than its value.
        arg: bool,
    },
    /// A running total along an axis.
    Running {
        /// What it joins.
        kind: Running,
        /// The axis.
        axis: usize,
        /// Without the element itself.
        exclusive: bool,
        /// From the end.
        reverse: bool,
    },
    /// `y[t] = a[t] · y[t−1] + b[t]`.
    LinearScan {
        /// The axis.
        axis: usize,
        /// From the end.
        reverse: bool,
    },
    /// Entries of x along an axis, by index.
    Gather(usize),
    /// x with updates written along an axis, by index.
    Scatter {
        /// The axis.
        axis: usize,
        /// What an update does.
        mode: ScatterMode,
    },
    /// Sorted values and where they came from.
    Sort {
        /// The axis.
        axis: usize,
        /// Largest first.
        descending: bool,
    },
    /// The Fourier transform of pairs along the second last axis.
    Fft {
        /// The inverse.
        inverse: bool,
    },
    /// Philox bits, counted anew for every seed.
    RandomBits {
        /// The stream.
        stream: i64,
    },
    /// To packed form.
    Quantize,
    /// From packed form.
    Dequantize {
        /// Codes that are not finite count as 0.
        finite: bool,
    },
    /// The operands themselves, which no rewrite looks through.
    Same,
    /// The first region on the operands.
    Inline,
    /// One of two regions.
    If,
    /// A region as long as another one holds.
    While {
        /// The number of operands that change.
        carries: usize,
        /// The most turns.
        max: i64,
        /// Also the number of turns and the carries before each.
        save: bool,
    },
    /// A region for every entry of some operands.
    Scan {
        /// The number of operands that change.
        carries: usize,
        /// The number of operands that are seen entry by entry.
        xs: usize,
        /// The number of turns.
        length: Dim,
        /// From the last entry.
        reverse: bool,
    },
    /// Attention.
    Attention(Attention),
    /// The gradients of attention.
    AttentionGrad(Attention),
    /// The selective scan of Mamba-1.
    SelectiveScan {
        /// Softplus on the time step.
        softplus: bool,
    },
    /// The gradients of the selective scan.
    SelectiveScanGrad {
        /// Softplus on the time step.
        softplus: bool,
    },
    /// Something across that many ranks.
    Collective(i64),
}

/// How a kernel hands its first result on while that is in the cache: in blocks of rows and columns, every element once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// How many of the result's last axes are the columns.
    pub columns: usize,
    /// Whether a block can hold all columns of its rows, for what is reduced over them.
    pub whole_rows: bool,
}

impl Step {
    /// The blocks in which the kernel of this step hands on a first result of that rank; `None`: it only writes to memory.
    pub fn blocks(&self, rank: usize) -> Option<Blocks> {
        match self {
            // Rows are images and channels, columns are positions.
            Step::Conv { part: ConvPart::Output, .. } => {
                Some(Blocks { columns: rank.saturating_sub(2), whole_rows: false })
            }
            Step::Attention(_) => Some(Blocks { columns: 1, whole_rows: true }),
            // Rows are time steps, columns are channels, a few at a time.
            Step::SelectiveScan { .. } => Some(Blocks { columns: 1, whole_rows: false }),
            _ => None,
        }
    }
}

/// From an op's types and attributes to its step kind.
pub type StepRule = fn(&Infer<'_>) -> Result<Step>;

impl OpDef {
    /// The step kind of an application of the op; `None` if it is to be run through its body.
    pub fn step(&'static self, attrs: &[AttrValue], operands: &[Option<Type>]) -> Option<Result<Step>> {
        if let Meaning::Scalar(s) = self.meaning {
            return Some(Ok(Step::Scalar(s)));
        }
        let rule = self.step?;
        Some(
            rule(&Infer { def: self, attrs, operands, regions: &[], demands: RefCell::default() })
                .map_err(|e| e.in_op(self.name)),
        )
    }
}

impl Node {
    /// The step kind of the node, from the types of its operands.
    pub fn step(&self, operands: &[Option<Type>]) -> Option<Result<Step>> {
        self.op.step(&self.attrs, operands)
    }
}

/// The float that kernels compute in for one of that dtype: what is stored otherwise is converted on the way in and out.
pub fn kernel_dtype(d: DType) -> DType {
    match d {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

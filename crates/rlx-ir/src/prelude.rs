//! What an op file needs.

pub use crate::attr::{AttrValue, Attributes, Dims};
pub use crate::dim::Dim;
pub use crate::dtype::DType;
pub use crate::error::{Code, Error, Result};
pub use crate::graph::{Graph, Var};
pub use crate::onnx::{self, Call, microsoft, preview, rule, same};
pub use crate::op::step::{ConvPart, Fold, Running, Sliding, Step};
pub use crate::op::{Cx, Grads, Infer, VjpCx, VmapCx, tol};
pub use crate::oracle::{Arr, Eval};
pub use crate::sample::{Samples, boolean, f, int, packed};
pub use crate::scalar::{Num, Scalar};
pub use crate::types::{Shape, Type, broadcast, inverse, product, resolve_axes, resolve_axis};
pub use crate::{attr_enum, ops};

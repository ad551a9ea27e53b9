//! What goes in and out: views of the caller's memory, params, tensors.

use crate::bind::byte_count;
use rlx_compile::program::Named;
use rlx_ir::dim::Bindings;
use rlx_ir::{Code, DType, Error, Result, Tensor};
use std::sync::Arc;

/// A tensor that somebody else keeps.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The dtype.
    pub dtype: DType,
    /// The sizes.
    pub shape: &'a [usize],
    /// The elements, row-major; of a packed dtype its [`planes`].
    pub bytes: &'a [u8],
}

/// A tensor to be written that somebody else keeps.
#[derive(Debug)]
pub struct ViewMut<'a> {
    /// The dtype.
    pub dtype: DType,
    /// The sizes.
    pub shape: &'a [usize],
    /// The elements, row-major; of a packed dtype its [`planes`].
    pub bytes: &'a mut [u8],
}

/// The data of a param.
#[derive(Clone)]
pub enum Data {
    /// A tensor.
    Tensor(Tensor),
    /// Part of something larger, such as a mapped file: what keeps it, and the bytes within.
    Shared {
        /// The dtype.
        dtype: DType,
        /// The sizes.
        shape: Vec<usize>,
        /// Keeps the bytes.
        owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
        /// Where they are.
        range: std::ops::Range<usize>,
    },
}

impl std::fmt::Debug for Data {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{:?}", self.dtype(), self.shape())
    }
}

impl Data {
    /// The dtype.
    pub fn dtype(&self) -> DType {
        match self {
            Data::Tensor(t) => t.dtype(),
            Data::Shared { dtype, .. } => *dtype,
        }
    }
    /// The sizes.
    pub fn shape(&self) -> &[usize] {
        match self {
            Data::Tensor(t) => t.shape(),
            Data::Shared { shape, .. } => shape,
        }
    }
    /// The bytes; of the first plane for a packed tensor.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Data::Tensor(t) => t.bytes(),
            Data::Shared { owner, range, .. } => (**owner).as_ref().get(range.clone()).unwrap_or_default(),
        }
    }
}

/// The tensor of a dtype and shape from bytes in the order in which programs keep them.
pub(crate) fn to_tensor(dtype: DType, shape: &[usize], bytes: Arc<[u8]>) -> Result<Tensor> {
    let DType::Packed(scheme) = dtype else { return Tensor::from_bytes(dtype, shape, bytes) };
    let planes = scheme.planes(shape).map_err(|e| Error::new(Code::Quant, e.to_string()))?;
    let mut at = 0;
    let mut out: Vec<Arc<[u8]>> = Vec::new();
    for p in planes {
        out.push(bytes.get(at..at + p.bytes).unwrap_or_default().into());
        at += p.bytes.div_ceil(64) * 64;
    }
    Tensor::packed(scheme, shape, out)
}

/// The planes of a packed tensor one behind the other, each padded to a multiple of 64 bytes: the bytes of its [`View`].
pub fn planes(t: &Tensor) -> Vec<u8> {
    let mut out = Vec::new();
    for p in t.planes() {
        out.extend_from_slice(p);
        out.resize(out.len().div_ceil(64) * 64, 0);
    }
    out
}

/// The most that each size of a port can be.
pub(crate) fn limits(port: &Named) -> Vec<Option<usize>> {
    port.shape.iter().map(|d| d.upper().and_then(|n| usize::try_from(n).ok())).collect()
}

/// The bytes of a tensor, planes and all.
pub(crate) fn whole_bytes(dtype: DType, shape: &[usize]) -> Result<usize> {
    let dims: Vec<rlx_ir::Dim> = shape.iter().map(|d| (*d).into()).collect();
    byte_count(dtype, &dims, &Bindings::new())
}

/// Packed data have as many bytes as their planes.
pub(crate) fn check_planes(
    what: &str,
    name: &str,
    dtype: DType,
    shape: &[usize],
    bytes: usize,
) -> Result<()> {
    let need = whole_bytes(dtype, shape)?;
    if need == bytes {
        return Ok(());
    }
    let text = format!("{what} {name:?} has {bytes} bytes, but {dtype}{shape:?} needs {need}");
    Err(Error::new(Code::BadInput, text))
}

/// Dtype, number of axes and length of what is given are those of the port. The length of packed data is left to
/// [`check_planes`], which asks for memory.
pub(crate) fn check_fits(
    what: &str,
    port: &Named,
    limits: &[Option<usize>],
    dtype: DType,
    shape: &[usize],
    bytes: usize,
) -> Result<()> {
    let wrong = |text: String| Err(Error::new(Code::BadInput, format!("{what} {:?} {text}", port.name)));
    if dtype != port.dtype {
        return wrong(format!("is {dtype}, but must be {}", port.dtype));
    }
    if shape.len() != port.shape.len() {
        return wrong(format!("has sizes {shape:?}, but must have {} axes", port.shape.len()));
    }
    for (axis, (got, want)) in shape.iter().zip(&port.shape).enumerate() {
        if want.as_const().is_some_and(|n| usize::try_from(n) != Ok(*got)) {
            return wrong(format!("has size {got} at axis {axis}, but must have {want}"));
        }
        if let Some(limit) = limits.get(axis).copied().flatten().filter(|n| got > n) {
            return wrong(format!("has size {got} at axis {axis}, but {want} is at most {limit}"));
        }
    }
    if let Some(size) = dtype.bytes() {
        let need = rlx_ir::tensor::count(shape)?.checked_mul(size);
        if need != Some(bytes) {
            return wrong(format!(
                "has {bytes} bytes, but {dtype}{shape:?} needs {}",
                need.unwrap_or(usize::MAX)
            ));
        }
    }
    Ok(())
}

/// Whether bytes stand where elements of the dtype can be read.
pub(crate) fn is_aligned(bytes: &[u8], dtype: DType) -> bool {
    (bytes.as_ptr() as usize).is_multiple_of(dtype.bytes().unwrap_or(1))
}

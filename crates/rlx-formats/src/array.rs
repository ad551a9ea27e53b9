//! Tensors whose bytes somebody else keeps, such as a mapped file.

use crate::error::bad;
use crate::map::Bytes;
use rlx_ir::quant::Scheme;
use rlx_ir::{DType, Result, Tensor, tensor};

/// A tensor that is read where it lies. A clone shares the bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    dtype: DType,
    shape: Vec<usize>,
    planes: Vec<Bytes>,
}

impl Array {
    /// An unpacked tensor from its elements, little-endian and row-major. Bools are checked when they are copied: see
    /// [`Array::to_tensor`] and [`Array::check`].
    pub fn new(dtype: DType, shape: &[usize], bytes: Bytes) -> Result<Array> {
        let need = dtype.bytes().and_then(|size| tensor::count(shape).ok()?.checked_mul(size));
        match need {
            Some(n) if n == bytes.len() => Ok(Array { dtype, shape: shape.to_vec(), planes: vec![bytes] }),
            Some(n) => Err(bad(format!("{dtype}{shape:?} needs {n} bytes, not {}", bytes.len()))),
            None => Err(bad(format!("{dtype}{shape:?} is too large, or packed"))),
        }
    }

    /// A packed tensor from the planes of its scheme.
    pub fn packed(scheme: Scheme, shape: &[usize], planes: Vec<Bytes>) -> Result<Array> {
        tensor::count(shape)?;
        let want = scheme.planes(shape).map_err(bad)?;
        if want.len() != planes.len() {
            return Err(bad(format!("{scheme} has {} planes, not {}", want.len(), planes.len())));
        }
        for (w, p) in want.iter().zip(&planes) {
            if w.bytes != p.len() {
                let text =
                    format!("plane {} of {scheme}{shape:?} needs {} bytes, not {}", w.name, w.bytes, p.len());
                return Err(bad(text));
            }
        }
        Ok(Array { dtype: DType::Packed(scheme), shape: shape.to_vec(), planes })
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }
    /// The sizes of the axes.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }
    /// The bytes of an unpacked tensor, or of the first plane of a packed one.
    pub fn bytes(&self) -> &[u8] {
        self.planes.first().map_or(&[], |p| p)
    }
    /// The planes: one for an unpacked tensor.
    pub fn planes(&self) -> &[Bytes] {
        &self.planes
    }

    /// An error if a bool is neither 0 nor 1, or if the file was cut short.
    pub fn check(&self) -> Result<()> {
        self.planes.iter().try_for_each(Bytes::check_whole)?;
        if self.dtype == DType::Bool && self.bytes().iter().any(|b| *b > 1) {
            return Err(bad("a bool is neither 0 nor 1"));
        }
        Ok(())
    }

    /// A copy in memory.
    pub fn to_tensor(&self) -> Result<Tensor> {
        self.check()?;
        match self.dtype {
            DType::Packed(scheme) => {
                Tensor::packed(scheme, &self.shape, self.planes.iter().map(|p| (**p).into()).collect())
            }
            dtype => Tensor::from_bytes(dtype, &self.shape, self.bytes()),
        }
    }
}

impl From<&Tensor> for Array {
    fn from(t: &Tensor) -> Array {
        let planes = t.planes().iter().map(|p| p.to_vec().into()).collect();
        Array { dtype: t.dtype(), shape: t.shape().to_vec(), planes }
    }
}

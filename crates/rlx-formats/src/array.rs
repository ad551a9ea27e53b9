//! Tensors whose bytes somebody else keeps, such as a mapped file.

use crate::error::bad;
use crate::map::Bytes;
use rlx_ir::quant::{Plane, PlaneElem, Scheme};
use rlx_ir::{Code, DType, Error, Result, Tensor, tensor};

/// A tensor that is read where it lies. A clone shares the bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    dtype: DType,
    shape: Vec<usize>,
    planes: Vec<Bytes>,
}

impl Array {
    /// An unpacked tensor from its elements, little-endian and row-major. They are looked at by [`Array::check`] only.
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
        let want = planes_of(scheme, shape)?;
        let quant = |text| Err(Error::new(Code::Quant, text));
        if want.len() != planes.len() {
            return quant(format!("{scheme} has {} planes, not {}", want.len(), planes.len()));
        }
        for (w, p) in want.iter().zip(&planes) {
            if w.bytes != p.len() {
                let got = p.len();
                return quant(format!(
                    "plane {} of {scheme}{shape:?} needs {} bytes, not {got}",
                    w.name, w.bytes
                ));
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

    /// An error if a bool is neither 0 nor 1, a scale of a quantised block is NaN or infinite, or the file was cut short.
    pub fn check(&self) -> Result<()> {
        self.planes.iter().try_for_each(Bytes::check_whole)?;
        if let DType::Packed(scheme) = self.dtype {
            scheme.check_scales(self.bytes()).map_err(bad)?;
        }
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

/// The planes of a packed tensor.
pub(crate) fn planes_of(scheme: Scheme, shape: &[usize]) -> Result<Vec<Plane>> {
    tensor::count(shape)?;
    scheme.planes(shape).map_err(|e| Error::new(Code::Quant, e.to_string()))
}

/// The dtype of a plane.
pub(crate) fn plane_dtype(elem: PlaneElem) -> DType {
    match elem {
        PlaneElem::I8 => DType::I8,
        PlaneElem::U8 => DType::U8,
        PlaneElem::F32 => DType::F32,
    }
}

/// A tensor to be written, wherever its bytes are.
#[derive(Clone, Debug)]
pub struct View<'a> {
    pub(crate) dtype: DType,
    pub(crate) shape: &'a [usize],
    pub(crate) planes: Vec<&'a [u8]>,
}

impl View<'_> {
    /// The bytes of all planes.
    pub(crate) fn len(&self) -> usize {
        self.planes.iter().map(|p| p.len()).sum()
    }
}

impl<'a> From<&'a Tensor> for View<'a> {
    fn from(t: &'a Tensor) -> View<'a> {
        View { dtype: t.dtype(), shape: t.shape(), planes: t.planes().iter().map(|p| &**p).collect() }
    }
}

impl<'a> From<&'a Array> for View<'a> {
    fn from(t: &'a Array) -> View<'a> {
        View { dtype: t.dtype, shape: &t.shape, planes: t.planes.iter().map(|p| &**p).collect() }
    }
}

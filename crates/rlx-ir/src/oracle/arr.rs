//! Arrays of the oracle: floats in `f64`, integers in `i128`, packed data as stored.

use crate::dtype::{DType, Kind};
use crate::error::{Code, Error, Result};
use crate::quant::Decode;
use crate::scalar::Num;
use crate::tensor::{Tensor, count};
use std::sync::Arc;

/// The largest array that the oracle makes, in elements.
pub const MAX_ORACLE_ELEMENTS: usize = 1 << 27;

/// Data in the oracle. Cloning shares the elements.
#[derive(Clone, Debug, PartialEq)]
pub struct Arr {
    dtype: DType,
    shape: Vec<usize>,
    data: Data,
}

#[derive(Clone, Debug, PartialEq)]
enum Data {
    F(Arc<Vec<f64>>),
    I(Arc<Vec<i128>>),
    Packed(Vec<Arc<[u8]>>),
}

impl Arr {
    /// From a function of the index. Integers are wrapped to the dtype; floats stay exact.
    pub fn from_fn(dtype: DType, shape: &[usize], mut f: impl FnMut(&[usize]) -> Num) -> Result<Arr> {
        let n = checked_count(shape)?;
        let mut it = Indices::new(shape);
        let data = match dtype.kind() {
            Kind::Float => {
                let mut v = Vec::with_capacity(n);
                while let Some(ix) = it.next() {
                    v.push(f(ix).f());
                }
                Data::F(v.into())
            }
            Kind::Int { .. } | Kind::Bool => {
                let mut v = Vec::with_capacity(n);
                while let Some(ix) = it.next() {
                    v.push(dtype.wrap_int(f(ix).i()));
                }
                Data::I(v.into())
            }
            Kind::Packed => {
                return Err(Error::new(Code::Quant, format!("{dtype} is not made element by element")));
            }
        };
        Ok(Arr { dtype, shape: shape.to_vec(), data })
    }

    /// Floats in row-major order.
    pub fn from_f64s(dtype: DType, shape: &[usize], v: Vec<f64>) -> Result<Arr> {
        if checked_count(shape)? != v.len() || !dtype.is_float() {
            return Err(Error::new(Code::BadInput, format!("{} floats are no {dtype}{shape:?}", v.len())));
        }
        Ok(Arr { dtype, shape: shape.to_vec(), data: Data::F(v.into()) })
    }

    /// Packed planes.
    pub fn packed(dtype: DType, shape: &[usize], planes: Vec<Arc<[u8]>>) -> Result<Arr> {
        checked_count(shape)?;
        Ok(Arr { dtype, shape: shape.to_vec(), data: Data::Packed(planes) })
    }

    /// From host data.
    pub fn from_tensor(t: &Tensor) -> Result<Arr> {
        checked_count(t.shape())?;
        let data = match t.dtype().kind() {
            Kind::Float => t.to_f64s().map(|v| Data::F(v.into())),
            Kind::Packed => Some(Data::Packed(t.planes().to_vec())),
            _ => t.to_i128s().map(|v| Data::I(v.into())),
        };
        let data = data.ok_or_else(|| Error::new(Code::BadInput, "the tensor cannot be read"))?;
        Ok(Arr { dtype: t.dtype(), shape: t.shape().to_vec(), data })
    }

    /// To host data; floats are rounded to the dtype.
    pub fn to_tensor(&self) -> Result<Tensor> {
        let t = match (&self.data, self.dtype) {
            (Data::F(v), _) => Tensor::from_f64s(self.dtype, &self.shape, v),
            (Data::I(v), _) => Tensor::from_i128s(self.dtype, &self.shape, v),
            (Data::Packed(p), DType::Packed(s)) => return Tensor::packed(s, &self.shape, p.clone()),
            (Data::Packed(_), _) => None,
        };
        t.ok_or_else(|| Error::new(Code::BadInput, "the array cannot be written as a tensor"))
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }
    /// The sizes of the axes.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }
    /// The number of axes.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }
    /// The number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }
    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The element at a flat position; 0 beyond the end.
    pub fn flat(&self, i: usize) -> Num {
        match &self.data {
            Data::F(v) => Num::F(v.get(i).copied().unwrap_or(0.0)),
            Data::I(v) => Num::I(v.get(i).copied().unwrap_or(0)),
            Data::Packed(_) => Num::F(f64::NAN),
        }
    }

    /// The element at an index.
    pub fn at(&self, ix: &[usize]) -> Num {
        self.flat(self.offset(ix))
    }

    /// The flat position of an index.
    pub fn offset(&self, ix: &[usize]) -> usize {
        ix.iter().zip(&self.shape).fold(0, |o, (i, d)| o * d + i)
    }

    /// The element at an index of a shape that this one broadcasts to.
    pub fn at_broadcast(&self, ix: &[usize]) -> Num {
        let lead = ix.len() - self.rank().min(ix.len());
        let own = ix.iter().skip(lead).zip(&self.shape);
        self.flat(own.fold(0, |o, (i, d)| o * d + if *d == 1 { 0 } else { *i }))
    }

    /// All elements as floats; a packed array is decoded as stored.
    pub fn f64s(&self) -> Vec<f64> {
        match &self.data {
            Data::F(v) => v.to_vec(),
            Data::I(v) => v.iter().map(|x| *x as f64).collect(),
            Data::Packed(_) => self.decode(Decode::AsStored).map(|a| a.f64s()).unwrap_or_default(),
        }
    }

    /// All elements as integers; floats are cut.
    pub fn ints(&self) -> Vec<i128> {
        (0..self.len()).map(|i| self.flat(i).i()).collect()
    }

    /// A packed array as `f32` values.
    pub fn decode(&self, mode: Decode) -> Result<Arr> {
        let (Data::Packed(planes), DType::Packed(scheme)) = (&self.data, self.dtype) else {
            return Err(Error::new(Code::Quant, format!("{} is not packed", self.dtype)));
        };
        let planes: Vec<&[u8]> = planes.iter().map(|p| &p[..]).collect();
        let v =
            scheme.decode(&self.shape, &planes, mode).map_err(|e| Error::new(Code::Quant, e.to_string()))?;
        Arr::from_f64s(DType::F32, &self.shape, v.into_iter().map(f64::from).collect())
    }

    /// The planes of a packed array.
    pub fn planes(&self) -> &[Arc<[u8]>] {
        match &self.data {
            Data::Packed(p) => p,
            _ => &[],
        }
    }

    /// The same elements under another shape of the same size.
    pub fn reshaped(&self, shape: &[usize]) -> Result<Arr> {
        if checked_count(shape)? != self.len() {
            return Err(Error::new(Code::Reshape, format!("{:?} cannot become {shape:?}", self.shape)));
        }
        Ok(Arr { dtype: self.dtype, shape: shape.to_vec(), data: self.data.clone() })
    }

    /// The sub-array at position `i` of the first axis.
    pub fn row(&self, i: usize) -> Result<Arr> {
        let shape = self.shape.get(1..).unwrap_or(&[]);
        let n: usize = shape.iter().product();
        Arr::from_fn(self.dtype, shape, |ix| {
            self.flat(i * n + ix.iter().zip(shape).fold(0, |o, (i, d)| o * d + i))
        })
    }

    /// Equal arrays, one below the other along a new first axis. `rows` may be empty.
    pub fn stack(dtype: DType, row_shape: &[usize], rows: &[Arr]) -> Result<Arr> {
        let mut shape = vec![rows.len()];
        shape.extend_from_slice(row_shape);
        Arr::from_fn(dtype, &shape, |ix| match ix.split_first() {
            Some((i, rest)) => rows.get(*i).map_or(Num::I(0), |r| r.at(rest)),
            None => Num::I(0),
        })
    }

    /// Every float rounded to the dtype.
    pub fn rounded(mut self) -> Arr {
        let dtype = self.dtype;
        if let Data::F(v) = &mut self.data {
            Arc::make_mut(v).iter_mut().for_each(|x| *x = dtype.round_f64(*x));
        }
        self
    }
}

pub(super) fn checked_count(shape: &[usize]) -> Result<usize> {
    let n = count(shape)?;
    if n > MAX_ORACLE_ELEMENTS {
        let message =
            format!("an array of sizes {shape:?} is larger than the oracle's {MAX_ORACLE_ELEMENTS} elements");
        return Err(Error::new(Code::Limit, message));
    }
    Ok(n)
}

/// All indices of a shape in row-major order.
pub struct Indices<'a> {
    shape: &'a [usize],
    ix: Vec<usize>,
    left: usize,
    started: bool,
}

impl<'a> Indices<'a> {
    /// Before the first index.
    pub fn new(shape: &'a [usize]) -> Indices<'a> {
        Indices { shape, ix: vec![0; shape.len()], left: shape.iter().product(), started: false }
    }

    /// The next index. (Not an `Iterator`: it lends its buffer.)
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<&[usize]> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        if !std::mem::replace(&mut self.started, true) {
            return Some(&self.ix);
        }
        for (i, d) in self.ix.iter_mut().zip(self.shape).rev() {
            *i += 1;
            if *i < *d {
                break;
            }
            *i = 0;
        }
        Some(&self.ix)
    }
}

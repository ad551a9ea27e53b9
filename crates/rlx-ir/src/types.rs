//! Tensor types: a dtype and a shape of symbolic dims, and the shape algebra that the ops share.

use crate::dim::{Dim, Symbol};
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use std::fmt;

/// The largest number of axes.
pub const MAX_RANK: usize = 32;
/// The largest number of elements that a type may hold at its bounds; keeps every byte offset within an `i64`.
pub const MAX_ELEMENTS: i64 = 1 << 56;

/// The sizes of a tensor's axes.
pub type Shape = Vec<Dim>;

/// What is known of a value before it exists.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Type {
    /// The elements' type.
    pub dtype: DType,
    /// The sizes of the axes.
    pub shape: Shape,
}

impl Type {
    /// A type from its parts.
    pub fn new(dtype: DType, shape: impl Into<Shape>) -> Type {
        Type { dtype, shape: shape.into() }
    }

    /// The number of axes.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// The number of elements.
    pub fn numel(&self) -> Dim {
        product(&self.shape)
    }

    /// The same shape with another dtype.
    pub fn with_dtype(&self, dtype: DType) -> Type {
        Type { dtype, shape: self.shape.clone() }
    }

    /// The shape without its last `n` axes.
    pub fn leading(&self, n: usize) -> &[Dim] {
        self.shape.get(..self.rank().saturating_sub(n)).unwrap_or_default()
    }

    /// With another size at one axis, if there is such an axis.
    pub fn with_axis(mut self, axis: usize, size: Dim) -> Type {
        if let Some(d) = self.shape.get_mut(axis) {
            *d = size;
        }
        self
    }

    /// The same dtype with another shape.
    pub fn with_shape(&self, shape: impl Into<Shape>) -> Type {
        Type { dtype: self.dtype, shape: shape.into() }
    }

    /// Rank, dims and their product are within the limits, and every dim can be at least 0.
    pub fn check(&self) -> Result<()> {
        if self.rank() > MAX_RANK {
            return Err(Error::new(Code::Size, format!("{} axes; the limit is {MAX_RANK}", self.rank())));
        }
        let mut total: i64 = 1;
        for (axis, d) in self.shape.iter().enumerate() {
            let bad = |why: &str| Error::new(Code::Size, format!("dimension {d} {why}")).axis(axis);
            let upper = match d.upper() {
                Some(u) if d.is_valid() => u,
                _ => return Err(bad("overflows")),
            };
            if upper < 0 {
                return Err(bad("is negative"));
            }
            // A zero axis makes the tensor empty, but must not hide an absurd neighbour.
            total = total
                .checked_mul(upper.max(1))
                .filter(|t| *t <= MAX_ELEMENTS)
                .ok_or_else(|| bad("makes the tensor larger than 2^56 elements"))?;
        }
        Ok(())
    }

    /// The symbols in the shape.
    pub fn symbols(&self) -> impl Iterator<Item = Symbol> + '_ {
        self.shape.iter().flat_map(|d| d.symbols())
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, ShapeText(&self.shape))
    }
}

impl fmt::Debug for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Prints a shape as `[a, b]`.
pub struct ShapeText<'a>(pub &'a [Dim]);

impl fmt::Display for ShapeText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, d) in self.0.iter().enumerate() {
            write!(f, "{}{d}", if i == 0 { "" } else { ", " })?;
        }
        f.write_str("]")
    }
}

/// The product of dims.
pub fn product(dims: &[Dim]) -> Dim {
    dims.iter().fold(Dim::constant(1), |a, d| &a * d)
}

/// Resolves an axis that may count from the end.
pub fn resolve_axis(axis: i64, rank: usize) -> Result<usize> {
    let r = rank as i64;
    let a = if axis < 0 { axis.checked_add(r) } else { Some(axis) };
    match a {
        Some(a) if (0..r).contains(&a) => Ok(a as usize),
        _ => Err(Error::new(Code::Axis, format!("axis {axis} does not exist in a tensor of {rank} axes"))),
    }
}

/// Resolves a list of axes, each at most once; an empty list stays empty.
pub fn resolve_axes(axes: &[i64], rank: usize) -> Result<Vec<usize>> {
    let mut out = Vec::with_capacity(axes.len());
    for &a in axes {
        let a = resolve_axis(a, rank)?;
        if out.contains(&a) {
            return Err(Error::new(Code::Axis, format!("axis {a} is named twice")));
        }
        out.push(a);
    }
    Ok(out)
}

/// The permutation that undoes another.
pub fn inverse(axes: &[usize]) -> Vec<usize> {
    let mut out = vec![0; axes.len()];
    for (to, from) in axes.iter().enumerate() {
        out.get_mut(*from).into_iter().for_each(|slot| *slot = to);
    }
    out
}

/// NumPy broadcasting of two shapes. The error names the axis, counted in the second shape.
pub fn broadcast(a: &[Dim], b: &[Dim]) -> Result<Shape> {
    let rank = a.len().max(b.len());
    let one = Dim::constant(1);
    let at = |s: &[Dim], i: usize| -> Dim {
        let lead = rank - s.len();
        if i < lead { one.clone() } else { s.get(i - lead).cloned().unwrap_or_else(|| one.clone()) }
    };
    (0..rank)
        .map(|i| {
            let (x, y) = (at(a, i), at(b, i));
            if x.is(1) {
                Ok(y)
            } else if y.is(1) {
                Ok(x)
            } else {
                x.unify(&y).ok_or_else(|| {
                    let axis = i.saturating_sub(rank - b.len());
                    Error::new(
                        Code::Broadcast,
                        format!("{} and {} do not broadcast: {x} against {y}", ShapeText(a), ShapeText(b)),
                    )
                    .axis(axis)
                    .sizes(&x, &y)
                })
            }
        })
        .collect()
}

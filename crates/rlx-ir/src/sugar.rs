//! Short ways to say common things with the ops of the table; none of them is an op.

use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{Code, Error};
use crate::graph::{Graph, Operand, Var};
use crate::types::{Shape, broadcast, resolve_axis};
use std::ops;

macro_rules! operator {
    ($($trait:ident $fn:ident $op:ident),*) => {$(
        impl<'g, T: Operand<'g>> ops::$trait<T> for Var<'g> {
            type Output = Var<'g>;
            #[track_caller]
            fn $fn(self, other: T) -> Var<'g> { Var::$op(self, other) }
        }
        impl<'g> ops::$trait<Var<'g>> for f64 {
            type Output = Var<'g>;
            #[track_caller]
            fn $fn(self, other: Var<'g>) -> Var<'g> { Var::$op(other.scalar(self), other) }
        }
    )*};
}
operator!(Add add add, Sub sub sub, Mul mul mul, Div div div, Rem rem rem);

impl<'g> ops::Neg for Var<'g> {
    type Output = Var<'g>;
    #[track_caller]
    fn neg(self) -> Var<'g> {
        Var::neg(self)
    }
}

impl Graph {
    /// A tensor that holds one number everywhere.
    #[track_caller]
    pub fn full(&self, dtype: DType, shape: &[Dim], x: f64) -> Var<'_> {
        let s = self.scalar(dtype, x);
        if shape.is_empty() { s } else { s.broadcast(shape) }
    }

    /// Zeros.
    #[track_caller]
    pub fn zeros(&self, dtype: DType, shape: &[Dim]) -> Var<'_> {
        self.full(dtype, shape, 0.0)
    }

    /// Tensors of one shape, side by side along a new axis.
    #[track_caller]
    pub fn stack<'g>(&'g self, xs: &[Var<'g>], axis: i64) -> Var<'g> {
        let wide: Vec<Var<'g>> = xs.iter().map(|x| x.unsqueeze(axis)).collect();
        self.concat(&wide, axis)
    }
}

impl<'g> Var<'g> {
    /// Zeros of the same type.
    #[track_caller]
    pub fn zeros_like(self) -> Var<'g> {
        self.full_like(0.0)
    }
    /// Ones of the same type.
    #[track_caller]
    pub fn ones_like(self) -> Var<'g> {
        self.full_like(1.0)
    }
    /// One number everywhere, of the same type.
    #[track_caller]
    pub fn full_like(self, x: f64) -> Var<'g> {
        if self.is_poison() {
            return self;
        }
        self.graph().full(self.dtype(), &self.shape(), x)
    }

    /// Repeated along a new first axis.
    #[track_caller]
    pub fn repeat_leading(self, n: &Dim) -> Var<'g> {
        let shape: Shape = std::iter::once(n.clone()).chain(self.shape()).collect();
        self.broadcast(shape)
    }

    /// With axes of size 1 put in behind the first axis (a batch), so that `rank` axes follow it.
    #[track_caller]
    pub fn align_batch(self, rank: usize) -> Var<'g> {
        let shape = self.shape();
        let own = shape.len().saturating_sub(1);
        if own >= rank {
            return self;
        }
        let ones = std::iter::repeat_n(Dim::constant(1), rank - own);
        let aligned: Shape =
            shape.iter().take(1).cloned().chain(ones).chain(shape.iter().skip(1).cloned()).collect();
        self.reshape(aligned)
    }

    /// Summed over the axes along which `like` was broadcast to this shape: the gradient of broadcasting.
    #[track_caller]
    pub fn sum_to(self, like: Var<'g>) -> Var<'g> {
        let (own, want) = (self.shape(), like.shape());
        if own == want || self.is_poison() || like.is_poison() {
            return self;
        }
        let lead = own.len().saturating_sub(want.len());
        let repeated =
            |i: usize| i < lead || want.get(i - lead).is_some_and(|d| d.is(1) && own.get(i) != Some(d));
        let axes: Vec<i64> = (0..own.len()).filter(|i| repeated(*i)).map(|i| i as i64).collect();
        let summed = if axes.is_empty() { self } else { self.sum(axes, false) };
        if summed.shape() == want { summed } else { summed.reshape(want) }
    }

    /// Broadcast to the shape of `like`, unless it has it already.
    #[track_caller]
    pub fn broadcast_like(self, like: Var<'g>) -> Var<'g> {
        if self.shape() == like.shape() { self } else { self.broadcast(like.shape()) }
    }

    /// With a new axis of size 1, at a position counted in the result.
    #[track_caller]
    pub fn unsqueeze(self, axis: i64) -> Var<'g> {
        if self.is_poison() {
            return self;
        }
        let mut shape = self.shape();
        match resolve_axis(axis, shape.len() + 1) {
            Ok(i) => shape.insert(i, Dim::constant(1)),
            Err(e) => return self.graph().fail(e),
        }
        self.reshape(shape)
    }

    /// Without an axis of size 1.
    #[track_caller]
    pub fn squeeze(self, axis: i64) -> Var<'g> {
        if self.is_poison() {
            return self;
        }
        let mut shape = self.shape();
        match resolve_axis(axis, shape.len()) {
            Ok(i) if shape.get(i).is_some_and(|d| d.is(1)) => drop(shape.remove(i)),
            Ok(i) => {
                return self.graph().fail(Error::new(Code::Dim, "only an axis of size 1 can go").axis(i));
            }
            Err(e) => return self.graph().fail(e),
        }
        self.reshape(shape)
    }

    /// With axis `from` moved to position `to`.
    #[track_caller]
    pub fn move_axis(self, from: i64, to: i64) -> Var<'g> {
        if self.is_poison() {
            return self;
        }
        let rank = self.rank();
        let (Ok(from), Ok(to)) = (resolve_axis(from, rank), resolve_axis(to, rank)) else {
            return self
                .graph()
                .fail(Error::new(Code::Axis, format!("no axis {from} or {to} in {rank} axes")));
        };
        if from == to {
            return self;
        }
        let mut axes: Vec<i64> = (0..rank as i64).filter(|i| *i != from as i64).collect();
        axes.insert(to, from as i64);
        self.permute(axes)
    }

    /// With the last two axes exchanged.
    #[track_caller]
    pub fn t(self) -> Var<'g> {
        self.move_axis(-1, -2)
    }

    /// `len` elements of one axis from `start` on.
    #[track_caller]
    pub fn narrow(self, axis: i64, start: impl Into<Dim>, len: impl Into<Dim>) -> Var<'g> {
        if self.is_poison() {
            return self;
        }
        let shape = self.shape();
        let i = match resolve_axis(axis, shape.len()) {
            Ok(i) => i,
            Err(e) => return self.graph().fail(e),
        };
        let (start, len) = (start.into(), len.into());
        let pick = |at: &Dim, other: fn(&Dim) -> Dim| -> Vec<Dim> {
            shape.iter().enumerate().map(|(k, d)| if k == i { at.clone() } else { other(d) }).collect()
        };
        let (from, to) = (pick(&start, |_| Dim::constant(0)), pick(&(&start + &len), Dim::clone));
        self.slice(from, to, vec![1i64; shape.len()])
    }

    /// The sum of all elements.
    #[track_caller]
    pub fn sum_all(self) -> Var<'g> {
        if self.rank() == 0 { self } else { self.sum((0..self.rank() as i64).collect::<Vec<_>>(), false) }
    }

    /// The mean of all elements.
    #[track_caller]
    pub fn mean_all(self) -> Var<'g> {
        if self.rank() == 0 { self } else { self.mean((0..self.rank() as i64).collect::<Vec<_>>(), false) }
    }

    /// As `dtype`; itself if it is that already.
    #[track_caller]
    pub fn to(self, dtype: DType) -> Var<'g> {
        if self.dtype() == dtype { self } else { self.cast(dtype) }
    }

    /// A float in the dtype in which sums of it are kept: see [`DType::wide`].
    #[track_caller]
    pub fn wide(self) -> Var<'g> {
        if self.dtype().is_float() { self.to(self.dtype().wide()) } else { self }
    }

    /// The inner product of two tensors of one shape.
    #[track_caller]
    pub fn inner(self, other: Var<'g>) -> Var<'g> {
        (self * other).sum_all()
    }

    /// A number as a tensor without axes: a size, as this value's dtype. Sizes may be symbolic.
    #[track_caller]
    pub fn size_scalar(self, n: &Dim) -> Var<'g> {
        self.graph().size_of(n.clone(), self.dtype())
    }

    /// The shape of two values broadcast together, if they do.
    pub fn broadcast_shape(self, other: Var<'g>) -> Option<Shape> {
        broadcast(&self.shape(), &other.shape()).ok()
    }
}

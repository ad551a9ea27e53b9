//! What the rules read the graph with, beside its own methods, and what they write it with.

use super::work::{N, V, Work};
use rlx_ir::DType;
use rlx_ir::Tensor;
use rlx_ir::attr::{AttrValue, Dims};
use rlx_ir::dim::Dim;
use rlx_ir::op::{Meaning, OpDef, Vmap};
use rlx_ir::ops::elementwise::{Cast, Constant, Mul};
use rlx_ir::ops::views::{Broadcast, Permute, Reshape, Slice};
use rlx_ir::types::{Shape, resolve_axes};

/// Whether a number agrees with an irrational one to the precision of constants in that dtype, as exporters write them.
pub fn close(dtype: DType, a: f64, b: f64) -> bool {
    let tolerance = match dtype {
        DType::F64 => 1e-9,
        DType::F32 => 1e-6,
        DType::F16 => 1e-3,
        _ => 8e-3,
    };
    (a - b).abs() <= tolerance * b.abs()
}

/// Whether a number of that dtype is that count or scale, as far as the dtype can hold it.
pub fn same(dtype: DType, a: f64, b: f64) -> bool {
    let rounded = Tensor::from_f64s(dtype, &[], &[b]).and_then(|t| t.to_f64s()?.first().copied());
    rounded.unwrap_or(b) == a
}

/// Whether the op computes each element of its result from the elements at the same place.
pub fn elementwise(op: &OpDef) -> bool {
    matches!(op.meaning, Meaning::Scalar(_))
        || matches!((op.meaning, op.vmap), (Meaning::Body(_), Vmap::Elementwise))
        || std::ptr::eq(op, Cast::DEF)
}

/// Axes in the form in which attributes have them.
pub fn ints(axes: impl IntoIterator<Item = usize>) -> Vec<i64> {
    axes.into_iter().map(|a| a as i64).collect()
}

/// Whether the axes are 0, 1, 2, …
pub fn is_identity(axes: &[usize]) -> bool {
    axes.iter().enumerate().all(|(i, a)| i == *a)
}

/// The elements at those places.
pub fn pick<T: Clone>(of: &[T], at: &[usize]) -> Option<Vec<T>> {
    at.iter().map(|i| of.get(*i).cloned()).collect()
}

impl Work {
    // ---- reading ----

    /// The data of a constant.
    pub fn data(&self, v: V) -> Option<Tensor> {
        match self.node(self.by(v, Constant::DEF)?)?.attrs.first()? {
            AttrValue::Tensor(t) => Some(t.clone()),
            _ => None,
        }
    }

    /// The one number that a value holds everywhere, if it is known.
    pub fn number(&self, mut v: V) -> Option<f64> {
        // Views of a number are merged as they are met, so more than a few are views of something else.
        for _ in 0..4 {
            let (n, _) = self.def(v)?;
            let node = self.node(n)?;
            if std::ptr::eq(node.op, Broadcast::DEF) || std::ptr::eq(node.op, Reshape::DEF) {
                v = self.x(n, 0)?;
                continue;
            }
            return match node.attrs.first()? {
                AttrValue::Tensor(t) if std::ptr::eq(node.op, Constant::DEF) && t.len() == 1 => {
                    t.to_f64s()?.first().copied()
                }
                _ => None,
            };
        }
        None
    }

    /// The same for a number that becomes an attribute: of those that the dtype does not tell apart, the shortest.
    pub fn decimal(&self, v: V) -> Option<f64> {
        let c = self.number(v)?;
        match self.dtype(v)? {
            DType::F32 => (c as f32).to_string().parse().ok(),
            _ => Some(c),
        }
    }

    /// The node's operands, one of which is a known number: the other operand and the number.
    pub fn with_number(&self, n: N) -> Option<(V, f64)> {
        let (x, y) = self.xy(n)?;
        match self.number(y) {
            Some(c) => Some((x, c)),
            None => self.number(x).map(|c| (y, c)),
        }
    }

    /// Whether the value is that number everywhere, as far as its dtype can hold it.
    pub fn is_number(&self, v: V, x: f64) -> bool {
        let dtype = self.dtype(v).unwrap_or(DType::F32);
        self.number(v).is_some_and(|c| same(dtype, c, x))
    }

    /// What the value is the square of.
    pub fn square_of(&self, v: V) -> Option<V> {
        self.args(v, Mul::DEF).filter(|(a, b)| a == b).map(|p| p.0)
    }

    /// The dtype of a value.
    pub fn dtype(&self, v: V) -> Option<DType> {
        self.ty(v).map(|t| t.dtype)
    }

    /// The sizes of a value's axes.
    pub fn shape(&self, v: V) -> Option<&Shape> {
        self.ty(v).map(|t| &t.shape)
    }

    /// The axes of a permute.
    pub fn permutation(&self, n: N) -> Option<Vec<usize>> {
        match self.node(n)?.attrs.first()? {
            AttrValue::Ints(axes) if self.is(n, Permute::DEF) => {
                resolve_axes(axes, self.rank(self.x(n, 0)?)?).ok()
            }
            _ => None,
        }
    }

    /// Whether none of the nodes' results is used outside of them and of `root`, so that they go with it.
    pub fn closed(&self, root: N, inside: &[N]) -> bool {
        inside.iter().filter(|n| **n != root).all(|n| {
            self.node(*n).is_some_and(|node| {
                node.results.iter().all(|r| {
                    !self.is_output(*r) && self.users(*r).iter().all(|u| *u == root || inside.contains(u))
                })
            })
        })
    }

    /// Whether the value depends on params and constants alone.
    pub fn fixed(&self, v: V) -> bool {
        let mut stack = vec![v];
        let mut left = 64;
        while let Some(v) = stack.pop() {
            left -= 1;
            match self.def(v).and_then(|d| self.node(d.0)) {
                _ if left == 0 => return false,
                None if self.is_param(v) => {}
                Some(n) if n.regions.is_empty() => stack.extend(n.operands.iter().flatten()),
                _ => return false,
            }
        }
        true
    }

    // ---- writing ----

    /// A constant.
    pub fn constant(&mut self, value: Tensor) -> Option<V> {
        self.emit(Constant::DEF, &Constant { value }, &[])
    }

    /// A constant without axes. The number must be one that the dtype holds, up to rounding of floats.
    pub fn scalar(&mut self, dtype: DType, x: f64) -> Option<V> {
        let t = Tensor::from_f64s(dtype, &[], &[x])?;
        if !dtype.is_float() && t.to_f64s()?.first() != Some(&x) {
            return None;
        }
        self.constant(t)
    }

    /// The value with another shape.
    pub fn reshape(&mut self, v: V, shape: &[Dim]) -> Option<V> {
        if self.shape(v)? == shape {
            return Some(v);
        }
        self.emit(Reshape::DEF, &Reshape { shape: Dims(shape.to_vec()) }, &[v])
    }

    /// The value with its axes in another order.
    pub fn permute(&mut self, v: V, axes: &[usize]) -> Option<V> {
        if is_identity(axes) {
            return Some(v);
        }
        self.emit(Permute::DEF, &Permute { axes: ints(axes.iter().copied()) }, &[v])
    }

    /// The value repeated to a shape.
    pub fn broadcast(&mut self, v: V, shape: &[Dim]) -> Option<V> {
        if self.shape(v)? == shape {
            return Some(v);
        }
        self.emit(Broadcast::DEF, &Broadcast { shape: Dims(shape.to_vec()) }, &[v])
    }

    /// `len` elements of one axis from `start` on.
    pub fn narrow(&mut self, v: V, axis: usize, start: &Dim, len: &Dim) -> Option<V> {
        let shape = self.shape(v)?.clone();
        let mut a =
            Slice { start: Dims(vec![Dim::constant(0); shape.len()]), stop: Dims(shape), step: Vec::new() };
        a.step = vec![1; a.start.len()];
        *a.start.0.get_mut(axis)? = start.clone();
        *a.stop.0.get_mut(axis)? = start + len;
        self.emit(Slice::DEF, &a, &[v])
    }

    /// The value as another dtype.
    pub fn cast(&mut self, v: V, dtype: DType) -> Option<V> {
        if self.dtype(v)? == dtype {
            return Some(v);
        }
        self.emit(Cast::DEF, &Cast { dtype }, &[v])
    }

    /// The value repeated to the shape of a node's result, where a rule dropped what repeated it.
    pub fn like_result(&mut self, v: V, n: N) -> Option<V> {
        let shape = self.shape(self.y(n)?)?.clone();
        self.broadcast(v, &shape)
    }
}

//! What an op's rules are given: operands' types, a graph to build in, gradients, batches.

use super::OpDef;
use crate::attr::AttrValue;
use crate::condition::Demand;
use crate::dim::Dim;
use crate::error::{Code, Error, Result};
use crate::func::Func;
use crate::graph::{Graph, Var};
use crate::types::{Shape, Type, broadcast, resolve_axes, resolve_axis};
use std::cell::RefCell;
use std::sync::Arc;

/// What a shape rule is given.
pub struct Infer<'a> {
    /// The op.
    pub def: &'static OpDef,
    /// The attributes.
    pub attrs: &'a [AttrValue],
    /// The operands' types.
    pub operands: &'a [Option<Type>],
    /// The regions.
    pub regions: &'a [Arc<Func>],
    /// What could not be proven: the number of the constraint, and what must hold.
    pub(super) demands: RefCell<Vec<(usize, Demand)>>,
}

impl Infer<'_> {
    /// The type of a required operand.
    pub fn ty(&self, i: usize) -> Result<&Type> {
        self.opt(i).ok_or_else(|| {
            Error::new(Code::Operands, "an operand is missing").operand(self.def.operand_name(i))
        })
    }

    /// The type of an optional operand.
    pub fn opt(&self, i: usize) -> Option<&Type> {
        self.operands.get(i).and_then(Option::as_ref)
    }

    /// The types of all operands that are given.
    pub fn given(&self) -> impl Iterator<Item = &Type> {
        self.operands.iter().flatten()
    }

    /// The region of that index.
    pub fn region(&self, i: usize) -> Result<&Arc<Func>> {
        self.regions.get(i).ok_or_else(|| Error::new(Code::Region, "a region is missing"))
    }

    /// An error that constraint `n` is broken.
    pub fn fail(&self, code: Code, n: usize, message: impl Into<String>) -> Error {
        self.breaks(n, Error::new(code, message))
    }

    /// An error, with constraint `n` as what it is about.
    pub fn breaks(&self, n: usize, e: Error) -> Error {
        match self.def.constraints.get(n.wrapping_sub(1)) {
            Some(text) => e.constraint(n, text),
            None => e,
        }
    }

    /// Whether the size can be at least `least`. If that is not certain it becomes a condition on the symbols, for the sake
    /// of constraint `n`: what is provably wrong is refused by the rule, the rest when the symbols are bound.
    pub fn at_least(&self, n: usize, d: &Dim, least: i64) -> bool {
        let demand = Demand::NotNegative(d - least);
        if !demand.certain() {
            self.demands.borrow_mut().push((n, demand));
        }
        d.upper().is_some_and(|u| u >= least)
    }

    /// The dim at an axis of an operand.
    pub fn dim(&self, i: usize, axis: usize) -> Result<&Dim> {
        let t = self.ty(i)?;
        t.shape.get(axis).ok_or_else(|| {
            Error::new(Code::Rank, format!("{} has only {} axes", self.def.operand_name(i), t.rank()))
                .operand(self.def.operand_name(i))
        })
    }

    /// Operand `i` has exactly `rank` axes, or constraint `n` is broken.
    pub fn rank(&self, n: usize, i: usize, rank: usize) -> Result<()> {
        let t = self.ty(i)?;
        if t.rank() == rank {
            return Ok(());
        }
        let name = self.def.operand_name(i);
        Err(self.fail(Code::Rank, n, format!("{name} has {} axes, not {rank}", t.rank())).operand(name))
    }

    /// Operand `i` has at least `rank` axes, or constraint `n` is broken.
    pub fn rank_at_least(&self, n: usize, i: usize, rank: usize) -> Result<()> {
        let t = self.ty(i)?;
        if t.rank() >= rank {
            return Ok(());
        }
        let name = self.def.operand_name(i);
        Err(self
            .fail(Code::Rank, n, format!("{name} has {} axes, fewer than {rank}", t.rank()))
            .operand(name))
    }

    /// Axis `axis` of operand `i` is `want`, or constraint `n` is broken.
    pub fn expect_dim(&self, n: usize, i: usize, axis: usize, want: &Dim) -> Result<()> {
        let d = self.dim(i, axis)?;
        if d.unify(want).is_some() {
            return Ok(());
        }
        let name = self.def.operand_name(i);
        Err(self
            .fail(Code::Dim, n, format!("axis {axis} of {name} is {d}, but must be {want}"))
            .sizes(d, want)
            .operand(name)
            .axis(axis))
    }

    /// Two axes of two operands (operand, axis) are equal, or constraint `n` is broken.
    pub fn same_dim(&self, n: usize, a: (usize, usize), b: (usize, usize)) -> Result<Dim> {
        let (x, y) = (self.dim(a.0, a.1)?, self.dim(b.0, b.1)?);
        x.unify(y).ok_or_else(|| {
            let (an, bn) = (self.def.operand_name(a.0), self.def.operand_name(b.0));
            let text = format!("axis {} of {an} is {x}, but axis {} of {bn} is {y}", a.1, b.1);
            self.fail(Code::Dim, n, text).operand(bn).axis(b.1).sizes(x, y)
        })
    }

    /// Operand `i` has exactly this shape, or constraint `n` is broken.
    pub fn expect_shape(&self, n: usize, i: usize, want: &[Dim]) -> Result<()> {
        self.rank(n, i, want.len())?;
        want.iter().enumerate().try_for_each(|(axis, d)| self.expect_dim(n, i, axis, d))
    }

    /// Resolves an axis of operand `i`, which may count from the end, or constraint `n` is broken.
    pub fn axis(&self, n: usize, i: usize, axis: i64) -> Result<usize> {
        self.axis_of(n, i, axis, self.ty(i)?.rank())
    }

    /// The same, for something of `rank` axes that is made from operand `i`.
    pub fn axis_of(&self, n: usize, i: usize, axis: i64, rank: usize) -> Result<usize> {
        resolve_axis(axis, rank).map_err(|e| self.breaks(n, e).operand(self.def.operand_name(i)))
    }

    /// Resolves axes of operand `i`, or constraint `n` is broken.
    pub fn axes(&self, n: usize, i: usize, axes: &[i64]) -> Result<Vec<usize>> {
        resolve_axes(axes, self.ty(i)?.rank())
            .map_err(|e| self.breaks(n, e).operand(self.def.operand_name(i)))
    }

    /// The broadcast shape of all operands that are given.
    pub fn broadcast_all(&self) -> Result<Shape> {
        let mut shape = Shape::new();
        for (i, t) in self.operands.iter().enumerate() {
            if let Some(t) = t {
                shape = broadcast(&shape, &t.shape).map_err(|e| e.operand(self.def.operand_name(i)))?;
            }
        }
        Ok(shape)
    }

    /// The shape rule of element-wise ops: broadcast, with the dtype of the first operand.
    pub fn elementwise(&self) -> Result<Vec<Type>> {
        Ok(vec![Type::new(self.ty(0)?.dtype, self.broadcast_all()?)])
    }
}

/// What a body is given: the graph to build in, and the operands.
pub struct Cx<'g> {
    /// The graph to build in.
    pub g: &'g Graph,
    /// The op.
    pub def: &'static OpDef,
    /// The attributes.
    pub attrs: Vec<AttrValue>,
    /// The operands.
    pub operands: Vec<Option<Var<'g>>>,
    /// The regions.
    pub regions: Vec<Arc<Func>>,
}

impl<'g> Cx<'g> {
    /// A required operand.
    pub fn x(&self, i: usize) -> Var<'g> {
        self.opt(i).unwrap_or_else(|| self.g.poison())
    }
    /// An optional operand.
    pub fn opt(&self, i: usize) -> Option<Var<'g>> {
        self.operands.get(i).copied().flatten()
    }
    /// The first `N` operands, all required.
    pub fn xs<const N: usize>(&self) -> [Var<'g>; N] {
        std::array::from_fn(|i| self.x(i))
    }
    /// All operands that are given.
    pub fn given(&self) -> Vec<Var<'g>> {
        self.operands.iter().flatten().copied().collect()
    }
    /// The op itself, with other attributes and operands.
    pub fn again(&self, attrs: Vec<AttrValue>, operands: Vec<Option<Var<'g>>>) -> Vec<Var<'g>> {
        self.g.emit(self.def, attrs, operands, self.regions.clone())
    }
}

/// The gradients that a rule gives: one per operand, `None` where it is zero.
pub struct Grads<'g>(pub Vec<Option<Var<'g>>>);

impl<'g, const N: usize> From<[Var<'g>; N]> for Grads<'g> {
    fn from(a: [Var<'g>; N]) -> Grads<'g> {
        Grads(a.into_iter().map(Some).collect())
    }
}
impl<'g, const N: usize> From<[Option<Var<'g>>; N]> for Grads<'g> {
    fn from(a: [Option<Var<'g>>; N]) -> Grads<'g> {
        Grads(a.into())
    }
}
impl<'g> From<Vec<Option<Var<'g>>>> for Grads<'g> {
    fn from(v: Vec<Option<Var<'g>>>) -> Grads<'g> {
        Grads(v)
    }
}

/// What a gradient rule is given.
pub struct VjpCx<'g> {
    /// Graph, operands, attributes, regions of the op in the forward graph.
    pub cx: Cx<'g>,
    /// The op's results.
    pub results: Vec<Var<'g>>,
    /// The gradients that have reached the results; `None` where none has.
    pub cts: Vec<Option<Var<'g>>>,
    /// Which operands want a gradient.
    pub wanted: Vec<bool>,
    /// The node's index in the forward graph.
    pub node: usize,
}

impl<'g> std::ops::Deref for VjpCx<'g> {
    type Target = Cx<'g>;
    fn deref(&self) -> &Cx<'g> {
        &self.cx
    }
}

impl<'g> VjpCx<'g> {
    /// A result of the op.
    pub fn y(&self, i: usize) -> Var<'g> {
        self.results.get(i).copied().unwrap_or_else(|| self.g.poison())
    }
    /// The gradient that has reached a result, zeros if none has.
    pub fn dy(&self, i: usize) -> Var<'g> {
        self.cts.get(i).copied().flatten().unwrap_or_else(|| self.y(i).zeros_like())
    }
    /// Whether an operand wants a gradient.
    pub fn wants(&self, i: usize) -> bool {
        self.wanted.get(i).copied().unwrap_or(false)
    }
}

/// What a batching rule is given. Batched operands carry the batch as axis 0; so must all results.
pub struct VmapCx<'g> {
    /// Graph, operands, attributes, regions.
    pub cx: Cx<'g>,
    /// Which operands are batched.
    pub batched: Vec<bool>,
    /// The size of the batch.
    pub size: Dim,
}

impl<'g> std::ops::Deref for VmapCx<'g> {
    type Target = Cx<'g>;
    fn deref(&self) -> &Cx<'g> {
        &self.cx
    }
}

impl<'g> VmapCx<'g> {
    /// Whether an operand is batched.
    pub fn is_batched(&self, i: usize) -> bool {
        self.batched.get(i).copied().unwrap_or(false)
    }
    /// A required operand with the batch as axis 0, repeated if it had none.
    pub fn bx(&self, i: usize) -> Var<'g> {
        self.bopt(i).unwrap_or_else(|| self.g.poison())
    }
    /// An optional operand with the batch as axis 0, repeated if it had none.
    pub fn bopt(&self, i: usize) -> Option<Var<'g>> {
        self.opt(i).map(|x| if self.is_batched(i) { x } else { x.repeat_leading(&self.size) })
    }
    /// All operands with the batch as axis 0.
    pub fn all_batched(&self) -> Vec<Option<Var<'g>>> {
        (0..self.operands.len()).map(|i| self.bopt(i)).collect()
    }
    /// The number of axes that an operand has without the batch.
    pub fn rank(&self, i: usize) -> usize {
        self.opt(i).map_or(0, |x| x.rank() - self.is_batched(i) as usize)
    }
    /// An axis of operand `i` without the batch, as an axis with it, counted from the start.
    pub fn shift(&self, i: usize, axis: i64) -> Result<i64> {
        Ok(resolve_axis(axis, self.rank(i))? as i64 + 1)
    }
    /// Several axes likewise.
    pub fn shift_all(&self, i: usize, axes: &[i64]) -> Result<Vec<i64>> {
        axes.iter().map(|a| self.shift(i, *a)).collect()
    }
    /// Whether only the first operand is batched.
    pub fn only_first(&self) -> bool {
        self.is_batched(0) && !self.batched.iter().skip(1).any(|b| *b)
    }
}

//! What an op is: the rules that stand in the op's one file, and the contexts that the rules are given.
//!
//! [`ops!`](crate::ops!) turns the declaration in an op file into an [`OpDef`], the typed attributes and the
//! builder's method. Everything else (printer, parser, verifier, oracle, transforms, docs, tests) reads the table.

use crate::attr::{AttrSpec, AttrValue};
use crate::dim::Dim;
use crate::dtype::Class;
use crate::error::{Code, Error, Result};
use crate::func::{Func, Node};
use crate::graph::{Graph, Var};
use crate::oracle::{Arr, Eval};
use crate::sample::Samples;
use crate::scalar::Scalar;
use crate::transform::Pruned;
use crate::types::{Shape, Type, broadcast, resolve_axes, resolve_axis};
use std::fmt;
use std::sync::Arc;

/// How often an operand may occur.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arity {
    /// Exactly once.
    One,
    /// Once or not at all.
    Optional,
    /// Any number of times; only the last operand.
    Many,
}

/// The declaration of an operand.
#[derive(Clone, Copy, Debug)]
pub struct OperandSpec {
    /// Its name.
    pub name: &'static str,
    /// The dtypes it takes.
    pub class: Class,
    /// How often it may occur.
    pub arity: Arity,
}

/// What an op computes.
#[derive(Clone, Copy)]
pub enum Meaning {
    /// Element by element, one function of the scalar language.
    Scalar(Scalar),
    /// Through simpler ops.
    Body(for<'g> fn(&Cx<'g>) -> Result<Vec<Var<'g>>>),
    /// By an obvious loop in the oracle.
    Primitive(fn(&Eval<'_>) -> Result<Vec<Arr>>),
    /// Across ranks: from the operand of every rank to the result of every rank.
    Collective(fn(&Eval<'_>, &[Arr]) -> Result<Vec<Arr>>),
}

/// How an op is differentiated.
#[derive(Clone, Copy)]
pub enum Vjp {
    /// Its gradient is zero everywhere it exists.
    Zero,
    /// Its body is.
    Through,
    /// By a rule.
    Rule(for<'g> fn(&VjpCx<'g>) -> Result<Grads<'g>>),
}

/// How an op is batched.
#[derive(Clone, Copy)]
pub enum Vmap {
    /// Its operands broadcast.
    Elementwise,
    /// Its body is.
    Through,
    /// One after the other, by a scan over the batch.
    Loop,
    /// By a rule.
    Rule(for<'g> fn(&VmapCx<'g>) -> Result<Vec<Var<'g>>>),
}

/// From a node and which of its results are needed to what remains of it.
pub type Prune = fn(&Node, &[bool]) -> Result<Pruned>;

/// The largest relative errors that a device may make, per dtype of the result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tol {
    /// For `f64`.
    pub f64: f64,
    /// For `f32`.
    pub f32: f64,
    /// For `f16`.
    pub f16: f64,
    /// For `bf16`.
    pub bf16: f64,
}

/// Tolerances for `f32`, `f16` and `bf16`; `f64` has 2e-12.
pub const fn tol(f32: f64, f16: f64, bf16: f64) -> Tol {
    Tol { f64: 2e-12, f32, f16, bf16 }
}

/// All there is to say about an op.
pub struct OpDef {
    /// Its name in the text format and of the builder's method.
    pub name: &'static str,
    /// Its documentation: semantics first.
    pub doc: &'static str,
    /// The file that declares it.
    pub file: &'static str,
    /// Its operands.
    pub operands: &'static [OperandSpec],
    /// Its attributes.
    pub attrs: &'static [AttrSpec],
    /// The names of its results; ops with a variable number have one name.
    pub results: &'static [&'static str],
    /// The names of its regions.
    pub regions: &'static [&'static str],
    /// Its numbered constraints, from 1.
    pub constraints: &'static [&'static str],
    /// The types of its results.
    pub infer: fn(&Infer<'_>) -> Result<Vec<Type>>,
    /// What it computes.
    pub meaning: Meaning,
    /// Its gradient.
    pub vjp: Vjp,
    /// Its batching.
    pub vmap: Vmap,
    /// The ONNX ops that it stands for.
    pub onnx: &'static [&'static str],
    /// Its samples.
    pub samples: fn(&mut Samples),
    /// Its tolerances.
    pub tol: Tol,
    /// For ops with regions: the node without the results that are not marked as needed.
    pub prune: Option<Prune>,
}

/// An identifier without the `r#` that Rust wants before its own words.
const fn plain(name: &'static str) -> &'static str {
    match name.as_bytes() {
        [b'r', b'#', ..] => name.split_at(2).1,
        _ => name,
    }
}

impl OpDef {
    /// A declaration without rules; [`ops!`](crate::ops!) fills them in.
    pub const fn new(
        name: &'static str,
        doc: &'static str,
        file: &'static str,
        operands: &'static [OperandSpec],
        attrs: &'static [AttrSpec],
        results: &'static [&'static str],
    ) -> OpDef {
        OpDef {
            name: plain(name),
            doc,
            file,
            operands,
            attrs,
            results,
            regions: &[],
            constraints: &[],
            infer: |c| Err(Error::new(Code::Verify, "the op has no shape rule").in_op(c.def.name)),
            meaning: Meaning::Primitive(|e| {
                Err(Error::new(Code::Verify, "the op has no meaning").in_op(e.def().name))
            }),
            vjp: Vjp::Zero,
            vmap: Vmap::Loop,
            onnx: &[],
            samples: |_| {},
            tol: tol(4e-6, 4e-3, 3e-2),
            prune: None,
        }
    }

    /// The samples of the op.
    pub fn sample_list(&self) -> Vec<crate::sample::Sample> {
        let mut s = Samples::default();
        (self.samples)(&mut s);
        s.list
    }

    /// The declaration of the operand at that position (the last `Many` stands for all that follow).
    pub fn operand(&self, i: usize) -> Option<&OperandSpec> {
        self.operands.get(i).or_else(|| self.operands.last().filter(|o| o.arity == Arity::Many))
    }

    /// The name of the operand at that position, for messages.
    pub fn operand_name(&self, i: usize) -> String {
        match self.operand(i) {
            Some(o) if o.arity == Arity::Many => {
                format!("{}[{}]", o.name, i.saturating_sub(self.operands.len() - 1))
            }
            Some(o) => o.name.to_string(),
            None => format!("#{i}"),
        }
    }

    /// The position of the attribute of that name.
    pub fn attr_index(&self, name: &str) -> Option<usize> {
        self.attrs.iter().position(|a| a.name == name)
    }

    /// Checks operands' number and dtypes and the attributes' kinds, then applies the shape rule and checks its results.
    pub fn infer_types(
        &'static self,
        attrs: &[AttrValue],
        operands: &[Option<Type>],
        regions: &[Arc<Func>],
    ) -> Result<Vec<Type>> {
        let c = Infer { def: self, attrs, operands, regions };
        self.check_call(&c)
            .and_then(|()| (self.infer)(&c))
            .and_then(|types| types.iter().try_for_each(Type::check).map(|()| types))
            .map_err(|e| {
                // More would not help a reader, and a hostile graph may have thousands.
                let named = operands
                    .iter()
                    .enumerate()
                    .take(16)
                    .filter_map(|(i, t)| t.as_ref().map(|t| (self.operand_name(i), t.to_string())));
                e.in_op(self.name).with_operands(named)
            })
    }

    fn check_call(&self, c: &Infer<'_>) -> Result<()> {
        let many = self.operands.last().is_some_and(|o| o.arity == Arity::Many);
        if c.operands.len() > self.operands.len() && !many {
            let (want, got) = (self.operands.len(), c.operands.len());
            return Err(Error::new(Code::Operands, format!("takes at most {want} operands, not {got}")));
        }
        for (i, spec) in self.operands.iter().enumerate() {
            if spec.arity == Arity::One && c.opt(i).is_none() {
                return Err(Error::new(Code::Operands, "an operand is missing").operand(spec.name));
            }
        }
        if c.regions.len() != self.regions.len() {
            let (want, got) = (self.regions.len(), c.regions.len());
            return Err(Error::new(Code::Region, format!("takes {want} regions, not {got}")));
        }
        let mut shared: Option<(String, crate::DType)> = None;
        for (i, t) in c.operands.iter().enumerate() {
            let (Some(t), Some(spec)) = (t, self.operand(i)) else { continue };
            if !spec.class.takes(t.dtype) {
                let message =
                    format!("{} is {}, but must be {}", self.operand_name(i), t.dtype, spec.class.words());
                return Err(Error::new(Code::DType, message).operand(self.operand_name(i)));
            }
            match &shared {
                _ if !spec.class.shares() => {}
                None => shared = Some((self.operand_name(i), t.dtype)),
                Some((first, d)) if *d != t.dtype => {
                    let message = format!("{} is {}, but {first} is {d}", self.operand_name(i), t.dtype);
                    return Err(Error::new(Code::DType, message).operand(self.operand_name(i)));
                }
                Some(_) => {}
            }
        }
        if c.attrs.len() != self.attrs.len() {
            return Err(Error::new(Code::Attribute, "the number of attributes is not the declared one"));
        }
        Ok(())
    }
}

impl PartialEq for OpDef {
    fn eq(&self, other: &OpDef) -> bool {
        self.name == other.name
    }
}

impl fmt::Debug for OpDef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

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
        let e = Error::new(code, message);
        match self.def.constraints.get(n.wrapping_sub(1)) {
            Some(text) => e.constraint(n, text),
            None => e,
        }
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
            .operand(name)
            .axis(axis))
    }

    /// Two axes of two operands (operand, axis) are equal, or constraint `n` is broken.
    pub fn same_dim(&self, n: usize, a: (usize, usize), b: (usize, usize)) -> Result<Dim> {
        let (x, y) = (self.dim(a.0, a.1)?, self.dim(b.0, b.1)?);
        x.unify(y).ok_or_else(|| {
            let (an, bn) = (self.def.operand_name(a.0), self.def.operand_name(b.0));
            let text = format!("axis {} of {an} is {x}, but axis {} of {bn} is {y}", a.1, b.1);
            self.fail(Code::Dim, n, text).operand(bn).axis(b.1)
        })
    }

    /// Operand `i` has exactly this shape, or constraint `n` is broken.
    pub fn expect_shape(&self, n: usize, i: usize, want: &[Dim]) -> Result<()> {
        self.rank(n, i, want.len())?;
        want.iter().enumerate().try_for_each(|(axis, d)| self.expect_dim(n, i, axis, d))
    }

    /// Resolves an axis of operand `i`, which may count from the end.
    pub fn axis(&self, i: usize, axis: i64) -> Result<usize> {
        resolve_axis(axis, self.ty(i)?.rank()).map_err(|e| e.operand(self.def.operand_name(i)))
    }

    /// Resolves axes of operand `i`.
    pub fn axes(&self, i: usize, axes: &[i64]) -> Result<Vec<usize>> {
        resolve_axes(axes, self.ty(i)?.rank()).map_err(|e| e.operand(self.def.operand_name(i)))
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

/// Declares ops. See ARCHITECTURE.md, "Adding an op".
///
/// ```text
/// ops! {
///     /// Documentation: semantics first.
///     name: Attrs(x: Float, y: opt Float, zs: many Any) { eps: f64 = 1e-6 } -> y;
///     constraints = ["…"];
///     infer = |c, a| …;                 // &Infer, &Attrs -> Result<Vec<Type>>
///     body = |c, a| …;                  // &Cx, &Attrs -> Result<Vec<Var>>   (or eval = |e, a| …, or scalar = …)
///     vjp = |c, a| …;                   // &VjpCx, &Attrs -> Result<Grads>
///     vmap = |c, a| …;                  // &VmapCx, &Attrs -> Result<Vec<Var>>
///     onnx = ["…"];
///     samples = |s| …;                  // &mut Samples
///     tolerance = tol(1e-6, 1e-3, 1e-2);
/// }
/// ```
/// Attributes in `{…}` are positional arguments of the builder's method; in `with {…}` the method takes the
/// struct, which has a `Default`.
/// Results: `y` (one), `(a, b)` (several), `[ys]` (as many as the shape rule says), `{y}` (no method is made).
#[macro_export]
macro_rules! ops {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident : $A:ident ( $($o:ident : $($c:ident)+),* $(,)? )
        $({ $($an:ident : $at:ty $(= $ad:expr)?),* $(,)? })?
        $(with { $($bn:ident : $bt:ty = $bd:expr),* $(,)? })?
        -> $res:tt ;
        $($key:ident = $value:expr ;)*
    )*) => {
        /// The ops of this file, in order.
        pub static OPS: &[&$crate::op::OpDef] = &[$($A::DEF),*];

        $(
            #[doc = concat!("Attributes of `", stringify!($name), "`.")]
            #[derive(Clone, Debug, PartialEq)]
            #[allow(missing_docs)]
            pub struct $A { $($(pub $an: $at,)*)? $($(pub $bn: $bt,)*)? }

            impl $crate::attr::Attributes for $A {
                const SPECS: &'static [$crate::attr::AttrSpec] = &[
                    $($($crate::ops!(@attr $an: $at $(= $ad)?),)*)? $($($crate::ops!(@attr $bn: $bt = $bd),)*)?
                ];
                #[allow(unused_mut)]
                fn to_values(&self) -> Vec<$crate::attr::AttrValue> {
                    vec![
                        $($($crate::attr::AttrType::to_value(&self.$an),)*)?
                        $($($crate::attr::AttrType::to_value(&self.$bn),)*)?
                    ]
                }
                #[allow(unused_mut, unused_variables)]
                fn from_values(v: &[$crate::attr::AttrValue]) -> Option<$A> {
                    let mut v = v.iter();
                    Some($A {
                        $($($an: $crate::attr::AttrType::from_value(v.next()?)?,)*)?
                        $($($bn: $crate::attr::AttrType::from_value(v.next()?)?,)*)?
                    })
                }
            }

            $(impl Default for $A {
                fn default() -> $A { $A { $($bn: $bd),* } }
            })?

            impl $A {
                /// The declaration of the op.
                pub const DEF: &'static $crate::op::OpDef = {
                    static DEF: $crate::op::OpDef = {
                        #[allow(unused_mut)]
                        let mut d = $crate::op::OpDef::new(
                            stringify!($name),
                            concat!($($doc, "\n"),+),
                            file!(),
                            &[$($crate::ops!(@operand $o: $($c)+)),*],
                            <$A as $crate::attr::Attributes>::SPECS,
                            $crate::ops!(@results $res),
                        );
                        $($crate::ops!(@field d $A $key $value);)*
                        d
                    };
                    &DEF
                };
            }

            $crate::ops!(@method [$($doc)+] $name $A ($($o: $($c)+),*)
                [$($($an: $at),*)?] $([with $($bn)*])? -> $res);
        )*
    };

    (@attr $n:ident : $t:ty) => { $crate::attr::AttrSpec {
        name: stringify!($n), kind: <$t as $crate::attr::AttrType>::KIND,
        optional: <$t as $crate::attr::AttrType>::OPTIONAL, default: None } };
    (@attr $n:ident : $t:ty = $d:expr) => { $crate::attr::AttrSpec {
        name: stringify!($n), kind: <$t as $crate::attr::AttrType>::KIND,
        optional: <$t as $crate::attr::AttrType>::OPTIONAL,
        default: Some(|| { let d: $t = $d; $crate::attr::AttrType::to_value(&d) }) } };

    (@operand $o:ident : $c:ident) => { $crate::ops!(@operand $o $c One) };
    (@operand $o:ident : opt $c:ident) => { $crate::ops!(@operand $o $c Optional) };
    (@operand $o:ident : many $c:ident) => { $crate::ops!(@operand $o $c Many) };
    (@operand $o:ident $c:ident $arity:ident) => { $crate::op::OperandSpec {
        name: stringify!($o), class: $crate::dtype::Class::$c, arity: $crate::op::Arity::$arity } };

    (@results ($($r:ident),*)) => { &[$(stringify!($r)),*] };
    (@results [$r:ident]) => { &[stringify!($r)] };
    (@results {$($r:ident),*}) => { &[$(stringify!($r)),*] };
    (@results $r:ident) => { &[stringify!($r)] };

    (@field $d:ident $A:ident constraints $v:expr) => { $d.constraints = &$v };
    (@field $d:ident $A:ident regions $v:expr) => { $d.regions = &$v };
    (@field $d:ident $A:ident onnx $v:expr) => { $d.onnx = &$v };
    (@field $d:ident $A:ident tolerance $v:expr) => { $d.tol = $v };
    (@field $d:ident $A:ident samples $v:expr) => { $d.samples = $v };
    (@field $d:ident $A:ident prune $v:expr) => { $d.prune = Some($v) };
    (@field $d:ident $A:ident scalar $v:expr) => {
        $d.meaning = $crate::op::Meaning::Scalar($v);
        $d.infer = |c| c.elementwise();
        $d.vmap = $crate::op::Vmap::Elementwise;
    };
    (@field $d:ident $A:ident infer $v:expr) => {
        $d.infer = |c| {
            let f: fn(&$crate::op::Infer<'_>, &$A) -> $crate::Result<Vec<$crate::Type>> = $v;
            f(c, &$crate::func::read_attrs(c.def, c.attrs)?)
        }
    };
    (@field $d:ident $A:ident body $v:expr) => {
        $d.vjp = $crate::op::Vjp::Through;
        $d.vmap = $crate::op::Vmap::Through;
        $d.meaning = $crate::op::Meaning::Body(|c| {
            let f: for<'g> fn(&$crate::op::Cx<'g>, &$A) -> $crate::Result<Vec<$crate::Var<'g>>> = $v;
            f(c, &$crate::func::read_attrs(c.def, &c.attrs)?)
        })
    };
    // A body that treats every element alike: shapes broadcast, and batching does too.
    (@field $d:ident $A:ident each $v:expr) => {
        $d.infer = |c| c.elementwise();
        $crate::ops!(@field $d $A body $v);
        $d.vmap = $crate::op::Vmap::Elementwise;
    };
    (@field $d:ident $A:ident eval $v:expr) => {
        $d.meaning = $crate::op::Meaning::Primitive(|e| {
            let f: fn(&$crate::oracle::Eval<'_>, &$A) -> $crate::Result<Vec<$crate::oracle::Arr>> = $v;
            f(e, &$crate::func::read_attrs(e.def(), e.attrs())?)
        })
    };
    (@field $d:ident $A:ident collective $v:expr) => {
        $d.meaning = $crate::op::Meaning::Collective(|e, ranks| {
            let f: fn(&[$crate::oracle::Arr], &$A) -> $crate::Result<Vec<$crate::oracle::Arr>> = $v;
            f(ranks, &$crate::func::read_attrs(e.def(), e.attrs())?)
        })
    };
    (@field $d:ident $A:ident vjp $v:expr) => {
        $d.vjp = $crate::op::Vjp::Rule(|c| {
            let f: for<'g> fn(&$crate::op::VjpCx<'g>, &$A) -> $crate::Result<$crate::op::Grads<'g>> = $v;
            f(c, &$crate::func::read_attrs(c.def, &c.attrs)?)
        })
    };
    (@field $d:ident $A:ident vmap $v:expr) => {
        $d.vmap = $crate::op::Vmap::Rule(|c| {
            let f: for<'g> fn(&$crate::op::VmapCx<'g>, &$A) -> $crate::Result<Vec<$crate::Var<'g>>> = $v;
            f(c, &$crate::func::read_attrs(c.def, &c.attrs)?)
        })
    };

    // No method.
    (@method [$($doc:literal)+] $name:ident $A:ident ($($o:tt)*) $a:tt $([with $($b:ident)*])? -> {$($r:ident),*}) => {};
    // Methods of the graph: no operands, or any number of them.
    (@method [$($doc:literal)+] $name:ident $A:ident () [$($an:ident : $at:ty),*] -> $res:tt) => {
        impl $crate::graph::Graph {
            $(#[doc = $doc])+ #[track_caller]
            pub fn $name<'g>(&'g self, $($an: impl Into<$at>),*) -> $crate::ops!(@return 'g $res) {
                let attrs = $A { $($an: $an.into()),* };
                $crate::ops!(@finish (self.call_op($A::DEF, &attrs, Vec::new())) $res)
            }
        }
    };
    (@method [$($doc:literal)+] $name:ident $A:ident () [] [with $($b:ident)*] -> $res:tt) => {
        impl $crate::graph::Graph {
            $(#[doc = $doc])+ #[track_caller]
            pub fn $name<'g>(&'g self, attrs: $A) -> $crate::ops!(@return 'g $res) {
                $crate::ops!(@finish (self.call_op($A::DEF, &attrs, Vec::new())) $res)
            }
        }
    };
    (@method [$($doc:literal)+] $name:ident $A:ident ($xs:ident : many $c:ident) [$($an:ident : $at:ty),*] -> $res:tt) => {
        impl $crate::graph::Graph {
            $(#[doc = $doc])+ #[track_caller]
            pub fn $name<'g>(&'g self, $xs: &[$crate::Var<'g>], $($an: impl Into<$at>),*) -> $crate::ops!(@return 'g $res) {
                let attrs = $A { $($an: $an.into()),* };
                let operands = $xs.iter().copied().map(Some).collect();
                $crate::ops!(@finish (self.call_op($A::DEF, &attrs, operands)) $res)
            }
        }
    };
    // Methods of the first operand.
    (@method [$($doc:literal)+] $name:ident $A:ident ($x:ident : $xc:ident $(, $o:ident : $($c:ident)+)*)
        [$($an:ident : $at:ty),*] -> $res:tt) => {
        impl<'g> $crate::graph::Var<'g> {
            $(#[doc = $doc])+ #[track_caller]
            #[allow(clippy::too_many_arguments, clippy::should_implement_trait)]
            pub fn $name(self, $($o: impl $crate::graph::Operand<'g>,)* $($an: impl Into<$at>),*) -> $crate::ops!(@return 'g $res) {
                let attrs = $A { $($an: $an.into()),* };
                #[allow(unused_mut)]
                let mut operands = vec![Some(self)];
                $($crate::graph::Operand::push($o, self, &mut operands);)*
                $crate::ops!(@finish (self.graph().call_op($A::DEF, &attrs, operands)) $res)
            }
        }
    };
    (@method [$($doc:literal)+] $name:ident $A:ident ($x:ident : $xc:ident $(, $o:ident : $($c:ident)+)*)
        [] [with $($b:ident)*] -> $res:tt) => {
        impl<'g> $crate::graph::Var<'g> {
            $(#[doc = $doc])+ #[track_caller]
            #[allow(clippy::too_many_arguments)]
            pub fn $name(self, $($o: impl $crate::graph::Operand<'g>,)* attrs: $A) -> $crate::ops!(@return 'g $res) {
                #[allow(unused_mut)]
                let mut operands = vec![Some(self)];
                $($crate::graph::Operand::push($o, self, &mut operands);)*
                $crate::ops!(@finish (self.graph().call_op($A::DEF, &attrs, operands)) $res)
            }
        }
    };

    (@return $g:lifetime ($($r:ident),*)) => { [$crate::Var<$g>; <[()]>::len(&[$($crate::ops!(@unit $r)),*])] };
    (@return $g:lifetime [$r:ident]) => { Vec<$crate::Var<$g>> };
    (@return $g:lifetime $r:ident) => { $crate::Var<$g> };
    (@unit $r:ident) => { () };
    (@finish $call:tt ($($r:ident),*)) => { $crate::graph::several($call) };
    (@finish $call:tt [$r:ident]) => { $call.1 };
    (@finish $call:tt $r:ident) => {{ let [y] = $crate::graph::several($call); y }};
}

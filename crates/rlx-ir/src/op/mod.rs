//! What an op is: the rules that stand in the op's one file, and the contexts that the rules are given.
//!
//! [`ops!`](crate::ops!) turns the declaration in an op file into an [`OpDef`], the typed attributes and the
//! builder's method. Everything else (printer, parser, verifier, oracle, transforms, docs, tests) reads the table.

mod cx;
mod declare;
pub mod step;

pub use cx::{Cx, Grads, Infer, VjpCx, VmapCx};
pub use step::Step;

use crate::attr::{AttrSpec, AttrValue};
use crate::condition::Demand;
use crate::dtype::Class;
use crate::error::{Code, Error, Result};
use crate::func::{Func, Node};
use crate::graph::Var;
use crate::onnx::Rule;
use crate::oracle::{Arr, Eval};
use crate::sample::Samples;
use crate::scalar::Scalar;
use crate::transform::{Marks, Pruned};
use crate::types::Type;
use std::cell::RefCell;
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
    /// By its first region, on its operands.
    Region,
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

/// From a node to the operands that each of its results needs.
pub type Reads = fn(&Node) -> Result<Vec<Marks>>;
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
    /// The step kind that a device runs it as, if it is not of the scalar language and not run through its body.
    pub step: Option<step::StepRule>,
    /// Its gradient.
    pub vjp: Vjp,
    /// Its batching.
    pub vmap: Vmap,
    /// How ONNX ops become this one.
    pub onnx: &'static [Rule],
    /// Its samples.
    pub samples: fn(&mut Samples),
    /// Its tolerances.
    pub tol: Tol,
    /// The operands that each result needs; all of them if there is no such rule.
    pub reads: Option<Reads>,
    /// The node without the results that are not marked as needed, and without the operands that only they need.
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
            step: None,
            vjp: Vjp::Zero,
            vmap: Vmap::Loop,
            onnx: &[],
            samples: |_| {},
            tol: tol(4e-6, 4e-3, 3e-2),
            reads: None,
            prune: None,
        }
    }

    /// The names of the ONNX ops that become this one.
    pub fn onnx_names(&self) -> Vec<&'static str> {
        let mut names: Vec<&str> = self.onnx.iter().map(|r| r.name).collect();
        names.dedup();
        names
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
        self.infer_with(&Infer { def: self, attrs, operands, regions, demands: RefCell::default() })
    }

    /// What the constraints ask of symbols, each with the number of its constraint: what could not be proven.
    pub(crate) fn demands(
        &'static self,
        attrs: &[AttrValue],
        operands: &[Option<Type>],
        regions: &[Arc<Func>],
    ) -> Result<Vec<(usize, Demand)>> {
        let c = Infer { def: self, attrs, operands, regions, demands: RefCell::default() };
        self.infer_with(&c)?;
        Ok(c.demands.into_inner())
    }

    fn infer_with(&self, c: &Infer<'_>) -> Result<Vec<Type>> {
        self.check_call(c)
            .and_then(|()| (self.infer)(c))
            .and_then(|types| types.iter().try_for_each(Type::check).map(|()| types))
            .map_err(|e| {
                // More would not help a reader, and a hostile graph may have thousands.
                let named = c
                    .operands
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
        for (spec, value) in self.attrs.iter().zip(c.attrs) {
            if !spec.takes(value) {
                let message = format!("attribute {} must be {}, not {value:?}", spec.name, spec.kind.words());
                return Err(Error::new(Code::Attribute, message));
            }
            if let Some(d) = value.dims().iter().find(|d| !d.is_valid()) {
                return Err(Error::new(Code::Size, format!("{d} in attribute {} overflows", spec.name)));
            }
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

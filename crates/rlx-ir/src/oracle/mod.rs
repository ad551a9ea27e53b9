//! The oracle: slow, exact and obvious. Everything else is checked against it.
//!
//! Floats are computed in `f64` and integers exactly, then wrapped to their dtype. With [`Rounding::Declared`] the
//! result of every op of the graph is also rounded to its declared dtype; inside a composite op's body nothing is
//! rounded, as a good kernel would have it. Explicit casts always round.

mod arr;

pub use arr::{Arr, Indices, MAX_ORACLE_ELEMENTS};

use arr::checked_count;

use crate::attr::AttrValue;
use crate::condition::{conditions, unbound};
use crate::dim::{Bindings, Dim};
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::func::{Func, Node, PortKind, Source, ValueId};
use crate::graph::Graph;
use crate::op::{Meaning, OpDef};
use crate::scalar::Num;
use crate::tensor::Tensor;
use crate::types::Type;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Whether results are rounded to the dtype that their type declares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rounding {
    /// Floats stay in `f64` throughout.
    #[default]
    Exact,
    /// Each op's results are rounded.
    Declared,
}

/// How to evaluate.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether results are rounded.
    pub rounding: Rounding,
    /// The largest number of node evaluations, loops included.
    pub max_steps: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { rounding: Rounding::Exact, max_steps: 100_000_000 }
    }
}

/// Evaluates a graph; ports and outputs go by name. Params with inline data need not be given.
pub fn eval(f: &Func, inputs: &[(&str, &Tensor)], options: &Options) -> Result<Vec<(String, Arr)>> {
    let mut all = eval_ranks(f, &[inputs], options)?;
    all.pop().ok_or_else(|| Error::new(Code::Verify, "no rank was evaluated"))
}

/// Evaluates the same graph on several ranks at once, so that collectives have somebody to talk to.
pub fn eval_ranks(
    f: &Func,
    ranks: &[&[(&str, &Tensor)]],
    options: &Options,
) -> Result<Vec<Vec<(String, Arr)>>> {
    let mut bindings = Bindings::new();
    let mut args = Vec::new();
    let names: HashSet<&str> = f.ports.iter().map(|p| p.name.as_str()).collect();
    for inputs in ranks {
        for (name, _) in inputs.iter() {
            if !names.contains(name) {
                return Err(Error::new(Code::BadInput, format!("the graph has no input or param {name:?}")));
            }
        }
        args.push(gather_args(f, inputs, &mut bindings)?);
    }
    conditions(f)?.iter().try_for_each(|c| c.check(&bindings))?;
    let run = Run { bindings: &bindings, steps: Cell::new(options.max_steps), bodies: RefCell::default() };
    let results = run.func(f, args, options.rounding)?;
    let name = |rank: Vec<Arr>| f.outputs.iter().map(|o| o.name.clone()).zip(rank).collect();
    Ok(results.into_iter().map(name).collect())
}

/// Looks up the data of every port, checks them against their types and binds the symbols.
fn gather_args(f: &Func, inputs: &[(&str, &Tensor)], bindings: &mut Bindings) -> Result<Vec<Arr>> {
    let mut out = Vec::new();
    let by_name: HashMap<&str, &Tensor> = inputs.iter().copied().collect();
    for p in &f.ports {
        let what = if p.kind == PortKind::Input { "input" } else { "param" };
        let given = by_name.get(p.name.as_str()).copied();
        let inline = match &p.source {
            Some(Source::Inline(t)) => Some(t),
            _ => None,
        };
        let t = given.or(inline).ok_or_else(|| {
            Error::new(
                Code::MissingInput,
                format!("{what} {:?} ({}) is not given", p.name, type_of(f, p.value)),
            )
        })?;
        bind(&p.name, what, f.ty(p.value)?, t, bindings)?;
        out.push(Arr::from_tensor(t)?);
    }
    Ok(out)
}

fn type_of(f: &Func, v: ValueId) -> String {
    f.ty(v).map(Type::to_string).unwrap_or_default()
}

/// Checks data against a type and binds the symbols of the type.
fn bind(name: &str, what: &str, ty: &Type, t: &Tensor, bindings: &mut Bindings) -> Result<()> {
    let wrong = |why: String| Error::new(Code::BadInput, format!("{what} {name:?} must be {ty}: {why}"));
    if ty.dtype != t.dtype() {
        return Err(wrong(format!("it is {}", t.dtype())));
    }
    if ty.rank() != t.shape().len() {
        return Err(wrong(format!("it has {} axes", t.shape().len())));
    }
    for (axis, (d, n)) in ty.shape.iter().zip(t.shape()).enumerate() {
        let n = i64::try_from(*n).map_err(|_| wrong("an axis is too long".into()))?;
        d.solve(n, bindings).map_err(|e| wrong(format!("axis {axis} is {n}: {e}")).axis(axis))?;
    }
    Ok(())
}

/// One evaluation: what is the same for all its nodes.
struct Run<'a> {
    bindings: &'a Bindings,
    steps: Cell<u64>,
    /// Bodies of composite ops, by the address of the node (nodes live as long as the evaluation).
    bodies: RefCell<HashMap<*const Node, Arc<Func>>>,
}

impl Run<'_> {
    /// Evaluates a function on every rank in lockstep.
    fn func(&self, f: &Func, args: Vec<Vec<Arr>>, rounding: Rounding) -> Result<Vec<Vec<Arr>>> {
        let mut envs: Vec<Vec<Option<Arr>>> = Vec::new();
        for rank in args {
            let mut env = vec![None; f.values.len()];
            for (p, a) in f.ports.iter().zip(rank) {
                if let Some(slot) = env.get_mut(p.value.0 as usize) {
                    *slot = Some(a);
                }
            }
            envs.push(env);
        }
        for node in &f.nodes {
            self.node(f, node, &mut envs, rounding)
                .map_err(|e| e.in_op(node.op.name).at(node.loc.clone()))?;
        }
        let take = |env: &Vec<Option<Arr>>| -> Result<Vec<Arr>> {
            f.outputs.iter().map(|o| fetch(env, o.value)).collect()
        };
        envs.iter().map(take).collect()
    }

    /// Counts a step.
    fn step(&self) -> Result<()> {
        let left = self.steps.get().checked_sub(1);
        self.steps.set(left.ok_or_else(|| Error::new(Code::Limit, "the evaluation takes too many steps"))?);
        Ok(())
    }

    fn node(&self, f: &Func, node: &Node, envs: &mut [Vec<Option<Arr>>], rounding: Rounding) -> Result<()> {
        self.step()?;
        let mut attrs = Vec::with_capacity(node.attrs.len());
        for a in &node.attrs {
            attrs.push(a.bind(self.bindings).map_err(unbound)?);
        }
        let mut types = Vec::with_capacity(node.results.len());
        for r in &node.results {
            let ty = f.ty(*r)?;
            let shape = concrete(&ty.shape, self.bindings)?;
            // Before a loop has gathered the rows of what would be too large.
            checked_count(&shape)?;
            types.push((ty.dtype, shape));
        }
        let mut operands = Vec::with_capacity(envs.len());
        for env in envs.iter() {
            let look = |o: &Option<ValueId>| o.map(|v| fetch(env, v)).transpose();
            operands.push(node.operands.iter().map(look).collect::<Result<Vec<_>>>()?);
        }
        let results = self.apply(node, &attrs, &types, operands, rounding)?;
        for (env, mut results) in envs.iter_mut().zip(results) {
            if rounding == Rounding::Declared {
                results = results.into_iter().map(Arr::rounded).collect();
            }
            if results.len() != node.results.len() {
                return Err(Error::new(
                    Code::Verify,
                    "the op gave another number of results than it declares",
                ));
            }
            for ((r, a), (dtype, shape)) in node.results.iter().zip(results).zip(&types) {
                if a.dtype() != *dtype || a.shape() != shape {
                    let message =
                        format!("result is {}{:?}, inferred {dtype}{shape:?}", a.dtype(), a.shape());
                    return Err(Error::new(Code::Verify, message));
                }
                if let Some(slot) = env.get_mut(r.0 as usize) {
                    *slot = Some(a);
                }
            }
        }
        Ok(())
    }

    /// The results of a node on every rank.
    fn apply(
        &self,
        node: &Node,
        attrs: &[AttrValue],
        types: &[(DType, Vec<usize>)],
        ranks: Vec<Vec<Option<Arr>>>,
        rounding: Rounding,
    ) -> Result<Vec<Vec<Arr>>> {
        let eval = |operands| Eval { run: self, node, attrs, types, operands, rounding };
        match node.op.meaning {
            Meaning::Scalar(s) => ranks
                .into_iter()
                .map(|operands| {
                    let e = eval(operands);
                    let given: Vec<&Arr> = e.operands.iter().flatten().collect();
                    let dtype = given.last().map_or(DType::F32, |a| a.dtype());
                    let mut nums = Vec::with_capacity(given.len());
                    Ok(vec![e.make(0, |ix| {
                        nums.clear();
                        nums.extend(given.iter().map(|a| a.at_broadcast(ix)));
                        s.eval(dtype, &nums)
                    })?])
                })
                .collect(),
            Meaning::Primitive(f) => ranks.into_iter().map(|operands| f(&eval(operands))).collect(),
            Meaning::Region => {
                let body = node.regions.first();
                let body = body.ok_or_else(|| Error::new(Code::Region, "a region is missing"))?;
                let args = ranks.into_iter().map(|r| r.into_iter().flatten().collect()).collect();
                self.func(body, args, rounding)
            }
            Meaning::Collective(f) => {
                let e = eval(Vec::new());
                let firsts: Vec<Arr> =
                    ranks.into_iter().filter_map(|r| r.into_iter().flatten().next()).collect();
                Ok(f(&e, &firsts)?.into_iter().map(|a| vec![a]).collect())
            }
            Meaning::Body(_) => {
                let body = self.body(node, &ranks)?;
                let args = ranks.into_iter().map(|r| r.into_iter().flatten().collect()).collect();
                self.func(&body, args, Rounding::Exact)
            }
        }
    }

    /// The body at the operands' concrete sizes, so that nothing symbolic is left to bind.
    fn body(&self, node: &Node, ranks: &[Vec<Option<Arr>>]) -> Result<Arc<Func>> {
        if let Some(b) = self.bodies.borrow().get(&(node as *const Node)) {
            return Ok(b.clone());
        }
        let ty = |a: &Arr| Type::new(a.dtype(), a.shape().iter().map(|d| Dim::from(*d)).collect::<Vec<_>>());
        let first = ranks.first().map(Vec::as_slice).unwrap_or_default();
        let types: Vec<Option<Type>> = first.iter().map(|o| o.as_ref().map(ty)).collect();
        let attrs =
            node.attrs.iter().map(|a| a.bind(self.bindings).map_err(unbound)).collect::<Result<Vec<_>>>()?;
        // What the op's constraints could not refuse while sizes were symbols, they refuse now. (A region's own types may
        // still have symbols.)
        if node.regions.is_empty() {
            node.op.infer_types(&attrs, &types, &[])?;
        }
        let body = Arc::new(Graph::body_of(node.op, &attrs, &types, &node.regions)?);
        self.bodies.borrow_mut().insert(node as *const Node, body.clone());
        Ok(body)
    }
}

fn fetch(env: &[Option<Arr>], v: ValueId) -> Result<Arr> {
    env.get(v.0 as usize)
        .and_then(Option::clone)
        .ok_or_else(|| Error::new(Code::Verify, "a value is used before it is defined"))
}

fn concrete(shape: &[Dim], b: &Bindings) -> Result<Vec<usize>> {
    shape
        .iter()
        .map(|d| {
            let n = d.eval(b).map_err(unbound)?;
            usize::try_from(n).map_err(|_| Error::new(Code::Unbound, format!("{d} is {n}")))
        })
        .collect()
}

/// What a primitive's loop is given: its operands, its attributes with all symbols bound, and its results' types.
pub struct Eval<'a> {
    run: &'a Run<'a>,
    node: &'a Node,
    attrs: &'a [AttrValue],
    types: &'a [(DType, Vec<usize>)],
    operands: Vec<Option<Arr>>,
    rounding: Rounding,
}

impl Eval<'_> {
    /// The op.
    pub fn def(&self) -> &'static OpDef {
        self.node.op
    }
    /// The attributes; sizes in them are constants.
    pub fn attrs(&self) -> &[AttrValue] {
        self.attrs
    }
    /// A required operand.
    pub fn x(&self, i: usize) -> Result<&Arr> {
        self.opt(i).ok_or_else(|| Error::new(Code::Operands, "an operand is missing"))
    }
    /// An optional operand.
    pub fn opt(&self, i: usize) -> Option<&Arr> {
        self.operands.get(i).and_then(Option::as_ref)
    }
    /// All operands that are given.
    pub fn given(&self) -> Vec<&Arr> {
        self.operands.iter().flatten().collect()
    }
    /// The dtype and sizes of a result.
    pub fn out(&self, i: usize) -> Result<(DType, &[usize])> {
        let t = self.types.get(i).ok_or_else(|| Error::new(Code::Verify, "no such result"))?;
        Ok((t.0, &t.1))
    }
    /// The number of results.
    pub fn outs(&self) -> usize {
        self.types.len()
    }
    /// Makes a result from a function of the index.
    pub fn make(&self, i: usize, f: impl FnMut(&[usize]) -> Num) -> Result<Arr> {
        let (dtype, shape) = self.out(i)?;
        Arr::from_fn(dtype, shape, f)
    }
    /// A bound size as a number.
    pub fn n(&self, d: &Dim) -> Result<usize> {
        d.as_const()
            .and_then(|n| usize::try_from(n).ok())
            .ok_or_else(|| Error::new(Code::Unbound, format!("the size {d} is not a number of elements")))
    }
    /// Runs a region.
    pub fn region(&self, i: usize, args: Vec<Arr>) -> Result<Vec<Arr>> {
        let f = self.node.regions.get(i).ok_or_else(|| Error::new(Code::Region, "a region is missing"))?;
        // A region may be empty, and a loop must end nevertheless.
        self.run.step()?;
        let mut out = self.run.func(f, vec![args], self.rounding)?;
        out.pop().ok_or_else(|| Error::new(Code::Verify, "a region gave nothing"))
    }
}

//! What is known of values while a graph is built: small tensors whose elements are numbers or expressions of sizes.
//!
//! Exporters write shapes as computations on shapes (`Concat(Gather(Shape(x), 0), -1)`). Such values are followed here, step
//! kind by step kind, in terms of [`Dim`]s, so that an importer can ask for the sizes behind them. Composites are followed
//! through their bodies.

use super::{Graph, Scope, Var};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::func::{Def, Func, Node, PortKind, Source, ValueId};
use crate::op::Step;
use crate::op::step::Fold;
use crate::scalar::{Num, Scalar};
use crate::tensor::Tensor;
use crate::types::Type;
use std::collections::{BTreeSet, HashMap};

/// The most elements that a followed value has.
const MAX_ELEMENTS: usize = 4096;
/// How deeply bodies of composites are followed.
const MAX_BODIES: usize = 8;

/// An element: a number, or an expression of sizes.
#[derive(Clone, Debug, PartialEq)]
enum Sym {
    /// An integer or bool.
    I(Dim),
    /// A float.
    F(f64),
    /// A float that is a size divided by a positive number.
    Q(Dim, i64),
}

/// The elements of a small tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Known {
    shape: Vec<usize>,
    values: Vec<Sym>,
}

impl Known {
    /// The sizes of the tensor's axes.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The elements as sizes, which may be symbolic and negative; `None` if one is not an integer.
    pub fn dims(&self) -> Option<Vec<Dim>> {
        let one = |s: &Sym| match s {
            Sym::I(d) => Some(d.clone()),
            Sym::Q(d, 1) => Some(d.clone()),
            Sym::F(x) if x.fract() == 0.0 && x.abs() < 9e15 => Some(Dim::constant(*x as i64)),
            _ => None,
        };
        self.values.iter().map(one).collect()
    }

    /// The elements as floats; `None` if one depends on a size.
    pub fn floats(&self) -> Option<Vec<f64>> {
        let one = |s: &Sym| match s {
            Sym::I(d) => d.as_const().map(|n| n as f64),
            Sym::F(x) => Some(*x),
            Sym::Q(d, n) => d.as_const().map(|d| d as f64 / *n as f64),
        };
        self.values.iter().map(one).collect()
    }

    /// The elements as quotients of a size and a positive number; `None` if one is neither that nor a fraction.
    pub fn ratios(&self) -> Option<Vec<(Dim, i64)>> {
        self.values.iter().map(Sym::ratio).collect()
    }

    fn of_tensor(t: &Tensor) -> Option<Known> {
        if t.len() > MAX_ELEMENTS {
            return None;
        }
        let values = match t.dtype().is_float() {
            true => t.to_f64s()?.into_iter().map(Sym::F).collect(),
            false => {
                t.to_i128s()?.into_iter().map(|i| i64::try_from(i).ok().map(int)).collect::<Option<_>>()?
            }
        };
        Some(Known { shape: t.shape().to_vec(), values })
    }

    fn scalar(s: Sym) -> Known {
        Known { shape: Vec::new(), values: vec![s] }
    }

    /// The element at an index, with axes of size 1 repeated and leading axes left out.
    fn at_broadcast(&self, ix: &[usize]) -> Option<&Sym> {
        let skip = ix.len().checked_sub(self.shape.len())?;
        let mut at = 0;
        for (i, d) in ix.iter().skip(skip).zip(&self.shape) {
            at = at * d + if *d == 1 { 0 } else { *i };
        }
        self.values.get(at)
    }
}

fn int(n: i64) -> Sym {
    Sym::I(Dim::constant(n))
}

fn truth(b: bool) -> Sym {
    int(i64::from(b))
}

impl Sym {
    /// The number, if it depends on no size.
    fn num(&self) -> Option<Num> {
        match self {
            Sym::I(d) => d.as_const().map(|n| Num::I(n.into())),
            Sym::F(x) => Some(Num::F(*x)),
            Sym::Q(..) => None,
        }
    }

    fn from_num(n: Num) -> Option<Sym> {
        match n {
            Num::F(x) => Some(Sym::F(x)),
            Num::I(i) => i64::try_from(i).ok().map(int),
        }
    }

    /// As a quotient of a size and a positive number.
    fn ratio(&self) -> Option<(Dim, i64)> {
        match self {
            Sym::I(d) => Some((d.clone(), 1)),
            Sym::Q(d, n) => Some((d.clone(), *n)),
            Sym::F(x) => {
                // Fractions that a float holds exactly, as scales of resizing do.
                let n = (0..16).map(|k| 1i64 << k).find(|n| (x * *n as f64).fract() == 0.0)?;
                let p = x * n as f64;
                (p.abs() < 1e15).then(|| (Dim::constant(p as i64), n))
            }
        }
    }

    /// A float that is a size divided by a number, in its simplest form.
    fn quotient(d: Dim, n: i64) -> Option<Sym> {
        if !d.is_valid() || n == 0 {
            return None;
        }
        let (d, n) = if n < 0 { (Dim::constant(0) - d, n.checked_neg()?) } else { (d, n) };
        match (d.as_const(), d.exact_div(&Dim::constant(n))) {
            (Some(d), _) => Some(Sym::F(d as f64 / n as f64)),
            (None, Some(whole)) => Some(Sym::Q(whole, 1)),
            (None, None) => Some(Sym::Q(d, n)),
        }
    }

    fn cast(&self, to: DType) -> Option<Sym> {
        match self {
            Sym::I(d) if to.is_float() => match d.as_const() {
                Some(n) => Some(Sym::F(to.round_f64(n as f64))),
                None => Some(Sym::Q(d.clone(), 1)),
            },
            Sym::F(x) if to.is_float() => Some(Sym::F(to.round_f64(*x))),
            Sym::Q(..) if to.is_float() => Some(self.clone()),
            Sym::F(x) if to == DType::Bool => Some(truth(*x != 0.0)),
            Sym::F(x) => Sym::from_num(Num::I(to.wrap_int(*x as i128))),
            Sym::I(d) => match (d.as_const(), to) {
                (Some(n), _) => Sym::from_num(Num::I(to.wrap_int(n.into()))),
                (None, DType::Bool) => order(d, &Dim::constant(0)).map(|o| truth(o.is_ne())),
                (None, _) => Some(self.clone()),
            },
            // Toward zero.
            Sym::Q(d, n) if d.lower()? >= 0 => Some(Sym::I(d.floor_div(*n))),
            Sym::Q(..) => None,
        }
    }
}

/// How two sizes compare, if it is the same for every binding.
fn order(a: &Dim, b: &Dim) -> Option<std::cmp::Ordering> {
    use std::cmp::Ordering::*;
    let gap = a - b;
    match (gap.lower()?, gap.upper()?) {
        (0, 0) => Some(Equal),
        (lo, _) if lo > 0 => Some(Greater),
        (_, hi) if hi < 0 => Some(Less),
        _ => None,
    }
}

/// A comparison of two sizes, if it is the same for every binding.
fn compare(s: Scalar, a: &Dim, b: &Dim) -> Option<bool> {
    let gap = a - b;
    let (lo, hi) = (gap.lower()?, gap.upper()?);
    let decide = |yes: bool, no: bool| {
        if yes {
            Some(true)
        } else if no {
            Some(false)
        } else {
            None
        }
    };
    match s {
        Scalar::Eq => decide(a.unify(b).is_some(), a.never_eq(b)),
        Scalar::Ne => decide(a.never_eq(b), a.unify(b).is_some()),
        Scalar::Lt => decide(hi < 0, lo >= 0),
        Scalar::Le => decide(hi <= 0, lo > 0),
        Scalar::Gt => decide(lo > 0, hi <= 0),
        Scalar::Ge => decide(lo >= 0, hi < 0),
        _ => None,
    }
}

/// A function of the scalar language, for operands of `dtype`.
fn scalar(s: Scalar, dtype: DType, xs: &[&Sym]) -> Option<Sym> {
    if s == Scalar::Select {
        let [c, a, b] = xs else { return None };
        return match c.num() {
            Some(n) => Some(if n.truth() { (*a).clone() } else { (*b).clone() }),
            None => (a == b).then(|| (*a).clone()),
        };
    }
    if let Some(nums) = xs.iter().map(|x| x.num()).collect::<Option<Vec<Num>>>() {
        return match s.eval(dtype, &nums) {
            Num::F(x) => Some(Sym::F(dtype.round_f64(x))),
            n => Sym::from_num(n),
        };
    }
    match xs {
        [Sym::I(a)] => match s {
            Scalar::Neg => Some(Sym::I(Dim::constant(0) - a)),
            Scalar::Abs if a.lower()? >= 0 => Some(Sym::I(a.clone())),
            Scalar::Floor | Scalar::Ceil | Scalar::Round | Scalar::Trunc => Some(Sym::I(a.clone())),
            _ => None,
        },
        [Sym::Q(a, n)] => match s {
            Scalar::Neg => Some(Sym::Q(Dim::constant(0) - a, *n)),
            Scalar::Floor => Some(Sym::Q(a.floor_div(*n), 1)),
            Scalar::Ceil => Some(Sym::Q(a.ceil_div(*n), 1)),
            Scalar::Trunc if a.lower()? >= 0 => Some(Sym::Q(a.floor_div(*n), 1)),
            Scalar::Round if *n == 1 => Some(Sym::Q(a.clone(), 1)),
            _ => None,
        },
        [Sym::I(a), Sym::I(b)] => {
            let made = match s {
                Scalar::Add => a + b,
                Scalar::Sub => a - b,
                Scalar::Mul => a * b,
                Scalar::Div => match (a.exact_div(b), b.as_const()) {
                    (Some(q), _) => q,
                    (None, Some(n)) if n > 0 && a.lower()? >= 0 => a.floor_div(n),
                    _ => return None,
                },
                Scalar::Rem => match (a.exact_div(b), b.as_const()) {
                    (Some(_), _) => Dim::constant(0),
                    (None, Some(n)) if n > 0 && a.lower()? >= 0 => a - a.floor_div(n) * n,
                    _ => return None,
                },
                Scalar::Max => {
                    if (a - b).lower()? >= 0 {
                        a.clone()
                    } else if (b - a).lower()? >= 0 {
                        b.clone()
                    } else {
                        return None;
                    }
                }
                Scalar::Min => {
                    if (a - b).lower()? >= 0 {
                        b.clone()
                    } else if (b - a).lower()? >= 0 {
                        a.clone()
                    } else {
                        return None;
                    }
                }
                _ => return compare(s, a, b).map(truth),
            };
            made.is_valid().then_some(Sym::I(made))
        }
        [a, b] if dtype.is_float() => {
            let ((a, n), (b, m)) = (a.ratio()?, b.ratio()?);
            match s {
                Scalar::Add => Sym::quotient(a * m + b * n, n.checked_mul(m)?),
                Scalar::Sub => Sym::quotient(a * m - b * n, n.checked_mul(m)?),
                Scalar::Mul => Sym::quotient(a * b, n.checked_mul(m)?),
                Scalar::Div => match (b.as_const(), a.exact_div(&b)) {
                    (_, Some(q)) => Sym::quotient(q * m, n),
                    (Some(b), None) => Sym::quotient(a * m, n.checked_mul(b)?),
                    _ => None,
                },
                _ => compare(s, &(a * m), &(b * n)).map(truth),
            }
        }
        _ => None,
    }
}

/// The sizes of a type, if they are constants and few.
fn sizes(ty: &Type) -> Option<Vec<usize>> {
    let shape: Vec<usize> =
        ty.shape.iter().map(|d| d.as_const().and_then(|n| usize::try_from(n).ok())).collect::<Option<_>>()?;
    let n = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d))?;
    (n <= MAX_ELEMENTS && !ty.dtype.is_packed()).then_some(shape)
}

/// The elements of a tensor of that shape, one by one in order.
fn make(shape: &[usize], mut f: impl FnMut(&[usize]) -> Option<Sym>) -> Option<Known> {
    let n: usize = shape.iter().product();
    let (mut values, mut ix) = (Vec::with_capacity(n), vec![0; shape.len()]);
    for _ in 0..n {
        values.push(f(&ix)?);
        for (i, d) in ix.iter_mut().zip(shape).rev() {
            *i += 1;
            if *i < *d {
                break;
            }
            *i = 0;
        }
    }
    Some(Known { shape: shape.to_vec(), values })
}

/// The results of a node, from its operands: through its body, or the first by its step kind.
fn follow(
    node: &Node,
    operands: &[Option<&Known>],
    types: &[Option<Type>],
    result: &Type,
    bodies: usize,
) -> Vec<Option<Known>> {
    match node.step(types) {
        Some(Ok(step)) => vec![follow_step(step, operands, types, result)],
        None if bodies > 0 => Graph::body_of(node.op, &node.attrs, types, &node.regions)
            .map(|body| follow_func(&body, operands, bodies - 1))
            .unwrap_or_default(),
        _ => Vec::new(),
    }
}

fn follow_step(
    step: Step,
    operands: &[Option<&Known>],
    types: &[Option<Type>],
    result: &Type,
) -> Option<Known> {
    let shape = sizes(result)?;
    let x = |i: usize| operands.get(i).copied().flatten();
    let first = || x(0);
    match step {
        Step::Constant(t) => Known::of_tensor(&t),
        Step::SizeOf(d) if result.dtype.is_float() => Some(Known::scalar(Sym::I(d).cast(result.dtype)?)),
        Step::SizeOf(d) => Some(Known::scalar(Sym::I(d))),
        Step::Iota(axis) => make(&shape, |ix| int(*ix.get(axis)? as i64).cast(result.dtype)),
        Step::Same => first().cloned(),
        Step::Reshape => Some(Known { shape, values: first()?.values.clone() }),
        Step::Broadcast => make(&shape, |ix| first()?.at_broadcast(ix).cloned()),
        Step::Permute(axes) => make(&shape, |ix| {
            let mut from = vec![0; ix.len()];
            for (to, axis) in axes.iter().enumerate() {
                *from.get_mut(*axis)? = *ix.get(to)?;
            }
            first()?.at_broadcast(&from).cloned()
        }),
        Step::Slice { start, step } => make(&shape, |ix| {
            let from = ix.iter().zip(&start).zip(&step);
            let from = from.map(|((i, s), k)| Some(s.as_const()? as usize + i * *k as usize));
            first()?.at_broadcast(&from.collect::<Option<Vec<_>>>()?).cloned()
        }),
        Step::Flip(axes) => make(&shape, |ix| {
            let turn = |(k, i): (usize, &usize)| {
                if axes.contains(&k) { shape.get(k).map_or(0, |d| d - 1 - i) } else { *i }
            };
            first()?.at_broadcast(&ix.iter().enumerate().map(turn).collect::<Vec<_>>()).cloned()
        }),
        Step::Concat(axis) => make(&shape, |ix| {
            let mut from = ix.to_vec();
            for part in operands {
                let n = *(*part)?.shape.get(axis)?;
                let at = from.get_mut(axis)?;
                if *at < n {
                    return (*part)?.at_broadcast(&from).cloned();
                }
                *at -= n;
            }
            None
        }),
        Step::Gather(axis) => {
            let (table, indices) = (x(0)?, x(1)?);
            let n = *table.shape.get(axis)? as i64;
            make(&shape, |ix| {
                let (before, rest) = ix.split_at_checked(axis)?;
                let (at, after) = rest.split_at_checked(indices.shape.len())?;
                let Sym::I(i) = indices.at_broadcast(at)? else { return None };
                let i = i.as_const().map(|i| if i < 0 { i + n } else { i }).filter(|i| (0..n).contains(i))?;
                let from: Vec<usize> = before.iter().chain(&[i as usize]).chain(after).copied().collect();
                table.at_broadcast(&from).cloned()
            })
        }
        Step::Cast => make(&shape, |ix| first()?.at_broadcast(ix)?.cast(result.dtype)),
        Step::Scalar(s) => {
            let dtype = types.iter().rev().flatten().next()?.dtype;
            make(&shape, |ix| {
                let xs = operands.iter().map(|o| (*o)?.at_broadcast(ix)).collect::<Option<Vec<_>>>()?;
                scalar(s, dtype, &xs)
            })
        }
        Step::Fold(fold, axes) => {
            let from = first()?;
            let (op, dtype) = (
                match fold {
                    Fold::Sum => Scalar::Add,
                    Fold::Prod => Scalar::Mul,
                    Fold::Max => Scalar::Max,
                    Fold::Min => Scalar::Min,
                    Fold::Any | Fold::All => return None,
                },
                result.dtype,
            );
            // Axes that are kept with size 1 and axes that go are the same here: elements in order of what remains.
            let mut out: Vec<Option<Sym>> = vec![None; shape.iter().product()];
            let kept = |k: &usize| !axes.contains(k);
            make(&from.shape, |ix| {
                let to = (0..ix.len())
                    .filter(kept)
                    .try_fold(0, |at, k| Some(at * from.shape.get(k)? + ix.get(k)?))?;
                let (slot, x) = (out.get_mut(to)?, from.at_broadcast(ix)?);
                *slot = Some(match slot.take() {
                    None => x.clone(),
                    Some(sum) => scalar(op, dtype, &[&sum, x])?,
                });
                Some(int(0))
            })?;
            let empty = match fold {
                Fold::Sum => int(0).cast(dtype)?,
                _ => int(1).cast(dtype)?,
            };
            if out.contains(&None) && matches!(fold, Fold::Max | Fold::Min) {
                return None;
            }
            Some(Known {
                shape,
                values: out.into_iter().map(|s| s.unwrap_or_else(|| empty.clone())).collect(),
            })
        }
        _ => None,
    }
}

/// The outputs of the body of an op, from its operands.
fn follow_func(f: &Func, operands: &[Option<&Known>], bodies: usize) -> Vec<Option<Known>> {
    let mut all: HashMap<ValueId, Known> = HashMap::new();
    for p in &f.ports {
        // The ports of a body are named after the operands' positions.
        let place = p.name.strip_prefix('p').and_then(|n| n.parse::<usize>().ok());
        if let Some(known) = place.and_then(|k| *operands.get(k)?) {
            all.insert(p.value, known.clone());
        }
    }
    for node in &f.nodes {
        let types: Vec<Option<Type>> =
            node.operands.iter().map(|o| o.and_then(|v| f.ty(v).ok().cloned())).collect();
        let operands: Vec<Option<&Known>> =
            node.operands.iter().map(|o| o.and_then(|v| all.get(&v))).collect();
        let Some(result) = node.results.first().and_then(|r| f.ty(*r).ok()) else { continue };
        let found = follow(node, &operands, &types, result, bodies);
        all.extend(node.results.iter().zip(found).filter_map(|(r, k)| Some((*r, k?))));
    }
    f.outputs.iter().map(|o| all.get(&o.value).cloned()).collect()
}

/// What was found out about the values of a scope.
#[derive(Default)]
pub(super) struct Learnt {
    /// How many nodes were looked at.
    nodes: usize,
    values: HashMap<ValueId, Known>,
}

impl Graph {
    /// What is known of the elements of a value; `None` if they depend on data, or there are many.
    pub fn known(&self, x: Var<'_>) -> Option<Known> {
        let mut scopes = self.scopes.borrow_mut();
        for k in 0..scopes.len() {
            let (outer, rest) = scopes.split_at_mut(k);
            rest.first_mut().into_iter().for_each(|s| s.learn(outer));
        }
        let at = scopes.iter().position(|s| s.id == x.scope)?;
        let (outer, rest) = scopes.split_at(at);
        rest.first()?.look(outer, x.id)
    }

    /// The inputs of the graph on which a value depends.
    pub fn inputs_behind(&self, x: Var<'_>) -> Vec<String> {
        let scopes = self.scopes.borrow();
        let (mut open, mut seen, mut found) = (vec![(x.scope, x.id)], BTreeSet::new(), BTreeSet::new());
        while let Some((scope, id)) = open.pop() {
            let Some(s) = scopes.iter().find(|s| s.id == scope).filter(|_| seen.insert((scope, id))) else {
                continue;
            };
            match s.values.get(id.0 as usize).map(|v| v.def) {
                Some(Def::Node(n, _)) => {
                    let operands =
                        s.nodes.get(n as usize).into_iter().flat_map(|n| n.operands.iter().flatten());
                    open.extend(operands.map(|v| (scope, *v)));
                }
                Some(Def::Port(_)) => match s.captured.iter().find(|(_, inner)| **inner == id) {
                    Some((outer, _)) => open.push(*outer),
                    None => found.extend(
                        s.ports
                            .iter()
                            .filter(|p| p.value == id && p.kind == PortKind::Input)
                            .map(|p| p.name.clone()),
                    ),
                },
                None => {}
            }
        }
        found.into_iter().collect()
    }
}

impl Scope {
    /// Looks at the nodes that are new.
    fn learn(&mut self, outer: &[Scope]) {
        let mut learnt = std::mem::take(&mut self.learnt);
        while let Some(node) = self.nodes.get(learnt.nodes) {
            learnt.nodes += 1;
            let info = |v: &ValueId| self.values.get(v.0 as usize);
            if node.results.iter().filter_map(info).all(|v| sizes(&v.ty).is_none()) {
                continue;
            }
            let Some(first) = node.results.first().and_then(info) else { continue };
            let types: Vec<Option<Type>> = node
                .operands
                .iter()
                .map(|o| o.and_then(|v| self.values.get(v.0 as usize)).map(|v| v.ty.clone()))
                .collect();
            let operands: Vec<Option<Known>> = node
                .operands
                .iter()
                .map(|o| o.and_then(|v| learnt.values.get(&v).cloned().or_else(|| self.port(outer, v))))
                .collect();
            let operands: Vec<Option<&Known>> = operands.iter().map(Option::as_ref).collect();
            let found = follow(node, &operands, &types, &first.ty, MAX_BODIES);
            learnt.values.extend(node.results.iter().zip(found).filter_map(|(r, k)| Some((*r, k?))));
        }
        self.learnt = learnt;
    }

    fn look(&self, outer: &[Scope], id: ValueId) -> Option<Known> {
        self.learnt.values.get(&id).cloned().or_else(|| self.port(outer, id))
    }

    /// What is known of a port: of a param with its data, or of a value of an enclosing scope.
    fn port(&self, outer: &[Scope], id: ValueId) -> Option<Known> {
        let Def::Port(p) = self.values.get(id.0 as usize)?.def else { return None };
        let port = self.ports.get(p as usize)?;
        if let Some(Source::Inline(t)) = &port.source {
            return Known::of_tensor(t);
        }
        let ((scope, value), _) = self.captured.iter().find(|(_, inner)| **inner == id)?;
        let at = outer.iter().position(|s| s.id == *scope)?;
        let (further, rest) = outer.split_at(at);
        rest.first()?.look(further, *value)
    }
}

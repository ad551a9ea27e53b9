//! From an ONNX graph to a graph of RLX: node by node, by the rules of the op table.

use super::MAX_DEPTH;
use super::proto::{self, Held};
use super::sequence::{self, Value};
use super::sizes::Assumed;
use super::tensor::Data;
use crate::array::Array;
use crate::error::{Context, bad};
use rlx_ir::dim::Dim;
use rlx_ir::func::{PortKind, Source};
use rlx_ir::onnx::{self, Attr, Call, How, Subgraph};
use rlx_ir::{Code, DType, Error, Func, Graph, Loc, Result, Tensor, Type, Var, transform};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Data of so few elements are part of the graph: what exporters write as numbers (scales, epsilons, axes) is to be seen by
/// the compiler.
const INLINE: usize = 16;
/// Data of so few elements can decide shapes.
const VISIBLE: usize = 1024;
/// How often the import begins anew with one more assumption about sizes.
const MAX_ASSUMPTIONS: usize = 64;
/// After so many failures no more are looked for: the file is no model, or none for RLX.
const MAX_FAILURES: usize = 4096;
/// The largest size of an axis that the model leaves open, if nothing else is said.
const BOUND: i64 = 1 << 13;

/// What the caller knows of a model beyond its file.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The largest sizes of open axes, by the names that the model gives them; 8192 for others.
    pub bounds: BTreeMap<String, i64>,
    /// Sizes of open axes that are to be constants, by the names that the model gives them.
    pub sizes: BTreeMap<String, i64>,
    /// Sizes of axes of inputs (name, axis) that are to be constants.
    pub axes: BTreeMap<(String, usize), i64>,
    /// Shapes of inputs that are to fit: where an open axis would be bounded by less, its bound is raised.
    pub shapes: BTreeMap<String, Vec<usize>>,
    /// Values of inputs that are to be part of the graph: those that decide shapes must be.
    pub values: BTreeMap<String, Tensor>,
}

/// An input or output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Its name in the model.
    pub onnx: String,
    /// Its name in the graph, where names are letters, digits, `_` and `.` only.
    pub name: String,
}

/// A model as a graph.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The graph.
    pub func: Func,
    /// The data of its large params, by their names in the graph; the small ones are in the graph.
    pub params: Vec<(String, Array)>,
    /// The inputs, in the model's order.
    pub inputs: Vec<Named>,
    /// The outputs, in the model's order.
    pub outputs: Vec<Named>,
    /// What had to be assumed of open axes, in words.
    pub assumed: Vec<String>,
}

/// Names of the graph: what is no name becomes one, and each is given once.
#[derive(Default)]
struct Names(HashSet<String>);

impl Names {
    fn take(&mut self, name: &str) -> String {
        let plain = plain(name);
        let mut unique = plain.clone();
        let mut k = 1;
        while !self.0.insert(unique.clone()) {
            unique = format!("{plain}.{k}");
            k += 1;
        }
        unique
    }
}

/// A name of letters, digits, `_` and `.` that does not begin with a digit.
fn plain(name: &str) -> String {
    let keep = |c: char| if c.is_ascii_alphanumeric() || c == '_' || c == '.' { c } else { '_' };
    let name: String = name.chars().map(keep).collect();
    let first = name.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    if first { name } else { format!("_{name}") }
}

/// A node that cannot be imported.
struct Failure {
    node: String,
    op: String,
    error: Error,
}

/// What all parts of an import share.
struct Importer<'g, 'a> {
    g: &'g Graph,
    data: &'a Data,
    file: Arc<str>,
    functions: HashMap<(&'a str, &'a str, &'a str), proto::Function<'a>>,
    names: RefCell<Names>,
    params: RefCell<Vec<(String, Array)>>,
    failures: RefCell<Vec<Failure>>,
    /// How many of the graph's errors are among the failures.
    reported: Cell<usize>,
    /// Nodes so far, and how many there may be: functions could call each other without end.
    nodes: Cell<usize>,
    most: usize,
    /// Two sizes that would have to be equal.
    unequal: RefCell<Option<(Dim, Dim)>>,
}

/// The names in sight at a place of the model.
struct Scope<'s, 'g, 'a> {
    parent: Option<&'s Scope<'s, 'g, 'a>>,
    /// Values by name.
    values: RefCell<HashMap<&'a str, Value<'g>>>,
    /// Of data and inputs whose elements have fewer than eight bits: how many, and whether with a sign.
    narrow: RefCell<HashMap<&'a str, (u32, bool)>>,
    opsets: &'s HashMap<&'a str, i64>,
    /// The attributes of the call of the function that the place is in.
    attrs: &'s BTreeMap<&'s str, Attr<'s, 'g>>,
    depth: usize,
}

impl<'s, 'g, 'a> Scope<'s, 'g, 'a> {
    fn inner<'t>(&'t self) -> Scope<'t, 'g, 'a>
    where
        's: 't,
    {
        Scope {
            parent: Some(self),
            values: RefCell::default(),
            narrow: RefCell::default(),
            opsets: self.opsets,
            attrs: self.attrs,
            depth: self.depth + 1,
        }
    }

    fn find(&self, name: &str) -> Option<Value<'g>> {
        let own = self.values.borrow().get(name).cloned();
        own.or_else(|| self.parent.and_then(|p| p.find(name)))
    }

    /// A value that is to leave the scope.
    fn result(&self, name: &str) -> Result<Var<'g>> {
        match self.find(name) {
            Some(Value::One(v)) => Ok(v),
            Some(Value::List(_)) => {
                Err(Error::new(Code::Unsupported, format!("the output {name:?} is a sequence")))
            }
            _ => Err(missing(name)),
        }
    }

    fn define(&self, name: &'a str, value: Value<'g>) -> Result<()> {
        match self.values.borrow_mut().insert(name, value) {
            None => Ok(()),
            Some(_) => Err(bad(format!("the value {name:?} is given twice"))),
        }
    }

    /// Notes ONNX's number of the dtype of a value.
    fn note(&self, name: &'a str, dtype: i64) {
        self.narrow.borrow_mut().extend(onnx::narrow(dtype).map(|bits| (name, bits)));
    }

    fn bits(&self, name: &str) -> Option<(u32, bool)> {
        let own = self.narrow.borrow().get(name).copied();
        own.or_else(|| self.parent.and_then(|p| p.bits(name)))
    }

    fn opset(&self, domain: &str) -> i64 {
        let domain = if domain == "ai.onnx" { "" } else { domain };
        // A domain that is used and not named is meant in its newest version.
        self.opsets.get(domain).copied().unwrap_or(i64::MAX)
    }
}

/// A subgraph at a place of the model.
struct Body<'s, 'g, 'a> {
    importer: &'s Importer<'g, 'a>,
    scope: &'s Scope<'s, 'g, 'a>,
    graph: proto::Graph<'a>,
    inputs: Vec<&'a str>,
    outputs: Vec<&'a str>,
}

impl<'g> Subgraph<'g> for Body<'_, 'g, '_> {
    fn inputs(&self) -> usize {
        self.inputs.len()
    }

    fn outputs(&self) -> usize {
        self.outputs.len()
    }

    fn build(&self, args: &[Var<'g>]) -> Result<Vec<Var<'g>>> {
        if args.len() != self.inputs.len() {
            let text = format!("a subgraph has {} inputs, not {}", self.inputs.len(), args.len());
            return Err(Error::new(Code::Operands, text));
        }
        let scope = self.scope.inner();
        for (name, arg) in self.inputs.iter().zip(args) {
            scope.define(name, Value::One(*arg))?;
        }
        for t in self.graph.initializers()? {
            let value = self.importer.data(t.name()?, self.importer.data.read(t)?)?;
            scope.define(t.name()?, Value::One(value))?;
            scope.note(t.name()?, t.data_type()?);
        }
        self.importer.walk(&scope, self.graph.nodes()?)?;
        self.outputs.iter().map(|name| scope.result(name)).collect()
    }

    fn attempt(&self, args: &[Var<'g>]) -> Result<Vec<Var<'g>>> {
        let i = self.importer;
        let (failed, errors) = (i.failures.borrow().len(), i.g.errors().len());
        let (reported, unequal) = (i.reported.get(), i.unequal.borrow().clone());
        let built = self.build(args);
        let failures = i.failures.borrow_mut().split_off(failed);
        let error = failures.into_iter().next().map(|f| f.error).or(built.as_ref().err().cloned());
        let Some(error) = error else { return built };
        i.g.take_errors(errors);
        i.reported.set(reported);
        i.unequal.replace(unequal);
        Err(error)
    }
}

fn missing(name: &str) -> Error {
    bad(format!("the value {name:?} is used, but no node before gives it"))
}

impl<'g, 'a> Importer<'g, 'a> {
    /// Data as a value: part of the graph, or a param.
    fn data(&self, name: &str, array: Array) -> Result<Var<'g>> {
        let count: usize = array.shape().iter().product();
        if count <= INLINE || self.g.in_region() {
            return Ok(self.g.constant(array.to_tensor()?));
        }
        let shape: Vec<Dim> = array.shape().iter().map(|d| Dim::from(*d)).collect();
        let ty = Type::new(array.dtype(), shape);
        let name = self.names.borrow_mut().take(name);
        if count <= VISIBLE {
            return Ok(self.g.port(&name, ty, PortKind::Param, Some(Source::Inline(array.to_tensor()?))));
        }
        let port = self.g.port(&name, ty, PortKind::Param, None);
        self.params.borrow_mut().push((name, array));
        Ok(port)
    }

    /// Imports nodes in order.
    fn walk(&self, scope: &Scope<'_, 'g, 'a>, nodes: Vec<proto::Node<'a>>) -> Result<()> {
        if scope.depth > MAX_DEPTH {
            return Err(bad(format!("subgraphs and functions nest deeper than {MAX_DEPTH}")));
        }
        for node in nodes {
            self.nodes.set(self.nodes.get() + 1);
            if self.nodes.get() > self.most {
                return Err(bad("functions call each other too often: the model would have too many nodes"));
            }
            self.node(scope, node)?;
            if self.unequal.borrow().is_some() || self.failures.borrow().len() >= MAX_FAILURES {
                return Err(bad("the import ends here"));
            }
        }
        Ok(())
    }

    fn node(&self, scope: &Scope<'_, 'g, 'a>, node: proto::Node<'a>) -> Result<()> {
        let (op, domain, outputs) = (node.op()?, node.domain()?, node.outputs()?);
        let mut operands = Vec::new();
        for name in node.inputs()? {
            operands.push(match name {
                "" => Value::Absent,
                name => scope.find(name).ok_or_else(|| missing(name))?,
            });
        }
        let label = match node.name()? {
            "" => format!("node {}", self.nodes.get()),
            name => name.to_string(),
        };
        let line = u32::try_from(self.nodes.get()).unwrap_or(u32::MAX);
        let loc = Loc::Text { file: self.file.clone(), line, column: 1 };
        let made = self.g.on_behalf(&loc, || self.apply(scope, node, op, domain, &operands, &outputs));
        let mut made = made.unwrap_or_else(|e| {
            self.g.on_behalf(&loc, || self.g.fail(e));
            Vec::new()
        });
        // Errors of the builder, and the one above.
        let errors = self.g.errors_from(self.reported.get());
        self.reported.set(self.reported.get() + errors.len());
        for error in errors {
            if let Some((a, b)) = error.bad_sizes() {
                self.unequal.borrow_mut().get_or_insert_with(|| (a.clone(), b.clone()));
            }
            let version = match scope.opset(domain) {
                i64::MAX => String::new(),
                v => format!(", version {v}"),
            };
            let domain = if domain.is_empty() { String::new() } else { format!("{domain}.") };
            let failure = Failure { node: label.clone(), op: format!("{domain}{op}{version}"), error };
            self.failures.borrow_mut().push(failure);
        }
        made.resize(made.len().max(outputs.len()), Value::One(self.g.poison()));
        for (name, value) in outputs.iter().zip(made).filter(|(name, _)| !name.is_empty()) {
            scope.define(name, value)?;
        }
        Ok(())
    }

    /// The outputs of a node.
    fn apply(
        &self,
        scope: &Scope<'_, 'g, 'a>,
        node: proto::Node<'a>,
        op: &str,
        domain: &str,
        operands: &[Value<'g>],
        outputs: &[&'a str],
    ) -> Result<Vec<Value<'g>>> {
        let held: Vec<(&'a str, Held<'a>)> =
            node.attributes()?.into_iter().map(|a| Ok((a.name()?, a.held()?))).collect::<Result<_>>()?;
        let function = self.functions.get(&(domain, op, node.overload()?)).copied();
        let opset = scope.opset(domain);
        let rule = onnx::find(domain, op, opset);
        let sequence = sequence::is_sequence_op(domain, op);
        let (list, others) = match operands.split_first() {
            Some((Value::List(entries), others)) if sequence => (Some(&entries[..]), others),
            _ => (None, operands),
        };
        if others.iter().any(|v| matches!(v, Value::List(_))) {
            return Err(Error::new(Code::Unsupported, "an operand is a sequence"));
        }
        let mut operands: Vec<Option<Var<'g>>> = operands.iter().map(Value::one).collect();
        while let Some(None) = operands.last() {
            operands.pop();
        }
        if function.is_none() && rule.is_none() && !sequence {
            let why = match onnx::find(domain, op, i64::MAX) {
                Some((first, _)) => format!("RLX knows the op from version {} on", first.since),
                None => "RLX has no such op".to_string(),
            };
            return Err(Error::new(Code::Unsupported, why));
        }
        if op == "Constant"
            && domain.is_empty()
            && let Some((_, Held::Tensor(t))) = held.iter().find(|(n, _)| *n == "value")
        {
            let name = outputs.first().copied().unwrap_or_default();
            scope.note(name, t.data_type()?);
            return Ok(vec![Value::One(self.data(name, self.data.read(*t)?)?)]);
        }
        // What it needs has failed already.
        if operands.iter().flatten().chain(list.into_iter().flatten()).any(|v| v.is_poison()) {
            return Ok(Vec::new());
        }
        let mut bodies = HashMap::new();
        for (name, h) in &held {
            if let Held::Graph(graph) = h {
                let names = |list: Vec<proto::ValueInfo<'a>>| {
                    list.iter().map(|v| v.name()).collect::<Result<Vec<_>>>()
                };
                let (inputs, outputs) = (names(graph.inputs()?)?, names(graph.outputs()?)?);
                bodies.insert(*name, Body { importer: self, scope, graph: *graph, inputs, outputs });
            }
        }
        let mut attrs: BTreeMap<&str, Attr<'_, 'g>> = BTreeMap::new();
        for (name, h) in held {
            let attr = match h {
                Held::Ref(outer) => match scope.attrs.get(outer) {
                    Some(a) => a.clone(),
                    None => continue,
                },
                Held::Graph(_) => match bodies.get(name) {
                    Some(body) => Attr::Graph(body),
                    None => continue,
                },
                h => self.attr(name, h)?,
            };
            attrs.insert(name, attr);
        }
        if let Some(f) = function {
            let made = self.call(scope, f, &attrs, &operands)?;
            return Ok(made.into_iter().map(Value::One).collect());
        }
        let wanted: Vec<bool> = outputs.iter().map(|o| !o.is_empty()).collect();
        let narrow: Vec<_> = node.inputs()?.into_iter().map(|name| scope.bits(name)).collect();
        let (operands, attrs, wanted, narrow) = (operands.as_slice(), &attrs, &wanted, &narrow);
        let call = Call { g: self.g, name: op, opset, operands, attrs, wanted, narrow };
        let Some((rule, def)) = rule else {
            return Ok(vec![sequence::apply(&call, list)?]);
        };
        let made = match rule.how {
            How::Same => call.same(def),
            How::By(build) => build(&call),
        };
        Ok(made?.into_iter().map(Value::One).collect())
    }

    /// An attribute that is no graph.
    fn attr<'t>(&self, name: &str, held: Held<'a>) -> Result<Attr<'t, 'g>> {
        Ok(match held {
            Held::Int(i) => Attr::Int(i),
            Held::Float(f) => Attr::Float(f),
            Held::Text(t) => Attr::Text(t.into()),
            Held::Tensor(t) => Attr::Tensor(self.data.read(t)?.to_tensor()?),
            Held::Ints(v) => Attr::Ints(v),
            Held::Floats(v) => Attr::Floats(v),
            Held::Texts(v) => Attr::Texts(v.into_iter().map(Into::into).collect()),
            Held::Ref(_) | Held::Graph(_) | Held::Other => {
                return Err(Error::new(Code::Unsupported, format!("the kind of attribute {name}")));
            }
        })
    }

    /// The body of a function in place of a call of it.
    fn call(
        &self,
        scope: &Scope<'_, 'g, 'a>,
        f: proto::Function<'a>,
        attrs: &BTreeMap<&str, Attr<'_, 'g>>,
        operands: &[Option<Var<'g>>],
    ) -> Result<Vec<Var<'g>>> {
        let opsets: HashMap<&str, i64> = f.opsets()?.into_iter().collect();
        let mut all = attrs.clone();
        for a in f.defaults()? {
            let name = a.name()?;
            if !all.contains_key(name) {
                all.insert(name, self.attr(name, a.held()?)?);
            }
        }
        let inner = Scope {
            parent: None,
            values: RefCell::default(),
            narrow: RefCell::default(),
            opsets: &opsets,
            attrs: &all,
            depth: scope.depth + 1,
        };
        for (i, name) in f.inputs()?.into_iter().enumerate() {
            let operand = operands.get(i).copied().flatten();
            inner.define(name, operand.map_or(Value::Absent, Value::One))?;
        }
        self.walk(&inner, f.nodes()?)?;
        f.outputs()?.iter().map(|name| inner.result(name)).collect()
    }

    /// The error that tells all failures at once, and by the model's names the inputs whose values would help.
    fn error(&self, inputs: &[Named]) -> Option<Error> {
        let failures = self.failures.borrow();
        if failures.is_empty() {
            return None;
        }
        let mut groups: Vec<(&str, String, Vec<&str>)> = Vec::new();
        for f in failures.iter() {
            let why = reason(&f.error);
            match groups.iter().position(|(op, text, _)| *op == f.op && *text == why) {
                Some(k) => groups.get_mut(k).into_iter().for_each(|g| g.2.push(&f.node)),
                None if groups.len() < 64 => groups.push((&f.op, why, vec![&f.node])),
                None => {}
            }
        }
        let told = |(op, why, nodes): &(&str, String, Vec<&str>)| {
            let named: Vec<&str> = nodes.iter().take(16).copied().collect();
            let more = nodes.len().saturating_sub(named.len());
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!("{}{more} ({op}): {why}", named.join(", "))
        };
        let list: Vec<String> = groups.iter().map(told).collect();
        let has = |code: Code| failures.iter().any(|f| f.error.code() == code);
        let code = [Code::Unsupported, Code::Undetermined].into_iter().find(|c| has(*c));
        let code = code.or_else(|| failures.first().map(|f| f.error.code())).unwrap_or(Code::Unsupported);
        let asked: BTreeSet<&String> = failures.iter().flat_map(|f| f.error.inputs()).collect();
        let asked = inputs.iter().filter(|n| asked.contains(&n.name)).map(|n| n.onnx.clone());
        let text = format!(
            "{} of {} nodes cannot be imported: {}",
            failures.len(),
            self.nodes.get(),
            list.join("; ")
        );
        Some(Error::new(code, text).with_inputs(asked.collect()))
    }
}

/// The words of an error without its place, which is the importer's own.
fn reason(e: &Error) -> String {
    let text = e.to_string();
    let text = text.split("; at ").next().unwrap_or_default();
    text.split_once(": ").map_or(text, |(_, rest)| rest).to_string()
}

/// An axis of an input.
enum Axis<'a> {
    /// A number.
    Size(i64),
    /// A symbol, and what the model calls it.
    Open(String, &'a str),
}

/// The dtype and axes of an input.
fn declared<'a>(v: proto::ValueInfo<'a>, options: &Options) -> Result<(DType, Vec<Axis<'a>>)> {
    let name = v.name()?;
    let ty = v.ty()?.map(|t| t.tensor()).transpose()?.flatten();
    let ty = ty.ok_or_else(|| Error::new(Code::Unsupported, format!("input {name:?} is not a tensor")))?;
    let dtype = onnx::dtype(ty.elem_type()?).about(format!("input {name:?}"))?;
    let shape = ty.shape()?.ok_or_else(|| {
        Error::new(Code::Unsupported, format!("the model does not say how many axes input {name:?} has"))
    })?;
    let axis = |(axis, d): (usize, proto::Dimension<'a>)| {
        let (value, param) = (d.value()?, d.param()?);
        let given = options.axes.get(&(name.to_string(), axis)).or_else(|| options.sizes.get(param)).copied();
        Ok(match (given, value) {
            (Some(n), _) => Axis::Size(n),
            (None, Some(n)) if n >= 0 => Axis::Size(n),
            // Some exporters write -1 for what is open, as a number or as a name, or call every open axis `?`.
            _ if param.contains(char::is_alphanumeric) && param.parse::<i64>().is_err() => {
                Axis::Open(plain(param), param)
            }
            _ => Axis::Open(format!("{}_{axis}", plain(name)), ""),
        })
    };
    Ok((dtype, shape.into_iter().enumerate().map(axis).collect::<Result<_>>()?))
}

/// The bounds of all symbols.
fn bounds(inputs: &[proto::ValueInfo<'_>], options: &Options) -> Result<HashMap<String, i64>> {
    let mut out = HashMap::new();
    for v in inputs {
        // What is wrong with an input is said when it is declared.
        let Ok((_, axes)) = declared(*v, options) else { continue };
        let sizes = options.shapes.get(v.name()?);
        for (i, axis) in axes.into_iter().enumerate() {
            let Axis::Open(symbol, param) = axis else { continue };
            let asked = options.bounds.get(param).or_else(|| options.bounds.get(&symbol)).copied();
            let size = sizes.and_then(|s| s.get(i)).map_or(0, |n| i64::try_from(*n).unwrap_or(i64::MAX));
            let bound = out.entry(symbol).or_insert(asked.unwrap_or(BOUND));
            *bound = size.max(*bound);
        }
    }
    Ok(out)
}

/// The names that nodes use, subgraphs included.
fn used<'a>(nodes: &[proto::Node<'a>], out: &mut HashSet<&'a str>, depth: usize) -> Result<usize> {
    if depth > MAX_DEPTH {
        return Err(bad(format!("subgraphs nest deeper than {MAX_DEPTH}")));
    }
    let mut count = nodes.len();
    for n in nodes {
        out.extend(n.inputs()?);
        for a in n.attributes()? {
            if let Held::Graph(g) = a.held()? {
                for o in g.outputs()? {
                    out.insert(o.name()?);
                }
                count += used(&g.nodes()?, out, depth + 1)?;
            }
        }
    }
    Ok(count)
}

/// Imports a model, with as many assumptions about its sizes as it takes.
pub(super) fn import(
    model: proto::Model<'_>,
    data: &Data,
    file: &str,
    options: &Options,
) -> Result<Imported> {
    let mut assumed = Assumed::default();
    loop {
        let g = Graph::new(plain(file));
        match attempt(model, data, file, options, &assumed, &g)? {
            Ok(imported) => return Ok(imported),
            Err((error, unequal)) => {
                let next =
                    unequal.is_some_and(|(a, b)| assumed.len() < MAX_ASSUMPTIONS && assumed.equal(&a, &b));
                if !next {
                    return Err(error);
                }
            }
        }
    }
}

/// An error, and two sizes that would have to be equal, if that was the cause.
type Obstacle = (Error, Option<(Dim, Dim)>);

fn attempt<'a>(
    model: proto::Model<'a>,
    data: &'a Data,
    file: &str,
    options: &Options,
    assumed: &Assumed,
    g: &Graph,
) -> Result<Result<Imported, Obstacle>> {
    let main = model.graph()?.ok_or_else(|| bad("the model has no graph"))?;
    if main.has_sparse()? {
        return Err(Error::new(Code::Unsupported, "the model has sparse tensors"));
    }
    let opsets: HashMap<&str, i64> =
        model.opsets()?.into_iter().map(|(d, v)| (if d == "ai.onnx" { "" } else { d }, v)).collect();
    let nodes = main.nodes()?;
    let mut names = HashSet::new();
    let mut total = used(&nodes, &mut names, 0)?;
    let mut functions = HashMap::new();
    for f in model.functions()? {
        total += f.nodes()?.len();
        functions.insert((f.domain()?, f.name()?, f.overload()?), f);
    }
    for o in main.outputs()? {
        names.insert(o.name()?);
    }
    let importer = Importer {
        g,
        data,
        file: file.into(),
        functions,
        names: RefCell::default(),
        params: RefCell::default(),
        failures: RefCell::default(),
        reported: Cell::new(0),
        nodes: Cell::new(0),
        most: total.saturating_mul(64).saturating_add(1024),
        unequal: RefCell::default(),
    };
    let none = BTreeMap::new();
    let scope = Scope {
        parent: None,
        values: RefCell::default(),
        narrow: RefCell::default(),
        opsets: &opsets,
        attrs: &none,
        depth: 0,
    };

    let initial = main.initializers()?;
    let initial_names: HashSet<&str> = initial.iter().map(|t| t.name()).collect::<Result<_>>()?;
    let mut inputs = Vec::new();
    let bounds = bounds(&main.inputs()?, options)?;
    for v in main.inputs()? {
        let name = v.name()?;
        if initial_names.contains(name) {
            continue; // Old files list data among the inputs.
        }
        if let Some(ty) = v.ty()?.map(|t| t.tensor()).transpose()?.flatten() {
            scope.note(name, ty.elem_type()?);
        }
        if let Some(t) = options.values.get(name) {
            scope.define(name, Value::One(g.constant(t.clone())))?;
            continue;
        }
        let port = importer.names.borrow_mut().take(name);
        let (dtype, axes) = declared(v, options)?;
        let dim = |axis| match axis {
            Axis::Size(n) => Dim::constant(n),
            Axis::Open(s, _) => assumed.apply(Dim::sym(&s, bounds.get(&s).copied().unwrap_or(BOUND))),
        };
        let ty = Type::new(dtype, axes.into_iter().map(dim).collect::<Vec<_>>());
        let var = g.port(&port, ty, PortKind::Input, None);
        scope.define(name, Value::One(var))?;
        inputs.push(Named { onnx: name.to_string(), name: port });
    }
    for t in initial {
        let name = t.name()?;
        if names.contains(name) {
            let value = importer.data(name, data.read(t)?)?;
            scope.define(name, Value::One(value))?;
            scope.note(name, t.data_type()?);
        }
    }
    if let Some(e) = g.errors().into_iter().next() {
        return Err(e);
    }
    let walked = importer.walk(&scope, nodes);
    if let Some(e) = importer.error(&inputs) {
        return Ok(Err((e, importer.unequal.take())));
    }
    walked?;

    let (mut outputs, mut taken) = (Vec::new(), Names::default());
    for v in main.outputs()? {
        let name = v.name()?;
        let value = scope.result(name)?;
        let own = taken.take(name);
        g.output(&own, value);
        outputs.push(Named { onnx: name.to_string(), name: own });
    }
    let func = without_idle_params(&transform::dce(&g.finish()?)?)?;
    let kept: HashSet<&str> = func.ports.iter().map(|p| p.name.as_str()).collect();
    let mut params = importer.params.take();
    params.retain(|(name, _)| kept.contains(name.as_str()));
    Ok(Ok(Imported { params, inputs, outputs, assumed: assumed.words(), func }))
}

/// Without the params that nothing needs: data that decided shapes only.
fn without_idle_params(f: &Func) -> Result<Func> {
    let uses =
        f.nodes.iter().flat_map(|n| n.operands.iter().flatten()).chain(f.outputs.iter().map(|o| &o.value));
    let used: HashSet<_> = uses.collect();
    let keep = |p: &rlx_ir::func::Port| p.kind == PortKind::Input || used.contains(&p.value);
    transform::keep_ports(f, &f.ports.iter().map(keep).collect::<Vec<_>>())
}

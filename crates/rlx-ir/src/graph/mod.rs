//! The builder: a [`Graph`] under construction and handles ([`Var`]) to its values.
//!
//! Every method infers the shape of what it makes. An error is kept with the caller's line and poisons the handle;
//! [`Graph::finish`] reports it, so a graph with an error in it never becomes a [`Func`].

mod known;
mod var;

pub use known::Known;

use crate::attr::{AttrValue, Attributes};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{Code, Error, Loc, Result};
use crate::func::{Def, Func, Node, Output, Port, PortKind, Source, ValueId, ValueInfo};
use crate::op::{Cx, Meaning, OpDef};
use crate::tensor::Tensor;
use crate::types::{Shape, Type};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

const POISON: ValueId = ValueId(u32::MAX);
/// How deeply regions may be nested.
pub const MAX_DEPTH: usize = 64;

/// A graph under construction.
pub struct Graph {
    /// The graph itself and, above it, the regions that are being built: new nodes go to the last.
    scopes: RefCell<Vec<Scope>>,
    /// How many scopes there have been.
    opened: Cell<u32>,
    errors: RefCell<Vec<Error>>,
    /// Where nodes come from while a transform or a body writes them on behalf of an older node.
    behalf: RefCell<Option<Loc>>,
}

/// What a graph or a region holds so far.
#[derive(Default)]
struct Scope {
    id: u32,
    name: String,
    ports: Vec<Port>,
    values: Vec<ValueInfo>,
    nodes: Vec<Node>,
    outputs: Vec<Output>,
    output_names: HashSet<String>,
    /// The names that are taken, each with the number to try next for another thing of that name.
    names: HashMap<String, u32>,
    /// The values of enclosing scopes (scope, value) that are used here, in the order of their ports.
    captures: Vec<(u32, ValueId)>,
    captured: HashMap<(u32, ValueId), ValueId>,
    /// What is known of its values.
    learnt: known::Learnt,
}

impl Scope {
    fn add_port(
        &mut self,
        name: &str,
        ty: Type,
        kind: PortKind,
        source: Option<Source>,
        loc: Loc,
    ) -> ValueId {
        let diff = kind == PortKind::Param && ty.dtype.is_float();
        let value = ValueId(self.values.len() as u32);
        self.values.push(ValueInfo { ty, name: None, def: Def::Port(self.ports.len() as u32) });
        self.ports.push(Port { name: name.to_string(), value, kind, diff, source, loc });
        value
    }

    /// Takes the name, or the next free one behind it.
    fn take_name(&mut self, name: &str) -> String {
        let mut unique = name.to_string();
        let mut k = self.names.get(name).copied().unwrap_or(1);
        while self.names.contains_key(&unique) {
            unique = format!("{name}.{k}");
            k += 1;
        }
        self.names.insert(name.to_string(), k);
        self.names.entry(unique.clone()).or_insert(1);
        unique
    }
}

/// Says what stands for a node in a copy: from the node and the operands' copies to the results' copies.
pub type CopyNode<'c, 'g> = dyn FnMut(&'g Graph, &Node, Vec<Option<Var<'g>>>) -> Result<Vec<Var<'g>>> + 'c;

/// A handle to a value of a [`Graph`].
#[derive(Clone, Copy)]
pub struct Var<'g> {
    graph: &'g Graph,
    scope: u32,
    id: ValueId,
}

/// A region that has been built: how many results its closure gave and, unless there was an error, the closed function
/// and the values that it captures.
pub struct Built<'g> {
    /// The number of results.
    pub results: usize,
    /// The function, and the values of the enclosing scope that are its last inputs.
    pub func: Option<(Arc<Func>, Vec<Var<'g>>)>,
}

/// What a builder's method takes as an operand: a handle, an optional handle, several, or a number, which becomes a
/// constant of the first operand's dtype.
pub trait Operand<'g> {
    /// Appends to the list of operands.
    fn push(self, first: Var<'g>, list: &mut Vec<Option<Var<'g>>>);
}

impl<'g> Operand<'g> for Var<'g> {
    fn push(self, _: Var<'g>, list: &mut Vec<Option<Var<'g>>>) {
        list.push(Some(self))
    }
}
impl<'g> Operand<'g> for Option<Var<'g>> {
    fn push(self, _: Var<'g>, list: &mut Vec<Option<Var<'g>>>) {
        list.push(self)
    }
}
impl<'g> Operand<'g> for &[Var<'g>] {
    fn push(self, _: Var<'g>, list: &mut Vec<Option<Var<'g>>>) {
        list.extend(self.iter().copied().map(Some))
    }
}
impl<'g> Operand<'g> for f64 {
    #[track_caller]
    fn push(self, first: Var<'g>, list: &mut Vec<Option<Var<'g>>>) {
        list.push(Some(first.scalar(self)))
    }
}

/// Turns the results of an op into an array; poison where there are too few.
pub fn several<'g, const N: usize>((g, vars): (&'g Graph, Vec<Var<'g>>)) -> [Var<'g>; N] {
    std::array::from_fn(|i| vars.get(i).copied().unwrap_or_else(|| g.poison()))
}

impl Graph {
    /// An empty graph.
    pub fn new(name: impl Into<String>) -> Graph {
        let scope = Scope { name: name.into(), ..Scope::default() };
        Graph {
            scopes: RefCell::new(vec![scope]),
            opened: Cell::new(0),
            errors: RefCell::default(),
            behalf: RefCell::default(),
        }
    }

    /// Reads the scope that nodes go to.
    fn top<T>(&self, f: impl FnOnce(&Scope) -> T) -> T {
        f(self.scopes.borrow().last().unwrap_or(&Scope::default()))
    }

    /// Changes the scope that nodes go to.
    fn top_mut<T>(&self, f: impl FnOnce(&mut Scope) -> T) -> T {
        f(self.scopes.borrow_mut().last_mut().unwrap_or(&mut Scope::default()))
    }

    /// Whether a region is being built.
    pub fn in_region(&self) -> bool {
        self.scopes.borrow().len() > 1
    }

    fn handle(&self, id: ValueId) -> Var<'_> {
        Var { graph: self, scope: self.top(|s| s.id), id }
    }

    /// An input, given anew at every run.
    #[track_caller]
    pub fn input<D: Into<Dim>>(
        &self,
        name: &str,
        dtype: DType,
        shape: impl IntoIterator<Item = D>,
    ) -> Var<'_> {
        let shape: Shape = shape.into_iter().map(Into::into).collect();
        self.port(name, Type::new(dtype, shape), PortKind::Input, None)
    }

    /// A param: a weight, set once. Marked as one whose gradient training wants.
    #[track_caller]
    pub fn param<D: Into<Dim>>(
        &self,
        name: &str,
        dtype: DType,
        shape: impl IntoIterator<Item = D>,
    ) -> Var<'_> {
        let shape: Shape = shape.into_iter().map(Into::into).collect();
        self.port(name, Type::new(dtype, shape), PortKind::Param, None)
    }

    /// An input or param of that type.
    #[track_caller]
    pub fn port(&self, name: &str, ty: Type, kind: PortKind, source: Option<Source>) -> Var<'_> {
        match self.check_port(name, &ty, kind, source.as_ref()) {
            Ok(()) => {
                let loc = self.loc();
                let id = self.top_mut(|s| {
                    s.names.insert(name.to_string(), 1);
                    s.add_port(name, ty, kind, source, loc)
                });
                self.handle(id)
            }
            Err(e) => self.fail(e),
        }
    }

    fn check_port(&self, name: &str, ty: &Type, kind: PortKind, source: Option<&Source>) -> Result<()> {
        ty.check().map_err(|e| e.operand(name))?;
        if self.in_region() {
            return Err(Error::new(Code::Region, "inputs and params are declared outside of regions"));
        }
        match source {
            Some(_) if kind == PortKind::Input => {
                return Err(Error::new(
                    Code::BadInput,
                    format!("only params have data, {name:?} is an input"),
                ));
            }
            Some(Source::Inline(t)) if t.ty() != *ty => {
                let message = format!("the data of {name} are {}, but it is declared {ty}", t.ty());
                return Err(Error::new(Code::BadInput, message));
            }
            _ => {}
        }
        if !is_name(name) {
            let message = format!("{name:?} is not a name: letters, digits, _ and . only");
            return Err(Error::new(Code::Name, message));
        }
        if self.top(|s| s.names.contains_key(name)) {
            return Err(Error::new(Code::Name, format!("the name {name:?} is taken")));
        }
        Ok(())
    }

    /// Names a result of the graph.
    #[track_caller]
    pub fn output(&self, name: &str, value: Var<'_>) {
        if self.in_region() {
            self.fail(Error::new(Code::Region, "outputs are named outside of regions"));
        } else if let Some(id) = self.resolved(value) {
            if !is_name(name) || !self.top_mut(|s| s.output_names.insert(name.to_string())) {
                self.fail(Error::new(Code::Name, format!("{name:?} is no name, or names two outputs")));
                return;
            }
            self.top_mut(|s| s.outputs.push(Output { name: name.to_string(), value: id }));
        }
    }

    /// The name under which a value is an output.
    pub fn output_name(&self, value: Var<'_>) -> Option<String> {
        let own = std::ptr::eq(value.graph, self);
        self.top(|s| s.outputs.iter().find(|o| own && o.value == value.id).map(|o| o.name.clone()))
    }

    /// The errors so far.
    pub fn errors(&self) -> Vec<Error> {
        self.errors.borrow().clone()
    }

    /// Forgets the errors from the `n`-th on and gives them: what was tried went wrong, and something else is done.
    pub fn take_errors(&self, n: usize) -> Vec<Error> {
        let mut errors = self.errors.borrow_mut();
        let n = n.min(errors.len());
        errors.split_off(n)
    }

    /// The errors from the `n`-th on.
    pub fn errors_from(&self, n: usize) -> Vec<Error> {
        self.errors.borrow().get(n..).unwrap_or_default().to_vec()
    }

    /// The finished graph, or the first error.
    pub fn finish(&self) -> Result<Func> {
        if let Some(first) = self.errors.borrow().first() {
            return Err(first.clone());
        }
        if self.in_region() {
            return Err(Error::new(Code::Region, "a region of the graph is still being built"));
        }
        let func = self.top(canonical);
        func.symbols()?;
        if cfg!(debug_assertions) {
            crate::verify::verify(&func)?;
        }
        Ok(func)
    }

    /// A graph to go on building from a finished one.
    pub fn from_func(f: &Func) -> Result<Graph> {
        let g = Graph::new(f.name.clone());
        {
            let args = g.declare_ports(f);
            let outs = g.inline(f, &args)?;
            for (o, v) in f.outputs.iter().zip(outs) {
                g.output(&o.name, v);
            }
        }
        Ok(g)
    }

    /// Declares the same ports as `f` has.
    pub fn declare_ports(&self, f: &Func) -> Vec<Var<'_>> {
        let declare = |p: &Port| match f.ty(p.value) {
            Ok(ty) => self.on_behalf(&p.loc, || {
                self.port(&p.name, ty.clone(), p.kind, p.source.clone()).set_diff(p.diff)
            }),
            Err(e) => self.fail(e),
        };
        f.ports.iter().map(declare).collect()
    }

    /// Copies the nodes of `f`, with `args` for its ports, and gives its outputs.
    pub fn inline<'g>(&'g self, f: &Func, args: &[Var<'g>]) -> Result<Vec<Var<'g>>> {
        self.inline_with(f, args, &mut |g, node, operands| Ok(g.emit_at(node, operands)))
    }

    /// Like [`inline`](Graph::inline), with `copy` to say what stands for each node.
    pub fn inline_with<'g>(
        &'g self,
        f: &Func,
        args: &[Var<'g>],
        copy: &mut CopyNode<'_, 'g>,
    ) -> Result<Vec<Var<'g>>> {
        let mut map: Vec<Var<'g>> = vec![self.poison(); f.values.len()];
        let broken = || Error::new(Code::Verify, "a value is used that does not exist");
        if args.len() != f.ports.len() {
            let message = format!("{} has {} ports, not {}", f.name, f.ports.len(), args.len());
            return Err(Error::new(Code::Operands, message));
        }
        for (port, arg) in f.ports.iter().zip(args) {
            *map.get_mut(port.value.0 as usize).ok_or_else(broken)? = *arg;
        }
        for node in &f.nodes {
            let look = |o: &Option<ValueId>| match o {
                None => Ok(None),
                Some(v) => map.get(v.0 as usize).copied().map(Some).ok_or_else(broken),
            };
            let operands = node.operands.iter().map(look).collect::<Result<Vec<_>>>()?;
            let results = self.on_behalf(&node.loc, || copy(self, node, operands))?;
            for (r, v) in node.results.iter().zip(results) {
                if let Some(name) = f.value(*r)?.name.as_deref() {
                    v.name_if_free(name);
                }
                *map.get_mut(r.0 as usize).ok_or_else(broken)? = v;
            }
        }
        f.outputs.iter().map(|o| map.get(o.value.0 as usize).copied().ok_or_else(broken)).collect()
    }

    /// Writes a node like `node`, with other operands.
    pub fn emit_at<'g>(&'g self, node: &Node, operands: Vec<Option<Var<'g>>>) -> Vec<Var<'g>> {
        self.on_behalf(&node.loc, || self.emit(node.op, node.attrs.clone(), operands, node.regions.clone()))
    }

    /// Runs `f`, whose nodes are noted as coming from `loc`.
    pub fn on_behalf<T>(&self, loc: &Loc, f: impl FnOnce() -> T) -> T {
        let old = self.behalf.replace(Some(loc.clone()));
        let out = f();
        self.behalf.replace(old);
        out
    }

    #[track_caller]
    fn loc(&self) -> Loc {
        // Not `unwrap_or_else`: the caller would be its line.
        match &*self.behalf.borrow() {
            Some(loc) => loc.clone(),
            None => Loc::caller(),
        }
    }

    /// A handle that stands for an error.
    pub fn poison(&self) -> Var<'_> {
        self.handle(POISON)
    }

    /// Keeps an error and gives a poisoned handle.
    #[track_caller]
    pub fn fail(&self, e: Error) -> Var<'_> {
        let e = e.at(self.loc());
        self.errors.borrow_mut().push(e);
        self.poison()
    }

    /// The number of nodes so far.
    pub fn node_count(&self) -> usize {
        self.top(|s| s.nodes.len())
    }

    /// A copy of the node of that index.
    pub fn node(&self, i: usize) -> Option<Node> {
        self.top(|s| s.nodes.get(i).cloned())
    }

    /// A handle to a value by its id in this graph.
    pub fn var(&self, id: ValueId) -> Var<'_> {
        let exists = self.top(|s| (id.0 as usize) < s.values.len());
        self.handle(if exists { id } else { POISON })
    }

    /// Replaces attributes and regions of a node and adds results to it; used when a gradient needs more of a loop
    /// than its results.
    pub fn extend_node(
        &self,
        i: usize,
        attrs: Vec<AttrValue>,
        regions: Vec<Arc<Func>>,
    ) -> Result<Vec<Var<'_>>> {
        let node = self.node(i).ok_or_else(|| Error::new(Code::Verify, "no such node"))?;
        let types: Vec<Option<Type>> = node.operands.iter().map(|o| o.map(|v| self.var(v).ty())).collect();
        let results = node.op.infer_types(&attrs, &types, &regions).map_err(|e| e.at(node.loc.clone()))?;
        let ids = self.top_mut(|s| {
            let mut ids = node.results.clone();
            for (k, ty) in results.into_iter().enumerate().skip(node.results.len()) {
                ids.push(ValueId(s.values.len() as u32));
                s.values.push(ValueInfo { ty, name: None, def: Def::Node(i as u32, k as u32) });
            }
            if let Some(n) = s.nodes.get_mut(i) {
                *n = Node { attrs, regions, results: ids.clone(), ..node };
            }
            ids
        });
        Ok(ids.into_iter().map(|id| self.handle(id)).collect())
    }

    /// Applies an op without regions.
    #[track_caller]
    pub fn call_op<'g, A: Attributes>(
        &'g self,
        def: &'static OpDef,
        attrs: &A,
        operands: Vec<Option<Var<'g>>>,
    ) -> (&'g Graph, Vec<Var<'g>>) {
        (self, self.emit(def, attrs.to_values(), operands, Vec::new()))
    }

    /// Applies an op: infers the types of its results and appends the node. An error poisons the results.
    #[track_caller]
    pub fn emit<'g>(
        &'g self,
        op: &'static OpDef,
        attrs: Vec<AttrValue>,
        operands: Vec<Option<Var<'g>>>,
        regions: Vec<Arc<Func>>,
    ) -> Vec<Var<'g>> {
        let result = self.try_emit(op, attrs, operands, regions, self.loc());
        if let Ok(Some(vars)) = result {
            return vars;
        }
        if let Err(e) = result {
            self.fail(e.in_op(op.name));
        }
        vec![self.poison(); op.results.len().max(1)]
    }

    /// `Ok(None)`: an operand is poisoned, so the error is known already.
    fn try_emit<'g>(
        &'g self,
        op: &'static OpDef,
        attrs: Vec<AttrValue>,
        mut operands: Vec<Option<Var<'g>>>,
        regions: Vec<Arc<Func>>,
        loc: Loc,
    ) -> Result<Option<Vec<Var<'g>>>> {
        while let Some(None) = operands.last() {
            operands.pop();
        }
        let mut ids = Vec::with_capacity(operands.len());
        for o in operands {
            ids.push(match o {
                None => None,
                Some(v) => match self.resolve(v)? {
                    None => return Ok(None),
                    id => id,
                },
            });
        }
        let ty = |s: &Scope, id: ValueId| s.values.get(id.0 as usize).map(|v| v.ty.clone());
        let types: Vec<Option<Type>> =
            self.top(|s| ids.iter().map(|id| id.and_then(|id| ty(s, id))).collect());
        let result_types = op.infer_types(&attrs, &types, &regions)?;
        let results: Vec<ValueId> = self.top_mut(|s| {
            if s.values.len() + result_types.len() >= POISON.0 as usize {
                return Err(Error::new(Code::Size, "the graph has too many values"));
            }
            let (n, first) = (s.nodes.len() as u32, s.values.len() as u32);
            for (k, ty) in result_types.into_iter().enumerate() {
                s.values.push(ValueInfo { ty, name: None, def: Def::Node(n, k as u32) });
            }
            let results: Vec<ValueId> = (first..s.values.len() as u32).map(ValueId).collect();
            s.nodes.push(Node { op, attrs, operands: ids, results: results.clone(), regions, loc });
            Ok(results)
        })?;
        Ok(Some(results.into_iter().map(|id| self.handle(id)).collect()))
    }

    /// The id of a value in the scope that nodes go to; a value of an enclosing scope is captured. `None` for poison.
    fn resolve(&self, v: Var<'_>) -> Result<Option<ValueId>> {
        if !std::ptr::eq(v.graph, self) {
            return Err(Error::new(Code::Foreign, "a value of another graph is used here"));
        }
        if v.is_poison() {
            return Ok(None);
        }
        let mut scopes = self.scopes.borrow_mut();
        let Some((top, enclosing)) = scopes.split_last_mut() else { return Ok(None) };
        if top.id == v.scope {
            return Ok(Some(v.id));
        }
        if let Some(id) = top.captured.get(&(v.scope, v.id)) {
            return Ok(Some(*id));
        }
        let owner = enclosing.iter().find(|s| s.id == v.scope);
        let info = owner.and_then(|s| s.values.get(v.id.0 as usize));
        let info =
            info.ok_or_else(|| Error::new(Code::Foreign, "a value of a region is used outside of it"))?;
        let name = top.take_name(&format!("cap{}", top.captures.len()));
        let id = top.add_port(&name, info.ty.clone(), PortKind::Input, None, Loc::Unknown);
        top.captures.push((v.scope, v.id));
        top.captured.insert((v.scope, v.id), id);
        Ok(Some(id))
    }

    /// The same, with the error kept: `None` if there is or was one.
    #[track_caller]
    fn resolved(&self, v: Var<'_>) -> Option<ValueId> {
        match self.resolve(v) {
            Ok(Some(id)) => Some(id),
            Ok(None) if self.errors.borrow().is_empty() => {
                self.fail(Error::new(Code::Operands, "a value is used that nothing gave"));
                None
            }
            Ok(None) => None,
            Err(e) => {
                self.fail(e);
                None
            }
        }
    }

    /// The same values as values of the scope that nodes go to: those of enclosing scopes are captured.
    #[track_caller]
    pub fn captured<'g>(&'g self, vars: &[Var<'g>]) -> Vec<Var<'g>> {
        vars.iter().map(|v| self.handle(self.resolved(*v).unwrap_or(POISON))).collect()
    }

    /// Builds a region with ports of the given names and types; without its type, a port is poison. While `f` runs, all
    /// nodes go to the region, and the values from outside that it uses become further inputs.
    #[track_caller]
    pub fn region<'g>(
        &'g self,
        name: &str,
        ports: &[(String, Option<Type>)],
        f: impl FnOnce(&[Var<'g>]) -> Vec<Var<'g>>,
    ) -> Built<'g> {
        let known = self.errors.borrow().len();
        if self.scopes.borrow().len() > MAX_DEPTH {
            self.fail(Error::new(Code::Nesting, format!("regions nest deeper than {MAX_DEPTH}")));
            return Built { results: 0, func: None };
        }
        self.opened.set(self.opened.get() + 1);
        let mut scope = Scope { id: self.opened.get(), name: name.to_string(), ..Scope::default() };
        let loc = self.loc();
        let mut port = |(name, ty): &(String, Option<Type>)| {
            let name = scope.take_name(name);
            let add = |ty: &Type| scope.add_port(&name, ty.clone(), PortKind::Input, None, loc.clone());
            ty.as_ref().map_or(POISON, add)
        };
        let ids: Vec<ValueId> = ports.iter().map(&mut port).collect();
        self.scopes.borrow_mut().push(scope);
        let args: Vec<Var<'g>> = ids.iter().map(|id| self.handle(*id)).collect();
        let outs = f(&args);
        let outputs: Option<Vec<ValueId>> = outs.iter().map(|o| self.resolved(*o)).collect();
        let scope = self.scopes.borrow_mut().pop();
        let failed = self.errors.borrow().len() > known || ids.contains(&POISON);
        let (Some(mut scope), Some(outputs), false) = (scope, outputs, failed) else {
            return Built { results: outs.len(), func: None };
        };
        let name = |(i, value)| Output { name: format!("r{i}"), value };
        scope.outputs = outputs.into_iter().enumerate().map(name).collect();
        let captures = scope.captures.iter().map(|(scope, id)| Var { graph: self, scope: *scope, id: *id });
        let captures = self.captured(&captures.collect::<Vec<_>>());
        Built { results: outs.len(), func: Some((Arc::new(canonical(&scope)), captures)) }
    }

    /// The body of an op as a function of the operands that are given.
    pub fn body_of(
        op: &'static OpDef,
        attrs: &[AttrValue],
        operands: &[Option<Type>],
        regions: &[Arc<Func>],
    ) -> Result<Func> {
        let Meaning::Body(body) = op.meaning else {
            return Err(Error::new(Code::Verify, "the op has no body").in_op(op.name));
        };
        let g = Graph::new(op.name);
        {
            let port = |(i, t): (usize, &Option<Type>)| {
                t.as_ref().map(|t| g.port(&format!("p{i}"), t.clone(), PortKind::Input, None))
            };
            let operands = operands.iter().enumerate().map(port).collect();
            let cx = Cx { g: &g, def: op, attrs: attrs.to_vec(), operands, regions: regions.to_vec() };
            for (i, v) in body(&cx).map_err(|e| e.in_op(op.name))?.into_iter().enumerate() {
                g.output(&format!("r{i}"), v);
            }
        }
        g.finish()
    }
}

/// Ports first, then results in the order of the nodes.
fn canonical(scope: &Scope) -> Func {
    let results = scope.nodes.iter().flat_map(|n| n.results.iter().copied());
    let mut map = vec![POISON; scope.values.len()];
    let mut values = Vec::with_capacity(scope.values.len());
    for old in scope.ports.iter().map(|p| p.value).chain(results) {
        if let (Some(slot), Some(info)) = (map.get_mut(old.0 as usize), scope.values.get(old.0 as usize)) {
            *slot = ValueId(values.len() as u32);
            values.push(info.clone());
        }
    }
    let look = |v: ValueId| map.get(v.0 as usize).copied().unwrap_or(POISON);
    let port = |p: &Port| Port { value: look(p.value), ..p.clone() };
    let node = |n: &Node| Node {
        operands: n.operands.iter().map(|o| o.map(look)).collect(),
        results: n.results.iter().map(|r| look(*r)).collect(),
        ..n.clone()
    };
    let output = |o: &Output| Output { name: o.name.clone(), value: look(o.value) };
    Func {
        name: scope.name.clone(),
        ports: scope.ports.iter().map(port).collect(),
        values,
        nodes: scope.nodes.iter().map(node).collect(),
        outputs: scope.outputs.iter().map(output).collect(),
    }
}

/// Letters, digits, `_` and `.`, not beginning with a digit.
pub fn is_name(s: &str) -> bool {
    let mut chars = s.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.')
}

impl Graph {
    /// A constant without axes. The number must be one that the dtype holds.
    #[track_caller]
    pub fn scalar(&self, dtype: DType, x: f64) -> Var<'_> {
        let t = Tensor::from_f64s(dtype, &[], &[x]);
        let back = t.as_ref().and_then(Tensor::to_f64s);
        match (t, back.as_deref()) {
            (Some(t), Some([b])) if dtype.is_float() || *b == x => self.constant(t),
            _ => self.fail(Error::new(Code::DType, format!("{x} is no {dtype}"))),
        }
    }
}

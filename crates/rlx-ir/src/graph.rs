//! The builder: a [`Graph`] under construction and handles ([`Var`]) to its values.
//!
//! Every method infers the shape of what it makes. An error is kept with the caller's line and poisons the handle;
//! [`Graph::finish`] reports it, so a graph with an error in it never becomes a [`Func`].

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
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const POISON: ValueId = ValueId(u32::MAX);
/// How deeply regions may be nested.
pub const MAX_DEPTH: usize = 64;

/// A graph under construction.
pub struct Graph {
    uid: u64,
    depth: usize,
    inner: RefCell<Inner>,
    /// Where nodes come from while a transform or a body writes them on behalf of an older node.
    behalf: RefCell<Option<Loc>>,
}

#[derive(Default)]
struct Inner {
    ports: Vec<Port>,
    values: Vec<ValueInfo>,
    nodes: Vec<Node>,
    outputs: Vec<Output>,
    name: String,
    names: HashSet<String>,
    errors: Vec<Error>,
    captures: Vec<Capture>,
    captured: HashMap<(u64, ValueId), ValueId>,
}

/// A value of an enclosing graph that a region uses.
struct Capture {
    graph: u64,
    value: ValueId,
    ty: Type,
}

/// Says what stands for a node in a copy: from the node and the operands' copies to the results' copies.
pub type CopyNode<'c, 'g> = dyn FnMut(&'g Graph, &Node, Vec<Option<Var<'g>>>) -> Result<Vec<Var<'g>>> + 'c;

/// A handle to a value of a [`Graph`].
#[derive(Clone, Copy)]
pub struct Var<'g> {
    graph: &'g Graph,
    id: ValueId,
}

/// The inside of a region: derefs to the graph to build in. `'g` is the lifetime of the enclosing graph, whose
/// values may be used inside: they become operands of the op that owns the region.
#[allow(explicit_outlives_requirements)] // the bound is what lets outer values be used inside
pub struct Region<'a, 'g: 'a> {
    graph: &'a Graph,
    _outer: PhantomData<Cell<&'a &'g ()>>,
}

impl<'a, 'g> Region<'a, 'g> {
    /// The graph to build in.
    pub fn graph(&self) -> &'a Graph {
        self.graph
    }
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
        Graph::at_depth(name.into(), 0)
    }

    fn at_depth(name: String, depth: usize) -> Graph {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let inner = RefCell::new(Inner { name, ..Inner::default() });
        Graph { uid: NEXT.fetch_add(1, Ordering::Relaxed), depth, inner, behalf: RefCell::new(None) }
    }

    /// An input, given anew at every run.
    #[track_caller]
    pub fn input<D: Into<Dim>>(
        &self,
        name: &str,
        dtype: DType,
        shape: impl IntoIterator<Item = D>,
    ) -> Var<'_> {
        let ty = Type::new(dtype, shape.into_iter().map(Into::into).collect::<Shape>());
        self.port(name, ty, PortKind::Input, None)
    }

    /// A param: a weight, set once. Marked as one whose gradient training wants.
    #[track_caller]
    pub fn param<D: Into<Dim>>(
        &self,
        name: &str,
        dtype: DType,
        shape: impl IntoIterator<Item = D>,
    ) -> Var<'_> {
        let ty = Type::new(dtype, shape.into_iter().map(Into::into).collect::<Shape>());
        self.port(name, ty, PortKind::Param, None)
    }

    /// An input or param of that type.
    #[track_caller]
    pub fn port(&self, name: &str, ty: Type, kind: PortKind, source: Option<Source>) -> Var<'_> {
        let loc = self.loc();
        let diff = kind == PortKind::Param && ty.dtype.is_float();
        if let Err(e) = ty.check() {
            return self.fail(e.operand(name).at(loc));
        }
        if let Some(Source::Inline(t)) = &source
            && t.ty() != ty
        {
            let message = format!("the data of {name} are {}, but it is declared {ty}", t.ty());
            return self.fail(Error::new(Code::BadInput, message).at(loc));
        }
        if let Err(e) = self.claim_name(name) {
            return self.fail(e.at(loc));
        }
        let mut inner = self.inner.borrow_mut();
        let def = Def::Port(inner.ports.len() as u32);
        let value = ValueId(inner.values.len() as u32);
        inner.values.push(ValueInfo { ty, name: None, def });
        inner.ports.push(Port { name: name.to_string(), value, kind, diff, source, loc });
        drop(inner);
        Var { graph: self, id: value }
    }

    /// Names a result of the graph.
    #[track_caller]
    pub fn output(&self, name: &str, value: Var<'_>) {
        let loc = self.loc();
        let resolved = match self.resolve(value) {
            Ok(Some(id)) => id,
            Ok(None) => return,
            Err(e) => {
                self.fail(e.at(loc));
                return;
            }
        };
        let mut inner = self.inner.borrow_mut();
        if !is_name(name) || inner.outputs.iter().any(|o| o.name == name) {
            let e = Error::new(Code::Name, format!("{name:?} is no name, or names two outputs"));
            inner.errors.push(e.at(loc));
            return;
        }
        inner.outputs.push(Output { name: name.to_string(), value: resolved });
    }

    /// The name under which a value is an output.
    pub fn output_name(&self, value: Var<'_>) -> Option<String> {
        self.inner.borrow().outputs.iter().find(|o| o.value == value.id).map(|o| o.name.clone())
    }

    /// The errors so far.
    pub fn errors(&self) -> Vec<Error> {
        self.inner.borrow().errors.clone()
    }

    /// The finished graph, or the first error (its message counts the others).
    pub fn finish(&self) -> Result<Func> {
        let inner = self.inner.borrow();
        if let Some(first) = inner.errors.first() {
            return Err(first.clone());
        }
        let func = canonical(&inner);
        drop(inner);
        if cfg!(debug_assertions) {
            crate::verify::verify(&func)?;
        }
        Ok(func)
    }

    /// A graph to go on building from a finished one, and its values by port and output name.
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
            Ok(ty) => {
                let v = self.on_behalf(&p.loc, || self.port(&p.name, ty.clone(), p.kind, p.source.clone()));
                v.set_diff(p.diff);
                v
            }
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
        Var { graph: self, id: POISON }
    }

    /// Keeps an error and gives a poisoned handle.
    #[track_caller]
    pub fn fail(&self, e: Error) -> Var<'_> {
        let loc = self.loc();
        self.inner.borrow_mut().errors.push(e.at(loc));
        self.poison()
    }

    /// The number of nodes so far.
    pub fn node_count(&self) -> usize {
        self.inner.borrow().nodes.len()
    }

    /// A copy of the node of that index.
    pub fn node(&self, i: usize) -> Option<Node> {
        self.inner.borrow().nodes.get(i).cloned()
    }

    /// A handle to a value by its id in this graph.
    pub fn var(&self, id: ValueId) -> Var<'_> {
        let exists = (id.0 as usize) < self.inner.borrow().values.len();
        Var { graph: self, id: if exists { id } else { POISON } }
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
        let mut inner = self.inner.borrow_mut();
        let mut ids = node.results.clone();
        for (k, ty) in results.into_iter().enumerate().skip(node.results.len()) {
            ids.push(ValueId(inner.values.len() as u32));
            inner.values.push(ValueInfo { ty, name: None, def: Def::Node(i as u32, k as u32) });
        }
        if let Some(n) = inner.nodes.get_mut(i) {
            *n = Node { attrs, regions, results: ids.clone(), ..node };
        }
        drop(inner);
        Ok(ids.into_iter().map(|id| Var { graph: self, id }).collect())
    }

    /// Applies an op in the innermost graph that the operands belong to.
    #[track_caller]
    pub fn call_op<'g, A: Attributes>(
        &'g self,
        def: &'static OpDef,
        attrs: &A,
        operands: Vec<Option<Var<'g>>>,
    ) -> (&'g Graph, Vec<Var<'g>>) {
        let inner = operands.iter().flatten().map(|v| v.graph);
        let g = inner.fold(self, |a, b| if b.depth > a.depth { b } else { a });
        (g, g.emit(def, attrs.to_values(), operands, Vec::new()))
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
        let loc = self.loc();
        let poison = || vec![self.poison(); op.results.len().max(1)];
        match self.try_emit(op, attrs, operands, regions, loc.clone()) {
            Ok(Some(vars)) => vars,
            Ok(None) => poison(),
            Err(e) => {
                self.inner.borrow_mut().errors.push(e.in_op(op.name).at(loc));
                poison()
            }
        }
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
        if operands.iter().flatten().any(|v| v.is_poison()) {
            return Ok(None);
        }
        let types: Vec<Option<Type>> = operands.iter().map(|o| o.map(|v| v.ty())).collect();
        let result_types = op.infer_types(&attrs, &types, &regions)?;
        let mut ids = Vec::with_capacity(operands.len());
        for o in operands {
            ids.push(match o {
                Some(v) => self.resolve(v)?,
                None => None,
            });
        }
        let mut inner = self.inner.borrow_mut();
        if inner.values.len() + result_types.len() >= POISON.0 as usize {
            return Err(Error::new(Code::Size, "the graph has too many values"));
        }
        let n = inner.nodes.len() as u32;
        let first = inner.values.len() as u32;
        for (k, ty) in result_types.into_iter().enumerate() {
            inner.values.push(ValueInfo { ty, name: None, def: Def::Node(n, k as u32) });
        }
        let results: Vec<ValueId> = (first..inner.values.len() as u32).map(ValueId).collect();
        inner.nodes.push(Node { op, attrs, operands: ids, results: results.clone(), regions, loc });
        drop(inner);
        Ok(Some(results.into_iter().map(|id| Var { graph: self, id }).collect()))
    }

    /// The id of a value in this graph; a value of an enclosing graph is captured. `None` for poison.
    fn resolve(&self, v: Var<'_>) -> Result<Option<ValueId>> {
        if v.is_poison() {
            return Ok(None);
        }
        if v.graph.uid == self.uid {
            return Ok(Some(v.id));
        }
        self.capture(v.graph.uid, v.id, v.ty(), v.graph.depth).map(Some)
    }

    fn capture(&self, graph: u64, value: ValueId, ty: Type, depth: usize) -> Result<ValueId> {
        if self.depth <= depth {
            return Err(Error::new(Code::Foreign, "a value of another graph is used here"));
        }
        if let Some(id) = self.inner.borrow().captured.get(&(graph, value)) {
            return Ok(*id);
        }
        let k = self.inner.borrow().captures.len();
        let v = self.port(&format!("cap{k}"), ty.clone(), PortKind::Input, None);
        let mut inner = self.inner.borrow_mut();
        inner.captures.push(Capture { graph, value, ty });
        inner.captured.insert((graph, value), v.id);
        Ok(v.id)
    }

    /// The same values as values of this graph: those of enclosing graphs are captured.
    pub fn captured<'g>(&'g self, vars: &[Var<'_>]) -> Vec<Var<'g>> {
        let own = |v: &Var<'_>| match self.resolve(*v) {
            Ok(Some(id)) => Var { graph: self, id },
            Ok(None) => self.poison(),
            Err(e) => self.fail(e),
        };
        vars.iter().map(own).collect()
    }

    /// Builds a region with ports of the given names and types. Gives the closed function and the values of this
    /// graph that it captures; they follow the ports as further inputs of the function.
    #[track_caller]
    pub fn region<'g>(
        &'g self,
        name: &str,
        ports: &[(String, Type)],
        f: impl for<'a> FnOnce(Region<'a, 'g>, &[Var<'a>]) -> Vec<Var<'a>>,
    ) -> Result<(Arc<Func>, Vec<Var<'g>>)> {
        if self.depth >= MAX_DEPTH {
            return Err(Error::new(Code::Nesting, format!("regions nest deeper than {MAX_DEPTH}")));
        }
        let inner = Graph::at_depth(name.to_string(), self.depth + 1);
        let args: Vec<Var<'_>> =
            ports.iter().map(|(n, t)| inner.port(n, t.clone(), PortKind::Input, None)).collect();
        let outs = f(Region { graph: &inner, _outer: PhantomData }, &args);
        for (i, o) in outs.iter().enumerate() {
            if o.is_poison() && inner.errors().is_empty() {
                return Err(Error::new(
                    Code::Region,
                    "a result of the region is an error of the enclosing graph",
                ));
            }
            inner.output(&format!("r{i}"), *o);
        }
        let func = inner.finish()?;
        let captures = std::mem::take(&mut inner.inner.borrow_mut().captures);
        let mut vars = Vec::new();
        for c in captures {
            vars.push(if c.graph == self.uid {
                Var { graph: self, id: c.value }
            } else {
                Var { graph: self, id: self.capture(c.graph, c.value, c.ty, 0)? }
            });
        }
        Ok((Arc::new(func), vars))
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

    fn claim_name(&self, name: &str) -> Result<()> {
        if !is_name(name) {
            return Err(Error::new(
                Code::Name,
                format!("{name:?} is not a name: letters, digits, _ and . only"),
            ));
        }
        if !self.inner.borrow_mut().names.insert(name.to_string()) {
            return Err(Error::new(Code::Name, format!("the name {name:?} is taken")));
        }
        Ok(())
    }
}

/// Ports first, then results in the order of the nodes.
fn canonical(inner: &Inner) -> Func {
    let order =
        inner.ports.iter().map(|p| p.value).chain(inner.nodes.iter().flat_map(|n| n.results.iter().copied()));
    let mut map = HashMap::new();
    let mut values = Vec::with_capacity(inner.values.len());
    for old in order {
        map.insert(old, ValueId(values.len() as u32));
        values.extend(inner.values.get(old.0 as usize).cloned());
    }
    let look = |v: ValueId| map.get(&v).copied().unwrap_or(POISON);
    let port = |p: &Port| Port { value: look(p.value), ..p.clone() };
    let node = |n: &Node| Node {
        operands: n.operands.iter().map(|o| o.map(look)).collect(),
        results: n.results.iter().map(|r| look(*r)).collect(),
        ..n.clone()
    };
    Func {
        name: inner.name.clone(),
        ports: inner.ports.iter().map(port).collect(),
        values,
        nodes: inner.nodes.iter().map(node).collect(),
        outputs: inner
            .outputs
            .iter()
            .map(|o| Output { name: o.name.clone(), value: look(o.value) })
            .collect(),
    }
}

/// Letters, digits, `_` and `.`, not beginning with a digit.
pub fn is_name(s: &str) -> bool {
    let mut chars = s.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.')
}

impl<'g> Var<'g> {
    /// The graph that the value belongs to.
    pub fn graph(self) -> &'g Graph {
        self.graph
    }
    /// The id in that graph.
    pub fn id(self) -> ValueId {
        self.id
    }
    /// Whether it stands for an error.
    pub fn is_poison(self) -> bool {
        self.id == POISON
    }

    /// The type; an empty `f32` for a poisoned handle.
    pub fn ty(self) -> Type {
        let inner = self.graph.inner.borrow();
        let info = inner.values.get(self.id.0 as usize);
        info.map_or_else(|| Type::new(DType::F32, Shape::new()), |i| i.ty.clone())
    }
    /// The sizes of the axes.
    pub fn shape(self) -> Shape {
        self.ty().shape
    }
    /// The element type.
    pub fn dtype(self) -> DType {
        self.ty().dtype
    }
    /// The number of axes.
    pub fn rank(self) -> usize {
        self.ty().shape.len()
    }
    /// The size of an axis, which may count from the end; 1 if there is none.
    pub fn dim(self, axis: i64) -> Dim {
        let shape = self.shape();
        let i = crate::types::resolve_axis(axis, shape.len()).ok();
        i.and_then(|i| shape.get(i).cloned()).unwrap_or(Dim::constant(1))
    }

    /// Names the value, for printing and for errors. A name that is taken gets a number.
    pub fn named(self, name: &str) -> Var<'g> {
        if !is_name(name) {
            return self.graph.fail(Error::new(Code::Name, format!("{name:?} is not a name")));
        }
        let free = |g: &Graph, n: &str| !g.inner.borrow().names.contains(n);
        let candidates = (1..).map(|i| format!("{name}.{i}"));
        let unique = std::iter::once(name.to_string()).chain(candidates).find(|n| free(self.graph, n));
        if let Some(n) = unique {
            self.name_if_free(&n);
        }
        self
    }

    fn name_if_free(self, name: &str) {
        let mut inner = self.graph.inner.borrow_mut();
        let taken = inner.names.contains(name);
        let Some(info) = inner.values.get_mut(self.id.0 as usize) else { return };
        if taken || info.name.is_some() || matches!(info.def, Def::Port(_)) {
            return;
        }
        info.name = Some(name.to_string());
        inner.names.insert(name.to_string());
    }

    /// Marks a port as one whose gradient training wants, or not.
    pub fn set_diff(self, diff: bool) -> Var<'g> {
        let mut inner = self.graph.inner.borrow_mut();
        inner.ports.iter_mut().filter(|p| p.value == self.id).for_each(|p| p.diff = diff);
        drop(inner);
        self
    }

    /// The name of the port that the value is.
    pub fn port_name(self) -> Option<String> {
        let inner = self.graph.inner.borrow();
        inner.ports.iter().find(|p| p.value == self.id).map(|p| p.name.clone())
    }

    /// A constant without axes, of this value's dtype.
    #[track_caller]
    pub fn scalar(self, x: f64) -> Var<'g> {
        self.graph.scalar(self.dtype(), x)
    }
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

//! The graph while it is rewritten: nodes that can be added, replaced and forgotten in constant time.
//!
//! A value knows its users, so a replacement touches nobody else; equal nodes are found by a hash, so building
//! one that exists gives the one that exists. Types are inferred for new nodes only.

use rlx_ir::attr::{AttrValue, Attributes};
use rlx_ir::func::{Def, Node, Output, Port, PortKind, ValueInfo};
use rlx_ir::op::OpDef;
use rlx_ir::ops::control::Barrier;
use rlx_ir::ops::elementwise::{Add, And, Equal, Mul, NotEqual, Or, Xor};
use rlx_ir::{Code, Error, Func, Graph, Loc, Result, Tensor, Type, ValueId};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// A value of the graph under work.
pub type V = ValueId;

/// A node of the graph under work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct N(pub u32);

/// What is known of a value.
struct Value {
    ty: Type,
    name: Option<String>,
    def: Option<(N, u32)>,
    /// The nodes that use it, once per operand.
    users: Vec<N>,
    /// How many outputs it is.
    outputs: u32,
}

struct Item {
    node: Node,
    alive: bool,
    queued: bool,
}

/// The graph under work.
pub struct Work {
    name: String,
    ports: Vec<Port>,
    values: Vec<Value>,
    items: Vec<Item>,
    outputs: Vec<Output>,
    queue: VecDeque<N>,
    /// Nodes by the hash of what they compute. An entry may be stale: what it names is compared.
    equal: HashMap<u64, Vec<N>>,
    /// Where new nodes are noted as coming from.
    hashes: RefCell<DataHashes>,
    loc: Loc,
    /// How many elements may still be folded: a graph that is nothing but constants is left to its run.
    foldable: i64,
}

/// Ops whose operands may change places without changing a bit of the result.
fn commutes(op: &'static OpDef) -> bool {
    [Add::DEF, Mul::DEF, Equal::DEF, NotEqual::DEF, And::DEF, Or::DEF, Xor::DEF]
        .iter()
        .any(|d| std::ptr::eq(*d, op))
}

fn hash_attr(a: &AttrValue, hashes: &mut DataHashes, h: &mut DefaultHasher) {
    match a {
        AttrValue::Absent => 0u8.hash(h),
        AttrValue::Int(x) => x.hash(h),
        AttrValue::Float(x) => x.to_bits().hash(h),
        AttrValue::Bool(x) => x.hash(h),
        AttrValue::Text(x) => x.hash(h),
        AttrValue::Word(x) => x.hash(h),
        AttrValue::Ints(x) => x.hash(h),
        AttrValue::Floats(x) => x.iter().for_each(|x| x.to_bits().hash(h)),
        AttrValue::Dim(x) => x.hash(h),
        AttrValue::Dims(x) => x.hash(h),
        AttrValue::DType(x) => x.hash(h),
        AttrValue::Tensor(t) => {
            (t.dtype(), t.shape()).hash(h);
            hashes.of(t).hash(h);
        }
    }
}

/// Hashes of data, each computed once: data may be large, and are looked at often.
#[derive(Default)]
struct DataHashes(HashMap<*const u8, (Tensor, u64)>);

impl DataHashes {
    fn of(&mut self, t: &Tensor) -> u64 {
        let compute = || {
            let mut h = DefaultHasher::new();
            t.planes().iter().for_each(|p| p.hash(&mut h));
            h.finish()
        };
        if t.bytes().len() <= 64 {
            return compute();
        }
        // The data are held, so that an address stays theirs.
        self.0.entry(t.bytes().as_ptr()).or_insert_with(|| (t.clone(), compute())).1
    }
}

/// The operands in the order in which equal applications have them.
fn ordered(op: &'static OpDef, operands: &[Option<V>]) -> [Option<V>; 2] {
    let (a, b) = (operands.first().copied().flatten(), operands.get(1).copied().flatten());
    if commutes(op) && b < a { [b, a] } else { [a, b] }
}

fn same_operands(op: &'static OpDef, a: &[Option<V>], b: &[Option<V>]) -> bool {
    a == b || (commutes(op) && ordered(op, a) == ordered(op, b))
}

impl Work {
    /// A copy of the graph to work on.
    pub fn new(f: &Func) -> Result<Work> {
        let mut w = Work {
            name: f.name.clone(),
            ports: f.ports.clone(),
            values: Vec::with_capacity(f.values.len()),
            items: Vec::with_capacity(f.nodes.len()),
            outputs: Vec::new(),
            queue: VecDeque::new(),
            equal: HashMap::with_capacity(f.nodes.len()),
            hashes: RefCell::default(),
            loc: Loc::Unknown,
            foldable: 1 << 22,
        };
        for i in &f.values {
            let def = match i.def {
                Def::Port(_) => None,
                Def::Node(n, k) => Some((N(n), k)),
            };
            w.values.push(Value {
                ty: i.ty.clone(),
                name: i.name.clone(),
                def,
                users: Vec::new(),
                outputs: 0,
            });
        }
        for node in &f.nodes {
            w.place(node.clone());
        }
        for o in &f.outputs {
            w.outputs.push(o.clone());
            w.values.get_mut(o.value.0 as usize).ok_or_else(broken)?.outputs += 1;
        }
        Ok(w)
    }

    /// Appends a node whose results exist.
    fn place(&mut self, node: Node) -> N {
        let n = N(self.items.len() as u32);
        for o in node.operands.iter().flatten() {
            self.values.get_mut(o.0 as usize).into_iter().for_each(|v| v.users.push(n));
        }
        self.items.push(Item { node, alive: true, queued: false });
        n
    }

    /// Forgets what was built since there were `count` nodes; none of it may be in use.
    pub(super) fn rollback(&mut self, count: usize) {
        while self.items.len() > count {
            let Some(item) = self.items.pop() else { return };
            let n = N(self.items.len() as u32);
            if item.alive {
                item.node.operands.iter().flatten().for_each(|o| self.unuse(*o, n));
            }
            self.values.truncate(self.values.len() - item.node.results.len());
        }
    }

    pub(super) fn count(&self) -> usize {
        self.items.len()
    }

    fn unuse(&mut self, v: V, by: N) {
        if let Some(v) = self.values.get_mut(v.0 as usize)
            && let Some(i) = v.users.iter().rposition(|u| *u == by)
        {
            v.users.swap_remove(i);
        }
    }

    // ---- reading ----

    /// The node, unless it is gone.
    pub fn node(&self, n: N) -> Option<&Node> {
        self.items.get(n.0 as usize).filter(|i| i.alive).map(|i| &i.node)
    }
    /// The node that defines the value, and which of its results it is.
    pub fn def(&self, v: V) -> Option<(N, u32)> {
        self.values.get(v.0 as usize).and_then(|v| v.def)
    }
    /// The node of that op of which the value is the first result.
    pub fn by(&self, v: V, op: &'static OpDef) -> Option<N> {
        self.def(v).filter(|(n, k)| *k == 0 && self.is(*n, op)).map(|d| d.0)
    }
    /// The op that defines the value.
    pub fn op_of(&self, v: V) -> Option<&'static OpDef> {
        self.def(v).and_then(|d| self.node(d.0)).map(|n| n.op)
    }
    /// Whether the node is an application of the op.
    pub fn is(&self, n: N, op: &'static OpDef) -> bool {
        self.node(n).is_some_and(|i| std::ptr::eq(i.op, op))
    }
    /// An operand of the node.
    pub fn x(&self, n: N, i: usize) -> Option<V> {
        self.node(n)?.operands.get(i).copied().flatten()
    }
    /// The first two operands of the node.
    pub fn xy(&self, n: N) -> Option<(V, V)> {
        Some((self.x(n, 0)?, self.x(n, 1)?))
    }
    /// The operand of the application of a one-operand op that the value is.
    pub fn arg(&self, v: V, op: &'static OpDef) -> Option<V> {
        self.x(self.by(v, op)?, 0)
    }
    /// The operands of the application of a two-operand op that the value is.
    pub fn args(&self, v: V, op: &'static OpDef) -> Option<(V, V)> {
        self.xy(self.by(v, op)?)
    }
    /// The first result of the node.
    pub fn y(&self, n: N) -> Option<V> {
        self.node(n)?.results.first().copied()
    }
    /// The attributes of the node.
    pub fn attrs<A: Attributes>(&self, n: N) -> Option<A> {
        A::from_values(&self.node(n)?.attrs)
    }
    /// The type of a value.
    pub fn ty(&self, v: V) -> Option<&Type> {
        self.values.get(v.0 as usize).map(|v| &v.ty)
    }
    /// The number of axes of a value.
    pub fn rank(&self, v: V) -> Option<usize> {
        self.ty(v).map(Type::rank)
    }
    /// How often the value is used, by operands and outputs.
    pub fn uses(&self, v: V) -> usize {
        self.values.get(v.0 as usize).map_or(0, |v| v.users.len() + v.outputs as usize)
    }
    /// Whether the value is used exactly once.
    pub fn once(&self, v: V) -> bool {
        self.uses(v) == 1
    }
    /// The nodes that use the value, once per operand.
    pub fn users(&self, v: V) -> &[N] {
        self.values.get(v.0 as usize).map_or(&[], |v| &v.users)
    }
    /// Whether the value is an output.
    pub fn is_output(&self, v: V) -> bool {
        self.values.get(v.0 as usize).is_some_and(|v| v.outputs > 0)
    }
    /// Whether the value is a param.
    pub fn is_param(&self, v: V) -> bool {
        self.ports.get(v.0 as usize).is_some_and(|p| p.value == v && p.kind == PortKind::Param)
    }

    // ---- writing ----

    /// Applies an op; gives the results of an equal node if there is one. `None` if the op refuses.
    pub fn apply(
        &mut self,
        op: &'static OpDef,
        attrs: Vec<AttrValue>,
        mut operands: Vec<Option<V>>,
        regions: Vec<Arc<Func>>,
    ) -> Option<Vec<V>> {
        while let Some(None) = operands.last() {
            operands.pop();
        }
        let hash = self.hash(op, &attrs, &operands);
        if let Some(n) = self.find(hash, op, &attrs, &operands, &regions, None) {
            return self.node(n).map(|n| n.results.clone());
        }
        self.fresh(op, attrs, operands, regions)
    }

    /// The same without looking for an equal node.
    pub fn fresh(
        &mut self,
        op: &'static OpDef,
        attrs: Vec<AttrValue>,
        operands: Vec<Option<V>>,
        regions: Vec<Arc<Func>>,
    ) -> Option<Vec<V>> {
        let types: Vec<Option<Type>> = operands.iter().map(|o| o.and_then(|v| self.ty(v).cloned())).collect();
        let results = op.infer_types(&attrs, &types, &regions).ok()?;
        let hash = self.hash(op, &attrs, &operands);
        Some(self.push(hash, op, attrs, operands, regions, results.into_iter().map(|t| (t, None)).collect()))
    }

    fn push(
        &mut self,
        hash: u64,
        op: &'static OpDef,
        attrs: Vec<AttrValue>,
        operands: Vec<Option<V>>,
        regions: Vec<Arc<Func>>,
        results: Vec<(Type, Option<String>)>,
    ) -> Vec<V> {
        let n = N(self.items.len() as u32);
        let first = self.values.len() as u32;
        for (k, (ty, name)) in results.into_iter().enumerate() {
            let def = Some((n, k as u32));
            self.values.push(Value { ty, name, def, users: Vec::new(), outputs: 0 });
        }
        let results: Vec<V> = (first..self.values.len() as u32).map(ValueId).collect();
        let node = Node { op, attrs, operands, results: results.clone(), regions, loc: self.loc.clone() };
        self.place(node);
        let list = self.equal.entry(hash).or_default();
        list.retain(|n| self.items.get(n.0 as usize).is_some_and(|i| i.alive));
        list.push(n);
        results
    }

    /// Applies an op that has one result.
    pub fn emit<A: Attributes>(&mut self, op: &'static OpDef, attrs: &A, xs: &[V]) -> Option<V> {
        self.emit_opt(op, attrs, xs.iter().copied().map(Some).collect())
    }

    /// The same with operands that may be left out.
    pub fn emit_opt<A: Attributes>(
        &mut self,
        op: &'static OpDef,
        attrs: &A,
        xs: Vec<Option<V>>,
    ) -> Option<V> {
        self.apply(op, attrs.to_values(), xs, Vec::new())?.first().copied()
    }

    /// Applies an op without attributes that has one result.
    pub fn plain(&mut self, op: &'static OpDef, xs: &[V]) -> Option<V> {
        self.apply(op, Vec::new(), xs.iter().copied().map(Some).collect(), Vec::new())?.first().copied()
    }

    /// The same node with other operands.
    pub fn again(&mut self, n: N, operands: Vec<Option<V>>) -> Option<Vec<V>> {
        let node = self.node(n)?;
        let (op, attrs, regions) = (node.op, node.attrs.clone(), node.regions.clone());
        self.apply(op, attrs, operands, regions)
    }

    /// Copies the nodes of a function, with `args` for its ports, and gives its outputs.
    pub fn inline(&mut self, f: &Func, args: &[V]) -> Option<Vec<V>> {
        let mut map: HashMap<V, V> = HashMap::with_capacity(f.values.len());
        for (p, a) in f.ports.iter().zip(args) {
            if f.ty(p.value).ok()? != self.ty(*a)? {
                return None;
            }
            map.insert(p.value, *a);
        }
        for node in &f.nodes {
            let look = |o: &Option<V>| match o {
                None => Some(None),
                Some(v) => map.get(v).copied().map(Some),
            };
            let operands = node.operands.iter().map(look).collect::<Option<Vec<_>>>()?;
            let hash = self.hash(node.op, &node.attrs, &operands);
            let results = match self.find(hash, node.op, &node.attrs, &operands, &node.regions, None) {
                Some(n) => self.node(n)?.results.clone(),
                None => {
                    let info = |r: &V| f.value(*r).ok().map(|i| (i.ty.clone(), i.name.clone()));
                    let types = node.results.iter().map(info).collect::<Option<Vec<_>>>()?;
                    self.push(hash, node.op, node.attrs.clone(), operands, node.regions.clone(), types)
                }
            };
            map.extend(node.results.iter().copied().zip(results));
        }
        f.outputs.iter().map(|o| map.get(&o.value).copied()).collect()
    }

    /// The body of a composite op in place of its application.
    pub fn expand(&mut self, n: N) -> Option<Vec<V>> {
        let node = self.node(n)?;
        let types: Vec<Option<Type>> =
            node.operands.iter().map(|o| o.and_then(|v| self.ty(v).cloned())).collect();
        let body = Graph::body_of(node.op, &node.attrs, &types, &node.regions).ok()?;
        let given: Vec<V> = node.operands.iter().flatten().copied().collect();
        self.inline(&body, &given)
    }

    /// Puts `new` in the place of `old` everywhere. Refused if their types differ.
    pub fn replace(&mut self, old: V, new: V) -> bool {
        if old == new || self.ty(old) != self.ty(new) {
            return old == new;
        }
        let Some(o) = self.values.get_mut(old.0 as usize) else { return false };
        let users = std::mem::take(&mut o.users);
        let (outputs, name) = (std::mem::take(&mut o.outputs), o.name.take());
        for n in &users {
            let Some(item) = self.items.get_mut(n.0 as usize) else { continue };
            item.node.operands.iter_mut().flatten().filter(|v| **v == old).for_each(|v| *v = new);
            self.enqueue(*n);
        }
        if outputs > 0 {
            self.outputs.iter_mut().filter(|o| o.value == old).for_each(|o| o.value = new);
        }
        if let Some(v) = self.values.get_mut(new.0 as usize) {
            v.users.extend(users);
            v.outputs += outputs;
            if v.name.is_none() && v.def.is_some() {
                v.name = name;
            }
        }
        if let Some((n, _)) = self.def(old) {
            self.sweep(n);
        }
        true
    }

    /// Forgets the node if nothing uses it, and then what only it used.
    pub(super) fn sweep(&mut self, n: N) {
        let mut stack = vec![n];
        while let Some(n) = stack.pop() {
            let Some(node) = self.node(n) else { continue };
            if node.results.iter().any(|r| self.uses(*r) > 0) {
                continue;
            }
            let Some(item) = self.items.get_mut(n.0 as usize) else { continue };
            item.alive = false;
            // The dead keep nothing: long lists of operands and large data would add up.
            item.node.attrs = Vec::new();
            for v in std::mem::take(&mut item.node.operands).into_iter().flatten() {
                self.unuse(v, n);
                stack.extend(self.def(v).map(|d| d.0));
            }
        }
    }

    /// Counts elements that are to be folded; whether they may be.
    pub(super) fn may_fold(&mut self, elements: i64) -> bool {
        self.foldable -= elements.max(1);
        self.foldable >= 0
    }

    pub(super) fn set_regions(&mut self, n: N, regions: Vec<Arc<Func>>) {
        self.items.get_mut(n.0 as usize).into_iter().for_each(|i| i.node.regions = regions.clone());
    }

    pub(super) fn set_loc(&mut self, n: N) {
        self.loc = self.node(n).map_or(Loc::Unknown, |n| n.loc.clone());
    }

    // ---- the queue ----

    pub(super) fn enqueue(&mut self, n: N) {
        if let Some(i) = self.items.get_mut(n.0 as usize)
            && i.alive
            && !std::mem::replace(&mut i.queued, true)
        {
            self.queue.push_back(n);
        }
    }
    /// Every node that there is.
    pub(super) fn enqueue_all(&mut self) {
        (0..self.items.len() as u32).for_each(|n| self.enqueue(N(n)));
    }
    pub(super) fn dequeue(&mut self) -> Option<N> {
        loop {
            let n = self.queue.pop_front()?;
            let item = self.items.get_mut(n.0 as usize)?;
            item.queued = false;
            if item.alive {
                return Some(n);
            }
        }
    }

    // ---- equal nodes ----

    fn hash(&self, op: &'static OpDef, attrs: &[AttrValue], operands: &[Option<V>]) -> u64 {
        let mut h = DefaultHasher::new();
        std::ptr::from_ref(op).hash(&mut h);
        attrs.iter().for_each(|a| hash_attr(a, &mut self.hashes.borrow_mut(), &mut h));
        if operands.len() == 2 {
            ordered(op, operands).hash(&mut h);
        } else {
            operands.hash(&mut h);
        }
        h.finish()
    }

    fn find(
        &self,
        hash: u64,
        op: &'static OpDef,
        attrs: &[AttrValue],
        operands: &[Option<V>],
        regions: &[Arc<Func>],
        but: Option<N>,
    ) -> Option<N> {
        // A barrier keeps apart what is equal.
        if std::ptr::eq(op, Barrier::DEF) {
            return None;
        }
        let equal = |n: &&N| {
            Some(**n) != but
                && self.node(**n).is_some_and(|m| {
                    std::ptr::eq(m.op, op)
                        && same_operands(op, &m.operands, operands)
                        && m.attrs == attrs
                        && m.regions == regions
                })
        };
        self.equal.get(&hash)?.iter().find(equal).copied()
    }

    /// Another node that computes the same. A node that has none is remembered for those to come.
    pub(super) fn twin(&mut self, n: N) -> Option<N> {
        let node = self.node(n)?;
        let hash = self.hash(node.op, &node.attrs, &node.operands);
        let found = self.find(hash, node.op, &node.attrs, &node.operands, &node.regions, Some(n));
        if found.is_none() {
            let list = self.equal.entry(hash).or_default();
            if !list.contains(&n) {
                list.push(n);
            }
        }
        found
    }

    // ---- the end ----

    /// The finished graph: what the outputs need, operands before their users.
    pub fn finish(self) -> Result<Func> {
        let order = self.order()?;
        let mut out = Func::empty(self.name);
        let mut names: HashSet<String> = self.ports.iter().map(|p| p.name.clone()).collect();
        let mut map: HashMap<V, V> = HashMap::with_capacity(self.values.len());
        let mut place = |old: V, def: Def, values: &mut Vec<ValueInfo>| -> Result<V> {
            let v = self.values.get(old.0 as usize).ok_or_else(broken)?;
            let name = v.name.clone().filter(|n| names.insert(n.clone()));
            let new = ValueId(values.len() as u32);
            values.push(ValueInfo { ty: v.ty.clone(), name, def });
            map.insert(old, new);
            Ok(new)
        };
        for (i, p) in self.ports.into_iter().enumerate() {
            let value = place(p.value, Def::Port(i as u32), &mut out.values)?;
            out.ports.push(Port { value, ..p });
        }
        for n in &order {
            let node = self.items.get(n.0 as usize).map(|i| &i.node).ok_or_else(broken)?;
            let mut results = Vec::with_capacity(node.results.len());
            for (k, r) in node.results.iter().enumerate() {
                let def = Def::Node(out.nodes.len() as u32, k as u32);
                results.push(place(*r, def, &mut out.values)?);
            }
            out.nodes.push(Node { results, ..node.clone() });
        }
        let look = |v: V| map.get(&v).copied().ok_or_else(broken);
        for node in &mut out.nodes {
            for v in node.operands.iter_mut().flatten() {
                *v = look(*v)?;
            }
        }
        for o in self.outputs {
            out.outputs.push(Output { value: look(o.value)?, name: o.name });
        }
        Ok(out)
    }

    /// The nodes that outputs need, each after what it uses: depth first, from the first output on, so that the
    /// order depends on nothing but the graph.
    fn order(&self) -> Result<Vec<N>> {
        let mut order = Vec::with_capacity(self.items.len());
        let mut entered = vec![false; self.items.len()];
        for o in &self.outputs {
            let mut stack: Vec<(N, usize)> = Vec::new();
            let enter = |v: V, entered: &mut Vec<bool>, stack: &mut Vec<(N, usize)>| {
                if let Some((n, _)) = self.def(v)
                    && entered.get_mut(n.0 as usize).is_some_and(|e| !std::mem::replace(e, true))
                {
                    stack.push((n, 0));
                }
            };
            enter(o.value, &mut entered, &mut stack);
            while let Some((n, next)) = stack.last_mut() {
                let node = self.node(*n).ok_or_else(broken)?;
                match node.operands.get(*next) {
                    Some(v) => {
                        *next += 1;
                        v.iter().for_each(|v| enter(*v, &mut entered, &mut stack));
                    }
                    None => {
                        order.push(*n);
                        stack.pop();
                    }
                }
            }
        }
        Ok(order)
    }
}

fn broken() -> Error {
    Error::new(Code::Verify, "the graph under rewrite lost a value")
}

//! A finished graph: plain data, in an order in which every value is defined before it is used.
//!
//! A [`Func`] is what verifier, printer, oracle, transforms and the compiler read. It is made by
//! [`Graph::finish`](crate::graph::Graph::finish), by the parser, or from raw parts by an importer.

use crate::attr::{AttrValue, Attributes};
use crate::dim::Symbol;
use crate::error::{Code, Error, Loc, Result};
use crate::op::OpDef;
use crate::tensor::Tensor;
use crate::types::Type;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A value within one [`Func`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

/// What a port is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortKind {
    /// Given anew at every run.
    Input,
    /// Set once: a weight.
    Param,
}

/// Where the data of a param come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// A tensor in a safetensors file, relative to the graph's own file.
    File {
        /// The file.
        file: Arc<str>,
        /// The tensor's name in it.
        tensor: Arc<str>,
    },
    /// Written in the graph itself.
    Inline(Tensor),
}

/// A named input or param.
#[derive(Clone, Debug, PartialEq)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: ValueId,
    /// Input or param.
    pub kind: PortKind,
    /// Whether training wants its gradient.
    pub diff: bool,
    /// Where a param's data come from, if the graph says so.
    pub source: Option<Source>,
    /// Where it was declared.
    pub loc: Loc,
}

/// What defines a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Def {
    /// The port of that index.
    Port(u32),
    /// A result of the node of that index.
    Node(u32, u32),
}

/// What is known of a value.
#[derive(Clone, Debug, PartialEq)]
pub struct ValueInfo {
    /// Its type.
    pub ty: Type,
    /// Its name, if somebody gave it one.
    pub name: Option<String>,
    /// What defines it.
    pub def: Def,
}

/// An application of an op.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The op.
    pub op: &'static OpDef,
    /// Its attributes, in the order of the op's declarations.
    pub attrs: Vec<AttrValue>,
    /// Its operands; an optional one that is not given is `None`.
    pub operands: Vec<Option<ValueId>>,
    /// Its results.
    pub results: Vec<ValueId>,
    /// The bodies of control flow: closed functions, everything they use is an input of theirs.
    pub regions: Vec<Arc<Func>>,
    /// Where it was written.
    pub loc: Loc,
}

impl Node {
    /// The attributes in the op's own type.
    pub fn typed<A: Attributes>(&self) -> Result<A> {
        read_attrs(self.op, &self.attrs)
    }
}

/// Reads attributes into the op's own type.
pub fn read_attrs<A: Attributes>(op: &OpDef, attrs: &[AttrValue]) -> Result<A> {
    A::from_values(attrs).ok_or_else(|| {
        Error::new(Code::Attribute, "the attributes do not fit their declaration").in_op(op.name)
    })
}

/// A named result of the whole graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: ValueId,
}

/// A finished graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Func {
    /// Its name.
    pub name: String,
    /// Inputs and params, in the order of declaration.
    pub ports: Vec<Port>,
    /// All values; ports' values come first, then results in the order of the nodes.
    pub values: Vec<ValueInfo>,
    /// All nodes; each uses only values defined before it.
    pub nodes: Vec<Node>,
    /// The results.
    pub outputs: Vec<Output>,
}

impl Func {
    /// An empty graph.
    pub fn empty(name: impl Into<String>) -> Func {
        Func {
            name: name.into(),
            ports: Vec::new(),
            values: Vec::new(),
            nodes: Vec::new(),
            outputs: Vec::new(),
        }
    }

    /// What is known of a value.
    pub fn value(&self, v: ValueId) -> Result<&ValueInfo> {
        self.values.get(v.0 as usize).ok_or_else(|| {
            Error::new(Code::Verify, format!("value {} does not exist; there are {}", v.0, self.values.len()))
        })
    }

    /// The type of a value.
    pub fn ty(&self, v: ValueId) -> Result<&Type> {
        self.value(v).map(|i| &i.ty)
    }

    /// The port of that name.
    pub fn port(&self, name: &str) -> Option<&Port> {
        self.ports.iter().find(|p| p.name == name)
    }

    /// The port or an error that lists the names there are.
    pub fn need_port(&self, name: &str) -> Result<&Port> {
        self.port(name).ok_or_else(|| {
            let names: Vec<&str> = self.ports.iter().map(|p| p.name.as_str()).collect();
            Error::new(
                Code::UnknownName,
                format!("no input or param {name:?}; there are {}", names.join(", ")),
            )
        })
    }

    /// The output or an error that lists the names there are.
    pub fn need_output(&self, name: &str) -> Result<&Output> {
        self.outputs.iter().find(|o| o.name == name).ok_or_else(|| {
            let names: Vec<&str> = self.outputs.iter().map(|o| o.name.as_str()).collect();
            Error::new(Code::UnknownName, format!("no output {name:?}; there are {}", names.join(", ")))
        })
    }

    /// Every symbol in the types and attributes, by name. A name with two bounds is an error.
    pub fn symbols(&self) -> Result<BTreeMap<Arc<str>, i64>> {
        let mut out = BTreeMap::new();
        self.collect_symbols(&mut out)?;
        Ok(out)
    }

    fn collect_symbols(&self, out: &mut BTreeMap<Arc<str>, i64>) -> Result<()> {
        let mut add = |s: Symbol| match out.insert(s.name.clone(), s.max) {
            Some(old) if old != s.max => Err(Error::new(
                Code::Symbol,
                format!("symbol {} is bounded by {old} and by {}", s.name, s.max),
            )),
            _ => Ok(()),
        };
        for v in &self.values {
            v.ty.symbols().try_for_each(&mut add)?;
        }
        for n in &self.nodes {
            let dims = n.attrs.iter().flat_map(AttrValue::dims);
            dims.flat_map(|d| d.symbols()).try_for_each(&mut add)?;
        }
        for r in self.nodes.iter().flat_map(|n| &n.regions) {
            r.collect_symbols(out)?;
        }
        Ok(())
    }

    /// The types of the ports.
    pub fn port_types(&self) -> Result<Vec<Type>> {
        self.ports.iter().map(|p| self.ty(p.value).cloned()).collect()
    }

    /// The types of the outputs.
    pub fn output_types(&self) -> Result<Vec<Type>> {
        self.outputs.iter().map(|o| self.ty(o.value).cloned()).collect()
    }

    /// The number of nodes, those in regions included.
    pub fn size(&self) -> usize {
        self.nodes.iter().map(|n| 1 + n.regions.iter().map(|r| r.size()).sum::<usize>()).sum()
    }
}

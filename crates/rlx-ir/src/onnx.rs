//! ONNX in the op table: how a node of an ONNX graph becomes ops of RLX.
//!
//! A rule stands in the file of the op that it is about (`onnx = [rule("Gather", 1, |c| …)]`), beside everything else that
//! there is to say of the op. It gets a [`Call`]: the node's operands as handles of the graph under construction, its
//! attributes and the version of its operator set. Rules that take a page are functions in the files of the folder `onnx/`,
//! and the op's file names them. Reading files and walking graphs is the business of `rlx-formats`.
//!
//! Rules are chosen by name, domain and version: of several rules for one ONNX op the one with the largest `since` that the
//! model's operator set has reached.

pub(crate) mod attention;
pub(crate) mod boxes;
pub(crate) mod control;
pub(crate) mod indices;
pub(crate) mod norm;
pub(crate) mod quantize;
pub(crate) mod signal;
pub(crate) mod slices;
pub(crate) mod views;
pub(crate) mod window;

use crate::attr::{AttrKind, AttrValue};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::graph::{Graph, Known, Var};
use crate::op::OpDef;
use crate::tensor::Tensor;
use crate::types::resolve_axis;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock};

/// The domain of operators that ONNX itself defines.
pub const ONNX: &str = "";
/// The domain of the operators that ONNX Runtime adds and its tools write into models.
pub const MICROSOFT: &str = "com.microsoft";

/// The domain of operators that ONNX tries out.
pub const PREVIEW: &str = "ai.onnx.preview";

/// From a node to the values of its outputs. Outputs at the end that nobody wants may be left out.
pub type Build = for<'g> fn(&Call<'g, '_>) -> Result<Vec<Var<'g>>>;

/// How a rule makes its values.
#[derive(Clone, Copy)]
pub enum How {
    /// By the op itself: operands in order, attributes of the same names.
    Same,
    /// By a function.
    By(Build),
}

/// A rule for an ONNX op.
#[derive(Clone, Copy)]
pub struct Rule {
    /// The name of the ONNX op.
    pub name: &'static str,
    /// Its domain.
    pub domain: &'static str,
    /// The version of the operator set from which on the rule holds.
    pub since: i64,
    /// How.
    pub how: How,
}

/// The ONNX op of that name is the op itself: operands in order, attributes of the same names.
pub const fn same(name: &'static str) -> Rule {
    Rule { name, domain: ONNX, since: 1, how: How::Same }
}

/// A rule for an op of ONNX, from a version of its operator set on.
pub const fn rule(name: &'static str, since: i64, build: Build) -> Rule {
    Rule { name, domain: ONNX, since, how: How::By(build) }
}

/// A rule for an op of the domain `com.microsoft`.
pub const fn microsoft(name: &'static str, build: Build) -> Rule {
    Rule { name, domain: MICROSOFT, since: 1, how: How::By(build) }
}

/// A rule for an op of the domain `ai.onnx.preview`.
pub const fn preview(name: &'static str, build: Build) -> Rule {
    Rule { name, domain: PREVIEW, since: 1, how: How::By(build) }
}

/// The rules for one ONNX op, each with the op whose file it is in.
type Versions = Vec<(Rule, &'static OpDef)>;

/// All rules: for each domain and name, those of the table in the order of `since`.
static RULES: LazyLock<HashMap<(&str, &str), Versions>> = LazyLock::new(|| {
    let mut all: HashMap<(&str, &str), Versions> = HashMap::new();
    for def in crate::ops::all() {
        for r in def.onnx {
            all.entry((r.domain, r.name)).or_default().push((*r, def));
        }
    }
    all.values_mut().for_each(|v| v.sort_by_key(|(r, _)| r.since));
    all
});

/// Every rule with the op whose file it is in, sorted by domain, name and version.
pub fn rules() -> Vec<(Rule, &'static OpDef)> {
    let mut out: Vec<_> = RULES.values().flatten().copied().collect();
    out.sort_by_key(|(r, _)| (r.domain, r.name, r.since));
    out
}

/// The rule for an ONNX op at a version of its operator set.
pub fn find(domain: &str, name: &str, opset: i64) -> Option<(Rule, &'static OpDef)> {
    // ONNX's own domain has two spellings.
    let domain = if domain == "ai.onnx" { ONNX } else { domain };
    RULES.get(&(domain, name))?.iter().rev().find(|(r, _)| r.since <= opset).copied()
}

/// An attribute of an ONNX node.
#[derive(Clone)]
#[allow(missing_docs)]
pub enum Attr<'a, 'g> {
    Int(i64),
    Float(f32),
    Text(Arc<str>),
    Tensor(Tensor),
    Ints(Vec<i64>),
    Floats(Vec<f32>),
    Texts(Vec<Arc<str>>),
    Graph(&'a dyn Subgraph<'g>),
}

/// The body of a loop or branch.
pub trait Subgraph<'g> {
    /// The number of its inputs.
    fn inputs(&self) -> usize;
    /// The number of its outputs.
    fn outputs(&self) -> usize;
    /// Writes its nodes where the graph goes on now, with these values for its inputs; gives its outputs.
    fn build(&self, args: &[Var<'g>]) -> Result<Vec<Var<'g>>>;
    /// The same, but if anything in it goes wrong, all errors are forgotten and the first is given: the caller may do
    /// something else instead.
    fn attempt(&self, args: &[Var<'g>]) -> Result<Vec<Var<'g>>>;
}

/// A node of an ONNX graph, as a rule sees it.
pub struct Call<'g, 'a> {
    /// The graph under construction.
    pub g: &'g Graph,
    /// The name of the ONNX op.
    pub name: &'a str,
    /// The version of its operator set.
    pub opset: i64,
    /// The operands; `None` where an optional one is left out.
    pub operands: &'a [Option<Var<'g>>],
    /// The attributes.
    pub attrs: &'a BTreeMap<&'a str, Attr<'a, 'g>>,
    /// Which outputs anybody uses.
    pub wanted: &'a [bool],
    /// For operands that are data or inputs of fewer than eight bits: how many, and whether with a sign. RLX keeps them in bytes.
    pub narrow: &'a [Option<(u32, bool)>],
}

impl<'g, 'a> Call<'g, 'a> {
    /// A required operand.
    pub fn x(&self, i: usize) -> Result<Var<'g>> {
        self.opt(i).ok_or_else(|| Error::new(Code::Operands, format!("operand {i} is missing")))
    }

    /// The first `N` operands, all required.
    pub fn xs<const N: usize>(&self) -> Result<[Var<'g>; N]> {
        let mut out = [self.g.poison(); N];
        for (i, slot) in out.iter_mut().enumerate() {
            *slot = self.x(i)?;
        }
        Ok(out)
    }

    /// An optional operand.
    pub fn opt(&self, i: usize) -> Option<Var<'g>> {
        self.operands.get(i).copied().flatten()
    }

    /// The two operands of a binary op. Older operator sets broadcast only if an attribute asks for it, and may say at which
    /// axis of the first operand the axes of the second begin.
    pub fn pair(&self) -> Result<[Var<'g>; 2]> {
        let [x, y] = self.xs()?;
        let Some(axis) = self.int("axis")?.filter(|_| self.opset < 7) else { return Ok([x, y]) };
        let behind = x.rank().checked_sub(resolve_axis(axis, x.rank())? + y.rank());
        let behind = behind.ok_or_else(|| {
            Error::new(Code::Broadcast, format!("{} axes from axis {axis} of {} on", y.rank(), x.rank()))
        })?;
        let ones = std::iter::repeat_n(Dim::constant(1), behind);
        Ok([
            x,
            if behind == 0 { y } else { y.reshape(y.shape().into_iter().chain(ones).collect::<Vec<_>>()) },
        ])
    }

    /// All operands that are given.
    pub fn given(&self) -> Vec<Var<'g>> {
        self.operands.iter().flatten().copied().collect()
    }

    /// Whether anybody uses the output.
    pub fn wants(&self, i: usize) -> bool {
        self.wanted.get(i).copied().unwrap_or(false)
    }

    /// An error: RLX cannot do this.
    pub fn cannot(&self, what: impl Into<String>) -> Error {
        Error::new(Code::Unsupported, what)
    }

    fn wrong(&self, name: &str, want: &str) -> Error {
        Error::new(Code::Attribute, format!("attribute {name} must be {want}"))
    }

    /// An integer attribute, if it is given.
    pub fn int(&self, name: &str) -> Result<Option<i64>> {
        match self.attrs.get(name) {
            None => Ok(None),
            Some(Attr::Int(i)) => Ok(Some(*i)),
            Some(_) => Err(self.wrong(name, "an integer")),
        }
    }

    /// An integer attribute.
    pub fn int_or(&self, name: &str, default: i64) -> Result<i64> {
        Ok(self.int(name)?.unwrap_or(default))
    }

    /// An integer attribute that means yes or no.
    pub fn flag(&self, name: &str, default: bool) -> Result<bool> {
        Ok(self.int(name)?.map_or(default, |i| i != 0))
    }

    /// A float attribute, if it is given.
    pub fn float(&self, name: &str) -> Result<Option<f64>> {
        match self.attrs.get(name) {
            None => Ok(None),
            Some(Attr::Float(f)) => Ok(Some(f64::from(*f))),
            Some(_) => Err(self.wrong(name, "a float")),
        }
    }

    /// A float attribute.
    pub fn float_or(&self, name: &str, default: f64) -> Result<f64> {
        Ok(self.float(name)?.unwrap_or(default))
    }

    /// A text attribute; `default` if it is not given.
    pub fn text<'s>(&'s self, name: &str, default: &'s str) -> Result<&'s str> {
        match self.attrs.get(name) {
            None => Ok(default),
            Some(Attr::Text(t)) => Ok(t),
            Some(_) => Err(self.wrong(name, "a text")),
        }
    }

    /// An attribute that lists texts; none if it is not given.
    pub fn texts(&self, name: &str) -> Result<Vec<&str>> {
        match self.attrs.get(name) {
            None => Ok(Vec::new()),
            Some(Attr::Texts(t)) => Ok(t.iter().map(|t| &**t).collect()),
            Some(_) => Err(self.wrong(name, "a list of texts")),
        }
    }

    /// An attribute that lists integers, if it is given.
    pub fn ints(&self, name: &str) -> Result<Option<Vec<i64>>> {
        match self.attrs.get(name) {
            None => Ok(None),
            Some(Attr::Ints(v)) => Ok(Some(v.clone())),
            // A list without entries has no type in some files.
            Some(Attr::Floats(v)) if v.is_empty() => Ok(Some(Vec::new())),
            Some(_) => Err(self.wrong(name, "a list of integers")),
        }
    }

    /// An attribute that lists floats, if it is given.
    pub fn floats(&self, name: &str) -> Result<Option<Vec<f64>>> {
        match self.attrs.get(name) {
            None => Ok(None),
            Some(Attr::Floats(v)) => Ok(Some(v.iter().map(|f| f64::from(*f)).collect())),
            Some(Attr::Ints(v)) if v.is_empty() => Ok(Some(Vec::new())),
            Some(_) => Err(self.wrong(name, "a list of floats")),
        }
    }

    /// An attribute that holds data, if it is given.
    pub fn tensor(&self, name: &str) -> Result<Option<&Tensor>> {
        match self.attrs.get(name) {
            None => Ok(None),
            Some(Attr::Tensor(t)) => Ok(Some(t)),
            Some(_) => Err(self.wrong(name, "a tensor")),
        }
    }

    /// The body of a loop or branch.
    pub fn subgraph(&self, name: &str) -> Result<&'a dyn Subgraph<'g>> {
        match self.attrs.get(name) {
            Some(Attr::Graph(g)) => Ok(*g),
            _ => Err(self.wrong(name, "a graph")),
        }
    }

    /// An attribute that names a dtype by ONNX's number, if it is given and not 0.
    pub fn dtype(&self, name: &str) -> Result<Option<DType>> {
        match self.int(name)? {
            None | Some(0) => Ok(None),
            Some(n) => dtype(n).map(Some),
        }
    }

    /// What is known of an operand's elements while the graph is built: numbers, or sizes. An error of
    /// [`Code::Undetermined`] if they depend on data.
    pub fn known(&self, i: usize) -> Result<Known> {
        let x = self.x(i)?;
        self.g.known(x).ok_or_else(|| {
            let inputs = self.g.inputs_behind(x);
            let from = match inputs.is_empty() {
                true => "what is computed".to_string(),
                false => format!("the values of {}", inputs.join(", ")),
            };
            let text = format!("operand {i} decides shapes, but depends on {from}");
            Error::new(Code::Undetermined, text).with_inputs(inputs)
        })
    }

    /// The elements of an operand as sizes, which may be symbolic.
    pub fn dims(&self, i: usize) -> Result<Vec<Dim>> {
        self.known(i)?
            .dims()
            .ok_or_else(|| Error::new(Code::DType, format!("operand {i} must hold integers")))
    }

    /// The elements of an operand as constant integers.
    pub fn const_ints(&self, i: usize) -> Result<Vec<i64>> {
        let dims = self.dims(i)?;
        let all: Option<Vec<i64>> = dims.iter().map(Dim::as_const).collect();
        all.ok_or_else(|| self.cannot(format!("operand {i} must be constant, but depends on sizes")))
    }

    /// The elements of an operand as constant floats.
    pub fn const_floats(&self, i: usize) -> Result<Vec<f64>> {
        let all = self.known(i)?.floats();
        all.ok_or_else(|| self.cannot(format!("operand {i} must be constant, but depends on sizes")))
    }

    /// Integers that are an attribute in older operator sets and operand `i` in newer ones, if either is given.
    pub fn ints_or(&self, name: &str, i: usize) -> Result<Option<Vec<i64>>> {
        match self.ints(name)? {
            None if self.opt(i).is_some() => self.const_ints(i).map(Some),
            given => Ok(given),
        }
    }

    /// Sizes that are an attribute in older operator sets and operand `i` in newer ones, if either is given.
    pub fn dims_or(&self, name: &str, i: usize) -> Result<Option<Vec<Dim>>> {
        match self.ints(name)? {
            None if self.opt(i).is_some() => self.dims(i).map(Some),
            given => Ok(given.map(|v| v.into_iter().map(Dim::constant).collect())),
        }
    }

    /// One integer that is an attribute in older operator sets and operand `i` in newer ones, if either is given.
    pub fn int_at(&self, name: &str, i: usize) -> Result<Option<i64>> {
        match self.int(name)? {
            None if self.opt(i).is_some() => match self.const_ints(i)?.as_slice() {
                [n] => Ok(Some(*n)),
                other => {
                    Err(Error::new(Code::Rank, format!("operand {i} holds {} numbers, not one", other.len())))
                }
            },
            given => Ok(given),
        }
    }

    /// Applies an op as [`How::Same`] says.
    pub fn same(&self, def: &'static OpDef) -> Result<Vec<Var<'g>>> {
        let mut attrs = Vec::with_capacity(def.attrs.len());
        for spec in def.attrs {
            let value = match (spec.kind, self.attrs.get(spec.name)) {
                (_, None) => match (spec.default, spec.optional) {
                    (Some(default), _) => default(),
                    (None, true) => AttrValue::Absent,
                    (None, false) => {
                        return Err(Error::new(
                            Code::Attribute,
                            format!("attribute {} is missing", spec.name),
                        ));
                    }
                },
                (AttrKind::Int, Some(Attr::Int(i))) => AttrValue::Int(*i),
                (AttrKind::Bool, Some(Attr::Int(i))) => AttrValue::Bool(*i != 0),
                (AttrKind::Float, Some(Attr::Float(f))) => AttrValue::Float(f64::from(*f)),
                (AttrKind::Ints, Some(Attr::Ints(v))) => AttrValue::Ints(v.clone()),
                (AttrKind::DType, Some(Attr::Int(n))) => AttrValue::DType(dtype(*n)?),
                (kind, Some(_)) => return Err(self.wrong(spec.name, &kind.words())),
            };
            attrs.push(value);
        }
        // The first operator set let some ops overwrite operands.
        let meant = |n: &&&str| **n != "consumed_inputs" || self.opset >= 6;
        if let Some(name) = self.attrs.keys().filter(meant).find(|n| def.attr_index(n).is_none()) {
            return Err(self.cannot(format!("attribute {name}")));
        }
        Ok(self.g.emit(def, attrs, self.operands.to_vec(), Vec::new()))
    }
}

/// ONNX's number and name of each type of elements, and the dtype, if RLX has one.
const DTYPES: &[(i64, &str, Option<DType>)] = &[
    (1, "float", Some(DType::F32)),
    (2, "uint8", Some(DType::U8)),
    (3, "int8", Some(DType::I8)),
    (4, "uint16", Some(DType::U16)),
    (5, "int16", Some(DType::I16)),
    (6, "int32", Some(DType::I32)),
    (7, "int64", Some(DType::I64)),
    (8, "string", None),
    (9, "bool", Some(DType::Bool)),
    (10, "float16", Some(DType::F16)),
    (11, "double", Some(DType::F64)),
    (12, "uint32", Some(DType::U32)),
    (13, "uint64", Some(DType::U64)),
    (14, "complex64", None),
    (15, "complex128", None),
    (16, "bfloat16", Some(DType::BF16)),
    (17, "float8e4m3fn", Some(DType::F8E4M3)),
    (18, "float8e4m3fnuz", None),
    (19, "float8e5m2", Some(DType::F8E5M2)),
    (20, "float8e5m2fnuz", None),
    // RLX keeps four and two bits in a byte each: the values are the same, only wider.
    (21, "uint4", Some(DType::U8)),
    (22, "int4", Some(DType::I8)),
    (23, "float4e2m1", None),
    (24, "float8e8m0", None),
    (25, "uint2", Some(DType::U8)),
    (26, "int2", Some(DType::I8)),
];

/// The dtype of an ONNX number.
pub fn dtype(n: i64) -> Result<DType> {
    let known = DTYPES.iter().find(|(k, ..)| *k == n).and_then(|(.., d)| *d);
    known.ok_or_else(|| Error::new(Code::DType, format!("RLX has no dtype for ONNX's {}", type_name(n))))
}

/// What ONNX calls the type of a number.
pub fn type_name(n: i64) -> Cow<'static, str> {
    let known = DTYPES.iter().find(|(k, ..)| *k == n);
    known.map_or_else(|| format!("number {n}").into(), |(_, name, _)| (*name).into())
}

/// How many bits an element has in the data of a tensor, if that is less than a byte: 4 or 2, and whether it has a sign.
pub fn narrow(n: i64) -> Option<(u32, bool)> {
    match n {
        21 => Some((4, false)),
        22 => Some((4, true)),
        25 => Some((2, false)),
        26 => Some((2, true)),
        _ => None,
    }
}

//! From tokens to a graph. Every type is inferred; those in the text are compared with the inferred ones.

use super::lex::{Lexer, Span, Tok, clip};
use super::nearest;
use crate::attr::{AttrKind, AttrSpec, AttrValue};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{Code, Error, Loc, Result};
use crate::func::{Def, Func, Node, Output, Port, PortKind, Source, ValueId, ValueInfo};
use crate::graph::{MAX_DEPTH, is_name};
use crate::op::OpDef;
use crate::tensor::Tensor;
use crate::types::{MAX_RANK, Shape, Type};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// More operands than any op makes sense of; shape rules may cost more than a moment for each.
const MAX_OPERANDS: usize = 1 << 16;

/// How a value is referred to.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Id<'a> {
    /// By its number, which the graph does not keep.
    Temp(&'a str),
    /// By its name.
    Name(Cow<'a, str>),
}

impl std::fmt::Display for Id<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Id::Temp(s) => f.write_str(&clip(s)),
            Id::Name(s) => f.write_str(&clip(s)),
        }
    }
}

/// A graph or region that is being read.
struct Scope<'a> {
    func: Func,
    ids: HashMap<Id<'a>, ValueId>,
    outputs: HashSet<String>,
}

/// What stands left of the `=` of an op.
struct Target<'a> {
    id: Id<'a>,
    span: Span,
    ty: Option<(Type, Span)>,
}

/// What stands right of it, up to the attributes.
struct Call {
    op: &'static OpDef,
    span: Span,
    operands: Vec<Option<ValueId>>,
    spans: Vec<Span>,
}

/// Reads one graph.
pub(super) struct Parser<'a> {
    lex: Lexer<'a>,
    symbols: HashMap<Cow<'a, str>, Dim>,
    depth: usize,
}

impl<'a> Parser<'a> {
    pub(super) fn new(file: &str, text: &'a str) -> Parser<'a> {
        Parser { lex: Lexer::new(file, text), symbols: HashMap::new(), depth: 0 }
    }

    /// `graph name { … }`, and nothing after it.
    pub(super) fn graph(mut self) -> Result<Func> {
        let (tok, span) = self.lex.take()?;
        if tok != Tok::Name("graph") {
            return Err(self.lex.unexpected(&tok, span, "`graph`"));
        }
        let (name, _) = self.name("the graph's name")?;
        self.lex.expect('{')?;
        let mut scope = Scope::new(name.into_owned());
        while !self.lex.eat('}')? {
            self.item(&mut scope)?;
        }
        let (tok, span) = self.lex.take()?;
        if tok != Tok::End {
            return Err(self.lex.unexpected(&tok, span, "the end: a text holds one graph"));
        }
        crate::verify::verify(&scope.func).map_err(|e| self.lex.show(e))?;
        Ok(scope.func)
    }

    /// `type data`, and nothing after it.
    pub(super) fn tensor(mut self) -> Result<Tensor> {
        let t = self.typed_data()?;
        match self.lex.take()? {
            (Tok::End, _) => Ok(t),
            (tok, span) => Err(self.lex.unexpected(&tok, span, "the end")),
        }
    }

    fn typed_data(&mut self) -> Result<Tensor> {
        let (ty, span) = self.ty()?;
        let sizes = self.constant_sizes(&ty, &span)?;
        self.lex.data(ty.dtype, &sizes, &span)
    }

    /// A declaration, an op or an output of the outermost graph.
    fn item(&mut self, scope: &mut Scope<'a>) -> Result<()> {
        let Some(word) = self.keyword(&["dim", "input", "param", "output"])? else { return self.node(scope) };
        match word {
            "dim" => self.symbol(),
            "output" => self.output(scope),
            "input" => self.port(scope, PortKind::Input),
            _ => self.port(scope, PortKind::Param),
        }
    }

    /// Takes the next word if it is one of these and begins what it says: a value may have the same name.
    fn keyword(&mut self, words: &[&'static str]) -> Result<Option<&'static str>> {
        let (Tok::Name(s), _) = self.lex.peek()? else { return Ok(None) };
        let Some(word) = words.iter().find(|w| **w == s) else { return Ok(None) };
        let begins = matches!(self.lex.peek_second()?, Tok::Name(_) | Tok::Text(_));
        if begins {
            self.lex.take()?;
        }
        Ok(begins.then_some(*word))
    }

    /// `name <= bound`.
    fn symbol(&mut self) -> Result<()> {
        let (name, span) = self.name("the symbol's name")?;
        let (tok, at) = self.lex.take()?;
        if tok != Tok::AtMost {
            return Err(self.lex.unexpected(&tok, at, "`<=` and the symbol's bound"));
        }
        let at = self.lex.peek()?.1;
        let max = self.lex.int()?;
        let dim = Dim::sym(&name, max);
        if !dim.is_valid() {
            let message =
                format!("`{} <= {max}` is no symbol: it needs a name and a bound of 0 or more", clip(&name));
            return Err(self.lex.error(Code::Symbol, at, message));
        }
        match self.symbols.get(&name) {
            None => drop(self.symbols.insert(name, dim)),
            Some(old) => {
                let message = match old.upper() {
                    Some(m) if m != max => format!("symbol {name} is bounded by {m} and by {max}"),
                    _ => format!("symbol {name} is declared twice"),
                };
                return Err(self.lex.error(Code::Symbol, span, message));
            }
        }
        Ok(())
    }

    /// `name: type [diff] [= data | @ "file" "tensor"]`.
    fn port(&mut self, scope: &mut Scope<'a>, kind: PortKind) -> Result<()> {
        let (name, span) = self.proper_name("the name of an input or param")?;
        self.lex.expect(':')?;
        let (ty, ty_span) = self.ty()?;
        ty.check().map_err(|e| self.lex.place(e, ty_span.clone()))?;
        if !scope.func.nodes.is_empty() {
            return Err(self.lex.error(Code::Syntax, span, "inputs and params come before the first op"));
        }
        // Behind a type it is always the flag: a value of that name is quoted.
        let (tok, at) = self.lex.peek()?;
        let diff = tok == Tok::Name("diff");
        if diff {
            self.lex.take()?;
            if !ty.dtype.is_float() {
                let message = format!("{} has no gradient: only floats are marked `diff`", ty.dtype);
                return Err(self.lex.error(Code::DType, at, message));
            }
        }
        let source = self.source(kind, &ty, &ty_span)?;
        let loc = self.lex.loc(span.start);
        let def = Def::Port(scope.func.ports.len() as u32);
        let value = self.define(scope, Id::Name(name.clone()), &span, ValueInfo { ty, name: None, def })?;
        scope.func.ports.push(Port { name: name.into_owned(), value, kind, diff, source, loc });
        Ok(())
    }

    fn source(&mut self, kind: PortKind, ty: &Type, ty_span: &Span) -> Result<Option<Source>> {
        let (tok, at) = self.lex.peek()?;
        if kind == PortKind::Input && matches!(tok, Tok::Punct('@' | '=')) {
            return Err(self.lex.error(
                Code::Syntax,
                at,
                "only params have data; an input is given at every run",
            ));
        }
        if self.lex.eat('@')? {
            let file = self.text("the file's name, in quotes")?.into();
            let tensor = self.text("the tensor's name, in quotes")?.into();
            return Ok(Some(Source::File { file, tensor }));
        }
        if !self.lex.eat('=')? {
            return Ok(None);
        }
        let sizes = self.constant_sizes(ty, ty_span)?;
        Ok(Some(Source::Inline(self.lex.data(ty.dtype, &sizes, ty_span)?)))
    }

    /// `name = value`.
    fn output(&mut self, scope: &mut Scope<'a>) -> Result<()> {
        let (name, span) = self.proper_name("the output's name")?;
        self.lex.expect('=')?;
        let (id, at) = self.id()?;
        let value = self.find(scope, &id, at)?;
        if !scope.outputs.insert(name.to_string()) {
            return Err(self.lex.error(
                Code::Name,
                span,
                format!("there is an output {} already", clip(&name)),
            ));
        }
        scope.func.outputs.push(Output { name: name.into_owned(), value });
        Ok(())
    }

    /// `[target, … =] op(operands) [{attributes}] [region …]`.
    fn node(&mut self, scope: &mut Scope<'a>) -> Result<()> {
        let start = self.lex.peek()?.1.start;
        let loc = self.lex.loc(start);
        let targets = if self.lex.peek_second()? == Tok::Punct('(') { Vec::new() } else { self.targets()? };
        let call = self.call(scope)?;
        let attrs = self.attrs(call.op, &call.span)?;
        let mut regions = Vec::with_capacity(call.op.regions.len());
        for role in call.op.regions {
            regions.push(Arc::new(self.region(role)?));
        }
        self.emit(scope, targets, call, attrs, regions, loc)
    }

    fn targets(&mut self) -> Result<Vec<Target<'a>>> {
        let mut targets = Vec::new();
        loop {
            let (id, span) = self.id()?;
            let ty = if self.lex.eat(':')? { Some(self.ty()?) } else { None };
            targets.push(Target { id, span, ty });
            if !self.lex.eat(',')? {
                self.lex.expect('=')?;
                return Ok(targets);
            }
        }
    }

    fn call(&mut self, scope: &Scope<'a>) -> Result<Call> {
        let (tok, span) = self.lex.take()?;
        let Tok::Name(name) = tok else { return Err(self.lex.unexpected(&tok, span, "the name of an op")) };
        let op = crate::ops::find(name).ok_or_else(|| {
            let hint = nearest(name, crate::ops::all().iter().map(|d| d.name));
            let hint = hint.map_or(String::new(), |h| format!("; did you mean `{h}`?"));
            self.lex.error(Code::UnknownOp, span.clone(), format!("there is no op `{}`{hint}", clip(name)))
        })?;
        self.lex.expect('(')?;
        let (mut operands, mut spans) = (Vec::new(), Vec::new());
        while !self.lex.eat(')')? {
            if operands.len() == MAX_OPERANDS {
                let message = format!("more than {MAX_OPERANDS} operands");
                return Err(self.lex.error(Code::Operands, span, message).in_op(op.name));
            }
            if let (Tok::Name("_"), span) = self.lex.peek()? {
                self.lex.take()?;
                operands.push(None);
                spans.push(span);
            } else {
                let (id, span) = self.id()?;
                operands.push(Some(self.find(scope, &id, span.clone())?));
                spans.push(span);
            }
            self.separator(')')?;
        }
        // An operand left out at the end is not there at all: each graph has one form.
        while let Some(None) = operands.last() {
            operands.pop();
        }
        Ok(Call { op, span, operands, spans })
    }

    fn attrs(&mut self, op: &'static OpDef, op_span: &Span) -> Result<Vec<AttrValue>> {
        let mut given: Vec<Option<AttrValue>> = op.attrs.iter().map(|_| None).collect();
        if self.lex.eat('{')? {
            while !self.lex.eat('}')? {
                let (tok, span) = self.lex.take()?;
                let Tok::Name(name) = tok else {
                    return Err(self.lex.unexpected(&tok, span, "the name of an attribute, or `}`"));
                };
                let index = op.attr_index(name);
                let (Some(spec), Some(slot)) =
                    (index.and_then(|i| op.attrs.get(i)), index.and_then(|i| given.get_mut(i)))
                else {
                    let names: Vec<&str> = op.attrs.iter().map(|a| a.name).collect();
                    let known = if names.is_empty() { "none".into() } else { names.join(", ") };
                    let message = format!("no attribute `{}`; there are {known}", clip(name));
                    return Err(self.lex.error(Code::Attribute, span, message).in_op(op.name));
                };
                self.lex.expect(':')?;
                let value = self.attr(spec).map_err(|e| e.in_op(op.name))?;
                if slot.replace(value).is_some() {
                    let message = format!("attribute `{name}` is given twice");
                    return Err(self.lex.error(Code::Attribute, span, message).in_op(op.name));
                }
                self.separator('}')?;
            }
        }
        let or_default = |(spec, value): (&AttrSpec, Option<AttrValue>)| {
            let default = || spec.default.map(|d| d()).or(spec.optional.then_some(AttrValue::Absent));
            value.or_else(default).ok_or_else(|| {
                let message = format!("attribute `{}` is missing ({})", spec.name, spec.kind.words());
                self.lex.error(Code::Attribute, op_span.clone(), message).in_op(op.name)
            })
        };
        op.attrs.iter().zip(given).map(or_default).collect()
    }

    /// A value of the kind that the attribute is declared with.
    fn attr(&mut self, spec: &AttrSpec) -> Result<AttrValue> {
        if spec.optional && self.lex.peek()?.0 == Tok::Name("none") {
            self.lex.take()?;
            return Ok(AttrValue::Absent);
        }
        Ok(match spec.kind {
            AttrKind::Int => AttrValue::Int(self.lex.int()?),
            AttrKind::Float => AttrValue::Float(self.lex.float()?),
            AttrKind::Bool => AttrValue::Bool(self.lex.truth()?),
            AttrKind::Text => match self.lex.take()? {
                (Tok::Text(raw), span) => AttrValue::Text(self.lex.unescape(raw, &span)?.into()),
                (tok, span) => return Err(self.lex.wrong_value(&tok, span, "a text in quotes")),
            },
            AttrKind::Word(words) => {
                let (tok, span) = self.lex.take()?;
                let known = words.iter().find(|w| tok == Tok::Name(w));
                let wrong = || self.lex.wrong_value(&tok, span, &format!("one of {}", words.join(", ")));
                AttrValue::Word(known.ok_or_else(wrong)?)
            }
            AttrKind::Ints => AttrValue::Ints(self.list(|p| p.lex.int())?),
            AttrKind::Floats => AttrValue::Floats(self.list(|p| p.lex.float())?),
            AttrKind::Dim => AttrValue::Dim(self.dim(Code::Attribute)?),
            AttrKind::Dims => AttrValue::Dims(self.list(|p| p.dim(Code::Attribute))?),
            AttrKind::DType => AttrValue::DType(self.dtype(Code::Attribute)?.0),
            AttrKind::Tensor => AttrValue::Tensor(self.typed_data()?),
        })
    }

    fn list<T>(&mut self, one: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let (tok, span) = self.lex.take()?;
        if tok != Tok::Punct('[') {
            return Err(self.lex.wrong_value(&tok, span, "a list: [a, b]"));
        }
        let mut out = Vec::new();
        while !self.lex.eat(']')? {
            out.push(one(self)?);
            self.separator(']')?;
        }
        Ok(out)
    }

    /// `name (ports) { nodes; yield name = value, … }`.
    fn region(&mut self, role: &str) -> Result<Func> {
        if self.lex.peek()?.0 != Tok::Name(role) && self.lex.peek_second()? != Tok::Punct('(') {
            let (tok, span) = self.lex.take()?;
            return Err(self.lex.unexpected(
                &tok,
                span,
                &format!("the region `{role}`: NAME (PORTS) {{ … }}"),
            ));
        }
        let (name, span) = self.name("the region's name")?;
        if self.depth == MAX_DEPTH {
            return Err(self.lex.error(Code::Nesting, span, format!("regions nest deeper than {MAX_DEPTH}")));
        }
        self.depth += 1;
        let mut scope = Scope::new(name.into_owned());
        self.lex.expect('(')?;
        while !self.lex.eat(')')? {
            self.port(&mut scope, PortKind::Input)?;
            self.separator(')')?;
        }
        self.lex.expect('{')?;
        while !self.lex.eat('}')? {
            if self.keyword(&["yield"])?.is_none() {
                self.node(&mut scope)?;
                continue;
            }
            self.output(&mut scope)?;
            while self.lex.eat(',')? {
                self.output(&mut scope)?;
            }
            self.lex.expect('}')?;
            break;
        }
        self.depth -= 1;
        Ok(scope.func)
    }

    /// Infers the results of an op, compares them with what is written, and appends the node.
    fn emit(
        &mut self,
        scope: &mut Scope<'a>,
        targets: Vec<Target<'a>>,
        call: Call,
        attrs: Vec<AttrValue>,
        regions: Vec<Arc<Func>>,
        loc: Loc,
    ) -> Result<()> {
        let Call { op, span, operands, spans } = call;
        let mut types = Vec::with_capacity(operands.len());
        for o in &operands {
            types.push(o.map(|v| scope.func.ty(v).cloned()).transpose()?);
        }
        let inferred = op.infer_types(&attrs, &types, &regions).map_err(|e| {
            let at = e.bad_operand().and_then(|name| (0..spans.len()).find(|i| op.operand_name(*i) == name));
            let at = at.and_then(|i| spans.get(i)).unwrap_or(&span).clone();
            self.lex.place(e, at)
        })?;
        if inferred.len() != targets.len() {
            let message = format!("{} results are written, but the op has {}", targets.len(), inferred.len());
            return Err(self.lex.error(Code::Annotation, span, message).in_op(op.name));
        }
        let n = scope.func.nodes.len() as u32;
        let mut results = Vec::with_capacity(targets.len());
        for (k, (target, ty)) in targets.into_iter().zip(inferred).enumerate() {
            if let Some((written, at)) = target.ty
                && !same(&written, &ty)
            {
                let message = format!("{} is written as {written}, but is {ty}", target.id);
                return Err(self.lex.error(Code::Annotation, at, message).in_op(op.name));
            }
            let name = match &target.id {
                Id::Name(s) => Some(s.to_string()),
                Id::Temp(_) => None,
            };
            let info = ValueInfo { ty, name, def: Def::Node(n, k as u32) };
            results.push(self.define(scope, target.id, &target.span, info)?);
        }
        scope.func.nodes.push(Node { op, attrs, operands, results, regions, loc });
        Ok(())
    }

    fn define(&self, scope: &mut Scope<'a>, id: Id<'a>, span: &Span, info: ValueInfo) -> Result<ValueId> {
        let value = u32::try_from(scope.func.values.len()).ok().filter(|n| *n < u32::MAX).map(ValueId);
        let value = value.ok_or_else(|| Error::new(Code::Size, "the graph has too many values"))?;
        if scope.ids.contains_key(&id) {
            return Err(self.lex.error(Code::Name, span.clone(), format!("the name `{id}` is taken")));
        }
        scope.ids.insert(id, value);
        scope.func.values.push(info);
        Ok(value)
    }

    fn find(&self, scope: &Scope<'a>, id: &Id<'a>, span: Span) -> Result<ValueId> {
        scope.ids.get(id).copied().ok_or_else(|| {
            let region = if self.depth > 0 { "; a region sees only its own ports and values" } else { "" };
            let names = scope.ids.keys().filter_map(|k| match k {
                Id::Name(s) => Some(&**s),
                Id::Temp(_) => None,
            });
            let hint = match id {
                Id::Name(s) => nearest(s, names).map(|h| format!("; did you mean `{h}`?")),
                Id::Temp(_) => None,
            };
            let message = format!("`{id}` is not defined{region}{}", hint.unwrap_or_default());
            self.lex.error(Code::Undefined, span, message)
        })
    }

    /// A comma, unless the closing mark is next.
    fn separator(&mut self, close: char) -> Result<()> {
        if self.lex.eat(',')? || self.lex.at(close)? {
            return Ok(());
        }
        let (tok, span) = self.lex.take()?;
        Err(self.lex.unexpected(&tok, span, &format!("`,` or `{close}`")))
    }

    /// A name, in quotes if need be.
    fn name(&mut self, what: &str) -> Result<(Cow<'a, str>, Span)> {
        match self.lex.take()? {
            (Tok::Name(s), span) => Ok((s.into(), span)),
            (Tok::Text(raw), span) => Ok((self.lex.unescape(raw, &span)?.into(), span)),
            (tok, span) => Err(self.lex.unexpected(&tok, span, what)),
        }
    }

    /// A name of the usual form. Quotes serve those that would be read as something else: `_` and `diff`.
    fn proper_name(&mut self, what: &str) -> Result<(Cow<'a, str>, Span)> {
        let (name, span) = self.name(what)?;
        if !is_name(&name) {
            let message = format!("{:?} is not a name: letters, digits, _ and . only", clip(&name));
            return Err(self.lex.error(Code::Name, span, message));
        }
        Ok((name, span))
    }

    fn id(&mut self) -> Result<(Id<'a>, Span)> {
        if let (Tok::Temp(s), span) = self.lex.peek()? {
            self.lex.take()?;
            return Ok((Id::Temp(s), span));
        }
        self.proper_name("the name of a value").map(|(s, span)| (Id::Name(s), span))
    }

    fn text(&mut self, what: &str) -> Result<String> {
        match self.lex.take()? {
            (Tok::Text(raw), span) => self.lex.unescape(raw, &span),
            (tok, span) => Err(self.lex.unexpected(&tok, span, what)),
        }
    }

    /// `dtype[dim, …]`.
    fn ty(&mut self) -> Result<(Type, Span)> {
        let (dtype, start) = self.dtype(Code::Syntax)?;
        self.lex.expect('[')?;
        let mut shape = Shape::new();
        let end = loop {
            if self.lex.at(']')? {
                break self.lex.take()?.1;
            }
            if shape.len() == MAX_RANK {
                let at = self.lex.peek()?.1;
                return Err(self.lex.error(Code::Size, at, format!("a tensor has at most {MAX_RANK} axes")));
            }
            shape.push(self.dim(Code::Syntax)?);
            self.separator(']')?;
        };
        Ok((Type::new(dtype, shape), start.start..end.end))
    }

    fn dtype(&mut self, code: Code) -> Result<(DType, Span)> {
        let (tok, span) = self.lex.take()?;
        let Tok::Name(name) = tok else {
            return Err(self.lex.error(code, span, format!("expected a dtype, found {}", tok.words())));
        };
        if name == "packed" && self.lex.eat('<')? {
            let (scheme, at) = self.lex.take_scheme();
            let end = self.lex.expect('>')?.end;
            let dtype = crate::quant::Scheme::parse(scheme).map(DType::Packed);
            let unknown = || self.lex.error(code, at, format!("no quantisation scheme `{}`", clip(scheme)));
            return Ok((dtype.ok_or_else(unknown)?, span.start..end));
        }
        let unknown = || {
            let names: Vec<String> = DType::numbers().map(|d| d.to_string()).collect();
            let message = format!("no dtype `{}`; there are {} and packed<…>", clip(name), names.join(", "));
            self.lex.error(code, span.clone(), message)
        };
        Ok((DType::parse(name).ok_or_else(unknown)?, span))
    }

    /// A size. `code` is that of a text which is no size at all.
    fn dim(&mut self, code: Code) -> Result<Dim> {
        let (text, span) = self.lex.take_dim();
        if text.is_empty() {
            let (tok, at) = self.lex.take()?;
            return Err(self.lex.error(code, at, format!("expected a size, found {}", tok.words())));
        }
        Dim::parse(text, &|name| self.symbols.get(name).cloned()).map_err(|e| {
            let at = span.start + e.at;
            let code = if e.code == Code::Syntax { code } else { e.code };
            let name = text.get(e.at..).unwrap_or("");
            let len =
                name.bytes().take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.')).count();
            let name = clip(name.get(..len).unwrap_or(""));
            match code {
                Code::Undefined => {
                    let message = format!("unknown symbol `{name}`; declare it: dim {name} <= BOUND");
                    self.lex.error(code, at..at + len, message)
                }
                _ => self.lex.error(code, at..at + 1, e.message),
            }
        })
    }

    /// The sizes of a type that data can have.
    fn constant_sizes(&self, ty: &Type, span: &Span) -> Result<Vec<usize>> {
        let bad = |e: Error| self.lex.place(e, span.clone());
        ty.check().map_err(bad)?;
        let size = |d: &Dim| {
            let n = d.as_const().and_then(|n| usize::try_from(n).ok());
            n.ok_or_else(|| {
                bad(Error::new(Code::BadInput, format!("data have sizes that are numbers, not {d}")))
            })
        };
        ty.shape.iter().map(size).collect()
    }
}

impl Scope<'_> {
    fn new(name: String) -> Self {
        Scope { func: Func::empty(name), ids: HashMap::new(), outputs: HashSet::new() }
    }
}

/// Whether two types are provably one.
fn same(a: &Type, b: &Type) -> bool {
    let dims = || a.shape.iter().zip(&b.shape).all(|(x, y)| x.unify(y).is_some());
    a == b || a.dtype == b.dtype && a.rank() == b.rank() && dims()
}

//! From a graph to text.

use super::data::{write_data, write_f64, write_text};
use crate::attr::AttrValue;
use crate::dim::Symbol;
use crate::func::{Func, Node, PortKind, Source, ValueId};
use crate::graph::is_name;
use crate::tensor::Tensor;
use crate::types::ShapeText;
use std::collections::BTreeSet;
use std::fmt::{Display, Write};

/// The graph as text that [`parse`](super::parse) reads back.
pub fn print(f: &Func) -> String {
    let mut p = Printer { out: String::new(), indent: 1 };
    p.words("graph ");
    p.name(&f.name);
    p.words(" {\n");
    let mut symbols = BTreeSet::new();
    collect_symbols(f, &mut symbols);
    for Symbol { name, max } in symbols {
        p.line(|p| p.show(format_args!("dim {name} <= {max}")));
    }
    for port in &f.ports {
        p.line(|p| {
            p.words(if port.kind == PortKind::Input { "input " } else { "param " });
            p.port(f, port);
        });
    }
    let names = names(f);
    p.nodes(f, &names);
    for o in &f.outputs {
        p.line(|p| {
            p.words("output ");
            p.name(&o.name);
            p.show(format_args!(" = {}", look(&names, o.value)));
        });
    }
    p.words("}\n");
    p.out
}

/// An attribute's value as text.
pub fn print_attr(v: &AttrValue) -> String {
    let mut p = Printer { out: String::new(), indent: 0 };
    p.attr(v);
    p.out
}

/// A tensor as text that [`parse_tensor`](super::parse_tensor) reads back.
pub fn print_tensor(t: &Tensor) -> String {
    let mut out = format!("{} ", t.ty());
    write_data(&mut out, t);
    out
}

fn collect_symbols(f: &Func, out: &mut BTreeSet<Symbol>) {
    out.extend(f.values.iter().flat_map(|v| v.ty.symbols()));
    for n in &f.nodes {
        out.extend(n.attrs.iter().flat_map(AttrValue::dims).flat_map(|d| d.symbols()));
        n.regions.iter().for_each(|r| collect_symbols(r, out));
    }
}

/// What each value is called.
fn names(f: &Func) -> Vec<String> {
    let mut unnamed = 0;
    let mut names: Vec<String> = Vec::with_capacity(f.values.len());
    let ports: std::collections::HashMap<ValueId, &str> =
        f.ports.iter().map(|p| (p.value, p.name.as_str())).collect();
    for (i, v) in f.values.iter().enumerate() {
        let port = u32::try_from(i).ok().and_then(|i| ports.get(&ValueId(i)).copied());
        names.push(match port.or(v.name.as_deref()) {
            Some(name) => {
                let mut out = String::new();
                // Bare, `_` is an operand that is not given, and `diff` the flag of the port before it.
                if is_name(name) && name != "_" && name != "diff" {
                    out.push_str(name)
                } else {
                    write_text(&mut out, name)
                }
                out
            }
            None => {
                unnamed += 1;
                format!("%{}", unnamed - 1)
            }
        });
    }
    names
}

fn look(names: &[String], v: ValueId) -> &str {
    names.get(v.0 as usize).map_or("?", String::as_str)
}

struct Printer {
    out: String,
    indent: usize,
}

impl Printer {
    fn words(&mut self, s: &str) {
        self.out.push_str(s);
    }

    fn show(&mut self, x: impl Display) {
        let done = write!(self.out, "{x}");
        debug_assert!(done.is_ok(), "strings take everything");
    }

    fn name(&mut self, s: &str) {
        if is_name(s) { self.words(s) } else { write_text(&mut self.out, s) }
    }

    fn line(&mut self, f: impl FnOnce(&mut Printer)) {
        self.out.extend(std::iter::repeat_n("  ", self.indent));
        f(self);
        self.out.push('\n');
    }

    fn list<T>(&mut self, items: &[T], mut f: impl FnMut(&mut Printer, &T)) {
        for (i, x) in items.iter().enumerate() {
            if i > 0 {
                self.words(", ");
            }
            f(self, x);
        }
    }

    fn port(&mut self, f: &Func, port: &crate::func::Port) {
        self.name(&port.name);
        if let Ok(ty) = f.ty(port.value) {
            self.show(format_args!(": {ty}"));
        }
        if port.diff {
            self.words(" diff");
        }
        match &port.source {
            None => {}
            Some(Source::Inline(t)) => {
                self.words(" = ");
                write_data(&mut self.out, t);
            }
            Some(Source::File { file, tensor }) => {
                self.words(" @ ");
                write_text(&mut self.out, file);
                self.words(" ");
                write_text(&mut self.out, tensor);
            }
        }
    }

    fn nodes(&mut self, f: &Func, names: &[String]) {
        for n in &f.nodes {
            self.line(|p| p.node(f, n, names));
        }
    }

    fn node(&mut self, f: &Func, n: &Node, names: &[String]) {
        self.list(&n.results, |p, r| {
            p.words(look(names, *r));
            if let Ok(ty) = f.ty(*r) {
                p.show(format_args!(": {ty}"));
            }
        });
        self.words(if n.results.is_empty() { "" } else { " = " });
        self.words(n.op.name);
        self.words("(");
        self.list(&n.operands, |p, o| p.words(o.map_or("_", |v| look(names, v))));
        self.words(")");
        let is_default = |i: usize, v: &AttrValue| {
            let spec = n.op.attrs.get(i);
            spec.is_some_and(|s| match s.default {
                Some(d) => d() == *v,
                None => s.optional && *v == AttrValue::Absent,
            })
        };
        let said: Vec<_> = n.attrs.iter().enumerate().filter(|(i, v)| !is_default(*i, v)).collect();
        if !said.is_empty() {
            self.words(" {");
            self.list(&said, |p, (i, v)| {
                p.words(n.op.attrs.get(*i).map_or("?", |s| s.name));
                p.words(": ");
                p.attr(v);
            });
            self.words("}");
        }
        for r in &n.regions {
            self.region(r);
        }
    }

    fn region(&mut self, r: &Func) {
        self.words(" ");
        self.name(&r.name);
        self.words(" (");
        self.list(&r.ports, |p, port| p.port(r, port));
        self.words(") {\n");
        self.indent += 1;
        let names = names(r);
        self.nodes(r, &names);
        if !r.outputs.is_empty() {
            self.line(|p| {
                p.words("yield ");
                p.list(&r.outputs, |p, o| {
                    p.name(&o.name);
                    p.show(format_args!(" = {}", look(&names, o.value)));
                });
            });
        }
        self.indent -= 1;
        self.out.extend(std::iter::repeat_n("  ", self.indent));
        self.words("}");
    }

    fn attr(&mut self, v: &AttrValue) {
        match v {
            AttrValue::Absent => self.words("none"),
            AttrValue::Int(x) => self.show(x),
            AttrValue::Float(x) => write_f64(&mut self.out, *x),
            AttrValue::Bool(x) => self.show(x),
            AttrValue::Text(s) => write_text(&mut self.out, s),
            AttrValue::Word(w) => self.words(w),
            AttrValue::Ints(xs) => {
                self.words("[");
                self.list(xs, |p, x| p.show(x));
                self.words("]");
            }
            AttrValue::Floats(xs) => {
                self.words("[");
                self.list(xs, |p, x| write_f64(&mut p.out, *x));
                self.words("]");
            }
            AttrValue::Dim(d) => self.show(d),
            AttrValue::Dims(ds) => self.show(ShapeText(ds)),
            AttrValue::DType(d) => self.show(d),
            AttrValue::Tensor(t) => self.words(&print_tensor(t)),
        }
    }
}

//! Graphs for Graphviz and as JSON.

use rlx::attr::AttrValue;
use rlx::func::{PortKind, Source};
use rlx::{Dim, Func, Type, ValueId};
use serde_json::{Map, Value, json};

/// What each value is called: its name, or `%` and its number as in the text format.
pub(crate) fn names(f: &Func) -> Vec<String> {
    let mut unnamed = 0;
    let mut name = |(i, v): (usize, &rlx::func::ValueInfo)| {
        let port = f.ports.get(i).map(|p| p.name.clone());
        port.or(v.name.clone()).unwrap_or_else(|| {
            unnamed += 1;
            format!("%{}", unnamed - 1)
        })
    };
    // Ports' values come first, in the order of the ports.
    f.values.iter().enumerate().map(&mut name).collect()
}

fn look(names: &[String], v: ValueId) -> &str {
    names.get(v.0 as usize).map_or("?", String::as_str)
}

fn quoted(s: &str) -> String {
    let s = s.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{}\"", s.replace(char::is_control, " "))
}

/// Boxes for ports and outputs, ellipses for ops; an edge for each use, with its type. Regions are not opened.
pub(super) fn dot(f: &Func) -> String {
    let names = names(f);
    let mut makers: Vec<String> = Vec::new();
    let mut out = format!("digraph {} {{\n  rankdir=TB\n", quoted(&f.name));
    for p in &f.ports {
        makers.push(format!("port_{}", p.value.0));
        let shape = if p.kind == PortKind::Input { "box" } else { "box3d" };
        out += &format!("  port_{} [shape={shape}, label={}]\n", p.value.0, quoted(&p.name));
    }
    let edge = |from: &str, to: &str, v: ValueId| {
        let ty = f.ty(v).map(Type::to_string).unwrap_or_default();
        format!("  {from} -> {to} [label={}]\n", quoted(&format!("{} {ty}", look(&names, v))))
    };
    for (i, n) in f.nodes.iter().enumerate() {
        let id = format!("op_{i}");
        out += &format!("  {id} [label={}]\n", quoted(n.op.name));
        for v in n.operands.iter().flatten() {
            out += &edge(makers.get(v.0 as usize).map_or("?", String::as_str), &id, *v);
        }
        makers.extend(n.results.iter().map(|_| id.clone()));
    }
    for (i, o) in f.outputs.iter().enumerate() {
        let id = format!("out_{i}");
        out += &format!("  {id} [shape=box, style=rounded, label={}]\n", quoted(&o.name));
        out += &edge(makers.get(o.value.0 as usize).map_or("?", String::as_str), &id, o.value);
    }
    out + "}\n"
}

pub(super) fn object(f: &Func) -> Value {
    let names = names(f);
    let value = |v: ValueId| {
        let mut o = ty(f, v);
        o.insert("name".into(), look(&names, v).into());
        Value::Object(o)
    };
    let ports = f.ports.iter().map(|p| {
        let mut o = ty(f, p.value);
        o.insert("name".into(), p.name.clone().into());
        o.insert("kind".into(), if p.kind == PortKind::Input { "input" } else { "param" }.into());
        o.insert("diff".into(), p.diff.into());
        let source = match &p.source {
            None => Value::Null,
            Some(Source::Inline(_)) => "inline".into(),
            Some(Source::File { file, tensor }) => json!({"file": &**file, "tensor": &**tensor}),
        };
        o.insert("source".into(), source);
        Value::Object(o)
    });
    let nodes = f.nodes.iter().map(|n| {
        let attrs: Map<String, Value> =
            n.op.attrs.iter().zip(&n.attrs).map(|(s, v)| (s.name.to_string(), attr(v))).collect();
        json!({
            "op": n.op.name,
            "operands": n.operands.iter().map(|o| o.map(|v| look(&names, v))).collect::<Vec<_>>(),
            "attrs": attrs,
            "results": n.results.iter().map(|r| value(*r)).collect::<Vec<_>>(),
            "regions": n.regions.iter().map(|r| object(r)).collect::<Vec<_>>(),
        })
    });
    let symbols: Map<String, Value> =
        f.symbols().unwrap_or_default().into_iter().map(|(n, max)| (n.to_string(), max.into())).collect();
    json!({
        "name": f.name,
        "symbols": symbols,
        "ports": ports.collect::<Vec<_>>(),
        "nodes": nodes.collect::<Vec<_>>(),
        "outputs": f.outputs.iter().map(|o| json!({"name": o.name, "value": look(&names, o.value)})).collect::<Vec<_>>(),
    })
}

fn ty(f: &Func, v: ValueId) -> Map<String, Value> {
    let mut o = Map::new();
    if let Ok(ty) = f.ty(v) {
        o.insert("dtype".into(), ty.dtype.to_string().into());
        o.insert("shape".into(), ty.shape.iter().map(size).collect());
    }
    o
}

/// A number if it is one, else the expression.
fn size(d: &Dim) -> Value {
    d.as_const().map_or_else(|| d.to_string().into(), Value::from)
}

/// Floats that JSON has no number for are texts; data are their type only.
fn attr(v: &AttrValue) -> Value {
    let float = |x: &f64| if x.is_finite() { (*x).into() } else { Value::from(x.to_string()) };
    match v {
        AttrValue::Absent => Value::Null,
        AttrValue::Int(x) => (*x).into(),
        AttrValue::Float(x) => float(x),
        AttrValue::Bool(x) => (*x).into(),
        AttrValue::Text(s) => Value::from(&**s),
        AttrValue::Word(w) => (*w).into(),
        AttrValue::Ints(xs) => xs.clone().into(),
        AttrValue::Floats(xs) => xs.iter().map(float).collect(),
        AttrValue::Dim(d) => size(d),
        AttrValue::Dims(ds) => ds.iter().map(size).collect(),
        AttrValue::DType(d) => d.to_string().into(),
        AttrValue::Tensor(t) => json!({"dtype": t.dtype().to_string(), "shape": t.shape()}),
    }
}

//! The verifier. What is always true of a [`Func`]:
//!
//! - **V1** Values are numbered ports first, then results in the order of the nodes; each is defined exactly once, by
//!   what its `def` names.
//! - **V2** A node uses only values that are defined before it, and so do the outputs: there are no cycles.
//! - **V3** A node's operands, attributes and regions are those that its op declares, and its results have exactly the
//!   types that the op's shape rule infers.
//! - **V4** Every type is within the limits of rank and size.
//! - **V5** Ports have names, all different; so have outputs; names of values differ from each other and from ports'.
//! - **V6** A symbol has one bound throughout.
//! - **V7** Regions obey V1–V6, have inputs only, and nest at most [`MAX_DEPTH`] deep.
//! - **V8** Inline data of a param have the param's type, and only params have a source; `diff` marks only floats.

use crate::error::{Code, Error, Loc, Result};
use crate::func::{Def, Func, Node, PortKind, Source, ValueId};
use crate::graph::{MAX_DEPTH, is_name};
use std::collections::HashSet;

/// Checks all invariants; the error names the one that is broken.
pub fn verify(f: &Func) -> Result<()> {
    check(f, 0)?;
    f.symbols().map_err(|e| broken(6, e.message().to_string()))?;
    Ok(())
}

fn broken(n: usize, message: impl Into<String>) -> Error {
    Error::new(Code::Verify, format!("V{n}: {}", message.into()))
}

fn check(f: &Func, depth: usize) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(broken(7, format!("regions nest deeper than {MAX_DEPTH}")));
    }
    definitions(f)?;
    names(f)?;
    ports(f, depth)?;
    let mut defined = f.ports.len();
    for node in &f.nodes {
        check_node(f, node, defined, depth).map_err(|e| e.in_op(node.op.name).at(node.loc.clone()))?;
        defined += node.results.len();
    }
    for o in &f.outputs {
        used(o.value, defined).map_err(|e| e.operand(o.name.clone()))?;
    }
    Ok(())
}

/// V1, V4.
fn definitions(f: &Func) -> Result<()> {
    let mut next = 0u32;
    let mut expect = |v: ValueId, def: Def, loc: &Loc| -> Result<()> {
        let info = f.values.get(v.0 as usize);
        if v.0 != next || info.is_none_or(|i| i.def != def) {
            return Err(
                broken(1, format!("value {} stands where value {next} is defined", v.0)).at(loc.clone())
            );
        }
        next += 1;
        info.map_or(Ok(()), |i| i.ty.check()).map_err(|e| broken(4, e.message().to_string()).at(loc.clone()))
    };
    for (i, p) in f.ports.iter().enumerate() {
        expect(p.value, Def::Port(i as u32), &p.loc)?;
    }
    for (n, node) in f.nodes.iter().enumerate() {
        for (k, r) in node.results.iter().enumerate() {
            expect(*r, Def::Node(n as u32, k as u32), &node.loc)?;
        }
    }
    if next as usize != f.values.len() {
        return Err(broken(1, format!("{} values, but {next} definitions", f.values.len())));
    }
    Ok(())
}

/// V2, for one use.
fn used(v: ValueId, defined: usize) -> Result<()> {
    if (v.0 as usize) < defined {
        return Ok(());
    }
    Err(broken(2, format!("value {} is used before it is defined", v.0)))
}

/// V5.
fn names(f: &Func) -> Result<()> {
    let mut seen = HashSet::new();
    let named = f.ports.iter().map(|p| &p.name).chain(f.values.iter().filter_map(|v| v.name.as_ref()));
    for name in named {
        if !is_name(name) || !seen.insert(name) {
            return Err(broken(5, format!("{name:?} is no name, or names two things")));
        }
    }
    let mut outputs = HashSet::new();
    for o in &f.outputs {
        if !is_name(&o.name) || !outputs.insert(&o.name) {
            return Err(broken(5, format!("{:?} is no name, or names two outputs", o.name)));
        }
    }
    Ok(())
}

/// V7 and V8, as far as ports go.
fn ports(f: &Func, depth: usize) -> Result<()> {
    for p in &f.ports {
        let ty = f.ty(p.value)?;
        let at = |e: Error| e.operand(p.name.clone()).at(p.loc.clone());
        if depth > 0 && p.kind == PortKind::Param {
            return Err(at(broken(7, "a region has a param")));
        }
        if p.diff && !ty.dtype.is_float() {
            return Err(at(broken(8, format!("{} cannot be differentiated", ty.dtype))));
        }
        match &p.source {
            Some(_) if p.kind == PortKind::Input => return Err(at(broken(8, "an input has a source"))),
            Some(Source::Inline(t)) if t.ty() != *ty => {
                return Err(at(broken(8, format!("the data are {}, the param {ty}", t.ty()))));
            }
            _ => {}
        }
    }
    Ok(())
}

/// V2, V3, V7 for a node.
fn check_node(f: &Func, node: &Node, defined: usize, depth: usize) -> Result<()> {
    let mut types = Vec::with_capacity(node.operands.len());
    for o in &node.operands {
        types.push(match o {
            Some(v) => {
                used(*v, defined)?;
                Some(f.ty(*v)?.clone())
            }
            None => None,
        });
    }
    for r in &node.regions {
        check(r, depth + 1)?;
    }
    let inferred =
        node.op.infer_types(&node.attrs, &types, &node.regions).map_err(|e| broken(3, e.to_string()))?;
    let own = node.results.iter().map(|r| f.ty(*r).cloned()).collect::<Result<Vec<_>>>()?;
    if inferred != own {
        return Err(broken(3, format!("the results are {own:?}, inferred are {inferred:?}")));
    }
    Ok(())
}

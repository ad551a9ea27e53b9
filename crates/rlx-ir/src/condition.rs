//! What a graph asks of its symbols: constraints that cannot be proven while sizes are symbols are conditions, to be checked
//! when the symbols are bound.
//!
//! The oracle and every device check the same list, so they agree on which sizes are errors.

use crate::attr::AttrValue;
use crate::dim::{Bindings, Dim, DimError};
use crate::error::{Code, Error, Loc, Result};
use crate::func::{Func, Node};
use crate::types::Type;
use std::collections::HashSet;

/// What must hold of sizes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Demand {
    /// The size is not negative.
    NotNegative(Dim),
    /// The two sizes are equal.
    Equal(Dim, Dim),
}

impl Demand {
    /// Whether it holds for every binding.
    pub fn certain(&self) -> bool {
        match self {
            Demand::NotNegative(d) => d.lower().is_some_and(|n| n >= 0),
            Demand::Equal(a, b) => a.unify(b).is_some(),
        }
    }

    /// What is wrong with the values of the sizes; the second is that of the other size, if there is one.
    pub fn refusal(&self, value: i64, other: i64) -> Option<String> {
        match self {
            Demand::NotNegative(d) if value < 0 => Some(format!("{d} is {value}, but must not be negative")),
            Demand::Equal(a, b) if value != other => {
                Some(format!("{a} is {value}, but must be {b}, which is {other}"))
            }
            _ => None,
        }
    }
}

/// A condition on the symbols of a graph, and where it comes from.
#[derive(Clone, Debug)]
pub struct Condition {
    /// What must hold.
    pub demand: Demand,
    /// The op that asks for it.
    pub op: &'static str,
    /// Where that op was written.
    pub loc: Loc,
    /// The number of the op's constraint, from 1; 0 for what holds of all ops.
    pub constraint: usize,
    /// The constraint, in words.
    pub why: &'static str,
}

impl Condition {
    /// Whether it holds for these bindings; an error of [`Code::Size`] if not.
    pub fn check(&self, b: &Bindings) -> Result<()> {
        let value = |d: &Dim| d.signed(b).map_err(unbound);
        let (x, y) = match &self.demand {
            Demand::NotNegative(d) => (value(d)?, 0),
            Demand::Equal(x, y) => (value(x)?, value(y)?),
        };
        self.demand.refusal(x, y).map_or(Ok(()), |text| Err(self.error(&text)))
    }

    /// The error that it does not hold.
    pub fn error(&self, text: &str) -> Error {
        let e = match self.constraint {
            0 => Error::new(Code::Size, format!("{text}: {}", self.why)),
            n => Error::new(Code::Size, text).constraint(n, self.why),
        };
        e.in_op(self.op).at(self.loc.clone())
    }
}

/// An error of binding, in the words of the graph.
pub fn unbound(e: DimError) -> Error {
    let code = if e == DimError::Negative { Code::Size } else { Code::Unbound };
    Error::new(code, e.to_string())
}

/// Every condition of a graph and its regions that is not certain, each once, in the order of the nodes.
pub fn conditions(f: &Func) -> Result<Vec<Condition>> {
    let (mut seen, mut out) = (HashSet::new(), Vec::new());
    collect(f, &mut seen, &mut out)?;
    Ok(out)
}

fn collect(f: &Func, seen: &mut HashSet<Demand>, out: &mut Vec<Condition>) -> Result<()> {
    for node in &f.nodes {
        let mut add = |demand: Demand, constraint: usize, why: &'static str| {
            if !demand.certain() && seen.insert(demand.clone()) {
                out.push(Condition { demand, op: node.op.name, loc: node.loc.clone(), constraint, why });
            }
        };
        if symbolic(f, node) {
            let types: Vec<Option<Type>> = node
                .operands
                .iter()
                .map(|o| o.map(|v| f.ty(v).cloned()).transpose())
                .collect::<Result<_>>()?;
            for (n, demand) in node.op.demands(&node.attrs, &types, &node.regions)? {
                add(demand, n, node.op.constraints.get(n.wrapping_sub(1)).copied().unwrap_or_default());
            }
            for d in node.attrs.iter().flat_map(AttrValue::dims).filter(|d| !d.is_const()) {
                add(Demand::NotNegative(d.clone()), 0, "it is a size in an attribute");
            }
            for r in &node.results {
                for d in f.ty(*r)?.shape.iter().filter(|d| !d.is_const()) {
                    add(Demand::NotNegative(d.clone()), 0, "it is an axis of the result");
                }
            }
        }
        node.regions.iter().try_for_each(|r| collect(r, seen, out))?;
    }
    Ok(())
}

/// Whether any size that the node deals with is not a constant.
fn symbolic(f: &Func, node: &Node) -> bool {
    let values = node.operands.iter().flatten().chain(&node.results);
    let mut shapes = values.filter_map(|v| f.ty(*v).ok()).flat_map(|t| &t.shape);
    shapes.any(|d| !d.is_const()) || node.attrs.iter().flat_map(AttrValue::dims).any(|d| !d.is_const())
}

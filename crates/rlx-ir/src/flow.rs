//! The builder's side of control flow: loops, branches and checkpoints from closures. The ops are in `ops/control.rs`.

use crate::attr::{AttrValue, Attributes};
use crate::dim::Dim;
use crate::error::{Code, Error};
use crate::func::{Func, ValueId};
use crate::graph::{Built, Graph, Var};
use crate::op::OpDef;
use crate::ops::control::{Call, CustomVjp, If, Scan, While};
use crate::types::{Shape, Type};
use std::collections::HashMap;
use std::sync::Arc;

/// Names and types for the ports of a region.
fn port_list(groups: &[(&str, Vec<Option<Type>>)]) -> Vec<(String, Option<Type>)> {
    let named = |(name, types): &(&str, Vec<Option<Type>>)| -> Vec<_> {
        types.iter().enumerate().map(|(i, t)| (format!("{name}{i}"), t.clone())).collect()
    };
    groups.iter().flat_map(named).collect()
}

/// The types of values; none for those that stand for an error.
fn types_of(vars: &[Var<'_>]) -> Vec<Option<Type>> {
    vars.iter().map(|v| (!v.is_poison()).then(|| v.ty())).collect()
}

impl Graph {
    /// A loop over axis 0 of `xs`: `f` gets the state and an entry of each, and gives the next state and what to
    /// stack. Gives the last state and the stacks. See the op `scan`.
    #[track_caller]
    pub fn scan<'g>(
        &'g self,
        init: &[Var<'g>],
        xs: &[Var<'g>],
        length: impl Into<Dim>,
        reverse: bool,
        f: impl FnOnce(&[Var<'g>], &[Var<'g>]) -> (Vec<Var<'g>>, Vec<Var<'g>>),
    ) -> (Vec<Var<'g>>, Vec<Var<'g>>) {
        let n = init.len();
        let entry = |t: Type| t.with_shape(t.shape.iter().skip(1).cloned().collect::<Shape>());
        let entries = types_of(xs).into_iter().map(|t| t.map(entry)).collect();
        let ports = port_list(&[("c", types_of(init)), ("x", entries)]);
        let built = self.region("body", &ports, |args| {
            let (carry, entries) = args.split_at(n);
            let (mut next, ys) = f(carry, entries);
            next.extend(ys);
            next
        });
        let attrs = Scan { carries: n as i64, xs: xs.len() as i64, length: length.into(), reverse };
        let given: Vec<Var<'g>> = init.iter().chain(xs).copied().collect();
        let mut out = self.apply(Scan::DEF, attrs.to_values(), &given, built.results.max(n), || {
            built.func.map(|(region, captures)| (vec![region], captures))
        });
        let ys = out.split_off(n);
        (out, ys)
    }

    /// A loop while `cond` holds, at most `max` times. Gives the last state. See the op `while`.
    #[track_caller]
    pub fn while_loop<'g>(
        &'g self,
        init: &[Var<'g>],
        max: i64,
        cond: impl FnOnce(&[Var<'g>]) -> Var<'g>,
        body: impl FnOnce(&[Var<'g>]) -> Vec<Var<'g>>,
    ) -> Vec<Var<'g>> {
        let n = init.len();
        let ports = port_list(&[("c", types_of(init))]);
        let cond = self.region("cond", &ports, |args| vec![cond(args)]);
        let body = self.region("body", &ports, body);
        let attrs = While { carries: n as i64, max, save: false };
        self.apply(While::DEF, attrs.to_values(), init, n, || self.share_captures(n, cond, body))
    }

    /// One of two computations, both of which give the same types. See the op `if`.
    #[track_caller]
    pub fn cond<'g>(
        &'g self,
        predicate: Var<'g>,
        then: impl FnOnce() -> Vec<Var<'g>>,
        otherwise: impl FnOnce() -> Vec<Var<'g>>,
    ) -> Vec<Var<'g>> {
        let then = self.region("then", &[], |_| then());
        let otherwise = self.region("else", &[], |_| otherwise());
        let results = then.results;
        self.apply(If::DEF, Vec::new(), &[predicate], results, || self.share_captures(0, then, otherwise))
    }

    /// A computation that the gradient makes again instead of keeping what is inside.
    #[track_caller]
    pub fn checkpoint<'g>(&'g self, f: impl FnOnce() -> Vec<Var<'g>>) -> Vec<Var<'g>> {
        let built = self.region("body", &[], |_| f());
        self.apply(Call::DEF, Call { checkpoint: true }.to_values(), &[], built.results, || {
            built.func.map(|(region, captures)| (vec![region], captures))
        })
    }

    /// A computation with a gradient of the caller's own. `backward` gets the operands, the results and the gradients
    /// of the float results, and gives a gradient for each float operand. Both may use what they are given only.
    #[track_caller]
    pub fn with_gradient<'g>(
        &'g self,
        operands: &[Var<'g>],
        forward: impl FnOnce(&[Var<'g>]) -> Vec<Var<'g>>,
        backward: impl FnOnce(&[Var<'g>]) -> Vec<Var<'g>>,
    ) -> Vec<Var<'g>> {
        let types = types_of(operands);
        let body = self.region("body", &port_list(&[("x", types.clone())]), forward);
        self.apply(CustomVjp::DEF, Vec::new(), operands, body.results, || {
            let (body, captured) = body.func?;
            let results = body.output_types().ok()?;
            let floats = results.iter().filter(|t| t.dtype.is_float()).cloned().map(Some).collect();
            let results = results.into_iter().map(Some).collect();
            let back =
                self.region("backward", &port_list(&[("x", types), ("y", results), ("d", floats)]), backward);
            let (back, more) = back.func?;
            if !captured.is_empty() || !more.is_empty() {
                let message = "a computation with its own gradient may use its operands only";
                self.fail(Error::new(Code::Region, message));
                return None;
            }
            Some((vec![body, back], Vec::new()))
        })
    }

    /// Applies an op with regions to operands and what the regions capture. Gives `count` poisoned handles if a
    /// region or the op has an error, so that callers may index the results.
    #[track_caller]
    fn apply<'g>(
        &'g self,
        op: &'static OpDef,
        attrs: Vec<AttrValue>,
        operands: &[Var<'g>],
        count: usize,
        regions: impl FnOnce() -> Option<(Vec<Arc<Func>>, Vec<Var<'g>>)>,
    ) -> Vec<Var<'g>> {
        let mut out = Vec::new();
        // Not `map`: the caller would be its line.
        if let Some((regions, captures)) = regions() {
            let operands = operands.iter().chain(&captures).copied().map(Some).collect();
            out = self.emit(op, attrs, operands, regions);
        }
        out.resize(count.max(out.len()), self.poison());
        out
    }

    /// Gives two regions the same captures: the ports of each become its own `n`, then all captures of both.
    fn share_captures<'g>(
        &'g self,
        n: usize,
        a: Built<'g>,
        b: Built<'g>,
    ) -> Option<(Vec<Arc<Func>>, Vec<Var<'g>>)> {
        let built = [a.func?, b.func?];
        let mut all: Vec<Var<'g>> = Vec::new();
        let mut places: HashMap<ValueId, usize> = HashMap::new();
        for c in built.iter().flat_map(|(_, c)| c) {
            places.entry(c.id()).or_insert_with(|| {
                all.push(*c);
                all.len() - 1
            });
        }
        let mut regions = Vec::new();
        for (f, captures) in built {
            let own = f.port_types().ok()?.into_iter().take(n).map(Some).collect();
            let ports = port_list(&[("c", own), ("cap", types_of(&all))]);
            let region = self.region(&f.name, &ports, |args| {
                let shared = captures.iter().filter_map(|c| args.get(n + places.get(&c.id())?));
                let args: Vec<Var<'g>> = args.iter().take(n).chain(shared).copied().collect();
                self.inline(&f, &args).unwrap_or_else(|e| vec![self.fail(e)])
            });
            regions.push(region.func?.0);
        }
        Some((regions, all))
    }
}

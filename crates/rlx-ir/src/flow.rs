//! The builder's side of control flow: loops, branches and checkpoints from closures. The ops are in `ops/control.rs`.

use crate::attr::Attributes;
use crate::dim::Dim;
use crate::error::{Code, Error, Result};
use crate::func::{Func, PortKind};
use crate::graph::{Graph, Region, Var};
use crate::ops::control::{Call, CustomVjp, If, Scan, While};
use crate::types::{Shape, Type};
use std::sync::Arc;

/// Names and types for the ports of a region.
fn port_list(groups: &[(&str, Vec<Type>)]) -> Vec<(String, Type)> {
    groups
        .iter()
        .flat_map(|(name, types)| {
            types.iter().enumerate().map(move |(i, t)| (format!("{name}{i}"), t.clone()))
        })
        .collect()
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
        f: impl for<'a> FnOnce(Region<'a, 'g>, &[Var<'a>], &[Var<'a>]) -> (Vec<Var<'a>>, Vec<Var<'a>>),
    ) -> (Vec<Var<'g>>, Vec<Var<'g>>) {
        let n = init.len();
        let entry = |x: &Var<'_>| {
            let t = x.ty();
            t.with_shape(t.shape.iter().skip(1).cloned().collect::<Shape>())
        };
        let ports =
            port_list(&[("c", init.iter().map(|v| v.ty()).collect()), ("x", xs.iter().map(entry).collect())]);
        let poison = || (vec![self.poison(); n], vec![self.poison(); 1]);
        if init.iter().chain(xs).any(|v| v.is_poison()) {
            return poison();
        }
        let built = self.region("body", &ports, |r, args| {
            let (carry, entries) = args.split_at(n);
            let (mut next, ys) = f(r, carry, entries);
            next.extend(ys);
            next
        });
        let (region, captures) = match built {
            Ok(b) => b,
            Err(e) => {
                self.fail(e);
                return poison();
            }
        };
        let attrs = Scan { carries: n as i64, xs: xs.len() as i64, length: length.into(), reverse };
        let operands = init.iter().chain(xs).chain(&captures).copied().map(Some).collect();
        let mut out = self.emit(Scan::DEF, attrs.to_values(), operands, vec![region]);
        let ys = out.split_off(n.min(out.len()));
        (out, ys)
    }

    /// A loop while `cond` holds, at most `max` times. Gives the last state. See the op `while`.
    #[track_caller]
    pub fn while_loop<'g>(
        &'g self,
        init: &[Var<'g>],
        max: i64,
        cond: impl for<'a> FnOnce(Region<'a, 'g>, &[Var<'a>]) -> Var<'a>,
        body: impl for<'a> FnOnce(Region<'a, 'g>, &[Var<'a>]) -> Vec<Var<'a>>,
    ) -> Vec<Var<'g>> {
        let n = init.len();
        let ports = port_list(&[("c", init.iter().map(|v| v.ty()).collect())]);
        if init.iter().any(|v| v.is_poison()) {
            return vec![self.poison(); n.max(1)];
        }
        let both = self
            .region("cond", &ports, |r, args| vec![cond(r, args)])
            .and_then(|c| Ok((c, self.region("body", &ports, body)?)));
        let attrs = While { carries: n as i64, max, save: false };
        let (regions, captures) =
            match both.and_then(|((c, cc), (b, bc))| share_captures(n, vec![(c, cc), (b, bc)])) {
                Ok(r) => r,
                Err(e) => {
                    self.fail(e);
                    return vec![self.poison(); n.max(1)];
                }
            };
        let operands = init.iter().chain(&captures).copied().map(Some).collect();
        self.emit(While::DEF, attrs.to_values(), operands, regions)
    }

    /// One of two computations, both of which give the same types. See the op `if`.
    #[track_caller]
    pub fn cond<'g>(
        &'g self,
        predicate: Var<'g>,
        then: impl for<'a> FnOnce(Region<'a, 'g>) -> Vec<Var<'a>>,
        otherwise: impl for<'a> FnOnce(Region<'a, 'g>) -> Vec<Var<'a>>,
    ) -> Vec<Var<'g>> {
        let a = self.region("then", &[], |r, _| then(r));
        let b = self.region("else", &[], |r, _| otherwise(r));
        match a.and_then(|a| share_captures(0, vec![a, b?])) {
            Ok((regions, captures)) => {
                let operands = std::iter::once(predicate).chain(captures).map(Some).collect();
                self.emit(If::DEF, Vec::new(), operands, regions)
            }
            Err(e) => vec![self.fail(e)],
        }
    }

    /// A computation that the gradient makes again instead of keeping what is inside.
    #[track_caller]
    pub fn checkpoint<'g>(&'g self, f: impl for<'a> FnOnce(Region<'a, 'g>) -> Vec<Var<'a>>) -> Vec<Var<'g>> {
        match self.region("body", &[], |r, _| f(r)) {
            Ok((region, captures)) => {
                let attrs = Call { checkpoint: true }.to_values();
                self.emit(Call::DEF, attrs, captures.into_iter().map(Some).collect(), vec![region])
            }
            Err(e) => vec![self.fail(e)],
        }
    }

    /// A computation with a gradient of the caller's own. `backward` gets the operands, the results and the gradients
    /// of the float results, and gives a gradient for each float operand.
    #[track_caller]
    pub fn with_gradient<'g>(
        &'g self,
        operands: &[Var<'g>],
        forward: impl for<'a> FnOnce(Region<'a, 'g>, &[Var<'a>]) -> Vec<Var<'a>>,
        backward: impl for<'a> FnOnce(Region<'a, 'g>, &[Var<'a>]) -> Vec<Var<'a>>,
    ) -> Vec<Var<'g>> {
        let types: Vec<Type> = operands.iter().map(|v| v.ty()).collect();
        let built =
            self.region("body", &port_list(&[("x", types.clone())]), forward).and_then(|(body, captured)| {
                let results = body.output_types()?;
                let floats = results.iter().filter(|t| t.dtype.is_float()).cloned().collect();
                let ports = port_list(&[("x", types), ("y", results), ("d", floats)]);
                let (back, more) = self.region("backward", &ports, backward)?;
                if !captured.is_empty() || !more.is_empty() {
                    return Err(Error::new(
                        Code::Region,
                        "a computation with its own gradient may use its operands only",
                    ));
                }
                Ok(vec![body, back])
            });
        match built {
            Ok(regions) => {
                self.emit(CustomVjp::DEF, Vec::new(), operands.iter().copied().map(Some).collect(), regions)
            }
            Err(e) => vec![self.fail(e)],
        }
    }
}

/// Gives several regions the same captures: each region's ports become its own `n`, then all captures of all.
fn share_captures<'g>(
    n: usize,
    built: Vec<(Arc<Func>, Vec<Var<'g>>)>,
) -> Result<(Vec<Arc<Func>>, Vec<Var<'g>>)> {
    let mut all: Vec<Var<'g>> = Vec::new();
    for c in built.iter().flat_map(|(_, c)| c) {
        if !all.iter().any(|v| v.id() == c.id()) {
            all.push(*c);
        }
    }
    let mut regions = Vec::new();
    for (f, captures) in built {
        let g = Graph::new(f.name.clone());
        let types = f.port_types()?;
        let own: Vec<Type> = types.iter().take(n).cloned().collect();
        let ports = port_list(&[("c", own), ("cap", all.iter().map(|v| v.ty()).collect())]);
        let vars: Vec<Var<'_>> =
            ports.iter().map(|(name, t)| g.port(name, t.clone(), PortKind::Input, None)).collect();
        let (carries, shared) = vars.split_at(n);
        let find =
            |c: &Var<'g>| all.iter().position(|v| v.id() == c.id()).and_then(|i| shared.get(i)).copied();
        let args: Vec<Var<'_>> = carries.iter().copied().chain(captures.iter().filter_map(find)).collect();
        for (o, v) in f.outputs.iter().zip(g.inline(&f, &args)?) {
            g.output(&o.name, v);
        }
        regions.push(Arc::new(g.finish()?));
    }
    Ok((regions, all))
}

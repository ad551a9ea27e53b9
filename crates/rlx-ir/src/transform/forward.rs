//! Forward mode and second derivatives, both from reverse mode.

use super::reverse::pullback;
use super::{dce, vjp};
use crate::error::{Code, Error, Result};
use crate::func::{Func, PortKind};
use crate::graph::Graph;

/// The graph and its Jacobian times a vector: new inputs `tan.PORT` for the named ports, new outputs `tan.OUTPUT` for
/// every float output.
///
/// The pullback is linear in its cotangent; its own pullback with respect to that cotangent is the Jacobian itself.
pub fn jvp(f: &Func, wrt: &[&str]) -> Result<Func> {
    let wanted = marks(f, wrt)?;
    let back = pullback(f, &wanted)?;
    let ports = f.ports.len();
    let is_ct: Vec<bool> = (0..back.ports.len()).map(|i| i >= ports).collect();
    let push = pullback(&back, &is_ct)?;

    let g = Graph::new(f.name.clone());
    let args = g.declare_ports(f);
    for (o, v) in f.outputs.iter().zip(g.inline(f, &args)?) {
        g.output(&o.name, v);
    }
    let mut all = args.clone();
    // Any cotangent will do, since the pullback is linear in it.
    for port in back.ports.iter().skip(ports) {
        let ty = back.ty(port.value)?;
        all.push(g.zeros(ty.dtype, &ty.shape));
    }
    for (port, wanted) in f.ports.iter().zip(&wanted) {
        if *wanted {
            all.push(g.port(&format!("tan.{}", port.name), f.ty(port.value)?.clone(), PortKind::Input, None));
        }
    }
    let tangents = g.inline(&push, &all)?;
    let mut float_outputs = Vec::new();
    for o in &f.outputs {
        if f.ty(o.value)?.dtype.is_float() {
            float_outputs.push(o);
        }
    }
    for (o, t) in float_outputs.into_iter().zip(tangents) {
        g.output(&format!("tan.{}", o.name), t);
    }
    dce(&g.finish()?)
}

/// The graph, the gradient of a scalar output and its Hessian times a vector: new inputs `vec.PORT`, new outputs
/// `grad.PORT` and `hvp.PORT`.
pub fn hvp(f: &Func, output: &str, wrt: &[&str]) -> Result<Func> {
    marks(f, wrt)?;
    if f.ty(f.need_output(output)?.value)?.rank() != 0 {
        return Err(Error::new(Code::Gradient, format!("output {output:?} is not a scalar")));
    }
    let first = vjp(f, &[output], wrt)?;
    let g = Graph::new(f.name.clone());
    let args = g.declare_ports(&first);
    let outs = g.inline(&first, &args)?;
    let mut dot = None;
    for (o, v) in first.outputs.iter().zip(&outs) {
        let Some(name) = o.name.strip_prefix("grad.").filter(|n| wrt.contains(n)) else {
            g.output(&o.name, *v);
            continue;
        };
        g.output(&format!("first.{name}"), *v);
        let along = g.port(&format!("vec.{name}"), v.ty(), PortKind::Input, None);
        let part = v.inner(along);
        dot = Some(dot.map_or(part, |d: crate::Var<'_>| d + part.to(d.dtype())));
    }
    let dot = dot.ok_or_else(|| Error::new(Code::UnknownName, "nothing to differentiate with respect to"))?;
    g.output("hvp.dot", dot);
    let mut second = vjp(&g.finish()?, &["hvp.dot"], wrt)?;
    second.outputs.retain(|o| o.name != "hvp.dot");
    for o in &mut second.outputs {
        if let Some(name) = o.name.strip_prefix("grad.") {
            o.name = format!("hvp.{name}");
        } else if let Some(name) = o.name.strip_prefix("first.").filter(|n| wrt.contains(n)) {
            o.name = format!("grad.{name}");
        }
    }
    dce(&second)
}

fn marks(f: &Func, wrt: &[&str]) -> Result<Vec<bool>> {
    for name in wrt {
        let p = f.need_port(name)?;
        if !f.ty(p.value)?.dtype.is_float() {
            return Err(Error::new(Code::Gradient, format!("{name:?} is not a float")));
        }
    }
    Ok(f.ports.iter().map(|p| wrt.contains(&p.name.as_str())).collect())
}

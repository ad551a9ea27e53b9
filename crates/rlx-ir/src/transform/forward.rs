//! Forward mode and second derivatives, both from reverse mode.

use super::reverse::{backward, float_ports, forward, pullback};
use super::{dce, vjp};
use crate::error::{Code, Error, Result};
use crate::func::{Func, PortKind};
use crate::graph::Graph;

/// The graph and its Jacobian times a vector: new inputs `tan.PORT` for the named ports, new outputs `tan.OUTPUT` for
/// every float output.
///
/// The pullback is linear in its cotangent; its own pullback with respect to that cotangent is the Jacobian itself.
pub fn jvp(f: &Func, wrt: &[&str]) -> Result<Func> {
    let (_, wanted) = float_ports(f, wrt)?;
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
    let (places, wanted) = float_ports(f, wrt)?;
    if f.ty(f.need_output(output)?.value)?.rank() != 0 {
        return Err(Error::new(Code::Gradient, format!("output {output:?} is not a scalar")));
    }
    // A scalar needs no cotangent, so the ports stay where they are; the gradients are the last outputs.
    let first = vjp(f, &[output], wrt)?;
    let g = Graph::new(f.name.clone());
    let args = g.declare_ports(&first);
    let outs = forward(&g, &first, &args, &wanted)?;
    for (o, v) in first.outputs.iter().zip(&outs) {
        g.output(&o.name, *v);
    }
    // ⟨∇f, v⟩ has the gradient H·v. Each gradient is a seed of its own, so that their dtypes may differ.
    let mut seeds = Vec::new();
    for (name, grad) in wrt.iter().zip(outs.iter().skip(f.outputs.len())) {
        seeds.push((*grad, g.port(&format!("vec.{name}"), grad.ty(), PortKind::Input, None)));
    }
    let second = backward(&g, &seeds, &args, &wanted)?;
    for (i, name) in places.into_iter().zip(wrt) {
        if let (Some(x), Some(h)) = (args.get(i), second.get(i)) {
            g.output(&format!("hvp.{name}"), h.unwrap_or_else(|| x.zeros_like()));
        }
    }
    dce(&g.finish()?)
}

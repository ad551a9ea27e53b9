//! Batching: the same graph over one more axis.
//!
//! Inside, the batch is always axis 0 of a batched value. An op none of whose operands is batched stays as it is.

use super::dce;
use crate::dim::Dim;
use crate::error::{Code, Error, Result};
use crate::func::{Func, Node, PortKind};
use crate::graph::{Graph, Var};
use crate::op::{Cx, Vmap, VmapCx};
use crate::types::{Shape, Type, resolve_axis};
use std::collections::{HashMap, HashSet};

/// The graph with a batch axis of `size` at the given place of each named port, and at `out_axis` of every output.
/// The other ports are shared by all members of the batch. Axes count in the batched shape and may count from the end.
pub fn vmap(f: &Func, axes: &[(&str, i64)], size: &Dim, out_axis: i64) -> Result<Func> {
    let g = Graph::new(f.name.clone());
    let names: HashSet<&str> = f.ports.iter().map(|p| p.name.as_str()).collect();
    let mut places: HashMap<&str, i64> = HashMap::new();
    for (name, axis) in axes {
        if !names.contains(name) {
            f.need_port(name)?;
        }
        if places.insert(name, *axis).is_some() {
            return Err(Error::new(Code::Vmap, format!("{name:?} is named twice")));
        }
    }
    let mut args = Vec::new();
    let mut batched = Vec::new();
    for p in &f.ports {
        let ty = f.ty(p.value)?;
        let Some(axis) = places.get(p.name.as_str()).copied() else {
            let v = g.on_behalf(&p.loc, || g.port(&p.name, ty.clone(), p.kind, p.source.clone()));
            args.push(v.set_diff(p.diff));
            batched.push(false);
            continue;
        };
        let at = resolve_axis(axis, ty.rank() + 1)
            .map_err(|e| Error::new(Code::Vmap, e.message().to_string()).operand(p.name.clone()))?;
        if ty.dtype.is_packed() && at != 0 {
            return Err(Error::new(Code::Vmap, "a packed tensor is batched along axis 0 only")
                .operand(p.name.clone()));
        }
        let mut shape = ty.shape.clone();
        shape.insert(at, size.clone());
        // The data of an unbatched param cannot serve a batched one.
        let v = g.on_behalf(&p.loc, || g.port(&p.name, ty.with_shape(shape), p.kind, None)).set_diff(p.diff);
        args.push(v.move_axis(at as i64, 0));
        batched.push(true);
    }
    let results = map_func(&g, f, &args, &batched, size)?;
    for (o, (v, is_batched)) in f.outputs.iter().zip(results) {
        let v = if is_batched { v } else { v.repeat_leading(size) };
        let at = resolve_axis(out_axis, v.rank())
            .map_err(|e| Error::new(Code::Vmap, e.message().to_string()).operand(o.name.clone()))?;
        g.output(&o.name, v.move_axis(0, at as i64));
    }
    dce(&g.finish()?)
}

/// The function with the batch as axis 0 of the marked ports and of every output. Used for regions of control flow.
pub fn vmap_func(f: &Func, batched: &[bool], size: &Dim) -> Result<Func> {
    let g = Graph::new(f.name.clone());
    let mut args = Vec::new();
    for (i, (ty, b)) in f.port_types()?.into_iter().zip(batched).enumerate() {
        let ty = if *b { with_batch(&ty, size) } else { ty };
        args.push(g.port(&format!("p{i}"), ty, PortKind::Input, None));
    }
    for (i, (v, is_batched)) in map_func(&g, f, &args, batched, size)?.into_iter().enumerate() {
        g.output(&format!("r{i}"), if is_batched { v } else { v.repeat_leading(size) });
    }
    g.finish()
}

fn with_batch(ty: &Type, size: &Dim) -> Type {
    ty.with_shape(std::iter::once(size.clone()).chain(ty.shape.iter().cloned()).collect::<Shape>())
}

/// Copies `f` over batched args; gives each output and whether it is batched.
pub(crate) fn map_func<'g>(
    g: &'g Graph,
    f: &Func,
    args: &[Var<'g>],
    batched: &[bool],
    size: &Dim,
) -> Result<Vec<(Var<'g>, bool)>> {
    let args = g.captured(args);
    let mut marked: HashSet<crate::ValueId> =
        args.iter().zip(batched).filter(|(_, b)| **b).map(|(a, _)| a.id()).collect();
    let results = g.inline_with(f, &args, &mut |g, node, operands| {
        let flags: Vec<bool> = operands.iter().map(|o| o.is_some_and(|v| marked.contains(&v.id()))).collect();
        if !flags.contains(&true) {
            return Ok(g.emit_at(node, operands));
        }
        let results = map_node(g, node, operands, flags, size).map_err(|e| e.in_op(node.op.name))?;
        marked.extend(results.iter().map(|r| r.id()));
        Ok(results)
    })?;
    Ok(results.into_iter().map(|v| (v, marked.contains(&v.id()))).collect())
}

fn map_node<'g>(
    g: &'g Graph,
    node: &Node,
    operands: Vec<Option<Var<'g>>>,
    batched: Vec<bool>,
    size: &Dim,
) -> Result<Vec<Var<'g>>> {
    let cx = Cx { g, def: node.op, attrs: node.attrs.clone(), operands, regions: node.regions.clone() };
    let c = VmapCx { cx, batched, size: size.clone() };
    match node.op.vmap {
        Vmap::Elementwise => {
            let rank = (0..c.operands.len()).map(|i| c.rank(i)).max().unwrap_or(0);
            let align = |i: usize| c.opt(i).map(|x| if c.is_batched(i) { x.align_batch(rank) } else { x });
            Ok(c.again(c.attrs.clone(), (0..c.operands.len()).map(align).collect()))
        }
        Vmap::Through => vmap_through(&c),
        Vmap::Loop => vmap_loop(&c),
        Vmap::Rule(rule) => rule(&c),
    }
}

/// The types that the op's operands have for one member of the batch.
fn single_types(c: &VmapCx<'_>) -> Vec<Option<Type>> {
    let single = |i: usize| {
        c.opt(i).map(|x| {
            let ty = x.ty();
            if c.is_batched(i) {
                ty.with_shape(ty.shape.iter().skip(1).cloned().collect::<Shape>())
            } else {
                ty
            }
        })
    };
    (0..c.operands.len()).map(single).collect()
}

/// Batches an op through its body.
pub fn vmap_through<'g>(c: &VmapCx<'g>) -> Result<Vec<Var<'g>>> {
    let body = Graph::body_of(c.def, &c.attrs, &single_types(c), &c.regions)?;
    let given = c.operands.iter().zip(&c.batched).filter_map(|(o, b)| o.map(|v| (v, *b)));
    let (args, flags): (Vec<_>, Vec<_>) = given.unzip();
    let results = map_func(c.g, &body, &args, &flags, &c.size)?;
    Ok(results.into_iter().map(|(v, b)| if b { v } else { v.repeat_leading(&c.size) }).collect())
}

/// Batches any op by a scan over the batch: always right, never fast.
pub fn vmap_loop<'g>(c: &VmapCx<'g>) -> Result<Vec<Var<'g>>> {
    let xs: Vec<Var<'g>> = (0..c.operands.len()).filter(|i| c.is_batched(*i)).map(|i| c.x(i)).collect();
    let (_, ys) = c.g.scan(&[], &xs, c.size.clone(), false, |_, slices| {
        let mut slices = slices.iter();
        let pick = |i: usize| if c.is_batched(i) { slices.next().copied() } else { c.opt(i) };
        let operands = (0..c.operands.len()).map(pick).collect();
        (Vec::new(), c.g.emit(c.def, c.attrs.clone(), operands, c.regions.clone()))
    });
    Ok(ys)
}

impl Graph {
    /// A batched copy of a function inside this graph; gives every output with the batch as axis 0.
    pub fn inline_batched<'g>(
        &'g self,
        f: &Func,
        args: &[Var<'g>],
        batched: &[bool],
        size: &Dim,
    ) -> Result<Vec<Var<'g>>> {
        let results = map_func(self, f, args, batched, size)?;
        Ok(results.into_iter().map(|(v, b)| if b { v } else { v.repeat_leading(size) }).collect())
    }
}

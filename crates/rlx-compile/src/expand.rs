//! From ops to step kinds: composites without a tuned kernel become their bodies, and kernels get the dtypes they compute in.

use rlx_ir::dtype::Class;
use rlx_ir::func::{Func, Node};
use rlx_ir::graph::{Graph, Var};
use rlx_ir::op::Step;
use rlx_ir::op::step::{ConvPart, Running, kernel_dtype};
use rlx_ir::ops::scatter::ScatterMode;
use rlx_ir::ops::window::WindowKind;
use rlx_ir::{Code, DType, Dim, Error, Result, Type};
use std::cell::RefCell;
use std::sync::Arc;

/// What the device can do, as far as expansion asks.
pub trait Target {
    /// Whether there is a kernel for the step with operands of these types; else the body is run, and a step without a body
    /// is an error. It is asked for every step but control flow.
    fn has_kernel(&self, step: &Step, operands: &[Option<Type>]) -> bool;
}

/// The graph with only such ops as have a step kind, each in a dtype that kernels compute in.
pub fn expand(f: &Func, target: &dyn Target) -> Result<Func> {
    let e = Expander { target, refused: RefCell::default() };
    let out = e.func(f)?;
    let refused = e.refused.into_inner();
    match refused.len() {
        0 => Ok(out),
        _ => Err(Error::new(
            Code::Device,
            format!("the device cannot run {} of the nodes: {}", refused.len(), refused.join("; ")),
        )),
    }
}

struct Expander<'t> {
    target: &'t dyn Target,
    /// Every node that the device cannot run, and why.
    refused: RefCell<Vec<String>>,
}

impl Expander<'_> {
    fn func(&self, f: &Func) -> Result<Func> {
        let g = Graph::new(f.name.clone());
        {
            let args = g.declare_ports(f);
            let outs = self.inline(&g, f, &args)?;
            for (o, v) in f.outputs.iter().zip(outs) {
                g.output(&o.name, v);
            }
        }
        g.finish()
    }

    fn inline<'g>(&self, g: &'g Graph, f: &Func, args: &[Var<'g>]) -> Result<Vec<Var<'g>>> {
        g.inline_with(f, args, &mut |g, node, operands| self.node(g, node, operands))
    }

    fn node<'g>(&self, g: &'g Graph, node: &Node, operands: Vec<Option<Var<'g>>>) -> Result<Vec<Var<'g>>> {
        let types: Vec<Option<Type>> = operands.iter().map(|o| o.map(Var::ty)).collect();
        let given = || operands.iter().flatten().copied().collect::<Vec<_>>();
        match node.step(&types).transpose()? {
            None => {
                let body = Graph::body_of(node.op, &node.attrs, &types, &node.regions)?;
                self.inline(g, &body, &given())
            }
            Some(Step::Inline) => {
                let body =
                    node.regions.first().ok_or_else(|| Error::new(Code::Region, "a region is missing"))?;
                self.inline(g, body, &given())
            }
            Some(Step::Collective(1)) => Ok(given()),
            Some(Step::Collective(ranks)) => {
                self.refuse(g, node, operands, &format!("needs {ranks} ranks, and one is running"))
            }
            Some(Step::If | Step::While { .. } | Step::Scan { .. }) => {
                let regions =
                    node.regions.iter().map(|r| self.func(r).map(Arc::new)).collect::<Result<_>>()?;
                Ok(g.emit(node.op, node.attrs.clone(), operands, regions))
            }
            Some(Step::Conv { part: ConvPart::Output, .. })
                if operands.get(2).is_some_and(Option::is_some) =>
            {
                let mut operands = operands;
                let bias = operands.split_off(2).into_iter().flatten().next();
                let y = self.node(g, node, operands)?;
                let (Some(y), Some(bias)) = (y.first().copied(), bias) else { return Ok(y) };
                let mut shape = vec![bias.dim(0)];
                shape.resize(y.rank().saturating_sub(1), Dim::constant(1));
                Ok(vec![y + bias.reshape(shape)])
            }
            Some(step) if !self.target.has_kernel(&step, &types) => {
                if let Ok(body) = Graph::body_of(node.op, &node.attrs, &types, &node.regions) {
                    return self.inline(g, &body, &given());
                }
                let types: Vec<String> = types.iter().flatten().map(Type::to_string).collect();
                self.refuse(g, node, operands, &format!("has no kernel for {}", types.join(", ")))
            }
            Some(step) if computes(&step) => self.legal(g, node, &step, operands),
            // Codecs take f32 and give f32.
            Some(Step::Quantize) => {
                Ok(g.emit_at(node, operands.into_iter().map(|o| o.map(|v| v.to(DType::F32))).collect()))
            }
            Some(Step::Dequantize { finite }) => {
                let want = node.op.infer_types(&node.attrs, &types, &node.regions)?;
                let w = operands.into_iter().flatten();
                let y = w.map(|w| g.on_behalf(&node.loc, || w.dequantize(DType::F32, finite)));
                Ok(y.zip(&want).map(|(y, t)| y.to(t.dtype)).collect())
            }
            Some(_) => Ok(g.emit_at(node, operands)),
        }
    }

    /// Notes that the device cannot run the node, and goes on to find all such nodes.
    fn refuse<'g>(
        &self,
        g: &'g Graph,
        node: &Node,
        operands: Vec<Option<Var<'g>>>,
        why: &str,
    ) -> Result<Vec<Var<'g>>> {
        self.refused.borrow_mut().push(format!("{} at {} {why}", node.op.name, node.loc));
        Ok(g.emit_at(node, operands))
    }

    /// The node in the dtypes that kernels compute in, with conversions around it.
    fn legal<'g>(
        &self,
        g: &'g Graph,
        node: &Node,
        step: &Step,
        operands: Vec<Option<Var<'g>>>,
    ) -> Result<Vec<Var<'g>>> {
        let types: Vec<Option<Type>> = operands.iter().map(|o| o.map(Var::ty)).collect();
        let float = types.iter().flatten().map(|t| t.dtype).find(|d| d.is_float()).map(kernel_dtype);
        // The numbers of a u64 in the order of those of an i64, and back: both turn the first bit.
        let turned = |v: Var<'g>| v.to(DType::I64) + g.scalar(DType::I64, i64::MIN as f64);
        let fit = |(i, o): (usize, Option<Var<'g>>)| {
            o.map(|v| {
                let class = node.op.operand(i).map_or(Class::Free, |s| s.class);
                match v.dtype() {
                    d if d.is_float() => v.to(float.unwrap_or(DType::F32)),
                    DType::I32 if class == Class::Index => v,
                    DType::U64 if class != Class::Index && orders(step) => turned(v),
                    d if d.is_int() || (d == DType::Bool && matches!(class, Class::Any | Class::Num)) => {
                        v.to(DType::I64)
                    }
                    _ => v,
                }
            })
        };
        let want = node.op.infer_types(&node.attrs, &types, &node.regions)?;
        let results = g.emit_at(node, operands.into_iter().enumerate().map(fit).collect());
        // The extreme of nothing is that of the kernel's dtype.
        let nothing = matches!(
            step,
            Step::Running { kind: Running::Max | Running::Min, exclusive: true, .. }
                | Step::Window { kind: WindowKind::Max | WindowKind::Min, arg: false, .. }
        );
        let back = |(v, t): (Var<'g>, &Type)| match t.dtype.int_range() {
            _ if t.dtype == DType::U64 && orders(step) => turned(v).to(DType::U64),
            Some((lo, hi)) if nothing && v.dtype() != t.dtype => {
                v.maximum(lo as f64).minimum(hi as f64).to(t.dtype)
            }
            _ => v.to(t.dtype),
        };
        Ok(results.into_iter().zip(&want).map(back).collect())
    }
}

/// Whether a step asks which of its operands' elements is larger.
fn orders(step: &Step) -> bool {
    match step {
        Step::Running { kind, .. } => matches!(kind, Running::Max | Running::Min),
        Step::Window { kind, .. } => matches!(kind, WindowKind::Max | WindowKind::Min),
        Step::Scatter { mode, .. } => matches!(mode, ScatterMode::Max | ScatterMode::Min),
        Step::ArgFold { .. } | Step::Sort { .. } => true,
        _ => false,
    }
}

/// Whether a step computes with its operands in a kernel of its own, rather than moving them or working element by element.
pub fn computes(step: &Step) -> bool {
    match step {
        Step::Scatter { mode, .. } => *mode != ScatterMode::Set,
        Step::Dot { .. }
        | Step::Conv { .. }
        | Step::Window { .. }
        | Step::Running { .. }
        | Step::LinearScan { .. }
        | Step::ArgFold { .. }
        | Step::Sort { .. }
        | Step::Fft { .. }
        | Step::Attention(_)
        | Step::AttentionGrad(_)
        | Step::SelectiveScan { .. }
        | Step::SelectiveScanGrad { .. } => true,
        _ => false,
    }
}

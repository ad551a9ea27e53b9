//! The samples of the op table as graphs with data.

use rlx_ir::func::PortKind;
use rlx_ir::op::OpDef;
use rlx_ir::oracle::Arr;
use rlx_ir::sample::{Sample, SampleKind};
use rlx_ir::{DType, Error, Func, Graph, Options, Result, Tensor, eval};

/// A sample made into a graph of one op, with its data.
pub struct Case {
    /// `op/sample`.
    pub name: String,
    /// The graph; its ports are `p0`, `p1`, … (or the text's own), its outputs `r0`, `r1`, …
    pub func: Func,
    /// The data of the ports, by name.
    pub data: Vec<(String, Tensor)>,
    /// Whether finite differences make sense here.
    pub smooth: bool,
}

impl Case {
    /// The data as the oracle takes them.
    pub fn inputs(&self) -> Vec<(&str, &Tensor)> {
        self.data.iter().map(|(n, t)| (n.as_str(), t)).collect()
    }

    /// What the oracle makes of it.
    pub fn eval(&self) -> Result<Vec<(String, Arr)>> {
        eval(&self.func, &self.inputs(), &Options::default())
    }

    /// The float ports: what a gradient can be taken with respect to.
    pub fn float_ports(&self) -> Vec<&str> {
        self.data.iter().filter(|(_, t)| t.dtype().is_float()).map(|(n, _)| n.as_str()).collect()
    }

    /// The float outputs.
    pub fn float_outputs(&self) -> Result<Vec<&str>> {
        let types = self.func.output_types()?;
        let named = self.func.outputs.iter().zip(types).filter(|(_, t)| t.dtype.is_float());
        Ok(named.map(|(o, _)| o.name.as_str()).collect())
    }
}

/// Makes a sample of an op into a graph, with `dtype` for the dtype under test.
pub fn case(op: &'static OpDef, sample: &Sample, dtype: DType) -> Result<Case> {
    let name = format!("{}/{}", op.name, sample.name);
    let seed = name.bytes().fold(17u64, |h, b| h.wrapping_mul(31).wrapping_add(b as u64));
    match &sample.what {
        SampleKind::Op { args, attrs } => {
            let g = Graph::new("sample");
            let mut data = Vec::new();
            let mut operands = Vec::new();
            for (i, arg) in args.iter().enumerate() {
                let Some(arg) = arg else {
                    operands.push(None);
                    continue;
                };
                let t = arg.tensor(dtype, seed.wrapping_add(i as u64))?;
                let port = format!("p{i}");
                operands.push(Some(g.port(&port, t.ty(), PortKind::Input, None)));
                data.push((port, t));
            }
            for (i, v) in g.emit(op, attrs.clone(), operands, Vec::new()).into_iter().enumerate() {
                g.output(&format!("r{i}"), v);
            }
            Ok(Case { name, func: g.finish()?, data, smooth: sample.smooth })
        }
        SampleKind::Text(text) => {
            let func = rlx_ir::text::parse(&text.replace("DT", &dtype.to_string()))?;
            let mut data = Vec::new();
            for (i, p) in func.ports.iter().enumerate() {
                let ty = func.ty(p.value)?;
                let shape: Option<Vec<usize>> =
                    ty.shape.iter().map(|d| d.as_const().and_then(|n| usize::try_from(n).ok())).collect();
                let shape =
                    shape.ok_or_else(|| Error::new(rlx_ir::Code::Unbound, "a sample with symbols"))?;
                let fill = if ty.dtype.is_float() {
                    rlx_ir::sample::Fill::Uniform(-1.5, 1.5)
                } else {
                    rlx_ir::sample::Fill::Ints(0, 3)
                };
                let arg =
                    rlx_ir::sample::Arg { shape, dtype: rlx_ir::sample::ArgType::Fixed(ty.dtype), fill };
                data.push((p.name.clone(), arg.tensor(dtype, seed.wrapping_add(i as u64))?));
            }
            Ok(Case { name, func, data, smooth: sample.smooth })
        }
    }
}

/// Every sample of every op whose name `keep` accepts.
pub fn all(dtype: DType, keep: impl Fn(&str) -> bool) -> Vec<(String, Result<Case>)> {
    let mut out = Vec::new();
    for op in rlx_ir::ops::all() {
        for s in op.sample_list() {
            let name = format!("{}/{}", op.name, s.name);
            if keep(&name) {
                out.push((name, case(op, &s, dtype)));
            }
        }
    }
    out
}

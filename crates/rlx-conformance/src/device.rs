//! A device against the oracle: samples of the op table, their gradients, random graphs.

use crate::sampled::Case;
use rlx::exec::AsFunc;
use rlx::{CompileOptions, Device, Executable};
use rlx_ir::func::PortKind;
use rlx_ir::oracle::Arr;
use rlx_ir::sample::{Arg, ArgType, Fill};
use rlx_ir::{DType, Func, Options, Result, Rounding, Tensor, eval, transform};

/// A device, as the harness uses it.
pub struct Subject {
    /// The device.
    pub device: Device,
    /// How graphs are compiled for it.
    pub options: CompileOptions,
}

impl Subject {
    /// Compiles a graph; params are set from the data.
    pub fn compile(&self, f: &impl AsFunc, data: &[(String, Tensor)]) -> Result<Executable> {
        let func = f.func()?;
        let e = rlx::compile_with(f, self.device, &self.options)?;
        for (name, t) in data {
            if func.port(name).is_some_and(|p| p.kind == PortKind::Param) {
                e.params().set(name, t.clone())?;
            }
        }
        Ok(e)
    }

    /// Compiles and runs a graph.
    pub fn run(&self, func: &Func, data: &[(String, Tensor)]) -> Result<Vec<(String, Tensor)>> {
        let e = self.compile(func, data)?;
        let inputs: Vec<(&str, &Tensor)> = data
            .iter()
            .filter(|(n, _)| func.port(n).is_some_and(|p| p.kind == PortKind::Input))
            .map(|(n, t)| (n.as_str(), t))
            .collect();
        Ok(e.run(&inputs)?.into_vec())
    }

    /// Runs a graph on the device and in the oracle. The message says what disagrees.
    pub fn check(
        &self,
        func: &Func,
        data: &[(String, Tensor)],
        limit: &Limit<'_>,
    ) -> std::result::Result<(), String> {
        let inputs: Vec<(&str, &Tensor)> = data.iter().map(|(n, t)| (n.as_str(), t)).collect();
        let oracle = |f: &Func, o: &Options| eval(f, &inputs, o).map_err(|e| format!("oracle: {e}"));
        let want = oracle(func, &Options::default())?;
        let got = self.run(func, data).map_err(|e| e.to_string())?;
        let steps = rlx_compile::expand::expand(func, &rlx_cpu::Target).map_err(|e| e.to_string())?;
        let tol = floats(&steps).into_iter().map(limit.tol).fold(0f64, f64::max);
        let all = |want: &[(String, Arr)]| -> std::result::Result<(), String> {
            if want.len() != got.len() {
                return Err(format!("{} outputs came, not {}", got.len(), want.len()));
            }
            for ((name, want), (_, got)) in want.iter().zip(&got) {
                compare(want, got, tol, limit.floor, limit.rounded)
                    .map_err(|e| format!("output {name}: {e}"))?;
            }
            Ok(())
        };
        let exact = all(&want);
        if exact.is_ok() || !limit.rounded {
            return exact;
        }
        // A comparison may turn out otherwise for a number that was rounded: then the graph of its steps, each rounded to
        // its dtype, must agree.
        all(&oracle(&steps, &Options { rounding: Rounding::Declared, ..Options::default() })?).or(exact)
    }
}

/// How far a device may be off.
pub struct Limit<'a> {
    /// The relative error for graphs that compute in a dtype.
    pub tol: &'a dyn Fn(DType) -> f64,
    /// What the largest element of an output counts for at least.
    pub floor: f64,
    /// Whether the oracle may round every step, and an infinity have the other sign: which of 0 and −0 is the smaller is
    /// nobody's rule, and a reciprocal tells.
    pub rounded: bool,
}

/// The float dtypes that a graph computes in.
fn floats(f: &Func) -> Vec<DType> {
    let mut out: Vec<DType> = f.values.iter().map(|v| v.ty.dtype).filter(|d| d.is_float()).collect();
    out.extend(f.nodes.iter().flat_map(|n| &n.regions).flat_map(|r| floats(r)));
    out.dedup();
    out
}

/// The tolerance of an op for a dtype.
pub fn tolerance(op: &str, dtype: DType) -> f64 {
    let tol = rlx_ir::ops::all().iter().find(|d| d.name == op).map(|d| d.tol);
    let Some(t) = tol else { return 0.0 };
    match dtype {
        DType::F64 => t.f64,
        DType::F16 => t.f16,
        DType::BF16 => t.bf16,
        _ => t.f32,
    }
}

/// Whether a result is what the oracle says, to a relative error. Integers must agree exactly. An element is measured against
/// itself or, where terms cancel, against a tenth of the largest element.
pub fn agree(want: &Arr, got: &Tensor, tol: f64, floor: f64) -> std::result::Result<(), String> {
    compare(want, got, tol, floor, false)
}

fn compare(
    want: &Arr,
    got: &Tensor,
    tol: f64,
    floor: f64,
    unsigned: bool,
) -> std::result::Result<(), String> {
    if want.shape() != got.shape() || want.dtype() != got.dtype() {
        let ours = format!("{}{:?}", want.dtype(), want.shape());
        return Err(format!("{ours} is wanted, but {}{:?} came", got.dtype(), got.shape()));
    }
    if got.dtype().is_packed() {
        let got = Arr::from_tensor(got).map_err(|e| e.to_string())?;
        let (a, b) = (want.f64s(), got.f64s());
        return match a.iter().zip(&b).position(|(a, b)| a != b && !(a.is_nan() && b.is_nan())) {
            None => Ok(()),
            Some(i) => Err(format!("element {i} decodes to {:?}, not {:?}", b.get(i), a.get(i))),
        };
    }
    if !got.dtype().is_float() {
        let (a, b) = (want.ints(), got.to_i128s().unwrap_or_default());
        return match a.iter().zip(&b).position(|(a, b)| a != b) {
            None => Ok(()),
            Some(i) => Err(format!("element {i} is {:?}, not {:?}", b.get(i), a.get(i))),
        };
    }
    let (a, b) = (want.f64s(), got.to_f64s().unwrap_or_default());
    if a.len() != b.len() {
        return Err(format!("{} elements came, not {}", b.len(), a.len()));
    }
    let scale = a.iter().filter(|x| x.is_finite()).fold(floor, |m, x| m.max(x.abs()));
    let tiny = match got.dtype() {
        DType::F64 => 1e-300,
        DType::F16 => 6e-8,
        _ => 1e-37,
    };
    for (i, (x, y)) in a.iter().zip(&b).enumerate() {
        // What the dtype cannot hold, it rounds.
        let x = if got.dtype().round_f64(*x).is_finite() { *x } else { got.dtype().round_f64(*x) };
        let fine = if x.is_finite() {
            (x - y).abs() <= tol * x.abs().max(0.1 * scale) + tiny
        } else {
            x == *y || (x.is_nan() && y.is_nan()) || (unsigned && x == -*y)
        };
        // A value at the very edge of the dtype's range may round either way.
        let edge =
            got.dtype().float_max().is_some_and(|m| x.abs() > m * (1.0 - tol)) && y.abs() > 0.9 * x.abs();
        if !fine && !edge {
            let off = (x - y).abs() / x.abs().max(0.1 * scale);
            return Err(format!("element {i} is {y}, not {x}: off by {off:.2e}, {tol:.0e} is allowed"));
        }
    }
    Ok(())
}

/// A graph and the data of its ports.
pub type WithData = (Func, Vec<(String, Tensor)>);

/// The graph of a case's gradient with its data: cotangents are random. `None` if there is nothing to differentiate.
pub fn gradient(case: &Case) -> Result<Option<WithData>> {
    let (wrt, outputs) = (case.float_ports(), case.float_outputs()?);
    if wrt.is_empty() || outputs.is_empty() {
        return Ok(None);
    }
    let f = transform::vjp(&case.func, &outputs, &wrt)?;
    let mut data = case.data.clone();
    add_cotangents(&f, &mut data)?;
    Ok(Some((f, data)))
}

/// Random data for the cotangents of a gradient graph, whose sizes are constants.
pub fn add_cotangents(f: &Func, data: &mut Vec<(String, Tensor)>) -> Result<()> {
    for (i, p) in f.ports.iter().enumerate().filter(|(_, p)| p.name.starts_with("ct.")) {
        let ty = f.ty(p.value)?;
        let shape = ty.shape.iter().map(|d| d.as_const().map_or(0, |n| n as usize)).collect();
        let arg = Arg { shape, dtype: ArgType::Fixed(ty.dtype), fill: Fill::Uniform(-1.0, 1.0) };
        data.push((p.name.clone(), arg.tensor(ty.dtype, 91 + i as u64)?));
    }
    Ok(())
}

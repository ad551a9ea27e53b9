//! What the tests of the rewrite stage share.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx_compile::rewrite::{Options, rewrite};
use rlx_ir::sample::{Arg, ArgType, Fill};
use rlx_ir::{Bindings, Func, Tensor, eval, text, verify};
use std::collections::HashSet;

/// Data for the ports; symbols are 3.
pub fn data(f: &Func, seed: u64) -> Vec<(String, Tensor)> {
    let sizes: Bindings = f.symbols().unwrap().into_iter().map(|(n, max)| (n, max.min(3))).collect();
    let mut out = Vec::new();
    for (i, p) in f.ports.iter().enumerate() {
        let ty = f.ty(p.value).unwrap();
        let shape = ty.shape.iter().map(|d| d.eval(&sizes).unwrap() as usize).collect();
        let fill = if ty.dtype.is_float() { Fill::Uniform(-1.5, 1.5) } else { Fill::Ints(0, 3) };
        let arg = Arg { shape, dtype: ArgType::Fixed(ty.dtype), fill };
        out.push((p.name.clone(), arg.tensor(ty.dtype, seed + 31 * i as u64).unwrap()));
    }
    out
}

pub fn refs(data: &[(String, Tensor)]) -> Vec<(&str, &Tensor)> {
    data.iter().map(|(n, t)| (n.as_str(), t)).collect()
}

/// The names of the rules that fire.
pub fn fired(f: &Func) -> HashSet<&'static str> {
    rewrite(f, &Options::default()).unwrap().fired.into_iter().map(|f| f.0).collect()
}

/// Whether both graphs have the same outputs, up to rounding; integers and bools exactly, NaN as NaN. What is folded is
/// rounded to its dtype, so a number may be off as far as rounding every step takes it: the cosine of a large number has few
/// digits left.
pub fn agree(a: &Func, b: &Func, inputs: &[(&str, &Tensor)]) -> Result<(), String> {
    let options = rlx_ir::Options::default();
    let x = eval(a, inputs, &options).map_err(|e| format!("before: {e}"))?;
    let y = eval(b, inputs, &options).map_err(|e| format!("after: {e}"))?;
    let options = rlx_ir::Options { rounding: rlx_ir::Rounding::Declared, ..options };
    let rounded = eval(a, inputs, &options).map_err(|e| format!("rounded: {e}"))?;
    if x.len() != y.len() {
        return Err(format!("{} outputs before, {} after", x.len(), y.len()));
    }
    for (((n, x), (m, y)), (_, rounded)) in x.iter().zip(&y).zip(&rounded) {
        if n != m || x.dtype() != y.dtype() || x.shape() != y.shape() {
            return Err(format!(
                "{n}: {}{:?} became {m}: {}{:?}",
                x.dtype(),
                x.shape(),
                y.dtype(),
                y.shape()
            ));
        }
        if x.dtype().is_packed() {
            continue;
        }
        // The precision of constants and of explicit casts, not of the arithmetic, which the oracle does in f64.
        let tolerance = match x.dtype() {
            rlx_ir::DType::F64 => 1e-7,
            rlx_ir::DType::F32 => 1e-5,
            rlx_ir::DType::F16 | rlx_ir::DType::BF16 => 2e-2,
            d if d.is_float() => 0.2,
            _ => 0.0,
        };
        let (xs, ys, rounded) = (x.f64s(), y.f64s(), rounded.f64s());
        let scale = xs.iter().filter(|x| x.is_finite()).fold(0.0f64, |m, x| m.max(x.abs())).max(1.0);
        for (i, ((p, q), r)) in xs.iter().zip(&ys).zip(&rounded).enumerate() {
            // Never so far that a wrong result would pass.
            let spare = if x.dtype().is_float() { (4.0 * (p - r).abs()).min(0.01 * scale) } else { 0.0 };
            let same = p == q || (p.is_nan() && q.is_nan()) || (p - q).abs() <= spare.max(tolerance * scale);
            if !same {
                return Err(format!("{n}[{i}] was {p}, became {q}"));
            }
        }
    }
    Ok(())
}

/// The rewritten graph is valid, means the same, is not rewritten further, and has not grown without need.
pub fn check(f: &Func, data: &[(String, Tensor)]) -> Result<Func, String> {
    let options = Options::default();
    let r = rewrite(f, &options).map_err(|e| format!("rewrite: {e}"))?;
    let show = |r: &Func| format!("{}\nbecame\n{}", text::print(f), text::print(r));
    verify::verify(&r.func).map_err(|e| format!("{e}\n{}", show(&r.func)))?;
    agree(f, &r.func, &refs(data)).map_err(|e| format!("{e}\n{}", show(&r.func)))?;
    let again = rewrite(&r.func, &options).map_err(|e| format!("again: {e}"))?;
    if again.func != r.func {
        return Err(format!(
            "not idempotent: {:?}\n{}\nthen\n{}",
            again.fired,
            show(&r.func),
            text::print(&again.func)
        ));
    }
    // A broadcast that moves behind the work on what it repeats may be needed once per use; it is only a view.
    let grown = r.func.nodes.iter().filter(|n| n.op.name != "broadcast").count() > expanded(f);
    if grown {
        return Err(format!("grew from {} to {}\n{}", f.size(), r.func.size(), show(&r.func)));
    }
    Ok(r.func)
}

/// The size of a graph with room for what products and splits become.
fn expanded(f: &Func) -> usize {
    let room = |name: &str| match name {
        "matmul" => 5,
        "linear" => 2,
        "einsum" => 24,
        "split" => 8,
        _ => 1,
    };
    f.nodes
        .iter()
        .map(|n| room(n.op.name) + n.regions.iter().map(|r| expanded(r)).sum::<usize>())
        .sum::<usize>()
        + 1
}

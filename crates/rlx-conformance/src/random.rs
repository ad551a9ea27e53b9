//! Random graphs, made from the op table itself: an op, attributes from one of its samples, and operands among the
//! values so far. What the shape rule refuses is tried again with others, so the rules decide what a valid graph is.

use rlx_ir::func::PortKind;
use rlx_ir::op::{Arity, OpDef};
use rlx_ir::sample::{Arg, ArgType, Fill, Rng, SampleKind};
use rlx_ir::{Bindings, DType, Dim, Func, Graph, Result, Tensor, Type, Var, dim};

/// A random graph and the sizes that its symbols may be bound to.
pub struct RandomGraph {
    /// The graph.
    pub func: Func,
    /// Its symbols and the value to use for each.
    pub sizes: Vec<(&'static str, i64)>,
    /// Whether integers are spread over the range that every dtype of them has.
    pub wide: bool,
}

/// What kind of graph to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any op of the table.
    Any,
    /// Only ops that are smooth and tame everywhere, in `f64`, so that finite differences make sense.
    Smooth,
    /// Ops that are fused, in `f32` and every dtype of integers, at sizes at which kernels take their other ways: more than
    /// a vector, a tile, a block. Values in between are outputs too.
    Wide,
}

/// Ops of [`Kind::Wide`] beside the smooth ones; reductions and products often.
#[rustfmt::skip]
const FUSED: &[&str] = &[
    "sum", "sum", "max", "max", "min", "min", "any", "any", "all", "all", "mean", "matmul", "matmul", "prod", "exp", "abs",
    "cast", "maximum", "minimum", "select", "less", "greater_equal", "equal", "and", "or", "xor", "not", "relu", "square",
    "broadcast", "add", "add", "mul",
];

/// Sizes beside those of vectors, tiles and blocks.
const WIDE: [i64; 8] = [1, 16, 17, 33, 64, 130, 300, 1100];

/// Ops that are smooth for all inputs and grow slowly.
const SMOOTH: &[&str] = &[
    "add",
    "sub",
    "mul",
    "neg",
    "tanh",
    "sin",
    "cos",
    "sigmoid",
    "gelu",
    "gelu_tanh",
    "silu",
    "softplus",
    "erf",
    "sum",
    "mean",
    "softmax",
    "log_softmax",
    "logsumexp",
    "matmul",
    "permute",
    "broadcast",
    "flip",
    "concat",
    "cumsum",
    "rms_norm",
    "layer_norm",
    "swiglu",
    "atan",
    "asinh",
    "linear",
    "lerp",
    "l2_normalize",
    "mish",
    "roll",
    "tril",
    "triu",
];

const INTS: [DType; 3] = [DType::I32, DType::I64, DType::U8];
const ALL_INTS: [DType; 8] =
    [DType::I8, DType::I16, DType::I32, DType::I64, DType::U8, DType::U16, DType::U32, DType::U64];

/// Makes a graph of about `size` ops.
pub fn graph(seed: u64, size: usize, kind: Kind) -> Result<RandomGraph> {
    let rng = &mut Rng::new(seed);
    let g = Graph::new("random");
    let wide = kind == Kind::Wide;
    let (n, m) = if wide { (dim("n", 1100), dim("m", 1100)) } else { (dim("n", 4), dim("m", 3)) };
    let sizes = if wide {
        let one = |rng: &mut Rng| WIDE.get(rng.below(WIDE.len() as u64) as usize).copied().unwrap_or(1);
        let (a, b) = (one(rng), one(rng));
        // Few elements in all, for the oracle is slow.
        vec![("n", a), ("m", if a * b > 5000 { 3 } else { b })]
    } else {
        vec![("n", 1 + rng.below(4) as i64), ("m", 1 + rng.below(3) as i64)]
    };
    let mut vars: Vec<Var<'_>> = Vec::new();
    let pick_dim = |rng: &mut Rng| match rng.below(6) {
        0 => n.clone(),
        1 => m.clone(),
        2 | 3 if wide => Dim::constant(1),
        k => Dim::constant(k as i64 - 1),
    };
    for i in 0..2 + rng.below(3) + 3 * u64::from(wide) {
        let shape: Vec<Dim> = match (wide, rng.below(8)) {
            (true, 0..=2) => vec![n.clone(), m.clone()],
            (true, 3) => vec![m.clone(), n.clone()],
            (true, 4) => vec![n.clone(), Dim::constant(1)],
            (true, 5) => Vec::new(),
            _ => (0..rng.below(4)).map(|_| pick_dim(rng)).collect(),
        };
        let dtype = match (kind, rng.below(8)) {
            (Kind::Smooth, _) | (Kind::Any, 0..=4) => DType::F64,
            (Kind::Wide, 0..=3) => DType::F32,
            (_, 5) => DType::Bool,
            (Kind::Wide, _) => {
                ALL_INTS.get(rng.below(ALL_INTS.len() as u64) as usize).copied().unwrap_or(DType::I8)
            }
            (_, k) => INTS.get(k as usize % INTS.len()).copied().unwrap_or(DType::I32),
        };
        vars.push(g.port(&format!("x{i}"), Type::new(dtype, shape), PortKind::Input, None));
    }
    let table: Vec<&'static OpDef> = rlx_ir::ops::all()
        .iter()
        .copied()
        .flat_map(|d| {
            let often = FUSED.iter().filter(|n| wide && **n == d.name).count();
            let once = kind == Kind::Any || SMOOTH.contains(&d.name);
            std::iter::repeat_n(d, if d.regions.is_empty() { often.max(usize::from(once)) } else { 0 })
        })
        .collect();
    let mut made = 0;
    for _ in 0..size * 60 {
        if made == size {
            break;
        }
        let new = match rng.below(12) {
            0..=3 if wide => reduced(&vars, rng),
            4..=6 if wide => joined(&vars, &sizes, rng),
            0 => wrapped(&g, &vars, rng),
            1 => restructured(&vars, rng),
            _ => applied(&g, &table, &vars, &sizes, if wide { LARGE } else { SMALL }, rng),
        };
        if !new.is_empty() {
            made += 1;
            vars.extend(new);
        }
    }
    let keep = 1 + rng.below(3) as usize;
    let kept = vars.iter().rev().enumerate().filter(|(i, _)| *i < keep || wide && rng.below(3) == 0);
    for (i, (_, v)) in kept.enumerate() {
        g.output(&format!("y{i}"), *v);
    }
    Ok(RandomGraph { func: g.finish()?, sizes, wide })
}

fn any<'g>(vars: &[Var<'g>], rng: &mut Rng) -> Option<Var<'g>> {
    // Younger values more often, so that graphs get deep.
    let n = vars.len() as u64;
    let i = rng.below(n).max(rng.below(n));
    vars.get(i as usize).copied()
}

/// The type at the graph's sizes.
fn at_sizes(t: &Type, sizes: &Bindings) -> Option<Type> {
    let bound = t.shape.iter().map(|d| d.eval(sizes).ok().map(Dim::constant));
    Some(t.with_shape(bound.collect::<Option<Vec<_>>>()?))
}

/// The elements that a value has at most: at all sizes, or for [`LARGE`] at those that the graph will run at.
const SMALL: i64 = 512;
const LARGE: i64 = 6000;

/// A random op of the table on random values, if its rules take them, also at the sizes that the graph will run at.
fn applied<'g>(
    g: &'g Graph,
    table: &[&'static OpDef],
    vars: &[Var<'g>],
    sizes: &[(&str, i64)],
    most: i64,
    rng: &mut Rng,
) -> Vec<Var<'g>> {
    let sizes: Bindings = sizes.iter().copied().collect();
    let Some(op) = table.get(rng.below(table.len() as u64) as usize).copied() else { return Vec::new() };
    let samples = op.sample_list();
    let Some(sample) = samples.get(rng.below(samples.len() as u64) as usize) else { return Vec::new() };
    let SampleKind::Op { attrs, .. } = &sample.what else { return Vec::new() };
    for _ in 0..8 {
        let mut operands = Vec::new();
        for spec in op.operands {
            let fits: Vec<Var<'g>> = vars.iter().copied().filter(|v| spec.class.takes(v.dtype())).collect();
            match spec.arity {
                Arity::One => operands.push(any(&fits, rng)),
                Arity::Optional => operands.push(if rng.below(2) == 0 { any(&fits, rng) } else { None }),
                Arity::Many => (0..1 + rng.below(3)).for_each(|_| operands.push(any(&fits, rng))),
            }
        }
        while let Some(None) = operands.last() {
            operands.pop();
        }
        let types: Vec<Option<Type>> = operands.iter().map(|o| o.map(|v| v.ty())).collect();
        let few = |t: &Type| t.numel().upper().is_some_and(|n| n <= most);
        let small =
            |t: &Type| if most == SMALL { few(t) } else { at_sizes(t, &sizes).is_some_and(|t| few(&t)) };
        let bound: Vec<Option<Type>> =
            types.iter().map(|t| t.as_ref().and_then(|t| at_sizes(t, &sizes))).collect();
        let Ok(bound_attrs) =
            attrs.iter().map(|a| a.bind(&sizes)).collect::<std::result::Result<Vec<_>, _>>()
        else {
            continue;
        };
        let runs = op.infer_types(&bound_attrs, &bound, &[]).is_ok();
        match op.infer_types(attrs, &types, &[]) {
            Ok(results) if runs && results.iter().all(small) => {
                return g.emit(op, attrs.clone(), operands, Vec::new());
            }
            _ => {}
        }
    }
    Vec::new()
}

/// A reduction over some axis, which neighbours in memory seldom are for the samples' attributes.
fn reduced<'g>(vars: &[Var<'g>], rng: &mut Rng) -> Vec<Var<'g>> {
    let Some(x) = any(vars, rng).filter(|x| x.rank() > 0) else { return Vec::new() };
    let axes = [rng.below(x.rank() as u64) as i64];
    let keep = rng.below(2) == 0;
    vec![match (x.dtype(), rng.below(3)) {
        (DType::Bool, 0) => x.any(axes, keep),
        (DType::Bool, _) => x.all(axes, keep),
        (_, 0) => x.sum(axes, keep),
        (_, 1) => x.max(axes, keep),
        _ => x.min(axes, keep),
    }]
}

/// A product or a reduction, and a number or a number per row that goes with each element of it.
fn joined<'g>(vars: &[Var<'g>], sizes: &[(&str, i64)], rng: &mut Rng) -> Vec<Var<'g>> {
    let sizes: Bindings = sizes.iter().copied().collect();
    let floats: Vec<Var<'g>> = vars.iter().copied().filter(|v| v.dtype() == DType::F32).collect();
    let matrices: Vec<Var<'g>> = floats.iter().copied().filter(|v| v.rank() == 2).collect();
    let Some(x) = any(&matrices, rng) else { return Vec::new() };
    let size = |d: Dim| d.eval(&sizes).unwrap_or(i64::MAX);
    let fits = |w: &Var<'g>| {
        let (rows, columns) = (size(x.dim(0)), size(w.dim(1)));
        w.dim(0) == x.dim(1) && rows.saturating_mul(columns).saturating_mul(size(x.dim(1))) <= 50 * LARGE
    };
    let fitting: Vec<Var<'g>> = matrices.iter().copied().filter(fits).collect();
    let front = match any(&fitting, rng).filter(|_| rng.below(3) > 0) {
        Some(w) if size(x.dim(0)).saturating_mul(size(w.dim(1))) <= LARGE => x.matmul(w),
        _ => x.sum([rng.below(2) as i64], false),
    };
    let beside = |v: &Var<'g>| {
        v.rank() == 0
            || front.rank() == 2 && v.rank() == 2 && v.dim(0) == front.dim(0) && v.dim(1) == Dim::constant(1)
    };
    let small: Vec<Var<'g>> = floats.iter().copied().filter(beside).collect();
    // Of large numbers a sine would show nothing but how they were rounded.
    let Some(e) = any(&small, rng).map(|e| e.tanh()) else { return vec![front] };
    vec![e, if rng.below(2) == 0 { front * e } else { front + e }]
}

/// A reshape or a new axis, which the samples' attributes would seldom fit.
fn restructured<'g>(vars: &[Var<'g>], rng: &mut Rng) -> Vec<Var<'g>> {
    let Some(x) = any(vars, rng).filter(|x| !x.dtype().is_packed()) else { return Vec::new() };
    vec![match rng.below(3) {
        0 => x.reshape([x.ty().numel()]),
        1 => x.unsqueeze(rng.below(x.rank() as u64 + 1) as i64),
        _ if x.rank() > 1 => x.move_axis(0, -1),
        _ => return Vec::new(),
    }]
}

/// A small piece of control flow around random values.
fn wrapped<'g>(g: &'g Graph, vars: &[Var<'g>], rng: &mut Rng) -> Vec<Var<'g>> {
    let floats: Vec<Var<'g>> = vars.iter().copied().filter(|v| v.dtype() == DType::F64).collect();
    let Some(x) = any(&floats, rng) else { return Vec::new() };
    match rng.below(4) {
        0 => g.checkpoint(|| vec![(x * x + x).tanh()]),
        1 => {
            let (last, ys) = g.scan(&[x], &[], 3, rng.below(2) == 0, |c, _| {
                let y = c.first().map_or(x, |c| (*c * 0.5 + x).sin());
                (vec![y], vec![y * x])
            });
            last.into_iter().chain(ys).collect()
        }
        2 => {
            let p = x.sum_all().greater(0.1);
            g.cond(p, || vec![x.sin()], || vec![x * 0.3])
        }
        _ if x.rank() > 0 => {
            let n = x.dim(0);
            let start = g.zeros(DType::F64, &x.shape().iter().skip(1).cloned().collect::<Vec<_>>());
            let (last, ys) = g.scan(&[start], &[x], n, false, |c, e| match (c, e) {
                ([c], [e]) => {
                    let y = (*c + *e).tanh();
                    (vec![y], vec![y * *e])
                }
                _ => (vec![g.poison()], vec![]),
            });
            last.into_iter().chain(ys).collect()
        }
        _ => Vec::new(),
    }
}

impl RandomGraph {
    /// Data for the ports, at the graph's sizes.
    pub fn data(&self, seed: u64) -> Result<Vec<(String, Tensor)>> {
        let sizes: rlx_ir::Bindings = self.sizes.iter().map(|(n, v)| (*n, *v)).collect();
        let mut out = Vec::new();
        for (i, p) in self.func.ports.iter().enumerate() {
            let ty = self.func.ty(p.value)?;
            let mut shape = Vec::new();
            for d in &ty.shape {
                let n =
                    d.eval(&sizes).map_err(|e| rlx_ir::Error::new(rlx_ir::Code::Unbound, e.to_string()))?;
                shape.push(n as usize);
            }
            let signed = ty.dtype.int_range().is_some_and(|(low, _)| low < 0);
            let fill = match ty.dtype {
                d if d.is_float() => Fill::Uniform(-1.2, 1.2),
                DType::Bool => Fill::Ints(0, 2),
                _ if !self.wide => Fill::Ints(0, 2),
                _ if signed => Fill::Ints(-100, -10),
                _ => Fill::Ints(1, 100),
            };
            let arg = Arg { shape, dtype: ArgType::Fixed(ty.dtype), fill };
            out.push((p.name.clone(), arg.tensor(ty.dtype, seed.wrapping_add(i as u64))?));
        }
        Ok(out)
    }
}

//! What the tests of the engine share.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx::func::PortKind;
use rlx::nn::Encoder;
use rlx::{
    CompileOptions, DType, Device, Engine, Executable, Func, Graph, Outputs, Settings, Tensor, Var, View,
    ViewMut, dim,
};
use rlx_conformance::models::{self, Gpt, Mamba};

/// An encoder of two layers, small enough for tests and large enough for several tasks per kernel.
pub fn encoder() -> Encoder {
    Encoder { layers: 2, hidden: 48, heads: 4, inner: 96, vocab: 30, positions: 40, batch: 6 }
}

/// A decoder at which the oracle takes no time.
pub fn gpt(layers: i64) -> Gpt {
    Gpt { layers, hidden: 16, heads: 2, vocab: 13, positions: 12, batch: 6 }
}

/// A larger one.
pub fn wide_gpt(layers: i64) -> Gpt {
    Gpt { hidden: 64, vocab: 101, positions: 70, ..gpt(layers) }
}

/// A block of Mamba.
pub fn mamba(hidden: i64) -> Mamba {
    Mamba { hidden, inner: 2 * hidden, states: 4, rank: 2, positions: 70, batch: 6 }
}

pub fn engine(threads: usize) -> Engine {
    Engine::new(Settings { threads: Some(threads), level: None }).unwrap()
}

pub fn options(threads: usize) -> CompileOptions {
    CompileOptions { engine: Some(engine(threads)), ..CompileOptions::default() }
}

/// A graph with data, compiled, with its params set.
pub struct Model {
    pub func: Func,
    pub data: Vec<(String, Tensor)>,
    pub exe: Executable,
}

impl Model {
    pub fn new(func: &Func, sizes: &[(&str, i64)], options: &CompileOptions) -> Model {
        let data = models::data(func, sizes, 11).unwrap();
        Model::with(func, data, options)
    }

    pub fn with(func: &Func, data: Vec<(String, Tensor)>, options: &CompileOptions) -> Model {
        let exe =
            rlx::compile_with(func, Device::Cpu, options).unwrap_or_else(|e| panic!("{}: {e}", func.name));
        for (name, t) in models::ports(func, &data, PortKind::Param) {
            exe.params().set(name, t.clone()).unwrap();
        }
        Model { func: func.clone(), data, exe }
    }

    pub fn inputs(&self) -> Vec<(&str, &Tensor)> {
        models::ports(&self.func, &self.data, PortKind::Input)
    }

    /// The bytes of inputs, packed ones with all planes.
    pub fn planes(&self) -> Vec<Vec<u8>> {
        let bytes =
            |t: &Tensor| if t.dtype().is_packed() { rlx_cpu::data::planes(t) } else { t.bytes().to_vec() };
        self.inputs().into_iter().map(|(_, t)| bytes(t)).collect()
    }

    /// Views of the inputs whose packed ones are joined in `whole`.
    pub fn views_of<'a>(&'a self, whole: &'a [Vec<u8>]) -> Vec<(&'a str, View<'a>)> {
        let packed =
            |v: View<'a>, bytes: &'a Vec<u8>| if v.dtype.is_packed() { View { bytes, ..v } } else { v };
        self.views().into_iter().zip(whole).map(|((n, v), bytes)| (n, packed(v, bytes))).collect()
    }

    pub fn views(&self) -> Vec<(&str, View<'_>)> {
        self.inputs().into_iter().map(|(n, t)| (n, view(t))).collect()
    }

    pub fn run(&self) -> Outputs {
        self.exe.run(&self.inputs()).unwrap_or_else(|e| panic!("{}: {e}", self.func.name))
    }

    /// Inputs at other sizes; params stay.
    pub fn resize(&mut self, sizes: &[(&str, i64)]) {
        let kinds = |n: &str| self.func.port(n).map(|p| p.kind);
        for (new, old) in models::data(&self.func, sizes, 23).unwrap().into_iter().zip(&mut self.data) {
            if kinds(&new.0) == Some(PortKind::Input) {
                *old = new;
            }
        }
    }
}

/// Products whose left operand is computed on the way: what it is, `[m, k]`, from an input `x` of that dtype.
pub fn prologue(
    name: &str,
    dtype: DType,
    [m, k, n]: [i64; 3],
    left: impl for<'g> Fn(&'g Graph, Var<'g>) -> Var<'g>,
) -> Func {
    let g = Graph::new(name);
    {
        let x = g.input("x", dtype, [dim("m", m), k.into()]);
        let w = g.param("w", DType::F32, [k, n]);
        g.output("y", left(&g, x).matmul(w));
    }
    g.finish().unwrap()
}

/// One of each kind, for a symbolic m of at most 300.
pub fn prologues(k: i64, n: i64) -> Vec<Func> {
    let size = [300, k, n];
    let mut out = vec![
        prologue("relu", DType::F32, size, |_, x| x.relu()),
        prologue("gelu", DType::F32, size, |_, x| x.gelu()),
        prologue("bf16", DType::BF16, size, |_, x| x.to(DType::F32)),
        prologue("f16", DType::F16, size, |_, x| x.to(DType::F32) * 0.5),
        prologue("i32", DType::I32, size, |_, x| x.to(DType::F32) - 3.0),
        prologue("mask", DType::F32, size, move |g, x| {
            let mask = g.input("mask", DType::Bool, [dim("m", 300), k.into()]);
            let scale = g.input("scale", DType::F32, [dim("m", 300), 1.into()]);
            mask.select(x, x * 0.0) * (scale.exp() + 1.0) + g.param("shift", DType::F32, [k])
        }),
        prologue("backwards", DType::F32, size, |_, x| x.flip(vec![1]).abs()),
    ];
    let g = Graph::new("rows");
    {
        let ids = g.input("ids", DType::I64, [dim("b", 4), dim("m", 300)]);
        let table = g.param("table", DType::F32, [13, k]);
        let w = g.param("w", DType::F32, [k, n]);
        g.output("y", (table.gather(ids, 0).matmul(w) + g.param("bias", DType::F32, [n])).relu());
    }
    out.push(g.finish().unwrap());
    let g = Graph::new("batched");
    {
        let x = g.input("x", DType::F32, [3.into(), dim("m", 300), k.into()]);
        let y = g.input("right", DType::F32, [3, k, n]);
        g.output("y", (x - 0.25).matmul(y).softmax(-1));
    }
    out.push(g.finish().unwrap());
    out
}

/// 0, 1, 2 … of that shape.
pub fn floats(shape: &[usize]) -> Tensor {
    let n = shape.iter().product();
    Tensor::new(shape, &(0..n).map(|i| i as f32).collect::<Vec<_>>()).unwrap()
}

pub fn view(t: &Tensor) -> View<'_> {
    View { dtype: t.dtype(), shape: t.shape(), bytes: t.bytes() }
}

/// Memory for outputs.
pub struct Buffers {
    memory: Vec<Vec<u64>>,
    types: Vec<(DType, Vec<usize>)>,
    lens: Vec<usize>,
}

impl Buffers {
    /// For outputs such as these.
    pub fn like(outputs: &Outputs) -> Buffers {
        let types: Vec<_> = outputs.iter().map(|(_, t)| (t.dtype(), t.shape().to_vec())).collect();
        let bytes =
            |t: &Tensor| if t.dtype().is_packed() { rlx_cpu::data::planes(t).len() } else { t.bytes().len() };
        let lens: Vec<usize> = outputs.iter().map(|(_, t)| bytes(t)).collect();
        let memory = lens.iter().map(|n| vec![0; n.div_ceil(8)]).collect();
        Buffers { memory, types, lens }
    }

    pub fn views(&mut self) -> Vec<ViewMut<'_>> {
        let mut out = Vec::new();
        for ((m, (dtype, shape)), len) in self.memory.iter_mut().zip(&self.types).zip(&self.lens) {
            // SAFETY: the words are at least that many bytes, borrowed as long as the view.
            let bytes = unsafe { std::slice::from_raw_parts_mut(m.as_mut_ptr().cast::<u8>(), *len) };
            out.push(ViewMut { dtype: *dtype, shape, bytes });
        }
        out
    }
}

/// Whether two runs gave the same bits; the message says where not.
pub fn same_bits(a: &Outputs, b: &Outputs) -> Result<(), String> {
    for ((n, x), (_, y)) in a.iter().zip(b.iter()) {
        if x.shape() != y.shape() {
            return Err(format!("{n}: {:?} and {:?}", x.shape(), y.shape()));
        }
        if x.bytes() != y.bytes() {
            let (p, q) = (x.to_f64s(), y.to_f64s());
            let at = p.iter().flatten().zip(q.iter().flatten()).position(|(p, q)| p.to_bits() != q.to_bits());
            let pair = at.map(|i| (p.as_ref().unwrap()[i], q.as_ref().unwrap()[i]));
            return Err(format!("{n}: element {at:?} differs: {pair:?}"));
        }
    }
    Ok(())
}

/// Whether a run gave what the oracle gives, up to rounding; integers exactly.
pub fn agrees(got: &Outputs, want: &[(String, rlx::oracle::Arr)]) -> Result<(), String> {
    for (name, want) in want {
        let got = got.get(name).ok_or(format!("there is no {name}"))?;
        if got.shape() != want.shape() || got.dtype() != want.dtype() {
            return Err(format!("{name}: {:?} and not {:?}", got.shape(), want.shape()));
        }
        let exact = !want.dtype().is_float();
        let (p, q) = (got.to_f64s().unwrap(), want.f64s());
        let far = |(p, q): (&f64, &f64)| {
            !(p == q || p.is_nan() && q.is_nan() || !exact && (p - q).abs() <= 1e-4 * q.abs().max(1.0))
        };
        if let Some(i) = p.iter().zip(&q).position(far) {
            return Err(format!("{name}[{i}] is {}, and not {}", p[i], q[i]));
        }
    }
    Ok(())
}

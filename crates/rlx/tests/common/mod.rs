//! What the tests of the engine share.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx::func::PortKind;
use rlx::nn::Encoder;
use rlx::{
    CompileOptions, DType, Device, Engine, Executable, Func, Outputs, Settings, Tensor, View, ViewMut,
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
}

impl Buffers {
    /// For outputs such as these.
    pub fn like(outputs: &Outputs) -> Buffers {
        let types: Vec<_> = outputs.iter().map(|(_, t)| (t.dtype(), t.shape().to_vec())).collect();
        let memory = outputs.iter().map(|(_, t)| vec![0; t.bytes().len().div_ceil(8)]).collect();
        Buffers { memory, types }
    }

    pub fn views(&mut self) -> Vec<ViewMut<'_>> {
        let mut out = Vec::new();
        for (m, (dtype, shape)) in self.memory.iter_mut().zip(&self.types) {
            let len = shape.iter().product::<usize>() * dtype.bytes().unwrap();
            // SAFETY: the words are at least that many bytes, borrowed as long as the view.
            let bytes = unsafe { std::slice::from_raw_parts_mut(m.as_mut_ptr().cast::<u8>(), len) };
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

//! The standard cases of each bench: graphs with random data, and how much work a run is.

use super::{Args, What};
use crate::data::{Given, Subject, gather_or_make, made};
use crate::engine::Precision;
use crate::failure::{Failure, Result};
use rlx::nn::Encoder;
use rlx::ops::attention::Attention;
use rlx::ops::conv::Conv;
use rlx::sample::Fill;
use rlx::{DType, Dim, Func, Graph, Var};
use std::path::Path;

/// What a run is measured by.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    /// Arithmetic operations.
    Flops(f64),
    /// Bytes read and written.
    Bytes(f64),
    /// Tokens.
    Tokens(f64),
    /// The run itself.
    Runs,
}

type Make<'a> = dyn Fn() -> Result<(Func, Given)> + 'a;

/// Something to measure.
pub(super) struct Case<'a> {
    pub(super) name: String,
    pub(super) work: Vec<Work>,
    /// Makes the graph and its data; only when its turn comes, for data may be large.
    pub(super) make: Box<Make<'a>>,
}

impl<'a> Case<'a> {
    fn new(name: String, work: Vec<Work>, make: impl Fn() -> Result<(Func, Given)> + 'a) -> Case<'a> {
        Case { name, work, make: Box::new(make) }
    }
}

pub(super) fn all(args: &Args) -> Result<Vec<Case<'_>>> {
    // Products are in f32 with operands in bf16; what only moves data has its data in bf16.
    let stored = match args.dtype {
        Precision::F32 => DType::F32,
        Precision::Bf16 => DType::BF16,
    };
    Ok(match (args.what, &args.path) {
        (What::Gemm, _) => gemms(args.batch),
        (What::Scan, _) => scans(args, stored),
        (What::Attention, _) => attentions(args),
        (What::Conv, _) => convs(args.batch),
        (What::Softmax, _) => rows(args, stored, 1024, |x| x.softmax(-1)),
        (What::Layernorm, _) => rows(args, stored, 768, |x| {
            let gamma = x.graph().param("gamma", x.dtype(), [768]);
            let beta = x.graph().param("beta", x.dtype(), [768]);
            x.layer_norm(Some(gamma), Some(beta), 1e-5, 1)
        }),
        (What::Encoder, _) => encoders(args)?,
        (What::Model, Some(path)) => vec![model(args, path)?],
        (What::Model, None) => Vec::new(),
    })
}

/// Data for every port: floats within a range, spread so that sums of products stay near 1.
fn filled(g: &Graph, fill: impl Fn(&str) -> Option<Fill>) -> Result<(Func, Given)> {
    let f = g.finish()?;
    let mut data = Given::new();
    for (i, p) in f.ports.iter().enumerate() {
        let ty = f.ty(p.value)?;
        let shape: Vec<usize> = ty
            .shape
            .iter()
            .map(|d| d.as_const().and_then(|n| usize::try_from(n).ok()).unwrap_or(0))
            .collect();
        let fill = fill(&p.name).unwrap_or_else(|| spread(&shape));
        data.push((p.name.clone(), made(&p.name, ty.dtype, shape, fill, i)?));
    }
    Ok((f, data))
}

fn spread(shape: &[usize]) -> Fill {
    let fan = shape.iter().rev().take(2).copied().max().unwrap_or(1).max(1);
    let most = (3.0 / fan as f64).sqrt();
    Fill::Uniform(-most, most)
}

fn gemms<'a>(rows: Option<i64>) -> Vec<Case<'a>> {
    const SHAPES: [[i64; 3]; 7] = [
        [512, 512, 512],
        [1024, 1024, 1024],
        [2048, 2048, 2048],
        [128, 384, 1536],
        [128, 1536, 384],
        [1, 4096, 4096],
        [8, 4096, 4096],
    ];
    let case = |[m, k, n]: [i64; 3]| {
        let m = rows.unwrap_or(m);
        let flops = 2.0 * m as f64 * k as f64 * n as f64;
        Case::new(format!("{m}x{k}x{n}"), vec![Work::Flops(flops)], move || {
            let g = Graph::new("gemm");
            let x = g.input("x", DType::F32, [m, k]);
            g.output("y", x.matmul(g.param("w", DType::F32, [k, n])));
            filled(&g, |_| None)
        })
    };
    SHAPES.into_iter().map(case).collect()
}

fn scans<'a>(args: &Args, dtype: DType) -> Vec<Case<'a>> {
    const CHANNELS: i64 = 1536;
    const STATES: i64 = 16;
    let s = args.seq.unwrap_or(1024);
    let case = |b: i64| {
        // x, delta and y are what is large.
        let bytes =
            dtype.bytes().unwrap_or(4) as f64 * b as f64 * s as f64 * (3 * CHANNELS + 2 * STATES) as f64;
        // Per state: two products and an exponential for the decay, two for the input, two for the output.
        let flops = 7.0 * b as f64 * s as f64 * (CHANNELS * STATES) as f64;
        let name = format!("b{b} s{s} d{CHANNELS} n{STATES}");
        Case::new(name, vec![Work::Bytes(bytes), Work::Flops(flops)], move || {
            let g = Graph::new("scan");
            let wide = |name: &str| g.input(name, dtype, [b, s, CHANNELS]);
            let narrow = |name: &str| g.input(name, dtype, [b, s, STATES]);
            let (x, delta) = (wide("x"), wide("delta"));
            let a = g.param("a", dtype, [CHANNELS, STATES]);
            let (bs, cs) = (narrow("b"), narrow("c"));
            let d = g.param("d", dtype, [CHANNELS]);
            let [y, _] = x.selective_scan(delta, a, bs, cs, Some(d), None, None, None, false);
            g.output("y", y);
            filled(&g, |name| match name {
                "delta" => Some(Fill::Uniform(0.001, 0.1)),
                "a" => Some(Fill::Uniform(-16.0, -1.0)),
                _ => Some(Fill::Uniform(-1.0, 1.0)),
            })
        })
    };
    match args.batch {
        Some(b) => vec![case(b)],
        None => vec![case(1), case(4)],
    }
}

fn attentions<'a>(args: &Args) -> Vec<Case<'a>> {
    const HEADS: i64 = 12;
    const WIDTH: i64 = 64;
    let b = args.batch.unwrap_or(1);
    let lengths = args.seq.map_or(vec![128, 512, 2048], |s| vec![s]);
    let case = |s: i64, causal: bool| {
        let seen = if causal { 0.5 * (s + 1) as f64 } else { s as f64 };
        let flops = 4.0 * (b * HEADS * WIDTH) as f64 * s as f64 * seen;
        let form = if causal { " causal" } else { "" };
        let name = format!("b{b} h{HEADS} s{s} d{WIDTH}{form}");
        Case::new(name, vec![Work::Flops(flops), Work::Tokens((b * s) as f64)], move || {
            let g = Graph::new("attention");
            let part = |name: &str| g.input(name, DType::F32, [b, HEADS, s, WIDTH]);
            let (q, k, v) = (part("q"), part("k"), part("v"));
            g.output("y", q.attention(k, v, None, None, None, Attention { causal, ..Attention::default() }));
            filled(&g, |_| Some(Fill::Uniform(-1.0, 1.0)))
        })
    };
    lengths.iter().flat_map(|s| [case(*s, false), case(*s, true)]).collect()
}

/// A convolution: channels in and out, the size of the image, the kernel, the stride, the groups.
const CONVS: [(&str, [i64; 6]); 5] = [
    ("3x3 64ch 56x56", [64, 64, 56, 3, 1, 1]),
    ("7x7/2 3-64ch 224x224", [3, 64, 224, 7, 2, 1]),
    ("3x3/2 128-256ch 28x28", [128, 256, 28, 3, 2, 1]),
    ("1x1 256-64ch 56x56", [256, 64, 56, 1, 1, 1]),
    ("3x3 depthwise 128ch 56x56", [128, 128, 56, 3, 1, 128]),
];

fn convs<'a>(batch: Option<i64>) -> Vec<Case<'a>> {
    let b = batch.unwrap_or(1);
    let case = |(name, [from, to, size, kernel, stride, groups]): (&str, [i64; 6])| {
        let pad = kernel / 2;
        let out = (size + 2 * pad - kernel) / stride + 1;
        let flops = 2.0 * (b * to * out * out) as f64 * (from / groups * kernel * kernel) as f64;
        let name = if b == 1 { name.to_string() } else { format!("{name} b{b}") };
        Case::new(name, vec![Work::Flops(flops)], move || {
            let g = Graph::new("conv");
            let x = g.input("x", DType::F32, [b, from, size, size]);
            let w = g.param("w", DType::F32, [to, from / groups, kernel, kernel]);
            let bias = g.param("bias", DType::F32, [to]);
            let form = Conv {
                stride: vec![stride; 2],
                padding_lo: vec![pad; 2],
                padding_hi: vec![pad; 2],
                groups,
                ..Conv::default()
            };
            g.output("y", x.conv(w, Some(bias), form));
            filled(&g, |_| None)
        })
    };
    CONVS.into_iter().map(case).collect()
}

/// Something over rows of a matrix of so many columns.
fn rows<'a>(args: &Args, dtype: DType, columns: i64, f: fn(Var<'_>) -> Var<'_>) -> Vec<Case<'a>> {
    let rows = args.batch.or(args.seq).map_or(vec![128, 4096], |n| vec![n]);
    let case = |n: &i64| {
        let n = *n;
        let bytes = 2.0 * dtype.bytes().unwrap_or(4) as f64 * n as f64 * columns as f64;
        Case::new(format!("{n}x{columns}"), vec![Work::Bytes(bytes)], move || {
            let g = Graph::new("rows");
            let y = f(g.input("x", dtype, [n, columns]));
            g.output("y", y);
            filled(&g, |_| Some(Fill::Uniform(-2.0, 2.0)))
        })
    };
    rows.iter().map(case).collect()
}

fn encoders<'a>(args: &Args) -> Result<Vec<Case<'a>>> {
    let sizes = match (args.batch, args.seq) {
        (None, None) => vec![(1, 16), (1, 128), (8, 128), (32, 128), (8, 256)],
        (b, s) => vec![(b.unwrap_or(1), s.unwrap_or(128))],
    };
    let model = Encoder::minilm();
    if let Some((b, s)) = sizes.iter().find(|(b, s)| *b > model.batch || *s > model.positions) {
        let text = format!("{b}x{s}: the encoder takes at most {}x{}", model.batch, model.positions);
        return Err(Failure::call(text));
    }
    let case = |(b, s): (i64, i64)| {
        let Encoder { layers, hidden, inner, .. } = model;
        let tokens = (b * s) as f64;
        let dense = 2.0 * (4 * hidden * hidden + 2 * hidden * inner) as f64;
        let flops = layers as f64 * tokens * (dense + 4.0 * (s * hidden) as f64);
        let model = model.clone();
        Case::new(format!("{b}x{s}"), vec![Work::Tokens(tokens), Work::Flops(flops)], move || {
            let g = model.graph()?;
            let f = g.finish()?;
            let mut data = Given::new();
            for (i, p) in f.ports.iter().enumerate() {
                let ty = f.ty(p.value)?;
                let size = |d: &Dim| d.as_const().and_then(|n| usize::try_from(n).ok());
                let (shape, fill): (Vec<usize>, Fill) = match p.name.as_str() {
                    "ids" => (vec![b as usize, s as usize], Fill::Ints(0, model.vocab)),
                    "mask" => (vec![b as usize, s as usize], Fill::Ints(1, 2)),
                    _ => {
                        let shape: Vec<usize> = ty.shape.iter().filter_map(size).collect();
                        let fill = spread(&shape);
                        (shape, fill)
                    }
                };
                data.push((p.name.clone(), made(&p.name, ty.dtype, shape, fill, i)?));
            }
            Ok((f, data))
        })
    };
    Ok(sizes.into_iter().map(case).collect())
}

/// A graph from a file. Its symbols `batch` and `seq` are as asked for.
fn model<'a>(args: &'a Args, path: &'a Path) -> Result<Case<'a>> {
    let subject = Subject::read(path, None, true)?;
    let f = subject.func.clone();
    let symbols = f.symbols()?;
    let mut asked = Vec::new();
    for (name, n) in [("batch", args.batch), ("seq", args.seq)] {
        match n {
            Some(_) if !symbols.contains_key(name) => {
                return Err(Failure::call(format!("{}: no symbol {name:?}", path.display())));
            }
            Some(n) => asked.push((name.to_string(), n)),
            // One at a time is what most people wait for.
            None if name == "batch" && symbols.contains_key(name) => asked.push((name.to_string(), 1)),
            None => {}
        }
    }
    let data = gather_or_make(&subject, None, &asked)?;
    let sizes = crate::data::bound(&f, &data);
    let shown: Vec<String> = sizes.iter().map(|(n, v)| format!(" {n}={v}")).collect();
    let mut tokens = 1.0;
    for name in ["batch", "seq"] {
        tokens *= sizes.get(name).map_or(1.0, |n| n as f64);
    }
    let work = if symbols.contains_key("seq") { Work::Tokens(tokens) } else { Work::Runs };
    let name = format!("{}{}", f.name.replace(char::is_control, " "), shown.concat());
    Ok(Case::new(name, vec![work], move || Ok((f.clone(), data.clone()))))
}

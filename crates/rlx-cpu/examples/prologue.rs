//! Products with their left operand computed on the way and beforehand, in alternation: what `fuse::prologue::Costs` is
//! tuned by. Run it in a release build; a number is the number of threads.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::print_stdout)]

use rlx_compile::{Limits, Options, compile};
use rlx_cpu::{Data, Engine, Executable, Precision, Settings, Target, View, ViewMut};
use rlx_ir::{DType, Func, Graph, Tensor, Var};
use std::time::Instant;

type Left = for<'g> fn(&'g Graph, Var<'g>) -> Var<'g>;

fn graph(dtype: DType, [m, k, n]: [i64; 3], left: Left) -> Func {
    let g = Graph::new("product");
    {
        let x = g.input("x", dtype, [m, k]);
        g.output("y", left(&g, x).matmul(g.param("w", DType::F32, [k, n])));
    }
    g.finish().unwrap()
}

/// `memory`: what writing and reading an element counts for; below 0 nothing pays.
fn executable(f: &Func, engine: &Engine, memory: i64) -> Executable {
    let mut limits = Limits::default();
    limits.prologue.memory = memory;
    let program = compile(f, &Target, &Options { limits, ..Options::default() }).unwrap();
    let e = Executable::new(engine, program, Precision::F32).unwrap();
    for p in f.ports.iter().filter(|p| p.name == "w") {
        let shape: Vec<usize> =
            f.ty(p.value).unwrap().shape.iter().map(|d| d.as_const().unwrap() as usize).collect();
        let w = vec![0.5f32; shape.iter().product()];
        e.set_param("w", Data::Tensor(Tensor::new(&shape, &w).unwrap())).unwrap();
    }
    e
}

fn main() {
    let threads = std::env::args().nth(1).and_then(|a| a.parse().ok());
    let engine = Engine::new(Settings { threads, level: None }).unwrap();
    let cases: [(&str, DType, Left); 5] = [
        ("relu", DType::F32, |_, x| x.relu()),
        ("bf16", DType::BF16, |_, x| x.to(DType::F32)),
        ("sum of two", DType::F32, |g, x| x + g.input("z", DType::F32, [x.dim(0), x.dim(1)])),
        ("tanh", DType::F32, |_, x| x.tanh()),
        ("gelu", DType::F32, |_, x| x.gelu()),
    ];
    for size in
        [[2048, 1024, 256], [2048, 1024, 1024], [128, 384, 1536], [512, 4096, 1024], [512, 4096, 4096]]
    {
        for (name, dtype, left) in cases {
            let f = graph(dtype, size, left);
            let both = [executable(&f, &engine, i64::MAX), executable(&f, &engine, -1)];
            let chosen =
                executable(&f, &engine, Limits::default().prologue.memory).program().calls.len() == 1;
            let [m, k, n] = size.map(|d| d as usize);
            let (shape, x) = ([m, k], vec![0.25f32; m * k]);
            // SAFETY: floats are bytes.
            let x = unsafe { std::slice::from_raw_parts(x.as_ptr().cast::<u8>(), m * k * 4) };
            let view =
                |dtype| View { dtype, shape: &shape, bytes: &x[..m * k * DType::bytes(dtype).unwrap()] };
            let inputs: Vec<_> = f.ports.iter().filter(|p| p.name != "w").collect();
            let inputs: Vec<_> =
                inputs.iter().map(|p| (p.name.as_str(), view(f.ty(p.value).unwrap().dtype))).collect();
            let mut y = vec![0f32; m * n];
            let bytes = y.len() * 4;
            // SAFETY: floats are bytes.
            let y = unsafe { std::slice::from_raw_parts_mut(y.as_mut_ptr().cast::<u8>(), bytes) };
            let mut times = [Vec::new(), Vec::new()];
            for i in 0..42 {
                let began = Instant::now();
                let mut out = [ViewMut { dtype: DType::F32, shape: &[m, n], bytes: y }];
                both[i % 2].run_into(&inputs, &mut out).unwrap();
                times[i % 2].push(began.elapsed().as_secs_f64() * 1e6);
            }
            times.iter_mut().for_each(|t| t.sort_by(f64::total_cmp));
            let [fused, apart] = [0, 1].map(|i: usize| times[i][times[i].len() / 2]);
            println!(
                "{m}x{k}x{n} {name:<10}: {fused:8.0} us fused, {apart:8.0} us apart, {:.2}x, {} calls; the rule {}",
                apart / fused,
                both[0].program().calls.len(),
                if chosen { "fuses" } else { "keeps apart" }
            );
        }
    }
}

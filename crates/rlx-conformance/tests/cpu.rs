//! The CPU against the oracle: every op × sample × dtype, forward and gradient, and random graphs, at every instruction set
//! that the machine has, fused and not.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx::{CompileOptions, Device, Engine, Settings};
use rlx_conformance::device::{self, Limit, Subject};
use rlx_conformance::random::{Kind, graph};
use rlx_conformance::sampled;
use rlx_ir::{DType, Func, Tensor};
use rlx_simd::level::Level;

fn subject(level: Level, threads: usize, fuse: bool) -> Subject {
    let engine = Engine::new(Settings { threads: Some(threads), level: Some(level) }).unwrap();
    let options = CompileOptions { engine: Some(engine), fuse, ..CompileOptions::default() };
    Subject { device: Device::Cpu, options }
}

fn samples(subject: &Subject, dtype: DType, gradient: bool) {
    let mut failures = Vec::new();
    let mut count = 0;
    for (name, case) in sampled::all(dtype, |_| true) {
        let op = name.split('/').next().unwrap_or("");
        let scale = if gradient { 4.0 } else { 1.0 };
        let tol = |d: DType| scale * device::tolerance(op, d).max(device::tolerance(op, dtype));
        let limit = Limit { tol: &tol, floor: 0.0, rounded: false };
        let result = case.map_err(|e| e.to_string()).and_then(|c| {
            if !gradient {
                count += 1;
                return subject.check(&c.func, &c.data, &limit);
            }
            match device::gradient(&c) {
                Ok(Some((f, data))) if c.smooth => {
                    count += 1;
                    subject.check(&f, &data, &limit)
                }
                Ok(_) => Ok(()),
                Err(e) => Err(format!("gradient: {e}")),
            }
        });
        if let Err(e) = result {
            failures.push(format!("{name}: {e}"));
        }
    }
    assert!(count > 300, "only {count} samples ran");
    let n = failures.len();
    assert!(failures.is_empty(), "{n} of {count} samples fail in {dtype}:\n{}", failures.join("\n"));
}

#[test]
fn samples_agree_with_the_oracle() {
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        samples(&subject(Level::detect(), 2, true), dtype, false);
    }
}

#[test]
fn gradients_agree_with_the_oracle() {
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        samples(&subject(Level::detect(), 2, true), dtype, true);
    }
}

#[test]
fn every_level_agrees_with_the_oracle() {
    for level in Level::available() {
        for fuse in [true, false] {
            samples(&subject(level, 1, fuse), DType::F32, false);
            samples(&subject(level, 1, fuse), DType::F32, true);
        }
    }
}

/// A random graph with its data, or the graph of its gradient; `None` if it has none. In f32 where asked.
fn random_case(seed: u64, kind: Kind, f32: bool, gradient: bool) -> Option<(Func, Vec<(String, Tensor)>)> {
    let mut r = graph(seed, 12, kind).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    if f32 {
        r.func = rlx_ir::text::parse(&rlx_ir::text::print(&r.func).replace("f64", "f32")).unwrap();
    }
    if gradient {
        let float = |t: &rlx_ir::Type| t.dtype.is_float();
        let ports = r.func.ports.iter().zip(r.func.port_types().unwrap());
        let wrt: Vec<&str> = ports.filter(|(_, t)| float(t)).map(|(p, _)| p.name.as_str()).collect();
        let outputs = r.func.outputs.iter().zip(r.func.output_types().unwrap());
        let outputs: Vec<&str> = outputs.filter(|(_, t)| float(t)).map(|(o, _)| o.name.as_str()).collect();
        if wrt.is_empty() || outputs.is_empty() {
            return None;
        }
        r.func = rlx_ir::transform::vjp(&r.func, &outputs, &wrt).unwrap();
    }
    let data = r.data(seed).unwrap();
    Some((r.func, data))
}

/// Random graphs, each with fusion and without.
fn random(kind: Kind, f32: bool, gradient: bool, count: u64) {
    let tol = |d: DType| match d {
        DType::F64 => 1e-9,
        DType::F32 => 1e-3,
        DType::F16 => 2e-2,
        _ => 0.2,
    };
    let limit = Limit { tol: &tol, floor: 0.1, rounded: true };
    let subjects = [true, false].map(|fuse| subject(Level::detect(), 2, fuse));
    let mut failures = Vec::new();
    let mut ran = 0;
    for seed in 0.. {
        if ran == count {
            break;
        }
        let Some((f, data)) = random_case(seed, kind, f32, gradient) else { continue };
        // Zeros of a Fourier transform are exact in the oracle only, and so is what becomes of NaN; the samples judge it.
        if f.nodes.iter().any(|n| n.op.name.contains("fft")) {
            continue;
        }
        ran += 1;
        for s in &subjects {
            if let Err(e) = s.check(&f, &data, &limit) {
                failures.push(format!("graph {seed}, fused {}: {e}", s.options.fuse));
            }
        }
    }
    let n = failures.len();
    assert!(failures.is_empty(), "{n} of {ran} graphs disagree:\n{}", failures.join("\n"));
}

#[test]
fn random_graphs_agree_with_the_oracle() {
    random(Kind::Any, false, false, 500);
}

#[test]
fn wide_random_graphs_agree_with_the_oracle() {
    random(Kind::Wide, false, false, 500);
}

#[test]
fn smooth_random_graphs_agree_with_the_oracle_in_f32() {
    random(Kind::Smooth, true, false, 300);
}

#[test]
fn gradients_of_random_graphs_agree_with_the_oracle() {
    random(Kind::Smooth, false, true, 200);
}

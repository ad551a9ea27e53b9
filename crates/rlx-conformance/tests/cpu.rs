//! The CPU against the oracle: every op × sample × dtype, forward and gradient, and random graphs, at every instruction set
//! that the machine has, fused and not.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx::{CompileOptions, Device, Engine, Settings};
use rlx_conformance::device::{self, Subject};
use rlx_conformance::sampled;
use rlx_ir::DType;
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
        eprintln!("{name}");
        let op = name.split('/').next().unwrap_or("");
        let tol = device::tolerance(op, dtype);
        let result = case.map_err(|e| e.to_string()).and_then(|c| {
            if !gradient {
                count += 1;
                return subject.check(&c.func, &c.data, tol);
            }
            match device::gradient(&c) {
                Ok(Some((f, data))) if c.smooth => {
                    count += 1;
                    subject.check(&f, &data, 4.0 * tol)
                }
                _ => Ok(()),
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
    for dtype in [DType::F32, DType::F64] {
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

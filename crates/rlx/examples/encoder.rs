//! Times the encoder and says where the time goes.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]
use rlx::nn::Encoder;
use rlx::prelude::*;
use rlx_ir::sample::Rng;
use std::time::Instant;
fn main() {
    let a: Vec<usize> = std::env::args().skip(1).map(|s| s.parse().unwrap()).collect();
    let (b, s) = (a[0], a[1]);
    let t = Instant::now();
    let big = a.len() > 2;
    let cfg = if big { Encoder::bert_base() } else { Encoder::minilm() };
    let g = cfg.graph().unwrap();
    let built = t.elapsed();
    let func = g.finish().unwrap();
    let t = Instant::now();
    let f = rlx::compile(&func, Device::Cpu).unwrap();
    println!("build {built:?}, compile {:?}", t.elapsed());
    let mut rng = Rng::new(1);
    for p in &func.ports {
        if p.kind == rlx_ir::func::PortKind::Param {
            let ty = func.ty(p.value).unwrap();
            let shape: Vec<usize> = ty.shape.iter().map(|d| d.as_const().unwrap() as usize).collect();
            let n: usize = shape.iter().product();
            let v: Vec<f32> = (0..n).map(|_| (rng.unit() as f32 - 0.5) * 0.1).collect();
            f.params().set(&p.name, Tensor::new(&shape, &v).unwrap()).unwrap();
        }
    }
    let t = Instant::now();
    f.params().prepare().unwrap();
    println!("prepare {:?}", t.elapsed());
    let ids = Tensor::new(&[b, s], &vec![5i64; b * s]).unwrap();
    let mask = Tensor::new(&[b, s], &vec![1i64; b * s]).unwrap();
    let inputs = [("ids", &ids), ("mask", &mask)];
    let t = Instant::now();
    f.run(&inputs).unwrap();
    let first = t.elapsed();
    let mut times = Vec::new();
    for _ in 0..30 {
        let t = Instant::now();
        f.run(&inputs).unwrap();
        times.push(t.elapsed());
    }
    times.sort();
    println!("first {first:?} min {:?} median {:?}", times[0], times[times.len() / 2]);
    let (_, p) = f.profile(&inputs).unwrap();
    for c in &p.calls {
        let us = c.time.as_secs_f64() * 1e6;
        println!(
            "{us:9.1} us {:7.1} GF/s {:7.1} GB/s  {}",
            c.flops as f64 / us / 1e3,
            c.bytes as f64 / us / 1e3,
            c.label
        );
    }
}

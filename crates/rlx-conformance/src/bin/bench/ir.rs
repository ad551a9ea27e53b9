//! A 12-layer encoder (width 384, 12 heads) is built, differentiated and batched as a graph; JAX traces the same.

use crate::Asked;
use crate::peer::Peer;
use crate::table::median;
use rlx_ir::ops::attention::Attention;
use rlx_ir::{DType::F32, Func, Graph, Result, dim, text, transform};
use std::time::Instant;

fn encoder(layers: usize) -> Result<Func> {
    let (d, heads, ff) = (384i64, 12i64, 1536i64);
    let g = Graph::new("encoder");
    let (b, s) = (dim("batch", 64), dim("seq", 512));
    let mut x = g.input("x", F32, [b.clone(), s.clone(), d.into()]);
    for i in 0..layers {
        let p = |name: &str, shape: &[i64]| g.param(&format!("{name}.{i}"), F32, shape.to_vec());
        let h = x.layer_norm(p("g1", &[d]), p("b1", &[d]), 1e-5, 1);
        let heads_of = [b.clone(), s.clone(), heads.into(), (d / heads).into()];
        let [q, k, v] = h
            .qkv(p("qkv", &[d, 3 * d]), None, d, d)
            .map(|v| v.reshape(heads_of.clone()).permute(vec![0, 2, 1, 3]));
        let a = q.attention(k, v, None, None, None, Attention::default());
        let a = a.permute(vec![0, 2, 1, 3]).reshape(x.shape());
        x = x + a.matmul(p("out", &[d, d]));
        let h = x.layer_norm(p("g2", &[d]), p("b2", &[d]), 1e-5, 1);
        x = x + h.matmul(p("up", &[d, ff])).gelu().matmul(p("down", &[ff, d]));
    }
    g.output("loss", (x * x).mean_all());
    g.finish()
}

fn gradient(f: &Func) -> Result<Func> {
    let params: Vec<&str> = f.ports.iter().filter(|p| p.diff).map(|p| p.name.as_str()).collect();
    transform::vjp(f, &["loss"], &params)
}

fn batched(f: &Func) -> Result<Func> {
    transform::vmap(f, &[("x", 0)], &4.into(), 0)
}

type Job<'a> = (&'a str, bool, Box<dyn Fn() -> Result<usize> + 'a>);

pub fn run(asked: &Asked) -> crate::Result<()> {
    let forward = encoder(12)?;
    let training = gradient(&forward)?;
    let printed = text::print(&training);
    println!("encoder of 12 layers: {} nodes; with gradients {}", forward.size(), training.size());
    let jobs: Vec<Job<'_>> = vec![
        ("build", true, Box::new(|| Ok(encoder(12)?.size()))),
        ("build+vjp", true, Box::new(|| Ok(gradient(&encoder(12)?)?.size()))),
        ("build+vmap", true, Box::new(|| Ok(batched(&encoder(12)?)?.size()))),
        ("verify vjp", false, Box::new(|| rlx_ir::verify::verify(&training).map(|()| 1))),
        ("print vjp", false, Box::new(|| Ok(text::print(&training).len()))),
        ("parse vjp", false, Box::new(|| Ok(text::parse(&printed)?.size()))),
    ];
    let mut peer = asked.python.as_ref().map(|p| Peer::start(p, "bench_ir.py", &[])).transpose()?;
    println!("{:<12} {:>10} {:>10} {:>8}", "case", "rlx ms", "jax ms", "ratio");
    for (name, shared, job) in jobs.iter().filter(|j| asked.wants(j.0)) {
        let (mut own, mut other) = (Vec::new(), Vec::new());
        for turn in 0..=asked.turns {
            let begun = Instant::now();
            std::hint::black_box(job()?);
            let took = begun.elapsed().as_secs_f64() * 1e3;
            let theirs = match (&mut peer, shared) {
                (Some(p), true) => Some(p.ask(name)?.parse::<f64>().map_err(|e| format!("JAX: {e}"))?),
                _ => None,
            };
            if turn > 0 {
                own.push(took);
                other.extend(theirs);
            }
        }
        let own = median(&own);
        match median(&other) {
            t if t.is_nan() => println!("{name:<12} {own:>10.2}"),
            t => println!("{name:<12} {own:>10.2} {t:>10.2} {:>7.1}x", t / own),
        }
    }
    Ok(())
}

//! Benches: RLX and its peers by turns in one run, so that only their ratio counts.
//!
//! `ir`: a 12-layer encoder (width 384, 12 heads) is built, differentiated and batched as a graph; JAX traces the same.
//! Called by `cargo xtask bench`, which installs the peer and passes its Python with `--peer`.

use rlx_ir::ops::attention::Attention;
use rlx_ir::{DType::F32, Func, Graph, Result, dim, text, transform};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::Instant;

/// Turns of each case, after one that warms up.
const TURNS: usize = 15;

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

/// The other side, which does a case per line and answers with milliseconds.
struct Peer {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Peer {
    fn start(python: &str) -> std::io::Result<Peer> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/bench_ir.py");
        let mut child =
            Command::new(python).arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let missing = || std::io::Error::other("the peer has no pipes");
        let to = child.stdin.take().ok_or_else(missing)?;
        let from = BufReader::new(child.stdout.take().ok_or_else(missing)?);
        Ok(Peer { child, to, from })
    }

    fn ask(&mut self, case: &str) -> std::io::Result<f64> {
        writeln!(self.to, "{case}")?;
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        line.trim().parse().map_err(|_| std::io::Error::other(format!("the peer answered {line:?}")))
    }
}

fn median(mut v: Vec<f64>) -> f64 {
    v.sort_by(f64::total_cmp);
    v.get(v.len() / 2).copied().unwrap_or(f64::NAN)
}

type Job<'a> = (&'a str, bool, Box<dyn Fn() -> Result<usize> + 'a>);

fn ir(python: Option<&str>) -> std::result::Result<(), Box<dyn std::error::Error>> {
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
    let mut peer = python.map(Peer::start).transpose()?;
    println!("{:<12} {:>10} {:>10} {:>8}", "case", "rlx ms", "jax ms", "ratio");
    for (name, shared, job) in &jobs {
        let (mut own, mut other) = (Vec::new(), Vec::new());
        for turn in 0..=TURNS {
            let begun = Instant::now();
            std::hint::black_box(job()?);
            let took = begun.elapsed().as_secs_f64() * 1e3;
            let theirs = match (&mut peer, shared) {
                (Some(p), true) => Some(p.ask(name)?),
                _ => None,
            };
            if turn > 0 {
                own.push(took);
                other.extend(theirs);
            }
        }
        let own = median(own);
        match median(other) {
            t if t.is_nan() => println!("{name:<12} {own:>10.2}"),
            t => println!("{name:<12} {own:>10.2} {t:>10.2} {:>7.1}x", t / own),
        }
    }
    if let Some(Peer { mut child, to, .. }) = peer {
        drop(to);
        child.wait()?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let (mut peer, mut names) = (None, Vec::new());
    while let Some(a) = args.next() {
        match a.as_str() {
            "--peer" => peer = args.next(),
            _ => names.push(a),
        }
    }
    if let Some(unknown) = names.iter().find(|n| *n != "ir") {
        eprintln!("error: no bench {unknown:?}; there is: ir");
        return ExitCode::from(2);
    }
    match ir(peer.as_deref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

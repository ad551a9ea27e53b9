//! The workloads: which graphs, at which sizes, beside whom.

use crate::Result;
use crate::side::save;
use rlx::nn::Encoder;
use rlx::{DType::F32, Func, Graph, Tensor};
use rlx_ir::func::PortKind;
use rlx_ir::sample::Rng;
use std::path::PathBuf;

/// What runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Model {
    /// `x [m, k]` times a constant `[k, n]`.
    MatMul { m: usize, k: usize, n: usize },
    /// An encoder of the sizes of all-MiniLM-L6-v2 with random weights.
    Encoder { batch: usize, seq: usize },
    /// Mamba's selective scan.
    Scan { batch: usize, seq: usize, width: usize, states: usize },
}

impl Model {
    /// What the peers call it.
    pub fn name(&self) -> &'static str {
        match self {
            Model::MatMul { .. } => "matmul",
            Model::Encoder { .. } => "encoder",
            Model::Scan { .. } => "scan",
        }
    }
}

/// A row of a table.
pub struct Case {
    /// The workload's name and the row's, as `w1/512x512x512`.
    pub name: String,
    pub model: Model,
}

/// A table.
pub struct Workload {
    pub name: &'static str,
    pub title: &'static str,
    /// Those of the peers that can do it.
    pub peers: &'static [&'static str],
    pub models: &'static [Model],
}

const fn product(m: usize, k: usize, n: usize) -> Model {
    Model::MatMul { m, k, n }
}

const fn encoder(batch: usize, seq: usize) -> Model {
    Model::Encoder { batch, seq }
}

const fn scan(batch: usize) -> Model {
    Model::Scan { batch, seq: 1024, width: 1536, states: 16 }
}

pub const WORKLOADS: &[Workload] = &[
    Workload {
        name: "w1",
        title: "f32 product with a constant right operand, MxKxN",
        peers: &["ort", "openvino", "faer"],
        models: &[
            product(512, 512, 512),
            product(1024, 1024, 1024),
            product(2048, 2048, 2048),
            product(128, 384, 1536),
            product(128, 1536, 384),
            product(1, 4096, 4096),
            product(8, 4096, 4096),
        ],
    },
    Workload {
        name: "w2",
        title: "encoder of the sizes of MiniLM-L6, f32, batch x seq",
        peers: &["ort", "openvino"],
        models: &[encoder(1, 16), encoder(1, 128), encoder(8, 128), encoder(32, 128), encoder(8, 256)],
    },
    Workload {
        name: "w5",
        title: "selective scan, seq 1024, width 1536, 16 states, f32, batch",
        peers: &["c"],
        models: &[scan(1), scan(4)],
    },
];

fn uniform(rng: &mut Rng, shape: &[usize], lo: f64, hi: f64) -> Result<Tensor> {
    let n = shape.iter().product();
    let values: Vec<f32> = (0..n).map(|_| (lo + (hi - lo) * rng.unit()) as f32).collect();
    Ok(Tensor::new(shape, &values)?)
}

type Named = Vec<(String, Tensor)>;

impl Case {
    pub fn new(workload: &Workload, model: Model) -> Case {
        let name = match model {
            Model::MatMul { m, k, n } => format!("{m}x{k}x{n}"),
            Model::Encoder { batch, seq } => format!("{batch}x{seq}"),
            Model::Scan { batch, .. } => format!("b{batch}"),
        };
        Case { name: format!("{}/{name}", workload.name), model }
    }

    /// Arithmetic operations of the products in it; nothing where exponentials are most of the work.
    pub fn flops(&self) -> Option<f64> {
        match self.model {
            Model::MatMul { m, k, n } => Some(2.0 * (m * k * n) as f64),
            Model::Encoder { batch, seq } => {
                let e = Encoder::minilm();
                let (h, inner) = (e.hidden as usize, e.inner as usize);
                let per_token = 4 * h * h + 2 * h * inner + 2 * seq * h;
                Some(2.0 * (e.layers as usize * batch * seq * per_token) as f64)
            }
            Model::Scan { .. } => None,
        }
    }

    /// The graph.
    pub fn graph(&self) -> Result<Func> {
        let g = Graph::new(self.model.name());
        match self.model {
            Model::MatMul { m, k, n } => {
                g.output("y", g.input("x", F32, [m, k]).matmul(g.param("w", F32, [k, n])));
            }
            Model::Encoder { .. } => return Ok(Encoder::minilm().graph()?.finish()?),
            Model::Scan { batch, seq, width, states } => {
                let long = |name: &str| g.input(name, F32, [batch, seq, width]);
                let short = |name: &str| g.input(name, F32, [batch, seq, states]);
                let (x, dt, b, c) = (long("x"), long("dt"), short("b"), short("c"));
                let (a, d) = (g.param("a", F32, [width, states]), g.param("d", F32, [width]));
                let [y, _] = x.selective_scan(dt, a, b, c, Some(d), None, None, None, false);
                g.output("y", y);
            }
        }
        Ok(g.finish()?)
    }

    /// A file that the sides share; cases of one workload and equal weights share those.
    pub fn file(name: &str) -> PathBuf {
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(
            || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target")),
            PathBuf::from,
        );
        target.join("bench").join(format!("{name}.safetensors"))
    }

    pub fn weights(&self) -> PathBuf {
        match self.model {
            Model::MatMul { k, n, .. } => Case::file(&format!("matmul-{k}x{n}")),
            _ => Case::file(self.model.name()),
        }
    }

    pub fn inputs(&self) -> PathBuf {
        Case::file(&self.name.replace('/', "-"))
    }

    /// Writes weights (unless they are there) and inputs.
    pub fn write(&self) -> Result<()> {
        if let Some(folder) = self.inputs().parent() {
            std::fs::create_dir_all(folder)?;
        }
        let mut rng = Rng::new(1);
        if !self.weights().exists() {
            save(&self.weights(), &self.make_weights(&mut rng)?)?;
        }
        save(&self.inputs(), &self.make_inputs(&mut Rng::new(2))?)
    }

    fn make_weights(&self, rng: &mut Rng) -> Result<Named> {
        let mut one = |name: &str, shape: &[usize], lo: f64, hi: f64| {
            Ok::<_, Box<dyn std::error::Error>>((name.to_owned(), uniform(rng, shape, lo, hi)?))
        };
        Ok(match self.model {
            Model::MatMul { k, n, .. } => vec![one("w", &[k, n], -1.0, 1.0)?],
            Model::Scan { width, states, .. } => {
                vec![one("a", &[width, states], -16.0, -1.0)?, one("d", &[width], 0.5, 1.5)?]
            }
            Model::Encoder { .. } => {
                let mut out = Vec::new();
                let graph = self.graph()?;
                for p in graph.ports.iter().filter(|p| p.kind == PortKind::Param) {
                    let shape: Vec<usize> = graph
                        .ty(p.value)?
                        .shape
                        .iter()
                        .filter_map(|d| d.as_const())
                        .map(|d| d as usize)
                        .collect();
                    // As after training: norms near the identity, the rest of a deviation of about 0.05.
                    let (lo, hi) = match p.name.ends_with("LayerNorm.weight") {
                        true => (0.8, 1.2),
                        false => (-0.09, 0.09),
                    };
                    out.push(one(&p.name, &shape, lo, hi)?);
                }
                out
            }
        })
    }

    fn make_inputs(&self, rng: &mut Rng) -> Result<Named> {
        Ok(match self.model {
            Model::MatMul { m, k, .. } => vec![("x".into(), uniform(rng, &[m, k], -1.0, 1.0)?)],
            Model::Encoder { batch, seq } => {
                let shape = [batch, seq];
                let words = Encoder::minilm().vocab as u64;
                let ids: Vec<i64> = (0..batch * seq).map(|_| rng.below(words) as i64).collect();
                let mask = vec![1i64; batch * seq];
                vec![("ids".into(), Tensor::new(&shape, &ids)?), ("mask".into(), Tensor::new(&shape, &mask)?)]
            }
            Model::Scan { batch, seq, width, states } => {
                let (long, short) = ([batch, seq, width], [batch, seq, states]);
                vec![
                    ("x".into(), uniform(rng, &long, -1.0, 1.0)?),
                    ("dt".into(), uniform(rng, &long, 0.001, 0.1)?),
                    ("b".into(), uniform(rng, &short, -1.0, 1.0)?),
                    ("c".into(), uniform(rng, &short, -1.0, 1.0)?),
                ]
            }
        })
    }
}

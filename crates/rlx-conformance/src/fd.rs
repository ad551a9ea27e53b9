//! Finite differences: the judge of gradients that knows nothing of gradient rules.
//!
//! A direction `v` is drawn for the inputs and a weight `w` for the outputs (0 where an output is not finite). With `φ(t) = ⟨w, f(x + t·v)⟩`:
//! the vjp must give `⟨vjp(w), v⟩ = φ′(0)`, the jvp `⟨w, jvp(v)⟩ = φ′(0)`, and the Hessian of `s = ⟨w, f⟩` must give
//! `⟨hvp(u), v⟩ = d/dt ⟨∇s(x + t·v), u⟩`. Derivatives in `t` are central differences of fourth order.

use rlx_ir::func::PortKind;
use rlx_ir::oracle::Arr;
use rlx_ir::sample::Rng;
use rlx_ir::{Code, DType, Error, Func, Graph, Options, Result, Tensor, eval};

/// Step of the differences; with fourth order and f64 the error is about 1e-11 of the function's scale.
const STEP: f64 = 1e-3;

/// A function with data, in `f64`, and what to differentiate.
pub struct Problem<'a> {
    /// The graph.
    pub func: &'a Func,
    /// The data of all ports.
    pub data: &'a [(String, Tensor)],
    /// The ports to differentiate with respect to.
    pub wrt: &'a [&'a str],
    /// The float outputs.
    pub outputs: &'a [&'a str],
}

/// How far analysis and differences are apart, relative to their size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gap {
    /// By the gradient.
    pub analytic: f64,
    /// By differences.
    pub numeric: f64,
}

impl Gap {
    /// The distance, relative to the larger of the two and 1.
    pub fn relative(self) -> f64 {
        let gap = (self.analytic - self.numeric).abs();
        if gap.is_nan() { f64::INFINITY } else { gap / self.analytic.abs().max(self.numeric.abs()).max(1.0) }
    }
}

type Named = Vec<(String, Tensor)>;

impl Problem<'_> {
    fn direction(&self, rng: &mut Rng) -> Result<Named> {
        let like = |name: &&str| -> Result<(String, Tensor)> {
            let t = self.data.iter().find(|(n, _)| n == name).map(|(_, t)| t);
            let t = t.ok_or_else(|| Error::new(Code::UnknownName, *name))?;
            Ok((name.to_string(), random(t.shape(), rng)?))
        };
        self.wrt.iter().map(like).collect()
    }

    fn moved(&self, v: &Named, t: f64) -> Result<Named> {
        let shift = |(name, x): &(String, Tensor)| -> Result<(String, Tensor)> {
            let Some((_, v)) = v.iter().find(|(n, _)| n == name) else {
                return Ok((name.clone(), x.clone()));
            };
            let sum = floats(x).iter().zip(floats(v)).map(|(a, b)| a + t * b).collect::<Vec<_>>();
            Ok((name.clone(), Tensor::new(x.shape(), &sum)?))
        };
        self.data.iter().map(shift).collect()
    }

    fn run(&self, f: &Func, data: &Named) -> Result<Vec<(String, Arr)>> {
        let inputs: Vec<(&str, &Tensor)> = data.iter().map(|(n, t)| (n.as_str(), t)).collect();
        eval(f, &inputs, &Options::default())
    }

    /// `⟨w, f⟩` at some data.
    fn weighted(&self, f: &Func, data: &Named, w: &Named) -> Result<f64> {
        Ok(dot(&self.run(f, data)?, w, |n| n.to_string()))
    }

    fn weights(&self, rng: &mut Rng) -> Result<Named> {
        let out = self.run(self.func, &self.data.to_vec())?;
        let float = out.iter().filter(|(n, _)| self.outputs.contains(&n.as_str()));
        float
            .map(|(n, a)| {
                let random = floats(&random(a.shape(), rng)?);
                let finite =
                    a.f64s().into_iter().zip(random).map(|(y, w)| if y.is_finite() { w } else { 0.0 });
                Ok((n.clone(), Tensor::new(a.shape(), &finite.collect::<Vec<f64>>())?))
            })
            .collect()
    }

    fn derivative(&self, f: impl Fn(&Named) -> Result<f64>, v: &Named) -> Result<f64> {
        let at = |k: f64| f(&self.moved(v, k * STEP)?);
        Ok((8.0 * (at(1.0)? - at(-1.0)?) - (at(2.0)? - at(-2.0)?)) / (12.0 * STEP))
    }

    /// The vjp against differences.
    pub fn vjp(&self, seed: u64) -> Result<Gap> {
        let rng = &mut Rng::new(seed);
        let (v, w) = (self.direction(rng)?, self.weights(rng)?);
        let back = rlx_ir::transform::vjp(self.func, self.outputs, self.wrt)?;
        let mut data = self.data.to_vec();
        // Scalar outputs have the cotangent 1, so they count with weight 1 in the differences too.
        let one = |(n, t): (String, Tensor)| {
            if t.shape().is_empty() { (n, Tensor::scalar(1.0f64)) } else { (n, t) }
        };
        let w: Named = w.into_iter().map(one).collect();
        let shaped = w.iter().filter(|(_, t)| !t.shape().is_empty());
        data.extend(shaped.map(|(n, t)| (format!("ct.{n}"), t.clone())));
        let analytic = dot(&self.run(&back, &data)?, &v, |n| format!("grad.{n}"));
        let numeric = self.derivative(|d| self.weighted(self.func, d, &w), &v)?;
        Ok(Gap { analytic, numeric })
    }

    /// The jvp against differences.
    pub fn jvp(&self, seed: u64) -> Result<Gap> {
        let rng = &mut Rng::new(seed);
        let (v, w) = (self.direction(rng)?, self.weights(rng)?);
        let forward = rlx_ir::transform::jvp(self.func, self.wrt)?;
        let data = with_prefix(self.data, "tan.", &v);
        let analytic = dot(&self.run(&forward, &data)?, &w, |n| format!("tan.{n}"));
        let numeric = self.derivative(|d| self.weighted(self.func, d, &w), &v)?;
        Ok(Gap { analytic, numeric })
    }

    /// The Hessian of a weighted sum of the outputs against differences of its gradient.
    pub fn hvp(&self, seed: u64) -> Result<Gap> {
        let rng = &mut Rng::new(seed);
        let (v, u, w) = (self.direction(rng)?, self.direction(rng)?, self.weights(rng)?);
        let scalar = self.scalar(&w)?;
        let named = Problem { data: &with_prefix(self.data, "weight.", &w), ..*self };
        let grad = rlx_ir::transform::vjp(&scalar, &["s"], self.wrt)?;
        let second = rlx_ir::transform::hvp(&scalar, "s", self.wrt)?;
        let data = with_prefix(named.data, "vec.", &u);
        let analytic = dot(&self.run(&second, &data)?, &v, |n| format!("hvp.{n}"));
        let along_u = |d: &Named| Ok(dot(&self.run(&grad, d)?, &u, |n| format!("grad.{n}")));
        let numeric = named.derivative(along_u, &v)?;
        Ok(Gap { analytic, numeric })
    }

    /// `s = ⟨w, f⟩ + ⟨w, f²⟩/2`, so that a linear `f` has a Hessian too.
    fn scalar(&self, w: &Named) -> Result<Func> {
        let g = Graph::new("weighted");
        let args = g.declare_ports(self.func);
        let outs = g.inline(self.func, &args)?;
        let mut sum = g.scalar(DType::F64, 0.0);
        for (o, v) in self.func.outputs.iter().zip(outs) {
            if w.iter().any(|(n, _)| *n == o.name) {
                // An input, since the output's shape may be symbolic.
                let w = g.port(&format!("weight.{}", o.name), v.ty(), PortKind::Input, None);
                sum = sum + (w * (v + v * v * 0.5)).sum_all();
            }
        }
        g.output("s", sum);
        g.finish()
    }
}

/// The data and more of them under prefixed names.
fn with_prefix(data: &[(String, Tensor)], prefix: &str, more: &Named) -> Named {
    let more = more.iter().map(|(n, t)| (format!("{prefix}{n}"), t.clone()));
    data.iter().cloned().chain(more).collect()
}

fn random(shape: &[usize], rng: &mut Rng) -> Result<Tensor> {
    let n: usize = shape.iter().product();
    Tensor::new(shape, &(0..n).map(|_| rng.unit() * 2.0 - 1.0).collect::<Vec<f64>>())
}

fn floats(t: &Tensor) -> Vec<f64> {
    t.to_f64s().unwrap_or_default()
}

/// `Σ ⟨a[rename(n)], b[n]⟩`.
fn dot(a: &[(String, Arr)], b: &Named, rename: impl Fn(&str) -> String) -> f64 {
    b.iter()
        .map(|(n, t)| match a.iter().find(|(m, _)| *m == rename(n)) {
            // A weight of 0 leaves an infinite output out.
            Some((_, x)) => {
                let pairs = x.f64s().into_iter().zip(floats(t));
                pairs.map(|(x, y)| if y == 0.0 { 0.0 } else { x * y }).sum::<f64>()
            }
            None => f64::NAN,
        })
        .sum()
}

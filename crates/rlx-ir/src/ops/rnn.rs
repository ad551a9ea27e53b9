//! Recurrent layers with gates: simple, GRU and LSTM, one direction each.
//!
//! What the entries of the sequence give to the gates is one product for the whole sequence; the loop has the product with
//! the state only. A sequence of one entry needs no loop.

use crate::onnx::Call;
use crate::prelude::*;
use crate::recurrence::first;

attr_enum! {
    /// A function within a recurrent layer.
    Activation {
        /// 1 / (1 + e⁻ˣ).
        Sigmoid = "sigmoid",
        /// The hyperbolic tangent.
        Tanh = "tanh",
        /// max(x, 0).
        Relu = "relu",
        /// alpha · x + beta.
        Affine = "affine",
        /// x where x >= 0, else alpha · x.
        LeakyRelu = "leaky_relu",
        /// x where x >= alpha, else 0.
        ThresholdedRelu = "thresholded_relu",
        /// alpha · tanh(beta · x).
        ScaledTanh = "scaled_tanh",
        /// alpha · x + beta within 0 and 1.
        HardSigmoid = "hard_sigmoid",
        /// x where x >= 0, else alpha · (eˣ − 1).
        Elu = "elu",
        /// x / (1 + |x|).
        Softsign = "softsign",
        /// log(1 + eˣ).
        Softplus = "softplus",
    }
}

impl Activation {
    /// Alpha and beta where nobody says otherwise; `None` for one that the function has not.
    fn defaults(self) -> (Option<f64>, Option<f64>) {
        match self {
            Activation::Affine => (Some(1.0), Some(0.0)),
            Activation::LeakyRelu => (Some(0.01), None),
            Activation::ThresholdedRelu | Activation::Elu => (Some(1.0), None),
            Activation::ScaledTanh => (Some(1.0), Some(1.0)),
            Activation::HardSigmoid => (Some(0.2), Some(0.5)),
            _ => (None, None),
        }
    }

    fn apply(self, x: Var<'_>, alpha: f64, beta: f64) -> Var<'_> {
        match self {
            Activation::Sigmoid => x.sigmoid(),
            Activation::Tanh => x.tanh(),
            Activation::Relu => x.relu(),
            Activation::Affine => x * alpha + beta,
            Activation::LeakyRelu => x.leaky_relu(alpha),
            Activation::ThresholdedRelu => x.greater_equal(alpha).select(x, x.scalar(0.0)),
            Activation::ScaledTanh => (x * beta).tanh() * alpha,
            Activation::HardSigmoid => x.hard_sigmoid(alpha, beta),
            Activation::Elu => x.elu(alpha),
            Activation::Softsign => x.softsign(),
            Activation::Softplus => x.softplus(),
        }
    }
}

/// The functions of a layer in order, with their numbers.
struct Functions<'a> {
    kinds: &'a [Activation],
    alpha: &'a [f64],
    beta: &'a [f64],
    clip: Option<f64>,
}

impl Functions<'_> {
    /// One number of each kind for every function, or none, and a positive clip; or constraint `n` is broken.
    fn check(&self, c: &Infer<'_>, n: usize) -> Result<()> {
        for (name, list) in [("alpha", self.alpha), ("beta", self.beta)] {
            if !list.is_empty() && list.len() != self.kinds.len() {
                let text =
                    format!("{name} has {} entries, there are {} functions", list.len(), self.kinds.len());
                return Err(c.fail(Code::Attribute, n, text));
            }
        }
        match self.clip {
            Some(clip) if clip.is_nan() || clip <= 0.0 => {
                Err(c.fail(Code::Attribute, n, format!("clip is {clip}")))
            }
            _ => Ok(()),
        }
    }

    /// Function `k` of a gate, which is clipped.
    fn gate<'g>(&self, k: usize, x: Var<'g>) -> Var<'g> {
        self.call(k, self.clip.map_or(x, |clip| x.clamp(-clip, clip)))
    }

    /// Function `k`.
    fn call<'g>(&self, k: usize, x: Var<'g>) -> Var<'g> {
        let Some(kind) = self.kinds.get(k) else { return x.graph().poison() };
        let (alpha, beta) = kind.defaults();
        let number =
            |given: &[f64], default: Option<f64>| given.get(k).copied().or(default).unwrap_or_default();
        kind.apply(x, number(self.alpha, alpha), number(self.beta, beta))
    }
}

/// The sizes of a layer: its constraints up to the states are the same for all. `gates` blocks of h rows.
fn check_weights(c: &Infer<'_>, gates: i64) -> Result<(Type, Dim)> {
    c.rank(1, 0, 3)?;
    c.rank(3, 2, 2)?;
    let h = c.dim(2, 1)?.clone();
    let rows = &h * gates;
    c.expect_shape(2, 1, &[rows.clone(), c.dim(0, 2)?.clone()])?;
    c.expect_dim(3, 2, 0, &rows)?;
    Ok((c.ty(0)?.clone(), h))
}

/// Operand `i` has this shape if it is given, or constraint `n` is broken.
fn check_opt(c: &Infer<'_>, n: usize, i: usize, shape: &[Dim]) -> Result<()> {
    if c.opt(i).is_some() { c.expect_shape(n, i, shape) } else { Ok(()) }
}

/// The k-th block of h columns.
fn block<'g>(x: Var<'g>, k: i64, h: &Dim) -> Var<'g> {
    x.narrow(-1, h * k, h.clone())
}

/// The sequence's part of the gates: `[s, b, gates · h]`.
fn project<'g>(x: Var<'g>, w: Var<'g>, bias: Option<Var<'g>>) -> Var<'g> {
    plus(x.matmul(w.t()), bias)
}

fn plus<'g>(x: Var<'g>, more: Option<Var<'g>>) -> Var<'g> {
    more.map_or(x, |m| x + m)
}

/// Takes a step for every entry of `gates` along axis 0. A step goes from the state, whose first part is the result, to the
/// next one. Beyond the end of its sequence an entry of the batch keeps its state and gives 0. Gives all results and the
/// last state.
fn recur<'g>(
    gates: Var<'g>,
    init: &[Var<'g>],
    lengths: Option<Var<'g>>,
    reverse: bool,
    step: impl Fn(&[Var<'g>], Var<'g>) -> Vec<Var<'g>>,
) -> (Var<'g>, Vec<Var<'g>>) {
    let (g, s) = (gates.graph(), gates.dim(0));
    // [s, b, 1]: whether the entry is part of its sequence.
    let valid = lengths.map(|n| {
        let n = n.to(DType::I64).unsqueeze(-1);
        g.iota([s.clone(), 1.into(), 1.into()], 0, DType::I64).less(n)
    });
    let turn = |state: &[Var<'g>], gates: Var<'g>, valid: Option<Var<'g>>| {
        let next = step(state, gates);
        let y = next.first().copied().unwrap_or_else(|| g.poison());
        match valid {
            None => (next, y),
            Some(v) => {
                (next.iter().zip(state).map(|(n, s)| v.select(*n, *s)).collect(), v.select(y, y.scalar(0.0)))
            }
        }
    };
    if s.is(1) {
        let (last, y) = turn(init, gates.squeeze(0), valid.map(|v| v.squeeze(0)));
        return (y.unsqueeze(0), last);
    }
    let xs: Vec<Var<'g>> = std::iter::once(gates).chain(valid).collect();
    let (last, ys) = g.scan(init, &xs, s, reverse, |state, x| {
        let gates = x.first().copied().unwrap_or_else(|| g.poison());
        let (next, y) = turn(state, gates, x.get(1).copied());
        (next, vec![y])
    });
    (ys.first().copied().unwrap_or_else(|| g.poison()), last)
}

/// A first state: operand `i`, or zeros `[b, h]`.
fn first_state<'g>(c: &Cx<'g>, i: usize, h: &Dim, dtype: DType) -> Var<'g> {
    c.opt(i).map_or_else(|| c.g.zeros(dtype, &[c.x(0).dim(1), h.clone()]), |s| s.to(dtype))
}

fn rnn_functions(a: &Rnn) -> Functions<'_> {
    Functions { kinds: std::slice::from_ref(&a.f), alpha: &a.alpha, beta: &a.beta, clip: a.clip }
}

ops! {
    /// A simple recurrent layer: `h[t] = f(x[t]·wᵀ + h[t−1]·rᵀ + bias)`.
    ///
    /// x is `[s, b, i]`, w `[h, i]`, r `[h, h]`, bias `[h]`; the state starts at h0 `[b, h]`, or 0. Gives all states
    /// `[s, b, h]` and the last. With `reverse` the last entry comes first. Entry k of the batch is only `lengths[k]` long:
    /// behind that its state stays and its results are 0. `clip` bounds what goes into f. alpha and beta are the numbers of
    /// f; those that are not given are 0.01 (leaky_relu), 0.2 and 0.5 (hard_sigmoid), else 1 and 0.
    rnn: Rnn(x: Float, w: Float, r: Float, bias: opt Float, h0: opt Float, lengths: opt Index) with {
        f: Activation = Activation::Tanh, alpha: Vec<f64> = Vec::new(), beta: Vec<f64> = Vec::new(),
        clip: Option<f64> = None, reverse: bool = false
    } -> (y, last);
    constraints = ["x is [s, b, i]", "w is [h, i]", "r is [h, h]", "bias is [h]", "h0 is [b, h]", "lengths is [b]",
        "alpha and beta have an entry for each function, or none; clip is positive"];
    infer = |c, a| {
        let (x, h) = check_weights(c, 1)?;
        let (s, b) = (c.dim(0, 0)?.clone(), c.dim(0, 1)?.clone());
        let state = vec![b.clone(), h.clone()];
        check_opt(c, 4, 3, std::slice::from_ref(&h))?;
        check_opt(c, 5, 4, &state)?;
        check_opt(c, 6, 5, std::slice::from_ref(&b))?;
        rnn_functions(a).check(c, 7)?;
        Ok(vec![x.with_shape(vec![s, b, h]), x.with_shape(state)])
    };
    body = |c, a| {
        let dtype = c.x(0).dtype().wide();
        let [x, w, r] = c.xs().map(|x| x.to(dtype));
        let gates = project(x, w, c.opt(3).map(|b| b.to(dtype)));
        let (f, rt) = (rnn_functions(a), r.t());
        let (y, last) = recur(gates, &[first_state(c, 4, &r.dim(1), dtype)], c.opt(5), a.reverse, |state, gates| {
            state.iter().map(|h| f.gate(0, gates + h.matmul(rt))).collect()
        });
        Ok(std::iter::once(y).chain(last).map(|v| v.to(c.x(0).dtype())).collect())
    };
    onnx = [rule("RNN", 1, |c| onnx_layers(c, 1, &[Activation::Tanh]))];
    tolerance = tol(2e-5, 8e-3, 6e-2);
    samples = |s| {
        s.case("plain", Rnn::default(), [f([3, 2, 2]), f([3, 2]), f([3, 3]), f([3])]);
        let lengths = int([2], 0, 4).values(&[3.0, 1.0]);
        s.case("all", Rnn { f: Activation::Affine, alpha: vec![0.5], beta: vec![0.1], reverse: true, ..Rnn::default() },
            [f([3, 2, 1]), f([2, 1]), f([2, 2]), f([2]), f([2, 2]), lengths]);
        s.case("one_entry", Rnn { f: Activation::Softsign, ..Rnn::default() }, [f([1, 2, 2]), f([2, 2]), f([2, 2]), f([2]), f([2, 2])]);
        s.rough("clipped", Rnn { f: Activation::Relu, clip: Some(0.5), ..Rnn::default() }, [f([2, 1, 2]), f([2, 2]), f([2, 2])]);
        s.case("nothing", Rnn::default(), [f([0, 2, 2]), f([3, 2]), f([3, 3])]);
    };

    /// A layer of gated recurrent units. The rows of w, r and the biases are three blocks: update z, reset r, new n.
    ///
    /// `z = f(x·w_zᵀ + h·r_zᵀ + b_z + rb_z)`, r likewise, `n = g(x·w_nᵀ + (r⊙h)·r_nᵀ + b_n + rb_n)`, or with
    /// `linear_before_reset` (as PyTorch has it) `n = g(x·w_nᵀ + b_n + r⊙(h·r_nᵀ + rb_n))`; then `h' = (1−z)⊙n + z⊙h`.
    /// x is `[s, b, i]`, w `[3h, i]`, r `[3h, h]`, bias and recurrent_bias are `[3h]`. All else is as in `rnn`, with alpha
    /// and beta for f and g.
    gru: Gru(x: Float, w: Float, r: Float, bias: opt Float, recurrent_bias: opt Float, h0: opt Float, lengths: opt Index) with {
        f: Activation = Activation::Sigmoid, g: Activation = Activation::Tanh, alpha: Vec<f64> = Vec::new(),
        beta: Vec<f64> = Vec::new(), clip: Option<f64> = None, linear_before_reset: bool = false, reverse: bool = false
    } -> (y, last);
    constraints = ["x is [s, b, i]", "w is [3h, i]", "r is [3h, h]", "bias and recurrent_bias are [3h]", "h0 is [b, h]",
        "lengths is [b]", "alpha and beta have an entry for each function, or none; clip is positive"];
    infer = |c, a| {
        let (x, h) = check_weights(c, 3)?;
        let (s, b) = (c.dim(0, 0)?.clone(), c.dim(0, 1)?.clone());
        let state = vec![b.clone(), h.clone()];
        check_opt(c, 4, 3, &[&h * 3])?;
        check_opt(c, 4, 4, &[&h * 3])?;
        check_opt(c, 5, 5, &state)?;
        check_opt(c, 6, 6, std::slice::from_ref(&b))?;
        Functions { kinds: &[a.f, a.g], alpha: &a.alpha, beta: &a.beta, clip: a.clip }.check(c, 7)?;
        Ok(vec![x.with_shape(vec![s, b, h]), x.with_shape(state)])
    };
    body = |c, a| {
        let dtype = c.x(0).dtype().wide();
        let [x, w, r] = c.xs().map(|x| x.to(dtype));
        let h = r.dim(1);
        let [bias, inner] = [c.opt(3), c.opt(4)].map(|b| b.map(|b| b.to(dtype)));
        let kinds = [a.f, a.g];
        let f = Functions { kinds: &kinds, alpha: &a.alpha, beta: &a.beta, clip: a.clip };
        let init = first_state(c, 5, &h, dtype);
        let (y, last) = if a.linear_before_reset {
            let rt = r.t();
            recur(project(x, w, bias), &[init], c.opt(6), a.reverse, |state, gates| {
                let [old] = first(c.g.poison(), state);
                let own = plus(old.matmul(rt), inner);
                let [z, reset] = [0, 1].map(|k| f.gate(0, block(gates, k, &h) + block(own, k, &h)));
                let new = f.gate(1, block(gates, 2, &h) + reset * block(own, 2, &h));
                vec![(1.0 - z) * new + z * old]
            })
        } else {
            let gates = plus(project(x, w, bias), inner);
            let (rt_gates, rt_new) = (r.narrow(0, 0, &h * 2).t(), r.narrow(0, &h * 2, h.clone()).t());
            recur(gates, &[init], c.opt(6), a.reverse, |state, gates| {
                let [old] = first(c.g.poison(), state);
                let own = old.matmul(rt_gates);
                let [z, reset] = [0, 1].map(|k| f.gate(0, block(gates, k, &h) + block(own, k, &h)));
                let new = f.gate(1, block(gates, 2, &h) + (reset * old).matmul(rt_new));
                vec![(1.0 - z) * new + z * old]
            })
        };
        Ok(std::iter::once(y).chain(last).map(|v| v.to(c.x(0).dtype())).collect())
    };
    onnx = [rule("GRU", 1, |c| onnx_layers(c, 3, &[Activation::Sigmoid, Activation::Tanh]))];
    tolerance = tol(2e-5, 8e-3, 6e-2);
    samples = |s| {
        s.case("plain", Gru::default(), [f([3, 2, 2]), f([6, 2]), f([6, 2])]);
        s.case("biases", Gru { linear_before_reset: true, ..Gru::default() },
            [f([2, 2, 1]), f([6, 1]), f([6, 2]), f([6]), f([6]), f([2, 2])]);
        let lengths = int([2], 0, 4).values(&[1.0, 3.0]);
        s.case("all", Gru { g: Activation::ScaledTanh, alpha: vec![1.0, 0.5], beta: vec![0.0, 1.5], reverse: true, ..Gru::default() },
            [f([3, 2, 1]), f([3, 1]), f([3, 1]), f([3]), f([3]), f([2, 1]), lengths]);
        s.case("one_entry", Gru { linear_before_reset: true, ..Gru::default() }, [f([1, 2, 2]), f([6, 2]), f([6, 2]), f([6])]);
        s.rough("clipped", Gru { clip: Some(0.3), ..Gru::default() }, [f([2, 1, 2]), f([6, 2]), f([6, 2])]);
        s.case("nothing", Gru::default(), [f([0, 2, 2]), f([6, 2]), f([6, 2])]);
    };

    /// A layer with long short-term memory. The rows of w, r and the bias are four blocks: input i, output o, forget f,
    /// cell c (ONNX's order; PyTorch has i, f, c, o).
    ///
    /// `i = f(x·w_iᵀ + h·r_iᵀ + b_i + p_i⊙c)`, the forget gate likewise, or 1 − i with `input_forget`;
    /// `c' = forget⊙c + i⊙g(x·w_cᵀ + h·r_cᵀ + b_c)`; `o = f(x·w_oᵀ + h·r_oᵀ + b_o + p_o⊙c')`; `h' = o⊙h(c')`.
    /// x is `[s, b, i]`, w `[4h, i]`, r `[4h, h]`, bias `[4h]`, peephole `[3h]` (i, o, f); h0 and c0 are `[b, h]`. Gives
    /// all h, the last h and the last c. `clip` bounds what goes into f and g. All else is as in `rnn`, with alpha and beta for f,
    /// g and h.
    lstm: Lstm(x: Float, w: Float, r: Float, bias: opt Float, h0: opt Float, c0: opt Float, peephole: opt Float,
        lengths: opt Index) with {
        f: Activation = Activation::Sigmoid, g: Activation = Activation::Tanh, h: Activation = Activation::Tanh,
        alpha: Vec<f64> = Vec::new(), beta: Vec<f64> = Vec::new(), clip: Option<f64> = None, input_forget: bool = false,
        reverse: bool = false
    } -> (y, last_h, last_c);
    constraints = ["x is [s, b, i]", "w is [4h, i]", "r is [4h, h]", "bias is [4h]", "h0 and c0 are [b, h]", "peephole is [3h]",
        "lengths is [b]", "alpha and beta have an entry for each function, or none; clip is positive"];
    infer = |c, a| {
        let (x, h) = check_weights(c, 4)?;
        let (s, b) = (c.dim(0, 0)?.clone(), c.dim(0, 1)?.clone());
        let state = vec![b.clone(), h.clone()];
        check_opt(c, 4, 3, &[&h * 4])?;
        check_opt(c, 5, 4, &state)?;
        check_opt(c, 5, 5, &state)?;
        check_opt(c, 6, 6, &[&h * 3])?;
        check_opt(c, 7, 7, std::slice::from_ref(&b))?;
        Functions { kinds: &[a.f, a.g, a.h], alpha: &a.alpha, beta: &a.beta, clip: a.clip }.check(c, 8)?;
        let last = x.with_shape(state);
        Ok(vec![x.with_shape(vec![s, b, h]), last.clone(), last])
    };
    body = |c, a| {
        let dtype = c.x(0).dtype().wide();
        let [x, w, r] = c.xs().map(|x| x.to(dtype));
        let (h, rt) = (r.dim(1), r.t());
        let kinds = [a.f, a.g, a.h];
        let f = Functions { kinds: &kinds, alpha: &a.alpha, beta: &a.beta, clip: a.clip };
        let peephole = c.opt(6).map(|p| p.to(dtype));
        let gates = project(x, w, c.opt(3).map(|b| b.to(dtype)));
        let init = [first_state(c, 4, &h, dtype), first_state(c, 5, &h, dtype)];
        let (y, last) = recur(gates, &init, c.opt(7), a.reverse, |state, gates| {
            let [old, cell] = first(c.g.poison(), state);
            let gates = gates + old.matmul(rt);
            let gate = |k: i64, cell| plus(block(gates, k, &h), peephole.map(|p| block(p, k, &h) * cell));
            let input = f.gate(0, gate(0, cell));
            let forget = match a.input_forget {
                true => 1.0 - input,
                false => f.gate(0, gate(2, cell)),
            };
            let cell = forget * cell + input * f.gate(1, block(gates, 3, &h));
            let output = f.gate(0, gate(1, cell));
            vec![output * f.call(2, cell), cell]
        });
        Ok(std::iter::once(y).chain(last).map(|v| v.to(c.x(0).dtype())).collect())
    };
    onnx = [rule("LSTM", 1, |c| onnx_layers(c, 4, &[Activation::Sigmoid, Activation::Tanh, Activation::Tanh]))];
    tolerance = tol(2e-5, 8e-3, 6e-2);
    samples = |s| {
        s.case("plain", Lstm::default(), [f([3, 2, 2]), f([8, 2]), f([8, 2]), f([8])]);
        let lengths = int([2], 0, 4).values(&[3.0, 1.0]);
        s.case("all", Lstm { reverse: true, ..Lstm::default() },
            [f([3, 2, 1]), f([4, 1]), f([4, 1]), f([4]), f([2, 1]), f([2, 1]), f([3]), lengths]);
        s.case("functions", Lstm {
            f: Activation::HardSigmoid, g: Activation::Softplus, h: Activation::Elu, alpha: vec![0.1, 0.0, 0.7],
            beta: vec![0.4, 0.0, 0.0], input_forget: true, ..Lstm::default()
        }, [f([2, 1, 1]), f([8, 1]), f([8, 2])]);
        s.case("one_entry", Lstm::default(), [f([1, 2, 3]), f([8, 3]), f([8, 2]), f([8]), f([2, 2]), f([2, 2])]);
        s.rough("clipped", Lstm { h: Activation::ThresholdedRelu, g: Activation::LeakyRelu, clip: Some(0.4), ..Lstm::default() },
            [f([2, 1, 2]), f([8, 2]), f([8, 2])]);
        s.case("nothing", Lstm::default(), [f([0, 2, 2]), f([8, 2]), f([8, 2])]);
    };
}

/// ONNX's names of the functions, which its implementations read in any case.
const NAMES: &[(&str, Activation)] = &[
    ("sigmoid", Activation::Sigmoid),
    ("tanh", Activation::Tanh),
    ("relu", Activation::Relu),
    ("affine", Activation::Affine),
    ("leakyrelu", Activation::LeakyRelu),
    ("thresholdedrelu", Activation::ThresholdedRelu),
    ("scaledtanh", Activation::ScaledTanh),
    ("hardsigmoid", Activation::HardSigmoid),
    ("elu", Activation::Elu),
    ("softsign", Activation::Softsign),
    ("softplus", Activation::Softplus),
];

/// The functions of one direction after another: kind, alpha and beta. Functions without a number take none of the list.
fn onnx_functions(c: &Call<'_, '_>, defaults: &[Activation], directions: usize) -> Result<Vec<(Activation, f64, f64)>> {
    let names = c.texts("activations")?;
    let named = |name: &&str| {
        let found = NAMES.iter().find(|(n, _)| n.eq_ignore_ascii_case(name));
        found.map(|(_, a)| *a).ok_or_else(|| c.cannot(format!("the activation {name}")))
    };
    let count = defaults.len() * directions;
    // RNN's schema has two by default, one for each direction that there may be.
    let kinds: Vec<Activation> = match names.len() {
        0 => defaults.iter().copied().cycle().take(count).collect(),
        n if n >= count => names.iter().take(count).map(named).collect::<Result<_>>()?,
        n => return Err(Error::new(Code::Attribute, format!("{n} activations for {count} functions"))),
    };
    let (alphas, betas) = (c.floats("activation_alpha")?, c.floats("activation_beta")?);
    let (mut alphas, mut betas) = (alphas.into_iter().flatten(), betas.into_iter().flatten());
    let numbers = |kind: Activation| {
        let (alpha, beta) = kind.defaults();
        let next = |list: &mut dyn Iterator<Item = f64>, default: Option<f64>| {
            default.map_or(0.0, |d| list.next().unwrap_or(d))
        };
        (kind, next(&mut alphas, alpha), next(&mut betas, beta))
    };
    Ok(kinds.into_iter().map(numbers).collect())
}

/// RNN, GRU and LSTM of ONNX: one or two directions of a layer of `gates` gates.
fn onnx_layers<'g>(c: &Call<'g, '_>, gates: i64, defaults: &[Activation]) -> Result<Vec<Var<'g>>> {
    let (reverse, directions): (&[bool], usize) = match c.text("direction", "forward")? {
        "forward" => (&[false], 1),
        "reverse" => (&[true], 1),
        "bidirectional" => (&[false, true], 2),
        other => return Err(Error::new(Code::Attribute, format!("direction is {other}"))),
    };
    let functions = onnx_functions(c, defaults, directions)?;
    let clip = c.float("clip")?;
    let [x, w, r] = c.xs()?;
    if let Some(h) = c.int("hidden_size")?.filter(|h| Dim::constant(*h).unify(&r.dim(-1)).is_none()) {
        return Err(Error::new(Code::Dim, format!("hidden_size is {h}, but R has {} columns", r.dim(-1))));
    }
    let batch_first = match c.int_or("layout", 0)? {
        0 => false,
        1 => true,
        other => return Err(Error::new(Code::Attribute, format!("layout is {other}"))),
    };
    let turned = |x: Var<'g>| if batch_first { x.move_axis(0, 1) } else { x };
    let (x, lengths) = (turned(x), c.opt(4));
    let rows = r.dim(-1) * gates;
    // What belongs to one direction: an entry of axis 0.
    let of = |i: usize, k: usize| c.opt(i).map(|v| v.narrow(0, k as i64, 1).squeeze(0));
    let state = |i: usize, k: usize| c.opt(i).map(|v| turned(v).narrow(0, k as i64, 1).squeeze(0));
    let mut results: Vec<Vec<Var<'g>>> = Vec::new();
    for (k, (reverse, functions)) in reverse.iter().zip(functions.chunks(defaults.len())).enumerate() {
        let alpha: Vec<f64> = functions.iter().map(|f| f.1).collect();
        let beta: Vec<f64> = functions.iter().map(|f| f.2).collect();
        let kind = |i: usize| functions.get(i).map_or(Activation::Tanh, |f| f.0);
        let (w, r) = (w.narrow(0, k as i64, 1).squeeze(0), r.narrow(0, k as i64, 1).squeeze(0));
        let outer = of(3, k).map(|b| b.narrow(0, 0, rows.clone()));
        let inner = of(3, k).map(|b| b.narrow(0, rows.clone(), rows.clone()));
        let bias = outer.zip(inner).map(|(a, b)| a + b);
        let reverse = *reverse;
        results.push(match gates {
            1 => x.rnn(w, r, bias, state(5, k), lengths, Rnn { f: kind(0), alpha, beta, clip, reverse }).into(),
            3 => {
                let linear_before_reset = c.flag("linear_before_reset", false)?;
                let attrs = Gru { f: kind(0), g: kind(1), alpha, beta, clip, linear_before_reset, reverse };
                x.gru(w, r, outer, inner, state(5, k), lengths, attrs).into()
            }
            _ => {
                let input_forget = c.flag("input_forget", false)?;
                let attrs = Lstm { f: kind(0), g: kind(1), h: kind(2), alpha, beta, clip, input_forget, reverse };
                x.lstm(w, r, bias, state(5, k), state(6, k), of(7, k), lengths, attrs).into()
            }
        });
    }
    // All states are [s, directions, b, h], the last ones [directions, b, h]; with the batch first, it is.
    let join = |i: usize, axis: i64| {
        let parts: Vec<Var<'g>> = results.iter().filter_map(|r| r.get(i).copied()).collect();
        c.g.stack(&parts, axis)
    };
    let y = join(0, 1);
    let mut out = vec![if batch_first { y.move_axis(2, 0) } else { y }];
    let count = results.first().map_or(0, Vec::len);
    out.extend((1..count).map(|i| turned(join(i, 0))));
    Ok(out)
}

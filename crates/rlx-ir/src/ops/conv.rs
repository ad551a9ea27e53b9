//! Convolution and its two transposes. All three are one trilinear form in x, w and y,
//! `Σ x[n, c, o·stride + k·dilation − padding_lo] · w[m, c, k] · y[n, m, o]`, each solved for one of the
//! three; so the gradients of each are the other two, to any order.

use crate::ops::window::{Windows, spread};
use crate::prelude::*;
use crate::transform::vmap_loop;

/// The attributes that all ops of this file share.
#[derive(Clone)]
struct Form {
    stride: Vec<i64>,
    padding_lo: Vec<i64>,
    padding_hi: Vec<i64>,
    dilation: Vec<i64>,
    groups: i64,
}

macro_rules! form {
    ($a:expr) => {
        &Form {
            stride: $a.stride.clone(),
            padding_lo: $a.padding_lo.clone(),
            padding_hi: $a.padding_hi.clone(),
            dilation: $a.dilation.clone(),
            groups: $a.groups,
        }
    };
}

impl Form {
    fn windows(&self, kernel: &[Dim]) -> Windows {
        Windows {
            kernel: kernel.to_vec(),
            stride: spread(&self.stride, kernel.len(), 1),
            dilation: spread(&self.dilation, kernel.len(), 1),
            padding_lo: spread(&self.padding_lo, kernel.len(), 0),
            padding_hi: spread(&self.padding_hi, kernel.len(), 0),
        }
    }

    /// The attributes have an entry per spatial axis or none (constraint `n`), and groups is positive
    /// (`n + 1`).
    fn check(&self, c: &Infer<'_>, n: usize, spatial: usize) -> Result<()> {
        Windows::check_attrs(
            c,
            n,
            spatial,
            &[
                ("stride", &self.stride, 1),
                ("dilation", &self.dilation, 1),
                ("padding_lo", &self.padding_lo, i64::MIN),
                ("padding_hi", &self.padding_hi, i64::MIN),
            ],
        )?;
        if self.groups < 1 {
            return Err(c.fail(Code::Attribute, n + 1, format!("groups is {}", self.groups)));
        }
        Ok(())
    }

    fn step(&self, part: ConvPart) -> Step {
        let Form { stride, padding_lo, padding_hi, dilation, groups } = self.clone();
        Step::Conv { part, sliding: Sliding { stride, dilation, padding_lo, padding_hi }, groups }
    }

    fn conv<'g>(&self, x: Var<'g>, w: Var<'g>) -> Var<'g> {
        x.conv(w, None, self.attrs())
    }
    fn attrs(&self) -> Conv {
        let f = self.clone();
        Conv {
            stride: f.stride,
            padding_lo: f.padding_lo,
            padding_hi: f.padding_hi,
            dilation: f.dilation,
            groups: f.groups,
        }
    }
    fn grad_input<'g>(&self, dy: Var<'g>, w: Var<'g>, spatial: &[Dim]) -> Var<'g> {
        let f = self.clone();
        dy.conv_grad_input(w, spatial, f.stride, f.padding_lo, f.padding_hi, f.dilation, f.groups)
    }
    fn grad_weight<'g>(&self, x: Var<'g>, dy: Var<'g>, kernel: &[Dim]) -> Var<'g> {
        let f = self.clone();
        x.conv_grad_weight(dy, kernel, f.stride, f.padding_lo, f.padding_hi, f.dilation, f.groups)
    }
    /// With as many groups for each of `n` batches.
    fn times(&self, n: i64) -> Option<Form> {
        Some(Form { groups: self.groups.checked_mul(n)?, ..self.clone() })
    }
}

fn tail(x: &[Dim], from: usize) -> &[Dim] {
    x.get(from..).unwrap_or_default()
}

/// A dim divided by the number of groups, or constraint `n` is broken.
fn grouped(c: &Infer<'_>, n: usize, operand: usize, axis: usize, groups: i64) -> Result<Dim> {
    let d = c.dim(operand, axis)?;
    d.exact_div(&Dim::constant(groups)).ok_or_else(|| {
        let name = c.def.operand_name(operand);
        let text = format!("axis {axis} of {name} is {d}, which {groups} groups do not divide");
        c.fail(Code::Dim, n, text).operand(name).axis(axis)
    })
}

/// The bias, if given, has one entry per output channel.
fn check_bias(c: &Infer<'_>, n: usize, channels: &Dim) -> Result<()> {
    if c.opt(2).is_some() { c.expect_shape(n, 2, std::slice::from_ref(channels)) } else { Ok(()) }
}

/// The shape of a convolution's result, by constraints 1 to 5 and 7 of `conv`.
pub(super) fn output_shape(c: &Infer<'_>, a: &Conv) -> Result<Shape> {
    c.rank_at_least(1, 0, 3)?;
    c.rank(1, 1, c.ty(0)?.rank())?;
    let (x, w, form) = (c.ty(0)?, c.ty(1)?, form!(a));
    form.check(c, 2, x.rank() - 2)?;
    c.expect_dim(4, 1, 1, &grouped(c, 4, 0, 1, a.groups)?)?;
    grouped(c, 5, 1, 0, a.groups)?;
    let spatial = form.windows(tail(&w.shape, 2)).outputs(c, 7, "x", 2, tail(&x.shape, 2))?;
    let lead = [c.dim(0, 0)?.clone(), c.dim(1, 0)?.clone()];
    Ok(lead.into_iter().chain(spatial).collect())
}

fn sum_per_channel(dy: Var<'_>) -> Var<'_> {
    dy.sum((0..dy.rank() as i64).filter(|i| *i != 1).collect::<Vec<_>>(), false)
}

/// A bias `[.., channels]` with its channels on axis 1 behind the axes before them, as many axes as `rank` in
/// all.
fn per_channel<'g>(bias: Var<'g>, lead: usize, rank: usize) -> Var<'g> {
    let (own, one) = (bias.shape(), Dim::constant(1));
    let batch = own.iter().take(lead).cloned();
    let shape: Shape = batch.chain([one.clone()]).chain(own.iter().skip(lead).cloned()).collect();
    let ones = rank.saturating_sub(shape.len());
    bias.reshape(shape.into_iter().chain(std::iter::repeat_n(one, ones)).collect::<Shape>())
}

/// Merges axis `i` and the one behind it.
fn merge(x: Var<'_>, i: usize) -> Var<'_> {
    let mut shape = x.shape();
    if i + 1 < shape.len() {
        let inner = shape.remove(i + 1);
        if let Some(d) = shape.get_mut(i) {
            *d = &*d * inner;
        }
    }
    x.reshape(shape)
}

/// Splits axis `i` into `outer` and the rest.
fn split<'g>(x: Var<'g>, i: usize, outer: &Dim, inner: Dim) -> Var<'g> {
    let mut shape = x.shape();
    if i < shape.len() {
        shape.splice(i..i + 1, [outer.clone(), inner]);
    }
    x.reshape(shape)
}

/// A batch (axis 0) put into the channels (axis `at + 1`): within each group, outside of the group's own
/// channels.
fn batch_into_groups<'g>(x: Var<'g>, at: usize, groups: i64) -> Result<Var<'g>> {
    let groups = Dim::constant(groups);
    let own = x.dim(at as i64 + 1).exact_div(&groups);
    let own = own.ok_or_else(|| Error::new(Code::Dim, "the groups do not divide the channels"))?;
    // [b, .., g·c, ..] → [.., g, b, c, ..] → [.., g·b·c, ..]
    let x = split(x, at + 1, &groups, own).move_axis(0, at as i64 + 1);
    Ok(merge(merge(x, at), at))
}

/// The inverse: from channels (axis `at`) of groups of batches to a batch at axis 0.
fn batch_from_groups<'g>(y: Var<'g>, at: usize, groups: i64, batch: &Dim, channels: &Dim) -> Result<Var<'g>> {
    let groups = Dim::constant(groups);
    let own = channels.exact_div(&groups);
    let own = own.ok_or_else(|| Error::new(Code::Dim, "the groups do not divide the channels"))?;
    let y = split(split(y, at, &groups, batch * &own), at + 1, batch, own);
    Ok(merge(y.move_axis(at as i64 + 1, 0), at + 1))
}

ops! {
    /// Cross-correlation over any number of spatial axes, as `Conv` of ONNX and PyTorch:
    /// `y[n, m, o] = bias[m] + Σ_{c, k} x[n, c, o·stride + k·dilation − padding_lo] · w[m, c, k]`,
    /// where x counts as 0 outside of its axes, and c runs over the channels of the group that m is in.
    /// x is `[batch, channels, spatial..]`, w is `[out channels, channels / groups, kernel..]`, bias is
    /// `[out channels]`. An empty list stands for stride 1, dilation 1, padding 0. Negative padding cuts
    /// elements off. A spatial axis of the result is
    /// `floor((size + padding − dilation·(kernel − 1) − 1) / stride) + 1`.
    conv: Conv(x: Float, w: Float, bias: opt Float) with {
        stride: Vec<i64> = vec![], padding_lo: Vec<i64> = vec![], padding_hi: Vec<i64> = vec![],
        dilation: Vec<i64> = vec![], groups: i64 = 1
    } -> y;
    constraints = [
        "x has a batch, a channel and at least one spatial axis, and w has as many axes",
        "the lists are empty or have an entry per spatial axis; stride, dilation >= 1",
        "groups >= 1",
        "axis 1 of w times groups is axis 1 of x",
        "groups divides axis 0 of w",
        "bias has one entry per output channel",
        "the kernel has at least one element and fits into the padded input",
    ];
    infer = |c, a| {
        let shape = output_shape(c, a)?;
        check_bias(c, 6, c.dim(1, 0)?)?;
        Ok(vec![c.ty(0)?.with_shape(shape)])
    };
    step = |_, a| Ok(form!(a).step(ConvPart::Output));
    eval = |e, a| {
        let (x, w, bias) = (e.x(0)?, e.x(1)?, e.opt(2));
        let (kernel, channels) = (w.shape().get(2..).unwrap_or_default(), at(w.shape(), 1));
        let at_input = form!(a).windows(&dims(kernel)).inputs(x.shape().get(2..).unwrap_or_default())?;
        let per_group = at(w.shape(), 0) / a.groups as usize;
        Ok(vec![e.make(0, |ix| {
            let (n, m) = (at(ix, 0), at(ix, 1));
            let first = m.checked_div(per_group).unwrap_or(0) * channels;
            let mut sum = bias.map_or(0.0, |b| b.flat(m).f());
            at_input.each(ix.get(2..).unwrap_or_default(), |k, p| {
                for c in 0..channels {
                    sum += x.at(&join(n, first + c, p)).f() * w.at(&join(m, c, k)).f();
                }
            });
            Num::F(sum)
        })?])
    };
    vjp = |c, a| {
        let ([x, w], dy, form) = (c.xs(), c.dy(0), form!(a));
        Ok([
            c.wants(0).then(|| form.grad_input(dy, w, tail(&x.shape(), 2))),
            c.wants(1).then(|| form.grad_weight(x, dy, tail(&w.shape(), 2))),
            c.opt(2).filter(|_| c.wants(2)).map(|_| sum_per_channel(dy)),
        ].into())
    };
    vmap = |c, a| {
        let form = form!(a);
        let y = match (c.is_batched(0), c.is_batched(1)) {
            (true, false) | (false, false) => {
                let x = c.bx(0);
                split(form.conv(merge(x, 0), c.x(1)), 0, &c.size, x.dim(1))
            }
            (false, true) => {
                let m = c.x(1).dim(1);
                let y = form.conv(c.x(0), batch_into_groups(c.x(1), 0, a.groups)?);
                batch_from_groups(y, 1, a.groups, &c.size, &m)?
            }
            (true, true) => {
                let Some(wide) = c.size.as_const().filter(|n| *n > 0).and_then(|n| form.times(n)) else {
                    return vmap_loop(c);
                };
                let m = c.x(1).dim(1);
                let y = wide.conv(merge(c.x(0).move_axis(0, 1), 1), merge(c.x(1), 0));
                split(y, 1, &c.size, m).move_axis(1, 0)
            }
        };
        let batched = c.is_batched(2);
        Ok(vec![c.opt(2).map_or(y, |b| y + per_channel(b, batched as usize, y.rank() - !batched as usize))])
    };
    onnx = [rule("Conv", 1, onnx::window::conv)];
    samples = |s| {
        let d = Conv::default;
        s.case_opt("plain", d(), [Some(f([2, 2, 5])), Some(f([3, 2, 3])), None]);
        s.case("bias", d(), [f([1, 2, 4, 3]), f([2, 2, 2, 3]), f([2])]);
        let strided = Conv { stride: vec![2, 1], padding_lo: vec![1, 0], padding_hi: vec![0, 2], ..d() };
        s.case_opt("strided", strided, [Some(f([1, 1, 6, 3])), Some(f([2, 1, 3, 2])), None]);
        let dilated = Conv { dilation: vec![3], stride: vec![2], padding_hi: vec![1], ..d() };
        s.case_opt("dilated", dilated, [Some(f([1, 2, 9])), Some(f([1, 2, 3])), None]);
        let groups = Conv { groups: 2, ..d() };
        s.case("grouped", groups, [f([2, 4, 4]), f([6, 2, 2]), f([6])]);
        let depthwise = Conv { groups: 3, padding_lo: vec![1], padding_hi: vec![1], ..d() };
        s.case_opt("depthwise", depthwise, [Some(f([1, 3, 4])), Some(f([3, 1, 3])), None]);
        let cut = Conv { padding_lo: vec![-1], padding_hi: vec![-1], ..d() };
        s.case_opt("cut", cut, [Some(f([1, 1, 6])), Some(f([1, 1, 2])), None]);
        s.case_opt("volume", d(), [Some(f([1, 1, 2, 3, 2])), Some(f([1, 1, 2, 2, 1])), None]);
        s.case_opt("empty", d(), [Some(f([0, 2, 5])), Some(f([3, 2, 3])), None]);
    };
    tolerance = tol(1e-5, 5e-3, 4e-2);

    /// The gradient of `conv` with respect to x, of spatial sizes `spatial`:
    /// `dx[n, c, i] = Σ dy[n, m, o] · w[m, c, k]` over all m, o, k with
    /// `o·stride + k·dilation − padding_lo = i`.
    conv_grad_input: ConvGradInput(dy: Float, w: Float) {
        spatial: Dims, stride: Vec<i64> = vec![], padding_lo: Vec<i64> = vec![], padding_hi: Vec<i64> = vec![],
        dilation: Vec<i64> = vec![], groups: i64 = 1
    } -> dx;
    constraints = [
        "dy and w have at least three axes, equally many, and spatial has an entry per spatial axis",
        "the lists are empty or have an entry per spatial axis; stride, dilation >= 1",
        "groups >= 1",
        "axis 1 of dy is axis 0 of w",
        "groups divides axis 0 of w",
        "dy has the spatial sizes that conv gives from `spatial`",
    ];
    infer = |c, a| {
        c.rank_at_least(1, 0, 3)?;
        c.rank(1, 1, c.ty(0)?.rank())?;
        let (dy, w, form) = (c.ty(0)?, c.ty(1)?, form!(a));
        if a.spatial.len() != dy.rank() - 2 {
            let text = format!("spatial has {} entries, dy {} spatial axes", a.spatial.len(), dy.rank() - 2);
            return Err(c.fail(Code::Rank, 1, text).operand("dy"));
        }
        form.check(c, 2, dy.rank() - 2)?;
        c.same_dim(4, (1, 0), (0, 1))?;
        grouped(c, 5, 1, 0, a.groups)?;
        let outputs = form.windows(tail(&w.shape, 2)).sizes(&a.spatial);
        for (i, d) in outputs.iter().enumerate() {
            c.expect_dim(6, 0, i + 2, d)?;
        }
        let lead = [c.dim(0, 0)?.clone(), c.dim(1, 1)? * a.groups];
        Ok(vec![dy.with_shape(lead.into_iter().chain(a.spatial.iter().cloned()).collect::<Shape>())])
    };
    step = |_, a| Ok(form!(a).step(ConvPart::Input));
    eval = |e, a| {
        let (dy, w) = (e.x(0)?, e.x(1)?);
        let (kernel, channels) = (w.shape().get(2..).unwrap_or_default(), at(w.shape(), 1));
        let shape = e.out(0)?.1.to_vec();
        let at_input = form!(a).windows(&dims(kernel)).inputs(shape.get(2..).unwrap_or_default())?;
        let per_group = at(w.shape(), 0) / a.groups as usize;
        let mut dx = vec![0.0; crate::tensor::count(&shape)?];
        let offset = |ix: &[usize]| ix.iter().zip(&shape).fold(0, |o, (i, d)| o * d + i);
        let mut it = crate::oracle::Indices::new(dy.shape());
        while let Some(ix) = it.next() {
            let (n, m, g) = (at(ix, 0), at(ix, 1), dy.at(ix).f());
            let first = m.checked_div(per_group).unwrap_or(0) * channels;
            at_input.each(ix.get(2..).unwrap_or_default(), |k, p| {
                for c in 0..channels {
                    if let Some(slot) = dx.get_mut(offset(&join(n, first + c, p))) {
                        *slot += g * w.at(&join(m, c, k)).f();
                    }
                }
            });
        }
        Ok(vec![Arr::from_f64s(e.out(0)?.0, &shape, dx)?])
    };
    vjp = |c, a| {
        let ([dy, w], x, form) = (c.xs(), c.dy(0), form!(a));
        Ok([
            c.wants(0).then(|| form.conv(x, w)),
            c.wants(1).then(|| form.grad_weight(x, dy, tail(&w.shape(), 2))),
        ].into())
    };
    vmap = |c, a| {
        let form = form!(a);
        Ok(vec![match (c.is_batched(0), c.is_batched(1)) {
            (true, false) | (false, false) => {
                let dy = c.bx(0);
                split(form.grad_input(merge(dy, 0), c.x(1), &a.spatial), 0, &c.size, dy.dim(1))
            }
            (false, true) => {
                let channels = c.x(1).dim(2);
                let w = merge(c.x(1).move_axis(0, 1), 1);
                let dx = form.grad_input(c.x(0), w, &a.spatial);
                batch_from_groups(dx, 1, a.groups, &c.size, &(channels * a.groups))?
            }
            (true, true) => {
                let Some(wide) = c.size.as_const().filter(|n| *n > 0).and_then(|n| form.times(n)) else {
                    return vmap_loop(c);
                };
                let channels = c.x(1).dim(2) * a.groups;
                let dx = wide.grad_input(merge(c.x(0).move_axis(0, 1), 1), merge(c.x(1), 0), &a.spatial);
                split(dx, 1, &c.size, channels).move_axis(1, 0)
            }
        }])
    };
    samples = |s| {
        let plain = |spatial: Dims| ConvGradInput {
            spatial, stride: vec![], padding_lo: vec![], padding_hi: vec![], dilation: vec![], groups: 1,
        };
        s.case("plain", plain([5].into()), [f([2, 3, 3]), f([3, 2, 3])]);
        let strided = ConvGradInput { stride: vec![2], padding_lo: vec![1], ..plain([6].into()) };
        s.case("strided", strided, [f([1, 2, 3]), f([2, 1, 3])]);
        let grouped = ConvGradInput { groups: 2, dilation: vec![1, 2], ..plain([3, 4].into()) };
        s.case("grouped", grouped, [f([1, 4, 2, 2]), f([4, 2, 2, 2])]);
    };
    tolerance = tol(1e-5, 5e-3, 4e-2);

    /// The gradient of `conv` with respect to w, of kernel sizes `kernel`:
    /// `dw[m, c, k] = Σ_{n, o} x[n, c, o·stride + k·dilation − padding_lo] · dy[n, m, o]`.
    conv_grad_weight: ConvGradWeight(x: Float, dy: Float) {
        kernel: Dims, stride: Vec<i64> = vec![], padding_lo: Vec<i64> = vec![], padding_hi: Vec<i64> = vec![],
        dilation: Vec<i64> = vec![], groups: i64 = 1
    } -> dw;
    constraints = [
        "x and dy have at least three axes, equally many, and kernel has an entry per spatial axis",
        "the lists are empty or have an entry per spatial axis; stride, dilation >= 1",
        "groups >= 1",
        "axis 0 of dy is axis 0 of x",
        "groups divides axis 1 of x and of dy",
        "dy has the spatial sizes that conv gives from x",
    ];
    infer = |c, a| {
        c.rank_at_least(1, 0, 3)?;
        c.rank(1, 1, c.ty(0)?.rank())?;
        let (x, form) = (c.ty(0)?, form!(a));
        if a.kernel.len() != x.rank() - 2 {
            let text = format!("kernel has {} entries, x {} spatial axes", a.kernel.len(), x.rank() - 2);
            return Err(c.fail(Code::Rank, 1, text).operand("x"));
        }
        form.check(c, 2, x.rank() - 2)?;
        c.same_dim(4, (0, 0), (1, 0))?;
        let channels = grouped(c, 5, 0, 1, a.groups)?;
        grouped(c, 5, 1, 1, a.groups)?;
        for (i, d) in form.windows(&a.kernel).sizes(tail(&x.shape, 2)).iter().enumerate() {
            c.expect_dim(6, 1, i + 2, d)?;
        }
        let lead = [c.dim(1, 1)?.clone(), channels];
        Ok(vec![x.with_shape(lead.into_iter().chain(a.kernel.iter().cloned()).collect::<Shape>())])
    };
    step = |_, a| Ok(form!(a).step(ConvPart::Weight));
    eval = |e, a| {
        let (x, dy) = (e.x(0)?, e.x(1)?);
        let shape = e.out(0)?.1.to_vec();
        let (kernel, channels) = (shape.get(2..).unwrap_or_default(), at(&shape, 1));
        let at_input = form!(a).windows(&dims(kernel)).inputs(x.shape().get(2..).unwrap_or_default())?;
        let per_group = at(&shape, 0) / a.groups as usize;
        let mut dw = vec![0.0; crate::tensor::count(&shape)?];
        let offset = |ix: &[usize]| ix.iter().zip(&shape).fold(0, |o, (i, d)| o * d + i);
        let mut it = crate::oracle::Indices::new(dy.shape());
        while let Some(ix) = it.next() {
            let (n, m, g) = (at(ix, 0), at(ix, 1), dy.at(ix).f());
            let first = m.checked_div(per_group).unwrap_or(0) * channels;
            at_input.each(ix.get(2..).unwrap_or_default(), |k, p| {
                for c in 0..channels {
                    if let Some(slot) = dw.get_mut(offset(&join(m, c, k))) {
                        *slot += g * x.at(&join(n, first + c, p)).f();
                    }
                }
            });
        }
        Ok(vec![Arr::from_f64s(e.out(0)?.0, &shape, dw)?])
    };
    vjp = |c, a| {
        let ([x, dy], w, form) = (c.xs(), c.dy(0), form!(a));
        Ok([
            c.wants(0).then(|| form.grad_input(dy, w, tail(&x.shape(), 2))),
            c.wants(1).then(|| form.conv(x, w)),
        ].into())
    };
    vmap = |c, a| {
        let form = form!(a);
        Ok(vec![match (c.is_batched(0), c.is_batched(1)) {
            (true, false) => {
                let channels = c.x(0).dim(2).exact_div(&Dim::constant(a.groups)).unwrap_or(Dim::invalid());
                let dw = form.grad_weight(batch_into_groups(c.x(0), 1, a.groups)?, c.x(1), &a.kernel);
                split(dw, 1, &c.size, channels).move_axis(1, 0)
            }
            (false, _) => {
                let m = c.bx(1).dim(2);
                let dw = form.grad_weight(c.x(0), batch_into_groups(c.bx(1), 1, a.groups)?, &a.kernel);
                batch_from_groups(dw, 0, a.groups, &c.size, &m)?
            }
            (true, true) => {
                let Some(wide) = c.size.as_const().filter(|n| *n > 0).and_then(|n| form.times(n)) else {
                    return vmap_loop(c);
                };
                let turn = |i: usize| merge(c.x(i).move_axis(0, 1), 1);
                let m = c.x(1).dim(2);
                split(wide.grad_weight(turn(0), turn(1), &a.kernel), 0, &c.size, m)
            }
        }])
    };
    samples = |s| {
        let plain = |kernel: Dims| ConvGradWeight {
            kernel, stride: vec![], padding_lo: vec![], padding_hi: vec![], dilation: vec![], groups: 1,
        };
        s.case("plain", plain([3].into()), [f([2, 2, 5]), f([2, 3, 3])]);
        let strided = ConvGradWeight { stride: vec![2], padding_lo: vec![1], ..plain([3].into()) };
        s.case("strided", strided, [f([1, 1, 6]), f([1, 2, 3])]);
        let grouped = ConvGradWeight { groups: 2, dilation: vec![1, 2], ..plain([2, 2].into()) };
        s.case("grouped", grouped, [f([1, 4, 3, 4]), f([1, 4, 2, 2])]);
    };
    tolerance = tol(1e-5, 5e-3, 4e-2);

    /// Transposed convolution, as `ConvTranspose` of ONNX and PyTorch: every element of x adds its multiple
    /// of the kernel, `y[n, m, i·stride + k·dilation − padding_lo] += x[n, c, i] · w[c, m, k]`, and bias[m]
    /// is added everywhere. x is `[batch, channels, spatial..]`, w is
    /// `[channels, out channels / groups, kernel..]`, bias is `[out channels]`. A spatial axis of the result
    /// is `(size − 1)·stride − padding + dilation·(kernel − 1) + output_padding + 1`. Empty lists are as for
    /// `conv`.
    conv_transpose: ConvTranspose(x: Float, w: Float, bias: opt Float) with {
        stride: Vec<i64> = vec![], padding_lo: Vec<i64> = vec![], padding_hi: Vec<i64> = vec![],
        output_padding: Vec<i64> = vec![], dilation: Vec<i64> = vec![], groups: i64 = 1
    } -> y;
    constraints = [
        "x has a batch, a channel and at least one spatial axis, and w has as many axes",
        "the lists are empty or have an entry per spatial axis; stride, dilation >= 1",
        "groups >= 1",
        "axis 0 of w is axis 1 of x",
        "groups divides axis 1 of x",
        "bias has one entry per output channel",
        "0 <= output_padding, and it is less than the stride or the dilation",
    ];
    infer = |c, a| {
        c.rank_at_least(1, 0, 3)?;
        c.rank(1, 1, c.ty(0)?.rank())?;
        let (x, form) = (c.ty(0)?, form!(a));
        let n = x.rank() - 2;
        form.check(c, 2, n)?;
        Windows::check_attrs(c, 2, n, &[("output_padding", &a.output_padding, i64::MIN)])?;
        for i in 0..n {
            let of = |v: &[i64], default| v.get(i).copied().unwrap_or(default);
            let extra = of(&a.output_padding, 0);
            if extra < 0 || extra >= of(&a.stride, 1).max(of(&a.dilation, 1)) {
                return Err(c.fail(Code::Attribute, 7, format!("output_padding is {extra}")).operand("x").axis(i + 2));
            }
        }
        c.same_dim(4, (1, 0), (0, 1))?;
        grouped(c, 5, 0, 1, a.groups)?;
        let m = c.dim(1, 1)? * a.groups;
        check_bias(c, 6, &m)?;
        let lead = [c.dim(0, 0)?.clone(), m];
        let spatial = transposed(a, tail(&x.shape, 2), tail(&c.ty(1)?.shape, 2));
        Ok(vec![x.with_shape(lead.into_iter().chain(spatial).collect::<Shape>())])
    };
    body = |c, a| {
        let [x, w] = c.xs();
        let (n, mut form) = (x.rank() - 2, form!(a).clone());
        // Output padding of a stride or more is padding at the end that is taken back.
        let (stride, extra) = (spread(&a.stride, n, 1), spread(&a.output_padding, n, 0));
        let back = stride.iter().zip(&extra).map(|(s, e)| (e - (s - 1)).max(0));
        form.padding_hi = spread(&a.padding_hi, n, 0).iter().zip(back).map(|(p, b)| p.saturating_sub(b)).collect();
        let spatial = transposed(a, tail(&x.shape(), 2), tail(&w.shape(), 2));
        let y = form.grad_input(x, w, &spatial);
        Ok(vec![c.opt(2).map_or(y, |b| y + per_channel(b, 0, y.rank()))])
    };
    onnx = [rule("ConvTranspose", 1, onnx::window::conv_transpose)];
    samples = |s| {
        let d = ConvTranspose::default;
        s.case_opt("plain", d(), [Some(f([2, 2, 3])), Some(f([2, 3, 3])), None]);
        let strided = ConvTranspose {
            stride: vec![2, 3], padding_lo: vec![1, 0], padding_hi: vec![0, 1], output_padding: vec![1, 2], ..d()
        };
        s.case("strided", strided, [f([1, 1, 2, 3]), f([1, 2, 3, 2]), f([2])]);
        let dilated = ConvTranspose { dilation: vec![3], output_padding: vec![2], stride: vec![2], ..d() };
        s.case_opt("dilated", dilated, [Some(f([1, 2, 2])), Some(f([2, 1, 2])), None]);
        let grouped = ConvTranspose { groups: 2, ..d() };
        s.case("grouped", grouped, [f([1, 4, 2]), f([4, 3, 2]), f([6])]);
        s.case_opt("empty", d(), [Some(f([0, 2, 3])), Some(f([2, 3, 3])), None]);
    };
    tolerance = tol(1e-5, 5e-3, 4e-2);
}

/// The spatial sizes of a transposed convolution.
fn transposed(a: &ConvTranspose, spatial: &[Dim], kernel: &[Dim]) -> Shape {
    let of = |v: &[i64], i: usize, default| v.get(i).copied().unwrap_or(default);
    let size = |(i, (s, k)): (usize, (&Dim, &Dim))| {
        let taps = (k - 1) * of(&a.dilation, i, 1) + of(&a.output_padding, i, 0) + 1;
        (s - 1) * of(&a.stride, i, 1) + taps - of(&a.padding_lo, i, 0) - of(&a.padding_hi, i, 0)
    };
    spatial.iter().zip(kernel).enumerate().map(size).collect()
}

fn at(v: &[usize], i: usize) -> usize {
    v.get(i).copied().unwrap_or(0)
}

fn dims(v: &[usize]) -> Vec<Dim> {
    v.iter().map(|n| Dim::from(*n)).collect()
}

fn join(a: usize, b: usize, rest: &[usize]) -> Vec<usize> {
    [a, b].iter().chain(rest).copied().collect()
}

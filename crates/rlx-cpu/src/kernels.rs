//! The kernels of the step kinds, each bound to sizes.

use crate::bind::{Cx, Loaded, Ready, Setting};
use crate::{flow, product, region};
use rlx_compile::program::{Arg, Kernel, SizeId, Work, fault};
use rlx_ir::dim::Bindings;
use rlx_ir::op::Step;
use rlx_ir::op::step::{ConvPart, Running, Sliding};
use rlx_ir::ops::attention::Attention;
use rlx_ir::ops::scatter::ScatterMode;
use rlx_ir::ops::window::WindowKind;
use rlx_ir::quant::{Decode, Scheme};
use rlx_ir::{Code, DType, Error, Result};
use rlx_simd::mem::{Ptr, ScratchSize, View};
use rlx_simd::{argreduce, attention, conv, copy, cumulative, fft, index, random, scan, sort, window};
use std::sync::Arc;

/// The sizes and strides of an argument.
#[derive(Clone, Debug)]
struct Form {
    dtype: DType,
    shape: Vec<usize>,
    strides: Vec<isize>,
}

impl Form {
    fn new(sizes: &[i64], a: &Arg) -> Form {
        let n = |id: &SizeId| sizes.get(id.0 as usize).copied().unwrap_or(0);
        Form {
            dtype: a.dtype,
            shape: a.shape.iter().map(|d| n(d).max(0) as usize).collect(),
            strides: a.strides.iter().map(|s| n(s) as isize).collect(),
        }
    }

    fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// The sizes before, at and behind an axis.
    fn around(&self, axis: usize) -> (usize, usize, usize) {
        let product = |s: Option<&[usize]>| s.unwrap_or_default().iter().product::<usize>();
        (
            product(self.shape.get(..axis)),
            self.shape.get(axis).copied().unwrap_or(1),
            product(self.shape.get(axis + 1..)),
        )
    }

    fn bytes(&self) -> usize {
        self.dtype.bytes().unwrap_or(1)
    }

    /// The view of that many axes from an address on, missing leading axes repeated.
    fn view<T, const R: usize>(&self, at: Ptr<u8>, like: [usize; R]) -> View<T, R> {
        let lead = R.saturating_sub(self.shape.len());
        let mut strides = [0; R];
        for (k, s) in strides.iter_mut().enumerate() {
            let own = k.checked_sub(lead);
            let wide = own.is_some_and(|o| self.shape.get(o).is_some_and(|d| *d > 1));
            *s = own.filter(|_| wide).and_then(|o| self.strides.get(o).copied()).unwrap_or(0);
        }
        View { ptr: at.0.cast(), shape: like, strides }
    }

    /// The view of its own sizes, with leading axes of size 1.
    fn padded<T, const R: usize>(&self, at: Ptr<u8>) -> View<T, R> {
        let mut like = [1; R];
        like.iter_mut().rev().zip(self.shape.iter().rev()).for_each(|(a, b)| *a = *b);
        self.view(at, like)
    }

    /// The view of exactly these axes.
    fn exact<T, const R: usize>(&self, at: Ptr<u8>) -> View<T, R> {
        let mut like = [1; R];
        like.iter_mut().zip(&self.shape).for_each(|(a, b)| *a = *b);
        self.view(at, like)
    }
}

fn ready(
    scratch: ScratchSize,
    flops: usize,
    run: impl Fn(&Cx<'_>, &[Ptr<u8>]) + Send + Sync + 'static,
) -> Ready {
    Ready { scratch, run: Box::new(run), flops: flops as u64 }
}

/// Binds a kernel to sizes.
pub(crate) fn bind(
    setting: Setting,
    sizes: &[i64],
    kernel: &Kernel,
    bodies: &[Arc<Loaded>],
    bindings: &Bindings,
) -> Result<Ready> {
    let forms: Vec<Form> = kernel.args.iter().map(|a| Form::new(sizes, a)).collect();
    match &kernel.work {
        Work::Region(r) => {
            let bound = region::bind(setting.level, sizes, kernel, r, false)?;
            if let Some((from, to, bytes)) = bound.copied() {
                let form =
                    |k: u32| forms.get(k as usize).cloned().ok_or_else(|| fault("an argument is missing"));
                return Ok(copying(setting, form(from)?, form(to)?, bytes, from as usize, to as usize));
            }
            let (scratch, flops) = (bound.scratch(), bound.flops);
            // SAFETY: the binder checked that the arguments lie within their slots.
            let run = move |cx: &Cx<'_>, args: &[Ptr<u8>]| unsafe { bound.run(cx.pool, &cx.scratch, args) };
            Ok(Ready { scratch, run: Box::new(run), flops })
        }
        Work::Product(p) => product::bind(setting, sizes, kernel, p),
        Work::Copy => {
            let [from, to] = <[Form; 2]>::try_from(forms).map_err(|_| fault("a copy has two arguments"))?;
            let bytes = from.bytes();
            Ok(copying(setting, from, to, bytes, 0, 1))
        }
        Work::Flow { step, .. } => flow::bind(setting, kernel, step, bodies, bindings),
        Work::Kernel { step, given } => step_kernel(setting, step, given, forms),
    }
}

fn copying(setting: Setting, from: Form, to: Form, bytes: usize, source: usize, target: usize) -> Ready {
    ready(ScratchSize::default(), 0, move |cx, args| {
        let (Some(src), Some(dst)) = (args.get(source), args.get(target)) else { return };
        if src.0 == dst.0 {
            return; // the copy takes the memory of what it copies
        }
        // SAFETY: the binder checked that both lie within their slots, which differ.
        unsafe {
            copy::copy(setting.level, bytes, &to.shape, dst.0, &to.strides, src.0, &from.strides, cx.pool)
        }
    })
}

/// Calls a generic function for the dtype that kernels compute in.
macro_rules! by_dtype {
    ($dtype:expr, $t:ident, $($arm:ident = $ty:ty),* => $call:expr) => {
        match $dtype {
            $(DType::$arm => { type $t = $ty; $call })*
            d => return Err(Error::new(Code::Device, format!("{d} has no kernel for this step"))),
        }
    };
}

fn step_kernel(setting: Setting, step: &Step, given: &[bool], forms: Vec<Form>) -> Result<Ready> {
    let level = setting.level;
    let missing = || fault("an argument is missing");
    let form = |k: usize| forms.get(k).cloned().ok_or_else(missing);
    let dtype = form(0)?.dtype;
    match step.clone() {
        Step::ArgFold { axis, min, last } => {
            let (outer, n, inner) = form(0)?.around(axis);
            let which = argreduce::Which { largest: !min, last };
            let scratch = argreduce::argreduce_scratch(outer, n, inner);
            Ok(
                by_dtype!(dtype, T, F32 = f32, F64 = f64, I64 = i64 => ready(scratch, outer * n * inner, move |cx, args| {
                    let [x, y] = args else { return };
                    // SAFETY: the binder checked the arguments.
                    unsafe {
                        argreduce::argreduce::<T>(
                            level, which, outer, n, inner, x.0.cast(), y.0.cast(), cx.pool, &cx.scratch,
                        )
                    }
                })),
            )
        }
        Step::Running { kind, axis, exclusive, reverse } => {
            let (outer, n, inner) = form(0)?.around(axis);
            let kind = match kind {
                Running::Sum => cumulative::Kind::Sum,
                Running::Prod => cumulative::Kind::Prod,
                Running::Max => cumulative::Kind::Max,
                Running::Min => cumulative::Kind::Min,
                Running::LogSumExp => cumulative::Kind::LogSumExp,
            };
            let scratch = cumulative::cumulative_scratch(outer, n, inner);
            Ok(by_dtype!(dtype, T, F32 = f32, F64 = f64, I64 = i64 => {
                ready(scratch, outer * n * inner, move |cx, args| {
                    let [x, y] = args else { return };
                    let how = cumulative::Running::<T> { kind, exclusive, reverse, nothing: None };
                    // SAFETY: the binder checked the arguments.
                    unsafe {
                        cumulative::cumulative(
                            level, how, outer, n, inner, x.0.cast(), y.0.cast(), cx.pool, &cx.scratch,
                        )
                    }
                })
            }))
        }
        Step::LinearScan { axis, reverse } => {
            let (outer, n, inner) = form(0)?.around(axis);
            Ok(
                by_dtype!(dtype, T, F32 = f32, F64 = f64 => ready(ScratchSize::default(), 2 * outer * n * inner, move |cx, args| {
                    let [a, b, y] = args else { return };
                    let view = |p: &Ptr<u8>| {
                        let mut v = View::<T, 3>::dense(p.0.cast(), [outer, n, inner]);
                        if reverse && n > 0 {
                            let [_, s, _] = v.strides;
                            v.ptr = v.ptr.wrapping_offset((n as isize - 1) * s);
                            v.strides[1] = -s;
                        }
                        v
                    };
                    let scan = scan::LinearScan { a: view(a), b: view(b), y: view(y) };
                    // SAFETY: the binder checked the arguments.
                    unsafe { scan.run(level, cx.pool) }
                })),
            )
        }
        Step::Scatter { axis, mode } => scatter(setting, form(0)?, form(1)?, axis, mode),
        Step::Sort { axis, descending } => {
            let (outer, n, inner) = form(0)?.around(axis);
            let order = sort::Order { outer, n, inner, keep: n, descending };
            Ok(by_dtype!(dtype, T, F32 = f32, F64 = f64, I64 = i64 => {
                ready(sort::sort_scratch::<T>(order), outer * n * inner, move |cx, args| {
                    let [x, values, indices] = args else { return };
                    // SAFETY: the binder checked the arguments.
                    unsafe {
                        sort::sort::<T>(
                            level, order, x.0.cast(), values.0.cast(), indices.0.cast(), cx.pool, &cx.scratch,
                        )
                    }
                })
            }))
        }
        Step::Fft { inverse } => {
            let x = form(0)?;
            let n = x.shape.len().checked_sub(2).and_then(|k| x.shape.get(k)).copied().unwrap_or(0);
            let rows = x.shape.iter().rev().skip(2).product::<usize>();
            let flops = 5 * rows * n * (n.max(2).ilog2() as usize);
            Ok(by_dtype!(dtype, T, F32 = f32, F64 = f64 => {
                let plan = fft::FftPlan::<T>::new(level, n, inverse);
                ready(plan.scratch(), flops, move |cx, args| {
                    let [x, y] = args else { return };
                    // SAFETY: the binder checked the arguments.
                    unsafe { plan.run(rows, x.0.cast(), y.0.cast(), cx.pool, &cx.scratch) }
                })
            }))
        }
        Step::RandomBits { stream } => {
            let (seed, out) = (form(0)?, form(1)?);
            let owners = seed.len() / 2;
            let n = out.len().checked_div(owners).unwrap_or(0);
            Ok(ready(ScratchSize::default(), out.len() * 10, move |cx, args| {
                let [seed, bits] = args else { return };
                // SAFETY: the binder checked the arguments.
                unsafe {
                    random::random_bits(level, seed.0.cast(), owners, n, stream, bits.0.cast(), cx.pool)
                }
            }))
        }
        Step::Window { kind, kernel, sliding, arg } => {
            windows(setting, form(0)?, kind, &kernel, &sliding, arg)
        }
        Step::Conv { part, sliding, groups } => convolution(setting, forms, part, &sliding, groups),
        Step::Attention(a) => attend(setting, &forms, given, &a),
        Step::AttentionGrad(a) => attend_back(setting, &forms, given, &a),
        Step::SelectiveScan { softplus } => selective(setting, forms, given.to_vec(), softplus),
        Step::SelectiveScanGrad { softplus } => selective_back(setting, forms, given.to_vec(), softplus),
        Step::Quantize => Ok(quantizing(form(0)?, form(1)?)?),
        Step::Dequantize { finite } => Ok(dequantizing(form(0)?, form(1)?, finite)?),
        step => Err(Error::new(Code::Device, format!("the CPU has no kernel for {step:?}"))),
    }
}

fn scatter(setting: Setting, x: Form, ids: Form, axis: usize, mode: ScatterMode) -> Result<Ready> {
    let (outer, n, inner) = x.around(axis);
    let rows = index::Rows { outer, n, inner, m: ids.len() };
    let indices = move |p: Ptr<u8>| match ids.dtype {
        DType::I32 => Ok(index::Indices::I32(p.0.cast())),
        DType::I64 => Ok(index::Indices::I64(p.0.cast())),
        DType::U32 => Ok(index::Indices::U32(p.0.cast())),
        DType::U64 => Ok(index::Indices::U64(p.0.cast())),
        d => Err(d),
    };
    if let Err(d) = indices(Ptr(std::ptr::null_mut())) {
        return Err(Error::new(Code::Device, format!("indices of {d} have no kernel")));
    }
    let (level, bytes, total) = (setting.level, x.bytes(), x.len() * x.bytes());
    let how = match mode {
        ScatterMode::Set => {
            return Ok(ready(index::scatter_set_scratch(rows), 0, move |cx, args| {
                let [x, ids, updates, y] = args else { return };
                let Ok(ids) = indices(*ids) else { return };
                // SAFETY: the binder checked the arguments.
                unsafe {
                    copy::copy(level, 1, &[total], y.0, &[1], x.0, &[1], cx.pool);
                    index::scatter_set(bytes, rows, ids, updates.0, y.0, cx.pool, &cx.scratch);
                }
            }));
        }
        ScatterMode::Add => index::Combine::Add,
        ScatterMode::Max => index::Combine::Max,
        ScatterMode::Min => index::Combine::Min,
        ScatterMode::Mul => index::Combine::Mul,
    };
    Ok(by_dtype!(x.dtype, T, F32 = f32, F64 = f64, I64 = i64 => {
        ready(index::scatter_scratch::<T>(rows), rows.m * inner * outer, move |cx, args| {
            let [x, ids, updates, y] = args else { return };
            let Ok(ids) = indices(*ids) else { return };
            // SAFETY: the binder checked the arguments.
            unsafe {
                copy::copy(level, 1, &[total], y.0, &[1], x.0, &[1], cx.pool);
                index::scatter::<T>(level, how, rows, ids, updates.0.cast(), y.0.cast(), cx.pool, &cx.scratch);
            }
        })
    }))
}

/// A list with an entry per axis.
fn spread(v: &[i64], n: usize, default: i64) -> Vec<i64> {
    if v.is_empty() { vec![default; n] } else { v.to_vec() }
}

/// The owned lists of a window.
#[derive(Clone)]
struct Slide {
    spatial: Vec<usize>,
    kernel: Vec<usize>,
    stride: Vec<usize>,
    dilation: Vec<usize>,
    lo: Vec<isize>,
    hi: Vec<isize>,
}

impl Slide {
    fn new(s: &Sliding, spatial: &[usize], kernel: &[usize]) -> Slide {
        let n = kernel.len();
        let us = |v: Vec<i64>| v.into_iter().map(|x| x.max(0) as usize).collect();
        let is = |v: Vec<i64>| v.into_iter().map(|x| x as isize).collect();
        Slide {
            spatial: spatial.to_vec(),
            kernel: kernel.to_vec(),
            stride: us(spread(&s.stride, n, 1)),
            dilation: us(spread(&s.dilation, n, 1)),
            lo: is(spread(&s.padding_lo, n, 0)),
            hi: is(spread(&s.padding_hi, n, 0)),
        }
    }
}

fn windows(
    setting: Setting,
    x: Form,
    kind: WindowKind,
    kernel: &[i64],
    s: &Sliding,
    arg: bool,
) -> Result<Ready> {
    let kernel: Vec<usize> = kernel.iter().map(|k| (*k).max(0) as usize).collect();
    let (lead, spatial) = x.shape.split_at(x.shape.len().saturating_sub(kernel.len()));
    let (lead, slide) = (lead.iter().product::<usize>(), Slide::new(s, spatial, &kernel));
    let level = setting.level;
    let kind = match kind {
        WindowKind::Sum => window::Kind::Sum,
        WindowKind::Max => window::Kind::Max,
        WindowKind::Min => window::Kind::Min,
    };
    fn of(lead: usize, s: &Slide) -> window::Window<'_> {
        window::Window {
            lead,
            spatial: &s.spatial,
            kernel: &s.kernel,
            stride: &s.stride,
            dilation: &s.dilation,
            pad_lo: &s.lo,
            pad_hi: &s.hi,
        }
    }
    let w = of(lead, &slide);
    if !w.is_valid() {
        return Err(Error::new(Code::Size, "the windows do not fit at these sizes"));
    }
    let flops = w.outputs() * kernel.iter().product::<usize>();
    Ok(by_dtype!(x.dtype, T, F32 = f32, F64 = f64, I64 = i64 => {
        let scratch = of(lead, &slide).scratch::<T>();
        ready(scratch, flops, move |cx, args| {
            let [x, y] = args else { return };
            let w = of(lead, &slide);
            // SAFETY: the binder checked the arguments.
            unsafe {
                if arg {
                    w.argmax::<T>(level, cx.pool, &cx.scratch, kind, x.0.cast(), y.0.cast());
                } else {
                    w.reduce::<T>(level, cx.pool, &cx.scratch, kind, x.0.cast(), y.0.cast());
                }
            }
        })
    }))
}

fn convolution(
    setting: Setting,
    forms: Vec<Form>,
    part: ConvPart,
    s: &Sliding,
    groups: i64,
) -> Result<Ready> {
    let [p, q, r] = <[Form; 3]>::try_from(forms).map_err(|_| fault("a convolution has three arguments"))?;
    let dtype = p.dtype;
    // x [b, c, spatial], w [o, c / groups, kernel], y [b, o, spatial], whichever of them is computed.
    let (x, w, y) = match part {
        ConvPart::Output => (p, q, r),
        ConvPart::Input => (r, q, p),
        ConvPart::Weight => (p, r, q),
    };
    let at = |f: &Form, k: usize| f.shape.get(k).copied().unwrap_or(0);
    let (batch, channels, out) = (at(&x, 0), at(&x, 1), at(&w, 0));
    let tail = |f: &Form| f.shape.get(2..).unwrap_or_default().to_vec();
    let slide = Slide::new(s, &tail(&x), &tail(&w));
    let groups = groups.max(1) as usize;
    let level = setting.level;
    fn of(dims: [usize; 4], s: &Slide) -> conv::Conv<'_> {
        let [batch, groups, in_channels, out_channels] = dims;
        conv::Conv {
            batch,
            groups,
            in_channels,
            out_channels,
            in_spatial: &s.spatial,
            kernel: &s.kernel,
            stride: &s.stride,
            dilation: &s.dilation,
            pad_lo: &s.lo,
            pad_hi: &s.hi,
        }
    }
    let dims = [batch, groups, channels, out];
    if !of(dims, &slide).is_valid() {
        return Err(Error::new(Code::Size, "the windows do not fit at these sizes"));
    }
    let flops = 2 * y.len() * w.len().checked_div(out).unwrap_or(0);
    Ok(by_dtype!(dtype, T, F32 = f32, F64 = f64 => {
        let c = of(dims, &slide);
        let scratch = match part {
            ConvPart::Output => c.scratch::<T>(level, false),
            ConvPart::Input => c.grad_input_scratch::<T>(level),
            ConvPart::Weight => c.grad_weight_scratch::<T>(level),
        };
        ready(scratch, flops, move |cx, args| {
            let [a, b, to] = args else { return };
            let c = of(dims, &slide);
            // SAFETY: the binder checked the arguments.
            unsafe {
                match part {
                    ConvPart::Output => {
                        let w = conv::Weights::<T>::Plain(b.0.cast());
                        c.run_to::<T>(level, cx.pool, &cx.scratch, a.0.cast(), w, to.0.cast());
                    }
                    ConvPart::Input => c.grad_input::<T>(
                        level, cx.pool, &cx.scratch, a.0.cast(), b.0.cast(), to.0.cast(),
                    ),
                    ConvPart::Weight => c.grad_weight::<T>(
                        level, cx.pool, &cx.scratch, a.0.cast(), b.0.cast(), to.0.cast(),
                    ),
                }
            }
        })
    }))
}

/// Where an operand of an op stands among those that are given.
fn position(given: &[bool], k: usize) -> Option<usize> {
    given.get(k).copied().unwrap_or(false).then(|| given.iter().take(k).filter(|g| **g).count())
}

/// The scores of attention; `extras`: the position of the mask among the operands.
fn scores<T>(
    forms: &[Form],
    given: &[bool],
    extras: usize,
    a: &Attention,
) -> Option<impl Fn(&[Ptr<u8>]) -> Option<attention::Scores<T>> + use<T>> {
    let place = |k: usize| position(given, k);
    let (q, k) = (forms.first()?.clone(), forms.get(1)?.clone());
    let &[b, hq, s, d] = q.shape.as_slice() else { return None };
    let t = k.shape.get(2).copied()?;
    let scale = a.scale.unwrap_or(1.0 / (d as f64).sqrt());
    let optional: Vec<Option<(usize, Form)>> =
        (extras..extras + 3).map(|i| place(i).and_then(|p| Some((p, forms.get(p)?.clone())))).collect();
    let (causal, window, softcap) = (a.causal, a.window.map(|w| w.max(0) as usize), a.softcap);
    Some(move |args: &[Ptr<u8>]| {
        let find =
            |i: usize| optional.get(i).and_then(Option::as_ref).and_then(|(p, f)| Some((f, *args.get(*p)?)));
        Some(attention::Scores {
            q: q.exact(*args.first()?),
            k: k.exact(*args.get(1)?),
            mask: find(0).map(|(f, p)| f.view(p, [b, hq, s, t])),
            bias: find(1).map(|(f, p)| f.view(p, [b, hq, s, t])),
            slopes: find(2).map(|(f, p)| f.view(p, [b, hq])),
            scale,
            causal,
            window,
            softcap,
        })
    })
}

/// Addresses for asking about sizes only.
fn nowhere(n: usize) -> Vec<Ptr<u8>> {
    vec![Ptr(std::ptr::null_mut()); n]
}

fn attend(setting: Setting, forms: &[Form], given: &[bool], a: &Attention) -> Result<Ready> {
    let wrong = || fault("attention has other arguments");
    let (v, y) = (forms.get(2).cloned().ok_or_else(wrong)?, forms.last().cloned().ok_or_else(wrong)?);
    let last = forms.len() - 1;
    let level = setting.level;
    let flops = 2 * y.len() * v.shape.get(2).copied().unwrap_or(0) * 2;
    Ok(by_dtype!(v.dtype, T, F32 = f32, F64 = f64 => {
        let scores = scores::<T>(forms, given, 3, a).ok_or_else(wrong)?;
        let make = move |args: &[Ptr<u8>]| {
            Some(attention::Attention {
                scores: scores(args)?,
                v: v.exact(*args.get(2)?),
                y: y.exact(*args.get(last)?),
            })
        };
        let scratch = make(&nowhere(last + 1)).ok_or_else(wrong)?.scratch();
        ready(scratch, flops, move |cx, args| {
            let Some(a) = make(args) else { return };
            // SAFETY: the binder checked the arguments.
            unsafe { a.run(level, cx.pool, &cx.scratch) }
        })
    }))
}

fn attend_back(setting: Setting, forms: &[Form], given: &[bool], a: &Attention) -> Result<Ready> {
    let wrong = || fault("attention's gradient has other arguments");
    let (bias, slopes) = (given.get(5) == Some(&true), given.get(6) == Some(&true));
    let operands = given.iter().filter(|g| **g).count();
    let get = |k: usize| forms.get(k).cloned().ok_or_else(wrong);
    let (v, dy) = (get(2)?, get(3)?);
    let (dq, dk, dv) = (get(operands)?, get(operands + 1)?, get(operands + 2)?);
    let dbias = bias.then(|| get(operands + 3)).transpose()?;
    let at_slopes = operands + 3 + bias as usize;
    let dslopes = slopes.then(|| get(at_slopes)).transpose()?;
    let level = setting.level;
    let flops = 10 * dq.len() * v.shape.get(2).copied().unwrap_or(0);
    let count = forms.len();
    Ok(by_dtype!(v.dtype, T, F32 = f32, F64 = f64 => {
        let scores = scores::<T>(forms, given, 4, a).ok_or_else(wrong)?;
        let make = move |args: &[Ptr<u8>]| {
            Some(attention::AttentionGrad {
                scores: scores(args)?,
                v: v.exact(*args.get(2)?),
                dy: dy.exact(*args.get(3)?),
                dq: dq.exact(*args.get(operands)?),
                dk: dk.exact(*args.get(operands + 1)?),
                dv: dv.exact(*args.get(operands + 2)?),
                dbias: match &dbias {
                    Some(f) => Some(f.padded(*args.get(operands + 3)?)),
                    None => None,
                },
                dslopes: match &dslopes {
                    Some(f) => Some(f.padded(*args.get(at_slopes)?)),
                    None => None,
                },
            })
        };
        let scratch = make(&nowhere(count)).ok_or_else(wrong)?.scratch();
        ready(scratch, flops, move |cx, args| {
            let Some(a) = make(args) else { return };
            // SAFETY: the binder checked the arguments.
            unsafe { a.run(level, cx.pool, &cx.scratch) }
        })
    }))
}

/// The operands of a selective scan, the first of which stands at `first` among the op's operands.
fn scan_inputs<T>(
    forms: &[Form],
    given: &[bool],
    first: usize,
    softplus: bool,
    args: &[Ptr<u8>],
) -> Option<scan::ScanInputs<T>> {
    let place = |k: usize| position(given, k);
    let at = |k: usize| {
        let p = place(first + k)?;
        Some((forms.get(p)?, *args.get(p)?))
    };
    fn three<T>(x: Option<(&Form, Ptr<u8>)>) -> Option<View<T, 3>> {
        x.map(|(f, p)| f.exact(p))
    }
    fn one<T>(x: Option<(&Form, Ptr<u8>)>) -> Option<View<T, 1>> {
        x.map(|(f, p)| f.exact(p))
    }
    Some(scan::ScanInputs {
        x: three(at(0))?,
        delta: three(at(1))?,
        a: at(2).map(|(f, p)| f.exact(p))?,
        b: three(at(3))?,
        c: three(at(4))?,
        d: one(at(5)),
        z: three(at(6)),
        delta_bias: one(at(7)),
        state: three(at(8)),
        softplus,
    })
}

fn scan_flops(forms: &[Form], x: usize, a: usize) -> usize {
    let n = forms.get(a).and_then(|a| a.shape.get(1)).copied().unwrap_or(0);
    forms.get(x).map_or(0, Form::len) * n * 7
}

fn selective(setting: Setting, forms: Vec<Form>, given: Vec<bool>, softplus: bool) -> Result<Ready> {
    let wrong = || fault("a selective scan has other arguments");
    let level = setting.level;
    let operands = given.iter().filter(|g| **g).count();
    let dtype = forms.first().ok_or_else(wrong)?.dtype;
    let flops = scan_flops(&forms, 0, 2);
    Ok(by_dtype!(dtype, T, F32 = f32, F64 = f64 => {
        let make = move |args: &[Ptr<u8>]| {
            let out = |k: usize| Some((forms.get(operands + k)?, *args.get(operands + k)?));
            Some(scan::SelectiveScan::<T> {
                inputs: scan_inputs(&forms, &given, 0, softplus, args)?,
                y: out(0).map(|(f, p)| f.exact(p))?,
                last: out(1).map(|(f, p)| f.exact(p)),
            })
        };
        let scratch = make(&nowhere(operands + 2)).ok_or_else(wrong)?.scratch();
        ready(scratch, flops, move |cx, args| {
            let Some(s) = make(args) else { return };
            // SAFETY: the binder checked the arguments.
            unsafe { s.run(level, cx.pool, &cx.scratch) }
        })
    }))
}

/// The schemes and sizes of a packed argument's planes: offset and length in bytes.
fn planes(form: &Form) -> Result<(Scheme, Vec<(usize, usize)>)> {
    let DType::Packed(scheme) = form.dtype else {
        return Err(Error::new(Code::Quant, format!("{} is not packed", form.dtype)));
    };
    let planes = scheme.planes(&form.shape).map_err(|e| Error::new(Code::Quant, e.to_string()))?;
    let mut at = 0;
    let place = |p: &rlx_ir::quant::Plane| {
        let from = at;
        at += p.bytes.div_ceil(64) * 64;
        (from, p.bytes)
    };
    Ok((scheme, planes.iter().map(place).collect()))
}

fn quantizing(x: Form, w: Form) -> Result<Ready> {
    let (scheme, places) = planes(&w)?;
    Ok(ready(ScratchSize::default(), x.len(), move |_, args| {
        let [from, to] = args else { return };
        // SAFETY: the binder checked the arguments; the planes lie one behind the other.
        unsafe {
            let x = std::slice::from_raw_parts(from.0.cast::<f32>(), x.len());
            let Ok(encoded) = scheme.encode(&w.shape, x) else { return };
            for ((at, len), plane) in places.iter().zip(encoded) {
                std::ptr::copy_nonoverlapping(plane.as_ptr(), to.0.add(*at), (*len).min(plane.len()));
            }
        }
    }))
}

fn dequantizing(w: Form, y: Form, finite: bool) -> Result<Ready> {
    let (scheme, places) = planes(&w)?;
    let mode = if finite { Decode::Finite } else { Decode::AsStored };
    let dtype = y.dtype;
    Ok(ready(ScratchSize::default(), y.len(), move |_, args| {
        let [from, to] = args else { return };
        // SAFETY: the binder checked the arguments; the planes lie one behind the other.
        unsafe {
            let slices: Vec<&[u8]> =
                places.iter().map(|(at, len)| std::slice::from_raw_parts(from.0.add(*at), *len)).collect();
            let Ok(values) = scheme.decode(&w.shape, &slices, mode) else { return };
            let wide: Vec<f64> = values.iter().map(|v| f64::from(*v)).collect();
            let Some(t) = rlx_ir::Tensor::from_f64s(dtype, &w.shape, &wide) else { return };
            std::ptr::copy_nonoverlapping(t.bytes().as_ptr(), to.0, t.bytes().len());
        }
    }))
}

fn selective_back(setting: Setting, forms: Vec<Form>, given: Vec<bool>, softplus: bool) -> Result<Ready> {
    let wrong = || fault("a selective scan's gradient has other arguments");
    let level = setting.level;
    let operands = given.iter().filter(|g| **g).count();
    let dtype = forms.first().ok_or_else(wrong)?.dtype;
    let (flops, count) = (3 * scan_flops(&forms, 1, 3), forms.len());
    Ok(by_dtype!(dtype, T, F32 = f32, F64 = f64 => {
        let make = move |args: &[Ptr<u8>]| {
            // The results are the gradients of the operands from x to state that are given.
            let place = |k: usize| position(given.get(1..10.min(given.len())).unwrap_or_default(), k);
            let out = |k: usize| {
                let p = operands + place(k)?;
                Some((forms.get(p)?, *args.get(p)?))
            };
            let dlast = position(&given, 10).and_then(|p| Some((forms.get(p)?, *args.get(p)?)));
            Some(scan::SelectiveScanGrad::<T> {
                inputs: scan_inputs(&forms, &given, 1, softplus, args)?,
                dy: forms.first()?.exact(*args.first()?),
                dlast: dlast.map(|(f, p)| f.exact(p)),
                dx: out(0).map(|(f, p)| f.exact(p))?,
                ddelta: out(1).map(|(f, p)| f.exact(p))?,
                da: out(2).map(|(f, p)| f.exact(p))?,
                db: out(3).map(|(f, p)| f.exact(p))?,
                dc: out(4).map(|(f, p)| f.exact(p))?,
                dd: out(5).map(|(f, p)| f.exact(p)),
                dz: out(6).map(|(f, p)| f.exact(p)),
                ddelta_bias: out(7).map(|(f, p)| f.exact(p)),
                dstate: out(8).map(|(f, p)| f.exact(p)),
            })
        };
        let scratch = make(&nowhere(count)).ok_or_else(wrong)?.scratch();
        ready(scratch, flops, move |cx, args| {
            let Some(s) = make(args) else { return };
            // SAFETY: the binder checked the arguments.
            unsafe { s.run(level, cx.pool, &cx.scratch) }
        })
    }))
}

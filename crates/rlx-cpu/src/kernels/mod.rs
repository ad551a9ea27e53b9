//! The kernels of the step kinds, each bound to sizes.

mod attend;
mod packed;
mod slide;

pub(crate) use slide::pack_weights;

use crate::bind::{Cx, Loaded, Ready, Setting};
use crate::region::{self, BoundRegion};
use crate::{flow, product};
use rlx_compile::program::{Arg, Inst, Kernel, Region, SizeId, Work, fault};
use rlx_ir::dim::Bindings;
use rlx_ir::op::Step;
use rlx_ir::op::step::Running;
use rlx_ir::ops::scatter::ScatterMode;
use rlx_ir::{Code, DType, Error, Result};
use rlx_simd::mem::{Ptr, ScratchSize, View};
use rlx_simd::{argreduce, copy, cumulative, fft, index, random, scan, sort};
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
        Work::Region(r) if forms.iter().any(|f| f.dtype.is_packed()) => handed_through(r, &forms),
        Work::Region(r) => {
            let bound = region::bind(setting.level, sizes, kernel, r, false)?;
            if let Some((from, to, bytes)) = bound.copied() {
                let form =
                    |k: u32| forms.get(k as usize).cloned().ok_or_else(|| fault("an argument is missing"));
                return Ok(copying(setting, form(from)?, form(to)?, bytes, from as usize, to as usize));
            }
            let (scratch, flops) = (bound.scratch(setting.threads), bound.flops);
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
        Work::Kernel { step, given, epilogue } => {
            let behind = epilogue.as_ref().map(|r| {
                // The queries of a head are one long row where no columns are reduced: a row has few.
                let folds = r.code.iter().any(|i| matches!(i, Inst::Fold { .. }));
                let more = usize::from(matches!(step, Step::Attention(_)) && !folds);
                let r = Region { lanes: r.lanes + more, ..r.clone() };
                region::bind(setting.level, sizes, kernel, &r, true)
            });
            step_kernel(setting, step, given, forms, behind.transpose()?)
        }
    }
}

/// Packed data go from an input to an output as they are, planes and all: nothing else is done with them but by kernels.
fn handed_through(r: &Region, forms: &[Form]) -> Result<Ready> {
    let fault = || fault("a region computes with packed data");
    let [from, to] = forms else { return Err(fault()) };
    let plain = matches!(r.code.as_slice(), [Inst::Load(0), Inst::Store { arg: 1, value: 0 }]);
    if !plain || from.dtype != to.dtype || from.shape != to.shape {
        return Err(fault());
    }
    let dims: Vec<rlx_ir::Dim> = from.shape.iter().map(|d| (*d).into()).collect();
    let bytes = crate::bind::byte_count(from.dtype, &dims, &Bindings::new())?;
    Ok(ready(ScratchSize::default(), 0, move |_, args| {
        let [from, to] = args else { return };
        // SAFETY: both slots hold the planes of one packed type, and an output overlaps nothing.
        unsafe { std::ptr::copy(from.0, to.0, bytes) }
    }))
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

use by_dtype;

fn step_kernel(
    setting: Setting,
    step: &Step,
    given: &[bool],
    forms: Vec<Form>,
    behind: Option<BoundRegion>,
) -> Result<Ready> {
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
        Step::Bits => {
            let (x, y) = (form(0)?, form(1)?);
            let bytes = x.bytes();
            Ok(copying(setting, x, y, bytes, 0, 1))
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
            slide::windows(setting, form(0)?, kind, &kernel, &sliding, arg)
        }
        Step::Conv { part, sliding, groups } => {
            slide::convolution(setting, &forms, part, &sliding, groups, behind)
        }
        Step::Attention(a) => attend::attend(setting, &forms, given, &a, behind),
        Step::SelectiveScan { softplus } => {
            attend::selective(setting, forms, given.to_vec(), softplus, behind)
        }
        step if behind.is_some() => Err(fault(&format!("nothing can stand behind {step:?}"))),
        Step::AttentionGrad(a) => attend::attend_back(setting, &forms, given, &a),
        Step::SelectiveScanGrad { softplus } => {
            attend::selective_back(setting, forms, given.to_vec(), softplus)
        }
        Step::Quantize => packed::quantizing(form(0)?, form(1)?),
        Step::Dequantize { finite } => packed::dequantizing(form(0)?, form(1)?, finite),
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

//! Convolutions and windows.

use super::{Form, by_dtype, ready};
use crate::bind::{Cx, Packed, Ready, Setting};
use crate::epilogue::Epilogue;
use crate::region::BoundRegion;
use rlx_compile::program::fault;
use rlx_ir::op::step::{ConvPart, Sliding};
use rlx_ir::ops::window::WindowKind;
use rlx_ir::{Code, DType, Error, Result};
use rlx_simd::mem::Ptr;
use rlx_simd::pool::Pool;
use rlx_simd::{conv, window};

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

pub(super) fn windows(
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

/// The sizes of a convolution: batch, groups, channels in and out, and how the kernel slides.
#[derive(Clone)]
struct Sizes {
    dims: [usize; 4],
    slide: Slide,
}

impl Sizes {
    fn conv(&self) -> conv::Conv<'_> {
        let [batch, groups, in_channels, out_channels] = self.dims;
        let s = &self.slide;
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
}

pub(super) fn convolution(
    setting: Setting,
    forms: &[Form],
    part: ConvPart,
    s: &Sliding,
    groups: i64,
    behind: Option<BoundRegion>,
) -> Result<Ready> {
    let form = |k: usize| forms.get(k).ok_or_else(|| fault("a convolution has three arguments"));
    // x [b, c, spatial], w [o, c / groups, kernel], whichever of them is computed.
    let (x, w) = match part {
        ConvPart::Output => (form(0)?, form(1)?),
        ConvPart::Input => (form(2)?, form(1)?),
        ConvPart::Weight => (form(0)?, form(2)?),
    };
    let at = |f: &Form, k: usize| f.shape.get(k).copied().unwrap_or(0);
    let tail = |f: &Form| f.shape.get(2..).unwrap_or_default().to_vec();
    let dims = [at(x, 0), groups.max(1) as usize, at(x, 1), at(w, 0)];
    let sizes = Sizes { dims, slide: Slide::new(s, &tail(x), &tail(w)) };
    let (level, c) = (setting.level, sizes.conv());
    if !c.is_valid() {
        return Err(Error::new(Code::Size, "the windows do not fit at these sizes"));
    }
    let flops = 2 * c.outputs() * w.len().checked_div(at(w, 0)).unwrap_or(0);
    match (form(0)?.dtype, part) {
        (DType::F32, ConvPart::Output) => return Ok(outputs(setting, sizes, flops, behind)),
        _ if behind.is_some() => return Err(fault("only a convolution's output in f32 has an epilogue")),
        _ => {}
    }
    Ok(by_dtype!(form(0)?.dtype, T, F32 = f32, F64 = f64 => {
        let scratch = match part {
            ConvPart::Output => c.scratch::<T>(level, false),
            ConvPart::Input => c.grad_input_scratch::<T>(level),
            ConvPart::Weight => c.grad_weight_scratch::<T>(level),
        };
        ready(scratch, flops, move |cx, args| {
            let [a, b, to] = args else { return };
            let c = sizes.conv();
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

/// A convolution in f32, over weights that may be packed, into memory or into the region behind it.
fn outputs(setting: Setting, sizes: Sizes, flops: usize, behind: Option<BoundRegion>) -> Ready {
    fn weights<'a>(cx: &Cx<'a>, w: Ptr<u8>) -> conv::Weights<'a, f32> {
        match cx.packed {
            Some(Packed::Conv(w)) => conv::Weights::Packed(w),
            _ => conv::Weights::Plain(w.0.cast()),
        }
    }
    let level = setting.level;
    let own = sizes.conv().scratch::<f32>(level, false);
    let Some(region) = behind else {
        return ready(own, flops, move |cx, args| {
            let [x, w, y] = args else { return };
            let w = weights(cx, *w);
            // SAFETY: the binder checked the arguments.
            unsafe { sizes.conv().run_to(level, cx.pool, &cx.scratch, x.0.cast(), w, y.0.cast()) }
        });
    };
    let block = [sizes.conv().out_channels, sizes.conv().positions()];
    let epilogue = Epilogue::new(region, block, own);
    ready(epilogue.scratch, flops + epilogue.flops() as usize, move |cx, args| {
        let [x, w, ..] = args else { return };
        let w = weights(cx, *w);
        // SAFETY: the binder checked the arguments, those of the region with the rest.
        unsafe {
            epilogue.run(cx, args, |sink| {
                sizes.conv().run(level, cx.pool, &cx.scratch, x.0.cast(), w, sink);
            });
        }
    })
}

/// Packs the weights of a convolution that do not change from run to run; `None` if that cannot be done for all sizes of
/// the input.
///
/// # Safety
/// `w` is the address of the weights, dense and of the shape that the kernel says.
pub(crate) unsafe fn pack_weights(
    setting: Setting,
    w: &[usize],
    s: &Sliding,
    groups: i64,
    at: *const f32,
    pool: &Pool,
) -> Option<conv::ConvWeights<f32>> {
    let ([out, each, kernel @ ..], groups) = (w, groups.max(1) as usize) else { return None };
    // The input's sizes do not matter.
    let slide = Slide::new(s, &vec![1; kernel.len()], kernel);
    let sizes = Sizes { dims: [1, groups, each * groups, *out], slide };
    // SAFETY: as promised by the caller.
    unsafe { sizes.conv().pack(setting.level, pool, at) }
}

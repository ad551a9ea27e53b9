//! Convolutions and windows.

use super::{Form, by_dtype, ready};
use crate::bind::{Ready, Setting};
use rlx_compile::program::fault;
use rlx_ir::op::step::{ConvPart, Sliding};
use rlx_ir::ops::window::WindowKind;
use rlx_ir::{Code, DType, Error, Result};
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

pub(super) fn convolution(
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

//! Products of bytes less their zero points.

use super::Form;
use crate::bind::{Cx, Packed, Ready, Setting};
use crate::epilogue::Epilogue;
use crate::region;
use rlx_compile::program::{Kernel, Product, fault};
use rlx_ir::{DType, Result};
use rlx_simd::gemm::int8::{B, Gemm, Matrix, PackedB, Zeros};
use rlx_simd::gemm::{Out, Sink};
use rlx_simd::mem::Ptr;
use rlx_simd::pool::Pool;
use std::ops::Range;

/// Where the zero points of an operand are found: which argument, and how far apart they lie.
#[derive(Clone, Copy)]
struct At {
    arg: usize,
    stride: isize,
}

/// A product of bytes, bound to sizes.
struct Bound {
    form: Form,
    setting: Setting,
    signed: [bool; 2],
    zeros: [Option<At>; 2],
    right: usize,
}

impl Bound {
    fn gemm<'a>(&'a self, a: *const u8, b: B<'a>, zeros: [Option<Zeros>; 2]) -> Gemm<'a> {
        let Form { m, n, k, batches, .. } = &self.form;
        let a = Matrix { ptr: a, strides: self.form.a, signed: self.signed[0] };
        let [a_zero, b_zero] = zeros;
        Gemm { level: self.setting.level, m: *m, n: *n, k: *k, a, a_zero, b, b_zero, batches }
    }

    fn loose(&self, ptr: *const u8) -> Matrix {
        Matrix { ptr, strides: self.form.b, signed: self.signed[1] }
    }

    /// The product on the addresses of a call.
    fn of<'a>(&'a self, cx: &Cx<'a>, args: &[Ptr<u8>]) -> Option<Gemm<'a>> {
        let zero = |at: Option<At>| {
            at.and_then(|z| Some(Zeros { ptr: args.get(z.arg)?.0.cast_const(), stride: z.stride }))
        };
        let b = match cx.packed {
            Some(Packed::Bytes(b)) => B::Packed(b),
            _ => B::Strided(self.loose(args.get(self.right)?.0)),
        };
        Some(self.gemm(args.first()?.0, b, self.zeros.map(zero)))
    }
}

pub(super) fn bind(
    setting: Setting,
    sizes: &[i64],
    kernel: &Kernel,
    product: &Product,
    form: Form,
) -> Result<Ready> {
    let right = product.right();
    let signed = |k: usize| kernel.args.get(k).is_some_and(|a| a.dtype == DType::I8);
    let size = |k: &rlx_compile::program::SizeId| sizes.get(k.0 as usize).copied().unwrap_or(0);
    let zero = |arg: usize| -> Result<At> {
        let own = kernel.args.get(arg).ok_or_else(|| fault("a zero point is missing"))?;
        // One of a single row or column is one for all.
        let long = own.shape.first().is_some_and(|d| size(d) > 1);
        let stride = own.strides.first().filter(|_| long).map_or(0, size);
        Ok(At { arg, stride: stride as isize })
    };
    let [x_zero, y_zero] = product.zero_points();
    let zeros = [x_zero.map(zero).transpose()?, y_zero.map(zero).transpose()?];
    let mut flops = 2 * form.batches.len() as u64 * form.m as u64 * form.n as u64 * form.k as u64;
    let behind = product.epilogue.as_ref().map(|r| region::bind(setting.level, sizes, kernel, r, true));
    let behind = behind.transpose()?;
    let whole_rows = behind.as_ref().is_some_and(|r| r.needs_rows());
    let bound = Bound { form, setting, signed: [signed(0), signed(right)], zeros, right };
    let row_stride = bound.form.n as isize;
    let out = match &behind {
        Some(_) => Out::Sink { sink: &Nowhere, whole_rows },
        None => Out::Direct { ptr: std::ptr::null_mut(), row_stride },
    };
    // Enough whether the right operand is packed or not.
    let loose = B::Strided(bound.loose(std::ptr::null()));
    let mut scratch = bound.gemm(std::ptr::null(), loose, [None; 2]).scratch(&out);
    let epilogue = behind.map(|r| Epilogue::new(r, [bound.form.m, bound.form.n], scratch));
    if let Some(e) = &epilogue {
        scratch = e.scratch;
        flops += e.flops();
    }
    let run = move |cx: &Cx<'_>, args: &[Ptr<u8>]| {
        let (Some(gemm), Some(last)) = (bound.of(cx, args), args.last()) else { return };
        // SAFETY: the binder checked that the operands and the region's arguments lie within their slots.
        unsafe {
            match &epilogue {
                Some(e) => e.run(cx, args, |sink| {
                    gemm.run(cx.pool, &cx.scratch, Out::Sink { sink, whole_rows });
                }),
                None => gemm.run(cx.pool, &cx.scratch, Out::Direct { ptr: last.0.cast(), row_stride }),
            }
        }
    };
    Ok(Ready { scratch, run: Box::new(run), flops })
}

/// Stands for a sink where only sizes matter.
struct Nowhere;

impl Sink<i32> for Nowhere {
    unsafe fn block(&self, _: usize, _: usize, _: Range<usize>, _: Range<usize>, _: *mut i32, _: usize) {}
}

/// Packs the right operand of a product of bytes that does not change from run to run.
///
/// # Safety
/// `b` is the address of the operand, valid for all that its strides reach.
pub(crate) unsafe fn pack(setting: Setting, form: &Form, b: *const u8, signed: bool, pool: &Pool) -> PackedB {
    let b = Matrix { ptr: b, strides: form.b, signed };
    // SAFETY: as promised by the caller.
    unsafe { PackedB::pack(setting.level, form.k, form.n, b, pool) }
}

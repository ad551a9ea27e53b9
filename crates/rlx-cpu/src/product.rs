//! Matrix products, with what is fused behind them.

use crate::bind::{Cx, Packed, Ready, Setting};
use crate::epilogue::Epilogue;
use crate::region;
use rlx_compile::program::{Arg, Kernel, Product, SizeId, fault};
use rlx_ir::{Code, DType, Error, Result};
use rlx_simd::gemm::generic::{Element, Generic, gemm_generic, gemm_generic_scratch};
use rlx_simd::gemm::{A, B, BatchOffsets, Gemm, Out, PackedB, Sink};
use rlx_simd::mem::{Ptr, ScratchSize};
use std::ops::Range;

/// The sizes and strides of a product.
#[derive(Clone, Debug)]
pub(crate) struct Form {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub a: [isize; 2],
    pub b: [isize; 2],
    pub batches: Vec<BatchOffsets>,
}

impl Form {
    pub fn new(sizes: &[i64], kernel: &Kernel, product: &Product) -> Result<Form> {
        let n = |id: &SizeId| sizes.get(id.0 as usize).copied().unwrap_or(0);
        let [x, y, ..] = kernel.args.as_slice() else { return Err(fault("a product has two operands")) };
        let last = |a: &Arg| -> Result<[(usize, isize); 2]> {
            let axes: Vec<(usize, isize)> =
                a.shape.iter().zip(&a.strides).map(|(d, s)| (n(d).max(0) as usize, n(s) as isize)).collect();
            axes.last_chunk::<2>().copied().ok_or_else(|| fault("an operand of a product is no matrix"))
        };
        let ([(m, am), (k, ak)], [(_, bk), (cols, bn)]) = (last(x)?, last(y)?);
        let lead = |a: &Arg| -> Vec<(usize, isize)> {
            a.shape
                .iter()
                .zip(&a.strides)
                .take(product.batch)
                .map(|(d, s)| (n(d).max(0) as usize, n(s) as isize))
                .collect()
        };
        let (lx, ly) = (lead(x), lead(y));
        let count: usize = lx.iter().map(|a| a.0).product();
        let batches = (0..count)
            .map(|i| {
                let offset = |axes: &[(usize, isize)]| {
                    let mut rest = i;
                    let each = axes.iter().rev().map(|(d, s)| {
                        let at = rest % d.max(&1);
                        rest /= d.max(&1);
                        at as isize * s
                    });
                    each.sum::<isize>()
                };
                BatchOffsets { a: offset(&lx), b: offset(&ly), c: (i * m * cols) as isize }
            })
            .collect();
        Ok(Form { m, n: cols, k, a: [am, ak], b: [bk, bn], batches })
    }

    fn gemm<'a>(&'a self, level: rlx_simd::level::Level, a: *const f32, b: B<'a>) -> Gemm<'a> {
        Gemm {
            level,
            m: self.m,
            n: self.n,
            k: self.k,
            a: A::Strided { ptr: a, strides: self.a },
            b,
            batches: &self.batches,
        }
    }
}

pub(crate) fn bind(setting: Setting, sizes: &[i64], kernel: &Kernel, product: &Product) -> Result<Ready> {
    let form = Form::new(sizes, kernel, product)?;
    let flops = 2 * form.batches.len() as u64 * form.m as u64 * form.n as u64 * form.k as u64;
    let dtype = kernel.args.first().map_or(DType::F32, |a| a.dtype);
    let level = setting.level;
    match (dtype, &product.epilogue) {
        (DType::F32, None) => {
            let scratch = scratch_of(
                level,
                &form,
                &Out::Direct { ptr: std::ptr::null_mut(), row_stride: form.n as isize },
            );
            let run = move |cx: &Cx<'_>, args: &[Ptr<u8>]| {
                let [a, b, c] = args else { return };
                let b = right(cx, &form, *b);
                let out = Out::Direct { ptr: c.0.cast(), row_stride: form.n as isize };
                // SAFETY: the binder checked that the operands lie within their slots.
                unsafe { form.gemm(level, a.0.cast(), b).run(cx.pool, &cx.scratch, out) }
            };
            Ok(Ready { scratch, run: Box::new(run), flops })
        }
        (DType::F32, Some(r)) => {
            let region = region::bind(level, sizes, kernel, r, true)?;
            let whole_rows = region.needs_rows();
            let own = scratch_of(level, &form, &Out::Sink { sink: &Nowhere, whole_rows });
            let epilogue = Epilogue::new(region, [form.m, form.n], own);
            let (scratch, flops) = (epilogue.scratch, flops + epilogue.flops());
            let run = move |cx: &Cx<'_>, args: &[Ptr<u8>]| {
                let [a, b, ..] = args else { return };
                let gemm = form.gemm(level, a.0.cast(), right(cx, &form, *b));
                // SAFETY: as above; the region's arguments were checked with the rest.
                unsafe {
                    epilogue.run(cx, args, |sink| {
                        gemm.run(cx.pool, &cx.scratch, Out::Sink { sink, whole_rows });
                    });
                }
            };
            Ok(Ready { scratch, run: Box::new(run), flops })
        }
        (DType::F64, None) => Ok(plain::<f64>(setting, form, flops)),
        (DType::I64, None) => Ok(plain::<i64>(setting, form, flops)),
        (d, _) => Err(Error::new(Code::Device, format!("products of {d} have no kernel"))),
    }
}

/// The right operand: packed when the params were set, or as it lies.
fn right<'a>(cx: &Cx<'a>, form: &Form, ptr: Ptr<u8>) -> B<'a> {
    match cx.packed {
        Some(Packed::Product(p)) => B::Packed(p),
        _ => B::Strided { ptr: ptr.0.cast(), strides: form.b },
    }
}

/// Enough scratch space whether the right operand is packed or not.
fn scratch_of(level: rlx_simd::level::Level, form: &Form, out: &Out<'_>) -> ScratchSize {
    let strided = B::Strided { ptr: std::ptr::null(), strides: form.b };
    form.gemm(level, std::ptr::null(), strided).scratch(out)
}

/// Stands for a sink where only sizes matter.
struct Nowhere;

impl Sink for Nowhere {
    unsafe fn block(&self, _: usize, _: usize, _: Range<usize>, _: Range<usize>, _: *mut f32, _: usize) {}
}

fn plain<T: Element>(setting: Setting, form: Form, flops: u64) -> Ready {
    let run = move |cx: &Cx<'_>, args: &[Ptr<u8>]| {
        let [a, b, c] = args else { return };
        let g = Generic::<T> {
            level: setting.level,
            m: form.m,
            n: form.n,
            k: form.k,
            a: (a.0.cast(), form.a),
            b: (b.0.cast(), form.b),
            c: (c.0.cast(), form.n as isize),
            batches: &form.batches,
        };
        // SAFETY: the binder checked that the operands lie within their slots.
        unsafe { gemm_generic(&g, cx.pool, &cx.scratch) }
    };
    Ready { scratch: gemm_generic_scratch::<T>(), run: Box::new(run), flops }
}

/// Packs the right operand of a product that does not change from run to run.
///
/// # Safety
/// `b` is the address of the operand, valid for all that its strides reach.
pub(crate) unsafe fn pack(
    setting: Setting,
    form: &Form,
    b: *const f32,
    pool: &rlx_simd::pool::Pool,
) -> PackedB {
    // SAFETY: as promised by the caller.
    unsafe { PackedB::pack(setting.level, setting.pack, form.k, form.n, b, form.b[0], form.b[1], pool) }
}

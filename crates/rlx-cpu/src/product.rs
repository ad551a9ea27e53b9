//! Matrix products, with what is fused behind them and in front of their left operand.

mod bytes;

pub(crate) use bytes::pack as pack_bytes;

use crate::bind::{Cx, Packed, Ready, Setting, no_memory};
use crate::epilogue::Epilogue;
use crate::prologue::Prologue;
use crate::region;
use rlx_compile::program::{Arg, Kernel, Product, Region, SizeId, fault};
use rlx_ir::{Code, DType, Error, Result};
use rlx_simd::gemm::generic::{Element, Generic, gemm_generic, gemm_generic_scratch};
use rlx_simd::gemm::{A, B, BatchOffsets, Gemm, Out, PackedB, RowSource, Sink};
use rlx_simd::level::Level;
use rlx_simd::mem::{Ptr, ScratchSize, round_up};
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
        let axes = |a: &Arg| -> Vec<(usize, isize)> {
            a.shape.iter().zip(&a.strides).map(|(d, s)| (n(d).max(0) as usize, n(s) as isize)).collect()
        };
        let operand = |k: usize| kernel.args.get(k).ok_or_else(|| fault("a product has two operands"));
        let x = match &product.prologue {
            // Nowhere in memory.
            Some(r) => r.space.iter().map(|d| (n(d).max(0) as usize, 0)).collect(),
            None => axes(operand(0)?),
        };
        let y = axes(operand(product.right())?);
        let last = |axes: &[(usize, isize)]| {
            axes.last_chunk::<2>().copied().ok_or_else(|| fault("an operand of a product is no matrix"))
        };
        let ([(m, am), (k, ak)], [(_, bk), (cols, bn)]) = (last(&x)?, last(&y)?);
        let lead = |axes: &[(usize, isize)]| -> Vec<(usize, isize)> {
            axes.iter().take(product.batch).copied().collect()
        };
        let (lx, ly) = (lead(&x), lead(&y));
        // A product without elements has nothing to be found in.
        let count: usize = if m == 0 || cols == 0 { 0 } else { lx.iter().map(|a| a.0).product() };
        let mut batches = Vec::new();
        batches.try_reserve_exact(count).map_err(|_| no_memory())?;
        batches.extend((0..count).map(|i| {
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
        }));
        Ok(Form { m, n: cols, k, a: [am, ak], b: [bk, bn], batches })
    }

    fn gemm<'a>(&'a self, level: Level, a: A<'a>, b: B<'a>) -> Gemm<'a> {
        Gemm { level, m: self.m, n: self.n, k: self.k, a, b, batches: &self.batches }
    }

    fn left<'a>(&self, ptr: *const f32) -> A<'a> {
        A::Strided { ptr, strides: self.a }
    }
}

pub(crate) fn bind(setting: Setting, sizes: &[i64], kernel: &Kernel, product: &Product) -> Result<Ready> {
    let form = Form::new(sizes, kernel, product)?;
    if product.zeros.is_some() {
        return bytes::bind(setting, sizes, kernel, product, form);
    }
    let mut flops = 2 * form.batches.len() as u64 * form.m as u64 * form.n as u64 * form.k as u64;
    let (level, right) = (setting.level, product.right());
    let dtype = kernel.args.get(right).map_or(DType::F32, |a| a.dtype);
    match (dtype, &product.epilogue, &product.prologue) {
        (DType::F32, ..) => {}
        (DType::F64, None, None) => return Ok(plain::<f64>(setting, form, flops)),
        (DType::I64, None, None) => return Ok(plain::<i64>(setting, form, flops)),
        (d, ..) => return Err(Error::new(Code::Device, format!("products of {d} have no kernel"))),
    }
    let bound =
        |r: &Option<Region>| r.as_ref().map(|r| region::bind(level, sizes, kernel, r, true)).transpose();
    let (before, behind) = (bound(&product.prologue)?, bound(&product.epilogue)?);
    let whole_rows = behind.as_ref().is_some_and(|r| r.needs_rows());
    let out = match &behind {
        Some(_) => Out::Sink { sink: &Nowhere, whole_rows },
        None => Out::Direct { ptr: std::ptr::null_mut(), row_stride: form.n as isize },
    };
    let left = match &before {
        Some(_) => A::Rows(&Nowhere),
        None => form.left(std::ptr::null()),
    };
    // Behind the scratch of the product that of the region in front, then that of the region behind.
    let mut scratch = scratch_of(level, &form, left, &out);
    let skip = round_up(scratch.each);
    if let Some(r) = &before {
        scratch.each = skip + r.each_bytes();
        flops += r.flops;
    }
    let epilogue = behind.map(|r| Epilogue::new(r, [form.m, form.n], scratch));
    if let Some(e) = &epilogue {
        scratch = e.scratch;
        flops += e.flops();
    }
    let run = move |cx: &Cx<'_>, args: &[Ptr<u8>]| {
        let (Some(first), Some(b), Some(last)) = (args.first(), args.get(right), args.last()) else { return };
        let b = self::right(cx, &form, *b);
        let rows =
            before.as_ref().map(|region| Prologue { region, scratch: cx.scratch, skip, args, rows: form.m });
        let a = match &rows {
            Some(rows) => A::Rows(rows),
            None => form.left(first.0.cast()),
        };
        let gemm = form.gemm(level, a, b);
        // SAFETY: the binder checked that the operands and the regions' arguments lie within their slots.
        unsafe {
            match &epilogue {
                Some(e) => e.run(cx, args, |sink| {
                    gemm.run(cx.pool, &cx.scratch, Out::Sink { sink, whole_rows });
                }),
                None => {
                    let out = Out::Direct { ptr: last.0.cast(), row_stride: form.n as isize };
                    gemm.run(cx.pool, &cx.scratch, out);
                }
            }
        }
    };
    Ok(Ready { scratch, run: Box::new(run), flops })
}

/// The right operand: packed when the params were set, or as it lies.
fn right<'a>(cx: &Cx<'a>, form: &Form, ptr: Ptr<u8>) -> B<'a> {
    match cx.packed {
        Some(Packed::Product(p)) => B::Packed(p),
        _ => B::Strided { ptr: ptr.0.cast(), strides: form.b },
    }
}

/// Enough scratch space whether the right operand is packed or not.
fn scratch_of(level: Level, form: &Form, left: A<'_>, out: &Out<'_>) -> ScratchSize {
    let strided = B::Strided { ptr: std::ptr::null(), strides: form.b };
    form.gemm(level, left, strided).scratch(out)
}

/// Stands for a source or a sink where only sizes matter.
struct Nowhere;

impl RowSource for Nowhere {
    unsafe fn fill(&self, _: usize, _: usize, _: Range<usize>, _: Range<usize>, _: *mut f32, _: usize) {}
}

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

//! What is fused behind a kernel: every block of its result goes through a region while it is in the cache.

use crate::bind::Cx;
use crate::region::BoundRegion;
use rlx_simd::mem::{Ptr, Scratch, ScratchSize, round_up};
use rlx_simd::sink::Sink;
use std::ops::Range;

/// A region behind a kernel, bound to sizes.
pub(crate) struct Epilogue {
    region: BoundRegion,
    /// The rows and columns of a batch entry, as the kernel counts them.
    rows: usize,
    columns: usize,
    /// Whether the rows of a batch entry are one row of the region.
    joined: bool,
    /// Bytes of a worker's scratch space that are the kernel's.
    skip: usize,
    /// The scratch space of both.
    pub scratch: ScratchSize,
}

impl Epilogue {
    /// Behind a kernel with that many rows and columns in a batch entry and scratch space of its own.
    pub fn new(region: BoundRegion, [rows, columns]: [usize; 2], own: ScratchSize) -> Epilogue {
        let joined = region.lanes() > columns;
        let skip = round_up(own.each);
        let scratch = ScratchSize { each: skip + region.each_bytes(), shared: own.shared };
        Epilogue { region, rows, columns, joined, skip, scratch }
    }

    /// Arithmetic operations of a run.
    pub fn flops(&self) -> u64 {
        self.region.flops
    }

    /// Runs the kernel with the region as its sink.
    ///
    /// # Safety
    /// `args` are the addresses of the call, checked by the binder, and the kernel gives every block once.
    pub unsafe fn run(&self, cx: &Cx<'_>, args: &[Ptr<u8>], kernel: impl FnOnce(&Behind<'_>)) {
        kernel(&Behind { epilogue: self, scratch: cx.scratch, args });
        // SAFETY: as promised by the caller; the kernel has ended.
        unsafe { self.region.run_rest(&cx.scratch, self.skip, args) };
    }
}

/// Hands the blocks of a run to the region.
pub(crate) struct Behind<'a> {
    epilogue: &'a Epilogue,
    scratch: Scratch,
    args: &'a [Ptr<u8>],
}

/// Numbers that kernels hand on: f32, and sums in i32.
impl<T> Sink<T> for Behind<'_> {
    unsafe fn block(
        &self,
        worker: usize,
        batch: usize,
        rows: Range<usize>,
        cols: Range<usize>,
        acc: *mut T,
        stride: usize,
    ) {
        let (e, size) = (self.epilogue, size_of::<T>());
        let run = |rows: Range<usize>, cols: Range<usize>, acc: *mut T| {
            let (scratch, acc) = (&self.scratch, acc.cast());
            // SAFETY: the block is as promised by the caller, and the addresses are those of the call.
            unsafe {
                e.region.run_block(scratch, e.skip, worker, self.args, rows, cols, acc, stride * size, size)
            }
        };
        if !e.joined {
            return run(batch * e.rows + rows.start..batch * e.rows + rows.end, cols, acc);
        }
        // Rows that lie side by side are one run of lanes.
        let dense = stride == e.columns && cols.len() == e.columns;
        let each = if dense { rows.len().max(1) } else { 1 };
        for row in rows.clone().step_by(each) {
            let from = row * e.columns + cols.start;
            let to = from + (each - 1) * e.columns + cols.len();
            run(batch..batch + 1, from..to, acc.wrapping_add((row - rows.start) * stride));
        }
    }
}

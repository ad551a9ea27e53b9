//! The left operand of a product that lies nowhere: a region computes it when the product packs it.

use crate::region::BoundRegion;
use rlx_simd::gemm::RowSource;
use rlx_simd::mem::{Ptr, Scratch};
use std::ops::Range;

/// Computes blocks of the left operand.
pub(crate) struct Prologue<'a> {
    pub region: &'a BoundRegion,
    pub scratch: Scratch,
    /// Bytes of a worker's scratch that others use.
    pub skip: usize,
    pub args: &'a [Ptr<u8>],
    /// The rows of a batch.
    pub rows: usize,
}

impl RowSource for Prologue<'_> {
    unsafe fn fill(
        &self,
        worker: usize,
        batch: usize,
        rows: Range<usize>,
        ks: Range<usize>,
        dst: *mut f32,
        stride: usize,
    ) {
        let rows = batch * self.rows + rows.start..batch * self.rows + rows.end;
        let (dst, bytes) = (dst.cast(), size_of::<f32>());
        // SAFETY: the product has room for the block, and the addresses are those of the call.
        unsafe {
            self.region.run_block(
                &self.scratch,
                self.skip,
                worker,
                self.args,
                rows,
                ks,
                dst,
                stride * bytes,
                bytes,
            );
        }
    }

    /// The compiler puts nothing here that costs more than to read it, unless it is packed only once.
    fn costly(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use rlx_compile::fuse::prologue::Costs;
    use rlx_ir::Dim;
    use rlx_simd::gemm::fills;

    /// What the compiler reckons with is what the product does.
    #[test]
    fn the_compiler_knows_how_often_rows_are_packed() {
        let sizes = [0, 1, 255, 256, 257, 1024, 1535, 1536, 1537, 4096, 50_000];
        for (k, n) in sizes.iter().flat_map(|k| sizes.map(|n| (*k, n))) {
            for loose in [false, true] {
                let dim = |d: usize| Dim::constant(d as i64);
                let known = Costs::default().packings(&dim(k), &dim(n), loose);
                assert_eq!(known, fills(k, n, loose) as i64, "{k} {n} {loose}");
            }
        }
    }
}

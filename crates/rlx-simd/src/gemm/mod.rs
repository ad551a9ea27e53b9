//! Matrix products: C = A · B in f32, with B in f32 or bf16.
//!
//! B is read in panels of a few columns ([`PackedB`]; a B that is not packed is packed on the way), A in blocks of rows that
//! are copied into the L2 cache. A task takes a block of rows and walks over panels of B: `run` does that, `micro` holds the
//! loops in registers, `plan` the sizes of the blocks, `pack` the copying. Results go straight to memory or, block by block
//! while they are in the cache, to a [`Sink`]. [`int8`] has the product of bytes, which goes the same way, [`generic`] the
//! plain product for other types.
//!
//! An element of C is always one chain of multiply-adds in the order of k: not only the number of threads leaves its bits
//! alone, but also the number of rows beside it.

mod bytes;
pub mod generic;
pub mod int8;
mod micro;
mod pack;
mod plan;
mod run;
mod vector;

use crate::level::Level;
use crate::mem::{Scratch, ScratchSize};
use crate::pool::Pool;
pub use crate::sink::Sink;
use micro::{Kind, LDA};
pub use pack::PackedB;
use plan::Size;
pub use plan::fills;
use run::Numbers;
use std::ops::Range;

/// How the elements of a packed B are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PackKind {
    /// As they are.
    F32,
    /// Rounded to bf16, half the memory. A is rounded to bf16 too, and products are added in f32.
    Bf16,
}

/// Writes out the rows of A when they are needed.
pub trait RowSource: Sync {
    /// Writes the columns `ks` of some rows: row `rows.start + i` begins at `dst + i * stride`. How often an element is asked
    /// for, [`fills`] says; where k is cut depends on k alone.
    ///
    /// # Safety
    /// There is room for the rows, and for nothing else.
    unsafe fn fill(
        &self,
        worker: usize,
        batch: usize,
        rows: Range<usize>,
        ks: Range<usize>,
        dst: *mut f32,
        stride: usize,
    );

    /// Whether a row costs so much that no two threads should make the same one.
    fn costly(&self) -> bool {
        true
    }
}

/// The left operand.
#[derive(Clone, Copy)]
pub enum A<'a> {
    /// In memory.
    Strided {
        /// The first element of the batch at offset 0.
        ptr: *const f32,
        /// The distance to the next row and column, in elements.
        strides: [isize; 2],
    },
    /// Made row by row.
    Rows(&'a dyn RowSource),
}

/// The right operand.
#[derive(Clone, Copy)]
pub enum B<'a> {
    /// Packed before, and the same for all batches.
    Packed(&'a PackedB),
    /// In memory, packed on the way.
    Strided {
        /// The first element of the batch at offset 0.
        ptr: *const f32,
        /// The distance to the next row and column, in elements.
        strides: [isize; 2],
    },
}

/// Where the matrices of a batch begin, in elements from the first; what is not in memory ([`A::Rows`], [`B::Packed`],
/// [`Out::Sink`]) has no use for its offset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchOffsets {
    /// Of A.
    pub a: isize,
    /// Of B.
    pub b: isize,
    /// Of C.
    pub c: isize,
}

/// Where results go.
pub enum Out<'a, T = f32> {
    /// To memory, with neighbouring columns beside each other.
    Direct {
        /// The first element of the batch at offset 0.
        ptr: *mut T,
        /// The distance to the next row, in elements.
        row_stride: isize,
    },
    /// To a sink; every element once.
    Sink {
        /// The sink.
        sink: &'a dyn Sink<T>,
        /// Whether every block must have all columns.
        whole_rows: bool,
    },
}

impl<T> Clone for Out<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Out<'_, T> {}

impl<T> Out<'_, T> {
    /// Whether there is a sink, and whether it wants whole rows.
    fn wants(&self) -> (bool, bool) {
        match *self {
            Out::Direct { .. } => (false, false),
            Out::Sink { whole_rows, .. } => (true, whole_rows),
        }
    }
}

/// A product, or a batch of them: C (m × n) = A (m × k) · B (k × n) for each batch.
#[derive(Clone, Copy)]
pub struct Gemm<'a> {
    /// The instructions to use; a packed B must be packed for them.
    pub level: Level,
    /// Rows of A and C.
    pub m: usize,
    /// Columns of B and C.
    pub n: usize,
    /// Columns of A and rows of B.
    pub k: usize,
    /// The left operand.
    pub a: A<'a>,
    /// The right operand.
    pub b: B<'a>,
    /// One entry for each product.
    pub batches: &'a [BatchOffsets],
}

impl Gemm<'_> {
    fn kind(&self) -> Kind {
        match self.b {
            B::Packed(b) => Kind::of(self.level, b.kind()),
            B::Strided { .. } => Kind::F32,
        }
    }

    fn size(&self, out: &Out<'_>) -> Size {
        let (sink, whole_rows) = out.wants();
        Size {
            m: self.m,
            n: self.n,
            k: self.k,
            batches: self.batches.len(),
            loose_b: matches!(self.b, B::Strided { .. }),
            whole_b: false,
            costly_a: matches!(self.a, A::Rows(source) if source.costly()),
            sink,
            whole_rows,
        }
    }

    /// The scratch space of a run with such an output: enough for any number of threads, and for any smaller m, n, k.
    pub fn scratch(&self, out: &Out<'_>) -> ScratchSize {
        run::scratch(self.level, self.kind(), self.size(out))
    }

    /// Computes the product.
    ///
    /// # Safety
    /// The operands are readable and the output writable for all batches, the output overlaps nothing, and rows of the
    /// output do not overlap each other. A packed B has this k and n. Scratch has at least [`Gemm::scratch`] for the pool.
    pub unsafe fn run(&self, pool: &Pool, scratch: &Scratch, out: Out<'_>) {
        if let B::Packed(b) = self.b {
            assert!(
                b.k() == self.k && b.n() == self.n && b.level() == self.level,
                "B is packed for another product"
            );
        }
        // SAFETY: the caller's promises are the same.
        unsafe { run::run(&Floats { gemm: self, out }, pool, scratch) }
    }
}

/// A product of floats, for [`run`].
struct Floats<'a> {
    gemm: &'a Gemm<'a>,
    out: Out<'a>,
}

// SAFETY: the addresses are only used by tasks that write disjoint blocks, see `Gemm::run`.
unsafe impl Sync for Floats<'_> {}

impl Floats<'_> {
    fn offsets(&self, batch: usize) -> BatchOffsets {
        self.gemm.batches.get(batch).copied().unwrap_or_default()
    }
}

impl Numbers for Floats<'_> {
    fn level(&self) -> Level {
        self.gemm.level
    }
    fn kind(&self) -> Kind {
        self.gemm.kind()
    }
    fn size(&self) -> Size {
        self.gemm.size(&self.out)
    }
    fn batches(&self) -> &[BatchOffsets] {
        self.gemm.batches
    }

    unsafe fn left(
        &self,
        worker: usize,
        batch: usize,
        rows: Range<usize>,
        ks: Range<usize>,
        (dst, ..): (*mut f32, *mut [i32; 2], bool),
    ) {
        let (level, kind) = (self.gemm.level, self.kind());
        // SAFETY: as promised by the caller.
        unsafe {
            match self.gemm.a {
                A::Rows(source) => source.fill(worker, batch, rows.clone(), ks.clone(), dst, LDA),
                A::Strided { ptr, strides } => {
                    let at = rows.start as isize * strides[0] + ks.start as isize * strides[1];
                    let src = ptr.wrapping_offset(self.offsets(batch).a).wrapping_offset(at);
                    pack::copy(level, src, strides, [rows.len(), ks.len()], dst, LDA);
                }
            }
            if kind != Kind::F32 {
                pack::round_rows(level, kind == Kind::Bf16Dot, rows.len(), ks.len(), dst, LDA);
            }
        }
    }

    fn packed(&self) -> Option<*const f32> {
        match self.gemm.b {
            B::Packed(b) => Some(b.ptr()),
            B::Strided { .. } => None,
        }
    }

    fn in_place(&self, batch: usize) -> Option<(*const f32, isize)> {
        match self.gemm.b {
            B::Strided { ptr, strides: [step, 1] } => {
                Some((ptr.wrapping_offset(self.offsets(batch).b), step))
            }
            _ => None,
        }
    }

    unsafe fn right(&self, batch: usize, cols: Range<usize>, ks: Range<usize>, dst: *mut f32) {
        let (B::Strided { ptr, strides }, level) = (self.gemm.b, self.gemm.level) else { return };
        let ptr = ptr.wrapping_offset(self.offsets(batch).b);
        let fill = |rows: Range<usize>, cols: Range<usize>, dst: *mut f32, stride: usize| {
            let at = rows.start as isize * strides[0] + cols.start as isize * strides[1];
            // SAFETY: the caller has B of this batch, and room for the rows.
            unsafe { pack::copy(level, ptr.offset(at), strides, [rows.len(), cols.len()], dst, stride) }
        };
        // SAFETY: as above.
        unsafe { pack::panel(level, PackKind::F32, ks, cols, dst, &fill) }
    }

    unsafe fn give(
        &self,
        worker: usize,
        batch: usize,
        rows: Range<usize>,
        cols: Range<usize>,
        acc: *mut f32,
        stride: usize,
    ) {
        if let Out::Sink { sink, .. } = self.out {
            // SAFETY: as promised by the caller.
            unsafe { sink.block(worker, batch, rows, cols, acc, stride) }
        }
    }

    fn direct(&self) -> Option<(*mut f32, isize)> {
        match self.out {
            Out::Direct { ptr, row_stride } => Some((ptr, row_stride)),
            Out::Sink { .. } => None,
        }
    }
}

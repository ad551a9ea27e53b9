//! Where a kernel hands on what it has finished.

use std::ops::Range;

/// Receives finished blocks of a result while they are in the cache: to add, to apply functions, to normalise, to
/// store. Every element of the result comes once.
pub trait Sink<T = f32>: Sync {
    /// Takes the result of batch element `batch` in these rows and columns: row `rows.start + i` begins at
    /// `acc + i * stride`, with neighbouring columns beside each other. What rows and columns are, the kernel says.
    ///
    /// # Safety
    /// The block can be read and written, nobody else touches it, and no other call gets the same results.
    unsafe fn block(
        &self,
        worker: usize,
        batch: usize,
        rows: Range<usize>,
        cols: Range<usize>,
        acc: *mut T,
        stride: usize,
    );
}

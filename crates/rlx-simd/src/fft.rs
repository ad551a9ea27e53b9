//! Fourier transforms of rows of complex numbers, by `rustfft`.

use crate::copy::{at, copy_row, pieces};
use crate::level::Level;
use crate::mem::{Ptr, Scratch, ScratchSize};
use crate::pool::Pool;
use rustfft::num_complex::Complex;
use rustfft::{Fft, FftDirection, FftNum, FftPlanner, FftPlannerScalar};
use std::sync::Arc;

/// Complex numbers that a task transforms at least.
const TASK_LEN: usize = 4 << 10;

/// A transform of one length, ready to run; `T` is f32 or f64.
pub struct FftPlan<T: FftNum> {
    n: usize,
    inverse: bool,
    /// `None` where there is nothing to add up: lengths 0 and 1.
    plan: Option<Arc<dyn Fft<T>>>,
}

impl<T: FftNum> FftPlan<T> {
    /// The transform of length `n`, or its inverse, which also divides by `n`. Allocates its tables.
    pub fn new(level: Level, n: usize, inverse: bool) -> FftPlan<T> {
        let direction = if inverse { FftDirection::Inverse } else { FftDirection::Forward };
        let plan = (n > 1).then(|| match level {
            Level::Baseline => FftPlannerScalar::new().plan_fft(n, direction),
            _ => FftPlanner::new().plan_fft(n, direction),
        });
        FftPlan { n, inverse, plan }
    }

    /// The scratch that [`FftPlan::run`] needs.
    pub fn scratch(&self) -> ScratchSize {
        let len = self.plan.as_ref().map_or(0, |p| p.get_inplace_scratch_len());
        ScratchSize { each: len * size_of::<Complex<T>>(), shared: 0 }
    }

    /// Transforms `rows` dense rows of `n` pairs (real, imaginary) from `x` to `y`.
    ///
    /// # Safety
    /// `x` has `rows · n` readable pairs and `y` as many writable ones, both aligned for `T`; they are the same or do not
    /// overlap.
    pub unsafe fn run(&self, rows: usize, x: *const T, y: *mut T, pool: &Pool, scratch: &Scratch) {
        let (n, x, y) = (self.n, Ptr(x.cast_mut()), Ptr(y));
        let scale = if self.inverse { T::from_usize(n) } else { None };
        let len = self.plan.as_ref().map_or(0, |p| p.get_inplace_scratch_len());
        pieces(pool, rows, TASK_LEN.div_ceil(n.max(1)), |range, worker| {
            let first = range.start * n * 2;
            let (from, to) = (at(x, first), at(y, first));
            let count = range.len() * n;
            // SAFETY: the rows of this task are in both arrays, and no other task touches them; the scratch is the worker's.
            unsafe {
                if from != to {
                    copy_row(to.cast(), from.cast::<u8>(), count * 2 * size_of::<T>());
                }
                let Some(plan) = &self.plan else { return };
                let temp = scratch.each::<Complex<T>>(worker, len);
                temp.write_bytes(0, len);
                plan.process_with_scratch(
                    std::slice::from_raw_parts_mut(to.cast::<Complex<T>>(), count),
                    std::slice::from_raw_parts_mut(temp, len),
                );
                if let Some(scale) = scale {
                    std::slice::from_raw_parts_mut(to, count * 2).iter_mut().for_each(|v| *v = *v / scale);
                }
            }
        });
    }
}

impl<T: FftNum> std::fmt::Debug for FftPlan<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FftPlan({}{})", self.n, if self.inverse { ", inverse" } else { "" })
    }
}

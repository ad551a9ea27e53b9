//! The linear recurrence y[t] = a[t] · y[t−1] + b[t].

use super::{get, put};
use crate::attention::Real;
use crate::attention::lanes::{Kernel, Lanes};
use crate::level::Level;
use crate::mem::View;
use crate::pool::Pool;

/// Lines of a task.
const LINES: usize = 16;

/// The linear recurrence along the middle axis, from `y[0] = b[0]`. For the reverse give views with a negative stride.
#[derive(Clone, Copy, Debug)]
pub struct LinearScan<T> {
    /// `[outer, len, inner]`.
    pub a: View<T, 3>,
    /// The same shape.
    pub b: View<T, 3>,
    /// The same shape.
    pub y: View<T, 3>,
}

impl<T: Real> LinearScan<T> {
    /// Computes y.
    ///
    /// # Safety
    /// The views are valid for their shapes; y overlaps a or b only element for element, and nobody else touches it
    /// meanwhile.
    pub unsafe fn run(&self, level: Level, pool: &Pool) {
        let [outer, len, inner] = self.y.shape;
        // The lanes are the lines along the longer of the other two axes.
        let axis = if inner >= outer { 2 } else { 0 };
        let (lines, rest) = if axis == 2 { (inner, outer) } else { (outer, inner) };
        if len == 0 {
            return;
        }
        let blocks = lines.div_ceil(LINES);
        pool.run(rest * blocks, |task, _| {
            let (other, from) = (task / blocks, task % blocks * LINES);
            T::at_level(level, Task { scan: self, axis, other, from, to: (from + LINES).min(lines) });
        });
    }
}

struct Task<'a, T> {
    scan: &'a LinearScan<T>,
    axis: usize,
    other: usize,
    from: usize,
    to: usize,
}

impl<T: Real> Kernel<T> for Task<'_, T> {
    #[inline(always)]
    fn run<V: Lanes<T = T>>(self) {
        let LinearScan { a, b, y } = self.scan;
        for line in (self.from..self.to).step_by(V::N) {
            let lanes = V::N.min(self.to - line);
            let at = |t: usize| if self.axis == 2 { [self.other, t, line] } else { [line, t, self.other] };
            // SAFETY: `LinearScan::run` has valid views, and these lines are this task's alone.
            unsafe {
                let mut total = get::<V, 3>(b, at(0), self.axis, lanes);
                put(total, y, at(0), self.axis, lanes);
                for t in 1..y.shape[1] {
                    let factor = get::<V, 3>(a, at(t), self.axis, lanes);
                    total = factor.fma(total, get::<V, 3>(b, at(t), self.axis, lanes));
                    put(total, y, at(t), self.axis, lanes);
                }
            }
        }
    }
}

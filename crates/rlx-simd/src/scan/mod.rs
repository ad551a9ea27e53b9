//! Recurrences: the selective scan of Mamba with its gradient, and the linear recurrence.
//!
//! In a selective scan the lanes are channels, so that nothing goes across them but the gradients of B and C. A task
//! has a few vectors of channels and goes through the sequence in chunks: for each vector the states, as many as fit
//! the registers at a time. Inputs, time steps and results are used where they lie if their channels lie side by side
//! and nothing else is to be done to them; otherwise a chunk of them goes through the scratch space.

mod backward;
mod forward;
mod linear;

pub use backward::SelectiveScanGrad;
pub use forward::{Out, SelectiveScan};
pub use linear::LinearScan;

use crate::attention::Real;
use crate::attention::lanes::{Lanes, MAX_LANES};
use crate::mem::View;

/// Rows that are fetched ahead: they lie too far apart for the processor to foresee them.
const AHEAD: isize = 8;

/// What the recurrence is made of, as the `selective_scan` op says.
#[derive(Clone, Copy, Debug)]
pub struct ScanInputs<T> {
    /// `[b, s, h]`.
    pub x: View<T, 3>,
    /// `[b, s, h]`.
    pub delta: View<T, 3>,
    /// `[h, n]`.
    pub a: View<T, 2>,
    /// `[b, s, n]`.
    pub b: View<T, 3>,
    /// `[b, s, n]`.
    pub c: View<T, 3>,
    /// The skip, `[h]`.
    pub d: Option<View<T, 1>>,
    /// The gate, `[b, s, h]`.
    pub z: Option<View<T, 3>>,
    /// `[h]`.
    pub delta_bias: Option<View<T, 1>>,
    /// The first state, `[b, h, n]`; 0 without.
    pub state: Option<View<T, 3>>,
    /// Whether the time step goes through softplus.
    pub softplus: bool,
}

/// The sizes of a scan.
#[derive(Clone, Copy)]
struct Sizes {
    b: usize,
    s: usize,
    h: usize,
    n: usize,
}

impl<T: Real> ScanInputs<T> {
    fn sizes(&self) -> Sizes {
        let [b, s, h] = self.x.shape;
        Sizes { b, s, h, n: self.a.shape[1] }
    }

    /// The time step before and after softplus, in the lanes from channel `h` on.
    ///
    /// # Safety
    /// The views are valid and the channels within them.
    #[inline(always)]
    unsafe fn time_step<V: Lanes<T = T>>(&self, at: [usize; 3], lanes: usize) -> (V, V) {
        // SAFETY: by the contract.
        unsafe {
            let mut raw = get::<V, 3>(&self.delta, at, 2, lanes);
            if let Some(bias) = &self.delta_bias {
                raw = raw + get::<V, 1>(bias, [at[2]], 0, lanes);
            }
            (raw, if self.softplus { raw.softplus() } else { raw })
        }
    }
}

/// The vectors of the channels `from..to`: the offset, the first channel, and the lanes in use.
#[inline(always)]
fn vectors<V: Lanes>(from: usize, to: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..to - from).step_by(V::N).map(move |v| (v, from + v, V::N.min(to - from - v)))
}

/// The lanes from an element on, along an axis; 0 past the first `lanes`.
///
/// # Safety
/// The view is valid and the elements within it.
#[inline(always)]
unsafe fn get<V: Lanes, const R: usize>(x: &View<V::T, R>, at: [usize; R], axis: usize, lanes: usize) -> V {
    let stride = x.strides.get(axis).copied().unwrap_or(0);
    // SAFETY: by the contract.
    unsafe {
        let from = x.at(at);
        if stride == 1 {
            return if lanes >= V::N { V::load(from) } else { V::load_part(from, lanes) };
        }
        let mut out = [V::T::ZERO; MAX_LANES];
        for (i, x) in out.iter_mut().enumerate().take(lanes.min(V::N)) {
            *x = *from.offset(i as isize * stride);
        }
        V::load(out.as_ptr())
    }
}

/// Asks for what lies [`AHEAD`] steps after an element.
///
/// # Safety
/// The view is valid and the element within it.
#[inline(always)]
unsafe fn fetch<V: Lanes>(x: &View<V::T, 3>, at: [usize; 3]) {
    // SAFETY: by the contract; a prefetch may go past the end.
    V::prefetch(unsafe { x.at(at) }.wrapping_offset(AHEAD * x.strides[1]));
}

/// Writes the first `lanes` from an element on.
///
/// # Safety
/// As for [`get`], and nobody else touches the elements.
#[inline(always)]
unsafe fn put<V: Lanes, const R: usize>(v: V, x: &View<V::T, R>, at: [usize; R], axis: usize, lanes: usize) {
    let stride = x.strides.get(axis).copied().unwrap_or(0);
    // SAFETY: by the contract.
    unsafe {
        let to = x.at(at);
        if stride == 1 {
            return if lanes >= V::N { v.store(to) } else { v.store_part(to, lanes) };
        }
        let mut out = [V::T::ZERO; MAX_LANES];
        v.store(out.as_mut_ptr());
        for (i, x) in out.into_iter().enumerate().take(lanes.min(V::N)) {
            *to.offset(i as isize * stride) = x;
        }
    }
}

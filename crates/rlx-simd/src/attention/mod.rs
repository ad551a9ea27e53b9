//! Attention without the matrix of scores: blocks of it, computed where they are needed and forgotten.
//!
//! Read in this order: `lanes`: the vectors; this file: what a block of scores is; `panel`: the one product inside;
//! `square`: masks, turned;
//! `forward` and `narrow`: the online softmax for many queries and for few; `backward`.
//!
//! A block has rows and lanes: one of the two are queries, the other keys. In the forward pass and for dq the queries
//! are the lanes, so that a softmax needs nothing across lanes and neither keys nor values are moved before use; for dk
//! and dv the keys are. Scores are in units of log2, ready for `exp2`.

mod backward;
mod forward;
pub(crate) mod lanes;
mod narrow;
mod panel;
mod square;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::f64::consts::LOG2_E;

pub use crate::sink::Sink;
pub use backward::AttentionGrad;
pub use forward::{Attention, Out};
pub use lanes::Real;
use lanes::{Lanes, MAX_LANES};
use panel::{Matrix, copy_scaled};
use square::{Square, squares};

use crate::mem::View;

/// Rows of a block: at most as many keys (in the backward pass over keys: queries).
const ROWS: usize = 64;
/// Lanes of a block: at most as many queries (in the backward pass over keys: keys).
const LANES: usize = 64;

/// What the scores are made of: scale · q · kᵀ, bent, biased and hidden as the `attention` op says.
#[derive(Clone, Copy, Debug)]
pub struct Scores<T> {
    /// `[b, hq, s, d]`.
    pub q: View<T, 4>,
    /// `[b, hkv, t, d]`; hkv divides hq.
    pub k: View<T, 4>,
    /// `[b, hq, s, t]`, repeated by strides of 0: 0 hides a key from a query.
    pub mask: Option<View<u8, 4>>,
    /// `[b, hq, s, t]`, repeated by strides of 0.
    pub bias: Option<View<T, 4>>,
    /// `[b, hq]`, repeated by strides of 0: the slopes of ALiBi.
    pub slopes: Option<View<T, 2>>,
    /// What the products are multiplied by.
    pub scale: f64,
    /// Hides the keys after the query's own.
    pub causal: bool,
    /// Hides the keys at this distance or farther.
    pub window: Option<usize>,
    /// Bends the scores to softcap · tanh(scores / softcap).
    pub softcap: Option<f64>,
}

/// The sizes of attention.
#[derive(Clone, Copy)]
struct Sizes {
    b: usize,
    hq: usize,
    hkv: usize,
    /// Query heads that share a key head.
    group: usize,
    s: usize,
    t: usize,
    d: usize,
}

/// A block of scores: where it lies, and which way round.
#[derive(Clone, Copy)]
struct Block {
    /// Batch and query head.
    at: [usize; 2],
    /// The first row and how many.
    row: usize,
    rows: usize,
    /// The first lane and how many are in use; the next multiple of the vector's lanes is the distance of two rows.
    lane: usize,
    lanes: usize,
    keys_in_lanes: bool,
}

/// What mask and bias add to a block of scores, packed: 0 where nothing, −inf where hidden.
#[derive(Clone, Copy)]
struct Addend<T> {
    ptr: *const T,
    /// The distance of two rows; 0 if they are all alike.
    row_step: usize,
    /// Whether the lanes of a row are all alike: then only the first is there.
    uniform: bool,
    /// Whether everything is hidden.
    nothing: bool,
    /// Whether something is.
    hides: bool,
}

impl<T: Real> Addend<T> {
    /// Leaves out the first and the last rows of a block if they are hidden from all lanes; what is left may need no
    /// addend. Not for blocks of nothing.
    ///
    /// # Safety
    /// The addend was packed for the block.
    #[inline(always)]
    unsafe fn trim(self, x: &mut Block) -> Option<Addend<T>> {
        if !self.uniform || self.row_step == 0 || !self.hides {
            return Some(self);
        }
        // SAFETY: such an addend has an element for each row.
        let of = unsafe { std::slice::from_raw_parts(self.ptr, x.rows) };
        let hidden = |y: &T| *y < T::MIN;
        let first = of.iter().take_while(|y| hidden(y)).count();
        let rest = of.get(first..).unwrap_or(&[]);
        let rest =
            rest.get(..rest.len() - rest.iter().rev().take_while(|y| hidden(y)).count()).unwrap_or(&[]);
        (x.row, x.rows) = (x.row + first, rest.len());
        let (mut hides, mut plain) = (false, true);
        for y in rest {
            hides |= hidden(y);
            plain &= *y == T::ZERO;
        }
        (!plain).then_some(Addend { ptr: rest.as_ptr(), hides, ..self })
    }
}

impl<T: Real> Scores<T> {
    fn sizes(&self) -> Sizes {
        let ([b, hq, s, d], [_, hkv, t, _]) = (self.q.shape, self.k.shape);
        Sizes { b, hq, hkv, group: hq.checked_div(hkv).unwrap_or(0), s, t, d }
    }

    /// What q is multiplied by before its product with k.
    fn factor(&self) -> f64 {
        self.softcap.map_or(self.scale * LOG2_E, |cap| self.scale / cap)
    }

    /// The key at which query 0 stands.
    fn shift(&self) -> isize {
        self.k.shape[2] as isize - self.q.shape[2] as isize
    }

    /// The keys that some of the queries `from..to` see, mask and bias aside.
    fn keys_of(&self, from: usize, to: usize) -> (usize, usize) {
        let t = self.k.shape[2] as isize;
        let (first, last) = (from as isize + self.shift(), to as isize - 1 + self.shift());
        let reach = self.reach();
        let low = (first - reach + 1).clamp(0, t);
        let high = (if self.causal { last + 1 } else { last.saturating_add(reach) }).clamp(low, t);
        (low as usize, high as usize)
    }

    /// The queries that see some of the keys `from..to`, mask and bias aside.
    fn queries_of(&self, from: usize, to: usize) -> (usize, usize) {
        let s = self.q.shape[2] as isize;
        let (first, last) = (from as isize - self.shift(), to as isize - 1 - self.shift());
        let reach = self.reach();
        let low = (if self.causal { first } else { first - reach + 1 }).clamp(0, s);
        let high = last.saturating_add(reach).clamp(low, s);
        (low as usize, high as usize)
    }

    /// The window, or more than any distance.
    fn reach(&self) -> isize {
        let all = self.k.shape[2].saturating_add(self.q.shape[2]).saturating_add(1);
        self.window.map_or(all, |w| w.min(all)) as isize
    }

    /// Whether a block holds pairs that causality or the window hide.
    fn is_partial(&self, x: &Block) -> bool {
        let ((i, ni), (j, nj)) = if x.keys_in_lanes {
            ((x.row, x.rows), (x.lane, x.lanes))
        } else {
            ((x.lane, x.lanes), (x.row, x.rows))
        };
        // The least and the greatest distance of a key before a query.
        let least = i as isize + self.shift() - (j + nj) as isize + 1;
        let most = (i + ni) as isize - 1 + self.shift() - j as isize;
        let reach = self.reach();
        (self.causal && least < 0) || most >= reach || least <= -reach
    }

    fn slope(&self, [b, h]: [usize; 2]) -> Option<T> {
        // SAFETY: batch and head are within the shape, and the views are valid while a kernel runs.
        self.slopes.map(|x| unsafe { *x.at([b, h]) })
    }

    /// Packs what mask and bias add to a block, `to` having room for a whole block; None if that is 0 everywhere.
    ///
    /// # Safety
    /// The views are valid, the block within them, and `to` can be written.
    #[inline(always)]
    unsafe fn addend<V: Lanes<T = T>>(&self, x: &Block, to: *mut T) -> Option<Addend<T>> {
        if self.mask.is_none() && self.bias.is_none() {
            return None;
        }
        let stands = |axis: usize| {
            self.mask.is_none_or(|m| m.strides.get(axis) == Some(&0))
                && self.bias.is_none_or(|b| b.strides.get(axis) == Some(&0))
        };
        let (row_axis, lane_axis) = if x.keys_in_lanes { (2, 3) } else { (3, 2) };
        let (rows, uniform) = (if stands(row_axis) { 1 } else { x.rows }, stands(lane_axis));
        let [b, h] = x.at;
        let corner = if x.keys_in_lanes { [b, h, x.row, x.lane] } else { [b, h, x.lane, x.row] };
        // If all lanes are alike, the rows lie side by side in the place of the lanes.
        let strides = |[_, _, i, j]: [isize; 4]| match (uniform, x.keys_in_lanes) {
            (false, true) => [i, j],
            (false, false) => [j, i],
            (true, true) => [0, i],
            (true, false) => [0, j],
        };
        let [n, len] = if uniform { [1, rows] } else { [rows, x.lanes] };
        let width = len.next_multiple_of(V::N);
        let (lowest, hidden, unit) = (V::splat(T::MIN), V::splat(T::NEG_INFINITY), V::of(LOG2_E));
        let (zero, one, tiny) = (V::of(0.0), V::of(1.0), V::of(f64::from(f32::MIN_POSITIVE)));
        let [mut seen, mut unseen, mut other] = [zero; 3];
        // SAFETY: indices stay within the block, which is within the views; `to` holds n · width elements.
        unsafe {
            if let Some(bias) = self.bias {
                let from = Matrix { ptr: bias.at(corner), strides: strides(bias.strides) };
                copy_scaled(from, Matrix { ptr: to, strides: [width as isize, 1] }, [n, len], T::of(1.0));
                for r in 0..n {
                    (len..width).for_each(|l| *to.add(r * width + l) = T::NEG_INFINITY);
                }
            }
            for (r0, l0) in squares(n, len) {
                let (n, len) = ((n - r0).min(MAX_LANES), (len - l0).min(MAX_LANES));
                let bytes = self.mask.map(|mask| {
                    let [row, lane] = strides(mask.strides);
                    let from = mask.at(corner).offset(r0 as isize * row + l0 as isize * lane);
                    Square::read(from, [row, lane], [n, len])
                });
                for r in 0..n {
                    for l in (0..len).step_by(V::N) {
                        let at = to.add((r0 + r) * width + l0 + l);
                        let mut y = zero;
                        if self.bias.is_some() {
                            // In units of log2. A bias that hides by its size is no infinity: rows of nothing else are
                            // averages.
                            y = V::load(at);
                            y = y.if_less(lowest, hidden, lowest.max(y * unit));
                        }
                        if let Some(bytes) = &bytes {
                            y = V::seen(bytes.at(r, l)).if_less(lowest, hidden, y);
                        }
                        y.store(at);
                        // Lanes past the last are hidden, which is not to count.
                        let used = if len - l < V::N { V::first(len - l) } else { one };
                        seen = y.if_less(lowest, seen, one);
                        unseen = y.if_less(lowest, used.max(unseen), unseen);
                        other = y.abs().if_less(tiny, other, one);
                    }
                }
            }
            let any = |x: V| x.top() > T::ZERO;
            let (nothing, hides) = (!any(seen), any(unseen));
            if !hides && (self.bias.is_none() || !any(other)) && !nothing {
                return None;
            }
            let row_step = if rows == 1 {
                0
            } else if uniform {
                1
            } else {
                width
            };
            Some(Addend { ptr: to, row_step, uniform, nothing, hides })
        }
    }

    /// Turns products into scores: bends them, adds mask, bias and slopes, hides what is out of sight. The derivative
    /// of the bend goes to `bend`, unless that is null.
    ///
    /// # Safety
    /// `to` (and `bend`) hold the block, and `addend` was packed for it.
    #[inline(always)]
    unsafe fn finish<V: Lanes<T = T>>(&self, x: &Block, to: *mut T, addend: Option<Addend<T>>, bend: *mut T) {
        let vectors = x.lanes.div_ceil(V::N);
        let width = vectors * V::N;
        let hidden = V::splat(T::NEG_INFINITY);
        // SAFETY: all stays within rows · width elements.
        unsafe {
            if let Some(cap) = self.softcap {
                let (one, cap) = (V::of(1.0), V::of(cap * LOG2_E));
                for i in (0..x.rows * width).step_by(V::N) {
                    let bent = V::load(to.add(i)).tanh();
                    (bent * cap).store(to.add(i));
                    if !bend.is_null() {
                        (one - bent * bent).store(bend.add(i));
                    }
                }
            }
            if let Some(add) = addend {
                let lowest = V::splat(T::MIN);
                for r in 0..x.rows {
                    let from = add.ptr.add(r * add.row_step);
                    if add.uniform && *from == T::ZERO {
                        continue;
                    }
                    let to = to.add(r * width);
                    for v in (0..width).step_by(V::N) {
                        let extra = if add.uniform { V::splat(*from) } else { V::load(from.add(v)) };
                        let score = V::load(to.add(v)) + extra;
                        extra.if_less(lowest, hidden, score).store(to.add(v));
                    }
                }
            }
            let partial = self.is_partial(x);
            let slope = self.slope(x.at);
            if !partial && slope.is_none() {
                return;
            }
            let steepness = V::splat(slope.map_or(T::ZERO, |s| s * T::of(-LOG2_E)));
            let reach = V::of(self.reach() as f64);
            let least = V::of(if self.causal { -0.5 } else { f64::MIN / 2.0 });
            for v in (0..width).step_by(V::N) {
                for r in 0..x.rows {
                    let to = to.add(r * width + v);
                    let far = self.distance::<V>(x, r, v);
                    let mut score = V::load(to);
                    if slope.is_some() {
                        score = far.abs().fma(steepness, score);
                    }
                    if partial {
                        score = far.abs().if_less(reach, score, hidden);
                        score = far.if_less(least, hidden, score);
                    }
                    score.store(to);
                }
            }
        }
    }

    /// How far the keys lie before the queries, in a row of a block.
    #[inline(always)]
    fn distance<V: Lanes<T = T>>(&self, x: &Block, row: usize, lane: usize) -> V {
        let mut steps = [T::ZERO; MAX_LANES];
        for (i, s) in steps.iter_mut().enumerate() {
            *s = T::of(i as f64);
        }
        // SAFETY: a vector has at most that many lanes.
        let steps = unsafe { V::load(steps.as_ptr()) };
        let (row, lane) = ((x.row + row) as isize, (x.lane + lane) as isize);
        if x.keys_in_lanes {
            V::of((row + self.shift() - lane) as f64) - steps
        } else {
            V::of((lane + self.shift() - row) as f64) + steps
        }
    }
}

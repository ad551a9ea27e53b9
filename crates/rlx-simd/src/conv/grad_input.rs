//! The gradient with respect to the input: the convolution of the result's gradient with the weights turned around.
//!
//! With a stride s, the input positions `i = s·u + r − pad_lo` of a residue r meet only the taps k with `k·dilation ≡ r`
//! (mod s), at `o = u − (k·dilation − r) / s`: a convolution of stride 1 over u. Residues that read the same offsets (all of
//! them, where kernel and stride are equal) are taken together, as more rows of weights.

use super::form::{Axis, Form, gcd};
use super::kernel::{self, Plan, Shape};
use super::lanes::Number;
use super::{Conv, Sink, Spatial, clear};
use crate::level::Level;
use crate::mem::{Scratch, ScratchSize};
use crate::pool::Pool;
use std::ops::Range;

/// The taps that meet a residue: the first, how many, and where the first reads.
#[derive(Clone, Copy, PartialEq)]
struct Met {
    first: usize,
    count: usize,
    offset: isize,
}

impl Spatial {
    /// From one tap of a residue to the next.
    fn tap_step(&self) -> usize {
        (self.stride / gcd(self.stride, self.dilation)) as usize
    }

    fn met(&self, residue: usize) -> Met {
        let meets = |k: &usize| (*k as isize * self.dilation - residue as isize).rem_euclid(self.stride) == 0;
        match (0..self.kernel.min(self.tap_step())).find(meets) {
            Some(first) => Met {
                first,
                count: (self.kernel - first).div_ceil(self.tap_step()),
                offset: (first as isize * self.dilation - residue as isize) / self.stride,
            },
            None => Met { first: 0, count: 0, offset: 0 },
        }
    }

    /// The residues that read the same as one.
    fn like(&self, residue: usize) -> impl DoubleEndedIterator<Item = usize> + use<> {
        let (a, m) = (*self, self.met(residue));
        (0..self.stride as usize).filter(move |r| {
            let n = a.met(*r);
            (n.count, n.offset) == (m.count, m.offset)
        })
    }

    /// The positions u of those residues: the first, and how many.
    fn places(&self, residue: usize) -> (isize, usize) {
        let least = self.like(residue).next().unwrap_or(residue) as isize;
        let most = self.like(residue).next_back().unwrap_or(residue) as isize;
        let first = -(most - self.lo).div_euclid(self.stride);
        let end = (self.size as isize - 1 + self.lo - least).div_euclid(self.stride) + 1;
        (first, (end - first).max(0) as usize)
    }

    fn axis(&self, residue: usize) -> Axis {
        let (m, (first, out)) = (self.met(residue), self.places(residue));
        Axis {
            size: self.out as isize,
            out,
            stride: 1,
            taps: m.count,
            shift: first - m.offset,
            step: -(self.dilation / gcd(self.stride, self.dilation)),
            kernel_stride: self.tap_step() * self.pitch,
            dropped: 0,
        }
    }
}

/// Residues of all axes that are taken together, named by the first of each axis.
struct Class<'a> {
    conv: &'a Conv<'a>,
    /// The number of the tuple of first residues.
    tuple: usize,
}

impl Class<'_> {
    /// Each axis with its first residue, the last axis first.
    fn axes(&self) -> impl Iterator<Item = (Spatial, usize)> {
        let mut rest = self.tuple;
        self.conv.axes().rev().map(move |a| {
            let r = rest % a.stride as usize;
            rest /= a.stride as usize;
            (a, r)
        })
    }

    /// Each axis with the residue of a member of the class, the last axis first.
    fn member(&self, mut index: usize) -> impl Iterator<Item = (Spatial, usize, usize)> {
        self.axes().map(move |(a, first)| {
            let n = a.like(first).count().max(1);
            let r = a.like(first).nth(index % n).unwrap_or(first);
            index /= n;
            (a, first, r)
        })
    }

    fn members(&self) -> usize {
        self.axes().map(|(a, r)| a.like(r).count()).product()
    }

    fn form(&self) -> Option<Form> {
        let c = self.conv;
        let rows = self.members() * (c.in_channels / c.groups);
        let n = self.conv.axes().len();
        let axes = (0..n).map(|i| {
            let (a, r) = self.axes().nth(n - 1 - i).unwrap_or((
                Spatial { size: 1, out: 1, kernel: 1, stride: 1, dilation: 1, lo: 0, pitch: 1 },
                0,
            ));
            a.axis(r)
        });
        Form::new([c.batch, c.groups, c.out_channels / c.groups, rows], axes)
    }
}

/// Writes the results of a class to where they belong in the input's gradient.
struct Place<'a, T> {
    class: &'a Class<'a>,
    dx: *mut T,
}

// SAFETY: the calls write to different places.
unsafe impl<T: Send> Sync for Place<'_, T> {}

impl<T: Number> Sink<T> for Place<'_, T> {
    unsafe fn block(
        &self,
        _: usize,
        batch: usize,
        channels: Range<usize>,
        positions: Range<usize>,
        acc: *mut T,
        stride: usize,
    ) {
        let c = self.class.conv;
        let own = c.in_channels / c.groups;
        let per_group = self.class.members() * own;
        let image: usize = c.in_spatial.iter().product();
        for (i, row) in channels.enumerate() {
            let (group, member, channel) = (row / per_group, row % per_group / own, row % own);
            let to = (batch * c.in_channels + group * own + channel) * image;
            let mut from = positions.start;
            while from < positions.end {
                // The positions up to the end of a row: where the row is, and the part of it that is within the input.
                let (mut rest, mut scale, mut at, mut inside) = (from, 1, 0, true);
                let (mut n, mut last) = (1, None);
                for (axis, first, residue) in self.class.member(member) {
                    let (u, out) = axis.places(first);
                    let p = rest % out.max(1);
                    rest /= out.max(1);
                    let x = axis.stride * (u + p as isize) + residue as isize - axis.lo;
                    if last.is_none() {
                        n = (out - p).min(positions.end - from);
                        last = Some((x, axis));
                    } else {
                        inside &= (0..axis.size as isize).contains(&x);
                        at += x * scale;
                    }
                    scale *= axis.size as isize;
                }
                if let (true, Some((x, axis))) = (inside, last) {
                    let up = |x: isize| (-(-x).div_euclid(axis.stride)).clamp(0, n as isize);
                    for j in up(-x)..up(axis.size as isize - x) {
                        let place = to as isize + at + x + j * axis.stride;
                        // SAFETY: the place is within the image of this channel and of no other call.
                        unsafe {
                            self.dx
                                .offset(place)
                                .write(*acc.add(i * stride + from - positions.start + j as usize))
                        };
                    }
                }
                from += n;
            }
        }
    }
}

impl Conv<'_> {
    /// Every class, in order.
    fn classes(&self) -> impl Iterator<Item = Class<'_>> {
        let tuples: usize = self.axes().map(|a| a.stride as usize).product();
        let all = (0..tuples).map(|tuple| Class { conv: self, tuple });
        all.filter(|c| c.axes().all(|(a, r)| a.like(r).next() == Some(r)))
    }

    /// The scratch of [`Conv::grad_input`].
    pub fn grad_input_scratch<T: Number>(&self, level: Level) -> ScratchSize {
        if !self.is_valid() {
            return ScratchSize::default();
        }
        self.classes().filter_map(|c| c.form()).fold(ScratchSize::default(), |size, form| {
            let shared = form.groups * form.rows * form.depth() * size_of::<T>();
            size.max(ScratchSize { shared, ..Plan::new::<T>(form, level).scratch::<T>() })
        })
    }

    /// The gradient with respect to the input, `dx`, given that of the result.
    ///
    /// # Safety
    /// `dy`, `w` and `dx` point to dense tensors of these sizes, and `dx` overlaps nothing else.
    pub unsafe fn grad_input<T: Number>(
        &self,
        level: Level,
        pool: &Pool,
        scratch: &Scratch,
        dy: *const T,
        w: *const T,
        dx: *mut T,
    ) {
        if !self.is_valid() || self.inputs() == 0 {
            return;
        }
        let (taps, own, shape) = (self.taps(), self.in_channels / self.groups, Shape::of::<T>(level));
        if self.outputs() == 0 || taps == 0 {
            // SAFETY: the caller promises the room.
            return unsafe { clear(pool, dx, self.inputs()) };
        }
        for class in self.classes() {
            let Some(form) = class.form() else { continue };
            let packed = scratch.shared::<T>(form.groups * form.rows * form.depth());
            // Row (group, member, channel) starts at the first tap of the member, in the first output channel of the group.
            let row = |i: usize| {
                let (group, member, channel) = (i / form.rows, i % form.rows / own, i % own);
                let first: usize = class.member(member).map(|(a, _, r)| a.met(r).first * a.pitch).sum();
                (group * form.channels * own + channel) * taps + first
            };
            // SAFETY: output channels are `own · taps` apart; rows and taps are within the weights, and the scratch is as
            // large as asked for.
            unsafe {
                kernel::pack(pool, &form, shape, (w, own * taps), row, packed);
                let place = Place { class: &class, dx };
                Plan::new::<T>(form, level).run(level, pool, scratch, (dy, packed.cast_const()), &place);
            }
        }
    }
}

//! The gradient with respect to the input: the convolution of the result's gradient with the weights turned around.
//!
//! With a stride s, the input positions `i = s·u + r − pad_lo` of a residue r meet only the taps k with `k·dilation ≡ r`
//! (mod s), at `o = u − (k·dilation − r) / s`: a convolution of stride 1 over u. Residues that read the same offsets (all of
//! them, where kernel and stride are equal) are taken together, as more rows of weights.

use super::form::{AXES, Axis, Form, gcd};
use super::kernel::{self, Plan, Shape};
use super::lanes::Number;
use super::{Conv, Sink, Spatial, Store, clear};
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

    fn axis(&self, residue: usize, first: isize, out: usize) -> Axis {
        let m = self.met(residue);
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

/// One axis of a class: residues that read the same.
#[derive(Clone, Copy)]
struct Like {
    axis: Spatial,
    /// The first residue, and how many there are.
    residue: usize,
    count: usize,
    /// The first position u, and how many there are.
    first: isize,
    out: usize,
    /// The first residues, for there are seldom more.
    known: [usize; KNOWN],
}
const KNOWN: usize = 16;

impl Like {
    fn new(axis: Spatial, residue: usize) -> Like {
        let (first, out) = axis.places(residue);
        let (mut known, mut count) = ([0; KNOWN], 0);
        for r in axis.like(residue) {
            if let Some(k) = known.get_mut(count) {
                *k = r;
            }
            count += 1;
        }
        Like { axis, residue, count, first, out, known }
    }
    fn member(&self, i: usize) -> usize {
        let known = self.known.get(i).copied();
        known.unwrap_or_else(|| self.axis.like(self.residue).nth(i).unwrap_or(self.residue))
    }
}

/// Residues of all axes that are taken together: every choice of one per axis is a member.
struct Class<'a> {
    conv: &'a Conv<'a>,
    axes: usize,
    like: [Option<Like>; AXES],
}

impl<'a> Class<'a> {
    /// The class whose first residues are the tuple of that number, if they are the first.
    fn new(conv: &'a Conv<'a>, mut tuple: usize) -> Option<Class<'a>> {
        let mut c = Class { conv, axes: conv.axes().len(), like: [None; AXES] };
        for (a, like) in conv.axes().zip(&mut c.like).rev() {
            let r = tuple % a.stride as usize;
            tuple /= a.stride as usize;
            if a.like(r).next() != Some(r) {
                return None;
            }
            *like = Some(Like::new(a, r));
        }
        Some(c)
    }

    fn each(&self) -> impl DoubleEndedIterator<Item = &Like> {
        self.like.iter().take(self.axes).flatten()
    }
    fn members(&self) -> usize {
        self.each().map(|l| l.count).product()
    }
    /// The residues of a member, the last axis first.
    fn member(&self, mut index: usize) -> impl Iterator<Item = (&Like, usize)> {
        self.each().rev().map(move |l| {
            let r = l.member(index % l.count.max(1));
            index /= l.count.max(1);
            (l, r)
        })
    }

    fn form(&self) -> Option<Form> {
        let c = self.conv;
        let rows = self.members() * (c.in_channels / c.groups);
        let axes = self.each().map(|l| l.axis.axis(l.residue, l.first, l.out));
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
        let mut residues = (usize::MAX, [0; AXES]);
        for (i, row) in channels.enumerate() {
            let (group, member, channel) = (row / per_group, row % per_group / own, row % own);
            if residues.0 != member {
                residues.0 = member;
                residues.1.iter_mut().zip(self.class.member(member)).for_each(|(to, (_, r))| *to = r);
            }
            let to = (batch * c.in_channels + group * own + channel) * image;
            let mut from = positions.start;
            while from < positions.end {
                // The positions up to the end of a row: where the row is, and the part of it that is within the input.
                let (mut rest, mut scale, mut at, mut inside) = (from, 1, 0, true);
                let (mut n, mut last) = (1, None);
                for (l, residue) in self.class.each().rev().zip(residues.1) {
                    let p = rest % l.out.max(1);
                    rest /= l.out.max(1);
                    let x = l.axis.stride * (l.first + p as isize) + residue as isize - l.axis.lo;
                    if last.is_none() {
                        n = (l.out - p).min(positions.end - from);
                        last = Some((x, l.axis));
                    } else {
                        inside &= (0..l.axis.size as isize).contains(&x);
                        at += x * scale;
                    }
                    scale *= l.axis.size as isize;
                }
                if let (true, Some((x, axis))) = (inside, last) {
                    let up = |x: isize| (-(-x).div_euclid(axis.stride)).clamp(0, n as isize);
                    let (lo, hi) = (up(-x), up(axis.size as isize - x));
                    let to = self.dx.wrapping_offset(to as isize + at + x + lo * axis.stride);
                    let from = acc.wrapping_add(i * stride + from - positions.start + lo as usize);
                    for j in 0..hi - lo {
                        // SAFETY: the place is within the image of this channel and of no other call.
                        unsafe { to.offset(j * axis.stride).write(*from.offset(j)) };
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
        (0..tuples).filter_map(|tuple| Class::new(self, tuple))
    }

    /// The scratch of [`Conv::grad_input`].
    pub fn grad_input_scratch<T: Number>(&self, level: Level) -> ScratchSize {
        if !self.is_valid() {
            return ScratchSize::default();
        }
        self.classes().filter_map(|c| c.form()).fold(ScratchSize::default(), |size, form| {
            let shared = form.groups * form.rows * form.depth() * size_of::<T>();
            size.max(ScratchSize { shared, ..Plan::new::<T>(form, level, 1).scratch::<T>() })
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
                let first: usize =
                    class.member(member).map(|(l, r)| l.axis.met(r).first * l.axis.pitch).sum();
                (group * form.channels * own + channel) * taps + first
            };
            // SAFETY: output channels are `own · taps` apart; rows and taps are within the weights, and the scratch is as
            // large as asked for.
            unsafe {
                kernel::pack(pool, &form, shape, (w, own * taps), row, packed);
                let place = Place { class: &class, dx };
                let store =
                    Store { y: dx, channels: self.in_channels, positions: self.in_spatial.iter().product() };
                // Without a stride every position is an input's.
                let sink: &dyn Sink<T> = if self.stride.iter().all(|s| *s == 1) { &store } else { &place };
                Plan::new::<T>(form, level, pool.threads()).run(
                    level,
                    pool,
                    scratch,
                    (dy, packed.cast_const()),
                    sink,
                );
            }
        }
    }
}

//! What all three kernels share: an input that is read at `stride · u + shift` for positions u and a regular list of shifts
//! per axis, in blocks of positions, each with a padded copy of the part of the input that it reads.
//!
//! The copy is laid out such that neighbours in u are neighbours in memory for every tap: with a stride, each residue of the
//! input index is a plane of its own. So a vector of positions is one load at `base(positions) + offset(channel, tap)`, no
//! patches are gathered, and lanes that run over the end of a row are computed and thrown away.
// Axes are indexed by numbers below `Form::axes`, itself at most `AXES`.
#![allow(clippy::indexing_slicing)]

use super::lanes::{Lanes, Number};

/// The most axes of a form: a tensor has at most 32, of which two are no spatial axes, and the batch is put first.
pub(super) const AXES: usize = 32;

/// Taps that are so far apart reach far.
pub(super) const FAR: isize = 1024;

/// One axis: at position u, tap j reads the input at `stride · u + shift + j · step`, which counts as 0 outside of
/// `0..size`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    pub size: isize,
    pub out: usize,
    pub stride: isize,
    pub taps: usize,
    pub shift: isize,
    pub step: isize,
    /// The distance of the taps in the kernel, and how many taps before the first have been dropped.
    pub kernel_stride: usize,
    pub dropped: usize,
}

impl Axis {
    pub(super) const UNIT: Axis =
        Axis { size: 1, out: 1, stride: 1, taps: 1, shift: 0, step: 1, kernel_stride: 0, dropped: 0 };

    /// Where the taps reach far, those at either end that only ever meet padding are dropped, so that what is copied is
    /// bounded by the input. (Elsewhere not, for packed weights serve inputs of all sizes.)
    fn trimmed(mut self) -> Axis {
        if (self.taps as isize - 1) * self.step.abs() < FAR {
            return self;
        }
        let reach = self.stride * (self.out as isize - 1).max(0);
        let idle = |shift: isize| shift >= self.size || shift + reach < 0;
        while self.taps > 0 && idle(self.shift) {
            self.shift += self.step;
            self.dropped += 1;
            self.taps -= 1;
        }
        while self.taps > 0 && idle(self.shift + (self.taps as isize - 1) * self.step) {
            self.taps -= 1;
        }
        self
    }

    /// Whether every position reads the input at the same place.
    fn is_plain(&self) -> bool {
        self.taps == 1 && self.stride == 1 && self.shift == 0 && self.out as isize == self.size
    }

    /// The planes of residues that the taps read.
    fn slots(&self) -> usize {
        self.taps.min((self.stride / gcd(self.stride, self.step.abs())) as usize).max(1)
    }
    /// The residue of a plane.
    fn residue(&self, slot: usize) -> isize {
        (self.shift + slot as isize * self.step).rem_euclid(self.stride)
    }
    /// How far a tap reads from the position, in its plane.
    fn reach(&self, tap: usize) -> isize {
        (self.shift + tap as isize * self.step).div_euclid(self.stride)
    }
    /// The least and the greatest of these.
    fn span(&self) -> (isize, isize) {
        let (a, b) = (self.reach(0), self.reach(self.taps.max(1) - 1));
        (a.min(b), a.max(b))
    }
    /// The elements of a plane that hold input, of `n` from position `first` on.
    fn held(&self, slot: usize, first: usize, n: usize) -> (usize, usize) {
        let (r, at) = (self.residue(slot), first as isize + self.span().0);
        let up = |x: isize| -(-x).div_euclid(self.stride);
        let from = (up(-r) - at).clamp(0, n as isize);
        (from as usize, (up(self.size - r) - at).clamp(from, n as isize) as usize)
    }
}

pub(super) fn gcd(a: isize, b: isize) -> isize {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}

/// A convolution as the kernels see it: `[batch, groups, channels, axes..]` in, `[batch, groups, rows, positions..]` out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    pub batch: usize,
    pub groups: usize,
    /// Input channels of a group.
    pub channels: usize,
    /// Output channels of a group.
    pub rows: usize,
    pub axes: usize,
    pub axis: [Axis; AXES],
}

/// A box of positions, the batch first; positions of a box are neighbours in memory (but for the batch).
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub start: [usize; AXES],
    pub size: [usize; AXES],
}

/// The tables of a block, in scratch memory.
#[derive(Clone, Copy)]
pub(super) struct Tables {
    /// Where a vector of positions starts in the copy, before channel and tap.
    pub base: *mut usize,
    /// How many positions come before it.
    pub before: *mut usize,
    /// Which of its lanes are positions.
    pub mask: *mut u32,
    /// Where channel and tap are in the copy.
    pub offset: *mut usize,
}

/// How the copy of a block is laid out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// The elements of a plane along each axis, the batch first, and the distance of neighbours.
    size: [usize; AXES],
    pitch: [usize; AXES],
    /// From plane to plane.
    plane: usize,
    /// Planes of a channel.
    slots: usize,
    /// How many of the last axes run into each other within vectors.
    merged: usize,
    /// Vectors of positions.
    pub vectors: usize,
}

impl Layout {
    /// The numbers of a copy of that many channels; vectors may read beyond the last plane.
    pub(super) fn len(&self, channels: usize, lanes: usize) -> usize {
        channels * self.slots * self.plane + 2 * lanes
    }
}

impl Form {
    /// A form whose axes are those given, the trivial ones merged.
    pub(super) fn new(
        [batch, groups, channels, rows]: [usize; 4],
        axes: impl Iterator<Item = Axis>,
    ) -> Option<Form> {
        // The first axis stands for a lack of others, so that there are always two after the batch.
        let mut f = Form { batch, groups, channels, rows, axes: 1, axis: [Axis::UNIT; AXES] };
        for a in axes {
            let a = a.trimmed();
            let last = &mut f.axis[f.axes - 1];
            if f.axes > 1 && a.is_plain() && last.stride == 1 {
                *last = Axis {
                    size: last.size * a.size,
                    out: last.out * a.out,
                    shift: last.shift * a.size,
                    step: last.step * a.size,
                    ..*last
                };
                // What an inner axis has dropped is in the base of the weights, see `dropped`.
                f.axis[0].dropped += a.dropped * a.kernel_stride;
            } else if f.axes + 1 < AXES {
                f.axis[f.axes] = a;
                f.axes += 1;
            } else {
                return None;
            }
        }
        if f.axes == 1 {
            f.axis[1] = Axis::UNIT;
            f.axes = 2;
        }
        f.axis[0].kernel_stride = 1;
        Some(f)
    }

    fn each_axis(&self) -> impl DoubleEndedIterator<Item = &Axis> {
        self.axis[..self.axes].iter()
    }
    pub(super) fn positions(&self) -> usize {
        self.each_axis().map(|a| a.out).product()
    }
    pub(super) fn inputs(&self) -> usize {
        self.each_axis().map(|a| a.size as usize).product()
    }
    pub(super) fn taps(&self) -> usize {
        self.each_axis().map(|a| a.taps).product()
    }
    /// The products that make up an output.
    pub(super) fn depth(&self) -> usize {
        self.channels * self.taps()
    }
    /// Where the first tap is in the kernel.
    pub(super) fn dropped(&self) -> usize {
        self.each_axis().map(|a| a.dropped * a.kernel_stride).sum()
    }
    /// Where a tap is in the kernel, from the first on.
    #[inline(always)]
    pub(super) fn tap_in_kernel(&self, mut tap: usize) -> usize {
        let mut at = 0;
        for a in self.each_axis().rev() {
            if a.taps > 1 {
                at += tap % a.taps * a.kernel_stride;
                tap /= a.taps;
            }
        }
        at
    }

    fn out(&self, i: usize) -> usize {
        if i == 0 { self.batch } else { self.axis[i - 1].out }
    }

    /// Boxes of about `target` positions: whole axes at the end, a part of one, single ones before.
    pub(super) fn block_size(&self, target: usize, lanes: usize) -> [usize; AXES] {
        let (mut size, mut n) = ([1; AXES], 1);
        for i in (0..=self.axes).rev() {
            let out = self.out(i);
            if n * out <= target {
                size[i] = out.max(1);
                n *= size[i];
                continue;
            }
            let most = (target / n).max(1);
            let even = out.div_ceil(out.div_ceil(most));
            size[i] = if i == self.axes { even.next_multiple_of(lanes).min(out) } else { even };
            break;
        }
        size
    }
    /// How many blocks of a size there are.
    pub(super) fn blocks(&self, size: &[usize; AXES]) -> usize {
        (0..=self.axes).map(|i| self.out(i).div_ceil(size[i])).product()
    }
    pub(super) fn block(&self, size: &[usize; AXES], mut index: usize) -> Block {
        let mut b = Block { start: [0; AXES], size: [1; AXES] };
        for i in (0..=self.axes).rev() {
            let n = self.out(i).div_ceil(size[i]).max(1);
            b.start[i] = index % n * size[i];
            b.size[i] = size[i].min(self.out(i) - b.start[i]);
            index /= n;
        }
        b
    }
    /// The first position of a block within its image, and how many of each image it has.
    pub(super) fn flat(&self, b: &Block) -> (usize, usize) {
        let (mut first, mut n) = (0, 1);
        for i in 1..=self.axes {
            first = first * self.out(i) + b.start[i];
            n *= b.size[i];
        }
        (first, n)
    }

    /// The layout of the copy for a block. Vectors cross from one image to the next only if `across`.
    pub(super) fn layout(&self, size: &[usize; AXES], lanes: usize, across: bool) -> Layout {
        let mut l =
            Layout { size: *size, pitch: [1; AXES], plane: 1, slots: 1, merged: 1, vectors: usize::MAX };
        for i in (0..=self.axes).rev() {
            if let Some(a) = i.checked_sub(1).map(|i| &self.axis[i]) {
                let (lo, hi) = a.span();
                l.size[i] += (hi - lo) as usize;
                l.slots *= a.slots();
            }
            l.pitch[i] = l.plane;
            l.plane *= l.size[i];
        }
        // Planes an odd number of cache lines apart do not compete for the same lines of the cache.
        l.plane = (l.plane.div_ceil(16) | 1) * 16;
        let (mut run, mut outer) = (1, size[..=self.axes].iter().product::<usize>());
        for merged in 1..=self.axes + across as usize {
            let i = self.axes + 1 - merged;
            run += (size[i] - 1) * l.pitch[i];
            outer /= size[i];
            let vectors = outer * run.div_ceil(lanes);
            if vectors < l.vectors {
                (l.merged, l.vectors) = (merged, vectors);
            }
        }
        l
    }

    /// Writes the tables of a block and of that many channels.
    ///
    /// # Safety
    /// The tables hold as many entries as the layout has vectors, and as channels have taps.
    #[inline(always)]
    pub(super) unsafe fn fill(&self, b: &Block, l: &Layout, channels: usize, lanes: usize, t: Tables) {
        let taps = self.taps();
        for c in 0..if taps == 0 { 0 } else { channels } {
            for tap in 0..taps {
                let at = if c > 0 {
                    // SAFETY: as many entries as channels have taps; the entry of channel 0 is written.
                    unsafe { *t.offset.add(tap) + c * l.slots * l.plane }
                } else {
                    self.tap_in_copy(l, tap)
                };
                // SAFETY: as above.
                unsafe { t.offset.add(c * taps + tap).write(at) };
            }
        }
        let inner = self.axes + 1 - l.merged..=self.axes;
        let run: usize = inner.clone().map(|i| (b.size[i] - 1) * l.pitch[i]).sum::<usize>() + 1;
        let (per_run, runs) = (run.div_ceil(lanes), b.size[..*inner.start()].iter().product::<usize>());
        let row = b.size[self.axes];
        let rows: usize = b.size[*inner.start()..self.axes].iter().product();
        let mut before = 0;
        for r in 0..runs {
            let base = place(&b.size, &l.pitch, 0..*inner.start(), r);
            // SAFETY: there are `runs · per_run` vectors.
            unsafe {
                for v in 0..per_run {
                    t.base.add(r * per_run + v).write(base + v * lanes);
                    t.mask.add(r * per_run + v).write(0);
                }
                for i in 0..rows {
                    let mut from = place(&b.size, &l.pitch, *inner.start()..self.axes, i);
                    let end = from + row;
                    while from < end {
                        let (v, lane) = (from / lanes, from % lanes);
                        let n = (lanes - lane).min(end - from);
                        *t.mask.add(r * per_run + v) |= (((1u64 << n) - 1) << lane) as u32;
                        from += n;
                    }
                }
                for v in r * per_run..(r + 1) * per_run {
                    t.before.add(v).write(before);
                    before += (*t.mask.add(v)).count_ones() as usize;
                }
            }
        }
    }

    /// Where a tap is in the copy.
    fn tap_in_copy(&self, l: &Layout, mut tap: usize) -> usize {
        let (mut at, mut slot, mut slots) = (0, 0, 1);
        for i in (0..self.axes).rev() {
            let (a, pitch) = (&self.axis[i], l.pitch[i + 1]);
            let j = tap % a.taps;
            tap /= a.taps;
            at += (a.reach(j) - a.span().0) as usize * pitch;
            slot += j % a.slots() * slots;
            slots *= a.slots();
        }
        slot * l.plane + at
    }

    /// Copies the part of the input that a block reads, for `channels` from `first` on of all channels of an image.
    ///
    /// # Safety
    /// `x` is an input of the form, and `copy` has room for `Layout::len`.
    #[inline(always)]
    pub(super) unsafe fn copy<L: Lanes>(
        &self,
        b: &Block,
        l: &Layout,
        x: *const L::T,
        (first, channels): (usize, usize),
        copy: *mut L::T,
    ) {
        let (n, image) = (self.axes, self.inputs());
        let tuples: usize = l.size[..n - 1].iter().product();
        let (row, rows) = (&self.axis[n - 1], &self.axis[n - 2]);
        for slot in 0..l.slots {
            let (mut slots, mut rest) = ([0; AXES], slot);
            for i in (0..n).rev() {
                slots[i] = rest % self.axis[i].slots();
                rest /= self.axis[i].slots();
            }
            let (row_from, row_to) = row.held(slots[n - 1], b.start[n], l.size[n]);
            let (rows_from, rows_to) = rows.held(slots[n - 2], b.start[n - 1], l.size[n - 1]);
            for tuple in 0..tuples {
                // Where the rows of the tuple are in the input, and whether they are padding.
                let (mut from, mut scale, mut held, mut rest) = (0isize, 1, true, tuple);
                for i in (0..n).rev() {
                    let a = &self.axis[i];
                    let at = match i {
                        _ if i == n - 1 => row_from,
                        _ if i == n - 2 => rows_from,
                        _ => {
                            let at = rest % l.size[i + 1];
                            rest /= l.size[i + 1];
                            let (lo, hi) = a.held(slots[i], b.start[i + 1], l.size[i + 1]);
                            held &= (lo..hi).contains(&at);
                            at
                        }
                    };
                    let at = (b.start[i + 1] + at) as isize + a.span().0;
                    from += (a.stride * at + a.residue(slots[i])) * scale;
                    scale *= a.size;
                }
                let (rows_from, rows_to) = if held { (rows_from, rows_to) } else { (0, 0) };
                let to = slot * l.plane + place(&l.size, &l.pitch, 0..n - 1, tuple);
                let channel = (b.start[0] + rest) * self.groups * self.channels + first;
                for c in 0..channels {
                    let to = copy.wrapping_add(c * l.slots * l.plane + to);
                    let from = x.wrapping_offset(((channel + c) * image) as isize + from);
                    for r in 0..l.size[n - 1] {
                        let to = to.wrapping_add(r * l.pitch[n - 1]);
                        // SAFETY: the row is within the copy, and `held` says which part of it is within the input.
                        unsafe {
                            let step =
                                (r.wrapping_sub(rows_from) as isize).wrapping_mul(rows.stride * row.size);
                            let from = from.wrapping_offset(step);
                            if !(rows_from..rows_to).contains(&r) {
                                L::pad(to, from, 0..0, l.size[n]);
                            } else if row.stride == 1 {
                                L::pad(to, from, row_from..row_to, l.size[n]);
                            } else {
                                L::pad(to, from, 0..0, row_from);
                                copy_row(to.add(row_from), from, row_to - row_from, row.stride);
                                L::pad(to.add(row_to), from, 0..0, l.size[n] - row_to);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Where the tuple of that number is, among tuples over some axes.
#[inline(always)]
fn place(
    size: &[usize; AXES],
    pitch: &[usize; AXES],
    axes: std::ops::Range<usize>,
    mut tuple: usize,
) -> usize {
    let mut at = 0;
    for i in axes.rev() {
        at += tuple % size[i] * pitch[i];
        tuple /= size[i];
    }
    at
}

/// Copies every `stride`-th number.
#[inline(always)]
unsafe fn copy_row<T: Number>(to: *mut T, from: *const T, n: usize, stride: isize) {
    // SAFETY: the caller promises the numbers on both sides.
    unsafe {
        match stride {
            2 => (0..n).for_each(|i| to.add(i).write(from.add(2 * i).read())),
            _ => (0..n).for_each(|i| to.add(i).write(from.offset(i as isize * stride).read())),
        }
    }
}

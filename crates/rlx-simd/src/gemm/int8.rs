//! Products of bytes less their zero points: C = (A − a₀) · (B − b₀), exact in i32, which wraps.
//!
//! The bytes themselves are multiplied, B as signed and A as the level likes best; what the other sign and the zero points
//! make of it follows from sums of rows and columns: Σ (a − a₀)(b − b₀) = Σ ab − a₀ Σ b − b₀ Σ a + k a₀ b₀. Sums of C begin
//! with that. A packed B has the sums of its columns in front of every panel.

use super::micro::{self, Kind, LDA, Shape, WIDEST};
use super::plan::Size;
use super::run::{self, Begin, FirstRow, Numbers, Start};
use super::{BatchOffsets, Out};
use crate::each_level;
use crate::level::Level;
use crate::mem::{Buffer, Ptr, Scratch, ScratchSize};
use crate::pool::Pool;
use std::ops::Range;

/// Bytes of each step of A and row of B in a lane of 32 bits.
const GROUP: usize = 4;
/// What turns a byte's sign: u8 and i8 differ by 128 then.
const TURN: u8 = 0x80;

/// A matrix of bytes in memory.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// The first element of the batch at offset 0.
    pub ptr: *const u8,
    /// The distance to the next row and column.
    pub strides: [isize; 2],
    /// Whether the bytes are i8 rather than u8.
    pub signed: bool,
}

/// The zero points of the rows of A or the columns of B, with the sign of the matrix.
#[derive(Clone, Copy, Debug)]
pub struct Zeros {
    /// The first.
    pub ptr: *const u8,
    /// The distance to the next; 0 if there is one for all.
    pub stride: isize,
}

/// The right operand.
#[derive(Clone, Copy)]
pub enum B<'a> {
    /// Packed before, and the same for all batches.
    Packed(&'a PackedB),
    /// In memory, packed on the way.
    Strided(Matrix),
}

/// A product, or a batch of them, as [`super::Gemm`] has it. Zero points are the same for all batches; none is 0.
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
    pub a: Matrix,
    /// The zero points of its rows.
    pub a_zero: Option<Zeros>,
    /// The right operand.
    pub b: B<'a>,
    /// The zero points of its columns.
    pub b_zero: Option<Zeros>,
    /// One entry for each product.
    pub batches: &'a [BatchOffsets],
}

/// B of a product, packed once for many.
#[derive(Debug)]
pub struct PackedB {
    level: Level,
    kind: Kind,
    k: usize,
    n: usize,
    signed: bool,
    data: Buffer,
}

impl PackedB {
    /// Packs a k × n matrix.
    ///
    /// # Safety
    /// The matrix is within readable memory.
    pub unsafe fn pack(level: Level, k: usize, n: usize, b: Matrix, pool: &Pool) -> PackedB {
        // SAFETY: as promised by the caller.
        unsafe { PackedB::pack_as(level, Kind::of_bytes(level), k, n, b, pool) }
    }

    unsafe fn pack_as(level: Level, kind: Kind, k: usize, n: usize, b: Matrix, pool: &Pool) -> PackedB {
        let (shape, steps) = (micro::shape(level, kind), steps_of(kind, k));
        let (panels, units) = (n.div_ceil(shape.width), kind.panel(shape, steps));
        let data = Buffer::new(panels * units * size_of::<i32>());
        let (all, from) = (Ptr(data.ptr().cast::<i32>()), Ptr(b.ptr.cast_mut()));
        pool.run(panels, |p, _| {
            let (to, from) = (all, from);
            let cols = p * shape.width..n.min((p + 1) * shape.width);
            // SAFETY: the panel is within the buffer, and this task's alone; the caller has the matrix.
            unsafe { pack_panel(level, shape, k, Matrix { ptr: from.0, ..b }, cols, to.0.add(p * units)) }
        });
        PackedB { level, kind, k, n, signed: b.signed, data }
    }

    /// Rows.
    pub fn k(&self) -> usize {
        self.k
    }
    /// Columns.
    pub fn n(&self) -> usize {
        self.n
    }
    /// The size in memory.
    pub fn bytes(&self) -> usize {
        self.data.len()
    }
}

/// Steps of k as [`Kind`] counts them: whole groups of bytes.
fn steps_of(kind: Kind, k: usize) -> usize {
    k.div_ceil(GROUP) * if kind == Kind::BytesWiden { 2 } else { 1 }
}

/// Packs a panel of B with the sums of its columns in front: rows of four bytes of each column, signed, zeros beyond the last
/// row and column.
unsafe fn pack_panel(level: Level, shape: Shape, k: usize, b: Matrix, cols: Range<usize>, dst: *mut i32) {
    let (width, turn) = (shape.width, if b.signed { 0 } else { TURN });
    let (src, strides) = (b.ptr.wrapping_offset(cols.start as isize * b.strides[1]), b.strides);
    let used = cols.len();
    // SAFETY: the caller has room for the panel.
    unsafe { dst.write_bytes(0, width) };
    each_level!(level, _FMA, pack_rows => (
        src: *const u8, strides: [isize; 2], used: usize, width: usize, k: usize, turn: u8, dst: *mut i32,
    ));
}

#[inline(always)]
unsafe fn pack_rows(
    src: *const u8,
    [row, col]: [isize; 2],
    used: usize,
    width: usize,
    k: usize,
    turn: u8,
    dst: *mut i32,
) {
    let byte = |r: usize, c: usize| {
        // SAFETY: the caller has the matrix.
        u32::from(unsafe { *src.offset(r as isize * row + c as isize * col) } ^ turn)
    };
    for group in 0..k.div_ceil(GROUP) {
        let (r, rows) = (group * GROUP, GROUP.min(k - group * GROUP));
        // SAFETY: the caller has the panel, which begins with its sums.
        let (sums, to) = unsafe { (dst, dst.add((group + 1) * width).cast::<u32>()) };
        for c in 0..used {
            let quad = match rows {
                GROUP => byte(r, c) | byte(r + 1, c) << 8 | byte(r + 2, c) << 16 | byte(r + 3, c) << 24,
                _ => (0..rows).map(|i| byte(r + i, c) << (8 * i)).fold(0, |q, b| q | b),
            };
            let sum: i32 = quad.to_le_bytes().iter().map(|b| i32::from(b.cast_signed())).sum();
            // SAFETY: as above.
            unsafe {
                to.add(c).write(quad);
                *sums.add(c) += sum;
            }
        }
        // SAFETY: as above.
        unsafe { to.add(used).write_bytes(0, width - used) };
    }
}

impl Gemm<'_> {
    fn kind(&self) -> Kind {
        match self.b {
            B::Packed(b) => b.kind,
            B::Strided(_) => Kind::of_bytes(self.level),
        }
    }

    fn size(&self, out: &Out<'_, i32>) -> Size {
        let (sink, whole_rows) = out.wants();
        Size {
            m: self.m,
            n: self.n,
            k: steps_of(self.kind(), self.k),
            batches: self.batches.len(),
            loose_b: matches!(self.b, B::Strided(_)),
            whole_b: true,
            costly_a: false,
            sink,
            whole_rows,
        }
    }

    /// The scratch space of a run with such an output: enough for any number of threads, and for any smaller m, n, k.
    pub fn scratch(&self, out: &Out<'_, i32>) -> ScratchSize {
        run::scratch(self.level, self.kind(), self.size(out))
    }

    /// Computes the product.
    ///
    /// # Safety
    /// The operands and their zero points are readable and the output writable for all batches, the output overlaps
    /// nothing, and rows of the output do not overlap each other. A packed B has this k and n. Scratch has at least
    /// [`Gemm::scratch`] for the pool.
    pub unsafe fn run(&self, pool: &Pool, scratch: &Scratch, out: Out<'_, i32>) {
        let b_signed = match self.b {
            B::Packed(b) => {
                let same = b.k == self.k && b.n == self.n && b.level == self.level;
                assert!(same, "B is packed for another product");
                b.signed
            }
            B::Strided(b) => b.signed,
        };
        // A is signed where the kernels want it so.
        let signed = cfg!(target_arch = "aarch64");
        let shift = |from: bool, to: bool| i32::from(from) * 128 - i32::from(to) * 128;
        let mut bytes = Bytes {
            gemm: self,
            out,
            turn: if self.a.signed == signed { 0 } else { TURN },
            a_shift: shift(self.a.signed, signed),
            b_shift: shift(b_signed, true),
            b_signed,
            from_b: false,
        };
        let columns = if self.b_zero.is_some_and(|z| z.stride != 0) { self.n } else { 1 };
        // SAFETY: the caller has the zero points.
        bytes.from_b = (0..columns).any(|c| unsafe { bytes.b_zero(c) } != 0);
        // SAFETY: the caller's promises are the same.
        unsafe { run::run(&bytes, pool, scratch) }
    }
}

/// A product of bytes, for [`run`].
struct Bytes<'a> {
    gemm: &'a Gemm<'a>,
    out: Out<'a, i32>,
    /// What turns the bytes of A to those that are multiplied.
    turn: u8,
    /// What is added to the numbers by that, of A and of B.
    a_shift: i32,
    b_shift: i32,
    b_signed: bool,
    /// Whether a zero point of B is not 0.
    from_b: bool,
}

// SAFETY: the addresses are only used by tasks that write disjoint blocks, see `Gemm::run`.
unsafe impl Sync for Bytes<'_> {}

/// The zero point of that number; 0 if there is none.
unsafe fn zero(zeros: Option<Zeros>, at: usize, signed: bool) -> i32 {
    let Some(z) = zeros else { return 0 };
    // SAFETY: the caller has the zero points.
    let byte = unsafe { *z.ptr.offset(at as isize * z.stride) };
    if signed { i32::from(byte.cast_signed()) } else { i32::from(byte) }
}

impl Bytes<'_> {
    fn offsets(&self, batch: usize) -> BatchOffsets {
        self.gemm.batches.get(batch).copied().unwrap_or_default()
    }
    unsafe fn a_zero(&self, row: usize) -> i32 {
        // SAFETY: the caller has the zero points.
        unsafe { zero(self.gemm.a_zero, row, self.gemm.a.signed) + self.a_shift }
    }
    unsafe fn b_zero(&self, col: usize) -> i32 {
        // SAFETY: as above.
        unsafe { zero(self.gemm.b_zero, col, self.b_signed) + self.b_shift }
    }
}

impl Numbers for Bytes<'_> {
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
        _: usize,
        batch: usize,
        rows: Range<usize>,
        ks: Range<usize>,
        (dst, notes, first): (*mut f32, *mut [i32; 2], bool),
    ) {
        let (level, kind) = (self.gemm.level, self.kind());
        let widen = kind == Kind::BytesWiden;
        let each = if widen { GROUP / 2 } else { GROUP };
        let bytes = ks.start * each..(ks.end * each).min(self.gemm.k);
        let Matrix { ptr, strides: [row, col], .. } = self.gemm.a;
        let mut dense = [0u8; micro::KC * GROUP];
        for (i, r) in rows.enumerate() {
            // SAFETY: the caller has A, room for the rows, and a note for each.
            unsafe {
                let at = self.offsets(batch).a + r as isize * row + bytes.start as isize * col;
                let mut src = ptr.wrapping_offset(at);
                if col != 1 && bytes.len() > 1 {
                    for (k, b) in dense.iter_mut().take(bytes.len()).enumerate() {
                        *b = *src.offset(k as isize * col);
                    }
                    src = dense.as_ptr();
                }
                let row = Row { src, len: bytes.len(), turn: self.turn, dst: dst.add(i * LDA).cast() };
                let sum = row.pack(level, widen, self.from_b);
                let note = notes.add(i);
                let before = if first { 0 } else { (*note)[1] };
                *note = [self.a_zero(r), before.wrapping_add(sum)];
            }
        }
    }

    fn packed(&self) -> Option<*const f32> {
        match self.gemm.b {
            B::Packed(b) => Some(b.data.ptr().cast_const().cast()),
            B::Strided(_) => None,
        }
    }

    fn in_place(&self, _: usize) -> Option<(*const f32, isize)> {
        None
    }

    unsafe fn right(&self, batch: usize, cols: Range<usize>, _: Range<usize>, dst: *mut f32) {
        let (B::Strided(b), level) = (self.gemm.b, self.gemm.level) else { return };
        let b = Matrix { ptr: b.ptr.wrapping_offset(self.offsets(batch).b), ..b };
        // SAFETY: the caller has B of this batch and room for the panel, of which it wants all: see `Size::whole_b`.
        unsafe { pack_panel(level, micro::shape(level, self.kind()), self.gemm.k, b, cols, dst.cast()) }
    }

    unsafe fn begin(&self, piece: usize, s: &Start, row: &mut FirstRow) -> Begin {
        if !self.from_b && self.gemm.a_zero.is_none_or(|z| z.stride == 0) {
            // SAFETY: the caller has the zero points.
            let zero = unsafe { self.a_zero(0) };
            if piece > 0 || zero == 0 {
                return Begin::Nothing;
            }
            let panels = s.cols.len().div_ceil(s.width);
            for (panel, row) in row.chunks_exact_mut(s.width).take(panels).enumerate() {
                let head = s.heads.wrapping_add(panel * s.panel).cast::<i32>();
                for (j, first) in row.iter_mut().enumerate() {
                    // SAFETY: the panel has a head.
                    *first = unsafe { *head.add(j) }.wrapping_mul(zero).wrapping_neg();
                }
            }
            return Begin::Row;
        }
        let (k, level) = (self.gemm.k as i32, self.gemm.level);
        for panel in 0..s.cols.len().div_ceil(s.width) {
            let (mut sums, mut zeros) = ([0i32; WIDEST], [0i32; WIDEST]);
            let first = s.cols.start + panel * s.width;
            let used = s.width.min(s.cols.end - first);
            let head = s.heads.wrapping_add(panel * s.panel).cast::<i32>();
            for (j, (sum, zero)) in sums.iter_mut().zip(&mut zeros).take(used).enumerate() {
                // SAFETY: the panel has a head, and the caller the zero points.
                unsafe {
                    *zero = if self.from_b { self.b_zero(first + j) } else { 0 };
                    *sum = (*head.add(j)).wrapping_sub(k.wrapping_mul(*zero));
                }
            }
            let (c, ldc) = (s.c.wrapping_add(panel * s.width).cast::<i32>(), s.ldc);
            let terms = &Terms { sums: &sums, zeros: &zeros, notes: s.notes, more: piece > 0 };
            let (rows, width) = (s.rows, s.width);
            each_level!(level, _FMA, begin_rows => (
                terms: &Terms<'_>, rows: usize, width: usize, c: *mut i32, ldc: isize,
            ));
        }
        Begin::Written
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
            unsafe { sink.block(worker, batch, rows, cols, acc.cast(), stride) }
        }
    }

    fn direct(&self) -> Option<(*mut f32, isize)> {
        match self.out {
            Out::Direct { ptr, row_stride } => Some((ptr.cast(), row_stride)),
            Out::Sink { .. } => None,
        }
    }
}

/// A row of A on its way into the block.
#[derive(Clone, Copy)]
struct Row {
    src: *const u8,
    len: usize,
    turn: u8,
    dst: *mut u32,
}

impl Row {
    /// Packs the row; the sum of its numbers, if it is wanted.
    ///
    /// # Safety
    /// The row is readable, and there is room for whole groups of it.
    unsafe fn pack(self, level: Level, widen: bool, sum: bool) -> i32 {
        let row = self;
        if widen {
            each_level!(level, _FMA, widen_row => (row: Row));
        } else {
            each_level!(level, _FMA, turn_row => (row: Row));
        }
        if sum { each_level!(level, _FMA, sum_row => (row: Row) -> i32) } else { 0 }
    }

    /// The last group, with zeros behind the last byte.
    #[inline(always)]
    unsafe fn rest(&self) -> Option<u32> {
        let whole = self.len / GROUP * GROUP;
        let mut rest = [0u8; GROUP];
        for (i, b) in rest.iter_mut().take(self.len - whole).enumerate() {
            // SAFETY: the caller has the row.
            *b = unsafe { *self.src.add(whole + i) } ^ self.turn;
        }
        (whole < self.len).then(|| u32::from_le_bytes(rest))
    }

    /// A whole group.
    #[inline(always)]
    unsafe fn group(&self, i: usize) -> u32 {
        let turn = u32::from(self.turn) * 0x0101_0101;
        // SAFETY: the caller has the row.
        u32::from_le(unsafe { self.src.add(i * GROUP).cast::<u32>().read_unaligned() }) ^ turn
    }
}

#[inline(always)]
unsafe fn turn_row(row: Row) {
    // SAFETY: the caller has the row and the room.
    unsafe {
        let groups = row.len / GROUP;
        for i in 0..groups {
            *row.dst.add(i) = row.group(i);
        }
        if let Some(rest) = row.rest() {
            *row.dst.add(groups) = rest;
        }
    }
}

/// The even bytes of every group as two i16, then the odd ones.
#[inline(always)]
unsafe fn widen_row(row: Row) {
    const EVEN: u32 = 0x00ff_00ff;
    // SAFETY: as above.
    unsafe {
        let groups = row.len / GROUP;
        for i in 0..groups {
            let group = row.group(i);
            *row.dst.add(2 * i) = group & EVEN;
            *row.dst.add(2 * i + 1) = group >> 8 & EVEN;
        }
        if let Some(rest) = row.rest() {
            *row.dst.add(2 * groups) = rest & EVEN;
            *row.dst.add(2 * groups + 1) = rest >> 8 & EVEN;
        }
    }
}

#[inline(always)]
unsafe fn sum_row(row: Row) -> i32 {
    let mut sum = 0i32;
    for i in 0..row.len {
        // SAFETY: the caller has the row.
        let byte = unsafe { *row.src.add(i) } ^ row.turn;
        sum += if cfg!(target_arch = "aarch64") { i32::from(byte.cast_signed()) } else { i32::from(byte) };
    }
    sum
}

/// What sums begin with: of each column the sum of B less k zero points, and the zero point; of each row the zero point and
/// the sum of A in this piece of k.
struct Terms<'a> {
    sums: &'a [i32; WIDEST],
    zeros: &'a [i32; WIDEST],
    notes: *const [i32; 2],
    /// Whether the sums have begun with earlier pieces.
    more: bool,
}

#[inline(always)]
unsafe fn begin_rows(t: &Terms<'_>, rows: usize, width: usize, c: *mut i32, ldc: isize) {
    for r in 0..rows {
        // SAFETY: the caller has the rows of C and their notes.
        unsafe {
            let ([zero, sum], c) = (*t.notes.add(r), c.offset(r as isize * ldc));
            for (j, (own, b_zero)) in t.sums.iter().zip(t.zeros).take(width).enumerate() {
                let from_a = if t.more { *c.add(j) } else { zero.wrapping_mul(*own).wrapping_neg() };
                *c.add(j) = from_a.wrapping_sub(sum.wrapping_mul(*b_zero));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine has one way to multiply at a level; the other one, without the instruction for four bytes, is compiled for it
    /// all the same.
    #[cfg(target_arch = "x86_64")]
    #[test]
    #[allow(clippy::unwrap_used, clippy::indexing_slicing)]
    fn both_ways_agree() {
        let (pool, level) = (Pool::new(2), Level::detect());
        for (m, n, k) in [(1, 70, 9), (13, 33, 130), (40, 64, 66), (3, 200, 2100)] {
            let byte = |i: usize| (i * 37 % 251) as u8;
            let (a, b): (Vec<u8>, Vec<u8>) =
                ((0..m * k).map(byte).collect(), (0..k * n).map(|i| byte(i + 100)).collect());
            let zero = [200u8, 3];
            let matrix = |data: &[u8], cols: usize, signed: bool| Matrix {
                ptr: data.as_ptr(),
                strides: [cols as isize, 1],
                signed,
            };
            let [dot, widened] = [Kind::of_bytes(level), Kind::BytesWiden].map(|kind| {
                let mut c = vec![0i32; m * n];
                // SAFETY: everything is in memory.
                unsafe {
                    let packed = PackedB::pack_as(level, kind, k, n, matrix(&b, n, true), &pool);
                    let gemm = Gemm {
                        level,
                        m,
                        n,
                        k,
                        a: matrix(&a, k, false),
                        a_zero: Some(Zeros { ptr: zero.as_ptr(), stride: 0 }),
                        b: B::Packed(&packed),
                        b_zero: Some(Zeros { ptr: zero[1..].as_ptr(), stride: 0 }),
                        batches: &[BatchOffsets::default()],
                    };
                    let out = Out::Direct { ptr: c.as_mut_ptr(), row_stride: n as isize };
                    let size = gemm.scratch(&out);
                    let buffer = Buffer::new(size.total(2));
                    gemm.run(&pool, &Scratch::new(buffer.ptr(), size, 2), out);
                }
                c
            });
            assert_eq!(dot, widened, "{m}x{k}x{n}");
        }
    }
}

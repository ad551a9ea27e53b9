//! The forward pass for few queries: the lanes run along d, and all query heads of a key head go together, so that keys
//! and values are read once. A long sequence is split into pieces of fixed size, whose results are then put together.

use super::forward::{Attention, Out};
use super::lanes::{Kernel, Lanes, MAX_LANES};
use super::{Block, ROWS, Real};
use crate::level::Level;
use crate::mem::{Ptr, Scratch, ScratchSize};
use crate::pool::Pool;

/// At most as many queries per head are few.
pub(super) const QUERIES: usize = 4;
/// Keys of a piece.
const PIECE: usize = 512;
/// With as many heads there is enough to do at once without pieces.
const ENOUGH: usize = 64;

/// Attention of few queries.
pub(super) struct Narrow<'a, T> {
    pub attention: &'a Attention<T>,
}

/// One piece of the keys of one key head, or (with `combine`) all pieces' results.
struct NarrowTask<'a, T> {
    narrow: &'a Narrow<'a, T>,
    head: usize,
    piece: usize,
    combine: bool,
    each: Ptr<T>,
    shared: Ptr<T>,
    out: Out<'a, T>,
    worker: usize,
}

impl<T: Real> Narrow<'_, T> {
    fn pieces(&self) -> usize {
        let x = self.attention.scores.sizes();
        let groups = x.b * x.hkv;
        if groups >= ENOUGH || x.t <= 2 * PIECE { 1 } else { x.t.div_ceil(PIECE) }
    }
    /// Queries that share keys.
    fn rows(&self) -> usize {
        let x = self.attention.scores.sizes();
        x.group * x.s
    }
    fn padded(&self) -> [usize; 2] {
        [self.attention.scores.sizes().d, self.attention.v.shape[3]].map(|n| n.next_multiple_of(MAX_LANES))
    }
    /// The result of a row in a piece: the sums, the greatest score and the sum of the weights.
    fn record(&self) -> usize {
        self.padded()[1] + MAX_LANES
    }
    fn each_len(&self) -> usize {
        self.rows() * (self.padded()[0] + ROWS + self.record()) + ROWS
    }
    fn shared_len(&self) -> usize {
        let x = self.attention.scores.sizes();
        if self.pieces() > 1 { x.b * x.hkv * self.pieces() * self.rows() * self.record() } else { 0 }
    }

    pub fn scratch(&self) -> ScratchSize {
        ScratchSize { each: self.each_len() * size_of::<T>(), shared: self.shared_len() * size_of::<T>() }
    }

    pub fn run(&self, level: Level, pool: &Pool, scratch: &Scratch, out: Out<'_, T>) {
        let x = self.attention.scores.sizes();
        let (heads, pieces) = (x.b * x.hkv, self.pieces());
        if self.rows() == 0 {
            return;
        }
        let shared = Ptr(scratch.shared::<T>(self.shared_len()));
        for combine in [false, true] {
            let tasks = if combine { heads } else { heads * pieces };
            if combine && pieces == 1 {
                break;
            }
            pool.run(tasks, |task, worker| {
                let each = Ptr(scratch.each::<T>(worker, self.each_len()));
                let (head, piece) = if combine { (task, 0) } else { (task / pieces, task % pieces) };
                let task = NarrowTask { narrow: self, head, piece, combine, each, shared, out, worker };
                T::at_level(level, task);
            });
        }
    }
}

impl<T: Real> Kernel<T> for NarrowTask<'_, T> {
    #[inline(always)]
    fn run<V: Lanes<T = T>>(self) {
        let n = self.narrow;
        let (rows, record, pieces) = (n.rows(), n.record(), n.pieces());
        // SAFETY: `Attention::run` has valid views and scratch of the sizes above; each task has its own records, and
        // those of the first stage are complete before the second.
        unsafe {
            let records = if pieces > 1 {
                self.shared.0.add((self.head * pieces + self.piece) * rows * record)
            } else {
                self.each.0.add(rows * (n.padded()[0] + ROWS) + ROWS)
            };
            if !self.combine {
                self.gather::<V>(records);
            }
            if self.combine || pieces == 1 {
                for row in 0..rows {
                    let first = records.add(row * record);
                    for piece in 1..pieces {
                        self.merge::<V>(first, first.add(piece * rows * record));
                    }
                    self.finish::<V>(row, first);
                }
                if let Out::Sink(sink) = self.out {
                    let x = n.attention.scores.sizes();
                    for g in 0..x.group {
                        let (head, first) = (self.head * x.group + g, records.add(g * x.s * record));
                        sink.block(self.worker, head, 0..x.s, 0..n.attention.v.shape[3], first, record);
                    }
                }
            }
        }
    }
}

impl<T: Real> NarrowTask<'_, T> {
    /// Adds one record to another.
    #[inline(always)]
    unsafe fn merge<V: Lanes<T = T>>(&self, to: *mut T, from: *const T) {
        let dv = self.narrow.padded()[1];
        // SAFETY: both are records.
        unsafe {
            let (a, b) = (*to.add(dv), *from.add(dv));
            let top = if b > a { b } else { a };
            let base = V::splat(if top < T::MIN { T::ZERO } else { top });
            let (fade, share) = ((V::splat(a) - base).exp2(), (V::splat(b) - base).exp2());
            for c in (0..dv).step_by(V::N) {
                let sum = V::load(to.add(c)) * fade;
                V::load(from.add(c)).fma(share, sum).store(to.add(c));
            }
            let sum = V::splat(*from.add(dv + 1)).fma(share, V::splat(*to.add(dv + 1)) * fade);
            sum.store_part(to.add(dv + 1), 1);
            *to.add(dv) = top;
        }
    }

    /// Makes a record the result of its row, and writes it unless a sink takes it.
    #[inline(always)]
    unsafe fn finish<V: Lanes<T = T>>(&self, row: usize, record: *mut T) {
        let (a, n) = (self.narrow.attention, self.narrow);
        let [padded, dv] = [n.padded()[1], a.v.shape[3]];
        // SAFETY: the record is complete, and only this task writes this row of the result.
        unsafe {
            let sum = V::splat(*record.add(padded + 1));
            let share = V::of(0.0).if_less(sum, V::of(1.0) / sum, sum);
            for c in (0..dv).step_by(V::N) {
                (V::load(record.add(c)) * share).store(record.add(c));
            }
            let Out::Direct(y) = self.out else { return };
            let [b, h, i] = self.query(row);
            let to = y.at([b, h, i, 0]);
            for c in 0..dv {
                *to.offset(c as isize * y.strides[3]) = *record.add(c);
            }
        }
    }

    /// Batch, head and query of a row.
    fn query(&self, row: usize) -> [usize; 3] {
        let x = self.narrow.attention.scores.sizes();
        let (b, hkv) = (self.head / x.hkv, self.head % x.hkv);
        [b, hkv * x.group + row / x.s, row % x.s]
    }

    /// The keys of a block that a row sees, mask and bias aside.
    #[inline(always)]
    fn sees(&self, row: usize, from: usize, to: usize) -> (usize, usize) {
        let [.., i] = self.query(row);
        let (low, high) = self.narrow.attention.scores.keys_of(i, i + 1);
        (low.max(from), high.min(to))
    }

    /// Goes over the keys of the piece.
    #[inline(always)]
    unsafe fn gather<V: Lanes<T = T>>(&self, records: *mut T) {
        let (a, n) = (self.narrow.attention, self.narrow);
        let x = a.scores.sizes();
        let (rows, record, [d, dv]) = (n.rows(), n.record(), n.padded());
        let (b, hkv) = (self.head / x.hkv, self.head % x.hkv);
        let pieces = n.pieces();
        let (start, end) =
            if pieces == 1 { (0, x.t) } else { (self.piece * PIECE, ((self.piece + 1) * PIECE).min(x.t)) };
        // SAFETY: as said in `run`; keys and rows are within the views.
        unsafe {
            let (q, s) = (self.each.0, self.each.0.add(rows * d));
            let (add, factor) = (s.add(rows * ROWS), T::of(a.scores.factor()));
            for row in 0..rows {
                let [b, h, i] = self.query(row);
                let (to, from) = (q.add(row * d), a.scores.q.at([b, h, i, 0]));
                for c in 0..x.d {
                    *to.add(c) = *from.offset(c as isize * a.scores.q.strides[3]) * factor;
                }
                (x.d..d).for_each(|c| *to.add(c) = T::ZERO);
                let to = records.add(row * record);
                (0..record).for_each(|c| *to.add(c) = T::ZERO);
                *to.add(dv) = T::NEG_INFINITY;
            }
            let (ks, vs) = (a.scores.k.strides[2], a.v.strides[2]);
            let mut j = start;
            while j < end {
                let block_end = (j + ROWS).min(end);
                // First all scores, then all sums: keys and values in turn stay in the L1 cache.
                let mut row = 0;
                while row < rows {
                    // Two rows that see the same keys share their loads.
                    let [(low, high), other] =
                        [row, (row + 1).min(rows - 1)].map(|row| self.sees(row, j, block_end));
                    let together = if row + 1 < rows && (low, high) == other { 2 } else { 1 };
                    if low < high {
                        let k = a.scores.k.at([b, hkv, low, 0]);
                        let to = s.add(row * ROWS);
                        if together == 2 {
                            dots::<V, 2>(q.add(row * d), d, k, ks, x.d, high - low, to);
                        } else {
                            dots::<V, 1>(q.add(row * d), d, k, ks, x.d, high - low, to);
                        }
                    }
                    row += together;
                }
                for row in 0..rows {
                    let (low, high) = self.sees(row, j, block_end);
                    if low >= high {
                        continue;
                    }
                    let ([_, h, i], s) = (self.query(row), s.add(row * ROWS));
                    let block = Block {
                        at: [b, h],
                        row: i,
                        rows: 1,
                        lane: low,
                        lanes: high - low,
                        keys_in_lanes: true,
                    };
                    let addend = a.scores.addend::<V>(&block, add);
                    if addend.is_some_and(|a| a.nothing) {
                        continue;
                    }
                    a.scores.finish::<V>(&block, s, addend, std::ptr::null_mut());
                    let v = a.v.at([b, hkv, low, 0]);
                    self.add::<V>(records.add(row * record), s, block.lanes, v, vs);
                }
                j = block_end;
            }
        }
    }

    /// Takes the scores of `n` keys into a record.
    #[inline(always)]
    unsafe fn add<V: Lanes<T = T>>(&self, record: *mut T, s: *mut T, n: usize, v: *const T, vs: isize) {
        let (dv, padded) = (self.narrow.attention.v.shape[3], self.narrow.padded()[1]);
        // SAFETY: s holds whole vectors of scores, v that many rows.
        unsafe {
            for l in n..n.next_multiple_of(V::N) {
                *s.add(l) = T::NEG_INFINITY;
            }
            let before = *record.add(padded);
            let mut top = V::splat(before);
            for l in (0..n).step_by(V::N) {
                top = V::load(s.add(l)).max(top);
            }
            let top = top.top();
            let base = V::splat(if top < T::MIN { T::ZERO } else { top });
            let fade = (V::splat(before) - base).exp2();
            let mut sum = V::of(0.0);
            for l in (0..n).step_by(V::N) {
                let weight = (V::load(s.add(l)) - base).exp2();
                weight.store(s.add(l));
                sum = sum + weight;
            }
            *record.add(padded) = top;
            (V::splat(*record.add(padded + 1)).fma(fade, V::splat(sum.sum())))
                .store_part(record.add(padded + 1), 1);
            let mut c = 0;
            while c + 8 * V::N <= dv {
                weigh::<V, 8>(record.add(c), fade, s, n, v.add(c), vs, V::N);
                c += 8 * V::N;
            }
            while c + 2 * V::N <= dv {
                weigh::<V, 2>(record.add(c), fade, s, n, v.add(c), vs, V::N);
                c += 2 * V::N;
            }
            while c < dv {
                weigh::<V, 1>(record.add(c), fade, s, n, v.add(c), vs, V::N.min(dv - c));
                c += V::N;
            }
        }
    }
}

/// Products of `RB` padded rows with `n` rows of length `d`, each into whole vectors, `ROWS` apart.
#[inline(always)]
unsafe fn dots<V: Lanes, const RB: usize>(
    q: *const V::T,
    padded: usize,
    k: *const V::T,
    stride: isize,
    d: usize,
    n: usize,
    to: *mut V::T,
) {
    /// Rows at a time: as many addresses as registers hold.
    const KEYS: usize = 8;
    let whole = d / V::N * V::N;
    for l in (0..n).step_by(V::N) {
        let mut all = [[V::of(0.0); MAX_LANES]; RB];
        for first in (0..V::N).step_by(KEYS) {
            let mut acc = [[V::of(0.0); KEYS]; RB];
            // SAFETY: rows past the last are the last once more; the end of a row is read in part.
            unsafe {
                let rows: [*const V::T; KEYS] =
                    std::array::from_fn(|i| k.offset((l + first + i).min(n - 1) as isize * stride));
                for c in (0..whole).step_by(V::N) {
                    let q: [V; RB] = std::array::from_fn(|r| V::load(q.add(r * padded + c)));
                    for (i, row) in rows.into_iter().enumerate().take(V::N) {
                        let k = V::load(row.add(c));
                        for (acc, q) in acc.iter_mut().zip(q) {
                            if let Some(acc) = acc.get_mut(i) {
                                *acc = k.fma(q, *acc);
                            }
                        }
                    }
                }
                if whole < d {
                    let q: [V; RB] = std::array::from_fn(|r| V::load(q.add(r * padded + whole)));
                    for (i, row) in rows.into_iter().enumerate().take(V::N) {
                        let k = V::load_part(row.add(whole), d - whole);
                        for (acc, q) in acc.iter_mut().zip(q) {
                            if let Some(acc) = acc.get_mut(i) {
                                *acc = k.fma(q, *acc);
                            }
                        }
                    }
                }
            }
            for (all, acc) in all.iter_mut().zip(acc) {
                for (to, x) in all.iter_mut().skip(first).zip(acc) {
                    *to = x;
                }
            }
        }
        for (r, all) in all.iter().enumerate() {
            // SAFETY: a row of `to` has room for whole vectors of keys.
            unsafe { V::sums(all).store(to.add(r * ROWS + l)) };
        }
    }
}

/// Adds the weighted rows of `VB` vectors (the last of `part` lanes). A key of weight 0 leaves no trace, whatever its
/// value.
#[inline(always)]
unsafe fn weigh<V: Lanes, const VB: usize>(
    to: *mut V::T,
    fade: V,
    s: *const V::T,
    n: usize,
    v: *const V::T,
    stride: isize,
    part: usize,
) {
    // SAFETY: by the contract of the caller.
    unsafe {
        let mut acc: [V; VB] = std::array::from_fn(|i| V::load(to.add(i * V::N)) * fade);
        for j in 0..n {
            let weight = *s.add(j);
            if weight == V::T::ZERO {
                continue;
            }
            let (weight, row) = (V::splat(weight), v.offset(j as isize * stride));
            for (i, acc) in acc.iter_mut().enumerate() {
                let x = if part == V::N { V::load(row.add(i * V::N)) } else { V::load_part(row, part) };
                *acc = x.fma(weight, *acc);
            }
        }
        for (i, acc) in acc.into_iter().enumerate() {
            acc.store(to.add(i * V::N));
        }
    }
}

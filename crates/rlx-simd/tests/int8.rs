//! Products of bytes against an obvious loop, at every level, with every kind of operand, zero point and output.

#![allow(clippy::indexing_slicing, clippy::unwrap_used, missing_docs)]

use rlx_simd::gemm::int8::{B, Gemm, Matrix, PackedB, Zeros};
use rlx_simd::gemm::{BatchOffsets, Out, Sink};
use rlx_simd::level::Level;
use rlx_simd::mem::{Buffer, Ptr, Scratch};
use rlx_simd::pool::Pool;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

struct Random(u64);
impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    /// Bytes, many of them at the ends of the ranges, where sums of products are largest.
    fn bytes(&mut self, n: usize) -> Vec<u8> {
        let ends = [0, 127, 128, 255];
        (0..n).map(|_| if self.below(2) == 0 { ends[self.below(4)] } else { self.next() as u8 }).collect()
    }
}

fn number(byte: u8, signed: bool) -> i32 {
    if signed { i32::from(byte.cast_signed()) } else { i32::from(byte) }
}

/// A matrix in memory with strides, one for each batch.
struct Bytes {
    data: Vec<u8>,
    first: usize,
    strides: [isize; 2],
    batch: isize,
    signed: bool,
}

impl Bytes {
    fn random(r: &mut Random, rows: usize, cols: usize, batches: usize, order: usize, signed: bool) -> Bytes {
        let pad = r.below(4);
        let (strides, one) = match order {
            0 => ([(cols + pad) as isize, 1], rows * (cols + pad)),
            1 => ([1, (rows + pad) as isize], cols * (rows + pad)),
            2 => ([3 * (cols + pad) as isize, 3], 3 * rows * (cols + pad)),
            _ => ([-((cols + pad) as isize), 1], rows * (cols + pad)),
        };
        let first = if order == 3 { rows.saturating_sub(1) * (cols + pad) } else { 0 };
        Bytes { data: r.bytes(one * batches.max(1) + 1), first, strides, batch: one as isize, signed }
    }
    fn matrix(&self) -> Matrix {
        Matrix { ptr: self.data[self.first..].as_ptr(), strides: self.strides, signed: self.signed }
    }
    fn at(&self, batch: usize, r: usize, c: usize) -> i32 {
        let i = self.first as isize
            + batch as isize * self.batch
            + r as isize * self.strides[0]
            + c as isize * self.strides[1];
        number(self.data[i as usize], self.signed)
    }
}

/// Stores what it gets plus one, and counts.
struct Store {
    out: Ptr<i32>,
    hits: Vec<AtomicU32>,
    m: usize,
    n: usize,
    whole_rows: bool,
}

impl Sink<i32> for Store {
    unsafe fn block(
        &self,
        _: usize,
        batch: usize,
        rows: Range<usize>,
        cols: Range<usize>,
        acc: *mut i32,
        stride: usize,
    ) {
        assert!(!self.whole_rows || cols == (0..self.n));
        for (i, r) in rows.enumerate() {
            for (j, c) in cols.clone().enumerate() {
                let at = (batch * self.m + r) * self.n + c;
                self.hits[at].fetch_add(1, Ordering::Relaxed);
                // SAFETY: the block is within memory, the output has every element.
                unsafe {
                    *self.out.0.add(at) = (*acc.add(i * stride + j)).wrapping_add(1);
                    *acc.add(i * stride + j) = i32::MIN;
                }
            }
        }
    }
}

/// Zero points of one kind: none, one, or one for each row or column.
struct ZeroPoints {
    data: Vec<u8>,
    kind: usize,
}

impl ZeroPoints {
    fn random(r: &mut Random, n: usize, kind: usize) -> ZeroPoints {
        ZeroPoints { data: r.bytes(n.max(1)), kind }
    }
    fn given(&self) -> Option<Zeros> {
        let stride = (self.kind == 2) as isize;
        (self.kind > 0).then_some(Zeros { ptr: self.data.as_ptr(), stride })
    }
    fn at(&self, i: usize, signed: bool) -> i32 {
        match self.kind {
            0 => 0,
            1 => number(self.data[0], signed),
            _ => number(self.data[i], signed),
        }
    }
}

struct Case {
    size: [usize; 3],
    batches: usize,
    orders: [usize; 2],
    signed: [bool; 2],
    zeros: [usize; 2],
    same_b: bool,
}

fn check(r: &mut Random, pools: &[Pool], c: &Case) {
    let [m, k, n] = c.size;
    let a = Bytes::random(r, m, k, c.batches, c.orders[0], c.signed[0]);
    let mut b = Bytes::random(r, k, n, c.batches, c.orders[1], c.signed[1]);
    if c.same_b {
        b.batch = 0;
    }
    let (az, bz) = (ZeroPoints::random(r, m, c.zeros[0]), ZeroPoints::random(r, n, c.zeros[1]));
    let offsets: Vec<BatchOffsets> = (0..c.batches as isize)
        .map(|i| BatchOffsets { a: i * a.batch, b: i * b.batch, c: i * (m * n) as isize })
        .collect();
    let mut want = Vec::new();
    for (i, r, j) in (0..c.batches).flat_map(|i| (0..m).flat_map(move |r| (0..n).map(move |j| (i, r, j)))) {
        let (za, zb) = (az.at(r, c.signed[0]), bz.at(j, c.signed[1]));
        want.push(
            (0..k).map(|kk| (a.at(i, r, kk) - za) * (b.at(i, kk, j) - zb)).fold(0i32, i32::wrapping_add),
        );
    }
    let what = format!(
        "{m}x{k}x{n} of {}, orders {:?}, signed {:?}, zeros {:?}",
        c.batches, c.orders, c.signed, c.zeros
    );
    for level in Level::available() {
        for pool in pools {
            // SAFETY: B is in memory.
            let packed = unsafe { PackedB::pack(level, k, n, b.matrix(), pool) };
            let operands = [Some(B::Strided(b.matrix())), c.same_b.then_some(B::Packed(&packed))];
            for (loose, operand) in operands.into_iter().enumerate().filter_map(|(i, b)| Some((i == 0, b?))) {
                let gemm = Gemm {
                    level,
                    m,
                    n,
                    k,
                    a: a.matrix(),
                    a_zero: az.given(),
                    b: operand,
                    b_zero: bz.given(),
                    batches: &offsets,
                };
                for mode in 0..3 {
                    let mut got = vec![i32::MAX; c.batches * m * n];
                    let store = Store {
                        out: Ptr(got.as_mut_ptr()),
                        hits: (0..got.len()).map(|_| AtomicU32::new(0)).collect(),
                        m,
                        n,
                        whole_rows: mode == 2,
                    };
                    let out = match mode {
                        0 => Out::Direct { ptr: got.as_mut_ptr(), row_stride: n as isize },
                        _ => Out::Sink { sink: &store, whole_rows: mode == 2 },
                    };
                    let size = gemm.scratch(&out);
                    let buffer = Buffer::new(size.total(pool.threads()));
                    // SAFETY: everything is in memory.
                    unsafe {
                        let scratch = Scratch::new(buffer.ptr(), size, pool.threads());
                        gemm.run(pool, &scratch, out);
                    }
                    let hits = store.hits.iter().all(|h| h.load(Ordering::Relaxed) == (mode > 0) as u32);
                    assert!(hits, "{what}: a block came twice or never");
                    let plus = (mode > 0) as i32;
                    let off = got.iter().zip(&want).position(|(g, w)| g.wrapping_sub(plus) != *w);
                    assert!(
                        off.is_none(),
                        "{what} {level}, {} threads, loose {loose}, mode {mode}: element {off:?}",
                        pool.threads()
                    );
                }
            }
        }
    }
}

fn pools() -> Vec<Pool> {
    [1, 2, 3].map(Pool::new).into()
}

#[test]
fn random_products_are_exact() {
    let (mut r, pools) = (Random(1), pools());
    for i in 0..120 {
        let size = [r.below(40), r.below(90), r.below(100)];
        let case = Case {
            size,
            batches: 1 + r.below(3),
            orders: [r.below(4), r.below(4)],
            signed: [r.below(2) == 0, r.below(2) == 0],
            zeros: [i % 3, i / 3 % 3],
            same_b: r.below(2) == 0,
        };
        check(&mut r, &pools, &case);
    }
}

/// Every number of rows that a micro-kernel takes, every rest of k and of the columns, all signs.
#[test]
fn every_edge_is_exact() {
    let (mut r, pools) = (Random(2), pools());
    for m in 1..=16 {
        for (i, signed) in
            [[false, true], [true, true], [false, false], [true, false]].into_iter().enumerate()
        {
            let size = [m, 61 + i, [1, 15, 17, 33, 64, 130][(m + i) % 6]];
            let zeros = [m % 3, (m + i) % 3];
            check(&mut r, &pools, &Case { size, batches: 1, orders: [0, 0], signed, zeros, same_b: true });
        }
    }
}

/// So long a k that A is packed in pieces, and sums stay in memory between them.
#[test]
fn long_products_are_exact() {
    let (mut r, pools) = (Random(3), pools());
    for (size, zeros) in
        [([3, 2049, 5], [1, 2]), ([20, 6150, 40], [2, 1]), ([1, 13001, 70], [1, 1]), ([15, 4096, 33], [0, 0])]
    {
        let signed = [false, true];
        check(&mut r, &pools, &Case { size, batches: 1, orders: [0, 1], signed, zeros, same_b: true });
    }
}

#[test]
fn large_products_are_exact() {
    let (mut r, pools) = (Random(4), pools());
    for size in [[300, 70, 100], [40, 64, 700]] {
        let (signed, zeros) = ([false, true], [1, 0]);
        check(&mut r, &pools, &Case { size, batches: 2, orders: [0, 0], signed, zeros, same_b: true });
    }
}

/// The largest sums that are: four products of the largest bytes at once overflow 16 bits.
#[test]
fn nothing_saturates() {
    let pool = Pool::new(1);
    for (a, b) in [(255u8, 127u8), (255, 128), (128, 128)] {
        for level in Level::available() {
            let (x, y) = (vec![a; 64], vec![b; 64 * 32]);
            let matrix =
                |data: &[u8], cols: isize, signed| Matrix { ptr: data.as_ptr(), strides: [cols, 1], signed };
            // SAFETY: everything is in memory.
            unsafe {
                let packed = PackedB::pack(level, 64, 32, matrix(&y, 32, true), &pool);
                let gemm = Gemm {
                    level,
                    m: 1,
                    n: 32,
                    k: 64,
                    a: matrix(&x, 64, false),
                    a_zero: None,
                    b: B::Packed(&packed),
                    b_zero: None,
                    batches: &[BatchOffsets::default()],
                };
                let mut c = vec![0i32; 32];
                let out = Out::Direct { ptr: c.as_mut_ptr(), row_stride: 32 };
                let size = gemm.scratch(&out);
                let buffer = Buffer::new(size.total(1));
                gemm.run(&pool, &Scratch::new(buffer.ptr(), size, 1), out);
                assert_eq!(c, [64 * number(a, false) * number(b, true); 32], "{level}");
            }
        }
    }
}

/// A product of no steps is what zero points make of it: nothing.
#[test]
fn nothing_is_summed_to_zero() {
    let (mut r, pools) = (Random(5), pools());
    for zeros in [[0, 0], [1, 2], [2, 1]] {
        let signed = [true, false];
        check(
            &mut r,
            &pools,
            &Case { size: [5, 0, 7], batches: 1, orders: [0, 0], signed, zeros, same_b: true },
        );
    }
}

//! Products against an obvious loop in f64, at every level, with every kind of operand and output.

#![allow(clippy::indexing_slicing, clippy::unwrap_used, missing_docs)]

use rlx_simd::gemm::generic::{Generic, gemm_generic, gemm_generic_scratch};
use rlx_simd::gemm::{A, B, BatchOffsets, Gemm, Out, PackKind, PackedB, RowSource, Sink, fills};
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
    fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| (self.next() as f64 / (1u64 << 31) as f64 * 2.0 - 1.0) as f32).collect()
    }
}

/// A matrix in memory with strides, one for each batch.
#[derive(Clone)]
struct Matrix {
    data: Vec<f32>,
    first: usize,
    strides: [isize; 2],
    batch: isize,
}

impl Matrix {
    fn random(r: &mut Random, rows: usize, cols: usize, batches: usize, order: usize) -> Matrix {
        let pad = r.below(4);
        let (strides, one) = match order {
            0 => ([(cols + pad) as isize, 1], rows * (cols + pad)),
            1 => ([1, (rows + pad) as isize], cols * (rows + pad)),
            2 => ([3 * (cols + pad) as isize, 3], 3 * rows * (cols + pad)),
            _ => ([-((cols + pad) as isize), 1], rows * (cols + pad)),
        };
        let first = if order == 3 { rows.saturating_sub(1) * (cols + pad) } else { 0 };
        Matrix { data: r.floats(one * batches.max(1) + 1), first, strides, batch: one as isize }
    }
    fn ptr(&self) -> *const f32 {
        self.data[self.first..].as_ptr()
    }
    fn at(&self, batch: usize, r: usize, c: usize) -> f32 {
        let i = self.first as isize
            + batch as isize * self.batch
            + r as isize * self.strides[0]
            + c as isize * self.strides[1];
        self.data[i as usize]
    }
}

impl RowSource for Matrix {
    unsafe fn fill(
        &self,
        _: usize,
        batch: usize,
        rows: Range<usize>,
        ks: Range<usize>,
        dst: *mut f32,
        stride: usize,
    ) {
        for (i, r) in rows.enumerate() {
            for (j, k) in ks.clone().enumerate() {
                // SAFETY: the product gives room for the rows.
                unsafe { *dst.add(i * stride + j) = self.at(batch, r, k) }
            }
        }
    }
}

/// Stores what it gets plus one, and counts.
struct Store {
    out: Ptr<f32>,
    hits: Vec<AtomicU32>,
    m: usize,
    n: usize,
    whole_rows: bool,
}

impl Sink for Store {
    unsafe fn block(
        &self,
        _: usize,
        batch: usize,
        rows: Range<usize>,
        cols: Range<usize>,
        acc: *mut f32,
        stride: usize,
    ) {
        assert!(!self.whole_rows || cols == (0..self.n));
        for (i, r) in rows.enumerate() {
            for (j, c) in cols.clone().enumerate() {
                let at = (batch * self.m + r) * self.n + c;
                self.hits[at].fetch_add(1, Ordering::Relaxed);
                // SAFETY: the block is within memory, the output has every element.
                unsafe {
                    *self.out.0.add(at) = *acc.add(i * stride + j) + 1.0;
                    *acc.add(i * stride + j) = f32::NAN;
                }
            }
        }
    }
}

struct Case {
    m: usize,
    n: usize,
    k: usize,
    batches: usize,
    a_order: usize,
    b_order: usize,
    same_b: bool,
}

fn bf16(x: f32) -> f32 {
    half::bf16::from_f32(x).to_f32()
}

/// Every way to compute the case gives the same bits at a level; returns C.
fn check(r: &mut Random, pools: &[Pool], c: &Case) {
    let Case { m, n, k, batches, .. } = *c;
    let a = Matrix::random(r, m, k, batches, c.a_order);
    let mut b = Matrix::random(r, k, n, batches, c.b_order);
    if c.same_b {
        b.batch = 0;
    }
    let offsets: Vec<BatchOffsets> = (0..batches as isize)
        .map(|i| BatchOffsets { a: i * a.batch, b: i * b.batch, c: i * (m * n) as isize })
        .collect();
    let reference = |round: fn(f32) -> f32| -> Vec<(f64, f64)> {
        let mut out = Vec::new();
        for (i, r, c) in (0..batches).flat_map(|i| (0..m).flat_map(move |r| (0..n).map(move |c| (i, r, c)))) {
            let terms = (0..k).map(|kk| f64::from(round(a.at(i, r, kk))) * f64::from(round(b.at(i, kk, c))));
            out.push(terms.fold((0.0, 0.0), |(s, t), x| (s + x, t + x.abs())));
        }
        out
    };
    let what = format!("{m}x{k}x{n} of {batches}, orders {} {}", c.a_order, c.b_order);
    let close = |got: &[f32], want: &[(f64, f64)], plus: f64, level: Level| {
        for (i, (g, (w, size))) in got.iter().zip(want).enumerate() {
            let bound = (size + plus) * (k as f64 * 0.5 + 4.0) * f64::from(f32::EPSILON);
            assert!((f64::from(*g) - w - plus).abs() <= bound, "{what} {level} at {i}: {g} for {w}");
        }
    };
    let exact = reference(|x| x);
    let rounded = (batches == 1 || c.same_b).then(|| reference(bf16));
    for level in Level::available() {
        let (pa, pb) = (
            A::Strided { ptr: a.ptr(), strides: a.strides },
            B::Strided { ptr: b.ptr(), strides: b.strides },
        );
        let mut first: Option<Vec<f32>> = None;
        for pool in pools {
            let run = |ga: A<'_>, gb: B<'_>, mode: usize| -> Vec<f32> {
                let gemm = Gemm { level, m, n, k, a: ga, b: gb, batches: &offsets };
                let mut got = vec![f32::NAN; batches * m * n];
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
                // SAFETY: all memory is there, and the scratch as large as asked for.
                unsafe {
                    let scratch = Scratch::new(buffer.ptr(), size, pool.threads());
                    gemm.run(pool, &scratch, out);
                }
                assert!(
                    mode == 0 || store.hits.iter().all(|h| h.load(Ordering::Relaxed) == 1),
                    "{what}: not once"
                );
                got
            };
            // SAFETY: the matrix is in memory.
            let pack =
                |kind| unsafe { PackedB::pack(level, kind, k, n, b.ptr(), b.strides[0], b.strides[1], pool) };
            let direct = run(pa, pb, 0);
            close(&direct, &exact, 0.0, level);
            let same = |x: &[f32], y: &[f32]| x.iter().zip(y).all(|(x, y)| x.to_bits() == y.to_bits());
            assert!(
                first.as_ref().is_none_or(|f| same(f, &direct)),
                "{what} {level}: bits depend on the threads"
            );
            let plus: Vec<f32> = direct.iter().map(|x| x + 1.0).collect();
            assert!(same(&run(A::Rows(&a), pb, 1), &plus), "{what} {level}: sink, rows");
            assert!(same(&run(pa, pb, 2), &plus), "{what} {level}: sink of whole rows");
            if batches == 1 || c.same_b {
                let packed = pack(PackKind::F32);
                assert!(same(&run(pa, B::Packed(&packed), 0), &direct), "{what} {level}: packed");
                assert!(
                    same(&run(A::Rows(&a), B::Packed(&packed), 2), &plus),
                    "{what} {level}: packed, whole rows"
                );
                assert!(same(&run(pa, B::Packed(&packed), 1), &plus), "{what} {level}: packed, sink");
                let packed = pack(PackKind::Bf16);
                let got = run(pa, B::Packed(&packed), 0);
                close(&got, rounded.as_ref().unwrap(), 0.0, level);
                let sunk: Vec<f32> = got.iter().map(|x| x + 1.0).collect();
                assert!(same(&run(A::Rows(&a), B::Packed(&packed), 1), &sunk), "{what} {level}: bf16, sink");
            }
            first = Some(direct);
        }
    }
}

/// Ones, and how many were asked for.
struct Counted(AtomicU32);

impl RowSource for Counted {
    unsafe fn fill(
        &self,
        _: usize,
        _: usize,
        rows: Range<usize>,
        ks: Range<usize>,
        dst: *mut f32,
        at: usize,
    ) {
        self.0.fetch_add((rows.len() * ks.len()) as u32, Ordering::Relaxed);
        for i in 0..rows.len() {
            // SAFETY: the product gives room for the rows.
            unsafe { std::slice::from_raw_parts_mut(dst.add(i * at), ks.len()).fill(1.0) }
        }
    }
    fn costly(&self) -> bool {
        false
    }
}

struct Nowhere;
impl Sink for Nowhere {
    unsafe fn block(&self, _: usize, _: usize, _: Range<usize>, _: Range<usize>, _: *mut f32, _: usize) {}
}

#[test]
fn rows_are_asked_for_as_often_as_promised() {
    let pool = Pool::new(1);
    let level = Level::detect();
    for (m, n, k) in [(1, 700, 40), (5, 1100, 1536), (97, 33, 700), (30, 1025, 1537), (20, 300, 9000)] {
        let b = vec![1.0f32; n * k];
        // SAFETY: the matrix is in memory.
        let packed = unsafe { PackedB::pack(level, PackKind::F32, k, n, b.as_ptr(), n as isize, 1, &pool) };
        let loose = B::Strided { ptr: b.as_ptr(), strides: [n as isize, 1] };
        for (b, loose) in [(B::Packed(&packed), false), (loose, true)] {
            let mut c = vec![0.0f32; m * n];
            for direct in [true, false] {
                let out = match direct {
                    true => Out::Direct { ptr: c.as_mut_ptr(), row_stride: n as isize },
                    false => Out::Sink { sink: &Nowhere, whole_rows: false },
                };
                let a = Counted(AtomicU32::new(0));
                let gemm = Gemm { level, m, n, k, a: A::Rows(&a), b, batches: &[BatchOffsets::default()] };
                let size = gemm.scratch(&out);
                let buffer = Buffer::new(size.total(1));
                // SAFETY: all memory is there, and the scratch as large as asked for.
                unsafe { gemm.run(&pool, &Scratch::new(buffer.ptr(), size, 1), out) };
                let asked = a.0.into_inner() as usize;
                assert!(asked >= m * k && asked <= m * k * fills(k, n, loose), "{m}x{k}x{n}: {asked}");
            }
            assert!(c.iter().all(|x| *x == k as f32));
        }
    }
}

fn pools() -> Vec<Pool> {
    (1..=3).map(Pool::new).collect()
}

#[test]
fn small_sizes_of_every_kind() {
    let (mut r, pools) = (Random(1), pools());
    let sizes = [0, 1, 2, 3, 5, 7, 8, 13, 14, 15, 16, 17, 29, 31, 32, 33, 47, 64, 65];
    for i in 0..400 {
        let mut pick = || sizes[r.below(sizes.len())];
        let (m, n, k) = (pick(), pick(), pick());
        let same_b = i % 3 == 0;
        check(&mut r, &pools, &Case { m, n, k, batches: i % 4, a_order: i % 4, b_order: i / 4 % 4, same_b });
    }
}

#[test]
fn every_number_of_rows_up_to_the_tile() {
    let (mut r, pools) = (Random(2), pools());
    for m in 1..=30 {
        check(&mut r, &pools, &Case { m, n: 131, k: 37, batches: 1, a_order: 0, b_order: 0, same_b: true });
    }
}

#[test]
fn sizes_beyond_the_blocks() {
    let (mut r, pools) = (Random(3), pools());
    for (m, n, k, a_order, b_order) in [
        (1, 300, 1700, 0, 0),
        (3, 1000, 513, 1, 1),
        (8, 257, 1030, 0, 1),
        (300, 40, 70, 0, 0),
        (263, 67, 529, 1, 1),
        (100, 291, 1601, 3, 0),
        (37, 600, 3100, 0, 2),
        (1, 1, 4000, 0, 0),
        (700, 1, 33, 0, 0),
    ] {
        check(&mut r, &pools, &Case { m, n, k, batches: 1, a_order, b_order, same_b: true });
    }
    check(&mut r, &pools, &Case { m: 270, n: 50, k: 64, batches: 3, a_order: 0, b_order: 1, same_b: false });
    check(&mut r, &pools, &Case { m: 40, n: 130, k: 32, batches: 9, a_order: 0, b_order: 1, same_b: false });
}

#[test]
fn a_row_does_not_depend_on_its_neighbours() {
    let (mut r, pool) = (Random(4), Pool::new(2));
    let (m, n, k) = (40, 100, 700);
    let (a, b) = (r.floats(m * k), r.floats(k * n));
    for level in Level::available() {
        for kind in [PackKind::F32, PackKind::Bf16] {
            // SAFETY: the matrix is in memory.
            let packed = unsafe { PackedB::pack(level, kind, k, n, b.as_ptr(), n as isize, 1, &pool) };
            let run = |rows: Range<usize>| {
                let mut got = vec![0f32; rows.len() * n];
                let batches = [BatchOffsets::default()];
                let a = A::Strided { ptr: a[rows.start * k..].as_ptr(), strides: [k as isize, 1] };
                let gemm = Gemm { level, m: rows.len(), n, k, a, b: B::Packed(&packed), batches: &batches };
                let out = Out::Direct { ptr: got.as_mut_ptr(), row_stride: n as isize };
                let size = gemm.scratch(&out);
                let buffer = Buffer::new(size.total(2));
                // SAFETY: all memory is there.
                unsafe { gemm.run(&pool, &Scratch::new(buffer.ptr(), size, 2), out) };
                got
            };
            let all = run(0..m);
            for rows in [0..1, 5..7, 10..20, 3..40] {
                assert_eq!(run(rows.clone()), all[rows.start * n..rows.end * n], "{level} {kind:?}");
            }
        }
    }
}

#[test]
fn bf16_rounds_to_even_and_keeps_nan() {
    let pool = Pool::new(1);
    for level in Level::available() {
        for x in [
            1.0 + 1.0 / 256.0,
            1.0 + 3.0 / 256.0,
            f32::MAX,
            f32::INFINITY,
            -0.0,
            f32::NAN,
            f32::from_bits(0x7f80_0001),
        ] {
            // SAFETY: one element is there.
            let packed = unsafe { PackedB::pack(level, PackKind::Bf16, 1, 1, &x, 1, 1, &pool) };
            let (one, mut got, batches) = (1f32, 0f32, [BatchOffsets::default()]);
            let a = A::Strided { ptr: &one, strides: [1, 1] };
            let gemm = Gemm { level, m: 1, n: 1, k: 1, a, b: B::Packed(&packed), batches: &batches };
            let out = Out::Direct { ptr: &mut got, row_stride: 1 };
            let size = gemm.scratch(&out);
            let buffer = Buffer::new(size.total(1));
            // SAFETY: all memory is there.
            unsafe { gemm.run(&pool, &Scratch::new(buffer.ptr(), size, 1), out) };
            let want = bf16(x);
            assert!(got == want || got.is_nan() && want.is_nan(), "{level}: {x} became {got}");
        }
    }
}

#[test]
fn other_types() {
    let (mut r, pools) = (Random(5), pools());
    for (m, n, k) in [(0, 3, 2), (3, 0, 2), (3, 5, 0), (1, 1, 1), (7, 33, 300), (130, 17, 65), (5, 16, 513)] {
        let a: Vec<f64> = r.floats(2 * m * k).into_iter().map(f64::from).collect();
        let b: Vec<f64> = r.floats(2 * k * n).into_iter().map(f64::from).collect();
        let (ai, bi): (Vec<i64>, Vec<i64>) =
            (a.iter().map(|x| (x * 9e18) as i64).collect(), b.iter().map(|x| (x * 9e18) as i64).collect());
        let batches = [
            BatchOffsets::default(),
            BatchOffsets { a: (m * k) as isize, b: (k * n) as isize, c: (m * n) as isize },
        ];
        let (sa, sb, sc) = ([1, m as isize], [n as isize, 1], n as isize);
        for level in Level::available() {
            for pool in &pools {
                let size = gemm_generic_scratch::<f64>();
                let buffer = Buffer::new(size.total(pool.threads()));
                let (mut c, mut ci) = (vec![f64::NAN; 2 * m * n], vec![-1i64; 2 * m * n]);
                // SAFETY: all memory is there.
                unsafe {
                    let scratch = Scratch::new(buffer.ptr(), size, pool.threads());
                    let (a, b, c) = ((a.as_ptr(), sa), (b.as_ptr(), sb), (c.as_mut_ptr(), sc));
                    gemm_generic(&Generic { level, m, n, k, a, b, c, batches: &batches }, pool, &scratch);
                    let (a, b, c) = ((ai.as_ptr(), sa), (bi.as_ptr(), sb), (ci.as_mut_ptr(), sc));
                    gemm_generic(&Generic { level, m, n, k, a, b, c, batches: &batches }, pool, &scratch);
                }
                for (i, (r, j)) in (0..2).flat_map(|i| (0..m * n).map(move |x| (i, (x / n, x % n)))) {
                    let at = i * m * n + r * n + j;
                    let (ia, ib) = (|x| i * m * k + x * m + r, |x| i * k * n + x * n + j);
                    let want: f64 = (0..k).map(|x| a[ia(x)] * b[ib(x)]).sum();
                    assert!((c[at] - want).abs() <= 1e-13 * (k + 1) as f64, "{level}: {} for {want}", c[at]);
                    let want = (0..k).fold(0i64, |s, x| s.wrapping_add(ai[ia(x)].wrapping_mul(bi[ib(x)])));
                    assert_eq!(ci[at], want, "{level}");
                }
            }
        }
    }
}

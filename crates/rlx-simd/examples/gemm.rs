//! Measures products against what the machine can do: `gemm [threads] [filter]`.
//!
//! Prints GFLOP/s, and the share of the peak of multiply-adds measured just before in the same process; for products with
//! few rows also the bytes of B read per second, beside the speed of a plain sum over as much memory.

use rlx_simd::gemm::{A, B, BatchOffsets, Gemm, Out, PackKind, PackedB, Sink};
use rlx_simd::level::Level;
use rlx_simd::mem::{Buffer, Scratch};
use rlx_simd::pool::Pool;
use std::hint::black_box;
use std::ops::Range;
use std::time::Instant;

/// Seconds of the fastest of many calls within so many milliseconds.
fn best(ms: u128, mut f: impl FnMut()) -> f64 {
    let (start, mut best, mut calls) = (Instant::now(), f64::INFINITY, 0);
    while start.elapsed().as_millis() < ms || calls < 3 {
        let t = Instant::now();
        f();
        best = best.min(t.elapsed().as_secs_f64());
        calls += 1;
    }
    best
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn peak_loop(steps: usize) -> f32 {
    use std::arch::x86_64::*;
    let mut acc = [_mm512_set1_ps(1.0); 16];
    let (a, b) = (_mm512_set1_ps(black_box(0.5)), _mm512_set1_ps(black_box(0.5)));
    for _ in 0..steps {
        for x in &mut acc {
            *x = _mm512_fmadd_ps(a, *x, b);
        }
    }
    acc.into_iter().map(|x| _mm512_reduce_add_ps(x)).sum()
}

/// Multiply-adds per second of all threads, as GFLOP/s.
fn peak(pool: &Pool) -> f64 {
    #[cfg(target_arch = "x86_64")]
    if Level::detect() == Level::Avx512 {
        let steps = 40_000;
        let t = best(10, || {
            pool.run(pool.threads(), |_, _| {
                // SAFETY: the level has been detected.
                black_box(unsafe { peak_loop(steps) });
            })
        });
        return (steps * 16 * 32 * pool.threads()) as f64 / t / 1e9;
    }
    let _ = pool;
    f64::NAN
}

/// GB/s of summing memory.
fn bandwidth(pool: &Pool, bytes: usize) -> f64 {
    let data = vec![1u64; bytes / 8];
    let t = best(300, || {
        pool.run(64, |i, _| {
            let part = data.len() / 64;
            black_box(data.iter().skip(i * part).take(part).fold(0u64, |s, x| s.wrapping_add(*x)));
        })
    });
    bytes as f64 / t / 1e9
}

/// Rounds in which the machine's peak and the product are measured by turns.
const ROUNDS: usize = 20;

/// Stores what it gets.
struct Store(rlx_simd::mem::Ptr<f32>, usize);
impl Sink for Store {
    unsafe fn block(
        &self,
        _: usize,
        _: usize,
        rows: Range<usize>,
        cols: Range<usize>,
        acc: *mut f32,
        stride: usize,
    ) {
        for (i, r) in rows.enumerate() {
            // SAFETY: the output has every row.
            unsafe {
                let dst = self.0.0.add(r * self.1 + cols.start);
                for j in 0..cols.len() {
                    *dst.add(j) = *acc.add(i * stride + j) + 1.0;
                }
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Mode {
    Packed,
    Bf16,
    Sink,
    Rows,
    Loose,
    LooseT,
    AT,
}

/// The best time, and the best peak, of rounds that take turns: the machine's speed drifts.
fn run(pool: &Pool, mode: Mode, batches: usize, [m, k, n]: [usize; 3]) -> (f64, f64) {
    let level = Level::detect();
    let a: Vec<f32> = (0..batches * m * k).map(|i| (i % 7) as f32).collect();
    let b: Vec<f32> = (0..batches * k * n).map(|i| (i % 5) as f32).collect();
    let mut c = vec![0f32; batches * m * n];
    let kind = if mode == Mode::Bf16 { PackKind::Bf16 } else { PackKind::F32 };
    // SAFETY: B is in memory.
    let packed = unsafe { PackedB::pack(level, kind, k, n, b.as_ptr(), n as isize, 1, pool) };
    let loose = |strides| B::Strided { ptr: b.as_ptr(), strides };
    let strides = if mode == Mode::AT { [1, m as isize] } else { [k as isize, 1] };
    let offsets: Vec<_> = (0..batches)
        .map(|i| BatchOffsets { a: (i * m * k) as isize, b: (i * k * n) as isize, c: (i * m * n) as isize })
        .collect();
    let gemm = Gemm {
        level,
        m,
        n,
        k,
        a: A::Strided { ptr: a.as_ptr(), strides },
        b: match mode {
            Mode::Loose => loose([n as isize, 1]),
            Mode::LooseT => loose([1, k as isize]),
            _ => B::Packed(&packed),
        },
        batches: &offsets,
    };
    let store = Store(rlx_simd::mem::Ptr(c.as_mut_ptr()), n);
    let out = match mode {
        Mode::Sink | Mode::Rows => Out::Sink { sink: &store, whole_rows: mode == Mode::Rows },
        _ => Out::Direct { ptr: c.as_mut_ptr(), row_stride: n as isize },
    };
    let size = gemm.scratch(&out);
    let buffer = Buffer::new(size.total(pool.threads()));
    // SAFETY: all memory is there.
    unsafe {
        let scratch = Scratch::new(buffer.ptr(), size, pool.threads());
        let (mut time, mut top) = (f64::INFINITY, 0f64);
        for _ in 0..ROUNDS {
            top = top.max(peak(pool));
            time = time.min(best(50, || gemm.run(pool, &scratch, out)));
        }
        (time, top)
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let threads = args.next().and_then(|x| x.parse().ok()).unwrap_or_else(Pool::machine_threads);
    let filter = args.next().unwrap_or_default();
    let pool = Pool::new(threads);
    let dram = bandwidth(&pool, 64 << 20);
    println!("{threads} threads; sum over 64 MiB {dram:.1} GB/s; peak {:.1} GFLOP/s", peak(&pool));
    use Mode::*;
    let cases: &[(Mode, usize, [usize; 3])] = &[
        (Packed, 1, [512, 512, 512]),
        (Packed, 1, [1024, 1024, 1024]),
        (Packed, 1, [2048, 2048, 2048]),
        (Packed, 1, [128, 384, 1536]),
        (Packed, 1, [128, 1536, 384]),
        (Packed, 1, [1, 4096, 4096]),
        (Packed, 1, [4, 4096, 4096]),
        (Packed, 1, [8, 4096, 4096]),
        (Packed, 1, [14, 4096, 4096]),
        (Packed, 1, [1, 384, 1536]),
        (Packed, 1, [16, 384, 384]),
        (Packed, 1, [64, 64, 64]),
        (Bf16, 1, [512, 512, 512]),
        (Bf16, 1, [128, 384, 1536]),
        (Bf16, 1, [1, 4096, 4096]),
        (Bf16, 1, [8, 4096, 4096]),
        (Sink, 1, [512, 512, 512]),
        (Sink, 1, [128, 384, 1536]),
        (Rows, 1, [128, 384, 1536]),
        (Rows, 1, [128, 1536, 384]),
        (Loose, 1, [512, 512, 512]),
        (Loose, 1, [1024, 1024, 1024]),
        (Loose, 1, [1, 4096, 4096]),
        (Loose, 96, [128, 128, 32]),
        (Loose, 1, [3136, 576, 64]),
        (LooseT, 1, [512, 512, 512]),
        (LooseT, 96, [128, 32, 128]),
        (LooseT, 1, [1, 4096, 4096]),
        (AT, 1, [512, 512, 512]),
        (AT, 1, [128, 384, 1536]),
    ];
    for &(mode, batches, [m, k, n]) in cases {
        let name = format!("{mode:?} {batches} {m}x{k}x{n}");
        if !filter.is_empty() && !filter.split(',').any(|f| name.contains(f)) {
            continue;
        }
        let (t, peak) = run(&pool, mode, batches, [m, k, n]);
        let speed = (2 * batches * m * k * n) as f64 / t / 1e9;
        let read = (k * n * if mode == Bf16 { 2 } else { 4 }) as f64 / t / 1e9;
        println!(
            "{name:28} {:9.1} us {speed:7.1} GFLOP/s  {:5.1} % of {peak:.0}{}",
            t * 1e6,
            100.0 * speed / peak,
            if m <= 16 { format!("  {read:.1} GB/s") } else { String::new() }
        );
    }
}

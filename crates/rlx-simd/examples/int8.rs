//! Measures products of bytes against what the machine can do and against those of floats: `int8 [threads] [filter]`.
//!
//! Prints GOP/s, the share of the peak of the instruction for four bytes measured by turns in the same process, and how many
//! times faster than the product in f32 of the same size it is.

use rlx_simd::gemm::int8::{self, Matrix, Zeros};
use rlx_simd::gemm::{A, B, BatchOffsets, Gemm, Out, PackKind, PackedB};
use rlx_simd::level::Level;
use rlx_simd::mem::{Buffer, Scratch};
use rlx_simd::pool::Pool;
use std::hint::black_box;
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
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn peak_loop(steps: usize) -> i32 {
    use std::arch::x86_64::*;
    let mut acc = [_mm512_set1_epi32(1); 16];
    let (a, b) = (_mm512_set1_epi32(black_box(3)), _mm512_set1_epi32(black_box(5)));
    for _ in 0..steps {
        for x in &mut acc {
            *x = _mm512_dpbusd_epi32(*x, a, b);
        }
    }
    acc.into_iter().map(|x| _mm512_reduce_add_epi32(x)).sum()
}

/// Multiply-adds of bytes per second of all threads, as GOP/s.
fn peak(pool: &Pool) -> f64 {
    #[cfg(target_arch = "x86_64")]
    if Level::detect().has_int8_dot() {
        let steps = 40_000;
        let t = best(10, || {
            pool.run(pool.threads(), |_, _| {
                // SAFETY: the instruction has been detected.
                black_box(unsafe { peak_loop(steps) });
            })
        });
        return (steps * 16 * 128 * pool.threads()) as f64 / t / 1e9;
    }
    let _ = pool;
    f64::NAN
}

/// Rounds in which the peak and the products are measured by turns.
const ROUNDS: usize = 20;

fn main() {
    let mut args = std::env::args().skip(1);
    let threads = args.next().and_then(|x| x.parse().ok()).unwrap_or_else(Pool::machine_threads);
    let filter = args.next().unwrap_or_default();
    let (pool, level) = (Pool::new(threads), Level::detect());
    let cases = [
        [128, 384, 1536],
        [128, 1536, 384],
        [128, 384, 384],
        [1, 384, 1536],
        [1, 1536, 384],
        [16, 384, 384],
        [512, 512, 512],
        [1024, 1024, 1024],
        [128, 512, 32128],
        [1, 4096, 4096],
        [8, 4096, 4096],
    ];
    for [m, k, n] in cases {
        let name = format!("{m}x{k}x{n}");
        if !filter.is_empty() && !filter.split(',').any(|f| name.contains(f)) {
            continue;
        }
        let bytes = |len: usize| (0..len).map(|i| (i * 37 % 251) as u8).collect::<Vec<u8>>();
        let floats = |len: usize| (0..len).map(|i| (i % 7) as f32).collect::<Vec<f32>>();
        let (a, b, zero) = (bytes(m * k), bytes(k * n), [120u8]);
        let (x, y) = (floats(m * k), floats(k * n));
        let (mut c, mut z) = (vec![0i32; m * n], vec![0f32; m * n]);
        let matrix = |data: &[u8], cols: usize, signed| Matrix {
            ptr: data.as_ptr(),
            strides: [cols as isize, 1],
            signed,
        };
        // SAFETY: all memory is there.
        unsafe {
            let packed = int8::PackedB::pack(level, k, n, matrix(&b, n, true), &pool);
            let product = int8::Gemm {
                level,
                m,
                n,
                k,
                a: matrix(&a, k, false),
                a_zero: Some(Zeros { ptr: zero.as_ptr(), stride: 0 }),
                b: int8::B::Packed(&packed),
                b_zero: None,
                batches: &[BatchOffsets::default()],
            };
            let out = Out::Direct { ptr: c.as_mut_ptr(), row_stride: n as isize };
            let floats = PackedB::pack(level, PackKind::F32, k, n, y.as_ptr(), n as isize, 1, &pool);
            let float = Gemm {
                level,
                m,
                n,
                k,
                a: A::Strided { ptr: x.as_ptr(), strides: [k as isize, 1] },
                b: B::Packed(&floats),
                batches: &[BatchOffsets::default()],
            };
            let to = Out::Direct { ptr: z.as_mut_ptr(), row_stride: n as isize };
            let size = product.scratch(&out).max(float.scratch(&to));
            let buffer = Buffer::new(size.total(threads));
            let scratch = Scratch::new(buffer.ptr(), size, threads);
            let (mut time, mut other, mut top) = (f64::INFINITY, f64::INFINITY, 0f64);
            for _ in 0..ROUNDS {
                top = top.max(peak(&pool));
                time = time.min(best(30, || product.run(&pool, &scratch, out)));
                other = other.min(best(30, || float.run(&pool, &scratch, to)));
            }
            let speed = (2 * m * k * n) as f64 / time / 1e9;
            println!(
                "{name:16} {:9.1} us {speed:7.1} GOP/s {:5.1} % of {top:.0}; f32 {:9.1} us, {:.2} times as long{}",
                time * 1e6,
                100.0 * speed / top,
                other * 1e6,
                other / time,
                if m <= 16 {
                    format!("; B at {:.1} GB/s", (k * n) as f64 / time / 1e9)
                } else {
                    String::new()
                }
            );
        }
    }
}

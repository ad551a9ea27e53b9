//! What the machine can do at most, measured: arithmetic, and reading at several working sets.

use crate::exec::{Engine, Precision};
use rlx_simd::level::Level;
use rlx_simd::mem::Buffer;
use rlx_simd::pool::Pool;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// The measured limits of a machine at a number of threads.
#[derive(Clone, Debug, PartialEq)]
pub struct Roofline {
    /// Arithmetic operations per second.
    pub flops: f64,
    /// Bytes read per second, by the bytes that are gone over again and again: caches first, memory last.
    pub bandwidth: Vec<(usize, f64)>,
}

/// Independent sums, more than any processor has multiply-adds under way in one chain.
const CHAINS: usize = 12;
/// Each figure is the best of the rounds of so much time.
const PATIENCE: Duration = Duration::from_millis(30);
/// The working sets in bytes: per thread for the caches of a core, in all for what is shared.
const OWN: [usize; 2] = [24 << 10, 384 << 10];
const SHARED: [usize; 2] = [6 << 20, 128 << 20];

impl Roofline {
    /// Measures for a fifth of a second.
    pub fn measure(engine: &Engine, precision: Precision) -> Roofline {
        let pool = Pool::new(engine.threads());
        let bf16 = precision == Precision::Bf16;
        let flops = arithmetic(&pool, engine.level(), bf16);
        let threads = pool.threads();
        let sets = OWN.iter().map(|b| b * threads).chain(SHARED);
        let largest = SHARED.last().copied().unwrap_or(0).max(OWN.last().copied().unwrap_or(0) * threads);
        // Less memory than that is no reason to fail: what cannot be had is not measured.
        let buffer = Buffer::try_new(largest).unwrap_or_else(|| Buffer::new(0));
        let sets: Vec<usize> = sets.filter(|b| *b <= buffer.len()).collect();
        let bandwidth = sets.into_iter().map(|b| (b, reading(&pool, engine.level(), &buffer, b))).collect();
        Roofline { flops, bandwidth }
    }

    /// Bytes per second for a working set.
    pub fn bytes_per_second(&self, bytes: u64) -> f64 {
        let fits = self.bandwidth.iter().find(|(set, _)| *set as u64 >= bytes);
        fits.or(self.bandwidth.last()).map_or(0.0, |b| b.1)
    }

    /// The least time for so much work: what takes longer, arithmetic or reading. Without measurements it is 0.
    pub fn seconds(&self, flops: u64, bytes: u64) -> f64 {
        let time = |work: u64, rate: f64| if rate > 0.0 { work as f64 / rate } else { 0.0 };
        time(flops, self.flops).max(time(bytes, self.bytes_per_second(bytes)))
    }
}

/// The best rate of rounds that do so much work each.
fn best(work: f64, mut round: impl FnMut()) -> f64 {
    round(); // threads wake up, pages are there
    let began = Instant::now();
    let mut least = f64::INFINITY;
    while began.elapsed() < PATIENCE {
        let start = Instant::now();
        round();
        least = least.min(start.elapsed().as_secs_f64());
    }
    if least.is_finite() && least > 0.0 { work / least } else { 0.0 }
}

fn arithmetic(pool: &Pool, level: Level, bf16: bool) -> f64 {
    const ROUNDS: usize = 20_000;
    // Each thread has several tasks, so that one that wakes late does not cost the round.
    let tasks = 4 * pool.threads();
    let each = per_round(level, bf16) * ROUNDS as f64;
    best(each * tasks as f64, || pool.run(tasks, |_, _| _ = black_box(spin(level, bf16, ROUNDS))))
}

/// The operations of one turn of [`spin`].
fn per_round(level: Level, bf16: bool) -> f64 {
    let lanes = match level {
        Level::Avx512 if bf16 && level.has_bf16_dot() => 32,
        Level::Avx512 => 16,
        Level::Avx2 => 8,
        Level::Baseline | Level::Neon => 4,
    };
    (2 * lanes * CHAINS) as f64
}

/// Chains of multiply-adds that stay in registers.
fn spin(level: Level, bf16: bool, rounds: usize) -> f32 {
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the level, for levels come from `Level::available`, and the dot product, as just asked.
        Level::Avx512 if bf16 && level.has_bf16_dot() => unsafe { x86::dot512(rounds) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Level::Avx512 => unsafe { x86::fma512(rounds) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Level::Avx2 => unsafe { x86::fma256(rounds) },
        _ => plain(rounds),
    }
}

fn plain(rounds: usize) -> f32 {
    let mut sums = [[0f32; 4]; CHAINS];
    for _ in 0..rounds {
        for x in sums.as_flattened_mut() {
            *x = if cfg!(target_arch = "aarch64") { x.mul_add(0.999, 1e-3) } else { *x * 0.999 + 1e-3 };
        }
    }
    sums.as_flattened().iter().sum()
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::CHAINS;
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx512f")]
    pub fn fma512(rounds: usize) -> f32 {
        let (m, a) = (_mm512_set1_ps(0.999), _mm512_set1_ps(1e-3));
        let mut sums = [_mm512_setzero_ps(); CHAINS];
        for _ in 0..rounds {
            sums = sums.map(|x| _mm512_fmadd_ps(x, m, a));
        }
        sums.into_iter().fold(0.0, |s, x| s + _mm512_reduce_add_ps(x))
    }

    #[target_feature(enable = "avx512f,avx512bf16")]
    pub fn dot512(rounds: usize) -> f32 {
        let (a, b) = (_mm512_set1_ps(0.999), _mm512_set1_ps(1e-3));
        let (a, b) = (_mm512_cvtne2ps_pbh(a, a), _mm512_cvtne2ps_pbh(b, b));
        let mut sums = [_mm512_setzero_ps(); CHAINS];
        for _ in 0..rounds {
            sums = sums.map(|x| _mm512_dpbf16_ps(x, a, b));
        }
        sums.into_iter().fold(0.0, |s, x| s + _mm512_reduce_add_ps(x))
    }

    #[target_feature(enable = "avx2,fma")]
    pub fn fma256(rounds: usize) -> f32 {
        let (m, a) = (_mm256_set1_ps(0.999), _mm256_set1_ps(1e-3));
        let mut sums = [_mm256_setzero_ps(); CHAINS];
        for _ in 0..rounds {
            sums = sums.map(|x| _mm256_fmadd_ps(x, m, a));
        }
        sums.into_iter().fold(0.0, |s, x| s + _mm256_cvtss_f32(x))
    }
}

/// Bytes per second when the first `set` bytes are read again and again, each thread its own part.
fn reading(pool: &Pool, level: Level, buffer: &Buffer, set: usize) -> f64 {
    let threads = pool.threads();
    let part = set / threads / 64 * 64;
    // Enough that waking the threads does not count.
    let turns = ((8 << 20) / part.max(1)).max(1);
    best((part * threads * turns) as f64, || {
        pool.run(threads, |task, _| {
            // SAFETY: the parts of all threads lie within the buffer, which is aligned and only read.
            let words =
                unsafe { std::slice::from_raw_parts(buffer.ptr().add(task * part).cast::<u64>(), part / 8) };
            for _ in 0..turns {
                let words = black_box(words);
                black_box(rlx_simd::each_level!(level, _FMA, sum => (words: &[u64]) -> u64));
            }
        });
    })
}

#[inline(always)]
fn sum(words: &[u64]) -> u64 {
    let mut sums = [0u64; 64];
    for chunk in words.chunks_exact(64) {
        for (s, w) in sums.iter_mut().zip(chunk) {
            *s ^= w;
        }
    }
    sums.iter().fold(0, |a, b| a ^ b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::Settings;

    #[test]
    fn every_level_is_measured() {
        for level in Level::available() {
            for precision in [Precision::F32, Precision::Bf16] {
                let engine = Engine::new(Settings { threads: Some(2), level: Some(level) }).unwrap();
                let r = Roofline::measure(&engine, precision);
                println!("{level} {precision:?}: {r:?}");
                assert!(r.flops > 1e8 && r.flops < 1e13);
                assert!(r.bandwidth.iter().all(|b| b.1 > 1e8 && b.1 < 1e13) && r.bandwidth.len() == 4);
                assert!(r.seconds(1 << 30, 0) > 0.0 && r.seconds(0, 1 << 40) > r.seconds(0, 1 << 30));
            }
        }
    }
}

//! What the machine gives: its multiply-add peak, and whether it is at rest.

use rlx_simd::level::Level;
use rlx_simd::pool::Pool;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Registers of sums: more than the latency of an FMA times the number of units.
const SUMS: usize = 16;

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn avx512(steps: usize) -> f32 {
    use std::arch::x86_64::*;
    let (a, b) = (_mm512_set1_ps(black_box(0.5)), _mm512_set1_ps(black_box(0.5)));
    let mut sums = [b; SUMS];
    for _ in 0..steps {
        sums.iter_mut().for_each(|s| *s = _mm512_fmadd_ps(a, *s, b));
    }
    sums.into_iter().map(|s| _mm512_reduce_add_ps(s)).sum()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2(steps: usize) -> f32 {
    use std::arch::x86_64::*;
    let (a, b) = (_mm256_set1_ps(black_box(0.5)), _mm256_set1_ps(black_box(0.5)));
    let mut sums = [b; 12]; // of 16 registers
    for _ in 0..steps {
        sums.iter_mut().for_each(|s| *s = _mm256_fmadd_ps(a, *s, b));
    }
    sums.into_iter().map(|s| _mm256_cvtss_f32(s)).sum()
}

/// Vectors of four, which the compiler makes of plain code.
fn plain(steps: usize) -> f32 {
    let (a, b) = (black_box(0.5f32), black_box(0.5f32));
    let mut sums = [[b; 4]; SUMS];
    for _ in 0..steps {
        sums.iter_mut().flatten().for_each(|s| *s = a * *s + b);
    }
    sums.into_iter().flatten().sum()
}

/// Multiply-adds of all threads, as GFLOP/s: the best of a few bursts.
pub fn peak(pool: &Pool) -> f64 {
    const STEPS: usize = 60_000;
    let level = Level::detect();
    let burst = |level: Level| match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level was detected.
        Level::Avx512 => (unsafe { avx512(STEPS) }, SUMS * 16),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Level::Avx2 => (unsafe { avx2(STEPS) }, 12 * 8),
        _ => (plain(STEPS), SUMS * 4),
    };
    let per_step = match level {
        Level::Avx512 => SUMS * 16,
        Level::Avx2 => 12 * 8,
        _ => SUMS * 4,
    };
    let mut best = f64::INFINITY;
    for _ in 0..12 {
        let begun = Instant::now();
        pool.run(pool.threads(), |_, _| drop(black_box(burst(level))));
        best = best.min(begun.elapsed().as_secs_f64());
    }
    (2 * per_step * STEPS * pool.threads()) as f64 / best / 1e9
}

/// The time that the threads of processes have run, where the system tells.
fn cpu_time(processes: &[u32]) -> Option<Duration> {
    let mut ns = 0u64;
    for id in processes {
        for task in std::fs::read_dir(format!("/proc/{id}/task")).ok()? {
            // A thread may end meanwhile.
            let Ok(text) = std::fs::read_to_string(task.ok()?.path().join("schedstat")) else { continue };
            ns += text.split_whitespace().next()?.parse::<u64>().ok()?;
        }
    }
    Some(Duration::from_nanos(ns))
}

/// Waits until the threads of these processes sleep: after a call, the threads of most pools spin for a while, and would take
/// a processor away from whoever has the next turn. Says whether they did come to rest.
pub fn rest(processes: &[u32]) -> bool {
    const PAUSE: Duration = Duration::from_millis(5); // a running thread's time is counted once per tick, up to 4 ms
    for _ in 0..40 {
        let before = cpu_time(processes);
        std::thread::sleep(PAUSE);
        match (before, cpu_time(processes)) {
            (Some(a), Some(b)) if b.saturating_sub(a) > PAUSE / 5 => {}
            _ => return true,
        }
    }
    false
}

//! What the machine gives: its multiply-add peak, and whether it is at rest.

use rlx_simd::level::Level;
use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// Registers of sums: more than the latency of an FMA times the number of units.
const SUMS: usize = 12;

/// `steps` times an FMA into each of the registers. The compiler, left to itself, moves the sums about.
#[cfg(target_arch = "x86_64")]
macro_rules! fma_loop {
    ($steps:expr, $clear:literal, $factor:tt, $($sum:tt)*) => {
        // SAFETY: the code changes only registers that it names; the caller has seen to it that the machine has them.
        unsafe {
            std::arch::asm!(
                // Zeros stay zeros; what was left in the registers might be slow denormal numbers.
                $(concat!($clear, " ", $sum, ", ", $sum, ", ", $sum),)*
                concat!($clear, " ", $factor, ", ", $factor, ", ", $factor),
                "2:",
                $(concat!("vfmadd231ps ", $sum, ", ", $factor, ", ", $factor),)*
                "dec {steps}",
                "jnz 2b",
                steps = inout(reg) $steps => _,
                $(out($sum) _,)*
                out($factor) _,
                options(nomem, nostack),
            );
        }
    };
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn avx512(steps: usize) {
    fma_loop!(steps, "vpxord", "zmm12", "zmm0" "zmm1" "zmm2" "zmm3" "zmm4" "zmm5" "zmm6" "zmm7" "zmm8" "zmm9" "zmm10" "zmm11");
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2(steps: usize) {
    fma_loop!(steps, "vpxor", "ymm12", "ymm0" "ymm1" "ymm2" "ymm3" "ymm4" "ymm5" "ymm6" "ymm7" "ymm8" "ymm9" "ymm10" "ymm11");
}

/// Vectors of four, which the compiler makes of plain code.
fn plain(steps: usize) {
    let (a, b) = (black_box(0.5f32), black_box(0.5f32));
    let mut sums = [[b; 4]; SUMS];
    for _ in 0..steps {
        sums.iter_mut().flatten().for_each(|s| *s = a * *s + b);
    }
    black_box(sums);
}

/// Multiply-adds of so many threads at once, as GFLOP/s: the best of a few bursts of some milliseconds. Shorter ones end
/// before the processors have reached their clocks and each thread one of its own.
pub fn peak(threads: usize) -> f64 {
    const STEPS: usize = 1_000_000;
    let level = Level::detect();
    let (per_step, burst): (usize, fn()) = match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level was detected.
        Level::Avx512 => (SUMS * 16, || unsafe { avx512(STEPS) }),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Level::Avx2 => (SUMS * 8, || unsafe { avx2(STEPS) }),
        _ => (SUMS * 4, || plain(STEPS)),
    };
    let start = Barrier::new(threads);
    // All threads together are as slow as the slowest.
    let slowest = |times: Vec<f64>| times.into_iter().fold(0.0, f64::max);
    let best = |times: Vec<f64>| times.into_iter().fold(f64::INFINITY, f64::min);
    let work = || -> Vec<f64> {
        let one = |_| {
            start.wait();
            let begun = Instant::now();
            burst();
            begun.elapsed().as_secs_f64()
        };
        (0..8).map(one).collect()
    };
    let times: Vec<Vec<f64>> = thread::scope(|s| {
        let all: Vec<_> = (0..threads).map(|_| s.spawn(work)).collect();
        all.into_iter().filter_map(|t| t.join().ok()).collect()
    });
    let rounds = (0..8).map(|i| slowest(times.iter().filter_map(|t| t.get(i).copied()).collect()));
    (2 * per_step * STEPS * threads) as f64 / best(rounds.collect()) / 1e9
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

/// What the processors have done so far, in ticks of the system.
struct Ticks {
    busy: u64,
    stolen: u64,
    all: u64,
}

fn ticks() -> Option<Ticks> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let v: Vec<u64> = text.lines().next()?.split_whitespace().skip(1).flat_map(str::parse).collect();
    let [user, nice, system, idle, wait, irq, soft, stolen, ..] = v.as_slice() else { return None };
    let busy = user + nice + system + irq + soft;
    Some(Ticks { busy, stolen: *stolen, all: busy + idle + wait + stolen })
}

/// How much of the machine went to others since some moment.
pub struct Watch {
    processes: Vec<u32>,
    ticks: Option<Ticks>,
    own: Option<Duration>,
    begun: Instant,
}

impl Watch {
    /// From now on; `processes` are the bench's own.
    pub fn new(processes: &[u32]) -> Watch {
        let processes = processes.to_vec();
        Watch { ticks: ticks(), own: cpu_time(&processes), processes, begun: Instant::now() }
    }

    /// The parts of the processors' time that other processes used and that the host of a virtual machine withheld.
    pub fn others(&self) -> Option<(f64, f64)> {
        let (from, to) = (self.ticks.as_ref()?, ticks()?);
        let own = cpu_time(&self.processes)?.saturating_sub(self.own?);
        let all = to.all.checked_sub(from.all).filter(|n| *n > 0)? as f64;
        let processors = thread::available_parallelism().map_or(1.0, |n| n.get() as f64);
        let own = own.as_secs_f64() / (self.begun.elapsed().as_secs_f64() * processors);
        let busy = (to.busy - from.busy) as f64 / all;
        Some(((busy - own).max(0.0), (to.stolen - from.stolen) as f64 / all))
    }
}

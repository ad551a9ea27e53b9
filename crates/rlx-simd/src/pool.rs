//! A persistent pool of threads that spin for a while and then park.
//!
//! A kernel is a number of tasks; which worker takes which task is left to chance, so a task's result may depend only on
//! the task, never on the worker or on how many there are.
//!
//! A helper that wakes takes part in the job if the gate is still open. The caller takes tasks from the first moment, shuts
//! the gate when none is left, and waits for those who are inside: never for a helper that is still waking up, which can
//! take longer than the whole job.
//!
//! A virtual machine was seen to wake a thread on its waker's own processor though another one was idle; the two share it
//! for milliseconds, until the system parts them. So the caller keeps helpers off its processor while it wakes them: `place`.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a helper spins before it parks: longer than the gap between two runs of a loop, for waking up takes tens of
/// microseconds, and a thread that has slept may begin at low clocks or on the processor of another.
const SPIN: Duration = Duration::from_millis(1);
/// Rounds of spinning between looks at the clock.
const ROUNDS: usize = 256;

/// The parts of [`Shared::gate`]: whether helpers may come in, how many have, and which job it is.
const OPEN: usize = 1;
const ONE: usize = 2;
const INSIDE: usize = 0xfffe;
const NUMBER: usize = !(OPEN | INSIDE);
const NEXT: usize = 0x1_0000;

/// A task: its number, and the worker (0 is the caller) that runs it.
type Task<'a> = dyn Fn(usize, usize) + Sync + 'a;

#[derive(Clone, Copy)]
struct Job {
    /// The task, its lifetime erased; valid while the gate is open or a helper is inside.
    task: *const Task<'static>,
    count: usize,
}

/// Whether a helper sleeps.
#[derive(Default)]
struct Bed {
    taken: AtomicBool,
    /// Whether the caller keeps it off its own processor; only for callers.
    kept_off: AtomicBool,
}

struct Shared {
    /// Written while the gate is shut and nobody is inside.
    job: UnsafeCell<Job>,
    gate: AtomicUsize,
    next: AtomicUsize,
    /// Helpers that came in and have finished.
    left: AtomicUsize,
    /// Helpers that are parked, or about to be.
    sleeping: AtomicUsize,
    stop: AtomicBool,
    parked: Mutex<()>,
    wake: Condvar,
    beds: Vec<Bed>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: the raw pointer in `Job` points to a `Sync` closure that outlives the job, see `Pool::run`.
unsafe impl Send for Shared {}
// SAFETY: as above; the gate orders the writes of the job and the reads.
unsafe impl Sync for Shared {}

/// Threads that run tasks side by side.
pub struct Pool {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
    /// Held by the one caller whose job runs.
    turn: Mutex<()>,
}

fn nothing(_: usize, _: usize) {}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// A pool of that many workers, the caller of [`Pool::run`] included; at least one.
    pub fn new(threads: usize) -> Pool {
        let threads = threads.clamp(1, INSIDE / ONE);
        let shared = Arc::new(Shared {
            job: UnsafeCell::new(Job { task: &nothing, count: 0 }),
            gate: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            left: AtomicUsize::new(0),
            sleeping: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            parked: Mutex::new(()),
            wake: Condvar::new(),
            beds: (1..threads).map(|_| Bed::default()).collect(),
            panic: Mutex::new(None),
        });
        let helpers = (1..threads)
            .map_while(|worker| {
                let shared = shared.clone();
                let name = format!("rlx-{worker}");
                // A system that gives no more threads gets a smaller pool.
                std::thread::Builder::new().name(name).spawn(move || shared.serve(worker)).ok()
            })
            .collect();
        Pool { shared, helpers, turn: Mutex::new(()) }
    }

    /// The number of threads that the machine runs at once.
    pub fn machine_threads() -> usize {
        std::thread::available_parallelism().map_or(1, |n| n.get())
    }

    /// The number of workers.
    pub fn threads(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Runs `task(i, worker)` for every `i < count` and returns when all are done. If another caller's job is under way, or
    /// this is called from within a task, the caller runs all tasks itself, as worker 0.
    pub fn run(&self, count: usize, task: impl Fn(usize, usize) + Sync) {
        self.run_dyn(count, &task)
    }

    /// Wakes the helpers that are parked, on other processors than this one.
    fn wake(&self) {
        let s = &*self.shared;
        // Whoever looked at the gate too early is in its wait once the lock is free.
        drop(lock(&s.parked));
        let here = place::current();
        let helpers = || self.helpers.iter().zip(&s.beds);
        for (helper, bed) in helpers() {
            let sleeps = bed.taken.load(Ordering::Relaxed);
            bed.kept_off.store(sleeps && place::allow(helper, here, false), Ordering::Relaxed);
        }
        s.wake.notify_all();
        // They are on their way, and may go anywhere again.
        for (helper, _) in helpers().filter(|(_, bed)| bed.kept_off.load(Ordering::Relaxed)) {
            place::allow(helper, here, true);
        }
    }

    fn run_dyn(&self, count: usize, task: &Task<'_>) {
        let turn = match self.turn.try_lock() {
            Ok(turn) => Some(turn),
            Err(TryLockError::Poisoned(e)) => Some(e.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        if count <= 1 || self.helpers.is_empty() || turn.is_none() {
            (0..count).for_each(|i| task(i, 0));
            return;
        }
        let s = &*self.shared;
        // SAFETY: only the lifetime changes. `run` does not return before the gate is shut and everybody has left.
        let erased = unsafe { std::mem::transmute::<*const Task<'_>, *const Task<'static>>(task) };
        // SAFETY: the gate is shut and everybody has left, so nobody reads the job.
        unsafe { *s.job.get() = Job { task: erased, count } };
        s.next.store(0, Ordering::Relaxed);
        s.left.store(0, Ordering::Relaxed);
        let number = (s.gate.load(Ordering::Relaxed) & NUMBER).wrapping_add(NEXT);
        // Either a helper that lies down sees the open gate, or this sees that it sleeps: one order for all.
        s.gate.store(number | OPEN, Ordering::SeqCst);
        if s.sleeping.load(Ordering::SeqCst) > 0 {
            self.wake();
        }
        let mine = catch_unwind(AssertUnwindSafe(|| s.take(task, count, 0)));
        if mine.is_err() {
            s.next.store(count, Ordering::Relaxed);
        }
        let inside = (s.gate.fetch_and(!OPEN, Ordering::AcqRel) & INSIDE) / ONE;
        let mut rounds = 0usize;
        while s.left.load(Ordering::Acquire) < inside {
            rounds += 1;
            // Where there are fewer processors than workers, somebody must make way.
            if rounds.is_multiple_of(ROUNDS) {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
        let theirs = lock(&s.panic).take();
        drop(turn);
        if let Some(e) = mine.err().or(theirs) {
            resume_unwind(e);
        }
    }
}

impl Shared {
    fn take(&self, task: &Task<'_>, count: usize, worker: usize) {
        loop {
            let i = self.next.fetch_add(1, Ordering::Relaxed);
            if i >= count {
                return;
            }
            task(i, worker);
        }
    }

    /// Whether the gate is open for another job than the one seen last.
    fn invites(gate: usize, seen: usize) -> bool {
        gate & OPEN != 0 && gate & NUMBER != seen
    }

    /// Goes through the gate, if it is open for another job than the one seen last, which becomes that one.
    fn enter(&self, seen: &mut usize) -> bool {
        let mut gate = self.gate.load(Ordering::Relaxed);
        while Self::invites(gate, *seen) {
            match self.gate.compare_exchange_weak(gate, gate + ONE, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => {
                    *seen = gate & NUMBER;
                    return true;
                }
                Err(now) => gate = now,
            }
        }
        false
    }

    /// Waits for a job and goes in; false when the pool ends.
    fn wait(&self, worker: usize, seen: &mut usize) -> bool {
        // Not by calling itself: jobs can end before it has woken as often as there are jobs.
        while !self.stop.load(Ordering::Relaxed) {
            if self.spin(seen) {
                return true;
            }
            self.sleep(worker, *seen);
            if self.enter(seen) {
                return true;
            }
        }
        false
    }

    /// Looks out for a job for a while.
    fn spin(&self, seen: &mut usize) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < SPIN {
            for _ in 0..ROUNDS {
                if self.enter(seen) {
                    return true;
                }
                std::hint::spin_loop();
            }
            std::thread::yield_now();
        }
        false
    }

    /// Parks until somebody calls.
    fn sleep(&self, worker: usize, seen: usize) {
        let mut parked = lock(&self.parked);
        let lies =
            |yes| self.beds.get(worker - 1).into_iter().for_each(|b| b.taken.store(yes, Ordering::Relaxed));
        lies(true);
        self.sleeping.fetch_add(1, Ordering::SeqCst);
        // Of a job that began and ended meanwhile nothing is left to do.
        while !Self::invites(self.gate.load(Ordering::SeqCst), seen) && !self.stop.load(Ordering::Relaxed) {
            parked = self.wake.wait(parked).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleeping.fetch_sub(1, Ordering::Relaxed);
        lies(false);
    }

    fn serve(&self, worker: usize) {
        let mut seen = 0;
        while self.wait(worker, &mut seen) {
            // SAFETY: the gate was open, so the job is written, and stays as it is until this worker has left.
            let Job { task, count } = unsafe { *self.job.get() };
            // SAFETY: the job is under way, and its caller waits until this worker has left.
            let task = unsafe { &*task };
            if let Err(e) = catch_unwind(AssertUnwindSafe(|| self.take(task, count, worker))) {
                self.next.store(count, Ordering::Relaxed);
                *lock(&self.panic) = Some(e);
            }
            self.left.fetch_add(1, Ordering::Release);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        {
            let _parked = lock(&self.shared.parked);
            self.shared.stop.store(true, Ordering::Relaxed);
            self.shared.wake.notify_all();
        }
        for h in self.helpers.drain(..) {
            // A helper that panicked outside a task has nothing more to say.
            let _ = h.join();
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} threads)", self.threads())
    }
}

/// On which processor a thread runs and may run, where the system tells.
#[cfg(target_os = "linux")]
mod place {
    use std::ffi::c_int;
    use std::os::unix::thread::{JoinHandleExt, RawPthread};
    use std::thread::JoinHandle;

    /// A bit for each processor; systems with more of them refuse to fill it.
    type Set = [u64; 16];

    unsafe extern "C" {
        safe fn sched_getcpu() -> c_int;
        fn pthread_getaffinity_np(thread: RawPthread, bytes: usize, set: *mut Set) -> c_int;
        fn pthread_setaffinity_np(thread: RawPthread, bytes: usize, set: *const Set) -> c_int;
    }

    /// The processor that runs this.
    pub fn current() -> usize {
        usize::try_from(sched_getcpu()).unwrap_or(usize::MAX)
    }

    /// Lets a thread run on a processor or keeps it off; says whether that changed anything. A thread keeps its last one.
    pub fn allow(thread: &JoinHandle<()>, processor: usize, allowed: bool) -> bool {
        let (id, mut set) = (thread.as_pthread_t(), Set::default());
        // SAFETY: the thread has not been joined, and the set has as many bytes.
        if unsafe { pthread_getaffinity_np(id, size_of::<Set>(), &mut set) } != 0 {
            return false;
        }
        let (Some(word), bit) = (set.get_mut(processor / 64), 1 << (processor % 64)) else { return false };
        if (*word & bit != 0) == allowed {
            return false;
        }
        *word ^= bit;
        // SAFETY: as above.
        set != Set::default() && unsafe { pthread_setaffinity_np(id, size_of::<Set>(), &set) } == 0
    }
}

#[cfg(not(target_os = "linux"))]
mod place {
    use std::thread::JoinHandle;

    pub fn current() -> usize {
        usize::MAX
    }

    pub fn allow(_: &JoinHandle<()>, _: usize, _: bool) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once() {
        let pool = Pool::new(3);
        for count in [0, 1, 2, 7, 1000] {
            let hits: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
            pool.run(count, |i, _| {
                hits[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1), "{count} tasks");
        }
    }

    #[test]
    fn a_task_may_start_tasks_and_callers_may_meet() {
        let pool = Pool::new(2);
        let sum = AtomicUsize::new(0);
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    for _ in 0..100 {
                        pool.run(5, |_, _| {
                            pool.run(4, |i, _| {
                                sum.fetch_add(i, Ordering::Relaxed);
                            })
                        });
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), 3 * 100 * 5 * 6);
    }

    #[test]
    fn parked_helpers_wake_and_may_run_anywhere_again() {
        let pool = Pool::new(3);
        for pause in [2, 0, 5, 1] {
            std::thread::sleep(pause * SPIN);
            let before = allowed(&pool);
            let hits = AtomicUsize::new(0);
            pool.run(64, |_, _| {
                hits.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(hits.into_inner(), 64);
            assert_eq!(allowed(&pool), before);
        }
    }

    /// Which helpers may run on this processor.
    fn allowed(pool: &Pool) -> Vec<bool> {
        let here = place::current();
        let may = |h: &JoinHandle<()>| place::allow(h, here, false) && place::allow(h, here, true);
        pool.helpers.iter().map(may).collect()
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(2);
        let caught = catch_unwind(AssertUnwindSafe(|| pool.run(50, |i, _| assert_ne!(i, 30))));
        assert!(caught.is_err());
        let n = AtomicUsize::new(0);
        pool.run(10, |_, _| {
            n.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(n.into_inner(), 10);
    }
}

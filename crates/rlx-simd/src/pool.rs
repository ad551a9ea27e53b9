//! A persistent pool of threads that spin briefly and then park.
//!
//! A kernel is a number of tasks; which worker takes which task is left to chance, so a task's result may depend only on
//! the task, never on the worker or on how many there are.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;

/// Rounds of spinning before a worker parks: some tens of microseconds, more than the gap between two steps of a run.
const SPINS: usize = 20_000;

/// A task: its number, and the worker (0 is the caller) that runs it.
type Task<'a> = dyn Fn(usize, usize) + Sync + 'a;

struct Job {
    /// The task, its lifetime erased; valid while `left > 0` workers may still run.
    task: *const Task<'static>,
    count: usize,
}

struct Shared {
    job: Mutex<Job>,
    wake: Condvar,
    /// Goes up by one with every job.
    epoch: AtomicUsize,
    next: AtomicUsize,
    /// Helpers that have not yet finished the current job.
    busy: AtomicUsize,
    sleeping: AtomicUsize,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: the raw pointer in `Job` points to a `Sync` closure that outlives the job, see `Pool::run`.
unsafe impl Send for Shared {}
// SAFETY: as above.
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
        let shared = Arc::new(Shared {
            job: Mutex::new(Job { task: &nothing, count: 0 }),
            wake: Condvar::new(),
            epoch: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
            sleeping: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let helpers = (1..threads.max(1))
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
        {
            let mut job = lock(&s.job);
            // SAFETY: only the lifetime changes. `run` does not return before `busy` is 0, and no helper touches the task
            // after it has counted itself out.
            job.task = unsafe { std::mem::transmute::<*const Task<'_>, *const Task<'static>>(task) };
            job.count = count;
            s.next.store(0, Ordering::Relaxed);
            s.busy.store(self.helpers.len(), Ordering::Relaxed);
            s.epoch.fetch_add(1, Ordering::Release);
            if s.sleeping.load(Ordering::Relaxed) > 0 {
                s.wake.notify_all();
            }
        }
        let mine = catch_unwind(AssertUnwindSafe(|| s.take(task, count, 0)));
        if mine.is_err() {
            s.next.store(count, Ordering::Relaxed);
        }
        let mut spins = 0usize;
        while s.busy.load(Ordering::Acquire) > 0 {
            pause(&mut spins);
        }
        let theirs = lock(&s.panic).take();
        drop(turn);
        if let Some(e) = mine.err().or(theirs) {
            resume_unwind(e);
        }
    }
}

fn pause(spins: &mut usize) {
    *spins += 1;
    // Where there are fewer cores than workers, somebody must make way.
    if spins.is_multiple_of(1024) {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
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

    fn serve(&self, worker: usize) {
        let mut seen = 0;
        loop {
            let mut spins = 0;
            while self.epoch.load(Ordering::Acquire) == seen && spins < SPINS {
                pause(&mut spins);
            }
            let (task, count) = {
                let mut job = lock(&self.job);
                while self.epoch.load(Ordering::Acquire) == seen {
                    if self.stop.load(Ordering::Relaxed) {
                        return;
                    }
                    self.sleeping.fetch_add(1, Ordering::Relaxed);
                    job = self.wake.wait(job).unwrap_or_else(PoisonError::into_inner);
                    self.sleeping.fetch_sub(1, Ordering::Relaxed);
                }
                seen = self.epoch.load(Ordering::Acquire);
                (job.task, job.count)
            };
            // SAFETY: the job is under way, and its caller waits until this worker has counted itself out of `busy`.
            let task = unsafe { &*task };
            if let Err(e) = catch_unwind(AssertUnwindSafe(|| self.take(task, count, worker))) {
                self.next.store(count, Ordering::Relaxed);
                *lock(&self.panic) = Some(e);
            }
            self.busy.fetch_sub(1, Ordering::Release);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        {
            let _job = lock(&self.shared.job);
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

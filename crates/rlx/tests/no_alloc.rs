//! A run asks for no memory, and ten thousand of them leave none behind.
//!
//! One test: what other tests ask for meanwhile would be counted too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use common::{Buffers, Model, encoder, gpt, mamba, options, prologues};
use rlx_conformance::models;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts what is asked for, by all threads.
struct Counting;

static COUNT: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, l: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(l) }
    }
    unsafe fn dealloc(&self, p: *mut u8, l: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(p, l) }
    }
    unsafe fn alloc_zeroed(&self, l: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(l) }
    }
    unsafe fn realloc(&self, p: *mut u8, l: Layout, n: usize) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(p, l, n) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What is resident, in bytes.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// How often memory is asked for in some runs, after a first one.
fn asked(m: &Model) -> usize {
    let mut buffers = Buffers::like(&m.run());
    let mut inputs = m.views();
    let mut outputs = buffers.views();
    m.exe.run_into(&inputs, &mut outputs).unwrap();
    let before = COUNT.load(Ordering::Relaxed);
    for _ in 0..3 {
        m.exe.run_into(&inputs, &mut outputs).unwrap();
    }
    inputs.reverse(); // the order is the caller's
    m.exe.run_into(&inputs, &mut outputs).unwrap();
    COUNT.load(Ordering::Relaxed) - before
}

#[test]
fn a_run_asks_for_no_memory_and_leaves_none() {
    let text = [("batch", 3), ("seq", 17)];
    let small = [("batch", 3), ("seq", 9)];
    let mut cases = vec![
        (encoder().graph().unwrap().finish().unwrap(), &text[..]),
        (gpt(2).graph().unwrap(), &small[..]),
        (gpt(2).training().unwrap(), &small[..]),
        (mamba(16).training().unwrap(), &small[..]),
        // More params than fit a table on the stack.
        (gpt(20).training().unwrap(), &small[..]),
        (models::medley().unwrap(), &[("n", 7)][..]),
    ];
    cases.extend(prologues(37, 29).into_iter().map(|f| (f, &[("m", 19), ("b", 2)][..])));
    let mut failures = Vec::new();
    for threads in [1, 2] {
        let options = options(threads);
        for (func, sizes) in &cases {
            let n = asked(&Model::new(func, sizes, &options));
            if n > 0 {
                failures.push(format!("{} on {threads} threads: {n} times", func.name));
            }
        }
    }
    assert!(failures.is_empty(), "memory is asked for: {failures:#?}");

    // Every op of the table, on its own; only the codecs of packed types still ask for memory.
    let options = options(2);
    for (name, case) in
        rlx_conformance::sampled::all(rlx::DType::F32, |n| !n.starts_with("fake_quantize_block"))
    {
        let case = case.unwrap();
        let types = case.func.output_types().unwrap();
        if case.data.iter().any(|(_, t)| t.dtype().is_packed()) || types.iter().any(|t| t.dtype.is_packed()) {
            continue;
        }
        let n = asked(&Model::with(&case.func, case.data, &options));
        if n > 0 {
            failures.push(format!("{name}: {n} times"));
        }
    }
    assert!(failures.is_empty(), "memory is asked for: {failures:#?}");

    // Ten thousand runs, into the caller's memory and into new tensors.
    let m = Model::new(&gpt(1).graph().unwrap(), &small, &options);
    let mut buffers = Buffers::like(&m.run());
    let (inputs, mut outputs) = (m.views(), buffers.views());
    let mut runs = |n: usize| {
        for _ in 0..n {
            m.exe.run_into(&inputs, &mut outputs).unwrap();
            m.run();
        }
    };
    runs(100);
    let before = resident();
    runs(10_000);
    let grown = resident().saturating_sub(before);
    assert!(grown < 1 << 20, "ten thousand runs left {grown} bytes");
}

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

/// Bytes that can be read from an odd address on.
fn shifted(bytes: &[u8]) -> Vec<u8> {
    let mut room = vec![0; bytes.len() + 2];
    odd_mut(&mut room, bytes.len()).copy_from_slice(bytes);
    room
}

fn odd(room: &[u8], len: usize) -> &[u8] {
    let skip = 1 - room.as_ptr() as usize % 2;
    &room[skip..skip + len]
}

fn odd_mut(room: &mut [u8], len: usize) -> &mut [u8] {
    let skip = 1 - room.as_ptr() as usize % 2;
    &mut room[skip..skip + len]
}

/// How often memory is asked for in some runs, after a first one.
fn asked(m: &Model) -> usize {
    let mut buffers = Buffers::like(&m.run());
    let whole = m.planes();
    let mut inputs = m.views_of(&whole);
    let mut outputs = buffers.views();
    m.exe.run_into(&inputs, &mut outputs).unwrap();
    // One byte off, no element stands where it can be read; a first run makes room for copies.
    let off: Vec<Vec<u8>> = inputs.iter().map(|(_, v)| shifted(v.bytes)).collect();
    let mut apart = inputs.clone();
    apart.iter_mut().zip(&off).for_each(|((_, v), bytes)| v.bytes = odd(bytes, v.bytes.len()));
    m.exe.run_into(&apart, &mut outputs).unwrap();
    let before = COUNT.load(Ordering::Relaxed);
    for _ in 0..3 {
        m.exe.run_into(&inputs, &mut outputs).unwrap();
    }
    m.exe.run_into(&apart, &mut outputs).unwrap();
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
        (models::residual(6).unwrap(), &[("n", 2), ("side", 11)][..]),
        (models::gated(2, 6).unwrap(), &[("batch", 2), ("seq", 17)][..]),
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

    // Every op of the table, on its own.
    let options = options(2);
    for (name, case) in rlx_conformance::sampled::all(rlx::DType::F32, |_| true) {
        let case = case.unwrap();
        let n = asked(&Model::with(&case.func, case.data, &options));
        if n > 0 {
            failures.push(format!("{name}: {n} times"));
        }
    }
    // Packed data of many pieces, to and fro.
    for scheme in ["int8_asym:32", "int4:32", "nvfp4:16", "mxfp8_e4m3:32", "q4_k", "ggml_bf16"] {
        let g = rlx::Graph::new(scheme);
        let x = g.input("x", rlx::DType::F32, [96, 512]);
        let w = x.quantize(rlx::DType::parse(&format!("packed<{scheme}>")).unwrap());
        g.output("w", w);
        g.output("y", w.dequantize(rlx::DType::F16, false));
        let n = asked(&Model::new(&g.finish().unwrap(), &[], &options));
        if n > 0 {
            failures.push(format!("{scheme}: {n} times"));
        }
    }
    // A call of three hundred arguments.
    let g = rlx::Graph::new("wide");
    let state: Vec<_> = (0..150).map(|i| g.input(&format!("x{i}"), rlx::DType::F32, [3])).collect();
    let taken = g.input("taken", rlx::DType::Bool, [0i64; 0]);
    let results = g.cond(taken, || state.iter().map(|x| x.exp()).collect(), || state.clone());
    for (i, y) in results.into_iter().enumerate() {
        g.output(&format!("y{i}"), y);
    }
    let n = asked(&Model::new(&g.finish().unwrap(), &[], &options));
    if n > 0 {
        failures.push(format!("300 arguments: {n} times"));
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

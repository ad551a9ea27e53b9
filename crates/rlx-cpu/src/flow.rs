//! Control flow: programs within programs. Their arenas and scratch spaces lie in the shared scratch space of the kernel,
//! so that a loop asks for no memory.

use crate::bind::byte_count;
use crate::bind::{Bound, Cx, Io, Loaded, Ready, Setting, run};
use rlx_compile::program::{Kernel, Named, fault};
use rlx_ir::dim::Bindings;
use rlx_ir::op::Step;
use rlx_ir::{Code, Error, Result};
use rlx_simd::mem::{Ptr, Scratch, ScratchSize, round_up};
use std::sync::Arc;

/// A region bound to sizes.
struct Body {
    loaded: Arc<Loaded>,
    bound: Bound,
    /// Bytes of each input and output.
    inputs: Vec<usize>,
    outputs: Vec<usize>,
    arena: usize,
    /// Where the addresses of a call's arguments lie, behind the arena and the scratch space.
    table: usize,
    total: usize,
}

impl Body {
    fn new(setting: Setting, loaded: &Arc<Loaded>, bindings: &Bindings) -> Result<Body> {
        let bound = Bound::new(loaded, setting, bindings)?;
        let bytes = |list: &[Named]| -> Result<Vec<usize>> {
            list.iter().map(|n| byte_count(n.dtype, &n.shape, bindings)).collect()
        };
        let arena = round_up(bound.layout.peak.max(0) as usize);
        let table = arena + bound.scratch.total(setting.threads);
        let total = table + round_up(bound.widest * size_of::<Ptr<u8>>());
        let (inputs, outputs) = (bytes(&loaded.program.inputs)?, bytes(&loaded.program.outputs)?);
        Ok(Body { loaded: loaded.clone(), bound, inputs, outputs, arena, table, total })
    }

    /// Runs the body.
    ///
    /// # Safety
    /// The addresses are those of the body's inputs and outputs, outputs overlap nothing, and `memory` has `total` bytes.
    unsafe fn run(
        &self,
        cx: &Cx<'_>,
        threads: usize,
        memory: *mut u8,
        inputs: &[Ptr<u8>],
        outputs: &[Ptr<u8>],
    ) {
        let io = Io { arena: Ptr(memory), inputs, params: &[], prepared: &[], outputs, packed: &[] };
        // SAFETY: as promised by the caller.
        unsafe {
            let scratch = Scratch::new(memory.add(self.arena), self.bound.scratch, threads);
            let table = std::slice::from_raw_parts_mut(memory.add(self.table).cast(), self.bound.widest);
            run(&self.loaded, &self.bound, &io, cx.pool, scratch, table, None);
        }
    }
}

/// Pointers in scratch space: a list that can be changed without asking for memory.
struct List {
    at: *mut Ptr<u8>,
    len: usize,
}

impl List {
    /// # Safety
    /// There is room for the addresses.
    unsafe fn new(at: *mut u8, from: &[Ptr<u8>]) -> List {
        let at = at.cast::<Ptr<u8>>();
        // SAFETY: as promised by the caller.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), at, from.len()) };
        List { at, len: from.len() }
    }
    fn get(&self) -> &[Ptr<u8>] {
        // SAFETY: the list was written when it was made.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }
    fn set(&mut self, k: usize, p: Ptr<u8>) {
        if k < self.len {
            // SAFETY: within the list.
            unsafe { *self.at.add(k) = p };
        }
    }
}

fn copy_bytes(to: Ptr<u8>, from: Ptr<u8>, n: usize) {
    // SAFETY: the callers name whole tensors of that size, which differ or are the same.
    unsafe { std::ptr::copy(from.0, to.0, n) }
}

fn ready(shared: usize, run: impl Fn(&Cx<'_>, &[Ptr<u8>]) + Send + Sync + 'static) -> Ready {
    Ready { scratch: ScratchSize { each: 0, shared }, run: Box::new(run), flops: 0 }
}

/// The most turns of a loop: a graph from elsewhere must not keep the processor for ever.
const TURNS: i64 = 1 << 32;

fn check_turns(n: i64) -> Result<()> {
    if n <= TURNS {
        return Ok(());
    }
    Err(Error::new(Code::Limit, format!("a loop of {n} turns; the limit is {TURNS}")))
}

/// Binds control flow: arguments are operands, then results.
pub(crate) fn bind(
    setting: Setting,
    kernel: &Kernel,
    step: &Step,
    bodies: &[Arc<Loaded>],
    bindings: &Bindings,
) -> Result<Ready> {
    let threads = setting.threads;
    let body =
        |k: usize| Body::new(setting, bodies.get(k).ok_or_else(|| fault("a region is missing"))?, bindings);
    let results = kernel.args.iter().filter(|a| a.write).count();
    let operands = kernel.args.len() - results;
    match step {
        Step::If => {
            let (yes, no) = (body(0)?, body(1)?);
            Ok(ready(yes.total.max(no.total), move |cx, args| {
                let (Some((p, ins)), Some(outs)) =
                    (args.get(..operands).and_then(<[_]>::split_first), args.get(operands..))
                else {
                    return;
                };
                // SAFETY: the predicate is a bool; the addresses are those of the call.
                unsafe {
                    let taken = if *p.0 != 0 { &yes } else { &no };
                    taken.run(cx, threads, cx.scratch.shared(taken.total), ins, outs);
                }
            }))
        }
        Step::While { carries, max, save } => {
            check_turns(*max)?;
            let (cond, body) = (body(0)?, body(1)?);
            let (carries, max, save) = (*carries, *max, *save);
            let sizes: Vec<usize> = body.outputs.clone();
            let pair: usize = sizes.iter().map(|b| round_up(*b)).sum();
            let inner = round_up(cond.total.max(body.total));
            let lists = round_up((operands + carries) * size_of::<Ptr<u8>>());
            let truth = 64;
            Ok(ready(inner + 2 * pair + truth + 2 * lists, move |cx, args| {
                let (Some(ins), Some(outs)) = (args.get(..operands), args.get(operands..)) else { return };
                // SAFETY: every address is within the scratch space that was asked for, or one of the call's.
                unsafe {
                    let base = cx.scratch.shared::<u8>(inner + 2 * pair + truth + 2 * lists);
                    let buffer = |turn: usize| base.add(inner + (turn & 1) * pair);
                    let holds = Ptr(base.add(inner + 2 * pair));
                    let mut state = List::new(base.add(inner + 2 * pair + truth), ins);
                    let mut next = List::new(
                        base.add(inner + 2 * pair + truth + lists),
                        ins.get(..carries).unwrap_or_default(),
                    );
                    let mut turns = 0i64;
                    while turns < max {
                        cond.run(cx, threads, base, state.get(), &[holds]);
                        if *holds.0 == 0 {
                            break;
                        }
                        if save {
                            for (k, bytes) in sizes.iter().enumerate() {
                                if let (Some(all), Some(now)) =
                                    (outs.get(carries + 1 + k), state.get().get(k))
                                {
                                    copy_bytes(Ptr(all.0.add(turns as usize * bytes)), *now, *bytes);
                                }
                            }
                        }
                        let mut at = buffer(turns as usize);
                        for (k, bytes) in sizes.iter().enumerate() {
                            next.set(k, Ptr(at));
                            at = at.add(round_up(*bytes));
                        }
                        body.run(cx, threads, base, state.get(), next.get());
                        for k in 0..carries {
                            if let Some(p) = next.get().get(k) {
                                state.set(k, *p);
                            }
                        }
                        turns += 1;
                    }
                    for (k, bytes) in sizes.iter().enumerate() {
                        if let (Some(out), Some(now)) = (outs.get(k), state.get().get(k)) {
                            copy_bytes(*out, *now, *bytes);
                        }
                    }
                    if save {
                        if let Some(n) = outs.get(carries) {
                            *n.0.cast::<i64>() = turns;
                        }
                        for (k, bytes) in sizes.iter().enumerate() {
                            if let Some(all) = outs.get(carries + 1 + k) {
                                let done = turns as usize * bytes;
                                std::ptr::write_bytes(all.0.add(done), 0, max.max(0) as usize * bytes - done);
                            }
                        }
                    }
                }
            }))
        }
        Step::Scan { carries, xs, length, reverse } => {
            let body = body(0)?;
            let length = length.eval(bindings).map_err(crate::bind::unbound)?;
            check_turns(length)?;
            let length = length.max(0) as usize;
            let (carries, xs, reverse) = (*carries, *xs, *reverse);
            let sizes = body.outputs.clone();
            let entries = body.inputs.get(carries..carries + xs).map(<[usize]>::to_vec).unwrap_or_default();
            let pair: usize = sizes.iter().take(carries).map(|b| round_up(*b)).sum();
            let inner = round_up(body.total);
            let lists = round_up((operands + results) * size_of::<Ptr<u8>>());
            let total = inner + 2 * pair + 2 * lists;
            Ok(ready(total, move |cx, args| {
                let (Some(ins), Some(outs)) = (args.get(..operands), args.get(operands..)) else { return };
                // SAFETY: every address is within the scratch space that was asked for, or one of the call's.
                unsafe {
                    let base = cx.scratch.shared::<u8>(total);
                    let buffer = |turn: usize| base.add(inner + (turn & 1) * pair);
                    let mut state = List::new(base.add(inner + 2 * pair), ins);
                    let mut next = List::new(base.add(inner + 2 * pair + lists), outs);
                    for turn in 0..length {
                        let i = if reverse { length - 1 - turn } else { turn };
                        for (k, bytes) in entries.iter().enumerate() {
                            if let Some(x) = ins.get(carries + k) {
                                state.set(carries + k, Ptr(x.0.add(i * bytes)));
                            }
                        }
                        let mut at = buffer(turn);
                        for (k, bytes) in sizes.iter().enumerate() {
                            if k < carries {
                                next.set(k, Ptr(at));
                                at = at.add(round_up(*bytes));
                            } else if let Some(y) = outs.get(k) {
                                next.set(k, Ptr(y.0.add(i * bytes)));
                            }
                        }
                        body.run(cx, threads, base, state.get(), next.get());
                        for k in 0..carries {
                            if let Some(p) = next.get().get(k) {
                                state.set(k, *p);
                            }
                        }
                    }
                    for (k, bytes) in sizes.iter().enumerate().take(carries) {
                        if let (Some(out), Some(now)) = (outs.get(k), state.get().get(k)) {
                            copy_bytes(*out, *now, *bytes);
                        }
                    }
                }
            }))
        }
        _ => Err(fault("this is no control flow")),
    }
}

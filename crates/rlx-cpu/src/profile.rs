//! What a run took.

use crate::bind::{Bound, Loaded, Watch};
use rlx_simd::mem::Ptr;
use std::time::{Duration, Instant};

/// What a run took: per call, its time.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// The calls in order.
    pub calls: Vec<Timed>,
    /// The whole run.
    pub total: Duration,
}

/// The time of a call.
#[derive(Clone, Debug)]
pub struct Timed {
    /// The ops that it stands for.
    pub label: String,
    /// Since the start of the run.
    pub start: Duration,
    /// How long it took.
    pub time: Duration,
    /// Arithmetic operations.
    pub flops: u64,
    /// Bytes that it reads and writes at least.
    pub bytes: u64,
}

/// Times every call.
pub(crate) struct Recorder<'a> {
    pub loaded: &'a Loaded,
    pub bound: &'a Bound,
    pub profile: Profile,
    pub began: Instant,
}

impl Watch for Recorder<'_> {
    fn call(&mut self, index: usize, _args: &[Ptr<u8>], run: &mut dyn FnMut()) {
        let start = self.began.elapsed();
        run();
        let time = self.began.elapsed() - start;
        let p = &self.loaded.program;
        let Some(call) = p.calls.get(index) else { return };
        let bytes = match p.kernel(call) {
            Ok(k) => k
                .args
                .iter()
                .map(|a| {
                    // What is repeated is read once.
                    let sizes = a.shape.iter().zip(&a.strides);
                    let own = sizes.filter(|(_, s)| self.bound.sizes.get(s.0 as usize) != Some(&0));
                    let n: usize = own.map(|(d, _)| self.bound.size(*d)).product();
                    (n * a.dtype.bytes().unwrap_or(1)) as u64
                })
                .sum(),
            Err(_) => 0,
        };
        let flops = self.bound.kernels.get(call.kernel as usize).map_or(0, |k| k.flops);
        self.profile.calls.push(Timed { label: call.label.clone(), start, time, flops, bytes });
    }
}

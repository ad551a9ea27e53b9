//! Times of convolutions, their gradients and windows: `cargo run --release --example conv -- [threads] [name]`.
#![allow(clippy::unwrap_used)]

use rlx_simd::conv::{Conv, Weights};
use rlx_simd::level::Level;
use rlx_simd::mem::{Buffer, Scratch, ScratchSize};
use rlx_simd::pool::Pool;
use rlx_simd::window::{Kind, Window};
use std::time::Instant;

/// The best and the median of many runs, in milliseconds.
fn time(mut f: impl FnMut()) -> (f64, f64) {
    let (start, mut times) = (Instant::now(), vec![]);
    while times.len() < 5 || (start.elapsed().as_secs_f64() < 0.25 && times.len() < 2000) {
        let t = Instant::now();
        f();
        times.push(t.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    (times.first().copied().unwrap(), times.get(times.len() / 2).copied().unwrap())
}

fn with_scratch<R>(size: ScratchSize, threads: usize, f: impl FnOnce(&Scratch) -> R) -> R {
    let memory = Buffer::new(size.total(threads));
    // SAFETY: the buffer is that large, and lives until the end of the call.
    f(&unsafe { Scratch::new(memory.ptr(), size, threads) })
}

fn values(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect()
}

/// Name, batch, groups, channels in and out, size, kernel, stride, padding.
type Case = (&'static str, usize, usize, usize, usize, usize, usize, usize, isize);

const CASES: &[Case] = &[
    ("3x3 64ch 56", 1, 1, 64, 64, 56, 3, 1, 1),
    ("7x7/2 3-64 224", 1, 1, 3, 64, 224, 7, 2, 3),
    ("3x3/2 64-128 56", 1, 1, 64, 128, 56, 3, 2, 1),
    ("3x3 128ch 28", 1, 1, 128, 128, 28, 3, 1, 1),
    ("3x3 256ch 14", 1, 1, 256, 256, 14, 3, 1, 1),
    ("3x3 512ch 7", 1, 1, 512, 512, 7, 3, 1, 1),
    ("3x3 512ch 7 b8", 8, 1, 512, 512, 7, 3, 1, 1),
    ("1x1 64-256 56", 1, 1, 64, 256, 56, 1, 1, 0),
    ("1x1/2 256-512 28", 1, 1, 256, 512, 28, 1, 2, 0),
    ("depthwise 3x3 144 56", 1, 144, 144, 144, 56, 3, 1, 1),
    ("depthwise 5x5/2 96 56", 1, 96, 96, 96, 56, 5, 2, 2),
    ("patches 16 3-768 224", 1, 1, 3, 768, 224, 16, 16, 0),
];

fn main() {
    let mut args = std::env::args().skip(1);
    let threads = args.next().and_then(|t| t.parse().ok()).unwrap_or(2);
    let (only, level, pool) = (args.next().unwrap_or_default(), Level::detect(), Pool::new(threads));
    println!("{level}, {threads} threads: best and median ms, GFLOP/s of the best");
    for (name, batch, groups, from, to, size, k, stride, pad) in CASES {
        if !name.contains(&only) {
            continue;
        }
        let c = Conv {
            batch: *batch,
            groups: *groups,
            in_channels: *from,
            out_channels: *to,
            in_spatial: &[*size; 2],
            kernel: &[*k; 2],
            stride: &[*stride; 2],
            dilation: &[1; 2],
            pad_lo: &[*pad; 2],
            pad_hi: &[*pad; 2],
        };
        let flop = 2.0 * (c.outputs() * from / groups * k * k) as f64;
        let (x, w, dy) = (values(c.inputs()), values(c.weights()), values(c.outputs()));
        let (mut y, mut dx, mut dw) = (dy.clone(), x.clone(), w.clone());
        let show = |what: &str, (best, median): (f64, f64)| {
            println!("{name:22} {what:12} {best:8.3} {median:8.3} {:7.1}", flop / best / 1e6);
        };
        // SAFETY: all tensors have the sizes of the convolution.
        unsafe {
            let packed = c.pack(level, &pool, w.as_ptr()).unwrap();
            let packed_time = with_scratch(c.scratch::<f32>(level, true), threads, |s| {
                time(|| c.run_to(level, &pool, s, x.as_ptr(), Weights::Packed(&packed), y.as_mut_ptr()))
            });
            show("packed", packed_time);
            let plain = with_scratch(c.scratch::<f32>(level, false), threads, |s| {
                time(|| c.run_to(level, &pool, s, x.as_ptr(), Weights::Plain(w.as_ptr()), y.as_mut_ptr()))
            });
            show("plain", plain);
            let input = with_scratch(c.grad_input_scratch::<f32>(level), threads, |s| {
                time(|| c.grad_input(level, &pool, s, dy.as_ptr(), w.as_ptr(), dx.as_mut_ptr()))
            });
            show("grad_input", input);
            let weight = with_scratch(c.grad_weight_scratch::<f32>(level), threads, |s| {
                time(|| c.grad_weight(level, &pool, s, x.as_ptr(), dy.as_ptr(), dw.as_mut_ptr()))
            });
            show("grad_weight", weight);
        }
    }
    let windows = [
        ("max 3x3/2 64 112", 64, 112, 3, 2),
        ("sum 2x2/2 512 14", 512, 14, 2, 2),
        ("sum 7x7 512 7", 512, 7, 7, 1),
    ];
    for (name, lead, size, k, stride) in windows.iter().filter(|w| w.0.contains(&only)) {
        let pad = if *k == 3 { 1 } else { 0 };
        let w = Window {
            lead: *lead,
            spatial: &[*size; 2],
            kernel: &[*k; 2],
            stride: &[*stride; 2],
            dilation: &[1; 2],
            pad_lo: &[pad; 2],
            pad_hi: &[pad; 2],
        };
        let (x, mut y, mut at) = (values(w.inputs()), values(w.outputs()), vec![0; w.outputs()]);
        let kind = if name.starts_with("max") { Kind::Max } else { Kind::Sum };
        with_scratch(w.scratch::<f32>(), threads, |s| {
            // SAFETY: the tensors have the sizes of the windows.
            let reduce = time(|| unsafe { w.reduce(level, &pool, s, kind, x.as_ptr(), y.as_mut_ptr()) });
            // SAFETY: as above.
            let argmax = time(|| unsafe { w.argmax(level, &pool, s, kind, x.as_ptr(), at.as_mut_ptr()) });
            println!(
                "{name:22} reduce {:.4} {:.4}, argmax {:.4} {:.4}",
                reduce.0, reduce.1, argmax.0, argmax.1
            );
        });
    }
}

//! Times attention: `attention [THREADS] [LEVEL] [CASE]`. The rate counts the two products alone.
#![allow(clippy::undocumented_unsafe_blocks)]

use std::time::Instant;

use rlx_simd::attention::{Attention, AttentionGrad, Out, Scores};
use rlx_simd::level::Level;
use rlx_simd::mem::{Buffer, Scratch, View};
use rlx_simd::pool::Pool;

/// What the mask hides.
#[derive(Clone, Copy, Debug)]
enum Mask {
    /// There is none.
    None,
    /// It hides nothing.
    All,
    /// The last keys, more of them in each batch.
    Padding,
    /// Some keys, from all queries.
    Holes,
    /// Some keys, from each query others.
    Square,
}

fn main() {
    let mut args = std::env::args().skip(1);
    let threads = args.next().and_then(|x| x.parse().ok()).unwrap_or(2);
    let level = args.next().and_then(|x| Level::parse(&x)).unwrap_or_else(Level::detect);
    let only: Option<usize> = args.next().and_then(|x| x.parse().ok());
    let pool = Pool::new(threads);
    // b, hq, hkv, s, t, d, causal, mask
    let cases = [
        (1, 12, 12, 128, 128, 32, false, Mask::None),
        (32, 12, 12, 128, 128, 32, false, Mask::None),
        (1, 12, 12, 128, 128, 32, false, Mask::All),
        (8, 12, 12, 128, 128, 32, false, Mask::None),
        (8, 12, 12, 128, 128, 32, false, Mask::All),
        (8, 12, 12, 128, 128, 32, false, Mask::Padding),
        (8, 12, 12, 128, 128, 32, false, Mask::Holes),
        (8, 12, 12, 128, 128, 32, false, Mask::Square),
        (32, 12, 12, 128, 128, 32, false, Mask::All),
        (8, 12, 12, 256, 256, 32, false, Mask::None),
        (1, 32, 8, 512, 512, 64, true, Mask::None),
        (1, 16, 8, 2048, 2048, 128, true, Mask::None),
        (1, 32, 8, 1, 512, 64, true, Mask::None),
        (1, 32, 8, 1, 2048, 64, true, Mask::None),
        (1, 32, 32, 1, 2048, 128, true, Mask::None),
        (1, 16, 8, 1, 8192, 128, true, Mask::None),
    ];
    for (n, (b, hq, hkv, s, t, d, causal, hides)) in cases.into_iter().enumerate() {
        if only.is_some_and(|only| only != n) {
            continue;
        }
        let mut fill = 1u32;
        let mut floats = |n: usize| -> Vec<f32> {
            (0..n)
                .map(|_| {
                    fill = fill.wrapping_mul(1664525).wrapping_add(1013904223);
                    (fill >> 8) as f32 / (1 << 23) as f32 - 1.0
                })
                .collect()
        };
        let (mut q, mut k, mut v) =
            (floats(b * hq * s * d), floats(b * hkv * t * d), floats(b * hkv * t * d));
        let mut y = vec![0f32; b * hq * s * d];
        let mut mask: Vec<u8> = (0..b * s * t)
            .map(|i| match hides {
                Mask::None | Mask::All => 1,
                Mask::Padding => u8::from(i % t < t - i / (s * t) * t / b),
                Mask::Holes | Mask::Square => u8::from(i % 7 != 0),
            })
            .collect();
        let over_queries = if matches!(hides, Mask::Square) { t as isize } else { 0 };
        let strides = [(s * t) as isize, 0, over_queries, 1];
        let mask = View { ptr: mask.as_mut_ptr(), shape: [b, hq, s, t], strides };
        let a = Attention {
            scores: Scores {
                q: View::dense(q.as_mut_ptr(), [b, hq, s, d]),
                k: View::dense(k.as_mut_ptr(), [b, hkv, t, d]),
                mask: (!matches!(hides, Mask::None)).then_some(mask),
                bias: None,
                slopes: None,
                scale: 1.0 / (d as f64).sqrt(),
                causal,
                window: None,
                softcap: None,
            },
            v: View::dense(v.as_mut_ptr(), [b, hkv, t, d]),
        };
        let y = View::dense(y.as_mut_ptr(), [b, hq, s, d]);
        let buffer = Buffer::new(a.scratch().total(threads));
        let scratch = unsafe { Scratch::new(buffer.ptr(), a.scratch(), threads) };
        let best = time(|| unsafe { a.run(level, &pool, &scratch, Out::Direct(y)) });
        let (mut dq, mut dk, mut dv) = (vec![0f32; q.len()], vec![0f32; k.len()], vec![0f32; v.len()]);
        let grad = AttentionGrad {
            scores: a.scores,
            v: a.v,
            dy: y,
            dq: View::dense(dq.as_mut_ptr(), a.scores.q.shape),
            dk: View::dense(dk.as_mut_ptr(), a.scores.k.shape),
            dv: View::dense(dv.as_mut_ptr(), a.v.shape),
            dbias: None,
            dslopes: None,
        };
        let buffer = Buffer::new(grad.scratch().total(threads));
        let scratch = unsafe { Scratch::new(buffer.ptr(), grad.scratch(), threads) };
        let back = time(|| unsafe { grad.run(level, &pool, &scratch) });
        let pairs = if causal { s * (2 * t - s + 1) / 2 } else { s * t };
        let rate = 4.0 * (b * hq * pairs * d) as f64 / best / 1e9;
        let bytes = 8.0 * (b * hkv * t * d) as f64 / best / 1e9;
        println!(
            "b{b} hq{hq} hkv{hkv} s{s} t{t} d{d} causal={causal} mask={hides:?}: {:.4} ms, {rate:.0} GFLOP/s, k and v {bytes:.1} GB/s; back {:.4} ms",
            best * 1e3,
            back * 1e3
        );
    }
}

fn time(mut f: impl FnMut()) -> f64 {
    let mut best = f64::MAX;
    let all = Instant::now();
    while all.elapsed().as_secs_f64() < 0.6 {
        let start = Instant::now();
        f();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}

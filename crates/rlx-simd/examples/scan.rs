//! Times the selective scan: `scan [THREADS] [LEVEL]`.
#![allow(clippy::undocumented_unsafe_blocks)]

use std::time::Instant;

use rlx_simd::level::Level;
use rlx_simd::mem::{Buffer, Scratch, View};
use rlx_simd::pool::Pool;
use rlx_simd::scan::{Out, ScanInputs, SelectiveScan, SelectiveScanGrad};

fn main() {
    let mut args = std::env::args().skip(1);
    let threads = args.next().and_then(|x| x.parse().ok()).unwrap_or(2);
    let level = args.next().and_then(|x| Level::parse(&x)).unwrap_or_else(Level::detect);
    let pool = Pool::new(threads);
    for (batch, s, h, n) in [(1, 1024, 1536, 16), (4, 1024, 1536, 16), (1, 1024, 1536, 64), (1, 1, 1536, 16)]
    {
        let mut fill = 1u32;
        let mut floats = |n: usize, from: f32, to: f32| -> Vec<f32> {
            (0..n)
                .map(|_| {
                    fill = fill.wrapping_mul(1664525).wrapping_add(1013904223);
                    from + (to - from) * (fill >> 8) as f32 / (1 << 24) as f32
                })
                .collect()
        };
        let (mut x, mut delta) = (floats(batch * s * h, -0.5, 0.5), floats(batch * s * h, 0.001, 0.101));
        let (mut b, mut c) = (floats(batch * s * n, -0.5, 0.5), floats(batch * s * n, -0.5, 0.5));
        let mut a: Vec<f32> = (0..h * n).map(|i| -((1 + i % n) as f32)).collect();
        let (mut d, mut y) = (vec![1f32; h], vec![0f32; batch * s * h]);
        let inputs = ScanInputs {
            x: View::dense(x.as_mut_ptr(), [batch, s, h]),
            delta: View::dense(delta.as_mut_ptr(), [batch, s, h]),
            a: View::dense(a.as_mut_ptr(), [h, n]),
            b: View::dense(b.as_mut_ptr(), [batch, s, n]),
            c: View::dense(c.as_mut_ptr(), [batch, s, n]),
            d: Some(View::dense(d.as_mut_ptr(), [h])),
            z: None,
            delta_bias: None,
            state: None,
            softplus: false,
        };
        let y = View::dense(y.as_mut_ptr(), [batch, s, h]);
        let scan = SelectiveScan { inputs, y: Out::Direct(y), last: None };
        let buffer = Buffer::new(scan.scratch().total(threads));
        let scratch = unsafe { Scratch::new(buffer.ptr(), scan.scratch(), threads) };
        let best = time(|| unsafe { scan.run(level, &pool, &scratch) });
        let mut grads: Vec<Vec<f32>> =
            [x.len(), x.len(), a.len(), b.len(), c.len(), h].map(|n| vec![0f32; n]).into();
        let [dx, ddelta, da, db, dc, dd] = &mut grads[..] else { return };
        let grad = SelectiveScanGrad {
            inputs,
            dy: y,
            dlast: None,
            dx: View::dense(dx.as_mut_ptr(), [batch, s, h]),
            ddelta: View::dense(ddelta.as_mut_ptr(), [batch, s, h]),
            da: View::dense(da.as_mut_ptr(), [h, n]),
            db: View::dense(db.as_mut_ptr(), [batch, s, n]),
            dc: View::dense(dc.as_mut_ptr(), [batch, s, n]),
            dd: Some(View::dense(dd.as_mut_ptr(), [h])),
            dz: None,
            ddelta_bias: None,
            dstate: None,
        };
        let buffer = Buffer::new(grad.scratch().total(threads));
        let scratch = unsafe { Scratch::new(buffer.ptr(), grad.scratch(), threads) };
        let back = time(|| unsafe { grad.run(level, &pool, &scratch) });
        println!("b{batch} s{s} h{h} n{n}: {:.3} ms, back {:.3} ms", best * 1e3, back * 1e3);
    }
}

fn time(mut f: impl FnMut()) -> f64 {
    let mut best = f64::MAX;
    let all = Instant::now();
    while all.elapsed().as_secs_f64() < 1.0 {
        let start = Instant::now();
        f();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}

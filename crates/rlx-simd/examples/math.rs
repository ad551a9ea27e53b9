//! How fast the loops over tiles are: elements per nanosecond of the common ops at every level, on a tile of 256.
#![allow(clippy::unwrap_used)]

use rlx_simd::level::Level;
use rlx_simd::mem::Buffer;
use rlx_simd::tile::{Arg, Binary, Fold, Form, LoadStride, Store, Unary};
use rlx_simd::tile::{binary, cast, fold, load, mul_add, select, store, unary};
use std::time::Instant;

const N: usize = 256;

/// Elements per nanosecond: the best of some rounds.
fn rate(mut f: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..10 {
        let start = Instant::now();
        for _ in 0..500 {
            f();
        }
        best = best.min(start.elapsed().as_secs_f64());
    }
    (500 * N) as f64 / best / 1e9
}

fn main() {
    let [a, b, c, dst] = [0; 4].map(|_| Buffer::new(N * 8));
    for i in 0..N {
        for (r, x) in [(&a, i as f32 / 64.0 - 2.0), (&b, i as f32 / 300.0 + 0.1), (&c, 0.5)] {
            // SAFETY: the registers hold N elements.
            unsafe { r.ptr().cast::<f32>().add(i).write(x) };
        }
    }
    let (a, b, c, dst) = (a.ptr(), b.ptr(), c.ptr(), dst.ptr());
    let levels = Level::available();
    let names: Vec<String> = levels.iter().map(|l| format!("{:>9}", l.to_string())).collect();
    println!("{:22}{}   elements per ns", "", names.join(""));
    let row = |name: String, f: &dyn Fn(Level) -> f64| {
        let cells: Vec<String> = levels.iter().map(|l| format!("{:9.2}", f(*l))).collect();
        println!("{name:22}{}", cells.join(""));
    };
    for op in Unary::ALL {
        if unary(Level::Baseline, op, Store::F32).is_some() {
            row(format!("{op:?}"), &|l| {
                let f = unary(l, op, Store::F32).unwrap();
                // SAFETY: the registers hold N elements.
                rate(|| unsafe { f(N, dst, b) })
            });
        }
    }
    for op in Binary::ALL {
        for (ty, form) in
            [(Store::F32, Form::TileTile), (Store::F32, Form::TileSplat), (Store::I32, Form::TileTile)]
        {
            if binary(Level::Baseline, op, ty, form).is_some() {
                row(format!("{op:?} {ty:?} {form:?}"), &|l| {
                    let f = binary(l, op, ty, form).unwrap();
                    // SAFETY: as above.
                    rate(|| unsafe { f(N, dst, a, b) })
                });
            }
        }
    }
    row("Max in place".into(), &|l| {
        let f = binary(l, Binary::Max, Store::F32, Form::TileTile).unwrap();
        // SAFETY: as above.
        rate(|| unsafe { f(N, c, c, b) })
    });
    row("Add f32 of 250".into(), &|l| {
        let f = binary(l, Binary::Add, Store::F32, Form::TileTile).unwrap();
        // SAFETY: as above.
        rate(|| unsafe { f(250, dst, a, b) })
    });
    row("MulAdd".into(), &|l| {
        let f = mul_add(l, Store::F32, Arg::Tile, Arg::Splat, Arg::Tile).unwrap();
        // SAFETY: as above.
        rate(|| unsafe { f(N, dst, a, b, c) })
    });
    row("Select".into(), &|l| {
        let f = select(l, Store::F32, Arg::Tile, Arg::Tile);
        // SAFETY: as above.
        rate(|| unsafe { f(N, dst, a, b, c) })
    });
    for op in [Fold::Sum, Fold::Max, Fold::Prod] {
        row(format!("{op:?} of F32"), &|l| {
            let f = fold(l, op, Store::F32).unwrap();
            // SAFETY: as above.
            rate(|| unsafe { f(N, dst, a) })
        });
    }
    for ty in [Store::F32, Store::F16, Store::BF16, Store::F8E4M3, Store::I8, Store::Bool] {
        row(format!("load {ty:?}"), &|l| {
            let f = load(l, ty, LoadStride::One);
            // SAFETY: as above.
            rate(|| unsafe { f(N, dst, a, 1) })
        });
        row(format!("store {ty:?}"), &|l| {
            let f = store(l, ty);
            // SAFETY: as above.
            rate(|| unsafe { f(N, dst, 1, a) })
        });
    }
    for (from, to) in [
        (Store::F32, Store::BF16),
        (Store::F32, Store::F16),
        (Store::F32, Store::I32),
        (Store::I32, Store::F32),
    ] {
        row(format!("{from:?} as {to:?}"), &|l| {
            let f = cast(l, from, to);
            // SAFETY: as above.
            rate(|| unsafe { f(N, dst, a) })
        });
    }
}

//! Reductions of tiles: an accumulator of 8 bytes takes in tile after tile.
//!
//! Floats are kept as `f64` between tiles, integers as `i64` (unsigned ones as their bits). Within a tile every one of
//! [`LANES`] lanes takes each element that falls to it, and the lanes meet pairwise at the end: an order that depends on n alone.

use super::convert::{BF16, F8E4M3, F8E5M2, F16, Small, to_odd};
use super::{Kind, Store};
use crate::level::Level;
use crate::math::loops::kernels;
use std::marker::PhantomData;

/// A reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fold {
    /// The sum; integers wrap.
    Sum,
    /// The product; integers wrap.
    Prod,
    /// The largest; NaN wins.
    Max,
    /// The smallest; NaN wins.
    Min,
    /// Whether any bool holds.
    Any,
    /// Whether all bools hold.
    All,
}

impl Fold {
    /// Every reduction.
    pub const ALL: [Fold; 6] = [Fold::Sum, Fold::Prod, Fold::Max, Fold::Min, Fold::Any, Fold::All];
}

/// Takes a register of n elements into the accumulator.
pub type FoldFn = unsafe fn(n: usize, acc: *mut u8, src: *const u8);

kernels! {
    /// A reduction of a register.
    FoldKernel, FoldFn, folding(n: usize, acc: *mut u8, src: *const u8)
}

/// Partial results within a tile: four of the widest vectors of `f32`, so that none waits for the one before.
const LANES: usize = 64;

/// How two partial results become one.
trait Join<T> {
    const START: T;
    fn join(a: T, b: T) -> T;
}

struct Sum;
struct Prod;
struct Max;
struct Min;

macro_rules! joins {
    ($($op:ident for $($t:ty),*: $start:expr, |$a:ident, $b:ident| $join:expr;)*) => {$($(
        impl Join<$t> for $op {
            const START: $t = {
                #[allow(dead_code)]
                type T = $t;
                $start
            };
            #[inline(always)]
            fn join($a: $t, $b: $t) -> $t {
                $join
            }
        }
    )*)*};
}

joins! {
    Sum for f32, f64: 0.0, |a, b| a + b;
    Prod for f32, f64: 1.0, |a, b| a * b;
    // NaN wins: where b is NaN no comparison holds.
    Max for f32, f64: T::NEG_INFINITY, |a, b| if a > b || a.is_nan() { a } else { b };
    Min for f32, f64: T::INFINITY, |a, b| if a < b || a.is_nan() { a } else { b };
    Sum for i64: 0, |a, b| a.wrapping_add(b);
    Prod for i64: 1, |a, b| a.wrapping_mul(b);
    Max for i64, u64: T::MIN, |a, b| a.max(b);
    Min for i64, u64: T::MAX, |a, b| a.min(b);
}

/// A register's element `R`, folded as `T` within the tile and as `W` between tiles.
trait Folded {
    type Reg: Copy;
    type Lane: Copy;
    type Wide: Copy;
    fn lane(r: Self::Reg) -> Self::Lane;
    fn wide(x: Self::Lane) -> Self::Wide;
}

struct Of<R, T, W>(PhantomData<(R, T, W)>);

macro_rules! folded {
    ($($r:ty, $t:ty, $w:ty, |$x:ident| $lane:expr;)*) => {$(
        impl Folded for Of<$r, $t, $w> {
            type Reg = $r;
            type Lane = $t;
            type Wide = $w;
            #[inline(always)]
            fn lane($x: $r) -> $t {
                $lane
            }
            #[inline(always)]
            fn wide(x: $t) -> $w {
                x as $w
            }
        }
    )*};
}

folded! {
    f32, f32, f64, |x| x;
    f32, f64, f64, |x| f64::from(x);
    f64, f64, f64, |x| x;
    i32, i64, i64, |x| i64::from(x);
    u32, i64, i64, |x| i64::from(x);
    i64, i64, i64, |x| x;
    u64, u64, u64, |x| x;
}

struct Reduce<F, J>(PhantomData<(F, J)>);

impl<F: Folded, J: Join<F::Lane> + Join<F::Wide>> FoldKernel for Reduce<F, J> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(n: usize, acc: *mut u8, src: *const u8) {
        if n == 0 {
            return;
        }
        // SAFETY: the source has n elements.
        let mut chunks = unsafe { std::slice::from_raw_parts(src.cast::<F::Reg>(), n) }.chunks_exact(LANES);
        let mut lanes = [<J as Join<F::Lane>>::START; LANES];
        for chunk in &mut chunks {
            for (l, x) in lanes.iter_mut().zip(chunk) {
                *l = J::join(*l, F::lane(*x));
            }
        }
        for (l, x) in lanes.iter_mut().zip(chunks.remainder()) {
            *l = J::join(*l, F::lane(*x));
        }
        let mut half = LANES / 2;
        while half > 0 {
            let (low, high) = lanes.split_at_mut(half);
            for (l, h) in low.iter_mut().zip(high) {
                *l = J::join(*l, *h);
            }
            half /= 2;
        }
        let acc = acc.cast::<F::Wide>();
        if let Some(l) = lanes.first() {
            // SAFETY: the accumulator has 8 bytes, aligned to 8.
            unsafe { acc.write(J::join(acc.read(), F::wide(*l))) }
        }
    }
}

fn fold_as<F: Folded>(level: Level, op: Fold) -> Option<FoldFn>
where
    Sum: Join<F::Lane> + Join<F::Wide>,
    Prod: Join<F::Lane> + Join<F::Wide>,
    Max: Join<F::Lane> + Join<F::Wide>,
    Min: Join<F::Lane> + Join<F::Wide>,
{
    Some(match op {
        Fold::Sum => folding::at_level::<Reduce<F, Sum>>(level),
        Fold::Prod => folding::at_level::<Reduce<F, Prod>>(level),
        Fold::Max => folding::at_level::<Reduce<F, Max>>(level),
        Fold::Min => folding::at_level::<Reduce<F, Min>>(level),
        Fold::Any | Fold::All => return None,
    })
}

/// The loop that takes a register into an accumulator of 8 bytes, aligned to 8; `None` where the op has no meaning for
/// the type.
pub fn fold(level: Level, op: Fold, ty: Store) -> Option<FoldFn> {
    match (op, ty.kind()) {
        // A product of f32 within a tile could overflow where the whole does not.
        (Fold::Prod, Kind::F32) => Some(folding::at_level::<Reduce<Of<f32, f64, f64>, Prod>>(level)),
        (_, Kind::F32) => fold_as::<Of<f32, f32, f64>>(level, op),
        (_, Kind::F64) => fold_as::<Of<f64, f64, f64>>(level, op),
        (Fold::Any, _) if ty == Store::Bool => {
            Some(folding::at_level::<Reduce<Of<i32, i64, i64>, Max>>(level))
        }
        (Fold::All, _) if ty == Store::Bool => {
            Some(folding::at_level::<Reduce<Of<i32, i64, i64>, Min>>(level))
        }
        (Fold::Max, _) if ty == Store::U64 => Some(folding::baseline::<Reduce<Of<u64, u64, u64>, Max>>),
        (Fold::Min, _) if ty == Store::U64 => Some(folding::baseline::<Reduce<Of<u64, u64, u64>, Min>>),
        (_, Kind::I32) if ty == Store::U32 => fold_as::<Of<u32, i64, i64>>(level, op),
        (_, Kind::I32) => fold_as::<Of<i32, i64, i64>>(level, op),
        (_, Kind::I64) => fold_as::<Of<i64, i64, i64>>(level, op),
    }
}

/// The accumulator before the first tile, which is also the result over nothing.
pub fn fold_init(op: Fold, ty: Store) -> [u8; 8] {
    if ty.is_float() {
        let x = match op {
            Fold::Sum | Fold::Any => 0.0,
            Fold::Prod | Fold::All => 1.0,
            Fold::Max => f64::NEG_INFINITY,
            Fold::Min => f64::INFINITY,
        };
        return x.to_ne_bytes();
    }
    let (low, high) = match ty {
        Store::I8 => (i8::MIN as i64, i8::MAX as i64),
        Store::I16 => (i16::MIN as i64, i16::MAX as i64),
        Store::I32 => (i32::MIN as i64, i32::MAX as i64),
        Store::U8 => (0, u8::MAX as i64),
        Store::U16 => (0, u16::MAX as i64),
        Store::U32 => (0, u32::MAX as i64),
        Store::U64 => (0, u64::MAX as i64),
        Store::Bool => (0, 1),
        _ => (i64::MIN, i64::MAX),
    };
    let x: i64 = match op {
        Fold::Sum | Fold::Any => 0,
        Fold::Prod | Fold::All => 1,
        Fold::Max => low,
        Fold::Min => high,
    };
    x.to_ne_bytes()
}

/// The accumulator as one element of a register of the type, in the first bytes: wrapped or rounded to the type.
pub fn fold_finish(ty: Store, acc: [u8; 8]) -> [u8; 8] {
    let (f, i) = (f64::from_ne_bytes(acc), i64::from_ne_bytes(acc));
    let single = |x: f32| four(x.to_ne_bytes());
    let int = |x: i32| four(x.to_ne_bytes());
    match ty {
        Store::F64 | Store::I64 | Store::U64 => acc,
        Store::F32 => single(f as f32),
        Store::F16 => single(F16::round(to_odd(f))),
        Store::BF16 => single(BF16::round(to_odd(f))),
        Store::F8E4M3 => single(F8E4M3::round(to_odd(f))),
        Store::F8E5M2 => single(F8E5M2::round(to_odd(f))),
        Store::I8 => int(i as i8 as i32),
        Store::I16 => int(i as i16 as i32),
        Store::I32 | Store::U32 => int(i as i32),
        Store::U8 => int(i as u8 as i32),
        Store::U16 => int(i as u16 as i32),
        Store::Bool => int((i != 0) as i32),
    }
}

fn four([a, b, c, d]: [u8; 4]) -> [u8; 8] {
    [a, b, c, d, 0, 0, 0, 0]
}

//! The loops that run a function of one element over tiles.
//!
//! Elements go in chunks of [`CHUNK`] through local arrays: a chunk is read whole before any of it is written, so `dst`
//! may be a source itself, and the optimiser need not ask whether pointers overlap. Where `dst` has wider elements than a
//! source the chunks run from the last to the first, so that in-place work does not overwrite what is still to be read.
//!
//! `light` loops are for functions of a few instructions: a chunk stays in registers, and which operands are one element
//! for all (`S*`) is known when compiling. `heavy` loops copy a chunk of arguments to the stack, where the optimiser makes a
//! vector loop of the longest body. Either has its body once: what is left of a tile after whole chunks goes the same way
//! through a chunk that is filled up, or that overlaps the one before.

use std::mem::MaybeUninit;

/// Elements that go through a function together: four of the widest vectors of `f32`.
pub(crate) const CHUNK: usize = 64;

type Chunk<T> = [T; CHUNK];

/// A whole chunk from element `i` on, or the first element for all.
#[inline(always)]
unsafe fn whole<T: Copy>(p: *const T, i: usize, splat: bool, first: T) -> Chunk<T> {
    if splat {
        [first; CHUNK]
    } else {
        // SAFETY: the caller has a whole chunk from `i` on.
        unsafe { p.add(i).cast::<Chunk<T>>().read() }
    }
}

/// The last `m` elements, from element `i` on, filled up with `first`.
#[inline(always)]
unsafe fn part<T: Copy>(p: *const T, i: usize, m: usize, first: T) -> Chunk<T> {
    let mut x = [first; CHUNK];
    // SAFETY: `m` is less than a chunk, and the caller has that many elements from `i` on.
    unsafe { std::ptr::copy_nonoverlapping(p.add(i), x.as_mut_ptr(), m) };
    x
}

/// Runs a body over all whole chunks of a tile and over the filled-up rest. The body sees, under their own names, `dst` and
/// the operands as pointers, and `i`, the first element of the chunk.
macro_rules! chunks {
    ($n:expr, $back:expr, $dst:ident: $r:ty, [$($a:ident: $splat:expr),*], $i:ident => $body:expr) => {{
        let (full, rest) = ($n / CHUNK, $n % CHUNK);
        let mut out = [<$r>::default(); CHUNK];
        let tile = $dst;
        // Where nothing is in place the rest goes in a whole chunk that overlaps the one before.
        let overlap = $n >= CHUNK $(&& ($splat || !std::ptr::addr_eq($a, tile)))*;
        for phase in 0..2 {
            let main = (phase == 0) != $back;
            if !main && rest == 0 {
                continue;
            }
            $(
                let mut padded = MaybeUninit::uninit();
                let $a = if main || $splat {
                    $a
                } else if overlap {
                    $a.wrapping_add($n - CHUNK)
                } else {
                    // SAFETY: the rest is below n, and n > 0.
                    padded.write(unsafe { part($a, $n - rest, rest, *$a) }).as_ptr()
                };
            )*
            let $dst = if main {
                tile
            } else if overlap {
                tile.wrapping_add($n - CHUNK)
            } else {
                out.as_mut_ptr()
            };
            let steps = if main { full } else { 1 };
            for step in 0..steps {
                let $i = (if $back { steps - 1 - step } else { step }) * CHUNK;
                $body
            }
            if !main && !overlap {
                // SAFETY: there is room for n elements, and a local array overlaps nothing.
                unsafe { std::ptr::copy_nonoverlapping(out.as_ptr(), tile.add($n - rest), rest) };
            }
        }
    }};
}

/// dst = f(a).
///
/// # Safety
/// `a` has `n` elements and `dst` room for as many; they are the same address or do not overlap.
#[inline(always)]
pub(crate) unsafe fn light1<A: Copy, R: Copy + Default>(
    n: usize,
    dst: *mut u8,
    a: *const u8,
    f: impl Fn(A) -> R + Copy,
) {
    if n == 0 {
        return;
    }
    let (dst, a) = (dst.cast::<R>(), a.cast::<A>());
    let back = size_of::<R>() > size_of::<A>();
    chunks!(n, back, dst: R, [a: false], i => {
        let mut r = [R::default(); CHUNK];
        // SAFETY: the macro gives whole chunks.
        let x = unsafe { whole(a, i, false, *a) };
        for (r, x) in r.iter_mut().zip(x) {
            *r = f(x);
        }
        // SAFETY: as above.
        unsafe { dst.add(i).cast::<Chunk<R>>().write(r) }
    });
}

/// dst = f(a, b).
///
/// # Safety
/// As [`light1`]; an operand that is splat has one element.
#[inline(always)]
pub(crate) unsafe fn light2<A: Copy, B: Copy, R: Copy + Default, const SA: bool, const SB: bool>(
    n: usize,
    dst: *mut u8,
    a: *const u8,
    b: *const u8,
    f: impl Fn(A, B) -> R + Copy,
) {
    if n == 0 {
        return;
    }
    let (dst, a, b) = (dst.cast::<R>(), a.cast::<A>(), b.cast::<B>());
    // SAFETY: n > 0, so either operand has an element.
    let (a0, b0) = unsafe { (*a, *b) };
    chunks!(n, false, dst: R, [a: SA, b: SB], i => {
        let mut r = [R::default(); CHUNK];
        // SAFETY: the macro gives whole chunks.
        let (x, y) = unsafe { (whole(a, i, SA, a0), whole(b, i, SB, b0)) };
        for ((r, x), y) in r.iter_mut().zip(x).zip(y) {
            *r = f(x, y);
        }
        // SAFETY: as above.
        unsafe { dst.add(i).cast::<Chunk<R>>().write(r) }
    });
}

/// dst = f(a, b, c).
///
/// # Safety
/// As [`light2`].
#[inline(always)]
pub(crate) unsafe fn light3<A, B, C, R, const SA: bool, const SB: bool, const SC: bool>(
    n: usize,
    dst: *mut u8,
    (a, b, c): (*const u8, *const u8, *const u8),
    f: impl Fn(A, B, C) -> R + Copy,
) where
    A: Copy,
    B: Copy,
    C: Copy,
    R: Copy + Default,
{
    if n == 0 {
        return;
    }
    let (dst, a, b, c) = (dst.cast::<R>(), a.cast::<A>(), b.cast::<B>(), c.cast::<C>());
    let back = size_of::<R>() > size_of::<A>();
    // SAFETY: n > 0, so every operand has an element.
    let (a0, b0, c0) = unsafe { (*a, *b, *c) };
    chunks!(n, back, dst: R, [a: SA, b: SB, c: SC], i => {
        let mut r = [R::default(); CHUNK];
        // SAFETY: the macro gives whole chunks.
        let (x, y, z) = unsafe { (whole(a, i, SA, a0), whole(b, i, SB, b0), whole(c, i, SC, c0)) };
        for (((r, x), y), z) in r.iter_mut().zip(x).zip(y).zip(z) {
            *r = f(x, y, z);
        }
        // SAFETY: as above.
        unsafe { dst.add(i).cast::<Chunk<R>>().write(r) }
    });
}

/// dst = f(a), for a long `f`. `fix` sees every chunk of arguments and results, to mend what `f` does not cover.
///
/// # Safety
/// As [`light1`].
#[inline(always)]
pub(crate) unsafe fn heavy1<A: Copy, R: Copy + Default>(
    n: usize,
    dst: *mut u8,
    a: *const u8,
    f: impl Fn(A) -> R + Copy,
    fix: impl Fn(&[A; CHUNK], &mut [R; CHUNK]),
) {
    if n == 0 {
        return;
    }
    let (dst, a) = (dst.cast::<R>(), a.cast::<A>());
    let back = size_of::<R>() > size_of::<A>();
    chunks!(n, back, dst: R, [a: false], i => {
        // SAFETY: the macro gives whole chunks; x is a copy, so that nothing else refers to what r does.
        let (x, r) = unsafe { (whole(a, i, false, *a), &mut *dst.add(i).cast::<Chunk<R>>()) };
        for (r, x) in r.iter_mut().zip(&x) {
            *r = f(*x);
        }
        fix(&x, r);
    });
}

/// dst = f(a, b), for a long `f`, or one that is compiled for many types; which operand is splat is known when running.
///
/// # Safety
/// As [`light2`].
#[inline(always)]
pub(crate) unsafe fn heavy2<A: Copy, B: Copy, R: Copy + Default>(
    n: usize,
    dst: *mut u8,
    (a, splat_a): (*const u8, bool),
    (b, splat_b): (*const u8, bool),
    f: impl Fn(A, B) -> R + Copy,
) {
    if n == 0 {
        return;
    }
    let (dst, a, b) = (dst.cast::<R>(), a.cast::<A>(), b.cast::<B>());
    // SAFETY: n > 0, so either operand has an element.
    let (all_a, all_b) = unsafe { ([*a; CHUNK], [*b; CHUNK]) };
    chunks!(n, false, dst: R, [a: splat_a, b: splat_b], i => {
        let mut r = [R::default(); CHUNK];
        let x = if splat_a { all_a.as_ptr() } else { a.wrapping_add(i) };
        let y = if splat_b { all_b.as_ptr() } else { b.wrapping_add(i) };
        // SAFETY: the macro gives whole chunks, and so do the arrays.
        let (x, y) = unsafe { (x.cast::<Chunk<A>>().read(), y.cast::<Chunk<B>>().read()) };
        for ((r, x), y) in r.iter_mut().zip(x).zip(y) {
            *r = f(x, y);
        }
        // SAFETY: as above.
        unsafe { dst.add(i).cast::<Chunk<R>>().write(r) }
    });
}

/// Declares a kind of kernel: a trait whose `run` is compiled for every level, and a module of the compiled functions with
/// `at_level`, which gives the pointer of one.
macro_rules! kernels {
    ($(#[$doc:meta])* $kernel:ident, $pointer:ty, $compiled:ident($($a:ident: $ty:ty),* $(,)?)) => {
        $(#[$doc])*
        pub(crate) trait $kernel {
            /// The loop; `FMA` says whether a fused multiply-add is one instruction. It must be `#[inline(always)]`.
            ///
            /// # Safety
            /// As the contract of the pointer says.
            unsafe fn run<const FMA: bool>($($a: $ty),*);
        }
        /// The kernel compiled for each level.
        pub(crate) mod $compiled {
            use super::*;

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
            pub(crate) unsafe fn avx512<K: $kernel>($($a: $ty),*) {
                // SAFETY: the caller keeps the contract.
                unsafe { K::run::<true>($($a),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            pub(crate) unsafe fn avx2<K: $kernel>($($a: $ty),*) {
                // SAFETY: as above.
                unsafe { K::run::<true>($($a),*) }
            }
            #[inline(never)]
            pub(crate) unsafe fn baseline<K: $kernel>($($a: $ty),*) {
                // SAFETY: as above.
                unsafe { K::run::<{ cfg!(target_arch = "aarch64") }>($($a),*) }
            }
            #[allow(dead_code)]
            pub(crate) fn at_level<K: $kernel>(level: $crate::level::Level) -> $pointer {
                match level {
                    #[cfg(target_arch = "x86_64")]
                    $crate::level::Level::Avx512 => avx512::<K>,
                    #[cfg(target_arch = "x86_64")]
                    $crate::level::Level::Avx2 => avx2::<K>,
                    _ => baseline::<K>,
                }
            }
        }
    };
}
pub(crate) use kernels;

/// A loop over one tile: `n` elements from `a` to `dst`.
pub(crate) type Loop1 = unsafe fn(n: usize, dst: *mut u8, a: *const u8);
/// A loop over two tiles, or a tile and one element.
pub(crate) type Loop2 = unsafe fn(n: usize, dst: *mut u8, a: *const u8, b: *const u8);
/// A loop over three.
pub(crate) type Loop3 = unsafe fn(n: usize, dst: *mut u8, a: *const u8, b: *const u8, c: *const u8);

kernels! {
    /// A function of one operand.
    Kernel1, Loop1, one(n: usize, dst: *mut u8, a: *const u8)
}
kernels! {
    /// A function of two operands.
    Kernel2, Loop2, two(n: usize, dst: *mut u8, a: *const u8, b: *const u8)
}
kernels! {
    /// A function of three operands.
    Kernel3, Loop3, three(n: usize, dst: *mut u8, a: *const u8, b: *const u8, c: *const u8)
}

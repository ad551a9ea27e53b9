//! The loops that run a function of one element over tiles.
//!
//! Elements go in chunks of [`CHUNK`] through local arrays: a chunk is read whole before any of it is written, so `dst`
//! may be a source itself, and the optimiser need not ask whether pointers overlap. Where `dst` has wider elements than a
//! source the chunks run from the last to the first, so that in-place work does not overwrite what is still to be read.
//!
//! `light` loops are for functions of a few instructions: a chunk stays in registers, and which operands are one element
//! for all (`S*`) is known when compiling. `heavy` loops keep the chunk in the L1 cache and hold the body once.

/// Elements that go through a function together: four of the widest vectors of `f32`.
pub(crate) const CHUNK: usize = 64;

type Chunk<T> = [T; CHUNK];

/// A whole chunk from element `i` on.
#[inline(always)]
unsafe fn whole<T: Copy>(p: *const T, i: usize, splat: bool, first: T) -> Chunk<T> {
    if splat {
        [first; CHUNK]
    } else {
        // SAFETY: the caller has a whole chunk from `i` on.
        unsafe { p.add(i).cast::<Chunk<T>>().read() }
    }
}

/// The last `m` elements, from element `i` on, filled up with the first.
#[inline(always)]
unsafe fn part<T: Copy>(p: *const T, i: usize, m: usize, splat: bool, first: T) -> Chunk<T> {
    let mut x = [first; CHUNK];
    if !splat {
        // SAFETY: `m` is less than a chunk, and the caller has that many elements from `i` on.
        unsafe { std::ptr::copy_nonoverlapping(p.add(i), x.as_mut_ptr(), m) };
    }
    x
}

/// Writes a whole chunk.
#[inline(always)]
unsafe fn put<T: Copy>(p: *mut T, i: usize, x: Chunk<T>) {
    // SAFETY: the caller has room for a whole chunk from `i` on.
    unsafe { p.add(i).cast::<Chunk<T>>().write(x) }
}

/// Writes the first `m` elements of a chunk.
#[inline(always)]
unsafe fn put_part<T: Copy>(p: *mut T, i: usize, m: usize, x: &Chunk<T>) {
    // SAFETY: the caller has room for `m` elements from `i` on, and a local array overlaps nothing.
    unsafe { std::ptr::copy_nonoverlapping(x.as_ptr(), p.add(i), m) }
}

#[inline(always)]
fn map1<A: Copy, R: Copy + Default>(x: &Chunk<A>, f: impl Fn(A) -> R) -> Chunk<R> {
    let mut r = [R::default(); CHUNK];
    for (r, x) in r.iter_mut().zip(x) {
        *r = f(*x);
    }
    r
}

#[inline(always)]
fn map2<A: Copy, B: Copy, R: Copy + Default>(x: &Chunk<A>, y: &Chunk<B>, f: impl Fn(A, B) -> R) -> Chunk<R> {
    let mut r = [R::default(); CHUNK];
    for ((r, x), y) in r.iter_mut().zip(x).zip(y) {
        *r = f(*x, *y);
    }
    r
}

#[inline(always)]
fn map3<A: Copy, B: Copy, C: Copy, R: Copy + Default>(
    x: &Chunk<A>,
    y: &Chunk<B>,
    z: &Chunk<C>,
    f: impl Fn(A, B, C) -> R,
) -> Chunk<R> {
    let mut r = [R::default(); CHUNK];
    for (((r, x), y), z) in r.iter_mut().zip(x).zip(y).zip(z) {
        *r = f(*x, *y, *z);
    }
    r
}

/// Where the chunk of that number begins, running backwards or not.
#[inline(always)]
fn start(back: bool, step: usize, steps: usize) -> usize {
    (if back { steps - 1 - step } else { step }) * CHUNK
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
    let (full, rest) = (n / CHUNK, n % CHUNK);
    // SAFETY: every index is below n.
    unsafe {
        let first = *a;
        if back && rest > 0 {
            put_part(dst, n - rest, rest, &map1(&part(a, n - rest, rest, false, first), f));
        }
        for step in 0..full {
            let i = start(back, step, full);
            put(dst, i, map1(&whole(a, i, false, first), f));
        }
        if !back && rest > 0 {
            put_part(dst, n - rest, rest, &map1(&part(a, n - rest, rest, false, first), f));
        }
    }
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
    let (full, rest) = (n / CHUNK, n % CHUNK);
    // SAFETY: every index is below n, or 0.
    unsafe {
        let (a0, b0) = (*a, *b);
        for step in 0..full {
            let i = start(false, step, full);
            put(dst, i, map2(&whole(a, i, SA, a0), &whole(b, i, SB, b0), f));
        }
        if rest > 0 {
            let i = n - rest;
            let r = map2(&part(a, i, rest, SA, a0), &part(b, i, rest, SB, b0), f);
            put_part(dst, i, rest, &r);
        }
    }
}

/// dst = f(a, b, c).
///
/// # Safety
/// As [`light2`].
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub(crate) unsafe fn light3<
    A: Copy,
    B: Copy,
    C: Copy,
    R: Copy + Default,
    const SA: bool,
    const SB: bool,
    const SC: bool,
>(
    n: usize,
    dst: *mut u8,
    a: *const u8,
    b: *const u8,
    c: *const u8,
    f: impl Fn(A, B, C) -> R + Copy,
) {
    if n == 0 {
        return;
    }
    let (dst, a, b, c) = (dst.cast::<R>(), a.cast::<A>(), b.cast::<B>(), c.cast::<C>());
    let back = size_of::<R>() > size_of::<A>();
    let (full, rest) = (n / CHUNK, n % CHUNK);
    // SAFETY: every index is below n, or 0.
    unsafe {
        let (a0, b0, c0) = (*a, *b, *c);
        let i = n - rest;
        if back && rest > 0 {
            let (x, y) = (part(a, i, rest, SA, a0), part(b, i, rest, SB, b0));
            put_part(dst, i, rest, &map3(&x, &y, &part(c, i, rest, SC, c0), f));
        }
        for step in 0..full {
            let i = start(back, step, full);
            let r = map3(&whole(a, i, SA, a0), &whole(b, i, SB, b0), &whole(c, i, SC, c0), f);
            put(dst, i, r);
        }
        if !back && rest > 0 {
            let (x, y) = (part(a, i, rest, SA, a0), part(b, i, rest, SB, b0));
            put_part(dst, i, rest, &map3(&x, &y, &part(c, i, rest, SC, c0), f));
        }
    }
}

/// Fills a local chunk with the elements from `i` on; `m` of them.
#[inline(always)]
unsafe fn fetch<T: Copy>(x: &mut Chunk<T>, p: *const T, i: usize, m: usize) {
    // SAFETY: the caller has `m` elements from `i` on, and `m` is at most a chunk.
    unsafe {
        if m == CHUNK {
            std::ptr::copy_nonoverlapping(p.add(i), x.as_mut_ptr(), CHUNK);
        } else {
            std::ptr::copy_nonoverlapping(p.add(i), x.as_mut_ptr(), m);
        }
    }
}

/// The counterpart of [`fetch`].
#[inline(always)]
unsafe fn deliver<T: Copy>(p: *mut T, i: usize, m: usize, x: &Chunk<T>) {
    // SAFETY: the caller has room for `m` elements from `i` on, and `m` is at most a chunk.
    unsafe {
        if m == CHUNK {
            std::ptr::copy_nonoverlapping(x.as_ptr(), p.add(i), CHUNK);
        } else {
            std::ptr::copy_nonoverlapping(x.as_ptr(), p.add(i), m);
        }
    }
}

/// dst = f(a), for a long `f`. `fix` sees every chunk of arguments and results, to mend what `f` does not cover.
///
/// # Safety
/// As [`light1`].
#[inline(always)]
pub(crate) unsafe fn heavy1<A: Copy + Default, R: Copy + Default>(
    n: usize,
    dst: *mut u8,
    a: *const u8,
    f: impl Fn(A) -> R + Copy,
    fix: impl Fn(&[A; CHUNK], &mut [R; CHUNK]),
) {
    let (dst, a) = (dst.cast::<R>(), a.cast::<A>());
    let back = size_of::<R>() > size_of::<A>();
    let steps = n.div_ceil(CHUNK);
    let mut x = [A::default(); CHUNK];
    let mut r = [R::default(); CHUNK];
    for step in 0..steps {
        let i = start(back, step, steps);
        let m = CHUNK.min(n - i);
        // SAFETY: `m` elements from `i` on are below n.
        unsafe { fetch(&mut x, a, i, m) };
        for (r, x) in r.iter_mut().zip(&x) {
            *r = f(*x);
        }
        fix(&x, &mut r);
        // SAFETY: as above.
        unsafe { deliver(dst, i, m, &r) };
    }
}

/// dst = f(a, b), for a long `f`, or one that is compiled for many types; which operand is splat is known when running.
///
/// # Safety
/// As [`light2`].
#[inline(always)]
pub(crate) unsafe fn heavy2<A: Copy + Default, B: Copy + Default, R: Copy + Default>(
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
    let (mut x, mut y) = unsafe { ([*a; CHUNK], [*b; CHUNK]) };
    let mut r = [R::default(); CHUNK];
    let mut i = 0;
    while i < n {
        let m = CHUNK.min(n - i);
        // SAFETY: `m` elements from `i` on are below n.
        unsafe {
            if !splat_a {
                fetch(&mut x, a, i, m);
            }
            if !splat_b {
                fetch(&mut y, b, i, m);
            }
        }
        for ((r, x), y) in r.iter_mut().zip(&x).zip(&y) {
            *r = f(*x, *y);
        }
        // SAFETY: as above.
        unsafe { deliver(dst, i, m, &r) };
        i += m;
    }
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

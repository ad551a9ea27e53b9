//! The product inside attention, and the change of layout around it.

use super::Real;
use super::lanes::Lanes;

/// An operand that is read one element at a time: `rows` by the inner axis, with any strides.
#[derive(Clone, Copy)]
pub struct Spread<T> {
    pub ptr: *const T,
    pub row: isize,
    pub inner: isize,
}

/// What a result starts from.
#[derive(Clone, Copy)]
pub enum Start<T> {
    Zero,
    /// What is there.
    There,
    /// What is there times a factor for each lane.
    Times(*const T),
}

/// out[r][lane] = start + Σ_k a[r][k] · b[k][lane], with `out` and `b` in rows of `vectors` vectors.
///
/// # Safety
/// `a` is valid for `rows` × `inner`, `b` for `inner` rows, `out` for `rows` rows and the factors for one row.
#[inline(always)]
pub unsafe fn panel<V: Lanes>(
    out: *mut V::T,
    rows: usize,
    a: Spread<V::T>,
    inner: usize,
    b: *const V::T,
    vectors: usize,
    start: Start<V::T>,
) {
    // SAFETY: passes on the contract; the vectors [v, v + RV) are within the rows.
    unsafe {
        let mut v = 0;
        if V::REGISTERS >= 32 {
            while vectors - v >= 4 {
                column::<V, 4>(out, rows, a, inner, b, vectors, v, start);
                v += 4;
            }
        }
        while vectors - v >= 2 {
            column::<V, 2>(out, rows, a, inner, b, vectors, v, start);
            v += 2;
        }
        if v < vectors {
            column::<V, 1>(out, rows, a, inner, b, vectors, v, start);
        }
    }
}

#[inline(always)]
#[allow(clippy::too_many_arguments)]
unsafe fn column<V: Lanes, const RV: usize>(
    out: *mut V::T,
    rows: usize,
    a: Spread<V::T>,
    inner: usize,
    b: *const V::T,
    vectors: usize,
    v: usize,
    start: Start<V::T>,
) {
    let width = vectors * V::N;
    // SAFETY: passes on the contract.
    unsafe {
        let (out, b) = (out.add(v * V::N), b.add(v * V::N));
        let start = match start {
            Start::Times(f) => Start::Times(f.add(v * V::N)),
            other => other,
        };
        let mut r = 0;
        // 6 rows of 4 vectors: 24 of 32 registers for sums; of 2 vectors: 12 of 16.
        while rows - r >= 6 {
            tile::<V, RV, 6>(out.add(r * width), a, r, inner, b, width, start);
            r += 6;
        }
        while rows - r >= 2 {
            tile::<V, RV, 2>(out.add(r * width), a, r, inner, b, width, start);
            r += 2;
        }
        if r < rows {
            tile::<V, RV, 1>(out.add(r * width), a, r, inner, b, width, start);
        }
    }
}

#[inline(always)]
unsafe fn tile<V: Lanes, const RV: usize, const RB: usize>(
    out: *mut V::T,
    a: Spread<V::T>,
    r: usize,
    inner: usize,
    b: *const V::T,
    width: usize,
    start: Start<V::T>,
) {
    let mut acc = [[V::of(0.0); RV]; RB];
    // SAFETY: passes on the contract.
    unsafe {
        if !matches!(start, Start::Zero) {
            for (r, acc) in acc.iter_mut().enumerate() {
                for (v, acc) in acc.iter_mut().enumerate() {
                    *acc = V::load(out.add(r * width + v * V::N));
                    if let Start::Times(f) = start {
                        *acc = *acc * V::load(f.add(v * V::N));
                    }
                }
            }
        }
        let a_rows: [*const V::T; RB] = std::array::from_fn(|i| a.ptr.offset((r + i) as isize * a.row));
        for k in 0..inner {
            let b: [V; RV] = std::array::from_fn(|v| V::load(b.add(k * width + v * V::N)));
            for (acc, a_row) in acc.iter_mut().zip(a_rows) {
                let x = V::splat(*a_row.offset(k as isize * a.inner));
                for (acc, b) in acc.iter_mut().zip(b) {
                    *acc = x.fma(b, *acc);
                }
            }
        }
        for (r, acc) in acc.into_iter().enumerate() {
            for (v, acc) in acc.into_iter().enumerate() {
                acc.store(out.add(r * width + v * V::N));
            }
        }
    }
}

/// As [`panel`], but where `b` is 0 nothing is added, even if `a` is not finite there: a key that is hidden from a query
/// leaves no trace in it, whatever its value.
///
/// # Safety
/// As for [`panel`].
#[inline(always)]
pub unsafe fn careful_panel<V: Lanes>(
    out: *mut V::T,
    rows: usize,
    a: Spread<V::T>,
    inner: usize,
    b: *const V::T,
    vectors: usize,
    start: Start<V::T>,
) {
    let width = vectors * V::N;
    let (zero, least) = (V::of(0.0), V::of(f64::from(f32::MIN_POSITIVE)));
    // SAFETY: passes on the contract.
    unsafe {
        for r in 0..rows {
            for v in (0..width).step_by(V::N) {
                let mut acc = match start {
                    Start::Zero => zero,
                    Start::There => V::load(out.add(r * width + v)),
                    Start::Times(f) => V::load(out.add(r * width + v)) * V::load(f.add(v)),
                };
                for k in 0..inner {
                    let x = V::splat(*a.ptr.offset(r as isize * a.row + k as isize * a.inner));
                    let b = V::load(b.add(k * width + v));
                    acc = b.abs().if_less(least, acc, x.fma(b, acc));
                }
                acc.store(out.add(r * width + v));
            }
        }
    }
}

/// Whether all elements are finite.
///
/// # Safety
/// `a` is valid for `rows` × `inner`.
#[inline(always)]
pub unsafe fn all_finite<V: Lanes>(a: Spread<V::T>, rows: usize, inner: usize) -> bool {
    // Times 0 they are 0, and NaN if not finite. Two sums, for one long chain would wait on itself.
    let zero = V::of(0.0);
    let (mut even, mut odd, mut single) = (zero, zero, V::T::ZERO);
    let pairs = if a.row == 1 { rows / (2 * V::N) * (2 * V::N) } else { 0 };
    for k in 0..inner {
        // SAFETY: within the operand.
        unsafe {
            let from = a.ptr.offset(k as isize * a.inner);
            for r in (0..pairs).step_by(2 * V::N) {
                even = V::load(from.add(r)).fma(zero, even);
                odd = V::load(from.add(r + V::N)).fma(zero, odd);
            }
            for r in pairs..rows {
                single = single + *from.offset(r as isize * a.row) * V::T::ZERO;
            }
        }
    }
    (even + odd).sum() + single == V::T::ZERO
}

/// A matrix with any strides.
#[derive(Clone, Copy)]
pub struct Matrix<T> {
    pub ptr: *mut T,
    pub strides: [isize; 2],
}

/// to[u][w] = from[u][w] · factor.
///
/// # Safety
/// Both are valid for `[nu, nw]` and do not overlap.
#[inline(always)]
pub unsafe fn copy_scaled<T: Real>(from: Matrix<T>, to: Matrix<T>, [nu, nw]: [usize; 2], factor: T) {
    let ([fu, fw], [tu, tw]) = (from.strides, to.strides);
    // SAFETY: every index is within the sizes.
    unsafe {
        let mut u = 0;
        // A transposition, by squares of four so that both sides are read and written in vectors.
        if fu == 1 && tw == 1 {
            while u + 4 <= nu {
                let (from, to) = (from.ptr.add(u), to.ptr.offset(u as isize * tu));
                let mut w = 0;
                while w + 4 <= nw {
                    T::turn4(from.offset(w as isize * fw), fw, to.add(w), tu, factor);
                    w += 4;
                }
                for w in w..nw {
                    for i in 0..4 {
                        *to.offset(i as isize * tu).add(w) = *from.offset(w as isize * fw).add(i) * factor;
                    }
                }
                u += 4;
            }
        }
        if fw == 1 && tw == 1 {
            for u in u..nu {
                let (from, to) = (from.ptr.offset(u as isize * fu), to.ptr.offset(u as isize * tu));
                (0..nw).for_each(|w| *to.add(w) = *from.add(w) * factor);
            }
            return;
        }
        for u in u..nu {
            for w in 0..nw {
                *to.ptr.offset(u as isize * tu + w as isize * tw) =
                    *from.ptr.offset(u as isize * fu + w as isize * fw) * factor;
            }
        }
    }
}

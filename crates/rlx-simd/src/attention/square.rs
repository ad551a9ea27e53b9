//! Squares of a mask, turned so that lanes lie side by side.

use super::lanes::MAX_LANES;

/// Rows of bytes, 0 past the last row and lane in use.
#[repr(C, align(64))]
pub struct Square([[u8; MAX_LANES]; MAX_LANES]);

/// The corners of the squares that cover `rows` by `lanes`.
#[inline(always)]
pub fn squares(rows: usize, lanes: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rows).step_by(MAX_LANES).flat_map(move |r| (0..lanes).step_by(MAX_LANES).map(move |l| (r, l)))
}

impl Square {
    /// Reads `[rows, lanes]` bytes, at most `MAX_LANES` of each, with any strides.
    ///
    /// # Safety
    /// The bytes can be read.
    #[inline(always)]
    pub unsafe fn read(from: *const u8, [row, lane]: [isize; 2], [rows, lanes]: [usize; 2]) -> Square {
        let mut to = Square([[0; MAX_LANES]; MAX_LANES]);
        // SAFETY: every index is below the sizes.
        unsafe {
            if lane == 1 {
                for (r, to) in to.0.iter_mut().enumerate().take(rows) {
                    copy(from.offset(r as isize * row), to, lanes);
                }
            } else if row == 1 {
                for (l, to) in to.0.iter_mut().enumerate().take(lanes) {
                    copy(from.offset(l as isize * lane), to, rows);
                }
                to.turn();
            } else {
                for (r, to) in to.0.iter_mut().enumerate().take(rows) {
                    for (l, to) in to.iter_mut().enumerate().take(lanes) {
                        *to = *from.offset(r as isize * row + l as isize * lane);
                    }
                }
            }
        }
        to
    }

    /// The bytes of a row from a lane on; the lanes left are `MAX_LANES - lane`.
    #[inline(always)]
    pub fn at(&self, row: usize, lane: usize) -> *const u8 {
        self.0.as_ptr().cast::<u8>().wrapping_add(row * MAX_LANES + lane)
    }

    /// Makes rows of the lanes.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn turn(&mut self) {
        use std::arch::x86_64::{_mm_loadu_si128, _mm_storeu_si128, _mm_unpackhi_epi8, _mm_unpacklo_epi8};
        // SAFETY: SSE2 is part of x86-64, and a row is a register.
        unsafe {
            let mut x = self.0.map(|row| _mm_loadu_si128(row.as_ptr().cast()));
            // Each step shuffles the upper and the lower half of the rows into each other: four make a transposition.
            for _ in 0..4 {
                let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = x;
                let halves = [(a, i), (b, j), (c, k), (d, l), (e, m), (f, n), (g, o), (h, p)];
                for (to, (u, v)) in x.chunks_exact_mut(2).zip(halves) {
                    to.copy_from_slice(&[_mm_unpacklo_epi8(u, v), _mm_unpackhi_epi8(u, v)]);
                }
            }
            for (to, x) in self.0.iter_mut().zip(x) {
                _mm_storeu_si128(to.as_mut_ptr().cast(), x);
            }
        }
    }
    /// Makes rows of the lanes.
    #[cfg(not(target_arch = "x86_64"))]
    #[inline(always)]
    fn turn(&mut self) {
        self.0 = std::array::from_fn(|r| self.0.map(|lane| lane.get(r).copied().unwrap_or(0)));
    }
}

/// Copies the first bytes of a row: all of them at once where possible.
#[inline(always)]
unsafe fn copy(from: *const u8, to: &mut [u8; MAX_LANES], n: usize) {
    // SAFETY: n <= MAX_LANES bytes can be read, by the contract of the caller.
    unsafe {
        if n == MAX_LANES {
            *to = from.cast::<[u8; MAX_LANES]>().read();
        } else {
            std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), n);
        }
    }
}

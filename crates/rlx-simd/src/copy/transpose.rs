//! Blocks whose rows become columns.

use super::LINE;
use crate::each_level;
use crate::level::Level;

/// `dst[s · dst_stride + d] = src[d · src_stride + s]` for `d < nd`, `s < ns`; elements of `unit` bytes (1, 2, 4 or 8),
/// strides in bytes. `stream`: past the cache where
/// that is possible; the caller calls [`super::end_if`] in the end.
///
/// # Safety
/// All those elements may be read and written, and the two sides do not overlap.
#[allow(clippy::too_many_arguments)]
pub unsafe fn block(
    level: Level,
    unit: usize,
    dst: *mut u8,
    dst_stride: isize,
    src: *const u8,
    src_stride: isize,
    nd: usize,
    ns: usize,
    stream: bool,
) {
    // A line that is written past the cache is written whole.
    let stream = stream && (dst as usize | dst_stride as usize).is_multiple_of(LINE);
    let b = Block { dst, dst_stride, src, src_stride, nd, ns, stream };
    #[cfg(target_arch = "x86_64")]
    {
        // Columns that one vector holds at the level, and rows that are transposed within its 16-byte lanes.
        let (lanes, rows) = (lanes(level), 16 / unit);
        if ns >= rows && nd >= rows {
            let fits = [4, 2, 1].into_iter().find(|l| *l <= lanes && nd >= l * rows).unwrap_or(1);
            // SAFETY: as the caller promises; the machine has the level, and the block is large enough.
            return unsafe {
                match (fits, unit) {
                    (4, 1) => x86::avx512::<1, 16>(b),
                    (4, 2) => x86::avx512::<2, 8>(b),
                    (4, 4) => x86::avx512::<4, 4>(b),
                    (4, _) => x86::avx512::<8, 2>(b),
                    (2, 1) => x86::avx2::<1, 16>(b),
                    (2, 2) => x86::avx2::<2, 8>(b),
                    (2, 4) => x86::avx2::<4, 4>(b),
                    (2, _) => x86::avx2::<8, 2>(b),
                    (_, 1) => x86::sse2::<1, 16>(b),
                    (_, 2) => x86::sse2::<2, 8>(b),
                    (_, 4) => x86::sse2::<4, 4>(b),
                    (_, _) => x86::sse2::<8, 2>(b),
                }
            };
        }
    }
    match unit {
        1 => each_level!(level, _FMA, narrow::<u8> => (b: Block)),
        2 => each_level!(level, _FMA, narrow::<u16> => (b: Block)),
        4 => each_level!(level, _FMA, narrow::<u32> => (b: Block)),
        _ => each_level!(level, _FMA, narrow::<u64> => (b: Block)),
    }
}

/// Blocks that are too small for vectors along one side. Where that side is a few elements that lie together, the compiler
/// is told how many, so that it interleaves vectors.
///
/// # Safety
/// As [`block`].
#[inline(always)]
unsafe fn narrow<T: Copy>(b: Block) {
    let wide = size_of::<T>() as isize;
    // SAFETY: as the caller promises.
    unsafe {
        match (b.nd, b.dst_stride / wide, b.ns, b.src_stride / wide) {
            (2, 2, ..) => interleave::<T, 2>(b),
            (3, 3, ..) => interleave::<T, 3>(b),
            (4, 4, ..) => interleave::<T, 4>(b),
            (_, _, 2, 2) => part::<T, 2>(b),
            (_, _, 3, 3) => part::<T, 3>(b),
            (_, _, 4, 4) => part::<T, 4>(b),
            _ => plain::<T>(b),
        }
    }
}

/// # Safety
/// As [`block`], with `K` columns of the destination and no space between its rows.
#[inline(always)]
unsafe fn interleave<T: Copy, const K: usize>(b: Block) {
    let from: [*const T; K] =
        std::array::from_fn(|d| b.src.wrapping_offset(d as isize * b.src_stride).cast());
    for s in 0..b.ns {
        // SAFETY: a row of the destination.
        unsafe {
            let row = from.map(|from| from.add(s).read_unaligned());
            b.dst.cast::<[T; K]>().add(s).write_unaligned(row);
        }
    }
}

/// # Safety
/// As [`block`], with `K` rows of the destination and no space between those of the source.
#[inline(always)]
unsafe fn part<T: Copy, const K: usize>(b: Block) {
    let to: [*mut T; K] = std::array::from_fn(|s| b.dst.wrapping_offset(s as isize * b.dst_stride).cast());
    for d in 0..b.nd {
        // SAFETY: a row of the source.
        unsafe {
            let row = b.src.cast::<[T; K]>().add(d).read_unaligned();
            to.iter().zip(row).for_each(|(to, v)| to.add(d).write_unaligned(v));
        }
    }
}

/// 16-byte lanes of the level's vectors.
#[cfg(target_arch = "x86_64")]
fn lanes(level: Level) -> usize {
    match level {
        Level::Avx512 => 4,
        Level::Avx2 => 2,
        _ => 1,
    }
}

#[derive(Clone, Copy)]
struct Block {
    dst: *mut u8,
    dst_stride: isize,
    src: *const u8,
    src_stride: isize,
    nd: usize,
    ns: usize,
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    stream: bool,
}

/// # Safety
/// As [`block`].
#[inline(always)]
unsafe fn plain<T: Copy>(b: Block) {
    for s in 0..b.ns {
        let to = b.dst.wrapping_offset(s as isize * b.dst_stride).cast::<T>();
        let from = b.src.wrapping_add(s * size_of::<T>());
        for d in 0..b.nd {
            // SAFETY: an element of the block.
            unsafe {
                let v = from.offset(d as isize * b.src_stride).cast::<T>().read_unaligned();
                to.add(d).write_unaligned(v);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Block, LINE};
    use std::arch::x86_64::*;

    /// A kernel for one vector width of `$lanes` lanes of 16 bytes: `N` vectors, each with a piece of 16 bytes of `$lanes`
    /// rows in its lanes, are transposed within the lanes by log₂ N rounds of interleaving, and are then rows of the
    /// destination.
    macro_rules! kernel {
        ($name:ident, $feature:literal, $lanes:literal, $v:ty, $zero:ident, $store:ident, $stream:ident, $load:ident,
         $lo:ident: $lo1:ident $lo2:ident $lo4:ident $lo8:ident, $hi:ident: $hi1:ident $hi2:ident $hi4:ident $hi8:ident) => {
            #[target_feature(enable = $feature)]
            fn $lo<const E: usize>(a: $v, b: $v) -> $v {
                match E {
                    1 => $lo1(a, b),
                    2 => $lo2(a, b),
                    4 => $lo4(a, b),
                    _ => $lo8(a, b),
                }
            }

            #[target_feature(enable = $feature)]
            fn $hi<const E: usize>(a: $v, b: $v) -> $v {
                match E {
                    1 => $hi1(a, b),
                    2 => $hi2(a, b),
                    4 => $hi4(a, b),
                    _ => $hi8(a, b),
                }
            }

            /// Elements of `E` bytes, `N = 16 / E`.
            ///
            /// # Safety
            /// As [`super::block`], with at least `N · lanes` columns and `N` rows of the destination.
            #[target_feature(enable = $feature)]
            pub unsafe fn $name<const E: usize, const N: usize>(b: Block) {
                let (width, line) = (N * $lanes, LINE / E);
                // Lines that are written in pieces must be few, or the pieces go to memory one by one.
                let stream = b.stream && ($lanes == 4 || N <= 4);
                for d in (0..b.nd).step_by(line) {
                    for s in (0..b.ns.div_ceil(N)).map(|s| (s * N).min(b.ns - N)) {
                        // Line by line of the destination. The last steps may overlap those before them: they write the
                        // same values again.
                        for d in (d..b.nd.min(d + line)).step_by(width).map(|d| d.min(b.nd - width)) {
                            let from = b.src.wrapping_offset(d as isize * b.src_stride + (s * E) as isize);
                            let row =
                                |i: usize| from.wrapping_offset(i as isize * b.src_stride).cast::<__m128i>();
                            let mut v = [$zero(); N];
                            for (i, v) in v.iter_mut().enumerate() {
                                // SAFETY: 16 bytes of `lanes` rows of the block.
                                *v = unsafe { $load(row, i, N) };
                            }
                            for _ in 0..N.trailing_zeros() {
                                let old = v;
                                let (first, second) = old.split_at(N / 2);
                                for ((pair, a), b) in v.chunks_exact_mut(2).zip(first).zip(second) {
                                    if let [lo, hi] = pair {
                                        (*lo, *hi) = ($lo::<E>(*a, *b), $hi::<E>(*a, *b));
                                    }
                                }
                            }
                            let to = b.dst.wrapping_offset(s as isize * b.dst_stride + (d * E) as isize);
                            let stream = stream & d.is_multiple_of(width);
                            for (i, v) in v.iter().enumerate() {
                                let to = to.wrapping_offset(i as isize * b.dst_stride).cast();
                                // SAFETY: `width` elements of a row of the destination, aligned if streamed.
                                unsafe { if stream { $stream(to, *v) } else { $store(to, *v) } };
                            }
                        }
                    }
                }
            }
        };
    }

    /// # Safety
    /// The 16 bytes of the row may be read.
    #[target_feature(enable = "sse2")]
    unsafe fn load1(row: impl Fn(usize) -> *const __m128i, i: usize, _: usize) -> __m128i {
        // SAFETY: as the caller promises.
        unsafe { _mm_loadu_si128(row(i)) }
    }

    /// # Safety
    /// The 16 bytes of rows `i` and `i + n` may be read.
    #[target_feature(enable = "avx2")]
    unsafe fn load2(row: impl Fn(usize) -> *const __m128i, i: usize, n: usize) -> __m256i {
        // SAFETY: as the caller promises.
        unsafe { _mm256_loadu2_m128i(row(i + n), row(i)) }
    }

    /// # Safety
    /// The 16 bytes of rows `i`, `i + n`, `i + 2n`, `i + 3n` may be read.
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn load4(row: impl Fn(usize) -> *const __m128i, i: usize, n: usize) -> __m512i {
        // SAFETY: as the caller promises.
        unsafe {
            let v = _mm512_castsi128_si512(_mm_loadu_si128(row(i)));
            let v = _mm512_inserti32x4::<1>(v, _mm_loadu_si128(row(i + n)));
            let v = _mm512_inserti32x4::<2>(v, _mm_loadu_si128(row(i + 2 * n)));
            _mm512_inserti32x4::<3>(v, _mm_loadu_si128(row(i + 3 * n)))
        }
    }

    kernel!(
        sse2, "sse2", 1, __m128i, _mm_setzero_si128, _mm_storeu_si128, _mm_stream_si128, load1,
        lo128: _mm_unpacklo_epi8 _mm_unpacklo_epi16 _mm_unpacklo_epi32 _mm_unpacklo_epi64,
        hi128: _mm_unpackhi_epi8 _mm_unpackhi_epi16 _mm_unpackhi_epi32 _mm_unpackhi_epi64
    );
    kernel!(
        avx2, "avx2", 2, __m256i, _mm256_setzero_si256, _mm256_storeu_si256, _mm256_stream_si256, load2,
        lo256: _mm256_unpacklo_epi8 _mm256_unpacklo_epi16 _mm256_unpacklo_epi32 _mm256_unpacklo_epi64,
        hi256: _mm256_unpackhi_epi8 _mm256_unpackhi_epi16 _mm256_unpackhi_epi32 _mm256_unpackhi_epi64
    );
    kernel!(
        avx512, "avx512f,avx512bw", 4, __m512i, _mm512_setzero_si512, _mm512_storeu_si512, _mm512_stream_si512, load4,
        lo512: _mm512_unpacklo_epi8 _mm512_unpacklo_epi16 _mm512_unpacklo_epi32 _mm512_unpacklo_epi64,
        hi512: _mm512_unpackhi_epi8 _mm512_unpackhi_epi16 _mm512_unpackhi_epi32 _mm512_unpackhi_epi64
    );
}

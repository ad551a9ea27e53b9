//! Between memory and registers, and registers made of nothing.

use super::Store;
use super::convert::{
    BF16, Bool, F8E4M3, F8E5M2, F16, F32, F64, I8, I16, I32, I64, Memory, Small, U8, U16, U32, U64, to_odd,
};
use crate::level::Level;
use crate::math::loops::{kernels, light1};
use std::marker::PhantomData;

/// How far apart the elements of a tile lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LoadStride {
    /// Next to each other.
    One,
    /// All the same one.
    Zero,
    /// As the call says.
    Any,
}

/// From memory into a register: element i comes from `src + i · stride` elements. The source has the type's own alignment
/// and does not overlap `dst`.
pub type LoadFn = unsafe fn(n: usize, dst: *mut u8, src: *const u8, stride: isize);
/// From a register into memory: element i goes to `dst + i · stride` elements, which do not overlap `src`.
pub type StoreFn = unsafe fn(n: usize, dst: *mut u8, stride: isize, src: *const u8);
/// dst = start + i · step, wrapped or rounded to the type.
pub type IotaFn = unsafe fn(n: usize, dst: *mut u8, start: i64, step: i64);

kernels! {
    /// A way from memory into a register.
    LoadKernel, LoadFn, loading(n: usize, dst: *mut u8, src: *const u8, stride: isize)
}
kernels! {
    /// A way from a register into memory.
    StoreKernel, StoreFn, storing(n: usize, dst: *mut u8, stride: isize, src: *const u8)
}

struct Near<M>(PhantomData<M>);

impl<M: Memory> LoadKernel for Near<M> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(n: usize, dst: *mut u8, src: *const u8, _: isize) {
        // SAFETY: the contract of the pointer is that of the loop.
        unsafe { light1::<M::Mem, M::Reg>(n, dst, src, M::load) }
    }
}

/// Any stride, one element at a time.
unsafe fn load_any<M: Memory>(n: usize, dst: *mut u8, src: *const u8, stride: isize) {
    let (dst, src) = (dst.cast::<M::Reg>(), src.cast::<M::Mem>());
    for i in 0..n {
        // SAFETY: the caller has n elements that far apart, and room for n.
        unsafe { dst.add(i).write(M::load(src.offset(i as isize * stride).read())) }
    }
}

/// The same element n times.
unsafe fn load_same<M: Memory>(n: usize, dst: *mut u8, src: *const u8, _: isize) {
    if n > 0 {
        // SAFETY: the caller has an element, and room for n.
        unsafe {
            std::slice::from_raw_parts_mut(dst.cast::<M::Reg>(), n).fill(M::load(src.cast::<M::Mem>().read()))
        }
    }
}

/// Elements that are in memory what they are in a register.
unsafe fn load_plain<T>(n: usize, dst: *mut u8, src: *const u8, _: isize) {
    // SAFETY: both have n elements and do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(src.cast::<T>(), dst.cast::<T>(), n) }
}

impl<M: Memory> StoreKernel for Near<M> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(n: usize, dst: *mut u8, stride: isize, src: *const u8) {
        // SAFETY: the contract of the pointer is that of either loop.
        unsafe {
            if stride == 1 {
                light1::<M::Reg, M::Mem>(n, dst, src, M::store);
            } else {
                store_any::<M>(n, dst, stride, src);
            }
        }
    }
}

#[inline(always)]
unsafe fn store_any<M: Memory>(n: usize, dst: *mut u8, stride: isize, src: *const u8) {
    let (dst, src) = (dst.cast::<M::Mem>(), src.cast::<M::Reg>());
    for i in 0..n {
        // SAFETY: the caller has n elements, and room for n that far apart.
        unsafe { dst.offset(i as isize * stride).write(M::store(src.add(i).read())) }
    }
}

unsafe fn store_plain<M: Memory>(n: usize, dst: *mut u8, stride: isize, src: *const u8) {
    // SAFETY: the caller has n elements, and room for n that far apart.
    unsafe {
        if stride == 1 {
            std::ptr::copy_nonoverlapping(src, dst, n * size_of::<M::Mem>());
        } else {
            store_any::<M>(n, dst, stride, src);
        }
    }
}

/// Halves, with the instructions for them.
#[cfg(target_arch = "x86_64")]
mod half {
    use super::*;
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx512f,avx512vl,f16c")]
    pub(super) unsafe fn load_avx512(n: usize, dst: *mut u8, src: *const u8, stride: isize) {
        let (d, s) = (dst.cast::<f32>(), src.cast::<u16>());
        let full = n & !15;
        // SAFETY: 16 elements from every multiple of 16 below `full` on are below n.
        unsafe {
            for i in (0..full).step_by(16) {
                _mm512_storeu_ps(d.add(i), _mm512_cvtph_ps(_mm256_loadu_si256(s.add(i).cast())));
            }
            load_any::<F16>(n - full, d.add(full).cast(), s.add(full).cast(), stride);
        }
    }

    #[target_feature(enable = "avx2,f16c")]
    pub(super) unsafe fn load_avx2(n: usize, dst: *mut u8, src: *const u8, stride: isize) {
        let (d, s) = (dst.cast::<f32>(), src.cast::<u16>());
        let full = n & !7;
        // SAFETY: as above, by 8.
        unsafe {
            for i in (0..full).step_by(8) {
                _mm256_storeu_ps(d.add(i), _mm256_cvtph_ps(_mm_loadu_si128(s.add(i).cast())));
            }
            load_any::<F16>(n - full, d.add(full).cast(), s.add(full).cast(), stride);
        }
    }

    #[target_feature(enable = "avx512f,avx512vl,f16c")]
    pub(super) unsafe fn store_avx512(n: usize, dst: *mut u8, stride: isize, src: *const u8) {
        let (d, s) = (dst.cast::<u16>(), src.cast::<f32>());
        let full = if stride == 1 { n & !15 } else { 0 };
        // SAFETY: as above.
        unsafe {
            for i in (0..full).step_by(16) {
                let h = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm512_loadu_ps(s.add(i)));
                _mm256_storeu_si256(d.add(i).cast(), h);
            }
            store_any::<F16>(n - full, d.add(full).cast(), stride, s.add(full).cast());
        }
    }

    #[target_feature(enable = "avx2,f16c")]
    pub(super) unsafe fn store_avx2(n: usize, dst: *mut u8, stride: isize, src: *const u8) {
        let (d, s) = (dst.cast::<u16>(), src.cast::<f32>());
        let full = if stride == 1 { n & !7 } else { 0 };
        // SAFETY: as above, by 8.
        unsafe {
            for i in (0..full).step_by(8) {
                let h = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(s.add(i)));
                _mm_storeu_si128(d.add(i).cast(), h);
            }
            store_any::<F16>(n - full, d.add(full).cast(), stride, s.add(full).cast());
        }
    }
}

fn load_of<M: Memory>(level: Level, stride: LoadStride) -> LoadFn {
    match stride {
        LoadStride::One => loading::at_level::<Near<M>>(level),
        LoadStride::Zero => load_same::<M>,
        LoadStride::Any => load_any::<M>,
    }
}

/// The loop that loads a tile of a type.
pub fn load(level: Level, ty: Store, stride: LoadStride) -> LoadFn {
    match (ty, stride, level) {
        (Store::F64 | Store::I64 | Store::U64, LoadStride::One, _) => load_plain::<u64>,
        (Store::F32 | Store::I32 | Store::U32, LoadStride::One, _) => load_plain::<u32>,
        #[cfg(target_arch = "x86_64")]
        (Store::F16, LoadStride::One, Level::Avx512) => half::load_avx512,
        #[cfg(target_arch = "x86_64")]
        (Store::F16, LoadStride::One, Level::Avx2) => half::load_avx2,
        (Store::F64, ..) => load_of::<F64>(level, stride),
        (Store::F32, ..) => load_of::<F32>(level, stride),
        (Store::F16, ..) => load_of::<F16>(level, stride),
        (Store::BF16, ..) => load_of::<BF16>(level, stride),
        (Store::F8E4M3, ..) => load_of::<F8E4M3>(level, stride),
        (Store::F8E5M2, ..) => load_of::<F8E5M2>(level, stride),
        (Store::I8, ..) => load_of::<I8>(level, stride),
        (Store::I16, ..) => load_of::<I16>(level, stride),
        (Store::I32, ..) => load_of::<I32>(level, stride),
        (Store::I64, ..) => load_of::<I64>(level, stride),
        (Store::U8, ..) => load_of::<U8>(level, stride),
        (Store::U16, ..) => load_of::<U16>(level, stride),
        (Store::U32, ..) => load_of::<U32>(level, stride),
        (Store::U64, ..) => load_of::<U64>(level, stride),
        (Store::Bool, ..) => load_of::<Bool>(level, stride),
    }
}

/// The loop that stores a register as a type, rounding floats to nearest, ties to even.
pub fn store(level: Level, ty: Store) -> StoreFn {
    match (ty, level) {
        #[cfg(target_arch = "x86_64")]
        (Store::F16, Level::Avx512) => half::store_avx512,
        #[cfg(target_arch = "x86_64")]
        (Store::F16, Level::Avx2) => half::store_avx2,
        (Store::F64, _) => store_plain::<F64>,
        (Store::F32, _) => store_plain::<F32>,
        (Store::I32, _) => store_plain::<I32>,
        (Store::I64, _) => store_plain::<I64>,
        (Store::U32, _) => store_plain::<U32>,
        (Store::U64, _) => store_plain::<U64>,
        (Store::F16, _) => storing::at_level::<Near<F16>>(level),
        (Store::BF16, _) => storing::at_level::<Near<BF16>>(level),
        (Store::F8E4M3, _) => storing::at_level::<Near<F8E4M3>>(level),
        (Store::F8E5M2, _) => storing::at_level::<Near<F8E5M2>>(level),
        (Store::I8, _) => storing::at_level::<Near<I8>>(level),
        (Store::I16, _) => storing::at_level::<Near<I16>>(level),
        (Store::U8, _) => storing::at_level::<Near<U8>>(level),
        (Store::U16, _) => storing::at_level::<Near<U16>>(level),
        (Store::Bool, _) => storing::at_level::<Near<Bool>>(level),
    }
}

/// Numbers from a start on, each made by `f`.
#[inline(always)]
unsafe fn count<R>(n: usize, dst: *mut u8, start: i64, step: i64, f: impl Fn(i64) -> R) {
    for i in 0..n {
        // SAFETY: the caller has room for n elements.
        unsafe { dst.cast::<R>().add(i).write(f(start.wrapping_add(step.wrapping_mul(i as i64)))) }
    }
}

macro_rules! counting {
    ($f:expr) => {{
        unsafe fn each(n: usize, dst: *mut u8, start: i64, step: i64) {
            // SAFETY: as the contract of the pointer.
            unsafe { count(n, dst, start, step, $f) }
        }
        each as IotaFn
    }};
}

/// The loop that counts: start + i · step. It is the same for every level.
pub fn iota(_level: Level, ty: Store) -> IotaFn {
    match ty {
        Store::F64 => counting!(|x| x as f64),
        Store::F32 => counting!(|x| x as f64 as f32),
        Store::F16 => counting!(|x| F16::round(to_odd(x as f64))),
        Store::BF16 => counting!(|x| BF16::round(to_odd(x as f64))),
        Store::F8E4M3 => counting!(|x| F8E4M3::round(to_odd(x as f64))),
        Store::F8E5M2 => counting!(|x| F8E5M2::round(to_odd(x as f64))),
        Store::I8 => counting!(|x| x as i8 as i32),
        Store::I16 => counting!(|x| x as i16 as i32),
        Store::I32 | Store::U32 => counting!(|x| x as i32),
        Store::U8 => counting!(|x| x as u8 as i32),
        Store::U16 => counting!(|x| x as u16 as i32),
        Store::I64 | Store::U64 => counting!(|x| x),
        Store::Bool => counting!(|x| (x != 0) as i32),
    }
}

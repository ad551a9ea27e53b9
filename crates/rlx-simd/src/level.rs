//! Which instructions the machine has.
//!
//! A kernel is written once as an `#[inline(always)]` function and compiled for every level by
//! [`each_level!`](crate::each_level); where the compiler's own vectorisation is not enough, the kernel has intrinsics for the
//! level. The level is a value that the caller passes, so that a test can force every level that the machine has.

use std::fmt;

/// A set of vector instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// What every processor of the architecture has: SSE2 on x86-64, plain code elsewhere.
    Baseline,
    /// ARM's NEON.
    Neon,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL, with FMA and F16C.
    Avx512,
}

impl Level {
    /// The best level of this machine.
    pub fn detect() -> Level {
        Level::available().last().copied().unwrap_or(Level::Baseline)
    }

    /// Every level that this machine has, the best last.
    pub fn available() -> Vec<Level> {
        let all = [Level::Baseline, Level::Neon, Level::Avx2, Level::Avx512];
        all.into_iter().filter(|l| l.is_available()).collect()
    }

    /// Whether the machine has this level.
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        let avx2 = || {
            is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
        };
        match self {
            Level::Baseline => true,
            Level::Neon => cfg!(target_arch = "aarch64"),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => avx2(),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => {
                avx2()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Level::Avx2 | Level::Avx512 => false,
        }
    }

    /// The level of that name.
    pub fn parse(name: &str) -> Option<Level> {
        [Level::Baseline, Level::Neon, Level::Avx2, Level::Avx512].into_iter().find(|l| l.to_string() == name)
    }

    /// Whether the machine multiplies pairs of bf16 and adds them in f32 (AVX512_BF16).
    pub fn has_bf16_dot(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self == Level::Avx512 && is_x86_feature_detected!("avx512bf16");
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Whether the machine multiplies quadruples of bytes and adds them in i32 (AVX512_VNNI; dotprod on ARM).
    pub fn has_int8_dot(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self == Level::Avx512 && is_x86_feature_detected!("avx512vnni");
        #[cfg(target_arch = "aarch64")]
        return self == Level::Neon && std::arch::is_aarch64_feature_detected!("dotprod");
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        false
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Level::Baseline => "baseline",
            Level::Neon => "neon",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
        })
    }
}

/// Compiles the call of an `#[inline(always)]` function for every level and runs the one asked for.
///
/// `each_level!(level, FMA, kernel::<FMA>(a: &mut [f32], b: &[f32]))`: inside the call, the constant `FMA: bool` says whether
/// a fused multiply-add is one instruction (so that generic code may choose between `mul_add` and `a * b + c`).
#[macro_export]
macro_rules! each_level {
    ($level:expr, $fma:ident, $f:path $(, $t:ty)* => ($($a:ident: $ty:ty),* $(,)?) $(-> $ret:ty)?) => {{
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        unsafe fn avx512($($a: $ty),*) $(-> $ret)? {
            const $fma: bool = true;
            #[allow(unused_unsafe)]
            // SAFETY: the caller of the macro keeps the contract of the function.
            unsafe { $f($($a),*) }
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn avx2($($a: $ty),*) $(-> $ret)? {
            const $fma: bool = true;
            #[allow(unused_unsafe)]
            // SAFETY: as above.
            unsafe { $f($($a),*) }
        }
        let level: $crate::level::Level = $level;
        debug_assert!(level.is_available());
        match level {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the machine has the level, for levels come from `Level::available`.
            $crate::level::Level::Avx512 => unsafe { avx512($($a),*) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            $crate::level::Level::Avx2 => unsafe { avx2($($a),*) },
            _ => {
                const $fma: bool = cfg!(target_arch = "aarch64");
                #[allow(unused_unsafe)]
                // SAFETY: the caller of the macro keeps the contract of the function.
                unsafe { $f($($a),*) }
            }
        }
    }};
}

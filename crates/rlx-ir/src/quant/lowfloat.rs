//! Scalar codecs of the floats below 16 bits: FP8 E4M3 and E5M2, FP4 E2M1, and the power-of-two scale E8M0.
//!
//! Every encoder works from `f64` and rounds once, to nearest with ties to even (E8M0: ties up). An `f32` widens
//! to `f64` without loss, so the `f32` entry points are the same functions.

/// A sign-magnitude float of at most eight bits.
struct MiniFloat {
    mantissa_bits: u32,
    bias: i32,
    sign: u8,
    /// Magnitude code of the largest finite value.
    largest: u8,
    /// Magnitude code that a finite value beyond `largest`, or an infinity, turns into.
    overflow: u8,
}

/// OCP FP8 E4M3: no infinity, one NaN per sign.
const E4M3: MiniFloat = MiniFloat { mantissa_bits: 3, bias: 7, sign: 0x80, largest: 0x7E, overflow: 0x7F };
/// OCP FP8 E5M2: laid out like the upper byte of a half.
const E5M2: MiniFloat = MiniFloat { mantissa_bits: 2, bias: 15, sign: 0x80, largest: 0x7B, overflow: 0x7C };
/// OCP FP4 E2M1: neither infinity nor NaN, so that overflow saturates.
const E2M1: MiniFloat = MiniFloat { mantissa_bits: 1, bias: 1, sign: 0x08, largest: 0x07, overflow: 0x07 };

/// 2^e for the exponents that a normal `f64` has.
fn exp2(e: i32) -> f64 {
    f64::from_bits(u64::from((e + 1023).clamp(1, 2046).unsigned_abs()) << 52)
}

/// floor(log2(x)) of a positive finite `x`; an `f64` subnormal counts as the smallest normal exponent less one,
/// which lies below every format here.
pub(super) fn exponent(x: f64) -> i32 {
    ((x.to_bits() >> 52) & 0x7FF) as i32 - 1023
}

impl MiniFloat {
    fn decode(&self, code: u8) -> f32 {
        let magnitude = code & (self.sign - 1);
        let fraction = i32::from(magnitude) & ((1 << self.mantissa_bits) - 1);
        let field = i32::from(magnitude >> self.mantissa_bits);
        // A subnormal has the exponent of the first normal and no hidden bit.
        let hidden = if field == 0 { 0 } else { 1 << self.mantissa_bits };
        let scale = exp2(field.max(1) - self.bias - self.mantissa_bits as i32);
        let value = (f64::from(fraction + hidden) * scale) as f32;
        if code & self.sign == 0 { value } else { -value }
    }

    /// Rounds a number that is not NaN.
    fn encode(&self, x: f64) -> u8 {
        let sign = if x.is_sign_negative() { self.sign } else { 0 };
        let x = x.abs();
        let e = exponent(x);
        if e > 64 {
            return sign | self.overflow; // infinity, or far beyond every format
        }
        let smallest = 1 - self.bias;
        if e < smallest - self.mantissa_bits as i32 - 1 {
            return sign; // below half of the smallest subnormal
        }
        let top = e.max(smallest);
        // Exact: a power of two times a number far from the ends of f64. A carry out of the mantissa falls into the
        // exponent field, which is the right code.
        let steps = (x * exp2(self.mantissa_bits as i32 - top)).round_ties_even() as i32;
        let code = ((top - smallest) << self.mantissa_bits) + steps;
        sign | if code > i32::from(self.largest) { self.overflow } else { code as u8 }
    }
}

/// The value of an E4M3 code; 0x7F and 0xFF are NaN.
pub fn f8e4m3_to_f32(code: u8) -> f32 {
    if code & 0x7F == 0x7F { f32::NAN } else { E4M3.decode(code) }
}

/// The E4M3 code nearest to `x`; beyond the range (over 464), and for an infinity, NaN with the sign of `x`.
pub fn f8e4m3_from_f64(x: f64) -> u8 {
    if x.is_nan() { sign_bit(x) | 0x7F } else { E4M3.encode(x) }
}

/// The E4M3 code nearest to `x`: see [`f8e4m3_from_f64`].
pub fn f8e4m3_from_f32(x: f32) -> u8 {
    f8e4m3_from_f64(f64::from(x))
}

/// The value of an E5M2 code; exponent 31 holds infinity and NaN.
pub fn f8e5m2_to_f32(code: u8) -> f32 {
    match code & 0x7F {
        0x7D.. => f32::NAN,
        0x7C if code == 0x7C => f32::INFINITY,
        0x7C => f32::NEG_INFINITY,
        _ => E5M2.decode(code),
    }
}

/// The E5M2 code nearest to `x`; beyond the range (from 61440) infinity.
pub fn f8e5m2_from_f64(x: f64) -> u8 {
    if x.is_nan() { sign_bit(x) | 0x7E } else { E5M2.encode(x) }
}

/// The E5M2 code nearest to `x`: see [`f8e5m2_from_f64`].
pub fn f8e5m2_from_f32(x: f32) -> u8 {
    f8e5m2_from_f64(f64::from(x))
}

/// The value of the E2M1 code in the low nibble: ±{0, 0.5, 1, 1.5, 2, 3, 4, 6}.
pub fn e2m1_to_f32(code: u8) -> f32 {
    E2M1.decode(code & 0x0F)
}

/// The E2M1 code nearest to `x`, in the low nibble; saturates at ±6. NaN becomes a zero of the other sign, as in
/// ml_dtypes.
pub fn e2m1_from_f64(x: f64) -> u8 {
    match x.is_nan() {
        true if x.is_sign_positive() => E2M1.sign,
        true => 0,
        false => E2M1.encode(x),
    }
}

/// The E2M1 code nearest to `x`: see [`e2m1_from_f64`].
pub fn e2m1_from_f32(x: f32) -> u8 {
    e2m1_from_f64(f64::from(x))
}

/// The value of an E8M0 code: 2^(code − 127), and NaN for 255.
pub fn e8m0_to_f32(code: u8) -> f32 {
    match code {
        255 => f32::NAN,
        0 => f32::from_bits(0x0040_0000), // 2^-127 is subnormal in f32
        _ => f32::from_bits(u32::from(code) << 23),
    }
}

/// The E8M0 code nearest to `x` on a linear scale, ties up; NaN (255) for what is not positive and above the range.
/// Between the lowest two codes everything rounds up, which is what ml_dtypes does.
pub fn e8m0_from_f64(x: f64) -> u8 {
    if x.is_nan() || x <= 0.0 || x.is_infinite() {
        return 255;
    }
    let fraction = x.to_bits() << 12; // from the top bit down
    let code = exponent(x) + 127;
    let tie = if code == 0 { 1 } else { 1 << 63 };
    (code + i32::from(fraction >= tie)).clamp(0, 255) as u8
}

/// The E8M0 code nearest to `x`: see [`e8m0_from_f64`].
pub fn e8m0_from_f32(x: f32) -> u8 {
    e8m0_from_f64(f64::from(x))
}

fn sign_bit(x: f64) -> u8 {
    if x.is_sign_negative() { 0x80 } else { 0 }
}

//! The scalar language: the closed set of functions of numbers that element-wise ops are made of.
//!
//! A backend implements these and no others. Floats follow IEEE; integers wrap; integer division rounds toward zero,
//! and division by zero gives 0, so that no device traps.

use crate::dtype::DType;

/// A function of one, two or three numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
#[rustfmt::skip]
pub enum Scalar {
    Neg, Abs, Sign, Exp, Expm1, Log, Log1p, Sqrt, Rsqrt, Recip, Sin, Cos, Tan, Asin, Acos, Atan, Sinh, Cosh,
    Asinh, Acosh, Atanh, Tanh, Erf, Erfc, Sigmoid, Floor, Ceil, Round, Trunc, Not, IsNan, IsInf,
    Add, Sub, Mul, Div, Rem, Pow, Atan2, Max, Min, And, Or, Xor, Shl, Shr,
    Eq, Ne, Lt, Le, Gt, Ge,
    Select,
}

/// A number in the oracle: floats are exact to `f64`, integers to 128 bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Num {
    /// A float.
    F(f64),
    /// An integer or bool.
    I(i128),
}

impl Num {
    /// As a float.
    pub fn f(self) -> f64 {
        match self {
            Num::F(x) => x,
            Num::I(x) => x as f64,
        }
    }
    /// As an integer: floats are cut toward zero and clamped, NaN is 0.
    pub fn i(self) -> i128 {
        match self {
            Num::F(x) => x as i128,
            Num::I(x) => x,
        }
    }
    /// Whether it is not zero.
    pub fn truth(self) -> bool {
        match self {
            Num::F(x) => x != 0.0,
            Num::I(x) => x != 0,
        }
    }
}

impl Scalar {
    /// Whether the result is a bool whatever the operands are.
    pub fn gives_bool(self) -> bool {
        use Scalar::*;
        matches!(self, Eq | Ne | Lt | Le | Gt | Ge | IsNan | IsInf)
    }

    /// The value, for operands of `dtype` (of the last operand for `Select`). Integers are wrapped to it.
    pub fn eval(self, dtype: DType, x: &[Num]) -> Num {
        let at = |i: usize| x.get(i).copied().unwrap_or(Num::I(0));
        let truth = |b: bool| Num::I(b as i128);
        match (self, at(0), at(1)) {
            (Scalar::Select, c, a) => {
                if c.truth() {
                    a
                } else {
                    at(2)
                }
            }
            (_, Num::I(a), b) => {
                let b = b.i();
                match self.compare(a.cmp(&b)) {
                    Some(t) => truth(t),
                    None => Num::I(dtype.wrap_int(self.int(dtype, a, b))),
                }
            }
            (_, Num::F(a), b) => {
                let b = b.f();
                match (self, a.partial_cmp(&b)) {
                    (Scalar::IsNan, _) => truth(a.is_nan()),
                    (Scalar::IsInf, _) => truth(a.is_infinite()),
                    (_, Some(o)) if self.gives_bool() => truth(self.compare(o) == Some(true)),
                    (_, None) if self.gives_bool() => truth(self == Scalar::Ne),
                    _ => Num::F(self.float(a, b)),
                }
            }
        }
    }

    fn compare(self, o: std::cmp::Ordering) -> Option<bool> {
        use Scalar::*;
        Some(match self {
            Eq => o.is_eq(),
            Ne => o.is_ne(),
            Lt => o.is_lt(),
            Le => o.is_le(),
            Gt => o.is_gt(),
            Ge => o.is_ge(),
            IsNan | IsInf => false,
            _ => return None,
        })
    }

    fn float(self, a: f64, b: f64) -> f64 {
        use Scalar::*;
        match self {
            Neg => -a,
            Abs => a.abs(),
            // NaN has no sign, as in PyTorch.
            Sign => (a > 0.0) as i8 as f64 - (a < 0.0) as i8 as f64,
            Exp => a.exp(),
            Expm1 => a.exp_m1(),
            Log => a.ln(),
            Log1p => a.ln_1p(),
            Sqrt => a.sqrt(),
            Rsqrt => 1.0 / a.sqrt(),
            Recip => 1.0 / a,
            Sin => a.sin(),
            Cos => a.cos(),
            Tan => a.tan(),
            Asin => a.asin(),
            Acos => a.acos(),
            Atan => a.atan(),
            Sinh => a.sinh(),
            Cosh => a.cosh(),
            Asinh => libm::asinh(a),
            // libm gives a number for some arguments below 1.
            Acosh if a < 1.0 => f64::NAN,
            Acosh => libm::acosh(a),
            Atanh => libm::atanh(a),
            Tanh => a.tanh(),
            Erf => libm::erf(a),
            Erfc => libm::erfc(a),
            Sigmoid => {
                if a >= 0.0 {
                    1.0 / (1.0 + (-a).exp())
                } else {
                    a.exp() / (1.0 + a.exp())
                }
            }
            Floor => a.floor(),
            Ceil => a.ceil(),
            Round => a.round_ties_even(),
            Trunc => a.trunc(),
            Add => a + b,
            Sub => a - b,
            Mul => a * b,
            Div => a / b,
            Rem => a % b,
            Pow => a.powf(b),
            Atan2 => a.atan2(b),
            // NaN wins, as in NumPy and PyTorch.
            Max => {
                if a.is_nan() || b.is_nan() {
                    f64::NAN
                } else {
                    a.max(b)
                }
            }
            Min => {
                if a.is_nan() || b.is_nan() {
                    f64::NAN
                } else {
                    a.min(b)
                }
            }
            Not | And | Or | Xor | Shl | Shr | Eq | Ne | Lt | Le | Gt | Ge | IsNan | IsInf | Select => {
                f64::NAN
            }
        }
    }

    fn int(self, dtype: DType, a: i128, b: i128) -> i128 {
        use Scalar::*;
        let bits = dtype.bytes().unwrap_or(8) as i128 * 8;
        let count = if (0..bits).contains(&b) { b } else { bits };
        match self {
            Neg => -a,
            Abs => a.abs(),
            Sign => a.signum(),
            Not => {
                if dtype == DType::Bool {
                    (a == 0) as i128
                } else {
                    !a
                }
            }
            Add => a + b,
            Sub => a - b,
            Mul => a.wrapping_mul(b),
            Div => a.checked_div(b).unwrap_or(0),
            Rem => a.checked_rem(b).unwrap_or(0),
            Pow => int_pow(dtype, a, b),
            Max => a.max(b),
            Min => a.min(b),
            And => a & b,
            Or => a | b,
            Xor => a ^ b,
            // A shift by the width or more, or by a negative count, drops all bits: what is left is 0, or −1 for a
            // negative number shifted right.
            Shl => a << count,
            Shr => a >> count,
            Floor | Ceil | Round | Trunc => a,
            _ => 0,
        }
    }
}

/// Integer power by squaring, wrapping at every step; a negative exponent gives the truncated value.
fn int_pow(dtype: DType, base: i128, exponent: i128) -> i128 {
    if exponent < 0 {
        return match base {
            1 => 1,
            -1 => {
                if exponent % 2 == 0 {
                    1
                } else {
                    -1
                }
            }
            _ => 0,
        };
    }
    let (mut result, mut square, mut e) = (1i128, base, exponent);
    while e > 0 {
        if e & 1 == 1 {
            result = dtype.wrap_int(result.wrapping_mul(square));
        }
        square = dtype.wrap_int(square.wrapping_mul(square));
        e >>= 1;
    }
    result
}

//! Element types.

use crate::quant::Scheme;
use std::fmt;

/// The type of a tensor's elements: a number type, or a quantisation scheme for packed tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// 64-bit float.
    F64,
    /// 32-bit float.
    F32,
    /// IEEE 16-bit float.
    F16,
    /// The upper half of a 32-bit float.
    BF16,
    /// OCP 8-bit float, 4 exponent bits, no infinity.
    F8E4M3,
    /// OCP 8-bit float, 5 exponent bits.
    F8E5M2,
    /// Signed 8-bit.
    I8,
    /// Signed 16-bit.
    I16,
    /// Signed 32-bit.
    I32,
    /// Signed 64-bit.
    I64,
    /// Unsigned 8-bit.
    U8,
    /// Unsigned 16-bit.
    U16,
    /// Unsigned 32-bit.
    U32,
    /// Unsigned 64-bit.
    U64,
    /// True or false, one byte.
    Bool,
    /// Block-quantised elements; the shape of the tensor is the shape of the decoded values.
    Packed(Scheme),
}

/// What the table knows of each number type: name, bytes, kind.
const TABLE: &[(DType, &str, usize, Kind)] = &[
    (DType::F64, "f64", 8, Kind::Float),
    (DType::F32, "f32", 4, Kind::Float),
    (DType::F16, "f16", 2, Kind::Float),
    (DType::BF16, "bf16", 2, Kind::Float),
    (DType::F8E4M3, "f8e4m3", 1, Kind::Float),
    (DType::F8E5M2, "f8e5m2", 1, Kind::Float),
    (DType::I8, "i8", 1, Kind::Int { bits: 8, signed: true }),
    (DType::I16, "i16", 2, Kind::Int { bits: 16, signed: true }),
    (DType::I32, "i32", 4, Kind::Int { bits: 32, signed: true }),
    (DType::I64, "i64", 8, Kind::Int { bits: 64, signed: true }),
    (DType::U8, "u8", 1, Kind::Int { bits: 8, signed: false }),
    (DType::U16, "u16", 2, Kind::Int { bits: 16, signed: false }),
    (DType::U32, "u32", 4, Kind::Int { bits: 32, signed: false }),
    (DType::U64, "u64", 8, Kind::Int { bits: 64, signed: false }),
    (DType::Bool, "bool", 1, Kind::Bool),
];

/// The kind of a dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A float of any width.
    Float,
    /// An integer.
    Int {
        /// Width in bits.
        bits: u32,
        /// Whether it has a sign.
        signed: bool,
    },
    /// A truth value.
    Bool,
    /// A packed quantised type.
    Packed,
}

impl DType {
    /// Every number type (all but the packed ones).
    pub fn numbers() -> impl Iterator<Item = DType> {
        TABLE.iter().map(|r| r.0)
    }

    fn row(self) -> Option<&'static (DType, &'static str, usize, Kind)> {
        TABLE.iter().find(|r| r.0 == self)
    }

    /// Float, integer, bool or packed.
    pub fn kind(self) -> Kind {
        self.row().map_or(Kind::Packed, |r| r.3)
    }

    /// Whether it is a float.
    pub fn is_float(self) -> bool {
        self.kind() == Kind::Float
    }
    /// The dtype in which a kernel keeps sums and states of such numbers: `f64` for itself, `f32` for all others.
    pub fn wide(self) -> DType {
        if self == DType::F64 { DType::F64 } else { DType::F32 }
    }
    /// Whether it is an integer (bool is none).
    pub fn is_int(self) -> bool {
        matches!(self.kind(), Kind::Int { .. })
    }
    /// Whether it is packed.
    pub fn is_packed(self) -> bool {
        self.kind() == Kind::Packed
    }

    /// Bytes of an element; `None` for packed types, whose planes the scheme describes.
    pub fn bytes(self) -> Option<usize> {
        self.row().map(|r| r.2)
    }

    /// The smallest and largest integer that the type holds; bool is 0..=1; `None` for floats and packed types.
    pub fn int_range(self) -> Option<(i128, i128)> {
        match self.kind() {
            Kind::Int { bits, signed: true } => Some((-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1)),
            Kind::Int { bits, signed: false } => Some((0, (1i128 << bits) - 1)),
            Kind::Bool => Some((0, 1)),
            _ => None,
        }
    }

    /// The largest finite value of a float type.
    pub fn float_max(self) -> Option<f64> {
        Some(match self {
            DType::F64 => f64::MAX,
            DType::F32 => f32::MAX as f64,
            DType::F16 => 65504.0,
            DType::BF16 => half::bf16::MAX.to_f64(),
            DType::F8E4M3 => 448.0,
            DType::F8E5M2 => 57344.0,
            _ => return None,
        })
    }

    /// The dtype of that name, as printed.
    pub fn parse(name: &str) -> Option<DType> {
        if let Some(inner) = name.strip_prefix("packed<").and_then(|s| s.strip_suffix('>')) {
            return Scheme::parse(inner).map(DType::Packed);
        }
        TABLE.iter().find(|r| r.1 == name).map(|r| r.0)
    }

    /// Rounds a float to the nearest value of this type (ties to even); integers wrap. Packed types stay as they are.
    pub fn round_f64(self, x: f64) -> f64 {
        use crate::quant::lowfloat as lf;
        match self {
            DType::F32 => x as f32 as f64,
            DType::F16 => half::f16::from_f64(x).to_f64(),
            DType::BF16 => half::bf16::from_f64(x).to_f64(),
            DType::F8E4M3 => lf::f8e4m3_to_f32(lf::f8e4m3_from_f64(x)) as f64,
            DType::F8E5M2 => lf::f8e5m2_to_f32(lf::f8e5m2_from_f64(x)) as f64,
            _ => x,
        }
    }

    /// Brings an integer into the range of this type by dropping the upper bits; bool is `x != 0`.
    pub fn wrap_int(self, x: i128) -> i128 {
        match self.kind() {
            Kind::Int { bits, signed } => {
                let low = x & ((1i128 << bits) - 1);
                if signed && low >> (bits - 1) & 1 == 1 { low - (1i128 << bits) } else { low }
            }
            Kind::Bool => (x != 0) as i128,
            _ => x,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DType::Packed(s) => write!(f, "packed<{s}>"),
            _ => f.write_str(self.row().map_or("?", |r| r.1)),
        }
    }
}

/// What dtypes an operand may have. Operands of the classes `Float`, `Num` and `Any` of one op share one dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A float.
    Float,
    /// A float or an integer.
    Num,
    /// An integer or bool; takes part in sharing one dtype.
    Bits,
    /// Any number type or bool.
    Any,
    /// A bool.
    Bool,
    /// An integer used as an index or count; any width, its own dtype.
    Index,
    /// A packed tensor.
    Packed,
    /// Whatever the op's own rule says.
    Free,
}

impl Class {
    /// Whether the class takes that dtype.
    pub fn takes(self, d: DType) -> bool {
        match self {
            Class::Float => d.is_float(),
            Class::Num => d.is_float() || d.is_int(),
            Class::Bits => d.is_int() || d == DType::Bool,
            Class::Any => !d.is_packed(),
            Class::Bool => d == DType::Bool,
            Class::Index => d.is_int(),
            Class::Packed => d.is_packed(),
            Class::Free => true,
        }
    }

    /// Whether operands of this class share their dtype with the others of the op.
    pub fn shares(self) -> bool {
        matches!(self, Class::Float | Class::Num | Class::Bits | Class::Any)
    }

    /// The class in words.
    pub fn words(self) -> &'static str {
        match self {
            Class::Float => "float",
            Class::Num => "float or integer",
            Class::Bits => "integer or bool",
            Class::Any => "any number or bool",
            Class::Bool => "bool",
            Class::Index => "integer",
            Class::Packed => "packed",
            Class::Free => "any",
        }
    }
}

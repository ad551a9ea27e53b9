//! The primitive loops of element-wise work, on tiles: a few hundred neighbouring elements that stay in the L1 cache.
//!
//! Memory holds elements of a [`Store`] type; [`load`] brings them into a *register*, a tile of the type's [`Kind`]; the ops
//! work from register to register, and [`store`] writes one back. An interpreter resolves each op to a pointer once and
//! then calls it tile by tile.
//!
//! The contract of every pointer here: registers are aligned to 64 bytes and hold `n` elements; `dst` has room for `n`
//! and is the address of a source or overlaps none; a splat operand is one element, and its address may lie within `dst`
//! only at the beginning. The level is one that the machine has. n may be 0.
//!
//! Integers in a register are always in the range of their type: sign- or zero-extended to the kind, `U32` and `U64` as
//! their bits. Floats below 32 bits are computed as `f32`; [`cast`] and [`store`] round to the type.
//!
//! What an op means is what `Scalar` in `rlx-ir` says: integers wrap, division by 0 gives 0, a shift by the width or more
//! drops all bits, the maximum and minimum of a NaN are NaN.

mod cast;
mod convert;
mod float;
mod fold;
mod int;
mod memory;

use crate::level::Level;
pub use cast::cast;
pub use fold::{Fold, FoldFn, fold, fold_finish, fold_init};
pub use memory::{IotaFn, LoadFn, LoadStride, StoreFn, iota, load, store};

/// How elements lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
#[rustfmt::skip]
pub enum Store { F64, F32, F16, BF16, F8E4M3, F8E5M2, I8, I16, I32, I64, U8, U16, U32, U64, Bool }

/// How a register holds elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Every float but `F64`.
    F32,
    /// `F64`.
    F64,
    /// Integers of up to 32 bits, and bools as 0 or 1.
    I32,
    /// Integers of 64 bits.
    I64,
}

impl Store {
    /// Every type.
    #[rustfmt::skip]
    pub const ALL: [Store; 15] = [
        Store::F64, Store::F32, Store::F16, Store::BF16, Store::F8E4M3, Store::F8E5M2, Store::I8, Store::I16, Store::I32,
        Store::I64, Store::U8, Store::U16, Store::U32, Store::U64, Store::Bool,
    ];

    /// Bytes of an element in memory.
    pub fn bytes(self) -> usize {
        use Store::*;
        match self {
            F64 | I64 | U64 => 8,
            F32 | I32 | U32 => 4,
            F16 | BF16 | I16 | U16 => 2,
            F8E4M3 | F8E5M2 | I8 | U8 | Bool => 1,
        }
    }

    /// How a register holds it.
    pub fn kind(self) -> Kind {
        use Store::*;
        match self {
            F64 => Kind::F64,
            F32 | F16 | BF16 | F8E4M3 | F8E5M2 => Kind::F32,
            I8 | I16 | I32 | U8 | U16 | U32 | Bool => Kind::I32,
            I64 | U64 => Kind::I64,
        }
    }

    /// Whether it is a float.
    pub fn is_float(self) -> bool {
        matches!(self.kind(), Kind::F32 | Kind::F64)
    }
}

impl Kind {
    /// Bytes of an element in a register.
    pub fn bytes(self) -> usize {
        match self {
            Kind::F32 | Kind::I32 => 4,
            Kind::F64 | Kind::I64 => 8,
        }
    }
}

/// A function of one operand. `IsNan` and `IsInf` give a `Bool` register; `Not` of a bool is the other bool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
#[rustfmt::skip]
pub enum Unary {
    Neg, Abs, Sign, Exp, Expm1, Log, Log1p, Sqrt, Rsqrt, Recip, Sin, Cos, Tan, Asin, Acos, Atan, Sinh, Cosh,
    Asinh, Acosh, Atanh, Tanh, Erf, Erfc, Sigmoid, Floor, Ceil, Round, Trunc, Not, IsNan, IsInf,
    Gelu, GeluTanh, Silu, Square,
}

impl Unary {
    /// Every function.
    #[rustfmt::skip]
    pub const ALL: [Unary; 36] = {
        use Unary::*;
        [
            Neg, Abs, Sign, Exp, Expm1, Log, Log1p, Sqrt, Rsqrt, Recip, Sin, Cos, Tan, Asin, Acos, Atan, Sinh, Cosh,
            Asinh, Acosh, Atanh, Tanh, Erf, Erfc, Sigmoid, Floor, Ceil, Round, Trunc, Not, IsNan, IsInf,
            Gelu, GeluTanh, Silu, Square,
        ]
    };
}

/// A function of two operands of one type. Comparisons give a `Bool` register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
#[rustfmt::skip]
pub enum Binary {
    Add, Sub, Mul, Div, Rem, Pow, Atan2, Max, Min, And, Or, Xor, Shl, Shr, Eq, Ne, Lt, Le, Gt, Ge,
}

impl Binary {
    /// Every function.
    #[rustfmt::skip]
    pub const ALL: [Binary; 20] = {
        use Binary::*;
        [Add, Sub, Mul, Div, Rem, Pow, Atan2, Max, Min, And, Or, Xor, Shl, Shr, Eq, Ne, Lt, Le, Gt, Ge]
    };
}

/// Which operands of a binary op are tiles, and which one element for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// Both are tiles.
    TileTile,
    /// The first is one element.
    SplatTile,
    /// The second is one element.
    TileSplat,
}

/// Whether an operand is a tile or one element for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arg {
    /// A tile.
    Tile,
    /// One element.
    Splat,
}

/// dst = op(a).
pub type UnaryFn = unsafe fn(n: usize, dst: *mut u8, a: *const u8);
/// dst = op(a, b).
pub type BinaryFn = unsafe fn(n: usize, dst: *mut u8, a: *const u8, b: *const u8);
/// dst = op(a, b, c).
pub type TernaryFn = unsafe fn(n: usize, dst: *mut u8, a: *const u8, b: *const u8, c: *const u8);

/// The loop of a unary op; `None` where it has no meaning for the type.
pub fn unary(level: Level, op: Unary, ty: Store) -> Option<UnaryFn> {
    match ty.kind() {
        Kind::F32 => float::unary_f32(level, op),
        Kind::F64 => float::unary_f64(level, op),
        _ => int::unary(level, op, ty),
    }
}

/// The loop of a binary op; `None` where it has no meaning for the type.
pub fn binary(level: Level, op: Binary, ty: Store, form: Form) -> Option<BinaryFn> {
    match ty.kind() {
        Kind::F32 => float::binary::<f32>(level, op, form),
        Kind::F64 => float::binary::<f64>(level, op, form),
        _ => int::binary(level, op, ty, form),
    }
}

/// The loop of `condition ? a : b` (n, dst, condition, a, b); the condition is a `Bool` register, true unless 0.
pub fn select(level: Level, ty: Store, a: Arg, b: Arg) -> TernaryFn {
    match ty.kind() {
        Kind::F32 | Kind::I32 => float::select::<u32>(level, a, b),
        Kind::F64 | Kind::I64 => float::select::<u64>(level, a, b),
    }
}

/// The loop of a·b + c for floats, with one rounding where the level has an instruction for it.
pub fn mul_add(level: Level, ty: Store, a: Arg, b: Arg, c: Arg) -> Option<TernaryFn> {
    match ty.kind() {
        Kind::F32 => Some(float::mul_add::<f32>(level, [a, b, c])),
        Kind::F64 => Some(float::mul_add::<f64>(level, [a, b, c])),
        _ => None,
    }
}

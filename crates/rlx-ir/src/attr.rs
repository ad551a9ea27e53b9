//! Attributes: the typed compile-time arguments of ops, and their uniform form for printing, parsing and comparing.

use crate::dim::{Bindings, Dim, DimError};
use crate::dtype::DType;
use crate::tensor::Tensor;
use std::sync::Arc;

/// An attribute in its uniform form.
#[derive(Clone, Debug)]
pub enum AttrValue {
    /// An optional attribute that is not given.
    Absent,
    /// An integer.
    Int(i64),
    /// A float.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// A free text.
    Text(Arc<str>),
    /// One word out of the list in the attribute's kind.
    Word(&'static str),
    /// A list of integers.
    Ints(Vec<i64>),
    /// A list of floats.
    Floats(Vec<f64>),
    /// A symbolic size.
    Dim(Dim),
    /// A list of symbolic sizes.
    Dims(Vec<Dim>),
    /// An element type.
    DType(DType),
    /// Data.
    Tensor(Tensor),
}

impl PartialEq for AttrValue {
    /// Floats are compared by their bits, so that NaN equals itself and −0 differs from 0.
    fn eq(&self, other: &AttrValue) -> bool {
        use AttrValue::*;
        match (self, other) {
            (Absent, Absent) => true,
            (Int(a), Int(b)) => a == b,
            (Float(a), Float(b)) => a.to_bits() == b.to_bits(),
            (Bool(a), Bool(b)) => a == b,
            (Text(a), Text(b)) => a == b,
            (Word(a), Word(b)) => a == b,
            (Ints(a), Ints(b)) => a == b,
            (Floats(a), Floats(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(x, y)| x.to_bits() == y.to_bits())
            }
            (Dim(a), Dim(b)) => a == b,
            (Dims(a), Dims(b)) => a == b,
            (DType(a), DType(b)) => a == b,
            (Tensor(a), Tensor(b)) => a == b,
            _ => false,
        }
    }
}

impl AttrValue {
    /// With every symbol replaced by its size.
    pub fn bind(&self, b: &Bindings) -> Result<AttrValue, DimError> {
        let one = |d: &Dim| d.eval(b).map(Dim::constant);
        Ok(match self {
            AttrValue::Dim(d) => AttrValue::Dim(one(d)?),
            AttrValue::Dims(ds) => AttrValue::Dims(ds.iter().map(one).collect::<Result<_, _>>()?),
            other => other.clone(),
        })
    }

    /// The symbolic sizes in it.
    pub fn dims(&self) -> &[Dim] {
        match self {
            AttrValue::Dim(d) => std::slice::from_ref(d),
            AttrValue::Dims(ds) => ds,
            _ => &[],
        }
    }
}

/// What an attribute may hold: it guides the parser and the documentation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AttrKind {
    /// An integer.
    Int,
    /// A float.
    Float,
    /// `true` or `false`.
    Bool,
    /// A quoted text.
    Text,
    /// One of these words.
    Word(&'static [&'static str]),
    /// `[1, 2]`.
    Ints,
    /// `[0.5, 2.0]`.
    Floats,
    /// A symbolic size.
    Dim,
    /// A list of symbolic sizes.
    Dims,
    /// An element type.
    DType,
    /// Data.
    Tensor,
}

impl AttrKind {
    /// The kind in words.
    pub fn words(self) -> String {
        match self {
            AttrKind::Int => "integer".into(),
            AttrKind::Float => "float".into(),
            AttrKind::Bool => "bool".into(),
            AttrKind::Text => "text".into(),
            AttrKind::Word(w) => w.join(" | "),
            AttrKind::Ints => "integers".into(),
            AttrKind::Floats => "floats".into(),
            AttrKind::Dim => "size".into(),
            AttrKind::Dims => "sizes".into(),
            AttrKind::DType => "dtype".into(),
            AttrKind::Tensor => "data".into(),
        }
    }
}

/// The declaration of an attribute.
#[derive(Clone, Copy)]
pub struct AttrSpec {
    /// Its name.
    pub name: &'static str,
    /// What it holds.
    pub kind: AttrKind,
    /// Whether it may be left out without a default.
    pub optional: bool,
    /// The value when it is left out.
    pub default: Option<fn() -> AttrValue>,
}

impl AttrSpec {
    /// Whether the value is of the declared kind.
    pub fn takes(&self, value: &AttrValue) -> bool {
        match (self.kind, value) {
            (_, AttrValue::Absent) => self.optional,
            (AttrKind::Word(words), AttrValue::Word(w)) => words.contains(w),
            (AttrKind::Int, AttrValue::Int(_))
            | (AttrKind::Float, AttrValue::Float(_))
            | (AttrKind::Bool, AttrValue::Bool(_))
            | (AttrKind::Text, AttrValue::Text(_))
            | (AttrKind::Ints, AttrValue::Ints(_))
            | (AttrKind::Floats, AttrValue::Floats(_))
            | (AttrKind::Dim, AttrValue::Dim(_))
            | (AttrKind::Dims, AttrValue::Dims(_))
            | (AttrKind::DType, AttrValue::DType(_))
            | (AttrKind::Tensor, AttrValue::Tensor(_)) => true,
            _ => false,
        }
    }
}

/// A Rust type that can be the field of an op's attributes.
pub trait AttrType: Sized {
    /// Its kind.
    const KIND: AttrKind;
    /// Whether it may be absent.
    const OPTIONAL: bool = false;
    /// To the uniform form.
    fn to_value(&self) -> AttrValue;
    /// From the uniform form.
    fn from_value(v: &AttrValue) -> Option<Self>;
}

macro_rules! attr_type {
    ($($t:ty => $kind:ident, $v:ident),* $(,)?) => {$(
        impl AttrType for $t {
            const KIND: AttrKind = AttrKind::$kind;
            fn to_value(&self) -> AttrValue { AttrValue::$v(self.clone().into()) }
            fn from_value(v: &AttrValue) -> Option<$t> {
                match v { AttrValue::$v(x) => Some(x.clone().into()), _ => None }
            }
        }
    )*};
}
attr_type! {
    i64 => Int, Int, f64 => Float, Float, bool => Bool, Bool, Arc<str> => Text, Text,
    Vec<i64> => Ints, Ints, Vec<f64> => Floats, Floats, Dim => Dim, Dim, Dims => Dims, Dims,
    DType => DType, DType, Tensor => Tensor, Tensor,
}

impl<T: AttrType> AttrType for Option<T> {
    const KIND: AttrKind = T::KIND;
    const OPTIONAL: bool = true;
    fn to_value(&self) -> AttrValue {
        self.as_ref().map_or(AttrValue::Absent, T::to_value)
    }
    fn from_value(v: &AttrValue) -> Option<Self> {
        match v {
            AttrValue::Absent => Some(None),
            v => T::from_value(v).map(Some),
        }
    }
}

/// A list of sizes as an attribute: `[2, 3]`, a `Vec<Dim>` or a `&[Dim]` convert into it.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Dims(pub Vec<Dim>);

impl<T: Into<Dim>, const N: usize> From<[T; N]> for Dims {
    fn from(a: [T; N]) -> Dims {
        Dims(a.into_iter().map(Into::into).collect())
    }
}
impl From<Vec<Dim>> for Dims {
    fn from(v: Vec<Dim>) -> Dims {
        Dims(v)
    }
}
impl From<&[Dim]> for Dims {
    fn from(v: &[Dim]) -> Dims {
        Dims(v.to_vec())
    }
}
impl From<&Vec<Dim>> for Dims {
    fn from(v: &Vec<Dim>) -> Dims {
        Dims(v.clone())
    }
}
impl From<Dims> for Vec<Dim> {
    fn from(d: Dims) -> Vec<Dim> {
        d.0
    }
}
impl std::ops::Deref for Dims {
    type Target = [Dim];
    fn deref(&self) -> &[Dim] {
        &self.0
    }
}

/// The typed attributes of one op; written by [`ops!`](crate::ops!).
pub trait Attributes: Sized {
    /// The declarations, in order.
    const SPECS: &'static [AttrSpec];
    /// To the uniform form, in the order of the declarations.
    fn to_values(&self) -> Vec<AttrValue>;
    /// From the uniform form.
    fn from_values(v: &[AttrValue]) -> Option<Self>;
}

/// Declares an enum that can be an attribute, printed as a lower-case word.
#[macro_export]
macro_rules! attr_enum {
    ($(#[doc = $doc:literal])* $name:ident { $($(#[doc = $vdoc:literal])* $variant:ident = $word:literal),* $(,)? }) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[doc = $vdoc])* $variant),* }
        impl $crate::attr::AttrType for $name {
            const KIND: $crate::attr::AttrKind = $crate::attr::AttrKind::Word(&[$($word),*]);
            fn to_value(&self) -> $crate::attr::AttrValue {
                $crate::attr::AttrValue::Word(match self { $($name::$variant => $word),* })
            }
            fn from_value(v: &$crate::attr::AttrValue) -> Option<$name> {
                match v {
                    $($crate::attr::AttrValue::Word($word) => Some($name::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

//! What a file says about itself: keys and values.

use std::fmt;

macro_rules! values {
    ($($(#[doc = $doc:literal])* $name:ident($ty:ty) = $id:literal,)*) => {
        /// A value of the metadata. Safetensors files have texts only; GGUF files have them all.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Value {
            $($(#[doc = $doc])* $name($ty),)*
            /// Several of one kind.
            List(List),
        }

        /// Several values of one kind.
        #[derive(Clone, Debug, PartialEq)]
        pub enum List { $($(#[doc = $doc])* $name(Vec<$ty>),)* }

        impl Value {
            /// The number that GGUF files know the kind by.
            pub(crate) fn kind(&self) -> u32 {
                match self { $(Value::$name(_) => $id,)* Value::List(_) => LIST }
            }
        }

        impl List {
            /// The number that GGUF files know the kind of the elements by.
            pub(crate) fn kind(&self) -> u32 {
                match self { $(List::$name(_) => $id,)* }
            }

            /// How many there are.
            pub fn len(&self) -> usize {
                match self { $(List::$name(v) => v.len(),)* }
            }

            /// One of them.
            pub fn get(&self, i: usize) -> Option<Value> {
                match self { $(List::$name(v) => v.get(i).cloned().map(Value::$name),)* }
            }
        }

        $(
            impl From<$ty> for Value {
                fn from(x: $ty) -> Value { Value::$name(x) }
            }
            impl From<Vec<$ty>> for Value {
                fn from(x: Vec<$ty>) -> Value { Value::List(List::$name(x)) }
            }
        )*
    };
}

/// The number that GGUF files know a list by.
pub(crate) const LIST: u32 = 9;

values! {
    /// Unsigned 8-bit.
    U8(u8) = 0,
    /// Signed 8-bit.
    I8(i8) = 1,
    /// Unsigned 16-bit.
    U16(u16) = 2,
    /// Signed 16-bit.
    I16(i16) = 3,
    /// Unsigned 32-bit.
    U32(u32) = 4,
    /// Signed 32-bit.
    I32(i32) = 5,
    /// 32-bit float.
    F32(f32) = 6,
    /// True or false.
    Bool(bool) = 7,
    /// Text.
    Text(String) = 8,
    /// Unsigned 64-bit.
    U64(u64) = 10,
    /// Signed 64-bit.
    I64(i64) = 11,
    /// 64-bit float.
    F64(f64) = 12,
}

impl Value {
    /// An integer of any width that is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Value::U8(x) => Some((*x).into()),
            Value::U16(x) => Some((*x).into()),
            Value::U32(x) => Some((*x).into()),
            Value::U64(x) => Some(*x),
            Value::I8(x) => u64::try_from(*x).ok(),
            Value::I16(x) => u64::try_from(*x).ok(),
            Value::I32(x) => u64::try_from(*x).ok(),
            Value::I64(x) => u64::try_from(*x).ok(),
            _ => None,
        }
    }

    /// A float of either width.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Value::F32(x) => Some((*x).into()),
            Value::F64(x) => Some(*x),
            _ => None,
        }
    }

    /// A text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::Text(s) => Some(s),
            _ => None,
        }
    }

    /// A list.
    pub fn as_list(&self) -> Option<&List> {
        match self {
            Value::List(l) => Some(l),
            _ => None,
        }
    }
}

impl List {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<&str> for Value {
    fn from(x: &str) -> Value {
        Value::Text(x.into())
    }
}

/// Texts as they are, lists in brackets with their texts in quotes.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::U8(x) => write!(f, "{x}"),
            Value::I8(x) => write!(f, "{x}"),
            Value::U16(x) => write!(f, "{x}"),
            Value::I16(x) => write!(f, "{x}"),
            Value::U32(x) => write!(f, "{x}"),
            Value::I32(x) => write!(f, "{x}"),
            Value::U64(x) => write!(f, "{x}"),
            Value::I64(x) => write!(f, "{x}"),
            Value::F32(x) => write!(f, "{x:?}"),
            Value::F64(x) => write!(f, "{x:?}"),
            Value::Bool(x) => write!(f, "{x}"),
            Value::Text(x) => f.write_str(x),
            Value::List(l) => {
                f.write_str("[")?;
                for i in 0..l.len() {
                    let comma = if i == 0 { "" } else { ", " };
                    match l.get(i) {
                        Some(Value::Text(s)) => write!(f, "{comma}{s:?}")?,
                        Some(x) => write!(f, "{comma}{x}")?,
                        None => {}
                    }
                }
                f.write_str("]")
            }
        }
    }
}

//! The messages of an ONNX file, read where they lie.
//!
//! ONNX files are protocol buffers. A message is a list of fields, a field a number and a value; here a message is the slice
//! of the file in which it stands, and is looked through when it is asked. So nothing is copied, weights stay in the mapped
//! file, and what is held takes memory in proportion to the file. Field numbers are those of `onnx.proto`.

use crate::error::bad;
use rlx_ir::Result;

/// The value of a field.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value<'a> {
    /// An integer of variable length.
    Int(u64),
    /// Four bytes.
    Four([u8; 4]),
    /// Eight bytes.
    Eight([u8; 8]),
    /// A text, a message, or packed numbers.
    Bytes(&'a [u8]),
}

/// The fields of a message, in order.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a>(&'a [u8]);

/// The next integer of variable length.
fn varint(from: &mut &[u8]) -> Result<u64> {
    let mut out = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = from.split_first().ok_or_else(|| bad("not an ONNX file: a number is cut off"))?;
        *from = rest;
        out |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(out);
        }
    }
    Err(bad("not an ONNX file: a number has more than 64 bits"))
}

fn take<'a>(from: &mut &'a [u8], n: u64) -> Result<&'a [u8]> {
    let at = usize::try_from(n).ok().and_then(|n| from.split_at_checked(n));
    let (head, rest) =
        at.ok_or_else(|| bad(format!("not an ONNX file: {n} bytes are announced, {} are left", from.len())))?;
    *from = rest;
    Ok(head)
}

fn array<const N: usize>(from: &mut &[u8]) -> Result<[u8; N]> {
    let (head, rest) =
        from.split_first_chunk::<N>().ok_or_else(|| bad("not an ONNX file: a number is cut off"))?;
    *from = rest;
    Ok(*head)
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Value<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            // Nothing behind it can be made sense of.
            self.0 = &[];
        }
        Some(field)
    }
}

impl<'a> Fields<'a> {
    fn field(&mut self) -> Result<(u32, Value<'a>)> {
        let tag = varint(&mut self.0)?;
        let number = u32::try_from(tag >> 3).ok().filter(|n| *n > 0);
        let number = number.ok_or_else(|| bad("not an ONNX file: a field has no number"))?;
        let value = match tag & 7 {
            0 => Value::Int(varint(&mut self.0)?),
            1 => Value::Eight(array(&mut self.0)?),
            2 => {
                let n = varint(&mut self.0)?;
                Value::Bytes(take(&mut self.0, n)?)
            }
            5 => Value::Four(array(&mut self.0)?),
            other => return Err(bad(format!("not an ONNX file: a field of the unknown kind {other}"))),
        };
        Ok((number, value))
    }
}

fn bytes(v: Value<'_>) -> Result<&[u8]> {
    match v {
        Value::Bytes(b) => Ok(b),
        _ => Err(bad("a field of the ONNX file is a number where a text or message must be")),
    }
}

fn text(v: Value<'_>) -> Result<&str> {
    std::str::from_utf8(bytes(v)?).map_err(|_| bad("a text in the ONNX file is not UTF-8"))
}

fn int(v: Value<'_>) -> Result<i64> {
    match v {
        Value::Int(n) => Ok(n as i64),
        _ => Err(bad("a field of the ONNX file is no integer where one must be")),
    }
}

/// Appends integers: one, or packed ones.
fn ints(v: Value<'_>, out: &mut Vec<i64>) -> Result<()> {
    match v {
        Value::Int(n) => out.push(n as i64),
        Value::Bytes(mut b) => {
            while !b.is_empty() {
                out.push(varint(&mut b)? as i64);
            }
        }
        _ => return Err(bad("a field of the ONNX file is no integer where one must be")),
    }
    Ok(())
}

/// Appends the bytes of floats of `N` bytes: one, or packed ones.
fn floats<const N: usize>(v: Value<'_>, out: &mut Vec<u8>) -> Result<()> {
    match v {
        Value::Four(b) if N == 4 => out.extend(b),
        Value::Eight(b) if N == 8 => out.extend(b),
        Value::Bytes(b) if b.len() % N == 0 => out.extend(b),
        _ => return Err(bad("a field of the ONNX file is no float where one must be")),
    }
    Ok(())
}

/// A message, as the bytes in which it stands.
pub(crate) trait Message<'a>: Copy {
    fn bytes(self) -> &'a [u8];

    fn fields(self) -> Fields<'a> {
        Fields(self.bytes())
    }
    /// All values of a field.
    fn all(self, number: u32) -> impl Iterator<Item = Result<Value<'a>>> {
        self.fields().filter_map(move |f| match f {
            Ok((n, v)) if n == number => Some(Ok(v)),
            Ok(_) => None,
            Err(e) => Some(Err(e)),
        })
    }
    /// The last value of a field: what a reader of protocol buffers takes if there are several.
    fn last(self, number: u32) -> Result<Option<Value<'a>>> {
        self.all(number).try_fold(None, |_, v| v.map(Some))
    }
    fn text(self, number: u32) -> Result<&'a str> {
        self.last(number)?.map_or(Ok(""), text)
    }
    fn texts(self, number: u32) -> Result<Vec<&'a str>> {
        self.all(number).map(|v| text(v?)).collect()
    }
    fn int(self, number: u32) -> Result<Option<i64>> {
        self.last(number)?.map(int).transpose()
    }
}

macro_rules! messages {
    ($($(#[doc = $doc:literal])* $name:ident),* $(,)?) => {$(
        $(#[doc = $doc])*
        #[derive(Clone, Copy)]
        pub(crate) struct $name<'a>(pub &'a [u8]);

        impl<'a> Message<'a> for $name<'a> {
            fn bytes(self) -> &'a [u8] {
                self.0
            }
        }
    )*};
}

messages! {
    /// `ModelProto`
    Model,
    /// `OperatorSetIdProto`
    OpsetId,
    /// `StringStringEntryProto`
    Entry,
    /// `GraphProto`
    Graph,
    /// `NodeProto`
    Node,
    /// `AttributeProto`
    Attribute,
    /// `TensorProto`
    Tensor,
    /// `ValueInfoProto`
    ValueInfo,
    /// `TypeProto`
    Type,
    /// `TypeProto.Tensor`
    TensorType,
    /// `TensorShapeProto`
    Shape,
    /// `TensorShapeProto.Dimension`
    Dimension,
    /// `FunctionProto`
    Function,
}

impl<'a> Model<'a> {
    pub fn ir_version(self) -> Result<i64> {
        Ok(self.int(1)?.unwrap_or(0))
    }
    pub fn producer(self) -> Result<(&'a str, &'a str)> {
        Ok((self.text(2)?, self.text(3)?))
    }
    pub fn graph(self) -> Result<Option<Graph<'a>>> {
        self.last(7)?.map(|v| bytes(v).map(Graph)).transpose()
    }
    pub fn opsets(self) -> Result<Vec<(&'a str, i64)>> {
        self.all(8).map(|v| OpsetId(bytes(v?)?).parts()).collect()
    }
    pub fn metadata(self) -> Result<Vec<(&'a str, &'a str)>> {
        self.all(14).map(|v| Entry(bytes(v?)?).parts()).collect()
    }
    pub fn functions(self) -> Result<Vec<Function<'a>>> {
        self.all(25).map(|v| bytes(v?).map(Function)).collect()
    }
}

impl<'a> OpsetId<'a> {
    fn parts(self) -> Result<(&'a str, i64)> {
        Ok((self.text(1)?, self.int(2)?.unwrap_or(0)))
    }
}

impl<'a> Entry<'a> {
    fn parts(self) -> Result<(&'a str, &'a str)> {
        Ok((self.text(1)?, self.text(2)?))
    }
}

impl<'a> Graph<'a> {
    pub fn nodes(self) -> Result<Vec<Node<'a>>> {
        self.all(1).map(|v| bytes(v?).map(Node)).collect()
    }
    pub fn name(self) -> Result<&'a str> {
        self.text(2)
    }
    pub fn initializers(self) -> Result<Vec<Tensor<'a>>> {
        self.all(5).map(|v| bytes(v?).map(Tensor)).collect()
    }
    pub fn inputs(self) -> Result<Vec<ValueInfo<'a>>> {
        self.all(11).map(|v| bytes(v?).map(ValueInfo)).collect()
    }
    pub fn outputs(self) -> Result<Vec<ValueInfo<'a>>> {
        self.all(12).map(|v| bytes(v?).map(ValueInfo)).collect()
    }
    pub fn has_sparse(self) -> Result<bool> {
        Ok(self.last(15)?.is_some())
    }
}

impl<'a> Node<'a> {
    pub fn inputs(self) -> Result<Vec<&'a str>> {
        self.texts(1)
    }
    pub fn outputs(self) -> Result<Vec<&'a str>> {
        self.texts(2)
    }
    pub fn name(self) -> Result<&'a str> {
        self.text(3)
    }
    pub fn op(self) -> Result<&'a str> {
        self.text(4)
    }
    pub fn domain(self) -> Result<&'a str> {
        self.text(7)
    }
    pub fn overload(self) -> Result<&'a str> {
        self.text(8)
    }
    pub fn attributes(self) -> Result<Vec<Attribute<'a>>> {
        self.all(5).map(|v| bytes(v?).map(Attribute)).collect()
    }
}

/// What an attribute holds.
pub(crate) enum Held<'a> {
    Int(i64),
    Float(f32),
    Text(&'a str),
    Tensor(Tensor<'a>),
    Graph(Graph<'a>),
    Ints(Vec<i64>),
    Floats(Vec<f32>),
    Texts(Vec<&'a str>),
    /// The attribute of that name of the function that the node stands in.
    Ref(&'a str),
    /// Anything else.
    Other,
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

impl<'a> Attribute<'a> {
    pub fn name(self) -> Result<&'a str> {
        self.text(1)
    }

    pub fn held(self) -> Result<Held<'a>> {
        let reference = self.text(21)?;
        if !reference.is_empty() {
            return Ok(Held::Ref(reference));
        }
        // Files of the first versions have no types: then it is what is there.
        let kind = match self.int(20)?.unwrap_or(0) {
            0 => self.guess()?,
            kind => kind,
        };
        Ok(match kind {
            1 => Held::Float(match self.last(2)? {
                None => 0.0,
                Some(Value::Four(b)) => f32::from_le_bytes(b),
                Some(_) => return Err(bad("a float attribute is no float")),
            }),
            2 => Held::Int(self.int(3)?.unwrap_or(0)),
            3 => Held::Text(self.text(4)?),
            4 => Held::Tensor(Tensor(self.last(5)?.map_or(Ok(&[][..]), bytes)?)),
            5 => Held::Graph(Graph(self.last(6)?.map_or(Ok(&[][..]), bytes)?)),
            6 => {
                let mut out = Vec::new();
                self.all(7).try_for_each(|v| floats::<4>(v?, &mut out))?;
                Held::Floats(f32s(&out))
            }
            7 => {
                let mut out = Vec::new();
                self.all(8).try_for_each(|v| ints(v?, &mut out))?;
                Held::Ints(out)
            }
            8 => Held::Texts(self.texts(9)?),
            _ => Held::Other,
        })
    }

    fn guess(self) -> Result<i64> {
        const KINDS: &[(u32, i64)] = &[(2, 1), (3, 2), (4, 3), (5, 4), (6, 5), (7, 6), (8, 7), (9, 8)];
        for f in self.fields() {
            let (number, _) = f?;
            if let Some((_, kind)) = KINDS.iter().find(|(n, _)| *n == number) {
                return Ok(*kind);
            }
        }
        Ok(7)
    }
}

impl<'a> Tensor<'a> {
    pub fn name(self) -> Result<&'a str> {
        self.text(8)
    }
    pub fn dims(self) -> Result<Vec<i64>> {
        let mut out = Vec::new();
        self.all(1).try_for_each(|v| ints(v?, &mut out))?;
        Ok(out)
    }
    pub fn data_type(self) -> Result<i64> {
        Ok(self.int(2)?.unwrap_or(0))
    }
    /// Whether the data are in a file of their own.
    pub fn is_external(self) -> Result<bool> {
        Ok(self.int(14)? == Some(1))
    }
    pub fn external(self) -> Result<Vec<(&'a str, &'a str)>> {
        self.all(13).map(|v| Entry(bytes(v?)?).parts()).collect()
    }
    pub fn raw(self) -> Result<Option<&'a [u8]>> {
        self.last(9)?.map(bytes).transpose()
    }
    pub fn segmented(self) -> Result<bool> {
        Ok(self.last(3)?.is_some())
    }
    /// The bytes of floats.
    pub fn floats(self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        self.all(4).try_for_each(|v| floats::<4>(v?, &mut out))?;
        Ok(out)
    }
    /// The bytes of doubles.
    pub fn doubles(self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        self.all(10).try_for_each(|v| floats::<8>(v?, &mut out))?;
        Ok(out)
    }
    /// Integers in the field of that number: 5 for up to 32 bits, 7 for `int64`, 11 for `uint32` and `uint64`.
    pub fn integers(self, number: u32) -> Result<Vec<i64>> {
        let mut out = Vec::new();
        self.all(number).try_for_each(|v| ints(v?, &mut out))?;
        Ok(out)
    }
}

impl<'a> ValueInfo<'a> {
    pub fn name(self) -> Result<&'a str> {
        self.text(1)
    }
    pub fn ty(self) -> Result<Option<Type<'a>>> {
        self.last(2)?.map(|v| bytes(v).map(Type)).transpose()
    }
}

impl<'a> Type<'a> {
    pub fn tensor(self) -> Result<Option<TensorType<'a>>> {
        self.last(1)?.map(|v| bytes(v).map(TensorType)).transpose()
    }
}

impl<'a> TensorType<'a> {
    pub fn elem_type(self) -> Result<i64> {
        Ok(self.int(1)?.unwrap_or(0))
    }
    /// The axes, if their number is known.
    pub fn shape(self) -> Result<Option<Vec<Dimension<'a>>>> {
        let Some(shape) = self.last(2)? else { return Ok(None) };
        Shape(bytes(shape)?).all(1).map(|v| bytes(v?).map(Dimension)).collect::<Result<_>>().map(Some)
    }
}

impl<'a> Dimension<'a> {
    pub fn value(self) -> Result<Option<i64>> {
        self.int(1)
    }
    pub fn param(self) -> Result<&'a str> {
        self.text(2)
    }
}

impl<'a> Function<'a> {
    pub fn name(self) -> Result<&'a str> {
        self.text(1)
    }
    pub fn domain(self) -> Result<&'a str> {
        self.text(10)
    }
    pub fn overload(self) -> Result<&'a str> {
        self.text(13)
    }
    pub fn inputs(self) -> Result<Vec<&'a str>> {
        self.texts(4)
    }
    pub fn outputs(self) -> Result<Vec<&'a str>> {
        self.texts(5)
    }
    pub fn nodes(self) -> Result<Vec<Node<'a>>> {
        self.all(7).map(|v| bytes(v?).map(Node)).collect()
    }
    pub fn opsets(self) -> Result<Vec<(&'a str, i64)>> {
        self.all(9).map(|v| OpsetId(bytes(v?)?).parts()).collect()
    }
    /// Attributes with values to take where a node does not give them.
    pub fn defaults(self) -> Result<Vec<Attribute<'a>>> {
        self.all(11).map(|v| bytes(v?).map(Attribute)).collect()
    }
}

//! Numbers and tensors, to the bit in both directions.

use super::lex::{Lexer, Span, Tok, clip};
use crate::dtype::{DType, Kind};
use crate::error::{Code, Error, Result};
use crate::tensor::Tensor;
use std::fmt::Write;
use std::sync::Arc;

/// Tensors of more elements are written as hex bytes.
const LISTED: usize = 64;

/// An `f64` in the shortest form that reads back the same; NaNs other than the usual one with their bits.
pub(super) fn write_f64(out: &mut String, x: f64) {
    let done = match x {
        _ if x.to_bits() == f64::NAN.to_bits() => out.write_str("nan"),
        _ if x.is_nan() => write!(out, "nan(\"{:016x}\")", x.to_bits()),
        _ => write!(out, "{x:?}"),
    };
    debug_assert!(done.is_ok(), "strings take everything");
}

/// A text in quotes.
pub(super) fn write_text(out: &mut String, s: &str) {
    out.push('"');
    out.extend(s.escape_debug());
    out.push('"');
}

/// The data of a tensor, without its type.
pub(super) fn write_data(out: &mut String, t: &Tensor) {
    let elements = if t.len() <= LISTED { elements(t) } else { None };
    match elements {
        Some(list) if t.shape().is_empty() => out.push_str(&list.concat()),
        Some(list) => {
            out.push('[');
            out.push_str(&list.join(", "));
            out.push(']');
        }
        None => {
            for (i, plane) in t.planes().iter().enumerate() {
                out.push_str(if i == 0 { "x\"" } else { " x\"" });
                out.extend(
                    plane
                        .iter()
                        .flat_map(|b| [b >> 4, b & 15])
                        .filter_map(|d| char::from_digit(d.into(), 16)),
                );
                out.push('"');
            }
        }
    }
}

/// The elements as numbers; `None` if numbers do not say it all.
fn elements(t: &Tensor) -> Option<Vec<String>> {
    match t.dtype().kind() {
        Kind::Packed => None,
        Kind::Bool => Some(t.to_i128s()?.iter().map(|x| (*x != 0).to_string()).collect()),
        Kind::Int { .. } => Some(t.to_i128s()?.iter().map(i128::to_string).collect()),
        Kind::Float => {
            let mut values = t.to_f64s()?;
            // Only the usual NaN can be written as a number.
            values.iter_mut().filter(|x| x.is_nan()).for_each(|x| *x = f64::NAN);
            let back = Tensor::from_f64s(t.dtype(), t.shape(), &values)?;
            (back == *t).then(|| values.iter().map(|x| shortest(t.dtype(), *x)).collect())
        }
    }
}

/// The shortest form of a value of a float type.
fn shortest(dtype: DType, x: f64) -> String {
    if x.is_nan() {
        return "nan".into();
    }
    if dtype == DType::F32 {
        return format!("{:?}", x as f32);
    }
    if dtype != DType::F64 {
        // Never more than the digits that an f64 needs.
        for digits in 0..17 {
            let rounded = format!("{x:.digits$e}").parse::<f64>();
            if let Ok(r) = rounded
                && nearest_element(dtype, r).is_some_and(|e| e.to_bits() == x.to_bits())
            {
                return format!("{r:?}");
            }
        }
    }
    format!("{x:?}")
}

/// The value of the dtype nearest to `x`; `None` if `x` is beyond its range, or infinite where it has no infinity.
fn nearest_element(dtype: DType, x: f64) -> Option<f64> {
    if x.is_finite() && x.abs() > dtype.float_max()? {
        return None;
    }
    let e = dtype.round_f64(x);
    (e.is_finite() == x.is_finite() && e.is_nan() == x.is_nan()).then_some(e)
}

impl<'a> Lexer<'a> {
    /// An integer.
    pub(super) fn int(&mut self) -> Result<i64> {
        let (tok, span) = self.take()?;
        let Tok::Number(s) = tok else { return Err(self.wrong_value(&tok, span, "an integer")) };
        s.parse().map_err(|_| self.bad_int(s, span, "an integer of 64 bits"))
    }

    fn bad_int(&self, s: &str, span: Span, what: &str) -> Error {
        let digits = s.strip_prefix('-').unwrap_or(s);
        let code = if digits.bytes().all(|b| b.is_ascii_digit()) { Code::Size } else { Code::Attribute };
        self.error(code, span, format!("`{}` is not {what}", clip(s)))
    }

    /// A float.
    pub(super) fn float(&mut self) -> Result<f64> {
        let (tok, span) = self.take()?;
        if tok == Tok::Name("nan") && self.eat('(')? {
            let (bits, span) = self.take()?;
            let x = match bits {
                Tok::Text(s) if s.len() == 16 => u64::from_str_radix(s, 16).map(f64::from_bits).ok(),
                _ => None,
            };
            let x = x.filter(|x| x.is_nan());
            self.expect(')')?;
            return x.ok_or_else(|| {
                self.error(Code::Attribute, span, "expected the 16 hex digits of a NaN, in quotes")
            });
        }
        let x = number(&tok, str::parse::<f64>);
        x.ok_or_else(|| self.wrong_value(&tok, span, "a float"))
    }

    /// `true` or `false`.
    pub(super) fn truth(&mut self) -> Result<bool> {
        match self.take()? {
            (Tok::Name("true"), _) => Ok(true),
            (Tok::Name("false"), _) => Ok(false),
            (tok, span) => Err(self.wrong_value(&tok, span, "`true` or `false`")),
        }
    }

    /// A text without its quotes and escapes.
    pub(super) fn unescape(&self, raw: &str, span: &Span) -> Result<String> {
        let mut out = String::with_capacity(raw.len());
        let mut chars = raw.char_indices();
        while let Some((i, c)) = chars.next() {
            if c != '\\' {
                out.push(c);
                continue;
            }
            let escape = match chars.next().map(|(_, c)| c) {
                Some('n') => Some('\n'),
                Some('r') => Some('\r'),
                Some('t') => Some('\t'),
                Some('0') => Some('\0'),
                Some(c @ ('"' | '\'' | '\\')) => Some(c),
                Some('u') => braced(&mut chars),
                _ => None,
            };
            let at = span.start + 1 + i;
            out.push(escape.ok_or_else(|| self.error(Code::Syntax, at..at + 1, "unknown escape"))?);
        }
        Ok(out)
    }

    /// The data of a tensor of this type: a number, `[…]`, or hex bytes, plane by plane.
    pub(super) fn data(&mut self, dtype: DType, shape: &[usize], ty: &Span) -> Result<Tensor> {
        let (first, start) = self.peek()?;
        let made = match (first, dtype) {
            (Tok::Hex(_), _) => {
                let mut planes: Vec<Arc<[u8]>> = Vec::new();
                while let (Tok::Hex(digits), span) = self.peek()? {
                    planes.push(self.hex(digits, &span)?.into());
                    self.take()?;
                }
                match (dtype, planes.pop()) {
                    (DType::Packed(s), Some(last)) => {
                        planes.push(last);
                        Tensor::packed(s, shape, planes)
                    }
                    (_, Some(only)) if planes.is_empty() => Tensor::from_bytes(dtype, shape, only),
                    _ => Err(Error::new(Code::Syntax, format!("{dtype} data have one run of hex bytes"))),
                }
            }
            (_, DType::Packed(_)) => {
                return Err(self.error(
                    Code::Syntax,
                    start,
                    format!("{dtype} data are written as hex bytes: x\"…\""),
                ));
            }
            _ => self.elements(dtype, shape),
        };
        made.map_err(|e| {
            // An error of an element has a place already; the others are about the type or all of the data.
            let span = if e.code() == Code::Size { ty.clone() } else { start };
            self.place(e, span)
        })
    }

    fn hex(&self, digits: &str, span: &Span) -> Result<Vec<u8>> {
        let mut out = Vec::with_capacity(digits.len() / 2);
        let mut half: Option<u8> = None;
        for (i, c) in digits.char_indices().filter(|(_, c)| !c.is_ascii_whitespace()) {
            // `x` and the quote stand before the digits.
            let at = span.start + 2 + i;
            let digit = c.to_digit(16).and_then(|d| u8::try_from(d).ok());
            let Some(digit) = digit else {
                return Err(self.error(
                    Code::Syntax,
                    at..at + c.len_utf8(),
                    format!("{c:?} is not a hex digit"),
                ));
            };
            match half.take() {
                Some(high) => out.push(high << 4 | digit),
                None => half = Some(digit),
            }
        }
        match half {
            Some(_) => Err(self.error(Code::Syntax, span.clone(), "hex data have an even number of digits")),
            None => Ok(out),
        }
    }

    fn elements(&mut self, dtype: DType, shape: &[usize]) -> Result<Tensor> {
        let mut floats = Vec::new();
        let mut ints = Vec::new();
        let bracket = self.eat('[')?;
        while !(bracket && self.eat(']')?) {
            let (tok, span) = self.take()?;
            let wrong = |lexer: &Lexer<'_>, tok: &Tok<'_>| {
                let message = format!("expected a value of {dtype}, found {}", tok.words());
                lexer.error(Code::BadInput, span.clone(), message)
            };
            match dtype.kind() {
                Kind::Float => floats.push(float_element(dtype, &tok).ok_or_else(|| wrong(self, &tok))?),
                Kind::Bool => ints.push(match tok {
                    Tok::Name("true") => 1,
                    Tok::Name("false") => 0,
                    _ => return Err(wrong(self, &tok)),
                }),
                _ => {
                    let x = match tok {
                        Tok::Number(s) => s.parse::<i128>().ok(),
                        _ => None,
                    };
                    let fits = |x: &i128| dtype.int_range().is_some_and(|(lo, hi)| (lo..=hi).contains(x));
                    ints.push(x.filter(fits).ok_or_else(|| wrong(self, &tok))?);
                }
            }
            if !bracket {
                break;
            }
            if !self.eat(',')? && !self.at(']')? {
                let (tok, span) = self.take()?;
                return Err(self.unexpected(&tok, span, "`,` or `]`"));
            }
        }
        let got = floats.len() + ints.len();
        let need = crate::tensor::count(shape)?;
        let tensor = match dtype.is_float() {
            true => Tensor::from_f64s(dtype, shape, &floats),
            false => Tensor::from_i128s(dtype, shape, &ints),
        };
        let count = || Error::new(Code::BadInput, format!("{dtype}{shape:?} has {need} elements, not {got}"));
        tensor.ok_or_else(count)
    }

    /// An error that an attribute's value is of another kind.
    pub(super) fn wrong_value(&self, found: &Tok<'_>, span: Span, wanted: &str) -> Error {
        self.error(Code::Attribute, span, format!("expected {wanted}, found {}", found.words()))
    }
}

/// The scalar in the braces of `\u{…}`.
fn braced(chars: &mut std::str::CharIndices<'_>) -> Option<char> {
    let mut code = 0u32;
    if chars.next()?.1 != '{' {
        return None;
    }
    for _ in 0..7 {
        match chars.next()?.1 {
            '}' => return char::from_u32(code),
            c => code = code << 4 | c.to_digit(16)?,
        }
    }
    None
}

/// A number by `read`, unless it is beyond what can be read: only `inf` is infinite.
fn number<T: Into<f64> + Copy, E>(tok: &Tok<'_>, read: fn(&str) -> Result<T, E>) -> Option<T> {
    match *tok {
        Tok::Name(s @ ("inf" | "nan")) | Tok::Number(s @ "-inf") => read(s).ok(),
        Tok::Number(s)
            if s.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-')) =>
        {
            read(s).ok().filter(|x| (*x).into().is_finite())
        }
        _ => None,
    }
}

/// An element of a float type. `f32` is read as such: by way of `f64` it would be rounded twice.
fn float_element(dtype: DType, tok: &Tok<'_>) -> Option<f64> {
    match dtype {
        DType::F64 => number(tok, str::parse::<f64>),
        DType::F32 => number(tok, str::parse::<f32>).map(f64::from),
        _ => nearest_element(dtype, number(tok, str::parse::<f64>)?),
    }
}

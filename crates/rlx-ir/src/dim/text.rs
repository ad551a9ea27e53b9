//! The printed form, and the parser that reads it back.
//!
//! ```text
//! expr   = ["-"] term { ("+" | "-") term }
//! term   = factor { "*" factor }
//! factor = int | name | "(" expr ")" | ("floor" | "ceil") "(" ["-"] term "/" int ")"
//! name   = [A-Za-z_][A-Za-z0-9_.]*
//! ```
//!
//! Spaces may stand between tokens. `/` belongs to a rounding, so there is no doubt which one; a sum
//! under it needs parentheses.

use std::fmt;

use super::poly::{Atom, Floor, Mono};
use super::{Dim, Repr};
use crate::error::Code;

/// Several times the longest printed form.
const MAX_INPUT: usize = 64 << 10;
/// Twice the deepest nest of floors, each of which may print two parentheses.
const MAX_NESTING: usize = 64;

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Repr::Const(n) => write!(f, "{n}"),
            Repr::Expr(p) => write_sum(f, &p.terms),
            Repr::Invalid => write!(f, "<invalid>"),
        }
    }
}

/// As [`Display`](fmt::Display).
impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn write_sum(f: &mut fmt::Formatter<'_>, terms: &[(Mono, i64)]) -> fmt::Result {
    // `n-s` reads better than `-s+n`.
    let first = terms.iter().position(|(_, k)| *k > 0).unwrap_or(0);
    let order =
        terms.iter().skip(first).take(1).chain(terms.iter().take(first)).chain(terms.iter().skip(first + 1));
    for (i, (mono, k)) in order.enumerate() {
        if *k < 0 {
            write!(f, "-")?;
        } else if i > 0 {
            write!(f, "+")?;
        }
        let k = k.unsigned_abs();
        if k != 1 || mono.is_one() {
            write!(f, "{k}")?;
        }
        for (j, atom) in mono.0.iter().enumerate() {
            if j > 0 || k != 1 {
                write!(f, "*")?;
            }
            match atom {
                Atom::Sym(s) => write!(f, "{}", s.name)?,
                Atom::Floor(floor) => write_floor(f, floor)?,
            }
        }
    }
    Ok(())
}

fn write_floor(f: &mut fmt::Formatter<'_>, floor: &Floor) -> fmt::Result {
    let (name, terms) = match floor.num.terms.split_last() {
        Some(((mono, k), rest)) if mono.is_one() && *k == floor.den - 1 => ("ceil", rest),
        _ => ("floor", floor.num.terms.as_slice()),
    };
    write!(f, "{name}(")?;
    if let [_] = terms {
        write_sum(f, terms)?;
    } else {
        write!(f, "(")?;
        write_sum(f, terms)?;
        write!(f, ")")?;
    }
    write!(f, "/{})", floor.den)
}

/// Where and why a text is not a dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DimParseError {
    /// The byte at which reading stopped.
    pub at: usize,
    /// What kind of error it is: of syntax, nesting, size, or an unknown name.
    pub code: Code,
    /// What is wrong there.
    pub message: String,
}

impl fmt::Display for DimParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at byte {}: {}", self.at, self.message)
    }
}

impl std::error::Error for DimParseError {}

impl Dim {
    /// Reads the printed form, or any sum, product and rounded quotient in its notation. `resolve`
    /// gives names their meaning.
    ///
    /// ```
    /// # use rlx_ir::dim::{Dim, dim};
    /// let symbols = |name: &str| (name == "seq").then(|| dim("seq", 4096));
    /// let d = Dim::parse("2*(seq + 1) + ceil((seq - 1)/4)", &symbols)?;
    /// assert_eq!(d.to_string(), "2*seq+floor((seq+2)/4)+2");
    /// assert_eq!(Dim::parse("2*q", &symbols).unwrap_err().at, 2);
    /// # Ok::<(), rlx_ir::dim::DimParseError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the text is not of the grammar, is over 64 KiB or nested over 64 deep, has a name that
    /// `resolve` does not know, or means an invalid dimension.
    pub fn parse(text: &str, resolve: &dyn Fn(&str) -> Option<Dim>) -> Result<Dim, DimParseError> {
        let mut parser = Parser { text, at: 0, nesting: 0, resolve };
        if text.len() > MAX_INPUT {
            return Err(parser.coded(Code::Size, format!("a dimension has at most {MAX_INPUT} bytes")));
        }
        let d = parser.expr()?;
        match parser.peek() {
            None => Ok(d),
            Some(_) => Err(parser.error("expected an operator or the end")),
        }
    }
}

pub(super) fn is_name(text: &str) -> bool {
    !text.is_empty() && name_len(text) == text.len()
}

/// The length of the name at the start of `text`, or 0.
fn name_len(text: &str) -> usize {
    if text.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return 0;
    }
    text.bytes().take_while(|c| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'.')).count()
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    nesting: usize,
    resolve: &'a dyn Fn(&str) -> Option<Dim>,
}

impl Parser<'_> {
    fn error(&self, message: impl Into<String>) -> DimParseError {
        self.coded(Code::Syntax, message)
    }

    fn coded(&self, code: Code, message: impl Into<String>) -> DimParseError {
        DimParseError { at: self.at, code, message: message.into() }
    }

    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or("")
    }

    /// The next byte that is not a space.
    fn peek(&mut self) -> Option<u8> {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_ascii_start().len();
        self.rest().bytes().next()
    }

    fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, byte: u8, message: &str) -> Result<(), DimParseError> {
        if self.eat(byte) { Ok(()) } else { Err(self.error(message)) }
    }

    fn valid(&self, at: usize, d: Dim) -> Result<Dim, DimParseError> {
        if d.is_valid() {
            return Ok(d);
        }
        Err(DimParseError {
            at,
            code: Code::Size,
            message: "the dimension overflows, or is too complex".into(),
        })
    }

    fn expr(&mut self) -> Result<Dim, DimParseError> {
        let negative = self.eat(b'-');
        let mut sum = self.term(negative)?;
        while let Some(sign @ (b'+' | b'-')) = self.peek() {
            let at = self.at;
            self.at += 1;
            sum += self.term(sign == b'-')?;
            sum = self.valid(at, sum)?;
        }
        Ok(sum)
    }

    fn term(&mut self, negative: bool) -> Result<Dim, DimParseError> {
        let mut product = self.factor(negative)?;
        while self.peek() == Some(b'*') {
            let at = self.at;
            self.at += 1;
            product *= self.factor(false)?;
            product = self.valid(at, product)?;
        }
        Ok(product)
    }

    /// The sign is the factor's, so that the least `i64` can be read.
    fn factor(&mut self, negative: bool) -> Result<Dim, DimParseError> {
        let next = self.peek();
        let at = self.at;
        let value = match next {
            Some(b'0'..=b'9') => return self.int(negative).map(Dim::constant),
            Some(b'(') => self.nested(Parser::expr)?,
            _ => self.name()?,
        };
        self.valid(at, if negative { value * -1 } else { value })
    }

    fn name(&mut self) -> Result<Dim, DimParseError> {
        let at = self.at;
        let len = name_len(self.rest());
        if len == 0 {
            return Err(self.error("expected a number, a name or `(`"));
        }
        let name = self.text.get(at..at + len).unwrap_or("");
        self.at += len;
        match (name, self.peek()) {
            ("floor", Some(b'(')) => self.quotient(Dim::floor_div),
            ("ceil", Some(b'(')) => self.quotient(Dim::ceil_div),
            _ => (self.resolve)(name).ok_or_else(|| DimParseError {
                at,
                code: Code::Undefined,
                message: format!("unknown symbol `{name}`"),
            }),
        }
    }

    fn quotient(&mut self, round: fn(&Dim, i64) -> Dim) -> Result<Dim, DimParseError> {
        self.nested(|parser| {
            let negative = parser.eat(b'-');
            let num = parser.term(negative)?;
            parser.expect(b'/', "expected `/`; a sum needs parentheses here")?;
            parser.peek();
            let at = parser.at;
            match parser.int(false)? {
                0 => Err(DimParseError { at, code: Code::Syntax, message: "division by 0".into() }),
                den => Ok(round(&num, den)),
            }
        })
    }

    /// `inner` in parentheses, of which the first is next.
    fn nested(
        &mut self,
        inner: impl FnOnce(&mut Self) -> Result<Dim, DimParseError>,
    ) -> Result<Dim, DimParseError> {
        if self.nesting == MAX_NESTING {
            return Err(self.coded(Code::Nesting, format!("nested more than {MAX_NESTING} deep")));
        }
        self.nesting += 1;
        self.at += 1;
        let d = inner(self)?;
        self.expect(b')', "expected `)`")?;
        self.nesting -= 1;
        Ok(d)
    }

    fn int(&mut self, negative: bool) -> Result<i64, DimParseError> {
        let digits = self.rest().bytes().take_while(u8::is_ascii_digit).count();
        if digits == 0 {
            return Err(self.error("expected a number"));
        }
        let mut value = Some(0i64);
        for digit in self.rest().bytes().take(digits) {
            let digit = i64::from(digit - b'0');
            let digit = if negative { -digit } else { digit };
            value = value.and_then(|v| v.checked_mul(10)?.checked_add(digit));
        }
        let value = value.ok_or_else(|| self.coded(Code::Size, "the number does not fit 64 bits"))?;
        self.at += digits;
        Ok(value)
    }
}

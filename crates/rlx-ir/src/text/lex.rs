//! Tokens, and the places of errors.

use crate::error::{Code, Error, Loc, Result};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of the text.
pub(super) type Span = Range<usize>;

/// A token, as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tok<'a> {
    /// `[A-Za-z_][A-Za-z0-9_.]*`.
    Name(&'a str),
    /// `%` and digits: a value without a name.
    Temp(&'a str),
    /// A number, or `-inf`.
    Number(&'a str),
    /// What stands between the quotes, escapes and all.
    Text(&'a str),
    /// What stands between the quotes of `x"…"`.
    Hex(&'a str),
    /// One of `{}()[],:=@<>`.
    Punct(char),
    /// `<=`.
    AtMost,
    /// The end of the text.
    End,
}

impl Tok<'_> {
    /// The token in words, for messages.
    pub(super) fn words(&self) -> String {
        match self {
            Tok::Name(s) | Tok::Temp(s) | Tok::Number(s) => format!("`{}`", clip(s)),
            Tok::Text(_) => "a text".into(),
            Tok::Hex(_) => "hex data".into(),
            Tok::Punct(c) => format!("`{c}`"),
            Tok::AtMost => "`<=`".into(),
            Tok::End => "the end of the text".into(),
        }
    }
}

/// The text, cut short if it is long.
pub(super) fn clip(s: &str) -> Cow<'_, str> {
    const LONGEST: usize = 40;
    match s.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", s.get(..end).unwrap_or("")).into(),
        None => s.into(),
    }
}

/// Cuts a text into tokens, up to two ahead of the parser.
pub(super) struct Lexer<'a> {
    file: Arc<str>,
    text: &'a str,
    pos: usize,
    next: Option<(Tok<'a>, Span)>,
    second: Option<(Tok<'a>, Span)>,
    /// A place up to which lines and columns have been counted.
    counted: Counted,
}

#[derive(Clone, Copy)]
struct Counted {
    pos: usize,
    line: u32,
    column: u32,
}

const START: Counted = Counted { pos: 0, line: 1, column: 1 };

impl Counted {
    fn advance(&mut self, text: &str, to: usize) {
        for c in text.get(self.pos..to).unwrap_or("").chars() {
            if c == '\n' {
                self.line = self.line.saturating_add(1);
                self.column = 1;
            } else {
                self.column = self.column.saturating_add(1);
            }
        }
        self.pos = to;
    }
}

fn is_name_start(b: u8) -> bool {
    b.is_ascii_alphabetic() || b == b'_'
}

fn is_name_part(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_' || b == b'.'
}

impl<'a> Lexer<'a> {
    pub(super) fn new(file: &str, text: &'a str) -> Lexer<'a> {
        Lexer { file: file.into(), text, pos: 0, next: None, second: None, counted: START }
    }

    /// The next token, which stays.
    pub(super) fn peek(&mut self) -> Result<(Tok<'a>, Span)> {
        if let Some(next) = &self.next {
            return Ok(next.clone());
        }
        let next = self.token()?;
        self.next = Some(next.clone());
        Ok(next)
    }

    /// The next token.
    pub(super) fn take(&mut self) -> Result<(Tok<'a>, Span)> {
        let next = self.peek()?;
        self.next = self.second.take();
        Ok(next)
    }

    /// The token after the next one, which stays too.
    pub(super) fn peek_second(&mut self) -> Result<Tok<'a>> {
        self.peek()?;
        if self.second.is_none() {
            self.second = Some(self.token()?);
        }
        Ok(self.second.as_ref().map_or(Tok::End, |s| s.0))
    }

    /// Whether the next token is this mark.
    pub(super) fn at(&mut self, c: char) -> Result<bool> {
        Ok(self.peek()?.0 == Tok::Punct(c))
    }

    /// Takes the mark if it is next.
    pub(super) fn eat(&mut self, c: char) -> Result<bool> {
        let found = self.at(c)?;
        if found {
            self.take()?;
        }
        Ok(found)
    }

    /// Takes the mark, which must be next.
    pub(super) fn expect(&mut self, c: char) -> Result<Span> {
        let (tok, span) = self.take()?;
        if tok == Tok::Punct(c) { Ok(span) } else { Err(self.unexpected(&tok, span, &format!("`{c}`"))) }
    }

    /// The longest run of the bytes of a dimension, within the line; it may be empty.
    pub(super) fn take_dim(&mut self) -> (&'a str, Span) {
        self.take_raw(|b| {
            is_name_part(b) || matches!(b, b'+' | b'-' | b'*' | b'/' | b'(' | b')' | b' ' | b'\t')
        })
    }

    /// The longest run of the bytes of a quantisation scheme.
    pub(super) fn take_scheme(&mut self) -> (&'a str, Span) {
        self.take_raw(|b| is_name_part(b) || b == b':')
    }

    fn take_raw(&mut self, wanted: impl Fn(u8) -> bool) -> (&'a str, Span) {
        if let Some((_, span)) = self.next.take() {
            self.pos = span.start;
            self.second = None;
        }
        self.skip_space();
        let len = self.rest().bytes().take_while(|b| wanted(*b)).count();
        let run = self.text.get(self.pos..self.pos + len).unwrap_or("");
        let start = self.pos;
        self.pos += len;
        let run = run.trim_ascii_end();
        (run, start..start + run.len())
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.pos..).unwrap_or("")
    }

    fn skip_space(&mut self) {
        loop {
            self.pos += self.rest().bytes().take_while(|b| is_space(*b)).count();
            if !self.rest().starts_with(';') {
                return;
            }
            self.pos += self.rest().bytes().take_while(|b| *b != b'\n').count();
        }
    }

    fn token(&mut self) -> Result<(Tok<'a>, Span)> {
        self.skip_space();
        let (start, rest) = (self.pos, self.rest());
        let bytes = rest.as_bytes();
        let byte = |i: usize| bytes.get(i).copied().unwrap_or(0);
        let run = |from: usize, wanted: fn(u8) -> bool| {
            from + bytes.iter().skip(from).take_while(|b| wanted(**b)).count()
        };
        let upto = |end: usize| rest.get(..end).unwrap_or("");
        let (tok, len) = match byte(0) {
            0 if rest.is_empty() => (Tok::End, 0),
            b'"' => self.quoted(0).map(|(s, len)| (Tok::Text(s), len))?,
            b'x' if byte(1) == b'"' => self.quoted(1).map(|(s, len)| (Tok::Hex(s), len))?,
            b if is_name_start(b) => {
                let end = run(1, is_name_part);
                (Tok::Name(upto(end)), end)
            }
            b'%' if byte(1).is_ascii_digit() => {
                let end = run(1, |b| b.is_ascii_digit());
                (Tok::Temp(upto(end)), end)
            }
            b'0'..=b'9' => {
                let end = number_len(bytes);
                (Tok::Number(upto(end)), end)
            }
            b'-' if byte(1).is_ascii_alphanumeric() => {
                let end = 1 + number_len(bytes.get(1..).unwrap_or(&[]));
                (Tok::Number(upto(end)), end)
            }
            b'<' if byte(1) == b'=' => (Tok::AtMost, 2),
            b @ (b'{' | b'}' | b'(' | b')' | b'[' | b']' | b',' | b':' | b'=' | b'@' | b'<' | b'>') => {
                (Tok::Punct(char::from(b)), 1)
            }
            _ => {
                let c = rest.chars().next().unwrap_or(' ');
                let span = start..start + c.len_utf8();
                return Err(self.error(Code::Syntax, span, format!("unexpected character {c:?}")));
            }
        };
        self.pos = start + len;
        Ok((tok, start..start + len))
    }

    /// What stands between the quotes of which the first is at `from`, and the length with the second. Only hex data
    /// may go over several lines.
    fn quoted(&self, from: usize) -> Result<(&'a str, usize)> {
        let hex = from > 0;
        let mut escaped = false;
        for (i, b) in self.rest().bytes().enumerate().skip(from + 1) {
            match b {
                b'"' if !escaped => return Ok((self.rest().get(from + 1..i).unwrap_or(""), i + 1)),
                b'\n' if !hex => break,
                _ => escaped = b == b'\\' && !escaped && !hex,
            }
        }
        let what = if hex { "hex data" } else { "text" };
        Err(self.error(Code::Syntax, self.pos..self.pos + from + 1, format!("unterminated {what}")))
    }

    /// An error that something else was expected.
    pub(super) fn unexpected(&self, found: &Tok<'_>, span: Span, wanted: &str) -> Error {
        self.error(Code::Syntax, span, format!("expected {wanted}, found {}", found.words()))
    }

    /// An error at a place.
    pub(super) fn error(&self, code: Code, span: Span, message: impl Into<String>) -> Error {
        self.place(Error::new(code, message), span)
    }

    /// Says where an error is, and shows the line.
    pub(super) fn place(&self, e: Error, span: Span) -> Error {
        let mut c = START;
        c.advance(self.text, span.start);
        let loc = Loc::Text { file: self.file.clone(), line: c.line, column: c.column };
        e.at(loc).snippet(self.snippet(c.line, span))
    }

    /// Shows the line of an error whose place is known by line and column only.
    pub(super) fn show(&self, e: Error) -> Error {
        let &Loc::Text { line, column, .. } = e.loc() else { return e };
        let line_start = match line {
            0 | 1 => 0,
            n => self.text.match_indices('\n').nth(n as usize - 2).map_or(self.text.len(), |(i, _)| i + 1),
        };
        let rest = self.text.get(line_start..).unwrap_or("");
        let offset =
            rest.char_indices().nth(column.saturating_sub(1) as usize).map_or(rest.len(), |(i, _)| i);
        let start = line_start + offset;
        let snippet = self.snippet(line, start..start + 1);
        e.snippet(snippet)
    }

    /// The place of a token that is not before the last one asked for: a graph of many nodes is read in linear time.
    pub(super) fn loc(&mut self, at: usize) -> Loc {
        self.counted.advance(self.text, at);
        Loc::Text { file: self.file.clone(), line: self.counted.line, column: self.counted.column }
    }

    /// The line of a place, with a caret under it; of a long line, the part around the place.
    fn snippet(&self, line: u32, span: Span) -> String {
        const BEFORE: usize = 60;
        const AFTER: usize = 50;
        let head = self.text.get(..span.start).unwrap_or(self.text);
        let tail = self.text.get(span.start..).unwrap_or("");
        let head = head.rsplit('\n').next().unwrap_or("");
        let tail = tail.split('\n').next().unwrap_or("").trim_end_matches('\r');
        let clean = |c: char| if c.is_control() { ' ' } else { c };
        let mut before: Vec<char> = head.chars().rev().take(BEFORE).map(clean).collect();
        before.reverse();
        if head.chars().nth(BEFORE).is_some() {
            before.splice(0..1, ['…']);
        } else {
            let indent = before.iter().take_while(|c| **c == ' ').count();
            before.drain(..indent);
        }
        let mut after: Vec<char> = tail.chars().take(AFTER).map(clean).collect();
        if tail.chars().nth(AFTER).is_some() {
            after.push('…');
        }
        let wide = tail.get(..span.len().min(tail.len())).map_or(1, |s| s.chars().take(AFTER).count());
        let number = line.to_string();
        let margin = " ".repeat(number.len());
        let line: String = before.iter().chain(&after).collect();
        let (blank, carets) = (" ".repeat(before.len()), "^".repeat(wide.max(1)));
        format!("{number} | {}\n{margin} | {blank}{carets}", line.trim_end())
    }
}

fn is_space(b: u8) -> bool {
    matches!(b, b' ' | b'\t' | b'\r' | b'\n')
}

/// Letters, digits and dots, and a sign behind an exponent's `e`.
fn number_len(bytes: &[u8]) -> usize {
    let mut exponent = false;
    let mut len = 0;
    for b in bytes {
        match b {
            b'+' | b'-' if exponent => exponent = false,
            b if b.is_ascii_alphanumeric() || *b == b'.' => exponent = matches!(b, b'e' | b'E'),
            _ => break,
        }
        len += 1;
    }
    len
}

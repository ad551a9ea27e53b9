//! Arrays of NumPy's: a header, which is a Python literal, and the elements.

use crate::archive::{Contents, Entry, Place};
use crate::array::View;
use crate::error::{Context, bad};
use crate::map::Bytes;
use crate::replace::replace;
use crate::zip::Member;
use rlx_ir::{DType, Result, tensor};
use std::path::Path;

pub(crate) const MAGIC: &[u8] = b"\x93NUMPY";
/// Headers are some hundred bytes long; longer ones describe records.
const LONGEST_HEADER: usize = 1 << 16;
/// So much holds a header and what comes before it.
pub(crate) const HEAD: usize = 12 + LONGEST_HEADER;

/// What each dtype is called in a header, without the byte order.
const DTYPES: &[(DType, &str)] = &[
    (DType::F64, "f8"),
    (DType::F32, "f4"),
    (DType::F16, "f2"),
    (DType::I8, "i1"),
    (DType::I16, "i2"),
    (DType::I32, "i4"),
    (DType::I64, "i8"),
    (DType::U8, "u1"),
    (DType::U16, "u2"),
    (DType::U32, "u4"),
    (DType::U64, "u8"),
    (DType::Bool, "b1"),
];

/// An array as it is stored.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    header: Header,
    data: Source,
}

#[derive(Clone, Debug)]
enum Source {
    /// The elements.
    Plain(Bytes),
    /// In an archive, with the header in front.
    Member(Member),
}

impl Stored {
    /// The bytes of the elements.
    pub(crate) fn len(&self) -> u64 {
        self.header.bytes as u64
    }

    /// The elements, row-major and little-endian.
    pub(crate) fn bytes(&self) -> Result<Bytes> {
        let bytes = match &self.data {
            Source::Plain(bytes) => bytes.clone(),
            Source::Member(member) => {
                let all = member.bytes()?;
                all.slice(self.header.start..all.len()).ok_or_else(|| bad("the data are missing"))?
            }
        };
        bytes.check_whole()?;
        let size = self.header.element;
        if !self.header.swapped() && !self.header.fortran {
            return Ok(bytes);
        }
        let mut out = match self.header.fortran {
            true => row_major(&bytes, &self.header.shape, size),
            false => bytes.to_vec(),
        };
        if self.header.swapped() {
            out.chunks_exact_mut(size.max(1)).for_each(<[u8]>::reverse);
        }
        Ok(out.into())
    }
}

/// Elements that lie with the first axis fastest, in RLX's order.
fn row_major(from: &[u8], shape: &[usize], size: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(from.len());
    // The index of the element to be copied next, and its place.
    let (mut index, mut at) = (vec![0usize; shape.len()], 0usize);
    let strides: Vec<usize> = shape
        .iter()
        .scan(size, |stride, n| {
            let this = *stride;
            *stride = stride.saturating_mul(*n);
            Some(this)
        })
        .collect();
    while let Some(element) = from.get(at..at.saturating_add(size)).filter(|_| out.len() < from.len()) {
        out.extend_from_slice(element);
        for ((i, n), stride) in index.iter_mut().zip(shape).zip(&strides).rev() {
            *i += 1;
            at += stride;
            if *i < *n {
                break;
            }
            *i = 0;
            at -= stride * n;
        }
    }
    out
}

/// One file; the array is named after it.
pub(crate) fn read(bytes: &Bytes, path: Option<&Path>) -> Result<Contents> {
    let header = Header::read(bytes, bytes.len() as u64)?;
    let data = bytes.slice(header.start..bytes.len()).ok_or_else(|| bad("the data are missing"))?;
    let name = path.and_then(Path::file_stem).map_or("array".into(), |n| n.to_string_lossy());
    let entry = header.entry(&name, Source::Plain(data))?;
    Ok(Contents { entries: vec![entry], ..Contents::default() })
}

/// The entry of an array in an archive.
pub(crate) fn member(name: &str, member: Member) -> Result<Entry> {
    let header = Header::read(&member.head(HEAD)?, member.len())?;
    header.entry(name, Source::Member(member))
}

/// What a header says.
#[derive(Clone, Debug)]
struct Header {
    /// Where the elements begin.
    start: usize,
    /// The type of the elements, as NumPy writes it.
    descr: String,
    fortran: bool,
    shape: Vec<usize>,
    /// Bytes of an element.
    element: usize,
    /// Bytes of all.
    bytes: usize,
}

impl Header {
    /// Reads a header from the first bytes of a file that is so long.
    fn read(head: &[u8], len: u64) -> Result<Header> {
        let cut = || bad("the header is longer than the file");
        let rest = head.strip_prefix(MAGIC).ok_or_else(|| bad("does not begin like an array of NumPy's"))?;
        let (text, len_bytes) = match rest {
            [1, _, a, b, rest @ ..] => (rest.get(..usize::from(u16::from_le_bytes([*a, *b]))), 2),
            [2 | 3, _, a, b, c, d, rest @ ..] => {
                let len = u32::from_le_bytes([*a, *b, *c, *d]);
                let len = usize::try_from(len).ok().filter(|n| *n <= LONGEST_HEADER);
                let len =
                    len.ok_or_else(|| bad(format!("the header is longer than {LONGEST_HEADER} bytes")))?;
                (rest.get(..len), 4)
            }
            [1..=3, ..] | [] => return Err(cut()),
            [v, ..] => return Err(bad(format!("version {v} of the format, which is not known"))),
        };
        let text = text.ok_or_else(cut)?;
        let literal = Literal::parse(text)?;
        let start = MAGIC.len() + 2 + len_bytes + text.len();
        let element = element_size(&literal.descr)?;
        let bytes = tensor::count(&literal.shape)?.checked_mul(element);
        let bytes = bytes.filter(|n| len.checked_sub(start as u64) == Some(*n as u64)).ok_or_else(|| {
            let data = len.saturating_sub(start as u64);
            bad(format!("{} of sizes {:?} does not fit {data} bytes of data", literal.descr, literal.shape))
        })?;
        let Literal { descr, fortran, shape } = literal;
        Ok(Header { start, descr, fortran, shape, element, bytes })
    }

    fn swapped(&self) -> bool {
        self.descr.starts_with('>')
    }

    fn entry(self, name: &str, data: Source) -> Result<Entry> {
        let kind = self.descr.get(1..).unwrap_or_default();
        let dtype = DTYPES.iter().find(|(_, theirs)| *theirs == kind).map(|(ours, _)| *ours);
        let (descr, shape) = (self.descr.clone(), self.shape.clone());
        Entry::new(name, dtype, descr, shape, Place::Npy(Stored { header: self, data }))
    }
}

/// Bytes of an element of a type like `<f4`; they may be none RLX has.
fn element_size(descr: &str) -> Result<usize> {
    let strange = || bad(format!("{descr:?} is no type of elements"));
    let mut chars = descr.chars();
    let (order, kind) = (chars.next(), chars.next());
    if !matches!(order, Some('<' | '>' | '|')) {
        return Err(strange());
    }
    let size = || chars.as_str().parse::<usize>().map_err(|_| strange());
    match kind {
        Some('O') => Err(bad(
            "an array of Python objects, which are pickled: reading them means running what they say",
        )),
        Some('f' | 'i' | 'u' | 'b' | 'c' | 'S' | 'a' | 'V') => size(),
        Some('U') => size()?.checked_mul(4).ok_or_else(strange),
        // Times, in whatever unit.
        Some('M' | 'm') => Ok(8),
        _ => Err(strange()),
    }
}

/// The Python literal of a header: `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`.
struct Literal {
    descr: String,
    fortran: bool,
    shape: Vec<usize>,
}

impl Literal {
    fn parse(text: &[u8]) -> Result<Literal> {
        let text = std::str::from_utf8(text).map_err(|e| bad(format!("the header is not UTF-8: {e}")))?;
        let mut from = Parser { rest: text.trim_end() };
        let (mut descr, mut fortran, mut shape) = (None, None, None);
        from.expect('{')?;
        while !from.eat('}') {
            let key = from.text()?;
            from.expect(':')?;
            let again = match key {
                "descr" if from.next_is(['[', '(']) => {
                    return Err(bad("an array of records, which RLX has not"));
                }
                "descr" => descr.replace(from.text()?.to_owned()).is_some(),
                "fortran_order" => fortran.replace(from.bool()?).is_some(),
                "shape" => shape.replace(from.sizes()?).is_some(),
                _ => return Err(bad(format!("the header has a key {key:?}"))),
            };
            if again {
                return Err(bad(format!("the header has {key:?} twice")));
            }
            if !from.eat(',') && !from.next_is(['}', '}']) {
                return Err(from.strange());
            }
        }
        if !from.rest.trim().is_empty() {
            return Err(from.strange());
        }
        match (descr, fortran, shape) {
            (Some(descr), Some(fortran), Some(shape)) => Ok(Literal { descr, fortran, shape }),
            _ => Err(bad("the header lacks one of descr, fortran_order and shape")),
        }
    }
}

struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn strange(&self) -> rlx_ir::Error {
        let rest: String = self.rest.chars().take(20).collect();
        bad(format!("the header is malformed at {rest:?}"))
    }

    fn eat(&mut self, c: char) -> bool {
        self.rest = self.rest.trim_start();
        let rest = self.rest.strip_prefix(c);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn expect(&mut self, c: char) -> Result<()> {
        if self.eat(c) { Ok(()) } else { Err(self.strange()) }
    }

    fn next_is(&self, any: [char; 2]) -> bool {
        self.rest.trim_start().starts_with(any)
    }

    /// A text in either kind of quotes, without escapes.
    fn text(&mut self) -> Result<&'a str> {
        let quote = if self.eat('\'') { '\'' } else { '"' };
        if quote == '"' {
            self.expect('"')?;
        }
        let (text, rest) = self.rest.split_once(quote).ok_or_else(|| self.strange())?;
        if text.contains('\\') {
            return Err(self.strange());
        }
        self.rest = rest;
        Ok(text)
    }

    fn bool(&mut self) -> Result<bool> {
        let text = self.rest.trim_start();
        for (word, value) in [("True", true), ("False", false)] {
            if let Some(rest) = text.strip_prefix(word) {
                self.rest = rest;
                return Ok(value);
            }
        }
        Err(self.strange())
    }

    /// `()`, `(3,)` or `(3, 4)`.
    fn sizes(&mut self) -> Result<Vec<usize>> {
        self.expect('(')?;
        let mut sizes = Vec::new();
        while !self.eat(')') {
            let text = self.rest.trim_start();
            let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
            let (digits, rest) = text.split_at(end);
            sizes.push(digits.parse().map_err(|_| self.strange())?);
            // Python 2 wrote its long integers so.
            self.rest = rest.strip_prefix('L').unwrap_or(rest);
            if !self.eat(',') && !self.next_is([')', ')']) {
                return Err(self.strange());
            }
        }
        Ok(sizes)
    }
}

/// The header of an array to be written, padded so that the elements are aligned to 64 bytes.
pub(crate) fn header(view: &View<'_>) -> Result<Vec<u8>> {
    let kind = DTYPES.iter().find(|(ours, _)| *ours == view.dtype).map(|(_, theirs)| *theirs);
    let kind = kind.ok_or_else(|| bad(format!("is {}, which NumPy has not", view.dtype)))?;
    let order = if view.dtype.bytes() == Some(1) { '|' } else { '<' };
    let mut sizes: String = view.shape.iter().map(|n| format!("{n}, ")).collect();
    // A tuple of one has its comma.
    let keep = if view.shape.len() == 1 { 1 } else { 2 };
    sizes.truncate(sizes.len().saturating_sub(keep));
    let mut text = format!("{{'descr': '{order}{kind}', 'fortran_order': False, 'shape': ({sizes}), }}");
    let fixed = MAGIC.len() + 4;
    // With the line feed at the end.
    let len = (fixed + text.len() + 1).next_multiple_of(64) - fixed;
    while text.len() + 1 < len {
        text.push(' ');
    }
    text.push('\n');
    let mut out = MAGIC.to_vec();
    out.extend([1, 0]);
    // At most 32 sizes of 20 digits: far below 2^16.
    out.extend((len as u16).to_le_bytes());
    out.extend(text.as_bytes());
    Ok(out)
}

/// Writes one array, which is there as a whole or not at all.
pub fn write(path: &Path, view: &View<'_>) -> Result<()> {
    let header = header(view).about(path.display())?;
    let written = replace(path, |to| {
        to.write_all(&header)?;
        view.planes.iter().try_for_each(|p| to.write_all(p))
    });
    written.about(path.display())
}

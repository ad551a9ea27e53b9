//! Graphs as text: a format to read, to write by hand, and to test with.
//!
//! ```
//! let text = r#"
//! graph affine {
//!   dim batch <= 64
//!   input x: f32[batch, 2]
//!   param b: f32[2] diff = [0.5, -1.0]
//!   y: f32[batch, 2] = add(x, b)
//!   output y = y
//! }
//! "#;
//! let f = rlx_ir::text::parse(text)?;
//! assert_eq!(rlx_ir::text::print(&f).trim(), text.trim());
//! # Ok::<(), rlx_ir::Error>(())
//! ```
//!
//! For a graph in canonical order (ports' values first, then results in the order of the nodes; no trailing operand
//! left out) `parse(&print(f)) == f`, to the last bit of its data; and printing what was parsed from a printed text
//! gives that text again. The grammar is in `docs/text-format.md`.
//!
//! Reading costs time and memory in proportion to the text, whatever it says; nesting is bounded.
//!
//! `lex` cuts the text into tokens and draws the places of errors, `parse` builds the graph, `data` reads and
//! writes numbers, `print` is the way back.

mod data;
mod lex;
mod parse;
mod print;

pub use print::{print, print_attr, print_tensor};

use crate::error::Result;
use crate::func::Func;
use crate::tensor::Tensor;

/// Reads a graph.
///
/// # Errors
///
/// The first one in the text, with its line, its column and a caret under the place.
pub fn parse(text: &str) -> Result<Func> {
    parse_named("<text>", text)
}

/// Reads a graph; errors and nodes name `file` as the place they are from.
///
/// # Errors
///
/// As [`parse`].
pub fn parse_named(file: &str, text: &str) -> Result<Func> {
    parse::Parser::new(file, text).graph()
}

/// Reads a tensor as constants have it: `f32[2] [1.0, -0.5]`.
///
/// # Errors
///
/// As [`parse`].
pub fn parse_tensor(text: &str) -> Result<Tensor> {
    parse::Parser::new("<text>", text).tensor()
}

/// The candidate that is most like `name`, if one is like it at all.
pub fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    /// Longer names are not compared: the cost is the product of the lengths.
    const LONGEST: usize = 64;
    if name.len() > LONGEST {
        return None;
    }
    let limit = (name.len() + 1) / 3;
    candidates
        .filter(|c| c.len() <= LONGEST && c.len().abs_diff(name.len()) <= limit)
        .map(|c| (distance(name.as_bytes(), c.as_bytes()), c))
        .filter(|(d, _)| *d <= limit)
        .min()
        .map(|(_, c)| c)
}

/// How many letters must be put in, left out or changed to get from `a` to `b`.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (slot, y) in row.iter_mut().skip(1).zip(b) {
            let cost = (diagonal + usize::from(x != y)).min(left + 1).min(*slot + 1);
            diagonal = std::mem::replace(slot, cost);
            left = cost;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

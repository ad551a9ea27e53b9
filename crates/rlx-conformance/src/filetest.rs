//! Tests that are text: a graph, what to do with it, and the text that must come of it.
//!
//! ```text
//! ; run: vjp loss wrt w          any number of steps, one after the other
//! ; in x: f32[2] [1.0, 2.0]      data for `eval`
//! graph g { … }
//! ; expect:
//! …
//! ```
//!
//! | step | does |
//! |---|---|
//! | `print` | nothing: the graph is printed in any case |
//! | `verify` | runs the verifier |
//! | `dce` | removes dead code |
//! | `vjp OUT… wrt PORT…` | adds gradients |
//! | `jvp wrt PORT…` | adds tangents |
//! | `hvp OUT wrt PORT…` | adds a Hessian-vector product |
//! | `vmap PORT=AXIS… size=DIM [out=AXIS]` | adds a batch axis; `DIM` is a number or `name<=bound` |
//! | `eval` | prints the outputs instead of the graph |
//!
//! An error is a result like any other. `bless` writes the results into the files.

use rlx_ir::error::Code;
use rlx_ir::text::{parse_named, parse_tensor, print, print_tensor};
use rlx_ir::{Dim, Error, Func, Options, Result, Tensor, dim, eval, transform};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The line that begins what is expected.
const EXPECT: &str = "; expect:";

/// The graph with its steps, and what is expected of it.
pub fn split(text: &str) -> (&str, &str) {
    for (i, _) in text.match_indices(EXPECT) {
        let head = text.get(..i).unwrap_or("");
        if head.is_empty() || head.ends_with('\n') {
            let tail = text.get(i + EXPECT.len()..).unwrap_or("");
            return (head, tail.strip_prefix('\n').unwrap_or(tail));
        }
    }
    (text, "")
}

/// What the steps make of the graph; `name` is the file in the errors' places.
pub fn outcome(name: &str, head: &str) -> String {
    let result = run(name, head);
    let text = result.unwrap_or_else(|e| format!("error: {e}\n"));
    // A line of blanks is invisible in a file, and editors take them away.
    text.lines().map(|l| l.trim_end()).fold(String::new(), |s, l| s + l + "\n")
}

/// What the steps make of the graph.
///
/// # Errors
///
/// Those of the steps, or of the graph itself.
pub fn run(name: &str, head: &str) -> Result<String> {
    let mut func = parse_named(name, head)?;
    let mut inputs: Vec<(String, Tensor)> = Vec::new();
    for rest in head.lines().filter_map(|l| l.strip_prefix("; in ")) {
        let (port, data) = rest.split_once(':').ok_or_else(|| usage("`; in NAME: TYPE DATA`"))?;
        inputs.push((port.trim().to_string(), parse_tensor(data)?));
    }
    let mut evaluated = None;
    let mut steps = head.lines().filter_map(|l| l.strip_prefix("; run:")).peekable();
    if steps.peek().is_none() {
        return Err(usage("a file test has a line `; run: STEP`"));
    }
    for step in steps {
        let words: Vec<&str> = step.split_whitespace().collect();
        match words.as_slice() {
            ["print"] => {}
            ["eval"] => evaluated = Some(outputs(&func, &inputs)?),
            words => func = apply(&func, words)?,
        }
    }
    Ok(evaluated.unwrap_or_else(|| print(&func)))
}

fn usage(what: &str) -> Error {
    Error::new(Code::Syntax, format!("in the test itself: {what}"))
}

fn apply(f: &Func, words: &[&str]) -> Result<Func> {
    let (step, args) = words.split_first().ok_or_else(|| usage("an empty step"))?;
    let wrt = args.iter().position(|w| *w == "wrt");
    let (outs, ports) = match wrt {
        Some(i) => (args.get(..i).unwrap_or_default(), args.get(i + 1..).unwrap_or_default()),
        None => (args, Default::default()),
    };
    match (*step, outs) {
        ("verify", []) => rlx_ir::verify::verify(f).map(|()| f.clone()),
        ("dce", []) => transform::dce(f),
        ("vjp", _) => transform::vjp(f, outs, ports),
        ("jvp", []) => transform::jvp(f, ports),
        ("hvp", [out]) => transform::hvp(f, out, ports),
        ("vmap", _) => batch(f, args),
        _ => Err(usage(&format!("no step {:?}", words.join(" ")))),
    }
}

fn batch(f: &Func, args: &[&str]) -> Result<Func> {
    let (mut axes, mut size, mut out) = (Vec::new(), None, 0);
    for a in args {
        let (name, value) = a.split_once('=').ok_or_else(|| usage("vmap takes NAME=AXIS"))?;
        let axis = value.parse::<i64>().map_err(|_| usage("an axis is a number"));
        match name {
            "size" => size = Some(value),
            "out" => out = axis?,
            _ => axes.push((name, axis?)),
        }
    }
    let size = size.ok_or_else(|| usage("vmap needs size=DIM"))?;
    let size: Dim = match size.split_once("<=") {
        Some((name, max)) => dim(name, max.parse().map_err(|_| usage("a bound is a number"))?),
        None => size.parse::<i64>().map_err(|_| usage("a size is a number or NAME<=BOUND"))?.into(),
    };
    transform::vmap(f, &axes, &size, out)
}

fn outputs(f: &Func, inputs: &[(String, Tensor)]) -> Result<String> {
    let inputs: Vec<(&str, &Tensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
    let mut out = String::new();
    for (name, arr) in eval(f, &inputs, &Options::default())? {
        let done = writeln!(out, "{name}: {}", print_tensor(&arr.to_tensor()?));
        debug_assert!(done.is_ok(), "strings take everything");
    }
    Ok(out)
}

/// The repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All file tests, sorted.
///
/// # Errors
///
/// If the folder cannot be read.
pub fn files() -> std::io::Result<Vec<PathBuf>> {
    with_extension(&root().join("tests/ir"), "rlx")
}

/// The files of a folder that end so, sorted.
///
/// # Errors
///
/// If the folder cannot be read.
pub fn with_extension(dir: &Path, extension: &str) -> std::io::Result<Vec<PathBuf>> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == extension) {
            out.push(path);
        }
    }
    out.sort();
    Ok(out)
}

/// The name of a file, without its folder.
pub fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// A file test with its expectation replaced by what comes out.
pub fn blessed(name: &str, text: &str) -> String {
    let (head, _) = split(text);
    let blank = if head.ends_with("\n\n") { "" } else { "\n" };
    format!("{head}{blank}{EXPECT}\n{}", outcome(name, head))
}

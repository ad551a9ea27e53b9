//! The pages under `docs/errors/`: each has an example that gives the error, and the message as printed.
//!
//! An example is a file test (or, for what devices refuse, a graph to be compiled) in an `rlx` block, and its message stands in the `text` block behind it. What no text
//! can give has a `rust` block instead, and the code for it is here.

use crate::filetest;
use crate::onnxfile::{Message, graph, model, node, value};
use rlx_formats::onnx::{Model, Options};
use rlx_ir::func::ValueId;
use rlx_ir::{Code, DType, Error, Graph, text, verify};

/// Where the blocks of a page are.
struct Block<'a> {
    language: &'a str,
    start: usize,
    end: usize,
}

fn blocks(page: &str) -> Vec<Block<'_>> {
    let mut out: Vec<Block<'_>> = Vec::new();
    let mut open: Option<Block<'_>> = None;
    let mut at = 0;
    for line in page.split_inclusive('\n') {
        let next = at + line.len();
        if let Some(rest) = line.strip_prefix("```") {
            match open.take() {
                Some(b) => out.push(Block { end: at, ..b }),
                None => open = Some(Block { language: rest.trim(), start: next, end: next }),
            }
        }
        at = next;
    }
    out
}

/// What the example of a page gives; `None` if it has none.
pub fn example(code: Code, page: &str) -> Option<Result<String, Error>> {
    let block = blocks(page).into_iter().find(|b| b.language == "rlx" || b.language == "rust")?;
    let source = page.get(block.start..block.end)?;
    Some(match (block.language, code) {
        ("rlx", Code::Device) => text::parse_named("example.rlx", source)
            .and_then(|f| rlx::compile(&f, rlx::Device::Cpu))
            .map(|_| String::new()),
        ("rlx", _) => filetest::run("example.rlx", source),
        (_, Code::Foreign) => foreign().map(|()| String::new()),
        (_, Code::Verify) => broken().map(|()| String::new()),
        (_, Code::File) => short().map(|()| String::new()),
        (_, Code::Unsupported) => imported(node("Norm", &["x"], &["y"]).text(7, "own")),
        (_, Code::Undetermined) => imported(node("Reshape", &["x", "shape"], &["y"])),
        _ => return None,
    })
}

/// The page with the message of its example as it is printed now.
pub fn blessed(code: Code, page: &str) -> String {
    let Some(Err(e)) = example(code, page) else { return page.into() };
    match blocks(page).into_iter().find(|b| b.language == "text") {
        Some(b) => {
            let (head, tail) = (page.get(..b.start).unwrap_or(""), page.get(b.end..).unwrap_or(""));
            format!("{head}{e}\n{tail}")
        }
        None => page.into(),
    }
}

fn foreign() -> Result<(), Error> {
    let (g, h) = (Graph::new("g"), Graph::new("h"));
    let x = g.input("x", DType::F32, [2]);
    h.on_behalf(&rlx_ir::Loc::Unknown, || h.output("y", x));
    h.finish().map(drop)
}

fn broken() -> Result<(), Error> {
    let g = Graph::new("g");
    let x = g.input("x", DType::F32, [2]);
    g.output("y", x);
    let mut f = g.finish()?;
    if let Some(o) = f.outputs.first_mut() {
        o.value = ValueId(7);
    }
    verify::verify(&f)
}

/// A model of one node, imported.
fn imported(node: Message) -> Result<String, Error> {
    let inputs = [value("x", 1, &[2, 3]), value("shape", 7, &[2])];
    let file = model(&graph(&[node], &[], &inputs, &[value("y", 1, &[])]), 17, &[]);
    Model::parse(file.0)?.import(&Options::default()).map(|_| String::new())
}

fn short() -> Result<(), Error> {
    rlx_formats::Array::new(DType::F32, &[2, 3], vec![0; 20].into()).map(drop)
}

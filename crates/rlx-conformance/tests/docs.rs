//! What is written about ops and errors is true.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx_conformance::{errordoc, filetest, opsdoc};
use rlx_ir::attr::AttrKind;
use rlx_ir::op::{Arity, OpDef};
use rlx_ir::{Code, DType, Graph, doc, ops};
use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;

#[test]
fn the_page_of_ops_is_up_to_date() {
    let page = std::fs::read_to_string(filetest::root().join("docs/ops.md")).unwrap_or_default();
    assert!(page == opsdoc::render(), "docs/ops.md is stale: cargo run -p rlx-conformance --bin bless");
}

#[test]
fn every_code_has_a_page_whose_example_gives_it() {
    let dir = filetest::root().join("docs/errors");
    for code in Code::ALL {
        let id = code.id();
        let page =
            std::fs::read_to_string(dir.join(format!("{id}.md"))).unwrap_or_else(|e| panic!("{id}: {e}"));
        let title = format!("# {id}: {}\n", code.summary().trim_end_matches('.'));
        assert!(page.starts_with(&title), "{id}: the page begins with {title:?}");
        let example = errordoc::example(*code, &page).unwrap_or_else(|| panic!("{id}: no example"));
        let e = example.err().unwrap_or_else(|| panic!("{id}: the example gives no error"));
        assert_eq!(e.code(), *code, "{id}: {e}");
        assert!(page == errordoc::blessed(*code, &page), "{id}: the message is stale, it is now\n{e}");
        for section in ["## Example", "## Fix"] {
            assert!(page.contains(section), "{id}: no section {section}");
        }
    }
}

#[test]
fn there_are_no_other_pages() {
    for path in filetest::with_extension(&filetest::root().join("docs/errors"), "md").unwrap() {
        let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
        assert!(stem == "README" || Code::ALL.iter().any(|c| c.id() == stem), "{stem} is no code");
    }
}

#[test]
fn the_example_of_the_text_format_reads() {
    let page = std::fs::read_to_string(filetest::root().join("docs/text-format.md")).unwrap();
    let text = page.split("```rlx\n").nth(1).and_then(|s| s.split("```").next()).unwrap();
    let f = rlx_ir::text::parse(text).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(f.outputs.len(), 1);
}

/// The anchor that GitHub gives a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | ' '));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

/// The anchors of a page's headings, no two of which are the same.
fn anchors(page: &str, text: &str) -> HashSet<String> {
    let mut anchors = HashSet::new();
    // Every other part stands in a block of code.
    let prose: String = text.split("\n```").step_by(2).collect();
    for heading in prose.lines().filter(|l| l.starts_with('#')) {
        let a = anchor(heading.trim_start_matches('#').trim());
        assert!(anchors.insert(a), "{page}: two headings {heading:?} have one anchor");
    }
    anchors
}

/// Every link of the pages leads to a file, and every anchor to one heading.
#[test]
fn links_lead_somewhere() {
    let root = filetest::root();
    let mut pages = vec!["README.md".into(), "ARCHITECTURE.md".into(), "CHANGELOG.md".into()];
    for dir in ["docs", "docs/errors"] {
        for path in filetest::with_extension(&root.join(dir), "md").unwrap() {
            pages.push(format!("{dir}/{}", filetest::file_name(&path)));
        }
    }
    let mut known = BTreeMap::new();
    for page in pages {
        let path = root.join(&page);
        let text = std::fs::read_to_string(&path).unwrap();
        known.insert(path.clone(), anchors(&page, &text));
        let links = text.split("](").skip(1).filter_map(|s| s.split(')').next());
        for link in links.filter(|l| !l.starts_with("https://")) {
            let (file, place) = link.split_once('#').map_or((link, None), |(file, a)| (file, Some(a)));
            let target = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            assert!(target.exists(), "{page}: no file {link}");
            if let Some(a) = place {
                let read = |p: &PathBuf| anchors(file, &std::fs::read_to_string(p).unwrap());
                let there = known.entry(target.clone()).or_insert_with(|| read(&target));
                assert!(there.contains(a), "{page}: no heading for {link}");
            }
        }
    }
}

/// The signature of an op with something in the places that are left open.
fn call(op: &OpDef) -> (String, String) {
    let mut text = doc::signature(op).replace('…', "").replace("{}", "{ }");
    let mut ports = String::new();
    for o in op.operands {
        if o.arity == Arity::Optional {
            text = text.replace(&format!("{}?", o.name), o.name);
        }
        ports += &format!("  input {}: f32[2]\n", o.name);
    }
    for a in op.attrs {
        let value = match a.kind {
            AttrKind::Int | AttrKind::Float | AttrKind::Dim => "1",
            AttrKind::Bool => "true",
            AttrKind::Text => "\"\"",
            AttrKind::Word(words) => words[0],
            AttrKind::Ints | AttrKind::Floats | AttrKind::Dims => "[1]",
            AttrKind::DType => "f32",
            AttrKind::Tensor => "f32[] 0",
        };
        text = text.replace(&format!("{}: ‹{}›", a.name, a.kind.words()), &format!("{}: {value}", a.name));
    }
    (ports, text)
}

/// A reader can copy the line that heads an op's page: whatever the shapes are, it is a call of that op.
#[test]
fn signatures_are_calls() {
    for op in ops::all() {
        let (ports, call) = call(op);
        let text = format!("graph g {{\n{ports}  {call}\n}}");
        if let Err(e) = rlx_ir::text::parse(&text) {
            let about_form = [Code::Syntax, Code::Undefined, Code::UnknownOp, Code::Operands];
            assert!(!about_form.contains(&e.code()), "{call}\n{e}");
            assert!(!e.message().contains("no attribute"), "{call}\n{e}");
        }
    }
}

#[test]
fn the_readme_is_true() {
    let page = std::fs::read_to_string(filetest::root().join("README.md")).unwrap();
    let flat = page.split_whitespace().collect::<Vec<_>>().join(" ");
    let g = Graph::new("g");
    let (x, y) = (g.input("x", DType::F32, [1, 4]), g.input("y", DType::F32, [5, 2]));
    g.output("z", x.matmul(y));
    let e = g.finish().unwrap_err().to_string();
    let (message, _) = e.rsplit_once("; at ").unwrap();
    assert!(flat.contains(message), "the README's error is now {message}");
    // Not the number itself: a new op touches one file.
    assert!(flat.contains("over 200 ops") && (201..300).contains(&ops::all().len()));
    let count = format!("{} packed schemes", rlx_ir::quant::Scheme::all().len());
    assert!(flat.contains(&count), "there are {count}");
    let example = std::fs::read_to_string(filetest::root().join("examples/iris.rlx")).unwrap();
    let shown = page.split("```rlx\n").nth(1).and_then(|s| s.split("```").next()).unwrap();
    assert!(example.ends_with(shown), "the README shows another iris.rlx");
}

//! What is written about ops and errors is true.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx_conformance::{errordoc, filetest, opsdoc};
use rlx_ir::Code;

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

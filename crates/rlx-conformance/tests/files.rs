//! The file tests of `tests/ir`. After a change on purpose: `cargo run -p rlx-conformance --bin bless`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx_conformance::filetest;
use rlx_ir::text::{parse, print};

#[test]
fn file_tests() {
    let files = filetest::files().unwrap();
    assert!(files.len() >= 25, "only {} file tests", files.len());
    let mut failures = Vec::new();
    for path in &files {
        let text = std::fs::read_to_string(path).unwrap();
        let name = filetest::file_name(path);
        let (head, expected) = filetest::split(&text);
        let got = filetest::outcome(&name, head);
        if got != expected {
            failures.push(format!("--- {name}\n{}", difference(expected, &got)));
        }
    }
    assert!(
        failures.is_empty(),
        "{} of {} file tests fail\n{}",
        failures.len(),
        files.len(),
        failures.join("\n")
    );
}

/// Expectations that are graphs read back as what they print as.
#[test]
fn printed_graphs_read_back() {
    for path in filetest::files().unwrap() {
        let text = std::fs::read_to_string(&path).unwrap();
        let (_, expected) = filetest::split(&text);
        if expected.starts_with("graph ") {
            let f = parse(expected).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            assert_eq!(print(&f), expected, "{}", path.display());
        }
    }
}

/// The lines that differ, with the equal ones around the first.
fn difference(want: &str, got: &str) -> String {
    let (want, got): (Vec<&str>, Vec<&str>) = (want.lines().collect(), got.lines().collect());
    let same = want.iter().zip(&got).take_while(|(a, b)| a == b).count();
    let show = |mark: &str, lines: &[&str]| -> String {
        lines.iter().skip(same).take(12).map(|l| format!("{mark} {l}\n")).collect()
    };
    format!("from line {} of the expectation on:\n{}{}", same + 1, show("-", &want), show("+", &got))
}

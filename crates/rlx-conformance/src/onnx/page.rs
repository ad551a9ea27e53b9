//! `docs/onnx.md` and the list of passing cases, written from the op table and a run of the suite.

use super::Outcome;
use super::suite::{Case, KINDS};
use crate::filetest;
use rlx_ir::onnx::{self, How, Rule};
use rlx_ir::op::OpDef;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

const HEAD: &str = "\
How much of ONNX RLX can import, and what it cannot. Written by `cargo xtask bless` from the op table and a run of ONNX's \
own backend suite; a test fails when it is stale.
";

const OPS: &str = "\
The ops that a file may hold, with the versions of the operator set from which on each form is known, up to the newest; and \
the op of [ops.md](ops.md) in whose file the rule stands. What is not here is refused by \
[E0801](errors/E0801.md), all nodes at once, unless the model itself defines it as a function.
";

const SUITE: &str = "\
The cases of the Python package onnx, each imported and run by the reference interpreter and on the CPU, within the case's own \
tolerances. Counted are those whose types are floats of 64 to 16 bits, integers of 64 to 8 bits and bools; aside are strings, \
sequences, optionals, complex numbers, narrower types, other domains and the training preview: they are run, but no promise.
";

const MODELS: &str = "\
These models from the registries give what ONNX Runtime gives, at several sizes from one compilation: to 1e-4 of the largest \
number, or 1e-2 where weights or activations are in int8; more is allowed only where ONNX Runtime differs from itself by half \
as much when its optimisations are off or its weights are off by a rounding (`scripts/material_models.py` has their sources).";

/// Why some cases cannot pass, by the starts of their names.
const NOTES: &[(&str, &str)] = &[
    ("node/test_bernoulli", "the random numbers of another generator are wanted"),
    ("node/test_training_dropout", "the random numbers of another generator are wanted"),
    ("node/test_dft_inverse", "the wanted numbers are off by more than the tolerance where zeros are right"),
    ("node/test_attention_4d_causal_fp16_expanded", "the tolerance is below two roundings of f16"),
    ("node/test_image_decoder", "RLX decodes no images"),
];

/// The list of passing cases, which may only grow.
pub fn list_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("onnx-passing.txt")
}

/// The page.
pub fn page_path() -> PathBuf {
    filetest::root().join("docs/onnx.md")
}

/// The names in the text of the list.
pub fn listed(text: &str) -> BTreeSet<String> {
    text.lines().filter(|l| !l.is_empty()).map(str::to_owned).collect()
}

/// The list with what passes now added.
pub fn grown(text: &str, passing: impl IntoIterator<Item = String>) -> String {
    let mut names = listed(text);
    names.extend(passing);
    names.into_iter().map(|n| n + "\n").collect()
}

/// What the list and the results disagree about, in words.
pub fn disagreements<'a>(
    list: &BTreeSet<String>,
    results: impl Iterator<Item = (&'a str, &'a Outcome)>,
) -> Vec<String> {
    let told = |(name, outcome): (&str, &Outcome)| match (outcome, list.contains(name)) {
        (Outcome::Panic(e), _) => Some(format!("{name} panicked: {e}")),
        (Outcome::Fail(e), true) => Some(format!("{name} passed before: {e}")),
        (Outcome::Pass, false) => Some(format!("{name} passes and is not listed: cargo xtask bless adds it")),
        _ => None,
    };
    results.filter_map(told).collect()
}

/// How many of how many pass.
#[derive(Clone, Copy, Default)]
pub struct Share {
    /// Those that pass.
    pub passing: usize,
    /// All.
    pub all: usize,
}

impl Share {
    fn add(&mut self, outcome: &Outcome) {
        self.all += 1;
        self.passing += usize::from(*outcome == Outcome::Pass);
    }

    /// The part that passes; 1 of nothing.
    pub fn ratio(self) -> f64 {
        if self.all == 0 { 1.0 } else { self.passing as f64 / self.all as f64 }
    }
}

/// The shares of each part of the suite: counted, and aside.
pub fn shares(results: &[(&Case, Outcome)]) -> Vec<(&'static str, Share, Share)> {
    let of = |kind: &str, aside: bool| {
        let mut share = Share::default();
        let here = results.iter().filter(|(c, _)| c.kind() == kind && c.aside.is_empty() != aside);
        here.for_each(|(_, o)| share.add(o));
        share
    };
    KINDS.iter().map(|kind| (*kind, of(kind, false), of(kind, true))).collect()
}

/// The page.
pub fn render(results: &[(&Case, Outcome)], list: &BTreeSet<String>) -> String {
    let mut out = String::new();
    let done = write(&mut out, results, list);
    debug_assert!(done.is_ok(), "strings take everything");
    out
}

fn write(out: &mut String, results: &[(&Case, Outcome)], list: &BTreeSet<String>) -> std::fmt::Result {
    writeln!(out, "# ONNX\n\n{HEAD}")?;
    writeln!(out, "## The backend suite\n\n{SUITE}")?;
    writeln!(out, "| part | passing | of | | aside: passing | of |\n|---|---|---|---|---|---|")?;
    for (kind, counted, aside) in shares(results) {
        let percent = counted.ratio() * 100.0;
        let (a, b, c, d) = (counted.passing, counted.all, aside.passing, aside.all);
        writeln!(out, "| {kind} | {a} | {b} | {percent:.1} % | {c} | {d} |")?;
    }
    let models: Vec<&str> = list.iter().filter_map(|n| n.strip_prefix("model/")).collect();
    writeln!(out, "\n## Real models\n\n{MODELS}\n\n{}.", models.join(", "))?;
    write_failures(out, results)?;
    write_ops(out, results)
}

/// A reason without what is particular to one case.
fn brief(reason: &str) -> String {
    let mut text = reason.to_owned();
    if let Some(cut) = text.char_indices().nth(240).map(|(i, _)| i) {
        text.truncate(cut);
        text.push('…');
    }
    // What Markdown would take for a table, a tag or emphasis.
    text.replace('|', "\\|").replace('<', "&lt;").replace('*', "\\*").replace('_', "\\_")
}

fn write_failures(out: &mut String, results: &[(&Case, Outcome)]) -> std::fmt::Result {
    for (title, aside) in [("What fails", false), ("What fails of those aside", true)] {
        writeln!(out, "\n## {title}\n\n| case | why |\n|---|---|")?;
        for (case, outcome) in results.iter().filter(|(c, _)| c.aside.is_empty() != aside) {
            if let Outcome::Fail(why) | Outcome::Panic(why) = outcome {
                let tags = if aside { format!(" ({})", case.aside.join(", ")) } else { String::new() };
                let note = NOTES.iter().find(|(start, _)| case.name.starts_with(start));
                let note = note.map(|(_, text)| format!("{text}; ")).unwrap_or_default();
                writeln!(out, "| `{}`{tags} | {note}{} |", case.name, brief(why))?;
            }
        }
    }
    Ok(())
}

fn write_ops(out: &mut String, results: &[(&Case, Outcome)]) -> std::fmt::Result {
    let mut suite: BTreeMap<&str, Share> = BTreeMap::new();
    for (case, outcome) in results.iter().filter(|(c, _)| c.aside.is_empty()) {
        let ops: BTreeSet<&str> = case.ops.iter().map(String::as_str).collect();
        ops.into_iter().for_each(|op| suite.entry(op).or_default().add(outcome));
    }
    let mut rules: BTreeMap<(&str, &str), Vec<(Rule, &OpDef)>> = BTreeMap::new();
    for (rule, def) in onnx::rules() {
        rules.entry((rule.domain, rule.name)).or_default().push((rule, def));
    }
    writeln!(out, "\n## Ops\n\n{OPS}")?;
    writeln!(
        out,
        "| ONNX op | from version | op | counted cases with it: passing | of |\n|---|---|---|---|---|"
    )?;
    for ((domain, name), list) in &rules {
        let since: BTreeSet<i64> = list.iter().map(|(r, _)| r.since).collect();
        let since: Vec<String> = since.into_iter().map(|v| v.to_string()).collect();
        let defs: BTreeSet<&str> = list.iter().map(|(_, d)| d.name).collect();
        let defs: Vec<String> = defs.into_iter().map(|d| format!("[{d}](ops.md#{d})")).collect();
        let domain = if domain.is_empty() { String::new() } else { format!("{domain}.") };
        let (passing, all) = match suite.get(name).filter(|_| domain.is_empty()) {
            Some(share) => (share.passing.to_string(), share.all.to_string()),
            None => Default::default(),
        };
        writeln!(out, "| {domain}{name} | {} | {} | {passing} | {all} |", since.join(", "), defs.join(", "))?;
    }
    let lacking: Vec<String> = suite
        .iter()
        .filter(|(op, _)| !rules.contains_key(&("", **op)))
        .map(|(op, share)| format!("{op} ({} of {} cases)", share.all - share.passing, share.all))
        .collect();
    if !lacking.is_empty() {
        writeln!(out, "\nOps of counted cases without a rule: {}.", lacking.join(", "))?;
    }
    let by_hand = onnx::rules().iter().filter(|(r, _)| matches!(r.how, How::By(_))).count();
    let count = rules.len();
    writeln!(out, "\n{count} ops in all, by {} rules, of which {by_hand} are functions.", onnx::rules().len())
}

//! `cargo xtask test`: what a change must pass, as two tables.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::run::{Cmd, Result, Tally};
use crate::{material, walkthrough};

/// Something that the steps need on the machine.
struct SetUp {
    name: &'static str,
    /// Succeeds when it is there already.
    probe: &'static [&'static str],
    /// Makes it be there; without one, its absence is an error.
    install: Option<&'static [&'static str]>,
}

const SET_UP: &[SetUp] = &[
    SetUp { name: "git", probe: &["git", "--version"], install: None },
    SetUp {
        name: "rustfmt",
        probe: &["cargo", "fmt", "--version"],
        install: Some(&["rustup", "component", "add", "rustfmt"]),
    },
    SetUp {
        name: "clippy",
        probe: &["cargo", "clippy", "--version"],
        install: Some(&["rustup", "component", "add", "clippy"]),
    },
];

struct Step {
    name: &'static str,
    /// Kept by `--fast`.
    fast: bool,
    work: Work,
}

enum Work {
    SetUp,
    /// Arguments of `cargo`, and a variable for its environment.
    Cargo(&'static str, Option<(&'static str, &'static str)>),
    /// Arguments of `cargo` for tests, whose closing lines come again at the end.
    Tests(&'static str),
    Material,
    Walkthrough,
}

/// Cheapest first, so that a slip is told within seconds.
///
/// The runner is plain `cargo test`, not nextest: it is there wherever cargo is, so a fresh machine and a
/// desk run the same thing, and one process per test program (nextest: per test) pays for opening a
/// device or mapping a model once.
const STEPS: &[Step] = &[
    Step { name: "set-up", fast: true, work: Work::SetUp },
    Step { name: "format", fast: true, work: Work::Cargo("fmt --all --check", None) },
    Step {
        name: "clippy",
        fast: true,
        work: Work::Cargo("clippy --workspace --all-targets -- -D warnings", None),
    },
    Step {
        name: "docs",
        fast: false,
        work: Work::Cargo("doc --workspace --no-deps", Some(("RUSTDOCFLAGS", "-D warnings"))),
    },
    Step { name: "material", fast: true, work: Work::Material },
    Step { name: "tests", fast: true, work: Work::Tests("test --workspace --all-targets") },
    Step { name: "doc tests", fast: true, work: Work::Tests("test --workspace --doc") },
    Step { name: "walk-through", fast: false, work: Work::Walkthrough },
];

/// Runs the steps up to the first failure.
pub fn test(root: &Path, fast: bool) -> Result<()> {
    let steps: Vec<&Step> = STEPS.iter().filter(|s| s.fast || !fast).collect();
    let start = Instant::now();
    let mut times: Vec<(&str, Duration)> = Vec::new();
    let mut closing = Vec::new();
    for (i, step) in steps.iter().enumerate() {
        println!("\n=== {}/{} {} (at {:.1} s)", i + 1, steps.len(), step.name, start.elapsed().as_secs_f64());
        let begun = Instant::now();
        if let Err(e) = step.work.perform(root, &mut closing) {
            let took = begun.elapsed().as_secs_f64();
            let name = step.name;
            return Err(format!(
                "step `{name}` failed after {took:.1} s: {e}\n  again: {}",
                step.work.rerun()
            ));
        }
        times.push((step.name, begun.elapsed()));
    }

    println!("\n=== all steps passed");
    for (name, took) in times {
        println!("{name:<14}{:>8.1} s", took.as_secs_f64());
    }
    println!("{:<14}{:>8.1} s\n", "total", start.elapsed().as_secs_f64());
    let mut tally = Tally::default();
    for line in &closing {
        tally.add(line);
        println!("{line}");
    }
    println!("{tally}");
    Ok(())
}

impl Work {
    fn command(&self) -> Option<Cmd> {
        match *self {
            Self::Cargo(args, Some((key, value))) => Some(Cmd::cargo(args).env(key, value)),
            Self::Cargo(args, None) | Self::Tests(args) => Some(Cmd::cargo(args)),
            Self::SetUp | Self::Material | Self::Walkthrough => None,
        }
    }

    fn perform(&self, root: &Path, closing: &mut Vec<String>) -> Result<()> {
        match (self, self.command()) {
            (Self::Tests(_), Some(cmd)) => cmd.run_watched(root, |line| {
                // Programs without a test say nothing worth reading twice.
                if line.starts_with("test result: ") && !line.contains(" 0 passed; 0 failed; 0 ignored") {
                    closing.push(line.to_owned());
                }
            }),
            (_, Some(cmd)) => cmd.run(root),
            (Self::Walkthrough, None) => walkthrough::run(root),
            (Self::Material, None) => material::prepare(root).map(drop),
            (_, None) => SET_UP.iter().try_for_each(|row| row.ensure(root)),
        }
    }

    /// What to type to see this step fail again.
    fn rerun(&self) -> String {
        match (self, self.command()) {
            (_, Some(cmd)) => cmd.to_string(),
            (Self::Walkthrough, None) => "cargo xtask walkthrough".to_owned(),
            (Self::Material, None) => "cargo xtask material".to_owned(),
            (_, None) => "cargo xtask test".to_owned(),
        }
    }
}

impl SetUp {
    fn ensure(&self, root: &Path) -> Result<()> {
        let Err(missing) = command(self.probe)?.read(root) else {
            println!("{}: present", self.name);
            return Ok(());
        };
        let Some(install) = self.install else {
            return Err(format!("{} is missing: {missing}", self.name));
        };
        let install = command(install)?;
        println!("{}: missing; running `{install}`", self.name);
        install.run(root)?;
        command(self.probe)?.read(root).map(drop)
    }
}

fn command(words: &[&str]) -> Result<Cmd> {
    let (program, args) = words.split_first().ok_or("a set-up row has an empty command")?;
    Ok(Cmd::new(program).args(args.iter().copied()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_up_names_what_is_missing() {
        let row = SetUp { name: "unobtainium", probe: &["no-such-program-here"], install: None };
        let err = row.ensure(Path::new(".")).unwrap_err();
        assert!(err.contains("unobtainium is missing"), "{err}");
    }

    #[test]
    fn set_up_installs_and_looks_again() {
        let row = SetUp { name: "futile", probe: &["false"], install: Some(&["true"]) };
        assert!(row.ensure(Path::new(".")).is_err());
    }

    #[test]
    fn each_step_can_be_run_again() {
        for step in STEPS {
            assert!(step.work.rerun().contains("cargo"), "{}", step.name);
        }
    }
}

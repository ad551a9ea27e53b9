//! Starting other programs, with errors that say what to type to see the failure again.

use std::ffi::OsStr;
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The error is a message for a person: nothing here is handled by code.
pub type Result<T> = std::result::Result<T, String>;

/// A program with its arguments and environment. Its `Display` form can be pasted into a shell.
#[derive(Clone, Debug)]
pub struct Cmd {
    program: PathBuf,
    args: Vec<String>,
    env: Vec<(String, String)>,
}

impl Cmd {
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), args: Vec::new(), env: Vec::new() }
    }

    /// `cargo` with blank-separated arguments.
    pub fn cargo(args: &str) -> Self {
        Self::new("cargo").args(args.split_whitespace())
    }

    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    pub fn env(mut self, key: &str, value: impl Into<String>) -> Self {
        self.env.push((key.to_owned(), value.into()));
        self
    }

    /// Runs with this process's own input and output.
    pub fn run(&self, dir: &Path) -> Result<()> {
        let mut child = self.command(dir).spawn().map_err(|e| self.cannot_start(&e))?;
        self.finish(&mut child)
    }

    /// Runs as [`Cmd::run`] does, and also hands each line of standard output to `seen`.
    pub fn run_watched(&self, dir: &Path, mut seen: impl FnMut(&str)) -> Result<()> {
        let mut child =
            self.command(dir).stdout(Stdio::piped()).spawn().map_err(|e| self.cannot_start(&e))?;
        if let Some(pipe) = child.stdout.take() {
            let mut lines = BufReader::new(pipe);
            let mut line = Vec::new();
            let mut out = std::io::stdout();
            loop {
                line.clear();
                let n = lines.read_until(b'\n', &mut line).map_err(|e| format!("`{self}`: {e}"))?;
                if n == 0 {
                    break;
                }
                // A closed terminal must not stop the run: the exit code still counts.
                let _ = out.write_all(&line).and_then(|()| out.flush());
                seen(String::from_utf8_lossy(&line).trim_end());
            }
        }
        self.finish(&mut child)
    }

    /// Runs silently and gives what was written to standard output.
    pub fn read(&self, dir: &Path) -> Result<Vec<u8>> {
        let out = self.command(dir).stdin(Stdio::null()).output().map_err(|e| self.cannot_start(&e))?;
        if out.status.success() {
            Ok(out.stdout)
        } else {
            let why = String::from_utf8_lossy(&out.stderr);
            Err(format!("`{self}` failed ({}): {}", out.status, why.trim()))
        }
    }

    fn command(&self, dir: &Path) -> Command {
        let mut c = Command::new(&self.program);
        c.args(&self.args).envs(self.env.iter().map(|(k, v)| (k, v))).current_dir(dir);
        c
    }

    fn finish(&self, child: &mut std::process::Child) -> Result<()> {
        let status = child.wait().map_err(|e| format!("`{self}`: {e}"))?;
        if status.success() { Ok(()) } else { Err(format!("`{self}` failed ({status})")) }
    }

    fn cannot_start(&self, e: &std::io::Error) -> String {
        format!("`{}` could not be started: {e}", self.program.display())
    }
}

impl fmt::Display for Cmd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (key, value) in &self.env {
            write!(f, "{key}={} ", quoted(value))?;
        }
        write!(f, "{}", quoted(&self.program.to_string_lossy()))?;
        self.args.iter().try_for_each(|a| write!(f, " {}", quoted(a)))
    }
}

/// `word` as a POSIX shell must see it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// The counts in libtest's closing lines (`test result: ok. 3 passed; 0 failed; …`), summed over test programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub programs: u64,
    pub passed: u64,
    pub failed: u64,
    pub ignored: u64,
}

impl Tally {
    /// Adds the counts of `line`, if it is a closing line.
    pub fn add(&mut self, line: &str) {
        let Some(rest) = line.trim_start().strip_prefix("test result: ") else { return };
        self.programs += 1;
        for part in rest.split(['.', ';']) {
            let mut words = part.split_whitespace();
            let (Some(Ok(n)), Some(what)) = (words.next().map(str::parse::<u64>), words.next()) else {
                continue;
            };
            match what {
                "passed" => self.passed += n,
                "failed" => self.failed += n,
                "ignored" => self.ignored += n,
                _ => {}
            }
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { programs, passed, failed, ignored } = self;
        let run = passed + failed;
        write!(
            f,
            "{run} tests run: {passed} passed, {failed} failed, {ignored} ignored ({programs} test programs)"
        )
    }
}

/// Reads a file, naming it in the error.
pub fn read_text(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// Writes a file with its parent folders, naming it in the error.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    made.and_then(|()| std::fs::write(path, bytes)).map_err(|e| format!("{}: {e}", path.display()))
}

/// Whether `path` ends in `.EXT`.
pub fn has_extension(path: &Path, ext: &str) -> bool {
    path.extension() == Some(OsStr::new(ext))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_print_as_shell() {
        let c = Cmd::cargo("doc --no-deps").env("RUSTDOCFLAGS", "-D warnings").args(["it's"]);
        assert_eq!(c.to_string(), r"RUSTDOCFLAGS='-D warnings' cargo doc --no-deps 'it'\''s'");
    }

    #[test]
    fn tallies_add_up() {
        let mut t = Tally::default();
        t.add("running 2 tests");
        t.add(
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 9 filtered out; finished in 0.12s",
        );
        t.add("test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s");
        assert_eq!(t, Tally { programs: 2, passed: 4, failed: 2, ignored: 1 });
    }

    #[test]
    fn a_failing_program_is_named() {
        let err = Cmd::new("false").run(Path::new(".")).unwrap_err();
        assert!(err.starts_with("`false` failed"), "{err}");
        let err = Cmd::new("no-such-program-here").run(Path::new(".")).unwrap_err();
        assert!(err.contains("no-such-program-here"), "{err}");
    }
}

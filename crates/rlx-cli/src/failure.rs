//! What goes wrong, and the exit code that says whose fault it is.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

pub(crate) struct Failure {
    /// 2 for a bad call, 1 for the rest, 0 if nobody reads the output any more.
    code: u8,
    line: String,
    /// Further lines, for people: the place in a text.
    more: Option<String>,
}

impl Failure {
    /// The call itself is wrong.
    pub(crate) fn call(line: impl Into<String>) -> Failure {
        Failure { code: 2, line: line.into(), more: None }
    }

    /// Everything else.
    pub(crate) fn other(line: impl Into<String>) -> Failure {
        Failure { code: 1, line: line.into(), more: None }
    }

    /// One line on stderr; a terminal also gets the place in the text.
    pub(crate) fn report(self) -> ExitCode {
        let mut err = io::stderr().lock();
        if self.code != 0 {
            // Nobody is left to be told if this fails.
            let _ = writeln!(err, "rlx: {}", readable(&self.line));
            if let Some(more) = self.more.filter(|_| err.is_terminal()) {
                let _ = writeln!(err, "{more}");
            }
        }
        ExitCode::from(self.code)
    }
}

/// One line without control characters, which would steer a terminal, and without the middle if it is long: the names
/// in a message may come from a file that means no good.
pub(crate) fn readable(line: &str) -> String {
    const HEAD: usize = 1500;
    const TAIL: usize = 400;
    let chars: Vec<char> = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match (chars.get(..HEAD), chars.len().checked_sub(TAIL).and_then(|at| chars.get(at..))) {
        (Some(head), Some(tail)) if chars.len() > HEAD + TAIL => {
            head.iter().chain(&[' ', '…', ' ']).chain(tail).collect()
        }
        _ => chars.into_iter().collect(),
    }
}

impl From<rlx::Error> for Failure {
    fn from(e: rlx::Error) -> Failure {
        let text = e.to_string();
        match text.split_once('\n') {
            Some((line, more)) => Failure { code: 1, line: line.into(), more: Some(more.into()) },
            None => Failure::other(text),
        }
    }
}

/// Of stdout: files say their names, see [`Context`].
impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Failure {
        let code = if e.kind() == io::ErrorKind::BrokenPipe { 0 } else { 1 };
        Failure { code, ..Failure::other(format!("stdout: {e}")) }
    }
}

/// Says what an error is about.
pub(crate) trait Context<T> {
    fn about(self, what: impl Display) -> Result<T>;
}

impl<T, E: Display> Context<T> for std::result::Result<T, E> {
    fn about(self, what: impl Display) -> Result<T> {
        self.map_err(|e| Failure::other(format!("{what}: {e}")))
    }
}

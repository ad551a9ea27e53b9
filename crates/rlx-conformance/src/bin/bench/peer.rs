//! The other side: a process that answers a line with a line.

use crate::Result;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A running script of `scripts/`. It ends when its input does.
pub struct Peer {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Peer {
    pub fn start(python: &str, script: &str, args: &[&str]) -> Result<Peer> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts").join(script);
        let mut child = Command::new(python)
            .arg(&script)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("{python} {}: {e}", script.display()))?;
        let to = child.stdin.take();
        let from = BufReader::new(child.stdout.take().ok_or("the peer has no output")?);
        Ok(Peer { child, to, from })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn ask(&mut self, line: &str) -> Result<String> {
        writeln!(self.to.as_ref().ok_or("the peer has ended")?, "{line}")?;
        let mut answer = String::new();
        self.from.read_line(&mut answer)?;
        Ok(answer.trim().to_owned())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.to = None;
        // Whether it ended well is of no interest any more.
        let _ = self.child.wait();
    }
}

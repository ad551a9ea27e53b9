//! The fenced blocks of a Markdown page that are instructions: edits of files, and commands.
//!
//! ````text
//! ```rust file=src/new.rs                      the block is the whole file
//! ```rust insert=src/old.rs after="// here"    its lines go after the first line that has the marker
//! ```sh walkthrough                            each line is a command
//! ````
//! Every other fenced block is prose.

use std::path::{Component, Path, PathBuf};

use crate::run::Result;

/// One instruction of the page.
#[derive(Debug, PartialEq, Eq)]
pub enum Block {
    File { line: usize, path: PathBuf, text: String },
    Insert { line: usize, path: PathBuf, after: String, text: String },
    Commands { line: usize, commands: Vec<String> },
}

/// All instructions of `page`, in order. Lines count from 1.
pub fn extract(page: &str) -> Result<Vec<Block>> {
    let mut blocks = Vec::new();
    let mut lines = page.lines().enumerate();
    while let Some((n, opening)) = lines.next() {
        let Some(fence) = Fence::open(opening) else { continue };
        let line = n + 1;
        let mut text = String::new();
        loop {
            let Some((_, inner)) = lines.next() else {
                return Err(format!("line {line}: this fence is never closed"));
            };
            if fence.is_closed_by(inner) {
                break;
            }
            text.push_str(inner);
            text.push('\n');
        }
        blocks.extend(block(line, fence.info, text).map_err(|e| format!("line {line}: {e}"))?);
    }
    Ok(blocks)
}

/// `old` with `text` after its first line that contains `marker`; none if no line does.
pub fn insert_after(old: &str, marker: &str, text: &str) -> Option<String> {
    let mut new = String::with_capacity(old.len() + text.len());
    let mut rest = old.split_inclusive('\n');
    for line in rest.by_ref() {
        new.push_str(line);
        if line.contains(marker) {
            if !new.ends_with('\n') {
                new.push('\n');
            }
            new.push_str(text);
            new.extend(rest);
            return Some(new);
        }
    }
    None
}

/// An opening fence as CommonMark has it: up to three blanks, three or more of one mark, an info string.
struct Fence<'a> {
    mark: char,
    width: usize,
    info: &'a str,
}

impl<'a> Fence<'a> {
    fn open(line: &'a str) -> Option<Self> {
        let bare = line.trim_start_matches(' ');
        let mark = bare.chars().next().filter(|c| matches!(c, '`' | '~'))?;
        let info = bare.trim_start_matches(mark);
        let width = bare.len() - info.len();
        // Backticks in the info string make it an inline code span instead.
        let fence = line.len() - bare.len() <= 3 && width >= 3 && !(mark == '`' && info.contains('`'));
        fence.then_some(Self { mark, width, info: info.trim() })
    }

    fn is_closed_by(&self, line: &str) -> bool {
        let bare = line.trim_start_matches(' ');
        let after = bare.trim_start_matches(self.mark);
        line.len() - bare.len() <= 3 && bare.len() - after.len() >= self.width && after.trim().is_empty()
    }
}

fn block(line: usize, info: &str, text: String) -> Result<Option<Block>> {
    let words = words(info)?;
    let (mut file, mut insert, mut after, mut commands) = (None, None, None, false);
    for (key, value) in words.iter().skip(1) {
        match (key.as_str(), value) {
            ("file", Some(v)) => file = Some(inside(v)?),
            ("insert", Some(v)) => insert = Some(inside(v)?),
            ("after", Some(v)) => after = Some(v.clone()),
            ("walkthrough", None) => commands = true,
            _ => {}
        }
    }
    match (file, insert, after, commands) {
        (None, None, None, false) => Ok(None),
        (Some(path), None, None, false) => Ok(Some(Block::File { line, path, text })),
        (None, Some(path), Some(after), false) if !after.is_empty() => {
            Ok(Some(Block::Insert { line, path, after, text }))
        }
        (None, None, None, true) => {
            let said = text.lines().map(|l| l.trim().trim_start_matches("$ "));
            let commands = said.filter(|l| !l.is_empty() && !l.starts_with('#')).map(str::to_owned).collect();
            Ok(Some(Block::Commands { line, commands }))
        }
        _ => Err(format!("`{info}` is none of `file=PATH`, `insert=PATH after=\"MARKER\"`, `walkthrough`")),
    }
}

/// An info string as `word`, `key=value` and `key="a value"`.
fn words(info: &str) -> Result<Vec<(String, Option<String>)>> {
    let mut words = Vec::new();
    let mut rest = info.trim();
    while !rest.is_empty() {
        let end = rest.find(|c: char| c == '=' || c.is_whitespace()).unwrap_or(rest.len());
        let (key, tail) = rest.split_at(end);
        let (value, tail) = match tail.strip_prefix('=') {
            None => (None, tail),
            Some(tail) => match tail.strip_prefix('"') {
                Some(quoted) => {
                    let (value, tail) = quoted
                        .split_once('"')
                        .ok_or_else(|| format!("the quote after `{key}=` is never closed"))?;
                    (Some(value), tail)
                }
                None => {
                    let (value, tail) = tail.split_at(tail.find(char::is_whitespace).unwrap_or(tail.len()));
                    (Some(value), tail)
                }
            },
        };
        words.push((key.to_owned(), value.map(str::to_owned)));
        rest = tail.trim_start();
    }
    Ok(words)
}

/// `path`, if it cannot lead out of the workspace.
fn inside(path: &str) -> Result<PathBuf> {
    let p = Path::new(path);
    if !path.is_empty() && p.components().all(|c| matches!(c, Component::Normal(_))) {
        Ok(p.to_path_buf())
    } else {
        Err(format!("`{path}` is not a plain path inside the workspace"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_three_kinds_and_skips_prose() {
        let page = "\
# Title
```rust
let prose = 1;
```
```rust file=a/b.rs
//! New.

fn f() {}
```
text
~~~rust insert=c.rs after=\"// <walk through>\"
    one
~~~
```sh walkthrough
# why
$ cargo test x

cargo test y
```
";
        let text = |t: &str| t.to_owned();
        let want = [
            Block::File { line: 5, path: "a/b.rs".into(), text: text("//! New.\n\nfn f() {}\n") },
            Block::Insert {
                line: 11,
                path: "c.rs".into(),
                after: text("// <walk through>"),
                text: text("    one\n"),
            },
            Block::Commands { line: 14, commands: vec![text("cargo test x"), text("cargo test y")] },
        ];
        assert_eq!(extract(page).unwrap(), want);
    }

    #[test]
    fn a_wider_fence_holds_narrower_ones() {
        let page = "````text\n```rust file=a.rs\n```\n````\n";
        assert_eq!(extract(page).unwrap(), []);
        let page = "````md file=a.md\n```\nx\n```\n````\n";
        let want = Block::File { line: 1, path: "a.md".into(), text: "```\nx\n```\n".into() };
        assert_eq!(extract(page).unwrap(), [want]);
    }

    #[test]
    fn slips_are_errors_with_their_line() {
        for (page, want) in [
            ("\n```rust file=a.rs\nfn", "line 2: this fence is never closed"),
            ("```rust file=../a.rs\n```", "line 1: `../a.rs` is not a plain path"),
            ("```rust file=/a.rs\n```", "line 1: `/a.rs` is not a plain path"),
            ("```rust file=\n```", "line 1: `` is not a plain path"),
            ("```rust insert=a.rs\n```", "line 1: `rust insert=a.rs` is none of"),
            ("```rust insert=a.rs after=\"\"\n```", "is none of"),
            ("```rust file=a.rs insert=b.rs after=x\n```", "is none of"),
            ("```rust insert=a.rs after=\"x\n```", "the quote after `after=` is never closed"),
        ] {
            let err = extract(page).unwrap_err();
            assert!(err.contains(want), "{page:?}: {err}");
        }
    }

    #[test]
    fn inserts_after_the_first_marker_only() {
        assert_eq!(insert_after("a\n// M\nb\n// M\n", "// M", "x\n").unwrap(), "a\n// M\nx\nb\n// M\n");
        assert_eq!(insert_after("a\n// M", "// M", "x\n").unwrap(), "a\n// M\nx\n");
        assert_eq!(insert_after("a\n", "// M", "x\n"), None);
    }
}

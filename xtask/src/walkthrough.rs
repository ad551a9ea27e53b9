//! `cargo xtask walkthrough`: does what ARCHITECTURE.md tells a newcomer to do, in a copy of the workspace.
//!
//! The page's blocks (see [`crate::blocks`]) are applied to the copy, each must touch exactly one file, the
//! copy must then differ from the workspace in those files and no others, and the page's commands must pass
//! there. So the promise that an op is written in one place is tested, not only made.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::blocks::{Block, extract, insert_after};
use crate::run::{Cmd, Result, Tally, read_text, write};

const PAGE: &str = "ARCHITECTURE.md";
const COPY: &str = "target/walkthrough";
const COPY_TARGET: &str = "target/walkthrough-target";

/// Follows the page.
pub fn run(root: &Path) -> Result<()> {
    let page = root.join(PAGE);
    if !page.exists() {
        return Err(format!("{PAGE} is missing: the walk-through is read from its fenced blocks"));
    }
    let blocks = extract(&read_text(&page)?).map_err(|e| format!("{PAGE}, {e}"))?;
    let edits = edits(root, &blocks)?;
    let commands = commands(&blocks)?;

    let copy = root.join(COPY);
    let original = listed(root)?;
    sync(root, &original, &edits, &copy)?;
    let touched = differing(root, &original, &copy)?;
    if !touched.iter().eq(edits.keys()) {
        let told: Vec<_> = edits.keys().collect();
        return Err(format!("{PAGE} edits {told:?}, yet the copy differs in {touched:?}"));
    }
    for path in &touched {
        println!("written by hand: {}", path.display());
    }

    let target = root.join(COPY_TARGET);
    for command in commands {
        println!("$ {command}");
        let shell = Cmd::new("sh").args(["-c", command]).env("CARGO_TARGET_DIR", target.to_string_lossy());
        let mut tally = Tally::default();
        shell.run_watched(&copy, |line| tally.add(line)).map_err(|e| format!("in {COPY}: {e}"))?;
        if command.starts_with("cargo test") && tally.passed == 0 {
            return Err(format!("`{command}` ran no test, so it proves nothing"));
        }
    }
    for path in differing(root, &original, &copy)?.difference(&touched) {
        println!("rewritten by the commands: {}", path.display());
    }
    Ok(())
}

/// The new text of each file that the blocks touch.
fn edits(root: &Path, blocks: &[Block]) -> Result<BTreeMap<PathBuf, String>> {
    let mut edits: BTreeMap<PathBuf, String> = BTreeMap::new();
    for block in blocks {
        let (line, path, new) = match block {
            Block::Commands { .. } => continue,
            Block::File { line, path, text } => (line, path, text.clone()),
            Block::Insert { line, path, after, text } => {
                let at = |e| format!("{PAGE}, line {line}: {e}");
                let old = edits.get(path).cloned().map_or_else(|| read_text(&root.join(path)), Ok);
                let new = insert_after(&old.map_err(at)?, after, text)
                    .ok_or_else(|| at(format!("no line of {} contains `{after}`", path.display())))?;
                (line, path, new)
            }
        };
        let old = edits.get(path).cloned().or_else(|| fs::read_to_string(root.join(path)).ok());
        if old.as_ref() == Some(&new) {
            let path = path.display();
            return Err(format!(
                "{PAGE}, line {line}: must touch exactly one file, but {path} says this already"
            ));
        }
        edits.insert(path.clone(), new);
    }
    if edits.is_empty() {
        return Err(format!("{PAGE} has no block with `file=` or `insert=`"));
    }
    Ok(edits)
}

fn commands(blocks: &[Block]) -> Result<Vec<&String>> {
    let mut all = Vec::new();
    for block in blocks {
        if let Block::Commands { line, commands } = block {
            if commands.is_empty() {
                return Err(format!("{PAGE}, line {line}: a block of commands without a command"));
            }
            all.extend(commands);
        }
    }
    if all.is_empty() { Err(format!("{PAGE} has no block `sh walkthrough` with commands")) } else { Ok(all) }
}

/// The workspace's files: tracked, or new and not ignored.
fn listed(root: &Path) -> Result<BTreeSet<PathBuf>> {
    let git = Cmd::new("git").args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let names = String::from_utf8(git.read(root)?).map_err(|e| format!("a file's name is not UTF-8: {e}"))?;
    // A tracked file may be gone from the working tree.
    Ok(names.split_terminator('\0').map(PathBuf::from).filter(|p| root.join(p).is_file()).collect())
}

/// Makes `copy` hold the `original` files with `edits` applied, and nothing else. Files that are right
/// already keep their times, so that cargo rebuilds only what changed since the last walk.
fn sync(
    root: &Path,
    original: &BTreeSet<PathBuf>,
    edits: &BTreeMap<PathBuf, String>,
    copy: &Path,
) -> Result<()> {
    for path in present(copy)? {
        if !original.contains(&path) && !edits.contains_key(&path) {
            let stale = copy.join(path);
            fs::remove_file(&stale).map_err(|e| format!("{}: {e}", stale.display()))?;
        }
    }
    for (path, text) in edits {
        let to = copy.join(path);
        if fs::read(&to).ok().as_deref() != Some(text.as_bytes()) {
            write(&to, text.as_bytes())?;
        }
    }
    for path in original.iter().filter(|p| !edits.contains_key(*p)) {
        let (from, to) = (root.join(path), copy.join(path));
        if !same(&from, &to) {
            let made = to.parent().map_or(Ok(()), fs::create_dir_all);
            let copied = made.and_then(|()| fs::copy(&from, &to));
            copied.map_err(|e| format!("{} to {}: {e}", from.display(), to.display()))?;
        }
    }
    Ok(())
}

/// The files that are new, gone or different in `copy`.
fn differing(root: &Path, original: &BTreeSet<PathBuf>, copy: &Path) -> Result<BTreeSet<PathBuf>> {
    let present = present(copy)?;
    Ok(original.union(&present).filter(|p| !same(&root.join(p), &copy.join(p))).cloned().collect())
}

fn same(a: &Path, b: &Path) -> bool {
    let size = |p: &Path| fs::metadata(p).ok().filter(fs::Metadata::is_file).map(|m| m.len());
    match (size(a), size(b)) {
        (Some(n), Some(m)) if n == m => matches!((fs::read(a), fs::read(b)), (Ok(x), Ok(y)) if x == y),
        _ => false,
    }
}

/// All files under `dir`, relative to it.
fn present(dir: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let full = dir.join(&folder);
        if !full.exists() {
            continue;
        }
        let at = |e: std::io::Error| format!("{}: {e}", full.display());
        for entry in fs::read_dir(&full).map_err(at)? {
            let entry = entry.map_err(at)?;
            let path = folder.join(entry.file_name());
            if entry.file_type().map_err(at)?.is_dir() {
                folders.push(path);
            } else {
                found.insert(path);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fresh folder that goes away with the value.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("rlx-xtask-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir_all(&dir).unwrap();
            Self(dir)
        }

        fn put(&self, path: &str, text: &str) {
            write(&self.0.join(path), text.as_bytes()).unwrap();
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn repository(name: &str) -> Scratch {
        let s = Scratch::new(name);
        Cmd::new("git").args(["init", "--quiet"]).run(&s.0).unwrap();
        s.put(".gitignore", "/target\n");
        s.put("src/table.rs", "// <walk-through>\nend\n");
        s
    }

    #[test]
    fn follows_a_page() {
        let s = repository("follows");
        s.put(
            PAGE,
            "```rust file=src/new.rs\nnew\n```\n```rust insert=src/table.rs after=\"<walk-through>\"\nrow\n```\n\
             ```sh walkthrough\ngrep -q new src/new.rs\ngrep -q row src/table.rs\n```\n",
        );
        // The second walk finds the first one's copy.
        for _ in 0..2 {
            run(&s.0).unwrap();
        }
        assert_eq!(read_text(&s.0.join(COPY).join("src/table.rs")).unwrap(), "// <walk-through>\nrow\nend\n");
        assert!(!s.0.join("src/new.rs").exists(), "the workspace itself is left alone");
        s.put("src/late.rs", "late\n");
        fs::remove_file(s.0.join(COPY).join("src/new.rs")).unwrap();
        s.put("target/walkthrough/src/stale.rs", "stale\n");
        run(&s.0).unwrap();
        assert!(s.0.join(COPY).join("src/late.rs").exists());
        assert!(!s.0.join(COPY).join("src/stale.rs").exists());
    }

    #[test]
    fn false_pages_are_told_apart() {
        let s = repository("false");
        assert!(run(&s.0).unwrap_err().contains("ARCHITECTURE.md is missing"));
        let edit = "```rust file=src/new.rs\nnew\n```\n";
        for (page, want) in [
            ("no blocks\n".to_owned(), "no block with `file=`"),
            (edit.to_owned(), "no block `sh walkthrough`"),
            (format!("{edit}```sh walkthrough\n# nothing\n```\n"), "without a command"),
            (format!("{edit}{edit}```sh walkthrough\ntrue\n```\n"), "line 4: must touch exactly one file"),
            (format!("{edit}```sh walkthrough\nfalse\n```\n"), "sh -c false` failed"),
            (format!("{edit}```sh walkthrough\ncargo test --help >/dev/null\n```\n"), "ran no test"),
            ("```rust insert=src/table.rs after=\"nowhere\"\nx\n```\n".to_owned(), "contains `nowhere`"),
            ("```rust insert=src/none.rs after=\"x\"\nx\n```\n".to_owned(), "line 1: "),
        ] {
            s.put(PAGE, &page);
            let err = run(&s.0).unwrap_err();
            assert!(err.contains(want), "{page:?}: {err}");
        }
    }
}

//! Writes what is generated: the expectations of the file tests, `docs/ops.md`, and the messages in `docs/errors/`.
//! Look at the difference before you commit it.

use rlx_conformance::{errordoc, filetest, opsdoc};
use rlx_ir::Code;
use std::path::Path;
use std::{fs, io};

fn main() -> io::Result<()> {
    let mut changed = 0;
    for path in filetest::files()? {
        let text = fs::read_to_string(&path)?;
        changed += update(&path, &text, &filetest::blessed(&filetest::file_name(&path), &text))?;
    }
    let root = filetest::root();
    for code in Code::ALL {
        let path = root.join(format!("docs/errors/{}.md", code.id()));
        let text = fs::read_to_string(&path)?;
        changed += update(&path, &text, &errordoc::blessed(*code, &text))?;
    }
    let path = root.join("docs/ops.md");
    let old = fs::read_to_string(&path).unwrap_or_default();
    changed += update(&path, &old, &opsdoc::render())?;
    println!("{changed} files changed");
    Ok(())
}

fn update(path: &Path, old: &str, new: &str) -> io::Result<usize> {
    if old == new {
        return Ok(0);
    }
    fs::write(path, new)?;
    println!("{}", path.display());
    Ok(1)
}

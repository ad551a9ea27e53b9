//! `cargo xtask vectors`: test vectors from the reference implementations, written by Python scripts.
//!
//! Each `scripts/vectors_NAME.py OUT` writes its files under the folder OUT (`vectors/`). The packages come
//! from `scripts/requirements-vectors.txt` and, where NAME needs more, `requirements-vectors-NAME.txt`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::run::{Cmd, Result, has_extension};
use crate::venv::Venv;

/// Runs all generators, or the one that is named.
pub fn run(root: &Path, only: Option<&str>) -> Result<()> {
    let generators = generators(&root.join("scripts"))?;
    let known = || generators.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    if generators.is_empty() {
        return Err("there is no scripts/vectors_NAME.py".to_owned());
    }
    let chosen: Vec<_> = generators.iter().filter(|(name, _)| only.is_none_or(|o| o == name)).collect();
    if chosen.is_empty() {
        return Err(format!("no generator `{}`; there are: {}", only.unwrap_or_default(), known()));
    }

    let venv = Venv::open(root, "target/venv-vectors")?;
    venv.install("requirements-vectors.txt")?;
    for (i, (name, script)) in chosen.iter().enumerate() {
        let more = format!("requirements-vectors-{name}.txt");
        if root.join("scripts").join(&more).exists() {
            venv.install(&more)?;
        }
        println!("[{}/{}] {name}", i + 1, chosen.len());
        let begun = Instant::now();
        Cmd::new(&venv.python).args([script.to_string_lossy(), "vectors".into()]).run(root)?;
        println!("[{}/{}] {name}: {:.1} s", i + 1, chosen.len(), begun.elapsed().as_secs_f64());
    }
    Ok(())
}

/// The generators in `dir` as (NAME, path), sorted by name.
fn generators(dir: &Path) -> Result<Vec<(String, PathBuf)>> {
    let listing = std::fs::read_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let mut found = Vec::new();
    for entry in listing {
        let path = entry.map_err(|e| format!("{}: {e}", dir.display()))?.path();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        if let (Some(name), true) = (stem.strip_prefix("vectors_"), has_extension(&path, "py")) {
            found.push((name.to_owned(), path.clone()));
        }
    }
    found.sort();
    Ok(found)
}

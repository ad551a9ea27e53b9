//! Finds the op files: every `src/ops/*.rs` is a module of ops and part of the table, so that adding an op means
//! adding one file.

use std::fmt::Write;
use std::path::Path;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root = env::var("CARGO_MANIFEST_DIR").map_err(io::Error::other)?;
    let dir = Path::new(&root).join("src/ops");
    println!("cargo:rerun-if-changed={}", dir.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(&dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "rs")
            && let Some(stem) = path.file_stem().and_then(|s| s.to_str())
            && stem != "mod"
        {
            files.push((stem.to_string(), path));
        }
    }
    files.sort();
    let mut out = String::new();
    for (stem, path) in &files {
        writeln!(out, "#[path = {path:?}] pub mod {stem};").map_err(io::Error::other)?;
    }
    writeln!(out, "/// The ops of every file.\npub(crate) static FILES: &[&[&crate::op::OpDef]] = &[")
        .map_err(io::Error::other)?;
    for (stem, _) in &files {
        writeln!(out, "    {stem}::OPS,").map_err(io::Error::other)?;
    }
    out.push_str("];\n");
    fs::write(Path::new(&env::var("OUT_DIR").map_err(io::Error::other)?).join("ops.rs"), out)
}

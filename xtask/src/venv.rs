//! Python environments for what is compared with Python packages.

use std::path::{Path, PathBuf};

use crate::run::{Cmd, Result, read_text, write};

/// A Python environment of its own for one chore, under `target/`.
pub struct Venv {
    root: PathBuf,
    dir: PathBuf,
    /// Its interpreter.
    pub python: PathBuf,
}

impl Venv {
    /// The environment in the folder `dir` of the workspace, made if it is not there.
    pub fn open(root: &Path, dir: &str) -> Result<Self> {
        let dir = root.join(dir);
        let python = dir.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" });
        if !python.exists() {
            println!("making {}", dir.display());
            let system = if cfg!(windows) { "python" } else { "python3" };
            Cmd::new(system).args(["-m", "venv"]).args([dir.to_string_lossy()]).run(root).map_err(|e| {
                format!("{e}\n  Python 3.11 or newer with its `venv` module is needed (Debian: python3-venv)")
            })?;
        }
        Ok(Self { root: root.to_path_buf(), dir, python })
    }

    /// Installs the pins of `scripts/LIST`, unless that very text was installed before.
    pub fn install(&self, list: &str) -> Result<()> {
        let path = self.root.join("scripts").join(list);
        let wanted = read_text(&path)?;
        let stamp = self.dir.join(list);
        if std::fs::read_to_string(&stamp).is_ok_and(|had| had == wanted) {
            return Ok(());
        }
        println!("installing scripts/{list}");
        Cmd::new(&self.python)
            .args(["-m", "pip", "install", "--disable-pip-version-check", "--no-deps", "--requirement"])
            .args([path.to_string_lossy()])
            .run(&self.root)?;
        write(&stamp, wanted.as_bytes())
    }
}

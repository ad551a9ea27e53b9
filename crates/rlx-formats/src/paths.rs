//! Files that other files refer to.

use crate::error::{Context, bad};
use rlx_ir::Result;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// The path of the file that `from` refers to as `file`. It must lie below the folder of `from`: an absolute path, a `..` or a
/// link that leads out is refused, so that a file from elsewhere cannot read what is not its own. If `from` is itself a link, the
/// file may also lie below the folder that the link leads to: so caches keep the parts of a model.
pub fn referred(from: &Path, file: &str) -> Result<PathBuf> {
    let outside =
        || bad(format!("{}: refers to {file:?}, which is not below its own folder", from.display()));
    let tame = |c: Component<'_>| matches!(c, Component::Normal(_) | Component::CurDir);
    let relative = Path::new(file);
    if file.is_empty() || !relative.components().all(tame) {
        return Err(outside());
    }
    let path = folder(from).join(relative);
    let real = fs::canonicalize(&path).about(path.display())?;
    let below = |home: &Path| fs::canonicalize(home).is_ok_and(|home| real.starts_with(home));
    let beyond_link = || fs::canonicalize(from).is_ok_and(|from| below(folder(&from)));
    if !below(folder(from)) && !beyond_link() {
        return Err(outside());
    }
    // A pipe would be waited for.
    if !real.is_file() {
        return Err(bad(format!("{}: not a file", path.display())));
    }
    Ok(path)
}

/// The folder that a file is in.
pub(crate) fn folder(file: &Path) -> &Path {
    file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

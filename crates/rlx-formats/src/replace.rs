//! Writing files that are there as a whole or not at all.

use crate::paths::folder;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Writes beside the file, makes sure that it has reached the disk, and moves it into place. A link stays, and what it leads
/// to is replaced; what is no file, such as a pipe or a device, is written to.
pub fn replace(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let path = &match fs::metadata(path) {
        Ok(m) if m.is_file() => fs::canonicalize(path)?,
        Ok(_) => return filled(OpenOptions::new().write(true).open(path)?, write).map(drop),
        // A link that leads nowhere yet.
        Err(_) if path.is_symlink() => return filled(File::create(path)?, write).map(drop),
        Err(_) => path.to_path_buf(),
    };
    let name = path.file_name().ok_or_else(|| io::Error::other("not the name of a file"))?;
    // Several threads may write the same file.
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    let temp = folder(path).join(format!(".{}.{}-{n}.tmp", name.to_string_lossy(), std::process::id()));
    let file = OpenOptions::new().write(true).create_new(true).open(&temp)?;
    let done = filled(file, write)
        .and_then(|file| file.sync_all())
        .and_then(|()| fs::rename(&temp, path))
        // The name is safe only when the folder is; not every system lets folders be opened.
        .and_then(|()| File::open(folder(path)).map_or(Ok(()), |f| f.sync_all()));
    if done.is_err() {
        // It may be in place already, and then there is nothing to remove.
        let _ = fs::remove_file(&temp);
    }
    done
}

fn filled(file: File, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<File> {
    let mut buffer = BufWriter::with_capacity(1 << 18, file);
    write(&mut buffer)?;
    buffer.into_inner().map_err(io::IntoInnerError::into_error)
}

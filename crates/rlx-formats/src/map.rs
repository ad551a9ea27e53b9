//! The bytes of a file, mapped, and shared by all who use a part of them.

use crate::error::{Context, bad};
use memmap2::Mmap;
use rlx_ir::Result;
use std::fmt;
use std::fs::File;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

/// Bytes that are read where they lie: all of a file, or a part. A clone shares them.
#[derive(Clone)]
pub struct Bytes {
    owner: Arc<Owner>,
    /// Within what the owner keeps.
    range: Range<usize>,
}

/// What keeps bytes alive.
enum Owner {
    /// A mapped file; it stays open so that its length can be asked for again.
    File {
        map: Mmap,
        file: File,
    },
    Memory(Vec<u8>),
}

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        match self {
            Owner::File { map, .. } => map,
            Owner::Memory(bytes) => bytes,
        }
    }
}

#[allow(unsafe_code)]
fn map(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the map is read only. A file that another process changes shows other bytes, and no code here relies on seeing the
    // same twice: lengths and offsets are taken once and kept. One that is cut short ends the process with a signal when bytes
    // beyond its new end are read, as for every program that maps files; `Bytes::check_whole` makes that unlikely.
    unsafe { Mmap::map(file) }
}

impl Bytes {
    /// Maps a file. Pipes and devices are refused: they would be waited for, and may have no end.
    pub fn open(path: impl AsRef<Path>) -> Result<Bytes> {
        let path = path.as_ref();
        let name = path.display();
        // Before it is opened, which waits for a pipe.
        if !std::fs::metadata(path).about(&name)?.is_file() {
            return Err(bad(format!("{name}: not a file")));
        }
        let file = File::open(path).about(&name)?;
        if file.metadata().about(&name)?.len() == 0 {
            return Ok(Vec::new().into());
        }
        let map = map(&file).about(&name)?;
        let range = 0..map.len();
        Ok(Bytes { owner: Arc::new(Owner::File { map, file }), range })
    }

    /// A part of these, if they are that long.
    pub fn slice(&self, range: Range<usize>) -> Option<Bytes> {
        self.get(range.clone())?;
        let start = self.range.start.checked_add(range.start)?;
        let end = self.range.start.checked_add(range.end)?;
        Some(Bytes { owner: self.owner.clone(), range: start..end })
    }

    /// An error if the file has become shorter since it was mapped, so that reading on would end the process.
    pub fn check_whole(&self) -> Result<()> {
        let Owner::File { file, .. } = &*self.owner else { return Ok(()) };
        let now = file.metadata().about("a mapped file")?.len();
        if now < self.range.end as u64 {
            let need = self.range.end;
            return Err(bad(format!("the file was cut short while in use: {now} bytes are left of {need}")));
        }
        Ok(())
    }

    /// What keeps the bytes, and where they are in what it keeps.
    pub fn shared(&self) -> (Arc<dyn AsRef<[u8]> + Send + Sync>, Range<usize>) {
        (self.owner.clone(), self.range.clone())
    }
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // Made so that the range is within.
        (*self.owner).as_ref().get(self.range.clone()).unwrap_or_default()
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Bytes {
        let range = 0..bytes.len();
        Bytes { owner: Arc::new(Owner::Memory(bytes)), range }
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Bytes) -> bool {
        **self == **other
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.range.len())
    }
}

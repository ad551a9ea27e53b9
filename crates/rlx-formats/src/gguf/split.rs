//! Models that are cut into several files: `NAME-00001-of-00003.gguf` and so on, each a whole file with tensors of its own.
//! The metadata of the model are in the first.

use super::{read, write};
use crate::archive::Contents;
use crate::array::View;
use crate::error::{Context, bad};
use crate::map::Bytes;
use crate::metadata::Value;
use crate::parts::cut;
use crate::paths::referred;
use rlx_ir::Result;
use std::path::{Path, PathBuf};

/// Which file this is, from 0.
const NUMBER: &str = "split.no";
/// How many files there are.
const COUNT: &str = "split.count";
/// How many tensors all files have.
const TENSORS: &str = "split.tensors.count";

/// A file, with what the others have if it is one of several; any of them may be opened.
pub(super) fn joined(mut opened: Contents, path: Option<&Path>) -> Result<Contents> {
    let Some((number, count)) = split(&opened)? else { return Ok(opened) };
    if count == 1 {
        opened.metadata.retain(is_own);
        return Ok(opened);
    }
    let at = format!("part {} of {count}", number + 1);
    let path = path.ok_or_else(|| bad(format!("{at}: the others cannot be found without a path")))?;
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let stem = name.strip_suffix(&ending(number, count)).ok_or_else(|| {
        bad(format!(
            "{at}, but its name does not end in {}, so the others cannot be found",
            ending(number, count)
        ))
    })?;
    let mut parts = Vec::with_capacity(usize::from(count));
    let mut more_files = Vec::new();
    let mut opened = Some(opened);
    for i in 0..count {
        if i == number {
            parts.extend(opened.take());
            continue;
        }
        let part_path = referred(path, &format!("{stem}{}", ending(i, count)))?;
        let part = read::file(&Bytes::open(&part_path)?).about(part_path.display())?;
        if split(&part)? != Some((i, count)) {
            return Err(bad(format!("{}: is not part {} of {count}", part_path.display(), i + 1)));
        }
        parts.push(part);
        more_files.push(part_path);
    }
    let mut all = Contents { more_files, ..Contents::default() };
    let mut announced = None;
    for (i, part) in parts.into_iter().enumerate() {
        all.entries.extend(part.entries);
        if i == 0 {
            announced = part.metadata.iter().find(|(key, _)| key == TENSORS).and_then(|(_, v)| v.as_u64());
            all.metadata = part.metadata.into_iter().filter(is_own).collect();
        }
    }
    match announced {
        Some(n) if n != all.entries.len() as u64 => {
            Err(bad(format!("the parts have {} tensors, but {n} are announced", all.entries.len())))
        }
        _ => Ok(all),
    }
}

/// Whether something belongs to the model, rather than to how it is cut.
fn is_own((key, _): &(String, Value)) -> bool {
    ![NUMBER, COUNT, TENSORS].contains(&key.as_str())
}

/// How the name of a part ends.
fn ending(number: u16, count: u16) -> String {
    format!("-{:05}-of-{count:05}.gguf", u32::from(number) + 1)
}

/// Which part a file is, and how many there are.
fn split(contents: &Contents) -> Result<Option<(u16, u16)>> {
    let value = |key: &str| contents.metadata.iter().find(|(k, _)| k == key).map(|(_, value)| value);
    let Some(count) = value(COUNT) else { return Ok(None) };
    let small = |value: &Value| value.as_u64().and_then(|n| u16::try_from(n).ok());
    match (small(count), value(NUMBER).and_then(small)) {
        // No parts means that the model is not cut.
        (Some(0), _) => Ok(None),
        (Some(count), Some(number)) if number < count => Ok(Some((number, count))),
        _ => Err(bad(format!("{NUMBER} and {COUNT} do not say which part of how many this is"))),
    }
}

/// Writes several files, `NAME-00001-of-00003.gguf` … for a path `NAME.gguf`, and gives their paths. Each is there as a whole or
/// not at all. A file has at most so many bytes of tensors, unless one alone has more.
pub fn write_parts(
    path: &Path,
    tensors: &[(&str, View<'_>)],
    metadata: &[(String, Value)],
    most: u64,
) -> Result<Vec<PathBuf>> {
    let stem = path.file_name().and_then(|n| n.to_str()?.strip_suffix(".gguf"));
    let stem = stem.ok_or_else(|| bad(format!("{}: does not end in .gguf", path.display())))?;
    let parts = cut(tensors, most);
    let count = u16::try_from(parts.len());
    let count = count.map_err(|_| bad(format!("{}: would be more than 65535 files", path.display())))?;
    let alignment = metadata.iter().filter(|(key, _)| key == super::ALIGNMENT);
    let mut files = Vec::new();
    for (number, part) in (0..count).zip(parts) {
        let own: Vec<&(String, Value)> =
            if number == 0 { metadata.iter().collect() } else { alignment.clone().collect() };
        let mut all: Vec<(String, Value)> = own.into_iter().cloned().collect();
        all.push((NUMBER.into(), number.into()));
        all.push((COUNT.into(), count.into()));
        all.push((TENSORS.into(), i32::try_from(tensors.len()).map_err(bad)?.into()));
        let file = path.with_file_name(format!("{stem}{}", ending(number, count)));
        write::write(&file, part, &all)?;
        files.push(file);
    }
    Ok(files)
}

//! Zip archives, as far as arrays of NumPy's are kept in them: members that are stored or deflated, of any length.
//!
//! The directory at the end of the file is believed only where it agrees with the rest: members lie within the file and apart,
//! their own headers say the same, and what is unpacked has the length and the checksum that were announced.

use crate::error::{Context, bad};
use crate::map::Bytes;
use flate2::{Crc, Decompress, FlushDecompress, Status};
use rlx_ir::Result;
use std::collections::HashSet;
use std::io::{self, Write};
use std::ops::Range;

const LOCAL: u32 = 0x0403_4b50;
const ENTRY: u32 = 0x0201_4b50;
const END: u32 = 0x0605_4b50;
const END_64: u32 = 0x0606_4b50;
const LOCATOR_64: u32 = 0x0706_4b50;
/// The extra field that holds lengths and offsets beyond 32 bits.
const EXTRA_64: u16 = 1;
/// The extra field that nobody reads, for padding.
const EXTRA_PADDING: u16 = 0xd935;
/// 1980-01-01, the earliest there is: the same tensors give the same bytes.
const DATE: u16 = 0x0021;

/// What is deflated in an archive may grow to so many times the archive, or so many bytes, all together: what grows a thousandfold was
/// made to fill memory. It can be listed, but not unpacked.
const GROWTH: u64 = 128;
const SMALL: u64 = 16 << 20;

/// A file within an archive.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    /// As they lie in the archive.
    packed: Bytes,
    deflated: bool,
    len: u64,
    crc: u32,
    /// How the archive would grow, if that is too much.
    too_much: Option<(u64, u64)>,
}

impl Member {
    /// The length when unpacked.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The first bytes, at most so many.
    pub(crate) fn head(&self, most: usize) -> Result<Bytes> {
        let len = usize::try_from(self.len).map_or(most, |n| n.min(most));
        if !self.deflated {
            return self.packed.slice(0..len).ok_or_else(|| bad("shorter than it says"));
        }
        let (mut out, _) = inflate(&self.packed, len)?;
        out.truncate(len);
        Ok(out.into())
    }

    /// All bytes, where they lie if they are stored as they are. The checksum is right.
    pub(crate) fn bytes(&self) -> Result<Bytes> {
        self.packed.check_whole()?;
        let bytes = match self.deflated {
            false => self.packed.clone(),
            true => {
                if let Some((archive, all)) = self.too_much {
                    let text = format!("an archive of {archive} bytes would grow to {all}");
                    return Err(bad(format!("{text}: store such arrays uncompressed")));
                }
                let len = usize::try_from(self.len).map_err(bad)?;
                let (out, ended) = inflate(&self.packed, len)?;
                if out.len() != len || !ended {
                    return Err(bad("what is unpacked is not as long as announced"));
                }
                out.into()
            }
        };
        let mut crc = Crc::new();
        crc.update(&bytes);
        if crc.sum() != self.crc {
            return Err(bad("the checksum is wrong"));
        }
        Ok(bytes)
    }
}

/// The first `len` bytes that deflated ones stand for, or a few more, and whether there are no others.
fn inflate(packed: &[u8], len: usize) -> Result<(Vec<u8>, bool)> {
    // Room for one more tells what ends from what goes on.
    let mut out = Vec::with_capacity(len.saturating_add(1));
    let mut state = Decompress::new(false);
    loop {
        let at = usize::try_from(state.total_in()).map_err(bad)?;
        let rest = packed.get(at..).unwrap_or_default();
        let before = (state.total_in(), out.len());
        // Fills what the vector has room for, and never makes it grow.
        let status = state.decompress_vec(rest, &mut out, FlushDecompress::None).map_err(bad)?;
        if status == Status::StreamEnd {
            let all = state.total_in() == packed.len() as u64;
            return Ok((out, all));
        }
        if (state.total_in(), out.len()) == before {
            return Ok((out, false));
        }
    }
}

/// The members by name, in the order of the directory.
pub(crate) fn members(bytes: &Bytes) -> Result<Vec<(String, Member)>> {
    let directory = Directory::find(bytes)?;
    let mut from = Fields(bytes.get(directory.range.clone()).unwrap_or_default());
    if directory.entries.checked_mul(46).is_none_or(|n| n > from.0.len() as u64) {
        return Err(bad(format!(
            "a directory of {} bytes cannot list {} files",
            from.0.len(),
            directory.entries
        )));
    }
    let mut members: Vec<(String, Member)> = Vec::new();
    let mut taken: Vec<Range<usize>> = Vec::new();
    let mut names = HashSet::new();
    for _ in 0..directory.entries {
        let entry = Listed::read(&mut from)?;
        let name = check_name(entry.name)?;
        if !names.insert(name) {
            return Err(bad(format!("there are two files {name:?}")));
        }
        let (range, member) = entry.member(bytes, directory.range.start).about(format!("{name:?}"))?;
        taken.push(range);
        members.push((name.to_owned(), member));
    }
    if !from.0.is_empty() {
        return Err(bad("the directory is longer than its files"));
    }
    taken.sort_by_key(|r| r.start);
    if taken.windows(2).any(|w| matches!(w, [a, b] if b.start < a.end)) {
        return Err(bad("two files of the archive overlap"));
    }
    let deflated = members.iter().filter(|(_, m)| m.deflated);
    let all = deflated.fold(0u64, |sum, (_, m)| sum.saturating_add(m.len));
    let archive = bytes.len() as u64;
    if all > archive.saturating_mul(GROWTH).max(SMALL) {
        members.iter_mut().for_each(|(_, m)| m.too_much = Some((archive, all)));
    }
    Ok(members)
}

/// A name that would be harmless on a disk too.
pub(crate) fn check_name(name: &[u8]) -> Result<&str> {
    let name = std::str::from_utf8(name).map_err(|e| bad(format!("the name of a file is not UTF-8: {e}")))?;
    let wild = |part: &str| part.is_empty() || part == "." || part == "..";
    if name.contains(['\\', '\0']) || name.split('/').any(wild) {
        return Err(bad(format!("a file is called {name:?}, which leads elsewhere")));
    }
    Ok(name)
}

/// Where the directory is, and how many files it lists.
struct Directory {
    range: Range<usize>,
    entries: u64,
}

impl Directory {
    fn find(bytes: &[u8]) -> Result<Directory> {
        let none = || bad("no directory of a zip archive at the end: the file was cut short");
        // It ends in a comment of at most 65535 bytes.
        let first = bytes.len().saturating_sub(22 + 0xffff);
        let tail = bytes.get(first..).unwrap_or_default();
        let signature = END.to_le_bytes();
        let fits = |at: &usize| {
            let record = tail.get(*at..).unwrap_or_default();
            let comment = record.get(20..22).and_then(|b| Some(u16::from_le_bytes(b.try_into().ok()?)));
            record.starts_with(&signature) && comment.is_some_and(|n| record.len() == 22 + usize::from(n))
        };
        let at = (0..tail.len().saturating_sub(21)).rev().find(fits).ok_or_else(none)?;
        let mut from = Fields(tail.get(at + 4..).unwrap_or_default());
        let (disk, directory_disk) = (from.u16()?, from.u16()?);
        let (here, entries) = (from.u16()?, from.u16()?);
        let (len, start) = (from.u32()?, from.u32()?);
        let end = first + at;
        let wide = entries == u16::MAX || len == u32::MAX || start == u32::MAX;
        if let Some(found) = wide.then(|| Directory::find_64(bytes, end)).transpose()?.flatten() {
            return Ok(found);
        }
        if disk != 0 || directory_disk != 0 || here != entries {
            return Err(bad("an archive in several files"));
        }
        Directory::new(start.into(), len.into(), entries.into(), end)
    }

    /// The wide form, if its locator stands in front of the narrow one.
    fn find_64(bytes: &[u8], end: usize) -> Result<Option<Directory>> {
        let Some(locator) = end.checked_sub(20).and_then(|at| bytes.get(at..end)) else { return Ok(None) };
        let mut from = Fields(locator);
        if from.u32()? != LOCATOR_64 {
            return Ok(None);
        }
        from.take(4)?;
        let at = usize::try_from(from.u64()?).ok().filter(|at| *at < end);
        let record =
            at.and_then(|at| bytes.get(at..end)).ok_or_else(|| bad("the wide directory is missing"))?;
        let mut from = Fields(record);
        if from.u32()? != END_64 {
            return Err(bad("the wide directory is missing"));
        }
        // Its own length, and versions.
        from.take(12)?;
        let (disk, directory_disk) = (from.u32()?, from.u32()?);
        let (here, entries) = (from.u64()?, from.u64()?);
        if disk != 0 || directory_disk != 0 || here != entries {
            return Err(bad("an archive in several files"));
        }
        let (len, start) = (from.u64()?, from.u64()?);
        Directory::new(start, len, entries, at.unwrap_or(end)).map(Some)
    }

    /// It must end where what tells of it begins.
    fn new(start: u64, len: u64, entries: u64, end: usize) -> Result<Directory> {
        if start.checked_add(len) != Some(end as u64) {
            return Err(bad("the directory of the archive is not where it should be"));
        }
        let start = usize::try_from(start).map_err(bad)?;
        Ok(Directory { range: start..end, entries })
    }
}

/// A file as the directory lists it.
struct Listed<'a> {
    name: &'a [u8],
    flags: u16,
    method: u16,
    crc: u32,
    packed: u64,
    len: u64,
    at: u64,
}

impl<'a> Listed<'a> {
    fn read(from: &mut Fields<'a>) -> Result<Listed<'a>> {
        if from.u32()? != ENTRY {
            return Err(bad("the directory of the archive is damaged"));
        }
        // Versions.
        from.take(4)?;
        let (flags, method) = (from.u16()?, from.u16()?);
        // Time and date.
        from.take(4)?;
        let (crc, packed, len) = (from.u32()?, from.u32()?, from.u32()?);
        let (name, extra, comment) = (from.u16()?, from.u16()?, from.u16()?);
        // Disk and attributes.
        from.take(8)?;
        let at = from.u32()?;
        let name = from.take(name.into())?;
        let mut wide = Fields(wide_extra(from.take(extra.into())?)?);
        from.take(comment.into())?;
        let mut or_wide = |narrow: u32| if narrow == u32::MAX { wide.u64() } else { Ok(narrow.into()) };
        // In this order, those that do not fit.
        let len = or_wide(len)?;
        let packed = or_wide(packed)?;
        let at = or_wide(at)?;
        Ok(Listed { name, flags, method, crc, packed, len, at })
    }

    /// The member, and all that it takes in the archive, which ends at `end`.
    fn member(&self, bytes: &Bytes, end: usize) -> Result<(Range<usize>, Member)> {
        if self.flags & 1 != 0 {
            return Err(bad("is encrypted"));
        }
        let deflated = match self.method {
            0 => false,
            8 => true,
            m => return Err(bad(format!("is packed by method {m}; 0 (stored) and 8 (deflated) are known"))),
        };
        if !deflated && self.packed != self.len {
            return Err(bad("is stored, but its two lengths differ"));
        }
        let outside = || bad("lies outside of the archive");
        let start = usize::try_from(self.at).ok().filter(|at| *at <= end).ok_or_else(outside)?;
        let mut from = Fields(bytes.get(start..end).ok_or_else(outside)?);
        if from.u32()? != LOCAL {
            return Err(bad("is not where the directory says"));
        }
        // Version, flags, method, time, date, checksum and lengths: as listed, or said behind the data.
        from.take(22)?;
        let (name, extra) = (from.u16()?, from.u16()?);
        if from.take(name.into())? != self.name {
            return Err(bad("is called otherwise in front of its data"));
        }
        from.take(extra.into())?;
        let data = end - from.0.len();
        let stop = usize::try_from(self.packed).ok().and_then(|n| data.checked_add(n));
        let stop = stop.filter(|stop| *stop <= end).ok_or_else(outside)?;
        let packed = bytes.slice(data..stop).ok_or_else(outside)?;
        Ok((start..stop, Member { packed, deflated, len: self.len, crc: self.crc, too_much: None }))
    }
}

/// What extra fields say of wide lengths.
fn wide_extra(extra: &[u8]) -> Result<&[u8]> {
    let mut from = Fields(extra);
    // Less than a head is padding.
    while from.0.len() >= 4 {
        let (id, len) = (from.u16()?, from.u16()?);
        let field = from.take(len.into())?;
        if id == EXTRA_64 {
            return Ok(field);
        }
    }
    Ok(&[])
}

/// Little-endian numbers, one behind the other.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n).ok_or_else(|| bad("the archive is damaged"))?;
        self.0 = rest;
        Ok(taken)
    }
    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.take(N)?.try_into().map_err(bad)
    }
    fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_le_bytes)
    }
    fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

/// Writes an archive of stored members, each as the parts that it is made of. What follows a member's first part is aligned to 64
/// bytes in the file, if that part is a multiple of 64 bytes long.
pub(crate) fn write(to: &mut dyn Write, members: &[(String, Vec<&[u8]>)]) -> io::Result<()> {
    let (mut at, mut directory) = (0u64, Vec::new());
    for (name, parts) in members {
        let len: u64 = parts.iter().map(|p| p.len() as u64).sum();
        let mut crc = Crc::new();
        parts.iter().for_each(|p| crc.update(p));
        let narrow = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        let wide = narrow(len) == u32::MAX;
        let name_len = u16::try_from(name.len()).map_err(io::Error::other)?;
        // What is the same in both places.
        let mut common = Vec::new();
        common.extend((if wide { 45u16 } else { 20 }).to_le_bytes());
        // Names are UTF-8; stored.
        common.extend([0x0800u16, 0, 0, DATE].map(u16::to_le_bytes).concat());
        common.extend([crc.sum(), narrow(len), narrow(len)].map(u32::to_le_bytes).concat());
        common.extend(name_len.to_le_bytes());

        let mut lens = Vec::new();
        if wide {
            lens.extend([EXTRA_64, 16].map(u16::to_le_bytes).concat());
            lens.extend([len, len].map(u64::to_le_bytes).concat());
        }
        let mut padding = Vec::new();
        let before = at + 30 + u64::from(name_len) + lens.len() as u64;
        // A field has 4 bytes of its own.
        let pad = (before + 4).next_multiple_of(64) - before - 4;
        padding.extend([EXTRA_PADDING, pad as u16].map(u16::to_le_bytes).concat());
        padding.resize(padding.len() + pad as usize, 0);

        let mut local = LOCAL.to_le_bytes().to_vec();
        local.extend(&common);
        local.extend(((lens.len() + padding.len()) as u16).to_le_bytes());
        local.extend(name.as_bytes());
        local.extend(&lens);
        local.extend(&padding);
        to.write_all(&local)?;
        parts.iter().try_for_each(|p| to.write_all(p))?;

        if narrow(at) == u32::MAX {
            if lens.is_empty() {
                lens.extend([EXTRA_64, 0].map(u16::to_le_bytes).concat());
            }
            lens.extend(at.to_le_bytes());
            let field = (lens.len() - 4) as u16;
            lens.splice(2..4, field.to_le_bytes());
        }
        directory.extend(ENTRY.to_le_bytes());
        directory.extend(45u16.to_le_bytes());
        directory.extend(common);
        // Extra fields, comment, disk, attributes.
        directory.extend([lens.len() as u16, 0, 0, 0].map(u16::to_le_bytes).concat());
        directory.extend([0, narrow(at)].map(u32::to_le_bytes).concat());
        directory.extend(name.as_bytes());
        directory.extend(lens);
        at += local.len() as u64 + len;
    }
    to.write_all(&directory)?;
    to.write_all(&end(at, directory.len() as u64, members.len() as u64))
}

/// What tells of a directory.
fn end(start: u64, len: u64, entries: u64) -> Vec<u8> {
    let mut out = Vec::new();
    if u32::try_from(start + len).is_err() || entries >= u16::MAX.into() {
        out.extend(END_64.to_le_bytes());
        out.extend(44u64.to_le_bytes());
        out.extend([45u16, 45].map(u16::to_le_bytes).concat());
        out.extend([0u32, 0].map(u32::to_le_bytes).concat());
        out.extend([entries, entries, len, start].map(u64::to_le_bytes).concat());
        out.extend([LOCATOR_64, 0].map(u32::to_le_bytes).concat());
        out.extend((start + len).to_le_bytes());
        out.extend(1u32.to_le_bytes());
    }
    let few = u16::try_from(entries).unwrap_or(u16::MAX);
    let narrow = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    out.extend(END.to_le_bytes());
    out.extend([0, 0, few, few].map(u16::to_le_bytes).concat());
    out.extend([narrow(len), narrow(start)].map(u32::to_le_bytes).concat());
    out.extend(0u16.to_le_bytes());
    out
}

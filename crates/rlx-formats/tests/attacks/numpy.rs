//! Arrays of NumPy's, alone and in archives.

use super::{attack, common::Folder, damage, limited, read_path, refused};
use flate2::{Compression, Crc, write::DeflateEncoder};
use rlx_formats::open;
use std::io::Write;

/// An array file with this header, as version 1.
fn npy(header: &str, data: &[u8]) -> Vec<u8> {
    versioned(1, &(header.len() as u16).to_le_bytes(), header, data)
}

fn versioned(version: u8, len: &[u8], header: &str, data: &[u8]) -> Vec<u8> {
    [b"\x93NUMPY", &[version, 0][..], len, header.as_bytes(), data].concat()
}

fn header(descr: &str, fortran: &str, shape: &str) -> String {
    format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}\n")
}

fn good() -> Vec<u8> {
    npy(&header("<f4", "False", "(2, 3)"), &[1; 24])
}

#[test]
fn arrays() {
    let folder = Folder::new();
    assert_eq!(read_path(&folder.file("x.npy", &good())).unwrap(), 6);
    let run = |name: &str, bytes: &[u8], why: &str| attack(name, "x.npy", bytes, why);
    run("magic only", b"\x93NUMPY", "longer than the file");
    run("no length", b"\x93NUMPY\x01\x00", "longer than the file");
    run("half a length", b"\x93NUMPY\x02\x00\xff\xff", "longer than the file");
    run("version 4", &versioned(4, &[0, 0], "", b""), "version 4");
    run("a long header", &versioned(1, &[0xff, 0xff], "{}", b""), "longer than the file");
    run("a longer header", &versioned(2, &[0xff; 4], "{}", b""), "longer than 65536 bytes");
    run(
        "a header that nobody writes",
        &versioned(3, &(1u32 << 20).to_le_bytes(), &" ".repeat(1 << 20), b""),
        "longer than",
    );
    for (text, why) in [
        ("", "malformed"),
        ("{", "malformed"),
        ("{}", "lacks one of"),
        ("[]", "malformed"),
        ("{'descr': '<f4'}", "lacks one of"),
        ("{'descr': '<f4', 'descr': '<f4'}", "twice"),
        ("{'evil': 1}", "a key \"evil\""),
        ("{'descr': __import__('os')}", "malformed"),
        ("{'descr': '<f4' 'x'}", "malformed"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)} + 1", "malformed"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (2 3)}", "malformed"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (-2, -3)}", "malformed"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': 6}", "malformed"),
        ("{'descr': '<f4', 'fortran_order': 0, 'shape': (6,)}", "malformed"),
        ("{'descr': '<f\\x34', 'fortran_order': False, 'shape': (6,)}", "malformed"),
        ("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (6,)}", "records"),
        ("{'descr': ('<f4', (2,)), 'fortran_order': False, 'shape': (3,)}", "records"),
        ("{'shape': (99999999999999999999999,), ", "malformed"),
    ] {
        run(text, &npy(text, &[0; 24]), why);
    }
    let text = format!("{{'descr': {}", "(".repeat(60_000));
    run("deep", &npy(&text, &[]), "records");
    let mut latin = good();
    latin[12] = 0xff;
    run("not UTF-8", &latin, "UTF-8");
    for (shape, why) in [
        ("(2, 4)", "does not fit"),
        ("(5,)", "does not fit"),
        ("()", "does not fit"),
        ("(4294967296, 4294967296, 4294967296)", "too large"),
        ("(4611686018427387904,)", "too large"),
        ("(0, 18446744073709551615, 18446744073709551615)", "too large"),
        (
            "(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 6)",
            "axes",
        ),
    ] {
        run(shape, &npy(&header("<f4", "False", shape), &[0; 24]), why);
    }
    for (descr, why) in [
        ("|O", "Python objects"),
        ("|O8", "Python objects"),
        ("<f", "no type"),
        ("<f-4", "no type"),
        ("<f99999999999999999999", "no type"),
        ("<U4611686018427387904", "no type"),
        ("f4", "no type"),
        ("=f4", "no type"),
        ("", "no type"),
        ("<", "no type"),
        ("<x4", "no type"),
        ("<c4", "is <c4, a type that RLX has not"),
        ("|V4", "is |V4, a type"),
        ("<S4", "a type that RLX has not"),
        ("<U1", "a type that RLX has not"),
    ] {
        run(descr, &npy(&header(descr, "False", "(2, 3)"), &[0; 24]), why);
    }
    run("a bool of 2", &npy(&header("|b1", "False", "(2,)"), &[1, 2]), "neither 0 nor 1");
    run("trailing bytes", &npy(&header("<f4", "False", "(2, 3)"), &[0; 25]), "does not fit");
    run("bytes missing", &npy(&header("<f4", "True", "(2, 3)"), &[0; 23]), "does not fit");
}

#[test]
fn damaged_arrays() {
    damage("x.npy", &npy(&header(">i2", "True", "(2, 3)"), &[1; 12]));
}

/// A member of an archive, any part of which may lie.
#[derive(Clone)]
struct Member {
    name: Vec<u8>,
    local_name: Option<Vec<u8>>,
    flags: u16,
    method: u16,
    crc: u32,
    packed: Vec<u8>,
    packed_len: u32,
    len: u32,
    at: Option<u32>,
    extra: Vec<u8>,
}

impl Member {
    fn stored(name: &str, bytes: &[u8]) -> Member {
        let mut crc = Crc::new();
        crc.update(bytes);
        Member {
            name: name.into(),
            local_name: None,
            flags: 0,
            method: 0,
            crc: crc.sum(),
            packed: bytes.to_vec(),
            packed_len: bytes.len() as u32,
            len: bytes.len() as u32,
            at: None,
            extra: Vec::new(),
        }
    }
    fn deflated(name: &str, bytes: &[u8]) -> Member {
        let mut to = DeflateEncoder::new(Vec::new(), Compression::best());
        to.write_all(bytes).unwrap();
        let packed = to.finish().unwrap();
        Member { method: 8, packed_len: packed.len() as u32, packed, ..Member::stored(name, bytes) }
    }
}

fn archive(members: &[Member], change_end: impl FnOnce(&mut [u8; 22])) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for m in members {
        let at = m.at.unwrap_or(out.len() as u32);
        let mut common = [20, m.flags, m.method, 0, 0x21].map(u16::to_le_bytes).concat();
        common.extend([m.crc, m.packed_len, m.len].map(u32::to_le_bytes).concat());
        let local_name = m.local_name.as_ref().unwrap_or(&m.name);
        out.extend(b"PK\x03\x04");
        out.extend(&common);
        out.extend([local_name.len() as u16, 0].map(u16::to_le_bytes).concat());
        out.extend(local_name);
        out.extend(&m.packed);
        directory.extend(b"PK\x01\x02\x14\x00");
        directory.extend(&common);
        directory.extend([m.name.len() as u16, m.extra.len() as u16, 0, 0, 0].map(u16::to_le_bytes).concat());
        directory.extend([0, at].map(u32::to_le_bytes).concat());
        directory.extend(&m.name);
        directory.extend(&m.extra);
    }
    let mut end = [0u8; 22];
    end[..4].copy_from_slice(b"PK\x05\x06");
    end[8..10].copy_from_slice(&(members.len() as u16).to_le_bytes());
    end[10..12].copy_from_slice(&(members.len() as u16).to_le_bytes());
    end[12..16].copy_from_slice(&(directory.len() as u32).to_le_bytes());
    end[16..20].copy_from_slice(&(out.len() as u32).to_le_bytes());
    change_end(&mut end);
    out.extend(directory);
    out.extend(end);
    out
}

pub fn zip(members: &[(&str, &[u8])]) -> Vec<u8> {
    archive(&members.iter().map(|(n, b)| Member::stored(n, b)).collect::<Vec<_>>(), |_| {})
}

fn run(name: &str, members: &[Member], why: &str) {
    attack(name, "x.npz", &archive(members, |_| {}), why);
}

/// One member, changed.
fn one(name: &str, why: &str, change: impl FnOnce(&mut Member)) {
    let mut m = Member::stored("x.npy", &good());
    change(&mut m);
    run(name, &[m], why);
}

#[test]
fn archives() {
    let folder = Folder::new();
    let both = [Member::stored("x.npy", &good()), Member::deflated("y.npy", &good())];
    assert_eq!(read_path(&folder.file("x.npz", &archive(&both, |_| {}))).unwrap(), 12);

    run("no array", &[Member::stored("readme.txt", b"hello")], "no array");
    run("an array without a name", &[Member::stored(".npy", &good())], "no array");
    run("an array of nothing", &[Member::stored("x.npy", b"")], "does not begin");
    run("one name twice", &[both[0].clone(), both[0].clone()], "two files \"x.npy\"");
    for name in
        ["../x.npy", "/x.npy", "a/../x.npy", "a//x.npy", "..", "./x.npy", "a\\x.npy", "x\0.npy", "folder/"]
    {
        one(name, "leads elsewhere", |m| m.name = name.into());
    }
    one("a name that is no UTF-8", "UTF-8", |m| m.name = vec![0xff, b'x']);
    one("two names", "called otherwise", |m| m.local_name = Some(b"y.npy".to_vec()));
    one("encrypted", "encrypted", |m| m.flags = 1);
    one("another method", "method 12", |m| m.method = 12);
    one("a wrong checksum", "checksum", |m| m.crc ^= 1);
    one("longer than it is", "two lengths", |m| m.len += 1);
    one("beyond the archive", "outside", |m| {
        m.packed_len = 1 << 30;
        m.len = 1 << 30;
    });
    one("elsewhere", "not where the directory says", |m| m.at = Some(4));
    one("far elsewhere", "outside", |m| m.at = Some(1 << 30));
    one("wide, but nothing says how", "damaged", |m| m.len = u32::MAX);
    one("wide, beyond 64 bits", "", |m| {
        m.len = u32::MAX;
        m.packed_len = u32::MAX;
        m.extra = [&[1, 0, 16, 0][..], &[0xff; 16]].concat();
    });
    one("extra fields that go on", "damaged", |m| m.extra = vec![1, 0, 0xff, 0xff]);
    let mut second = both[1].clone();
    second.at = Some(0);
    second.name = b"y.npy".to_vec();
    run("two in one place", &[both[0].clone(), second], "");
    // A member whose data are the next one, header and all.
    let inner = zip(&[("y.npy", &good())]);
    let cut = inner.len() - 22 - 46 - 5;
    let outer = Member::stored("x.npy", &inner[..cut]);
    let mut nested = Member::stored("y.npy", &good());
    nested.packed = Vec::new();
    nested.at = Some(30 + 5);
    let mut bytes = archive(&[outer, nested], |_| {});
    // Without the local header that stands for the nested one.
    let stray = bytes.windows(4).rposition(|w| w == b"PK\x03\x04").unwrap();
    bytes.drain(stray..stray + 35);
    let at = bytes.len() - 6;
    let start = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) - 35;
    bytes[at..at + 4].copy_from_slice(&start.to_le_bytes());
    attack("one within the other", "x.npz", &bytes, "overlap");

    let end = |name: &str, why: &str, at: usize, with: &[u8]| {
        let bytes = archive(&both, |end| end[at..at + with.len()].copy_from_slice(with));
        attack(name, "x.npz", &bytes, why);
    };
    end("more files than listed", "cannot list", 8, &[0xfe, 0xff, 0xfe, 0xff]);
    end("fewer files than listed", "longer than its files", 8, &[1, 0, 1, 0]);
    end("none of them here", "several files", 8, &[0, 0, 2, 0]);
    end("on another disk", "several files", 4, &[1, 0]);
    end("a directory elsewhere", "not where it should be", 16, &[0; 4]);
    end("a long directory", "not where it should be", 12, &[0xfe, 0xff, 0xff, 0xff]);
    end("a wide directory that is not there", "", 8, &[0xff; 12]);
    end("a comment that is not there", "no directory", 20, &[9, 0]);
    attack("no directory", "x.npz", &archive(&both, |_| {})[..100], "no directory");
    attack("a signature only", "x.npz", b"PK\x03\x04", "no directory");
}

/// The wide form with offsets near 2^64.
#[test]
fn wide_directories() {
    let head = zip(&[("x.npy", &good())]);
    let plain = &head[..head.len() - 22];
    let run = |name: &str, at: u64, entries: u64, len: u64, start: u64| {
        let mut bytes = plain.to_vec();
        bytes.extend(b"PK\x06\x06");
        bytes.extend(44u64.to_le_bytes());
        bytes.extend([45, 0, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend([entries, entries, len, start].map(u64::to_le_bytes).concat());
        bytes.extend(b"PK\x06\x07\0\0\0\0");
        bytes.extend(at.to_le_bytes());
        bytes.extend([1, 0, 0, 0]);
        bytes.extend(b"PK\x05\x06\0\0\0\0");
        bytes.extend([0xff; 12]);
        bytes.extend([0, 0]);
        let folder = Folder::new();
        let path = folder.file("x.npz", &bytes);
        let name = name.to_string();
        limited(&name.clone(), move || read_path(&path).map_err(|e| format!("{name}: {e}")))
    };
    let (end, len) = (plain.len() as u64, 51);
    assert_eq!(run("good", end, 1, len, end - len).unwrap(), 6);
    run("no record", u64::MAX, 1, len, end - len).unwrap_err();
    run("a record elsewhere", 0, 1, len, end - len).unwrap_err();
    run("a long directory", end, 1, u64::MAX, end - len).unwrap_err();
    run("a directory far away", end, 1, len, u64::MAX - 10).unwrap_err();
    run("many files", end, u64::MAX, len, end - len).unwrap_err();
    run("many files, times 46", end, u64::MAX / 46 + 1, len, end - len).unwrap_err();
}

#[test]
fn bombs() {
    // A thousand to one: a gigabyte of zeros in a megabyte, once announced as it is, once as less, once as more.
    let big = 1usize << 30;
    let text = header("|u1", "False", &format!("({big},)"));
    let mut to = DeflateEncoder::new(Vec::new(), Compression::best());
    to.write_all(&npy(&text, &[])).unwrap();
    let zeros = vec![0u8; 1 << 20];
    for _ in 0..big >> 20 {
        to.write_all(&zeros).unwrap();
    }
    let packed = to.finish().unwrap();
    let len = (npy(&text, &[]).len() + big) as u32;
    let bomb = Member { packed_len: packed.len() as u32, packed, len, ..Member::deflated("x.npy", b"") };
    run("a bomb", &[bomb], "would grow");
    // Many small ones, each of which alone would do.
    let zeros = npy(&header("|u1", "False", "(4194304,)"), &vec![0; 4 << 20]);
    let small = Member::deflated("x.npy", &zeros);
    let many: Vec<Member> =
        (0..16).map(|i| Member { name: format!("{i}.npy").into_bytes(), ..small.clone() }).collect();
    run("many bombs", &many, "would grow");
    let folder = Folder::new();
    let path = folder.file("x.npz", &archive(&many, |_| {}));
    assert_eq!(open(path).unwrap().entries().len(), 16);
    let path = folder.file("x.npz", &archive(&many[..3], |_| {}));
    assert_eq!(limited("few", move || read_path(&path)).unwrap(), 3 << 22);
    // What unpacks to more than it says is noticed by then.
    let small = header("|u1", "False", "(100,)");
    let mut lying = Member::deflated("x.npy", &npy(&small, &[0; 1 << 20]));
    lying.len = npy(&small, &[0; 100]).len() as u32;
    run("more than announced", &[lying], "not as long as announced");
    let mut lying = Member::deflated("x.npy", &npy(&header("|u1", "False", "(1000,)"), &[0; 100]));
    lying.len = npy(&header("|u1", "False", "(1000,)"), &[0; 1000]).len() as u32;
    run("less than announced", &[lying], "not as long as announced");
    let mut lying = Member::deflated("x.npy", &good());
    lying.len = u32::MAX - 1;
    run("far less than announced", &[lying], "does not fit");
    let mut cut = Member::deflated("x.npy", &good());
    cut.packed.truncate(cut.packed.len() - 3);
    cut.packed_len -= 3;
    run("cut short", &[cut], "");
    let mut tail = Member::deflated("x.npy", &good());
    tail.packed.push(0);
    tail.packed_len += 1;
    run("something behind the end", &[tail], "not as long as announced");
    let mut noise = Member::deflated("x.npy", &good());
    noise.packed.fill(0xff);
    run("noise", &[noise], "");
}

#[test]
fn damaged_archives() {
    damage(
        "x.npz",
        &archive(&[Member::stored("x.npy", &good()), Member::deflated("y.npy", &good())], |_| {}),
    );
}

#[test]
fn orders_and_ends_are_turned_around() {
    let folder = Folder::new();
    let values: Vec<u8> = [1i16, 2, 3, 4, 5, 6].iter().flat_map(|x| x.to_be_bytes()).collect();
    for (fortran, want) in [("False", [1i16, 2, 3, 4, 5, 6]), ("True", [1, 3, 5, 2, 4, 6])] {
        let path = folder.file("x.npy", &npy(&header(">i2", fortran, "(2, 3)"), &values));
        let t = open(path).unwrap().tensor("x").unwrap().to_tensor().unwrap();
        assert_eq!(t.to_vec::<i16>().unwrap(), want);
    }
    let e = refused(
        "x",
        read_path(&folder.file("o.npy", &npy(&header("|O", "False", "()"), b"\x80\x04N."))),
        "pickled",
    );
    assert!(e.message().contains("o.npy"));
}

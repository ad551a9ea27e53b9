//! GGUF files.

use super::{attack, common::Folder, damage, limited, read_path, refused};
use rlx_formats::{Value, View, gguf, open};
use rlx_ir::Tensor;

/// A file from parts, any of which may lie.
struct File {
    magic: [u8; 4],
    version: u32,
    /// Announced, if not as many as there are.
    tensor_count: Option<u64>,
    key_count: Option<u64>,
    keys: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    alignment: usize,
    data: Vec<u8>,
}

impl File {
    /// One tensor `x`: f32[2, 3].
    fn new() -> File {
        File {
            magic: *b"GGUF",
            version: 3,
            tensor_count: None,
            key_count: None,
            keys: vec![key("general.architecture", 8, &text(b"llama"))],
            tensors: vec![tensor("x", &[3, 2], 0, 0)],
            alignment: 32,
            data: vec![0; 24],
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.key_count.unwrap_or(self.keys.len() as u64).to_le_bytes());
        out.extend(self.keys.concat());
        out.extend(self.tensors.concat());
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out.extend(&self.data);
        out
    }
}

fn text(s: &[u8]) -> Vec<u8> {
    [&(s.len() as u64).to_le_bytes(), s].concat()
}

fn key(name: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [text(name.as_bytes()), kind.to_le_bytes().to_vec(), value.to_vec()].concat()
}

fn list(kind: u32, len: u64, rest: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &len.to_le_bytes(), rest].concat()
}

fn tensor(name: &str, sizes: &[u64], ty: u32, offset: u64) -> Vec<u8> {
    let mut out = text(name.as_bytes());
    out.extend((sizes.len() as u32).to_le_bytes());
    sizes.iter().for_each(|s| out.extend(s.to_le_bytes()));
    out.extend(ty.to_le_bytes());
    out.extend(offset.to_le_bytes());
    out
}

fn run(name: &str, why: &str, change: impl FnOnce(&mut File)) {
    let mut file = File::new();
    change(&mut file);
    attack(name, "x.gguf", &file.bytes(), why);
}

/// With one key more.
fn with_key(name: &str, why: &str, key: Vec<u8>) {
    run(name, why, |f| f.keys.push(key));
}

/// With this tensor instead.
fn with_tensor(name: &str, why: &str, tensor: Vec<u8>) {
    run(name, why, |f| f.tensors = vec![tensor]);
}

#[test]
fn the_good_one_is_good() {
    let folder = Folder::new();
    for version in [2, 3] {
        let file = File { version, ..File::new() };
        assert_eq!(read_path(&folder.file("x", &file.bytes())).unwrap(), 6);
    }
}

#[test]
fn heads() {
    attack("four bytes", "x.gguf", b"GGUF", "the file ends");
    attack("eight bytes", "x.gguf", b"GGUF\x03\0\0\0", "the file ends");
    run("another magic", "does not begin with GGUF", |f| f.magic = *b"GGML");
    run("version 0", "version 0", |f| f.version = 0);
    run("version 1", "version 1", |f| f.version = 1);
    run("version 4", "version 4", |f| f.version = 4);
    run("version 2^32 - 1", "version 4294967295", |f| f.version = u32::MAX);
    for version in [2u32, 3] {
        run("the other byte order", "byte order", |f| f.version = version.swap_bytes());
    }
    run("the other byte order, wholly", "byte order", |f| f.magic = *b"FUGG");
    for n in [1 << 63, u64::MAX, u64::MAX / 14, 1 << 40, 1000] {
        run("keys", "are announced", |f| f.key_count = Some(n));
        run("tensors", "are announced", |f| f.tensor_count = Some(n));
    }
    run("a key more than there is", "", |f| f.key_count = Some(2));
    run("a tensor more than there is", "", |f| f.tensor_count = Some(2));
}

#[test]
fn keys_and_values() {
    let long = |n: u64, rest: &[u8]| [&n.to_le_bytes()[..], rest].concat();
    for n in [u64::MAX, 1 << 63, 1 << 40, 1000] {
        with_key("a long key", "are announced", long(n, b"abc"));
        with_key("a long text", "are announced", key("k", 8, &long(n, b"abc")));
        for kind in [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12] {
            with_key("a long list", "are announced", key("k", 9, &list(kind, n, b"abc")));
        }
    }
    // Eight bytes each: the product is 8.
    with_key("a list of 2^61 + 1", "are announced", key("k", 9, &list(10, (1 << 61) + 1, &[0; 8])));
    run("1 GiB in 1 KiB", "are announced", |f| {
        f.keys.push(key("k", 8, &long(1 << 30, &[b'a'; 1024])));
    });
    with_key("no key", "has no name", key("", 4, &[0; 4]));
    with_key("a key of 65536 bytes", "has 65536 bytes", key(&"k".repeat(65_536), 4, &[0; 4]));
    with_key("a key twice", "two keys \"general.architecture\"", key("general.architecture", 4, &[0; 4]));
    for kind in [13, 14, 255, u32::MAX] {
        with_key("a kind", "does not define", key("k", kind, &[0; 8]));
        with_key("a list of a kind", "does not define", key("k", 9, &list(kind, 1, &[0; 8])));
    }
    with_key("a list of lists", "a list of lists", key("k", 9, &list(9, 1, &list(4, 1, &[0; 4]))));
    let deep = list(9, 1, &[]).repeat(1 << 16);
    with_key("lists all the way down", "a list of lists", key("k", 9, &deep));
    with_key("a bool of 2", "a bool is 2", key("k", 7, &[2]));
    with_key("a bool in a list", "a bool is 255", key("k", 9, &list(7, 2, &[1, 255])));
    with_key("a value that is no UTF-8", "not UTF-8", key("k", 8, &text(b"\xff\xfe")));
    with_key(
        "a key that is no UTF-8",
        "not UTF-8",
        [text(b"\xc3\x28"), vec![4, 0, 0, 0, 0, 0, 0, 0]].concat(),
    );
    with_key("texts that are no UTF-8", "not UTF-8", key("k", 9, &list(8, 1, &text(b"\x80"))));
    for n in [0u32, 3, 31, 33, u32::MAX] {
        with_key("alignment", "no power of two", key("general.alignment", 4, &n.to_le_bytes()));
    }
    with_key(
        "a large alignment",
        "ends before the data",
        key("general.alignment", 4, &(1u32 << 31).to_le_bytes()),
    );
    with_key(
        "a wide alignment",
        "not an unsigned 32-bit",
        key("general.alignment", 10, &32u64.to_le_bytes()),
    );
    with_key(
        "a signed alignment",
        "not an unsigned 32-bit",
        key("general.alignment", 5, &32i32.to_le_bytes()),
    );
    with_key("an alignment in words", "not an unsigned 32-bit", key("general.alignment", 8, &text(b"32")));
}

#[test]
fn tensors() {
    with_tensor("no name", "has no name", tensor("", &[6], 0, 0));
    with_tensor("no UTF-8", "not UTF-8", [text(b"\xff"), tensor("", &[6], 0, 0)[8..].to_vec()].concat());
    run("one name twice", "two tensors \"x\"", |f| {
        f.tensors.push(tensor("x", &[1], 0, 32));
        f.data = vec![0; 36];
    });
    with_tensor("5 axes", "has 5 axes", tensor("x", &[1; 5], 0, 0));
    let mut many = tensor("x", &[], 0, 0);
    many[9..13].copy_from_slice(&u32::MAX.to_le_bytes());
    with_tensor("2^32 - 1 axes", "has 4294967295 axes", many);
    with_tensor("an axis of 0", "an axis of size 0", tensor("x", &[6, 0], 0, 0));
    with_tensor("an axis of -1", "an axis of size -1", tensor("x", &[6, u64::MAX], 0, 0));
    with_tensor("an axis of -2^63", "an axis of size -9223372036854775808", tensor("x", &[1 << 63], 0, 0));
    with_tensor("elements that overflow", "too large", tensor("x", &[1 << 32, 1 << 32, 1 << 32], 0, 0));
    with_tensor("elements that come to 0", "too large", tensor("x", &[1 << 32, 1 << 32], 0, 0));
    with_tensor("bytes that overflow", "too large", tensor("x", &[1 << 62], 28, 0));
    with_tensor("bytes that come to 0", "too large", tensor("x", &[1 << 61], 28, 0));
    with_tensor("blocks that overflow", "too large", tensor("x", &[1 << 40, 1 << 24], 8, 0));
    with_tensor("more than there is", "bytes of data", tensor("x", &[7], 0, 0));
    with_tensor("far more than there is", "bytes of data", tensor("x", &[1 << 40], 0, 0));
    for ty in [4, 5, 31, 36, 42, 1000, u32::MAX] {
        with_tensor("a type", "does not define", tensor("x", &[6], ty, 0));
    }
    with_tensor("rows of 33 in blocks of 32", "blocks of 32", tensor("x", &[33], 2, 0));
    with_tensor("rows of 32 in blocks of 256", "blocks of 256", tensor("x", &[32, 8], 12, 0));
    with_tensor("no row at all", "blocks of 32", tensor("x", &[], 2, 0));
    with_tensor("past the end", "bytes of data", tensor("x", &[6], 0, 32));
    with_tensor("far past the end", "bytes of data", tensor("x", &[6], 0, 1 << 50));
    with_tensor("as far as can be", "too large", tensor("x", &[16], 0, u64::MAX - 31));
    with_tensor("misaligned", "not a multiple of 32", tensor("x", &[1], 0, 8));
    run("overlap", "\"x\" and \"y\" overlap", |f| {
        f.tensors = vec![tensor("y", &[1], 0, 32), tensor("x", &[9], 0, 0)];
        f.data = vec![0; 64];
    });
    run("in the same place", "overlap", |f| f.tensors.push(tensor("y", &[6], 0, 0)));
    run("data cut short", "bytes of data", |f| f.data.truncate(23));
    run("no data", "ends before", |f| {
        f.alignment = 1;
        f.data.clear();
    });
    // As RLX has no such type, it can be listed but not read.
    let file = File { tensors: vec![tensor("x", &[256], 16, 0)], data: vec![0; 66], ..File::new() };
    let folder = Folder::new();
    let path = folder.file("x.gguf", &file.bytes());
    let archive = open(&path).unwrap();
    assert_eq!((archive.entries()[0].stored(), archive.entries()[0].dtype()), ("IQ2_XXS", None));
    refused("no such type", read_path(&path), "tensor \"x\": is IQ2_XXS, a type that RLX has not");
}

#[test]
fn scales_that_are_no_numbers() {
    for (ty, bytes, row, at) in [
        (2, 18, 32, 0),
        (3, 20, 32, 2),
        (6, 22, 32, 0),
        (7, 24, 32, 2),
        (8, 34, 32, 0),
        (10, 84, 256, 82),
        (11, 110, 256, 108),
        (12, 144, 256, 2),
        (13, 176, 256, 0),
        (14, 210, 256, 208),
        (20, 18, 32, 0),
        (23, 136, 256, 0),
    ] {
        for half in [0x7e00u16, 0xfc00, 0x7c00] {
            run("a scale", "NaN or infinite", |f| {
                f.tensors = vec![tensor("x", &[row, 2], ty, 0)];
                f.data = vec![0; 2 * bytes];
                f.data[bytes + at..bytes + at + 2].copy_from_slice(&half.to_le_bytes());
            });
        }
    }
    run("a wide scale", "NaN or infinite", |f| {
        f.tensors = vec![tensor("x", &[256], 15, 0)];
        f.data = vec![0; 292];
        f.data[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    });
}

#[test]
fn damaged_files() {
    let mut file = File::new();
    for (i, kind) in [0u32, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12].into_iter().enumerate() {
        let bytes = [1, 1, 2, 2, 4, 4, 4, 1, 8, 8, 8][i];
        file.keys.push(key(&format!("k{kind}"), kind, &vec![1; bytes]));
        file.keys.push(key(&format!("l{kind}"), 9, &list(kind, 2, &vec![1; 2 * bytes])));
    }
    file.keys.push(key("texts", 9, &list(8, 2, &[text(b"a"), text("ä".as_bytes())].concat())));
    file.tensors.push(tensor("q", &[32, 1, 2], 2, 32));
    file.data = vec![0x21; 32 + 36];
    damage("x.gguf", &file.bytes());
}

#[test]
fn parts() {
    let folder = Folder::new();
    let t = Tensor::new(&[2], &[1f32, 2.0]).unwrap();
    let part = |file: &str, tensor: &str, meta: &[(&str, Value)]| {
        let meta: Vec<(String, Value)> = meta.iter().map(|(k, v)| (k.to_string(), v.clone())).collect();
        gguf::write(&folder.path(file), &[(tensor, View::from(&t))], &meta).unwrap();
    };
    let of = |no: u16, count: u16, all: i32| {
        [
            ("split.no", Value::U16(no)),
            ("split.count", Value::U16(count)),
            ("split.tensors.count", Value::I32(all)),
        ]
    };
    let run = |file: &str, why: &str| {
        let path = folder.path(file);
        refused(file, limited(file, move || read_path(&path)), why);
    };
    part("lonely.gguf", "a", &of(0, 2, 2));
    run("lonely.gguf", "part 1 of 2, but its name does not end in -00001-of-00002.gguf");
    part("m-00001-of-00002.gguf", "a", &of(0, 2, 2));
    run("m-00001-of-00002.gguf", "m-00002-of-00002.gguf: ");
    part("m-00002-of-00002.gguf", "a", &of(1, 2, 2));
    run("m-00001-of-00002.gguf", "two tensors \"a\"");
    part("m-00002-of-00002.gguf", "b", &of(0, 2, 2));
    run("m-00001-of-00002.gguf", "is not part 2 of 2");
    run("m-00002-of-00002.gguf", "part 1 of 2, but its name");
    part("m-00002-of-00002.gguf", "b", &of(1, 3, 2));
    run("m-00001-of-00002.gguf", "is not part 2 of 2");
    part("m-00002-of-00002.gguf", "b", &[]);
    run("m-00001-of-00002.gguf", "is not part 2 of 2");
    part("m-00002-of-00002.gguf", "b", &of(1, 2, 2));
    assert_eq!(read_path(&folder.path("m-00001-of-00002.gguf")).unwrap(), 4);
    assert_eq!(read_path(&folder.path("m-00002-of-00002.gguf")).unwrap(), 4);
    part("m-00001-of-00002.gguf", "a", &of(0, 2, 3));
    run("m-00001-of-00002.gguf", "have 2 tensors, but 3 are announced");
    part("n-00003-of-00002.gguf", "a", &of(2, 2, 1));
    run("n-00003-of-00002.gguf", "do not say which part");
    part("n.gguf", "a", &[("split.count", Value::U16(2))]);
    run("n.gguf", "do not say which part");
    part("n.gguf", "a", &[("split.count", "2".into()), ("split.no", Value::U16(0))]);
    run("n.gguf", "do not say which part");
    part("n.gguf", "a", &[("split.count", Value::U64(1 << 40)), ("split.no", Value::U16(0))]);
    run("n.gguf", "do not say which part");
    part("n-00001-of-65535.gguf", "a", &of(0, 65535, 1));
    run("n-00001-of-65535.gguf", "n-00002-of-65535.gguf: ");
    part("one.gguf", "a", &of(0, 1, 1));
    assert_eq!(read_path(&folder.path("one.gguf")).unwrap(), 2);
    #[cfg(unix)]
    {
        std::fs::create_dir(folder.path("sub")).unwrap();
        std::fs::rename(folder.path("m-00001-of-00002.gguf"), folder.path("sub/m-00001-of-00002.gguf"))
            .unwrap();
        std::os::unix::fs::symlink("../m-00002-of-00002.gguf", folder.path("sub/m-00002-of-00002.gguf"))
            .unwrap();
        run("sub/m-00001-of-00002.gguf", "not below its own folder");
    }
}

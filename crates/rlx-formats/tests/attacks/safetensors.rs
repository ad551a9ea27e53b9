//! Safetensors files and indices of them.

use super::{attack, common::Folder, consume, damage, limited, read_path, refused};
use crate::hostile::{GOOD, entry, file, malformed};
use rlx_formats::open;

#[test]
fn malformed_files() {
    for (name, bytes, why) in malformed() {
        attack(name, "x.safetensors", &bytes, why);
    }
    let zeros = r#""x":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}"#;
    attack(
        "a bool of 2",
        "x.safetensors",
        &file(format!("{{{zeros}}}").as_bytes(), &[1, 2]),
        "neither 0 nor 1",
    );
}

#[test]
fn damaged_files() {
    damage("x.safetensors", &entry(GOOD, &[7; 8]));
}

/// Mostly holes, so that it takes no space on the disk.
#[test]
fn headers_that_are_too_long() {
    let folder = Folder::new();
    for len in [100_000_001u64, 1 << 30] {
        let path = folder.file("long.safetensors", &[&len.to_le_bytes()[..], b"{"].concat());
        std::fs::File::options().write(true).open(&path).unwrap().set_len(len + 8).unwrap();
        refused("long", limited("long", move || read_path(&path)), "header too large");
    }
}

/// The process would be ended by a signal if this were read.
#[test]
fn files_that_are_cut_short_while_they_are_mapped() {
    let folder = Folder::new();
    let len = 1 << 20;
    let header = format!(r#""dtype":"U8","shape":[{len}],"data_offsets":[0,{len}]"#);
    let path = folder.file("x.safetensors", &entry(&header, &vec![1; len]));
    let archive = open(&path).unwrap();
    let before = archive.tensor("x").unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(100).unwrap();
    assert!(before.to_tensor().unwrap_err().to_string().contains("cut short"));
    refused("cut", limited("cut", move || consume(archive)), "cut short while in use");
}

#[test]
fn packed_tensors_that_do_not_fit() {
    let codes = r#""w.codes":{"dtype":"I8","shape":[4,1],"data_offsets":[8,12]}"#;
    let scale = r#""w.scale":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}"#;
    let try_one = |packed: &str, why: &str| {
        let packed = serde_json::Value::from(packed);
        let header = format!(r#"{{"__metadata__":{{"rlx.packed":{packed}}},{codes},{scale}}}"#);
        attack(why, "w.safetensors", &file(header.as_bytes(), &[0; 12]), why);
    };
    let w = |scheme: &str, shape: &str| format!(r#"{{"w":{{"scheme":"{scheme}","shape":{shape}}}}}"#);
    try_one("[]", "invalid type");
    try_one("{", "EOF");
    try_one(&w("int9:2", "[4,1]"), "is no scheme");
    try_one(&w("int8:2", "[4,-1]"), "is no scheme and shape");
    try_one(&w("int8:0", "[4,1]"), "is no scheme");
    try_one(&w("int8:2", "[4,2]"), "does not fit");
    try_one(&w("int8:2", "[3,1]"), "does not fit");
    try_one(&w("int8:2", "[]"), "needs a shape");
    try_one(&w("int8:2", "[18446744073709551615,18446744073709551615]"), "too large");
    try_one(&w("int8_asym:2", "[4,1]"), "there is no plane \"w.zero\"");
    try_one(&w("int8:2", "[4,1]").replace("\"w\"", "\"v\""), "there is no plane \"v.codes\"");
    let w1 = w("int8:2", "[4,1]");
    try_one(
        &format!("{},{}", w1.trim_end_matches('}').to_owned() + "}", w1.trim_start_matches('{')),
        "stands twice",
    );
    let folder = Folder::new();
    let header =
        format!(r#"{{"__metadata__":{{"rlx.packed":{}}},{codes},{scale}}}"#, serde_json::Value::from(w1));
    let path = folder.file("w.safetensors", &file(header.as_bytes(), &[0; 12]));
    assert_eq!(open(path).unwrap().tensor("w").unwrap().shape(), [4, 1]);
}

#[test]
fn indices() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path("m")).unwrap();
    folder.file("secret.safetensors", &entry(GOOD, &[0; 8]));
    folder.file("m/a.safetensors", &entry(GOOD, &[0; 8]));
    let run = |name: &str, index: &str, why: &str| {
        let path = folder.file("m/x.index.json", index.as_bytes());
        refused(name, limited(name, move || read_path(&path)), why);
    };
    let map = |pairs: &str| format!(r#"{{"weight_map":{{{pairs}}}}}"#);
    let outside = "not below its own folder";
    run("above", &map(r#""x":"../secret.safetensors""#), outside);
    run("above, hidden", &map(r#""x":"m/../../secret.safetensors""#), outside);
    let absolute = folder.path("secret.safetensors").display().to_string();
    run("absolute", &map(&format!(r#""x":"{absolute}""#)), outside);
    run("nameless", &map(r#""x":"""#), outside);
    run("gone", &map(r#""x":"gone.safetensors""#), "gone.safetensors: ");
    run("a folder", &map(r#""x":".""#), "not a file");
    run("itself", &map(r#""x":"x.index.json""#), "header");
    run("NUL", &map(r#""x":"a\u0000b""#), "a\0b");
    run("another tensor", &map(r#""y":"a.safetensors""#), "there is no tensor \"y\"");
    run("a key twice", &map(r#""x":"a.safetensors","x":"a.safetensors""#), "stands twice");
    run("a map twice", r#"{"weight_map":{},"weight_map":{}}"#, "stands twice");
    run("no map", r#"{"metadata":{}}"#, "no weight_map");
    run("numbers", &map(r#""x":1"#), "invalid type");
    run("a list", r#"{"weight_map":["a.safetensors"]}"#, "invalid type");
    run("cut", r#"{"weight_map":{"x":"a.safe"#, "EOF");
    run("deep", &r#"{"x":"#.repeat(100_000), "EOF");
    run("deep metadata", &format!(r#"{{"metadata":{}"#, "[".repeat(1 << 20)), "");
    folder.file("m/b.safetensors", &entry(GOOD, &[0; 7]));
    run("a bad part", &map(r#""x":"b.safetensors""#), "b.safetensors: ");
    let good = folder.file("m/good.index.json", map(r#""x":"./a.safetensors""#).as_bytes());
    assert_eq!(read_path(&good).unwrap(), 2);
    #[cfg(unix)]
    {
        use std::os::unix::fs::symlink;
        symlink("../secret.safetensors", folder.path("m/link")).unwrap();
        run("a link that leads out", &map(r#""x":"link""#), outside);
        symlink("/dev/zero", folder.path("m/zero")).unwrap();
        run("a link to a device", &map(r#""x":"zero""#), outside);
        // As caches keep models: all files are links into one folder.
        std::fs::create_dir(folder.path("snapshot")).unwrap();
        symlink("../m/good.index.json", folder.path("snapshot/i.json")).unwrap();
        symlink("../m/a.safetensors", folder.path("snapshot/a.safetensors")).unwrap();
        assert_eq!(read_path(&folder.path("snapshot/i.json")).unwrap(), 2);
    }
    let e = rlx_formats::Archive::from_bytes(map("").into_bytes().into()).unwrap_err();
    assert!(e.message().contains("without a path"), "{e}");
}

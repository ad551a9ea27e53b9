//! Safetensors files that mean no good: every reader of such files must refuse each of them with a word about why.

/// A safetensors file of this header and these data, the length in front as it should be.
pub fn file(header: &[u8], data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header, data].concat()
}

/// One tensor `x`, declared by this entry.
pub fn entry(entry: &str, data: &[u8]) -> Vec<u8> {
    file(format!("{{\"x\":{{{entry}}}}}").as_bytes(), data)
}

/// What declares two f32.
pub const GOOD: &str = r#""dtype":"F32","shape":[2],"data_offsets":[0,8]"#;

/// What is wrong, the bytes, and a word of the message.
type Attack = (&'static str, Vec<u8>, &'static str);

/// Files to be read for a tensor `x` of type f32\[2\]: malformed ones, and ones that hold another.
pub fn hostile() -> Vec<Attack> {
    let mut all = malformed();
    all.extend([
        (
            "32-bit words of the wrong shape",
            entry(r#""dtype":"F32","shape":[1,2],"data_offsets":[0,8]"#, &[0; 8]),
            "E0401",
        ),
        ("another dtype", entry(r#""dtype":"I32","shape":[2],"data_offsets":[0,8]"#, &[0; 8]), "E0401"),
    ]);
    all
}

/// Files that no reader takes.
pub fn malformed() -> Vec<Attack> {
    let x = |offsets: &str| entry(&format!(r#""dtype":"F32","shape":[2],"data_offsets":{offsets}"#), &[0; 8]);
    let shape = |s: &str| entry(&format!(r#""dtype":"F32","shape":{s},"data_offsets":[0,8]"#), &[0; 8]);
    let two = |b: &str| {
        let a = r#""x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#;
        file(format!("{{{a},{b}}}").as_bytes(), &[0; 8])
    };
    let length = |n: u64| [&n.to_le_bytes()[..], b"{}"].concat();
    let mut invalid_utf8 = entry(GOOD, &[0; 8]);
    if let Some(b) = invalid_utf8.get_mut(10) {
        *b = 0xff;
    }
    vec![
        ("empty", vec![], "header"),
        ("seven bytes", vec![0; 7], "header"),
        ("header of 0 bytes", length(0), "EOF"),
        ("header beyond the file", length(3), "header"),
        ("header of 100 MB and more", length(100_000_001), "header"),
        ("header of 2^63", length(1 << 63), "header"),
        ("header of 2^64 - 1", length(u64::MAX), "header"),
        ("no JSON", file(b"not json", &[]), "expected"),
        ("a list", file(b"[]", &[]), "invalid type"),
        ("JSON without an end", file(br#"{"x":{"#, &[]), "EOF"),
        ("invalid UTF-8", invalid_utf8, ""),
        ("deep JSON", file(&[b"{\"x\":".as_slice(), &[b'['; 1 << 20]].concat(), &[]), "recursion"),
        ("deep objects", file("{\"x\":".repeat(1 << 18).as_bytes(), &[]), "recursion"),
        ("one name twice", two(&format!("\"x\":{{{GOOD}}}")), "two tensors \"x\""),
        ("a field twice", entry(&format!("{GOOD},\"dtype\":\"F32\""), &[0; 8]), "duplicate field"),
        ("a field too few", entry(r#""dtype":"F32","shape":[2]"#, &[0; 8]), "missing field"),
        ("negative offsets", x("[-8,0]"), "beyond"),
        ("fractions", x("[0,8.5]"), "beyond"),
        ("reversed offsets", x("[8,0]"), "offset"),
        ("one offset", x("[0]"), "invalid length"),
        ("offsets of 2^64 - 1", x("[0,18446744073709551615]"), "beyond"),
        ("offsets of 2^64", x("[0,18446744073709551616]"), "beyond"),
        // The sum of offset, header and length is beyond 64 bits.
        (
            "as large as can be",
            entry(
                r#""dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,18446744073709551615]"#,
                &[],
            ),
            "beyond",
        ),
        ("a hole at the start", x("[4,12]"), "offset"),
        ("overlap", two(r#""y":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}"#), "offset"),
        ("a hole", two(r#""y":{"dtype":"U8","shape":[0],"data_offsets":[9,9]}"#), "offset"),
        ("shape that overflows", shape("[4294967296,4294967296,4294967296]"), ""),
        ("bytes that overflow", shape("[4611686018427387904]"), ""),
        ("shape without data", shape("[1099511627776]"), ""),
        ("negative shape", shape("[-2]"), "invalid value"),
        ("shape of another size", shape("[3]"), ""),
        ("33 axes", shape(&format!("[{}2]", "1,".repeat(32))), ""),
        ("unknown dtype", entry(r#""dtype":"F33","shape":[2],"data_offsets":[0,8]"#, &[0; 8]), "variant"),
        ("fp4, an odd count", entry(r#""dtype":"F4","shape":[3],"data_offsets":[0,2]"#, &[0; 2]), ""),
        ("fp4", entry(r#""dtype":"F4","shape":[2],"data_offsets":[0,1]"#, &[0; 1]), "is F4, a type that"),
        ("bytes after the end", entry(GOOD, &[0; 9]), "not fully covered"),
        ("bytes missing", entry(GOOD, &[0; 7]), "not fully covered"),
        ("metadata that is no text", two(r#""__metadata__":{"a":1}"#), "invalid type"),
    ]
}

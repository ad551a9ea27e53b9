//! The seeds and findings of the fuzzer, and what they become when bytes change: each fails to parse with an error, or
//! means what its printed form means.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx_ir::sample::Rng;
use rlx_ir::text::{parse, print};
use std::path::Path;

fn check(name: &str, text: &str) {
    let Ok(func) = parse(text) else { return };
    let printed = print(&func);
    let again =
        parse(&printed).unwrap_or_else(|e| panic!("{name}: the printed form does not parse: {e}\n{printed}"));
    assert!(func == again, "{name}: the printed form means something else\n{printed}");
    assert_eq!(print(&again), printed, "{name}");
}

#[test]
fn the_corpus_is_replayed() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/parse");
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    assert!(files.len() > 10, "only {} seeds", files.len());
    let mut rng = Rng::new(3);
    for path in &files {
        let name = path.file_name().unwrap().to_string_lossy();
        let bytes = std::fs::read(path).unwrap();
        check(&name, &String::from_utf8_lossy(&bytes));
        for _ in 0..10 {
            let mut bytes = bytes.clone();
            for _ in 0..1 + rng.below(3) {
                let i = rng.below(bytes.len() as u64) as usize;
                match (rng.below(4), bytes.get_mut(i)) {
                    (0, Some(b)) => *b = rng.below(128) as u8,
                    (1, Some(b)) => *b ^= 1,
                    (2, Some(_)) => drop(bytes.remove(i)),
                    _ => bytes.truncate(i + 1),
                }
            }
            check(&name, &String::from_utf8_lossy(&bytes));
        }
    }
}

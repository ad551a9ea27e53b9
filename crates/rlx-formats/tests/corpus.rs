//! The seeds and findings of the fuzzers, and what they become when bytes change: see `fuzz/fuzz_targets/shared` and `imported`,
//! which say what holds for them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "../../../fuzz/fuzz_targets/shared/mod.rs"]
mod shared;

#[path = "../../../fuzz/fuzz_targets/imported/mod.rs"]
mod imported;

use rlx_formats::onnx::{Model, Options};
use rlx_formats::{gguf, npz, open, safetensors};
use rlx_ir::sample::Rng;
use std::path::{Path, PathBuf};

fn seeds(target: &str) -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files
}

fn check(target: &str, bytes: &[u8]) {
    if target == "onnx" {
        return imported::check(bytes);
    }
    shared::check(
        bytes,
        match target {
            "safetensors" => |to, tensors, metadata| safetensors::write_to(to, tensors, metadata),
            "gguf" => |to, tensors, metadata| gguf::write_to(to, tensors, metadata),
            _ => |to, tensors, _| npz::write_to(to, tensors),
        },
    );
}

#[test]
fn the_corpus_is_replayed() {
    let mut rng = Rng::new(5);
    for target in ["safetensors", "gguf", "npz", "onnx"] {
        for path in seeds(target) {
            let bytes = std::fs::read(&path).unwrap();
            check(target, &bytes);
            for _ in 0..300 {
                let mut bytes = bytes.clone();
                for _ in 0..1 + rng.below(3) {
                    let i = rng.below(bytes.len() as u64) as usize;
                    match (rng.below(5), bytes.get_mut(i)) {
                        (0, Some(b)) => *b = rng.below(256) as u8,
                        (1, Some(b)) => *b ^= 1,
                        (2, Some(b)) => *b = b.wrapping_sub(1),
                        (3, Some(_)) => drop(bytes.remove(i)),
                        _ => bytes.truncate(i + 1),
                    }
                }
                check(target, &bytes);
            }
        }
    }
}

/// The seeds are good files, so that a fuzzer starts behind the first check.
#[test]
fn the_seeds_are_read() {
    for (target, ending) in
        [("safetensors", "safetensors"), ("gguf", "gguf"), ("npz", "np"), ("onnx", "onnx")]
    {
        let good: Vec<PathBuf> = seeds(target)
            .into_iter()
            .filter(|p| p.extension().is_some_and(|e| e.to_string_lossy().starts_with(ending)))
            .collect();
        assert!(good.len() >= 5, "{target}: {good:?}");
        for path in good {
            open(&path).unwrap();
            if target == "onnx" {
                Model::open(&path).unwrap().import(&Options::default()).unwrap();
            }
        }
    }
}

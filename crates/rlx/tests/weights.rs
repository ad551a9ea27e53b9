//! Files of params that mean no good are refused, with a word about why.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use common::options;
use rlx::{Code, DType, Device, Graph, weights};
use rlx_conformance::attacks::{GOOD, entry, hostile};
use std::path::PathBuf;

/// A file, gone when it is over.
struct Temp(PathBuf);

impl Temp {
    fn new(name: &str) -> Temp {
        Temp(std::env::temp_dir().join(format!("rlx-{}-{name}.safetensors", std::process::id())))
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn hostile_files_set_no_params() {
    let g = Graph::new("g");
    let x = g.param("x", DType::F32, [2]);
    g.output("y", x);
    let file = Temp::new("hostile");
    for (name, bytes, why) in hostile() {
        std::fs::write(&file.0, &bytes).unwrap();
        let exe = rlx::compile_with(&g, Device::Cpu, &options(1)).unwrap();
        let e = exe.params().load(&file.0).expect_err(name);
        let code = if why == "E0401" { Code::BadInput } else { Code::File };
        assert!(e.code() == code && e.to_string().contains(why), "{name}: {e}");
        assert_eq!(exe.params().missing(), ["x"], "{name}");
    }
    std::fs::write(&file.0, entry(GOOD, &[0; 8])).unwrap();
    rlx::compile_with(&g, Device::Cpu, &options(1)).unwrap().params().load(&file.0).unwrap();
}

#[test]
fn bools_that_are_neither_are_refused() {
    let file = Temp::new("bools");
    for (byte, fine) in [(0, true), (1, true), (2, false), (255, false)] {
        let bytes = entry(r#""dtype":"BOOL","shape":[3],"data_offsets":[0,3]"#, &[0, 1, byte]);
        std::fs::write(&file.0, bytes).unwrap();
        assert_eq!(weights::open(&file.0).is_ok(), fine, "{byte}");
    }
}

#[test]
fn what_is_no_file_is_not_read() {
    for path in ["/", "/dev/zero", "no/such.safetensors"] {
        let e = weights::open(path).expect_err(path);
        assert!(e.code() == Code::File && e.to_string().contains(path), "{e}");
    }
}

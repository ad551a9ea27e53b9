//! Running the program, and folders to run it in.
#![allow(dead_code, reason = "no test program uses all of it")]

use rlx::Tensor;
use rlx::formats::{View, open, safetensors};
use std::path::{Path, PathBuf};
use std::process::Command;

pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

pub fn rlx(args: &[&str]) -> Ran {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let done = Command::new(env!("CARGO_BIN_EXE_rlx")).args(args).current_dir(root).output().unwrap();
    Ran {
        code: done.status.code().unwrap(),
        out: String::from_utf8(done.stdout).unwrap(),
        err: String::from_utf8(done.stderr).unwrap(),
    }
}

#[track_caller]
pub fn works(args: &[&str]) -> String {
    let ran = rlx(args);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{args:?}");
    ran.out
}

#[track_caller]
pub fn fails(args: &[&str], code: i32, why: &str) {
    let ran = rlx(args);
    assert_eq!(ran.code, code, "{args:?}: {}", ran.err);
    assert_eq!(ran.err.lines().count(), 1, "{args:?}: {}", ran.err);
    assert!(ran.err.starts_with("rlx: ") && ran.err.contains(why), "{args:?}: {}", ran.err);
    assert_eq!(ran.out, "", "{args:?}");
}

/// A folder of the test's own, gone when it is over.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(test: &str) -> Folder {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
    pub fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_string()
    }
    pub fn graph(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }
    pub fn tensors(&self, name: &str, tensors: &[(&str, &[usize], &[f32])]) -> String {
        let tensors: Vec<(&str, Tensor)> =
            tensors.iter().map(|(n, shape, x)| (*n, Tensor::new(shape, x).unwrap())).collect();
        let views: Vec<(&str, View<'_>)> = tensors.iter().map(|(n, t)| (*n, t.into())).collect();
        let path = self.path(name);
        safetensors::write(path.as_ref(), &views, &[]).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn floats(path: &str, name: &str) -> Vec<f32> {
    open(path).unwrap().tensor(name).unwrap().to_tensor().unwrap().to_vec().unwrap()
}

//! The program as a caller sees it: output, files, exit codes, and one line on stderr.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use std::path::{Path, PathBuf};
use std::process::Command;

struct Ran {
    code: i32,
    out: String,
    err: String,
}

fn rlx(args: &[&str]) -> Ran {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let done = Command::new(env!("CARGO_BIN_EXE_rlx")).args(args).current_dir(root).output().unwrap();
    Ran {
        code: done.status.code().unwrap(),
        out: String::from_utf8(done.stdout).unwrap(),
        err: String::from_utf8(done.stderr).unwrap(),
    }
}

#[track_caller]
fn works(args: &[&str]) -> String {
    let ran = rlx(args);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{args:?}");
    ran.out
}

#[track_caller]
fn fails(args: &[&str], code: i32, why: &str) {
    let ran = rlx(args);
    assert_eq!(ran.code, code, "{args:?}: {}", ran.err);
    assert_eq!(ran.err.lines().count(), 1, "{args:?}: {}", ran.err);
    assert!(ran.err.starts_with("rlx: ") && ran.err.contains(why), "{args:?}: {}", ran.err);
    assert_eq!(ran.out, "", "{args:?}");
}

/// A folder of the test's own, gone when it is over.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_string()
    }
    fn graph(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }
    fn tensors(&self, name: &str, tensors: &[(&str, &[usize], &[f32])]) -> String {
        let bytes: Vec<Vec<u8>> =
            tensors.iter().map(|(_, _, x)| x.iter().flat_map(|x| x.to_le_bytes()).collect()).collect();
        let views = tensors
            .iter()
            .zip(&bytes)
            .map(|((n, shape, _), b)| (*n, TensorView::new(Dtype::F32, shape.to_vec(), b).unwrap()));
        let path = self.path(name);
        std::fs::write(&path, safetensors::serialize(views, None).unwrap()).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn floats(path: &str, name: &str) -> Vec<f32> {
    let bytes = std::fs::read(path).unwrap();
    let all = SafeTensors::deserialize(&bytes).unwrap();
    let data = all.tensor(name).unwrap().data();
    data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

#[test]
fn examples_run() {
    let want = "probability: f32[4, 1]
[[0.006693]
 [0.993307]
 [0.993307]
 [0.006693]]
truth_table: f32[4, 3]
[[0.0 0.0 0.0]
 [0.0 1.0 1.0]
 [1.0 0.0 1.0]
 [1.0 1.0 0.0]]
";
    assert_eq!(works(&["run", "examples/xor.rlx"]), want);
    assert_eq!(
        works(&["run", "examples/newton.rlx", "--device", "reference"]),
        "root: f64[] 1.414214\nturns: i32[] 5\n"
    );
    let want = "line: f32[4, 1]\n[[0.5]\n [2.0]\n [3.5]\n [5.0]]\nloss: f32[] 1.875\n\
                grad.w: f32[1, 1]\n[[-5.0]]\ngrad.b: f32[1]\n[-2.5]\n";
    assert_eq!(works(&["run", "examples/regression.rlx", "--grad"]), want);
}

/// Every example reads, and reads back.
#[test]
fn examples_are_inspected() {
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "rlx") {
            continue;
        }
        let path = path.to_str().unwrap();
        let folder = Folder::new("inspect");
        let text = works(&["inspect", path]);
        assert_eq!(works(&["inspect", &folder.graph("again.rlx", &text), "--stage", "graph"]), text);
        assert!(works(&["inspect", path, "--format", "dot"]).starts_with("digraph "));
        let json: serde_json::Value =
            serde_json::from_str(&works(&["inspect", path, "--format", "json"])).unwrap();
        assert!(json["nodes"].as_array().is_some_and(|n| !n.is_empty()));
    }
}

#[test]
fn json_says_it_all() {
    let f = Folder::new("json");
    let text = "graph g { dim n <= 4 input x: f32[n, 2] param w: f32[2] diff @ \"w.st\" \"t\" \
                y = sum(x) {axes: [0]} c = constant() {value: f32[2] [inf, 1]} output y = y }";
    let json: serde_json::Value =
        serde_json::from_str(&works(&["inspect", &f.graph("g.rlx", text), "--format", "json"])).unwrap();
    assert_eq!(json["symbols"]["n"], 4);
    assert_eq!(json["ports"][0]["shape"], serde_json::json!(["n", 2]));
    assert_eq!(json["ports"][1]["source"]["tensor"], "t");
    assert_eq!(json["nodes"][0]["attrs"], serde_json::json!({"axes": [0], "keep": false}));
    assert_eq!(json["nodes"][0]["operands"], serde_json::json!(["x"]));
    assert_eq!(
        json["nodes"][0]["results"][0],
        serde_json::json!({"name": "y", "dtype": "f32", "shape": [2]})
    );
    assert_eq!(json["outputs"][0], serde_json::json!({"name": "y", "value": "y"}));
}

#[test]
fn tensors_come_from_files_and_go_to_files() {
    let f = Folder::new("files");
    let graph = f.graph(
        "g.rlx",
        "graph g { dim n <= 9 input x: f32[n, 2] param w: f32[2] diff @ \"sub/w.safetensors\" \"layer.w\"
           y = mul(x, w) loss = sum(y) {axes: [0, 1]} output y = y output loss = loss }",
    );
    std::fs::create_dir(f.path("sub")).unwrap();
    f.tensors("sub/w.safetensors", &[("layer.w", &[2], &[10.0, 100.0])]);
    let x = f.tensors("x.safetensors", &[("x", &[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])]);
    let y = f.path("y.safetensors");
    works(&["run", &graph, "--in", &x, "--out", &y, "--grad"]);
    assert_eq!(floats(&y, "y"), [10.0, 200.0, 30.0, 400.0, 50.0, 600.0]);
    assert_eq!(floats(&y, "loss"), [1290.0]);
    assert_eq!(floats(&y, "grad.w"), [9.0, 12.0]);
    // What is given stands above what is referred to.
    let both = f.tensors("both.safetensors", &[("x", &[1, 2], &[1.0, 1.0]), ("w", &[2], &[1.0, 2.0])]);
    works(&["run", &graph, "--in", &both, "--out", &y]);
    assert_eq!(floats(&y, "y"), [1.0, 2.0]);
    let left: Vec<_> = std::fs::read_dir(&f.0).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.iter().all(|n| !n.to_string_lossy().contains("tmp")), "{left:?}");
}

#[test]
fn packed_tensors_are_their_planes() {
    let f = Folder::new("packed");
    let graph = f.graph(
        "g.rlx",
        "graph g { param w: packed<int8:2>[3, 1] = x\"01ff7f\" x\"0000803f00000040\" output w = w }",
    );
    let out = f.path("w.safetensors");
    assert_eq!(works(&["run", &graph, "--out", &out]), "w: packed<int8:2>[3, 1], 11 bytes\n");
    assert_eq!(floats(&out, "w.scale"), [1.0, 2.0]);
    let graph = f.graph("h.rlx", "graph h { input w: packed<int8:2>[3, 1] output w = w }");
    let again = f.path("again.safetensors");
    works(&["run", &graph, "--in", &out, "--out", &again]);
    assert_eq!(std::fs::read(&again).unwrap(), std::fs::read(&out).unwrap());
}

#[test]
fn bad_calls_are_exit_code_2() {
    fails(&[], 2, "");
    fails(&["fly"], 2, "fly");
    fails(&["run"], 2, "GRAPH");
    fails(&["run", "examples/xor.rlx", "--fast"], 2, "--fast");
    fails(&["run", "examples/xor.rlx", "--device", "cuda:1"], 2, "no device \"cuda:1\"");
    fails(&["run", "model.onnx"], 2, "text format");
    fails(&["run", "examples/xor.rlx", "--in", "x.npz"], 2, "safetensors");
    fails(&["inspect", "examples/xor.rlx", "--stage", "plan"], 2, "plan");
    fails(&["ops", "softmaxx"], 2, "did you mean softmax?");
    let f = Folder::new("missing");
    let graph = f.graph("g.rlx", "graph g { input x: f32[2] param w: f32[] y = mul(x, w) output y = y }");
    fails(&["run", &graph], 2, "missing input x (f32[2]), param w (f32[]): give them with --in FILE");
}

#[test]
fn everything_else_is_exit_code_1() {
    let f = Folder::new("errors");
    fails(&["run", "no/such.rlx"], 1, "no/such.rlx: ");
    fails(&["run", &f.graph("syntax.rlx", "graph g {\n  input x f32[2]\n}")], 1, "E0200: expected `:`");
    fails(
        &["run", &f.graph("shape.rlx", "graph g { input x: f32[2] y = sum(x) {axes: [1]} }")],
        1,
        "E0103 in sum",
    );
    let graph = f.graph("g.rlx", "graph g { input x: f32[2] output x = x }");
    let x = f.tensors("long.safetensors", &[("x", &[3], &[1.0, 2.0, 3.0])]);
    fails(&["run", &graph, "--in", &x], 1, "E0401: input \"x\" must be f32[2]");
    let x = f.tensors("other.safetensors", &[("z", &[2], &[1.0, 2.0])]);
    fails(&["run", &graph, "--in", &x], 1, "has z, but the graph has only x");
    let x = f.tensors("none.safetensors", &[]);
    fails(&["run", &graph, "--in", &x], 1, "has no input x (f32[2])");
    fails(&["run", &graph, "--in", &graph], 1, "g.rlx: ");
    fails(&["run", "examples/xor.rlx", "--grad"], 1, "no output \"loss\"");
    fails(
        &["run", "examples/xor.rlx", "--out", &f.path("no/such/folder.safetensors")],
        1,
        "folder.safetensors: ",
    );
    let graph = f.graph("nodiff.rlx", "graph g { param x: f32[] = 1 output loss = x }");
    fails(&["run", &graph, "--grad"], 1, "marked `diff`");
    let graph = f.graph("axes.rlx", "graph g { param x: f32[1] diff = [1] output loss = x }");
    fails(&["run", &graph, "--grad"], 1, "scalar");
}

/// A graph from elsewhere must not read what is not its own.
#[test]
fn params_stay_below_their_graph() {
    let f = Folder::new("escape");
    f.tensors("secret.safetensors", &[("t", &[1], &[1.0])]);
    std::fs::create_dir(f.path("sub")).unwrap();
    for file in ["../secret.safetensors", "/etc/passwd", "a/../../secret.safetensors", ""] {
        let text = format!("graph g {{ param w: f32[1] @ {file:?} \"t\" output w = w }}");
        fails(&["run", &f.graph("sub/g.rlx", &text)], 1, "not below its own folder");
    }
    fails(
        &["run", &f.graph("g.rlx", "graph g { param w: f32[1] @ \"gone\" \"t\" output w = w }")],
        1,
        "gone: ",
    );
    let text = "graph g { param w: f32[1] @ \"secret.safetensors\" \"u\" output w = w }";
    fails(&["run", &f.graph("h.rlx", text)], 1, "`u` not found");
}

#[test]
fn ops_are_listed_and_told_about() {
    let all = works(&["ops"]);
    assert!(all.lines().any(|l| l.starts_with("add ") && l.ends_with("x + y.")), "{all}");
    let one = works(&["ops", "sum"]);
    assert!(one.contains("y = sum(x) {axes: ‹integers›, keep: false}"), "{one}");
    assert!(one.contains("- C1: "), "{one}");
}

#[test]
fn help_and_version_go_to_stdout() {
    assert!(works(&["--help"]).contains("inspect"));
    assert!(works(&["--version"]).starts_with("rlx "));
}

//! The program as a caller sees it: output, files, exit codes, and one line on stderr.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::path::Path;
use support::{Folder, fails, floats, works};

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
    for graph in ["xor", "newton", "regression"].map(|g| format!("examples/{g}.rlx")) {
        let exact = works(&["run", &graph, "--device", "oracle"]);
        assert_eq!(works(&["run", &graph]), exact);
        assert_eq!(works(&["run", &graph, "--threads", "1", "--level", "baseline"]), exact);
    }
    let want = "p: f32[3, 3]
[[0.963385 0.036615 0.000000]
 [0.000535 0.815642 0.183823]
 [0.000000 0.000731 0.999269]]
";
    assert_eq!(works(&["run", "examples/iris.rlx", "--in", "examples/flowers.safetensors"]), want);
}

#[test]
fn the_commands_of_the_readme_work() {
    let page =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md")).unwrap();
    let folder = Folder::new("readme");
    let mut count = 0;
    for line in page.lines().filter_map(|l| l.strip_prefix("cargo run --release -- ")) {
        let command = line.split('#').next().unwrap();
        let args: Vec<&str> = command.split_whitespace().collect();
        let is_out = |i: usize| i > 0 && args[i - 1] == "--out" || i == 2 && args[0] == "convert";
        let place = |(i, a): (usize, &&str)| if is_out(i) { folder.path(a) } else { a.to_string() };
        let args: Vec<String> = args.iter().enumerate().map(place).collect();
        works(&args.iter().map(String::as_str).collect::<Vec<_>>());
        count += 1;
    }
    assert!(count >= 5, "{count}");
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
        is_dot(&works(&["inspect", path, "--format", "dot"]));
        let json: serde_json::Value =
            serde_json::from_str(&works(&["inspect", path, "--format", "json"])).unwrap();
        assert!(json["nodes"].as_array().is_some_and(|n| !n.is_empty()));
    }
}

/// The part of Graphviz' language that is used: `digraph ID { key=value  id [attrs]  id -> id [attrs] }`, each id
/// declared before it is used.
fn is_dot(text: &str) {
    let body = text.strip_prefix("digraph ").and_then(|t| t.strip_suffix("}\n")).unwrap();
    let mut lines = body.lines();
    assert_eq!(after_string(lines.next().unwrap()), " {");
    let mut ids = std::collections::HashSet::new();
    for line in lines.filter(|l| *l != "  rankdir=TB") {
        let (head, attrs) = line.split_once(" [").unwrap();
        match head.trim().split_once(" -> ") {
            Some((from, to)) => assert!(ids.contains(from) && ids.contains(to), "{line}"),
            None => assert!(ids.insert(head.trim().to_string()), "{line}"),
        }
        let (_, label) = attrs.split_once("label=").unwrap();
        assert_eq!(after_string(label), "]", "{line}");
    }
}

/// What follows the quoted string at the start.
fn after_string(text: &str) -> &str {
    let mut escaped = false;
    for (i, c) in text.char_indices().skip(1) {
        assert!(!c.is_control(), "{text:?}");
        match c {
            '"' if !escaped => return &text[i + 1..],
            _ => escaped = c == '\\' && !escaped,
        }
    }
    panic!("no string: {text}")
}

#[test]
fn strange_names_are_quoted() {
    let f = Folder::new("quoted");
    let graph = f.graph("g.rlx", r#"graph "a\u{0}\"\\\n<b>" { input x: f32[1] output y = x }"#);
    is_dot(&works(&["inspect", &graph, "--format", "dot"]));
    let json: serde_json::Value =
        serde_json::from_str(&works(&["inspect", &graph, "--format", "json"])).unwrap();
    assert_eq!(json["name"], "a\0\"\\\n<b>");
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
    let stored = rlx::formats::open(&out).unwrap().tensor("w").unwrap();
    assert_eq!(stored.planes()[1][..], [0, 0, 0x80, 0x3f, 0, 0, 0, 0x40]);
    // To others they are tensors by the names of the planes.
    let npz = f.path("w.npz");
    works(&["run", &graph, "--out", &npz]);
    assert_eq!(floats(&npz, "w.scale"), [1.0, 2.0]);
    let graph = f.graph("h.rlx", "graph h { input w: packed<int8:2>[3, 1] output w = w }");
    let again = f.path("again.safetensors");
    works(&["run", &graph, "--in", &npz, "--out", &again]);
    assert_eq!(std::fs::read(&again).unwrap(), std::fs::read(&out).unwrap());
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
    fails(&["run", "model.onnx"], 1, "model.onnx");
    fails(&["run", "examples/xor.rlx", "--device", "oracle", "--profile"], 2, "--device cpu");
    fails(&["run", "examples/xor.rlx", "--device", "oracle", "--threads", "1"], 2, "--device cpu");
    fails(&["run", "examples/xor.rlx", "--bisect", "--profile"], 2, "--profile");
    fails(&["inspect", "examples/xor.rlx", "--stage", "flan"], 2, "flan");
    fails(&["inspect", "examples/xor.rlx", "--device", "oracle"], 2, "--device cpu");
    fails(&["inspect", "examples/xor.rlx", "--format", "svg"], 2, "--stage plan");
    fails(&["inspect", "examples/xor.rlx", "--stage", "kernels", "--format", "dot"], 2, "no graphs");
    fails(&["inspect", "examples/xor.rlx", "--in", "x.safetensors"], 2, "--accuracy");
    fails(&["bench"], 2, "WHAT");
    fails(&["bench", "model"], 2, "PATH");
    fails(&["bench", "gemm", "examples/xor.rlx"], 2, "takes no path");
    fails(&["bench", "gemm", "--case", "3x3"], 2, "no case \"3x3\"; there are 512x512x512");
    fails(&["bench", "gemm", "--device", "oracle"], 2, "--device cpu");
    fails(&["ops", "softmaxx"], 2, "did you mean softmax?");
    fails(&["ops", "Softmax"], 2, "did you mean softmax?");
    fails(&["ops", ""], 2, "no op \"\"");
    fails(&["ops", "\u{1b}[2J\n"], 2, "no op");
    fails(&["run", ""], 2, "GRAPH");
    // A missing input is told before the file of the weights is missed.
    fails(&["run", "examples/iris.rlx"], 2, "missing input x (f32[batch, 4])");
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
    fails(&["run", &graph, "--in", &x], 1, "E0401: input \"x\" has size 3 at axis 0, but must have 2");
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
    let clash = "graph g { param w: f32[] diff = 2 output loss = w output grad.w = w }";
    fails(&["run", &f.graph("clash.rlx", clash), "--grad"], 1, "E0112: the gradient of \"w\" would be");
    let unbound = "graph g { dim m <= 9 y = iota() {shape: [m], axis: 0, dtype: i64} output y = y }";
    fails(&["run", &f.graph("unbound.rlx", unbound)], 1, "E0402: symbol `m` has no value");
    let missing = "graph g { param x: f32[1] = [0] y = all_reduce(x) output y = y }";
    fails(&["run", &f.graph("attr.rlx", missing)], 1, "is missing (sum | mean | max | min)");
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
    fails(&["run", &f.graph("h.rlx", text)], 1, "there is no tensor \"u\"");
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

/// Links stay links, and what is no file is written to and stays what it is.
#[cfg(unix)]
#[test]
fn outputs_go_where_the_path_leads() {
    use std::os::unix::fs::{FileTypeExt, symlink};
    let f = Folder::new("leads");
    let graph = f.graph("g.rlx", "graph g { input x: f32[2] output y = x }");
    let x = f.tensors("x.safetensors", &[("x", &[2], &[1.0, 2.0])]);
    let run = |out: &str| works(&["run", &graph, "--in", &x, "--out", out]);
    let (file, link, loose) = (f.path("file"), f.path("link"), f.path("loose"));
    std::fs::write(&file, "old").unwrap();
    symlink("file", &link).unwrap();
    symlink("later", &loose).unwrap();
    for (link, target) in [(&link, file), (&loose, f.path("later"))] {
        run(link);
        assert!(std::fs::symlink_metadata(link).unwrap().is_symlink(), "{link}");
        assert_eq!(floats(&target, "y"), [1.0, 2.0]);
    }
    run("/dev/null");
    assert!(std::fs::symlink_metadata("/dev/null").unwrap().file_type().is_char_device());
    let pipe = f.path("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || std::fs::read(pipe).unwrap()
    });
    run(&pipe);
    let (got, copy) = (reader.join().unwrap(), f.path("copy"));
    std::fs::write(&copy, got).unwrap();
    assert_eq!(floats(&copy, "y"), [1.0, 2.0]);
    assert!(std::fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
}

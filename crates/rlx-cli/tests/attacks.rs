//! Files and calls that mean no good: each ends in an exit code and one line on stderr, never in a panic, a hang or
//! memory out of proportion.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use rlx_conformance::attacks::{GOOD, entry, file, hostile};
use std::fs;
use support::{Folder, fails, floats, works};

#[test]
fn hostile_inputs() {
    let f = Folder::new("hostile-in");
    let graph = f.graph("g.rlx", "graph g { input x: f32[2] output y = x }");
    let path = f.path("x.safetensors");
    for (name, bytes, why) in hostile() {
        fs::write(&path, &bytes).unwrap();
        println!("{name}");
        fails(&["run", &graph, "--in", &path], 1, why);
        fails(&["run", &graph, "--in", &path, "--device", "oracle"], 1, why);
        fails(&["inspect", &graph, "--accuracy", "--in", &path], 1, why);
    }
}

#[test]
fn hostile_weights() {
    let f = Folder::new("hostile-weights");
    let graph = f.graph("g.rlx", "graph g { param w: f32[2] @ \"w.safetensors\" \"x\" output y = w }");
    let path = f.path("w.safetensors");
    for (name, bytes, why) in hostile() {
        fs::write(&path, &bytes).unwrap();
        println!("{name}");
        fails(&["run", &graph], 1, why);
    }
    fs::write(&path, entry(GOOD, &[0; 8])).unwrap();
    works(&["run", &graph]);
}

#[test]
fn names_in_files_do_not_steer_the_terminal() {
    let f = Folder::new("names");
    let graph = f.graph("g.rlx", "graph g { input x: f32[0] output y = x }");
    let path = f.path("x.safetensors");
    let empty = r#"{"dtype":"F32","shape":[0],"data_offsets":[0,0]}"#;
    fs::write(&path, file(format!(r#"{{"\u001b[2Jx\r\n":{empty}}}"#).as_bytes(), &[])).unwrap();
    let ran = support::rlx(&["run", &graph, "--in", &path]);
    assert_eq!(ran.code, 1);
    assert!(!ran.err.trim_end_matches('\n').contains(char::is_control), "{:?}", ran.err);
    let many: Vec<String> = (0..20_000).map(|i| format!("\"n{i}\":{empty}")).collect();
    fs::write(&path, file(format!("{{{}}}", many.join(",")).as_bytes(), &[])).unwrap();
    let ran = support::rlx(&["run", &graph, "--in", &path]);
    assert!(ran.err.len() < 2500 && ran.err.ends_with("but the graph has only x\n"), "{}", ran.err);
}

#[test]
fn packed_inputs_with_parts_that_do_not_fit() {
    let f = Folder::new("planes");
    let graph = f.graph("g.rlx", "graph g { input w: packed<int8:2>[3, 1] output w = w }");
    let path = f.path("w.safetensors");
    let codes = |n: usize| format!(r#""w.codes":{{"dtype":"I8","shape":[{n},1],"data_offsets":[0,{n}]}}"#);
    fs::write(&path, file(format!("{{{}}}", codes(3)).as_bytes(), &[0; 3])).unwrap();
    fails(&["run", &graph, "--in", &path], 1, "w.scale");
    for (n, scale) in [(3, 1), (2, 2), (4, 2), (0, 0)] {
        let scales = format!(
            r#""w.scale":{{"dtype":"F32","shape":[{scale}],"data_offsets":[{n},{}]}}"#,
            n + 4 * scale
        );
        let bytes = file(format!("{{{},{scales}}}", codes(n)).as_bytes(), &vec![0; n + 4 * scale]);
        fs::write(&path, bytes).unwrap();
        fails(&["run", &graph, "--in", &path], 1, "E0600");
    }
    let huge =
        "graph g { param w: packed<int8:2>[1099511627776, 1024] @ \"w.safetensors\" \"w\" output w = w }";
    fails(&["run", &f.graph("huge.rlx", huge)], 1, "w");
}

#[test]
fn symbols_beyond_their_bounds_and_sizes_beyond_memory() {
    let f = Folder::new("sizes");
    let x = f.tensors("x.safetensors", &[("x", &[3], &[0.0; 3])]);
    let run = |text: &str, why: &str| fails(&["run", &f.graph("g.rlx", text), "--in", &x], 1, why);
    run("graph g { dim n <= 2 input x: f32[n] output x = x }", "has size 3 at axis 0, but n is at most 2");
    run("graph g { dim n <= 9 input x: f32[2*n] output x = x }", "E0401");
    run("graph g { dim n <= 9223372036854775807 input x: f32[n] output x = x }", "E0105");
    run("graph g { dim n <= 9223372036854775808 input x: f32[n] output x = x }", "E0105");
    run("graph g { dim n <= -1 input x: f32[n] output x = x }", "E0109");
    run(
        "graph g { input x: f32[3] y = iota() {shape: [1000000000000], axis: 0, dtype: i64} output y = y }",
        "E0700: a run needs 7.3 TiB",
    );
    let graph = f.graph(
        "g.rlx",
        "graph g { input x: f32[3] y = iota() {shape: [1000000000000], axis: 0, dtype: i64} output y = y }",
    );
    fails(&["run", &graph, "--in", &x, "--device", "oracle"], 1, "E0403 in iota");
    // The bound may be large if the size is not.
    let graph = f.graph("g.rlx", "graph g { dim n <= 1000000000000 input x: f32[n] output x = x }");
    works(&["run", &graph, "--in", &x]);
}

#[test]
fn paths_that_are_no_files() {
    let f = Folder::new("paths");
    let folder = f.0.to_str().unwrap().to_string();
    let graph = f.graph("g.rlx", "graph g { input x: f32[2] output y = x }");
    let x = f.tensors("x.safetensors", &[("x", &[2], &[1.0, 2.0])]);
    let gone = f.path("gone.safetensors");
    fails(&["run", &folder], 1, "");
    fails(&["inspect", &folder], 1, "");
    fails(&["run", &graph, "--in", &folder], 1, "");
    fails(&["run", &graph, "--in", &gone], 1, "gone.safetensors: ");
    fails(&["run", &graph, "--in", ""], 2, "--in");
    fails(&["run", &graph, "--in", &x, "--out", &folder], 1, "is a folder");
    fails(&["run", &graph, "--in", &x, "--out", "/"], 1, "is a folder");
    fails(&["run", &graph, "--in", &x, "--out", &f.path("no/y.safetensors")], 1, "there is no folder");
    fails(&["run", &graph, "--in", &x, "--out", &f.path("g.rlx/y.safetensors")], 1, "there is no folder");
    fails(&["run", &graph, "--in", &x, "--out", &graph], 2, "would overwrite the graph");
    fails(&["run", &f.graph("bytes.rlx", ""), "--in", &x], 1, "E0200");
    fs::write(f.path("bytes.rlx"), [0xff, 0xfe, 0]).unwrap();
    fails(&["run", &f.path("bytes.rlx")], 1, "not a text in UTF-8");
    // Inputs are read before outputs are written, and files are replaced as a whole.
    works(&["run", &graph, "--in", &x, "--out", &x]);
    assert_eq!(floats(&x, "y"), [1.0, 2.0]);
    fails(&["run", &graph, "--in", &x], 1, "has y, but the graph has only x");
}

/// Graphs that verify, but that no machine can run: each is refused before memory is taken or a loop is entered.
#[test]
fn graphs_beyond_all_memory() {
    let f = Folder::new("beyond");
    let run = |name: &str, body: &str| {
        let graph = f.graph("g.rlx", &format!("graph g {{ {body} }}"));
        for flags in [&["run"][..], &["run", "--bisect"], &["run", "--profile"], &["inspect", "--accuracy"]] {
            let args: Vec<&str> =
                flags[..1].iter().chain([&graph.as_str()]).chain(&flags[1..]).copied().collect();
            println!("{name}: {args:?}");
            fails(&args, 1, "");
        }
        // What is not run can be looked at.
        for stage in ["graph", "rewrite", "fuse", "plan", "kernels"] {
            works(&["inspect", &graph, "--stage", stage]);
        }
    };
    let ones = "x = iota() {shape: [1099511627776], axis: 0, dtype: f32}";
    run("an output", &format!("{ones} output x = x"));
    run(
        "a value between",
        &format!("{ones} s, i = sort(x) {{axis: 0}} y = sum(s) {{axes: [0]}} output y = y"),
    );
    run("a prepared one", &format!("param w: f32[1] = [1] {ones} y = mul(w, x) output y = y"));
    run(
        "a product",
        "param a: f32[1, 1] = [1] b = broadcast(a) {shape: [4194304, 1]} c = broadcast(a) {shape: [1, 4194304]} \
         y = matmul(b, c) output y = y",
    );
    run(
        "the body of a loop",
        "param h: f32[1] = [1] last = scan(h) {carries: 1, xs: 0, length: 2} body (h: f32[1]) { \
         x = broadcast(h) {shape: [1099511627776]} s, i = sort(x) {axis: 0} t = sum(s) {axes: [0], keep: true} \
         yield r = t } output last = last",
    );
}

#[test]
fn numbers_that_no_flag_takes() {
    let bad = |args: &[&str], why: &str| {
        let args: Vec<&str> = ["run", "examples/xor.rlx"].iter().chain(args).copied().collect();
        fails(&args, 2, why);
    };
    for n in ["0", "1025", "-1", "99999999999999999999999999", "two", ""] {
        bad(&["--threads", n], "");
        fails(&["bench", "gemm", "--threads", n], 2, "");
        if n != "1025" {
            fails(&["bench", "gemm", "--batch", n], 2, "");
        }
    }
    bad(&["--level", "avx1024"], "no instruction set");
    bad(&["--precision", "f8"], "--precision");
    bad(&["--device", ""], "no device");
    for size in
        ["seq", "seq=", "=", "seq=-1", "seq=1.5", "seq=129", "batch=9999999999999999999", "other=1", "=1"]
    {
        fails(&["inspect", "examples/block.rlx", "--stage", "plan", "--size", size], 2, "");
    }
    fails(&["bench", "encoder", "--batch", "65"], 2, "at most 64x512");
    fails(&["bench", "encoder", "--seq", "16777216"], 2, "at most 64x512");
    fails(&["bench", "attention", "--batch", "1048576", "--seq", "16777216"], 1, "");
    fails(&["bench", "attention", "--batch", "1024", "--seq", "65536"], 1, "memory");
    fails(&["bench", "softmax", "--batch", "1048576", "--dtype", "int9"], 2, "--dtype");
}

#[cfg(unix)]
mod unix {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn devices_without_an_end() {
        let f = Folder::new("endless");
        let graph = f.graph("g.rlx", "graph g { input x: f32[2] output y = x }");
        fails(&["run", &graph, "--in", "/dev/zero"], 1, "/dev/zero: not a file");
        fails(&["inspect", "/dev/zero"], 1, "/dev/zero: not a file");
        fails(&["run", "/dev/null"], 1, "E0200");
    }

    #[test]
    fn links_do_not_lead_out() {
        let f = Folder::new("links");
        fs::create_dir_all(f.path("sub/own")).unwrap();
        f.tensors("secret.safetensors", &[("x", &[2], &[1.0, 2.0])]);
        f.tensors("sub/own/w.safetensors", &[("x", &[2], &[1.0, 2.0])]);
        symlink("../secret.safetensors", f.path("sub/link")).unwrap();
        symlink("..", f.path("sub/up")).unwrap();
        symlink("own/w.safetensors", f.path("sub/fine")).unwrap();
        symlink("loop", f.path("sub/loop")).unwrap();
        symlink("/dev/zero", f.path("sub/zero")).unwrap();
        let run = |file: &str| {
            let text = format!("graph g {{ param w: f32[2] @ {file:?} \"x\" output y = w }}");
            f.graph("sub/g.rlx", &text)
        };
        for file in ["link", "up/secret.safetensors", "up/sub/../secret.safetensors", "zero"] {
            fails(&["run", &run(file)], 1, "not below its own folder");
        }
        fails(&["run", &run("loop")], 1, "loop: ");
        fails(&["run", &run("own")], 1, "not a file");
        fails(&["run", &run("own/w.safetensors/x")], 1, "");
        fails(&["run", &run("a\0b")], 1, "");
        for file in ["fine", "up/sub/fine", "./own/./w.safetensors"] {
            works(&["run", &run(file)]);
        }
        // The graph itself may be reached by a link: its folder is the one it is named in.
        symlink("sub/g.rlx", f.path("g.rlx")).unwrap();
        fails(&["run", &f.path("g.rlx")], 1, "w.safetensors: ");
    }

    #[test]
    fn what_may_not_be_read_or_written() {
        let f = Folder::new("modes");
        let graph = f.graph("g.rlx", "graph g { param x: f32[1] = [1] output y = x }");
        let locked = f.graph("locked.rlx", "graph g { }");
        fs::set_permissions(&locked, fs::Permissions::from_mode(0o000)).unwrap();
        fs::create_dir(f.path("full")).unwrap();
        fs::set_permissions(f.path("full"), fs::Permissions::from_mode(0o500)).unwrap();
        // The superuser may do all that.
        if fs::read(&locked).is_err() {
            fails(&["run", &locked], 1, "denied");
            fails(&["run", &graph, "--out", &f.path("full/y.safetensors")], 1, "denied");
        }
        // Nobody makes files here.
        if cfg!(target_os = "linux") {
            fails(&["run", &graph, "--out", "/proc/y.safetensors"], 1, "/proc/y.safetensors: ");
        }
        fs::set_permissions(f.path("full"), fs::Permissions::from_mode(0o700)).unwrap();
    }
}

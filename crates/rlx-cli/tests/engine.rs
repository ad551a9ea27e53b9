//! The CPU's engine as a caller sees it: devices, stages, profiles, disagreements, benches.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use serde_json::Value;
use support::{Folder, fails, floats, rlx, works};

const BLOCK: &str = "examples/block.rlx";
const SMALL: [&str; 4] = ["--size", "batch=2", "--size", "seq=5"];

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn devices_are_told() {
    let text = works(&["devices"]);
    assert!(text.starts_with("cpu  ") && text.contains("threads") && text.contains("memory"), "{text}");
    let text = works(&["devices", "--json"]);
    let all: Vec<Value> = text.lines().map(json).collect();
    assert_eq!(all.len(), 1);
    let cpu = &all[0];
    assert_eq!(cpu["device"], "cpu");
    assert!(
        cpu["threads"].as_u64().unwrap() >= 1 && cpu["bf16_dot"].is_boolean() && cpu["int8_dot"].is_boolean()
    );
    assert!(cpu["levels"].as_array().unwrap().contains(&cpu["level"]));
}

/// Threads, levels and precision: the same bits from any number of threads, near ones from any level.
#[test]
fn engines_agree() {
    let f = Folder::new("engines");
    let (x, y) = (weights(&f), f.path("y.safetensors"));
    let run = |flags: &[&str]| {
        works(&[&["run", BLOCK, "--in", &x, "--out", &y, "--grad"], flags].concat());
        (floats(&y, "y"), floats(&y, "grad.wq"))
    };
    let near = |(a, b): (&[f32], &[f32]), tol: f32| {
        let scale = a.iter().fold(0f32, |m, x| m.max(x.abs()));
        assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() <= tol * scale), "{tol}");
    };
    let want = run(&["--device", "oracle"]);
    let one = run(&["--threads", "1"]);
    assert_eq!(one, run(&["--threads", "2"]));
    assert_eq!(one, run(&["--threads", "3"]));
    for level in json(&works(&["devices", "--json"]))["levels"].as_array().unwrap() {
        let got = run(&["--level", level.as_str().unwrap()]);
        near((&want.0, &got.0), 1e-5);
        near((&want.1, &got.1), 1e-4);
    }
    let rough = run(&["--precision", "bf16"]);
    assert_ne!(one.0, rough.0);
    near((&want.0, &rough.0), 2e-2);
    let other = if cfg!(target_arch = "x86_64") { "neon" } else { "avx2" };
    fails(&["run", BLOCK, "--in", &x, "--level", other], 2, "no instruction set");
}

/// Data for the block's ports, at a batch of 2 and 5 tokens.
fn weights(f: &Folder) -> String {
    let text = works(&["inspect", BLOCK, "--format", "json"]);
    let ports = json(&text)["ports"].as_array().unwrap().clone();
    let mut rng = 1u32;
    let mut next = || {
        rng = rng.wrapping_mul(1664525).wrapping_add(1013904223);
        (rng >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    let mut all: Vec<(String, Vec<usize>, Vec<f32>)> = Vec::new();
    for p in &ports {
        let size = |d: &Value| d.as_u64().unwrap_or(if d == "batch" { 2 } else { 5 }) as usize;
        let shape: Vec<usize> = p["shape"].as_array().unwrap().iter().map(size).collect();
        let data = (0..shape.iter().product()).map(|_| next()).collect();
        all.push((p["name"].as_str().unwrap().into(), shape, data));
    }
    let views: Vec<(&str, &[usize], &[f32])> =
        all.iter().map(|(n, s, d)| (n.as_str(), &s[..], &d[..])).collect();
    f.tensors("weights.safetensors", &views)
}

#[test]
fn every_stage_of_every_example_is_shown() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    for entry in std::fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "rlx") {
            continue;
        }
        let path = path.to_str().unwrap();
        let folder = Folder::new("stages");
        // What rewriting gives is a graph again.
        let text = works(&["inspect", path, "--stage", "rewrite"]);
        works(&["inspect", &folder.graph("again.rlx", &text), "--stage", "graph"]);
        for stage in ["fuse", "plan", "kernels"] {
            assert!(!works(&["inspect", path, "--stage", stage, "--device", "cpu"]).is_empty());
            json(&works(&["inspect", path, "--stage", stage, "--format", "json"]));
        }
        assert!(works(&["inspect", path, "--stage", "fuse", "--format", "dot"]).starts_with("digraph"));
        json(&works(&["inspect", path, "--stage", "rewrite", "--format", "json"]));
        let svg = works(&["inspect", path, "--stage", "plan", "--format", "svg"]);
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches("<title>").count(), svg.matches("</title></rect>").count());
    }
}

/// Names come from files: they steer no terminal, and are no markup.
#[test]
fn strange_names_are_tamed() {
    let f = Folder::new("tamed");
    let graph = f.graph("g.rlx", r#"graph "a\u{1b}[2J<b>&" { input x: f32[2] y = exp(x) output y = y }"#);
    for flags in [&["--stage", "fuse"][..], &["--stage", "plan"], &["--stage", "kernels"], &["--accuracy"]] {
        let text = works(&[&["inspect", &graph], flags].concat());
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
    }
    let svg = works(&["inspect", &graph, "--stage", "plan", "--format", "svg"]);
    assert!(svg.contains("&lt;b&gt;&amp;") && !svg.contains("<b>"), "{svg}");
    let text = works(&["bench", "model", &graph]);
    assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
}

#[test]
fn fusion_says_why_and_kernels_say_what() {
    let text = works(&["inspect", BLOCK, "--stage", "fuse"]);
    assert!(text.contains("attention") && text.contains("saves writing and reading"), "{text}");
    let text = works(&["inspect", BLOCK, "--stage", "kernels"]);
    assert!(text.contains("product with epilogue over") && text.contains("r0 = the product, f32"), "{text}");
    // Loops and what is computed once are shown too.
    let text = works(&["inspect", "examples/newton.rlx", "--stage", "kernels"]);
    assert!(text.contains("once, when params are set") && text.contains("body 1 of kernel"), "{text}");
}

/// The plan is that of the sizes asked for: no buffers overlap in memory and time, and the peak is theirs.
#[test]
fn plans_are_those_of_the_sizes() {
    let plan = |flags: &[&str]| {
        let args = [&["inspect", BLOCK, "--stage", "plan", "--format", "json"], flags].concat();
        json(&works(&args))
    };
    let (small, whole) = (plan(&SMALL), plan(&[]));
    assert_eq!(small["sizes"], serde_json::json!({"batch": 2, "seq": 5}));
    assert_eq!(whole["sizes"], serde_json::json!({"batch": 8, "seq": 128}));
    assert!(small["peak"].as_i64().unwrap() < whole["peak"].as_i64().unwrap());
    for p in [small, whole] {
        let n = |b: &Value, key: &str| b[key].as_i64().unwrap();
        let buffers = p["buffers"].as_array().unwrap();
        assert!(!buffers.is_empty() && n(&p, "peak") >= n(&p, "lower_bound"));
        for (i, a) in buffers.iter().enumerate() {
            assert!(n(a, "offset") + n(a, "bytes") <= n(&p, "peak"));
            for b in &buffers[i + 1..] {
                let apart = n(a, "last") < n(b, "first") || n(b, "last") < n(a, "first");
                let beside = n(a, "offset") + n(a, "bytes") <= n(b, "offset")
                    || n(b, "offset") + n(b, "bytes") <= n(a, "offset");
                assert!(apart || beside, "{a} and {b}");
            }
        }
    }
}

#[test]
fn accuracy_is_that_of_the_precision() {
    let relative = |flags: &[&str]| -> f64 {
        let text = works(&[&["inspect", BLOCK, "--accuracy"], &SMALL[..], flags].concat());
        let line = text.lines().find(|l| l.starts_with("y ")).unwrap_or_else(|| panic!("{text}"));
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let (f32, bf16) = (relative(&[]), relative(&["--precision", "bf16"]));
    assert!(f32 < 2e-5 && bf16 > 1e-4 && bf16 < 5e-2, "{f32} {bf16}");
    let f = Folder::new("accuracy");
    let text = works(&["inspect", BLOCK, "--accuracy", "--in", &weights(&f)]);
    assert!(text.contains("given inputs, batch = 2, seq = 5"), "{text}");
}

#[test]
fn a_profile_has_every_step() {
    let f = Folder::new("profile");
    let (x, trace) = (weights(&f), f.path("trace.json"));
    let text = works(&["run", BLOCK, "--in", &x, "--profile", "--trace", &trace, "--threads", "1"]);
    let table = text.split("% limit").nth(1).unwrap();
    let calls = json(&works(&["inspect", BLOCK, "--stage", "fuse", "--format", "json"]))["calls"]
        .as_array()
        .unwrap()
        .len();
    assert_eq!(table.lines().filter(|l| !l.trim().is_empty()).count(), 1 + calls + 1, "{text}");
    let trace = json(&std::fs::read_to_string(&trace).unwrap());
    let events: Vec<&Value> =
        trace["traceEvents"].as_array().unwrap().iter().filter(|e| e["cat"] == "step").collect();
    assert_eq!(events.len(), calls);
    let mut end = 0.0;
    for e in &events {
        assert_eq!(e["ph"], "X");
        assert!(e["ts"].as_f64().unwrap() >= end && e["name"].is_string());
        end = e["ts"].as_f64().unwrap() + e["dur"].as_f64().unwrap();
        for key in ["flops", "bytes", "percent"] {
            assert!(e["args"][key].is_number(), "{e}");
        }
    }
    assert!(events.iter().any(|e| e["args"]["flops"].as_u64().unwrap() > 0));
    fails(&["run", BLOCK, "--in", &x, "--trace", &f.path("no/trace.json")], 1, "there is no folder");
    fails(&["run", BLOCK, "--in", &x, "--trace", BLOCK], 2, "--trace would overwrite the graph");
}

#[test]
fn bisection_finds_nothing_where_all_agree() {
    let f = Folder::new("agree");
    let x = weights(&f);
    for flags in [&[][..], &["--grad"], &["--precision", "bf16"], &["--threads", "1"]] {
        let text = works(&[&["run", BLOCK, "--in", &x, "--bisect"], flags].concat());
        assert!(text.contains("agree with the oracle"), "{text}");
    }
    for graph in ["xor", "newton", "regression"] {
        works(&["run", &format!("examples/{graph}.rlx"), "--bisect"]);
    }
}

/// In f32 a million and a thousandth less a million is not a thousandth: the subtraction is where it shows.
#[test]
fn bisection_finds_cancellation() {
    let f = Folder::new("cancel");
    let graph = f.graph(
        "g.rlx",
        "graph g {
           input x: f32[3]
           input big: f32[3]
           half = mul(x, x)
           sum = add(half, big)
           rest = sub(sum, big)
           y = exp(rest)
           output y = y
         }",
    );
    let x = f.tensors("x.safetensors", &[("x", &[3], &[0.3, 0.7, 0.9]), ("big", &[3], &[1e6; 3])]);
    let ran = rlx(&["run", &graph, "--in", &x, "--bisect"]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert_eq!(ran.err.lines().count(), 1);
    assert!(ran.err.contains("sub at ") && ran.err.contains("g.rlx:6:12"), "{}", ran.err);
    assert!(ran.out.contains("rest = sub(sum, big)") && ran.out.contains("the oracle says"), "{}", ran.out);
    assert!(ran.out.contains("the step itself is right"), "{}", ran.out);
}

#[test]
fn benches_print_what_was_measured() {
    let runs: [&[&str]; 5] = [
        &["gemm", "--case", "128x384x1536"],
        &["softmax", "--batch", "16", "--dtype", "bf16"],
        &["conv", "--case", "depthwise"],
        &["model", BLOCK, "--batch", "2", "--seq", "5"],
        &["model", "examples/xor.rlx"],
    ];
    for args in runs {
        let text = works(&[&["bench"], args, &["--threads", "1", "--json"]].concat());
        let lines: Vec<Value> = text.lines().map(json).collect();
        assert_eq!(lines.len(), 1, "{text}");
        let l = &lines[0];
        assert_eq!((&l["bench"], &l["device"], &l["threads"]), (&args[0].into(), &"cpu".into(), &1.into()));
        assert!(l["case"].is_string() && l["dtype"].is_string());
        let (ms, median) = (l["ms"].as_f64().unwrap(), l["ms_median"].as_f64().unwrap());
        assert!(ms > 0.0 && ms <= median);
        assert!(
            ["gflops", "gbps", "tokens_per_s"].iter().any(|k| l[k].as_f64().is_some_and(|x| x > 0.0)),
            "{l}"
        );
    }
    assert!(works(&["bench", "layernorm", "--batch", "8"]).lines().count() == 2);
    fails(&["bench", "model", "no/such.rlx"], 1, "no/such.rlx");
    fails(&["bench", "model", "examples/xor.rlx", "--seq", "3"], 2, "no symbol \"seq\"");
}

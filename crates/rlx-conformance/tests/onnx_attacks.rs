//! Hostile ONNX files: each ends in an error, soon, and with little memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx::Device;
use rlx_conformance::onnxfile::{Message, external, function, graph, int64s, model, node, tensor, value};
use rlx_formats::onnx::{Model, Options};
use rlx_ir::{Result, Tensor};
use std::alloc::{GlobalAlloc, Layout, System};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::Duration;

/// Counts the bytes in use, and the most there were.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is handed to the system's allocator as it is; only numbers are kept beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        let ptr = unsafe { System.alloc(layout) };
        // A request that is refused takes nothing.
        if !ptr.is_null() {
            MOST.fetch_max(NOW.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        }
        ptr
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const F32: i64 = 1;
const I64: i64 = 7;
const BOOL: i64 = 9;

/// A model whose only node is `n`, from `x: f32[2, 3]` and initializers to `y`.
fn single(n: Message, initial: &[Message]) -> Message {
    let (x, y) = (value("x", F32, &[2, 3]), value("y", F32, &[]));
    model(&graph(&[n], initial, &[x], &[y]), 17, &[])
}

/// A graph in which a Relu stands below so many Ifs.
fn nested(depth: usize) -> Message {
    let mut inner = graph(&[node("Relu", &["x"], &["o"])], &[], &[], &[value("o", F32, &[2, 3])]);
    for _ in 0..depth {
        let n =
            node("If", &["c"], &["o"]).attr_graph("then_branch", &inner).attr_graph("else_branch", &inner);
        // Both branches would double the file every time.
        let n = if depth > 10 { node("If", &["c"], &["o"]).attr_graph("then_branch", &inner) } else { n };
        inner = graph(&[n], &[], &[], &[value("o", F32, &[2, 3])]);
    }
    let ports = [value("x", F32, &[2, 3]), value("c", BOOL, &[])];
    let n = node("If", &["c"], &["y"]).attr_graph("then_branch", &inner).attr_graph("else_branch", &inner);
    model(&graph(&[n], &[], &ports, &[value("y", F32, &[])]), 17, &[])
}

/// What a loop over `times` turns does to x.
fn looped(times: i64) -> Message {
    let body = graph(
        &[node("Relu", &["s"], &["t"]), node("Identity", &["c"], &["d"])],
        &[],
        &[value("i", I64, &[]), value("c", BOOL, &[]), value("s", F32, &[2, 3])],
        &[value("d", BOOL, &[]), value("t", F32, &[2, 3])],
    );
    let initial = [tensor("n", I64, &[], &times.to_le_bytes()), tensor("yes", BOOL, &[], &[1])];
    single(node("Loop", &["n", "yes", "x"], &["y"]).attr_graph("body", &body), &initial)
}

/// Every attack: a name, the file, and a word of the error.
fn attacks(folder: &Path) -> Vec<(String, Vec<u8>, &'static str)> {
    let mut all: Vec<(String, Vec<u8>, &'static str)> = Vec::new();
    let mut add = |name: &str, m: Message, word: &'static str| all.push((name.into(), m.0, word));
    let relu = || node("Relu", &["x"], &["y"]);
    let uses = || node("Add", &["x", "w"], &["y"]);

    add("empty", Message::new(), "graph");
    add("text", Message(b"this is not a model at all".to_vec()), "ONNX");
    add("no graph", Message::new().int(1, 8), "graph");
    add(
        "a field of 2^64-1 bytes",
        Message(vec![0x3a, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1]),
        "announced",
    );
    add("a number without end", Message(vec![0x08; 1].into_iter().chain([0xff; 20]).collect()), "64 bits");
    add("a graph that is a number", Message::new().int(1, 8).int(7, 3), "number");
    add("a name that is no text", single(node("Relu", &["x"], &["y"]).bytes(3, &[0xff, 0xfe]), &[]), "UTF-8");
    add("field 0", Message(vec![0x00, 0x00]), "number");

    let out =
        |location: &str| single(uses(), &[external("w", &[3], &[("location", location), ("length", "12")])]);
    std::fs::write(folder.join("data.bin"), [0; 16]).unwrap();
    std::fs::write(folder.parent().unwrap().join("secret.bin"), [0; 16]).unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink("../secret.bin", folder.join("link.bin")).unwrap();
    add("data in ..", out("../secret.bin"), "not below");
    add("data behind ..", out("a/../../secret.bin"), "not below");
    add("data at an absolute path", out("/etc/passwd"), "not below");
    add("data behind a link", out("link.bin"), "not below");
    add("data without a name", out(""), "not below");
    add("data in a folder", out("."), "file");
    add("data that are not there", out("none.bin"), "none.bin");
    let part = |offset: &str, length: &str| {
        let keys = [("location", "data.bin"), ("offset", offset), ("length", length)];
        single(uses(), &[external("w", &[3], &keys)])
    };
    add("data beyond the end", part("8", "12"), "not within");
    add("data at 2^64-1", part("18446744073709551615", "12"), "not within");
    add("data at -1", part("-1", "12"), "no size");
    add("data of the wrong length", part("0", "8"), "needs 12 bytes");

    let two = |a: Message, b: Message| {
        let (x, y) = (value("x", F32, &[2, 3]), value("y", F32, &[]));
        model(&graph(&[a, b], &[], &[x], &[y]), 17, &[])
    };
    add("a cycle", two(node("Relu", &["y"], &["z"]), node("Relu", &["z"], &["y"])), "before");
    add(
        "nodes in the wrong order",
        two(node("Relu", &["z"], &["y"]), node("Relu", &["x"], &["z"])),
        "before",
    );
    add("a value given twice", two(relu(), relu()), "twice");
    add("an output that is the input", two(node("Relu", &["x"], &["x"]), relu()), "twice");
    add(
        "an output that nothing gives",
        two(node("Relu", &["x"], &["a"]), node("Relu", &["x"], &["b"])),
        "gives",
    );

    let own = |name: &str, from: &str, to: &str| node(name, &[from], &[to]).text(7, "own");
    let calls = |functions: &[Message]| {
        let g = graph(&[own("f0", "x", "y")], &[], &[value("x", F32, &[2, 3])], &[value("y", F32, &[])]);
        model(&g, 17, functions)
    };
    add(
        "a function that calls itself",
        calls(&[function("f0", &["a"], &["b"], &[own("f0", "a", "b")])]),
        "nest",
    );
    let pair = [
        function("f0", &["a"], &["b"], &[own("f1", "a", "b")]),
        function("f1", &["a"], &["b"], &[own("f0", "a", "b")]),
    ];
    add("functions that call each other", calls(&pair), "nest");
    let doubling: Vec<Message> = (0..31)
        .map(|k| {
            let next = format!("f{}", k + 1);
            let nodes = match k {
                30 => vec![node("Relu", &["a"], &["b"])],
                _ => vec![own(&next, "a", "m"), own(&next, "m", "b")],
            };
            function(&format!("f{k}"), &["a"], &["b"], &nodes)
        })
        .collect();
    add("functions that double", calls(&doubling), "too often");
    add("deep subgraphs", nested(2000), "nest");

    add("raw data too short", single(uses(), &[tensor("w", F32, &[3], &[0; 11])]), "needs 12 bytes");
    add("raw data too long", single(uses(), &[tensor("w", F32, &[3], &[0; 16])]), "needs 12 bytes");
    add(
        "a bool of 2",
        single(node("Where", &["w", "x", "x"], &["y"]), &[tensor("w", BOOL, &[3], &[0, 1, 2])]),
        "bool",
    );
    add("a negative axis", single(uses(), &[tensor("w", F32, &[-3], &[0; 12])]), "size -3");
    add(
        "sizes whose product overflows",
        single(uses(), &[tensor("w", F32, &[1 << 40, 1 << 40], &[])]),
        "too large",
    );
    add("100 axes", single(uses(), &[tensor("w", F32, &[1; 100], &[0; 4])]), "100 axes");
    add("a dtype of 99", single(uses(), &[tensor("w", 99, &[3], &[0; 12])]), "number 99");
    add(
        "texts as data",
        single(uses(), &[Message::new().int(1, 1).int(2, 8).text(8, "w").text(6, "a")]),
        "string",
    );
    let narrow = Message::new().int(1, 1).int(2, 3).text(8, "w").int(5, 300);
    add("300 as int8", single(node("Cast", &["w"], &["y"]).attr_int("to", 1), &[narrow]), "300 is no i8");
    add(
        "too few floats",
        single(uses(), &[Message::new().int(1, 3).int(2, 1).text(8, "w").bytes(4, &[0; 8])]),
        "2 floats",
    );

    let shaped = |op: &str, shape: &[i64]| single(node(op, &["x", "s"], &["y"]), &[int64s("s", shape)]);
    add("a Reshape with two -1", shaped("Reshape", &[-1, -1]), "Reshape");
    add("a Reshape that does not fit", shaped("Reshape", &[4, 4]), "Reshape");
    add("a Reshape to -5", shaped("Reshape", &[-5]), "Reshape");
    add("a Tile bomb", shaped("Tile", &[1 << 30, 1 << 30]), "");
    add("a Tile of terabytes", shaped("Tile", &[1 << 20, 1 << 20]), "");
    add("an Expand bomb", shaped("Expand", &[1 << 40, 1 << 40, 2, 3]), "");
    add("an Expand to terabytes", shaped("Expand", &[1 << 40, 2, 3]), "");
    let fill = |shape: &[i64]| single(node("ConstantOfShape", &["s"], &["y"]), &[int64s("s", shape)]);
    add("a ConstantOfShape bomb", fill(&[i64::MAX]), "");
    add("a ConstantOfShape of terabytes", fill(&[1 << 40]), "");
    add("a ConstantOfShape of -1", fill(&[-1]), "");
    add(
        "a Range without end",
        {
            let numbers = [0i64, i64::MAX, 1].map(|n| n.to_le_bytes());
            let names = ["a", "b", "c"];
            let list: Vec<Message> =
                names.iter().zip(&numbers).map(|(n, b)| tensor(n, I64, &[], b)).collect();
            single(node("Range", &names, &["y"]), &list)
        },
        "",
    );
    add(
        "a Range with step 0",
        {
            let list: Vec<Message> = ["a", "b", "c"].map(|n| tensor(n, I64, &[], &[0; 8])).into();
            single(node("Range", &["a", "b", "c"], &["y"]), &list)
        },
        "",
    );
    add(
        "a Pad of 2^62",
        single(node("Pad", &["x", "s"], &["y"]), &[int64s("s", &[1 << 62, 0, 0, 1 << 62])]),
        "",
    );
    add("a Loop of 2^63 - 1", looped(i64::MAX), "");
    add("an op that nobody has", single(node("Frobnicate", &["x"], &["y"]), &[]), "Frobnicate");
    add("an op of a foreign domain", single(node("Relu", &["x"], &["y"]).text(7, "evil"), &[]), "evil.Relu");
    add("a missing operand", single(node("Add", &["x"], &["y"]), &[]), "missing");
    add("too many operands", single(node("Relu", &["x"; 1000], &["y"]), &[]), "operands");
    add(
        "an attribute of the wrong kind",
        single(node("Transpose", &["x"], &["y"]).attr_int("perm", 1), &[]),
        "perm",
    );
    add(
        "an axis that is not there",
        single(node("Softmax", &["x"], &["y"]).attr_int("axis", 1 << 40), &[]),
        "axis",
    );
    add(
        "a permutation with twins",
        single(node("Transpose", &["x"], &["y"]).attr_ints("perm", &[0, 0]), &[]),
        "twice",
    );
    add(
        "a stride of 0",
        {
            let n =
                node("MaxPool", &["x"], &["y"]).attr_ints("kernel_shape", &[1]).attr_ints("strides", &[0]);
            model(&graph(&[n], &[], &[value("x", F32, &[1, 2, 3])], &[value("y", F32, &[])]), 17, &[])
        },
        "",
    );
    add(
        "a kernel of 2^62",
        {
            let n = node("AveragePool", &["x"], &["y"]).attr_ints("kernel_shape", &[1 << 62]);
            model(&graph(&[n], &[], &[value("x", F32, &[1, 2, 3])], &[value("y", F32, &[])]), 17, &[])
        },
        "",
    );
    add(
        "an input of 2^62",
        model(&graph(&[relu()], &[], &[value("x", F32, &[1 << 62])], &[value("y", F32, &[])]), 17, &[]),
        "",
    );
    add(
        "an input without a type",
        model(&graph(&[relu()], &[], &[Message::new().text(1, "x")], &[]), 17, &[]),
        "not a tensor",
    );
    add(
        "an input given twice",
        model(&graph(&[relu()], &[], &[value("x", F32, &[2]), value("x", F32, &[2])], &[]), 17, &[]),
        "twice",
    );
    // Half a million nodes of two bytes each.
    add("empty nodes", model(&Message([0x0a, 0].repeat(500_000)), 17, &[]), "no such op");

    // Every beginning of a file that is right.
    let right = single(uses(), &[tensor("w", F32, &[3], &[0; 12])]).0;
    for n in 0..right.len() {
        all.push((format!("cut off at {n}"), right[..n].to_vec(), ""));
    }
    all
}

/// Opens, imports, compiles and runs.
fn run(path: PathBuf) -> Result<()> {
    let m = Model::open(&path)?;
    m.summary()?;
    let imported = m.import(&Options::default())?;
    let exe = rlx::compile(&imported.func, Device::Cpu)?;
    for (name, array) in &imported.params {
        exe.params().set(name, array.to_tensor()?)?;
    }
    let (x, c) = (Tensor::new(&[2, 3], &[1f32; 6])?, Tensor::scalar(true));
    let given = [("x", &x), ("c", &c)];
    let wanted = given.into_iter().filter(|(n, _)| imported.inputs.iter().any(|i| i.name == *n));
    exe.run(&wanted.collect::<Vec<_>>()).map(drop)
}

#[test]
fn hostile_models_end_in_an_error() {
    let parent = std::env::temp_dir().join(format!("rlx-onnx-attacks-{}", std::process::id()));
    let folder = parent.join("model");
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("model.onnx");
    // What is allocated once, such as the op table and the threads.
    std::fs::write(&path, single(node("Relu", &["x"], &["y"]), &[]).0).unwrap();
    run(path.clone()).unwrap();
    let mut wrong = Vec::new();
    for (name, bytes, word) in attacks(&folder) {
        std::fs::write(&path, &bytes).unwrap();
        let before = NOW.load(Relaxed);
        MOST.store(before, Relaxed);
        let (tell, told) = mpsc::channel();
        let at = path.clone();
        // Not on the test's own thread: one that hangs cannot be ended, only left behind.
        std::thread::spawn(move || tell.send(run(at)));
        match told.recv_timeout(Duration::from_secs(60)) {
            Ok(Ok(())) if word.is_empty() && name.starts_with("cut off") => {}
            Ok(Ok(())) => wrong.push(format!("{name}: no error")),
            Ok(Err(e)) if !e.to_string().contains(word) => wrong.push(format!("{name}: {e}")),
            Ok(Err(e)) if e.to_string().len() > 20_000 => {
                wrong.push(format!("{name}: a message without end"))
            }
            Ok(Err(_)) => {}
            Err(mpsc::RecvTimeoutError::Timeout) => wrong.push(format!("{name}: hangs")),
            Err(mpsc::RecvTimeoutError::Disconnected) => wrong.push(format!("{name}: panics")),
        }
        let most = MOST.load(Relaxed).saturating_sub(before);
        if most > 64 << 20 {
            wrong.push(format!("{name}: takes {} MB", most >> 20));
        }
    }
    std::fs::remove_dir_all(&parent).unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

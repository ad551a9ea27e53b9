//! What is wrong with a call is an error that names the thing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use common::{Buffers, Model, encoder, floats, gpt, mamba, options, view};
use rlx::{
    Code, DType, Data, Device, Engine, Error, Executable, Graph, Settings, Tensor, View, ViewMut, dim,
};
use std::sync::Arc;

/// `y = x · w + v` with x `[n, 4]` and z `[n, m]`.
fn graph() -> Graph {
    let g = Graph::new("small");
    {
        let x = g.input("x", DType::F32, [dim("n", 8), 4.into()]);
        let z = g.input("z", DType::I32, [dim("n", 8), dim("m", 5)]);
        let (w, v) = (g.param("w", DType::F32, [4, 3]), g.param("v", DType::F32, [3]));
        g.output("y", x.matmul(w) + v);
        g.output("s", z.sum(vec![1], false));
    }
    g
}

fn ints(shape: &[usize]) -> Tensor {
    Tensor::new(shape, &vec![1i32; shape.iter().product()]).unwrap()
}

fn ready() -> Executable {
    let e = rlx::compile_with(&graph(), Device::Cpu, &options(2)).unwrap();
    e.params().set("w", floats(&[4, 3])).unwrap();
    e.params().set("v", floats(&[3])).unwrap();
    e
}

/// The error's code, and that its message has all the words.
#[track_caller]
fn says(e: Error, code: Code, words: &[&str]) {
    assert_eq!(e.code(), code, "{e}");
    let text = e.to_string();
    for w in words {
        assert!(text.contains(w), "{text:?} does not say {w:?}");
    }
}

#[test]
fn params() {
    let e = rlx::compile_with(&graph(), Device::Cpu, &options(1)).unwrap();
    assert_eq!(e.params().missing(), ["w", "v"]);
    let (x, z) = (floats(&[2, 4]), ints(&[2, 5]));
    says(e.run(&[("x", &x), ("z", &z)]).unwrap_err(), Code::MissingInput, &["2 params", "w, v"]);
    says(e.params().set("q", floats(&[3])).unwrap_err(), Code::UnknownName, &["\"q\"", "w, v"]);
    says(e.params().set("x", floats(&[3])).unwrap_err(), Code::UnknownName, &["\"x\""]);
    says(e.params().set("v", ints(&[3])).unwrap_err(), Code::BadInput, &["\"v\"", "i32", "f32"]);
    says(e.params().set("w", floats(&[12])).unwrap_err(), Code::BadInput, &["\"w\"", "2 axes"]);
    says(
        e.params().set("w", floats(&[3, 4])).unwrap_err(),
        Code::BadInput,
        &["\"w\"", "size 3", "axis 0", "4"],
    );
    let owner: Arc<dyn AsRef<[u8]> + Send + Sync> = Arc::new(vec![0u8; 100]);
    for range in [0..8, 90..102, 200..212, usize::MAX - 11..usize::MAX] {
        let data = Data::Shared { dtype: DType::F32, shape: vec![3], owner: owner.clone(), range };
        says(e.params().set_data("v", data).unwrap_err(), Code::BadInput, &["\"v\"", "bytes", "12"]);
    }
    e.params().set("v", floats(&[3])).unwrap();
    says(e.run(&[("x", &x), ("z", &z)]).unwrap_err(), Code::MissingInput, &["1 params", ": w"]);
    says(e.params().prepare().unwrap_err(), Code::MissingInput, &["w"]);
}

#[test]
fn inputs() {
    let e = ready();
    let (x, z) = (floats(&[2, 4]), ints(&[2, 5]));
    let fails = |list: &[(&str, &Tensor)], code: Code, words: &[&str]| {
        says(e.run(list).unwrap_err(), code, words);
        let views: Vec<(&str, View<'_>)> = list.iter().map(|(n, t)| (*n, view(t))).collect();
        says(e.run_into(&views, &mut []).unwrap_err(), code, words);
    };
    fails(&[("x", &x)], Code::MissingInput, &["\"z\""]);
    fails(&[], Code::MissingInput, &["\"x\""]);
    fails(&[("x", &x), ("z", &z), ("q", &z)], Code::UnknownName, &["\"q\"", "x, z"]);
    fails(&[("x", &x), ("q", &z)], Code::UnknownName, &["\"q\""]);
    fails(&[("x", &x), ("z", &z), ("x", &x)], Code::BadInput, &["\"x\"", "twice"]);
    fails(&[("x", &x), ("z", &z), ("w", &x)], Code::UnknownName, &["\"w\""]);
    fails(&[("x", &ints(&[2, 4])), ("z", &z)], Code::BadInput, &["\"x\"", "i32", "f32"]);
    fails(&[("x", &floats(&[8])), ("z", &z)], Code::BadInput, &["\"x\"", "2 axes"]);
    fails(&[("x", &floats(&[2, 5])), ("z", &z)], Code::BadInput, &["\"x\"", "size 5", "axis 1", "4"]);
    fails(&[("x", &floats(&[9, 4])), ("z", &z)], Code::BadInput, &["\"x\"", "size 9", "axis 0", "at most 8"]);
    fails(&[("x", &x), ("z", &ints(&[3, 5]))], Code::BadInput, &["\"z\"", "axis 0", "n"]);
    let short = View { bytes: &x.bytes()[..31], ..view(&x) };
    let list = [("x", short), ("z", view(&z))];
    says(e.run_views(&list).unwrap_err(), Code::BadInput, &["\"x\"", "31 bytes", "32"]);
    let huge = View { shape: &[usize::MAX, 4], ..view(&x) };
    assert!(e.run_views(&[("x", huge), ("z", view(&z))]).is_err());
    // None of this hurt it.
    assert_eq!(e.run(&[("z", &z), ("x", &x)]).unwrap()["s"].to_vec::<i32>().unwrap(), [5, 5]);
}

#[test]
fn sizes_that_follow_from_others() {
    let g = Graph::new("sums");
    let (n, m) = (dim("n", 8), dim("m", 8));
    let both = g.input("both", DType::F32, [&n + &m * 2]);
    let one = g.input("one", DType::F32, [n]);
    g.output("y", both.narrow(0, 0, one.dim(0)) + one);
    let e = rlx::compile_with(&g, Device::Cpu, &options(1)).unwrap();
    let run = |a: usize, b: usize| e.run(&[("both", &floats(&[a])), ("one", &floats(&[b]))]);
    assert_eq!(run(7, 3).unwrap()["y"].to_vec::<f32>().unwrap(), [0.0, 2.0, 4.0]);
    assert_eq!(run(3, 3).unwrap()["y"].len(), 3);
    for (a, b) in [(6, 3), (2, 3), (20, 3)] {
        says(run(a, b).unwrap_err(), Code::BadInput, &["\"both\""]);
    }
}

#[test]
fn outputs() {
    let e = ready();
    let (x, z) = (floats(&[2, 4]), ints(&[2, 5]));
    let inputs = [("x", view(&x)), ("z", view(&z))];
    let want = e.run(&[("x", &x), ("z", &z)]).unwrap();
    let mut good = Buffers::like(&want);
    e.run_into(&inputs, &mut good.views()).unwrap();
    assert!(good.views()[0].bytes == want["y"].bytes() && good.views()[1].bytes == want["s"].bytes());

    says(e.run_into(&inputs, &mut good.views()[..1]).unwrap_err(), Code::BadInput, &["1 outputs", "2"]);
    let mut space = vec![0u64; 32];
    // SAFETY: the words are that many bytes.
    let bytes = unsafe { std::slice::from_raw_parts_mut(space.as_mut_ptr().cast::<u8>(), 256) };
    for (dtype, shape, from, len) in [
        (DType::F32, vec![2, 3], 1, 24), // not aligned
        (DType::F32, vec![2, 3], 0, 23), // too short
        (DType::F32, vec![2, 3], 0, 28), // too long
        (DType::F32, vec![3, 2], 0, 24), // another shape
        (DType::F32, vec![6], 0, 24),
        (DType::I32, vec![2, 3], 0, 24),
    ] {
        let mut outs = good.views();
        outs[0] = ViewMut { dtype, shape: &shape, bytes: &mut bytes[from..from + len] };
        says(e.run_into(&inputs, &mut outs).unwrap_err(), Code::BadInput, &["\"y\"", "f32[2, 3]", "24"]);
    }
}

#[test]
fn inputs_and_params_need_not_be_aligned() {
    let e = ready();
    let (x, z) = (floats(&[2, 4]), ints(&[2, 5]));
    let want = e.run(&[("x", &x), ("z", &z)]).unwrap();
    let shifted = |t: &Tensor| {
        let mut v = vec![0u8; t.bytes().len() + 16];
        let at = (0..8).find(|i| (v.as_ptr() as usize + i) % 4 == 1).unwrap();
        v[at..at + t.bytes().len()].copy_from_slice(t.bytes());
        (v, at)
    };
    let ((xs, i), (zs, j)) = (shifted(&x), shifted(&z));
    let x1 = View { bytes: &xs[i..i + 32], ..view(&x) };
    let z1 = View { bytes: &zs[j..j + 40], ..view(&z) };
    let got = e.run_views(&[("x", x1), ("z", z1)]).unwrap();
    common::same_bits(&got, &want).unwrap();
    let (w, at) = shifted(&floats(&[4, 3]));
    let owner: Arc<dyn AsRef<[u8]> + Send + Sync> = Arc::new(w);
    let data = Data::Shared { dtype: DType::F32, shape: vec![4, 3], owner, range: at..at + 48 };
    e.params().set_data("w", data).unwrap();
    common::same_bits(&e.run(&[("x", &x), ("z", &z)]).unwrap(), &want).unwrap();
}

#[test]
fn nothing_at_all_runs() {
    let e = ready();
    let out = e.run(&[("x", &floats(&[0, 4])), ("z", &ints(&[0, 5]))]).unwrap();
    assert_eq!((out["y"].shape(), out["s"].shape()), (&[0, 3][..], &[0][..]));
    let out = e.run(&[("x", &floats(&[2, 4])), ("z", &ints(&[2, 0]))]).unwrap();
    assert_eq!(out["s"].to_vec::<i32>().unwrap(), [0, 0]);
    let f = encoder().graph().unwrap().finish().unwrap();
    for sizes in [[("batch", 0), ("seq", 5)], [("batch", 2), ("seq", 0)], [("batch", 0), ("seq", 0)]] {
        let m = Model::new(&f, &sizes, &options(2));
        assert!(m.run()["hidden"].is_empty());
    }
    let (gpt, mamba) = (gpt(1), mamba(16));
    for f in [gpt.graph(), gpt.training(), mamba.graph(), mamba.training()].map(rlx::Result::unwrap) {
        Model::new(&f, &[("batch", 0), ("seq", 3)], &options(2)).run();
        Model::new(&f, &[("batch", 2), ("seq", 0)], &options(2)).run();
    }
}

/// A bound may be far more than any machine has; only what is run is paid for.
#[test]
fn huge_bounds() {
    for bound in [1i64 << 40, i64::MAX / 64, i64::MAX] {
        let g = Graph::new("huge");
        let x = g.input("x", DType::F32, [dim("n", bound), 4.into()]);
        let w = g.param("w", DType::F32, [4, 4]);
        let h = x.matmul(w).softmax(-1);
        g.output("y", h.matmul(w).sum(vec![1], false) + h.cumsum(0, false, false).max(vec![1], false));
        let e = match rlx::compile_with(&g, Device::Cpu, &options(2)) {
            Ok(e) => e,
            Err(e) => {
                assert!(bound > 1 << 40, "{e}"); // sizes that no number holds may be refused
                continue;
            }
        };
        e.params().set("w", floats(&[4, 4])).unwrap();
        assert_eq!(e.run(&[("x", &floats(&[3, 4]))]).unwrap()["y"].shape(), [3]);
    }
}

/// A few bytes of input that ask for more memory than any machine has are an error, not an abort.
#[test]
fn huge_results() {
    let two = |bound: i64| {
        let g = Graph::new("table");
        {
            let [x, y] = ["x", "y"].map(|n| g.input(n, DType::U8, [dim(n, bound)]).to(DType::F64));
            let table = x.unsqueeze(1) * y.unsqueeze(0);
            match bound > 1 << 20 {
                true => g.output("z", table),
                // What is sorted lies in the arena.
                false => g.output("z", (table.unsqueeze(2) * x).sort(2, false)[0].sum(vec![0, 1], false)),
            }
        }
        rlx::compile_with(&g, Device::Cpu, &options(1)).unwrap()
    };
    let bytes = |n: usize| Tensor::new(&[n], &vec![1u8; n]).unwrap();
    for (bound, large) in [(1 << 28, 1 << 24), (1 << 18, 1 << 17)] {
        let e = two(bound);
        assert_eq!(e.run(&[("x", &bytes(3)), ("y", &bytes(2))]).unwrap()["z"].shape()[0], 3);
        let error = e.run(&[("x", &bytes(large)), ("y", &bytes(large))]).unwrap_err();
        says(error, Code::Device, &["memory"]);
        assert_eq!(e.run(&[("x", &bytes(3)), ("y", &bytes(2))]).unwrap()["z"].shape()[0], 3);
    }
}

#[test]
fn engines() {
    for threads in [0, 1025, usize::MAX] {
        let e = Engine::new(Settings { threads: Some(threads), level: None }).unwrap_err();
        says(e, Code::Device, &["threads"]);
    }
    says(Device::parse("tpu").unwrap_err(), Code::Device, &["\"tpu\"", "cpu"]);
}

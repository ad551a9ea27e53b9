//! Params: from files, shared, set again, prepared once; and what bf16 makes of them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use common::{Model, encoder, engine, gpt, mamba, options, same_bits};
use rlx::formats::{View, gguf, safetensors};
use rlx::func::PortKind;
use rlx::{Code, CompileOptions, DType, Data, Device, Executable, Func, Graph, Precision, Tensor, dim};
use rlx_conformance::models;
use std::path::PathBuf;
use std::sync::Arc;

/// A file of the params of a model, and its path.
fn saved(f: &Func, data: &[(String, Tensor)], name: &str) -> PathBuf {
    let list = models::ports(f, data, PortKind::Param);
    let views: Vec<(&str, View<'_>)> = list.iter().map(|(n, t)| (*n, (*t).into())).collect();
    let path = std::env::temp_dir().join(format!("rlx-{}-{name}.safetensors", std::process::id()));
    safetensors::write(&path, &views, &[]).unwrap();
    path
}

#[test]
fn a_file_sets_the_params() {
    let f = encoder().graph().unwrap().finish().unwrap();
    let m = Model::new(&f, &[("batch", 2), ("seq", 9)], &options(2));
    let path = saved(&f, &m.data, "encoder");
    let from_file = rlx::compile_with(&f, Device::Cpu, &options(2)).unwrap();
    from_file.params().load(&path).unwrap();
    assert!(from_file.params().missing().is_empty());
    // A map stays although the file's name is gone.
    std::fs::remove_file(&path).unwrap();
    same_bits(&from_file.run(&m.inputs()).unwrap(), &m.run()).unwrap();

    // A tensor that no param is named after, and one of another shape.
    let path = saved(&f, &m.data, "other");
    let other = rlx::compile_with(&gpt(1).graph().unwrap(), Device::Cpu, &options(1)).unwrap();
    let e = other.params().load(&path).unwrap_err();
    assert!(e.code() == Code::UnknownName && e.to_string().contains("LayerNorm"), "{e}");
    let narrow = rlx::nn::Encoder { hidden: 24, ..encoder() }.graph().unwrap();
    let e = rlx::compile_with(&narrow, Device::Cpu, &options(1)).unwrap().params().load(&path).unwrap_err();
    assert!(e.code() == Code::BadInput && e.to_string().contains("size 48"), "{e}");
    std::fs::remove_file(&path).unwrap();
    let e = other.params().load(&path).unwrap_err();
    assert!(e.to_string().contains("safetensors"), "{e}");
}

/// Rows of 64 blocks are read where they lie, one of 3 blocks is copied; both give the numbers that were packed.
#[test]
fn quantised_params_come_from_gguf_files() {
    let scheme = rlx::quant::Scheme::parse("q4_0").unwrap();
    for k in [2048usize, 96] {
        let g = Graph::new("rows");
        let w = g.param("blk.0.weight", DType::Packed(scheme), [3, k]);
        g.output("y", w.dequantize(DType::F32, false));
        let xs = common::floats(&[3 * k]).to_vec::<f32>().unwrap();
        let planes = scheme.encode(&[3, k], &xs).unwrap().into_iter().map(Into::into).collect();
        let t = Tensor::packed(scheme, &[3, k], planes).unwrap();
        let path = std::env::temp_dir().join(format!("rlx-{}-rows-{k}.gguf", std::process::id()));
        gguf::write(&path, &[("blk.0.weight", (&t).into())], &[]).unwrap();
        let exe = rlx::compile_with(&g, Device::Cpu, &options(1)).unwrap();
        exe.params().load(&path).unwrap();
        let shared = matches!(&rlx::weights::open(&path).unwrap()["blk.0.weight"], Data::Shared { .. });
        assert_eq!(shared, k == 2048);
        std::fs::remove_file(&path).unwrap();
        let want = scheme.decode(&[3, k], &[t.bytes()], rlx::quant::Decode::AsStored).unwrap();
        assert_eq!(exe.run(&[]).unwrap()["y"].to_vec::<f32>().unwrap(), want);
    }
}

/// Two executables can read the same bytes; nobody copies them.
#[test]
fn data_can_be_shared() {
    let bytes: Arc<dyn AsRef<[u8]> + Send + Sync> = Arc::new(common::floats(&[64]).bytes().to_vec());
    let g = Graph::new("scale");
    let x = g.input("x", DType::F32, [dim("n", 8), 32.into()]);
    g.output("y", x * g.param("w", DType::F32, [32]));
    let halves: Vec<Executable> = (0..2)
        .map(|k| {
            let e = rlx::compile_with(&g, Device::Cpu, &options(1)).unwrap();
            let range = 128 * k..128 * (k + 1);
            let data = Data::Shared { dtype: DType::F32, shape: vec![32], owner: bytes.clone(), range };
            e.params().set_data("w", data).unwrap();
            e
        })
        .collect();
    assert_eq!(Arc::strong_count(&bytes), 3);
    let x = Tensor::new(&[1, 32], &[2f32; 32]).unwrap();
    for (k, e) in halves.iter().enumerate() {
        let y = e.run(&[("x", &x)]).unwrap()["y"].to_vec::<f32>().unwrap();
        assert!(y.iter().enumerate().all(|(i, y)| *y == 2.0 * (32 * k + i) as f32), "{y:?}");
    }
    drop(halves);
    assert_eq!(Arc::strong_count(&bytes), 1);
}

/// Packed data that are shared hold all planes, no byte less.
#[test]
fn packed_data_can_be_shared() {
    let scheme = rlx::quant::Scheme::parse("int8:4").unwrap();
    let values: Vec<f32> = (0..15).map(|i| i as f32 - 7.0).collect();
    let planes = scheme.encode(&[5, 3], &values).unwrap().into_iter().map(Into::into).collect();
    let t = Tensor::packed(scheme, &[5, 3], planes).unwrap();
    let g = Graph::new("packed");
    g.output("y", g.param("w", DType::Packed(scheme), [5, 3]).dequantize(DType::F32, false));
    let bytes = rlx_cpu::data::planes(&t);
    let n = bytes.len();
    let owner: Arc<dyn AsRef<[u8]> + Send + Sync> = Arc::new(bytes);
    let e = rlx::compile_with(&g, Device::Cpu, &options(1)).unwrap();
    for range in [0..0, 0..n - 1, 0..15, 0..n + 1, 1..n] {
        let data = Data::Shared { dtype: t.dtype(), shape: vec![5, 3], owner: owner.clone(), range };
        let e = e.params().set_data("w", data).unwrap_err();
        assert!(e.code() == Code::BadInput && e.to_string().contains("bytes"), "{e}");
    }
    let data = Data::Shared { dtype: t.dtype(), shape: vec![5, 3], owner, range: 0..n };
    e.params().set_data("w", data).unwrap();
    let shared = e.run(&[]).unwrap();
    e.params().set("w", t).unwrap();
    same_bits(&shared, &e.run(&[]).unwrap()).unwrap();
}

/// A param that is used as it is, transposed, computed with beforehand, as an index table and element by element.
#[test]
fn a_param_can_be_set_again_however_it_is_used() {
    let g = Graph::new("uses");
    let x = g.input("x", DType::F32, [dim("n", 8), 16.into()]);
    let ids = g.input("ids", DType::I32, [dim("n", 8)]);
    let w = g.param("w", DType::F32, [16, 16]);
    g.output("plain", x.matmul(w));
    g.output("transposed", x.matmul(w.t()));
    g.output("part", x.matmul(w.narrow(1, 3, 5)));
    g.output("prepared", x.matmul((w * 2.0 + 1.0).tanh()));
    g.output("square", x.matmul(w.matmul(w)));
    g.output("rows", w.gather(ids, 0) * x);
    g.output("alone", w.exp());
    g.output("itself", w);
    let f = g.finish().unwrap();
    let mut m = Model::new(&f, &[("n", 5)], &options(2));
    for seed in [1, 2, 1] {
        let new = models::data(&f, &[("n", 5)], seed).unwrap();
        let w = new.iter().find(|(n, _)| n == "w").unwrap().1.clone();
        m.exe.params().set("w", w.clone()).unwrap();
        m.data.iter_mut().find(|(n, _)| n == "w").unwrap().1 = w;
        same_bits(&m.run(), &Model::with(&f, m.data.clone(), &options(2)).run()).unwrap();
        let all: Vec<(&str, &Tensor)> = m.data.iter().map(|(n, t)| (n.as_str(), t)).collect();
        let want = rlx::eval(&f, &all, &rlx::Options::default()).unwrap();
        for ((name, want), (_, got)) in want.iter().zip(m.run().iter()) {
            rlx_conformance::device::agree(want, got, 1e-5, 0.0).unwrap_or_else(|e| panic!("{name}: {e}"));
        }
    }
}

/// Params that nothing depends on are params all the same.
#[test]
fn unused_params_can_be_set() {
    let g = Graph::new("unused");
    let x = g.input("x", DType::F32, [4]);
    let _ = g.param("w", DType::F32, [4]);
    g.output("y", x + 1.0);
    let m = Model::new(&g.finish().unwrap(), &[], &options(1));
    assert_eq!(m.run()["y"].len(), 4);
}

/// A param whose sizes are symbols: they are those of the inputs, or known from the param alone.
#[test]
fn sizes_of_params_are_checked() {
    let g = Graph::new("symbols");
    let x = g.input("x", DType::F32, [2.into(), dim("n", 16)]);
    let w = g.param("w", DType::F32, [dim("n", 16)]);
    let v = g.param("v", DType::F32, [dim("m", 8), 4.into()]);
    g.output("y", x + w);
    g.output("total", v.sum([0, 1], false));
    g.output("product", v.matmul(v.t()));
    let f = g.finish().unwrap();
    let e = rlx::compile_with(&f, Device::Cpu, &options(2)).unwrap();
    let run = |n: usize| e.run(&[("x", &common::floats(&[2, n]))]);
    e.params().set("v", common::floats(&[3, 4])).unwrap();
    e.params().set("w", common::floats(&[1])).unwrap();
    let error = run(16).unwrap_err();
    assert!(error.code() == Code::BadInput && error.to_string().contains("\"w\""), "{error}");
    assert_eq!(run(1).unwrap()["y"].len(), 2);
    for (n, m) in [(16, 3), (5, 8), (5, 1), (0, 0), (16, 3)] {
        let (w, v) = (common::floats(&[n]), common::floats(&[m, 4]));
        e.params().set("w", w.clone()).unwrap();
        e.params().set("v", v.clone()).unwrap();
        let x = common::floats(&[2, n]);
        let data = [("x", &x), ("w", &w), ("v", &v)];
        let got = run(n).unwrap();
        for (name, want) in rlx::eval(&f, &data, &rlx::Options::default()).unwrap() {
            rlx_conformance::device::agree(&want, &got[name.as_str()], 1e-5, 0.0)
                .unwrap_or_else(|e| panic!("{name} at {n}, {m}: {e}"));
        }
    }
    let error = e.params().set("w", common::floats(&[17])).unwrap_err();
    assert!(error.code() == Code::BadInput && error.to_string().contains("at most 16"), "{error}");
    assert!(run(7).is_err());
}

/// Bytes that become fewer from one look to the next.
struct Shrinking(Vec<u8>, std::sync::atomic::AtomicUsize);

impl AsRef<[u8]> for Shrinking {
    fn as_ref(&self) -> &[u8] {
        let looks = self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if looks == 0 { &self.0 } else { &[] }
    }
}

#[test]
fn shared_bytes_are_looked_at_once() {
    let g = Graph::new("scale");
    g.output("y", g.input("x", DType::F32, [32]) * g.param("w", DType::F32, [32]));
    let e = rlx::compile_with(&g, Device::Cpu, &options(1)).unwrap();
    let owner = Arc::new(Shrinking(common::floats(&[32]).bytes().to_vec(), 0.into()));
    e.params()
        .set_data("w", Data::Shared { dtype: DType::F32, shape: vec![32], owner, range: 0..128 })
        .unwrap();
    let out = e.run(&[("x", &common::floats(&[32]))]).unwrap()["y"].to_vec::<f32>().unwrap();
    assert!(out.iter().enumerate().all(|(i, y)| *y == (i * i) as f32), "{out:?}");
}

#[test]
fn packed_params_that_are_shared_are_as_long_as_their_shape_says() {
    let text = "graph packed { param w: packed<q8_0>[4,64] y = dequantize(w) output y = y }";
    let f = rlx::text::parse(text).unwrap_or_else(|e| panic!("{e}"));
    let e = rlx::compile_with(&f, Device::Cpu, &options(1)).unwrap();
    let dtype = f.port_types().unwrap()[0].dtype;
    let whole = 4 * 64 / 32 * 34; // 272, padded to 320
    for bytes in [0, 64, whole, 319, 321] {
        let owner = Arc::new(vec![0u8; bytes]);
        let data = Data::Shared { dtype, shape: vec![4, 64], owner, range: 0..bytes };
        let error = e.params().set_data("w", data).unwrap_err();
        assert!(error.code() == Code::BadInput && error.to_string().contains("320"), "{bytes}: {error}");
    }
    let data = Data::Shared { dtype, shape: vec![4, 64], owner: Arc::new(vec![0u8; 320]), range: 0..320 };
    e.params().set_data("w", data).unwrap();
    assert_eq!(e.run(&[]).unwrap()["y"].to_vec::<f32>().unwrap(), [0.0; 256]);
}

/// The largest element.
fn top(t: &Tensor) -> f64 {
    t.to_f64s().unwrap().iter().fold(0f64, |m, x| m.max(x.abs()))
}

/// The largest difference.
fn off(a: &Tensor, b: &Tensor) -> f64 {
    let (a, b) = (a.to_f64s().unwrap(), b.to_f64s().unwrap());
    a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

#[test]
fn bf16_is_close_and_takes_half_the_memory() {
    let cases = [
        (encoder().graph().unwrap().finish().unwrap(), [("batch", 3), ("seq", 17)]),
        (gpt(2).graph().unwrap(), [("batch", 3), ("seq", 9)]),
        (gpt(2).training().unwrap(), [("batch", 3), ("seq", 9)]),
        (mamba(32).graph().unwrap(), [("batch", 3), ("seq", 9)]),
    ];
    for (f, sizes) in cases {
        let with = |precision| {
            let o = CompileOptions { engine: Some(engine(2)), precision, ..CompileOptions::default() };
            Model::new(&f, &sizes, &o)
        };
        let (wide, narrow) = (with(Precision::F32), with(Precision::Bf16));
        let (a, b) = (wide.run(), narrow.run());
        let gradients =
            a.iter().filter(|(n, _)| n.starts_with("grad.")).map(|(_, t)| top(t)).fold(0.0, f64::max);
        for ((name, x), (_, y)) in a.iter().zip(b.iter()) {
            // Gradients add up what the products before them were off by; some are nothing but rounding, such as that of
            // a bias of keys, so they are measured against the largest of all.
            let (limit, scale) = if name.starts_with("grad.") { (0.05, gradients) } else { (0.01, top(x)) };
            let off = off(x, y) / scale;
            assert!(off < limit, "{} of {}: off by {off:.1e}", name, f.name);
        }
        let differ = a.iter().zip(b.iter()).any(|((_, x), (_, y))| x.bytes() != y.bytes());
        assert!(differ, "{}: bf16 changed nothing", f.name);
        let (full, half) = (wide.exe.on_cpu().packed_bytes(), narrow.exe.on_cpu().packed_bytes());
        println!("{}: packed weights take {full} bytes, in bf16 {half}", f.name);
        assert!(full > 0 && half * 2 <= full + full / 8, "{}: {full} bytes, in bf16 {half}", f.name);
    }
}

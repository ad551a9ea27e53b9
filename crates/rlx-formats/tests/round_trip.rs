//! What is written is read again, for every dtype of every format.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use common::{Folder, dtypes, tensor};
use proptest::prelude::*;
use rlx_formats::{Archive, Format, Value, View, gguf, npy, npz, open, safetensors};
use rlx_ir::{DType, Tensor};
use std::path::Path;

type Named = Vec<(String, Tensor)>;

/// Some tensors of dtypes of the list.
fn tensors(dtypes: Vec<DType>, max_axes: usize, least: usize) -> impl Strategy<Value = Named> {
    let one = prop::sample::select(dtypes).prop_flat_map(move |d| tensor(d, max_axes, least));
    prop::collection::vec(one, 0..6).prop_map(|list| {
        let name = |i: usize| ["w", "layer.0/bias", "ä\u{1F980}", "x y", "9", "\"q\""][i].to_string();
        list.into_iter().enumerate().map(|(i, t)| (name(i), t)).collect()
    })
}

fn views(list: &Named) -> Vec<(&str, View<'_>)> {
    list.iter().map(|(n, t)| (n.as_str(), t.into())).collect()
}

fn same(got: &Archive, want: &Named) {
    assert_eq!(got.entries().len(), want.len());
    for (name, t) in want {
        let entry = got.entry(name).unwrap();
        assert_eq!((entry.dtype(), entry.shape()), (Some(t.dtype()), t.shape()), "{name}");
        let bytes: usize = t.planes().iter().map(|p| p.len()).sum();
        assert_eq!(entry.bytes(), bytes as u64, "{name}");
        assert_eq!(&got.tensor(name).unwrap().to_tensor().unwrap(), t, "{name}");
    }
}

fn gguf_dtypes() -> Vec<DType> {
    use DType::*;
    let plain = [F32, F16, BF16, F64, I8, I16, I32, I64];
    // Halves come back as plain numbers.
    let has = |d: &DType| matches!(d, Packed(s) if s.is_ggml() && s.block > 1) || plain.contains(d);
    dtypes().into_iter().filter(has).collect()
}

fn numpy_dtypes() -> Vec<DType> {
    let lacks = [DType::BF16, DType::F8E4M3, DType::F8E5M2];
    DType::numbers().filter(|d| !lacks.contains(d)).collect()
}

fn value() -> impl Strategy<Value = Value> {
    fn both<T: Clone + std::fmt::Debug + 'static>(
        one: impl Strategy<Value = T> + Clone + 'static,
    ) -> BoxedStrategy<Value>
    where
        Value: From<T> + From<Vec<T>>,
    {
        let many = prop::collection::vec(one.clone(), 0..5);
        prop_oneof![one.prop_map(Value::from), many.prop_map(Value::from)].boxed()
    }
    prop_oneof![
        both(any::<u8>()),
        both(any::<i8>()),
        both(any::<u16>()),
        both(any::<i16>()),
        both(any::<u32>()),
        both(any::<i32>()),
        both(any::<u64>()),
        both(any::<i64>()),
        both(any::<f32>().prop_filter("is itself", |x| !x.is_nan())),
        both(any::<f64>().prop_filter("is itself", |x| !x.is_nan())),
        both(any::<bool>()),
        both(".{0,20}"),
    ]
}

fn metadata(value: impl Strategy<Value = Value>) -> impl Strategy<Value = Vec<(String, Value)>> {
    let keys = prop::collection::btree_map("[a-z.]{1,8}", value, 0..6);
    keys.prop_map(|m| m.into_iter().filter(|(k, _)| k != "general.alignment").collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn safetensors_files(list in tensors(dtypes(), 5, 0), meta in metadata(".{0,20}".prop_map(Value::from))) {
        let f = Folder::new();
        // The name says nothing.
        let path = f.path("x.gguf");
        safetensors::write(&path, &views(&list), &meta).unwrap();
        let got = open(&path).unwrap();
        prop_assert_eq!(got.format(), Format::Safetensors);
        prop_assert_eq!(got.metadata(), &meta);
        same(&got, &list);
        // Elements are where they can be read.
        for e in got.entries() {
            let (_, range) = got.tensor(e.name()).unwrap().planes()[0].shared();
            prop_assert_eq!(range.start % e.dtype().and_then(DType::bytes).unwrap_or(1), 0);
        }
        let again = f.path("again");
        safetensors::write(&again, &views(&list), &meta).unwrap();
        prop_assert_eq!(std::fs::read(path).unwrap(), std::fs::read(again).unwrap());
    }

    #[test]
    fn safetensors_in_parts(list in tensors(dtypes(), 3, 0), most in 0u64..200) {
        let f = Folder::new();
        let path = f.path("m.safetensors.index.json");
        let files = safetensors::write_parts(&path, &views(&list), &[("by".into(), "us".into())], most).unwrap();
        let got = open(&path).unwrap();
        same(&got, &list);
        let holding = files.iter().filter(|f| !open(f).unwrap().entries().is_empty()).count();
        prop_assert_eq!(got.files().len(), 1 + holding);
        if !list.is_empty() {
            prop_assert_eq!(got.value("by"), Some(&"us".into()));
        }
    }

    #[test]
    fn gguf_files(list in tensors(gguf_dtypes(), 4, 1), meta in metadata(value()), align in prop::option::of(0u32..10)) {
        let f = Folder::new();
        let path = f.path("x.npz");
        let mut meta = meta;
        meta.extend(align.map(|a| ("general.alignment".to_string(), Value::U32(1 << a))));
        gguf::write(&path, &views(&list), &meta).unwrap();
        let got = open(&path).unwrap();
        prop_assert_eq!(got.format(), Format::Gguf);
        prop_assert_eq!(got.metadata(), &meta);
        same(&got, &list);
        let names: Vec<&str> = got.entries().iter().map(|e| e.name()).collect();
        prop_assert_eq!(names, list.iter().map(|(n, _)| n.as_str()).collect::<Vec<_>>());
    }

    #[test]
    fn gguf_in_parts(list in tensors(gguf_dtypes(), 4, 1), most in 0u64..400, which in any::<prop::sample::Index>()) {
        let f = Folder::new();
        let meta = vec![("a".to_string(), Value::from("b"))];
        let files = gguf::write_parts(&f.path("m.gguf"), &views(&list), &meta, most).unwrap();
        let got = open(which.get(&files)).unwrap();
        prop_assert_eq!(got.metadata(), &meta);
        prop_assert_eq!(got.files().len(), files.len());
        same(&got, &list);
    }

    #[test]
    fn npz_files(list in tensors(numpy_dtypes(), 5, 0)) {
        let f = Folder::new();
        let path = f.path("x.safetensors");
        npz::write(&path, &views(&list)).unwrap();
        let got = open(&path).unwrap();
        prop_assert_eq!(got.format(), Format::Npz);
        same(&got, &list);
        // Stored arrays are read where they lie, and aligned.
        for e in got.entries() {
            let (_, range) = got.tensor(e.name()).unwrap().planes()[0].shared();
            prop_assert_eq!(range.start % 64, 0);
        }
    }

    #[test]
    fn npz_files_of_packed_tensors(t in prop::sample::select(dtypes()).prop_flat_map(|d| tensor(d, 0, 1))) {
        let DType::Packed(scheme) = t.dtype() else { return Ok(()) };
        let f = Folder::new();
        npz::write(&f.path("x"), &[("w", (&t).into())]).unwrap();
        let got = open(f.path("x")).unwrap().packed("w", scheme, t.shape()).unwrap();
        prop_assert_eq!(got.to_tensor().unwrap(), t);
    }

    #[test]
    fn npy_files(t in prop::sample::select(numpy_dtypes()).prop_flat_map(|d| tensor(d, 5, 0))) {
        let f = Folder::new();
        let path = f.path("of this name.npy");
        npy::write(&path, &(&t).into()).unwrap();
        same(&open(&path).unwrap(), &vec![("of this name".into(), t)]);
    }
}

fn fails(done: rlx_ir::Result<()>, why: &str) {
    let e = done.unwrap_err();
    assert!(e.to_string().contains(why), "{e}");
}

#[test]
fn what_a_format_has_not_is_not_written() {
    let f = Folder::new();
    let path = f.path("x");
    let t = |dtype: &str, shape: &[usize]| {
        let dtype = DType::parse(dtype).unwrap();
        Tensor::from_bytes(dtype, shape, vec![0; shape.iter().product::<usize>() * dtype.bytes().unwrap()])
            .unwrap()
    };
    let bf16 = t("bf16", &[2]);
    fails(npz::write(&path, &[("w", (&bf16).into())]), "\"w\": is bf16, which NumPy has not");
    fails(npy::write(&path, &(&bf16).into()), "is bf16");
    fails(npz::write(&path, &[("../w", (&t("f32", &[])).into())]), "leads elsewhere");
    fails(gguf::write(&path, &[("w", (&t("u8", &[2])).into())], &[]), "tensor \"w\" is u8");
    fails(gguf::write(&path, &[("w", (&t("f32", &[1; 5])).into())], &[]), "4 axes");
    fails(gguf::write(&path, &[("w", (&t("f32", &[0])).into())], &[]), "none of size 0");
    fails(gguf::write(&path, &[(&"w".repeat(64), (&t("f32", &[1])).into())], &[]), "64 bytes");
    let int8 = rlx_ir::quant::Scheme::parse("int8:2").unwrap();
    let planes = int8.encode(&[2, 1], &[1.0, 2.0]).unwrap().into_iter().map(Into::into).collect();
    let int8 = Tensor::packed(int8, &[2, 1], planes).unwrap();
    fails(gguf::write(&path, &[("w", (&int8).into())], &[]), "is packed<int8:2>");
    let two = [("w", View::from(&bf16)), ("w", View::from(&bf16))];
    fails(safetensors::write(&path, &two, &[]), "\"w\"");
    fails(safetensors::write(&path, &[], &[("rlx.packed".into(), "{}".into())]), "not theirs to say");
    fails(gguf::write(&path, &two, &[]), "\"w\" is there twice");
    let plane = [("w", View::from(&int8)), ("w.scale", View::from(&bf16))];
    fails(safetensors::write(&path, &plane, &[]), "\"w.scale\"");
    fails(safetensors::write(&path, &[("__metadata__", (&bf16).into())], &[]), "__metadata__");
    fails(safetensors::write(Path::new("/nowhere/x"), &[], &[]), "/nowhere/x: ");
    assert!(!path.exists());
    assert_eq!(std::fs::read_dir(&f.0).unwrap().count(), 0);
}

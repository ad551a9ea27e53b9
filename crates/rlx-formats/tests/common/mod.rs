//! Folders that are gone when a test is over, and random tensors.
#![allow(dead_code, reason = "no test program uses all of it")]

use proptest::prelude::*;
use rlx_ir::quant::Scheme;
use rlx_ir::{DType, Tensor};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("rlx-formats-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
    pub fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        std::fs::write(self.path(name), bytes).unwrap();
        self.path(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A tensor of that dtype with any bytes that it may have: NaN and all. Of packed ones the scales are finite.
pub fn tensor(dtype: DType, max_axes: usize, least: usize) -> BoxedStrategy<Tensor> {
    let shape = prop::collection::vec(least..5, 0..=max_axes);
    match dtype {
        DType::Packed(scheme) => packed(scheme, least),
        DType::Bool => shape
            .prop_flat_map(|s| (prop::collection::vec(0u8..2, s.iter().product::<usize>()), Just(s)))
            .prop_map(|(bytes, s)| Tensor::from_bytes(DType::Bool, &s, bytes).unwrap())
            .boxed(),
        _ => shape
            .prop_flat_map(move |s| {
                let len = s.iter().product::<usize>() * dtype.bytes().unwrap();
                (prop::collection::vec(any::<u8>(), len), Just(s))
            })
            .prop_map(move |(bytes, s)| Tensor::from_bytes(dtype, &s, bytes).unwrap())
            .boxed(),
    }
}

fn packed(scheme: Scheme, least: usize) -> BoxedStrategy<Tensor> {
    let block = scheme.block as usize;
    (prop::collection::vec(least..3, 0..3), 1..3usize)
        .prop_flat_map(move |(mut shape, last)| {
            shape.push(if scheme.is_ggml() { last * block } else { last + 2 });
            (prop::collection::vec(-4f32..4.0, shape.iter().product::<usize>()), Just(shape))
        })
        .prop_map(move |(xs, shape)| {
            let planes = scheme.encode(&shape, &xs).unwrap();
            Tensor::packed(scheme, &shape, planes.into_iter().map(Into::into).collect()).unwrap()
        })
        .boxed()
}

/// Every dtype: the numbers, and each scheme with its customary block.
pub fn dtypes() -> Vec<DType> {
    DType::numbers().chain(Scheme::all().iter().map(|s| DType::Packed(*s))).collect()
}

//! faer, which is a library of Rust and so runs in this process.

use crate::Result;
use crate::cases::{Case, Model};
use crate::side::{Side, Turn, load, timed};
use ::faer::linalg::matmul::matmul;
use ::faer::{Accum, Mat, MatRef, Par};
use rlx::Tensor;
use std::path::Path;

/// A product by faer. Its matrices are column-major, so it computes the transposed product of the same memory.
pub struct Faer {
    x: Vec<f32>,
    w: Vec<f32>,
    y: Mat<f32>,
    sizes: [usize; 3],
    threads: usize,
}

impl Faer {
    pub fn new(case: &Case, threads: usize) -> Result<Faer> {
        let Model::MatMul { m, k, n } = case.model else { return Err("faer only multiplies".into()) };
        let read = |path| -> Result<Vec<f32>> {
            let bytes = load(path)?.first().map(|(_, data)| data.bytes().to_vec()).unwrap_or_default();
            let float = |b: &[u8]| f32::from_le_bytes(<[u8; 4]>::try_from(b).unwrap_or_default());
            Ok(bytes.chunks_exact(4).map(float).collect())
        };
        let (x, w) = (read(&case.inputs())?, read(&case.weights())?);
        Ok(Faer { x, w, y: Mat::zeros(n, m), sizes: [m, k, n], threads })
    }
}

impl Side for Faer {
    fn turn(&mut self, turn: Turn) -> Result<Vec<f64>> {
        let [m, k, n] = self.sizes;
        let (x, w) =
            (MatRef::from_column_major_slice(&self.x, k, m), MatRef::from_column_major_slice(&self.w, n, k));
        let par = Par::rayon(self.threads);
        timed(turn, || {
            matmul(self.y.as_mut(), Accum::Replace, w, x, 1.0, par);
            Ok(())
        })
    }
    fn result(&mut self, _: &Path) -> Result<Vec<(String, Tensor)>> {
        let [m, _, n] = self.sizes;
        let y: Vec<f32> = self.y.col_iter().flat_map(|c| c.iter().copied().collect::<Vec<f32>>()).collect();
        Ok(vec![("y".to_owned(), Tensor::new(&[m, n], &y)?)])
    }
}

//! Products with packed weights, for every scheme.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx_ir::quant::{Decode, Scheme};
use rlx_ir::sample::Rng;
use rlx_ir::{Code, DType, Graph, Options, Tensor, eval};

/// The product of one row and a decoded matrix, column by column.
fn product(x: &[f64], w: &[f64], k: usize, n: usize, rows_are_outputs: bool) -> Vec<f64> {
    let at = |i: usize, j: usize| if rows_are_outputs { w[j * k + i] } else { w[i * n + j] };
    (0..n).map(|j| (0..k).map(|i| x[i] * at(i, j)).sum()).collect()
}

fn close(a: &[f64], b: &[f64], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    for (x, y) in a.iter().zip(b) {
        assert!((x - y).abs() <= 1e-9 * y.abs().max(1.0), "{what}: {x}, want {y}");
    }
}

#[test]
fn every_scheme_multiplies_as_it_decodes() {
    for &scheme in Scheme::all() {
        let rng = &mut Rng::new(u64::from(scheme.block) + 1);
        // The last block is short where that is legal.
        let k = if scheme.is_ggml() { 2 * scheme.block as usize } else { scheme.block as usize * 2 + 3 };
        let n = 3;
        let shape = if scheme.is_ggml() { [n, k] } else { [k, n] };
        let values: Vec<f32> = (0..k * n).map(|_| rng.unit() as f32 * 2.0 - 1.0).collect();
        let planes = scheme.encode(&shape, &values).unwrap();
        let views: Vec<&[u8]> = planes.iter().map(Vec::as_slice).collect();
        let decoded: Vec<f64> =
            scheme.decode(&shape, &views, Decode::Finite).unwrap().iter().map(|x| f64::from(*x)).collect();
        let w = Tensor::packed(scheme, &shape, planes.iter().map(|p| p.as_slice().into()).collect()).unwrap();

        let x: Vec<f64> = (0..2 * k).map(|_| rng.unit() - 0.5).collect();
        let dy: Vec<f64> = (0..n).map(|_| rng.unit() - 0.5).collect();
        let g = Graph::new("product");
        let wv = g.input("w", DType::Packed(scheme), shape);
        let (xv, dv) = (g.input("x", DType::F64, [1, 2, k]), g.input("dy", DType::F64, [n]));
        g.output("y", xv.dequant_matmul(wv, None, false));
        g.output("dx", dv.dequant_matmul(wv, None, true));
        let (x, dy) = (Tensor::new(&[1, 2, k], &x).unwrap(), Tensor::new(&[n], &dy).unwrap());
        let out =
            eval(&g.finish().unwrap(), &[("w", &w), ("x", &x), ("dy", &dy)], &Options::default()).unwrap();

        let (x, dy) = (x.to_f64s().unwrap(), dy.to_f64s().unwrap());
        let want: Vec<f64> =
            x.chunks(k).flat_map(|row| product(row, &decoded, k, n, scheme.is_ggml())).collect();
        close(&out[0].1.f64s(), &want, &scheme.to_string());
        close(&out[1].1.f64s(), &product(&dy, &decoded, n, k, !scheme.is_ggml()), &scheme.to_string());
    }
}

#[test]
fn codes_that_are_no_numbers_count_as_zero_in_a_product() {
    let scheme = Scheme::parse("fp8_e5m2").unwrap();
    // 1, NaN, +inf, 2 in a column.
    let w = Tensor::packed(scheme, &[4, 1], vec![vec![0x3c, 0x7f, 0x7c, 0x40].into()]).unwrap();
    let g = Graph::new("finite");
    let wv = g.input("w", DType::Packed(scheme), [4, 1]);
    let x = g.input("x", DType::F32, [4]);
    g.output("y", x.dequant_matmul(wv, None, false));
    g.output("w", wv.dequantize(DType::F32, false));
    let x = Tensor::new(&[4], &[1.0f32; 4]).unwrap();
    let out = eval(&g.finish().unwrap(), &[("w", &w), ("x", &x)], &Options::default()).unwrap();
    assert_eq!(out[0].1.f64s(), [3.0]);
    assert!(out[1].1.f64s()[1].is_nan() && out[1].1.f64s()[2].is_infinite());
}

#[test]
fn misfits_are_refused_with_their_constraint() {
    let int8 = DType::parse("packed<int8:4>").unwrap();
    let q4 = DType::parse("packed<q4_0>").unwrap();
    let refuse = |build: &dyn Fn(&Graph)| {
        let g = Graph::new("bad");
        build(&g);
        let e = g.finish().unwrap_err();
        (e.code(), e.bad_constraint())
    };
    let wrong_k = refuse(&|g| {
        let (x, w) = (g.input("x", DType::F32, [2, 5]), g.input("w", int8, [6, 3]));
        g.output("y", x.dequant_matmul(w, None, false));
    });
    assert_eq!(wrong_k, (Code::Dim, Some(4)));
    let ragged = refuse(&|g| {
        let x = g.input("x", DType::F32, [2, 33]);
        g.output("y", x.quantize(q4));
    });
    assert_eq!(ragged, (Code::Quant, Some(2)));
    let flat = refuse(&|g| {
        let x = g.input("x", DType::F32, [8]);
        g.output("y", x.quantize(int8));
    });
    assert_eq!(flat, (Code::Rank, Some(2)));
    let plain = refuse(&|g| {
        let x = g.input("x", DType::F32, [8, 2]);
        g.output("y", x.quantize(DType::I8));
    });
    assert_eq!(plain, (Code::DType, Some(1)));
}

/// Straight through where nothing is clamped; the scale learns from the rounding error and from what is clamped.
#[test]
fn gradients_pass_through_fake_quantisation() {
    use rlx_ir::ops::fake_quantize::FakeQuantize;
    let g = Graph::new("qat");
    let (x, scale) = (g.input("x", DType::F64, [3]), g.input("scale", DType::F64, Vec::<i64>::new()));
    let y = x.fake_quantize(scale, None, FakeQuantize { lo: -8, hi: 7, axis: None });
    g.output("loss", y.sum_all());
    g.output("y", y);
    let f = rlx_ir::transform::vjp(&g.finish().unwrap(), &["loss"], &["x", "scale"]).unwrap();
    let (x, scale) = (Tensor::new(&[3], &[-10.0f64, 0.26, 10.0]).unwrap(), Tensor::scalar(0.1f64));
    let out = eval(&f, &[("x", &x), ("scale", &scale)], &Options::default()).unwrap();
    let get = |name: &str| out.iter().find(|(n, _)| n == name).unwrap().1.f64s();
    close(&get("y"), &[-0.8, 0.3, 0.7], "y");
    close(&get("grad.x"), &[0.0, 1.0, 0.0], "x");
    close(&get("grad.scale"), &[-8.0 + (3.0 - 2.6) + 7.0], "scale");
}

#[test]
fn sizes_may_be_symbolic() {
    let (m, k, n) = (rlx_ir::dim("m", 9), rlx_ir::dim("k", 40), rlx_ir::dim("n", 9));
    let int8 = DType::parse("packed<int8:4>").unwrap();
    let g = Graph::new("symbols");
    let x = g.input("x", DType::F32, [m.clone(), k.clone()]);
    let w = g.input("w", DType::F32, [k.clone(), n.clone()]).quantize(int8);
    let experts = g.input("experts", DType::I32, [m.clone()]);
    let all = g.input("all", DType::F32, [2.into(), k.clone(), n.clone()]).quantize(int8);
    let y = x.dequant_matmul(w, None, false) + x.dequant_matmul_grouped(all, experts, None, false);
    g.output("loss", y.sum_all());
    let f = rlx_ir::transform::vjp(&g.finish().unwrap(), &["loss"], &["x"]).unwrap();
    let ones = |shape: &[usize]| Tensor::new(shape, &vec![1f32; shape.iter().product()]).unwrap();
    let (x, w, all) = (ones(&[3, 6]), ones(&[6, 2]), ones(&[2, 6, 2]));
    let experts = Tensor::new(&[3], &[0i32, 1, 5]).unwrap();
    let data = [("x", &x), ("w", &w), ("all", &all), ("experts", &experts)];
    let out = eval(&f, &data, &Options::default()).unwrap();
    // The third row has an expert that does not exist.
    close(&out[0].1.f64s(), &[3.0 * 12.0 + 2.0 * 12.0], "loss");
    let rows = [[4.0; 6], [4.0; 6], [2.0; 6]].concat();
    close(&out[1].1.f64s(), &rows, "gradient");
}

//! Values and gradients against PyTorch, by digests that `torch_digests.py` prints.
#![allow(clippy::unwrap_used, clippy::panic)]

use rlx_ir::ops::conv::{Conv, ConvTranspose};
use rlx_ir::ops::pool::{AvgPool, MaxPool};
use rlx_ir::ops::scatter::ScatterMode;
use rlx_ir::{DType, Graph, Options, Tensor, Var, eval};

/// The digest of the result, then of the gradient to each input.
const WANT: &[(&str, &[f64])] = &[
    ("conv", &[-13.68613627, -19.73348326, 16.32446758, 0.1815625172]),
    ("conv_asymmetric", &[-1.34643041, -1.747048249, -1.538360914]),
    ("conv_transpose", &[0.0994384702, -0.896041643, -5.189685585, -1.50370437]),
    ("conv_transpose_wide", &[-19.767113, 25.09214067, -59.58555819, 0.36761973]),
    ("max_pool", &[0.0290909617, 2.687679799]),
    ("max_pool_ceil", &[-1.730754113, 3.710806975]),
    ("avg_pool_ceil", &[-0.2193381453, -0.05810039889]),
    ("avg_pool_ceil_inside", &[-0.2015604832, 0.09234164953]),
    ("rfft", &[2.265238285, -1.325678839]),
    ("irfft", &[2.271783839, -2.020044252]),
    ("fft", &[-7.720000818, 5.559614235]),
    ("einsum", &[17.4274175, 15.10575776, 11.43239518]),
    ("top_k", &[1.393500485, -0.5479727885]),
    ("top_k_indices", &[3.545767041]),
    ("scatter_add", &[-0.7301597081, 0.790889045, -1.273941458]),
    ("scatter_max", &[-0.3850924314, 0.237267302, -0.1461804255]),
    ("scatter_min", &[0.1656367773, -0.03737220127, -0.7117988184]),
    ("scatter_mul", &[0.5074590869, -0.07967217364, -0.1421155578]),
];

fn wave(shape: &[usize], seed: f64) -> Tensor {
    let n: usize = shape.iter().product();
    let v: Vec<f64> = (0..n).map(|i| (i as f64 + seed).sin()).collect();
    Tensor::new(shape, &v).unwrap()
}

fn digest(v: &[f64]) -> f64 {
    v.iter().enumerate().map(|(i, y)| y * (i as f64).cos()).sum()
}

/// Compares the digests of `f` over waves of these shapes and seeds.
fn check<const N: usize>(
    name: &str,
    waves: [(&[usize], f64); N],
    f: impl for<'g> Fn([Var<'g>; N]) -> Var<'g>,
) {
    let want = WANT.iter().find(|w| w.0 == name).unwrap().1;
    let g = Graph::new("torch");
    let data: Vec<(String, Tensor)> =
        waves.iter().enumerate().map(|(i, (s, seed))| (format!("x{i}"), wave(s, *seed))).collect();
    let vars: [Var<'_>; N] =
        std::array::from_fn(|i| g.input(&data[i].0, DType::F64, waves[i].0.iter().copied()));
    let y = f(vars);
    g.output("y", y);
    let sizes: Vec<usize> = y.shape().iter().map(|d| d.as_const().unwrap() as usize).collect();
    let func = if want.len() > 1 {
        let loss = (y * g.constant(wave(&sizes, 9.0))).sum_all();
        g.output("loss", loss);
        g.vjp(loss, &vars).unwrap()
    } else {
        g.finish().unwrap()
    };
    let inputs: Vec<(&str, &Tensor)> = data.iter().map(|(n, t)| (n.as_str(), t)).collect();
    let out = eval(&func, &inputs, &Options::default()).unwrap();
    let got = out.iter().filter(|(n, _)| n != "loss").map(|(_, a)| digest(&a.f64s()));
    for (k, (got, want)) in got.zip(want).enumerate() {
        assert!(
            (got - want).abs() <= 1e-8 * want.abs().max(1.0),
            "{name}, digest {k}: {got}, PyTorch has {want}"
        );
    }
}

#[test]
fn conv_and_its_gradients() {
    let shapes: [(&[usize], f64); 3] = [(&[2, 4, 7, 6], 0.0), (&[6, 2, 3, 2], 1.0), (&[6], 2.0)];
    check("conv", shapes, |[x, w, b]| {
        let (stride, padding, dilation) = (vec![2, 1], vec![1, 2], vec![1, 2]);
        let padding_lo = padding.clone();
        x.conv(w, b, Conv { stride, padding_lo, padding_hi: padding, dilation, groups: 2 })
    });
    check("conv_asymmetric", [shapes[0], shapes[1]], |[x, w]| {
        let (padding_lo, padding_hi) = (vec![2, 0], vec![0, 1]);
        x.conv(w, None, Conv { stride: vec![3, 2], padding_lo, padding_hi, groups: 2, ..Conv::default() })
    });
}

#[test]
fn transposed_conv_and_its_gradients() {
    let shapes: [(&[usize], f64); 3] = [(&[2, 4, 3, 4], 0.0), (&[4, 3, 3, 2], 1.0), (&[6], 2.0)];
    let padded = || ConvTranspose {
        padding_lo: vec![1, 0],
        padding_hi: vec![1, 0],
        groups: 2,
        ..ConvTranspose::default()
    };
    check("conv_transpose", shapes, |[x, w, b]| {
        let (stride, output_padding, dilation) = (vec![2, 3], vec![1, 2], vec![2, 1]);
        x.conv_transpose(w, b, ConvTranspose { stride, output_padding, dilation, ..padded() })
    });
    check("conv_transpose_wide", shapes, |[x, w, b]| {
        let (stride, output_padding, dilation) = (vec![2, 1], vec![2, 0], vec![3, 1]);
        x.conv_transpose(w, b, ConvTranspose { stride, output_padding, dilation, ..padded() })
    });
}

#[test]
fn pools_and_their_gradients() {
    let x: [(&[usize], f64); 1] = [(&[2, 2, 7, 8], 0.0)];
    check("max_pool", x, |[x]| {
        let (kernel, stride, dilation) = (vec![3, 2], vec![2, 2], vec![1, 2]);
        let (padding_lo, padding_hi) = (vec![1, 0], vec![1, 0]);
        x.max_pool(MaxPool { kernel, stride, padding_lo, padding_hi, dilation, ceil_mode: false })
    });
    check("max_pool_ceil", x, |[x]| {
        let (kernel, stride) = (vec![2, 3], vec![2, 2]);
        let (padding_lo, padding_hi) = (vec![1, 1], vec![1, 1]);
        x.max_pool(MaxPool { kernel, stride, padding_lo, padding_hi, ceil_mode: true, ..MaxPool::default() })
    });
    let avg = |kernel: Vec<i64>, count_include_pad| AvgPool {
        kernel,
        stride: vec![2, 2],
        padding_lo: vec![1, 1],
        padding_hi: vec![1, 1],
        ceil_mode: true,
        count_include_pad,
        ..AvgPool::default()
    };
    check("avg_pool_ceil", x, |[x]| x.avg_pool(avg(vec![2, 3], true)));
    check("avg_pool_ceil_inside", x, |[x]| x.avg_pool(avg(vec![3, 3], false)));
}

#[test]
fn fourier_transforms_and_their_gradients() {
    check("rfft", [(&[3, 7], 0.0)], |[x]| x.rfft(-1));
    check("irfft", [(&[3, 5, 2], 0.0)], |[x]| x.irfft(8));
    check("fft", [(&[3, 5, 2], 0.0)], |[x]| x.fft(false));
}

#[test]
fn einsum_and_its_gradients() {
    check("einsum", [(&[2, 3, 4], 0.0), (&[4, 2, 3, 5], 1.0)], |[x, y]| {
        x.graph().einsum(&[x, y], "bij,jbkc->ikc")
    });
}

#[test]
fn top_k_and_its_gradient() {
    check("top_k", [(&[3, 6], 0.0)], |[x]| x.top_k(3, -1, true)[0]);
    check("top_k_indices", [(&[3, 6], 0.0)], |[x]| x.top_k(3, -1, true)[1]);
}

#[test]
fn scatters_and_their_gradients() {
    let modes = [
        ("scatter_add", ScatterMode::Add),
        ("scatter_max", ScatterMode::Max),
        ("scatter_min", ScatterMode::Min),
        ("scatter_mul", ScatterMode::Mul),
    ];
    for (name, mode) in modes {
        check(name, [(&[5], 0.0), (&[6], 3.0)], |[x, u]| {
            let at = Tensor::new(&[6], &[0i32, 2, 0, 4, 4, 2]).unwrap();
            x.scatter(x.graph().constant(at), u, 0, mode)
        });
    }
}

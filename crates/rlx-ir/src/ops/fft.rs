//! Discrete Fourier transforms. A complex number is a pair (real, imaginary) along the last axis.

use crate::prelude::*;
use crate::tensor::Tensor;
use std::f64::consts::TAU;

/// The last axis is a pair, and `before` more axes stand before it, or constraint `n` is broken.
fn check_pairs(c: &Infer<'_>, n: usize, before: usize) -> Result<()> {
    c.rank_at_least(n, 0, before + 1)?;
    c.expect_dim(n, 0, c.ty(0)?.rank() - 1, &Dim::constant(2))
}

/// Complex conjugates.
fn conjugate<'g>(x: Var<'g>) -> Var<'g> {
    match Tensor::from_f64s(x.dtype(), &[2], &[1.0, -1.0]) {
        Some(signs) => x * x.graph().constant(signs),
        None => x.graph().fail(Error::new(Code::DType, format!("{} has no signs", x.dtype()))),
    }
}

ops! {
    /// The Fourier transform along the second last axis of pairs `[.., n, 2]`:
    /// `y[k] = Σ_t x[t] · exp(−2πi·k·t/n)`. The inverse has the other sign, and divides by n.
    fft: Fft(x: Float) { inverse: bool = false } -> y;
    constraints = ["x has at least two axes, and the last one has size 2"];
    infer = |c, _| {
        check_pairs(c, 1, 1)?;
        Ok(vec![c.ty(0)?.clone()])
    };
    step = |_, a| Ok(Step::Fft { inverse: a.inverse });
    eval = |e, a| {
        let x = e.x(0)?;
        let n = x.rank().checked_sub(2).and_then(|i| x.shape().get(i)).copied().unwrap_or(0);
        let sign = if a.inverse { 1.0 } else { -1.0 };
        // Powers of the root, so that angles stay exact for long transforms.
        let roots: Vec<(f64, f64)> = (0..n).map(|j| (sign * TAU * j as f64 / n as f64).sin_cos()).collect();
        let scale = if a.inverse { n as f64 } else { 1.0 };
        Ok(vec![e.make(0, |ix| {
            let mut from = ix.to_vec();
            let (Some([k, part]), len) = (ix.last_chunk::<2>(), ix.len()) else { return Num::F(0.0) };
            let mut sum = 0.0;
            for t in 0..n {
                let mut read = |p: usize| {
                    if let Some([at, pair]) = from.get_mut(len - 2..).and_then(|s| s.first_chunk_mut::<2>()) {
                        (*at, *pair) = (t, p);
                    }
                    x.at(&from).f()
                };
                let turn = (*k as u128 * t as u128 % n as u128) as usize;
                let (sin, cos) = roots.get(turn).copied().unwrap_or((0.0, 1.0));
                let (re, im) = (read(0), read(1));
                sum += if *part == 0 { re * cos - im * sin } else { re * sin + im * cos };
            }
            Num::F(sum / scale)
        })?])
    };
    vjp = |c, a| {
        // The adjoint of a transform is its conjugate: the other direction, scaled by the size.
        let dy = c.dy(0);
        let n = dy.size_scalar(&dy.dim(-2));
        let dx = dy.fft(!a.inverse);
        Ok([if a.inverse { dx / n } else { dx * n }].into())
    };
    vmap = |c, a| Ok(vec![c.x(0).fft(a.inverse)]);
    onnx = [rule("DFT", 17, onnx::signal::dft), rule("STFT", 17, onnx::signal::stft),
        rule("HannWindow", 17, onnx::signal::hann), rule("HammingWindow", 17, onnx::signal::hamming),
        rule("BlackmanWindow", 17, onnx::signal::blackman),
        rule("MelWeightMatrix", 17, onnx::signal::mel_weight_matrix)];
    samples = |s| {
        s.case("eight", Fft { inverse: false }, [f([2, 8, 2])]);
        s.case("seven_back", Fft { inverse: true }, [f([7, 2])]);
        s.case("one", Fft { inverse: false }, [f([1, 2])]);
        s.case("empty", Fft { inverse: true }, [f([0, 4, 2])]);
        s.case("of_nothing", Fft { inverse: true }, [f([3, 0, 2])]);
    };
    tolerance = tol(2e-5, 1e-2, 8e-2);

    /// The Fourier transform of real numbers along an axis, without the half that follows by symmetry: the
    /// axis becomes `floor(n/2) + 1` long, and a last axis of pairs is added.
    rfft: Rfft(x: Float) { axis: i64 = -1 } -> y;
    constraints = ["the axis exists and is not empty"];
    infer = |c, a| {
        let (x, axis) = (c.ty(0)?, c.axis(1, 0, a.axis)?);
        let n = c.dim(0, axis)?;
        if !c.at_least(1, n, 1) {
            return Err(c.fail(Code::Size, 1, "nothing to transform").operand("x").axis(axis));
        }
        let mut y = x.clone().with_axis(axis, n.floor_div(2) + 1);
        y.shape.push(Dim::constant(2));
        Ok(vec![y])
    };
    body = |c, a| {
        let x = c.x(0).move_axis(a.axis, -1);
        let axis = resolve_axis(a.axis, x.rank())?;
        let half = x.dim(-1).floor_div(2) + 1;
        let y = c.g.stack(&[x, x.zeros_like()], -1).fft(false).narrow(-2, 0, half);
        Ok(vec![y.move_axis(-2, axis as i64)])
    };
    vmap = |c, a| Ok(vec![c.x(0).rfft(c.shift(0, a.axis)?)]);
    samples = |s| {
        s.case("even", Rfft { axis: -1 }, [f([2, 6])]);
        s.case("odd", Rfft { axis: 0 }, [f([5, 2])]);
        s.case("one", Rfft { axis: 0 }, [f([1])]);
        s.case("empty", Rfft { axis: -1 }, [f([0, 4])]);
    };
    tolerance = tol(2e-5, 1e-2, 8e-2);

    /// The inverse of `rfft` along the last axis: from pairs `[.., floor(n/2) + 1, 2]` to real numbers
    /// `[.., n]`. The imaginary parts that a real signal does not have (of the first, and of the last if n is
    /// even) count as 0.
    irfft: Irfft(x: Float) { n: Dim } -> y;
    constraints = [
        "x has at least two axes, and the last one has size 2",
        "n is positive",
        "the second last axis has size floor(n/2) + 1",
    ];
    infer = |c, a| {
        check_pairs(c, 1, 1)?;
        if !c.at_least(2, &a.n, 1) {
            return Err(c.fail(Code::Attribute, 2, format!("n is {}", a.n)));
        }
        let x = c.ty(0)?;
        c.expect_dim(3, 0, x.rank() - 2, &(a.n.floor_div(2) + 1))?;
        let lead = x.shape.iter().take(x.rank() - 2).cloned();
        Ok(vec![x.with_shape(lead.chain([a.n.clone()]).collect::<Shape>())])
    };
    body = |c, a| {
        // Element n − k of the whole spectrum is the conjugate of element k.
        let x = c.x(0);
        let rest = &a.n - x.dim(-2);
        let mirrored = conjugate(x.narrow(-2, 1, rest).flip(vec![-2]));
        let y = c.g.concat(&[x, mirrored], -2).fft(true).narrow(-1, 0, 1);
        Ok(vec![y.squeeze(-1)])
    };
    vmap = |c, a| Ok(vec![c.x(0).irfft(&a.n)]);
    samples = |s| {
        s.case("even", Irfft { n: 6.into() }, [f([2, 4, 2])]);
        s.case("odd", Irfft { n: 5.into() }, [f([3, 2])]);
        s.case("one", Irfft { n: 1.into() }, [f([1, 2])]);
        s.case("empty", Irfft { n: 4.into() }, [f([0, 3, 2])]);
    };
    tolerance = tol(2e-5, 1e-2, 8e-2);
}

//! Functions of one float: roots, exponentials, logarithms, trigonometry, rounding.
//!
//! Outside its domain a function is NaN, at a pole it is infinite, as IEEE and PyTorch have it.

use crate::prelude::*;
use std::f64::consts::{FRAC_2_SQRT_PI, LN_2};

ops! {
    /// |x|; the gradient at 0 is 0.
    abs: Abs(x: Num) -> y;
    scalar = Scalar::Abs;
    vjp = |c, _| Ok([c.dy(0) * c.x(0).sign()].into());
    onnx = [same("Abs")];
    samples = |s| { s.unary(0.2, 1.5); s.special(Abs {}); s.rough("int", Abs {}, [int([5], -9, 9)]); };

    /// −1, 0 or 1, as x is negative, zero or positive; 0 for NaN.
    sign: Sign(x: Num) -> y;
    scalar = Scalar::Sign;
    onnx = [same("Sign")];
    samples = |s| { s.unary(0.2, 1.5); s.special(Sign {}); s.rough("int", Sign {}, [int([5], -2, 3)]); };

    /// The largest whole number that is not above x; an integer as it is.
    floor: Floor(x: Num) -> y;
    scalar = Scalar::Floor;
    onnx = [same("Floor")];
    samples = |s| { s.unary(1.1, 1.9); s.special(Floor {}); s.rough("signs", Floor {}, [f([7])]); };

    /// The smallest whole number that is not below x; an integer as it is.
    ceil: Ceil(x: Num) -> y;
    scalar = Scalar::Ceil;
    onnx = [same("Ceil")];
    samples = |s| { s.unary(1.1, 1.9); s.special(Ceil {}); s.rough("signs", Ceil {}, [f([7])]); };

    /// The nearest whole number, ties to the even one; an integer as it is.
    round: Round(x: Num) -> y;
    scalar = Scalar::Round;
    onnx = [same("Round")];
    samples = |s| {
        s.unary(0.6, 1.4);
        s.special(Round {});
        s.rough("ties", Round {}, [f([6]).values(&[-2.5, -1.5, -0.5, 0.5, 1.5, 2.5])]);
    };

    /// x cut toward zero; an integer as it is.
    trunc: Trunc(x: Num) -> y;
    scalar = Scalar::Trunc;
    samples = |s| { s.unary(1.1, 1.9); s.special(Trunc {}); s.rough("signs", Trunc {}, [f([7])]); };

    /// eˣ.
    exp: Exp(x: Float) -> y;
    scalar = Scalar::Exp;
    vjp = |c, _| Ok([c.dy(0) * c.y(0)].into());
    onnx = [same("Exp")];
    samples = |s| { s.unary(-1.5, 1.5); s.special(Exp {}); };

    /// eˣ − 1, exact near 0 too.
    expm1: Expm1(x: Float) -> y;
    scalar = Scalar::Expm1;
    vjp = |c, _| Ok([c.dy(0) * (c.y(0) + 1.0)].into());
    samples = |s| {
        s.unary(-1.5, 1.5);
        s.special(Expm1 {});
        s.case("near_zero", Expm1 {}, [f([4]).within(-1e-3, 1e-3)]);
    };

    /// 2ˣ.
    exp2: Exp2(x: Float) -> y;
    each = |c, _| Ok(vec![c.x(0).scalar(2.0).pow(c.x(0))]);
    vjp = |c, _| Ok([c.dy(0) * c.y(0) * LN_2].into());
    samples = |s| { s.unary(-1.5, 1.5); s.special(Exp2 {}); };

    /// The natural logarithm; −∞ at 0.
    log: Log(x: Float) -> y;
    scalar = Scalar::Log;
    vjp = |c, _| Ok([c.dy(0) / c.x(0)].into());
    onnx = [same("Log")];
    samples = |s| { s.unary(0.3, 2.0); s.special(Log {}); };

    /// ln(1 + x), exact near 0 too; −∞ at −1.
    log1p: Log1p(x: Float) -> y;
    scalar = Scalar::Log1p;
    vjp = |c, _| Ok([c.dy(0) / (c.x(0) + 1.0)].into());
    samples = |s| {
        s.unary(-0.7, 2.0);
        s.special(Log1p {});
        s.case("near_zero", Log1p {}, [f([4]).within(-1e-3, 1e-3)]);
    };

    /// The logarithm to base 2; −∞ at 0.
    log2: Log2(x: Float) -> y;
    each = |c, _| Ok(vec![c.x(0).log() / LN_2]);
    vjp = |c, _| Ok([c.dy(0) / (c.x(0) * LN_2)].into());
    samples = |s| { s.unary(0.3, 2.0); s.special(Log2 {}); };

    /// √x.
    sqrt: Sqrt(x: Float) -> y;
    scalar = Scalar::Sqrt;
    vjp = |c, _| Ok([c.dy(0) / (c.y(0) * 2.0)].into());
    onnx = [same("Sqrt")];
    samples = |s| { s.unary(0.3, 2.0); s.special(Sqrt {}); };

    /// 1 / √x; ∞ at 0.
    rsqrt: Rsqrt(x: Float) -> y;
    scalar = Scalar::Rsqrt;
    vjp = |c, _| Ok([c.dy(0) * (c.y(0) * c.y(0) * c.y(0)) * -0.5].into());
    samples = |s| { s.unary(0.3, 2.0); s.special(Rsqrt {}); };

    /// 1 / x; ±∞ at ±0.
    recip: Recip(x: Float) -> y;
    scalar = Scalar::Recip;
    vjp = |c, _| Ok([-c.dy(0) * (c.y(0) * c.y(0))].into());
    onnx = [same("Reciprocal")];
    samples = |s| { s.unary(0.5, 2.0); s.special(Recip {}); };

    /// x · x.
    square: Square(x: Num) -> y;
    each = |c, _| Ok(vec![c.x(0) * c.x(0)]);
    vjp = |c, _| Ok([c.dy(0) * (c.x(0) * 2.0)].into());
    samples = |s| { s.unary(-1.5, 1.5); s.special(Square {}); s.rough("int", Square {}, [int([5], -9, 9)]); };

    /// The sine of x radians.
    sin: Sin(x: Float) -> y;
    scalar = Scalar::Sin;
    vjp = |c, _| Ok([c.dy(0) * c.x(0).cos()].into());
    onnx = [same("Sin")];
    samples = |s| { s.unary(-3.0, 3.0); s.special(Sin {}); };
    tolerance = tol(8e-6, 4e-3, 3e-2);

    /// The cosine of x radians.
    cos: Cos(x: Float) -> y;
    scalar = Scalar::Cos;
    vjp = |c, _| Ok([-c.dy(0) * c.x(0).sin()].into());
    onnx = [same("Cos")];
    samples = |s| { s.unary(-3.0, 3.0); s.special(Cos {}); };
    tolerance = tol(8e-6, 4e-3, 3e-2);

    /// The tangent of x radians.
    tan: Tan(x: Float) -> y;
    scalar = Scalar::Tan;
    vjp = |c, _| Ok([c.dy(0) * (c.y(0) * c.y(0) + 1.0)].into());
    onnx = [same("Tan")];
    samples = |s| { s.unary(-1.0, 1.0); s.special(Tan {}); };
    tolerance = tol(2e-5, 8e-3, 6e-2);

    /// The angle within ±π/2 whose sine is x, for |x| <= 1.
    asin: Asin(x: Float) -> y;
    scalar = Scalar::Asin;
    vjp = |c, _| Ok([c.dy(0) * (1.0 - c.x(0) * c.x(0)).rsqrt()].into());
    onnx = [same("Asin")];
    samples = |s| { s.unary(-0.8, 0.8); s.special(Asin {}); };
    tolerance = tol(2e-5, 4e-3, 3e-2);

    /// The angle within 0..π whose cosine is x, for |x| <= 1.
    acos: Acos(x: Float) -> y;
    scalar = Scalar::Acos;
    vjp = |c, _| Ok([-c.dy(0) * (1.0 - c.x(0) * c.x(0)).rsqrt()].into());
    onnx = [same("Acos")];
    samples = |s| { s.unary(-0.8, 0.8); s.special(Acos {}); };
    tolerance = tol(2e-5, 4e-3, 3e-2);

    /// The angle within ±π/2 whose tangent is x.
    atan: Atan(x: Float) -> y;
    scalar = Scalar::Atan;
    vjp = |c, _| Ok([c.dy(0) / (c.x(0) * c.x(0) + 1.0)].into());
    onnx = [same("Atan")];
    samples = |s| { s.unary(-2.0, 2.0); s.special(Atan {}); };
    tolerance = tol(1e-5, 4e-3, 3e-2);

    /// (eˣ − e⁻ˣ) / 2.
    sinh: Sinh(x: Float) -> y;
    scalar = Scalar::Sinh;
    vjp = |c, _| Ok([c.dy(0) * c.x(0).cosh()].into());
    onnx = [same("Sinh")];
    samples = |s| { s.unary(-1.5, 1.5); s.special(Sinh {}); };
    tolerance = tol(1e-5, 4e-3, 3e-2);

    /// (eˣ + e⁻ˣ) / 2.
    cosh: Cosh(x: Float) -> y;
    scalar = Scalar::Cosh;
    vjp = |c, _| Ok([c.dy(0) * c.x(0).sinh()].into());
    onnx = [same("Cosh")];
    samples = |s| { s.unary(-1.5, 1.5); s.special(Cosh {}); };
    tolerance = tol(1e-5, 4e-3, 3e-2);

    /// The inverse of sinh.
    asinh: Asinh(x: Float) -> y;
    scalar = Scalar::Asinh;
    vjp = |c, _| Ok([c.dy(0) * (c.x(0) * c.x(0) + 1.0).rsqrt()].into());
    onnx = [same("Asinh")];
    samples = |s| { s.unary(-2.0, 2.0); s.special(Asinh {}); };
    tolerance = tol(2e-5, 4e-3, 3e-2);

    /// The inverse of cosh, for x >= 1.
    acosh: Acosh(x: Float) -> y;
    scalar = Scalar::Acosh;
    vjp = |c, _| Ok([c.dy(0) * (c.x(0) * c.x(0) - 1.0).rsqrt()].into());
    onnx = [same("Acosh")];
    samples = |s| { s.unary(1.2, 2.5); s.special(Acosh {}); };
    tolerance = tol(2e-5, 4e-3, 3e-2);

    /// The inverse of tanh, for |x| < 1; ±∞ at ±1.
    atanh: Atanh(x: Float) -> y;
    scalar = Scalar::Atanh;
    vjp = |c, _| Ok([c.dy(0) / (1.0 - c.x(0) * c.x(0))].into());
    onnx = [same("Atanh")];
    samples = |s| { s.unary(-0.8, 0.8); s.special(Atanh {}); };
    tolerance = tol(2e-5, 4e-3, 3e-2);

    /// (eˣ − e⁻ˣ) / (eˣ + e⁻ˣ).
    tanh: Tanh(x: Float) -> y;
    scalar = Scalar::Tanh;
    vjp = |c, _| Ok([c.dy(0) * (1.0 - c.y(0) * c.y(0))].into());
    onnx = [same("Tanh")];
    samples = |s| { s.unary(-1.5, 1.5); s.special(Tanh {}); };
    tolerance = tol(1e-5, 4e-3, 3e-2);

    /// The error function: 2/√π · ∫₀ˣ exp(−t²) dt.
    erf: Erf(x: Float) -> y;
    scalar = Scalar::Erf;
    vjp = |c, _| Ok([c.dy(0) * ((-c.x(0).square()).exp() * FRAC_2_SQRT_PI)].into());
    onnx = [same("Erf")];
    samples = |s| { s.unary(-1.5, 1.5); s.special(Erf {}); };
    tolerance = tol(1e-5, 4e-3, 3e-2);

    /// 1 − erf(x), with all its digits where erf(x) is nearly 1.
    erfc: Erfc(x: Float) -> y;
    scalar = Scalar::Erfc;
    vjp = |c, _| Ok([c.dy(0) * ((-c.x(0).square()).exp() * -FRAC_2_SQRT_PI)].into());
    samples = |s| {
        s.unary(-1.5, 1.5);
        s.special(Erfc {});
        s.rough("tail", Erfc {}, [f([5]).within(2.0, 6.0)]);
    };
    tolerance = tol(2e-5, 4e-3, 3e-2);

    /// 1 / (1 + e⁻ˣ).
    sigmoid: Sigmoid(x: Float) -> y;
    scalar = Scalar::Sigmoid;
    vjp = |c, _| Ok([c.dy(0) * (c.y(0) * (1.0 - c.y(0)))].into());
    onnx = [same("Sigmoid")];
    samples = |s| { s.unary(-2.0, 2.0); s.special(Sigmoid {}); };
}

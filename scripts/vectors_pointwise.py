#!/usr/bin/env python3
"""Writes vectors/pointwise.txt: element-wise functions and their gradients as PyTorch computes them in f64.

A line per function: name, x, y, dx (for dy = 1), separated by `|`; numbers by spaces.
Run with the packages of scripts/requirements-vectors-torch.txt.
"""

import math
import pathlib

import torch
import torch.nn.functional as F

INF, NAN = math.inf, math.nan
WIDE = [-INF, -7.5, -3.0, -1.0, -0.5, -0.0, 0.0, 1e-3, 0.5, 1.0, 2.5, 3.0, 6.0, 7.5, INF, NAN]

FUNCTIONS = {
    "neg": torch.neg, "abs": torch.abs, "sign": torch.sign, "floor": torch.floor, "ceil": torch.ceil,
    "round": torch.round, "trunc": torch.trunc, "exp": torch.exp, "expm1": torch.expm1, "exp2": torch.exp2,
    "log": torch.log, "log1p": torch.log1p, "log2": torch.log2, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt,
    "recip": torch.reciprocal, "square": torch.square, "sin": torch.sin, "cos": torch.cos, "tan": torch.tan,
    "asin": torch.asin, "acos": torch.acos, "atan": torch.atan, "sinh": torch.sinh, "cosh": torch.cosh,
    "asinh": torch.asinh, "acosh": torch.acosh, "atanh": torch.atanh, "tanh": torch.tanh, "erf": torch.erf,
    "erfc": torch.erfc, "sigmoid": torch.sigmoid, "relu": F.relu, "leaky_relu": F.leaky_relu, "elu": F.elu,
    "selu": F.selu, "celu": F.celu, "silu": F.silu, "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "mish": F.mish, "softplus": F.softplus,
    "softsign": F.softsign, "hard_sigmoid": F.hardsigmoid, "hard_swish": F.hardswish, "hard_tanh": F.hardtanh,
    "relu6": F.relu6, "log_sigmoid": F.logsigmoid, "tanh_shrink": F.tanhshrink, "soft_shrink": F.softshrink,
    "hard_shrink": F.hardshrink, "thresholded_relu": lambda x: F.threshold(x, 1.0, 0.0),
}


def main():
    lines = []
    for name, function in FUNCTIONS.items():
        x = torch.tensor(WIDE, dtype=torch.float64, requires_grad=True)
        y = function(x)
        y.backward(torch.ones_like(y))
        columns = [x.tolist(), y.tolist(), x.grad.tolist()]
        lines.append("|".join([name, *(" ".join(map(repr, c)) for c in columns)]))
    root = pathlib.Path(__file__).resolve().parent.parent
    (root / "vectors" / "pointwise.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

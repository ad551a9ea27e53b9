"""Functions of one number."""

import torch

from .core import F, V, inf, nan, with_limits

SPECIAL = [nan, inf, -inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -1.5, -2.5, 1e-300, 1e300, -1e300]
EDGES = [-inf, -7.5, -6.0, -3.0, -1.0, -0.5, 0.0, 1e-3, 0.5, 1.0, 2.5, 3.0, 6.0, 7.5, inf]
TINY = [1e-300, -1e-300, 1e-17, -1e-17, 1e-9, -1e-9, 1e-4, -1e-4]
WIDE = [-40.0, -20.0, -7.0, -3.0, -0.7, 0.7, 3.0, 7.0, 20.0, 40.0]

UNARY = {  # op: (torch, range, values far from the range)
    "neg": (torch.neg, (-1.5, 1.5), WIDE + TINY),
    "abs": (torch.abs, (-1.5, 1.5), WIDE + TINY + [0.0]),
    "sign": (torch.sign, (-1.5, 1.5), WIDE + TINY + [0.0]),
    "floor": (torch.floor, (-5, 5), WIDE + TINY),
    "ceil": (torch.ceil, (-5, 5), WIDE + TINY),
    "round": (torch.round, (-5, 5), WIDE + [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999999999999994, 4503599627370497.5]),
    "trunc": (torch.trunc, (-5, 5), WIDE + TINY),
    "exp": (torch.exp, (-2, 2), WIDE + TINY + [700.0, -700.0]),
    "expm1": (torch.expm1, (-2, 2), WIDE + TINY + [700.0]),
    "log": (torch.log, (0.1, 5), [1e-300, 1e-9, 1.0, 1 + 1e-12, 1e9, 1e300]),
    "log1p": (torch.log1p, (-0.9, 4), TINY + [-1 + 1e-12, 1e9, 1e300]),
    "log2": (torch.log2, (0.1, 5), [1e-300, 1.0, 8.0, 1e300]),
    "exp2": (torch.exp2, (-2, 2), WIDE + TINY + [1000.0, -1000.0]),
    "sqrt": (torch.sqrt, (0.1, 5), [1e-300, 1e-9, 1.0, 1e300]),
    "rsqrt": (torch.rsqrt, (0.1, 5), [1e-200, 1e-9, 1.0, 1e200]),
    "recip": (torch.reciprocal, (0.3, 3), [-1e-100, 1e-9, -7.0, 1e100]),
    "square": (torch.square, (-1.5, 1.5), WIDE + TINY),
    "sin": (torch.sin, (-4, 4), WIDE + TINY + [1e6]),
    "cos": (torch.cos, (-4, 4), WIDE + TINY + [1e6]),
    "tan": (torch.tan, (-1.2, 1.2), WIDE + TINY),
    "asin": (torch.asin, (-0.95, 0.95), TINY + [0.999999, -0.999999]),
    "acos": (torch.acos, (-0.95, 0.95), TINY + [0.999999, -0.999999]),
    "atan": (torch.atan, (-3, 3), WIDE + TINY + [1e9, -1e9]),
    "sinh": (torch.sinh, (-2, 2), WIDE + TINY),
    "cosh": (torch.cosh, (-2, 2), WIDE + TINY),
    "asinh": (torch.asinh, (-3, 3), WIDE + TINY + [1e9, -1e9]),
    "acosh": (torch.acosh, (1.1, 5), [1.000001, 40.0, 1e9]),
    "atanh": (torch.atanh, (-0.9, 0.9), TINY + [0.999999, -0.999999]),
    "tanh": (torch.tanh, (-2, 2), WIDE[2:-2] + TINY),
    "erf": (torch.erf, (-2, 2), WIDE[2:-2] + TINY),
    "erfc": (torch.erfc, (-2, 2), WIDE[:-1] + TINY + [5.0, 10.0, 26.0]),
    "sigmoid": (torch.sigmoid, (-3, 3), WIDE + TINY),
}
SKEWED = {"tan", "sin", "cos"}  # at 1e300 the reduction of the argument is the platform's business


def cases(c):
    for op, (fn, (lo, hi), wide) in UNARY.items():
        text = f"y = {op}(x)"
        c.case(text, {"x": F(3, 5, lo=lo, hi=hi)}, fn, name="small", rtol=1e-12, atol=1e-15)
        c.case(text, {"x": F(2, 1, 3, lo=lo, hi=hi)}, fn, name="three_axes", rtol=1e-12, atol=1e-15)
        c.case(text, {"x": F(lo=lo, hi=hi)}, fn, name="scalar", rtol=1e-12, atol=1e-15)
        c.case(text, {"x": F(0, 2, lo=lo, hi=hi)}, fn, name="empty")
        # PyTorch's derivative of tanh is 1 - y², which cancels.
        c.case(text, {"x": V(wide)}, fn, name="wide", rtol=1e-9 if op == "tanh" else 1e-12, atol=0.0)
        c.case(text, {"x": with_limits(fn, EDGES)}, fn, name="edges", rtol=1e-9, atol=1e-13)
        special = [v for v in SPECIAL if op not in SKEWED or not 1e299 < abs(v) < inf]
        c.case(text, {"x": V(special)}, fn, wrt=[], name="special", rtol=1e-12, atol=0.0)
    for op in ("neg", "abs", "sign", "square"):
        x = V([-128, -127, -3, -1, 0, 1, 5, 127], torch.int8)
        c.case(f"y = {op}(x)", {"x": x}, UNARY[op][0], name="i8")
        x = V([-(2**31), -46341, -1, 0, 7, 2**31 - 1], torch.int32)
        c.case(f"y = {op}(x)", {"x": x}, UNARY[op][0], name="i32")
    for op in ("floor", "ceil", "round", "trunc"):
        c.case(f"y = {op}(x)", {"x": V([-3, 0, 9], torch.int32)}, UNARY[op][0], name="i32")
    c.case("y = stop_gradient(x)", {"x": F(2, 3)}, lambda x: x.detach() + 0 * x, name="zero")
    c.case("s = stop_gradient(x)\ny = mul(s, x)", {"x": F(2, 3)}, lambda x: x.detach() * x, name="half")
    c.case("a = sin(x)\nb = exp(a)\ny = tanh(b)", {"x": F(4, 3)}, lambda x: x.sin().exp().tanh(), name="chain")

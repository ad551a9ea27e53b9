"""Softmax and its logarithm."""

import torch

from .core import F, V, attrs, inf, nan

SPECIAL = [[1.0, nan, 2.0], [inf, 1.0, 2.0], [-inf, 0.0, 1.0], [-inf, -inf, 3.0], [-inf, -inf, -inf], [inf, inf, 0.0]]


def cases(c):
    for op, fn in [("softmax", torch.softmax), ("log_softmax", torch.log_softmax)]:
        for shape, axis in [
            ((3, 5), -1),
            ((2, 4, 3), 1),
            ((7,), 0),
            ((3, 1), 1),
            ((4, 2), 0),
            ((0, 3), 1),
            ((2, 0), 1),
            ((2, 3, 2, 2), -3),
        ]:
            c.case(f"y = {op}(x){attrs(axis=axis)}", {"x": F(*shape, lo=-4, hi=4)}, lambda x: fn(x, axis))
        c.case(
            f"y = {op}(x)",
            {"x": V([[1000.0, 999.0, -1000.0], [-1e5, -1e5, -99990.0], [1e-9, -1e-9, 0.0]])},
            lambda x: fn(x, -1),
            name="far",
        )
        c.case(f"y = {op}(x)", {"x": V(SPECIAL)}, lambda x: fn(x, -1), wrt=[], name="special")
        c.case(
            f"y = {op}(x)",
            {"x": V([[-inf, 0.0, 1.0], [-inf, -inf, 3.0]])},
            lambda x: fn(x, -1),
            wrt=["x"] if op == "softmax" else [],
            name="masked",
        )
    for shape, axis in [((3, 5), -1), ((2, 4, 3), 1)]:
        c.case(
            f"dx = softmax_grad(y, dy){attrs(axis=axis)}",
            {"y": F(*shape, lo=0.1, hi=1), "dy": F(*shape)},
            lambda y, dy: torch._softmax_backward_data(dy, y, axis, torch.float64),
        )
        c.case(
            f"dx = log_softmax_grad(y, dy){attrs(axis=axis)}",
            {"y": F(*shape, lo=-3, hi=-0.1), "dy": F(*shape)},
            lambda y, dy: dy - y.exp() * dy.sum(axis, keepdim=True),
        )

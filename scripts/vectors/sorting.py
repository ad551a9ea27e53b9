"""Sorting and selection."""

import torch

from .core import D, I, V, attrs, inf, nan

SPECIAL = [[3.0, nan, -inf, inf, 0.0], [nan, nan, 1.0, -1.0, inf], [0.0, -0.0, 0.0, -0.0, 1.0]]


def cases(c):
    for shape, axis in [((7,), 0), ((3, 5), -1), ((4, 3, 2), 1), ((5, 1), 0), ((3, 1), 1), ((0, 3), 1), ((2, 0), 1)]:
        for descending in (False, True):
            a = attrs(axis=axis, descending=descending or None)
            c.case(
                f"v, i = sort(x){a}",
                {"x": D(*shape)},
                lambda x: torch.sort(x, dim=axis, descending=descending, stable=True),
            )
            c.case(
                f"i = argsort(x){a}",
                {"x": D(*shape)},
                lambda x: torch.argsort(x, dim=axis, descending=descending, stable=True),
            )
    for descending in (False, True):
        a = attrs(axis=-1, descending=descending or None)
        c.case(
            f"v, i = sort(x){a}",
            {"x": V(SPECIAL)},
            lambda x: torch.sort(x, descending=descending, stable=True),
            wrt=[],
            name="special",
        )
        c.case(
            f"i = argsort(x){a}",
            {"x": V(SPECIAL)},
            lambda x: torch.argsort(x, descending=descending, stable=True),
            name="special",
        )
        c.case(
            f"v, i = sort(x){a}",
            {"x": I(4, 9, lo=-2, hi=3)},
            lambda x: torch.sort(x, descending=descending, stable=True),
            name="ties",
        )
    for shape, k, axis in [
        ((7,), 3, 0),
        ((3, 5), 2, -1),
        ((4, 3, 2), 4, 0),
        ((2, 5, 3), 1, 1),
        ((3, 4), 4, 1),
        ((3, 2), 0, 1),
        ((0, 3), 2, 1),
    ]:
        for largest in (True, False):
            c.case(
                f"v, i = top_k(x){attrs(k=k, axis=axis, largest=None if largest else False)}",
                {"x": D(*shape)},
                lambda x: torch.topk(x, k, axis, largest=largest, sorted=True),
            )
    c.case(
        "v, i = top_k(x) {k: 2, axis: 1}",
        {"x": V([[3.0, nan, inf, 1.0], [-inf, nan, -1.0, 2.0]])},
        lambda x: torch.topk(x, 2, 1),
        wrt=[],
        name="special",
    )
    c.case(
        "v, i = top_k(x) {k: 3, axis: -1}",
        {"x": V([[5, 2, 9, 7], [-1, -4, 0, 3]], torch.int32)},
        lambda x: torch.topk(x, 3),
        name="i32",
    )

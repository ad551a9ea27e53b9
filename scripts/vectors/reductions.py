"""Reductions over axes."""

import torch

from .core import B, D, F, I, V, attrs, inf, nan

SHAPES = [
    ((3, 4), [-1], False),
    ((2, 3, 5), [0, 2], True),
    ((2, 3, 4), [1], False),
    ((7,), [0], False),
    ((3, 5), [0, 1], False),
    ((2, 1, 3), [1], True),
    ((3, 4), [], False),
]


def over(x, axes, keep, fn):
    """fn(x, dims, keep) where torch would take an empty list for all axes."""
    return fn(x, axes, keep) if axes else fn(x.unsqueeze(-1), [-1], False)


def prod(x, dims, keep):
    for d in sorted((d % x.ndim for d in dims), reverse=True):
        x = x.prod(d, keepdim=keep)
    return x


FLOATS = {
    "sum": lambda x, d, k: x.sum(d, keepdim=k),
    "mean": lambda x, d, k: x.mean(d, keepdim=k),
    "max": lambda x, d, k: x.amax(d, keepdim=k),
    "min": lambda x, d, k: x.amin(d, keepdim=k),
    "prod": prod,
    "logsumexp": lambda x, d, k: x.logsumexp(d, keepdim=k),
    "l1_norm": lambda x, d, k: torch.linalg.vector_norm(x, 1, d, keepdim=k),
    "l2_norm": lambda x, d, k: torch.linalg.vector_norm(x, 2, d, keepdim=k),
    "var": lambda x, d, k: x.var(d, correction=0, keepdim=k),
    "std": lambda x, d, k: x.std(d, correction=0, keepdim=k),
}


def cases(c):
    for op, fn in FLOATS.items():
        for shape, axes, keep in SHAPES:
            if not axes and op in ("var", "std", "l1_norm", "l2_norm", "logsumexp"):
                continue
            c.case(f"y = {op}(x){attrs(axes=axes, keep=keep)}", {"x": D(*shape)}, lambda x: over(x, axes, keep, fn))
        c.case(f"y = {op}(x) {{axes: [1]}}", {"x": F(0, 3)}, lambda x: fn(x, [1], False), name="no_rows")
        special = torch.tensor(
            [[1.0, inf, 2.0], [nan, 1.0, inf], [-inf, -inf, -inf], [inf, -inf, 0.0], [0.0, -0.0, 0.0]],
            dtype=torch.float64,
        )
        c.case(f"y = {op}(x) {{axes: [-1]}}", {"x": special}, lambda x: fn(x, [-1], False), wrt=[], name="special")
        c.case(f"y = {op}(x) {{axes: [0]}}", {"x": F(1, 3)}, lambda x: fn(x, [0], False), name="one")
    for op in ("sum", "mean", "prod", "l1_norm", "l2_norm", "logsumexp"):
        c.case(f"y = {op}(x) {{axes: [0]}}", {"x": F(0, 3)}, lambda x: FLOATS[op](x, [0], False), name="nothing")
    for correction in (0, 1, 2):
        for op in ("var", "std"):
            c.case(
                f"y = {op}(x){attrs(axes=[-1], correction=correction)}",
                {"x": F(3, 5)},
                lambda x: getattr(x, op)(-1, correction=correction),
                name="correction",
            )
            c.case(
                f"y = {op}(x){attrs(axes=[0, 2], keep=True, correction=correction)}",
                {"x": F(2, 3, 4, lo=1000, hi=1001)},
                lambda x: getattr(x, op)((0, 2), correction=correction, keepdim=True),
                name="far",
                rtol=1e-7,
            )
    c.case("y = max(x) {axes: [1]}", {"x": V([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])}, lambda x: x.amax(1), name="ties")
    c.case("y = min(x) {axes: [1]}", {"x": V([[1.0, 1.0, 3.0], [2.0, 2.0, 2.0]])}, lambda x: x.amin(1), name="ties")
    c.case(
        "y = prod(x) {axes: [1]}",
        {"x": V([[2.0, 0.0, 3.0], [0.0, 0.0, 5.0], [1.0, 2.0, 4.0]])},
        lambda x: x.prod(1),
        name="zeros",
    )
    c.case(
        "y = l2_norm(x) {axes: [1]}",
        {"x": V([[0.0, 0.0], [3.0, -4.0]])},
        lambda x: torch.linalg.vector_norm(x, 2, 1),
        name="zeros",
    )
    c.case(
        "y = l1_norm(x) {axes: [1]}",
        {"x": V([[0.0, 0.0], [3.0, -4.0]])},
        lambda x: torch.linalg.vector_norm(x, 1, 1),
        name="zeros",
    )
    c.case(
        "y = logsumexp(x) {axes: [1]}",
        {"x": V([[1000.0, 999.0], [-1000.0, -1001.0], [800.0, -800.0]])},
        lambda x: x.logsumexp(1),
        name="far",
    )
    for op in ("sum", "max", "min", "prod"):
        fn = FLOATS[op]
        typed = (
            (lambda x, d, k: x.sum(d, keepdim=k, dtype=x.dtype))
            if op == "sum"
            else (lambda x, d, k: x.prod(d[0], keepdim=k, dtype=x.dtype))
            if op == "prod"
            else fn
        )
        c.case(f"y = {op}(x) {{axes: [1]}}", {"x": I(3, 5, lo=-9, hi=9)}, lambda x: typed(x, [1], False), name="i32")
        c.case(
            f"y = {op}(x) {{axes: [0]}}",
            {"x": I(5, 3, lo=-128, hi=128, dtype=torch.int8)},
            lambda x: typed(x, [0], False),
            name="i8_wraps",
        )
        c.case(
            f"y = {op}(x) {{axes: [0], keep: true}}",
            {"x": I(4, 2, lo=-(2**62), hi=2**62, dtype=torch.int64)},
            lambda x: typed(x, [0], True),
            name="i64",
        )
    for op, fn in [("any", torch.any), ("all", torch.all)]:
        c.case(f"y = {op}(x) {{axes: [1]}}", {"x": B(5, 3)}, lambda x: fn(x, 1), name="last")
        c.case(
            f"y = {op}(x) {{axes: [0, 2], keep: true}}",
            {"x": B(3, 5, 2)},
            lambda x: fn(fn(x, 2, keepdim=True), 0, keepdim=True),
            name="two",
        )
        c.case(f"y = {op}(x) {{axes: [0, 1]}}", {"x": B(2, 3)}, lambda x: fn(x), name="everything")
        c.case(f"y = {op}(x) {{axes: [0]}}", {"x": B(0, 3)}, lambda x: fn(x, 0), name="nothing")
    for op, fn in [("argmax", torch.argmax), ("argmin", torch.argmin)]:
        for shape, axis, keep in [((3, 5), -1, False), ((2, 5, 3), 1, True), ((4,), 0, False), ((3, 1, 2), 1, False)]:
            c.case(f"y = {op}(x){attrs(axis=axis, keep=keep)}", {"x": D(*shape)}, lambda x: fn(x, axis, keepdim=keep))
        c.case(f"y = {op}(x) {{axis: 1}}", {"x": F(0, 3)}, lambda x: fn(x, 1), name="no_rows")
        c.case(f"y = {op}(x) {{axis: 1}}", {"x": I(6, 8, lo=0, hi=3)}, lambda x: fn(x, 1), name="ties")
        c.case(
            f"y = {op}(x) {{axis: 1, last: true}}",
            {"x": I(6, 8, lo=0, hi=3)},
            lambda x: 7 - fn(x.flip(1), 1),
            name="last",
        )
        c.case(
            f"y = {op}(x) {{axis: 1}}",
            {"x": V([[1.0, inf, -inf], [3.0, nan, inf], [-inf, -inf, -inf], [nan, 1.0, nan]])},
            lambda x: fn(x, 1),
            name="special",
        )

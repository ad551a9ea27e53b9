"""Running sums, products and extremes."""

import torch

from .core import D, F, I, V, attrs, inf, nan

PLAIN = {
    "cumsum": (torch.cumsum, 0.0),
    "cumprod": (torch.cumprod, 1.0),
    "cummax": (lambda x, d: torch.cummax(x, d).values, -inf),
    "cummin": (lambda x, d: torch.cummin(x, d).values, inf),
    "logcumsumexp": (torch.logcumsumexp, -inf),
}


def running(op, x, axis, exclusive, reverse):
    """The op: reversed it runs from the end, exclusive it leaves the element itself out and begins with the identity."""
    fn, identity = PLAIN[op]
    if reverse:
        x = x.flip(axis)
    y = fn(x, axis)
    if exclusive and x.shape[axis]:
        first = torch.full_like(y.narrow(axis, 0, 1), identity)
        y = torch.cat([first, y.narrow(axis, 0, x.shape[axis] - 1)], axis)
    return y.flip(axis) if reverse else y


def recurrence(a, b, axis, reverse):
    """y[t] = a[t] y[t-1] + b[t] from y[0] = b[0]."""
    steps = list(zip(a.unbind(axis), b.unbind(axis)))
    ys = []
    for p, q in steps[::-1] if reverse else steps:
        ys.append(q if not ys else p * ys[-1] + q)
    return torch.stack(ys[::-1] if reverse else ys, axis) if ys else b + 0


def cases(c):
    for reverse in (False, True):
        for shape, axis in [((7,), 0), ((2, 5, 3), 1), ((3, 1), -1), ((2, 0), 1)]:
            c.case(
                f"y = linear_scan(a, b){attrs(axis=axis, reverse=reverse or None)}",
                {"a": F(*shape), "b": F(*shape)},
                lambda a, b: recurrence(a, b, axis, reverse),
            )
    for op in PLAIN:
        for exclusive in (False, True):
            for reverse in (False, True):
                a = {"exclusive": exclusive or None, "reverse": reverse or None}
                name = ("exclusive" if exclusive else "inclusive") + (".reverse" if reverse else "")
                for shape, axis in [((7,), 0), ((2, 5, 3), 1), ((3, 4), -1)]:
                    c.case(
                        f"y = {op}(x){attrs(axis=axis, **a)}",
                        {"x": D(*shape)},
                        lambda x: running(op, x, axis, exclusive, reverse),
                        name=name,
                    )
                c.case(
                    f"y = {op}(x){attrs(axis=1, **a)}",
                    {"x": F(3, 1)},
                    lambda x: running(op, x, 1, exclusive, reverse),
                    name=f"{name}.one",
                )
                c.case(
                    f"y = {op}(x){attrs(axis=1, **a)}",
                    {"x": F(2, 0)},
                    lambda x: running(op, x, 1, exclusive, reverse),
                    name=f"{name}.empty",
                )
        special = V([[1.0, nan, 2.0, 3.0], [inf, 1.0, -inf, 0.0], [-inf, -inf, 0.0, 1.0], [0.0, -0.0, 5.0, nan]])
        c.case(
            f"y = {op}(x) {{axis: 1}}",
            {"x": special},
            lambda x: running(op, x, 1, False, False),
            wrt=[],
            name="special",
        )
    for op in ("cumsum", "cumprod", "cummax", "cummin"):
        fn = PLAIN[op][0]
        typed = (lambda x, d: fn(x, d, dtype=x.dtype)) if op in ("cumsum", "cumprod") else fn
        c.case(f"y = {op}(x) {{axis: 1}}", {"x": I(2, 6, lo=-5, hi=6)}, lambda x: typed(x, 1), name="i32")
        c.case(
            f"y = {op}(x) {{axis: 0}}",
            {"x": I(6, 2, lo=-128, hi=128, dtype=torch.int8)},
            lambda x: typed(x, 0),
            name="i8",
        )
    zeros = {"x": V([[2.0, 0.0, 3.0, 4.0], [0.0, 2.0, 0.0, 5.0], [1.0, 2.0, 3.0, 0.0]])}
    c.case("y = cumprod(x) {axis: 1}", zeros, lambda x: x.cumprod(1), name="zeros")
    c.case(
        "y = cumprod(x) {axis: 1, exclusive: true}",
        zeros,
        lambda x: running("cumprod", x, 1, True, False),
        name="zeros",
    )
    ties = {"x": V([[1.0, 1.0, 3.0, 3.0, 2.0], [5.0, 4.0, 4.0, 5.0, 5.0]])}
    c.case("y = cummax(x) {axis: 1}", ties, lambda x: x.cummax(1).values, name="ties")
    c.case("y = cummin(x) {axis: 1}", ties, lambda x: x.cummin(1).values, name="ties")
    far = {"x": V([[-800.0, 700.0, 1000.0, 999.0], [-1000.0, -1001.0, -999.0, -2000.0]])}
    c.case("y = logcumsumexp(x) {axis: 1}", far, lambda x: x.logcumsumexp(1), name="far")

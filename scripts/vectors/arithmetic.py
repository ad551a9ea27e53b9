"""Arithmetic, comparison and logic of two or three operands."""

import torch

from .core import B, D, F, I, V, attrs, inf, nan

SPECIAL = [nan, inf, -inf, 0.0, -0.0, 1.0, -1.0, 2.5, -1e300, 1e-310]
SHAPES = {
    "same": ((3, 5), (3, 5)),
    "rows": ((2, 3, 1), (4,)),
    "cross": ((2, 1, 3), (1, 4, 1)),
    "scalar": ((), (3,)),
    "empty": ((0, 3), (1, 3)),
}

BINARY = {  # op: (torch, range of x, range of y)
    "add": (torch.add, (-1.5, 1.5), (-1.5, 1.5)),
    "sub": (torch.sub, (-1.5, 1.5), (-1.5, 1.5)),
    "mul": (torch.mul, (-1.5, 1.5), (-1.5, 1.5)),
    "div": (torch.div, (-1.5, 1.5), (0.3, 2.0)),
    "rem": (torch.fmod, (-9.0, 9.0), (0.7, 2.0)),
    "pow": (torch.pow, (0.2, 3.0), (-3.0, 3.0)),
    "atan2": (torch.atan2, (-1.5, 1.5), (-1.5, 1.5)),
    "maximum": (torch.maximum, (-1.5, 1.5), (-1.5, 1.5)),
    "minimum": (torch.minimum, (-1.5, 1.5), (-1.5, 1.5)),
    "floor_div": (lambda x, y: torch.div(x, y, rounding_mode="floor"), (-9.0, 9.0), (0.7, 2.0)),
}
COMPARE = {
    "equal": torch.eq,
    "not_equal": torch.ne,
    "less": torch.lt,
    "less_equal": torch.le,
    "greater": torch.gt,
    "greater_equal": torch.ge,
}
BITS = {"and": torch.bitwise_and, "or": torch.bitwise_or, "xor": torch.bitwise_xor}
INT_EDGES = [-128, -127, -7, -3, -1, 0, 1, 2, 5, 127]


def table(values, dtype=torch.float64):
    """Every pair of the values, as two tensors that broadcast."""
    v = V(values, dtype)
    return {"x": v.reshape(-1, 1), "y": v.clone()}


def cases(c):
    for op, (fn, xr, yr) in BINARY.items():
        text = f"z = {op}(x, y)"
        for name, (xs, ys) in SHAPES.items():
            c.case(text, {"x": F(*xs, lo=xr[0], hi=xr[1]), "y": F(*ys, lo=yr[0], hi=yr[1])}, fn, name=name)
        if op not in ("floor_div", "rem"):
            c.case(text, table(SPECIAL), fn, wrt=[], name="special", rtol=1e-12, atol=0.0)
    c.case(
        "z = rem(x, y)",
        {"x": V([5.5, -5.5, inf, 3.0, 0.0, nan]), "y": V([inf, -2.0, 2.0, 0.0, 1.0, 1.0])},
        torch.fmod,
        wrt=[],
        name="special",
    )
    c.case(
        "z = div(x, y)",
        {"x": V([1e200, 1e-200, 3.0]), "y": V([1e-100, 1e100, -7.0])},
        torch.div,
        name="sizes",
        rtol=1e-12,
        atol=0.0,
    )
    c.case("z = maximum(x, y)", {"x": V([1.0, 2.0, -1.0]), "y": V([1.0, -2.0, -1.0])}, torch.maximum, name="ties")
    c.case("z = minimum(x, y)", {"x": V([1.0, 2.0, -1.0]), "y": V([1.0, -2.0, -1.0])}, torch.minimum, name="ties")
    c.case(
        "z = pow(x, y)",
        {"x": V([0.0, 0.0, 0.0, 2.0, 0.0]), "y": V([1.0, 2.0, 3.0, 0.0, 0.0])},
        torch.pow,
        name="zero_base",
    )
    c.case(
        "z = pow(x, y)",
        {"x": V([-2.0, -1.5, -3.0, -2.0]), "y": V([2.0, 3.0, -1.0, 0.0])},
        torch.pow,
        wrt=["x"],
        name="negative_base",
    )
    c.case("z = mul(x, x)", {"x": F(3, 2)}, lambda x: x * x, name="itself")
    c.case(
        "u = sub(x, y)\nv = mul(u, x)\nz = div(v, y)",
        {"x": F(2, 1, 3), "y": F(4, 1, lo=0.5, hi=2)},
        lambda x, y: (x - y) * x / y,
        name="chain",
    )

    for dtype, edges in [
        (torch.int8, INT_EDGES),
        (torch.int32, [-(2**31), -5, -1, 0, 1, 3, 46341, 2**31 - 1]),
        (torch.int64, [-(2**63), -5, -1, 0, 3, 2**32 + 1, 2**63 - 1]),
    ]:
        for op in ("add", "sub", "mul", "maximum", "minimum"):
            c.case(f"z = {op}(x, y)", table(edges, dtype), BINARY[op][0], name=f"{attrs(d=dtype)[5:-1]}")
        # By 0 nothing is defined in PyTorch; -128 / -1 neither.
        small = [v for v in edges if v not in (0, -128, -(2**31), -(2**63))]
        for op, fn in [
            ("div", lambda x, y: torch.div(x, y, rounding_mode="trunc")),
            ("rem", torch.fmod),
            ("floor_div", BINARY["floor_div"][0]),
        ]:
            c.case(f"z = {op}(x, y)", table(small, dtype), fn, name=f"{attrs(d=dtype)[5:-1]}")
    c.case(
        "z = pow(x, y)",
        {"x": V([-3, -2, -1, 0, 1, 2, 3], torch.int32).reshape(-1, 1), "y": V([0, 1, 2, 5, 21], torch.int32)},
        torch.pow,
        name="i32",
    )
    c.case("z = add(x, y)", table([0, 1, 200, 255], torch.uint8), torch.add, name="u8")
    c.case("z = mul(x, y)", table([0, 1, 3, 200, 255], torch.uint8), torch.mul, name="u8")

    for op, fn in COMPARE.items():
        text = f"z = {op}(x, y)"
        c.case(text, table(SPECIAL), fn, name="special")
        c.case(text, table([-5, 0, 3, 2**31 - 1], torch.int32), fn, name="i32")
        c.case(text, table([False, True], torch.bool), fn, name="bool")
        c.case(text, {"x": F(0, 3), "y": F(1)}, fn, name="empty")
    for op, fn in BITS.items():
        c.case(f"z = {op}(x, y)", table([False, True], torch.bool), fn, name="bool")
        c.case(f"z = {op}(x, y)", table(INT_EDGES, torch.int8), fn, name="i8")
        c.case(
            f"z = {op}(x, y)",
            {"x": I(2, 1, 3, lo=-(2**31), hi=2**31), "y": I(4, 1, lo=-(2**31), hi=2**31)},
            fn,
            name="i32",
        )
        c.case(f"z = {op}(x, y)", table([0, 7, 255, 2**63 - 1, -1], torch.int64), fn, name="i64")
    for op, fn in [("shl", torch.bitwise_left_shift), ("shr", torch.bitwise_right_shift)]:
        counts = V([0, 1, 7, 30], torch.int32)
        c.case(
            f"z = {op}(x, y)",
            {"x": V([-(2**31), -3, -1, 0, 1, 77], torch.int32).reshape(-1, 1), "y": counts},
            fn,
            name="i32",
        )
        c.case(
            f"z = {op}(x, y)",
            {"x": V([0, 1, 77, 255], torch.uint8).reshape(-1, 1), "y": V([0, 1, 7], torch.uint8)},
            fn,
            name="u8",
        )
    c.case("z = not(x)", {"x": V([False, True], torch.bool)}, torch.bitwise_not, name="bool")
    c.case("z = not(x)", {"x": V(INT_EDGES, torch.int8)}, torch.bitwise_not, name="i8")
    c.case("z = not(x)", {"x": I(2, 3, lo=-(2**31), hi=2**31)}, torch.bitwise_not, name="i32")

    for op, fn in [("is_nan", torch.isnan), ("is_inf", torch.isinf), ("is_finite", torch.isfinite)]:
        c.case(f"z = {op}(x)", {"x": V(SPECIAL)}, fn, name="special")
        c.case(f"z = {op}(x)", {"x": F(0, 2)}, fn, name="empty")

    text = "y = select(c, a, b)"
    c.case(text, {"c": B(3, 4), "a": F(3, 4), "b": F(3, 4)}, torch.where, name="same")
    c.case(text, {"c": B(3, 1), "a": F(4), "b": F()}, torch.where, name="broadcast")
    c.case(text, {"c": B(2, 1, 1), "a": F(3, 1), "b": F(1, 4)}, torch.where, name="cross")
    c.case(text, {"c": B(0, 2), "a": F(1, 2), "b": F(2)}, torch.where, name="empty")
    c.case(
        text,
        {"c": V([True, False, True], torch.bool), "a": V([nan, nan, inf]), "b": V([1.0, 2.0, nan])},
        torch.where,
        name="special",
    )
    c.case(text, {"c": B(5), "a": I(5), "b": I(1)}, torch.where, name="i32")

    c.case("z = lerp(x, y, w)", {"x": F(3, 4), "y": F(3, 4), "w": F(3, 4, lo=0, hi=1)}, torch.lerp, name="same")
    c.case("z = lerp(x, y, w)", {"x": F(2, 3), "y": F(2, 3), "w": F(lo=-1, hi=2)}, torch.lerp, name="scalar")
    c.case(
        "z = lerp(x, y, w)",
        {"x": F(2, 1), "y": F(1, 3), "w": F(3, lo=0.0, hi=2.0)},
        lambda x, y, w: x + w * (y - x),
        name="broadcast",
    )

    for lo, hi in [(-0.5, 0.75), (None, 0.25), (-0.25, None), (-1.0, -0.5)]:
        c.case(f"y = clamp(x){attrs(lo=lo, hi=hi)}", {"x": D(3, 7)}, lambda x: torch.clamp(x, lo, hi))
    c.case(
        "y = clamp(x) {lo: -0.5, hi: 1.0}",
        {"x": V([-0.5, 1.0, 0.0, -2.0, 2.0])},
        lambda x: x.clamp(-0.5, 1.0),
        name="edges",
    )
    c.case(
        "y = clamp(x) {lo: -1.0, hi: 2.0}",
        {"x": V(SPECIAL)},
        lambda x: x.clamp(-1.0, 2.0),
        wrt=[],
        name="special",
        rtol=0.0,
        atol=0.0,
    )
    c.case("y = clamp(x) {lo: -1.0, hi: 2.0}", {"x": F(0)}, lambda x: x.clamp(-1.0, 2.0), name="empty")
    c.case("y = clamp(x) {lo: -2.0, hi: 5.0}", {"x": I(7, lo=-9, hi=9)}, lambda x: x.clamp(-2, 5), name="i32")

"""Conversions between number types."""

import torch

from .core import F, I, NAMES, V, inf, nan

# Halfway points, subnormals and overflows of every narrower float, and their neighbours in f32.
EDGES = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    1 + 2**-24,
    1 + 3 * 2**-24,
    1 + 2**-11,
    1 + 3 * 2**-11,
    1 + 2**-8,
    1 + 3 * 2**-8,
    1.0625,
    1.1875,
    1.125,
    1.375,
    65504.0,
    65519.0,
    65520.0,
    448.0,
    463.0,
    57344.0,
    61439.0,
    2**-24,
    2**-25,
    1.5 * 2**-24,
    2**-9,
    2**-10,
    1.5 * 2**-9,
    2**-16,
    2**-17,
    3 * 2**-17,
    3.3e38,
    1e-40,
    1e-45,
    7e-46,
    0.1,
    -0.3,
    1 / 3,
]
BEYOND = [nan, inf, -inf, 1e39, 1e300, 3.4e38, -1e39, 1e-320]
FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
INTS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]


def cases(c):
    edges = EDGES + [-v for v in EDGES if v]
    for to in FLOATS:
        # PyTorch rounds f64 to the narrow ones by way of f32; from f32 there is one rounding.
        start = torch.float64 if to == torch.float32 else torch.float32
        x = V(edges + (BEYOND if to == torch.float32 else []), start)
        if to == torch.float8_e4m3fn:  # beyond 464 torch gives NaN, as RLX does; -0 and NaN carry no sign in between
            x = x[x.abs() < 464]
        c.case(
            f"y = cast(x) {{dtype: {NAMES[to]}}}",
            {"x": x.clone()},
            lambda x: x.to(to),
            wrt=[],
            name=NAMES[to],
            rtol=0,
            atol=0,
        )
        c.case(
            f"y = cast(x) {{dtype: {NAMES[to]}}}",
            {"x": F(4, 33, lo=-9, hi=9, dtype=start)},
            lambda x: x.to(to),
            wrt=[],
            name=f"{NAMES[to]}.random",
            rtol=0,
            atol=0,
        )
        codes = torch.arange(256, dtype=torch.uint8).view(to) if to.itemsize == 1 else F(50, dtype=to)
        c.case(
            "y = cast(x) {dtype: f64}",
            {"x": codes},
            lambda x: x.to(torch.float64),
            name=f"from.{NAMES[to]}",
            rtol=0,
            atol=0,
        )
    for to in [torch.float16, torch.bfloat16]:
        c.case(
            f"y = cast(x) {{dtype: {NAMES[to]}}}",
            {"x": V([nan, inf, -inf, 1e38, -1e38, 1e-40], torch.float32)},
            lambda x: x.to(to),
            name=f"{NAMES[to]}.beyond",
            rtol=0,
            atol=0,
        )
    for to in INTS:
        lo = 0 if to == torch.uint8 else -120.0
        c.case(
            f"y = cast(x) {{dtype: {NAMES[to]}}}",
            {"x": V([lo, 0.0, -0.9, 0.9, 1.5, 2.5, 99.99, 120.0])},
            lambda x: x.to(to),
            name=f"float_to.{NAMES[to]}",
        )
        # Integers lose their upper bits.
        c.case(
            f"y = cast(x) {{dtype: {NAMES[to]}}}",
            {"x": V([-(2**63), -(2**31) - 1, -129, -1, 0, 127, 128, 255, 256, 65535, 2**31, 2**63 - 1], torch.int64)},
            lambda x: x.to(to),
            name=f"int_to.{NAMES[to]}",
        )
        if to != torch.int64:
            c.case(
                "y = cast(x) {dtype: i64}",
                {"x": I(9, lo=0, hi=256, dtype=to)},
                lambda x: x.to(torch.int64),
                name=f"widen.{NAMES[to]}",
            )
        c.case(
            "y = cast(x) {dtype: f64}",
            {"x": I(9, lo=0, hi=256, dtype=to)},
            lambda x: x.to(torch.float64),
            name=f"int_from.{NAMES[to]}",
        )
    c.case(
        "y = cast(x) {dtype: f32}",
        {"x": V([2**24 + 1, -(2**24) - 3, 2**31 - 1, 2**62 + 1], torch.int64)},
        lambda x: x.to(torch.float32),
        name="int_rounds",
        rtol=0,
        atol=0,
    )
    c.case(
        "y = cast(x) {dtype: bool}", {"x": V([0.0, -0.0, 0.1, -3.0, nan, inf])}, lambda x: x.to(torch.bool), name="bool"
    )
    c.case(
        "y = cast(x) {dtype: bool}", {"x": V([0, 1, 2, -1, 256], torch.int32)}, lambda x: x.to(torch.bool), name="bool"
    )
    c.case(
        "y = cast(x) {dtype: f64}", {"x": V([True, False], torch.bool)}, lambda x: x.to(torch.float64), name="from_bool"
    )
    c.case(
        "y = cast(x) {dtype: i32}", {"x": V([True, False], torch.bool)}, lambda x: x.to(torch.int32), name="from_bool"
    )
    c.case("y = cast(x) {dtype: i32}", {"x": F(0, 3)}, lambda x: x.to(torch.int32), name="empty")
    c.case("z = mul(x, x)\ny = cast(z) {dtype: f64}", {"x": F(3, 4)}, lambda x: x * x, name="same_type")

    views = [(torch.float32, torch.int32), (torch.float64, torch.int64), (torch.float16, torch.uint16)]
    for a, b in [*views, (torch.bfloat16, torch.int16), (torch.float32, torch.uint32), (torch.float8_e5m2, torch.uint8)]:
        c.case(
            f"y = bitcast(x) {{dtype: {NAMES[b]}}}",
            {"x": V([0.0, -0.0, 1.0, -2.5, 0.1, inf, -inf, 1e-7], a)},
            lambda x: x.view(b),
            name=f"{NAMES[a]}_to.{NAMES[b]}",
            wrt=[],
        )
        c.case(
            f"y = bitcast(x) {{dtype: {NAMES[a]}}}",
            {"x": I(3, 5, lo=0, hi=100, dtype=b)},
            lambda x: x.view(a),
            name=f"{NAMES[b]}_to.{NAMES[a]}",
            rtol=0,
            atol=0,
        )
    c.case("y = bitcast(x) {dtype: u8}", {"x": V([-128, -1, 0, 127], torch.int8)}, lambda x: x.view(torch.uint8))

    # With declared rounding every result is rounded once, as PyTorch's own narrow arithmetic does.
    pairs = {"add": torch.add, "mul": torch.mul, "sub": torch.sub, "div": torch.div}
    for dtype in [torch.float16, torch.bfloat16, torch.float32]:
        for op, fn in pairs.items():
            c.case(
                f"z = {op}(x, y)",
                {"x": F(7, 9, dtype=dtype), "y": F(7, 9, lo=0.4, hi=2, dtype=dtype)},
                fn,
                wrt=[],
                name=f"rounded.{NAMES[dtype]}",
                rtol=0,
                atol=0,
                rounded=True,
            )
        c.case(
            "y = sqrt(x)",
            {"x": F(7, 9, lo=0.1, hi=5, dtype=dtype)},
            torch.sqrt,
            wrt=[],
            name=f"rounded.{NAMES[dtype]}",
            rtol=0,
            atol=0,
            rounded=True,
        )

"""Activations."""

import torch
import torch.nn.functional as N

from .core import D, F, V, attrs, inf, nan, with_limits

SPECIAL = [nan, inf, -inf, 0.0, -0.0, 1.0, -1.0, 3.0, -3.0, 6.0]
EDGES = [-inf, -7.5, -6.0, -3.0, -1.0, -0.5, 0.0, 1e-3, 0.5, 1.0, 2.5, 3.0, 6.0, 7.5, inf]
WIDE = [-700.0, -40.0, -20.5, -7.0, -3.3, -1e-9, 1e-9, 3.3, 7.0, 20.5, 40.0, 700.0]

ACTIVATIONS = [  # op, attributes, torch
    ("relu", {}, N.relu),
    ("leaky_relu", {}, N.leaky_relu),
    ("leaky_relu", {"slope": 0.3}, lambda x: N.leaky_relu(x, 0.3)),
    ("elu", {}, N.elu),
    ("elu", {"alpha": 0.7}, lambda x: N.elu(x, 0.7)),
    ("selu", {}, N.selu),
    ("celu", {"alpha": 1.0}, N.celu),
    ("celu", {"alpha": 0.5}, lambda x: N.celu(x, 0.5)),  # PyTorch keeps alpha in f32
    ("silu", {}, N.silu),
    ("gelu", {}, N.gelu),
    ("gelu_tanh", {}, lambda x: N.gelu(x, approximate="tanh")),
    ("quick_gelu", {}, lambda x: x * torch.sigmoid(1.702 * x)),
    ("mish", {}, N.mish),
    ("softplus", {}, lambda x: torch.logaddexp(x, torch.zeros_like(x))),
    ("softsign", {}, N.softsign),
    ("hard_sigmoid", {}, lambda x: N.relu6(x + 3) / 6),  # F.hardsigmoid has 1/6 in f32
    ("hard_sigmoid", {"alpha": 0.2, "beta": 0.4}, lambda x: (0.2 * x + 0.4).clamp(0, 1)),
    ("hard_swish", {}, N.hardswish),
    ("hard_tanh", {}, N.hardtanh),
    ("hard_tanh", {"lo": -0.5, "hi": 2.0}, lambda x: N.hardtanh(x, -0.5, 2.0)),
    ("relu6", {}, N.relu6),
    ("log_sigmoid", {}, N.logsigmoid),
    ("tanh_shrink", {}, N.tanhshrink),
    ("soft_shrink", {}, N.softshrink),
    ("soft_shrink", {"lambda": 0.2}, lambda x: N.softshrink(x, 0.2)),
    ("hard_shrink", {}, N.hardshrink),
    ("hard_shrink", {"lambda": 0.2}, lambda x: N.hardshrink(x, 0.2)),
    ("thresholded_relu", {}, lambda x: N.threshold(x, 1.0, 0.0)),
    ("thresholded_relu", {"alpha": 0.3}, lambda x: N.threshold(x, 0.3, 0.0)),
]
NO_INFINITY = {"gelu", "gelu_tanh", "quick_gelu", "silu", "mish", "tanh_shrink", "softsign"}


def cases(c):
    for op, a, fn in ACTIVATIONS:
        text = f"y = {op}(x){attrs(**a)}"
        c.case(text, {"x": F(4, 7, lo=-4, hi=4)}, fn, name="small")
        c.case(text, {"x": D(2, 1, 9, lo=-8, hi=8)}, fn, name="three_axes")
        c.case(text, {"x": V(WIDE)}, fn, name="wide", rtol=1e-10, atol=1e-14)
        c.case(text, {"x": with_limits(fn, EDGES)}, fn, name="edges", rtol=1e-10, atol=1e-14)
        special = [v for v in SPECIAL if op not in NO_INFINITY or abs(v) != inf]
        c.case(text, {"x": V(special)}, fn, wrt=[], name="special")
        if not a:
            c.case(text, {"x": F(0, 3)}, fn, name="empty")
            c.case(text, {"x": F()}, fn, name="scalar")
    for op, kinks, fn in [
        ("relu", [0.0], N.relu),
        ("relu6", [0.0, 6.0], N.relu6),
        ("leaky_relu", [0.0], N.leaky_relu),
        ("hard_tanh", [-1.0, 1.0], N.hardtanh),
        ("elu", [0.0], N.elu),
    ]:
        c.case(f"y = {op}(x)", {"x": V(kinks)}, fn, name="kinks")

    c.case(
        "y = prelu(x, slope)",
        {"x": F(2, 5), "slope": F(5, lo=0.1, hi=0.9)},
        lambda x, s: torch.where(x > 0, x, s * x),
        name="channels_last",
    )
    c.case(
        "y = prelu(x, slope)",
        {"x": F(2, 3, 4), "slope": F(3, 1, lo=0.1, hi=0.9)},
        lambda x, s: N.prelu(x, s.reshape(-1)),
        name="channels",
    )
    c.case("y = prelu(x, slope)", {"x": F(2, 3), "slope": F(1)}, N.prelu, name="one")
    for shape, axis in [((4, 6), -1), ((3, 4, 5), 1), ((2, 0), 0), ((2, 3), 0)]:
        c.case(f"y = glu(x) {{axis: {axis}}}", {"x": F(*shape)}, lambda x: N.glu(x, axis))
    for shape in [(3, 5), (2, 1, 3), (0, 4), ()]:
        c.case("y = swiglu(gate, up)", {"gate": F(*shape, lo=-4, hi=4), "up": F(*shape)}, lambda g, u: N.silu(g) * u)
        c.case("y = geglu(gate, up)", {"gate": F(*shape, lo=-4, hi=4), "up": F(*shape)}, lambda g, u: N.gelu(g) * u)
    big = {"gate": V([-500.0, -30.0, 30.0, 500.0]), "up": V([1.0, -2.0, 3.0, 1e3])}
    c.case("y = swiglu(gate, up)", big, lambda g, u: N.silu(g) * u, name="wide")
    c.case("y = geglu(gate, up)", big, lambda g, u: N.gelu(g) * u, name="wide")

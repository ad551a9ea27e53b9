"""Pooling and windows."""

import torch
import torch.nn.functional as N

from .core import D, F, V, attrs, inf, nan
from .convolution import sides

MAX = [N.max_pool1d, N.max_pool2d, N.max_pool3d]
AVG = [N.avg_pool1d, N.avg_pool2d, N.avg_pool3d]


def windows(x, kernel, stride, dilation, lo, hi, fill):
    """[N, C, out…, window]: every window of the spatial axes, one after the other."""
    n = len(kernel)
    x = N.pad(x, sides(lo, hi), value=fill)
    for axis, (k, s, d) in enumerate(zip(kernel, stride, dilation)):
        x = x.unfold(2 + axis, d * (k - 1) + 1, s)[..., ::d]
    return x.flatten(-n)


def cases(c):
    for xs, a in [
        ((2, 3, 9), {"kernel": [3]}),
        ((1, 2, 7), {"kernel": [2], "stride": [2]}),
        ((1, 1, 8), {"kernel": [3], "stride": [2], "padding_lo": [1], "padding_hi": [1]}),
        ((1, 2, 5, 6), {"kernel": [2, 3]}),
        ((2, 2, 6, 6), {"kernel": [3, 3], "stride": [2, 2], "padding_lo": [1, 1], "padding_hi": [1, 1]}),
        ((1, 1, 5, 7), {"kernel": [1, 1], "stride": [2, 3]}),
        ((1, 2, 7, 7), {"kernel": [3, 2], "stride": [2, 2], "ceil_mode": True}),
        (
            (1, 1, 6, 5),
            {"kernel": [2, 2], "stride": [3, 3], "ceil_mode": True, "padding_lo": [1, 1], "padding_hi": [1, 1]},
        ),
        ((1, 2, 3, 4, 3), {"kernel": [2, 2, 2]}),
        ((1, 1, 4, 4, 4), {"kernel": [3, 2, 1], "stride": [1, 2, 2], "padding_lo": [1, 1, 0], "padding_hi": [1, 1, 0]}),
        ((0, 2, 4), {"kernel": [2]}),
    ]:
        n = len(xs) - 2
        stride = a.get("stride", [1] * n)
        pad = a.get("padding_lo", [0] * n)
        given = dict(a, stride=stride)
        if xs[0]:
            c.case(
                f"y = max_pool(x){attrs(**given)}",
                {"x": D(*xs)},
                lambda x: MAX[n - 1](x, a["kernel"], stride, pad, 1, a.get("ceil_mode", False)),
            )
        for include in (True, False):
            if xs[0]:
                c.case(
                    f"y = avg_pool(x){attrs(**given, count_include_pad=include)}",
                    {"x": F(*xs)},
                    lambda x: AVG[n - 1](x, a["kernel"], stride, pad, a.get("ceil_mode", False), include),
                )
    c.case(
        "y = max_pool(x) {kernel: [2, 2], stride: [1, 1], dilation: [2, 3]}",
        {"x": D(1, 2, 5, 7)},
        lambda x: N.max_pool2d(x, 2, 1, 0, (2, 3)),
        name="dilated",
    )
    c.case(
        "y = max_pool(x) {kernel: [3], stride: [2], dilation: [2], padding_lo: [1], padding_hi: [1]}",
        {"x": D(1, 1, 9)},
        lambda x: N.max_pool1d(x, 3, 2, 1, 2),
        name="dilated",
    )
    c.case(
        "y = max_pool(x) {kernel: [3], stride: [1]}",
        {"x": V([[[1.0, 1.0, 1.0, 0.0, 2.0, 2.0]]])},
        lambda x: N.max_pool1d(x, 3, 1),
        name="ties",
    )
    c.case(
        "y = max_pool(x) {kernel: [2], stride: [2]}",
        {"x": V([[[1.0, nan, inf, 2.0, -inf, -inf]]])},
        lambda x: N.max_pool1d(x, 2, 2),
        wrt=[],
        name="special",
    )
    c.case(
        "y = max_pool(x) {kernel: [2], stride: [1], padding_lo: [1], padding_hi: [0]}",
        {"x": D(1, 2, 4)},
        lambda x: N.max_pool1d(N.pad(x, [1, 0], value=-inf), 2, 1),
        name="one_sided",
    )
    c.case(
        "y = avg_pool(x) {kernel: [2, 2], stride: [1, 2], dilation: [3, 2]}",
        {"x": F(1, 2, 5, 6)},
        lambda x: windows(x, [2, 2], [1, 2], [3, 2], [0, 0], [0, 0], 0.0).mean(-1),
        name="dilated",
    )
    for xs, k, s, d, p in [((1, 2, 7), [3], [2], [1], [1]), ((2, 1, 5, 6), [2, 3], [1, 2], [2, 1], [1, 1])]:
        n = len(k)
        a = attrs(kernel=k, stride=s, dilation=d, padding_lo=p, padding_hi=p, kind="max")
        places = lambda x: MAX[n - 1](x, k, s, p, d, return_indices=True)[1]
        c.case(f"i = window_argmax(x){a}", {"x": D(*xs)}, places)
        c.case(
            f"i = window_argmax(x){attrs(kernel=k, stride=s, dilation=d, padding_lo=p, padding_hi=p, kind='min')}",
            {"x": D(*xs)},
            lambda x: places(-x),
            name="min",
        )
        shape = MAX[n - 1](torch.zeros(xs), k, s, p, d).shape

        def spread(dy):
            x = torch.zeros(xs, dtype=torch.float64, requires_grad=True)
            return torch.autograd.grad(windows(x, k, s, d, p, p, 0.0).sum(-1), x, dy, create_graph=True)[0]

        c.case(
            f"dx = reduce_window_grad(dy){attrs(spatial=xs[2:], kernel=k, stride=s, dilation=d, padding_lo=p, padding_hi=p)}",
            {"dy": F(*shape)},
            spread,
        )
    for kind, fill, fn in [
        ("sum", 0.0, lambda w: w.sum(-1)),
        ("max", -inf, lambda w: w.amax(-1)),
        ("min", inf, lambda w: w.amin(-1)),
    ]:
        for xs, k, s, d, lo, hi in [
            ((1, 2, 7), [3], [2], [1], [1], [0]),
            ((2, 1, 5, 6), [2, 3], [1, 2], [2, 1], [0, 1], [1, 1]),
            ((1, 1, 4), [1], [1], [1], [0], [0]),
        ]:
            a = attrs(kernel=k, stride=s, dilation=d, padding_lo=lo, padding_hi=hi, kind=kind)
            c.case(
                f"y = reduce_window(x){a}", {"x": D(*xs)}, lambda x: fn(windows(x, k, s, d, lo, hi, fill)), name=kind
            )

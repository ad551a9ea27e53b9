"""Convolutions of one to three spatial axes."""

import torch
import torch.nn.functional as N

from .core import F, attrs

CONV = [N.conv1d, N.conv2d, N.conv3d]
TRANSPOSED = [N.conv_transpose1d, N.conv_transpose2d, N.conv_transpose3d]


def sides(lo, hi):
    """Padding per axis as F.pad takes it: the last axis first."""
    return [v for pair in zip(lo[::-1], hi[::-1]) for v in pair]


def cases(c):
    for xs, ws, a in [
        ((2, 3, 9), (4, 3, 3), {}),
        ((1, 2, 7), (2, 2, 1), {"stride": [2]}),
        ((1, 2, 8), (4, 1, 3), {"groups": 2}),
        ((2, 1, 5), (1, 1, 5), {}),
        ((1, 2, 4), (3, 2, 3), {"padding_lo": [2], "padding_hi": [0]}),
        ((1, 1, 11), (1, 1, 3), {"dilation": [3], "stride": [2]}),
        ((0, 2, 5), (3, 2, 2), {}),
        ((2, 3, 5, 6), (4, 3, 3, 2), {}),
        ((1, 2, 5, 5), (2, 2, 3, 3), {"padding_lo": [1, 1], "padding_hi": [1, 1]}),
        ((1, 3, 6, 7), (3, 1, 3, 3), {"groups": 3, "padding_lo": [1, 1], "padding_hi": [1, 1]}),
        ((1, 4, 5, 4), (6, 2, 2, 3), {"groups": 2, "stride": [2, 1], "padding_lo": [1, 0], "padding_hi": [0, 2]}),
        ((2, 2, 7, 7), (3, 2, 3, 2), {"dilation": [2, 3], "stride": [1, 2]}),
        ((1, 1, 1, 1), (1, 1, 1, 1), {}),
        ((1, 2, 3, 3), (2, 2, 1, 1), {"stride": [2, 2]}),
        ((1, 2, 2, 3), (1, 2, 3, 3), {"padding_lo": [3, 2], "padding_hi": [2, 3]}),
        ((1, 2, 3, 4, 3), (2, 2, 2, 2, 2), {}),
        (
            (1, 2, 3, 3, 3),
            (4, 1, 2, 2, 1),
            {"groups": 2, "stride": [1, 2, 1], "padding_lo": [1, 0, 0], "padding_hi": [0, 1, 1]},
        ),
    ]:
        n = len(xs) - 2
        lo, hi = a.get("padding_lo", [0] * n), a.get("padding_hi", [0] * n)

        def conv(x, w, b=None):
            return CONV[n - 1](
                N.pad(x, sides(lo, hi)),
                w,
                b,
                stride=a.get("stride", 1),
                dilation=a.get("dilation", 1),
                groups=a.get("groups", 1),
            )

        c.case(f"y = conv(x, w){attrs(**a)}", {"x": F(*xs), "w": F(*ws)}, conv)

        def backward(x, w, dy, of):
            return torch.autograd.grad(conv(x, w), x if of == 0 else w, dy, create_graph=True)[0]

        ys = conv(torch.zeros(xs), torch.zeros(ws)).shape
        if xs[0]:
            c.case(
                f"dx = conv_grad_input(dy, w){attrs(spatial=xs[2:], **a)}",
                {"dy": F(*ys), "w": F(*ws)},
                lambda dy, w: backward(torch.zeros(xs).double().requires_grad_(), w, dy, 0),
            )
            c.case(
                f"dw = conv_grad_weight(x, dy){attrs(kernel=ws[2:], **a)}",
                {"x": F(*xs), "dy": F(*ys)},
                lambda x, dy: backward(x, torch.zeros(ws).double().requires_grad_(), dy, 1),
            )
        c.case(f"y = conv(x, w, b){attrs(**a)}", {"x": F(*xs), "w": F(*ws), "b": F(ws[0])}, conv, name="bias")
    for xs, ws, a in [
        ((2, 3, 5), (3, 4, 3), {}),
        ((1, 2, 4), (2, 3, 3), {"stride": [2]}),
        ((1, 2, 4), (2, 3, 3), {"stride": [3], "output_padding": [2]}),
        ((1, 4, 3), (4, 1, 2), {"groups": 2}),
        ((1, 2, 5), (2, 2, 3), {"padding_lo": [1], "padding_hi": [1]}),
        ((1, 1, 4), (1, 2, 3), {"dilation": [2]}),
        ((1, 1, 1), (1, 1, 4), {"stride": [2], "padding_lo": [1], "padding_hi": [1]}),
        ((1, 2, 3, 4), (2, 3, 2, 3), {}),
        (
            (2, 2, 3, 3),
            (2, 2, 3, 3),
            {"stride": [2, 2], "padding_lo": [1, 1], "padding_hi": [1, 1], "output_padding": [1, 1]},
        ),
        (
            (1, 4, 3, 2),
            (4, 2, 2, 2),
            {"groups": 2, "stride": [1, 2], "dilation": [2, 1], "padding_lo": [1, 0], "padding_hi": [1, 0]},
        ),
        ((1, 2, 2, 2, 3), (2, 1, 2, 2, 2), {"stride": [2, 1, 1]}),
        # Output padding of a stride or more.
        ((1, 2, 3), (2, 2, 3), {"stride": [2], "output_padding": [2], "dilation": [3]}),
    ]:
        n = len(xs) - 2

        def conv(x, w, b=None):
            return TRANSPOSED[n - 1](
                x,
                w,
                b,
                stride=a.get("stride", 1),
                padding=a.get("padding_lo", 0),
                output_padding=a.get("output_padding", 0),
                dilation=a.get("dilation", 1),
                groups=a.get("groups", 1),
            )

        c.case(f"y = conv_transpose(x, w){attrs(**a)}", {"x": F(*xs), "w": F(*ws)}, conv)
        c.case(
            f"y = conv_transpose(x, w, b){attrs(**a)}",
            {"x": F(*xs), "w": F(*ws), "b": F(ws[1] * a.get("groups", 1))},
            conv,
            name="bias",
        )
    # One-sided padding cuts what it pads: torch has it only as a cut afterwards.
    c.case(
        "y = conv_transpose(x, w) {stride: [2], padding_lo: [2], padding_hi: [0]}",
        {"x": F(1, 2, 4), "w": F(2, 3, 3)},
        lambda x, w: N.conv_transpose1d(x, w, stride=2)[:, :, 2:],
        name="one_sided",
    )

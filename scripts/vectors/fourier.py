"""Discrete Fourier transforms; complex numbers are a trailing pair."""

import torch

from .core import F, attrs


def cases(c):
    for shape in [(8, 2), (2, 5, 2), (1, 2), (3, 7, 2), (2, 1, 2), (0, 4, 2), (16, 2), (12, 2)]:
        for inverse in (False, True):
            fn = torch.fft.ifft if inverse else torch.fft.fft
            c.case(
                f"y = fft(x){attrs(inverse=inverse or None)}",
                {"x": F(*shape)},
                lambda x: torch.view_as_real(fn(torch.view_as_complex(x))) if x.numel() else x + 0,
            )
    for shape in [(8,), (2, 5), (1,), (3, 7), (2, 2), (0, 4), (3, 2, 6)]:
        c.case(
            "y = rfft(x)",
            {"x": F(*shape)},
            lambda x: torch.view_as_real(torch.fft.rfft(x)) if x.numel() else torch.zeros(0, 3, 2, dtype=torch.float64),
        )
    for axis in (0, 1, -2):
        c.case(
            f"y = rfft(x) {{axis: {axis}}}",
            {"x": F(3, 4, 2)},
            lambda x: torch.view_as_real(torch.fft.rfft(x, dim=axis)),
            name="axis",
        )
    for shape, n in [
        ((5, 2), 8),
        ((2, 3, 2), 5),
        ((3, 4, 2), 7),
        ((1, 2), 1),
        ((2, 2), 2),
        ((2, 4, 2), 6),
        ((2, 2), 3),
    ]:
        c.case(f"y = irfft(x) {{n: {n}}}", {"x": F(*shape)}, lambda x: torch.fft.irfft(torch.view_as_complex(x), n))

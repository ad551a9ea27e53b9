"""Attention: PyTorch's own where it has the form, else written out."""

import math

import torch
import torch.nn.functional as N

from .core import B, Draw, F, attrs, inf


def attention(q, k, v, mask=None, bias=None, slopes=None, scale=None, causal=False, window=None, softcap=None):
    """Scores, soft cap, bias, ALiBi, then what is hidden; a query that sees nothing gives 0."""
    hq, s, d = q.shape[1:]
    t = k.shape[2]
    k, v = (x.repeat_interleave(hq // k.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * (1 / math.sqrt(d) if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    distance = torch.arange(s)[:, None] + t - s - torch.arange(t)
    if slopes is not None:
        scores = scores - slopes[..., None, None] * distance.abs()
    seen = torch.ones(scores.shape, dtype=torch.bool)
    if mask is not None:
        seen = seen & mask
    if causal:
        seen = seen & (distance >= 0)
    if window is not None:
        seen = seen & (distance.abs() < window)
    seen = seen & (scores > -inf)
    rows = seen.any(-1, keepdim=True)
    p = torch.softmax(torch.where(seen, scores, torch.where(rows, -inf, 0.0)), -1)
    return torch.where(rows, p, 0.0) @ v


def qkv(b, hq, hkv, s, t, d, dv):
    return {"q": F(b, hq, s, d), "k": F(b, hkv, t, d), "v": F(b, hkv, t, dv)}


def alibi(heads):
    """As in ALiBi's own code."""
    if heads & (heads - 1) == 0:
        return [2.0 ** (-8 * (i + 1) / heads) for i in range(heads)]
    lower = 1 << (heads.bit_length() - 1)
    return alibi(lower) + alibi(2 * lower)[0::2][: heads - lower]


SIZES = [
    (2, 2, 2, 3, 3, 4, 4),
    (1, 4, 2, 5, 5, 3, 2),
    (1, 3, 1, 2, 7, 4, 5),
    (1, 1, 1, 1, 6, 2, 2),
    (2, 1, 1, 4, 4, 1, 1),
    (1, 2, 2, 6, 3, 2, 3),
]


def cases(c):
    for size in SIZES:
        b, hq, hkv, s, t, d, dv = size
        inputs = qkv(*size)
        c.case(
            "y = attention(q, k, v)",
            inputs,
            lambda q, k, v: N.scaled_dot_product_attention(q, k, v, enable_gqa=True),
            name="torch",
        )
        c.case(
            "y = attention(q, k, v) {scale: 0.3}",
            inputs,
            lambda q, k, v: N.scaled_dot_product_attention(q, k, v, scale=0.3, enable_gqa=True),
            name="torch.scale",
        )
        if s == t:
            c.case(
                "y = attention(q, k, v) {causal: true}",
                inputs,
                lambda q, k, v: N.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
                name="torch.causal",
            )
        c.case(
            "y = attention(q, k, v, _, bias)",
            inputs | {"bias": F(b, hq, s, t)},
            lambda q, k, v, a: N.scaled_dot_product_attention(q, k, v, attn_mask=a, enable_gqa=True),
            name="torch.bias",
        )
        seen = Draw(lambda g: (torch.rand(b, 1, s, t, generator=g) < 0.6) | (torch.arange(t) == 0))
        c.case(
            "y = attention(q, k, v, mask)",
            inputs | {"mask": seen},
            lambda q, k, v, m: N.scaled_dot_product_attention(q, k, v, attn_mask=m, enable_gqa=True),
            name="torch.mask",
        )
        for name, a in [
            ("causal", {"causal": True}),
            ("window", {"window": 2}),
            ("causal_window", {"causal": True, "window": 3}),
            ("softcap", {"softcap": 1.5}),
            ("all", {"scale": 0.7, "causal": True, "window": 4, "softcap": 2.0}),
        ]:
            c.case(f"y = attention(q, k, v){attrs(**a)}", inputs, lambda q, k, v: attention(q, k, v, **a), name=name)
        c.case(
            "y = attention(q, k, v, _, _, slopes)",
            inputs | {"slopes": F(hq, lo=0.1, hi=1)},
            lambda q, k, v, sl: attention(q, k, v, slopes=sl),
            name="alibi",
        )
        c.case(
            "y = attention(q, k, v, mask, bias, slopes) {causal: true, softcap: 3.0}",
            inputs | {"mask": B(s, t, p=0.7), "bias": F(hq, 1, t), "slopes": F(b, hq, lo=0.1, hi=1)},
            lambda q, k, v, m, bi, sl: attention(q, k, v, m, bi, sl, causal=True, softcap=3.0),
            name="everything",
        )
    small = qkv(1, 2, 1, 3, 4, 2, 2)
    nothing = torch.tensor([[True, False, True, False], [False] * 4, [True] * 4])
    c.case(
        "y = attention(q, k, v, mask)",
        small | {"mask": nothing},
        lambda q, k, v, m: attention(q, k, v, m),
        name="row_of_nothing",
    )
    c.case(
        "y = attention(q, k, v, _, bias)",
        small | {"bias": torch.where(nothing, 0.5, -inf).double()},
        lambda q, k, v, m: attention(q, k, v, bias=m),
        wrt=["q", "k", "v"],
        name="minus_infinity",
    )
    c.case(
        "y = attention(q, k, v) {scale: 100.0}",
        qkv(1, 1, 1, 3, 5, 4, 2),
        lambda q, k, v: attention(q, k, v, scale=100.0),
        name="sharp",
    )
    c.case("y = attention(q, k, v)", qkv(0, 2, 1, 3, 4, 2, 2), lambda q, k, v: attention(q, k, v), name="no_batch")
    c.case("y = attention(q, k, v)", qkv(1, 2, 1, 0, 4, 2, 2), lambda q, k, v: attention(q, k, v), name="no_query")
    c.case(
        "y = attention(q, k, v)",
        qkv(1, 2, 1, 3, 0, 2, 2),
        lambda q, k, v: (q.sum() + k.sum() + v.sum()) * 0 + torch.zeros(1, 2, 3, 2).double(),
        name="no_key",
    )
    slopes = torch.tensor(alibi(2), dtype=torch.float64)
    c.case(
        "y = attention(q, k, v, _, _, slopes) {causal: true}",
        qkv(1, 2, 2, 4, 4, 3, 3) | {"slopes": slopes},
        lambda q, k, v, sl: attention(q, k, v, slopes=sl, causal=True),
        name="alibi.causal",
    )
    for heads in (1, 4, 6, 8, 12):
        c.case(
            f"y = alibi_slopes(){attrs(heads=heads, dtype=torch.float64)}",
            {},
            lambda: torch.tensor(alibi(heads), dtype=torch.float64),
        )

    # The gradient op by itself, and its own gradient against the second derivative.
    for size, a in [
        ((1, 2, 1, 3, 4, 2, 3), {}),
        ((1, 2, 2, 3, 3, 2, 2), {"causal": True, "softcap": 1.5}),
        ((1, 2, 1, 2, 3, 2, 2), {"scale": 0.5, "window": 2}),
    ]:
        b, hq, hkv, s, t, d, dv = size

        def backward(q, k, v, dy, bias, slopes):
            return torch.autograd.grad(
                attention(q, k, v, None, bias, slopes, **a), [q, k, v, bias, slopes], dy, create_graph=True
            )

        c.case(
            f"dq, dk, dv = attention_grad(q, k, v, dy, mask){attrs(**a)}",
            qkv(*size) | {"dy": F(b, hq, s, dv), "mask": B(s, t, p=0.7)},
            lambda q, k, v, dy, m: torch.autograd.grad(attention(q, k, v, m, **a), [q, k, v], dy, create_graph=True),
            name="mask",
        )
        c.case(
            f"dq, dk, dv, dbias, dslopes = attention_grad(q, k, v, dy, _, bias, slopes){attrs(**a)}",
            qkv(*size) | {"dy": F(b, hq, s, dv), "bias": F(s, t), "slopes": F(hq, lo=0.1, hi=1)},
            backward,
        )

"""Rotary position embedding and its tables."""

import math

import torch

from .core import F, V, attrs


def rope(x, cos, sin, positions, head_dim, n_rot, interleaved=False, inverse=False):
    """Pair by pair, as the formula says."""
    b, s, h = x.shape
    pos = (torch.arange(s).expand(b, s) if positions is None else positions.long()) % cos.shape[0]
    heads = x.reshape(b, s, h // head_dim, head_dim)
    out = list(heads.unbind(-1))
    for d in range(n_rot // 2):
        i, j = (2 * d, 2 * d + 1) if interleaved else (d, d + n_rot // 2)
        c, q = cos[pos][..., d, None], sin[pos][..., d, None] * (-1 if inverse else 1)
        out[i], out[j] = heads[..., i] * c - heads[..., j] * q, heads[..., i] * q + heads[..., j] * c
    return torch.stack(out, -1).reshape(b, s, h)


def table(
    positions,
    n_rot,
    base=10000.0,
    scaling="none",
    factor=1.0,
    original=8192,
    beta_fast=32.0,
    beta_slow=1.0,
    truncate=True,
    low_turns=1.0,
    high_turns=4.0,
    factors=None,
    magnitude=None,
):
    """The frequencies as the models' own code has them (transformers' modeling_rope_utils)."""
    if scaling == "ntk":
        base = base * factor ** (n_rot / (n_rot - 2))
    inv = 1.0 / base ** (torch.arange(0, n_rot, 2).double() / n_rot)
    if scaling == "linear":
        inv = inv / factor
    if scaling == "yarn":
        dim = lambda turns: n_rot * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))
        low, high = dim(beta_fast), dim(beta_slow)
        if truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, n_rot - 1)
        ramp = ((torch.arange(n_rot // 2).double() - low) / ((high - low) or 0.001)).clamp(0, 1)
        inv = inv / factor * ramp + inv * (1 - ramp)
        if magnitude is None and factor > 1:
            magnitude = 0.1 * math.log(factor) + 1.0
    if scaling == "llama3":
        wavelength = 2 * math.pi / inv
        smooth = (original / wavelength - low_turns) / (high_turns - low_turns)
        middle = (1 - smooth) * inv / factor + smooth * inv
        low, high = original / low_turns, original / high_turns
        inv = torch.where(wavelength > low, inv / factor, torch.where(wavelength < high, inv, middle))
    if factors is not None:
        inv = inv / torch.tensor(factors, dtype=torch.float64)
    angle = torch.arange(positions).double()[:, None] * inv
    m = 1.0 if magnitude is None else magnitude
    return angle.cos() * m, angle.sin() * m


def cases(c):
    for b, s, heads, head_dim, n_rot, rows, w in [
        (2, 3, 2, 4, 4, 3, 2),
        (1, 5, 1, 6, 4, 5, 2),
        (2, 4, 3, 8, 4, 7, 4),
        (1, 7, 2, 4, 2, 3, 3),
        (1, 1, 1, 2, 2, 1, 1),
        (2, 2, 1, 4, 0, 2, 2),
        (1, 0, 2, 4, 4, 3, 2),
    ]:
        for interleaved in (False, True):
            for inverse in (False, True):
                a = {
                    "head_dim": head_dim,
                    "n_rot": n_rot,
                    "interleaved": interleaved or None,
                    "inverse": inverse or None,
                }
                c.case(
                    f"y = rope(x, cos, sin){attrs(**a)}",
                    {"x": F(b, s, heads * head_dim), "cos": F(rows, w), "sin": F(rows, w)},
                    lambda x, co, si: rope(x, co, si, None, head_dim, n_rot, interleaved, inverse),
                )
    for n_rot in (4, 6):
        positions = V([[0, 3, 9], [5, 5, 1]], torch.int32)
        for interleaved in (False, True):
            c.case(
                f"y = rope(x, cos, sin, p){attrs(head_dim=6, n_rot=n_rot, interleaved=interleaved or None)}",
                {"x": F(2, 3, 12), "cos": F(6, 3), "sin": F(6, 3), "p": positions},
                lambda x, co, si, p: rope(x, co, si, p, 6, n_rot, interleaved),
                name="positions",
            )
    for a in [
        {},
        {"base": 500.0},
        {"scaling": "linear", "factor": 4.0},
        {"scaling": "ntk", "factor": 8.0},
        {"scaling": "yarn", "factor": 4.0, "original": 64},
        {"scaling": "yarn", "factor": 16.0, "original": 4096, "truncate": False},
        {"scaling": "yarn", "factor": 4.0, "original": 32, "beta_fast": 4.0, "beta_slow": 0.5, "magnitude": 1.25},
        {"scaling": "llama3", "factor": 8.0, "original": 64, "low_turns": 0.5, "high_turns": 6.0},
        {"scaling": "llama3", "factor": 32.0, "base": 500000.0, "original": 8192},
        {"factors": [1.0, 1.5, 2.0, 4.0, 1.0, 1.25, 1.0, 8.0], "magnitude": 0.5},
    ]:
        c.case(
            f"cos, sin = rope_table(){attrs(positions=9, n_rot=16, **a, dtype=torch.float64)}",
            {},
            lambda: table(9, 16, **a),
            name=a.get("scaling", "none"),
        )
    c.case("cos, sin = rope_table() {positions: 5, n_rot: 2, dtype: f64}", {}, lambda: table(5, 2), name="one_pair")
    c.case(
        "cos, sin = rope_table() {positions: 4, n_rot: 4, dtype: f64}\ny = rope(x, cos, sin) {head_dim: 4, n_rot: 4}",
        {"x": F(1, 4, 8)},
        lambda x: rope(x, *table(4, 4), None, 4, 4),
        name="both",
    )

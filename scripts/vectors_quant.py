#!/usr/bin/env python3
"""Writes vectors/quant: what ml_dtypes and gguf make of low-precision numbers.

    python3 -m venv VENV && VENV/bin/pip install numpy==2.4.6 ml_dtypes==0.6.0 gguf==0.19.0
    VENV/bin/python scripts/vectors_quant.py

Every file is a bare little-endian array; its name says what: `<format>.<part>.<element type>`.
  <format>.decoded.f32    value of each code, in code order
  <format>.from_f32.u8    codes of probes.f32, by ml_dtypes
  <format>.from_f64.u8    codes of probes.f64, by exact search: ml_dtypes rounds them to f32 first
  <format>.blocks.u8, <format>.values.f32   ggml blocks and what gguf's dequantize reads from them
  <format>.quantized.u8   gguf's quantize of weights.f32
  <format>.planes.u8, .stored.f32, .finite.f32   random planes of a column scheme, one after the other, for the
                          shape [3, 19, 5] in blocks of 7, and their values with and without NaN and infinity
"""

from bisect import bisect_left
from fractions import Fraction
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T

OUT = Path(__file__).resolve().parent.parent / "vectors" / "quant"

LOW_FLOATS = {
    "f8e4m3": (ml_dtypes.float8_e4m3fn, 256),
    "f8e5m2": (ml_dtypes.float8_e5m2, 256),
    "e8m0": (ml_dtypes.float8_e8m0fnu, 256),
    "e2m1": (ml_dtypes.float4_e2m1fn, 16),
}
READ = {
    "q4_0": T.Q4_0, "q4_1": T.Q4_1, "q5_0": T.Q5_0, "q5_1": T.Q5_1, "q8_0": T.Q8_0,
    "q2_k": T.Q2_K, "q3_k": T.Q3_K, "q4_k": T.Q4_K, "q5_k": T.Q5_K, "q6_k": T.Q6_K,
    "iq4_nl": T.IQ4_NL, "iq4_xs": T.IQ4_XS, "ggml_mxfp4": T.MXFP4, "ggml_f16": T.F16, "ggml_bf16": T.BF16,
}
WRITTEN = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "ggml_mxfp4", "ggml_f16", "ggml_bf16"]


def put(name, array):
    element = {"float32": "f32", "float64": "f64", "uint8": "u8"}[array.dtype.name]
    array.astype(array.dtype.newbyteorder("<")).tofile(OUT / f"{name}.{element}")


def probes(rng):
    """Every code, every midpoint, their neighbours, the ends of f32, and random numbers of all sizes."""
    points = [np.array([0, 1e-45, 1e-40, 2**-126, 2**-127, 1.5 * 2**-127, 1e30, 3.4e38, 1.5 * 2.0**127, np.inf])]
    for dtype, count in LOW_FLOATS.values():
        codes = np.arange(count, dtype=np.uint8).view(dtype).astype(np.float64)
        codes = np.unique(codes[np.isfinite(codes) & (codes >= 0)])
        points += [codes, (codes[1:] + codes[:-1]) / 2]
        points += [codes[-1:] + (codes[-1:] - codes[-2:-1]) * step for step in (0.25, 0.5, 0.75, 1, 2)]
    x = np.unique(np.concatenate(points)).astype(np.float32)
    x = np.concatenate([x, np.nextafter(x, np.float32(np.inf)), np.nextafter(x, np.float32(-np.inf))])
    sizes = np.concatenate([rng.uniform(-12, 18, 500), rng.uniform(-149, 127, 200)])
    x = np.concatenate([x, (rng.uniform(1, 2, 700) * 2.0**sizes).astype(np.float32)])
    x = np.concatenate([x, -x])
    nans = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF], dtype=np.uint32).view(np.float32)
    return np.concatenate([x, nans])


def wide_probes(rng):
    """f64 numbers a hair from the ties, which rounding by way of f32 would move onto them."""
    points = [np.array([1e-320, 1e-300, 2.0**-140, 1e100, 1.7e308, np.inf, np.nan, 0.0])]
    for name in ("f8e4m3", "f8e5m2", "e2m1"):
        dtype, count = LOW_FLOATS[name]
        codes = np.arange(count, dtype=np.uint8).view(dtype).astype(np.float64)
        codes = np.unique(codes[np.isfinite(codes) & (codes >= 0)])
        ties = (codes[1:] + codes[:-1]) / 2
        points += [ties, ties * (1 + 2.0**-40), ties * (1 - 2.0**-40)]
    x = np.unique(np.concatenate(points))
    return np.concatenate([x, -x])


def nearest_code(name, x):
    """The code whose value, as ml_dtypes decodes it, is nearest to x in exact arithmetic."""
    dtype, count = LOW_FLOATS[name]
    sign = 0 if name == "e8m0" else count // 2
    if np.isnan(x) or (name == "e8m0" and not 0 < x < np.inf):
        nan = {"f8e4m3": 0x7F, "f8e5m2": 0x7E, "e8m0": 0xFF, "e2m1": 0x08}[name]
        return nan ^ (sign if np.signbit(x) else 0)
    codes = np.arange(sign or count, dtype=np.uint8).view(dtype).astype(np.float64)
    values = [Fraction(v) for v in codes if np.isfinite(v)]
    last = len(values) - 1
    if name != "e2m1":  # the step beyond the last one overflows into the next code
        values.append({"f8e4m3": Fraction(480), "f8e5m2": Fraction(65536), "e8m0": Fraction(2**128)}[name])
    if np.isinf(x):
        best = last + (name != "e2m1")
    else:
        size = Fraction(abs(x))
        above = min(bisect_left(values, size), len(values) - 1)
        below = max(above - 1, 0)
        down, up = abs(size - values[below]), abs(values[above] - size)
        tie = above if name == "e8m0" or below % 2 else below
        best = tie if down == up else below if down < up else above
    return best | (sign if np.signbit(x) else 0)


def weights(rng):
    """Blocks of 32 with the edges that decide bytes, then rows of ordinary weights; finite, |x| above 2^-100 or 0."""
    edge = [np.zeros(32), np.full(32, 0.25), np.full(32, -3.0), np.arange(32) - 16.0, np.arange(32) / 31,
            np.where(np.arange(32) % 2, -1.0, 1.0), -np.abs(rng.normal(size=32)), np.abs(rng.normal(size=32)) + 9,
            rng.normal(size=32) * 1e-6, rng.normal(size=32) * 1e-20, rng.normal(size=32) * 3e5, rng.normal(size=32) * 1e9]
    for power in (-9, -3, -1, 0, 1, 3, 7, 20):  # around powers of two a logarithm is easily wrong
        for peak in (2.0**power, np.nextafter(np.float32(2.0**power), np.float32(0)), 1.5 * 2.0**power):
            block = rng.uniform(-1, 1, 32) * 2.0**power * 0.9
            block[rng.integers(32)] = peak
            edge.append(block)
    ties = np.tile([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 4.0], 4) * np.where(np.arange(32) < 16, 1, -1)
    edge += [ties, ties * 2.0**-5]
    edge = np.concatenate(edge)
    normal = rng.normal(size=256 * 24) * np.repeat(2.0 ** rng.uniform(-8, 4, 24), 256)
    x = np.concatenate([edge, normal]).astype(np.float32)
    return np.resize(x, (x.size + 255) // 256 * 256)


def blocks_of(name, qtype, rng):
    """Random bytes; in half of the blocks the half-precision scales are ordinary numbers, not infinities and NaN."""
    elements, size = GGML_QUANT_SIZES[qtype]
    count = {1: 2048, 32: 64, 256: 14}[elements]
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    halves = {"q2_k": [80, 82], "q3_k": [108], "q6_k": [208], "ggml_mxfp4": []}.get(name, [0])
    if name in ("q4_1", "q5_1", "q4_k", "q5_k"):
        halves = [0, 2]
    if elements > 1:
        for at in halves:
            scale = rng.normal(size=count // 2).astype(np.float16)
            blocks[: count // 2, at : at + 2] = scale.view(np.uint8).reshape(-1, 2)
    return blocks


def columns(rng):
    """Column schemes by the definition: each element looks up its own code, scale and zero point."""
    batch, k, n, block = 3, 19, 5, 7
    groups = -(-k // block)
    at = np.arange(batch * k * n)
    matrix, row, col = at // (k * n), at // n % k, at % n
    group = (matrix * groups + row // block) * n + col
    e4m3, e5m2, e8m0, e2m1 = (LOW_FLOATS[name][0] for name in ("f8e4m3", "f8e5m2", "e8m0", "e2m1"))
    as_f32 = lambda dtype: lambda codes: codes.view(dtype).astype(np.float32)
    int4 = lambda codes: np.where(codes > 7, codes.astype(np.int8) - 16, codes).astype(np.float32)
    schemes = {  # name: (nibbles?, code to number, scale to number, zero points?, global scale?)
        "int8": (False, as_f32(np.int8), "f32", False, False),
        "int8_asym": (False, as_f32(np.int8), "f32", True, False),
        "int4": (True, int4, "f32", False, False),
        "fp8_e4m3": (False, as_f32(e4m3), None, False, False),
        "fp8_e5m2": (False, as_f32(e5m2), None, False, False),
        "nvfp4": (True, as_f32(e2m1), e4m3, False, True),
        "mxfp4": (True, as_f32(e2m1), e8m0, False, False),
        "mxfp8_e4m3": (False, as_f32(e4m3), e8m0, False, False),
        "mxfp8_e5m2": (False, as_f32(e5m2), e8m0, False, False),
    }
    bytes_of = lambda x: x.astype("<f4").view(np.uint8)
    for name, (nibbles, number, scale_type, has_zero, has_global) in schemes.items():
        codes = rng.integers(0, 256, -(-at.size // 2) if nibbles else at.size, dtype=np.uint8)
        each = np.stack([codes & 15, codes >> 4], axis=-1).ravel()[: at.size] if nibbles else codes
        planes, keep = [codes], lambda x: np.where(np.isfinite(x), x, np.float32(0))
        stored = number(each)
        finite = keep(stored)
        count = batch * groups * n
        if scale_type == "f32":
            scale = rng.normal(size=count).astype(np.float32)
            planes.append(bytes_of(scale))
            scales = (scale, scale)
        elif scale_type is not None:
            raw = rng.integers(0, 256, count, dtype=np.uint8)
            raw[:4] = [0x7F, 0xFF, 0x00, 0x80]
            planes.append(raw)
            scales = (raw.view(scale_type).astype(np.float32), keep(raw.view(scale_type).astype(np.float32)))
        if has_zero:
            zero = rng.normal(size=count).astype(np.float32) * 20
            planes.append(bytes_of(zero))
            stored, finite = stored - zero[group], finite - zero[group]
        if scale_type is not None:
            stored, finite = stored * scales[0][group], finite * scales[1][group]
        if has_global:
            whole = np.float32(0.0371)
            planes.append(bytes_of(np.array([whole])))
            stored, finite = stored * whole, finite * whole
        put(f"{name}.planes", np.concatenate(planes))
        put(f"{name}.stored", stored.astype(np.float32))
        put(f"{name}.finite", finite.astype(np.float32))


def main():
    np.seterr(all="ignore")
    rng = np.random.default_rng(20240229)
    OUT.mkdir(parents=True, exist_ok=True)
    x, wide = probes(rng), wide_probes(rng)
    put("probes", x)
    put("probes", wide)
    for name, (dtype, count) in LOW_FLOATS.items():
        put(f"{name}.decoded", np.arange(count, dtype=np.uint8).view(dtype).astype(np.float32))
        put(f"{name}.from_f32", x.astype(dtype).view(np.uint8))
        put(f"{name}.from_f64", np.array([nearest_code(name, v) for v in wide], dtype=np.uint8))
    put("ggml_bf16.from_f32", x.astype(ml_dtypes.bfloat16).view(np.uint8))

    columns(rng)
    w = weights(rng)
    put("weights", w)
    for name, qtype in READ.items():
        blocks = blocks_of(name, qtype, rng)
        put(f"{name}.blocks", blocks)
        put(f"{name}.values", gguf.quants.dequantize(blocks, qtype).astype(np.float32).ravel())
    for name in WRITTEN:
        put(f"{name}.quantized", gguf.quants.quantize(w.reshape(-1, 256), READ[name]).view(np.uint8).ravel())


if __name__ == "__main__":
    main()

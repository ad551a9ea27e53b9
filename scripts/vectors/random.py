"""Random numbers. PyTorch's CPU generator is another one: Philox4x32-10 is written out here, from its paper."""

import math

import torch

from .core import F, V, attrs

M = 0xFFFFFFFF


def philox(counter, key):
    (a, b, c, d), (k, l) = counter, key
    for _ in range(10):
        p, q = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (q >> 32) ^ b ^ k, q & M, (p >> 32) ^ d ^ l, p & M
        k, l = (k + 0x9E3779B9) & M, (l + 0xBB67AE85) & M
    return a, b, c, d


assert philox((0, 0, 0, 0), (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)


def bits(seed, shape, stream=0):
    """The words as i64: element i is word i mod 4 of block i / 4."""
    seed, stream = seed.long(), stream % 2**64
    keys = [tuple(k) for k in seed.reshape(-1, 2).tolist()]
    n = torch.Size(shape).numel()
    rows = [[philox((i // 4, 0, stream & M, stream >> 32), key)[i % 4] for i in range(n)] for key in keys]
    return torch.tensor(rows, dtype=torch.int64).reshape([*seed.shape[:-1], *shape])


def unit(seed, shape, stream=0):
    return (bits(seed, shape, stream) >> 8).double() * 2.0**-24


def normal(seed, shape, stream, mean, std):
    n = torch.Size(shape).numel()
    raw = (bits(seed, [(n + 1) // 2, 2], stream) >> 8).double()
    r = torch.sqrt(-2 * torch.log((raw[..., 0] + 1) * 2.0**-24))
    phi = 2 * math.pi * raw[..., 1] * 2.0**-24
    flat = torch.stack([r * phi.cos(), r * phi.sin()], -1).flatten(-2)[..., :n]
    return mean + std * flat.reshape([*seed.shape[:-1], *shape])


def gumbel(seed, shape, stream=0):
    u = ((bits(seed, shape, stream) >> 9).double() + 0.5) * 2.0**-23
    return -torch.log(-torch.log(u))


def sample(logits, seed, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, stream=0):
    """Row by row: narrow the candidates down, then the largest with Gumbel noise."""
    if temperature == 0:
        return logits.argmax(-1).int()
    x = logits / temperature
    noise = gumbel(seed, logits.shape[seed.ndim - 1 :], stream)
    rows, noise = x.reshape(-1, x.shape[-1]), noise.expand(x.shape).reshape(-1, x.shape[-1])
    ids = []
    for row, extra in zip(rows, noise):
        order = torch.argsort(row, descending=True, stable=True)
        kept = order[:top_k] if top_k else order
        share = torch.softmax(row[kept], 0)
        kept = kept[share.cumsum(0) - share < top_p]
        p = torch.softmax(row, 0)
        kept = kept[p[kept] >= min_p * p.max()]
        ids.append(kept[torch.argmax(row[kept] + extra[kept])].item())
    return torch.tensor(ids, dtype=torch.int32).reshape(x.shape[:-1])


SEEDS = [[0, 0], [123, 456], [4294967295, 2147483648]]


def key(*words):
    return V(words[0] if len(words) == 1 else list(words), torch.uint32)


def cases(c):
    for s in SEEDS:
        c.case("y = random_bits(seed) {shape: [3, 7]}", {"seed": key(s)}, lambda k: bits(k, [3, 7]).to(torch.uint32))
    for shape, stream in [([9], 5), ([], -1), ([0, 2], 0), ([5], 2**40 + 3)]:
        c.case(
            f"y = random_bits(seed){attrs(shape=shape, stream=stream)}",
            {"seed": key(SEEDS[1])},
            lambda k: bits(k, shape, stream).to(torch.uint32),
        )
    c.case(
        "y = random_bits(seed) {shape: [2, 3]}",
        {"seed": key(*SEEDS)},
        lambda k: bits(k, [2, 3]).to(torch.uint32),
        name="seeds",
    )
    for lo, hi, stream in [(0.0, 1.0, 0), (-2.0, 3.0, 4), (0.5, 0.5, 0)]:
        c.case(
            f"y = uniform(seed){attrs(shape=[4, 5], lo=lo, hi=hi, dtype=torch.float64, stream=stream)}",
            {"seed": key(SEEDS[1])},
            lambda k: lo + (hi - lo) * unit(k, [4, 5], stream),
        )
    for shape, mean, std, stream in [
        ([3, 5], 0.0, 1.0, 0),
        ([7], 2.0, 0.5, 3),
        ([], 0.0, 1.0, 0),
        ([0], 0.0, 1.0, 0),
        ([2], 1.0, 0.0, 0),
    ]:
        c.case(
            f"y = normal(seed){attrs(shape=shape, mean=mean, std=std, dtype=torch.float64, stream=stream)}",
            {"seed": key(SEEDS[1])},
            lambda k: normal(k, shape, stream, mean, std),
            rtol=1e-6,
            atol=1e-6,
        )
    c.case(
        "y = normal(seed) {shape: [3], dtype: f64}",
        {"seed": key(*SEEDS)},
        lambda k: normal(k, [3], 0, 0.0, 1.0),
        rtol=1e-6,
        atol=1e-6,
        name="seeds",
    )
    for shape, stream in [([3, 5], 0), ([4], 7)]:
        c.case(
            f"y = gumbel(seed){attrs(shape=shape, dtype=torch.float64, stream=stream)}",
            {"seed": key(SEEDS[1])},
            lambda k: gumbel(k, shape, stream),
        )
    for p, stream in [(0.5, 0), (0.125, 2), (0.0, 0), (1.0, 0)]:
        c.case(
            f"y = bernoulli(seed){attrs(shape=[5, 4], p=p, stream=stream)}",
            {"seed": key(SEEDS[1])},
            lambda k: unit(k, [5, 4], stream) < p,
        )
        keep = 1 - p
        c.case(
            f"y = dropout(x, seed){attrs(p=p, stream=stream)}",
            {"x": F(5, 4), "seed": key(SEEDS[1])},
            lambda x, k: torch.where(unit(k, [5, 4], stream) < keep, x / keep if keep else x * 0, 0.0),
        )
    c.case(
        "y = dropout(x, seed) {p: 0.25}",
        {"x": F(3, 2, 4), "seed": key(*SEEDS)},
        lambda x, k: torch.where(unit(k, [2, 4]) < 0.75, x / 0.75, 0.0),
        name="seeds",
    )
    for a in [
        {"temperature": 0.0},
        {},
        {"temperature": 0.7, "stream": 3},
        {"top_k": 2},
        {"top_k": 1},
        {"top_p": 0.6},
        {"min_p": 0.3, "temperature": 1.5},
        {"temperature": 0.9, "top_k": 5, "top_p": 0.9, "min_p": 0.05, "stream": 1},
        {"top_p": 0.01},
    ]:
        for shape in [(2, 3, 7), (9,)]:
            c.case(
                f"y = sample(x, seed){attrs(**a)}",
                {"x": F(*shape, lo=-3, hi=3), "seed": key(SEEDS[1])},
                lambda x, k: sample(x.detach(), k, **a),
            )
        c.case(
            f"y = sample(x, seed){attrs(**a)}",
            {"x": F(3, 4, 5, lo=-3, hi=3), "seed": key(*SEEDS)},
            lambda x, k: sample(x.detach(), k, **a),
            name="seeds",
        )

#!/usr/bin/env python3
"""JAX's side of the `ir` bench: traces, differentiates and batches the same encoder, without compiling it.

Reads a case per line, does it once, and answers with the milliseconds that it took.
"""

import sys
import time

import jax
import jax.numpy as jnp

LAYERS, D, HEADS, FF, BATCH, SEQ = 12, 384, 12, 1536, 8, 128


def norm(x, g, b):
    mean = x.mean(-1, keepdims=True)
    var = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(var + 1e-5) * g + b


def encoder(params, x):
    for p in params:
        h = norm(x, p["g1"], p["b1"])
        qkv = (h @ p["qkv"]).reshape(x.shape[0], SEQ, 3, HEADS, D // HEADS).transpose(2, 0, 3, 1, 4)
        s = jnp.einsum("bhsd,bhtd->bhst", qkv[0], qkv[1]) / (D // HEADS) ** 0.5
        a = jnp.einsum("bhst,bhtd->bhsd", jax.nn.softmax(s), qkv[2])
        x = x + a.transpose(0, 2, 1, 3).reshape(x.shape) @ p["out"]
        h = norm(x, p["g2"], p["b2"])
        x = x + jax.nn.gelu(h @ p["up"], approximate=False) @ p["down"]
    return (x * x).mean()


def struct(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


LAYER = {"g1": (D,), "b1": (D,), "qkv": (D, 3 * D), "out": (D, D), "g2": (D,), "b2": (D,), "up": (D, FF), "down": (FF, D)}
PARAMS = [{k: struct(*s) for k, s in LAYER.items()} for _ in range(LAYERS)]
X = struct(BATCH, SEQ, D)
CASES = {
    # A new lambda each time, so that no cache of whole traces answers.
    "build": lambda: jax.make_jaxpr(lambda p, x: encoder(p, x))(PARAMS, X),
    "build+vjp": lambda: jax.make_jaxpr(jax.value_and_grad(lambda p, x: encoder(p, x)))(PARAMS, X),
    "build+vmap": lambda: jax.make_jaxpr(jax.vmap(lambda p, x: encoder(p, x), in_axes=(None, 0)))(PARAMS, struct(4, BATCH, SEQ, D)),
}

for line in sys.stdin:
    begun = time.perf_counter()
    CASES[line.strip()]()
    print((time.perf_counter() - begun) * 1e3, flush=True)

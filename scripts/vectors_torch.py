#!/usr/bin/env python3
"""Writes vectors/torch: what PyTorch makes of every op that means something to it, gradients included.

    cargo xtask vectors torch
    python scripts/vectors_torch.py [OUT [FAMILY…]]

One file per module of scripts/vectors, which says what its cases are; scripts/vectors/core.py says how a case is
written. The same version of PyTorch writes the same bytes.
"""

import importlib
import sys
import warnings
from pathlib import Path

import torch

from vectors.core import Family

FAMILIES = [
    "arithmetic",
    "math",
    "activations",
    "casts",
    "reductions",
    "cumulative",
    "shapes",
    "indexing",
    "sorting",
    "linear",
    "convolution",
    "pooling",
    "images",
    "fourier",
    "softmax",
    "norms",
    "losses",
    "rope",
    "attention",
    "ssm",
    "recurrent",
    "quantized",
    "random",
    "collectives",
    "control",
]


def main():
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "vectors") / "torch"
    out.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")  # what PyTorch warns of is here on purpose
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    total, size = 0, 0
    for name in sys.argv[2:] or FAMILIES:
        family = Family(name)
        importlib.import_module(f"vectors.{name}").cases(family)
        written = family.save(out / f"{name}.safetensors")
        print(f"{name:14} {len(family.list):4} cases {written:9,} bytes")
        total, size = total + len(family.list), size + written
    print(f"{'all':14} {total:4} cases {size:9,} bytes")


if __name__ == "__main__":
    main()

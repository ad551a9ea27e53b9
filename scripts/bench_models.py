#!/usr/bin/env python3
"""ONNX Runtime as a peer of the `onnx` bench: `bench_models.py THREADS`.

Answers the commands of bench_peer.py; {"do": "prepare", "model": FILE.onnx, "inputs": FILE.npz}. Also
{"do": "prepare", "write": FILE.onnx, "weights": FILE}: writes the encoder of the `cpu` bench; a call then opens it anew.
"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime
from safetensors.numpy import load_file

import bench_onnx
from bench_peer import aligned, bound, serve


def session(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(sys.argv[1])
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def prepare(command, known={}):
    if "write" in command:
        Path(command["write"]).write_bytes(bench_onnx.encoder(load_file(command["weights"])))
        return lambda: session(command["write"]), dict
    path = command["model"]
    if path not in known:
        known.clear()  # frees the last one first
        known[path] = session(path)
    return bound(known[path], {k: aligned(v) for k, v in np.load(command["inputs"]).items()})


serve(prepare)

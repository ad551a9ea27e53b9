#!/usr/bin/env python3
"""A peer of the `cpu` bench: `bench_cpu.py ort|openvino|c THREADS`.

Reads one JSON command per line and answers each with one JSON line:
  {"do": "prepare", "model": NAME, "weights": FILE, "inputs": FILE}    FILEs are safetensors
  {"do": "run", "ms": M, "warm": W}     untimed calls for W ms, then calls for at least M ms: {"ms": [each call's time]}
  {"do": "result", "to": FILE}          writes the last output as `y`
"""

import ctypes
import json
import os
import subprocess
import sys
import time
from pathlib import Path

THREADS = int(sys.argv[2])
os.environ["OMP_NUM_THREADS"] = str(THREADS)

import numpy as np
from safetensors.numpy import load_file, save_file


def aligned(array):
    """A copy that starts at a cache line, as RLX's inputs do."""
    room = np.empty(array.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def timed(run):
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1e3


def model_bytes(name, weights, known={}):
    """The ONNX file of a model; those of the last weights are kept, for the cases of a workload share them."""
    import bench_onnx

    if (name, weights) not in known:
        for old in [k for k in known if k[1] != weights]:
            del known[old]
        known[name, weights] = bench_onnx.MODELS[name](load_file(weights))
    return known[name, weights]


def ort(name, weights, inputs):
    """ONNX Runtime at its best: which form of a model it likes most depends on the sizes, so it may try them."""
    fixed = ["batch", "seq"]
    forms = {"matmul": [("matmul", ["m"])], "encoder": [("encoder", []), ("encoder", fixed), ("encoder_fused", [])]}[name]
    ready = [ort_form(form, fixed, weights, inputs) for form, fixed in forms]
    best = [float("inf")] * len(ready)
    # In turns, for the machine drifts, and each after the others' threads have come to rest.
    for i in [*range(len(ready))] * (3 if len(ready) > 1 else 0):
        time.sleep(0.02)
        ready[i][0]()
        best[i] = min(best[i], timed(ready[i][0]))
    return ready[best.index(min(best))]


def ort_form(name, fixed, weights, inputs):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    for symbol, size in zip(fixed, next(iter(inputs.values())).shape):
        options.add_free_dimension_override_by_name(symbol, size)
    session = onnxruntime.InferenceSession(model_bytes(name, weights), options, providers=["CPUExecutionProvider"])
    value = onnxruntime.OrtValue.ortvalue_from_numpy(session.run(None, inputs)[0])
    binding = session.io_binding()
    for key, array in inputs.items():
        binding.bind_cpu_input(key, array)
    binding.bind_ortvalue_output(session.get_outputs()[0].name, value)
    return lambda: session.run_with_iobinding(binding), value.numpy


def openvino(name, weights, inputs):
    import openvino

    core = openvino.Core()
    model = core.read_model(model_bytes(name, weights))
    model.reshape({key: list(array.shape) for key, array in inputs.items()})
    settings = {"INFERENCE_NUM_THREADS": THREADS, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(model, "CPU", settings | {"PERFORMANCE_HINT": "LATENCY"}).create_infer_request()
    for key, array in inputs.items():
        request.set_tensor(key, openvino.Tensor(array, shared_memory=True))
    run = lambda: request.infer(None, share_inputs=True, share_outputs=True)
    return run, lambda: request.get_output_tensor(0).data


def c(name, weights, inputs):
    source = Path(__file__).with_name(f"bench_{name}.c")
    library = Path(weights).with_name(f"{name}.so")
    flags = ["-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-Wall", "-Werror"]
    subprocess.run(["gcc", *flags, source, "-o", library], check=True)
    call = getattr(ctypes.CDLL(str(library)), name)
    inputs |= {key: aligned(array) for key, array in load_file(weights).items()}
    y = aligned(np.zeros(inputs["x"].shape, np.float32))
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in [*(inputs[k] for k in ("x", "dt", "a", "b", "c", "d")), y]]
    sizes = [ctypes.c_long(n) for n in (*y.shape, inputs["a"].shape[1], THREADS)]
    return lambda: call(*pointers, *sizes), lambda: y


def main():
    # What libraries print must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    run = result = None
    for line in sys.stdin:
        command, answer = json.loads(line), {}
        try:
            if command["do"] == "prepare":
                run = result = None  # frees the last one first
                inputs = {k: aligned(v) for k, v in load_file(command["inputs"]).items()}
                run, result = {"ort": ort, "openvino": openvino, "c": c}[sys.argv[1]](command["model"], command["weights"], inputs)
            elif command["do"] == "run":
                begun = time.perf_counter()
                while time.perf_counter() - begun < command["warm"] / 1e3:
                    run()
                times, begun = [], time.perf_counter()
                while not times or time.perf_counter() - begun < command["ms"] / 1e3:
                    times.append(timed(run))
                answer["ms"] = times
            else:
                save_file({"y": np.ascontiguousarray(result())}, command["to"])
        except Exception as e:
            answer["error"] = f"{type(e).__name__}: {e}"
        print(json.dumps(answer), file=answers, flush=True)


main()

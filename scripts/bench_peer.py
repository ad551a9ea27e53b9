"""What the peers of the benches share: lines in, lines out.

Reads one JSON command per line and answers each with one JSON line:
  {"do": "prepare", ...}                what it holds is the script's business
  {"do": "run", "ms": M, "warm": W}     untimed calls for W ms, then calls for at least M ms: {"ms": [each call's time]}
  {"do": "result", "to": FILE}          writes the last outputs, a safetensors file
"""

import json
import os
import sys
import time

import numpy as np
from safetensors.numpy import save_file


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


def bound(session, inputs):
    """A session of ONNX Runtime with its inputs and outputs in place: a call, and what gives the outputs by name."""
    import onnxruntime

    first = session.run(None, inputs)
    values = {o.name: onnxruntime.OrtValue.ortvalue_from_numpy(v) for o, v in zip(session.get_outputs(), first)}
    binding = session.io_binding()
    for key, array in inputs.items():
        binding.bind_cpu_input(key, array)
    for key, value in values.items():
        binding.bind_ortvalue_output(key, value)
    return lambda: session.run_with_iobinding(binding), lambda: {k: v.numpy() for k, v in values.items()}


def serve(prepare):
    """Answers commands; `prepare` takes one and gives a call and what gives its outputs by name."""
    # What libraries print must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    run = result = None
    for line in sys.stdin:
        command, answer = json.loads(line), {}
        try:
            if command["do"] == "prepare":
                run = result = None  # frees the last one first
                run, result = prepare(command)
            elif command["do"] == "run":
                begun = time.perf_counter()
                while time.perf_counter() - begun < command["warm"] / 1e3:
                    run()
                times, begun = [], time.perf_counter()
                while not times or time.perf_counter() - begun < command["ms"] / 1e3:
                    times.append(timed(run))
                answer["ms"] = times
            else:
                save_file({k: np.ascontiguousarray(v) for k, v in result().items()}, command["to"])
        except Exception as e:
            answer["error"] = f"{type(e).__name__}: {e}"
        print(json.dumps(answer), file=answers, flush=True)

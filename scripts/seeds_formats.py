"""Small files for the fuzzers of readers: seeds_formats.py fuzz/corpus

Needs numpy, safetensors and gguf, as target/material/venv has them.
"""

import json
import struct
import sys
from pathlib import Path

import gguf
import numpy as np
import safetensors.numpy
from gguf import GGMLQuantizationType as T
from gguf import GGUFValueType as V

out = Path(sys.argv[1])


def safetensors_files(folder):
    small = {f"t{i}": np.arange(4).astype(d).reshape(2, 2) for i, d in enumerate(["f8", "f4", "f2", "i8", "u1", "i2", "?"])}
    safetensors.numpy.save_file(small, folder / "dtypes.safetensors", metadata={"format": "np"})
    safetensors.numpy.save_file({}, folder / "empty.safetensors")
    safetensors.numpy.save_file({"x": np.array(1, "f4"), "y": np.zeros((0, 3), "i4")}, folder / "shapes.safetensors")
    packed = {"w": {"scheme": "int8:2", "shape": [4, 1]}, "q": {"scheme": "q4_0", "shape": [1, 32]}}
    planes = {
        "w.codes": np.arange(4, dtype=np.int8).reshape(4, 1), "w.scale": np.ones((2, 1), np.float32),
        "q.blocks": np.full((1, 18), 17, np.uint8),
    }
    safetensors.numpy.save_file(planes, folder / "packed.safetensors", metadata={"rlx.packed": json.dumps(packed)})
    header = b'{"x":{"dtype":"F8_E8M0","shape":[2],"data_offsets":[0,2]}}'
    (folder / "strange.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"ab")


def gguf_file(path, tensors, alignment=None, values=(), split=()):
    to = gguf.GGUFWriter(path, "toy")
    if alignment:
        to.add_custom_alignment(alignment)
    for i, (kind, value) in enumerate(values):
        to.add_key_value(f"k{i}", value, kind)
        to.add_key_value(f"l{i}", [value, value], V.ARRAY, sub_type=kind)
    for key, value in split:
        to.add_uint16(key, value)
    for name, array, kind in tensors:
        to.add_tensor(name, array, raw_dtype=kind)
    to.write_header_to_file()
    to.write_kv_data_to_file()
    to.write_tensors_to_file()
    to.close()


def gguf_files(folder):
    rows = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)
    kinds = [(k, 1) for k in (V.UINT8, V.INT8, V.UINT16, V.INT16, V.UINT32, V.INT32, V.UINT64, V.INT64)]
    kinds += [(V.FLOAT32, 0.5), (V.FLOAT64, 0.5), (V.BOOL, True), (V.STRING, "text")]
    gguf_file(folder / "values.gguf", [], values=kinds)
    legacy = [(t.name, gguf.quants.quantize(rows, t), t) for t in (T.Q4_0, T.Q5_1, T.Q8_0, T.MXFP4)]
    gguf_file(folder / "blocks.gguf", legacy)
    plain = [("f32", rows[:1, :3], None), ("i16", np.arange(6, dtype=np.int16).reshape(1, 2, 3), None)]
    gguf_file(folder / "plain.gguf", plain, alignment=8)
    gguf_file(folder / "super.gguf", [("q6", np.full((1, 210), 3, np.uint8), T.Q6_K), ("iq", np.full((1, 66), 3, np.uint8), T.IQ2_XXS)])
    gguf_file(folder / "split.gguf", plain, split=[("split.no", 0), ("split.count", 1)])


def npz_files(folder):
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([True, False]), "c/d": np.float16(2)}
    np.savez(folder / "stored.npz", **arrays)
    np.savez_compressed(folder / "deflated.npz", **arrays)
    np.save(folder / "plain.npy", arrays["a"])
    np.save(folder / "fortran.npy", np.asfortranarray(arrays["a"].astype(">f8")))
    np.save(folder / "strange.npy", np.array(["ab", "c"]))


for name, write in (("safetensors", safetensors_files), ("gguf", gguf_files), ("npz", npz_files)):
    (out / name).mkdir(parents=True, exist_ok=True)
    write(out / name)

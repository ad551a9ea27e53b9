"""Files between RLX and the Python packages safetensors, gguf and numpy.

    check_formats.py write FOLDER    writes files with those packages
    check_formats.py read FOLDER     reads files that RLX wrote, and compares

Either way FOLDER/cases.json says what is in each file: a list of {"file", "format", "metadata": [[key, kind, value], ...],
"tensors": [{"name", "dtype", "shape", "hex"}, ...]}. Dtypes have RLX's names, "hex" holds the little-endian bytes. A "dtype" of
null says that RLX can list such a tensor but not read it; "stored" is then its name in the format.
crates/rlx-formats/tests/python.rs runs both.
"""

import json
import sys
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy
from gguf import GGMLQuantizationType as T
from gguf import GGUFValueType as V

NUMBERS = {
    "f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "f8e4m3": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2,
    "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64, "bool": np.bool_,
}
SAFETENSORS = {
    "f64": "F64", "f32": "F32", "f16": "F16", "bf16": "BF16", "f8e4m3": "F8_E4M3", "f8e5m2": "F8_E5M2",
    "i8": "I8", "i16": "I16", "i32": "I32", "i64": "I64", "u8": "U8", "u16": "U16", "u32": "U32", "u64": "U64", "bool": "BOOL",
}
NUMPY = [d for d in NUMBERS if d not in ("bf16", "f8e4m3", "f8e5m2")]
GGUF_NUMBERS = {"f32": T.F32, "f16": T.F16, "bf16": T.BF16, "f64": T.F64, "i8": T.I8, "i16": T.I16, "i32": T.I32, "i64": T.I64}
# What RLX has a scheme for.
SCHEMES = {
    T.Q4_0: "q4_0", T.Q4_1: "q4_1", T.Q5_0: "q5_0", T.Q5_1: "q5_1", T.Q8_0: "q8_0", T.Q2_K: "q2_k", T.Q3_K: "q3_k",
    T.Q4_K: "q4_k", T.Q5_K: "q5_k", T.Q6_K: "q6_k", T.Q8_K: "q8_k", T.IQ4_NL: "iq4_nl", T.IQ4_XS: "iq4_xs", T.MXFP4: "ggml_mxfp4",
}
VALUES = [
    ("v.u8", "U8", V.UINT8, 250), ("v.i8", "I8", V.INT8, -100), ("v.u16", "U16", V.UINT16, 65000), ("v.i16", "I16", V.INT16, -30000),
    ("v.u32", "U32", V.UINT32, 4000000000), ("v.i32", "I32", V.INT32, -2000000000), ("v.u64", "U64", V.UINT64, 2**63 + 5),
    ("v.i64", "I64", V.INT64, -(2**62)), ("v.f32", "F32", V.FLOAT32, 0.25), ("v.f64", "F64", V.FLOAT64, 1e300),
    ("v.bool", "Bool", V.BOOL, True), ("v.text", "Text", V.STRING, "grüße \U0001f980\n"),
]
rng = np.random.default_rng(7)


def described(name, dtype, shape, data, **more):
    return {"name": name, "dtype": dtype, "shape": list(shape), "hex": bytes(data).hex(), **more}


def some(dtype, shape):
    """Any bits at all, but for bools."""
    count = int(np.prod(shape))
    if dtype == "bool":
        return rng.integers(0, 2, count).astype(np.bool_).reshape(shape)
    kind = np.dtype(NUMBERS[dtype])
    return np.frombuffer(rng.bytes(count * kind.itemsize), dtype=kind).reshape(shape)


def arrays(dtypes, shapes):
    return [(f"{d}.{i}", d, some(d, s)) for d in dtypes for i, s in enumerate(shapes)]


def write_safetensors(folder):
    tensors = arrays(SAFETENSORS, [(), (3,), (2, 0, 2), (2, 3, 1, 1, 2)])
    metadata = {"format": "np", "ö": "ä\n\"x\""}
    safetensors.numpy.save_file({n: a for n, _, a in tensors}, folder / "a.safetensors", metadata=metadata)
    yield {
        "file": "a.safetensors", "format": "safetensors", "metadata": [[k, "Text", v] for k, v in sorted(metadata.items())],
        "tensors": [described(n, d, a.shape, a.tobytes()) for n, d, a in tensors],
    }
    # Two files and an index, as models come.
    halves, names = (tensors[::2], tensors[1::2]), ("m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors")
    for half, name in zip(halves, names):
        safetensors.numpy.save_file({n: a for n, _, a in half}, folder / name, metadata={"format": "np"})
    index = {
        "metadata": {"total_size": sum(a.nbytes for _, _, a in tensors)},
        "weight_map": {n: name for half, name in zip(halves, names) for n, _, _ in half},
    }
    (folder / "m.safetensors.index.json").write_text(json.dumps(index, indent=2))
    yield {
        "file": "m.safetensors.index.json", "format": "safetensors",
        "metadata": [["total_size", "U64", index["metadata"]["total_size"]], ["format", "Text", "np"]],
        "tensors": [described(n, d, a.shape, a.tobytes()) for n, d, a in tensors],
    }


def quantised():
    """Every type but the plain numbers: what the package can quantise, and blocks of bytes whose halves are finite."""
    for ty in T:
        block, size = gguf.GGML_QUANT_SIZES[ty]
        if ty in GGUF_NUMBERS.values() or ty == T.Q8_1:
            continue
        shape = (2, 3, 2 * block)
        try:
            data = gguf.quants.quantize(rng.standard_normal(shape).astype(np.float32), ty)
        except NotImplementedError:
            data = rng.integers(0, 0x40, (2, 3, 2 * size)).astype(np.uint8)
        scheme = SCHEMES.get(ty)
        dtype = f"packed<{scheme}>" if scheme else None
        yield ty, described(f"q.{ty.name}", dtype, shape, data.tobytes(), stored=ty.name), data


def write_gguf(folder):
    for name, more in (("a.gguf", {}), ("aligned.gguf", {"alignment": 256}), ("s.gguf", {"split_max_tensors": 5})):
        to = gguf.GGUFWriter(folder / name, "toy", **{k: v for k, v in more.items() if k != "alignment"})
        metadata = [["general.architecture", "Text", "toy"]]
        if "alignment" in more:
            to.add_custom_alignment(more["alignment"])
            metadata.append(["general.alignment", "U32", more["alignment"]])
        for key, kind, ty, value in VALUES:
            to.add_key_value(key, value, ty)
            to.add_key_value(f"list.{key}", [value, value, value], V.ARRAY, sub_type=ty)
            metadata += [[key, kind, value], [f"list.{key}", kind, [value, value, value]]]
        tensors = []
        for n, d, a in arrays(GGUF_NUMBERS, [(), (5,), (2, 1, 3), (1, 2, 3, 4)]):
            # As bytes, of which a number without axes has none.
            if d == "bf16" and a.ndim == 0:
                continue
            to.add_tensor(n, a.view(np.uint8) if d == "bf16" else a, raw_dtype=GGUF_NUMBERS[d])
            tensors.append(described(n, d, a.shape, a.tobytes()))
        for ty, entry, data in quantised():
            to.add_tensor(entry["name"], data, raw_dtype=ty)
            tensors.append(entry)
        to.write_header_to_file()
        to.write_kv_data_to_file()
        to.write_tensors_to_file()
        to.close()
        file = name if (folder / name).exists() else sorted(p.name for p in folder.glob("s-*.gguf"))[0]
        yield {"file": file, "format": "gguf", "metadata": metadata, "tensors": tensors}


def write_numpy(folder):
    tensors = arrays(NUMPY, [(), (3,), (2, 0, 2), (2, 3, 1, 2)])
    entries = [described(n, d, a.shape, a.tobytes()) for n, d, a in tensors]
    np.savez(folder / "a.npz", **{n: a for n, _, a in tensors})
    np.savez_compressed(folder / "z.npz", **{n: a for n, _, a in tensors})
    # The first axis fastest, and the other byte order.
    np.savez(folder / "f.npz", **{n: np.array(a, order="F") for n, _, a in tensors})
    np.savez_compressed(folder / "b.npz", **{n: np.array(a.astype(a.dtype.newbyteorder(">")), order="F") for n, _, a in tensors})
    for file in ("a.npz", "z.npz", "f.npz", "b.npz"):
        yield {"file": file, "format": "npz", "metadata": [], "tensors": entries}
    for n, d, a in tensors:
        np.save(folder / f"{n}.npy", a)
        yield {"file": f"{n}.npy", "format": "npy", "metadata": [], "tensors": [described(n, d, a.shape, a.tobytes())]}
    complex_numbers = np.array([1 + 2j, 3j])
    np.save(folder / "complex.npy", complex_numbers)
    strange = described("complex", None, (2,), complex_numbers.tobytes(), stored="<c16")
    yield {"file": "complex.npy", "format": "npy", "metadata": [], "tensors": [strange]}


def write(folder):
    cases = [*write_safetensors(folder), *write_gguf(folder), *write_numpy(folder)]
    (folder / "cases.json").write_text(json.dumps(cases))
    print(len(cases))


def agree(what, got, want):
    if got != want:
        raise SystemExit(f"{what}: {got!r:.200}, but RLX wrote {want!r:.200}")


def read_safetensors(path, case):
    metadata = {}
    if path.name.endswith(".index.json"):
        index = json.loads(path.read_text())
        found = {}
        for file in sorted(set(index["weight_map"].values())):
            part = dict(safetensors.deserialize((path.parent / file).read_bytes()))
            agree(f"{file}: names", sorted(part), sorted(n for n, f in index["weight_map"].items() if f == file))
            found |= part
            metadata |= safetensors.safe_open(path.parent / file, "np").metadata() or {}
        agree("total_size", index["metadata"]["total_size"], sum(len(t["data"]) for t in found.values()))
    else:
        found = dict(safetensors.deserialize(path.read_bytes()))
        metadata = safetensors.safe_open(path, "np").metadata() or {}
    metadata.pop("rlx.packed", None)
    agree(f"{path.name}: metadata", metadata, {k: v for k, _, v in case["metadata"]})
    agree(f"{path.name}: names", sorted(found), sorted(t["name"] for t in case["tensors"]))
    for t in case["tensors"]:
        got = found[t["name"]]
        agree(f"{path.name}: {t['name']}", (got["dtype"], got["shape"], bytes(got["data"]).hex()),
              (SAFETENSORS[t["dtype"]], t["shape"], t["hex"]))


def read_gguf(path, case):
    # All parts of a model that is cut.
    paths = [path] if "-00001-of-" not in path.name else sorted(path.parent.glob(path.name.split("-00001-of-")[0] + "-*.gguf"))
    readers = [gguf.GGUFReader(p) for p in paths]
    kinds = {kind: ty for _, kind, ty, _ in VALUES}
    first = readers[0]
    keys = [k for k in first.fields if not k.startswith(("GGUF.", "split."))]
    agree(f"{path.name}: keys", keys, [k for k, _, _ in case["metadata"]])
    for key, kind, value in case["metadata"]:
        field = first.fields[key]
        types = [V.ARRAY, kinds[kind]] if isinstance(value, list) and value else [V.ARRAY] if isinstance(value, list) else [kinds[kind]]
        agree(f"{path.name}: {key}", (field.types, field.contents()), (types, value))
    found = [t for r in readers for t in r.tensors]
    agree(f"{path.name}: names", [t.name for t in found], [t["name"] for t in case["tensors"]])
    schemes = {f"packed<{s}>": ty for ty, s in SCHEMES.items()} | GGUF_NUMBERS
    for got, t in zip(found, case["tensors"]):
        agree(f"{path.name}: {t['name']}", (got.tensor_type, got.shape.tolist()[::-1], got.data.tobytes().hex()),
              (schemes[t["dtype"]], t["shape"], t["hex"]))


def read_array(what, got, t):
    agree(what, (got.dtype, list(got.shape), got.tobytes().hex()), (np.dtype(NUMBERS[t["dtype"]]), t["shape"], t["hex"]))


def read_npz(path, case):
    with np.load(path, allow_pickle=False) as found:
        agree(f"{path.name}: names", found.files, [t["name"] for t in case["tensors"]])
        for t in case["tensors"]:
            read_array(f"{path.name}: {t['name']}", found[t["name"]], t)


def read_npy(path, case):
    read_array(path.name, np.load(path, allow_pickle=False), case["tensors"][0])


def read(folder):
    cases = json.loads((folder / "cases.json").read_text())
    readers = {"safetensors": read_safetensors, "gguf": read_gguf, "npz": read_npz, "npy": read_npy}
    for case in cases:
        readers[case["format"]](folder / case["file"], case)
    print(len(cases))


if __name__ == "__main__":
    {"write": write, "read": read}[sys.argv[1]](Path(sys.argv[2]))

#!/usr/bin/env python3
"""Test material that is fetched, not committed: `material.py OUT` (`cargo xtask material`).

  OUT/onnx-suite/KIND/CASE/     every case of the ONNX backend suite: model.onnx, test_data_set_K/{input,output}_I.pb,
                                and case.json: tolerances, ops, and why it is left aside if it is
  OUT/models/NAME/              real models from PyPI, with inputs and what ONNX Runtime computes of them
                                (material_models.py)
A stamp says what was written; with the same scripts and packages the second call does nothing.
"""

import hashlib
import json
import shutil
import sys
import time
import warnings
from pathlib import Path

import onnx
from onnx import AttributeProto, TensorProto

import material_models

KINDS = ["node", "simple", "pytorch-converted", "pytorch-operator"]
# What a case may be made of to be counted; others are run too, but are aside.
COUNTED = {
    TensorProto.DOUBLE, TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.BOOL,
    TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64,
    TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64,
}  # fmt: skip


def aside(model):
    """The kinds of types and ops that put a model aside."""
    found = set()

    def dtype(code):
        if code not in COUNTED and code != TensorProto.UNDEFINED:
            found.add(TensorProto.DataType.Name(code).lower())

    def values(infos):
        for info in infos:
            kind = info.type.WhichOneof("value")
            if kind == "tensor_type":
                dtype(info.type.tensor_type.elem_type)
            elif kind:
                found.add(kind.removesuffix("_type"))

    def nodes(listed):
        for n in listed:
            if n.domain == "ai.onnx.preview.training":
                found.add("training")
            elif n.domain not in ("", "ai.onnx") and not any(n.domain == f.domain for f in model.functions):
                found.add(n.domain)
            for word in ("Sequence", "Optional", "String"):
                if word in n.op_type and n.op_type != "ReverseSequence":
                    found.add(word.lower())
            for a in n.attribute:
                if a.type == AttributeProto.GRAPH:
                    graph(a.g)
                elif a.type == AttributeProto.TENSOR:
                    dtype(a.t.data_type)
                elif n.op_type == "Cast" and a.name == "to":
                    dtype(a.i)

    def graph(g):
        values([*g.input, *g.output, *g.value_info])
        for t in g.initializer:
            dtype(t.data_type)
        nodes(g.node)

    graph(model.graph)
    for function in model.functions:
        nodes(function.node)
    return sorted(found)


def proto(value, name, info):
    """A value of a case as the message that it is stored as."""
    if isinstance(value, (onnx.TensorProto, onnx.SequenceProto, onnx.OptionalProto)):
        return value
    kind = info.type.WhichOneof("value")
    if kind == "sequence_type":
        return onnx.numpy_helper.from_list(value, name)
    if kind == "optional_type":
        return onnx.numpy_helper.from_optional(value, name)
    return onnx.numpy_helper.from_array(value, name)


def write_case(case, folder):
    folder.mkdir(parents=True)
    if case.model is None:
        shutil.copytree(case.model_dir, folder, dirs_exist_ok=True)
        model = onnx.load(folder / "model.onnx")
    else:
        model = case.model
        onnx.save(model, folder / "model.onnx")
        for k, data in enumerate(case.data_sets):
            to = folder / f"test_data_set_{k}"
            to.mkdir()
            for side, listed, infos in zip(("input", "output"), data, (model.graph.input, model.graph.output)):
                for i, value in enumerate(listed):
                    (to / f"{side}_{i}.pb").write_bytes(proto(value, infos[i].name, infos[i]).SerializeToString())
    notes = {"rtol": case.rtol, "atol": case.atol, "aside": aside(model), "ops": [n.op_type for n in model.graph.node]}
    (folder / "case.json").write_text(json.dumps(notes))


def suite(out):
    from onnx.backend.test.loader import load_model_tests

    for kind in KINDS:
        cases = load_model_tests(kind=kind)
        for case in cases:
            write_case(case, out / kind / case.name)
        print(f"onnx-suite/{kind}: {len(cases)} cases", flush=True)


def stamp():
    """Changes with these scripts and the packages that they use."""
    here = Path(__file__).parent
    files = ["material.py", "material_models.py", "requirements-material.txt"]
    return hashlib.sha256(b"\0".join((here / f).read_bytes() for f in files)).hexdigest()


def main():
    out = Path(sys.argv[1]).resolve()
    mark, wanted = out / "stamp", stamp()
    if mark.exists() and mark.read_text() == wanted:
        print("material: present")
        return
    mark.unlink(missing_ok=True)
    # Some cases divide by zero on purpose.
    warnings.simplefilter("ignore")
    for name, write in {"onnx-suite": suite, "models": material_models.write}.items():
        begun = time.perf_counter()
        shutil.rmtree(out / name, ignore_errors=True)
        write(out / name)
        print(f"{name}: {time.perf_counter() - begun:.1f} s", flush=True)
    mark.write_text(wanted)


if __name__ == "__main__":
    try:
        main()
    except material_models.Failure as e:
        sys.exit(f"material: {e}")

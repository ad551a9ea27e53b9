"""Small ONNX models for the fuzzer of the importer: seeds_onnx.py fuzz/corpus/onnx

Needs onnx and numpy, as target/material/venv has them.
"""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

out = Path(sys.argv[1])
out.mkdir(parents=True, exist_ok=True)


def value(name, shape, kind=T.FLOAT):
    return h.make_tensor_value_info(name, kind, shape)


def save(name, nodes, inputs, outputs, initial=(), opset=17, functions=(), domains=()):
    graph = h.make_graph(list(nodes), "g", list(inputs), list(outputs), list(initial))
    imports = [h.make_opsetid("", opset)] + [h.make_opsetid(d, 1) for d in domains]
    model = h.make_model(graph, opset_imports=imports, ir_version=8, functions=list(functions))
    onnx.save(model, out / f"{name}.onnx")


def ints(name, values):
    return nh.from_array(np.array(values, np.int64), name)


def floats(name, values):
    return nh.from_array(np.array(values, np.float32), name)


node = h.make_node
x = value("x", ["batch", 4])
y = value("y", None)

save("dense", [node("Gemm", ["x", "w", "b"], ["h"], transB=1), node("Relu", ["h"], ["y"])], [x], [y],
     [floats("w", np.ones((3, 4))), floats("b", [0, 1, 2])])
save("shapes", [
    node("Shape", ["x"], ["s"]), node("Gather", ["s", "zero"], ["n"]), node("Unsqueeze", ["n", "zero1"], ["n1"]),
    node("Concat", ["n1", "two"], ["t"], axis=0), node("Reshape", ["x", "t"], ["r"]),
    node("Slice", ["r", "zero1", "n1", "zero1"], ["y"]),
], [x], [y], [ints("zero", 0), ints("zero1", [0]), ints("two", [2, 2])])
save("conv", [
    node("Conv", ["i", "w"], ["c"], auto_pad="SAME_UPPER", strides=[2, 2]),
    node("Resize", ["c", "", "scales"], ["r"], mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
    node("Add", ["r", "i"], ["y"]),
], [value("i", [1, 1, "h", "w"])], [y], [floats("w", np.ones((1, 1, 3, 3))), floats("scales", [1, 1, 2, 2])])
save("norm", [
    node("ReduceMean", ["x"], ["m"], axes=[-1]), node("Sub", ["x", "m"], ["d"]), node("Pow", ["d", "two"], ["q"]),
    node("ReduceMean", ["q"], ["v"], axes=[-1]), node("Add", ["v", "eps"], ["e"]), node("Sqrt", ["e"], ["r"]),
    node("Div", ["d", "r"], ["y"]),
], [x], [y], [floats("two", 2), floats("eps", 1e-5)])
then = h.make_graph([node("Relu", ["x"], ["a"])], "then", [], [value("a", None)])
other = h.make_graph([node("Neg", ["x"], ["b"])], "else", [], [value("b", None)])
save("if", [node("If", ["c"], ["y"], then_branch=then, else_branch=other)], [x, value("c", [], T.BOOL)], [y])
body = h.make_graph([node("Add", ["s", "x"], ["t"]), node("Identity", ["c"], ["d"]), node("Identity", ["t"], ["u"])], "body",
                    [value("i", [], T.INT64), value("c", [], T.BOOL), value("s", ["batch", 4])],
                    [value("d", [], T.BOOL), value("t", ["batch", 4]), value("u", ["batch", 4])])
save("loop", [node("Loop", ["n", "yes", "x"], ["last", "y"], body=body)], [x], [y],
     [ints("n", 3), nh.from_array(np.array(True), "yes")])
step = h.make_graph([node("Add", ["s", "e"], ["t"]), node("Identity", ["t"], ["u"])], "step",
                    [value("s", [4]), value("e", [4])], [value("t", [4]), value("u", [4])])
save("scan", [node("Scan", ["first", "x"], ["last", "y"], body=step, num_scan_inputs=1)], [x], [y], [floats("first", [0] * 4)])
f = h.make_function("own", "Twice", ["a"], ["b"], [node("Add", ["a", "a"], ["b"])], [h.make_opsetid("", 17)])
save("function", [h.make_node("Twice", ["x"], ["m"], domain="own"), h.make_node("Twice", ["m"], ["y"], domain="own")],
     [x], [y], functions=[f], domains=["own"])
save("quantised", [
    node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]), node("MatMulInteger", ["q", "w", "z"], ["i"]),
    node("Cast", ["i"], ["f"], to=T.FLOAT), node("Mul", ["f", "s"], ["y"]),
], [x], [y], [nh.from_array(np.arange(12, dtype=np.int8).reshape(4, 3), "w")])
save("qdq", [
    node("QuantizeLinear", ["x", "s", "z"], ["q"]), node("DequantizeLinear", ["q", "s", "z"], ["y"]),
], [x], [y], [floats("s", 0.1), nh.from_array(np.array(3, np.int8), "z")])
save("lstm", [node("LSTM", ["t", "w", "r"], ["", "y"], hidden_size=2)], [value("t", ["seq", 1, 3])], [y],
     [floats("w", np.ones((1, 8, 3))), floats("r", np.ones((1, 8, 2)))])
save("attention", [
    node("MatMul", ["x", "k"], ["s"]), node("Softmax", ["s"], ["p"]), node("MatMul", ["p", "x2"], ["y"]),
], [x, value("k", [4, "batch"]), value("x2", ["batch", 4])], [y])
save("old", [
    node("Squeeze", ["u"], ["a"], axes=[0]), node("Clip", ["a"], ["b"], min=0.0, max=1.0),
    node("Pad", ["b"], ["c"], pads=[0, 1, 0, 1]), node("Softmax", ["c"], ["y"]),
], [value("u", [1, 2, 3])], [y], opset=9)
kinds = [T.FLOAT, T.DOUBLE, T.FLOAT16, T.BFLOAT16, T.INT8, T.UINT8, T.INT16, T.INT32, T.INT64, T.UINT32, T.UINT64, T.BOOL, T.INT4,
         T.UINT4, T.FLOAT8E4M3FN]
save("fields", [node("Identity", [f"t{k}"], [f"o{k}"]) for k in kinds], [], [value(f"o{k}", None, k) for k in kinds],
     [h.make_tensor(f"t{k}", k, [3], [0, 1, 1]) for k in kinds], opset=21)

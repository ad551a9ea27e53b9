"""The ONNX models of the `cpu` bench, built from the weights that RLX gets, the way exporters write such models."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

# The sizes that no file of weights tells; the rest is read off the shapes.
HEADS = 12


class Builder:
    """Nodes and initializers by name; `op` gives the name of its result."""

    def __init__(self):
        self.nodes, self.weights, self.count = [], {}, 0

    def weight(self, name, value):
        self.weights.setdefault(name, np.ascontiguousarray(value))
        return name

    def ints(self, *values):
        return self.weight("i_" + "_".join(map(str, values)), np.array(values, np.int64))

    def number(self, value):
        return self.weight(f"f_{value}", np.array(value, np.float32))

    def op(self, kind, *inputs, to=None, **attributes):
        self.count += 1
        to = to or f"v{self.count}"
        self.nodes.append(helper.make_node(kind, list(inputs), [to], name=f"{kind}{self.count}", **attributes))
        return to

    def model(self, inputs, output):
        initializers = [numpy_helper.from_array(v, k) for k, v in self.weights.items()]
        info = [helper.make_tensor_value_info(n, t, s) for n, t, s in inputs]
        graph = helper.make_graph(self.nodes, "bench", info, [helper.make_tensor_value_info(*output)], initializers)
        # Opset 17 has LayerNormalization and is what the fusions of the runtimes were written for.
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


def matmul(weights):
    g, w = Builder(), weights["w"]
    g.op("MatMul", "x", g.weight("w", w), to="y")
    return g.model([("x", TensorProto.FLOAT, ["m", w.shape[0]])], ("y", TensorProto.FLOAT, ["m", w.shape[1]]))


def encoder(weights):
    g = Builder()
    hidden = weights["embeddings.word_embeddings.weight"].shape[1]
    layers = sum(k.endswith("intermediate.dense.weight") for k in weights)

    def linear(x, name):
        y = g.op("MatMul", x, g.weight(name + ".weight", weights[name + ".weight"].T))
        return g.op("Add", g.weight(name + ".bias", weights[name + ".bias"]), y)

    def norm(x, name):
        scale, bias = (g.weight(name + end, weights[name + end]) for end in (".weight", ".bias"))
        return g.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-12)

    def heads(x, axes):
        return g.op("Transpose", g.op("Reshape", x, g.ints(0, 0, HEADS, hidden // HEADS)), perm=axes)

    def gelu(x):
        wave = g.op("Add", g.op("Erf", g.op("Div", x, g.number(2**0.5))), g.number(1.0))
        return g.op("Mul", g.op("Mul", x, wave), g.number(0.5))

    def embedding(name):
        return g.weight(name, weights[f"embeddings.{name}_embeddings.weight"])

    length = g.op("Gather", g.op("Shape", "ids"), g.weight("one", np.array(1, np.int64)), axis=0)
    places = g.op("Slice", embedding("position"), g.ints(0), g.op("Unsqueeze", length, g.ints(0)), g.ints(0))
    x = g.op("Add", g.op("Gather", embedding("word"), "ids"), g.weight("kind", weights["embeddings.token_type_embeddings.weight"][0]))
    x = norm(g.op("Add", x, places), "embeddings.LayerNorm")
    hide = g.op("Cast", g.op("Unsqueeze", g.op("Unsqueeze", "mask", g.ints(1)), g.ints(2)), to=TensorProto.FLOAT)
    hide = g.op("Mul", g.op("Sub", g.number(1.0), hide), g.number(-10000.0))
    for i in range(layers):
        name = f"encoder.layer.{i}."
        q, k, v = (linear(x, f"{name}attention.self.{which}") for which in ("query", "key", "value"))
        scores = g.op("MatMul", heads(q, [0, 2, 1, 3]), heads(k, [0, 2, 3, 1]))
        scores = g.op("Add", g.op("Div", scores, g.number((hidden // HEADS) ** 0.5)), hide)
        seen = g.op("MatMul", g.op("Softmax", scores, axis=-1), heads(v, [0, 2, 1, 3]))
        seen = g.op("Reshape", g.op("Transpose", seen, perm=[0, 2, 1, 3]), g.ints(0, 0, hidden))
        x = norm(g.op("Add", linear(seen, name + "attention.output.dense"), x), name + "attention.output.LayerNorm")
        y = linear(gelu(linear(x, name + "intermediate.dense")), name + "output.dense")
        last = name + "output.LayerNorm"
        x = norm(g.op("Add", y, x), last)
    g.op("Identity", x, to="hidden")
    ids = [(n, TensorProto.INT64, ["batch", "seq"]) for n in ("ids", "mask")]
    return g.model(ids, ("hidden", TensorProto.FLOAT, ["batch", "seq", hidden]))


MODELS = {"matmul": matmul, "encoder": encoder}

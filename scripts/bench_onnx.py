"""The ONNX models of the `cpu` bench, built from the weights that RLX gets.

`encoder` is written the way exporters write it; `encoder_fused` with ONNX Runtime's own ops, the way its optimiser for
transformers would leave it.
"""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

# The sizes that no file of weights tells; the rest is read off the shapes.
HEADS = 12
# Opset 17 has LayerNormalization and is what the fusions of the runtimes were written for.
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]


class Builder:
    """Nodes and initializers by name; `op` gives the name of its result."""

    def __init__(self):
        self.nodes, self.weights, self.count = [], {}, 0

    def weight(self, name, value):
        self.weights.setdefault(name, np.array(value, order="C"))
        return name

    def ints(self, *values):
        return self.weight("i_" + "_".join(map(str, values)), np.array(values, np.int64))

    def number(self, value):
        return self.weight(f"f_{value}", np.array(value, np.float32))

    def op(self, kind, *inputs, result=None, **attributes):
        self.count += 1
        result = result or f"v{self.count}"
        self.nodes.append(helper.make_node(kind, inputs, [result], name=f"{kind}{self.count}", **attributes))
        return result

    def model(self, inputs, output):
        initializers = [numpy_helper.from_array(v, k) for k, v in self.weights.items()]
        info = [helper.make_tensor_value_info(n, t, s) for n, t, s in inputs]
        graph = helper.make_graph(self.nodes, "bench", info, [helper.make_tensor_value_info(*output)], initializers)
        return helper.make_model(graph, opset_imports=OPSETS, ir_version=9).SerializeToString()


def matmul(weights):
    g, w = Builder(), weights["w"]
    g.op("MatMul", "x", g.weight("w", w), result="y")
    return g.model([("x", TensorProto.FLOAT, ["m", w.shape[0]])], ("y", TensorProto.FLOAT, ["m", w.shape[1]]))


def encoder(weights, fused=False):
    g = Builder()
    hidden = weights["embeddings.word_embeddings.weight"].shape[1]
    layers = sum(k.endswith("intermediate.dense.weight") for k in weights)

    def known(name):
        return g.weight(name, weights[name])

    def own(kind, *inputs, **attributes):
        return g.op(kind, *inputs, domain="com.microsoft", **attributes)

    def product(x, name):
        return g.op("MatMul", x, g.weight(name + ".weight", weights[name + ".weight"].T))

    def linear(x, name):
        return g.op("Add", product(x, name), known(name + ".bias"))

    def norm(x, name):
        return g.op("LayerNormalization", x, known(name + ".weight"), known(name + ".bias"), axis=-1, epsilon=1e-12)

    def residual_norm(y, x, dense, name):
        if not fused:
            return norm(g.op("Add", linear(y, dense), x), name)
        tail = (known(name + ".weight"), known(name + ".bias"), known(dense + ".bias"))
        return own("SkipLayerNormalization", product(y, dense), x, *tail, epsilon=1e-12)

    def heads(x, axes):
        return g.op("Transpose", g.op("Reshape", x, g.ints(0, 0, HEADS, hidden // HEADS)), perm=axes)

    def attention(x, name):
        names = [name + which for which in ("query", "key", "value")]
        if fused:
            w = g.weight(name + "weight", np.concatenate([weights[n + ".weight"].T for n in names], 1))
            b = g.weight(name + "bias", np.concatenate([weights[n + ".bias"] for n in names]))
            return own("Attention", x, w, b, mask, num_heads=HEADS, mask_filter_value=-10000.0)
        q, k, v = (linear(x, n) for n in names)
        scores = g.op("MatMul", heads(q, [0, 2, 1, 3]), heads(k, [0, 2, 3, 1]))
        scores = g.op("Add", g.op("Div", scores, g.number((hidden // HEADS) ** 0.5)), mask)
        seen = g.op("MatMul", g.op("Softmax", scores, axis=-1), heads(v, [0, 2, 1, 3]))
        return g.op("Reshape", g.op("Transpose", seen, perm=[0, 2, 1, 3]), g.ints(0, 0, hidden))

    def gelu_linear(x, name):
        if fused:
            return own("BiasGelu", product(x, name), known(name + ".bias"))
        x = linear(x, name)
        wave = g.op("Add", g.op("Erf", g.op("Div", x, g.number(2**0.5))), g.number(1.0))
        return g.op("Mul", g.op("Mul", x, wave), g.number(0.5))

    def embedding(name):
        return known(f"embeddings.{name}_embeddings.weight")

    length = g.op("Gather", g.op("Shape", "ids"), g.weight("one", np.array(1, np.int64)), axis=0)
    places = g.op("Slice", embedding("position"), g.ints(0), g.op("Unsqueeze", length, g.ints(0)), g.ints(0))
    kind = g.weight("kind", weights["embeddings.token_type_embeddings.weight"][0])
    x = g.op("Add", g.op("Add", g.op("Gather", embedding("word"), "ids"), kind), places)
    x = norm(x, "embeddings.LayerNorm")
    if fused:
        mask = g.op("Cast", "mask", to=TensorProto.INT32)
    else:
        seen = g.op("Cast", g.op("Unsqueeze", g.op("Unsqueeze", "mask", g.ints(1)), g.ints(2)), to=TensorProto.FLOAT)
        mask = g.op("Mul", g.op("Sub", g.number(1.0), seen), g.number(-10000.0))
    for i in range(layers):
        name = f"encoder.layer.{i}."
        y = attention(x, name + "attention.self.")
        x = residual_norm(y, x, name + "attention.output.dense", name + "attention.output.LayerNorm")
        y = gelu_linear(x, name + "intermediate.dense")
        x = residual_norm(y, x, name + "output.dense", name + "output.LayerNorm")
    g.op("Identity", x, result="hidden")
    ids = [(n, TensorProto.INT64, ["batch", "seq"]) for n in ("ids", "mask")]
    return g.model(ids, ("hidden", TensorProto.FLOAT, ["batch", "seq", hidden]))


def encoder_fused(weights):
    return encoder(weights, fused=True)


MODELS = {"matmul": matmul, "encoder": encoder, "encoder_fused": encoder_fused}

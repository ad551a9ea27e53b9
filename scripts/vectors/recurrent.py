"""Sequences. Recurrent layers: torch.nn's, and the same loops by hand for what those have not. Counts of n-grams."""

import torch
import torch.nn.functional as N

from .core import F, I, V, attrs

FUNCTIONS = {
    "sigmoid": lambda x, a, b: torch.sigmoid(x),
    "tanh": lambda x, a, b: torch.tanh(x),
    "relu": lambda x, a, b: torch.relu(x),
    "affine": lambda x, a, b: a * x + b,
    "leaky_relu": lambda x, a, b: N.leaky_relu(x, a),
    "thresholded_relu": lambda x, a, b: torch.where(x >= a, x, 0),
    "scaled_tanh": lambda x, a, b: a * torch.tanh(b * x),
    "hard_sigmoid": lambda x, a, b: torch.clamp(a * x + b, 0, 1),
    "elu": lambda x, a, b: N.elu(x, a),
    "softsign": lambda x, a, b: N.softsign(x),
    "softplus": lambda x, a, b: N.softplus(x),
}
DEFAULTS = {
    "affine": (1.0, 0.0),
    "leaky_relu": (0.01, 0.0),
    "thresholded_relu": (1.0, 0.0),
    "scaled_tanh": (1.0, 1.0),
    "hard_sigmoid": (0.2, 0.5),
    "elu": (1.0, 0.0),
}


def functions(names, a):
    """The functions of those names: the first two of gates, behind the clip."""

    def one(k, name):
        alpha, beta = DEFAULTS.get(name, (0.0, 0.0))
        alpha = a["alpha"][k] if "alpha" in a else alpha
        beta = a["beta"][k] if "beta" in a else beta
        clip = a.get("clip") if k < 2 else None
        bound = (lambda x: x.clamp(-clip, clip)) if clip else (lambda x: x)
        return lambda x: FUNCTIONS[name](bound(x), alpha, beta)

    return [one(k, name) for k, name in enumerate(names)]


def loop(x, state, step, lengths, reverse):
    """All results and the last state; beyond its length an entry of the batch keeps its state and gives 0."""
    ys = [None] * len(x)
    for t in reversed(range(len(x))) if reverse else range(len(x)):
        new = step(x[t], state)
        y = new[0]
        if lengths is not None:
            valid = (lengths > t)[:, None]
            new = [torch.where(valid, n, s) for n, s in zip(new, state)]
            y = torch.where(valid, y, 0)
        ys[t], state = y, new
    return [torch.stack(ys), *state]


def zeros(x, r):
    return torch.zeros(x.shape[1], r.shape[1], dtype=x.dtype)


def rnn(x, w, r, bias=None, h0=None, lengths=None, **a):
    (f,) = functions([a.get("f", "tanh")], a)
    bias = 0 if bias is None else bias
    step = lambda x, s: [f(x @ w.T + s[0] @ r.T + bias)]
    return loop(x, [zeros(x, r) if h0 is None else h0], step, lengths, a.get("reverse", False))


def gru(x, w, r, bias=None, recurrent_bias=None, h0=None, lengths=None, **a):
    f, g = functions([a.get("f", "sigmoid"), a.get("g", "tanh")], a)
    none = torch.zeros(len(r), dtype=x.dtype)
    bw = (none if bias is None else bias).chunk(3)
    br = (none if recurrent_bias is None else recurrent_bias).chunk(3)
    ws, rs = w.chunk(3), r.chunk(3)

    def step(x, s):
        (h,) = s
        z, reset = [f(x @ ws[k].T + h @ rs[k].T + bw[k] + br[k]) for k in (0, 1)]
        if a.get("linear_before_reset", False):
            new = g(x @ ws[2].T + bw[2] + reset * (h @ rs[2].T + br[2]))
        else:
            new = g(x @ ws[2].T + bw[2] + (reset * h) @ rs[2].T + br[2])
        return [(1 - z) * new + z * h]

    return loop(x, [zeros(x, r) if h0 is None else h0], step, lengths, a.get("reverse", False))


def lstm(x, w, r, bias=None, h0=None, c0=None, peephole=None, lengths=None, **a):
    f, g, h = functions([a.get("f", "sigmoid"), a.get("g", "tanh"), a.get("h", "tanh")], a)
    b = (torch.zeros(len(r), dtype=x.dtype) if bias is None else bias).chunk(4)
    p = (torch.zeros(3 * r.shape[1], dtype=x.dtype) if peephole is None else peephole).chunk(3)
    ws, rs = w.chunk(4), r.chunk(4)

    def step(x, s):
        old, c = s
        gate = [x @ ws[k].T + old @ rs[k].T + b[k] for k in range(4)]
        i = f(gate[0] + p[0] * c)
        forget = 1 - i if a.get("input_forget", False) else f(gate[2] + p[2] * c)
        c = forget * c + i * g(gate[3])
        return [f(gate[1] + p[1] * c) * h(c), c]

    state = [zeros(x, r) if h0 is None else h0, zeros(x, r) if c0 is None else c0]
    return loop(x, state, step, lengths, a.get("reverse", False))


def reordered(t, order):
    """PyTorch's order of blocks, from ours."""
    parts = t.chunk(len(order))
    return torch.cat([parts[k] for k in order])


def layer(make, order, biases):
    """The layer of torch.nn with these weights: bias is that of the input, or both biases are given."""

    def run(x, w, r, *rest):
        m = make(x.shape[2], r.shape[1])
        put = {"weight_ih_l0": reordered(w, order), "weight_hh_l0": reordered(r, order)}
        b, state = rest[:biases], rest[biases:]
        put["bias_ih_l0"] = reordered(b[0], order)
        put["bias_hh_l0"] = reordered(b[1], order) if biases == 2 else torch.zeros_like(b[0])
        state = [s[None] for s in state]
        y, last = torch.func.functional_call(m, put, (x, tuple(state) if len(state) > 1 else state[0]))
        return [y, *[s[0] for s in (last if isinstance(last, tuple) else [last])]]

    return run


def ngrams(x, grams, skips=0):
    """How often each row of grams occurs in each row of x."""
    n = grams.shape[1]
    counts = torch.zeros(*x.shape[:-1], len(grams), dtype=torch.int64)
    for distance in range(1, skips + 2) if n > 1 else [1]:
        reach = distance * (n - 1) + 1
        if x.shape[-1] >= reach:
            windows = x.unfold(-1, reach, 1)[..., ::distance]
            counts += (windows[..., None, :] == grams).all(-1).sum(-2)
    return counts


def cases(c):
    layers(c)
    for n, skips, s in [(1, 0, 7), (1, 3, 7), (2, 0, 9), (2, 4, 9), (3, 1, 12), (3, 5, 4)]:
        c.case(
            f"counts = count_ngrams(x, grams){attrs(skips=skips)}",
            {"x": I(2, s, lo=0, hi=3, dtype=torch.int64), "grams": I(5, n, lo=0, hi=3, dtype=torch.int32)},
            lambda x, grams: ngrams(x, grams, skips),
        )


def layers(c):
    def sizes(gates, s=4, b=3, i=2, h=2, most=1.5):
        some = lambda *shape: F(*shape, lo=-most, hi=most)
        return {"x": some(s, b, i), "w": some(gates * h, i), "r": some(gates * h, h)}

    state = F(3, 2)
    double = {"dtype": torch.float64}
    c.case(
        "y, last = rnn(x, w, r, bias, h0)",
        {**sizes(1), "bias": F(2), "h0": state},
        layer(lambda i, h: torch.nn.RNN(i, h, **double), [0], 1),
        name="torch",
    )
    c.case(
        "y, last = rnn(x, w, r, bias, h0) {f: relu}",
        {**sizes(1), "bias": F(2), "h0": state},
        layer(lambda i, h: torch.nn.RNN(i, h, nonlinearity="relu", **double), [0], 1),
        name="torch",
    )
    c.case(
        "y, last = gru(x, w, r, bias, recurrent_bias, h0) {linear_before_reset: true}",
        {**sizes(3), "bias": F(6), "recurrent_bias": F(6), "h0": state},
        layer(lambda i, h: torch.nn.GRU(i, h, **double), [1, 0, 2], 2),
        name="torch",
    )
    for s in (5, 1):
        c.case(
            "y, last_h, last_c = lstm(x, w, r, bias, h0, c0)",
            {**sizes(4, s=s), "bias": F(8), "h0": state, "c0": state},
            layer(lambda i, h: torch.nn.LSTM(i, h, **double), [0, 2, 3, 1], 1),
            name="torch",
        )

    lengths = V([4, 1, 2], torch.int64)
    many = [
        ("rnn", rnn, 1, []),
        ("gru", gru, 3, []),
        ("lstm", lstm, 4, []),
    ]
    outs = {"rnn": "y, last", "gru": "y, last", "lstm": "y, last_h, last_c"}
    ports = {
        "rnn": ["bias", "h0", "lengths"],
        "gru": ["bias", "recurrent_bias", "h0", "lengths"],
        "lstm": ["bias", "h0", "c0", "peephole", "lengths"],
    }
    shapes = {"bias": lambda g: F(2 * g), "recurrent_bias": lambda g: F(2 * g), "h0": lambda g: state}
    shapes.update({"c0": lambda g: state, "peephole": lambda g: F(6), "lengths": lambda g: lengths})

    def case(op, fn, gates, given, name, s=4, **a):
        # Functions without bounds let large states grow beyond all others.
        most = 0.5 if name in ("functions", "numbers") else 1.5
        inputs = {**sizes(gates, s=s, most=most), **{k: shapes[k](gates) for k in given}}
        operands = ", ".join(["x", "w", "r"] + [k if k in given else "_" for k in ports[op]])
        while operands.endswith(", _"):
            operands = operands[:-3]
        run = lambda x, w, r, *rest: fn(x, w, r, **dict(zip(given, rest)), **a)
        c.case(f"{outs[op]} = {op}({operands}){attrs(**a)}", inputs, run, name=name)

    for op, fn, gates, _ in many:
        kinds = {"rnn": ["f"], "gru": ["f", "g"], "lstm": ["f", "g", "h"]}[op]
        case(op, fn, gates, [], "bare")
        case(op, fn, gates, ports[op], "all")
        case(op, fn, gates, ports[op], "all", reverse=True)
        case(op, fn, gates, ["lengths"], "lengths", s=1)
        case(op, fn, gates, ["h0"], "clip", clip=0.4)
        for name in FUNCTIONS:
            case(op, fn, gates, [], "functions", **{k: name for k in kinds})
        n = len(kinds)
        numbers = {"alpha": [0.3 + 0.2 * k for k in range(n)], "beta": [0.6 - 0.1 * k for k in range(n)]}
        for name in ("affine", "scaled_tanh", "hard_sigmoid", "leaky_relu", "elu", "thresholded_relu"):
            case(op, fn, gates, [], "numbers", **{k: name for k in kinds}, **numbers)
    case("gru", gru, 3, ports["gru"], "reset", linear_before_reset=True)
    case("gru", gru, 3, ["h0"], "reset", linear_before_reset=True)
    case("lstm", lstm, 4, ["bias", "peephole"], "coupled", input_forget=True)

"""How a case is written: a graph in the text format, its inputs, and what PyTorch makes of them.

A file holds, for case N, the tensors `N.in.PORT`, `N.out.OUTPUT`, and where there are gradients `N.ct.OUTPUT` (what
flows into the output; nothing for one without axes, where it is 1) and `N.grad.PORT`. The planes of a packed input
are `N.in.PORT.PLANE`. The metadata `cases` is JSON: a list of
  name, text    the case, and the graph
  diff, wrt     the outputs that are differentiated, and the ports with respect to which
  rtol, atol    |got - want| <= rtol |want| + atol (1 + the largest finite |want| of the tensor); for gradients too
  ranks         if above 1: every tensor has a leading axis of that size, one entry per rank
  rounded       whether the oracle is to round every result to its declared dtype
"""

import json
import re
import zlib

import torch
from safetensors.torch import save

NAMES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "f8e4m3",
    torch.float8_e5m2: "f8e5m2",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.uint16: "u16",
    torch.uint32: "u32",
    torch.uint64: "u64",
    torch.bool: "bool",
}
DTYPES = {name: dtype for dtype, name in NAMES.items()}

nan, inf = float("nan"), float("inf")


class Draw:
    """A random tensor, drawn when the case's seed is known."""

    def __init__(self, make):
        self.make = make


def F(*shape, lo=-1.5, hi=1.5, dtype=torch.float64):
    """Floats between lo and hi."""
    draw = lambda g: (torch.rand(shape, generator=g, dtype=torch.float64) * (hi - lo) + lo).to(dtype)
    return Draw(draw)


def D(*shape, lo=-1.5, hi=1.5):
    """Floats that keep a distance from each other: nothing ties."""

    def make(g):
        n = torch.Size(shape).numel()
        order = torch.randperm(n, generator=g).to(torch.float64)
        return (lo + (order + 0.5) * (hi - lo) / max(n, 1)).reshape(shape)

    return Draw(make)


def I(*shape, lo=0, hi=10, dtype=torch.int32):
    """Integers from lo up to, not including, hi."""
    return Draw(lambda g: torch.randint(lo, hi, shape, generator=g, dtype=torch.int64).to(dtype))


def B(*shape, p=0.5):
    """Bools that are true with probability p."""
    return Draw(lambda g: torch.rand(shape, generator=g, dtype=torch.float64) < p)


def V(values, dtype=torch.float64):
    """These very values."""
    return torch.tensor(values, dtype=dtype)


def with_limits(fn, values):
    """The values without the infinities at which PyTorch's gradient of fn loses its limit."""
    x = V(values).requires_grad_()
    (grad,) = torch.autograd.grad(fn(x).sum(), x)
    return x.detach()[x.isfinite() | ~grad.isnan()].clone()


class Packed:
    """A packed input: the scheme, the shape, its planes, and the values it stands for."""

    def __init__(self, scheme, shape, planes, values):
        self.scheme, self.shape, self.planes, self.values = scheme, list(shape), planes, values


def word(value):
    """A Python value as an attribute of the text format."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(word(v) for v in value) + "]"
    if isinstance(value, float):
        return repr(value)
    return NAMES[value] if isinstance(value, torch.dtype) else str(value)


def attrs(**kw):
    """Attributes in braces; those that are None are left out."""
    given = [f"{k}: {word(v)}" for k, v in kw.items() if v is not None]
    return " {" + ", ".join(given) + "}" if given else ""


class Family:
    def __init__(self, name):
        self.name, self.list, self.tensors, self.seen = name, [], {}, {}

    def case(self, body, inputs, fn, wrt=None, name=None, outs=None, rtol=1e-9, atol=1e-11, ranks=1, rounded=False):
        """Records a case. `body` are the lines of the graph; `fn` takes the inputs in order and gives the outputs.

        `outs` are the outputs' names, by default what the last line defines. `wrt` are the ports to differentiate
        with respect to, by default all floats.
        """
        lines = [line.strip() for line in body.strip().splitlines()]
        op = re.search(r"= *([a-z_0-9]+)\(", lines[-1]).group(1)
        base = f"{op}.{name}" if name else op
        self.seen[base] = self.seen.get(base, 0) + 1
        full = f"{base}.{self.seen[base]}" if self.seen[base] > 1 else base
        outs = outs or [o.strip() for o in lines[-1].split("=")[0].split(",")]
        g = torch.Generator().manual_seed(zlib.crc32(f"{self.name}/{full}".encode()))
        given = {k: v.make(g) if isinstance(v, Draw) else v for k, v in inputs.items()}

        text = "graph t {\n"
        for k, v in given.items():
            dtype = f"packed<{v.scheme}>" if isinstance(v, Packed) else NAMES[v.dtype]
            text += f"  input {k}: {dtype}{list(v.shape)[1 if ranks > 1 else 0 :]}\n"
        text += "".join(f"  {line}\n" for line in lines)
        text += "".join(f"  output {o} = {o}\n" for o in outs) + "}\n"

        args = []
        for v in given.values():
            v = v.values if isinstance(v, Packed) else v.clone()
            args.append(v.requires_grad_() if v.dtype == torch.float64 and not v.requires_grad else v)
        results = fn(*args)
        results = list(results) if isinstance(results, (tuple, list)) else [results]
        assert len(results) == len(outs), (full, len(results), outs)

        n = len(self.list)
        for k, v in given.items():
            if isinstance(v, Packed):
                for i, plane in enumerate(v.planes):
                    self.put(f"{n}.in.{k}.{i}", plane)
            else:
                self.put(f"{n}.in.{k}", v)
        for o, r in zip(outs, results):
            self.put(f"{n}.out.{o}", r)

        if wrt is None:
            wrt = [k for k, v in given.items() if not isinstance(v, Packed) and v.dtype == torch.float64]
        leaves = [a for k, a in zip(given, args) if k in wrt]
        diff = [(o, r) for o, r in zip(outs, results) if r.requires_grad and r.dtype.is_floating_point]
        if not diff or not leaves:
            diff, wrt = [], []
        else:
            cts = []
            for o, r in diff:
                scalar = r.ndim == (1 if ranks > 1 else 0)
                ct = torch.ones_like(r) if scalar else torch.rand(r.shape, generator=g, dtype=r.dtype) * 2 - 1
                cts.append(ct)
                if not scalar:
                    self.put(f"{n}.ct.{o}", ct)
            grads = torch.autograd.grad([r for _, r in diff], leaves, cts, allow_unused=True)
            for (k, leaf), grad in zip([(k, a) for k, a in zip(given, args) if k in wrt], grads):
                self.put(f"{n}.grad.{k}", torch.zeros_like(leaf) if grad is None else grad)
        self.list.append(
            {
                "name": full,
                "text": text,
                "diff": [o for o, _ in diff],
                "wrt": list(wrt),
                "rtol": rtol,
                "atol": atol,
                "ranks": ranks,
                "rounded": rounded,
            }
        )

    def put(self, key, t):
        assert key not in self.tensors, key
        self.tensors[key] = t.detach().clone().contiguous()

    def save(self, path):
        data = save(self.tensors, metadata={"cases": json.dumps(self.list, indent=0)})
        path.write_bytes(data)
        return len(data)

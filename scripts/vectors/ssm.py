"""State-space models and the gated delta rule, one step after the other."""

import torch
import torch.nn.functional as N

from .core import F, attrs


def step_of(delta, bias, softplus):
    delta = delta if bias is None else delta + bias
    return torch.logaddexp(delta, torch.zeros_like(delta)) if softplus else delta


def selective_scan(x, delta, a, b, c, d=None, z=None, bias=None, state=None, softplus=False):
    delta = step_of(delta, bias, softplus)
    h = torch.zeros(x.shape[0], x.shape[2], a.shape[1], dtype=x.dtype) if state is None else state
    ys = []
    for t in range(x.shape[1]):
        dt = delta[:, t, :, None]
        h = torch.exp(dt * a) * h + dt * b[:, t, None, :] * x[:, t, :, None]
        ys.append((c[:, t, None, :] * h).sum(-1))
    y = torch.stack(ys, 1) if ys else x * 0
    y = y if d is None else y + d * x
    return y if z is None else y * N.silu(z), h + 0


def ssd(x, dt, a, b, c, d=None, z=None, bias=None, state=None, softplus=False):
    dt = step_of(dt, bias, softplus)
    heads = x.shape[2]
    b, c = (v.repeat_interleave(heads // v.shape[2], 2) for v in (b, c))
    s = torch.zeros(x.shape[0], heads, x.shape[3], b.shape[3], dtype=x.dtype) if state is None else state
    ys = []
    for t in range(x.shape[1]):
        s = torch.exp(dt[:, t] * a)[..., None, None] * s + torch.einsum("bh,bhp,bhn->bhpn", dt[:, t], x[:, t], b[:, t])
        ys.append(torch.einsum("bhpn,bhn->bhp", s, c[:, t]))
    y = torch.stack(ys, 1) if ys else x * 0
    y = y if d is None else y + d[:, None] * x
    return y if z is None else y * N.silu(z), s + 0


def delta_net(q, k, v, g, beta, state=None, scale=None, normalize=False):
    if normalize:
        q, k = (x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    q = q * (q.shape[-1] ** -0.5 if scale is None else scale)
    q, k = (x.repeat_interleave(v.shape[2] // x.shape[2], 2) for x in (q, k))
    s = torch.zeros(*v.shape[:1], v.shape[2], q.shape[3], v.shape[3], dtype=v.dtype) if state is None else state
    ys = []
    for t in range(v.shape[1]):
        s = s * torch.exp(g[:, t])[..., None, None]
        read = torch.einsum("bhkv,bhk->bhv", s, k[:, t])
        s = s + torch.einsum("bhk,bhv->bhkv", k[:, t], beta[:, t, :, None] * (v[:, t] - read))
        ys.append(torch.einsum("bhkv,bhk->bhv", s, q[:, t]))
    return (torch.stack(ys, 1) if ys else v * 0), s + 0


def causal_conv(x, w, bias=None, state=None, silu=False):
    k = w.shape[1]
    past = torch.zeros(x.shape[0], k - 1, x.shape[2], dtype=x.dtype) if state is None else state
    whole = torch.cat([past, x], 1)
    y = (
        N.conv1d(whole.transpose(1, 2), w[:, None, :], bias, groups=w.shape[0]).transpose(1, 2)
        if x.shape[1]
        else x + 0 * w.sum()
    )
    return N.silu(y) if silu else y, whole[:, whole.shape[1] - (k - 1) :] + 0


def operands(required, optional, given):
    """The operand list with `_` for what is left out."""
    names = list(required) + [o if o in given else "_" for o in optional]
    while names[-1] == "_":
        names.pop()
    return ", ".join(names)


def by_name(fn, names, **kw):
    """fn of operands that are given in the order of names."""
    return lambda *xs: fn(**dict(zip(names, xs)), **kw)


def family(c, op, fn, shapes, optional, last, variants):
    """Every variant of attributes, with the optional operands it names; `shapes` draws them all."""
    required = [k for k in shapes if k not in optional]
    for given, a in variants:
        inputs = {k: v for k, v in shapes.items() if k in required or k in given}
        python = {"bias": "bias", "delta_bias": "bias", "dt_bias": "bias"}
        names = [python.get(k, k) for k in inputs]
        c.case(f"y, {last} = {op}({operands(required, optional, given)}){attrs(**a)}", inputs, by_name(fn, names, **a))


def gradient_op(c, op, fn, shapes, dy, dlast):
    """The gradient op with all operands, and its own gradient against the second derivative."""

    def run(dy, *rest):
        *xs, dlast = rest
        return torch.autograd.grad(fn(*xs), xs, [dy, dlast], create_graph=True)

    outs = [f"d{k}" for k in shapes]
    c.case(f"{', '.join(outs)} = {op}(dy, {', '.join(shapes)}, dlast)", {"dy": dy} | shapes | {"dlast": dlast}, run)


def cases(c):
    everything = ["d", "z", "delta_bias", "state"]
    for b, s, h, n in [(1, 4, 3, 2), (2, 3, 1, 5), (1, 1, 2, 3), (2, 7, 2, 1), (1, 0, 2, 2), (1, 33, 1, 2)]:
        shapes = {
            "x": F(b, s, h),
            "delta": F(b, s, h, lo=0.05, hi=1),
            "a": F(h, n, lo=-2, hi=-0.1),
            "b": F(b, s, n),
            "c": F(b, s, n),
            "d": F(h),
            "z": F(b, s, h),
            "delta_bias": F(h, lo=-0.5, hi=0.5),
            "state": F(b, h, n),
        }
        family(
            c,
            "selective_scan",
            selective_scan,
            shapes,
            everything,
            "last",
            [
                ([], {}),
                (["d"], {}),
                (["z"], {}),
                (["state"], {}),
                (["delta_bias"], {"softplus": True}),
                (everything, {"softplus": True}),
                (everything, {}),
            ],
        )
    everything = ["d", "z", "dt_bias", "state"]
    for b, s, h, p, g, n in [
        (1, 4, 2, 3, 1, 2),
        (2, 3, 4, 1, 2, 3),
        (1, 1, 2, 2, 2, 2),
        (1, 9, 3, 2, 3, 1),
        (1, 0, 2, 2, 1, 2),
    ]:
        shapes = {
            "x": F(b, s, h, p),
            "dt": F(b, s, h, lo=0.05, hi=1),
            "a": F(h, lo=-2, hi=-0.1),
            "b": F(b, s, g, n),
            "c": F(b, s, g, n),
            "d": F(h),
            "z": F(b, s, h, p),
            "dt_bias": F(h, lo=-0.5, hi=0.5),
            "state": F(b, h, p, n),
        }
        family(
            c,
            "ssd",
            ssd,
            shapes,
            everything,
            "last",
            [
                ([], {}),
                (["d", "z"], {}),
                (["state"], {}),
                (["dt_bias"], {"softplus": True}),
                (everything, {"softplus": True}),
            ],
        )
    for b, s, hk, hv, dk, dv in [
        (1, 4, 2, 2, 3, 2),
        (2, 3, 1, 1, 2, 4),
        (1, 1, 2, 2, 1, 1),
        (1, 5, 1, 2, 2, 2),
        (1, 0, 1, 1, 2, 2),
    ]:
        shapes = {
            "q": F(b, s, hk, dk),
            "k": F(b, s, hk, dk),
            "v": F(b, s, hv, dv),
            "g": F(b, s, hv, lo=-1, hi=-0.01),
            "beta": F(b, s, hv, lo=0.1, hi=0.9),
            "state": F(b, hv, dk, dv),
        }
        family(
            c,
            "gated_delta_net",
            delta_net,
            shapes,
            ["state"],
            "last",
            [
                ([], {}),
                (["state"], {}),
                ([], {"scale": 0.5}),
                (["state"], {"normalize": True}),
                ([], {"scale": 1.0, "normalize": True}),
            ],
        )
    for b, s, ch, k in [(1, 5, 2, 3), (2, 4, 3, 4), (2, 1, 1, 4), (1, 3, 2, 1), (1, 2, 1, 20), (1, 0, 2, 3)]:
        shapes = {"x": F(b, s, ch), "w": F(ch, k), "bias": F(ch), "state": F(b, k - 1, ch)}
        family(
            c,
            "causal_conv1d",
            causal_conv,
            shapes,
            ["bias", "state"],
            "last",
            [([], {}), (["bias"], {}), (["state"], {"silu": True}), (["bias", "state"], {"silu": True})],
        )
    gradient_op(
        c,
        "selective_scan_grad",
        selective_scan,
        {
            "x": F(1, 3, 2),
            "delta": F(1, 3, 2, lo=0.05, hi=1),
            "a": F(2, 2, lo=-2, hi=-0.1),
            "b": F(1, 3, 2),
            "c": F(1, 3, 2),
            "d": F(2),
            "z": F(1, 3, 2),
            "delta_bias": F(2),
            "state": F(1, 2, 2),
        },
        F(1, 3, 2),
        F(1, 2, 2),
    )
    gradient_op(
        c,
        "ssd_grad",
        ssd,
        {
            "x": F(1, 3, 2, 2),
            "dt": F(1, 3, 2, lo=0.05, hi=1),
            "a": F(2, lo=-2, hi=-0.1),
            "b": F(1, 3, 1, 2),
            "c": F(1, 3, 1, 2),
            "d": F(2),
            "z": F(1, 3, 2, 2),
            "dt_bias": F(2),
            "state": F(1, 2, 2, 2),
        },
        F(1, 3, 2, 2),
        F(1, 2, 2, 2),
    )
    gradient_op(
        c,
        "gated_delta_net_grad",
        delta_net,
        {
            "q": F(1, 3, 1, 2),
            "k": F(1, 3, 1, 2),
            "v": F(1, 3, 2, 2),
            "g": F(1, 3, 2, lo=-1, hi=-0.1),
            "beta": F(1, 3, 2, lo=0.1, hi=0.9),
            "state": F(1, 2, 2, 2),
        },
        F(1, 3, 2, 2),
        F(1, 2, 2, 2),
    )

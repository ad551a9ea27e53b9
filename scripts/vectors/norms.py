"""Normalisations."""

import torch
import torch.nn.functional as N

from .core import F, V, attrs

OPERANDS = {"": [], ", gamma": ["gamma"], ", gamma, beta": ["gamma", "beta"], ", _, beta": ["beta"]}


def affine(shape, used):
    return {k: F(*shape, lo=0.5, hi=1.5) if k == "gamma" else F(*shape) for k in used}


def rms(x, gamma, beta, eps):
    y = x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)
    y = y if gamma is None else y * gamma
    return y if beta is None else y + beta


def named(fn):
    """Calls fn(x, gamma, beta) whichever of the two are given."""
    return lambda used: lambda x, *rest: fn(x, *[dict(zip(used, rest)).get(k) for k in ("gamma", "beta")])


def cases(c):
    for shape, axes, eps in [
        ((3, 5), 1, 1e-5),
        ((2, 3, 4), 2, 1e-3),
        ((2, 3, 4), 1, 1e-5),
        ((7,), 1, 1e-5),
        ((3, 1), 1, 1e-2),
        ((0, 4), 1, 1e-5),
        ((2, 2, 3), 3, 0.1),
    ]:
        for extra, used in OPERANDS.items():
            fn = named(lambda x, g, b: N.layer_norm(x, shape[-axes:], g, b, eps))(used)
            c.case(
                f"y = layer_norm(x{extra}){attrs(eps=eps, axes=axes)}",
                {"x": F(*shape)} | affine(shape[-axes:], used),
                fn,
            )
    for shape, eps in [((3, 5), 1e-6), ((2, 3, 4), 1e-2), ((7,), 1e-6), ((3, 1), 1e-3), ((0, 4), 1e-6)]:
        for extra, used in OPERANDS.items():
            c.case(
                f"y = rms_norm(x{extra}){attrs(eps=eps)}",
                {"x": F(*shape)} | affine(shape[-1:], used),
                named(lambda x, g, b: rms(x, g, b, eps))(used),
            )
        c.case(
            f"y = rms_norm(x, gamma){attrs(eps=eps)}",
            {"x": F(*shape), "gamma": F(shape[-1])},
            lambda x, g: N.rms_norm(x, shape[-1:], g, eps),
            name="torch",
        )
    for op, fn in [
        ("layer_norm", lambda x: N.layer_norm(x, [3], eps=1e-5)),
        ("rms_norm", lambda x: rms(x, None, None, 1e-6)),
    ]:
        c.case(
            f"y = {op}(x)",
            {"x": V([[1e4, 1e4 + 1, 1e4 - 1], [1e-4, 0.0, -1e-4], [0.0, 0.0, 0.0], [5.0, 5.0, 5.0]])},
            fn,
            name="sizes",
            rtol=1e-6,
            atol=1e-9,
        )
    for shape, groups, eps in [
        ((2, 4, 3), 2, 1e-5),
        ((1, 6, 2, 3), 3, 1e-3),
        ((2, 3, 4), 1, 1e-5),
        ((2, 3, 4), 3, 1e-5),
        ((3, 4), 2, 1e-2),
        ((1, 2, 2, 1, 3), 2, 1e-5),
    ]:
        for extra, used in OPERANDS.items():
            c.case(
                f"y = group_norm(x{extra}){attrs(groups=groups, eps=eps)}",
                {"x": F(*shape)} | affine(shape[1:2], used),
                named(lambda x, g, b: N.group_norm(x, groups, g, b, eps))(used),
            )
    for shape, eps in [((2, 3, 4), 1e-5), ((1, 2, 3, 3), 1e-3), ((2, 1, 5), 1e-5)]:
        for extra, used in OPERANDS.items():
            c.case(
                f"y = instance_norm(x{extra}){attrs(eps=eps)}",
                {"x": F(*shape)} | affine(shape[1:2], used),
                named(lambda x, g, b: N.instance_norm(x, weight=g, bias=b, eps=eps))(used),
            )
    for shape, eps in [((4, 3), 1e-5), ((2, 3, 4), 1e-3), ((2, 2, 3, 2), 1e-5), ((3, 1, 2), 1e-5)]:
        ch = shape[1:2]
        # torch does not differentiate the running statistics: the formula does.
        c.case(
            f"y = batch_norm(x, gamma, beta, mean, var){attrs(eps=eps)}",
            {"x": F(*shape), "gamma": F(*ch), "beta": F(*ch), "mean": F(*ch), "var": F(*ch, lo=0.5, hi=2)},
            lambda x, g, b, m, v: N.batch_norm(x, m.detach(), v.detach(), g, b, False, 0.0, eps),
            wrt=["x", "gamma", "beta"],
            name="torch",
        )

        def formula(x, g, b, m, v):
            m, v, g, b = (t.reshape(-1, *[1] * (x.ndim - 2)) for t in (m, v, g, b))
            return (x - m) / torch.sqrt(v + eps) * g + b

        c.case(
            f"y = batch_norm(x, gamma, beta, mean, var){attrs(eps=eps)}",
            {"x": F(*shape), "gamma": F(*ch), "beta": F(*ch), "mean": F(*ch), "var": F(*ch, lo=0.5, hi=2)},
            formula,
        )
        dims = [d for d in range(len(shape)) if d != 1]
        c.case(
            f"y, mean, var = batch_norm_train(x, gamma, beta){attrs(eps=eps)}",
            {"x": F(*shape), "gamma": F(*ch), "beta": F(*ch)},
            lambda x, g, b: (
                N.batch_norm(x, None, None, g, b, True, 0.0, eps),
                x.mean(dims),
                x.var(dims, correction=0),
            ),
        )
    for shape, axis, eps in [
        ((3, 4), -1, 1e-12),
        ((2, 3, 4), 1, 1e-12),
        ((5,), 0, 1e-6),
        ((2, 1), 1, 1e-12),
        ((0, 3), 1, 1e-12),
    ]:
        c.case(
            f"y = l2_normalize(x){attrs(axis=axis, eps=eps)}", {"x": F(*shape)}, lambda x: N.normalize(x, 2, axis, eps)
        )
    c.case(
        "y = l2_normalize(x) {axis: 1, eps: 0.01}",
        {"x": V([[1e-3, -2e-3], [0.3, 0.4]])},
        lambda x: N.normalize(x, 2, 1, 0.01),
        name="short",
    )

    c.case(
        "y = batch_norm(x, _, _, mean, var)",
        {"x": F(2, 3, 2), "mean": F(3), "var": F(3, lo=0.5, hi=2)},
        lambda x, m, v: (x - m[:, None]) / torch.sqrt(v[:, None] + 1e-5),
        name="plain",
    )
    c.case(
        "y, mean, var = batch_norm_train(x, _, beta)",
        {"x": F(4, 3), "beta": F(3)},
        lambda x, b: (N.batch_norm(x, None, None, None, b, True, 0.0, 1e-5), x.mean(0), x.var(0, correction=0)),
        name="beta",
    )

    c.case(
        "y, mean, var = batch_norm_train(x, gamma)",
        {"x": F(4, 3), "gamma": F(3)},
        lambda x, g: (N.batch_norm(x, None, None, g, None, True, 0.0, 1e-5), x.mean(0), x.var(0, correction=0)),
        name="gamma",
    )

    # The gradient ops against autograd of the forward one, and their own gradients against its second derivative.
    def backward(fn, axis=-1):
        def run(x, dy, *gamma):
            zero = torch.zeros(x.shape[axis], dtype=x.dtype, requires_grad=True)
            g = gamma[0] if gamma else torch.ones_like(zero).requires_grad_()
            return torch.autograd.grad(fn(x, g, zero), [x, g, zero], dy, create_graph=True)

        return run

    for shape in [(3, 5), (2, 2, 4), (4, 1)]:
        for extra in ("", ", gamma"):
            inputs = {"x": F(*shape), "dy": F(*shape)} | ({"gamma": F(shape[-1], lo=0.5, hi=1.5)} if extra else {})
            c.case(
                f"dx, dgamma, dbeta = rms_norm_grad(x, dy{extra}) {{eps: 0.001}}",
                inputs,
                backward(lambda x, g, b: rms(x, g, b, 1e-3)),
            )
            c.case(
                f"dx, dgamma, dbeta = layer_norm_grad(x, dy{extra}) {{eps: 0.001}}",
                inputs,
                backward(lambda x, g, b: N.layer_norm(x, x.shape[-1:], g, b, 1e-3)),
            )
    for shape, groups in [((2, 4, 3), 2), ((2, 3), 1), ((1, 2, 2, 3), 2)]:
        for extra in ("", ", gamma"):
            inputs = {"x": F(*shape), "dy": F(*shape)} | ({"gamma": F(shape[1], lo=0.5, hi=1.5)} if extra else {})
            c.case(
                f"dx, dgamma, dbeta = group_norm_grad(x, dy{extra}){attrs(groups=groups, eps=0.001)}",
                inputs,
                backward(lambda x, g, b: N.group_norm(x, groups, g, b, 1e-3), 1),
            )
            c.case(
                f"dx, dgamma, dbeta = batch_norm_grad(x, dy{extra}) {{eps: 0.001}}",
                inputs | {"x": F(3, *shape[1:]), "dy": F(3, *shape[1:])},
                backward(lambda x, g, b: N.batch_norm(x, None, None, g, b, True, 0.0, 1e-3), 1),
            )
    inputs = {"x": F(2, 3, 4), "dy": F(2, 3, 4), "gamma": F(3, 4)}

    def two_axes(x, dy, g):
        b = torch.zeros_like(g).requires_grad_()
        return torch.autograd.grad(N.layer_norm(x, [3, 4], g, b), [x, g, b], dy, create_graph=True)

    c.case("dx, dgamma, dbeta = layer_norm_grad(x, dy, gamma) {axes: 2}", inputs, two_axes, name="two_axes")

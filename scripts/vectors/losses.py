"""Losses."""

import torch
import torch.nn.functional as N

from .core import F, I, V, attrs

REDUCTIONS = ["mean", "sum", "none"]


def classes_second(x):
    """The class axis from the end to where PyTorch has it."""
    return x.movedim(-1, 1) if x.ndim > 1 else x


def cases(c):
    for reduction in REDUCTIONS:
        for shape in [(4, 5), (2, 3, 6), (3, 1), (7,), (1, 2, 2, 3)]:
            for smoothing in (0.0, 0.1):
                a = attrs(label_smoothing=smoothing or None, reduction=reduction)
                c.case(
                    f"y = cross_entropy(x, t){a}",
                    {"x": F(*shape, lo=-4, hi=4), "t": I(*shape[:-1], hi=shape[-1])},
                    lambda x, t: N.cross_entropy(
                        classes_second(x), t.long(), reduction=reduction, label_smoothing=smoothing
                    ),
                    name=reduction,
                )
        a = attrs(ignore_index=2, reduction=reduction)
        c.case(
            f"y = cross_entropy(x, t){a}",
            {"x": F(6, 4), "t": V([0, 2, 3, 2, 1, 2], torch.int64)},
            lambda x, t: N.cross_entropy(x, t, ignore_index=2, reduction=reduction),
            name=f"{reduction}.ignored",
        )
        c.case(
            f"y = cross_entropy(x, t){attrs(label_smoothing=0.2, reduction=reduction)}",
            {"x": F(4, 3), "t": V([0, -100, 2, -100], torch.int64)},
            lambda x, t: N.cross_entropy(x, t, reduction=reduction, label_smoothing=0.2),
            name=f"{reduction}.smoothed_ignored",
        )
        for shape in [(4, 5), (2, 3, 6), (7,)]:
            c.case(
                f"y = nll_loss(x, t){attrs(reduction=reduction)}",
                {"x": F(*shape, lo=-4, hi=0), "t": I(*shape[:-1], hi=shape[-1])},
                lambda x, t: N.nll_loss(classes_second(x), t.long(), reduction=reduction),
                name=reduction,
            )
        c.case(
            f"y = nll_loss(x, t){attrs(ignore_index=-1, reduction=reduction)}",
            {"x": F(4, 3), "t": V([0, -1, 2, 1], torch.int32)},
            lambda x, t: N.nll_loss(x, t.long(), ignore_index=-1, reduction=reduction),
            name=f"{reduction}.ignored",
        )
        for shape in [(4, 5), (3,), (2, 1, 3), ()]:
            r = attrs(reduction=reduction)
            pair = {"x": F(*shape, lo=-3, hi=3), "t": F(*shape, lo=0, hi=1)}
            c.case(
                f"y = bce_with_logits(x, t){r}",
                pair,
                lambda x, t: N.binary_cross_entropy_with_logits(x, t, reduction=reduction),
                name=reduction,
            )
            c.case(f"y = mse_loss(x, t){r}", pair, lambda x, t: N.mse_loss(x, t, reduction=reduction), name=reduction)
            c.case(f"y = l1_loss(x, t){r}", pair, lambda x, t: N.l1_loss(x, t, reduction=reduction), name=reduction)
            c.case(
                f"y = huber_loss(x, t){r}", pair, lambda x, t: N.huber_loss(x, t, reduction=reduction), name=reduction
            )
            c.case(
                f"y = huber_loss(x, t){attrs(delta=0.4, reduction=reduction)}",
                pair,
                lambda x, t: N.huber_loss(x, t, reduction=reduction, delta=0.4),
                name=reduction,
            )
            c.case(
                f"y = smooth_l1_loss(x, t){r}",
                pair,
                lambda x, t: N.smooth_l1_loss(x, t, reduction=reduction),
                name=reduction,
            )
            c.case(
                f"y = smooth_l1_loss(x, t){attrs(beta=0.4, reduction=reduction)}",
                pair,
                lambda x, t: N.smooth_l1_loss(x, t, reduction=reduction, beta=0.4),
                name=reduction,
            )
            c.case(
                f"y = bce_with_logits(x, t, w){r}",
                pair | {"w": F(*shape[-1:], lo=0.5, hi=3)},
                lambda x, t, w: N.binary_cross_entropy_with_logits(x, t, reduction=reduction, pos_weight=w.detach()),
                wrt=["x", "t"],
                name=f"{reduction}.weighted",
            )
        for shape in [(4, 5), (3,), (2, 1, 3), (0, 2)]:
            for kind in {"mean": ["mean", "batch_mean"]}.get(reduction, [reduction]):
                c.case(
                    f"y = kl_div(x, t){attrs(reduction=kind)}",
                    {"x": F(*shape, lo=-3, hi=-0.1), "t": F(*shape, lo=0.1, hi=1)},
                    lambda x, t: N.kl_div(x, t, reduction=kind.replace("_", "")),
                    name=kind,
                )
                c.case(
                    f"y = kl_div(x, t){attrs(log_target=True, reduction=kind)}",
                    {"x": F(*shape, lo=-3, hi=-0.1), "t": F(*shape, lo=-2, hi=0)},
                    lambda x, t: N.kl_div(x, t, reduction=kind.replace("_", ""), log_target=True),
                    name=f"{kind}.log",
                )
        for shape in [(4, 5), (2, 3, 6), (7,)]:
            for smoothing in (0.0, 0.1):
                c.case(
                    f"y = soft_cross_entropy(x, t){attrs(label_smoothing=smoothing or None, reduction=reduction)}",
                    {"x": F(*shape, lo=-4, hi=4), "t": F(*shape, lo=0, hi=1)},
                    lambda x, t: N.cross_entropy(
                        classes_second(x), classes_second(t), reduction=reduction, label_smoothing=smoothing
                    ),
                    name=reduction,
                )

        def backward(x, t, dy):
            return torch.autograd.grad(
                N.cross_entropy(x, t.long(), reduction=reduction, label_smoothing=0.1), x, dy, create_graph=True
            )[0]

        c.case(
            f"dx = cross_entropy_grad(x, t, dy){attrs(label_smoothing=0.1, reduction=reduction)}",
            {"x": F(4, 5), "t": I(4, hi=5), "dy": F(4) if reduction == "none" else F()},
            backward,
            name=reduction,
        )

        def partial(x, t, dy):
            return torch.autograd.grad(
                N.cross_entropy(x, t, reduction=reduction, ignore_index=3), x, dy, create_graph=True
            )[0]

        c.case(
            f"dx = cross_entropy_grad(x, t, dy){attrs(ignore_index=3, reduction=reduction)}",
            {"x": F(4, 5), "t": V([0, 3, 4, 3], torch.int64), "dy": F(4) if reduction == "none" else F()},
            partial,
            name=f"{reduction}.ignored",
        )
    c.case(
        "y = cross_entropy(x, t) {reduction: none}",
        {"x": V([[1000.0, 0.0], [-1000.0, 1000.0], [1e-9, 0.0]]), "t": V([0, 0, 1], torch.int32)},
        lambda x, t: N.cross_entropy(x, t.long(), reduction="none"),
        name="far",
    )
    c.case(
        "y = bce_with_logits(x, t) {reduction: none}",
        {"x": V([1000.0, -1000.0, 30.0, 0.0]), "t": V([0.0, 1.0, 1.0, 0.5])},
        lambda x, t: N.binary_cross_entropy_with_logits(x, t, reduction="none"),
        name="far",
    )
    c.case(
        "y = bce_with_logits(x, t, w) {reduction: none}",
        {"x": F(4, 3), "t": F(4, 3, lo=0, hi=1), "w": F(3, lo=0.5, hi=3)},
        lambda x, t, w: -w * t * N.logsigmoid(x) - (1 - t) * N.logsigmoid(-x),
        name="formula",
    )
    c.case(
        "y = huber_loss(x, t) {delta: 1.0, reduction: none}",
        {"x": V([1.0, -1.0, 0.0, 3.0]), "t": V([0.0, 0.0, 0.0, 0.0])},
        lambda x, t: N.huber_loss(x, t, reduction="none"),
        name="kinks",
    )
    c.case(
        "y = kl_div(x, t) {reduction: none}",
        {"x": V([-1.0, -2.0]), "t": V([0.0, 0.5])},
        lambda x, t: N.kl_div(x, t, reduction="none"),
        wrt=["x"],
        name="zero",
    )
    c.case(
        "y = cross_entropy(x, t) {reduction: mean}",
        {"x": F(2, 3), "t": V([-100, -100], torch.int64)},
        lambda x, t: N.cross_entropy(x, t),
        wrt=[],
        name="all_ignored",
    )

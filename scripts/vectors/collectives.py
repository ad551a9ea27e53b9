"""Collectives: every tensor has one entry per rank along axis 0. The gradient is that of the sum over all ranks."""

import torch

from .core import D, F, I, attrs

R = 3


def same(y):
    """The same on every rank."""
    return y.unsqueeze(0).expand(R, *y.shape)


def cases(c):
    for kind, fn in [
        ("sum", lambda x: x.sum(0)),
        ("mean", lambda x: x.mean(0)),
        ("max", lambda x: x.amax(0)),
        ("min", lambda x: x.amin(0)),
    ]:
        for shape in [(2, 3), (), (0, 2)]:
            c.case(
                f"y = all_reduce(x){attrs(kind=kind, ranks=R)}",
                {"x": D(R, *shape)},
                lambda x: same(fn(x)),
                ranks=R,
                name=kind,
            )
        c.case(f"y = all_reduce(x){attrs(kind=kind, ranks=1)}", {"x": F(2, 3)}, lambda x: x + 0, name=f"{kind}.alone")
        if kind != "mean":
            c.case(
                f"y = all_reduce(x){attrs(kind=kind, ranks=R)}",
                {"x": I(R, 4, lo=-(2**31), hi=2**31)},
                lambda x: same((x.sum(0, dtype=torch.int32) if kind == "sum" else fn(x))),
                ranks=R,
                name=f"{kind}.i32",
            )
    for shape, axis in [((2, 3), 0), ((2, 3), -1), ((1,), 0), ((0, 2), 1)]:
        c.case(
            f"y = all_gather(x){attrs(axis=axis, ranks=R)}",
            {"x": F(R, *shape)},
            lambda x: same(torch.cat(list(x), axis)),
            ranks=R,
        )
    for shape, axis in [((6, 2), 0), ((2, 3), 1), ((3,), -1), ((0, 3), 0)]:
        c.case(
            f"y = reduce_scatter(x){attrs(axis=axis, ranks=R)}",
            {"x": F(R, *shape)},
            lambda x: torch.stack(x.sum(0).chunk(R, axis)) if shape[axis] else x[:, :0] + 0,
            ranks=R,
        )
    for root in range(R):
        c.case(f"y = broadcast_rank(x){attrs(root=root, ranks=R)}", {"x": F(R, 2, 2)}, lambda x: same(x[root]), ranks=R)
        c.case(
            f"y = reduce_rank(x){attrs(root=root, ranks=R)}",
            {"x": F(R, 2, 2)},
            lambda x: torch.stack([x.sum(0) if r == root else torch.zeros_like(x[0]) for r in range(R)]),
            ranks=R,
        )
    for shape, split, join in [((3, 2), 0, 1), ((2, 6), 1, 0), ((3,), 0, 0), ((2, 3, 2), -2, -1)]:
        c.case(
            f"y = all_to_all(x){attrs(split=split, join=join, ranks=R)}",
            {"x": F(R, *shape)},
            lambda x: torch.stack([torch.cat([x[q].chunk(R, split)[r] for q in range(R)], join) for r in range(R)]),
            ranks=R,
        )
    for shift in (-2, -1, 0, 1, 2):
        c.case(
            f"y = rotate_ranks(x){attrs(shift=shift, ranks=R)}", {"x": F(R, 2, 3)}, lambda x: x.roll(shift, 0), ranks=R
        )
    for op, a in [
        ("all_gather", {"axis": 0}),
        ("reduce_scatter", {"axis": 0}),
        ("broadcast_rank", {}),
        ("reduce_rank", {}),
        ("all_to_all", {"split": 0, "join": 1}),
    ]:
        c.case(f"y = {op}(x){attrs(**a, ranks=1)}", {"x": F(2, 3)}, lambda x: x + 0, name="alone")

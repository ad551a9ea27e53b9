"""Reading and writing by index. Out of range, RLX reads 0 and writes nothing: the loops here say so."""

import torch
import torch.nn.functional as N

from .core import D, F, I, V, attrs

MODES = {"set": None, "add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def take(x, i, axis):
    """out = x.shape[:axis] + i.shape + x.shape[axis+1:]."""
    axis %= x.ndim
    flat = torch.index_select(x, axis, i.reshape(-1).long())
    return flat.reshape(*x.shape[:axis], *i.shape, *x.shape[axis + 1 :])


def put(x, i, u, axis, mode):
    """The inverse of take, one slice after the other."""
    axis %= x.ndim
    u = u.reshape(*x.shape[:axis], i.numel(), *x.shape[axis + 1 :])
    rows = list(x.unbind(axis))
    for k, row in enumerate(i.reshape(-1).tolist()):
        if not -len(rows) <= row < len(rows):
            continue
        new = u.select(axis, k)
        join = {"set": lambda a, b: b, "add": torch.add, "mul": torch.mul, "max": torch.maximum, "min": torch.minimum}[
            mode
        ]
        rows[row] = join(rows[row], new)
    return torch.stack(rows, axis) if rows else x + 0


def cases(c):
    for shape, idx, axis in [
        ((5, 3), (4,), 0),
        ((2, 5, 3), (2, 2), 1),
        ((3, 4), (), -1),
        ((4,), (2, 1, 3), 0),
        ((3, 2), (0,), 0),
        ((6, 0), (3,), 0),
    ]:
        i = I(*idx, lo=0, hi=shape[axis])
        c.case(f"y = gather(x, i){attrs(axis=axis)}", {"x": F(*shape), "i": i}, lambda x, i: take(x, i, axis))
    c.case(
        "y = gather(x, i) {axis: 0}",
        {"x": F(4, 2), "i": V([1, 1, 3, 1], torch.int64)},
        lambda x, i: x[i],
        name="repeated",
    )
    c.case(
        "y = gather(x, i) {axis: 1}",
        {"x": F(2, 4), "i": V([-1, 0, -4], torch.int64)},
        lambda x, i: x[:, i],
        name="negative",
    )
    c.case(
        "y = gather(x, i) {axis: 0}",
        {"x": F(3, 2), "i": V([2, 3, -4, 0, 100], torch.int32)},
        lambda x, i: torch.where(((i >= -3) & (i < 3)).unsqueeze(1), x[i.clamp(-3, 2).long()], 0.0),
        name="outside",
    )
    c.case(
        "y = gather(x, i) {axis: 0}",
        {"x": I(4, 2), "i": I(3, hi=4, dtype=torch.uint8)},
        lambda x, i: x[i.long()],
        name="i32",
    )
    for mode in MODES:
        text = f"y = scatter(x, i, u){attrs(axis=0, mode=mode)}"
        c.case(
            text,
            {"x": D(5, 3), "i": V([3, 0, 4], torch.int32), "u": D(3, 3, lo=-1.4, hi=1.7)},
            lambda x, i, u: put(x, i, u, 0, mode),
            name=f"{mode}.once",
        )
        c.case(
            f"y = scatter(x, i, u){attrs(axis=1, mode=mode)}",
            {"x": D(2, 4, 3), "i": V([[1, -1], [1, 0]], torch.int64), "u": D(2, 2, 2, 3, lo=-1.4, hi=1.7)},
            lambda x, i, u: put(x, i, u, 1, mode),
            name=f"{mode}.repeated",
        )
        c.case(
            text,
            {"x": F(3, 2), "i": V([2, 3, -4, 0], torch.int32), "u": F(4, 2)},
            lambda x, i, u: put(x, i, u, 0, mode),
            name=f"{mode}.outside",
        )
        c.case(
            text,
            {"x": F(3, 2), "i": V([], torch.int32), "u": F(0, 2)},
            lambda x, i, u: x + 0 * u.sum(),
            name=f"{mode}.nothing",
        )
        c.case(
            text,
            {"x": I(5, 2), "i": V([4, 4, 1], torch.int32), "u": I(3, 2)},
            lambda x, i, u: put(x, i, u, 0, mode),
            name=f"{mode}.i32",
        )
    c.case(
        "y = scatter(x, i, u) {axis: 0, mode: add}",
        {"x": F(5, 2), "i": I(9, hi=5, dtype=torch.int64), "u": F(9, 2)},
        lambda x, i, u: x.index_add(0, i, u),
        name="index_add",
    )

    for shape, idx, axis in [
        ((3, 5), (3, 2), 1),
        ((4, 3), (2, 3), 0),
        ((2, 3, 4), (2, 5, 4), 1),
        ((3, 2), (0, 2), 0),
        ((4,), (7,), -1),
    ]:
        inputs = {"x": F(*shape), "i": I(*idx, lo=0, hi=shape[axis], dtype=torch.int64)}
        c.case(f"y = gather_elements(x, i){attrs(axis=axis)}", inputs, lambda x, i: torch.gather(x, axis, i))
        inputs = {"x": D(*shape), "i": I(*idx, lo=0, hi=shape[axis], dtype=torch.int64), "u": D(*idx, lo=-1.3, hi=1.6)}
        for mode, reduce in MODES.items():
            if reduce is None:
                continue
            c.case(
                f"y = scatter_elements(x, i, u){attrs(axis=axis, mode=mode)}",
                inputs,
                lambda x, i, u: x.scatter_reduce(axis, i, u, reduce, include_self=True),
                name=mode,
            )
    c.case(
        "y = scatter_elements(x, i, u) {axis: 1}",
        {"x": F(2, 4), "i": V([[3, 0], [1, 2]], torch.int64), "u": F(2, 2)},
        lambda x, i, u: x.scatter(1, i, u),
        name="set",
    )
    c.case(
        "y = scatter_elements(x, i, u) {axis: 0, mode: add}",
        {"x": F(3, 2), "i": V([[0, 0], [0, 2]], torch.int64), "u": F(2, 2)},
        lambda x, i, u: x.scatter_add(0, i, u),
        name="add.repeated",
    )

    c.case(
        "y = gather_nd(x, i)",
        {"x": F(3, 4), "i": V([[0, 1], [2, 3], [2, 3]], torch.int64)},
        lambda x, i: x[i[:, 0], i[:, 1]],
        name="points",
    )
    c.case(
        "y = gather_nd(x, i)",
        {"x": F(3, 4, 2), "i": V([[[0], [2]]], torch.int32)},
        lambda x, i: x[i[..., 0].long()],
        name="rows",
    )
    c.case(
        "y = gather_nd(x, i)",
        {"x": F(3, 4, 2), "i": V([[-1, 0], [1, -2]], torch.int32)},
        lambda x, i: x[i[:, 0].long(), i[:, 1].long()],
        name="negative",
    )
    c.case(
        "y = gather_nd(x, i) {batch_dims: 1}",
        {"x": F(2, 4, 3), "i": V([[[1], [3]], [[0], [0]]], torch.int64)},
        lambda x, i: torch.stack([x[b][i[b, :, 0]] for b in range(2)]),
        name="batch",
    )
    for mode in ("set", "add", "mul", "max", "min"):

        def nd(x, i, u):
            y = x.reshape(12, -1)
            return put(y, i[:, 0] * 4 + i[:, 1], u.reshape(len(u), -1), 0, mode).reshape(x.shape)

        c.case(
            f"y = scatter_nd(x, i, u){attrs(mode=mode)}",
            {"x": D(3, 4), "i": V([[0, 1], [2, 3], [1, 0]], torch.int64), "u": D(3, lo=-1.4, hi=1.7)},
            nd,
            name=f"{mode}.points",
        )
        c.case(
            f"y = scatter_nd(x, i, u){attrs(mode=mode)}",
            {"x": D(3, 4, 2), "i": V([[0, 1], [0, 1], [1, 0]], torch.int64), "u": D(3, 2, lo=-1.4, hi=1.7)},
            nd,
            name=f"{mode}.slices",
        )
    c.case(
        "y = scatter_nd(x, i, u) {mode: add}",
        {"x": F(4, 2), "i": V([[1], [1], [3]], torch.int32), "u": F(3, 2)},
        lambda x, i, u: x.index_put((i[:, 0].long(),), u, accumulate=True),
        name="index_put",
    )

    for shape, starts, sizes in [
        ((5, 4), (1, 2), [2, 2]),
        ((5, 4), (4, -1), [3, 2]),
        ((3, 4), (-9, 99), [2, 1]),
        ((6,), (2,), [4]),
        ((4,), (1,), [0]),
    ]:
        inputs = {"x": F(*shape)} | {f"s{k}": torch.tensor(s, dtype=torch.int32) for k, s in enumerate(starts)}
        names = ", ".join(f"s{k}" for k in range(len(starts)))
        at = [min(max(s, 0), n - z) for s, n, z in zip(starts, shape, sizes)]
        cut = tuple(slice(a, a + z) for a, z in zip(at, sizes))
        c.case(f"y = dynamic_slice(x, {names}){attrs(sizes=sizes)}", inputs, lambda x, *s: x[cut])

        def write(x, u, *s):
            mask = torch.zeros(x.shape, dtype=torch.bool)
            mask[cut] = True
            return x.masked_scatter(mask, u)

        c.case(
            f"y = dynamic_update_slice(x, u, {names})",
            {"x": inputs["x"], "u": F(*sizes)} | {k: v for k, v in inputs.items() if k != "x"},
            write,
        )

    for ids, pad in [((4,), None), ((2, 3), None), ((2, 0), None), ((8,), 1), ((), 0)]:
        c.case(
            f"y = embedding(w, ids){attrs(padding_idx=pad)}",
            {"w": F(5, 3), "ids": I(*ids, hi=5)},
            lambda w, i: N.embedding(i, w, padding_idx=pad),
        )

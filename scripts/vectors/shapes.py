"""Ops that move, repeat, join and cut."""

import torch
import torch.nn.functional as N

from .core import B, F, I, NAMES, attrs


def pad(x, value, lo, hi, interior):
    shape = [(n - 1) * (i + 1) + 1 + a + b if n else a + b for n, i, a, b in zip(x.shape, interior, lo, hi)]
    spots = torch.meshgrid(*[a + torch.arange(n) * (i + 1) for n, i, a in zip(x.shape, interior, lo)], indexing="ij")
    return value.expand(shape).index_put(spots, x)


def cases(c):
    for shape, new in [
        ((2, 3, 4), [6, 4]),
        ((12,), [2, 1, 6]),
        ((1, 1), []),
        ((0, 5), [3, 0]),
        ((), [1, 1]),
        ((4, 3), [4, 3]),
    ]:
        c.case(f"y = reshape(x){attrs(shape=new)}", {"x": F(*shape)}, lambda x: x.reshape(new))
    c.case("y = reshape(x) {shape: [3, 2]}", {"x": I(6)}, lambda x: x.reshape(3, 2), name="i32")
    for shape, axes in [
        ((3, 4), [1, 0]),
        ((2, 3, 4), [2, 0, 1]),
        ((2, 1, 3), [-1, 1, 0]),
        ((0, 2), [1, 0]),
        ((), []),
        ((2, 3, 2, 3), [0, 2, 1, 3]),
    ]:
        c.case(f"y = permute(x){attrs(axes=axes)}", {"x": F(*shape)}, lambda x: x.permute(axes))
    for shape, new in [((3,), [4, 3]), ((3, 1), [2, 3, 4]), ((), [2, 2]), ((1, 3), [0, 3]), ((2, 1, 2), [2, 5, 2])]:
        c.case(f"y = broadcast(x){attrs(shape=new)}", {"x": F(*shape)}, lambda x: x.expand(new))
    c.case("y = broadcast(x) {shape: [3, 4]}", {"x": B(3, 1)}, lambda x: x.expand(3, 4), name="bool")
    for shape, start, stop, step in [
        ((4, 3), [1, 0], [3, 2], [1, 1]),
        ((7, 5), [1, 0], [7, 5], [3, 2]),
        ((4,), [2], [2], [1]),
        ((), [], [], []),
        ((5, 6), [4, 5], [5, 6], [1, 1]),
        ((9,), [0], [8], [4]),
        ((0, 2), [0, 1], [0, 2], [1, 1]),
    ]:
        cut = tuple(slice(*s) for s in zip(start, stop, step))
        c.case(f"y = slice(x){attrs(start=start, stop=stop, step=step)}", {"x": F(*shape)}, lambda x: x[cut])
    for shape, lo, hi, interior in [
        ((2, 3), [1, 0], [0, 2], [0, 0]),
        ((3, 2), [0, 1], [1, 0], [1, 2]),
        ((0,), [2], [1], [0]),
        ((1, 4), [1, 2], [3, 0], [5, 0]),
        ((2, 2, 2), [0, 1, 0], [0, 0, 1], [0, 0, 1]),
    ]:
        c.case(
            f"y = pad(x, value){attrs(lo=lo, hi=hi, interior=interior)}",
            {"x": F(*shape), "value": F()},
            lambda x, v: pad(x, v, lo, hi, interior),
        )
    c.case(
        "y = pad(x, v) {lo: [1, 2], hi: [3, 0], interior: [0, 0]}",
        {"x": F(2, 3), "v": F()},
        lambda x, v: (
            N.pad(x, [2, 0, 1, 3], value=v.item()) + pad(torch.zeros_like(x), v - v.detach(), [1, 2], [3, 0], [0, 0])
        ),
        name="torch",
    )
    for shape, axes in [((2, 3), [1]), ((2, 3), [0, -1]), ((0, 3), [0]), ((2, 3, 4), [0, 2]), ((3,), [])]:
        c.case(f"y = flip(x){attrs(axes=axes)}", {"x": F(*shape)}, lambda x: x.flip(axes))

    for shapes, axis in [
        ([(2, 3), (1, 3), (3, 3)], 0),
        ([(2, 3), (2, 1)], -1),
        ([(4,)], 0),
        ([(2, 0), (2, 2)], 1),
        ([(2, 1, 3), (2, 4, 3), (2, 2, 3), (2, 1, 3)], 1),
    ]:
        inputs = {f"x{i}": F(*s) for i, s in enumerate(shapes)}
        c.case(f"y = concat({', '.join(inputs)}){attrs(axis=axis)}", inputs, lambda *xs: torch.cat(xs, axis))
    c.case("y = concat(a, b) {axis: 0}", {"a": B(3), "b": B(2)}, lambda a, b: torch.cat([a, b]), name="bool")
    for shape, axis, sizes in [
        ((6, 2), 0, [1, 2, 3]),
        ((2, 5), -1, [4, 1]),
        ((2, 3), 1, [0, 3]),
        ((4,), 0, [4]),
        ((2, 6, 2), 1, [2, 2, 2]),
    ]:
        outs = [f"p{i}" for i in range(len(sizes))]
        c.case(
            f"{', '.join(outs)} = split(x){attrs(axis=axis, sizes=sizes)}",
            {"x": F(*shape)},
            lambda x: x.split(sizes, axis),
        )
    for shape, repeats in [
        ((2, 3), [2, 1]),
        ((3,), [4]),
        ((1, 2, 2), [3, 1, 2]),
        ((2, 0), [2, 3]),
        ((2,), [0]),
        ((), []),
    ]:
        c.case(f"y = tile(x){attrs(repeats=repeats)}", {"x": F(*shape)}, lambda x: x.repeat(repeats))
    for mode, torch_mode in [("edge", "replicate"), ("reflect", "reflect"), ("wrap", "circular")]:
        for shape, lo, hi in [((2, 5), [0, 2], [0, 3]), ((2, 3, 4), [0, 1, 2], [0, 2, 1]), ((3, 4), [0, 0], [0, 0])]:
            flat = [v for pair in zip(lo[:0:-1], hi[:0:-1]) for v in pair]
            c.case(
                f"y = pad_mode(x){attrs(lo=lo, hi=hi, mode=mode)}",
                {"x": F(*shape)},
                lambda x: N.pad(x[None], flat, mode=torch_mode)[0],
            )
    for shape, shift, axis in [((5,), 2, 0), ((2, 3), -1, 1), ((4, 3), 7, 0), ((3, 1, 2), -5, -1), ((0, 2), 1, 0)]:
        c.case(f"y = roll(x){attrs(shift=shift, axis=axis)}", {"x": F(*shape)}, lambda x: x.roll(shift, axis))
    for op, fn in [("tril", torch.tril), ("triu", torch.triu)]:
        for shape, k in [
            ((4, 4), 0),
            ((3, 5), 1),
            ((5, 3), -2),
            ((2, 3, 3), -1),
            ((2, 2), 9),
            ((0, 3), 0),
            ((1, 1), -9),
        ]:
            c.case(f"y = {op}(x){attrs(k=k)}", {"x": F(*shape)}, lambda x: fn(x, k))
        c.case(f"y = {op}(x)", {"x": I(3, 3)}, lambda x: fn(x), name="i32")
    for shape, depth, axis in [((4,), 5, -1), ((2, 3), 4, 0), ((2, 3), 3, 1), ((), 3, 0), ((0,), 2, -1)]:
        c.case(
            f"y = one_hot(i){attrs(depth=depth, axis=axis, dtype=torch.float64)}",
            {"i": I(*shape, hi=depth)},
            lambda i: N.one_hot(i.long(), depth).movedim(-1, axis).double(),
        )
    c.case(
        "y = one_hot(i) {depth: 4, dtype: i32}",
        {"i": I(2, 3, hi=4, dtype=torch.int64)},
        lambda i: N.one_hot(i, 4).int(),
        name="i32",
    )
    for shape, axis, dtype in [
        ([3, 2], 0, torch.int32),
        ([3, 2], -1, torch.float32),
        ([0], 0, torch.int64),
        ([2, 3, 4], 1, torch.float64),
    ]:
        sizes = [n if i == axis % len(shape) else 1 for i, n in enumerate(shape)]
        c.case(
            f"y = iota(){attrs(shape=shape, axis=axis, dtype=NAMES[dtype])}",
            {},
            lambda: torch.arange(shape[axis], dtype=dtype).reshape(sizes).expand(shape),
        )

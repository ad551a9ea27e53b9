"""Products of matrices."""

import torch
import torch.nn.functional as N

from .core import F, I, V, attrs, inf, nan


def cases(c):
    for xs, ys in [
        ((3, 4), (4, 5)),
        ((1, 7), (7, 1)),
        ((4,), (4,)),
        ((4,), (4, 3)),
        ((3, 4), (4,)),
        ((2, 3, 4), (4, 5)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((3, 4), (2, 4, 2)),
        ((4,), (2, 4, 3)),
        ((0, 4), (4, 3)),
        ((3, 0), (0, 2)),
        ((17, 9), (9, 11)),
        ((1, 1), (1, 1)),
        ((2, 0, 3), (3, 2)),
    ]:
        c.case("z = matmul(x, y)", {"x": F(*xs), "y": F(*ys)}, torch.matmul)
    c.case("z = matmul(x, y)", {"x": I(3, 4, lo=-9, hi=9), "y": I(4, 2, lo=-9, hi=9)}, torch.matmul, name="i32")
    c.case(
        "z = matmul(x, y)",
        {"x": I(2, 9, lo=-(2**30), hi=2**30), "y": I(9, 2, lo=-(2**30), hi=2**30)},
        lambda x, y: (x.unsqueeze(-1) * y).sum(1, dtype=torch.int32),
        name="i32_wraps",
    )
    c.case(
        "z = matmul(x, y)",
        {"x": V([[1.0, inf], [nan, 0.0], [0.0, 1.0]]), "y": V([[1.0, 0.0], [1.0, 2.0]])},
        torch.matmul,
        wrt=[],
        name="special",
    )

    for xs, ys, cx, cy, bx, by, eq in [
        ((3, 4), (4, 5), [1], [0], [], [], "ik,kj->ij"),
        ((4, 3), (5, 4), [0], [1], [], [], "ki,jk->ij"),
        ((2, 3, 4), (2, 4, 5), [2], [1], [0], [0], "bik,bkj->bij"),
        ((3, 2, 4), (4, 5, 2), [-1], [0], [1], [-1], "ibk,kjb->bij"),
        ((2, 3, 4, 5), (5, 3, 6), [1, 3], [1, 0], [], [], "aibk,kij->abj"),
        ((3,), (4,), [], [], [], [], "i,j->ij"),
        ((2, 3), (2, 3), [], [], [0, 1], [0, 1], "ab,ab->ab"),
        ((2, 3), (3, 2), [0, 1], [1, 0], [], [], "ab,ba->"),
        ((3, 0), (0, 2), [1], [0], [], [], "ik,kj->ij"),
        ((2, 2, 3), (2, 2, 3), [2], [2], [1, 0], [1, 0], "abk,abk->ba"),
    ]:
        a = attrs(contract_x=cx, contract_y=cy, batch_x=bx, batch_y=by)
        c.case(f"z = dot_general(x, y){a}", {"x": F(*xs), "y": F(*ys)}, lambda x, y: torch.einsum(eq, x, y))
    c.case(
        "z = dot_general(x, y) {contract_x: [1], contract_y: [1]}",
        {"x": I(2, 3, lo=-128, hi=128, dtype=torch.int8), "y": I(4, 3, lo=-128, hi=128, dtype=torch.int8)},
        lambda x, y: (x.long() @ y.long().T).to(torch.int8),
        name="i8_wraps",
    )

    for xs, n, bias, transpose in [
        ((3, 4), 5, True, False),
        ((2, 3, 4), 2, False, False),
        ((3, 4), 5, True, True),
        ((4,), 3, True, False),
        ((0, 4), 3, True, True),
        ((2, 2, 1), 1, False, True),
    ]:
        k = xs[-1]
        inputs = {"x": F(*xs), "w": F(n, k) if transpose else F(k, n)} | ({"b": F(n)} if bias else {})
        c.case(
            f"y = linear(x, w{', b' if bias else ''}){attrs(transpose_w=transpose or None)}",
            inputs,
            lambda x, w, b=None: N.linear(x, w if transpose else w.T, b),
        )

    for eq, *shapes in [
        ("ij,jk->ik", (3, 4), (4, 5)),
        ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
        ("ij->ji", (3, 4)),
        ("ij->j", (3, 4)),
        ("ii->i", (4, 4)),
        ("ii->", (4, 4)),
        ("i,j->ij", (3,), (4,)),
        ("bhqd,bhkd->bhqk", (2, 2, 3, 4), (2, 2, 5, 4)),
        ("ij,jk,kl->il", (2, 3), (3, 4), (4, 2)),
        ("...ij,...jk->...ik", (2, 3, 4), (2, 4, 2)),
        ("ij,jk", (2, 3), (3, 4)),
        ("abc,cd,a->bd", (2, 3, 4), (4, 5), (2,)),
        ("ij,ij->", (3, 2), (3, 2)),
        ("i,i->i", (5,), (5,)),
        ("...i,i->...", (2, 3, 4), (4,)),
        ("ij,jk->ik", (0, 3), (3, 2)),
        ("b...i,oi->b...o", (2, 1, 3, 4), (5, 4)),
        ("iij->j", (3, 3, 2)),
        ("ba", (2, 3)),
    ]:
        names = [f"x{k}" for k in range(len(shapes))]
        c.case(
            f'y = einsum({", ".join(names)}) {{equation: "{eq}"}}',
            {n: F(*s) for n, s in zip(names, shapes)},
            lambda *xs: torch.einsum(eq, *xs),
        )

    for m, k, n, r, scale in [
        ((3,), 4, 5, 2, 0.5),
        ((2, 3), 5, 3, 1, 2.0),
        ((1,), 2, 2, 3, -1.5),
        ((0,), 3, 2, 2, 1.0),
    ]:
        c.case(
            f"y = lora_matmul(x, w, a, b){attrs(scale=scale)}",
            {"x": F(*m, k), "w": F(k, n), "a": F(k, r), "b": F(r, n)},
            lambda x, w, a, b: x @ w + scale * ((x @ a) @ b),
        )
    for m, k, q, kv, bias in [
        ((3,), 4, 5, 5, False),
        ((2, 3), 4, 6, 2, True),
        ((1,), 3, 4, 1, True),
        ((0,), 2, 3, 2, False),
    ]:
        inputs = {"x": F(*m, k), "w": F(k, q + 2 * kv)} | ({"b": F(q + 2 * kv)} if bias else {})
        c.case(
            f"q, k, v = qkv(x, w{', b' if bias else ''}){attrs(q=q, kv=kv)}",
            inputs,
            lambda x, w, b=None: torch.split(x @ w if b is None else x @ w + b, [q, kv, kv], -1),
        )

    for shape in [(1, 1), (2, 2), (3, 3), (5, 5), (2, 3, 4, 4), (0, 2, 2), (3, 0, 0), (12, 12)]:
        c.case("y = det(x)", {"x": F(*shape)}, torch.linalg.det)
    c.case("y = det(x)", {"x": V([[0.0, 2.0, 1.0], [1.5, 0.0, 0.5], [0.25, 1.0, 0.0]])}, torch.linalg.det, name="turned")
    c.case("y = det(x)", {"x": V([[1.0, 2.0], [2.0, 4.0]])}, torch.linalg.det, name="singular", wrt=[])

"""Control flow: the same loops and branches, unrolled by Python."""

import torch

from .core import F, V


def cases(c):
    c.case(
        "z, w = call(x, y) body (a: f64[3], b: f64[3]) { p = mul(a, b) q = sin(p) yield r0 = q, r1 = p }",
        {"x": F(3), "y": F(3)},
        lambda x, y: (torch.sin(x * y), x * y),
    )
    c.case(
        "z = call(x) {checkpoint: true} body (a: f64[2, 3]) { p = exp(a) q = mul(p, a) yield r0 = q }",
        {"x": F(2, 3)},
        lambda x: x.exp() * x,
        name="checkpoint",
    )
    c.case(
        "z = custom_vjp(x) body (a: f64[4]) { p = sign(a) yield r0 = p } backward (a: f64[4], p: f64[4], d: f64[4]) { q = mul(d, a) yield r0 = q }",
        {"x": F(4)},
        lambda x: torch.sign(x).detach() + (x * x / 2 - (x * x / 2).detach()),
        name="surrogate",
    )
    for p in (True, False):
        c.case(
            "z = if(p, x, y) then (a: f64[3], b: f64[3]) { q = mul(a, b) yield r0 = q } else (a: f64[3], b: f64[3]) { q = sub(a, b) yield r0 = q }",
            {"p": torch.tensor(p), "x": F(3), "y": F(3)},
            lambda p, x, y: x * y if p else x - y,
            name=str(p).lower(),
        )
    for n in (0, 1, 3, 9):

        def power(x, y, n):
            for _ in range(min(int(n), 5)):
                x = torch.sin(x) * y
            return x

        c.case(
            "z, k = while(x, n, y) {carries: 2, max: 5} cond (a: f64[2], i: i32[], b: f64[2]) "
            "{ o = constant() {value: i32[] [0]} p = greater(i, o) yield r0 = p } "
            "body (a: f64[2], i: i32[], b: f64[2]) { s = sin(a) q = mul(s, b) one = constant() {value: i32[] [1]} j = sub(i, one) yield r0 = q, r1 = j }",
            {"x": F(2), "y": F(2), "n": V(n, torch.int32)},
            power,
            outs=["z"],
            name=f"turns{n}",
        )

    def saved(x, y, n):
        before = []
        for _ in range(int(n)):
            before.append(x)
            x = torch.sin(x) * y
        return x, torch.tensor(len(before)), torch.stack(before + [torch.zeros_like(x)] * (4 - len(before)))

    c.case(
        "z, k, turns, zs, ks = while(x, n, y) {carries: 2, max: 4, save: true} cond (a: f64[2], i: i32[], b: f64[2]) "
        "{ o = constant() {value: i32[] [0]} p = greater(i, o) yield r0 = p } "
        "body (a: f64[2], i: i32[], b: f64[2]) { s = sin(a) q = mul(s, b) one = constant() {value: i32[] [1]} j = sub(i, one) yield r0 = q, r1 = j }",
        {"x": F(2), "y": F(2), "n": V(3, torch.int32)},
        saved,
        outs=["z", "turns", "zs"],
        name="saved",
    )
    for reverse in (False, True):

        def running(h, x, w):
            ys = []
            for t in range(4)[::-1] if reverse else range(4):
                h = torch.tanh(h @ w + x[t])
                ys.append(h * h)
            return h, torch.stack(ys[::-1] if reverse else ys)

        flag = ", reverse: true" if reverse else ""
        c.case(
            f"y, ys = scan(h, x, w) {{carries: 1, xs: 1, length: 4{flag}}} body (a: f64[2, 3], b: f64[2, 3], m: f64[3, 3]) "
            "{ p = matmul(a, m) q = add(p, b) r = tanh(q) s = mul(r, r) yield r0 = r, r1 = s }",
            {"h": F(2, 3), "x": F(4, 2, 3), "w": F(3, 3)},
            running,
            name="rnn.reverse" if reverse else "rnn",
        )
    c.case(
        "y = scan(h, x) {carries: 1, xs: 1, length: 0} body (a: f64[2], b: f64[2]) { p = mul(a, b) yield r0 = p }",
        {"h": F(2), "x": F(0, 2)},
        lambda h, x: h + 0,
        name="nothing",
    )
    c.case(
        "ys = scan(x) {carries: 0, xs: 1, length: 3} body (b: f64[2]) { p = exp(b) yield r0 = p }",
        {"x": F(3, 2)},
        torch.exp,
        name="map",
    )

"""Images: resizing, sampling at any place, regions, folding."""

import math

import torch
import torch.nn.functional as N

from .core import F, I, attrs


def source(y, n, m, scale, coordinates, roi):
    """Where in the old axis the element y of the new one stands."""
    wide = scale * n
    half = (y + 0.5) / scale - 0.5
    if coordinates == "half_pixel_symmetric":
        return n / 2 * (1 - m / wide) + half
    if coordinates == "pytorch_half_pixel":
        return 0.0 if wide == 1 else half
    if coordinates == "half_pixel_up":
        return (y + 0.5) / scale
    if coordinates == "align_corners":
        return 0.0 if wide == 1 else y * (n - 1) / (wide - 1)
    if coordinates == "asymmetric":
        return y / scale
    if coordinates == "crop":
        start, end = roi
        return start * (n - 1) + ((end - start) * (n - 1) / 2 if wide == 1 else y * (end - start) * (n - 1) / (wide - 1))
    return half


NEAREST = {
    "round_prefer_floor": lambda x: math.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: math.floor(x + 0.5),
    "floor": math.floor,
    "ceil": math.ceil,
}


def cubic(d, a):
    d = abs(d)
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a if d < 2 else 0.0


def resized(x, axis, m, k, a):
    """One axis by a matrix with a row for every new element."""
    n = x.shape[axis]
    scale = a["scales"][k] if "scales" in a else m / n
    rows, outside = [], []
    for y in range(m):
        roi = (a["roi"][k], a["roi"][k + len(a["axes"])]) if "roi" in a else None
        at = source(y, n, m, scale, a.get("coordinates", "half_pixel"), roi)
        mode, row = a.get("mode", "nearest"), [0.0] * n
        outside.append(at < 0 or at > n - 1)
        if mode == "nearest":
            row[min(max(NEAREST[a.get("nearest", "round_prefer_floor")](at), 0), n - 1)] = 1.0
        else:
            s = min(scale, 1.0) if a.get("antialias", False) else 1.0
            for p in range(math.floor(at - 2 / s) - 1, math.ceil(at + 2 / s) + 2):
                d = (p - at) * s
                w = max(1 - abs(d), 0.0) if mode == "linear" else cubic(d, a.get("cubic_a", -0.75))
                if not a.get("exclude_outside", False) or 0 <= p < n:
                    row[min(max(p, 0), n - 1)] += w
            row = [w / sum(row) for w in row]
        rows.append(row)
    matrix = torch.tensor(rows, dtype=torch.float64).reshape(m, n)
    moved = x.movedim(axis, -1)
    out = (moved.to(torch.float64) @ matrix.T).to(x.dtype)
    if a.get("coordinates") == "crop":
        out = torch.where(torch.tensor(outside), a.get("extrapolation", 0.0), out)
    return out.movedim(-1, axis)


def resize(x, **a):
    for k, (axis, m) in enumerate(zip(a["axes"], a["sizes"])):
        x = resized(x, axis, m, k, a)
    return x


def resizing(c):
    def case(name, x, fn=None, **a):
        c.case(f"y = resize(x){attrs(**a)}", {"x": x}, fn or (lambda x: resize(x, **a)), name=name)

    spatial = {3: [2], 4: [2, 3], 5: [2, 3, 4]}
    names = {3: "linear", 4: "bilinear", 5: "trilinear"}
    for shape, sizes in [((2, 3, 5), [8]), ((1, 2, 4, 3), [7, 2]), ((1, 2, 4, 6), [8, 12]), ((1, 1, 2, 3, 2), [3, 2, 4])]:
        r = len(shape)
        a = {"axes": spatial[r], "sizes": sizes}
        case("torch", F(*shape), lambda x: N.interpolate(x, sizes, mode="nearest"), **a, coordinates="asymmetric", nearest="floor")
        case("torch", F(*shape), lambda x: N.interpolate(x, sizes, mode="nearest-exact"), **a, nearest="round_prefer_ceil")
        case("torch", F(*shape), lambda x: N.interpolate(x, sizes, mode=names[r]), **a, mode="linear")
        case(
            "torch",
            F(*shape),
            lambda x: N.interpolate(x, sizes, mode=names[r], align_corners=True),
            **a,
            mode="linear",
            coordinates="align_corners",
        )
        if r == 4:
            case("torch", F(*shape), lambda x: N.interpolate(x, sizes, mode="bicubic"), **a, mode="cubic")
            case(
                "torch",
                F(*shape),
                lambda x: N.interpolate(x, sizes, mode="bicubic", align_corners=True),
                **a,
                mode="cubic",
                coordinates="align_corners",
            )
    for mode, name in (("linear", "bilinear"), ("cubic", "bicubic")):
        for shape, sizes in [((1, 2, 9, 8), [4, 3]), ((1, 1, 3, 10), [5, 4])]:
            case(
                "antialias",
                F(*shape),
                lambda x: N.interpolate(x, sizes, mode=name, antialias=True),
                axes=[2, 3],
                sizes=sizes,
                mode=mode,
                antialias=True,
                exclude_outside=True,
                cubic_a=-0.5,
            )
        case(
            "scale",
            F(1, 2, 5, 3),
            lambda x: N.interpolate(x, scale_factor=(1.5, 2.6), mode=name),
            axes=[2, 3],
            sizes=[7, 7],
            scales=[1.5, 2.6],
            mode=mode,
        )

    # What torch has not, by the loops above.
    ways = ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "half_pixel_up", "align_corners", "asymmetric", "crop"]
    for coordinates in ways:
        roi = {"roi": [0.2, 0.6, 1.2, 0.9], "extrapolation": 5.0} if coordinates == "crop" else {}
        for sizes, scales in [([6, 3], None), ([4, 4], [1.4, 0.7]), ([1, 6], [0.34, 1.0])]:
            a = {"axes": [-1, 1], "sizes": sizes, "coordinates": coordinates, **roi}
            if scales:
                a["scales"] = scales
            for nearest in NEAREST:
                case("nearest", F(2, 6, 3), **a, nearest=nearest)
            case("linear", F(2, 6, 3), **a, mode="linear")
            case("linear", F(2, 6, 3), **a, mode="linear", exclude_outside=True)
            case("cubic", F(2, 6, 3), **a, mode="cubic")
            case("cubic", F(2, 6, 3), **a, mode="cubic", exclude_outside=True, cubic_a=-0.5)
    for mode in ("linear", "cubic"):
        case("smooth", F(2, 7), axes=[1], sizes=[3], mode=mode, antialias=True)
        case("smooth", F(2, 7), axes=[1], sizes=[1], mode=mode, antialias=True)
        case("smooth", F(2, 3), axes=[1], sizes=[7], mode=mode, antialias=True)
        case("smooth", F(2, 8), axes=[1], sizes=[3], scales=[0.4], mode=mode, antialias=True)
    for times in (1, 2, 4, 8):
        for coordinates in ("half_pixel", "asymmetric"):
            case("times", I(2, 3, lo=-9, hi=9), axes=[0, 1], sizes=[2 * times, 3], coordinates=coordinates, nearest="floor")


def cases(c):
    resizing(c)

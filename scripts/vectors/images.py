"""Images: resizing, sampling at any place, regions, folding."""

import math

import torch
import torch.nn.functional as N

from .core import D, Draw, F, I, attrs


def source(y, n, m, scale, coordinates, roi):
    """Where in the old axis the element y of the new one stands."""
    wide = scale * n
    half = (y + 0.5) / scale - 0.5
    if coordinates == "half_pixel_symmetric":
        return n / 2 * (1 - m / wide) + half
    if coordinates == "pytorch_half_pixel":
        return 0.0 if m == 1 else half
    if coordinates == "half_pixel_up":
        return (y + 0.5) / scale
    if coordinates == "align_corners":
        return 0.0 if wide == 1 else y * (n - 1) / (wide - 1)
    if coordinates == "asymmetric":
        return y / scale
    if coordinates == "crop":
        start, end = roi
        return start * (n - 1) + ((end - start) * (n - 1) / 2 if m == 1 else y * (end - start) * (n - 1) / (m - 1))
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


def sampling(c):
    for mode, name in (("linear", "bilinear"), ("nearest", "nearest"), ("cubic", "bicubic")):
        for padding in ("zeros", "border", "reflection"):
            for align in (False, True):
                a = attrs(mode=mode, padding=padding, align_corners=align)
                fn = lambda x, grid: N.grid_sample(x, grid, name, padding, align)
                c.case(f"y = grid_sample(x, grid){a}", {"x": F(2, 3, 4, 5), "grid": F(2, 3, 2, 2, lo=-2.5, hi=2.5)}, fn)
                c.case(f"y = grid_sample(x, grid){a}", {"x": F(1, 2, 1, 3), "grid": F(1, 2, 2, 2)}, fn, name="single")
                if mode != "cubic":
                    grid = F(1, 2, 3, 2, 3, lo=-2.5, hi=2.5)
                    c.case(f"y = grid_sample(x, grid){a}", {"x": F(1, 2, 3, 4, 2), "grid": grid}, fn, name="volume")
    for align in (False, True):
        for theta, sizes in [((2, 2, 3), [3, 4]), ((1, 2, 3), [1, 2]), ((2, 3, 4), [2, 3, 4])]:
            c.case(
                f"grid = affine_grid(theta){attrs(sizes=sizes, align_corners=align)}",
                {"theta": F(*theta)},
                lambda theta: N.affine_grid(theta, [len(theta), 1, *sizes], align),
            )


def sample(image, y, x):
    """[c, ..] of one image at places, linear between pixels and 0 outside."""
    h, w = image.shape[-2:]
    y, x = torch.broadcast_tensors(y, x)
    grid = torch.stack([(x * 2 + 1) / w - 1, (y * 2 + 1) / h - 1], -1)
    return N.grid_sample(image[None], grid.reshape(1, -1, 1, 2), align_corners=False)[0].reshape(-1, *y.shape)


def bins(start, end, count, n, samples, aligned):
    """For each bin of a region along an axis, the places of its samples, and whether they count."""
    span = end - start if aligned else torch.clamp(end - start, min=1.0)
    size = span / count
    k = samples or min(math.ceil(float(size)), math.ceil(n / count))
    at = [start + b * size + (torch.arange(k, dtype=torch.float64) + 0.5) * size / max(k, 1) for b in range(count)]
    return [(p.clamp(0, n - 1), (p >= -1) & (p <= n)) for p in at]


def roi_align(x, rois, images, height, width, samples=0, scale=1.0, aligned=True, mode="mean"):
    h, w = x.shape[2:]
    out = []
    for roi, image in zip(rois, images):
        x1, y1, x2, y2 = roi * scale - (0.5 if aligned else 0.0)
        rows, columns = bins(y1, y2, height, h, samples, aligned), bins(x1, x2, width, w, samples, aligned)
        for y, y_in in rows:
            for u, u_in in columns:
                inside = y_in[:, None] & u_in
                if inside.numel() == 0:
                    out.append(torch.zeros(x.shape[1], dtype=x.dtype))
                elif mode == "mean":
                    v = torch.where(inside, sample(x[image], y[:, None], u), 0.0)
                    out.append(v.mean((1, 2)))
                else:
                    low = [torch.floor(p.detach()) for p in (y, u)]
                    best = None
                    for dy in (0, 1):
                        for du in (0, 1):
                            wy = y - low[0] if dy else 1 - (y - low[0])
                            wu = u - low[1] if du else 1 - (u - low[1])
                            v = sample(x[image], low[0][:, None] + dy, low[1] + du) * wy[:, None] * wu
                            best = v if best is None else torch.maximum(best, v)
                    out.append(torch.where(inside, best, 0.0).amax((1, 2)))
    return torch.stack(out).reshape(len(rois), height, width, -1).permute(0, 3, 1, 2)


def roi_pool(x, rois, images, height, width, scale=1.0):
    h, w = x.shape[2:]
    whole = lambda v: int(math.copysign(math.floor(abs(float(v)) * 1.0 + 0.5), float(v)))
    out = []
    for roi, image in zip(rois, images):
        x1, y1, x2, y2 = [whole(v * scale) for v in roi]
        for i in range(height):
            for j in range(width):
                part = x[image]
                for axis, first, last, k, count, n in ((1, y1, y2, i, height, h), (2, x1, x2, j, width, w)):
                    size = max(last - first + 1, 1) / count
                    start, end = math.floor(k * size) + first, math.ceil((k + 1) * size) + first
                    start, end = min(max(start, 0), n), min(max(end, 0), n)
                    part = part.narrow(axis, start, max(end - start, 0))
                out.append(part.amax((1, 2)) if part.numel() else torch.zeros(x.shape[1], dtype=x.dtype))
    return torch.stack(out).reshape(len(rois), height, width, -1).permute(0, 3, 1, 2)


def regions(c):
    rois = Draw(lambda g: torch.rand((4, 4), generator=g, dtype=torch.float64) * torch.tensor([5.0, 5, 5, 5]) + torch.tensor([-2.0, -2, 4, 4]))
    for samples in (1, 2, 3, 0):
        for aligned in (True, False):
            for mode in ("mean", "max"):
                for scale in (1.0, 0.5):
                    a = {"height": 2, "width": 3, "samples": samples, "scale": scale, "aligned": aligned, "mode": mode}
                    c.case(
                        f"y = roi_align(x, rois, images){attrs(**a)}",
                        {"x": F(2, 3, 5, 6), "rois": rois, "images": I(4, lo=0, hi=2)},
                        lambda x, rois, images: roi_align(x, rois, images, **a),
                    )
    for scale in (1.0, 0.7):
        a = {"height": 3, "width": 2, "scale": scale}
        c.case(
            f"y = max_roi_pool(x, rois, images){attrs(**a)}",
            {"x": D(2, 3, 5, 6), "rois": rois, "images": I(4, lo=0, hi=2)},
            lambda x, rois, images: roi_pool(x, rois, images, **a),
        )


def deform(x, w, offset, bias=None, mask=None, stride=None, padding_lo=None, padding_hi=None, dilation=None, groups=1, offset_groups=1):
    stride, dilation = stride or [1, 1], dilation or [1, 1]
    lo = padding_lo or [0, 0]
    n, channels = x.shape[:2]
    kh, kw = w.shape[2:]
    oh, ow = offset.shape[2:]
    offset = offset.reshape(n, offset_groups, kh, kw, 2, oh, ow)
    mask = torch.ones(n, offset_groups, kh, kw, oh, ow, dtype=x.dtype) if mask is None else mask.reshape(n, offset_groups, kh, kw, oh, ow)
    own, part = channels // offset_groups, channels // groups
    rows, columns = torch.arange(oh)[:, None] * stride[0] - lo[0], torch.arange(ow) * stride[1] - lo[1]
    images = []
    for b in range(n):
        taps = torch.zeros(channels, kh, kw, oh, ow, dtype=x.dtype)
        for g in range(offset_groups):
            for i in range(kh):
                for j in range(kw):
                    y = rows + i * dilation[0] + offset[b, g, i, j, 0]
                    u = columns + j * dilation[1] + offset[b, g, i, j, 1]
                    value = sample(x[b, g * own : (g + 1) * own], y, u) * mask[b, g, i, j]
                    taps = taps.clone()
                    taps[g * own : (g + 1) * own, i, j] = value
        weights = w.chunk(groups)
        images.append(
            torch.cat([torch.einsum("ockl,ckluv->ouv", v, taps[k * part : (k + 1) * part]) for k, v in enumerate(weights)])
        )
    y = torch.stack(images)
    return y if bias is None else y + bias[:, None, None]


def folding(c):
    c.case("y = deform_conv(x, w, offset)", {"x": F(1, 2, 5, 4), "w": F(3, 2, 2, 2), "offset": F(1, 8, 4, 3)}, deform)
    c.case(
        "y = deform_conv(x, w, offset, bias)",
        {"x": F(2, 2, 4, 4), "w": F(2, 2, 3, 3), "offset": F(2, 18, 2, 2), "bias": F(2)},
        deform,
    )
    a = {"stride": [2, 1], "padding_lo": [1, 1], "padding_hi": [1, 0], "dilation": [1, 2], "groups": 2, "offset_groups": 2}
    c.case(
        f"y = deform_conv(x, w, offset, bias, mask){attrs(**a)}",
        {"x": F(2, 4, 5, 5), "w": F(4, 2, 3, 2), "offset": F(2, 24, 3, 4), "bias": F(4), "mask": F(2, 12, 3, 4)},
        lambda x, w, o, b, m: deform(x, w, o, b, m, **a),
    )
    for a, shape in [
        ({"sizes": [4, 5], "kernel": [2, 3]}, (2, 12, 9)),
        ({"sizes": [6, 4], "kernel": [2, 2], "stride": [2, 2]}, (1, 8, 6)),
        ({"sizes": [5, 6], "kernel": [2, 2], "stride": [1, 2], "dilation": [2, 1], "padding_lo": [1, 1], "padding_hi": [1, 1]}, (1, 4, 20)),
    ]:
        c.case(
            f"y = col2im(x){attrs(**a)}",
            {"x": F(*shape)},
            lambda x: N.fold(x, a["sizes"], a["kernel"], a.get("dilation", 1), a.get("padding_lo", 0), a.get("stride", 1)),
        )


def cases(c):
    resizing(c)
    sampling(c)
    regions(c)
    folding(c)

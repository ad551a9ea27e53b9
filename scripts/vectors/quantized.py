"""Packed weights and fake quantisation. Scales have few bits, so that every decoded value is exact in f32."""

import torch
import torch.nn.functional as N

from .core import Draw, F, I, Packed, V, attrs

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)


def spread(scale, k, block):
    """One scale per block along axis -2 to one per element."""
    return scale.repeat_interleave(block, -2).narrow(-2, 0, k)


def nibbles(codes):
    """Two codes a byte, the low one first; an odd one out has 0 above it."""
    flat = codes.reshape(-1)
    flat = torch.cat([flat, flat.new_zeros(len(flat) % 2)])
    return (flat[0::2] | flat[1::2] << 4).to(torch.uint8)


def finite(x):
    """NaN and infinity count as 0 in a matmul."""
    return torch.where(torch.isfinite(x), x, 0.0)


def packed(scheme, shape, block, g, keep=lambda x: x):
    """Random codes and scales; keep is what becomes of codes and scales that are NaN or infinite."""
    *lead, k, n = shape
    ints = lambda lo, hi, size: torch.randint(lo, hi, size, generator=g)
    groups = (*lead, -(-k // block), n)
    scale = (ints(1, 2047, groups) / 4096.0).double()
    if scheme in ("int8", "int8_asym"):
        codes, planes = ints(-128, 128, shape), [scale.float()]
        value = codes.double()
        if scheme == "int8_asym":
            zero = ints(-200, 200, groups) / 4.0
            planes.append(zero.float())
            value = value - spread(zero.double(), k, block)
        return [codes.to(torch.int8), *planes], value * spread(scale, k, block)
    if scheme == "int4":
        codes = ints(0, 16, shape)
        return [nibbles(codes), scale.float()], torch.where(codes > 7, codes - 16, codes) * spread(scale, k, block)
    if scheme in ("fp8_e4m3", "fp8_e5m2", "mxfp8_e4m3", "mxfp8_e5m2"):
        codes = ints(0, 256, shape).to(torch.uint8)
        value = keep(codes.view(torch.float8_e4m3fn if scheme.endswith("e4m3") else torch.float8_e5m2).double())
        if scheme.startswith("fp8"):
            return [codes], value
        power = ints(117, 137, groups)
        return [codes, power.to(torch.uint8)], value * spread(2.0 ** (power - 127).double(), k, block)
    codes = ints(0, 16, shape)
    if scheme == "mxfp4":
        power = ints(117, 137, groups)
        return [nibbles(codes), power.to(torch.uint8)], E2M1[codes] * spread(2.0 ** (power - 127).double(), k, block)
    assert scheme == "nvfp4"
    scale = ints(0, 256, groups).to(torch.uint8)
    overall = torch.tensor([0.375])
    value = E2M1[codes] * spread(keep(scale.view(torch.float8_e4m3fn).double()), k, block) * overall.double()
    return [nibbles(codes), scale, overall], value


def rows(scheme, shape, g):
    """ggml kinds, [.., n, k]: blocks of 32 along the rows, a half scale in front."""
    total = torch.Size(shape).numel()
    if scheme in ("ggml_f16", "ggml_bf16"):
        x = (torch.rand(shape, generator=g) * 4 - 2).to(torch.float16 if scheme == "ggml_f16" else torch.bfloat16)
        return [x.reshape(-1).view(torch.uint8)], x.double()
    d = (torch.rand(total // 32, 1, generator=g) + 0.1).half()
    if scheme == "q8_0":
        q = torch.randint(-128, 128, (total // 32, 32), generator=g)
        data, value = q.to(torch.int8).view(torch.uint8), q * d.double()
    else:
        q = torch.randint(0, 16, (total // 32, 32), generator=g)
        data, value = (q[:, :16] | q[:, 16:] << 4).to(torch.uint8), (q - 8) * d.double()
    return [torch.cat([d.view(torch.uint8), data], 1).reshape(-1)], value.reshape(shape)


def draw(scheme, shape, block=None, keep=lambda x: x):
    def make(g):
        planes, values = packed(scheme, shape, block or 1, g, keep) if scheme not in ROWS else rows(scheme, shape, g)
        return Packed(f"{scheme}:{block}" if block else scheme, shape, planes, values)

    return Draw(make)


ROWS = ("q4_0", "q8_0", "ggml_f16", "ggml_bf16")
COLUMNS = [
    ("int8", 4),
    ("int8_asym", 3),
    ("int4", 4),
    ("fp8_e4m3", None),
    ("fp8_e5m2", None),
    ("nvfp4", 4),
    ("mxfp4", 4),
    ("mxfp8_e4m3", 4),
    ("mxfp8_e5m2", 4),
]


def round_through(x):
    return x + (torch.round(x) - x).detach()


def fake(x, scale, zero, lo, hi, axis=None):
    if axis is not None:
        shape = [-1 if i == axis % x.ndim else 1 for i in range(x.ndim)]
        scale, zero = scale.reshape(shape), zero.reshape(shape) if isinstance(zero, torch.Tensor) else zero
    q = round_through(x / scale) + zero
    # The gradient passes where the code is in range, its ends included (torch.clamp's would not).
    q = torch.where((q >= lo) & (q <= hi), q, q.detach().clamp(lo, hi))
    return (q - zero) * scale


def symmetric(x, block, largest):
    """int8 and int4 blocks down the columns, in f32 as the codec computes."""
    x = x.float()
    k = x.shape[-2]
    padded = N.pad(x, [0, 0, 0, -k % block])
    blocks = padded.reshape(*x.shape[:-2], -1, block, x.shape[-1])
    scale = blocks.abs().amax(-2) / largest
    wide = spread(scale, k, block)
    return torch.round(torch.where(wide == 0, 0.0, x / wide)).clamp(-largest, largest) * wide


def per(x, scale, axis, block):
    """A scale per tensor, per index of an axis, or per block of an axis, to one that broadcasts."""
    if axis is None:
        return scale
    if block:
        return scale.repeat_interleave(block, axis).narrow(axis, 0, x.shape[axis])
    return scale.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])


def codes(*shape, dtype):
    """Bytes over the whole range of the dtype."""
    lo, hi = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    return I(*shape, lo=lo, hi=hi + 1, dtype=dtype)


def products(c):
    """Integer products. PyTorch multiplies matrices of i64 exactly, and wraps when it narrows."""
    i8, u8 = torch.int8, torch.uint8
    for xs, ws, xd, wd, zx, zw in [
        ((3, 4), (4, 5), u8, i8, None, None),
        ((3, 4), (4, 5), i8, u8, None, ()),
        ((2, 9), (9, 3), u8, u8, (), ()),
        ((5, 70), (70, 33), u8, i8, (), (33,)),
        ((5, 7), (7, 2), i8, i8, (5,), (2,)),
        ((2, 3, 4), (4, 5), u8, i8, (3,), None),
        ((2, 1, 3, 4), (5, 4, 2), u8, i8, (), (2,)),
        ((6,), (6,), u8, i8, (), ()),
        ((6,), (2, 6, 3), i8, i8, None, (3,)),
        ((0, 4), (4, 3), u8, i8, (), None),
        ((3, 0), (0, 2), u8, i8, (), ()),
    ]:
        zeros = {"zx": zx is not None and codes(*zx, dtype=xd), "zw": zw is not None and codes(*zw, dtype=wd)}
        given = {k: v for k, v in zeros.items() if v}
        call = ", ".join(k if k in given else "_" for k in zeros)

        def fn(x, w, *z):
            z = dict(zip(given, z))
            x, w = x.long(), w.long()
            if "zx" in z:
                x = x - z["zx"].long().reshape([*z["zx"].shape, *[1] * z["zx"].ndim])
            if "zw" in z:
                w = w - z["zw"].long()
            return torch.matmul(x, w).to(torch.int32)

        inputs = {"x": codes(*xs, dtype=xd), "w": codes(*ws, dtype=wd)} | given
        c.case(f"z = matmul_integer(x, w, {call})" if given else "z = matmul_integer(x, w)", inputs, fn)

    for n, chans, out, groups, size, kernel, stride, lo, hi, dilation, xd, wd in [
        (1, 3, 4, 1, 8, 3, None, None, None, None, u8, i8),
        (2, 4, 6, 2, 9, 2, 2, 1, 0, 1, u8, u8),
        (1, 2, 2, 1, 10, 3, 1, 2, 1, 2, i8, i8),
        (0, 2, 2, 1, 5, 3, None, None, None, None, u8, i8),
    ]:
        one = lambda x: None if x is None else [x]
        steps = {"stride": one(stride), "padding_lo": one(lo), "padding_hi": one(hi), "dilation": one(dilation)}
        a = attrs(**steps, groups=groups if groups > 1 else None)

        def fn(x, w, zx=None, zw=None):
            x, w = x.double(), w.double()
            if zx is not None:
                x = x - zx.double()
            if zw is not None:
                w = w - zw.double().reshape([*zw.shape, *[1] * 2 * zw.ndim])
            y = N.conv1d(N.pad(x, [lo or 0, hi or 0]), w, stride=stride or 1, dilation=dilation or 1, groups=groups)
            return y.to(torch.int32)

        given = {"x": codes(n, chans, size, dtype=xd), "w": codes(out, chans // groups, kernel, dtype=wd)}
        c.case(f"y = conv_integer(x, w){a}", given, fn)
        both = {"zx": codes(dtype=xd), "zw": codes(out, dtype=wd)}
        c.case(f"y = conv_integer(x, w, zx, zw){a}", given | both, fn, name="zeros")


def dynamic(x):
    """ONNX's quantisation by the range of the data, in f32."""
    lo, hi = x.min().clamp(max=0.0), x.max().clamp(min=0.0)
    scale = (hi - lo) / 255.0
    zero = torch.round(-lo / scale).clamp(0, 255)
    return (torch.round(x / scale) + zero).clamp(0, 255).to(torch.uint8), scale, zero.to(torch.uint8)


def cases(c):
    products(c)
    for lo, hi in [(-3.0, 2.0), (0.5, 4.0), (-2.0, -0.25)]:
        for shape in [(11,), (3, 4, 5), ()]:
            x = F(*shape, lo=lo, hi=hi, dtype=torch.float32)
            c.case("y, s, z = dynamic_quantize_linear(x)", {"x": x}, dynamic, rtol=1e-6)
    for scheme, block in COLUMNS:
        for shape in [(8, 3), (7, 5), (2, 5, 3), (1, 1), (0, 3)]:
            w = draw(scheme, shape, block)
            c.case("y = dequantize(w) {dtype: f64}", {"w": w}, lambda w: w, name=scheme)
            if len(shape) == 2:
                k, n = shape
                w = draw(scheme, shape, block, finite)
                c.case("y = dequant_matmul(x, w)", {"x": F(3, k), "w": w}, lambda x, w: x @ w, name=scheme)
        w = draw(scheme, (9, 4), block, finite)
        c.case(
            "y = dequant_matmul(x, w, b)",
            {"x": F(2, 3, 9), "w": w, "b": F(4)},
            lambda x, w, b: x @ w + b,
            name=f"{scheme}.bias",
        )
        c.case("y = dequantize(w) {dtype: f64, finite: true}", {"w": w}, lambda w: w, name=f"{scheme}.finite")
        c.case(
            "y = dequant_matmul(x, w) {transpose: true}",
            {"x": F(3, 4), "w": w},
            lambda x, w: x @ w.T,
            name=f"{scheme}.transposed",
        )
        w = draw(scheme, (3, 5, 2), block, finite)
        c.case(
            "y = dequant_matmul_grouped(x, w, e)",
            {"x": F(4, 5), "w": w, "e": V([2, 0, 2, 1], torch.int32)},
            lambda x, w, e: torch.stack([x[i] @ w[j] for i, j in enumerate(e.tolist())]),
            name=scheme,
        )
        c.case(
            "y = dequant_matmul_grouped(x, w, e) {transpose: true}",
            {"x": F(4, 2), "w": w, "e": V([2, 0, 2, 1], torch.int32)},
            lambda x, w, e: torch.stack([x[i] @ w[j].T for i, j in enumerate(e.tolist())]),
            name=f"{scheme}.transposed",
        )
    for scheme in ROWS:
        k = 64 if scheme.startswith("q") else 7
        for n in (1, 3):
            w = draw(scheme, (n, k))
            c.case("y = dequantize(w) {dtype: f64}", {"w": w}, lambda w: w, name=scheme)
            c.case("y = dequant_matmul(x, w)", {"x": F(2, k), "w": w}, lambda x, w: x @ w.T, name=scheme)
        w = draw(scheme, (2, 3, k))
        c.case(
            "y = dequant_matmul_grouped(x, w, e, b)",
            {"x": F(3, k), "w": w, "e": V([1, 0, 1], torch.int64), "b": F(2, 3)},
            lambda x, w, e, b: torch.stack([x[i] @ w[j].T + b[j] for i, j in enumerate(e.tolist())]),
            name=f"{scheme}.bias",
        )

    exact = lambda *shape: Draw(lambda g: (torch.rand(shape, generator=g) * 4 - 2).double())
    for scheme, block, largest in [("int8", 4, 127), ("int4", 3, 7)]:
        for shape in [(8, 3), (7, 2), (2, 5, 2)]:
            name = f"packed<{scheme}:{block}>"
            c.case(
                f"w = quantize(x) {{scheme: {name}}}\ny = dequantize(w) {{dtype: f64}}",
                {"x": exact(*shape)},
                lambda x: symmetric(x.detach(), block, largest).double(),
                name=f"{scheme}.{len(shape)}",
                rtol=1e-6,
            )
            c.case(
                f"y = fake_quantize_block(x) {{scheme: {name}}}",
                {"x": exact(*shape)},
                lambda x: x + (symmetric(x, block, largest).double() - x).detach(),
                name=scheme,
                rtol=1e-6,
            )

    c.case("y = round_through(x)", {"x": F(3, 5, lo=-4, hi=4)}, round_through)
    c.case("y = round_through(x)", {"x": V([0.5, 1.5, -0.5, -2.5])}, round_through, name="ties")
    for shape in [(3, 5), (7,), (0, 2)]:
        c.case(
            "y = fake_quantize(x, s)", {"x": F(*shape), "s": F(lo=0.01, hi=0.02)}, lambda x, s: fake(x, s, 0, -128, 127)
        )
        c.case(
            "y = fake_quantize(x, s, z) {lo: 0, hi: 15}",
            {"x": F(*shape), "s": F(lo=0.1, hi=0.3), "z": V(7.0)},
            lambda x, s, z: fake(x, s, z, 0, 15),
            name="zero_point",
        )
    for axis in (0, 1, -1):
        n = (3, 4, 2)[axis]
        c.case(
            f"y = fake_quantize(x, s, z) {{lo: -8, hi: 7, axis: {axis}}}",
            {
                "x": F(3, 4, 2, lo=-3, hi=3),
                "s": F(n, lo=0.1, hi=0.5),
                "z": Draw(lambda g: torch.randint(-2, 3, (n,), generator=g).double()),
            },
            lambda x, s, z: fake(x, s, z, -8, 7, axis),
            name="axis",
        )
    c.case(
        "y = fake_quantize(x, s, z) {lo: 0, hi: 255}",
        {"x": F(4, 4, dtype=torch.float32), "s": torch.tensor(0.0078125), "z": torch.tensor(128.0)},
        lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, s, z.int(), 0, 255),
        name="torch",
    )
    c.case(
        "y = fake_quantize(x, s, z) {lo: -128, hi: 127, axis: 1}",
        {
            "x": F(4, 3, dtype=torch.float32),
            "s": torch.tensor([0.0078125, 0.015625, 0.25]),
            "z": torch.tensor([3.0, 0.0, -7.0]),
        },
        lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z.int(), 1, -128, 127),
        name="torch_channels",
    )

    for dtype, lo, hi in [(torch.int8, -128, 127), (torch.uint8, 0, 255), (torch.int16, -32768, 32767)]:
        for axis, block in [(None, None), (1, None), (-1, 2), (0, 3)]:
            shape = (4, 5)
            size = (
                ()
                if axis is None
                else (shape[axis],)
                if not block
                else tuple(-(-n // block) if i == axis % 2 else n for i, n in enumerate(shape))
            )
            a = attrs(axis=axis, block=block)
            s, z = F(*size, lo=0.01, hi=0.3), I(*size, lo=0, hi=9, dtype=dtype)
            c.case(
                f"y = quantize_linear(x, s, z){attrs(axis=axis, block=block, dtype=dtype)}",
                {"x": F(*shape, lo=-3, hi=3), "s": s, "z": z},
                lambda x, s, z: (
                    (torch.round(x / per(x, s, axis, block)) + per(x, z, axis, block)).clamp(lo, hi).to(dtype)
                ),
            )
            c.case(
                f"y = dequantize_linear(x, s, z){a}",
                {"x": I(*shape, lo=max(lo, -200), hi=min(hi, 200), dtype=dtype), "s": s, "z": z},
                lambda x, s, z: (x.double() - per(x, z, axis, block).double()) * per(x, s, axis, block),
            )
    c.case(
        "y = quantize_linear(x, s)",
        {"x": V([0.5, 1.5, -0.5, 300.0, -300.0, 2.5]), "s": V(1.0)},
        lambda x, s: torch.round(x).clamp(-128, 127).to(torch.int8),
        name="ties",
    )
    c.case(
        "y = dequantize_linear(x, s)",
        {"x": I(5, lo=-128, hi=128, dtype=torch.int8), "s": V(0.25)},
        lambda x, s: x.double() * s,
        name="no_zero",
    )

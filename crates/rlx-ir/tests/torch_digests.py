"""Prints the digests that torch.rs compares with. Needs PyTorch.

Inputs are sin(i + seed) over the flat index; a digest is the sum of y[i] * cos(i) over the flat result."""

import torch
import torch.nn.functional as F


def wave(*shape, seed=0):
    n = 1
    for d in shape:
        n *= d
    return torch.sin(torch.arange(n, dtype=torch.float64) + seed).reshape(shape).requires_grad_()


def digest(y):
    y = torch.view_as_real(y) if y.is_complex() else y
    y = y.to(torch.float64).flatten()
    return (y * torch.cos(torch.arange(y.numel(), dtype=torch.float64))).sum().item()


def show(name, y, *wrt):
    """The digest of y, then of the gradients of (y * w).sum() with w = wave of seed 9."""
    out = [digest(y)]
    if wrt:
        loss = (y * wave(*y.shape, seed=9)).sum()
        out += [digest(g) for g in torch.autograd.grad(loss, wrt)]
    print(f'    ("{name}", &[{", ".join(f"{v:.10}" for v in out)}]),')


x, w, b = wave(2, 4, 7, 6), wave(6, 2, 3, 2, seed=1), wave(6, seed=2)
show("conv", F.conv2d(x, w, b, stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2), x, w, b)
xp = F.pad(x, (0, 1, 2, 0))
show("conv_asymmetric", F.conv2d(xp, w, None, stride=(3, 2), groups=2), x, w)
x, w, b = wave(2, 4, 3, 4), wave(4, 3, 3, 2, seed=1), wave(6, seed=2)
y = F.conv_transpose2d(x, w, b, stride=(2, 3), padding=(1, 0), output_padding=(1, 2), dilation=(2, 1), groups=2)
show("conv_transpose", y, x, w, b)
y = F.conv_transpose2d(x, w, b, stride=(2, 1), padding=(1, 0), output_padding=(2, 0), dilation=(3, 1), groups=2)
show("conv_transpose_wide", y, x, w, b)
x = wave(2, 2, 7, 8)
show("max_pool", F.max_pool2d(x, (3, 2), (2, 2), (1, 0), (1, 2), ceil_mode=False), x)
show("max_pool_ceil", F.max_pool2d(x, (2, 3), (2, 2), (1, 1), ceil_mode=True), x)
show("avg_pool_ceil", F.avg_pool2d(x, (2, 3), (2, 2), (1, 1), ceil_mode=True), x)
show("avg_pool_ceil_inside", F.avg_pool2d(x, (3, 3), (2, 2), (1, 1), ceil_mode=True, count_include_pad=False), x)
x = wave(3, 7)
show("rfft", torch.view_as_real(torch.fft.rfft(x)), x)
x = wave(3, 5, 2)
show("irfft", torch.fft.irfft(torch.view_as_complex(x), n=8), x)
show("fft", torch.view_as_real(torch.fft.fft(torch.view_as_complex(x))), x)
x, y = wave(2, 3, 4), wave(4, 2, 3, 5, seed=1)
show("einsum", torch.einsum("bij,jbkc->ikc", x, y), x, y)
x = wave(3, 6)
v, i = torch.topk(x, 3)
show("top_k", v, x)
show("top_k_indices", i)
x, at, u = wave(5), torch.tensor([0, 2, 0, 4, 4, 2]), wave(6, seed=3)
for mode, name in [("sum", "add"), ("amax", "max"), ("amin", "min"), ("prod", "mul")]:
    show("scatter_" + name, x.scatter_reduce(0, at, u, mode), x, u)

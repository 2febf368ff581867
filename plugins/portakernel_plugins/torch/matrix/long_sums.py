"""Matrix products whose sums cuBLAS would cut short.

Where results are few it splits long sums, and at some lengths leaves out what is behind the last whole step of a part:
of 20,488 ones it gives 20,480, of 61,480 it gives 61,440, in 16 bits and in float8, whatever the layout (H200, CUDA
13.0; results of up to 65,536 numbers). Sums of up to 16,392 were right, and those of multiples of 4096.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from portakernel_plugins.torch.matrix.neighbouring_rows import apart
from portakernel_plugins.torch.matrix.odd_rows import is_slow, product_of_vectors

ALWAYS_WHOLE = 1 << 14  # terms
_STEP = 1 << 12
# So many tiles keep every multiprocessor busy: there no sum is split.
_MOST_SPLIT = 1 << 20


def is_cut_short(a: Tensor, b: Tensor) -> bool:
    """Whether ``a @ b.T`` may miss terms; a: (M, K), b: (N, K)."""
    terms = a.shape[1]
    if terms <= ALWAYS_WHOLE or terms % _STEP == 0:
        return False
    short = a.dtype.itemsize <= 2 and a.shape[0] * b.shape[0] <= _MOST_SPLIT
    return short and a.device.type == "cuda" and torch.version.hip is None


def product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """``a @ b.T + bias``, rounded once; a: (M, K), b: (N, K), bias: (N,)."""
    if not is_cut_short(a, b):
        return product_of_vectors(a, b, bias) if is_slow(a, b) else linear(*apart(a, b), bias)
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):  # a product into float32 has no gradient
        return linear(with_whole_steps(a), with_whole_steps(b), bias)
    y = wide_product(a, b)
    return (y if bias is None else y + bias).to(a.dtype)


def wide_product(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b.T`` in float32, of 16-bit numbers on a GPU."""
    step = ALWAYS_WHOLE if is_cut_short(a, b) else max(a.shape[1], 1)
    pairs = zip(torch.split(a, step, 1), torch.split(b, step, 1), strict=True)
    first, *others = (torch.mm(x, y.t(), out_dtype=torch.float32) for x, y in pairs)
    for other in others:
        first += other
    return first


def with_whole_steps(x: Tensor) -> Tensor:
    """``x`` with zeros behind its rows, to a length at which sums are whole."""
    missing = -x.shape[1] % _STEP
    if x.dtype.itemsize == 1:  # which nothing pads as numbers
        return pad(x.view(torch.uint8), (0, missing)).view(x.dtype)
    return pad(x, (0, missing))

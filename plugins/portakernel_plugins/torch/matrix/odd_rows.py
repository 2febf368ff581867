"""Matrix products over rows, or into rows, of 16-bit numbers that do not fill vectors.

Of such rows cuBLAS reads or writes number by number, or a few at once. On an H200 (torch 2.11, CUDA 13.0, us), by
cuBLAS and by ``product_of_vectors``, copies and all: 1024 x 32001 x 4096, with 32001 columns, 3031 and 428, with 32004
columns 979 and 436; 4096 x 4096 x 11007, of 11007 terms, 2923 and 725, of 11004 terms 1472 and 727; 256 x 1001 x 4096
69 and 25.
"""

from __future__ import annotations

import torch
from torch import Tensor, cat
from torch.nn.functional import linear, pad

# Rows of so many numbers begin where vectors may.
_VECTOR = 8
# Multiplications below which copies and launches take as long as they save.
_FEWEST = 1 << 29
# A copied side has to be read as often.
_FEWEST_TIMES = 128


def is_slow(a: Tensor, b: Tensor) -> bool:
    """Whether ``a @ b.T`` is better computed by ``product_of_vectors``; a: (..., K), b: (N, K)."""
    columns, terms = b.shape
    if (columns % _VECTOR == 0 and terms % _VECTOR == 0) or a.dtype.itemsize != 2:
        return False
    if a.device.type != "cuda" or torch.version.hip is not None:
        return False
    if not all(type(size) is int for size in (*a.shape, columns, terms)):  # which a graph leaves open
        return False
    rows = a.shape[:-1].numel()
    copied = terms % _VECTOR != 0 or _is_recorded(a, b)
    return rows * columns * terms >= _FEWEST and (not copied or min(rows, columns, terms) >= _FEWEST_TIMES)


def product_of_vectors(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    """``a @ b.T + bias``, each rounded once, of rows that begin where vectors may.

    Terms are padded with zeros. Of columns those that fill vectors are a product of their own; for a gradient, which
    would come in rows of as many, they are padded too.
    """
    columns, terms = b.shape
    missing = -terms % _VECTOR
    if _is_recorded(a, b):
        more = -columns % _VECTOR
        bias = None if bias is None else pad(bias, (0, more))
        wide = linear(pad(a, (0, missing)), pad(b, (0, missing, 0, more)), bias)
        return wide[..., :columns].contiguous()
    if missing:
        a, b = pad(a, (0, missing)), pad(b, (0, missing))
    whole = columns - columns % _VECTOR
    if whole == columns:
        return linear(a, b, bias)
    first, last = (None, None) if bias is None else (bias[:whole], bias[whole:])
    return cat((linear(a, b[:whole], first), linear(a, b[whole:], last)), -1)


def _is_recorded(a: Tensor, b: Tensor) -> bool:
    return torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)

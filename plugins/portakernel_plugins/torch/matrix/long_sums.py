"""Matrix products whose sums cuBLAS would cut short.

Where it splits sums of more than 32,768 numbers of 16 bits, it leaves out what is behind their last whole step of 64:
of 61,480 ones it gives 61,440 (H200, CUDA 13.0, results of up to 256 times 256 from 32,776 terms on).
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import pad

_STEP, _RIGHT = 64, 32768


def whole_steps(x: Tensor) -> Tensor:
    """``x``, with zeros behind its rows where products that sum over them would be cut short."""
    missing = -x.shape[-1] % _STEP
    if not missing or x.shape[-1] <= _RIGHT or x.device.type != "cuda" or x.dtype.itemsize != 2:
        return x
    return pad(x, (0, missing))


def product(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b.T``; a: (M, K), b: (N, K)."""
    return whole_steps(a) @ whole_steps(b).t()

"""Matrix products on CPUs into which other rows would come.

oneDNN's products of bfloat16 numbers on AMX take terms in fours, or in twos of up to 32: a row of another length is
read together with what is behind it, which is multiplied with zeros. NaN and infinity there, of the next row or of
memory that is nobody's, become NaN in the result (torch 2.13, oneDNN 3.12; products of float16 or float32 are right).
"""

from __future__ import annotations

from torch import Tensor, bfloat16
from torch.nn.functional import pad

_TOGETHER = 4


def apart(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Both sides of ``a @ b.T``, or what has the same product and rows of whole fours; a: (..., K), b: (N, K)."""
    # the length last: a graph for lengths that are left open is bound to what is asked of them
    if a.dtype is bfloat16 and a.device.type == "cpu" and (missing := -a.shape[-1] % _TOGETHER):
        return pad(a, (0, missing)), pad(b, (0, missing))
    return a, b

"""``layer_norm`` in HIP C++: ``(x - mean) * rstd * weight + bias``.

The variance is the mean of squared deviations from the mean, whose digits do not cancel.
"""

from __future__ import annotations

import torch
from torch import Tensor

from portakernel.authoring.tensors import delivered
from portakernel_plugins.hip.norms import normalise
from portakernel_plugins.hip.rows import room_in_rows


def layer_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    eps: float,
    out: Tensor | None = None,
    save: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """``(x - mean) * rstd * weight + bias``; ``mean`` and ``rstd`` too when ``save``.

    ``x``: ``(..., N)``; float32, float16 or bfloat16. ``weight``, ``bias``: ``(N,)``, any stride, of the dtype of ``x``
    or float32. ``mean``, ``rstd``: ``(M,)`` float32. ``out``: any strides; may be ``x`` itself.
    """
    y = room_in_rows(x, out)
    mean = rstd = None
    if save:
        mean = torch.empty(x.numel() // x.shape[-1], dtype=torch.float32, device=x.device)
        rstd = torch.empty_like(mean)
    normalise("layer_norm", x, None, weight, bias, y, (None, 0), mean, rstd, eps=eps, centred=True)
    found = delivered(y[0], out)
    return found if mean is None or rstd is None else (found, mean, rstd)

"""``rms_norm`` in HIP C++: ``x * rstd * (weight + weight_offset)`` with ``rstd = 1 / sqrt(mean(x**2) + eps)``."""

from __future__ import annotations

import torch
from torch import Tensor

from portakernel.authoring.tensors import delivered
from portakernel_plugins.hip.norms import normalise
from portakernel_plugins.hip.rows import room_in_rows


def rms_norm(
    x: Tensor, weight: Tensor, *, eps: float, weight_offset: float = 0.0, out: Tensor | None = None, save: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """``x * rstd * (weight + weight_offset)``, and ``rstd`` too when ``save``.

    ``x``: ``(..., N)``, any strides; float32, float16 or bfloat16. ``weight``: ``(N,)``, any stride, of the dtype of
    ``x`` or float32. ``rstd``: ``(M,)`` float32. ``out``: any strides; may be ``x`` itself.
    """
    y = room_in_rows(x, out)
    rstd = torch.empty(x.numel() // x.shape[-1], dtype=torch.float32, device=x.device) if save else None
    normalise(
        "rms_norm",
        x,
        None,
        weight,
        None,
        y,
        (None, 0),
        None,
        rstd,
        eps=eps,
        weight_offset=weight_offset,
        centred=False,
    )
    found = delivered(y[0], out)
    return found if rstd is None else (found, rstd)

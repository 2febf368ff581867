"""``add_rms_norm`` in HIP C++: a sum rounded to its dtype, and ``rms_norm`` of it as it is stored."""

from __future__ import annotations

import torch
from torch import Tensor

from portakernel.authoring.tensors import delivered
from portakernel_plugins.hip.norms import normalise
from portakernel_plugins.hip.rows import room_in_rows


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    *,
    eps: float,
    weight_offset: float = 0.0,
    out: tuple[Tensor, Tensor] | None = None,
    save: bool = False,
) -> tuple[Tensor, ...]:
    """``(y, summed)``; ``rstd`` too when ``save``.

    ``x``, ``residual``: ``(..., N)`` of one dtype of float32, float16, bfloat16. ``weight``: ``(N,)``, any stride, of
    that dtype or float32. ``rstd``: ``(M,)`` float32. ``out``: any strides; may be ``(x, residual)``.
    """
    y_out, summed_out = (None, None) if out is None else out
    y, summed = room_in_rows(x, y_out), room_in_rows(x, summed_out)
    rstd = torch.empty(x.numel() // x.shape[-1], dtype=torch.float32, device=x.device) if save else None
    normalise(
        "add_rms_norm",
        x,
        residual,
        weight,
        None,
        y,
        summed,
        None,
        rstd,
        eps=eps,
        weight_offset=weight_offset,
        centred=False,
    )
    found = delivered(y[0], y_out), delivered(summed[0], summed_out)
    return found if rstd is None else (*found, rstd)

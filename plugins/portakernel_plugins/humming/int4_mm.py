"""``int4_mm`` by Humming's products of 16-bit numbers and 4-bit weights.

Its weights, scales and zeros lie as its kernels read them. A weight is packed for it at the first call with it, and the
packed one is kept beside it (``Derived``): as much memory again. What its programs tell each other is kept with it.
"""
# pyright: reportMissingImports=false
# Humming is an optional requirement.

from __future__ import annotations

from typing import Any

import torch
from humming import dtypes
from humming.forward import humming_forward
from humming.schema import HummingWeightSchema
from humming.transform import prepare_and_transform_humming_tensors
from torch import Tensor

from portakernel.authoring.tensors import Derived, announce_once, delivered, dense, int4_parts

_WIDE = 16  # bytes that are read at once
_LOCKS = 2048  # as Humming's own layers have
_PACKED: Derived[tuple[Any, dict[str, Tensor]]] = Derived("Humming's packed weight")


def int4_mm(
    x: Tensor,
    weight: Tensor,
    scales: Tensor,
    zeros: Tensor | None = None,
    *,
    layout: str,
    group: int,
    zero: str,
    out: Tensor | None = None,
) -> Tensor:
    """``x @ w.T``; x: (..., K), scales of its dtype; one scale for all columns where ``group`` is -1.

    Raises:
        CannotRun: the weight is not packed yet, and a graph is being captured; or it was made in inference mode.
    """
    columns = scales.shape[0] if layout == "ct" else scales.shape[1]
    zeros = None if zero == "none" else zeros

    def packed() -> tuple[Any, dict[str, Tensor]]:
        parts = int4_parts(weight, scales, zeros, columns=x.shape[-1], layout=layout, zero=zero)
        return _packed(*parts, max(group, 0), x.dtype)

    config, tensors = _PACKED.of((weight, scales, zeros), (layout, group, zero), packed)
    announce_once("Humming's 4-bit product", x.dtype, columns, x.shape[-1], group, zeros is not None)
    y = humming_forward(config, inputs=dense(x.reshape(-1, x.shape[-1]), _WIDE), **tensors)
    return delivered(y.view(*x.shape[:-1], columns), out)


def _packed(
    q: Tensor, scales: Tensor, subtracted: Tensor | None, group: int, dtype: torch.dtype
) -> tuple[Any, dict[str, Tensor]]:
    """What describes the layer, and its tensors; q: (N, K), scales and what is subtracted: (groups, N)."""
    given = {"weight": _words(q), "weight_scale": scales.t().contiguous()}
    if subtracted is not None:  # a word for eight of N
        given["zero_point"] = _words(subtracted).t().contiguous()
    schema = HummingWeightSchema(
        b_dtype=dtypes.uint4, weight_scale_group_size=group, has_zero_point=subtracted is not None
    )
    config, tensors = prepare_and_transform_humming_tensors(given, *q.shape, schema, torch_dtype=dtype, device=q.device)
    return config, {**tensors, "locks": torch.zeros(_LOCKS, dtype=torch.int32, device=q.device)}


def _words(elements: Tensor) -> Tensor:
    """Eight neighbours of a row to a word, the first in its lowest bits."""
    return (elements[:, 0::2] | elements[:, 1::2] << 4).contiguous().view(torch.int32)

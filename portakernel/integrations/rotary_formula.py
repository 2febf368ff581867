"""Rotary positions as vLLM and SGLang call them: ``(positions, query, key)``, and a table on the layer.

The table ``cos_sin_cache: (P, rotary_dim)`` has one row of cosines, then of sines, a position.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from portakernel.integrations.served_layer import refused_dtype

_POSITIONS = (torch.int32, torch.int64)


def refusal_of_heads(positions: Tensor, query: Tensor, key: Tensor | None) -> str:
    """What the op's contract lacks for these, whatever the table; empty where nothing."""
    if key is None:
        return "no key: the op turns queries and keys together"
    if reason := refused_dtype(query):
        return reason
    if key.dtype != query.dtype:
        return "query and key differ in dtype"
    if positions.dtype not in _POSITIONS:
        return f"positions of {positions.dtype}: the op takes int32 and int64"
    return ""


def exact(module: Any, positions: Tensor, query: Tensor, key: Tensor) -> tuple[Tensor, ...]:
    """The formula in float64, of the table that the client's own forward reads."""
    cos, sin = module.cos_sin_cache.double()[positions.flatten()].unsqueeze(1).chunk(2, -1)
    return tuple(
        _turned(heads.reshape(len(cos), -1, module.head_size), cos, sin, halves=module.is_neox_style).view(heads.shape)
        for heads in (query, key)
    )


def _turned(heads: Tensor, cos: Tensor, sin: Tensor, *, halves: bool) -> Tensor:
    width = 2 * cos.shape[-1]
    first = heads[..., : width // 2] if halves else heads[..., 0:width:2]
    second = heads[..., width // 2 : width] if halves else heads[..., 1:width:2]
    turned = first * cos - second * sin, second * cos + first * sin
    together = torch.cat(turned, -1) if halves else torch.stack(turned, -1).flatten(-2)
    return torch.cat((together, heads[..., width:]), -1)

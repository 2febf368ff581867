"""SGLang's rotary embeddings by ``rotary_embedding``: classes whose table is one row of cosines and sines a position.

Subclasses of ``RotaryEmbedding`` that fill the table by a formula of theirs are served as it is; those with a forward
of their own are not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from portakernel import ops
from portakernel.integrations.call_kinds import Kind
from portakernel.integrations.sglang.layer import SglangLayer, refused_dtype


class Rotary(SglangLayer):
    """``RotaryEmbedding``: ``(positions, query, key)``, heads side by side or in a dimension of their own."""

    names = ("positions", "query", "key", "offsets", "fused_set_kv_buffer_arg")
    known = 3

    def lacks(self, module: Any, *arguments: Any) -> str:
        """What the op's contract lacks for this call; empty where nothing."""
        positions, query, key = arguments
        if key is None:
            return "no key: the op turns queries and keys together"
        if reason := refused_dtype(query):
            return reason
        if key.dtype != query.dtype:
            return "query and key differ in dtype"
        if positions.dtype not in (torch.int32, torch.int64):
            return f"positions of {positions.dtype}: the op takes int32 and int64"
        if not positions.numel() == query.shape[0] == key.shape[0]:
            return "queries or keys that are not one row a position"
        table = module.cos_sin_cache
        if hasattr(module, "sin_cos_cache") or table.dim() != 2 or table.shape[-1] != module.rotary_dim:
            return "a table that is not one row of rotary_dim cosines and sines a position"
        if table.dtype not in (query.dtype, torch.float32):
            return f"a table of {table.dtype} beside heads of {query.dtype}: the op takes the latter or float32"
        if table.device != query.device:
            return f"a table on {table.device} beside heads on {query.device}"
        return ""

    def ours(self, module: Any, *arguments: Any) -> Any:
        """By ``rotary_embedding``."""
        positions, query, key = arguments
        table, half = module.cos_sin_cache, module.rotary_dim // 2
        q, k = (heads.reshape(heads.shape[0], -1, module.head_size) for heads in (query, key))
        cos, sin = table[:, :half], table[:, half:]
        turned = ops.rotary_embedding(q, k, cos, sin, positions.flatten(), interleaved=not module.is_neox_style)
        return turned[0].view(query.shape), turned[1].view(key.shape)

    def exact(self, module: Any, *arguments: Any) -> Any:
        """The formula in float64, of SGLang's own table."""
        positions, query, key = arguments
        cos, sin = module.cos_sin_cache.double()[positions.flatten()].unsqueeze(1).chunk(2, -1)
        return tuple(
            _turned(heads.reshape(len(cos), -1, module.head_size), cos, sin, halves=module.is_neox_style).view(
                heads.shape
            )
            for heads in (query, key)
        )

    def drawn(self, module: Any, kind: Kind) -> tuple[Any, ...]:
        """Inputs of a kind; positions that the table has."""
        positions, query, key = super().drawn(module, kind)
        return positions % module.cos_sin_cache.shape[0], query, key


def _turned(heads: Tensor, cos: Tensor, sin: Tensor, *, halves: bool) -> Tensor:
    width = 2 * cos.shape[-1]
    first = heads[..., : width // 2] if halves else heads[..., 0:width:2]
    second = heads[..., width // 2 : width] if halves else heads[..., 1:width:2]
    turned = first * cos - second * sin, second * cos + first * sin
    together = torch.cat(turned, -1) if halves else torch.stack(turned, -1).flatten(-2)
    return torch.cat((together, heads[..., width:]), -1)

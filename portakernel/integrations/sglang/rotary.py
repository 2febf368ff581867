"""SGLang's rotary embeddings by ``rotary_embedding``: classes whose table is one row of cosines and sines a position.

Subclasses of ``RotaryEmbedding`` that fill the table by a formula of theirs are served as it is; those with a forward
of their own are not.
"""

from __future__ import annotations

from typing import Any

import torch

from portakernel import ops
from portakernel.integrations.call_kinds import Kind
from portakernel.integrations.rotary_formula import exact, refusal_of_heads
from portakernel.integrations.sglang.layer import SglangLayer


class Rotary(SglangLayer):
    """``RotaryEmbedding``: ``(positions, query, key)``, heads side by side or in a dimension of their own."""

    names = ("positions", "query", "key", "offsets", "fused_set_kv_buffer_arg")
    known = 3

    def lacks(self, module: Any, *arguments: Any) -> str:
        """What the op's contract lacks for this call; empty where nothing."""
        positions, query, key = arguments
        if reason := refusal_of_heads(positions, query, key):
            return reason
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
        """The formula in float64, of the table that the client's own forward reads."""
        return exact(module, *arguments)

    def drawn(self, module: Any, kind: Kind) -> tuple[Any, ...]:
        """Inputs of a kind; positions that the table has."""
        positions, query, key = super().drawn(module, kind)
        return positions % module.cos_sin_cache.shape[0], query, key

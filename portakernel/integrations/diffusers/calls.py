"""One attention call of diffusers, and the three ways to compute it: by the op, by diffusers, exactly."""
# pyright: reportMissingImports=false

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from diffusers.models.attention_dispatch import (
    AttentionBackendName,
    _AttentionBackendRegistry,  # pyright: ignore[reportPrivateUsage]  # of its backends there is no public list
)
from torch import Tensor

from portakernel import ops
from portakernel.integrations.diffusers.masks import bias, with_window

NAME = "diffusers"
LAYER = "attention"
OP = "attention"
EVERYTHING = (-1, -1)


@dataclass(slots=True)
class Call:
    """Queries (B, S, H, D), keys (B, T, G, D) and values (B, T, G, E) with what diffusers says about them.

    ``mask`` is None or placed (``masks.placed``). Not frozen: torch.compile traces its making.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    causal: bool
    scale: float | None
    window: tuple[int, int]
    grouped: bool

    def of(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Call:
        """The same call of other tensors."""
        return replace(self, query=query, key=key, value=value, mask=mask)

    def doubled(self) -> Call:
        """The same call in float64."""
        mask = self.mask
        if mask is not None and mask.is_floating_point():
            mask = mask.to(torch.float64)
        q, k, v = (each.to(torch.float64) for each in (self.query, self.key, self.value))
        return self.of(q, k, v, mask)


def ours(call: Call, *, return_lse: bool = False) -> Any:
    """The call by the op: (B, S, H, E), and the log-sum-exp (B, H, S) where that is asked for."""
    added = None if call.mask is None else bias(call.mask, call.query, call.key)
    return ops.attention(
        call.query,
        call.key,
        call.value,
        causal=call.causal,
        scale=call.scale,
        window=call.window,
        return_lse=return_lse,
        bias=added,
    )


def native(call: Call, *, dropout_p: float = 0.0, parallel_config: Any = None) -> Any:
    """The call by diffusers' native backend, torch's scaled_dot_product_attention."""
    mask, causal = call.mask, call.causal
    if call.window != EVERYTHING:
        mask, causal = with_window(mask, call.query, call.key, call.window, causal=causal), False
    backend = _AttentionBackendRegistry._backends[AttentionBackendName.NATIVE]
    return backend(
        query=call.query,
        key=call.key,
        value=call.value,
        attn_mask=mask,
        dropout_p=dropout_p,
        is_causal=causal,
        scale=call.scale,
        enable_gqa=call.grouped,
        _parallel_config=parallel_config,
    )


def exact(call: Call) -> Tensor:
    """What diffusers' native attention means, computed from float64 step by step."""
    q, k, v = (each.transpose(1, 2) for each in (call.query, call.key, call.value))
    repeats = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if call.scale is None else call.scale)
    hidden = ~with_window(None, call.query, call.key, call.window, causal=call.causal)
    if call.mask is not None and call.mask.dtype == torch.bool:
        hidden = hidden | ~call.mask
    elif call.mask is not None:
        scores = scores + call.mask
    scores = scores.masked_fill(hidden, float("-inf"))
    weights = scores.softmax(-1).nan_to_num()  # a query that sees no key gives zeros
    return (weights @ v).transpose(1, 2)

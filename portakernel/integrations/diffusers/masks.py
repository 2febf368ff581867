"""diffusers' attention masks as the op's bias: what is added to the scores, with -inf where a key is hidden."""

from __future__ import annotations

import torch
from torch import Tensor


def placed(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """A mask with four dimensions (B, H, S, T), each 1 where it is shared, as diffusers' native attention reads it.

    (B, T) is a mask of keys, also where S equals B: that is diffusers' rule. Anything else lines up at the right, as
    torch broadcasts.
    """
    if mask.dim() == 2 and mask.shape[0] == query.shape[0] and mask.shape[1] == key.shape[1]:
        return mask[:, None, None, :]
    return mask[(None,) * (4 - mask.dim())]


def refusal(mask: Tensor, query: Tensor, key: Tensor) -> str:
    """Why a mask cannot become a bias; empty where it can."""
    if mask.dim() > 4:
        return f"a mask of {mask.dim()} dimensions; the op takes up to (batch, heads, queries, keys)"
    if mask.dtype not in (torch.bool, torch.float32, query.dtype):
        return f"a mask of {mask.dtype} beside queries of {query.dtype}; the op takes booleans, float32 and the latter"
    wanted = (query.shape[0], query.shape[2], query.shape[1], key.shape[1])
    for size, whole in zip(placed(mask, query, key).shape, wanted, strict=True):
        if size not in (1, whole):
            return "a mask that is not (batch, heads, queries, keys), also not where it is broadcast"
    return ""


def bias(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """A placed mask as the op's bias (B, H, S, T), expanded and not copied.

    True attends: given as numbers, 1 and 0 would be added to the scores, and hide nothing.
    """
    if mask.dtype == torch.bool:
        # autocast casts queries and leaves biases; float32 goes with every dtype
        dtype = torch.float32 if torch.is_autocast_enabled(query.device.type) else query.dtype
        mask = torch.zeros((), dtype=dtype, device=mask.device).masked_fill(~mask, float("-inf"))
    return mask.expand(query.shape[0], query.shape[2], query.shape[1], key.shape[1])


def with_window(mask: Tensor | None, query: Tensor, key: Tensor, window: tuple[int, int], *, causal: bool) -> Tensor:
    """A placed mask, or none, with a window in it, for diffusers' native attention, which has no windows.

    Bottom right aligned, as FlashAttention's window_size is; (-1, -1) is no window. Causal attention has as many
    queries as keys here.
    """
    queries, keys = query.shape[1], key.shape[1]
    places = torch.arange(queries, device=query.device) + (keys - queries)
    distance = places[:, None] - torch.arange(keys, device=query.device)[None, :]
    left, right = window[0], 0 if causal else window[1]
    seen = torch.ones_like(distance, dtype=torch.bool)
    if left >= 0:
        seen = seen & (distance <= left)
    if right >= 0:
        seen = seen & (distance >= -right)
    if mask is None:
        return seen[None, None]
    return mask & seen if mask.dtype == torch.bool else mask.masked_fill(~seen, float("-inf"))

"""``moe_sort`` as a formula: a stable sort of all assignments by expert, and where each expert's places begin."""

from __future__ import annotations

import torch
from torch import Tensor


def forward(
    experts: Tensor,
    *,
    num_experts: int,
    capacity: int,
    block: int = 0,
    out: tuple[Tensor, ...] | None = None,
) -> tuple[Tensor, ...]:
    """``order: (capacity,)``, ``offsets: (num_experts+1,)`` and ``inverse: (T, K)``, and what blocks have beside.

    ``experts: (T, K)``; all of it in int32.
    """
    flat = experts.reshape(-1).long()
    count, device = flat.shape[0], flat.device
    # those that are left out come last
    keys = torch.where((flat >= 0) & (flat < num_experts), flat, num_experts)
    keys, order = keys.sort(stable=True)
    bounds = torch.searchsorted(keys, torch.arange(num_experts + 1, device=device))
    sizes = bounds.diff()
    if block:
        sizes = (sizes + block - 1) // block * block
    offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    number = torch.arange(count, device=device) - bounds[keys]
    places = torch.where(keys < num_experts, offsets[keys] + number, capacity)
    # one more, for what has no place
    placed = torch.full((capacity + 1,), count, device=device).scatter(0, places, order)[:capacity]
    inverse = torch.empty_like(places).scatter(0, order, torch.where(places < capacity, places, -1))
    found = [placed, offsets, inverse.reshape(experts.shape)]
    if block:
        begins = torch.arange(0, capacity, block, device=device)
        of_blocks = torch.searchsorted(offsets[1:], begins, right=True)
        found += [torch.where(begins < offsets[-1], of_blocks, -1), offsets[-1:]]
    fresh = tuple(tensor.int().contiguous() for tensor in found)
    return fresh if out is None else tuple(into.copy_(one) for into, one in zip(out, fresh, strict=True))

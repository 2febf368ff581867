"""Linear layers and experts with weights of four bits: rounded, packed by ``pack_int4``, multiplied by ``int4_mm``."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from portakernel import ops

GROUP = 32
_NIBBLES = 8  # of a word


def rounded(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``q: (N, K)`` and ``zeros: (groups, N)`` from 0 to 15, and ``scales: (groups, N)``: each group's nearest numbers.

    ``weight: (N, K)``, with K a multiple of the group.
    """
    groups = weight.float().unflatten(1, (-1, GROUP))
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    scales = ((high - low) / 15).clamp(min=1e-8)
    zeros = (-low / scales).round().clamp(0, 15)
    q = (groups / scales.unsqueeze(-1) + zeros.unsqueeze(-1)).round().clamp(0, 15)
    return q.flatten(1), scales.t().contiguous(), zeros.t().contiguous()


def dequantised(weight: Tensor) -> Tensor:
    """What the four bits of ``weight: (N, K)`` stand for, in its dtype."""
    q, scales, zeros = rounded(weight)
    scale, zero = (factors.t().repeat_interleave(GROUP, 1) for factors in (scales, zeros))
    return ((q - zero) * scale).to(weight.dtype)


def words(numbers: Tensor) -> Tensor:
    """``(rows / 8, columns)`` int32 words of ``(rows, columns)`` numbers of four bits, the first row lowest."""
    shifts = 4 * torch.arange(_NIBBLES, device=numbers.device).view(1, -1, 1)
    joined = (numbers.long().unflatten(0, (-1, _NIBBLES)) << shifts).sum(1)
    return torch.where(joined < 2**31, joined, joined - 2**32).int()  # the highest nibble holds the sign


class Int4Linear(nn.Module):
    """A linear layer without bias, in the layout that the device reads fastest."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        q, scales, zeros = rounded(weight)
        # as GPTQ's checkpoints have them, which is where such weights usually come from
        checkpoint = words(q.t()), scales, words(zeros.t()).t().contiguous()
        order = (torch.arange(weight.shape[1], device=weight.device) // GROUP).int()
        self.layout: Any = "packed_mfma" if torch.version.hip else "packed_mma"
        packed = ops.pack_int4(*checkpoint[:2], order, checkpoint[2], source="gptq", target=self.layout, group=GROUP)
        for name, tensor in zip(("weight", "scales", "order", "zeros"), packed, strict=True):
            self.register_buffer(name, tensor)

    def forward(self, x: Tensor) -> Tensor:
        # columns are in the order of their groups, so that `order` says nothing
        return ops.int4_mm(x, self.weight, self.scales, self.zeros, layout=self.layout, group=GROUP)


class Int4Experts(nn.Module):
    """The experts of a layer, as transformers calls them: rows sorted by expert, two products for each expert."""

    def __init__(self, experts: Any) -> None:
        super().__init__()
        self.first = nn.ModuleList(Int4Linear(weight) for weight in experts.gate_up_proj.detach())
        self.second = nn.ModuleList(Int4Linear(weight) for weight in experts.down_proj.detach())

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        count, choices = len(self.first), top_k_index.shape[1]
        order, offsets, inverse = ops.moe_sort(top_k_index, num_experts=count, capacity=top_k_index.numel())
        rows = hidden_states[order.long() // choices]
        layers = zip(self.first, self.second, pairwise(offsets.tolist()), strict=True)
        results = torch.cat([out(ops.silu_and_mul(into(rows[begin:end]))) for into, out, (begin, end) in layers])
        return (results[inverse.long()] * top_k_weights.unsqueeze(-1)).sum(1).to(hidden_states.dtype)


def is_experts(module: nn.Module) -> bool:
    """Whether these are a layer's experts."""
    return type(module).__name__.endswith("Experts") and not isinstance(module, Int4Experts)


def in_four_bits(model: Any) -> list[str]:
    """Replaces a model's linear layers, but the last one, and its experts; their names."""
    found = [name for name, module in model.model.named_modules() if type(module) is nn.Linear or is_experts(module)]
    for name in found:
        module = model.model.get_submodule(name)
        made = Int4Experts(module) if is_experts(module) else Int4Linear(module.weight.detach())
        model.model.set_submodule(name, made)
    return found


def dequantise(model: Any, names: list[str]) -> None:
    """Gives the layers with these names the weights that their four bits stand for."""
    with torch.no_grad():
        for name in names:
            for weight in model.model.get_submodule(name).parameters():
                weight.copy_(dequantised(weight.flatten(0, -2)).view_as(weight))

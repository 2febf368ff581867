"""What ops on 4-bit weights are given, drawn: words of any bits, and the groups that columns are in.

On the CPU, from one source of random numbers: for the conformance kit and for benchmarks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from portakernel.contract.case import Draw
from portakernel.words.int4_layouts import PACKED

# The kinds of ``Draw`` that ``draw_groups`` draws.
OF_GROUPS = ("words", "groups")


def draw_groups(
    draw: Draw,
    shape: Sequence[int],
    dtype: str,
    dims: Mapping[str, int],
    parameters: Mapping[str, Any],
    earlier: Mapping[str, Tensor],
    source: Generator,
) -> Tensor:
    """The elements of an argument of one of these kinds; ``earlier`` has those of the arguments that it depends on."""
    if draw.kind == "words":
        return torch.randint(*((0, 16) if dtype == "uint8" else (-(1 << 31), 1 << 31)), tuple(shape), generator=source)
    columns, across = shape[-1], dims[draw.below]
    scales = earlier[draw.lengths]
    groups = scales.numel() // across if across else max(scales.shape, default=0)
    order = torch.randperm(columns, generator=source)
    if parameters["group"] == 0:
        ids = torch.randint(max(groups, 1), (columns,), generator=source).sort().values
    else:
        ids = torch.arange(columns) // (parameters["group"] if parameters["group"] > 0 else max(columns, 1))
    if parameters[draw.page] not in PACKED:
        return ids[order]
    return torch.stack([order, ids]) if parameters["group"] == 0 else order

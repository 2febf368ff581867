"""Lists of blocks, drawn: what block-sparse ops are given, by the conformance kit and by benchmarks; on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Generator, Tensor

from portakernel.contract.case import Draw
from portakernel.tensors.block_lists import mapped, turned

BLOCK_LISTS = ("block_counts", "blocks")
# One list in so many is empty, one is as long as can be.
_ONE_IN = 5


def draw_block_lists(
    draw: Draw,
    shape: Sequence[int],
    blocks: int,
    dims: Mapping[str, int],
    earlier: Mapping[str, Tensor],
    source: Generator,
) -> Tensor:
    """The elements of an argument of one of these kinds, of ``blocks``; ``earlier`` has those that it depends on.

    Without the arguments that it says something about, which no call may leave out, it is zeros.
    """
    needed = [f"{draw.turned}_{part}" for part in ("count", "index")] if draw.turned else [draw.lengths]
    if any(name and name not in earlier for name in needed):
        return torch.zeros(tuple(shape), dtype=torch.int64)
    if draw.turned:
        count, index = (earlier[f"{draw.turned}_{part}"].cpu() for part in ("count", "index"))
        return turned(count.expand(index.shape[:-1]), index, blocks)[draw.kind == "blocks"]
    if draw.kind == "block_counts":
        most = torch.full(tuple(shape), min(dims[draw.room], blocks))
        if draw.beside:
            most = torch.minimum(most, blocks - earlier[draw.beside].cpu())
        drawn = (torch.rand(tuple(shape), generator=source) * (most + 1)).long().minimum(most)
        kinds = torch.randint(_ONE_IN, tuple(shape), generator=source)
        return torch.where(kinds == 0, 0, torch.where(kinds == 1, most, drawn))
    *rows, room = shape
    order = torch.rand((*rows, blocks), generator=source)
    if draw.beside:
        index, count = (earlier[name].cpu() for name in (draw.beside, draw.beside.replace("_index", "_count")))
        order = order + mapped(count.expand(index.shape[:-1]), index, blocks)
    found = torch.nn.functional.pad(order.argsort(-1)[..., :room], (0, max(room - blocks, 0)), value=-1)
    # behind a list's end are -1, what is beyond all blocks, or one that it does not hold
    beyond = torch.randint(3, found.shape, generator=source)
    dead = torch.where(beyond == 0, -1, torch.where(beyond == 1, blocks, found))
    return torch.where(torch.arange(room) < earlier[draw.lengths].cpu().unsqueeze(-1), found, dead)


def read_blocks(lists: Sequence[tuple[Tensor, Tensor]], blocks: int) -> Tensor:
    """Which ``blocks`` some row's list holds, of each batch and head: ``(B, H, blocks)``."""
    found = [mapped(count.expand(index.shape[:-1]), index, blocks).any(-2) for count, index in lists]
    return torch.stack(found).any(0)

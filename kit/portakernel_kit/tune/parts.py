"""Which part of a large call's results is held against the reference: some rows, or some heads of some sequences.

No part depends on what is left out: the reference is asked about a call of that part alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from portakernel_kit.conformance.inputs import Inputs, generator

# What an op requires whose query heads, several for a head of keys, see no other's.
_HEADS = "H % G == 0"
# Of what lies apart no more is looked at: rows, heads of keys with one query head each, and sequences.
_ROWS, _KEY_HEADS, _SEQUENCES = 64, 3, 2


@dataclass(frozen=True, slots=True)
class Part:
    """``rows`` are places in the leading dimensions, flattened; ``places`` those in other dimensions, by name."""

    share: float
    rows: Tensor | None = None
    places: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])

    def of(self, tensor: Tensor, sizes: Sequence[str], leading: int) -> Tensor:
        """What is looked at of a tensor of these ``sizes``, of which the first may stand for ``leading`` dimensions."""
        if sizes and sizes[0].startswith("*"):
            return tensor if self.rows is None else at_rows(tensor, self.rows, leading)
        for dim, name in enumerate(sizes):
            if name in self.places:
                tensor = _selected(tensor, dim, self.places[name])
        return tensor

    def takes_from(self, sizes: Sequence[str]) -> bool:
        """Whether a tensor with these ``sizes`` is looked at in part."""
        rows = self.rows is not None and bool(sizes) and sizes[0].startswith("*")
        return rows or any(name in self.places for name in sizes)

    def inputs(self, whole: Inputs) -> Inputs:
        """The arguments of a call of this part alone."""
        tensors = tuple(
            None if tensor is None else self.of(tensor, argument.sizes, len(whole.leading))
            for tensor, argument in zip(whole.tensors, whole.contract.tensors, strict=True)
        )
        shapes = {n: tuple(t.shape) for n, t in zip(whole.contract.names, tensors, strict=True) if t is not None}
        dims, leading = whole.contract.bind_shapes(shapes)
        return replace(whole, tensors=tensors, dims=dims, leading=leading or ())


def some(whole: Inputs) -> Part | None:
    """A part of the results, the first and the last among it, the same for the same sizes; None where none is apart."""
    if whole.rows_lie_apart:
        count = math.prod(whole.leading)
        rows = _places(count, _ROWS, whole.contract.op)
        return Part(len(rows) / count, rows=rows)
    sizes = [result.shape for result in whole.contract.outputs if isinstance(result.shape, tuple)]
    if not sizes or _HEADS not in whole.contract.requirements or not all("H" in shape for shape in sizes):
        return None
    heads, key_heads = whole.dims["H"], whole.dims["G"]
    keys = _places(key_heads, _KEY_HEADS, whole.contract.op)
    each = heads // key_heads
    # of its queries' heads the first, the last, the first again
    queries = keys * each + torch.arange(len(keys)) % 2 * (each - 1)
    places, share = {"H": queries, "G": keys}, len(keys) / heads
    if all(shape[0] == "B" for shape in sizes):
        places["B"] = _places(whole.dims["B"], _SEQUENCES, whole.contract.op)
        share *= len(places["B"]) / whole.dims["B"]
    return Part(share, places=places) if share < 1 else None


def at_rows(tensor: Tensor, rows: Tensor, leading: int) -> Tensor:
    """These rows of a tensor with so many leading dimensions."""
    return _selected(tensor.reshape(-1, *tensor.shape[leading:]), 0, rows)


def _places(count: int, most: int, salt: str) -> Tensor:
    """Places among ``count``, the first and the last with others between."""
    inner = torch.randperm(max(count - 2, 0), generator=generator(0, salt, count))[: most - 2] + 1
    return torch.tensor(sorted({0, *inner.tolist(), count - 1}))


def _selected(tensor: Tensor, dim: int, places: Tensor) -> Tensor:
    index = places.to(tensor.device)
    if tensor.dtype.itemsize == 1:  # not every operator knows the 8-bit floats
        return tensor.view(torch.uint8).index_select(dim, index).view(tensor.dtype)
    return tensor.index_select(dim, index)

"""``pack_int4`` by PyTorch's own operators: the formula as it stands, which moves bits and computes nothing.

It runs once for a weight, when a checkpoint is loaded, and looks at the groups of its columns on the host.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import Tensor

from portakernel.authoring import reference_module

_formula: Any = import_module(reference_module("pack_int4"))


def pack_int4(
    weight: Tensor,
    scales: Tensor,
    order: Tensor,
    zeros: Tensor | None = None,
    *,
    source: str,
    target: str,
    group: int,
    zero: str,
    out: tuple[Tensor, ...] | None = None,
) -> tuple[Tensor, ...]:
    """The weight, scales, order and zeros of ``target``; eight bytes of each element are held on the way."""
    results: tuple[Tensor, ...] = _formula.forward(
        weight, scales, order, zeros, source=source, target=target, group=group, zero=zero, out=out
    )
    return results

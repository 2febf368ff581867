"""What PyTorch's attention operators have in common: which queries they are given, how rows lie, where results go.

Their causal mask begins at the first key, that of the contract ends at the last. Both are one mask where there are as
many queries as keys, and queries that see no key can be left out before: a kernel seldom has to tell them apart.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from portakernel.authoring.tensors import is_aligned as begins_aligned
from portakernel_plugins.torch.attention.scale import query_gradient

# PyTorch for AMD calls its devices cuda too, and runs other code behind the same operators.
HIP = torch.version.hip is not None

Window = tuple[int, int]
Results = Tensor | tuple[Tensor, ...]


def blind_queries(S: int, T: int, *, causal: bool, window: Window = (-1, -1)) -> int:
    """How many queries, the first ones, see no key because of the mask; there is at least one key."""
    right = 0 if causal else window[1]
    return max(0, S - T - right) if right >= 0 else 0


def aligned(x: Tensor) -> Tensor:
    """``x`` itself, or a copy, when vector loads of 16 bytes could not read its rows."""
    return x if is_aligned(x) else x.clone(memory_format=torch.contiguous_format)


def is_aligned(x: Tensor) -> bool:
    """Whether every row begins at an address that 16 divides, and has no gaps: asked on every call.

    Strides of dimensions of one element count too: operators choose their kernels by them.
    """
    *strides, last = x.stride()
    if last != 1 or not begins_aligned(x, 16):
        return False
    step = 16 // x.element_size()
    # What ruff would write is a generator, twice as slow.
    for stride in strides:  # noqa: SIM110
        if stride % step:
            return False
    return True


def padded(x: Tensor, width: int) -> Tensor:
    """``x (..., D)`` with zeros up to ``width`` in the last dimension."""
    return x if x.shape[-1] == width else torch.nn.functional.pad(x, (0, width - x.shape[-1]))


def returned(
    y: Tensor, lse: Tensor | None, blind: int, out: Results | None, *, return_lse: bool, save: bool
) -> Results:
    """The results of all queries from ``y (B, S, H, E)`` and ``lse (B, H, S)`` of all but the first ``blind`` ones."""
    if blind:
        y = torch.nn.functional.pad(y, (0, 0, 0, 0, blind, 0))
        lse = None if lse is None else torch.nn.functional.pad(lse, (blind, 0), value=-math.inf)
    return written(y, lse if return_lse or save else None, out, twice=return_lse and save)


def written(y: Tensor, lse: Tensor | None, out: Results | None, *, twice: bool) -> Results:
    """The results in ``out``, or contiguous: ``y``, and ``lse`` where there is one, for the caller and for backward."""
    if out is not None:
        targets = out if isinstance(out, tuple) else (out,)
        targets[0].copy_(y)
        if lse is not None and len(targets) > 1:
            targets[1].copy_(lse)
        return out
    if lse is None:
        return y.contiguous()
    lse = lse.contiguous()
    return (y.contiguous(), lse, lse.clone()) if twice else (y.contiguous(), lse)


def gradients(
    found: tuple[Tensor | None, ...],
    widths: tuple[int, ...],
    blind: int,
    needs: tuple[bool, ...],
    scale: float | None,
) -> tuple[Tensor | None, ...]:
    """The gradients of ``q``, ``k`` and ``v`` that are asked for, in their widths, from those without blind queries.

    ``scale`` is the call's: ``found`` are the gradients for what ``above_zero`` made of it.
    """
    grads: list[Tensor | None] = []
    for gradient, width, needed in zip(found, widths, needs, strict=True):
        narrow = gradient if needed else None
        if narrow is not None and narrow.shape[-1] != width:
            narrow = narrow[..., :width]
        if narrow is not None and not grads:
            narrow = query_gradient(narrow, scale)
            narrow = torch.nn.functional.pad(narrow, (0, 0, 0, 0, blind, 0)) if blind else narrow
        grads.append(None if narrow is None else narrow.contiguous())
    return tuple(grads)

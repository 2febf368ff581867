"""``add`` in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring.triton import Held, cdiv, grid_of, per_device, prepared, program_index
from portakernel_plugins.triton.launching.configurations import configuration


@triton.jit
def _add(
    x: tl.tensor,
    y: tl.tensor,
    out: tl.tensor,
    elements: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    first = program_index() * BLOCK
    offset = first + tl.arange(0, BLOCK)
    if first + BLOCK <= elements:  # without a mask many are read at once, whatever number of elements there is
        total = tl.load(x + offset).to(tl.float32) + tl.load(y + offset).to(tl.float32)
        tl.store(out + offset, total.to(out.dtype.element_ty))
    else:
        inside = offset < elements
        total = tl.load(x + offset, mask=inside).to(tl.float32) + tl.load(y + offset, mask=inside).to(tl.float32)
        tl.store(out + offset, total.to(out.dtype.element_ty), mask=inside)


def add(x: Tensor, y: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``x + y``, computed in float32 and rounded once to the dtype of ``x``.

    ``x``, ``y``: one shape, contiguous, one dtype of float32, float16, bfloat16. ``out``: any strides; may be ``x`` or
    ``y`` itself.
    """
    in_place = out if out is not None and out.is_contiguous() else None
    result = torch.empty_like(x) if in_place is None else in_place
    elements = x.numel()
    if elements:
        held, block = _plan("add", x.device, elements)
        held.launch(grid_of(cdiv(elements, block)), x, y, result, elements)
    return result if out is None or result is out else out.copy_(result)


@per_device
def _plan(kernel: str, device: torch.device, elements: int) -> tuple[Held, int]:
    """What is launched for so many elements, and how many of them a program takes."""
    how = configuration(kernel, device, elements)
    return prepared(_add, {"BLOCK": how.elements, **how.options}), how.elements

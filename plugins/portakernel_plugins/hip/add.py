"""``add`` in HIP C++."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from portakernel.authoring.tensors import delivered, room
from portakernel_plugins.hip.configurations import PACK_BYTES, fixed
from portakernel_plugins.hip.launch import Launch, arch_of, cdiv, name_of, program
from portakernel_plugins.hip.rows import are_whole

_ADD = program("add", pointers=3, integers=1)


@cache
def _launch(arch: str, dtype: torch.dtype, whole: bool) -> Launch:
    how = fixed("add", arch)
    defines = (("ELEMENT", name_of(dtype)), ("THREADS", how.threads), ("PACKS", how.packs), ("WHOLE", int(whole)))
    return Launch(_ADD, how, defines)


def add(x: Tensor, y: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``x + y``, computed in float32 and rounded once to the dtype of ``x``.

    ``x``, ``y``: one shape, contiguous, one dtype of float32, float16, bfloat16. ``out``: any strides; may be ``x`` or
    ``y`` itself.
    """
    result = room(x, out)
    elements = x.numel()
    if elements:
        launch = _launch(arch_of(x), x.dtype, are_whole(0, 0, x, y, result))
        how = launch.how
        launch(cdiv(elements * x.element_size(), PACK_BYTES * how.threads * how.packs), x, y, result, elements)
    return delivered(result, out)

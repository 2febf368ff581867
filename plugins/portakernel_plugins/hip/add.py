"""``add`` in HIP C++."""

from __future__ import annotations

from torch import Tensor

from portakernel.placement import delivered, room
from portakernel_plugins.hip.configurations import PACK_BYTES, fixed
from portakernel_plugins.hip.launch import arch_of, cdiv, launch, name_of, program

_ADD = program("add", pointers=3, integers=1)


def add(x: Tensor, y: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``x + y``, computed in float32 and rounded once to the dtype of ``x``.

    ``x``, ``y``: one shape, contiguous, one dtype of float32, float16, bfloat16. ``out``: any strides; may be ``x`` or
    ``y`` itself.
    """
    result = room(x, out)
    elements = x.numel()
    if elements:
        how = fixed("add", arch_of(x))
        whole = not (x.data_ptr() | y.data_ptr() | result.data_ptr()) % PACK_BYTES
        defines = (("ELEMENT", name_of(x)), ("THREADS", how.threads), ("PACKS", how.packs), ("WHOLE", int(whole)))
        blocks = cdiv(elements * x.element_size(), PACK_BYTES * how.threads * how.packs)
        launch(_ADD, defines, blocks, how.threads, x, y, result, elements)
    return delivered(result, out)

"""``softmax`` in HIP C++: ``exp(x - max) / sum(exp(x - max))`` over the last dimension."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from portakernel.authoring.tensors import delivered
from portakernel_plugins.hip.configurations import configuration
from portakernel_plugins.hip.launch import Launch, arch_of, cdiv, name_of, program
from portakernel_plugins.hip.rows import are_whole, in_rows, packs_of, room_in_rows

_SOFTMAX = program("softmax", "reduction.h", pointers=2, integers=4)


@lru_cache(maxsize=4096)
def _launch(arch: str, dtype: torch.dtype, size: int, whole: bool) -> Launch:
    how = configuration("softmax", arch, size)
    defines = (
        ("ELEMENT", name_of(dtype)),
        ("THREADS", how.threads),
        ("ROW_THREADS", how.row_threads),
        ("PACKS", how.packs),
        ("WHOLE", int(whole)),
    )
    return Launch(_SOFTMAX, how, defines)


def softmax(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``exp(x - max) / sum(exp(x - max))``, computed in float32 and rounded once.

    ``x``: ``(..., N)``, any strides, read where it lies if its rows are contiguous and at one stride; float32, float16
    or bfloat16. ``out``: any strides; may be ``x`` itself.
    """
    columns = x.shape[-1]
    y, y_stride = room_in_rows(x, out)
    elements = x.numel()
    if elements:
        x, x_stride = in_rows(x)
        rows = elements // columns
        whole = are_whole(columns | x_stride | y_stride, x.element_size(), x, y)
        launch = _launch(arch_of(x), x.dtype, packs_of(columns, x), whole)
        launch(cdiv(rows, launch.how.rows), x, y, rows, columns, x_stride, y_stride)
    return delivered(y, out)

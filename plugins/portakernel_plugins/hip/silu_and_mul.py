"""``silu_and_mul`` in HIP C++: ``silu(x[..., :N]) * x[..., N:]``."""

from __future__ import annotations

import torch
from torch import Tensor

from portakernel.placement import delivered
from portakernel_plugins.hip.configurations import configuration
from portakernel_plugins.hip.launch import arch_of, cdiv, launch, name_of, program
from portakernel_plugins.hip.rows import are_whole, in_rows, packs_of, row_stride

_SILU_AND_MUL = program("silu_and_mul", pointers=2, integers=5)


def silu_and_mul(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``silu(gate) * up``, computed in float32 and rounded once.

    ``x``: ``(..., 2N)``, any strides, read where it lies if its rows are contiguous and at one stride; float32, float16
    or bfloat16. ``out``: ``(..., N)``, any strides.
    """
    columns = x.shape[-1] // 2
    y_stride = None if out is None else row_stride(out)
    y = out if y_stride is not None else None
    if y is None:
        y, y_stride = torch.empty((*x.shape[:-1], columns), dtype=x.dtype, device=x.device), columns
    elements = y.numel()
    if elements:
        x, x_stride = in_rows(x)
        rows, size = elements // columns, packs_of(columns, x)
        how = configuration("silu_and_mul", arch_of(x), size)
        packs = how.packs or how.most_packs
        blocks_of_row = cdiv(size, how.row_threads * packs)
        defines = (
            ("ELEMENT", name_of(x)),
            ("THREADS", how.threads),
            ("ROW_THREADS", how.row_threads),
            ("PACKS", packs),
            ("WHOLE", int(are_whole(columns, (x, x_stride), (y, y_stride or 0)))),
        )
        blocks = cdiv(rows, how.rows) * blocks_of_row
        args = (x, y, rows, columns, x_stride, y_stride, blocks_of_row)
        launch(_SILU_AND_MUL, defines, blocks, how.threads, *args)
    return delivered(y, out)

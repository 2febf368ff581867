"""``silu_and_mul`` in HIP C++: ``silu(x[..., :N]) * x[..., N:]``."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from portakernel.authoring.tensors import delivered, row_stride
from portakernel_plugins.hip.configurations import configuration
from portakernel_plugins.hip.launch import Launch, arch_of, cdiv, name_of, program
from portakernel_plugins.hip.rows import are_whole, in_rows, packs_of

_SILU_AND_MUL = program("silu_and_mul", pointers=2, integers=5)


@lru_cache(maxsize=4096)
def _launch(arch: str, dtype: torch.dtype, size: int, whole: bool) -> tuple[Launch, int]:
    """The launch, and the blocks that share a row or, of shorter ones, several rows."""
    how = configuration("silu_and_mul", arch, size)
    packs = how.packs or how.most_packs
    defines = (
        ("ELEMENT", name_of(dtype)),
        ("THREADS", how.threads),
        ("ROW_THREADS", how.row_threads),
        ("PACKS", packs),
        ("WHOLE", int(whole)),
    )
    return Launch(_SILU_AND_MUL, how, defines), cdiv(size, how.row_threads * packs)


def silu_and_mul(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``silu(gate) * up``, computed in float32 and rounded once.

    ``x``: ``(..., 2N)``, any strides, read where it lies if its rows are contiguous and at one stride; float32, float16
    or bfloat16. ``out``: ``(..., N)``, any strides.
    """
    columns = x.shape[-1] // 2
    stride = None if out is None else row_stride(out)
    if out is not None and stride is not None:
        y, y_stride = out, stride
    else:
        y, y_stride = torch.empty((*x.shape[:-1], columns), dtype=x.dtype, device=x.device), columns
    elements = y.numel()
    if elements:
        x, x_stride = in_rows(x)
        rows = elements // columns
        whole = are_whole(columns | x_stride | y_stride, x.element_size(), x, y)
        launch, blocks_of_row = _launch(arch_of(x), x.dtype, packs_of(columns, x), whole)
        blocks = cdiv(rows, launch.how.rows) * blocks_of_row
        launch(blocks, x, y, rows, columns, x_stride, y_stride, blocks_of_row)
    return delivered(y, out)

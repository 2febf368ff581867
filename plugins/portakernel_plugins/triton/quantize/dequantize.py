"""``dequantize`` in Triton: ``q * scale * global_scale``.

The scales are multiplied in float32, and their product with an element; the result is rounded once more.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring.tensors import as_bytes, delivered, with_row_stride
from portakernel.authoring.triton import cdiv, grid_of, launch
from portakernel_plugins.triton.launching.configurations import configuration
from portakernel_plugins.triton.quantize.float8 import (
    conversion,
    group_places,
    memory,
    widened,
    widened_power,
)

# Elements of a row that share a scale.
_BLOCKS = {"block_1x128": 128, "block_128x128": 128, "mxfp8": 32, "mxfp4": 32, "nvfp4": 16}


@triton.jit(do_not_specialize=["rows"])
def _dequantize(
    q: tl.tensor,
    scale: tl.tensor,
    global_scale: tl.tensor,  # None: 1
    x: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    stride: tl.tensor,  # bytes between rows of q
    per_row: tl.tensor,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    FLAT: tl.constexpr,
    SHARED: tl.constexpr,  # the format: which elements share a scale
    SCALE: tl.constexpr,  # the scales' dtype
    FORMAT: tl.constexpr,
    CAST: tl.constexpr,
    FUSED: tl.constexpr,  # nothing here is divided
) -> None:
    number, row, first, left = group_places(rows, columns, per_row, GROUP, GROUPS, FLAT)
    inner = tl.arange(0, GROUP)
    if FORMAT == "float4_e2m1fn_x2":
        pair = tl.arange(0, GROUP // 2)
        place = (row * stride + (first >> 1))[:, None] + pair[None, :]
        code = tl.load(q + place, mask=pair[None, :] < (left >> 1)[:, None], other=0)
        code = tl.reshape(tl.join(code & 0xF, code >> 4), (GROUPS, GROUP))
    else:
        place = (row * stride + first)[:, None] + inner[None, :]
        code = tl.load(q + place, mask=inner[None, :] < left[:, None], other=0)

    if SHARED == "tensor":
        s = tl.load(scale)
    elif SHARED == "row":
        s = tl.load(scale + row, mask=left > 0, other=0.0)[:, None]
    elif SHARED == "block_128x128":
        s = tl.load(scale + row // 128 * per_row + first // 128, mask=left > 0, other=0.0)[:, None]
    else:
        s = tl.load(scale + number, mask=left > 0, other=0)[:, None]
    if SCALE == "float8_e8m0fnu":
        s = widened_power(s)
    elif SCALE == "float8_e4m3fn":
        s = widened(s, SCALE, "bits")
    if global_scale is not None:
        s = s * tl.load(global_scale)

    place = (row * columns + first)[:, None] + inner[None, :]
    result = (widened(code, FORMAT, CAST) * s).to(x.dtype.element_ty)
    tl.store(x + place, result, mask=inner[None, :] < left[:, None])


def dequantize(
    q: Tensor,
    scale: Tensor,
    global_scale: Tensor | None = None,
    *,
    format: str,
    dtype: str,
    out: Tensor | None = None,
) -> Tensor:
    """``x: (*M, K)`` in ``dtype``: ``q * scale * global_scale``.

    ``q: (*M, K)`` float8, or ``(*M, K/2)`` float4_e2m1fn_x2; ``scale`` as ``format`` says; ``global_scale: ()``, may be
    None. Any strides (what has no single stride of rows is copied). ``out``: any strides.
    """
    narrow = str(q.dtype).removeprefix("torch.")
    elements = 2 if narrow == "float4_e2m1fn_x2" else 1
    rows, columns = math.prod(q.shape[:-1]), q.shape[-1] * elements
    x = memory(out, q, (*q.shape[:-1], columns), getattr(torch, dtype))
    if x.numel():
        codes, stride = with_row_stride(as_bytes(q))
        contiguous = stride * elements == columns
        how = configuration(f"dequantize.{format}", q.device, _BLOCKS.get(format, columns))
        group = min(how.columns, how.elements)
        # groups follow each other in memory: one row, if no row's scale is to be found
        flat = contiguous and (format == "tensor" or (format not in ("row", "block_128x128") and columns % group == 0))
        if flat:
            rows, columns = 1, rows * columns
        per_row = cdiv(columns, group)
        launch(
            _dequantize,
            grid_of(cdiv(rows * per_row, how.rows)),
            codes,
            as_bytes(scale).contiguous(),
            global_scale,
            x,
            rows,
            columns,
            stride,
            per_row,
            GROUP=group,
            GROUPS=how.rows,
            FLAT=flat,
            SHARED=format,
            SCALE=str(scale.dtype).removeprefix("torch."),
            **conversion(narrow, q.device),
            **how.options,
        )
    return delivered(x, out)

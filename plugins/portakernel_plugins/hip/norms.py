"""Normalised rows: what the norms launch. ``sources/norm.h`` has the formula."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from portakernel_plugins.hip.configurations import configuration
from portakernel_plugins.hip.launch import Launch, arch_of, cdiv, name_of, program
from portakernel_plugins.hip.rows import are_whole, in_line, in_rows, packs_of

_NORMS = program("norms", "norm.h", "reduction.h", pointers=8, integers=6, floats=2)


@lru_cache(maxsize=4096)
def _launch(
    kernel: str,
    arch: str,
    dtype: torch.dtype,
    weight_dtype: torch.dtype,
    size: int,
    whole: bool,
    added: bool,
    centred: bool,
) -> Launch:
    how = configuration(kernel, arch, size)
    defines = (
        ("ELEMENT", name_of(dtype)),
        ("WEIGHT", name_of(weight_dtype)),
        ("THREADS", how.threads),
        ("ROW_THREADS", how.row_threads),
        ("PACKS", how.packs),
        ("WHOLE", int(whole)),
        ("ADDED", int(added)),
        ("CENTRED", int(centred)),
    )
    return Launch(_NORMS, how, defines)


def normalise(
    kernel: str,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    y: tuple[Tensor, int],
    summed: tuple[Tensor | None, int],
    mean: Tensor | None,
    rstd: Tensor | None,
    *,
    eps: float,
    weight_offset: float = 0.0,
    centred: bool,
) -> None:
    """Fill ``y``, and ``summed``, ``mean``, ``rstd`` where given, as ``kernel`` is configured.

    ``x``, ``residual``: ``(..., N)``, any strides, read where they lie if their rows are contiguous and at one stride.
    ``y``, ``summed``: with the stride of their rows. ``weight``, ``bias``: ``(N,)``, any stride.
    """
    columns = x.shape[-1]
    rows = x.numel() // columns
    if not rows:
        return
    x, x_stride = in_rows(x)
    residual_stride = 0
    if residual is not None:
        residual, residual_stride = in_rows(residual)
    weight, bias = in_line(weight), None if bias is None else in_line(bias)
    tensors = (x, residual, weight, bias, y[0], summed[0])
    strides = (x_stride, residual_stride, y[1], summed[1])
    lengths = columns | x_stride | residual_stride | y[1] | summed[1]
    whole, size = are_whole(lengths, x.element_size(), *tensors), packs_of(columns, x)
    launch = _launch(kernel, arch_of(x), x.dtype, weight.dtype, size, whole, residual is not None, centred)
    scalars = (rows, columns, *strides, float(eps), float(weight_offset))
    launch(cdiv(rows, launch.how.rows), *tensors, mean, rstd, *scalars)

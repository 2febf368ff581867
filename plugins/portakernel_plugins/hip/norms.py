"""Normalised rows: what ``rms_norm``, ``add_rms_norm`` and ``layer_norm`` launch. ``sources/norm.h`` has the formula."""

from __future__ import annotations

from torch import Tensor

from portakernel_plugins.hip.configurations import configuration
from portakernel_plugins.hip.launch import arch_of, cdiv, launch, name_of, program
from portakernel_plugins.hip.rows import are_whole, in_line, in_rows, packs_of

_NORMS = program("norms", "norm.h", "reduction.h", pointers=8, integers=6, floats=2)


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
    placed = ((x, x_stride), (residual, residual_stride), y, summed, (weight, 0), (bias, 0))
    how = configuration(kernel, arch_of(x), packs_of(columns, x))
    defines = (
        ("ELEMENT", name_of(x)),
        ("WEIGHT", name_of(weight)),
        ("THREADS", how.threads),
        ("ROW_THREADS", how.row_threads),
        ("PACKS", how.packs),
        ("WHOLE", int(are_whole(columns, *placed))),
        ("ADDED", int(residual is not None)),
        ("CENTRED", int(centred)),
    )
    tensors = (x, residual, weight, bias, y[0], summed[0], mean, rstd)
    strides = (x_stride, residual_stride, y[1], summed[1])
    blocks = cdiv(rows, how.rows)
    launch(_NORMS, defines, blocks, how.threads, *tensors, rows, columns, *strides, float(eps), float(weight_offset))

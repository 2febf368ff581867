"""Matrices and scales as PyTorch's scaled matrix products want them in memory, and where their result goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from portakernel.authoring import CannotRun, ReasonCode, Rejection
from portakernel_plugins.torch.attention.layout import is_aligned


def asked_of_cublas(product: Callable[..., Tensor], *given: Any, **more: Any) -> Tensor:
    """``product``'s result.

    Raises:
        CannotRun: cuBLAS has no algorithm for these sizes; nothing has run then.
    """
    try:
        return product(*given, **more)
    except RuntimeError as error:
        if "CUBLAS_STATUS_NOT_SUPPORTED" not in str(error):
            raise
        text = "cuBLAS finds no algorithm for a product of these sizes"
        raise CannotRun(Rejection(ReasonCode.CANNOT_RUN, text)) from error


def row_major(x: Tensor) -> Tensor:
    """``x (M, K)`` itself, or a copy where vector loads could not read its rows, or rows share memory.

    cuBLAS reads the distance between rows from the strides, of a single row too.
    """
    return x if is_aligned(x) and x.stride(0) >= x.shape[1] else x.clone(memory_format=torch.contiguous_format)


def on_16_bytes(scale: Tensor) -> Tensor:
    """``scale`` itself, or a copy where its address is none that cuBLAS takes scales from."""
    return scale if scale.data_ptr() % 16 == 0 else scale.clone()


def fused_bias(bias: Tensor | None) -> Tensor | None:
    """``bias (N,)`` as cuBLAS adds it: without gaps, at an address that 16 divides.

    PyTorch does not tell cuBLAS how it lies. At another address it finds no algorithm for such a product, or one whose
    loads fail (H200, torch 2.11, CUDA 13.0).
    """
    return None if bias is None else on_16_bytes(bias.contiguous())


def row_scales(scale: Tensor, rows: int) -> Tensor:
    """``scale``, of a tensor or of its rows, as ``(rows, 1)`` with strides of 1.

    ``contiguous`` leaves any stride to a dimension of one element, which the operator looks at.
    """
    return scale.reshape(-1).expand(rows).contiguous().as_strided((rows, 1), (1, 1))


def outer_major(scale: Tensor) -> Tensor:
    """``scale (M, C)`` with the rows' scales next to each other: strides ``(1, M)``."""
    rows, columns = scale.shape
    return scale.t().contiguous().as_strided((rows, columns), (1, rows))


def square_blocks(scale: Tensor) -> Tensor:
    """Scales of blocks of 128 times 128 ``(R, C)`` as ``(C, R)``, with C padded to 4, strides ``(1, C)``."""
    columns = scale.shape[1] + -scale.shape[1] % 4
    wide = torch.nn.functional.pad(scale, (0, -scale.shape[1] % 4)).contiguous()
    return wide.as_strided((columns, scale.shape[0]), (1, columns))


def swizzled(scale: Tensor) -> Tensor:
    """Block scales ``(R, C)`` in cuBLAS' layout of tiles of 128 rows and 4 columns, 32_4_4; padded with zeros, flat."""
    codes = scale.view(torch.uint8)
    codes = torch.nn.functional.pad(codes, (0, -codes.shape[1] % 4, 0, -codes.shape[0] % 128))
    down, across = codes.shape[0] // 128, codes.shape[1] // 4
    tiles = codes.reshape(down, 4, 32, across, 4).permute(0, 3, 2, 1, 4)
    return tiles.reshape(-1).view(scale.dtype)


def unswizzled(scale: Tensor, rows: int, columns: int) -> Tensor:
    """The block scales ``(rows, columns)`` that lie in ``scale`` as 32_4_4 says."""
    codes = scale.contiguous().view(torch.uint8)
    down, across = codes.shape[0] // 128, codes.shape[1] // 4
    tiles = codes.reshape(down, across, 32, 4, 4).permute(0, 3, 2, 1, 4)
    return tiles.reshape(codes.shape)[:rows, :columns].view(scale.dtype)


def written(y: Tensor, bias: Tensor | None, out: Tensor | None) -> Tensor:
    """``y (M, N)``, fresh, with ``bias (N,)`` added to it; in ``out`` where that is given."""
    if bias is not None:
        y += bias
    return y.contiguous() if out is None else out.copy_(y)

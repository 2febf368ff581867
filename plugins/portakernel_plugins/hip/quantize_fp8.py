"""``quantize_fp8`` in HIP C++: float8 elements, and the float32 scales that give the numbers back.

    scale = amax(abs(x)) / max(dtype)      of the elements that share it; 1 below 2**-100
    q     = x / scale                      rounded to nearest, ties to even

``x`` is read once, but for one scale to a tensor and for rows that do not fit in registers, which are read twice.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from portakernel_plugins.hip.configurations import PACK_BYTES, configuration, fixed
from portakernel_plugins.hip.launch import Launch, Program, arch_of, cdiv, name_of, program
from portakernel_plugins.hip.rows import are_whole, in_rows, packs_of

_HEADERS = ("float8.h", "reduction.h")
_GROUPS = program("quantize_fp8_groups", *_HEADERS, pointers=3, integers=5)
_SQUARES = program("quantize_fp8_squares", *_HEADERS, pointers=3, integers=4)
_MAGNITUDES = program("largest_magnitudes", *_HEADERS, pointers=2, integers=5)
_TENSOR = program("quantize_fp8_tensor", *_HEADERS, pointers=4, integers=6)

# Elements that share a scale along a row, and rows of a square that does.
_BLOCK = 128


class _Kind(NamedTuple):
    """What all kernels of a call are compiled for."""

    arch: str
    element: torch.dtype
    format: str
    whole: bool

    @property
    def defines(self) -> tuple[tuple[str, str | int], ...]:
        """Its macros."""
        return (("ELEMENT", name_of(self.element)), ("FORMAT", self.format), ("WHOLE", int(self.whole)))


@lru_cache(maxsize=4096)
def _launch_groups(kind: _Kind, size: int) -> Launch:
    how = configuration("quantize_fp8.groups", kind.arch, size)
    shape = (("THREADS", how.threads), ("ROW_THREADS", how.row_threads), ("PACKS", how.packs))
    return Launch(_GROUPS, how, (*kind.defines, *shape))


@cache
def _launch(of: Program, kernel: str, kind: _Kind) -> Launch:
    how = fixed(kernel, kind.arch)
    return Launch(of, how, (*kind.defines, ("THREADS", how.threads), ("PACKS", how.packs)))


def quantize_fp8(
    x: Tensor, *, granularity: str, dtype: str, out: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """``(q, scale)``: ``x: (*M, K)`` in ``dtype``, and the float32 scales that give it back.

    ``x``: float32, float16 or bfloat16, any strides (rows without a single one are copied). ``scale``: ``()`` for
    ``tensor``, ``(*M, 1)`` for ``row``, ``(*M, ceil(K/128))`` for ``block_1x128``, ``(ceil(M/128), ceil(K/128))`` for
    ``block_128x128``. ``out``: any strides.
    """
    rows, columns = math.prod(x.shape[:-1]), x.shape[-1]
    q_out, scale_out = (None, None) if out is None else out
    q = _memory(q_out, x.shape, getattr(torch, dtype), x.device)
    scale = _memory(scale_out, _scale_shape(x, rows, granularity), torch.float32, x.device)
    if scale.numel():
        x, stride = in_rows(x)
        # as many codes as a pack has elements are aligned to their number
        whole = are_whole(columns | stride, x.element_size(), x) and not q.data_ptr() * x.element_size() % PACK_BYTES
        kind = _Kind(arch_of(x), x.dtype, dtype, whole)
        _QUANTIZE[granularity](x, _as_bytes(q), scale, rows, columns, stride, kind)
    return _delivered(q, q_out), _delivered(scale, scale_out)


def _memory(out: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Contiguous memory for a result: ``out`` where that is contiguous."""
    return out if out is not None and out.is_contiguous() else torch.empty(shape, dtype=dtype, device=device)


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor


def _delivered(found: Tensor, out: Tensor | None) -> Tensor:
    if out is None or found is out:
        return found
    # torch does not copy every float8 in every way; bytes it does
    _as_bytes(out).copy_(_as_bytes(found))
    return out


def _scale_shape(x: Tensor, rows: int, granularity: str) -> tuple[int, ...]:
    across = cdiv(x.shape[-1], _BLOCK)
    if granularity == "block_1x128":
        return (*x.shape[:-1], across)
    if granularity == "block_128x128":
        return (cdiv(rows, _BLOCK), across)
    return (*x.shape[:-1], 1) if granularity == "row" else ()


def _rows(x: Tensor, q: Tensor, scale: Tensor, rows: int, columns: int, stride: int, kind: _Kind) -> None:
    _groups(x, q, scale, rows, columns, stride, kind, group=max(columns, 1))


def _blocks(x: Tensor, q: Tensor, scale: Tensor, rows: int, columns: int, stride: int, kind: _Kind) -> None:
    _groups(x, q, scale, rows, columns, stride, kind, group=_BLOCK)


def _groups(
    x: Tensor, q: Tensor, scale: Tensor, rows: int, columns: int, stride: int, kind: _Kind, *, group: int
) -> None:
    launch = _launch_groups(kind, packs_of(group, x))
    groups_of_row = max(1, cdiv(columns, group))
    groups = rows * groups_of_row
    launch(cdiv(groups, launch.how.rows), x, q, scale, groups, groups_of_row, group, columns, stride)


def _squares(x: Tensor, q: Tensor, scale: Tensor, rows: int, columns: int, stride: int, kind: _Kind) -> None:
    across = cdiv(columns, _BLOCK)
    launch = _launch(_SQUARES, "quantize_fp8.squares", kind)
    launch(cdiv(rows, _BLOCK) * across, x, q, scale, rows, columns, stride, across)


def _tensor(x: Tensor, q: Tensor, scale: Tensor, rows: int, columns: int, stride: int, kind: _Kind) -> None:
    if stride == columns:
        rows, columns, stride = 1, rows * columns, rows * columns
    packs_of_row = max(1, packs_of(columns, x))
    packs = rows * packs_of_row
    launch = _launch(_MAGNITUDES, "quantize_fp8.magnitudes", kind)
    blocks = max(1, min(launch.how.blocks, cdiv(packs, launch.how.threads * launch.how.packs)))
    parts = torch.empty(blocks, dtype=torch.int32, device=x.device)
    launch(blocks, x, parts, rows, columns, stride, packs_of_row, blocks)

    launch = _launch(_TENSOR, "quantize_fp8.tensor", kind)
    writers = max(1, cdiv(packs, launch.how.threads * launch.how.packs))
    launch(writers, x, q, scale, parts, blocks, rows, columns, stride, packs_of_row, writers)


_QUANTIZE = {"row": _rows, "block_1x128": _blocks, "block_128x128": _squares, "tensor": _tensor}

"""``quantize_fp8`` in OpenCL C (``quantize_fp8.cl``), on CPU tensors where they lie."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from opencl_backend.launch import Arguments, Program, launch
from opencl_backend.memory import STORAGES, bytes_of, delivered, readable, writable

_BLOCK = 128
_SMALLEST_SCALE = 2.0**-100


@dataclass(frozen=True, slots=True)
class Float8:
    """A float8: its largest number, and the macros that describe it to ``quantize_fp8.cl``."""

    largest: float
    macros: tuple[str, ...]


_FLOAT8 = {
    "float8_e4m3fn": Float8(448.0, ("MANTISSA=3", "BIAS=7")),
    "float8_e4m3fnuz": Float8(240.0, ("MANTISSA=3", "BIAS=8", "FNUZ")),
    "float8_e5m2": Float8(57344.0, ("MANTISSA=2", "BIAS=15")),
    "float8_e5m2fnuz": Float8(57344.0, ("MANTISSA=2", "BIAS=16", "FNUZ")),
}


def quantize_fp8(
    x: Tensor, *, granularity: str, dtype: str, out: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """``(q, scale)``: ``x: (*M, K)``, contiguous, in ``dtype``, and the float32 scales that give it back.

    Everything is computed in float32: ``scale = amax / largest``, ``q = x / scale`` rounded once, to nearest.
    """
    columns = x.shape[-1]
    rows = x.numel() // columns
    outs = (None, None) if out is None else out
    q = writable(outs[0], tuple(x.shape), getattr(torch, dtype))
    if granularity in ("row", "block_1x128"):
        block = columns if granularity == "row" else _BLOCK
        scale = writable(outs[1], (*x.shape[:-1], -(-columns // block)), torch.float32)
        arguments = Arguments([readable(x)], [bytes_of(q), bytes_of(scale)], scalars=_scalars(dtype, block, columns))
        launch(_program(x, dtype), "quantize_rows", rows, arguments)
    elif granularity == "tensor":
        largest = _magnitudes(x, dtype, columns).amax() if rows else torch.zeros(())
        scale = _scale_of(largest, dtype)
        _quantize_by(x, scale.expand(rows, 1), q, dtype, columns)
    else:
        magnitudes = torch.nn.functional.pad(_magnitudes(x, dtype, _BLOCK), (0, 0, 0, -rows % _BLOCK))
        scale = _scale_of(magnitudes.reshape(-1, _BLOCK, magnitudes.shape[1]).amax(1), dtype)
        _quantize_by(x, scale.repeat_interleave(_BLOCK, 0)[:rows], q, dtype, _BLOCK)
    return delivered(q, outs[0]), delivered(scale, outs[1])


def _magnitudes(x: Tensor, dtype: str, block: int) -> Tensor:
    """The largest magnitude of each ``block`` columns of a row: ``(M, ceil(K/block))``."""
    columns = x.shape[-1]
    rows = x.numel() // columns
    found = torch.empty(rows, -(-columns // block), dtype=torch.float32)
    scalars = [np.uint64(block), np.uint64(columns)]
    launch(_program(x, dtype), "block_magnitudes", rows, Arguments([readable(x)], [bytes_of(found)], scalars=scalars))
    return found


def _scale_of(magnitudes: Tensor, dtype: str) -> Tensor:
    """The scales of blocks whose largest magnitudes these are, as ``scale_of`` in the program."""
    scale = magnitudes / _FLOAT8[dtype].largest
    return torch.where(scale < _SMALLEST_SCALE, 1.0, scale)


def _quantize_by(x: Tensor, scales: Tensor, q: Tensor, dtype: str, block: int) -> None:
    """Writes ``q`` by the scales of each row's blocks."""
    columns = x.shape[-1]
    arguments = Arguments([readable(x), readable(scales)], [bytes_of(q)], scalars=_scalars(dtype, block, columns))
    launch(_program(x, dtype), "quantize_by", scales.shape[0], arguments)


def _scalars(dtype: str, block: int, columns: int) -> list[np.float32 | np.uint64]:
    return [np.float32(_FLOAT8[dtype].largest), np.uint64(block), np.uint64(columns)]


def _program(x: Tensor, dtype: str) -> Program:
    return Program("quantize_fp8", (f"X={STORAGES[x.dtype]}", *_FLOAT8[dtype].macros))

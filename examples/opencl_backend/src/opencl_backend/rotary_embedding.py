"""``rotary_embedding`` in OpenCL C (``rotary_embedding.cl``), on CPU tensors where they lie."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from opencl_backend.launch import Arguments, Program, launch
from opencl_backend.memory import STORAGES, bytes_of, delivered, readable, writable
from portakernel.authoring import ArgumentValueError


def rotary_embedding(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None = None,
    *,
    interleaved: bool = False,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """``q: (*S, H, D)`` and ``k: (*S, G, D)``, their pairs turned by ``cos, sin: (L, C)`` at ``positions: (*S,)``.

    All contiguous. Computed in float32 and rounded once. ``out`` may be ``(q, k)``.

    Raises:
        ArgumentValueError: there are no positions, and more tokens than the tables have.
        IndexError: a position is outside the tables, which would be read beyond their memory.
    """
    rows = _positions(positions, tuple(q.shape[:-2]), cos.shape[0])
    outs = (None, None) if out is None else out
    results = [writable(place, tuple(x.shape), x.dtype) for x, place in zip((q, k), outs, strict=True)]
    arguments = Arguments(
        given=[readable(q), readable(k), readable(rows)],
        written=[bytes_of(result) for result in results],
        whole=[readable(cos), readable(sin)],
        scalars=[np.uint64(size) for size in (q.shape[-2], k.shape[-2], q.shape[-1], cos.shape[1])],
    )
    macros = (f"X={STORAGES[q.dtype]}", f"W={STORAGES[cos.dtype]}", *(("INTERLEAVED",) if interleaved else ()))
    launch(Program("rotary_embedding", macros), "rotary_embedding", rows.numel(), arguments)
    return delivered(results[0], outs[0]), delivered(results[1], outs[1])


def _positions(positions: Tensor | None, leading: tuple[int, ...], table: int) -> Tensor:
    """Each token's row of the tables, as int64."""
    if positions is not None:
        rows = positions.reshape(-1).to(torch.int64)
        if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < table:
            raise IndexError(f"rotary_embedding: positions must lie in 0 ... {table - 1}, the rows of cos and sin")
        return rows
    tokens = leading[-1] if leading else 1
    if tokens > table:
        raise ArgumentValueError(
            f"rotary_embedding: cos and sin have {table} positions (L), but the last leading dimension of q has"
            f" {tokens} tokens; without positions, a token's position is its index there"
        )
    return torch.arange(tokens).expand(leading or (1,)).reshape(-1)

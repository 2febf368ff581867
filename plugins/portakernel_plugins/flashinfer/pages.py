"""What FlashInfer's attention over pages is given, and what becomes of its results."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from portakernel.authoring import CannotRun, ReasonCode, Rejection
from portakernel.authoring.tensors import delivered, dense, room
from portakernel_plugins.flashinfer.plans import Plan

Results: TypeAlias = Tensor | tuple[Tensor, ...]

_WIDE = 16  # bytes that are read at once
# Smaller scales are zero to kernels that flush subnormal numbers.
_LEAST = 2.0**-126


def above_zero(q: Tensor, scale: float | None) -> tuple[Tensor, float]:
    """Queries (..., D) and a scale above zero with the scores of ``q`` and ``scale``; None is 1/sqrt(D).

    FlashInfer looks for the largest score before it multiplies by the scale, and hides keys before.
    """
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    if not factor < _LEAST:  # NaN too stays what it is
        return q, factor
    return (-q, -factor) if factor <= -_LEAST else (q.new_zeros(q.shape), 1.0)


def check_rows(**caches: Tensor) -> None:
    """That each row of the ``caches`` begins where 16 bytes are read at once: a cache is not copied for a call.

    Raises:
        CannotRun: one does not.
    """
    for name, cache in caches.items():
        step = _WIDE // cache.element_size()
        if any(stride % step for stride, size in zip(cache.stride(), cache.shape[:-1], strict=False) if size > 1):
            text = f"needs strides of {name} that {step} divides but the last, whose rows are read 16 bytes at once"
            raise CannotRun(Rejection(ReasonCode.LAYOUT, f"{text}; these are {tuple(cache.stride())}", name))


def answered(
    plan: Plan,
    run: Callable[[tuple[Tensor, ...], Tensor, Tensor | None], None],
    queries: tuple[Tensor, ...],
    *,
    return_lse: bool,
    out: Results | None,
) -> Results:
    """Results of ``queries`` (S, H, ...), those of the first one's shape: of ``run``, and of queries that see no key.

    ``run`` is given queries without gaps and writes results, and lse (H, S) where it is wanted.
    """
    to_y, to_lse = (*out, None)[:2] if isinstance(out, tuple) else (out, None)
    first, rows = queries[0], plan.rows
    tokens, heads = first.shape[:2]
    lse = first.new_full((heads, tokens), -math.inf, dtype=torch.float32) if return_lse else None
    if plan.wrapper is not None and rows is None:
        y = room(first, to_y, _WIDE)
        run(tuple(dense(x, _WIDE) for x in queries), y, lse)
    else:
        y = first.new_zeros(first.shape)
        if rows is not None:
            asked = tuple(x[rows] for x in queries)
            sums = None if lse is None else lse.new_empty((heads, len(rows)))
            run(asked, found := torch.empty_like(asked[0]), sums)
            y[rows] = found
            if lse is not None and sums is not None:
                lse[:, rows] = sums
    y = delivered(y, to_y)
    return y if lse is None else (y, delivered(lse, to_lse))

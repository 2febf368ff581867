"""``rotary_embedding`` by Liger's kernel, which turns queries and keys where they lie: copies, or ``out``."""
# pyright: reportMissingImports=false
# Liger is an optional requirement.

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from liger_kernel.ops.rope import rope_backward, rope_forward
from torch import Tensor

from portakernel.authoring.tensors import delivered, room


def rotary_embedding(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None = None,
    *,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Halves of q (*S, H, D) and k (*S, G, D) turned; cos, sin: (L, C), 2C <= D; positions: (*S,) or absent.

    ``out`` may be ``(q, k)``.
    """
    return _turned(rope_forward, (q, k), (cos, sin), positions, out)


def backward(
    grad_q: Tensor | None,
    grad_k: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None = None,
    *,
    needs: tuple[bool, ...],
) -> tuple[Tensor | None, Tensor | None, None, None, None]:
    """Gradients for ``q`` and ``k``, those of the results turned back; None where theirs are None or not needed."""
    wanted = [grad if need else None for grad, need in zip((grad_q, grad_k), needs, strict=False)]
    given = [grad for grad in wanted if grad is not None]
    if not given:
        return None, None, None, None, None
    # Liger turns two tensors: beside a single one, its first head once more
    both = (given[0], given[1]) if len(given) > 1 else (given[0], given[0][..., :1, :])
    turned = iter(_turned(rope_backward, both, (cos, sin), positions, None))
    found_q, found_k = (None if grad is None else next(turned) for grad in wanted)
    return found_q, found_k, None, None, None


def _turned(
    turn: Callable[..., Any],
    given: tuple[Tensor, Tensor],
    tables: tuple[Tensor, Tensor],
    positions: Tensor | None,
    out: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, Tensor]:
    to = (None, None) if out is None else out
    q, k = (room(x, place).copy_(x) for x, place in zip(given, to, strict=True))
    leading = q.shape[:-2]
    if positions is None:
        batch, length = math.prod(leading[:-1]), leading[-1] if leading else 1
        cos, sin = (table[:length].float() for table in tables)
    else:
        batch, length = 1, positions.numel()
        cos, sin = (table.index_select(0, positions.reshape(-1)).float() for table in tables)
    # (batch, heads, length, D) by shape, while in memory a token's heads lie beside each other
    heads_first = (x.view(batch, length, *x.shape[-2:]).transpose(1, 2) for x in (q, k))
    turn(*heads_first, cos, sin, rotary_dim=2 * cos.shape[-1])
    return delivered(q, to[0]), delivered(k, to[1])

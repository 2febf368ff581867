"""``rotary_embedding`` and its gradient as formulas (Su et al. 2021, arXiv 2104.09864, equation 34).

Of each head's first ``R = 2C`` dimensions, pair ``i`` (dimensions ``i`` and ``C + i`` or, interleaved, ``2i`` and
``2i + 1``) is turned by the angle whose cosine and sine are at ``(position, i)``: ``(a, b)`` becomes
``(a * cos - b * sin, b * cos + a * sin)``. Gradients are turned back, by the negative angle.
"""

from __future__ import annotations

import torch
from torch import Tensor

from portakernel.errors import ArgumentValueError
from portakernel.tensors.index_values import check_indices


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def _angles(cos: Tensor, sin: Tensor, positions: Tensor | None, leading: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """``cos`` and ``sin`` of each token, ``(..., 1, C)``: alike for all its heads."""
    if positions is not None:
        rows, shape = positions.reshape(-1), (*leading, 1, cos.shape[1])
        try:
            cosines, sines = cos.index_select(0, rows), sin.index_select(0, rows)
        except IndexError:  # from the CPU's alone
            check_indices("rotary_embedding", "positions", rows, cos.shape[0], "L")
            raise
        return _wide(cosines).reshape(shape), _wide(sines).reshape(shape)
    tokens = leading[-1] if leading else 1
    if tokens > cos.shape[0]:
        raise ArgumentValueError(
            f"rotary_embedding: cos and sin have {cos.shape[0]} positions (L), but the last leading dimension of q has"
            f" {tokens} tokens; without positions, a token's position is its index there"
        )
    shape = (*leading[-1:], 1, cos.shape[1])
    return _wide(cos[:tokens]).reshape(shape), _wide(sin[:tokens]).reshape(shape)


def _pairs(x: Tensor, count: int, interleaved: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The pairs' first and second elements, and what passes through."""
    rotary, rest = x[..., : 2 * count], x[..., 2 * count :]
    if interleaved:
        return rotary[..., 0::2], rotary[..., 1::2], rest
    return rotary[..., :count], rotary[..., count:], rest


def _joined(a: Tensor, b: Tensor, rest: Tensor, interleaved: bool) -> Tensor:
    """The inverse of ``_pairs``."""
    rotary = torch.stack((a, b), -1).flatten(-2) if interleaved else torch.cat((a, b), -1)
    return torch.cat((rotary, rest), -1)


def _turned(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """``x: (..., heads, D)`` with its pairs turned, in the precision of ``cos``, in ``x``'s dtype."""
    a, b, rest = _pairs(_wide(x), cos.shape[-1], interleaved)
    return _joined(a * cos - b * sin, b * cos + a * sin, rest, interleaved).to(x.dtype).contiguous()


def _terms(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """The sums of absolute terms behind ``_turned``: two products, or one number that passes through."""
    a, b, rest = _pairs(x.double().abs(), cos.shape[-1], interleaved)
    cos, sin = cos.double().abs(), sin.double().abs()
    return _joined(a * cos + b * sin, b * cos + a * sin, rest, interleaved)


def forward(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None = None,
    *,
    interleaved: bool = False,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """``q: (*S, H, D)`` and ``k: (*S, G, D)`` turned by ``cos, sin: (L, C)`` at ``positions: (*S,)``, rounded once.

    Raises:
        ArgumentValueError: there are no positions, and more tokens than the tables have.
    """
    angles = _angles(cos, sin, positions, tuple(q.shape[:-2]))
    rotated_q, rotated_k = _turned(q, *angles, interleaved), _turned(k, *angles, interleaved)
    if out is not None:
        # only now: `out` may be the inputs
        return out[0].copy_(rotated_q), out[1].copy_(rotated_k)
    return rotated_q, rotated_k


def backward(
    grad_rotated_q: Tensor | None,
    grad_rotated_k: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    *,
    interleaved: bool = False,
    needs: tuple[bool, ...] = (True, True, False, False, False),
) -> tuple[Tensor | None, ...]:
    """Gradients for ``q`` and ``k``: those of their outputs, turned back; None where the output's is None.

    ``cos``, ``sin`` and ``positions`` have none.
    """
    found: list[Tensor | None] = [None] * 5
    for place, grad in enumerate((grad_rotated_q, grad_rotated_k)):
        if grad is not None and needs[place]:
            cosines, sines = _angles(cos, sin, positions, tuple(grad.shape[:-2]))
            found[place] = _turned(grad, cosines, -sines, interleaved)
    return tuple(found)


def magnitudes(
    grad_rotated_q: Tensor | None,
    grad_rotated_k: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    *,
    interleaved: bool = False,
) -> tuple[Tensor | None, ...]:
    """The sums of absolute terms behind each gradient, which bound what rounding can do to it."""
    found: list[Tensor | None] = [None] * 5
    for place, grad in enumerate((grad_rotated_q, grad_rotated_k)):
        if grad is not None:
            found[place] = _terms(grad, *_angles(cos, sin, positions, tuple(grad.shape[:-2])), interleaved)
    return tuple(found)


def output_magnitudes(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None = None,
    *,
    interleaved: bool = False,
) -> tuple[Tensor, Tensor]:
    """The sums of absolute terms behind each output, which bound what rounding can do to it."""
    angles = _angles(cos, sin, positions, tuple(q.shape[:-2]))
    return _terms(q, *angles, interleaved), _terms(k, *angles, interleaved)

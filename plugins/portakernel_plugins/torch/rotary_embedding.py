"""``rotary_embedding`` on CPUs in float32, by products of whole rows.

In halves, a row times its cosines, and the row with its halves exchanged times its sines, of which the first half is
negative; interleaved, pairs are complex numbers and the angles are, too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from portakernel.authoring import ArgumentValueError
from portakernel.authoring.tensors import check_indices
from portakernel_plugins.torch.norms.row_blocks import BLOCK_ELEMENTS, row_blocks


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
    """``q: (*S, H, D)`` and ``k: (*S, G, D)`` turned by ``cos, sin: (L, C)`` at ``positions: (*S,)``, rounded once."""
    factors = _factors(cos, sin, positions, q.shape[:-2], interleaved)
    into_q, into_k = (None, None) if out is None else out
    return _turned(q, factors, into_q), _turned(k, factors, into_k)


def backward(
    grad_rotated_q: Tensor | None,
    grad_rotated_k: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    *,
    interleaved: bool = False,
    needs: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    """Gradients for ``q`` and ``k``: those of their outputs, turned back; None where the output's is None."""
    grads = [grad if needed else None for grad, needed in zip((grad_rotated_q, grad_rotated_k), needs, strict=False)]
    some = next((grad for grad in grads if grad is not None), None)
    if some is None:
        return (None,) * 5
    factors = _factors(cos, sin.neg(), positions, some.shape[:-2], interleaved)
    return (*(None if grad is None else _turned(grad, factors, None) for grad in grads), None, None, None)


def _factors(
    cos: Tensor, sin: Tensor, positions: Tensor | None, leading: tuple[int, ...], interleaved: bool
) -> tuple[Tensor, ...]:
    """What each token's heads are multiplied by: ``(*S, 1, 2C)``, or ``(S, 1, 2C)`` for batches alike.

    In halves, that is a factor of the head and one of the head with its halves exchanged; interleaved, one of C
    complex numbers.
    """
    if positions is not None:
        rows, shape = positions.reshape(-1), (*leading, 1, cos.shape[1])
        try:
            cos, sin = cos.index_select(0, rows).view(shape), sin.index_select(0, rows).view(shape)
        except IndexError:
            check_indices("rotary_embedding", "positions", rows, cos.shape[0], "L")
            raise
    else:
        tokens = leading[-1] if leading else 1
        if tokens > cos.shape[0]:
            raise ArgumentValueError(
                f"rotary_embedding: cos and sin have {cos.shape[0]} positions (L), but the last leading dimension of q"
                f" has {tokens} tokens; without positions, a token's position is its index there"
            )
        if tokens < cos.shape[0]:
            cos, sin = cos[:tokens], sin[:tokens]
        if leading:
            cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    cos, sin = cos.float(), sin.float()
    if interleaved:
        return (torch.complex(cos, sin),)
    return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)


def _turned(x: Tensor, factors: tuple[Tensor, ...], out: Tensor | None) -> Tensor:
    """``x: (*S, heads, D)`` with its pairs turned, rounded once; ``out`` may be ``x``."""
    few, halves = x.numel() <= BLOCK_ELEMENTS, len(factors) == 2
    if out is None and few and halves and factors[0].shape[-1] == x.shape[-1]:
        return _times(x, *factors).to(x.dtype).contiguous()
    y = x.new_empty(x.shape) if out is None else out
    turn = _turn_halves if halves else _turn_pairs
    if few:
        turn(x, y, *factors)
        return y
    factors = tuple(factor.expand(*x.shape[:-2], 1, -1) for factor in factors)
    for tokens in row_blocks(x.shape[:-2], x.shape[-2] * x.shape[-1]):
        turn(x[tokens], y[tokens], *(factor[tokens] for factor in factors))
    return y


def _turn_halves(x: Tensor, y: Tensor, cos: Tensor, sin: Tensor) -> None:
    x, y = _without_rest(x, y, cos.shape[-1])
    turned = _times(x, cos, sin, out=y if x.dtype is torch.float32 else None)
    if turned is not y:
        y.copy_(turned)


def _times(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor | None = None) -> Tensor:
    """The halves in float32, in memory of their own without a float32 ``out``, which may be ``x``."""
    wide = x.float()
    exchanged = wide.roll(cos.shape[-1] // 2, -1)
    return torch.mul(wide, cos, out=out if wide is x else wide).addcmul_(exchanged, sin)


def _turn_pairs(x: Tensor, y: Tensor, angles: Tensor) -> None:
    x, y = _without_rest(x, y, 2 * angles.shape[-1])
    if _holds_pairs(x) and _holds_pairs(y):
        torch.mul(x.view(torch.complex64), angles, out=y.view(torch.complex64))
    else:
        wide = x.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        wide.view(torch.complex64).mul_(angles)
        y.copy_(wide)


def _without_rest(x: Tensor, y: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """What is turned of both; the rest is copied."""
    rest = x.shape[-1] - width
    if not rest:
        return x, y
    y.narrow(-1, width, rest).copy_(x.narrow(-1, width, rest))
    return x.narrow(-1, 0, width), y.narrow(-1, 0, width)


def _holds_pairs(tensor: Tensor) -> bool:
    """Whether its memory can be taken for complex numbers."""
    *strides, last = tensor.stride()
    even = tensor.storage_offset() % 2 == 0 and all(stride % 2 == 0 for stride in strides)
    return tensor.dtype is torch.float32 and last == 1 and even

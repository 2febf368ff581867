"""Masks and biases as one tensor that is added to the scores, for operators that take such a tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from portakernel_plugins.torch.attention.layout import blind_queries

Window = tuple[int, int]

# From here on neighbours in float32 are more than 8 apart.
_ABSORBS = 2.0**27


@dataclass(frozen=True, slots=True)
class Mask:
    """What is added to the scores.

    ``added: (B, H, S, T)``, -inf where masked, with strides of 0 where batches or heads share it. ``blind``, broadcast
    to ``(B, H, S)``, are the queries that see no key, which only a bias can bring about here; for them ``added`` is
    zero instead, because not every operator gives zeros for a row of -inf.
    """

    added: Tensor
    blind: Tensor | None

    def cleared(self, y: Tensor) -> Tensor:
        """``y (B, S, H, E)`` with zeros for blind queries."""
        return y if self.blind is None else y.masked_fill(self.blind.transpose(1, 2).unsqueeze(-1), 0.0)

    def lowered(self, lse: Tensor) -> Tensor:
        """``lse (B, H, S)`` with -inf for blind queries."""
        return lse if self.blind is None else lse.masked_fill(self.blind, -math.inf)

    def spread(self, grad: Tensor) -> Tensor:
        """``grad (B, S, H, E)`` for operators whose backward makes a row's weights as ``exp(score - lse)``.

        Where the largest score is so far from 0 that float32 holds neither the others' distance from it nor the
        logarithm of how many share it, as in rows that the dtype's smallest number fills, each of these gets a weight
        of one, not of one in so many: such a row's gradient is divided by their number.
        """
        top = self.added.amax(-1, keepdim=True)
        sharing = (self.added == top).sum(-1, keepdim=True).masked_fill(top.abs() < _ABSORBS, 1)
        return grad / sharing.transpose(1, 2).to(grad.dtype)

    def raised(self, lse: Tensor) -> Tensor:
        """``lse (B, H, S)`` with inf for blind queries: their weights become zero in backward."""
        return lse if self.blind is None else lse.masked_fill(self.blind, math.inf)


def may_be_blind(S: int | torch.SymInt, T: int | torch.SymInt, *, causal: bool, window: Window) -> bool:
    """Whether the mask may leave a query without any key; True too where a graph leaves open what decides it."""
    right = 0 if causal else window[1]
    if right < 0:
        return False
    if isinstance(S, int) and isinstance(T, int):
        return blind_queries(S, T, causal=causal, window=window) > 0
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return not statically_known_true(T + right >= S)


def hidden_keys(S: int, T: int, *, causal: bool, window: Window, device: torch.device) -> Tensor | None:
    """Which keys each query does not see ``(S, T)``; the last query stands at the last key. None: it sees all."""
    left, right = window[0], 0 if causal else window[1]
    if left < 0 and right < 0:
        return None
    ahead = key_distances(S, T, device)
    hidden = ahead > right if right >= 0 else None
    if left >= 0:
        before = ahead < -left
        hidden = before if hidden is None else hidden | before
    return hidden


def key_distances(S: int, T: int, device: torch.device) -> Tensor:
    """How far each key is ahead of each query ``(S, T)``, negative for those behind."""
    return torch.arange(T, device=device) - torch.arange(T - S, T, device=device).unsqueeze(1)


def make_mask(
    shape: tuple[int, int, int, int],
    dtype: torch.dtype,
    device: torch.device,
    *,
    causal: bool,
    window: Window,
    bias: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
) -> Mask:
    """The mask of ``shape (B, H, S, T)`` in ``dtype``; some key is in reach of every query but for ``bias``."""
    asked: dict[str, Any] = {"causal": causal, "window": window, "bias": bias, "alibi_slopes": alibi_slopes}
    added, blind = added_once(*shape[2:], dtype, device, **asked)
    return Mask(added.expand(shape), blind)


def added_once(
    S: int,
    T: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    causal: bool,
    window: Window,
    bias: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    find_blind: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """``make_mask``'s parts, the first broadcast to ``(B, H, S, T)``: once where batches or heads share it.

    Without ``find_blind`` a query that sees no key has a row of -inf.
    """
    added = torch.zeros((), dtype=dtype, device=device) if bias is None else distinct(bias).to(dtype)
    if alibi_slopes is not None:
        added = added - alibi_slopes[:, None, None] * key_distances(S, T, device).abs()
    hidden = hidden_keys(S, T, causal=causal, window=window, device=device)
    if hidden is not None:
        added = added.masked_fill(hidden, -math.inf)
    blind = None
    if bias is not None and find_blind:
        blind = added.amax(-1) == -math.inf
        added = added.masked_fill(blind.unsqueeze(-1), 0.0)
    return added.to(dtype), blind


def distinct(bias: Tensor) -> Tensor:
    """``bias (B, H, S, T)``, once where batches or heads share it: ``(B or 1, H or 1, S, T)``."""
    batch, heads, *_ = bias.stride()
    return bias[: 1 if batch == 0 else None, : 1 if heads == 0 else None]


def first_to_last(q: Tensor, k: Tensor, *, causal: bool, window: Window) -> tuple[bool, Tensor | None]:
    """A causal flag that begins at the first key, and a mask ``(B, H, S, T)`` for what it cannot say.

    ``q (B, S, H, D)`` holds queries of which each sees some key; never both are given.
    """
    (B, S, H, _), T = q.shape, k.shape[1]
    limited = window[0] >= 0 or (window[1] >= 0 and not causal)
    if not limited and not (causal and 1 < S < T):
        return causal and S > 1, None
    return False, make_mask((B, H, S, T), q.dtype, q.device, causal=causal, window=window).added

"""``attention`` and its gradient as formulas.

Query ``i`` stands at position ``p = i + T - S`` among the keys. With ``x = scale * q @ k.T``, the scores are
``s = softcap * tanh(x / softcap) - slope * |p - j| + bias``, and -inf where query ``i`` does not see key ``j``. With
``lse = log(exp(sink) + sum(exp(s)))`` the weights are ``P = exp(s - lse)`` and the output is ``P @ v``.

For the output's gradient ``g``: ``dv = P.T @ g``, ``dP = g @ v.T``, ``ds = P * (dP - sum(P * dP))``, which is the
bias's gradient; ``dx = ds * (1 - tanh(x / softcap)**2)``, ``dq = scale * dx @ k`` and ``dk = scale * dx.T @ q``. The
sink is a score whose value is zero: ``dsink = -exp(sink - lse) * sum(P * dP)``.

In ``einsum``, ``b`` counts batches, ``g`` key heads, ``r`` the heads of one key head, ``s`` queries, ``t`` keys, ``d``
and ``e`` the dims of keys and values: no key or value is repeated for the heads that share it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# How many scores are computed at once, where a single query has no more: 16 MiB in float32, a few times over.
_SCORES_AT_ONCE = 1 << 22

Window = tuple[int, int]


def _wide_dtype(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(_wide_dtype(tensor))


def _grouped(tensor: Tensor, dim: int, key_heads: int) -> Tensor:
    """A view in which the dimension ``dim``, of heads, is two: the key heads, and the heads of each."""
    before, heads, after = tensor.shape[:dim], tensor.shape[dim], tensor.shape[dim + 1 :]
    return tensor.view(*before, key_heads, heads // key_heads, *after)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Queries of some batches and key heads, with all of their keys.

    ``q: (b, s, g, r, d)``, ``k: (b, t, g, d)``, ``v: (b, t, g, e)``, ``alibi_slopes`` and ``sinks: (g, r)``,
    ``bias: (b, g, r, s, t)``. ``first`` is the position of the first query, ``at`` where they stand in the whole.
    """

    at: tuple[slice, slice, slice]
    first: int
    q: Tensor
    k: Tensor
    v: Tensor
    alibi_slopes: Tensor | None
    bias: Tensor | None
    sinks: Tensor | None

    def scores(
        self, causal: bool = False, scale: float | None = None, window: Window = (-1, -1), softcap: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """The scores ``(b, g, r, s, t)``, -inf where masked; and what they were after ``softcap``."""
        capped = torch.einsum("bsgrd,btgd->bgrst", self.q, self.k) * _scale(scale, self.q)
        if softcap != 0.0:
            capped = softcap * torch.tanh(capped / softcap)
        ahead, scores = self.ahead(), capped
        if self.alibi_slopes is not None:
            scores = scores - self.alibi_slopes[:, :, None, None] * ahead.abs()
        if self.bias is not None:
            scores = scores + self.bias
        hidden = _hidden(ahead, causal, window)
        return (scores if hidden is None else scores.masked_fill(hidden, -math.inf)), capped

    def score_terms(self, scale: float | None) -> Tensor:
        """The sums of absolute terms behind the scores, which may cancel."""
        terms = torch.einsum("bsgrd,btgd->bgrst", self.q.abs(), self.k.abs()) * abs(_scale(scale, self.q))
        if self.alibi_slopes is not None:
            terms = terms + self.alibi_slopes.abs()[:, :, None, None] * self.ahead().abs()
        return terms if self.bias is None else terms + self.bias.abs().masked_fill(self.bias.isinf(), 0.0)

    def ahead(self) -> Tensor:
        """How far each key is ahead of each query ``(s, t)``, negative for those behind."""
        queries = torch.arange(self.first, self.first + self.q.shape[1], device=self.q.device)
        return torch.arange(self.k.shape[1], device=self.q.device) - queries.unsqueeze(1)


def _scale(scale: float | None, q: Tensor) -> float:
    return 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale


def _hidden(ahead: Tensor, causal: bool, window: Window) -> Tensor | None:
    """Which keys a query does not see; None where it sees all."""
    left, right = window[0], 0 if causal else window[1]
    hidden = None if right < 0 else ahead > right
    if left >= 0:
        before = ahead < -left
        hidden = before if hidden is None else hidden | before
    return hidden


def _pieces(
    q: Tensor, k: Tensor, v: Tensor, alibi_slopes: Tensor | None, bias: Tensor | None, sinks: Tensor | None
) -> Iterator[_Piece]:
    """All of the queries, in pieces whose scores fit into memory, in float32 or float64."""
    (B, S, H, _), (_, T, G, _) = q.shape, k.shape
    R = H // G
    q = _grouped(q, 2, G)
    slopes = None if alibi_slopes is None else _grouped(alibi_slopes, 0, G)
    sinks = None if sinks is None else _grouped(sinks, 0, G)
    bias = None if bias is None else _grouped(bias, 1, G)
    queries = _share(S, R * T)
    groups = _share(G, queries * R * T)
    batches = _share(B, groups * queries * R * T)
    for b in _slices(B, batches):
        for g in _slices(G, groups):
            for s in _slices(S, queries):
                yield _Piece(
                    at=(b, g, s),
                    first=s.start + T - S,
                    q=_wide(q[b, s, g]),
                    k=_wide(k[b, :, g]),
                    v=_wide(v[b, :, g]),
                    alibi_slopes=None if slopes is None else _wide(slopes[g]),
                    bias=None if bias is None else _wide(bias[b, g, :, s]),
                    sinks=None if sinks is None else _wide(sinks[g]),
                )


def _share(count: int, scores_each: int) -> int:
    """How many of ``count`` go into one piece; at least one."""
    return max(1, min(count, _SCORES_AT_ONCE // max(1, scores_each)))


def _slices(count: int, step: int) -> Iterator[slice]:
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


@dataclass(frozen=True, slots=True)
class _Softmax:
    """The weights ``(b, g, r, s, t)``, zero where nothing is seen, and one number for each query ``(b, g, r, s)``.

    ``top`` is the largest score, by which all are lowered so that no exponential overflows.
    """

    weights: Tensor
    sink_weights: Tensor | None
    lse: Tensor
    top: Tensor


def _softmax(scores: Tensor, sinks: Tensor | None) -> _Softmax:
    # amax refuses an empty dimension
    top = scores.amax(-1) if scores.shape[-1] else scores.new_full(scores.shape[:-1], -math.inf)
    if sinks is not None:
        top = torch.maximum(top, sinks.unsqueeze(-1))
    top = top.masked_fill(top.isneginf(), 0.0)
    weights = torch.exp(scores - top.unsqueeze(-1))
    sink_weights = None if sinks is None else torch.exp(sinks.unsqueeze(-1) - top)
    total = weights.sum(-1) if sink_weights is None else weights.sum(-1) + sink_weights
    lse = top + total.log()
    total = total.masked_fill(total == 0.0, 1.0)
    return _Softmax(weights / total.unsqueeze(-1), None if sink_weights is None else sink_weights / total, lse, top)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    alibi_slopes: Tensor | None = None,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    window: Window = (-1, -1),
    softcap: float = 0.0,
    return_lse: bool = False,
    out: Tensor | tuple[Tensor, ...] | None = None,
    save: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """``out (B, S, H, E)``, rounded once; ``lse (B, H, S)`` too where it is returned, and once more when ``save``."""
    (B, S, H, _), (_, _, G, E) = q.shape, v.shape
    given = out if isinstance(out, tuple) else (out,)
    y = q.new_empty((B, S, H, E)) if given[0] is None else given[0]
    lse = given[1] if return_lse and len(given) > 1 else q.new_empty((B, H, S), dtype=_wide_dtype(q))
    y_parts, lse_parts = _grouped(y, 2, G), _grouped(lse, 1, G)
    for piece in _pieces(q, k, v, alibi_slopes, bias, sinks):
        b, g, s = piece.at
        scores, _ = piece.scores(causal, scale, window, softcap)
        found = _softmax(scores, piece.sinks)
        y_parts[b, s, g] = torch.einsum("bgrst,btge->bsgre", found.weights, piece.v)
        lse_parts[b, g, :, s] = found.lse
    if save:
        return (y, lse, lse.clone()) if return_lse else (y, lse)
    fresh = (y, lse) if return_lse else y
    return fresh if out is None else out


def backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alibi_slopes: Tensor | None,
    bias: Tensor | None,
    sinks: Tensor | None,
    out: Tensor,
    lse: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: Window = (-1, -1),
    softcap: float = 0.0,
    return_lse: bool = False,
    needs: tuple[bool, ...] = (True,) * 6,
) -> tuple[Tensor | None, ...]:
    """Gradients for ``q``, ``k``, ``v``, ``bias`` and ``sinks`` from that of ``out``; None for ``alibi_slopes``.

    Kernels compute ``P`` from ``lse``, and take ``sum(g * out)`` for ``sum(P * dP)``. That is equal but for how ``lse``
    and ``out`` were rounded, which is why neither is used here.
    """
    del out, lse, return_lse
    key_heads = k.shape[2]
    grad_q = q.new_empty(q.shape) if needs[0] else None
    # sums over queries, and so over pieces
    grad_k = k.new_zeros(k.shape, dtype=_wide_dtype(k)) if needs[1] else None
    grad_v = v.new_zeros(v.shape, dtype=_wide_dtype(v)) if needs[2] else None
    grad_sinks = sinks.new_zeros(sinks.shape, dtype=_wide_dtype(sinks)) if sinks is not None and needs[5] else None
    grad_bias = bias.new_empty(bias.shape) if bias is not None and needs[4] else None
    for piece in _pieces(q, k, v, alibi_slopes, bias, sinks):
        b, g, s = piece.at
        scores, capped = piece.scores(causal, scale, window, softcap)
        softmax = _softmax(scores, piece.sinks)
        weights = softmax.weights
        grad = _wide(_grouped(grad_out, 2, key_heads)[b, s, g])
        if grad_v is not None:
            grad_v[b, :, g] += torch.einsum("bgrst,bsgre->btge", weights, grad)
        grad_weights = torch.einsum("bsgre,btge->bgrst", grad, piece.v)
        mean = (weights * grad_weights).sum(-1)
        if grad_sinks is not None and softmax.sink_weights is not None:
            # not in place: where the formula itself is differentiated, zeros may be a leaf of that
            grouped = _grouped(grad_sinks, 0, key_heads).clone()
            grouped[g] = grouped[g] - (softmax.sink_weights * mean).sum((0, 3))
            grad_sinks = grouped.reshape(grad_sinks.shape)
        grad_scores = weights * (grad_weights - mean.unsqueeze(-1))
        if grad_bias is not None:
            _grouped(grad_bias, 1, key_heads)[b, g, :, s] = grad_scores
        if softcap != 0.0:
            grad_scores = grad_scores * (1.0 - (capped / softcap).square())
        grad_scores = grad_scores * _scale(scale, q)
        if grad_q is not None:
            _grouped(grad_q, 2, key_heads)[b, s, g] = torch.einsum("bgrst,btgd->bsgrd", grad_scores, piece.k)
        if grad_k is not None:
            grad_k[b, :, g] += torch.einsum("bgrst,bsgrd->btgd", grad_scores, piece.q)
    grad_k = None if grad_k is None else grad_k.to(k.dtype)
    grad_v = None if grad_v is None else grad_v.to(v.dtype)
    grad_sinks = None if grad_sinks is None or sinks is None else grad_sinks.to(sinks.dtype)
    return grad_q, grad_k, grad_v, None, grad_bias, grad_sinks


def gradient_roundings(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alibi_slopes: Tensor | None,
    bias: Tensor | None,
    sinks: Tensor | None,
    out: Tensor,
    lse: Tensor,
    *,
    single: float,
    scale: float | None = None,
    return_lse: bool = False,
    **more: Any,
) -> tuple[Tensor | None, ...]:
    """What rounding errors of the gradients are in proportion to: the root of the sum of each one's squared terms.

    Kernels subtract ``sum(g * out)``, of an ``out`` that was rounded, from ``dP``, and where one weight is close to 1
    these cancel. A weight moves with its score, whose terms are rounded in float32: to ``single`` of q's roundings.
    """
    del lse, return_lse
    G, factor = k.shape[2], _scale(scale, q) ** 2
    of_q, of_k, of_v = (torch.zeros_like(x, dtype=torch.float64) for x in (q, k, v))
    of_bias, of_sinks = (None if x is None else torch.zeros_like(x, dtype=torch.float64) for x in (bias, sinks))
    for piece in _pieces(q, k, v, alibi_slopes, bias, sinks):
        b, g, s = piece.at
        softmax = _softmax(piece.scores(scale=scale, **more)[0], piece.sinks)
        grad, y = (_grouped(x.double(), 2, G)[b, s, g].square() for x in (grad_out, out))
        weights = softmax.weights.square() * (1.0 + (single * piece.score_terms(scale)).square())
        mean = torch.einsum("bsgre,bsgre->bgrs", grad, y)
        of_v[b, :, g] += torch.einsum("bgrst,bsgre->btge", weights, grad)
        terms = weights * (torch.einsum("bsgre,btge->bgrst", grad, piece.v.square()) + mean.unsqueeze(-1))
        _grouped(of_q, 2, G)[b, s, g] = factor * torch.einsum("bgrst,btgd->bsgrd", terms, piece.k.square())
        of_k[b, :, g] += factor * torch.einsum("bgrst,bsgrd->btgd", terms, piece.q.square())
        if of_bias is not None:
            _grouped(of_bias, 1, G)[b, g, :, s] = terms
        if of_sinks is not None and softmax.sink_weights is not None:
            _grouped(of_sinks, 0, G)[g] += (softmax.sink_weights.square() * mean).sum((0, 3))
    return tuple(None if x is None else x.sqrt() for x in (of_q, of_k, of_v, None, of_bias, of_sinks))


def plain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    alibi_slopes: Tensor | None = None,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    return_lse: bool = False,
    **more: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """The results as a model without kernels computes them: all scores at once, each step rounded to ``q``'s dtype.

    Keys and values are repeated for their heads, so that the gradients of these copies are rounded before their sum.
    """
    (_, S, H, _), (_, T, G, _) = q.shape, k.shape

    def per_head(values: Tensor | None) -> Tensor | None:
        return None if values is None else values.to(q.dtype).unsqueeze(1)

    piece = _Piece(
        at=(slice(None), slice(None), slice(None)),
        first=T - S,
        q=q.unsqueeze(3),
        k=k.repeat_interleave(H // G, 2),
        v=v.repeat_interleave(H // G, 2),
        alibi_slopes=per_head(None if alibi_slopes is None else alibi_slopes.detach()),
        bias=None if bias is None else bias.to(q.dtype).unsqueeze(2),
        sinks=per_head(sinks),
    )
    scores, _ = piece.scores(**more)
    if piece.sinks is not None:
        column = piece.sinks[:, :, None, None].expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, column], -1)
    # NaN would come back from the softmax of nothing, and reach gradients even where it is replaced afterwards
    blind = scores.isneginf().all(-1, keepdim=True)
    scores = scores.masked_fill(blind, 0.0)
    weights = torch.softmax(scores, -1).masked_fill(blind, 0.0)[..., :T]
    y = torch.einsum("bgrst,btge->bsgre", weights, piece.v).squeeze(3)
    if not return_lse:
        return y
    lse = torch.logsumexp(scores, -1).masked_fill(blind.squeeze(-1), -math.inf)
    return y, lse.squeeze(2).to(_wide_dtype(q))


def output_magnitudes(*tensors: Tensor, return_lse: bool = False, **more: Any) -> tuple[Tensor, ...]:
    """For ``out`` and, where it is returned, ``lse`` what float32's rounding errors are in proportion to."""
    return _magnitudes(*tensors, **more)[: 1 + return_lse]


def saved_magnitudes(*tensors: Tensor, return_lse: bool = False, **more: Any) -> tuple[Tensor]:
    """That for ``lse``."""
    del return_lse
    return (_magnitudes(*tensors, **more)[1],)


def _magnitudes(q: Tensor, k: Tensor, v: Tensor, **more: Any) -> tuple[Tensor, Tensor]:
    """What the rounding errors of ``out (B, S, H, E)`` and ``lse (B, H, S)`` are in proportion to.

    ``lse = top + log(total)`` moves with each score by its weight, and a score is a sum whose terms may cancel; so may
    the two summands. ``total`` is at least 1, because of the top score, and its rounding moves the logarithm by as much
    as 1 is rounded. ``out`` moves by a score's weight times how far the key's value is from ``out``: the root of the
    sum of squares, since scores are rounded independently.
    """
    (B, S, H, _), (_, _, G, E) = q.shape, v.shape
    of_out, of_lse = (q.new_zeros(shape, dtype=torch.float64) for shape in ((B, S, H, E), (B, H, S)))
    optional = (more.pop(name, None) for name in ("alibi_slopes", "bias", "sinks"))
    for piece in _pieces(q, k, v, *optional):
        b, g, s = piece.at
        found = _softmax(piece.scores(**more)[0], piece.sinks)
        summands = found.top.abs() + (found.lse - found.top).abs()
        moved = found.weights * piece.score_terms(more.get("scale"))
        _grouped(of_lse, 1, G)[b, g, :, s] = 1.0 + moved.sum(-1) + summands.masked_fill(found.lse.isneginf(), 0.0)
        mixed, moved_mixed, moved_squares = (
            torch.einsum("bgrst,btge->bsgre", weights, values)
            for weights, values in ((found.weights, piece.v), (moved**2, piece.v), (moved**2, piece.v**2))
        )
        apart = moved_squares - 2 * mixed * moved_mixed + mixed**2 * torch.einsum("bgrst->bsgr", moved**2).unsqueeze(-1)
        _grouped(of_out, 2, G)[b, s, g] = apart.clamp(min=0.0).sqrt()
    return of_out, of_lse

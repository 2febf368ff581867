"""``block_sparse_attention`` and its gradient: ``attention``'s formulas for one row of blocks after the other.

A row's keys and values are those of the blocks that its lists hold, zeros elsewhere: what is not listed reaches no
result, whatever it is. What of these a query does not see, a bias of -inf hides. Lists by blocks of keys say the same
as those by blocks of queries; here they are not needed.

``shown`` is what a call says about that beside its lists: ``mask``, ``window``, ``block``, and what the mask reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from portakernel.references import attention
from portakernel.tensors.block_lists import mapped, paired, visible
from portakernel.words.masks import BLOCKS, Mask, found_for

_OP = "block_sparse_attention"
_Pair = tuple[Tensor | None, Tensor | None]
# Gradients of what is made of integers.
_OF_LISTS: tuple[None, ...] = (None,) * 7
_OF_LISTS_BY_KEYS: tuple[None, ...] = (None,) * 4


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of blocks: its ``queries``, and what ``attention`` is given for them, with a key head for each head."""

    queries: slice
    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor


@dataclass(frozen=True, slots=True)
class _Lists:
    """What a call says about which keys a query sees; lists as counts and indices."""

    partial: tuple[Tensor, Tensor] | None
    full: tuple[Tensor, Tensor] | None
    aux: Mapping[str, Tensor | None]
    mask: Mask
    window: tuple[int, int]
    block: tuple[int, int]

    @classmethod
    def of(
        cls,
        partial: _Pair,
        full: _Pair,
        *,
        query_ids: Tensor | None = None,
        key_ids: Tensor | None = None,
        prefix: Tensor | None = None,
        mask: str = "none",
        window: tuple[int, int] = (-1, -1),
        block: str = "128x128",
        **by_keys: Tensor | None,
    ) -> _Lists:
        """Raises ArgumentValueError where the mask reads what is not given, or what is given is not read."""
        for name in ("q_partial", "q_full"):
            paired(_OP, name, by_keys.get(f"{name}_count"), by_keys.get(f"{name}_index"))
        aux = {"query_ids": query_ids, "key_ids": key_ids, "prefix": prefix}
        known = found_for(_OP, mask, aux)
        listed, whole = paired(_OP, "partial", *partial), paired(_OP, "full", *full)
        return cls(listed, whole, aux, known, window, BLOCKS[block])

    def rows(self, q: Tensor, k: Tensor, v: Tensor, dtype: torch.dtype) -> Iterator[_Row]:
        """Every row of blocks, its keys and values ``(B, T, H, ...)`` and its bias ``(B, H, s, T)`` in ``dtype``."""
        (B, S, H, _), (_, T, G, _) = q.shape, k.shape
        rows, columns = self.block
        keys = torch.arange(T, device=q.device)
        k, v = (x.to(dtype).repeat_interleave(H // G, 2) for x in (k, v))
        for row, first in enumerate(range(0, S, rows)):
            queries = slice(first, min(first + rows, S))
            partial, full = (
                _listed(pair, row, (B, H, -(-T // columns)), q.device).repeat_interleave(columns, -1)[..., :T]
                for pair in (self.partial, self.full)
            )
            numbers = torch.arange(queries.start, queries.stop, device=q.device)
            sees = visible(self.mask, numbers, keys, T - S, self.window, B, H, self.aux)
            sees = (partial.unsqueeze(2) & sees) | full.unsqueeze(2)
            bias = torch.zeros(sees.shape, dtype=dtype, device=q.device).masked_fill(~sees, -torch.inf)
            dead = ~(partial | full).transpose(1, 2).unsqueeze(-1)
            yield _Row(queries, q[:, queries].to(dtype), k.masked_fill(dead, 0.0), v.masked_fill(dead, 0.0), bias)


def _listed(pair: tuple[Tensor, Tensor] | None, row: int, shape: tuple[int, int, int], device: torch.device) -> Tensor:
    """Which blocks of keys a row's list holds."""
    if pair is None:
        return torch.zeros(shape, dtype=torch.bool, device=device)
    count, index = pair
    return mapped(count[:, :, row], index[:, :, row], shape[-1])


def _wide(q: Tensor) -> torch.dtype:
    return torch.promote_types(q.dtype, torch.float32)


def _joined(parts: list[Tensor], dim: int, nothing: Tensor) -> Tensor:
    return torch.cat(parts, dim) if parts else nothing


def _of_key_heads(gradient: Tensor, key_heads: int) -> Tensor:
    """The sums over the heads of each key head."""
    B, T, H, width = gradient.shape
    return gradient.reshape(B, T, key_heads, H // key_heads, width).sum(3)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    partial_count: Tensor,
    partial_index: Tensor,
    full_count: Tensor | None = None,
    full_index: Tensor | None = None,
    *,
    sinks: Tensor | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    return_lse: bool = False,
    out: Tensor | tuple[Tensor, ...] | None = None,
    save: bool = False,
    **shown: Any,
) -> Tensor | tuple[Tensor, ...]:
    """``out (B, S, H, E)``, rounded once; ``lse (B, H, S)`` too where it is returned, and once more when ``save``."""
    (B, S, H, _), E = q.shape, v.shape[3]
    lists = _Lists.of((partial_count, partial_index), (full_count, full_index), **shown)
    given = out if isinstance(out, tuple) else (out,)
    y = q.new_empty((B, S, H, E)) if given[0] is None else given[0]
    lse = given[1] if return_lse and len(given) > 1 else q.new_empty((B, H, S), dtype=_wide(q))
    for row in lists.rows(q, k, v, _wide(q)) if H else ():
        into = (y[:, row.queries], lse[:, :, row.queries])
        more: dict[str, Any] = {"bias": row.bias, "sinks": sinks, "scale": scale, "softcap": softcap}
        attention.forward(row.q, row.k, row.v, return_lse=True, out=into, **more)
    if save:
        return (y, lse, lse.clone()) if return_lse else (y, lse)
    fresh = (y, lse) if return_lse else y
    return fresh if out is None else out


def backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    partial_count: Tensor,
    partial_index: Tensor,
    full_count: Tensor | None,
    full_index: Tensor | None,
    query_ids: Tensor | None,
    key_ids: Tensor | None,
    prefix: Tensor | None,
    sinks: Tensor | None,
    *by_keys_and_results: Tensor | None,
    scale: float | None = None,
    softcap: float = 0.0,
    return_lse: bool = False,
    needs: tuple[bool, ...] = (True,) * 15,
    **shown: Any,
) -> tuple[Tensor | None, ...]:
    """Gradients for ``q``, ``k``, ``v`` and ``sinks`` from that of ``out``; None for all else."""
    del return_lse
    out = by_keys_and_results[-2]
    shown |= {"query_ids": query_ids, "key_ids": key_ids, "prefix": prefix}
    lists = _Lists.of((partial_count, partial_index), (full_count, full_index), **shown)
    G, wide = k.shape[2], _wide(q)
    of_q, of_k, of_v = list[Tensor](), k.new_zeros(k.shape, dtype=wide), v.new_zeros(v.shape, dtype=wide)
    wide_sinks = None if sinks is None else sinks.to(wide)
    of_sinks = None if wide_sinks is None else wide_sinks.new_zeros(wide_sinks.shape)
    asked = (True, True, True, False, False, True)
    for row in lists.rows(q, k, v, wide) if q.shape[2] else ():
        given: Any = (row.q, row.k, row.v, None, row.bias, wide_sinks, out, None)
        found: Any = attention.backward(
            grad_out[:, row.queries].to(wide), *given, scale=scale, softcap=softcap, needs=asked
        )
        of_q.append(found[0])
        of_k, of_v = (total + _of_key_heads(part, G) for total, part in zip((of_k, of_v), found[1:3], strict=True))
        of_sinks = None if of_sinks is None else of_sinks + found[5]
    grad_sinks = None if of_sinks is None or sinks is None else of_sinks.to(sinks.dtype)
    grads = (_joined(of_q, 1, q.new_zeros(q.shape)).to(q.dtype), of_k.to(k.dtype), of_v.to(v.dtype))
    found = (*grads, *_OF_LISTS, grad_sinks, *_OF_LISTS_BY_KEYS)
    return tuple(gradient if needed else None for gradient, needed in zip(found, needs, strict=True))


def gradient_roundings(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    partial_count: Tensor,
    partial_index: Tensor,
    full_count: Tensor | None,
    full_index: Tensor | None,
    query_ids: Tensor | None,
    key_ids: Tensor | None,
    prefix: Tensor | None,
    sinks: Tensor | None,
    *by_keys_and_results: Tensor | None,
    single: float,
    scale: float | None = None,
    softcap: float = 0.0,
    return_lse: bool = False,
    **shown: Any,
) -> tuple[Tensor | None, ...]:
    """What rounding errors of the gradients are in proportion to: the roots of summed squares, as for ``attention``."""
    del return_lse
    out: Any = by_keys_and_results[-2]
    shown |= {"query_ids": query_ids, "key_ids": key_ids, "prefix": prefix}
    lists = _Lists.of((partial_count, partial_index), (full_count, full_index), **shown)
    of_q, of_k, of_v = list[Tensor](), *(torch.zeros_like(x, dtype=torch.float64) for x in (k, v))
    of_sinks = None if sinks is None else torch.zeros_like(sinks, dtype=torch.float64)
    for row in lists.rows(q, k, v, torch.float64):
        given: Any = (row.q, row.k, row.v, None, row.bias, sinks, out[:, row.queries], None)
        found: Any = attention.gradient_roundings(
            grad_out[:, row.queries], *given, single=single, scale=scale, softcap=softcap
        )
        of_q.append(found[0])
        of_k, of_v = (
            total + _of_key_heads(part.square(), k.shape[2])
            for total, part in zip((of_k, of_v), found[1:3], strict=True)
        )
        of_sinks = None if of_sinks is None else of_sinks + found[5].square()
    joined = _joined(of_q, 1, q.new_zeros(q.shape, dtype=torch.float64))
    grad_sinks = None if of_sinks is None else of_sinks.sqrt()
    return (joined, of_k.sqrt(), of_v.sqrt(), *_OF_LISTS, grad_sinks, *_OF_LISTS_BY_KEYS)


def plain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    partial_count: Tensor,
    partial_index: Tensor,
    full_count: Tensor | None = None,
    full_index: Tensor | None = None,
    *,
    return_lse: bool = False,
    sinks: Tensor | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    **shown: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """``attention.plain`` of each row of blocks, in the dtype of ``q``."""
    lists = _Lists.of((partial_count, partial_index), (full_count, full_index), **shown)
    more: dict[str, Any] = {"sinks": sinks, "scale": scale, "softcap": softcap}
    found = [
        attention.plain(row.q, row.k, row.v, bias=row.bias, return_lse=True, **more)
        for row in lists.rows(q, k, v, q.dtype)
    ]
    (B, S, H, _), E = q.shape, v.shape[3]
    nothing = q.new_zeros((B, S, H, E)) * (q.sum() + k.sum() + v.sum())  # what has no elements has gradients too
    y = _joined([part for part, _ in found], 1, nothing)
    lse = _joined([sums for _, sums in found], 2, q.new_zeros((B, H, S), dtype=_wide(q)))
    return (y, lse) if return_lse else y


def output_magnitudes(*tensors: Tensor, return_lse: bool = False, **more: Any) -> tuple[Tensor, ...]:
    """For ``out`` and, where it is returned, ``lse`` what float32's rounding errors are in proportion to."""
    return _magnitudes(*tensors, **more)[: 1 + return_lse]


def saved_magnitudes(*tensors: Tensor, return_lse: bool = False, **more: Any) -> tuple[Tensor]:
    """That for ``lse``."""
    del return_lse
    return (_magnitudes(*tensors, **more)[1],)


def _magnitudes(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    partial_count: Tensor,
    partial_index: Tensor,
    full_count: Tensor | None = None,
    full_index: Tensor | None = None,
    *,
    sinks: Tensor | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    **shown: Any,
) -> tuple[Tensor, Tensor]:
    """``attention``'s for each row of blocks."""
    lists = _Lists.of((partial_count, partial_index), (full_count, full_index), **shown)
    more: dict[str, Any] = {"sinks": sinks, "scale": scale, "softcap": softcap}
    found = [
        attention.output_magnitudes(row.q, row.k, row.v, bias=row.bias, return_lse=True, **more)
        for row in lists.rows(q, k, v, torch.float64)
    ]
    (B, S, H, _), E = q.shape, v.shape[3]
    of_out = _joined([part for part, _ in found], 1, q.new_zeros((B, S, H, E), dtype=torch.float64))
    return of_out, _joined([sums for _, sums in found], 2, q.new_zeros((B, H, S), dtype=torch.float64))

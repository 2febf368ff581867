"""``paged_attention`` as a formula: ``attention`` of one sequence after the other, over the keys that its pages hold.

Reading lengths and pages waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from portakernel.errors import ArgumentValueError
from portakernel.references import attention
from portakernel.tensors.index_values import check_indices, sequence_ends

_OP = "paged_attention"


@dataclass(frozen=True, slots=True)
class _Cache:
    """Keys or values in pages: ``rows (NP, P, G, D)``, and what they are multiplied by."""

    rows: Tensor
    scale: Tensor | None
    kv_scales: str

    def gathered(self, pages: Tensor, length: int, dtype: torch.dtype) -> Tensor:
        """The ``length`` rows of a sequence whose pages these are, as a batch of one."""
        found = _listed(self.rows, pages, length).to(dtype)
        if self.scale is not None:
            scale = _listed(self.scale, pages, length) if self.kv_scales == "token_head" else self.scale
            found = found * scale.to(dtype).unsqueeze(-1)
        return found.unsqueeze(0)


def _listed(paged: Tensor, pages: Tensor, length: int) -> Tensor:
    return paged[pages].flatten(0, 1)[:length]


@dataclass(frozen=True, slots=True)
class _Sequence:
    """Where a sequence has its queries, and its keys and values ``(1, T, G, D)``."""

    queries: slice
    k: Tensor
    v: Tensor


def _sequences(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    kv_scales: str,
    dtype: torch.dtype,
) -> Iterator[_Sequence]:
    """Each sequence, its keys and values multiplied by their scales in ``dtype``.

    Raises:
        ArgumentValueError: scales are not given as ``kv_scales`` says, ends fall, or a length has no room.
        IndexOutOfRangeError: a page that a length reaches is none.
    """
    for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
        if (scale is None) != (kv_scales == "none"):
            found = "is given" if scale is not None else "is missing"
            need = "both scales go with kv_scales='tensor', 'head' or 'token_head', and none with 'none'"
            raise ArgumentValueError(f"{_OP}: {name} {found} with kv_scales={kv_scales!r}; {need}")
    pages, page = key_cache.shape[:2]
    keys, values = _Cache(key_cache, k_scale, kv_scales), _Cache(value_cache, v_scale, kv_scales)
    ends = sequence_ends(_OP, "query_start_loc", query_start_loc, q.shape[0], "S")
    for n, length in enumerate(seq_lens.tolist()):
        if not 0 <= length <= block_table.shape[1] * page:
            room = f"W*P = {block_table.shape[1] * page}"
            raise ArgumentValueError(f"{_OP}: seq_lens[{n}] is {length}; it must be in [0, W*P] with {room}")
        reached = block_table[n, : -(-length // page)].long()
        check_indices(_OP, f"block_table[{n}]", reached, pages, "NP")
        k, v = keys.gathered(reached, length, dtype), values.gathered(reached, length, dtype)
        yield _Sequence(slice(ends[n], ends[n + 1]), k, v)


def _of_a_batch(tensor: Tensor, queries: slice) -> Tensor:
    return tensor[queries].unsqueeze(0)


def forward(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    *,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    kv_scales: str = "none",
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    return_lse: bool = False,
    out: Tensor | tuple[Tensor, ...] | None = None,
    **more: Any,
) -> Tensor | tuple[Tensor, ...]:
    """``out (S, H, E)``, rounded once; ``lse (H, S)`` too where it is returned. ``more`` is as for ``attention``.

    Rows that belong to no sequence are zeros.
    """
    del max_seqlen_q, max_seqlen_k
    (S, H, _), E = q.shape, value_cache.shape[-1]
    wide = torch.promote_types(q.dtype, torch.float32)
    given = out if isinstance(out, tuple) else (out,)
    y = q.new_empty((S, H, E)) if given[0] is None else given[0]
    lse = given[1] if return_lse and len(given) > 1 else q.new_empty((H, S), dtype=wide)
    y.zero_(), lse.fill_(-torch.inf)
    cache = (key_cache, value_cache, block_table, seq_lens, query_start_loc, k_scale, v_scale)
    for found in _sequences(q, *cache, kv_scales, wide):
        into = (_of_a_batch(y, found.queries), lse[:, found.queries].unsqueeze(0))
        attention.forward(_of_a_batch(q, found.queries), found.k, found.v, return_lse=True, out=into, **more)
    fresh = (y, lse) if return_lse else y
    return fresh if out is None else out


def plain(
    q: Tensor,
    *cache: Tensor,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    kv_scales: str = "none",
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    return_lse: bool = False,
    **more: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """``attention.plain`` for each sequence, its keys and values in the dtype of ``q``."""
    del max_seqlen_q, max_seqlen_k
    y, lse = q.new_zeros((*q.shape[:2], cache[1].shape[-1])), q.new_full((q.shape[1], q.shape[0]), -torch.inf)
    for found in _sequences(q, *cache, k_scale, v_scale, kv_scales, q.dtype):
        batch = _of_a_batch(q, found.queries)
        part, sums = attention.plain(batch, found.k, found.v, return_lse=True, **more)
        y[found.queries], lse[:, found.queries] = part.squeeze(0), sums.squeeze(0).to(lse.dtype)
    return (y, lse) if return_lse else y


def output_magnitudes(
    q: Tensor,
    *cache: Tensor,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    kv_scales: str = "none",
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    return_lse: bool = False,
    **more: Any,
) -> tuple[Tensor, ...]:
    """For ``out`` and, where it is returned, ``lse`` what float32's rounding errors are in proportion to."""
    del max_seqlen_q, max_seqlen_k
    of_out = q.new_zeros((*q.shape[:2], cache[1].shape[-1]), dtype=torch.float64)
    of_lse = q.new_ones((q.shape[1], q.shape[0]), dtype=torch.float64)
    for found in _sequences(q, *cache, k_scale, v_scale, kv_scales, torch.float64):
        batch = _of_a_batch(q, found.queries)
        out, lse = attention.output_magnitudes(batch, found.k, found.v, return_lse=True, **more)
        of_out[found.queries], of_lse[:, found.queries] = out.squeeze(0), lse.squeeze(0)
    return (of_out, of_lse)[: 1 + return_lse]

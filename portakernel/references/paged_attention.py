"""``paged_attention`` as a formula: ``attention`` of one sequence after the other, over the keys that its pages hold.

Reading lengths and pages waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from portakernel.errors import ArgumentValueError
from portakernel.references import attention
from portakernel.references.paged_sequences import PagedSequence, PagedSequences, without_autocast

_OP = "paged_attention"


class _Sequence(NamedTuple):
    """Where a sequence has its queries, and its keys and values ``(1, T, G, D)``."""

    queries: slice
    k: Tensor
    v: Tensor


class _Paged(NamedTuple):
    """A call's caches ``(NP, P, G, D)``, what says which rows are whose, and what they are multiplied by."""

    key_cache: Tensor
    value_cache: Tensor
    block_table: Tensor
    seq_lens: Tensor
    query_start_loc: Tensor
    k_scale: Tensor | None
    v_scale: Tensor | None
    kv_scales: str

    def sequences(self, rows: int, dtype: torch.dtype, window: tuple[int, int]) -> Iterator[_Sequence]:
        """Each sequence of ``rows`` queries in all, its keys and values multiplied by their scales in ``dtype``.

        Raises:
            ArgumentValueError: scales are not given as ``kv_scales`` says, ends fall, or a length has no room.
            IndexOutOfRangeError: a page that a length reaches is none.
        """
        self._check_scales()
        sequences = PagedSequences(_OP, self.block_table, self.seq_lens, self.query_start_loc, window)
        for sequence in sequences.of(self.key_cache, rows):
            k = self._gathered(self.key_cache, self.k_scale, sequence, dtype)
            v = self._gathered(self.value_cache, self.v_scale, sequence, dtype)
            yield _Sequence(sequence.queries, k, v)

    def _gathered(self, cache: Tensor, scale: Tensor | None, sequence: PagedSequence, dtype: torch.dtype) -> Tensor:
        """A sequence's rows as a batch of one."""
        found = sequence.rows_of(cache).to(dtype)
        if scale is not None:
            of_rows = sequence.rows_of(scale) if self.kv_scales == "token_head" else scale
            found = found * of_rows.to(dtype).unsqueeze(-1)
        return found.unsqueeze(0)

    def _check_scales(self) -> None:
        for name, scale in (("k_scale", self.k_scale), ("v_scale", self.v_scale)):
            if (scale is None) != (self.kv_scales == "none"):
                found = "is given" if scale is not None else "is missing"
                need = "both scales go with kv_scales='tensor', 'head' or 'token_head', and none with 'none'"
                raise ArgumentValueError(f"{_OP}: {name} {found} with kv_scales={self.kv_scales!r}; {need}")


def _batch(tensor: Tensor, queries: slice) -> Tensor:
    """One sequence's as a batch of one."""
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
    causal: bool = True,
    window: tuple[int, int] = (-1, -1),
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
    y.zero_()
    lse.fill_(-torch.inf)
    paged = _Paged(key_cache, value_cache, block_table, seq_lens, query_start_loc, k_scale, v_scale, kv_scales)
    with without_autocast(q.device.type):
        for queries, k, v in paged.sequences(S, wide, window):
            into = (_batch(y, queries), lse[:, queries].unsqueeze(0))
            attention.forward(_batch(q, queries), k, v, causal=causal, window=window, return_lse=True, out=into, **more)
    fresh = (y, lse) if return_lse else y
    return fresh if out is None else out


def plain(
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
    window: tuple[int, int] = (-1, -1),
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    return_lse: bool = False,
    **more: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """``attention.plain`` for each sequence, its keys and values in the dtype of ``q``."""
    del max_seqlen_q, max_seqlen_k
    (S, H, _), E = q.shape, value_cache.shape[-1]
    y, lse = q.new_zeros((S, H, E)), q.new_full((H, S), -torch.inf)
    paged = _Paged(key_cache, value_cache, block_table, seq_lens, query_start_loc, k_scale, v_scale, kv_scales)
    for queries, k, v in paged.sequences(S, q.dtype, window):
        part, sums = attention.plain(_batch(q, queries), k, v, window=window, return_lse=True, **more)
        y[queries], lse[:, queries] = part.squeeze(0), sums.squeeze(0).to(lse.dtype)
    return (y, lse) if return_lse else y


def output_magnitudes(
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
    window: tuple[int, int] = (-1, -1),
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    return_lse: bool = False,
    **more: Any,
) -> tuple[Tensor, ...]:
    """For ``out`` and, where it is returned, ``lse`` what float32's rounding errors are in proportion to."""
    del max_seqlen_q, max_seqlen_k
    (S, H, _), E = q.shape, value_cache.shape[-1]
    of_out, of_lse = (q.new_zeros(shape, dtype=torch.float64) for shape in ((S, H, E), (H, S)))
    paged = _Paged(key_cache, value_cache, block_table, seq_lens, query_start_loc, k_scale, v_scale, kv_scales)
    for queries, k, v in paged.sequences(S, torch.float64, window):
        out, lse = attention.output_magnitudes(_batch(q, queries), k, v, window=window, return_lse=True, **more)
        of_out[queries], of_lse[:, queries] = out.squeeze(0), lse.squeeze(0)
    return (of_out, of_lse)[: 1 + return_lse]

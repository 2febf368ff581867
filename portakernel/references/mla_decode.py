"""``mla_decode`` as a formula: ``attention`` of one sequence after the other, all of whose heads share one key.

That key is a token's latent vector and its rotary part, one behind the other, and the value is the latent vector.
Reading lengths and pages waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from portakernel.references import attention
from portakernel.references.paged_sequences import PagedSequences, without_autocast


class _Sequence(NamedTuple):
    """A sequence's queries ``(1, s, H, C+R)`` and where they stand, its keys ``(1, T, 1, C+R)`` and values."""

    at: slice
    q: Tensor
    k: Tensor
    v: Tensor


class _Latent(NamedTuple):
    """A call's queries and caches, what the caches are multiplied by, and what says which rows are whose."""

    latent_scale: Tensor | None
    q_latent: Tensor
    q_rope: Tensor
    latent_cache: Tensor
    rope_cache: Tensor
    block_table: Tensor
    seq_lens: Tensor
    query_start_loc: Tensor

    def sequences(self, dtype: torch.dtype, window: tuple[int, int]) -> Iterator[_Sequence]:
        """Each sequence, its keys and values multiplied by their scale in ``dtype``.

        Raises:
            ArgumentValueError: ends fall, or a length has no room.
            IndexOutOfRangeError: a page that a length reaches is none.
        """
        sequences = PagedSequences("mla_decode", self.block_table, self.seq_lens, self.query_start_loc, window)
        for sequence in sequences.of(self.latent_cache, len(self.q_latent)):
            caches = (self.latent_cache, self.rope_cache)
            latent, rope = (sequence.rows_of(cache).to(dtype)[None, :, None] for cache in caches)
            if self.latent_scale is not None:
                latent, rope = (rows * self.latent_scale.to(dtype) for rows in (latent, rope))
            at = sequence.queries
            q = torch.cat([self.q_latent[at], self.q_rope[at]], -1).unsqueeze(0)
            yield _Sequence(at, q, torch.cat([latent, rope], -1), latent)

    def results(self, dtype: torch.dtype, of_lse: torch.dtype, beginning: float) -> tuple[Tensor, Tensor]:
        """Memory for ``out`` of zeros and ``lse`` of ``beginning``, which rows of no sequence keep."""
        S, H, _ = self.q_latent.shape
        y = self.q_latent.new_zeros(self.q_latent.shape, dtype=dtype)
        return y, self.q_latent.new_full((H, S), beginning, dtype=of_lse)


def forward(
    *tensors: Tensor,
    latent_scale: Tensor | None = None,
    causal: bool = True,
    window: tuple[int, int] = (-1, -1),
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    return_lse: bool = False,
    out: Tensor | tuple[Tensor, ...] | None = None,
    **more: Any,
) -> Tensor | tuple[Tensor, ...]:
    """``out (S, H, C)``, rounded once; ``lse (H, S)`` too where it is returned.

    ``tensors`` are those that the op has by position, and ``more`` is as for ``attention``. Rows that belong to no
    sequence are zeros.
    """
    del max_seqlen_q, max_seqlen_k
    latent = _Latent(latent_scale, *tensors)
    wide = torch.promote_types(latent.q_latent.dtype, torch.float32)
    y, lse = latent.results(latent.q_latent.dtype, wide, -torch.inf)
    if isinstance(out, tuple):
        y, lse = out[0].zero_(), out[1].fill_(-torch.inf)
    elif out is not None:
        y = out.zero_()
    with without_autocast(latent.q_latent.device.type):
        for at, q, k, v in latent.sequences(wide, window):
            into = (y[at].unsqueeze(0), lse[:, at].unsqueeze(0))
            attention.forward(q, k, v, causal=causal, window=window, return_lse=True, out=into, **more)
    fresh = (y, lse) if return_lse else y
    return fresh if out is None else out


def plain(
    *tensors: Tensor,
    latent_scale: Tensor | None = None,
    causal: bool = True,
    window: tuple[int, int] = (-1, -1),
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    return_lse: bool = False,
    **more: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """``attention.plain`` for each sequence, its keys and values in the dtype of the queries."""
    del max_seqlen_q, max_seqlen_k
    latent = _Latent(latent_scale, *tensors)
    dtype = latent.q_latent.dtype
    y, lse = latent.results(dtype, dtype, -torch.inf)
    for at, q, k, v in latent.sequences(dtype, window):
        part, sums = attention.plain(q, k, v, causal=causal, window=window, return_lse=True, **more)
        y[at], lse[:, at] = part.squeeze(0), sums.squeeze(0).to(dtype)
    return (y, lse) if return_lse else y


def output_magnitudes(
    *tensors: Tensor,
    latent_scale: Tensor | None = None,
    causal: bool = True,
    window: tuple[int, int] = (-1, -1),
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    return_lse: bool = False,
    **more: Any,
) -> tuple[Tensor, ...]:
    """For ``out`` and, where it is returned, ``lse`` what float32's rounding errors are in proportion to."""
    del max_seqlen_q, max_seqlen_k
    latent = _Latent(latent_scale, *tensors)
    of_out, of_lse = latent.results(torch.float64, torch.float64, 0.0)
    for at, q, k, v in latent.sequences(torch.float64, window):
        out, lse = attention.output_magnitudes(q, k, v, causal=causal, window=window, return_lse=True, **more)
        of_out[at], of_lse[:, at] = out.squeeze(0), lse.squeeze(0)
    return (of_out, of_lse)[: 1 + return_lse]

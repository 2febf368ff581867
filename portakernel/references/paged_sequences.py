"""Sequences whose tokens lie in pages, as references go through them: the queries of each, and the rows of its tokens.

Reading lengths and pages waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from portakernel.errors import ArgumentValueError
from portakernel.tensors.index_values import check_indices, sequence_ends


class PagedSequence(NamedTuple):
    """Where a sequence has its queries, which pages hold its ``length`` tokens, and how many come too early for all."""

    queries: slice
    pages: Tensor
    length: int
    unseen: int

    def rows_of(self, cache: Tensor) -> Tensor:
        """Its tokens' rows ``(length, ...)`` of a cache ``(NP, P, ...)``: zeros for those that no query sees."""
        rows = cache[self.pages].flatten(0, 1)[: self.length]
        rows[: self.unseen] = 0
        return rows


class PagedSequences(NamedTuple):
    """What a call of ``op`` says of its sequences: table ``(B, W)``, lengths ``(B,)``, ends of queries ``(B+1,)``.

    Of keys before a ``window`` of the first query no query sees any; behind the last one, which stands at the last
    token, there are none.
    """

    op: str
    block_table: Tensor
    seq_lens: Tensor
    query_start_loc: Tensor
    window: tuple[int, int]

    def of(self, cache: Tensor, rows: int) -> Iterator[PagedSequence]:
        """Each of them, with ``rows`` queries in all, over pages like those of ``cache (NP, P, ...)``.

        Raises:
            ArgumentValueError: ends fall, or a length has no room.
            IndexOutOfRangeError: a page that a length reaches is none.
        """
        pages, page = cache.shape[:2]
        room = self.block_table.shape[1] * page
        ends = sequence_ends(self.op, "query_start_loc", self.query_start_loc, rows, "S")
        for n, length in enumerate(self.seq_lens.tolist()):
            if not 0 <= length <= room:
                text = f"seq_lens[{n}] is {length}; it must be in [0, W*P] with W*P = {room}"
                raise ArgumentValueError(f"{self.op}: {text}")
            reached = self.block_table[n, : -(-length // page)].long()
            check_indices(self.op, f"block_table[{n}]", reached, pages, "NP")
            first = length - (ends[n + 1] - ends[n]) - self.window[0] if self.window[0] >= 0 else 0
            yield PagedSequence(slice(ends[n], ends[n + 1]), reached, length, max(first, 0))


def without_autocast(device: str) -> AbstractContextManager[Any]:
    """Where products keep float32: an op keeps the dtypes of its arguments, of which a whole cache is one."""
    known = torch.amp.is_autocast_available(device)
    return torch.autocast(device, enabled=False) if known else nullcontext()

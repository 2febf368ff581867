"""Plans of FlashInfer's wrappers for paged attention, which it makes of lengths on the host, and when they are kept.

To read lengths waits for the device. A plan is kept for as long as calls come with the same three tensors, of which
torch says that nobody has written to them since; those of ``torch.inference_mode``, of which it says nothing, are
planned for each time. What a replayed graph, or a kernel behind torch's back, writes into them is not seen: only the
wait would see it.

FlashInfer is asked for queries that see a key, and no others: where a causal sequence has more queries than keys, it
numbers its tiles from below 0, in numbers that have no sign.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from portakernel.authoring.host import make_lock
from portakernel.authoring.tensors import sequence_ends, to_csr

# What the parts of split sequences give until they are merged; FlashInfer recommends half of it, and raises beyond.
_WORKSPACE_BYTES = 256 << 20
# Plans that are kept for a stream: each has 8 MiB of the device's memory, and of the host's.
_KEPT = 4


class Told(NamedTuple):
    """A call's tensors that say which rows are whose."""

    block_table: Tensor
    seq_lens: Tensor
    query_start_loc: Tensor


class Seeing(NamedTuple):
    """Sequences with queries that see a key: the ends of queries and pages, pages, keys; on the host but for pages."""

    starts: Tensor
    indptr: Tensor
    indices: Tensor
    lengths: Tensor


class Form(Protocol):
    """What a plan is made for beside lengths, equal where it may serve; makes a wrapper with a plan."""

    @property
    def op(self) -> str:
        """Whose call it is."""
        ...

    @property
    def P(self) -> int:  # noqa: N802 - the contract's letter
        """The tokens of a page."""
        ...

    @property
    def causal(self) -> bool:
        """Whether keys behind a query's position are hidden from it."""
        ...

    def wrapper(self, seeing: Seeing, workspace: Tensor) -> Any:
        """A wrapper that may run for these sequences."""
        ...


class Plan(NamedTuple):
    """A wrapper that may run, None where no query sees a key; ``rows``: which queries do, None where all of them do."""

    wrapper: Any
    rows: Tensor | None


@dataclass(frozen=True, slots=True)
class _Kept:
    """A plan and what it was made of; without ``told`` it serves nobody, but is not let go while it is under way."""

    plan: Plan
    form: Form
    queries: int
    told: tuple[tuple[weakref.ref[Tensor], int], ...]

    def serves(self, form: Form, told: Told, queries: int) -> bool:
        if not self.told or (form, queries) != (self.form, self.queries):
            return False
        return all(known() is x and x._version == at for (known, at), x in zip(self.told, told, strict=True))


def planned(form: Form, told: Told, queries: int) -> Plan:
    """A plan for a call of so many queries on the current stream: one that is kept, or a new one."""
    device = told.seq_lens.device
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    kept = _kept(device, stream)
    with _lock():
        for place, known in enumerate(kept):
            if known.serves(form, told, queries):
                kept.append(kept.pop(place))
                return known.plan
        seeing, rows = _seeing(form, told, queries)
        plan = Plan(None if seeing is None else form.wrapper(seeing, _workspace(device, stream)), rows)
        versions = () if any(x.is_inference() for x in told) else tuple((weakref.ref(x), x._version) for x in told)
        kept.append(_Kept(plan, form, queries, versions))
        del kept[:-_KEPT]
        return plan


def _seeing(form: Form, told: Told, queries: int) -> tuple[Seeing | None, Tensor | None]:
    """Who sees a key, and which rows of ``queries`` that are: None where all of them do, or none."""
    lengths: list[int] = told.seq_lens.tolist()
    ends = sequence_ends(form.op, "query_start_loc", told.query_start_loc, queries, "S")
    counts = [
        min(end - begin, length) if form.causal else (end - begin) * (length > 0)
        for (begin, end), length in zip(pairwise(ends), lengths, strict=True)
    ]
    live = [n for n, count in enumerate(counts) if count]
    if not live:
        return None, None
    device = told.seq_lens.device
    rows = None
    if sum(counts) < queries:  # the last ones of each sequence see keys
        rows = torch.tensor([*chain.from_iterable(range(ends[n + 1] - counts[n], ends[n + 1]) for n in live)]).to(
            device
        )
    table, of_table = told.block_table, told.seq_lens
    if len(live) < len(lengths):
        picked = torch.tensor(live, device=device)
        table, of_table = table[picked], of_table[picked]
    pages = [-(-lengths[n] // form.P) for n in live]
    keys = torch.tensor([lengths[n] for n in live], dtype=torch.int32)
    indices = to_csr(table, of_table, form.P).indices
    return Seeing(_ends([counts[n] for n in live]), _ends(pages), indices, keys), rows


def _ends(counts: Sequence[int]) -> Tensor:
    return torch.tensor([0, *accumulate(counts)], dtype=torch.int32)


@functools.cache
def _kept(device: torch.device, stream: int) -> list[_Kept]:
    del device, stream  # each has its own, the one that was used last at the end
    return []


@functools.cache
def _workspace(device: torch.device, stream: int) -> Tensor:
    """What a run needs between its launches; those of a stream follow each other. Zeros at first."""
    del stream
    return torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)


@functools.cache
def _lock() -> Any:
    return make_lock()

"""Plans of FlashInfer's wrappers for paged attention, which it makes of lengths on the host, and when they are kept.

To read lengths waits for the device. A plan is kept for as long as calls come with the same three tensors, of which
torch says that nobody has written to them since; those of ``torch.inference_mode``, of which it says nothing, are
planned for each time. What a kernel writes into them behind torch's back is not seen: only the wait would see it.

FlashInfer is asked for queries that see a key, and no others: where a causal sequence has more queries than keys, it
numbers its tiles from below 0, in numbers that have no sign.
"""
# pyright: reportMissingImports=false
# FlashInfer is an optional requirement.

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from flashinfer.decode import BatchDecodeWithPagedKVCacheWrapper
from flashinfer.prefill import BatchPrefillWithPagedKVCacheWrapper
from torch import Tensor

from portakernel.authoring.host import make_lock
from portakernel.authoring.tensors import announce_once, sequence_ends, to_csr

Backend: TypeAlias = Literal["fa2", "fa3"]

# What the parts of split sequences give until they are merged; FlashInfer recommends half of it, and raises beyond.
_WORKSPACE_BYTES = 256 << 20
# Plans that are kept for a stream: each has 8 MiB of the device's memory, and of the host's.
_KEPT = 4
# Heads of so many queries each share a key head: from there on FlashInfer's matrix units are ahead of its other kernel.
_SHARED = 4


class Form(NamedTuple):
    """What a plan is made for beside lengths; ``alike``: keys and values have the same strides."""

    backend: Backend
    H: int
    G: int
    D: int
    P: int
    causal: bool
    scale: float
    softcap: float
    q_dtype: torch.dtype
    cache_dtype: torch.dtype
    alike: bool


class Told(NamedTuple):
    """A call's tensors that say which rows are whose."""

    block_table: Tensor
    seq_lens: Tensor
    query_start_loc: Tensor


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
        plan = _planned(form, told, queries, stream)
        versions = () if any(x.is_inference() for x in told) else tuple((weakref.ref(x), x._version) for x in told)
        kept.append(_Kept(plan, form, queries, versions))
        del kept[:-_KEPT]
        return plan


def _planned(form: Form, told: Told, queries: int, stream: int) -> Plan:
    lengths: list[int] = told.seq_lens.tolist()
    ends = sequence_ends("paged_attention", "query_start_loc", told.query_start_loc, queries, "S")
    seeing = [
        min(end - begin, length) if form.causal else (end - begin) * (length > 0)
        for (begin, end), length in zip(pairwise(ends), lengths, strict=True)
    ]
    live = [n for n, count in enumerate(seeing) if count]
    if not live:
        return Plan(None, None)
    device = told.seq_lens.device
    rows = None
    if sum(seeing) < queries:  # the last ones of each sequence see keys
        rows = torch.tensor([*chain.from_iterable(range(ends[n + 1] - seeing[n], ends[n + 1]) for n in live)]).to(
            device
        )
    table, of_table = told.block_table, told.seq_lens
    if len(live) < len(lengths):
        picked = torch.tensor(live, device=device)
        table, of_table = table[picked], of_table[picked]
    pages = (
        _ends([-(-lengths[n] // form.P) for n in live]),
        to_csr(table, of_table, form.P).indices,
        torch.tensor([(lengths[n] - 1) % form.P + 1 for n in live], dtype=torch.int32),
    )
    heads = (form.H, form.G, form.D, form.P)
    options = {
        "sm_scale": form.scale,
        "logits_soft_cap": form.softcap,
        "q_data_type": form.q_dtype,
        "kv_data_type": form.cache_dtype,
    }
    workspace = _workspace(device, stream)
    _announce(form)
    if form.backend == "fa2" and max(seeing) == 1:
        wide = form.H // form.G >= _SHARED or form.cache_dtype is not form.q_dtype
        decode = BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=wide, backend="fa2")
        decode.plan(*pages, *heads, **options)
        return Plan(decode, rows)
    prefill = BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend=form.backend)
    prefill.plan(_ends([seeing[n] for n in live]), *pages, *heads, causal=form.causal, **options)
    return Plan(prefill, rows)


def _announce(form: Form) -> None:
    """Announces what FlashInfer compiles: a module for each of these, whichever of its wrappers is asked first."""
    kind = form.backend, form.q_dtype, form.cache_dtype, form.D, form.softcap > 0, form.alike
    announce_once("FlashInfer's paged attention", *kind, form.H // form.G >= _SHARED)


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

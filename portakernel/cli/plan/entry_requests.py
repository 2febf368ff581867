"""The requests that stand for an entry of a plan: of its kind, at the corners of its sizes and where claims end."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace

from portakernel.claims.capability import Limit
from portakernel.claims.request import PLAIN_FACTS, Phase, Request
from portakernel.contracts import contract
from portakernel.deciding.asking import ask
from portakernel.plan.boxes import LARGEST, Box
from portakernel.plan.dtypes import values_of
from portakernel.plan.plan import Entry
from portakernel.registry.kernel import Kernel
from portakernel.registry.registry import Registry
from portakernel.tuning.key import Kind
from portakernel.words.target import Device, Target

_MOST_CORNERS = 64
# What memory can be like instead of plain, the likeliest first.
_OTHERWISE: Mapping[str, tuple[int, ...]] = {
    "contiguous": (False,),
    "flat_rows": (False,),
    "stride_last": (2,),
    "alignment": (8, 4, 2, 1),
}
_MOST_TRIED = 256


def requests(
    entry: Entry, op: str, target: Target, registry: Registry, device: Device | None = None
) -> Iterator[Request]:
    """Calls that ``entry`` covers: where its kernel has a bound on one size, at least one that breaks it, if one does.

    Raises:
        UnknownNameError, ArgumentTypeError, ArgumentValueError: the op has no such calls.
    """
    kind, kernel = entry.kind(op), registry.kernels[entry.kernel]
    asked = _asked(kind, target, kernel, registry, device)
    seen: set[tuple[int, ...]] = set()
    for sizes in (*_corners(entry.bounds), *_breaking(entry.bounds, kernel)):
        if (places := tuple(sizes.values())) not in seen:
            seen.add(places)
            yield replace(asked, dims=sizes)


def _asked(kind: Kind, target: Target, kernel: Kernel, registry: Registry, device: Device | None) -> Request:
    described = contract(kind.op)
    phase = Phase(kind.phase)
    # whose own tensors backward reads, or whose gradient PyTorch records, is never chosen apart from its forward
    paired = phase is Phase.BACKWARD and kernel.saves in ("own", "autograd")
    limits = {str(limit): limit for one in registry.for_op(kind.op) for limit in one.limits()}
    facts = dict(_otherwise(limits[text]) for text in kind.layout if text in limits)
    return ask(
        described,
        target,
        dtypes=kind.dtypes,
        values=values_of(described, kind.features, kind.formats),
        phase=phase,
        facts=facts,
        saved_by=kernel.name if paired else None,
        device=device,
    )


def _otherwise(limit: Limit) -> tuple[str, int]:
    """A fact of memory that breaks a bound which plain memory keeps."""
    fact = limit.parameter.partition(".")[2]
    broken = (value for value in _OTHERWISE.get(fact, ()) if not limit.admits(value))
    return limit.parameter, next(broken, PLAIN_FACTS[fact])


def _corners(bounds: Box) -> Iterator[dict[str, int]]:
    ends = [dict.fromkeys(pair) for pair in bounds.values()]
    for corner in itertools.islice(itertools.product(*ends), _MOST_CORNERS):
        yield dict(zip(bounds, corner, strict=True))
    yield {name: high for name, (_, high) in bounds.items()}


def _breaking(bounds: Box, kernel: Kernel) -> Iterator[dict[str, int]]:
    """Sizes within the bounds that break one of the kernel's own each, with the least ones beside."""
    least = {name: low for name, (low, _) in bounds.items()}
    for limit in sorted(kernel.limits(), key=str):
        if limit.parameter not in bounds:
            continue
        low, high = bounds[limit.parameter]
        tried = range(low, min(high, low + _MOST_TRIED, LARGEST) + 1)
        if (size := next((size for size in tried if not limit.admits(size)), None)) is not None:
            yield {**least, limit.parameter: size}

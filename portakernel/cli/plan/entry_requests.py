"""What stands for the calls of an entry of a plan: a request of their kind, and the sizes at which claims may end."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping

from portakernel.claims.capability import Limit
from portakernel.claims.request import PLAIN_FACTS, Phase, Request
from portakernel.contracts import contract
from portakernel.deciding.asking import ask
from portakernel.plan.boxes import Box
from portakernel.plan.dtypes import values_of
from portakernel.plan.plan import Entry
from portakernel.registry.kernel import Kernel
from portakernel.registry.registry import Registry
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


def asked_of(entry: Entry, op: str, target: Target, registry: Registry, device: Device | None = None) -> Request:
    """A call of the entry's kind, without sizes.

    Raises:
        UnknownNameError, ArgumentTypeError, ArgumentValueError: the op has no such calls.
    """
    kind, kernel, phase = entry.kind(op), registry.kernels[entry.kernel], Phase(entry.phase)
    # whose own tensors backward reads, or whose gradient PyTorch records, is never chosen apart from its forward
    paired = phase is Phase.BACKWARD and kernel.saves in ("own", "autograd")
    limits = {str(limit): limit for one in registry.for_op(op) for limit in one.limits()}
    facts = dict(_otherwise(limits[text]) for text in kind.layout if text in limits)
    return ask(
        contract(op),
        target,
        dtypes=kind.dtypes,
        values=values_of(contract(op), kind.features, kind.formats),
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


def corners(bounds: Box) -> Iterator[dict[str, int]]:
    """The least and the greatest sizes, with each other."""
    ends = [tuple(dict.fromkeys(pair)) for pair in bounds.values()]
    for corner in itertools.islice(itertools.product(*ends), _MOST_CORNERS):
        yield dict(zip(bounds, corner, strict=True))
    if math.prod(map(len, ends)) > _MOST_CORNERS:
        yield {name: high for name, (_, high) in bounds.items()}


def breaking(bounds: Box, kernel: Kernel) -> Iterator[tuple[str, dict[str, int]]]:
    """The dimension and sizes, for each bound of the kernel that sizes between two ends break and the ends do not."""
    least = {name: low for name, (low, _) in bounds.items()}
    for limit in sorted(kernel.limits(), key=str):
        low, high = bounds.get(limit.parameter, (0, 0))
        if high - low < 2 or not (limit.admits(low) and limit.admits(high)):
            continue
        between = range(low + 1, min(high, low + _MOST_TRIED))
        if (size := next((size for size in between if not limit.admits(size)), None)) is not None:
            yield limit.parameter, {**least, limit.parameter: size}

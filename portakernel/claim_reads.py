"""What the choice among kernels reads of a call: limits, values, the plugins' own checks. A key holds no more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from portakernel.capability import Limit
from portakernel.contract import Contract
from portakernel.kernel import Kernel
from portakernel.readiness import Readiness

# Parameters of these kinds take few values, which a key may hold as they are.
_FEW = ("bool", "text", "dtype", "format")


@dataclass(frozen=True, slots=True)
class Reads:
    """Limits, which enter a key by their outcome; values, which enter as they are; checks of named values.

    A check enters by its answer, so that the sizes that it reads may change with every call.
    """

    limits: tuple[Limit, ...] = ()
    values: tuple[str, ...] = ()
    checks: tuple[tuple[tuple[str, ...], Callable[..., bool]], ...] = ()


def reads_of(contract: Contract, kernels: Iterable[Kernel], readiness: Readiness) -> Reads:
    """What decides whether, or how early, one of the kernels is chosen."""
    few = {parameter.name for parameter in contract.parameters if parameter.kind in _FEW}
    limits, values = set[Limit](), set[str]()
    checks: list[tuple[tuple[str, ...], Callable[..., bool]]] = []
    for kernel in kernels:
        limits |= kernel.limits()
        values |= kernel.reads()
        if kernel.check is None:
            continue
        if few.issuperset(kernel.check.reads):
            values |= set(kernel.check.reads)
        else:
            checks.append((kernel.check.reads, _admits(kernel, kernel.check.reads, readiness)))
    return Reads(tuple(sorted(limits, key=str)), tuple(sorted(values)), tuple(checks))


def _admits(kernel: Kernel, names: Sequence[str], readiness: Readiness) -> Callable[..., bool]:
    def admits(*values: Any) -> bool:
        return readiness.check(kernel, dict(zip(names, values, strict=True))) is None

    return admits

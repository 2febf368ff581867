"""The reads of an op: limits, values, plugins' own checks that its kernels' choice depends on. A key holds no more.

Beside what claims read there is what plans and measurements tell apart: sizes by their cells, parameters by value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from portakernel.calling.fast.cells import Cells
from portakernel.calling.fast.generated import define
from portakernel.claims.capability import Limit
from portakernel.contract import Contract
from portakernel.deciding.readiness import Readiness
from portakernel.registry.kernel import Kernel

# Parameters of these kinds take few values, which a key may hold as they are.
_FEW = ("bool", "text", "dtype", "format", "mask")


@dataclass(frozen=True, slots=True)
class Reads:
    """Limits, which enter a key by their outcome; values, which enter as they are; checks of named values.

    A check enters by its answer, so that the sizes that it reads may change with every call.
    """

    limits: tuple[Limit, ...] = ()
    values: tuple[str, ...] = ()
    checks: tuple[tuple[tuple[str, ...], Callable[..., bool | None]], ...] = ()
    cells: Cells | None = None


def reads_of(
    contract: Contract,
    kernels: Iterable[Kernel],
    readiness: Readiness,
    *,
    told_apart: Iterable[str] = (),
    cells: Cells | None = None,
) -> Reads:
    """The reads of these kernels: all that decides if one of them is chosen, and how early.

    ``told_apart`` are parameters, and ``cells`` those of sizes, that plans and measurements tell apart.
    """
    few = {parameter.name for parameter in contract.parameters if parameter.kind in _FEW}
    limits, values = set[Limit](), set(told_apart)
    checks: list[tuple[tuple[str, ...], Callable[..., bool | None]]] = []
    for kernel in kernels:
        limits |= kernel.limits()
        values |= kernel.reads()
        # what outlives processes was built for some dtypes, formats and values, and for all sizes
        values |= few if kernel.built is not None else set()
        if kernel.check is None:
            continue
        if few.issuperset(kernel.check.reads):
            values |= set(kernel.check.reads)
        else:
            checks.append((kernel.check.reads, _admits(kernel, kernel.check.reads, readiness)))
    return Reads(tuple(sorted(limits, key=str)), tuple(sorted(values)), tuple(checks), cells)


def _admits(kernel: Kernel, names: Sequence[str], readiness: Readiness) -> Callable[..., bool | None]:
    """The check's answer for a key: calls of which it says another thing are decided apart.

    Generated, with the check's own names: a call waits for it. What is not there dispatch does not ask about either.
    """
    given = [name.replace(".", "_") for name in names]
    entry = kernel.check.entry if kernel.check is not None else ""
    source = f"""\
def admits({", ".join(given)}):
    if {" or ".join(f"{name} is None" for name in given)}:
        return None
    try:
        return _check({", ".join(f"{name}={name}" for name in given)}) is None
    except KeyboardInterrupt:
        raise
    except BaseException:
        return None  # a decision asks again, and keeps the reason
"""

    def first(**values: Any) -> Any:
        admits.__globals__["_check"] = readiness.entry(entry)
        return admits.__globals__["_check"](**values)

    admits: Any = define(source, "admits", f"{kernel.name} check", {"_check": first})
    made: Callable[..., bool | None] = admits
    return made

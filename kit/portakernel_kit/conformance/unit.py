"""What the kit runs, counts and reports together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from portakernel.contract import Contract
from portakernel.contract.case import Case
from portakernel_kit.conformance.inputs import is_present


@dataclass(frozen=True, slots=True)
class Unit:
    """What is run, counted and reported together: a case in given dtypes, gradients in given dtypes, or all claims.

    ``kind`` is ``case``, ``drawn`` (a case that a seed has drawn), ``autograd``, ``repetition``, ``boundary``,
    ``coverage``, ``unbuilt``: what a kernel is not built for, or ``instructions``: which of them an emulator executed.
    """

    kind: str
    name: str
    case: Case | None = None
    dtypes: tuple[tuple[str, str], ...] = ()


def drawn_name(op: str, number: int) -> str:
    """The name of a unit that holds a drawn case, which is known before the case is."""
    return f"{op}[{drawn_case(number)}]"


def drawn_case(number: int) -> str:
    """The name of a drawn case; it decides, with the seed, which numbers its tensors hold."""
    return f"drawn {number}"


def drawn_unit(op: str, case: Case, dtypes: Mapping[str, str]) -> Unit:
    """What runs a drawn case."""
    return Unit("drawn", f"{op}[{case.name}]", case, tuple(dtypes.items()))


def told_name(contract: Contract, unit: Unit) -> str:
    """What a unit's results are called: a drawn one's by its scale formats too, which of an op's can be looked up."""
    if unit.kind != "drawn" or unit.case is None:
        return unit.name
    values = contract.values(unit.case.parameters)
    formats = [(p.name, str(values[p.name])) for p in contract.parameters if p.kind == "format"]
    absent = {tensor.name for tensor in contract.tensors if not is_present(tensor, unit.case)}
    dtypes = [(name, dtype) for name, dtype in unit.dtypes if name not in absent]
    return f"{contract.op}[{unit.case.name}, {shown((*formats, *dtypes))}]"


@dataclass(frozen=True, slots=True)
class Ran:
    """What of a case ran: nothing where the kernel does not claim it."""

    forward: bool
    backward: bool


def is_plain(case: Case) -> bool:
    """Whether gradients of the case through autograd can be held to the tolerance."""
    return case.backward and case.values == "normal"


def shown(dtypes: tuple[tuple[str, str], ...]) -> str:
    """The dtypes, as the names of units have them."""
    return ", ".join(f"{name}={dtype}" for name, dtype in dtypes)

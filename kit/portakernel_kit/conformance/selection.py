"""Kernels that have to be built: which cases they run by default, since each costs a compilation for every phase.

As few cases as put every claim to the test once: each dtype of each argument, each scale format, value and feature,
and backward. Those left out are reported as skipped, with their number; ``portakernel check --all-builds`` runs all.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from portakernel.calling.caller import OpCaller
from portakernel.claims.capability import Capability
from portakernel.claims.request import Phase, format_values
from portakernel.contract import Contract
from portakernel.contract.case import Case
from portakernel.registry.kernel import Kernel
from portakernel.warming.building import build
from portakernel_kit.conformance.inputs import Inputs, is_present

T = TypeVar("T")


def claims_in(
    contract: Contract, variants: Sequence[Capability], case: Case, dtypes: Sequence[tuple[str, str]]
) -> frozenset[Hashable]:
    """What of the claims a case puts to the test in these dtypes."""
    values = contract.values(case.parameters)
    found: set[Hashable] = {("dtype", *pair) for pair in dtypes}
    found |= {("format", *pair) for pair in format_values(contract, values).items()}
    found |= {("value", name, values[name]) for variant in variants for name in variant.values}
    found |= {("feature", p.name) for p in contract.parameters if p.feature and values[p.name] != p.default}
    found |= {("feature", tensor.name) for tensor in contract.tensors if tensor.feature and is_present(tensor, case)}
    if case.backward and any(variant.has_backward for variant in variants):
        found.add("backward")
    return frozenset(found)


def fewest(items: Sequence[T], claims: Callable[[T], frozenset[Hashable]], size: Callable[[T], int]) -> list[T]:
    """As few of the items as together have every claim, larger ones first among equals; in their own order."""
    of = [claims(item) for item in items]
    missing, picked = frozenset[Hashable]().union(*of), set[int]()
    while missing:
        best = max(range(len(items)), key=lambda place: (len(missing & of[place]), size(items[place])))
        picked.add(best)
        missing -= of[best]
    return [item for place, item in enumerate(items) if place in picked]


def build_case(
    caller: OpCaller, kernel: Kernel, case: Case, inputs: Inputs, ready: Callable[[Phase], bool]
) -> list[str]:
    """Builds the kernel for each phase of the case that it claims; what it declines to build stays refused."""
    contract, phases = caller.contract, [Phase.INFERENCE]
    if contract.saved or (case.backward and contract.gradient != "none"):
        phases.append(Phase.TRAINING)
    if case.backward and contract.gradient == "kernel":
        phases.append(Phase.BACKWARD)
    for phase in filter(ready, phases):
        request = caller.arguments.request(inputs.tensors, inputs.values, phase)
        build(caller.dispatcher, contract, kernel, request, inputs.tensors, inputs.values)
    return []

"""What is compiled for a target that is not here: calls of a kernel, taken from its op's cases."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter

from portakernel.calling.caller import OpCaller
from portakernel.claims.capability import Capability
from portakernel.claims.request import Phase
from portakernel.contract import Contract
from portakernel.contract.case import Case
from portakernel.contracts import contract
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.offline.forms import Form
from portakernel.offline.job import Job
from portakernel.registry.kernel import Kernel
from portakernel.words.target import Target
from portakernel_kit.conformance.claims import case_dtypes, elements
from portakernel_kit.conformance.inputs import Inputs, case_parameters, case_shape, draw_inputs, generator
from portakernel_kit.conformance.venue import Venue, covers, refusals

# Sizes that vector accesses, tiles and scale blocks divide, so that the code that is read is the fast one.
_ROUND = 16


def jobs(dispatcher: Dispatcher, kernel: Kernel, target: Target, *, every: bool = False) -> list[Job]:
    """The calls of ``kernel`` that are compiled for ``target``: one, or with ``every`` each case in each of its dtypes.

    Each is a case's forward and, where claimed, what it saves and its backward; the one has to hold the manifest's
    evidence. Empty where the kernel claims nothing there.
    """
    return [job for job, _ in calls_of(dispatcher, kernel, target, every=every)]


def calls_of(
    dispatcher: Dispatcher, kernel: Kernel, target: Target, *, every: bool = False
) -> list[tuple[Job, Inputs]]:
    """The same jobs, each with the tensors whose forms it has."""
    described, venue = contract(kernel.op), Venue("cpu", (target,), mode="offline")
    caller = OpCaller(described, dispatcher)
    claims = [claim for _, claim in kernel.variants if covers(claim, target, dispatcher.registry.spaces)]
    calls = [(case, dtypes) for case in described.cases for dtypes in _dtypes(described, claims, case, every=every)]
    found: list[tuple[_Rank, int, Job, Inputs]] = []
    # To draw inputs takes longer than all else, so that of one call no more are drawn than may yet be it.
    for place, (case, dtypes) in sorted(enumerate(calls), key=lambda call: _rank(described, *call[1]), reverse=True):
        if found and not every and max(rank for rank, *_ in found) >= _rank(described, case, dtypes):
            break
        inputs = draw_inputs(described, case, dtypes, "cpu", generator(0, kernel.op, case.name))
        phases = tuple(phase for phase in _phases(described, case) if _serves(caller, kernel, venue, inputs, phase))
        if phases:
            call = f"{case.name}, {', '.join(dict.fromkeys(dtypes.values()))}"
            job = Job(kernel.name, str(target), call, phases, _forms(inputs), inputs.values)
            found.append((_rank(described, case, dtypes, gradient=len(phases) > 1), place, job, inputs))
    if not found:
        return []
    _, fast, job, inputs = max(found, key=lambda one: (one[0], -one[1]))
    proof = replace(job, evidence=True)
    if not every:
        return [(proof, inputs)]
    return [(proof if place == fast else job, inputs) for _, place, job, inputs in sorted(found, key=itemgetter(1))]


# Whether a call has a gradient, whether what it reads is even, whether it is in bfloat16, and how many elements it has.
_Rank = tuple[bool, bool, bool, int]


def _rank(described: Contract, case: Case, dtypes: Mapping[str, str], *, gradient: bool = True) -> _Rank:
    """How much of a kernel's fast code a call compiles; ``gradient`` says whether that of its gradient is served."""
    first = described.at(case_parameters(described, case, dtypes)).tensors[0]
    even = math.prod(case_shape(first, case)[-1:]) % _ROUND == 0
    differentiated = gradient and len(tuple(_phases(described, case))) > 1
    return differentiated, even and not case.layouts, "bfloat16" in dtypes.values(), elements(described, case)


def _forms(inputs: Inputs) -> tuple[Form | None, ...]:
    """The arguments' forms; each that can have a gradient needs one."""
    return tuple(
        None if tensor is None else replace(Form.of(tensor), requires_grad=tensor.is_floating_point())
        for tensor in inputs.tensors
    )


def _dtypes(described: Contract, claims: Sequence[Capability], case: Case, *, every: bool) -> Iterator[dict[str, str]]:
    seen: set[tuple[tuple[str, str], ...]] = set()
    for claim in claims:
        for dtypes in case_dtypes(described, claim, case, all_of_them=every):
            if (pairs := tuple(dtypes.items())) not in seen:
                seen.add(pairs)
                yield dict(dtypes)


def _phases(described: Contract, case: Case) -> Iterator[Phase]:
    yield Phase.INFERENCE
    if case.backward and described.gradient == "kernel":
        yield Phase.TRAINING
        yield Phase.BACKWARD


def _serves(caller: OpCaller, kernel: Kernel, venue: Venue, inputs: Inputs, phase: Phase) -> bool:
    saved_by = kernel.name if kernel.saves == "own" and phase is Phase.BACKWARD else None
    request = caller.arguments.request(inputs.tensors, inputs.values, phase, saved_by=saved_by)
    return not refusals(caller.dispatcher, kernel, venue, request)

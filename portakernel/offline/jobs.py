"""What is compiled for a target that is not here: calls of a kernel, taken from its op's cases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from portakernel.call import OpCaller
from portakernel.capability import Capability
from portakernel.case import Case
from portakernel.conformance.claims import case_dtypes, elements
from portakernel.conformance.inputs import Inputs, draw_inputs, generator
from portakernel.conformance.venue import Venue, covers, refusals
from portakernel.contract import Contract
from portakernel.contract import Result as TensorResult
from portakernel.contracts import contract
from portakernel.dispatch import Dispatcher
from portakernel.kernel import Kernel
from portakernel.launcher import launcher
from portakernel.request import Phase
from portakernel.target import Target

# Sizes that vector accesses, tiles and scale blocks divide, so that the code that is read is the fast one.
_ROUND = 16


@dataclass(frozen=True, slots=True)
class Job:
    """One kernel to compile for one target: a case's forward and, where claimed, what it saves and its backward."""

    kernel: str
    target: str
    case: str
    dtypes: tuple[tuple[str, str], ...]
    phases: tuple[Phase, ...]

    def __str__(self) -> str:
        return f"{self.kernel} for {self.target} ({self.case}, {', '.join(dict.fromkeys(d for _, d in self.dtypes))})"


def jobs(dispatcher: Dispatcher, kernel: Kernel, target: Target, *, every: bool = False) -> list[Job]:
    """The calls of ``kernel`` that are compiled for ``target``: one, or with ``every`` each case in each of its dtypes.

    Empty where the kernel claims nothing there.
    """
    found: list[tuple[tuple[bool, ...], int, Job]] = []
    spaces = dispatcher.registry.spaces
    described, venue = contract(kernel.op), Venue("cpu", (target,), mode="offline")
    caller = OpCaller(described, dispatcher)
    claims = [claim for _, claim in kernel.variants if covers(claim, target, spaces)]
    for case in described.cases:
        for dtypes in _dtypes(described, claims, case, every=every):
            inputs = draw_inputs(described, case, dtypes, "cpu", generator(0, kernel.op, case.name))
            phases = tuple(phase for phase in _phases(described, case) if _serves(caller, kernel, venue, inputs, phase))
            if phases:
                job = Job(kernel.name, str(target), case.name, tuple(dtypes.items()), phases)
                even = inputs.given[described.names[0]].shape[-1:].numel() % _ROUND == 0
                rank = (len(phases) > 1, even and not case.layouts, "bfloat16" in dtypes.values())
                found.append((rank, elements(described, case), job))
    if every or not found:
        return [job for _, _, job in found]
    return [max(found, key=lambda one: one[:2])[2]]


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


def call_on_meta(dispatcher: Dispatcher, kernel: Kernel, job: Job) -> None:
    """Calls the kernel as the job says, on tensors without memory."""
    described = contract(kernel.op)
    case = next(case for case in described.cases if case.name == job.case)
    drawn = draw_inputs(described, case, dict(job.dtypes), "cpu", generator(0, kernel.op, case.name))
    inputs = replace(drawn, tensors=tuple(None if t is None else _without_memory(t) for t in drawn.tensors))
    caller = OpCaller(described, dispatcher)
    for phase in job.phases:
        request = caller.arguments.request(drawn.tensors, drawn.values, phase)
        asked = replace(request, target=Target.parse(job.target), device=None, attached=())
        launch = launcher(described, kernel, asked, dispatcher)
        match phase:
            case Phase.BACKWARD:
                launch(*_backward_arguments(described, inputs), *inputs.values, _needs(described, inputs))
            case Phase.INFERENCE:
                launch(*inputs.tensors, *inputs.values, None)
            case _:
                launch(*inputs.tensors, *inputs.values)


def _without_memory(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _backward_arguments(described: Contract, inputs: Inputs) -> list[Tensor | None]:
    """The outputs' gradients, what backward is given of arguments and results, and what forward saved."""

    def made(result: TensorResult) -> Tensor:
        shape, dtype = inputs.form(result)
        return torch.empty(shape, dtype=dtype, device="meta")

    here = inputs.contract
    outputs = {output.name: made(output) for output in here.outputs}
    saved = {result.name: made(result) for result in here.saved}
    grads: list[Tensor | None] = [outputs[o.name] for o in here.outputs if o.differentiable]
    kept: list[Any] = [inputs.given.get(name, outputs.get(name)) for name in described.backward_inputs]
    return [*grads, *kept, *(saved.get(result.name) for result in described.saved)]


def _needs(described: Contract, inputs: Inputs) -> tuple[bool, ...]:
    floating = {name for name, tensor in inputs.given.items() if tensor.is_floating_point()}
    return tuple(tensor.name in floating for tensor in described.tensors)

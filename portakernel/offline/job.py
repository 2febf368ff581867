"""One thing to compile: calls of a kernel on tensors without memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from portakernel.calling.arguments import Arguments
from portakernel.calling.launcher import launcher
from portakernel.claims.request import Phase
from portakernel.contracts import contract
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.offline.forms import Form
from portakernel.registry.kernel import Kernel
from portakernel.words.target import Device, Target


@dataclass(frozen=True, slots=True)
class Job:
    """One kernel to compile for one target, as it is called on ``tensors`` with ``values`` in each of ``phases``.

    ``call`` says in words what that is. ``multiprocessors`` are those of the device of this machine whose calls are to
    find it compiled; None where all that counts is what the compiler makes of it. With ``evidence`` its assembly has to
    hold the instructions that the manifest names; calls of odd sizes may compile to others, and are asked without.
    """

    kernel: str
    target: str
    call: str
    phases: tuple[Phase, ...]
    tensors: tuple[Form | None, ...]
    values: tuple[Any, ...]
    multiprocessors: int | None = None
    evidence: bool = False

    def __str__(self) -> str:
        return f"{self.kernel} for {self.target} ({self.call})"


def call_on_meta(dispatcher: Dispatcher, kernel: Kernel, job: Job, device: Device | None = None) -> None:
    """Calls the kernel as the job says, on tensors without memory; with ``device``, while that one is current."""
    described = contract(kernel.op)
    arguments = Arguments(described, dispatcher.registry)
    tensors = [None if form is None else form.on_meta() for form in job.tensors]
    for phase in job.phases:
        request = arguments.request(tensors, job.values, phase)
        asked = replace(request, target=Target.parse(job.target), device=device, attached=())
        launch = launcher(described, kernel, asked, dispatcher)
        match phase:
            case Phase.BACKWARD:
                needs = tuple(form is not None and form.requires_grad for form in job.tensors)
                launch(*_backward_arguments(arguments, tensors, job.values), *job.values, needs)
            case Phase.INFERENCE:
                launch(*tensors, *job.values, None)
            case _:
                launch(*tensors, *job.values)


def _backward_arguments(
    arguments: Arguments, tensors: Sequence[Tensor | None], values: Sequence[Any]
) -> list[Tensor | None]:
    """The outputs' gradients, what backward is given of arguments and results, and what forward saved."""
    described, given = arguments.contract, arguments.given(tensors)
    made = {
        name: torch.empty(shape, dtype=dtype, device="meta")
        for name, (shape, dtype) in arguments.results(tensors, values, saved=True).items()
    }
    outputs = [output for output in arguments.at(values).outputs if output.differentiable]
    return [
        *(made[output.name] for output in outputs),
        *(given.get(name, made.get(name)) for name in described.backward_inputs),
        *(made.get(saved.name) for saved in described.saved),
    ]

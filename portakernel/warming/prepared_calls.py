"""The steps of a warm-up: calls of one op that are ready to be run, on copies of what they were given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad as fwd

from portakernel import runtime
from portakernel.calling.caller import OpCaller
from portakernel.calling.devices import find_device
from portakernel.claims.request import Phase, Request
from portakernel.deciding.asking import ask
from portakernel.deciding.kernel_argument import strictly
from portakernel.errors import ArgumentValueError
from portakernel.offline.job import Job
from portakernel.tensors.scratch import described, laid, like
from portakernel.warming.ahead import serving_jobs
from portakernel.warming.building import Progress, build_for, phases_of
from portakernel.warming.outcome import Call
from portakernel.words.target import Device


@dataclass(frozen=True, slots=True)
class WarmupStep:
    """Something to run. Where it is a call of one op, ``requests`` has its request of each phase.

    ``jobs`` are the compilations that such a call may need.
    """

    run: Callable[[], object]
    requests: Mapping[Phase, Request] = field(default_factory=dict[Phase, Request])
    jobs: tuple[tuple[Job, Device], ...] = ()

    @property
    def name(self) -> str:
        """The call in words."""
        return str(next(iter(self.requests.values())))


# A call's op, tensors and parameters, the kernel that it names, and whether its tensors have tangents.
ConcreteCall = tuple[OpCaller, Sequence[Any], Sequence[Any], str | None, bool]


def prepared(
    caller: OpCaller,
    tensors: Sequence[Any],
    parameters: Sequence[Any],
    kernel: str | None,
    forward_ad: bool,
    progress: Progress,
) -> WarmupStep:
    """The call, with what it needs built."""
    caller.arguments.check_kinds(tensors)
    if any(tensor is not None and tensor.is_meta for tensor in tensors):
        raise ArgumentValueError(f"{caller.contract.op}: on meta tensors nothing runs; give tensors of a device")
    if not forward_ad:  # what torch differentiates forwards is made of its operators
        build_for(caller, tensors, parameters, kernel, progress)
    return _on_scratch(caller, tensors, parameters, kernel, forward_ad=forward_ad)


def described_call(call: Call, device_of: Callable[[Call], str]) -> ConcreteCall:
    """A call in words, on zeros.

    Raises:
        ArgumentValueError: its device cannot be used here.
    """
    caller, device = runtime.caller(call.op), device_of(call)
    try:
        place = torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:  # what torch raises for a device that is not there, or is none
        known = ", ".join(sorted({d.torch_device for d in caller.dispatcher.registry.devices if d.torch_device}))
        raise ArgumentValueError(f"{call.op}: device {device!r} cannot be used here; known: {known}") from error
    request = ask(
        caller.contract,
        find_device(caller.dispatcher.registry, place).target,
        dtypes=call.dtype,
        shapes=call.shape,
        formats=call.format,
        values=call.parameters,
        facts=call.memory.facts,
    )
    tensors = laid(described(request, call.shape, place, training=call.training), call.memory)
    given = [tensors.get(name) for name in caller.contract.names]
    return caller, given, list(request.values.values()), call.kernel, call.forward_ad


def _on_scratch(
    caller: OpCaller,
    tensors: Sequence[Tensor | None],
    parameters: Sequence[Any],
    kernel: str | None,
    *,
    forward_ad: bool,
) -> WarmupStep:
    """The public call on copies of ``tensors``, and the gradients of what it returns where they need some."""
    from portakernel import ops

    function, described_op = getattr(ops, caller.contract.op), caller.contract
    phases = (Phase.FORWARD_AD,) if forward_ad else phases_of(described_op, tensors)
    copies = {name: like(t) for name, t in zip(described_op.names, tensors, strict=True) if t is not None}
    positional = [copies.get(tensor.name) for tensor in described_op.tensors if not tensor.keyword]
    named = {
        tensor.name: copies[tensor.name] for tensor in described_op.tensors if tensor.keyword and tensor.name in copies
    }
    named |= caller.arguments.named(parameters)

    def with_tangents() -> None:
        with fwd.dual_level():
            make: Any = fwd.make_dual
            duals = {n: make(t, torch.zeros_like(t)) for n, t in copies.items() if t.is_floating_point()}
            given = copies | duals
            by_place = [given.get(tensor.name) for tensor in described_op.tensors if not tensor.keyword]
            function(*by_place, **{n: given.get(n, value) for n, value in named.items()}, kernel=kernel)

    def run() -> None:
        returned = function(*positional, **named, kernel=kernel)
        results = [r for r in (returned if isinstance(returned, tuple) else (returned,)) if r.requires_grad]
        if Phase.INFERENCE not in phases and results and described_op.gradient != "none":
            leaves = [copy for copy in copies.values() if copy.requires_grad]
            torch.autograd.grad(results, leaves, [torch.ones_like(r) for r in results], allow_unused=True)

    values = caller.arguments.canonical(parameters)
    policy = caller.policy(strictly(caller.dispatcher.registry, described_op.op, kernel))
    jobs = serving_jobs(caller, [copies.get(name) for name in described_op.names], values, phases, policy)
    requests = {phase: caller.arguments.request(tensors, values, phase) for phase in phases}
    return WarmupStep(with_tangents if forward_ad else run, requests, tuple(jobs))

"""Builds ahead of calls what has to be compiled: each kernel for each phase that a call goes through."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from portakernel.calling.caller import OpCaller
from portakernel.claims.capability import OUTRANKED, CannotRun, ReasonCode, Rejection
from portakernel.claims.request import Phase, Request
from portakernel.contract import Contract
from portakernel.deciding.decision import Decision
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.deciding.kernel_argument import strictly
from portakernel.deciding.policies import Policy
from portakernel.registry.kernel import Kernel

Advance = Callable[[str], None]
Count = Callable[[int, int], None]


@dataclass(slots=True)
class Progress:
    """The progress of builds: the kernels built so far, each once, and those that could not be.

    ``ahead`` and ``failed`` are the calls that were compiled side by side, and those that could not be made, with why.
    ``advance`` is called with what comes next, ``count`` with how much of how much of it is done.
    """

    advance: Advance
    count: Count = lambda done, total: None
    built: dict[str, None] = field(default_factory=dict[str, None])
    declined: dict[str, str] = field(default_factory=dict[str, str])
    ahead: list[str] = field(default_factory=list[str])
    failed: dict[str, str | Exception] = field(default_factory=dict[str, str | Exception])


def build_for(
    caller: OpCaller, tensors: Sequence[Any], parameters: Sequence[Any], name: str | None, progress: Progress
) -> None:
    """Builds what calls like this one need, and makes the next call choose anew.

    Raises:
        ArgumentTypeError, ArgumentValueError: the arguments do not fit the contract.
        NoKernelError: ``name`` is given, and no kernel of it serves such calls even when built.
    """
    arguments, dispatcher = caller.arguments, caller.dispatcher
    values = arguments.canonical(parameters)
    arguments.check(tensors, values)
    policy = caller.policy(strictly(dispatcher.registry, caller.contract.op, name))
    build_phases(caller, tensors, values, phases_of(caller.contract, tensors), policy, progress)
    # a strict name is forward's: whoever has a backward may serve the gradient, as in the call itself
    for phase in phases_of(caller.contract, tensors)[:1] if name is not None else ():
        decision = dispatcher.decide(arguments.request(tensors, values, phase), policy)
        if decision.chosen is None:
            raise decision.error()


def build_phases(
    caller: OpCaller,
    tensors: Sequence[Any],
    values: Sequence[Any],
    phases: Sequence[Phase],
    policy: Policy,
    progress: Progress,
    *,
    winners_only: bool = False,
) -> None:
    """Builds, for each phase of a call that fits the contract, the kernels that only lack that.

    ``winners_only``: those alone that would then serve it, not those that a policy might prefer one day.
    """
    todo: list[tuple[Kernel, Request]] = []
    for phase in phases:
        request = caller.arguments.request(tensors, values, phase)
        decision = caller.dispatcher.decide(request, policy)
        kernels = waiting(decision)
        if winners_only and decision.chosen is not None:
            kernels = [k for k in kernels if k is decision.chosen or k.name in decision.passed_over]
        todo += [(kernel, request) for kernel in kernels]
    for kernel, request in todo:
        progress.advance(f"{kernel.name} ({request.phase})")
        declined = build(caller.dispatcher, caller.contract, kernel, request, tensors, values)
        if declined is None:
            progress.built[kernel.name] = None
        else:
            progress.declined[kernel.name] = declined.text
    if todo:
        caller.table.clear()


def build(
    dispatcher: Dispatcher,
    contract: Contract,
    kernel: Kernel,
    request: Request,
    tensors: Sequence[Tensor | None],
    values: Sequence[Any],
) -> Rejection | None:
    """Builds ``kernel`` for calls like ``request``, of which ``tensors`` and ``values`` are one; why it cannot be.

    Whatever else the plugin raises propagates.
    """
    if kernel.build is None:
        return None
    detached = [None if tensor is None else tensor.detach() for tensor in tensors]
    try:
        dispatcher.entry(kernel.build)(request, detached, tuple(values))
    except CannotRun as declared:
        dispatcher.builds.remember_failure(contract, kernel, request, declared.rejection)
        return declared.rejection
    dispatcher.builds.remember(contract, kernel, request)
    return None


def phases_of(contract: Contract, tensors: Sequence[Tensor | None]) -> tuple[Phase, ...]:
    """The phases that a call with these tensors goes through."""
    training = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)
    return training_phases(contract) if training else (Phase.INFERENCE,)


def training_phases(contract: Contract) -> tuple[Phase, ...]:
    """The phases of a call that needs gradients."""
    return (Phase.TRAINING, Phase.BACKWARD) if contract.gradient == "kernel" else (Phase.TRAINING,)


def waiting(decision: Decision) -> list[Kernel]:
    """The kernels between which and being eligible nothing but a build stands.

    Those that were built before are among them: that may have been for other leading dimensions.
    """
    in_the_way = {ReasonCode.NEEDS_BUILD, *OUTRANKED}
    return [
        candidate.kernel
        for candidate in decision.candidates
        if candidate.kernel.build and {rejection.code for rejection in candidate.rejections} <= in_the_way
    ]


@contextmanager
def progressing() -> Iterator[Progress]:
    """Progress that a terminal's standard error shows as it comes; silent elsewhere."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield Progress(lambda text: None)
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("warming up", total=None)
        yield Progress(
            lambda text: bar.update(task, description=text),
            lambda done, total: bar.update(task, completed=done, total=total),
        )

"""Builds ahead of calls what has to be compiled: each kernel for each phase that a call goes through."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from portakernel.call import OpCaller
from portakernel.capability import CannotRun, ReasonCode, Rejection
from portakernel.contract import Contract
from portakernel.dispatch import Dispatcher
from portakernel.kernel import Kernel
from portakernel.naming import strictly
from portakernel.request import Phase, Request


def build_for(caller: OpCaller, tensors: Sequence[Any], parameters: Sequence[Any], name: str | None) -> tuple[str, ...]:
    """Builds what calls like this one need, and makes the next call choose anew; the kernels that are built for it.

    Raises:
        ArgumentTypeError, ArgumentValueError: the arguments do not fit the contract.
        NoKernelError: ``name`` is given, and no kernel of it serves such calls even when built.
    """
    arguments, dispatcher = caller.arguments, caller.dispatcher
    values = arguments.canonical(parameters)
    arguments.check(tensors, values)
    policy = caller.policy(strictly(dispatcher.registry, caller.contract.op, name))
    todo: list[tuple[Kernel, Request]] = []
    for phase in phases_of(caller.contract, tensors):
        request = arguments.request(tensors, values, phase)
        decision = dispatcher.decide(request, policy)
        # what was built before is asked again: it may have been for other leading dimensions
        waiting = [c.kernel for c in decision.candidates if c.kernel.build and _waits(c.rejections)]
        if name is not None and decision.chosen is None and not waiting:
            raise decision.error()
        todo += [(kernel, request) for kernel in waiting]
    built: dict[str, None] = {}
    with _progress(len(todo)) as advance:
        for kernel, request in todo:
            advance(f"{kernel.name} ({request.phase})")
            if build(dispatcher, caller.contract, kernel, request, tensors, values) is None:
                built[kernel.name] = None
            elif name is not None:
                caller.table.clear()
                raise dispatcher.decide(request, policy).error()
    if todo:
        caller.table.clear()
    return tuple(built)


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
    if not training:
        return (Phase.INFERENCE,)
    return (Phase.TRAINING, Phase.BACKWARD) if contract.gradient == "kernel" else (Phase.TRAINING,)


def _waits(rejections: Sequence[Rejection]) -> bool:
    """Whether nothing but a build stands between a kernel and being eligible."""
    return {rejection.code for rejection in rejections} <= {ReasonCode.NEEDS_BUILD, ReasonCode.LOWER_PRIORITY}


@contextmanager
def _progress(total: int) -> Iterator[Callable[[str], None]]:
    """A bar on a terminal's standard error; silent elsewhere, and where there is nothing to do."""
    if total == 0 or not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("building", total=total)
        begun = 0

        def advance(text: str) -> None:
            nonlocal begun
            progress.update(task, description=text, completed=begun)
            begun += 1

        yield advance

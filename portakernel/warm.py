"""Builds ahead of calls what has to be compiled: each kernel for each phase that a call goes through."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from portakernel.call import OpCaller
from portakernel.capability import ReasonCode
from portakernel.kernel import Kernel
from portakernel.naming import strictly
from portakernel.request import Phase, Request


def build_for(caller: OpCaller, tensors: Sequence[Any], parameters: Sequence[Any], name: str | None) -> tuple[str, ...]:
    """Builds what calls like this one need, and makes the next call choose anew; the kernels that were built.

    Raises:
        ArgumentTypeError, ArgumentValueError: the arguments do not fit the contract.
        NoKernelError: ``name`` is given, and no kernel of it serves such calls even when built.
    """
    arguments, dispatcher = caller.arguments, caller.dispatcher
    values = arguments.canonical(parameters)
    arguments.check(tensors, values)
    policy = caller.policy(strictly(dispatcher.registry, caller.contract.op, name))
    todo: list[tuple[Kernel, Request]] = []
    for phase in _phases(caller, tensors):
        request = arguments.request(tensors, values, phase)
        decision = dispatcher.decide(request, policy)
        waiting = [c.kernel for c in decision.candidates if {r.code for r in c.rejections} == {ReasonCode.NEEDS_BUILD}]
        if name is not None and decision.chosen is None and not waiting:
            raise decision.error()
        todo += [(kernel, request) for kernel in waiting]
    built: dict[str, None] = {}
    with _progress(len(todo)) as advance:
        for kernel, request in todo:
            advance(f"{kernel.name} ({request.phase})")
            detached = [None if tensor is None else tensor.detach() for tensor in tensors]
            # capture and modes are none of a build's business: it compiles, and runs its own checks
            dispatcher.entry(kernel.build or "")(request, detached, values)
            dispatcher.builds.remember(caller.contract, kernel, request)
            built[kernel.name] = None
    if todo:
        caller.table.clear()
    return tuple(built)


def _phases(caller: OpCaller, tensors: Sequence[Tensor | None]) -> tuple[Phase, ...]:
    training = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)
    if not training:
        return (Phase.INFERENCE,)
    return (Phase.TRAINING, Phase.BACKWARD) if caller.contract.gradient == "kernel" else (Phase.TRAINING,)


@contextmanager
def _progress(total: int) -> Iterator[Any]:
    """A bar on a terminal's standard error; silent elsewhere, and where there is nothing to do."""
    import sys

    if total == 0 or not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)
        begun = 0

        def advance(text: str) -> None:
            nonlocal begun
            progress.update(task, description=text, completed=begun)
            begun += 1

        yield advance

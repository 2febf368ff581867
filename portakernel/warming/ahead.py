"""Compiling ahead of calls on this machine's devices: what their compilers' caches lack, side by side."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import torch
from torch import Tensor

from portakernel.calling.caller import OpCaller
from portakernel.claims.request import Phase
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.deciding.policies import Policy
from portakernel.offline.forms import Form
from portakernel.offline.job import Job, call_on_meta
from portakernel.offline.outcome import Outcome
from portakernel.offline.workers import compile_all, offline_context
from portakernel.registry.kernel import Kernel
from portakernel.tensors.layout import has_plain_memory
from portakernel.text.printable import exception_text, logger
from portakernel.warming.building import Progress
from portakernel.words.target import Device, Target

# Fewer are compiled sooner by the calls themselves: until a worker has imported torch, Triton and portakernel (2.3 s on
# two slow cores, 2026-11-22), one process compiles several kernels (0.2 to 0.7 s each there).
WORTH_WORKERS = 4
_log = logger()


def serving_jobs(
    caller: OpCaller, tensors: Sequence[Tensor | None], values: Sequence[Any], phases: Sequence[Phase], policy: Policy
) -> Iterator[tuple[Job, Device]]:
    """The jobs that a call on these tensors, which have memory, may have to compile: each phase's, with its device.

    Kernels take part whose plugin can compile ahead, on GPUs.
    """
    if not all(tensor is None or has_plain_memory(tensor) for tensor in tensors):
        return
    for phase in phases:
        request = caller.arguments.request(tensors, values, phase)
        device = request.device
        kernel = caller.dispatcher.decide(request, policy).chosen
        if kernel is None or device is None or not (device.torch_device or "").startswith("cuda"):
            continue
        if _fills_caches(caller.dispatcher, kernel):
            forms = tuple(None if tensor is None else Form.of(tensor) for tensor in tensors)
            processors = torch.cuda.get_device_properties(device.torch_device).multi_processor_count
            job = Job(kernel.name, str(device.target), str(request), (phase,), forms, tuple(values), processors)
            yield job, device


def _fills_caches(dispatcher: Dispatcher, kernel: Kernel) -> bool:
    """Whether the kernel's plugin compiles ahead, and can say what would be compiled."""
    if dispatcher.registry.offline(kernel.plugin) is None:
        return False
    return {"multiprocessors", "dry"} <= inspect.signature(offline_context(dispatcher, kernel)).parameters.keys()


def lacking(dispatcher: Dispatcher, jobs: Sequence[tuple[Job, Device]]) -> list[Job]:
    """The jobs that bring the caches something that they lack, and that no job before brings."""
    needed: list[Job] = []
    seen: set[str] = set()
    for job, device in jobs:
        kernel, target = dispatcher.registry.kernels[job.kernel], Target.parse(job.target)
        context = offline_context(dispatcher, kernel)
        try:
            with context(target, multiprocessors=job.multiprocessors, dry=True) as missing:
                call_on_meta(dispatcher, kernel, job, device)
        except Exception as error:  # noqa: BLE001 - the plugin border: what needs the tensors' values is left to the call
            _log.debug("%s is not compiled ahead of its call: %s", job.kernel, exception_text(error))
            continue
        keys = {function.key for function in missing} - seen
        if keys:
            seen |= keys
            needed.append(job)
    return needed


def compile_ahead(
    dispatcher: Dispatcher, jobs: Sequence[tuple[Job, Device]], progress: Progress, workers: int | None = None
) -> list[Outcome]:
    """The outcome of each job that the caches lacked, once all are done.

    Nothing is compiled where the calls themselves are as quick.
    """
    todo = lacking(dispatcher, jobs)
    if len(todo) < WORTH_WORKERS:
        return []
    outcomes: list[Outcome] = []
    progress.advance("compiling")
    progress.count(0, len(todo))
    with closing(compile_all(todo, workers)) as running:  # an interrupt ends the processes at once
        for outcome in running:
            outcomes.append(outcome)
            progress.ahead += [] if outcome.error else [outcome.call]
            progress.failed |= {outcome.call: outcome.error} if outcome.error else {}
            progress.advance(f"compiled {outcome.kernel}")
            progress.count(len(outcomes), len(todo))
    return outcomes

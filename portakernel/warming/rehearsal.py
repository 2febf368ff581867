"""Running calls ahead of time, until a run decides, loads, builds and compiles nothing new.

What several calls have to compile is compiled before the first of them, side by side in other processes.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from portakernel import runtime
from portakernel.calling.caller import OpCaller
from portakernel.calling.devices import find_device
from portakernel.calling.key_table import Placement
from portakernel.claims.request import Phase, Request
from portakernel.deciding.asking import ask
from portakernel.deciding.kernel_argument import strictly
from portakernel.errors import ArgumentTypeError, ArgumentValueError, CaptureError, PortakernelError, WarmupError
from portakernel.offline.job import Job
from portakernel.tensors.capture import is_capturing
from portakernel.tensors.compilation import compilations
from portakernel.tensors.scratch import described, like
from portakernel.text.printable import exception_text
from portakernel.warming.ahead import compile_ahead, serving_jobs
from portakernel.warming.building import Progress, build_for, phases_of, progressing
from portakernel.warming.outcome import Call, WarmCall, Warmup
from portakernel.warming.recording import Recording
from portakernel.words.target import Device

# A function whose runs still bring something new then (a cache that grows with each) makes other calls each time.
MAX_RUNS = 5


@dataclass(frozen=True, slots=True)
class _Step:
    """Something to run; ``requests`` is what it makes of the op's phases, where it is a call of one op.

    ``jobs`` is what such a call may have to compile.
    """

    run: Callable[[], object]
    requests: Mapping[Phase, Request] = field(default_factory=dict[Phase, Request])
    jobs: tuple[tuple[Job, Device], ...] = ()

    @property
    def name(self) -> str:
        """The call in words."""
        return str(next(iter(self.requests.values())))


# The calls that could not be made, each with its diagnosis or what it raised.
Failed = dict[str, str | Exception]
Prepare = Callable[[Progress, Failed], Sequence[_Step]]


def rehearse_function(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Warmup:
    """Warms up what ``function(*args, **kwargs)`` calls, backward included where it runs one.

    Raises:
        ArgumentTypeError: calling it would not run it.
    """
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        name = getattr(function, "__qualname__", repr(function))
        raise ArgumentTypeError(f"warmup runs a function, and a call of {name} only makes what runs later; wrap it")
    callers = [runtime.caller(op) for op in runtime.dispatcher().registry.ops]

    def recorded(progress: Progress) -> AbstractContextManager[object]:
        return Recording(callers, progress)

    return _rehearsed(lambda progress, failed: [_Step(lambda: function(*args, **kwargs))], recorded, alone=True)


_Made = tuple[OpCaller, Sequence[Any], Sequence[Any], str | None]


def rehearse_call(
    caller: OpCaller, tensors: Sequence[Any], parameters: Sequence[Any], kernel: str | None = None
) -> Warmup:
    """Warms up a call of an op, by its tensors and parameters, and the kernel to name or None, on scratch copies.

    Raises:
        ArgumentTypeError, ArgumentValueError, NoKernelError: it cannot be made.
        WarmupError: it could not be compiled, or run.
    """
    return _rehearsed_calls([(caller.contract.op, lambda: (caller, tensors, parameters, kernel))], alone=True)


def rehearse_described(
    calls: Sequence[Call],
    device_of: Callable[[Call], str],
    shown: Progress | None = None,
    workers: int | None = None,
    *,
    alone: bool = False,
) -> Warmup:
    """Warms up calls in words, on zeros; ``device_of`` says on which of torch's devices.

    ``shown`` is told of the progress, or a terminal; ``workers`` bounds the processes that compile, of which there is
    else one a core. ``alone``: there is one call, and no others to go on with.

    Raises:
        UnknownNameError: an op that there is not; nothing was warmed up.
        UnknownNameError, ArgumentTypeError, ArgumentValueError, NoKernelError: of one alone, it cannot be made.
        WarmupError: some could not be made, compiled or run; the others were.
    """
    for call in calls:
        runtime.contract_of(call.op)
    with torch.enable_grad():  # whether there are gradients is what `training` says, wherever this is called
        made = [(str(call), functools.partial(_described, call, device_of)) for call in calls]
        return _rehearsed_calls(made, shown, workers, alone=alone)


def _rehearsed_calls(
    calls: Sequence[tuple[str, Callable[[], _Made]]],
    shown: Progress | None = None,
    workers: int | None = None,
    *,
    alone: bool,
) -> Warmup:
    """Warms up calls, each under its name; ``alone``: what cannot be made is its own error."""

    def prepare(progress: Progress, failed: Failed) -> Sequence[_Step]:
        steps: list[_Step] = []
        for name, make in calls:
            try:
                steps.append(_prepared(*make(), progress))
            except Exception as error:  # the plugin border: what a build raises stops no other call
                if alone:
                    raise
                failed[name] = error
        return steps

    return _rehearsed(prepare, lambda progress: nullcontext(), shown, workers, alone=alone)


def _prepared(
    caller: OpCaller, tensors: Sequence[Any], parameters: Sequence[Any], kernel: str | None, progress: Progress
) -> _Step:
    """The call, with what it needs built."""
    caller.arguments.check_kinds(tensors)
    if any(tensor is not None and tensor.is_meta for tensor in tensors):
        raise ArgumentValueError(f"{caller.contract.op}: on meta tensors nothing runs; give tensors of a device")
    build_for(caller, tensors, parameters, kernel, progress)
    return _on_scratch(caller, tensors, parameters, kernel)


def _described(call: Call, device_of: Callable[[Call], str]) -> _Made:
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
    )
    tensors = described(request, call.shape, place, training=call.training)
    given = [tensors.get(name) for name in caller.contract.names]
    return caller, given, list(request.values.values()), call.kernel


def _rehearsed(
    prepare: Prepare,
    first_run: Callable[[Progress], AbstractContextManager[object]],
    shown: Progress | None = None,
    workers: int | None = None,
    *,
    alone: bool,
) -> Warmup:
    """Prepares, then runs until a run brings nothing new; the first run inside ``first_run``."""
    if is_capturing():
        raise CaptureError("portakernel.warmup runs and compiles kernels")
    start, compiled_before = time.perf_counter(), len(compilations())
    with progressing() if shown is None else nullcontext(shown) as progress:
        failed: Failed = {}
        steps = prepare(progress, failed)
        ahead, uncompiled = _compile_ahead(steps, progress, workers)
        able = [step for step in steps if not any(str(job) in uncompiled for job, _ in step.jobs)]
        failed.update(uncompiled)
        steps = []
        with first_run(progress):
            for place, step in enumerate(able):
                progress.advance("run 1")
                progress.count(place, len(able))
                try:
                    step.run()
                except Exception as error:  # the plugin border: what a kernel raises stops no other call
                    if (alone and isinstance(error, PortakernelError)) or not step.requests:
                        raise
                    failed[step.name] = error
                else:
                    steps.append(step)
        runs, settled = 1, False
        calls: list[WarmCall] = []
        while not settled and runs < MAX_RUNS:
            runs += 1
            progress.advance(f"run {runs}")
            known, compiled = _placements(), len(compilations())
            calls = [call for step in steps for call in _run_and_count(step)]
            settled = _placements().keys() == known.keys() and len(compilations()) == compiled
    for name in {call.request.device.torch_device for call in calls if call.request.device is not None}:
        # an error of what was launched belongs to the warm-up
        if name is not None and not name.startswith("cpu"):
            torch.get_device_module(name).synchronize(name)
    seconds = time.perf_counter() - start
    declined, compiled_now = tuple(progress.declined.items()), compilations().since(compiled_before)
    found = Warmup(
        tuple(calls),
        tuple(progress.built),
        declined,
        compiled_now,
        runs,
        settled,
        seconds,
        ahead=ahead,
        failed=tuple((call, why if isinstance(why, str) else _raised(why)) for call, why in failed.items()),
    )
    if failed:
        raise WarmupError(found) from next((why for why in failed.values() if isinstance(why, Exception)), None)
    return found


def _raised(error: Exception) -> str:
    """What a call raised: portakernel's own errors say it themselves."""
    return str(error) if isinstance(error, PortakernelError) else exception_text(error)


def _compile_ahead(
    steps: Sequence[_Step], progress: Progress, workers: int | None
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Compiles side by side what the caches lack; what was compiled, and what could not be, with its diagnosis."""
    jobs = [job for step in steps for job in step.jobs]
    if not jobs:
        return (), {}
    outcomes = compile_ahead(runtime.dispatcher(), jobs, progress, workers)
    compiled = tuple(outcome.call for outcome in outcomes if not outcome.error)
    return compiled, {outcome.call: outcome.error for outcome in outcomes if outcome.error}


def _run_and_count(step: _Step) -> Iterator[WarmCall]:
    """Runs it; what served its calls."""
    before = _placements()  # kept, so that none of the new ones gets the number of one that went
    counts = {key: placement.count() for key, placement in before.items()}
    step.run()
    for key, placement in _placements().items():
        if count := placement.count() - counts.get(key, 0):
            request = placement.decision.request
            request = step.requests.get(request.phase, request)
            yield WarmCall(request, placement.kernel.name, count, placement.fallback)


def _placements() -> dict[int, Placement]:
    """What stands in the key tables, each by what tells it from any other that is kept."""
    return {id(p): p for caller in runtime.callers_so_far() for p in list(caller.table.entries.values())}


def _on_scratch(
    caller: OpCaller, tensors: Sequence[Tensor | None], parameters: Sequence[Any], kernel: str | None
) -> _Step:
    """The public call on copies of ``tensors``, and the gradients of what it returns where they need some."""
    from portakernel import ops

    function, described_op = getattr(ops, caller.contract.op), caller.contract
    phases = phases_of(described_op, tensors)
    copies = {name: like(t) for name, t in zip(described_op.names, tensors, strict=True) if t is not None}
    positional = [copies.get(tensor.name) for tensor in described_op.tensors if not tensor.keyword]
    named = {
        tensor.name: copies[tensor.name] for tensor in described_op.tensors if tensor.keyword and tensor.name in copies
    }
    named |= caller.arguments.named(parameters)

    def run() -> None:
        found = function(*positional, **named, kernel=kernel)
        results = [result for result in (found if isinstance(found, tuple) else (found,)) if result.requires_grad]
        if Phase.INFERENCE not in phases and results and described_op.gradient != "none":
            leaves = [copy for copy in copies.values() if copy.requires_grad]
            torch.autograd.grad(results, leaves, [torch.ones_like(r) for r in results], allow_unused=True)

    values = caller.arguments.canonical(parameters)
    policy = caller.policy(strictly(caller.dispatcher.registry, described_op.op, kernel))
    jobs = serving_jobs(caller, [copies.get(name) for name in described_op.names], values, phases, policy)
    requests = {phase: caller.arguments.request(tensors, values, phase) for phase in phases}
    return _Step(run, requests, tuple(jobs))

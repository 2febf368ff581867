"""Running calls ahead of time, until a run decides, loads, builds and compiles nothing new.

What several calls have to compile is compiled before the first of them, side by side in other processes.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from portakernel import runtime
from portakernel.calling.caller import OpCaller
from portakernel.calling.key_table import Placement
from portakernel.claims.request import Phase
from portakernel.errors import ArgumentTypeError, CaptureError, PortakernelError, WarmupError
from portakernel.tensors.capture import is_capturing
from portakernel.tensors.compilation import compilations
from portakernel.text.printable import exception_text
from portakernel.warming.ahead import compile_ahead
from portakernel.warming.building import Progress, progressing
from portakernel.warming.outcome import Call, WarmCall, Warmup
from portakernel.warming.prepared_calls import ConcreteCall, WarmupStep, described_call, prepared
from portakernel.warming.recording import Recording

# A function whose runs still bring something new then (a cache that grows with each) makes other calls each time.
MAX_RUNS = 5
_PHASES = list(Phase)

# The calls that could not be made, each with its diagnosis or what it raised.
Failed = dict[str, str | Exception]
Prepare = Callable[[Progress, Failed], Sequence[WarmupStep]]


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

    return _rehearsed(lambda progress, failed: [WarmupStep(lambda: function(*args, **kwargs))], recorded, alone=True)


def rehearse_call(
    caller: OpCaller, tensors: Sequence[Any], parameters: Sequence[Any], kernel: str | None = None
) -> Warmup:
    """Warms up a call of an op, by its tensors and parameters, and the kernel to name or None, on scratch copies.

    Raises:
        ArgumentTypeError, ArgumentValueError, NoKernelError: it cannot be made.
        WarmupError: it could not be compiled, or run.
    """
    return _rehearsed_calls([(caller.contract.op, lambda: (caller, tensors, parameters, kernel, False))], alone=True)


def rehearse_described(
    calls: Sequence[Call],
    device_of: Callable[[Call], str],
    shown: Progress | None = None,
    workers: int | None = None,
    *,
    alone: bool = False,
) -> Warmup:
    """Warms up calls in words, on zeros; ``device_of`` says on which of torch's devices.

    Progress goes to ``shown``, or to a terminal. ``workers`` bounds the processes that compile (default: one a core).
    ``alone``: there is a single call, so what is wrong with it is raised, not reported.

    Raises:
        UnknownNameError: an op that there is not; nothing was warmed up.
        UnknownNameError, ArgumentTypeError, ArgumentValueError, NoKernelError: of one alone, it cannot be made.
        WarmupError: some could not be made, compiled or run; the others were.
    """
    for call in calls:
        runtime.contract_of(call.op)
    with torch.enable_grad():  # whether there are gradients is what `training` says, wherever this is called
        made = [(str(call), functools.partial(described_call, call, device_of)) for call in calls]
        return _rehearsed_calls(made, shown, workers, alone=alone)


def _rehearsed_calls(
    calls: Sequence[tuple[str, Callable[[], ConcreteCall]]],
    shown: Progress | None = None,
    workers: int | None = None,
    *,
    alone: bool,
) -> Warmup:
    """Warms up calls, each under its name; ``alone``: what cannot be made is its own error."""

    def prepare(progress: Progress, failed: Failed) -> Sequence[WarmupStep]:
        steps: list[WarmupStep] = []
        for name, make in calls:
            try:
                steps.append(prepared(*make(), progress))
            except Exception as error:  # the plugin border: what a build raises stops no other call
                if alone:
                    raise
                failed[name] = error
        return steps

    return _rehearsed(prepare, lambda progress: nullcontext(), shown, workers, alone=alone)


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
        failed: Failed = progress.failed
        steps = prepare(progress, failed)
        ahead, uncompiled = _compile_ahead(steps, progress, workers)
        failed.update(uncompiled)
        able = [step for step in steps if not any(str(job) in uncompiled for job, _ in step.jobs)]
        with first_run(progress):
            steps = _run_first(able, progress, failed, alone=alone)
        runs, settled, calls = _run_until_settled(steps, progress)
    _wait_for_devices(calls)
    warmup = Warmup(
        tuple(calls),
        tuple(progress.built),
        tuple(progress.declined.items()),
        compilations().since(compiled_before),
        runs,
        settled,
        time.perf_counter() - start,
        ahead=ahead,
        failed=_told(failed),
    )
    if failed:
        raise WarmupError(warmup) from next((why for why in failed.values() if isinstance(why, Exception)), None)
    return warmup


def interrupted(progress: Progress, compiled_before: int, seconds: float) -> Warmup:
    """What came of a warm-up until an interrupt: its progress, and what was compiled since there were so many."""
    return Warmup(
        (),
        tuple(progress.built),
        tuple(progress.declined.items()),
        compilations().since(compiled_before),
        0,
        False,
        seconds,
        ahead=tuple(progress.ahead),
        failed=_told(progress.failed),
        interrupted=True,
    )


def _run_first(steps: Sequence[WarmupStep], progress: Progress, failed: Failed, *, alone: bool) -> list[WarmupStep]:
    """Runs each step; those that did not raise. What one of several raised is put into ``failed``."""
    ran: list[WarmupStep] = []
    for place, step in enumerate(steps):
        progress.advance("run 1")
        progress.count(place, len(steps))
        try:
            step.run()
        except Exception as error:  # the plugin border: what a kernel raises stops no other call
            if (alone and isinstance(error, PortakernelError)) or not step.requests:
                raise
            failed[step.name] = error
        else:
            ran.append(step)
    return ran


def _run_until_settled(steps: Sequence[WarmupStep], progress: Progress) -> tuple[int, bool, list[WarmCall]]:
    """Runs all steps a second time and on, until nothing is new: how many runs it took, if it is so, their calls."""
    runs, settled = 1, False
    calls: list[WarmCall] = []
    while not settled and runs < MAX_RUNS:
        runs += 1
        progress.advance(f"run {runs}")
        known, compiled = _placements(), len(compilations())
        calls = [call for step in steps for call in _run_and_count(step)]
        settled = _placements().keys() == known.keys() and len(compilations()) == compiled
    return runs, settled, calls


def _wait_for_devices(calls: Sequence[WarmCall]) -> None:
    """Returns once all that was launched is done, because an error of it belongs to the warm-up."""
    for name in {call.request.device.torch_device for call in calls if call.request.device is not None}:
        if name is not None and not name.startswith("cpu"):
            torch.get_device_module(name).synchronize(name)


def _told(failed: Failed) -> tuple[tuple[str, str], ...]:
    return tuple((call, why if isinstance(why, str) else _raised(why)) for call, why in failed.items())


def _raised(error: Exception) -> str:
    """The text for what a call raised: portakernel's own errors say it themselves."""
    return str(error) if isinstance(error, PortakernelError) else exception_text(error)


def _compile_ahead(
    steps: Sequence[WarmupStep], progress: Progress, workers: int | None
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Compiles side by side what the caches lack; returns what was compiled, and what could not be, with why."""
    jobs = [job for step in steps for job in step.jobs]
    if not jobs:
        return (), {}
    outcomes = compile_ahead(runtime.dispatcher(), jobs, progress, workers)
    compiled = tuple(outcome.call for outcome in outcomes if not outcome.error)
    return compiled, {outcome.call: outcome.error for outcome in outcomes if outcome.error}


def _run_and_count(step: WarmupStep) -> Iterator[WarmCall]:
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
    """The placements in the key tables, by their ``id``, which no other object has while they are kept.

    Those of one op stand in the order of phases, not in the order in which this process called them.
    """
    tables = (list(caller.table.entries.values()) for caller in runtime.callers_so_far())
    return {id(p): p for table in tables for p in sorted(table, key=lambda p: _PHASES.index(p.decision.request.phase))}

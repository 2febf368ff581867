"""Drawn requests, one after the other, put to every kernel that claims them; an event for each thing that was tried."""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from portakernel import runtime
from portakernel.calling.caller import OpCaller
from portakernel.claims.request import Phase
from portakernel.contracts import contract
from portakernel.errors import ArgumentTypeError, ArgumentValueError
from portakernel.registry.kernel import Kernel
from portakernel.registry.registry import REFERENCE
from portakernel_kit.conformance.autograd import Autograd
from portakernel_kit.conformance.drawn.request import Drawn, draw_request
from portakernel_kit.conformance.forward import Forward
from portakernel_kit.conformance.gradients import Backward
from portakernel_kit.conformance.inputs import draw_inputs, generator
from portakernel_kit.conformance.observing.observation import Finished
from portakernel_kit.conformance.trial import Outcome, Trial, attempt, synchronise
from portakernel_kit.conformance.venue import Venue, find_venue
from portakernel_kit.conformance.written import forward_of, with_twins

# In place of a kernel's name: whichever the op's own call chooses.
CHOSEN = "chosen"


@dataclass(frozen=True, slots=True)
class Begun:
    """A kernel is put to a request: what ends the process next, it ended."""

    number: int
    op: str
    kernel: str


@dataclass(frozen=True, slots=True)
class Tried:
    """One aspect of one request of one kernel; ``drawn`` says what was asked where it failed."""

    begun: Begun
    outcome: Outcome
    drawn: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Undefined:
    """A request that the op refuses, and why."""

    begun: Begun
    reason: str


Event = Begun | Tried | Undefined | Finished


@dataclass(frozen=True, slots=True)
class Job:
    """The requests ``first``, ``first + step``, … below ``end``, as many as come in ``seconds``.

    ``kernels`` names kernels and plugins; where it is empty all are tried. With ``modes`` kernels for devices that are
    not here run too, where their plugin has an execution mode.
    """

    device: str
    ops: tuple[str, ...]
    kernels: frozenset[str]
    seed: int
    first: int
    step: int
    end: int
    seconds: float
    modes: bool = False

    def events(self) -> Iterator[Event]:
        """Runs it in this process; the op of a request is given by its number."""
        deadline = time.monotonic() + self.seconds
        found = _Requests(self)
        # tensors are small, and threads that wait for each other cost more (portakernel_kit.conformance.threads)
        torch.set_num_threads(1)
        for number in range(self.first, self.end, self.step):
            if time.monotonic() > deadline:
                break
            for event in found.tried(number):
                yield event
                if isinstance(event, Tried) and event.outcome.status == "failed" and self._lost():
                    yield Finished(lost=True)
                    return
        yield Finished()

    def _lost(self) -> bool:
        """Whether the device answers no more."""
        try:
            synchronise(torch.device(self.device))
        except Exception:  # noqa: BLE001 - the plugin border: whatever a kernel left behind
            return True
        return False


class _Requests:
    """What a process needs for all of its requests."""

    def __init__(self, job: Job) -> None:
        self.job, self.dispatcher = job, runtime.dispatcher()
        self.callers = {op: OpCaller(contract(op), self.dispatcher) for op in job.ops}
        devices = self.dispatcher.registry.devices
        here = next(device for device in devices if device.torch_device == job.device and not device.attached)
        self.kernels: dict[str, list[tuple[Kernel, Venue]]] = {op: [] for op in job.ops}
        for kernel in self.dispatcher.registry.kernels.values():
            if kernel.op not in self.kernels or (job.kernels and not {kernel.name, kernel.plugin} & job.kernels):
                continue
            venue = find_venue(self.dispatcher, kernel, here)
            if isinstance(venue, Venue) and (venue.mode is None or job.modes):
                self.kernels[kernel.op].append((kernel, venue))

    def tried(self, number: int) -> Iterator[Event]:
        """What comes of one request."""
        job, op = self.job, self.job.ops[number % len(self.job.ops)]
        caller, source = self.callers[op], generator(self.job.seed, op, "drawn", number)
        drawn = draw_request(caller.contract, job.seed, number)
        first = Begun(number, op, CHOSEN)
        yield first
        inputs = draw_inputs(caller.contract, drawn.case, drawn.dtypes, job.device, source)
        reference = self.dispatcher.registry.kernels[f"{REFERENCE}.{op}"]
        place = Venue(job.device, ())
        try:
            trial = Trial(caller, reference, place, inputs, frozenset())
        except (ArgumentValueError, ArgumentTypeError, IndexError) as error:
            yield Undefined(first, str(error))
            return
        except Exception as error:  # noqa: BLE001 - the formula itself is at fault, not one kernel
            what = Outcome("claim", "failed", f"{type(error).__name__}: {error}", traceback=traceback.format_exc())
            yield Tried(first, what, drawn.to_json())
            return
        if not job.kernels:
            outcome = attempt("forward", lambda: _chosen(trial))
            yield Tried(first, outcome, drawn.to_json() if outcome.status == "failed" else None)
        for kernel, venue in self.kernels[op]:
            small = venue.max_elements is None or sum(t.numel() for t in inputs.given.values()) <= venue.max_elements
            other = trial.of(kernel, venue)
            if small and other.serves(inputs.tensors):
                begun = Begun(number, op, kernel.name)
                yield begun
                for outcome in _outcomes(other, drawn, generator(job.seed, op, "gradients", number)):
                    yield Tried(begun, outcome, drawn.to_json() if outcome.status == "failed" else None)


def _chosen(trial: Trial) -> list[str]:
    """What is wrong with the results of the op's own call, whichever kernel serves it."""
    from portakernel import ops

    tensors, written = with_twins(trial)
    positional, keywords = trial.inputs.keywords(tensors)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fallbacks, which may well be
        found = getattr(ops, trial.contract.op)(*positional, **keywords)
    return trial.compare_results(written or (found if isinstance(found, tuple) else (found,)))


def _outcomes(trial: Trial, drawn: Drawn, source: torch.Generator) -> Iterator[Outcome]:
    """One outcome for each aspect that the kernel claims of the request."""
    kernel, tensors, forward = trial.kernel, trial.inputs.tensors, forward_of(trial)
    yield attempt("forward", forward.fresh)
    if not forward.calls:
        return
    if drawn.gradient == "transposed" and isinstance(
        forward, Forward
    ):  # which says nothing about results: one in three
        yield attempt("out", forward.into_out)
    saves = kernel.saves in ("contract", "own") and trial.contract.saved
    if saves and isinstance(forward, Forward) and trial.serves(tensors, Phase.TRAINING):
        yield attempt("saved", forward.saving)
    backward = Backward(trial, source)
    if drawn.case.backward and trial.serves(tensors, Phase.BACKWARD):
        yield attempt("backward", lambda: backward.once(drawn.gradient))
    recorded = kernel.saves == "autograd" and drawn.case.backward and trial.venue.mode is None
    if recorded and trial.serves(tensors, Phase.TRAINING):
        yield attempt("autograd", Autograd(trial, source).gradients)
    if trial.serves(tensors, requires=frozenset({"deterministic"})):
        yield attempt("determinism", lambda: forward.repeated() + backward.repeated())
    yield from trial.memory_outcomes()

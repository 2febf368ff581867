"""What only many calls show: threads that get into each other's way, and memory that is kept."""

from __future__ import annotations

import functools
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from portakernel.claims.request import Phase
from portakernel.contract import Case, Contract
from portakernel_kit.conformance.graph import new_stream, replayed_at_once
from portakernel_kit.conformance.meeting import Meeting
from portakernel_kit.conformance.memory import same_bits
from portakernel_kit.conformance.trial import Trial, synchronise
from portakernel_kit.conformance.unit import Unit
from portakernel_kit.conformance.written import call_on_twins, with_twins

THREADS = 4
_CALLS = 10


def _taking_turns(_frame: FrameType, _event: str, _argument: Any) -> Any:
    """A tracer that lets another thread go on at every line: Python by itself switches every 5 ms, a call or never."""
    time.sleep(0)
    return _taking_turns


@contextmanager
def _line_by_line() -> Iterator[None]:
    """Within this context this thread takes turns with others."""
    before = sys.gettrace()
    sys.settrace(_taking_turns)
    try:
        yield
    finally:
        sys.settrace(before)


@dataclass(slots=True)
class Repetition:
    """Calls of one kernel on the inputs of several trials, which differ in their numbers alone; ``others`` in more."""

    trials: Sequence[Trial]
    others: Sequence[Trial] = ()

    def threads(self) -> list[str]:
        """Each thread gets the bits that it gets alone; asked of kernels that claim to be deterministic."""
        # copies: a kernel that returns one buffer for all would be compared with itself
        alone = [[tensor.clone() for tensor in self._first(trial)] for trial in self.trials]
        return self._interrupted(alone[0]) or self._at_once(alone)

    def _interrupted(self, wanted: Sequence[Tensor]) -> list[str]:
        """A call in the middle of which another thread makes one gets its bits, wherever that is, and so does that."""
        for other in (self.trials[1], *self.others):
            expected = [tensor.clone() for tensor in self._first(other)]
            for streams in _streams(torch.device(other.venue.torch_device)):
                places, *wrong = self._met(wanted, other, expected, streams)
                if not any(wrong):
                    continue
                alone = ((k, self._met(wanted, other, expected, streams, k)) for k in range(len(places)))
                file, line = next((places[k] for k, (_, is_wrong, _) in alone if is_wrong), ("", 0))
                where = f"it was in line {line} of {'/'.join(Path(file).parts[-2:])}" if file else "it ran"
                text = f"a call gave other bits than alone, when another thread made one while {where}"
                return [f"{text}: a buffer or a setting is shared between calls"]
        return []

    def _met(
        self,
        wanted: Sequence[Tensor],
        other: Trial,
        expected: Sequence[Tensor],
        streams: Sequence[Any],
        only: int | None = None,
    ) -> tuple[list[tuple[str, int]], bool, bool]:
        """Where a call met those of ``other``; whether it has other bits than alone, and whether these have."""
        trial, device = self.trials[0], torch.device(other.venue.torch_device)
        wrong, last = list[bool](), list[tuple[Any, ...]]()

        def differ(found: Sequence[Any], known: Sequence[Tensor], of: Trial) -> bool:
            is_asked = "deterministic" in of.properties
            return is_asked and not all(same_bits(a, b) for a, b in zip(found, known, strict=True))

        def whole_call() -> None:
            with _on(streams[1]):
                last[:] = [self._results(other)]
                synchronise(device)
                wrong.append(differ(last[0], expected, other))

        meeting = Meeting(whole_call, lambda: synchronise(device), only)
        with _on(streams[0]):
            found = self._results(trial, within=meeting.at_every_point())
            synchronise(device)
        wrong += [differ(results, expected, other) for results in last]  # where the first call may have written
        return meeting.places, differ(found, wanted, trial), any(wrong)

    def _at_once(self, alone: Sequence[Sequence[Tensor]]) -> list[str]:
        """Threads that go on at once, as they happen to."""
        wrong, raised = [0] * THREADS, list[BaseException]()
        together = threading.Barrier(THREADS)  # before each call: else one thread is done before another begins
        inner = torch.get_num_threads()

        def work(place: int) -> None:
            trial, wanted = self.trials[place], alone[place]
            torch.set_num_threads(inner)  # a new thread begins with what the process began with, which sums otherwise
            try:
                for _ in range(_CALLS):
                    together.wait()
                    found = self._results(trial, within=_line_by_line())
                    together.wait()  # by now whoever writes to the same memory has done so
                    wrong[place] += not all(same_bits(a, b) for a, b in zip(found, wanted, strict=True))
            except threading.BrokenBarrierError:
                return  # another thread's call has raised
            except Exception as error:  # noqa: BLE001 - a kernel's: told below, where it can be seen
                raised.append(error)
                together.abort()

        workers = [threading.Thread(target=work, args=(place,)) for place in range(THREADS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if raised:
            raise raised[0]
        if not any(wrong):
            return []
        text = f"{sum(wrong)} of {THREADS * _CALLS} calls from {THREADS} threads gave other bits than alone"
        return [f"{text}: a buffer or a setting is shared between calls"]

    def graphs(self) -> list[str]:
        """Two graphs of calls with other numbers, replayed at once, give in each replay what the calls give alone."""
        device = torch.device(self.trials[0].venue.torch_device)
        pair = self.trials[:2]
        alone = [[tensor.clone() for tensor in self._first(trial)] for trial in pair]
        calls = [functools.partial(self._results, trial) for trial in pair]
        replays = replayed_at_once(calls, device)
        wrong = sum(
            not all(same_bits(a, b) for a, b in zip(found, wanted, strict=True))
            for several, wanted in zip(replays, alone, strict=True)
            for found in several
        )
        if not wrong:
            return []
        text = f"{wrong} of {sum(map(len, replays))} replays of two graphs at once gave other bits than calls alone"
        return [f"{text}: a buffer is shared between the graphs"]

    def memory(self) -> list[str]:
        """No call leaves tensors behind, when its results are dropped; what a first call keeps is a cache."""
        trial = self.trials[0]
        self._first(trial)
        device = torch.device(trial.venue.torch_device)
        allocated = _allocated(device)
        gc.freeze()  # what is there already is passed over: to look through it takes longer than all the calls
        try:
            for _ in range(_CALLS):
                self._results(trial)
            gc.collect()
            tensors = sum(1 for one in gc.get_objects() if type(one) is Tensor)
        finally:
            gc.unfreeze()
        problems = [f"{_CALLS} calls left {tensors} tensors behind"] if tensors >= _CALLS else []
        if (device_bytes := _allocated(device) - allocated) >= _CALLS:
            problems.append(f"{_CALLS} calls left {device_bytes} bytes of the device's memory allocated")
        return problems

    def _first(self, trial: Trial) -> tuple[Any, ...]:
        """The results of one call, after which the kernel is loaded and has what it keeps."""
        call_on_twins(trial)
        return self._results(trial)

    def _results(self, trial: Trial, *, within: AbstractContextManager[None] | None = None) -> tuple[Any, ...]:
        """One call, without the looks around it that ``Trial.call`` takes: those are no part of the kernel."""
        launch, (tensors, written), values = trial.launchers[Phase.INFERENCE], with_twins(trial), trial.inputs.values
        with trial.venue.enter(), torch.no_grad(), within or nullcontext():
            found = launch(*tensors, *values, None)
        return written or (tuple(found) if isinstance(found, (tuple, list)) else (found,))


def differing(
    contract: Contract, case: Case, units: Iterable[Unit], serves: Callable[[Unit], bool]
) -> list[tuple[Case, Unit]]:
    """Cases among ``units`` that differ from ``case``, in each parameter one, as far as the kernel serves such."""
    found, asked, values = dict[str, tuple[Case, Unit]](), set[tuple[str, Any]](), contract.values(case.parameters)
    for unit in units:
        for name, value in contract.values(unit.case.parameters).items() if unit.case is not None else ():
            if unit.case is None or name in found or value == values[name] or (name, value) in asked:
                continue
            asked.add((name, value))
            if serves(unit):
                found[name] = unit.case, unit
    return list({unit.name: (other, unit) for other, unit in found.values()}.values())


def _streams(device: torch.device) -> list[tuple[Any, Any]]:
    """What two threads' calls run on: the stream that both have, and on a GPU one each."""
    if device.type != "cuda":
        return [(None, None)]
    return [(None, None), (new_stream(device), new_stream(device))]


def _on(stream: Any) -> AbstractContextManager[Any]:
    return nullcontext() if stream is None else torch.cuda.stream(stream)


def _allocated(device: torch.device) -> int:
    """Bytes of a GPU's memory that tensors have."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0

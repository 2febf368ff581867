"""What only many calls show: threads that get into each other's way, and memory that is kept."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from portakernel.claims.request import Phase
from portakernel_kit.conformance.memory import same_bits
from portakernel_kit.conformance.trial import Trial
from portakernel_kit.conformance.written import with_twins

THREADS = 4
_CALLS = 10


def _taking_turns(_frame: FrameType, _event: str, _argument: Any) -> Any:
    """A tracer that lets another thread go on at every line: Python by itself switches every 5 ms, a call or never."""
    time.sleep(0)
    return _taking_turns


@contextmanager
def _line_by_line() -> Iterator[None]:
    """Within this context this thread takes turns with others."""
    sys.settrace(_taking_turns)
    try:
        yield
    finally:
        sys.settrace(None)


@dataclass(slots=True)
class Repetition:
    """Calls of one kernel on the inputs of several trials, which differ in their numbers alone."""

    trials: Sequence[Trial]

    def threads(self) -> list[str]:
        """Each thread gets the bits that it gets alone; asked of kernels that claim to be deterministic."""
        # copies: a kernel that returns one buffer for all would be compared with itself
        alone = [[tensor.clone() for tensor in self._first(trial)] for trial in self.trials]
        wrong, raised = [0] * THREADS, list[BaseException]()
        together = threading.Barrier(THREADS)  # before each call: else one thread is done before another begins
        inner = torch.get_num_threads()

        def work(place: int) -> None:
            trial, wanted = self.trials[place], alone[place]
            torch.set_num_threads(inner)  # a new thread begins with what the process began with, which sums otherwise
            try:
                for _ in range(_CALLS):
                    together.wait()
                    found = self._results(trial, in_turns=True)
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
        tensors, written = with_twins(trial)
        trial.call(Phase.INFERENCE, tensors, None, written=written)
        return self._results(trial)

    def _results(self, trial: Trial, *, in_turns: bool = False) -> tuple[Any, ...]:
        """One call, without the looks around it that ``Trial.call`` takes: those are no part of the kernel."""
        launch, (tensors, written) = trial.launchers[Phase.INFERENCE], with_twins(trial)
        with trial.venue.enter(), torch.no_grad(), _line_by_line() if in_turns else nullcontext():
            found = launch(*tensors, *trial.inputs.values, None)
        return written or (tuple(found) if isinstance(found, (tuple, list)) else (found,))


def _allocated(device: torch.device) -> int:
    """Bytes of a GPU's memory that tensors have."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0

"""The key table: for each kind of call its kernel, ready to run, and how often it ran."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from portakernel.claims.capability import Rejection
from portakernel.claims.request import Phase
from portakernel.deciding.decision import Decision, Use
from portakernel.deciding.policies import Policy
from portakernel.host.as_written import as_written
from portakernel.host.locks import make_lock
from portakernel.registry.kernel import Kernel
from portakernel.tensors.torch_internals import profiler
from portakernel.tuning.silences import Silence

MAX_KEYS = 4096
MAX_FEW = 1024


@dataclass(slots=True)
class Placement:
    """A key's kernel: how to run it, the decision behind it, and how often it was called.

    ``cannot`` are kernels that declined all calls of this key, ``refused`` sizes that this placement's own kernel
    declined, ``fallback`` the kernels that were expected to go before it. ``policy`` is the one that chose it, where
    that is not the process's alone. ``record`` makes its node of an eager autograd graph, and thereby the call, once
    there was one; ``backward`` names the kernel that was found for the node then, where one had to be. ``unmeasured``
    is why no measurement chose it, in a word.
    """

    decision: Decision
    kernel: Kernel
    run: Callable[..., Any]
    calls: itertools.count[int] = field(default_factory=itertools.count)
    cannot: dict[str, Rejection] = field(default_factory=dict[str, Rejection])
    refused: dict[tuple[str, int], Rejection] = field(default_factory=dict[tuple[str, int], Rejection])
    fallback: tuple[str, ...] = ()
    policy: Policy | None = None
    record: Callable[..., Any] | None = None
    backward: str = ""
    unmeasured: Silence = ""

    def count(self) -> int:
        """Calls so far. A counter can only be read by its repr without advancing it; its own increment is atomic."""
        return int(repr(self.calls)[len("count(") : -1])

    def launch(self, *arguments: Any) -> Any:
        """Runs the kernel and counts the call; while a profiler records, as an event with the op's and its name.

        Raises:
            CannotRun: the kernel declines the call; it is not counted.
        """
        result = self.profiled(*arguments) if profiler._is_profiler_enabled else self.run(*arguments)
        next(self.calls)
        return result

    @as_written
    def profiled(self, *arguments: Any) -> Any:
        """Runs the kernel as an event of its own, not counted."""
        with torch.profiler.record_function(self.label):
            return self.run(*arguments)

    @property
    def label(self) -> str:
        """A profiler's name for it: ``portakernel.rms_norm [triton.rms_norm]``, the phase where it is not inference."""
        request = self.decision.request
        phase = "" if request.phase is Phase.INFERENCE else f" {request.phase}"
        return f"portakernel.{request.op}{phase} [{self.kernel.name}]"

    @property
    def use(self) -> Use:
        """The use that its calls are counted as."""
        request = self.decision.request
        return Use(request.op, self.kernel.name, str(request.phase), str(self.decision.target), self.fallback)


def remember_few(held: dict[Any, Any], key: Any, value: Any) -> None:
    """Puts a value into a dictionary that is expected to stay small, and is emptied where it does not."""
    if len(held) >= MAX_FEW:
        held.clear()
    held[key] = value


class KeyTable:
    """Placements by key. Bounded: cleared when full, which costs each kind of call one more decision.

    ``entries`` is read without a lock on the hot path; everything else takes the lock.
    """

    def __init__(self) -> None:
        self.entries: dict[Any, Placement] = {}
        self._past: Counter[Use] = Counter()
        self._past_unmeasured: Counter[str] = Counter()
        self._lock = make_lock()

    def remember(self, key: Any, placement: Placement, replaced: Placement | None = None) -> Placement:
        """The placement under ``key`` from now on: this one, unless another thread came first.

        A placement that was decided during a passing fault (no memory, no descriptors) serves its own call alone.
        """
        if placement.decision.passes:
            return placement
        with self._lock:
            known = self.entries.get(key)
            if known is not None and known is not replaced:
                return known
            if known is not None:
                self._retire(known)
                del self.entries[key]
            if len(self.entries) >= MAX_KEYS:
                self.clear()
            self.entries[key] = placement
            return placement

    def clear(self) -> None:
        """Forgets every choice, so that each is made anew; the counts stay."""
        with self._lock:
            for placement in self.entries.values():
                self._retire(placement)
            self.entries.clear()

    def _retire(self, placement: Placement) -> None:
        self._past[placement.use] += placement.count()
        if placement.unmeasured:
            self._past_unmeasured[placement.unmeasured] += placement.count()

    def counts(self) -> Counter[Use]:
        """Calls so far, by use; those that were never called are left out."""
        with self._lock:
            total = Counter(self._past)
            for placement in self.entries.values():
                total[placement.use] += placement.count()
        return +total

    def unmeasured(self) -> Counter[str]:
        """Calls so far that priorities decided for want of a measurement, by the reason; none that were never made."""
        with self._lock:
            total = Counter(self._past_unmeasured)
            for placement in self.entries.values():
                if placement.unmeasured:
                    total[placement.unmeasured] += placement.count()
        return +total

"""Drawn requests in processes of their own, side by side: a kernel that ends its process costs that request alone."""

from __future__ import annotations

import math
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from portakernel.deciding.dispatcher import Dispatcher
from portakernel.errors import ArgumentValueError
from portakernel.registry.kernel import Kernel
from portakernel_kit.conformance.drawn.trying import Begun, Covered, Drew, Event, Job
from portakernel_kit.conformance.observing.isolation import MOST_DEATHS, Asked, Death, run_apart
from portakernel_kit.conformance.observing.side_by_side import side_by_side
from portakernel_kit.conformance.result import Result
from portakernel_kit.conformance.unit import drawn_name
from portakernel_kit.conformance.venue import Emulated, Where

# A kernel may have to be compiled before its first call; what takes longer hangs.
_PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Budget:
    """How many seconds requests are drawn for, over all kernels; or at most, where ``all_pairs`` are enough."""

    seconds: float
    all_pairs: bool = False


# Where nothing else is asked for: every pair, as far as two minutes go.
DEFAULT_BUDGET = Budget(120.0, all_pairs=True)


def parse_budget(text: str) -> Budget:
    """What ``60s``, ``10m``, ``2h``, ``0`` or ``all`` is.

    Raises:
        ArgumentValueError: it is none of these.
    """
    if text == "all":
        return Budget(math.inf, all_pairs=True)
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h)?", text)
    if found is None:
        raise ArgumentValueError(f"a budget is a time, such as 60s or 10m, 0, or all; this is {text!r}")
    return Budget(float(found[1]) * {"m": 60, "h": 3600}.get(found[2], 1))


@dataclass(slots=True)
class Drawing:
    """Drawn requests of several kernels, and what has come of them; ``pairs`` are asked of possible ones, by kernel."""

    dispatcher: Dispatcher
    kernels: Sequence[Kernel]
    seed: int
    budget: Budget
    device: Where = None
    first: int = 0
    workers: int = 1
    turns: Counter[str] = field(default_factory=Counter[str])
    pairs: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])

    def results(self) -> Iterator[Result]:
        """Every result, as it comes; of a request that fails, those of the smallest that fails alike."""
        if self.budget.seconds <= 0:
            return
        deadline, stopped = time.monotonic() + self.budget.seconds, threading.Event()
        asked = [Asked.of(self.dispatcher, kernel, self.device) for kernel in self.kernels]
        shares = [tuple(asked[place :: self.workers]) for place in range(self.workers)]
        seconds, pairs = self.budget.seconds, self.budget.all_pairs
        first = self.first
        jobs = [Job(share, self.seed, seconds, first, all_pairs=pairs, left_out=first) for share in shares if share]
        for event in side_by_side([self._restarted(job, deadline, stopped) for job in jobs], stopped):
            if isinstance(event, Covered):
                self.pairs[event.kernel] = event.asked, event.possible
            elif isinstance(event, Drew):
                self.turns[event.begun.kernel] += 1
                yield from (_repeatable(result, event.request, self.device) for result in event.results)
            elif isinstance(event, Result):
                yield event

    def to_json(self) -> dict[str, Any]:
        """How many requests there were, and of how many pairs; ``first``: of each kernel so many, for certain."""
        pairs = [sum(column) for column in zip(*self.pairs.values(), strict=True)] or [0, 0]
        by_kernel = {kernel.name: self.turns[kernel.name] for kernel in self.kernels}
        head = {"requests": self.turns.total(), "first": self.first + min(by_kernel.values(), default=0)}
        return head | dict(zip(("pairs_asked", "pairs_possible"), pairs, strict=True)) | {"by_kernel": by_kernel}

    def _restarted(self, job: Job, deadline: float, stopped: threading.Event) -> Iterator[Event | Result]:
        """The events of one process after the other, until there is nothing left to do."""
        deaths: Counter[str] = Counter()
        while job.asked and not stopped.is_set() and (left := deadline - time.monotonic()) > 0:
            begun: Begun | None = None
            failed: Drew | None = None
            for event in run_apart(replace(job, seconds=left), _PATIENCE_S, stopped):
                if isinstance(event, Drew):
                    failed = None if event.is_last else event
                    if event.is_last:
                        yield event
                elif isinstance(event, Covered):
                    yield event
                elif isinstance(event, Begun):
                    done = job.done if begun is None or event.turn == begun.turn else frozenset[str]()
                    begun, job = event, replace(job, first=event.turn, done=done | {event.kernel})
                elif isinstance(event, Death):
                    if failed is not None:
                        yield failed  # it died of what was to be a smaller one
                    elif begun is None:
                        raise RuntimeError(f"no process that runs drawn requests could begin: {event.text}")
                    else:
                        yield _died(self.dispatcher.registry.kernels[begun.kernel], begun, event, self.device)
                    if begun is not None:
                        deaths[begun.kernel] += 1
                elif not event.lost:
                    return
            gone = {name for name, count in deaths.items() if count >= MOST_DEATHS}
            job = replace(job, asked=tuple(asked for asked in job.asked if asked.kernel not in gone))


def _died(kernel: Kernel, begun: Begun, death: Death, where: Where) -> Result:
    result = Result(
        kernel.name,
        kernel.op,
        drawn_name(kernel.op, begun.turn),
        "forward",
        "failed",
        death.text,
        traceback=death.written,
    )
    return _repeatable(result, begun.request, where)


def _repeatable(result: Result, request: str, where: Where) -> Result:
    """The result and, where it failed, what to enter to see it again."""
    if result.status != "failed" or not request:
        return result
    emulated = f" --emulate {where.target}" if isinstance(where, Emulated) else ""
    return replace(result, detail=f"{result.detail}\nagain: portakernel check{emulated} --one '{request}'")

"""One request measured: every contender checked, warmed up and timed, in rounds that alternate between all of them."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from portakernel_kit.bench.contenders import Contender, Field, described_error
from portakernel_kit.bench.operands import Operands
from portakernel_kit.bench.results import Latency, Measured, Status
from portakernel_kit.bench.stopwatch import Batch, Call, Stopwatch
from portakernel_kit.bench.verification import differences

COPY = "copy"
# A round has several launches of each, so that a median stands behind each figure, and few, so that rounds alternate.
_MOST_LAUNCHES, _WARMUP_LAUNCHES = 20, 3
_FEWEST_ROUNDS, _MOST_ROUNDS = 3, 200
# Rounds that there should be time for; a call that takes longer than its part of one gets one launch a round.
_ROUNDS_WANTED = 10
# However little time there is, a call as short as this has its rounds.
_NEVER_SLOW_US = 50_000.0

Progress = Callable[[str], None]


@dataclass(slots=True)
class Timed:
    """Something that is timed: calls of one kernel, one for each set of operands, in turn."""

    name: str
    calls: tuple[Call, ...]
    launches: int = 1
    lead_us: float = 0.0
    rounds: list[tuple[float, ...]] = field(default_factory=list[tuple[float, ...]])
    failure: str = ""
    _turn: int = 0

    def next_calls(self, count: int) -> list[Call]:
        """The next ``count`` calls, going on among the sets where the last ones ended."""
        first, self._turn = self._turn, (self._turn + count) % len(self.calls)
        return list(itertools.islice(itertools.cycle(self.calls), first, first + count))

    def run(self, watch: Stopwatch, count: int) -> Batch | None:
        """Times ``count`` calls; None where one raised, which ends this one's part."""
        try:
            batch = watch.time(self.next_calls(count), self.lead_us)
        except Exception as error:  # noqa: BLE001 - the plugin border: a kernel that raises is shown with its reason
            self.failure = described_error(error)
            return None
        self.lead_us = batch.lead_us
        return batch


@dataclass(frozen=True, slots=True)
class Expected:
    """What the results have to be near to, by whom."""

    results: Sequence[Any]
    source: str
    names: tuple[str, ...]


def results_of(contender: Contender, operands: Operands, watch: Stopwatch) -> tuple[Any, ...]:
    """What one call returns; whatever it raises propagates."""
    if contender.launch is None:
        raise RuntimeError(contender.failure)
    with torch.no_grad():
        found = contender.launch(operands)
    watch.synchronise()
    if written := operands.written:  # the results are what stands in the arguments now
        return tuple(tensor.clone() for tensor in written.values())
    return tuple(found) if isinstance(found, (tuple, list)) else (found,)


def measure(
    competing: Field,
    sets: Sequence[Operands],
    expected: Expected | None,
    watch: Stopwatch,
    *,
    moved_bytes: int,
    seconds: float,
    advance: Progress,
    replays: bool = False,
) -> tuple[tuple[Measured, ...], Latency | None]:
    """Each contender's time or why there is none, and the time of a plain copy of ``moved_bytes``.

    With ``replays`` it is the time of a call that was captured in a graph.
    """
    done: dict[str, Measured] = {}
    timed: list[Timed] = []
    for contender in competing.contenders:
        name = contender.kernel.name
        advance(f"checking {name}")
        status, reason = _checked(contender, sets[0], expected, watch)
        if status != "timed":
            done[name] = Measured(name, status, reason=reason)
            continue
        launch = contender.launch
        assert launch is not None
        calls: tuple[Call, ...] = tuple(partial(launch, operands) for operands in sets)
        if replays:
            try:
                calls = _replays(calls, watch)
            except Exception as error:  # noqa: BLE001 - the plugin border: a kernel that cannot be captured is shown
                done[name] = Measured(name, "failed", reason=described_error(error))
                continue
        timed.append(Timed(name, calls))
    device = next(tensor.device for tensor in sets[0].tensors if tensor is not None)
    copying = _copying(moved_bytes, device, len(sets))
    if copying is not None:
        timed.append(copying)
    references = {contender.kernel.name for contender in competing.contenders if contender.kernel.is_reference}
    budgets = _warmed(timed, watch, seconds, advance)
    for entry in list(timed):
        slow_us = budgets.get(entry.name)
        if entry.failure:
            done[entry.name] = Measured(entry.name, "failed", reason=entry.failure)
            timed.remove(entry)
        elif slow_us is not None and entry.name in references:
            text = f"one call takes {slow_us / 1e6:.2g} s, of {seconds:g} s for all; more --seconds time it"
            done[entry.name] = Measured(entry.name, "slow", reason=text)
            timed.remove(entry)
    _rounds(timed, watch, seconds, advance)
    latencies = {entry.name: Latency.of(entry.rounds) for entry in timed if entry.rounds and not entry.failure}
    for entry in timed:
        if entry.name in latencies:
            done[entry.name] = Measured(entry.name, "timed", latencies[entry.name])
        else:
            done[entry.name] = Measured(entry.name, "failed", reason=entry.failure)
    done.pop(COPY, None)
    return tuple(done.values()), latencies.get(COPY)


def _checked(
    contender: Contender, operands: Operands, expected: Expected | None, watch: Stopwatch
) -> tuple[Status, str]:
    """Whether the contender's results are near to what is expected."""
    if contender.launch is None:
        return "failed", contender.failure
    if expected is not None and expected.source == contender.kernel.name:
        return "timed", ""
    try:
        found = results_of(contender, operands, watch)
        if expected is None:
            return "timed", ""
        text = differences(found, expected.results, expected.names)
    except Exception as error:  # noqa: BLE001 - the plugin border: a kernel that raises is shown with its reason
        return "failed", described_error(error)
    return ("wrong", text) if text else ("timed", "")


def _replays(calls: Sequence[Call], watch: Stopwatch) -> tuple[Call, ...]:
    """Replays of ``calls``, each of which runs once before it is captured: what compiles does so then."""
    with torch.no_grad():
        for call in calls:
            call()
        return tuple(watch.captured(call) for call in calls)


def _copying(moved_bytes: int, device: torch.device, count: int) -> Timed | None:
    """A copy that reads half of the bytes and writes the other half, from as many sources as there are sets."""
    half = moved_bytes // 2
    if half == 0:
        return None
    try:
        pairs = [[torch.empty(half, dtype=torch.uint8, device=device) for _ in range(2)] for _ in range(count)]
    except torch.OutOfMemoryError:
        return None
    for source, target in pairs:
        source.zero_()
        target.zero_()
    return Timed(COPY, tuple(partial(target.copy_, source) for source, target in pairs))


def _warmed(timed: Sequence[Timed], watch: Stopwatch, seconds: float, advance: Progress) -> Mapping[str, float]:
    """Runs each a few times and sets how many launches of it fit into a round; returns the times of those too slow."""
    slow: dict[str, float] = {}
    share_us = seconds * 1e6 / (_ROUNDS_WANTED * max(len(timed), 1))
    for entry in timed:
        advance(f"warming up {entry.name}")
        with torch.no_grad():
            first = entry.run(watch, 1)
            if first is None:
                continue
            if first.latencies_us[0] > max(share_us * _ROUNDS_WANTED, _NEVER_SLOW_US):
                slow[entry.name] = first.latencies_us[0]
            if first.latencies_us[0] > share_us:
                continue
            entry.run(watch, _WARMUP_LAUNCHES)
            begun = time.perf_counter()
            entry.run(watch, _WARMUP_LAUNCHES)
            each_us = (time.perf_counter() - begun) * 1e6 / _WARMUP_LAUNCHES
        entry.launches = max(1, min(_MOST_LAUNCHES, int(share_us / max(each_us, 1.0))))
        # the lead is that of a batch as long as those of the rounds
        entry.lead_us *= entry.launches / _WARMUP_LAUNCHES
    return slow


def _rounds(timed: Sequence[Timed], watch: Stopwatch, seconds: float, advance: Progress) -> None:
    """Rounds in which each has its turn, in an order that changes, for as long as there is time."""
    shuffled, order = list(timed), random.Random(0)
    deadline = time.perf_counter() + seconds
    for number in range(_MOST_ROUNDS):
        if number >= _FEWEST_ROUNDS and time.perf_counter() > deadline:
            break
        order.shuffle(shuffled)
        advance(f"round {number + 1}")
        for entry in shuffled:
            if entry.failure:
                continue
            with torch.no_grad():
                batch = entry.run(watch, entry.launches)
            if batch is not None:
                entry.rounds.append(batch.latencies_us)

"""How long calls take in one regime, all kernels on the same operands.

eager/cold  A call's time on the device after its cache was flushed, or the host's time to launch it, whichever is more:
            that is what a stream of such calls takes. On a CPU the sets of operands are larger than its caches.
eager/warm  Calls one after the other on the same operands, by the host's clock.
graph/cold  A replay of a graph of 20 calls, divided: each has operands of its own, or these are together more than
            twice the cache, which is flushed before the replay. Flushes inside would have to be subtracted. Of calls
            that take long, beside which a launch is nothing, a graph has as many as there are sets of operands.
graph/warm  A replay of a graph of 20 calls on the same operands, behind another replay, divided.

Results are fresh memory, which torch's allocator takes from the same pool for all: given as ``out``, they would be
copied once more by kernels that cannot write into it. Sets of operands follow each other in turn, five or more; in a
round each kernel has the same.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from portakernel.tuning.key import Regime
from portakernel_kit.bench.contenders import Contender, described_error
from portakernel_kit.bench.operands import Operands
from portakernel_kit.bench.stopwatch import Call, Clock, Events, stopwatch
from portakernel_kit.tune.measuring import DeclinedError
from portakernel_kit.tune.others import Processors

FEWEST_SETS, GRAPH_CALLS = 5, 20
# How long a call takes at least of which a graph need not hold so many.
_LONG_US = 500.0
_MOST_LAUNCHES = 20
# How long the launches of one kernel in a round may take together, where one takes less.
_ROUND_US = 20_000.0
_WARM_CALLS = 3
# What is copied to see whether others use the device: so much that launching it makes no difference.
_COPIED, _COPIED_ON_CPU = 1 << 26, 1 << 22


class _Held(Protocol):
    def replay(self) -> None: ...


@dataclass(slots=True)
class _Graph:
    """A captured graph, the calls in it, and what the first of them returned, on which operands."""

    graph: _Held
    calls: int
    result: Any


@dataclass(slots=True)
class CallTimer:
    """Times the contenders of one call on sets of operands, of which there are as many as ``sets_wanted`` says."""

    device: torch.device
    regime: Regime
    contenders: Mapping[str, Contender]
    sets: Sequence[Operands]
    _launches: int = 1
    _graphs: dict[tuple[str, int], _Graph] = field(default_factory=dict[tuple[str, int], _Graph])
    _watch: Clock | Events | None = None
    _copies: tuple[tuple[Tensor, Tensor], ...] = ()
    _processors: Processors | None = None

    def prepare(self, name: str) -> float:
        """Runs a kernel on every set, and captures it where that is asked for; about how long a call takes, in µs."""
        calls = [self._call(name, operands) for operands in self.sets]
        with torch.no_grad():
            for call in calls:
                call()
            self._synchronise()
            found = []
            for call in calls[:_WARM_CALLS]:
                begun = time.perf_counter_ns()
                call()
                self._synchronise()
                found.append((time.perf_counter_ns() - begun) / 1e3)
            if self._is_graph:
                self._capture(name, len(self.sets) if min(found) > _LONG_US else max(GRAPH_CALLS, len(self.sets)))
                found = [self._replayed(name, number) for number in range(_WARM_CALLS)]
        return min(found)

    def settle(self, longest_us: float) -> None:
        """Decides how many launches a round has; rounds begin."""
        self._launches = max(1, min(_MOST_LAUNCHES, int(_ROUND_US / max(longest_us, 1.0))))
        if self.device.type == "cpu":
            self._processors = Processors()

    def waited(self) -> float:
        """The share of the time since rounds began for which threads waited for processors; 0 on other devices."""
        return 0.0 if self._processors is None else self._processors.waited()

    def time(self, name: str, number: int) -> float:
        """The time of a call in a round, in microseconds."""
        with torch.no_grad():
            match self.regime:
                case Regime.EAGER_COLD:
                    return self._eager_cold(name, number)
                case Regime.EAGER_WARM:
                    return self._eager_warm(name, number)
                case _:
                    return self._replayed(name, number)

    def copy(self, number: int) -> float | None:
        """The time of a plain copy, always of the same size."""
        del number
        if not self._copies:
            size = _COPIED_ON_CPU if self.device.type == "cpu" else _COPIED
            pair = tuple(torch.zeros(size, dtype=torch.uint8, device=self.device) for _ in range(2))
            self._copies = ((pair[0], pair[1]),)
        source, target = self._copies[0]
        return statistics.median(self._timed([partial(target.copy_, source)] * FEWEST_SETS))

    def last(self, name: str) -> Any:
        """What a launch on the first set returns now: the replay's, where graphs are replayed."""
        graph = self._graphs.get((name, 0))
        if graph is None:
            with torch.no_grad():
                found = self._call(name, self.sets[0])()
            self._synchronise()
            return found
        graph.graph.replay()
        self._synchronise()
        return graph.result

    def is_lost(self) -> bool:
        """Whether the device answers no more."""
        try:
            self._synchronise()
        except Exception:  # noqa: BLE001 - whatever a kernel left behind
            return True
        return False

    # --- regimes ----------------------------------------------------------------------------------------------------

    def _eager_cold(self, name: str, number: int) -> float:
        calls = self._turn(name, number)
        times = statistics.median(self._timed(calls))
        if self.device.type == "cpu":
            return times
        self._synchronise()
        begun = time.perf_counter_ns()
        for call in calls:
            call()
        host_us = (time.perf_counter_ns() - begun) / len(calls) / 1e3
        self._synchronise()
        return max(times, host_us)

    def _eager_warm(self, name: str, number: int) -> float:
        call = self._call(name, self.sets[number % len(self.sets)])
        call()
        self._synchronise()
        begun = time.perf_counter_ns()
        for _ in range(self._launches):
            call()
        self._synchronise()
        return (time.perf_counter_ns() - begun) / self._launches / 1e3

    def _replayed(self, name: str, number: int) -> float:
        cold = self.regime is Regime.GRAPH_COLD
        graph = self._graphs[name, 0 if cold else number % len(self.sets)]
        if cold:  # behind a flush
            return self._timed([graph.graph.replay])[0] / graph.calls
        return self._unflushed(graph.graph.replay) / graph.calls

    # --- graphs -----------------------------------------------------------------------------------------------------

    @property
    def _is_graph(self) -> bool:
        return self.regime in (Regime.GRAPH_COLD, Regime.GRAPH_WARM)

    def _capture(self, name: str, count: int) -> None:
        if self.device.type != "cuda":
            raise DeclinedError(f"calls on {self.device.type} are captured in no graph; measure {self.regime.on('')}")
        indices = range(len(self.sets))
        if self.regime is Regime.GRAPH_COLD:
            turns = {0: [self.sets[n % len(self.sets)] for n in range(count)]}
        else:
            turns = {index: [self.sets[index]] * count for index in indices}
        try:
            for index, operands in turns.items():
                self._graphs[name, index] = self._captured(name, operands)
        except Exception as error:
            self._graphs = {known: graph for known, graph in self._graphs.items() if known[0] != name}
            self._synchronise()  # raises where capturing has broken more than itself
            raise DeclinedError(f"it cannot be captured in a graph: {described_error(error)}") from error

    def _captured(self, name: str, operands: Sequence[Operands]) -> _Graph:
        with torch.cuda.device(self.device):
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            results = list[Any]()
            with warnings.catch_warnings(), torch.cuda.graph(graph):
                # said of one whose first launch raises, which is told as what it is
                warnings.filterwarnings("ignore", "The CUDA Graph is empty")
                for place, one in enumerate(operands):
                    found = self._call(name, one)()
                    if place == 0:  # the others' memory is free again, for the next to take
                        results.append(found)
            torch.cuda.synchronize()
            graph.replay()
            torch.cuda.synchronize()
        return _Graph(graph, len(operands), results[0])

    # --- launching --------------------------------------------------------------------------------------------------

    def _call(self, name: str, operands: Operands) -> Call:
        launch = self.contenders[name].launch
        assert launch is not None
        return partial(launch, operands)

    def _turn(self, name: str, number: int) -> list[Call]:
        first = number * self._launches
        return [self._call(name, self.sets[(first + n) % len(self.sets)]) for n in range(self._launches)]

    def _timed(self, calls: Sequence[Callable[[], Any]]) -> tuple[float, ...]:
        """The time of each call, from a cold cache where the device has a flush."""
        return self._stopwatch().time(calls).latencies_us

    def _unflushed(self, call: Call) -> float:
        """The time of a call right behind another of the same, by the device's events."""
        with torch.cuda.device(self.device):
            event: Any = torch.cuda.Event
            start, end = event(enable_timing=True), event(enable_timing=True)
            call()
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            return float(start.elapsed_time(end)) * 1e3

    def _stopwatch(self) -> Clock | Events:
        if self._watch is None:
            found = stopwatch(self.device)
            assert isinstance(found, (Clock, Events))
            self._watch = found
        return self._watch

    def _synchronise(self) -> None:
        self._stopwatch().synchronise()


def sets_wanted(device: torch.device, regime: Regime, set_bytes: int, free_bytes: int | None) -> int:
    """How many sets of operands of this size a regime takes turns with; one at least, whatever memory is free."""
    wanted = FEWEST_SETS
    if device.type == "cpu":
        wanted = max(wanted, Clock().sets(set_bytes))
    elif regime is Regime.GRAPH_COLD:
        cache = _cache_bytes(device)
        # fewer than a graph's calls evict themselves, once five of them are more than twice the cache
        wanted = FEWEST_SETS if FEWEST_SETS * set_bytes > 2 * cache else GRAPH_CALLS
    if free_bytes is not None:
        wanted = min(wanted, free_bytes // (4 * max(set_bytes, 1)))
    return max(wanted, 1)


def _cache_bytes(device: torch.device) -> int:
    module: Any = torch.get_device_module(device)
    properties = module.get_device_properties(device) if hasattr(module, "get_device_properties") else None
    return max(int(getattr(properties, "L2_cache_size", 0)), 1 << 22)


def estimated_us(moved_bytes: int, flops: int, vendor: str) -> float:
    """About how long a call takes at best: for the order of work, and how long all of it will take; for no decision."""
    bytes_per_us, flops_per_us, launch_us = (1e4, 5e4, 10.0) if vendor == "cpu" else (3e6, 4e8, 5.0)
    return max(moved_bytes / bytes_per_us, flops / flops_per_us) + launch_us

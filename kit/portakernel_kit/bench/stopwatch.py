"""How long launches take: on accelerators by events, each after the cache was flushed; on the CPU by the clock."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch

# What a flush writes at least. AMD's last level of cache is no part of what torch calls the L2: 256 MiB on an MI300X.
_FLUSH_BYTES, _FLUSH_BYTES_HIP = 256 << 20, 512 << 20
# Sets of inputs that rotate on a CPU are together larger than its caches, as far as a few sets can be.
_CPU_CACHE_BYTES, _MOST_SETS = 128 << 20, 8
# A kernel that waits for the device on the host gains nothing from a lead: it is not given a long one.
_LONGEST_LEAD_US = 20_000.0

Call = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """The time of each call of a batch, and by how much the host has to be ahead of the device to enqueue the batch."""

    latencies_us: tuple[float, ...]
    lead_us: float = 0.0


class Stopwatch(Protocol):
    """Times launches on one device."""

    def sets(self, input_bytes: int) -> int:
        """Among how many sets of inputs of this size calls rotate, so that none is read from the cache."""
        ...

    def time(self, calls: Sequence[Call], lead_us: float = 0.0) -> Batch:
        """The time of each call, from a cold cache."""
        ...

    def synchronise(self) -> None:
        """Waits for the device."""
        ...

    def captured(self, call: Call) -> Call:
        """The replay of ``call``, which has run before, from a graph; raises what capturing it raises."""
        ...


def stopwatch(device: torch.device) -> Stopwatch:
    """The stopwatch for ``device``."""
    return Clock() if device.type == "cpu" else Events(device)


class Clock:
    """The processor's own time: a call returns when its work is done."""

    def sets(self, input_bytes: int) -> int:
        """Enough that the first one has left the caches when its turn comes again."""
        return max(2, min(_MOST_SETS, math.ceil(_CPU_CACHE_BYTES / max(input_bytes, 1))))

    def time(self, calls: Sequence[Call], lead_us: float = 0.0) -> Batch:
        """The time of each call."""
        del lead_us
        found = []
        for call in calls:
            begun = time.perf_counter_ns()
            call()
            found.append((time.perf_counter_ns() - begun) / 1e3)
        return Batch(tuple(found))

    def synchronise(self) -> None:
        """Nothing to wait for."""

    def captured(self, call: Call) -> Call:
        """Itself: a CPU has no graphs."""
        return call


class Events:
    """The device's time between two events around each launch, on the current stream.

    All calls are enqueued, each behind a flush, before the host waits once. Where the host needs longer to enqueue them
    than the flushes take, it is given a lead by further flushes in front, so that no launch finds the device idle.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module: Any = torch.get_device_module(device)
        self._event: Any = getattr(self._module, "Event", None) or self._module.event.Event
        with self._current():
            self._buffer = torch.empty(flush_bytes(device) // 4, dtype=torch.int32, device=device)
            self._flush_us = 0.0
            self._flush_us = max(min(self.time([self._flush] * 5).latencies_us), 1.0)

    def sets(self, input_bytes: int) -> int:
        """One: the cache is flushed."""
        del input_bytes
        return 1

    def time(self, calls: Sequence[Call], lead_us: float = 0.0) -> Batch:
        """The time of each call after the cache was flushed."""
        with self._current():
            pairs = [(self._event(enable_timing=True), self._event(enable_timing=True)) for _ in calls]
            self._module.synchronize()
            for _ in range(math.ceil(lead_us / self._flush_us) if self._flush_us else 0):
                self._flush()
            enqueuing = time.perf_counter_ns()
            for call, (start, end) in zip(calls, pairs, strict=True):
                self._flush()
                start.record()
                call()
                end.record()
            host_us = (time.perf_counter_ns() - enqueuing) / 1e3
            self._module.synchronize()
            latencies_us = tuple(start.elapsed_time(end) * 1e3 for start, end in pairs)
        needed_us = 1.2 * host_us - self._flush_us * len(calls)
        return Batch(latencies_us, min(max(needed_us, 0.0), _LONGEST_LEAD_US))

    def synchronise(self) -> None:
        """Waits for the device."""
        with self._current():
            self._module.synchronize()

    def captured(self, call: Call) -> Call:
        """The replay of ``call``, captured once."""
        with self._current():
            self._module.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                call()
            self._module.synchronize()
        return graph.replay

    def _flush(self) -> None:
        self._buffer.zero_()

    def _current(self) -> AbstractContextManager[Any]:
        current: AbstractContextManager[Any] = (
            self._module.device(self._device) if hasattr(self._module, "device") else nullcontext()
        )
        return current


def flush_bytes(device: torch.device) -> int:
    """How much is written between launches: at least twice the L2 cache of ``device``."""
    l2_bytes = 0
    module: Any = torch.get_device_module(device)
    if hasattr(module, "get_device_properties"):
        l2_bytes = int(getattr(module.get_device_properties(device), "L2_cache_size", 0))
    return max(2 * l2_bytes, _FLUSH_BYTES_HIP if torch.version.hip else _FLUSH_BYTES)

"""Timing by events: what is enqueued, in which order, and when the host waits; on a device that is made up."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from portakernel_kit.bench.stopwatch import Events, flush_bytes

CPU = torch.device("cpu")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the device is asked, in order; each event is one millisecond behind the one before it."""
    asked: list[str] = []
    ticks = itertools.count()

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing
            self.at = -1

        def record(self) -> None:
            self.at = next(ticks)
            asked.append("event")

        def elapsed_time(self, end: Any) -> float:
            return float(end.at - self.at)

    properties = SimpleNamespace(L2_cache_size=200 << 20)
    module = SimpleNamespace(
        Event=Event,
        synchronize=lambda: asked.append("wait"),
        device=lambda _: nullcontext(),
        get_device_properties=lambda _: properties,
    )
    monkeypatch.setattr(torch, "get_device_module", lambda _: module)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: SimpleNamespace(zero_=lambda: asked.append("flush")))
    return asked


def test_each_launch_stands_between_two_events_behind_a_flush_and_the_host_waits_once_at_the_end(
    log: list[str],
) -> None:
    watch = Events(CPU)
    log.clear()
    batch = watch.time([lambda: log.append("call")] * 3)
    assert log == ["wait", *["flush", "event", "call", "event"] * 3, "wait"]
    assert batch.latencies_us == (1000.0, 1000.0, 1000.0)


def test_a_lead_is_made_of_flushes_in_front(log: list[str]) -> None:
    watch = Events(CPU)  # whose flush takes the millisecond between two events
    log.clear()
    watch.time([lambda: log.append("call")], lead_us=2500.0)
    assert log == ["wait", "flush", "flush", "flush", "flush", "event", "call", "event", "wait"]


def test_a_host_that_is_quicker_than_the_flushes_needs_no_lead(log: list[str]) -> None:
    assert Events(CPU).time([lambda: None] * 2).lead_us == 0.0


@pytest.mark.usefixtures("log")
def test_a_flush_writes_twice_the_l2_cache() -> None:
    assert flush_bytes(CPU) == max(400 << 20, (512 << 20) if torch.version.hip else 0)

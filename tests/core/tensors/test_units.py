"""What the units of a CPU are: the processors that an op can use at once, by torch's threads and by affinity."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from portakernel.tensors.units import units_of
from portakernel.words.target import Device, Target

CPU = Device(Target("cpu", "x86_64"), "a CPU", "cpu")


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("threads", "may_run_on", "units"), [(1, 8, 1), (2, 8, 2), (8, 8, 8), (8, 2, 2)], ids=str)
def test_a_cpu_has_as_many_as_torch_s_threads_and_no_more_than_it_may_run_on(
    monkeypatch: pytest.MonkeyPatch, threads: int, may_run_on: int, units: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(may_run_on)), raising=False)
    torch.set_num_threads(threads)
    assert units_of(CPU) == units


def test_they_are_those_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    torch.set_num_threads(2)
    assert units_of(CPU) == 2
    torch.set_num_threads(1)
    assert units_of(CPU) == 1


def test_a_system_without_affinity_counts_its_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    torch.set_num_threads(4)
    assert units_of(CPU) == 2


def test_a_device_of_which_torch_does_not_say_has_none() -> None:
    assert units_of(Device(Target("apple", "m3"), "an M3", "mps")) is None

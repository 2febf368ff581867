"""Others at work on a device, by what nvidia-smi tells."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace

import pytest

from portakernel.words.target import Device, Target
from portakernel_kit.tune import others

CARD = Device(Target("nvidia", "sm_90"), "a card", "cuda:0", uuid="GPU-1")
US, PARENT = os.getpid(), os.getppid()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch):
    def tell(text: str) -> None:
        monkeypatch.setattr(others.shutil, "which", lambda name: f"/usr/bin/{name}")
        done = subprocess.CompletedProcess([], 0, stdout=text)
        monkeypatch.setattr(others.subprocess, "run", lambda *_, **__: done)

    return tell


@pytest.mark.parametrize(
    ("numbers", "busy"),
    [([US], False), ([US, PARENT], False), ([US, 1 << 30], True), ([], False), ([7, 8], False), ([7, 8, 9], True)],
)
def test_other_processes_than_ours_are_others(told, numbers, busy):
    told("\n".join(map(str, numbers)) + "\n[N/A]\n")
    assert others.others_at_work(CARD) is busy


def test_where_nobody_can_say_there_are_none(told, monkeypatch):
    told("7\n8\n9\n")
    assert not others.others_at_work(replace(CARD, uuid=None))
    assert not others.others_at_work(Device(Target("cpu", "x86_64"), "a CPU", "cpu"))

    def failing(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("nvidia-smi", 10.0)

    monkeypatch.setattr(others.subprocess, "run", failing)
    assert not others.others_at_work(CARD)

"""Others at work on a device, by what nvidia-smi tells."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from portakernel.words.target import Device, Target
from portakernel_kit.tune import others

CARD = Device(Target("nvidia", "sm_90"), "a card", "cuda:0", uuid="GPU-1")
HEAD = "# gpu         pid   type     sm    mem    enc    dec    jpg    ofa    command\n"


def sampled(*shares: str) -> str:
    """What ``nvidia-smi pmon`` prints of processes with these shares of the device."""
    return HEAD + "".join(
        f"    0       {n}     C   {share}      1      -      -      -      -    python\n"
        for n, share in enumerate(shares)
    )


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[int], str], list[str]]:
    """Has nvidia-smi tell of these processes, and this sample; gives what it was asked."""
    asked: list[str] = []

    def tell(numbers: Sequence[int], sample: str) -> list[str]:
        def run(command: Sequence[str], **_: Any) -> Any:
            asked.append(command[1])
            listed = "\n".join(map(str, numbers))
            return subprocess.CompletedProcess(command, 0, stdout=sample if command[1] == "pmon" else listed)

        monkeypatch.setattr(others.shutil, "which", lambda name: f"/usr/bin/{name}")
        monkeypatch.setattr(others.subprocess, "run", run)
        return asked

    return tell


@pytest.mark.parametrize(
    ("shares", "busy"), [(("97", "0"), False), (("97", "-"), False), (("97", "40"), True), (("-", "-"), False)]
)
def test_who_computes_beside_this_process_is_at_work_and_who_only_holds_memory_is_not(told, shares, busy):
    told([7, 8], sampled(*shares))
    assert others.others_at_work(CARD) is busy


def test_of_one_process_no_sample_is_taken(told):
    asked = told([7], sampled("97", "97"))
    assert not others.others_at_work(CARD)
    assert "pmon" not in asked


def test_where_nobody_can_say_there_are_none(told, monkeypatch):
    told([7, 8], sampled("97", "97"))
    assert not others.others_at_work(replace(CARD, uuid=None))
    assert not others.others_at_work(Device(Target("cpu", "x86_64"), "a CPU", "cpu"))

    def failing(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("nvidia-smi", 10.0)

    monkeypatch.setattr(others.subprocess, "run", failing)
    assert not others.others_at_work(CARD)

"""Others at work on a device, by what nvidia-smi tells."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
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


@pytest.fixture
def threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has the threads of this process have waited so long, in nanoseconds, at such a time."""
    now = [0]
    monkeypatch.setattr(others, "_THREADS", tmp_path)
    monkeypatch.setattr(others.time, "perf_counter_ns", lambda: now[0])

    def at(time: int, *waited: int) -> None:
        now[0] = time
        for number, each in enumerate(waited):
            (tmp_path / str(number)).mkdir(exist_ok=True)
            (tmp_path / str(number) / "schedstat").write_text(f"7 {each} 3\n")

    return at


def test_threads_that_waited_for_processors_are_counted_since_a_watch_began(threads):
    threads(1000, 500, 100)
    watch = others.Processors()
    threads(2000, 500, 100)
    assert watch.waited() == 0.0
    threads(3000, 1500, 600, 100)
    assert watch.waited() == pytest.approx(1600 / 2000)


def test_where_the_system_counts_no_waits_nobody_waited(threads, tmp_path):
    watch = others.Processors()
    threads(1000)
    assert watch.waited() == 0.0
    threads(2000, 900)
    (tmp_path / "0" / "schedstat").write_text("")
    assert watch.waited() == 0.0

"""Whether other processes are at work on a device, as far as its driver or the system says."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

from portakernel.words.target import Device

_PATIENCE_S = 10.0
# Of a device's time, in percent, from which on a process is at work.
_AT_WORK = 1
# In each thread's `schedstat` are its times: how long it ran, how long it waited for a processor, in nanoseconds.
_THREADS = Path("/proc/self/task")


class Processors:
    """How long threads of this process have waited for a processor that others had, since this was made.

    A kernel of two threads of which one waits takes as long as the scheduler leaves it waiting, thousands of times as
    long as by itself, in every round alike; a copy beside it may never wait.
    """

    def __init__(self) -> None:
        self._waited, self._since = _waited_ns(), time.perf_counter_ns()

    def waited(self) -> float:
        """The share of that time; 0 where the system does not say (it is Linux that does)."""
        return max(0, _waited_ns() - self._waited) / max(1, time.perf_counter_ns() - self._since)


def others_at_work(device: Device) -> bool:
    """Whether another process computes on the device now; False too where nobody can say.

    Processes that only hold memory are none: the one that started this one may be such. One that computes is this
    process, whose number may be another one outside of its container.
    """
    command = shutil.which("nvidia-smi")
    if device.target.vendor != "nvidia" or command is None or not device.uuid:
        return False
    there = _lines([command, "--query-compute-apps=pid", "--format=csv,noheader", "-i", device.uuid])
    if len({line.strip() for line in there}) < 2:
        return False
    # a sample takes a second: it is taken where somebody else might be at work
    samples = [line.split() for line in _lines([command, "pmon", "-c", "1", "-s", "u", "-i", device.uuid])]
    shares = [sample[3] for sample in samples if len(sample) > 3 and not sample[0].startswith("#")]
    return sum(share.isdecimal() and int(share) >= _AT_WORK for share in shares) > 1


def _waited_ns() -> int:
    total = 0
    for thread in _THREADS.glob("*/schedstat"):
        try:
            total += int(thread.read_text(encoding="ascii").split()[1])
        except (OSError, ValueError, IndexError):  # it has ended since, or the system counts nothing
            continue
    return total


def _lines(command: list[str]) -> list[str]:
    """What a command prints; nothing where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line for line in done.stdout.splitlines() if line.strip()]

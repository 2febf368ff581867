"""Finds the GPU of an Apple chip by the chip's name, without Metal and without torch.

Metal is never initialised here: a process that has done so cannot fork workers that use the GPU.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
from typing import Any

from portakernel.authoring import Device, Target, logger
from portakernel.authoring.host import TorchBuild, is_exhausted, torch_build
from portakernel_backends.apple import sysctl

_LOG = logger()

# The series: "Apple M3 Max" is m3. What follows it tells how many cores the chip has.
_SERIES = re.compile(r"Apple ([AM]\d+)\b")
# torch's MPS backend refuses older systems (aten/src/ATen/mps, since torch 2.10).
_OLDEST_MACOS = 14
_VIRTUAL = "a virtual machine: its Metal device offers less than the chip's"
_UNKNOWN = "the chip's name is none that is known here"


def find(
    *,
    library: Callable[[], Any | None] = sysctl.load,
    machine: str | None = None,
    macos: str | None = None,
    build: Callable[[], TorchBuild | None] = torch_build.installed,
) -> list[Device]:
    """The GPU of this Mac; empty on other systems, on Intel's Macs, and in an x86-64 Python under Rosetta.

    Its memory is the host's, so that it has no size of its own, and there is never a second one. No variable masks it.
    """
    try:
        loaded = library()
        if loaded is None or (machine or platform.machine()) != "arm64":
            return []
        chip = sysctl.text(loaded, "machdep.cpu.brand_string")
        return [_device(chip or "Apple GPU", macos if macos is not None else platform.mac_ver()[0], build())]
    except Exception as error:
        if is_exhausted(error):
            raise
        # a system that answers oddly must not stop a program that may not use the GPU
        _LOG.debug("Apple's GPU could not be found", exc_info=True)
        return []


def _device(chip: str, macos: str, build: TorchBuild | None) -> Device:
    series = _SERIES.match(chip)
    unreachable = _unreachable(macos, build)
    virtual = _VIRTUAL if "(Virtual)" in chip else ""
    return Device(
        target=Target("apple", series[1].lower() if series else "unknown"),
        name=chip,
        torch_device=None if unreachable else "mps:0",
        driver=f"macOS {macos}" if macos else None,
        note="; ".join(filter(None, (unreachable, virtual, "" if series else _UNKNOWN))),
    )


def _unreachable(macos: str, build: TorchBuild | None) -> str:
    """Why torch cannot use Metal; empty when it can, as every build for macOS on arm64 can."""
    if build is None:
        return "torch is not installed: install it to use this device"
    major = macos.partition(".")[0]
    if major.isdigit() and int(major) < _OLDEST_MACOS:
        return f"torch reaches Metal from macOS {_OLDEST_MACOS} on: this is macOS {macos}"
    return ""

"""Finds the host's CPU, as one device."""

from __future__ import annotations

import logging
import os
import platform
import re
from pathlib import Path

from portakernel.target import Device, Target

_LOG = logging.getLogger("portakernel")

# One name per instruction set: Windows says AMD64 and ARM64, macOS arm64.
_ARCHS = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}


def find(*, machine: str | None = None, cpuinfo: Path = Path("/proc/cpuinfo")) -> list[Device]:
    """The CPU; empty only when the operating system does not say what it is."""
    found = (machine if machine is not None else platform.machine()).lower()
    if not found:
        _LOG.debug("the operating system does not name the CPU's architecture")
        return []
    arch = _ARCHS.get(found, found)
    name = _model(cpuinfo) or platform.processor() or arch
    return [Device(Target("cpu", arch), name=name, torch_device="cpu", memory_bytes=_memory_bytes())]


def _model(cpuinfo: Path) -> str:
    """The processor's name as Linux gives it; empty elsewhere and on CPUs that have none there."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        _LOG.debug("no CPU name: %s", error)
        return ""
    named = re.search(r"^model name\s*:\s*(.+?)\s*$", text, re.MULTILINE)
    return named[1] if named else ""


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError) as error:  # Windows has no sysconf, macOS not every name
        _LOG.debug("no memory size: %s", error)
        return None

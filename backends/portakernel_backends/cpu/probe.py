"""Finds the host's CPU, as one device."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from portakernel.authoring import Device, Target, logger
from portakernel.authoring.host import is_exhausted, read_regular

_LOG = logger()
_MAX_BYTES = 16 << 20  # some kilobytes for each of a thousand cores

# One name per instruction set: Windows says AMD64 and ARM64, macOS arm64.
# What backend.yaml calls optional, as Linux names it in `flags` (x86-64) or `Features` (AArch64).
OPTIONS = ("avx512_bf16", "amx_bf16", "avx512_fp16", "amx_fp16", "bf16", "svebf16", "asimdhp")

_ARCHS = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}


def find(*, machine: str | None = None, cpuinfo: Path = Path("/proc/cpuinfo")) -> list[Device]:
    """The CPU; empty only when the operating system does not say what it is."""
    found = (machine if machine is not None else platform.machine()).lower()
    if not found:
        _LOG.debug("the operating system does not name the CPU's architecture")
        return []
    arch = _ARCHS.get(found, found)
    described = _described(cpuinfo)
    named = re.search(r"^model name\s*:\s*(.+?)\s*$", described, re.MULTILINE)
    name = named[1] if named else platform.processor() or arch
    memory, features = _memory_bytes(), _features(described)
    return [Device(Target("cpu", arch), name=name, torch_device="cpu", memory_bytes=memory, features=features)]


def _described(cpuinfo: Path) -> str:
    """What Linux says of the processor; empty elsewhere."""
    try:
        return read_regular(cpuinfo, limit=_MAX_BYTES).decode("utf-8", "replace")
    except OSError as error:
        if is_exhausted(error):
            raise
        _LOG.debug("the processor is not described: %s", error)
        return ""


def _features(described: str) -> tuple[str, ...] | None:
    """The options that every core has; None where the text names no features at all."""
    cores = [set(line.split()) for line in re.findall(r"^(?:flags|Features)\s*:(.*)$", described, re.MULTILINE)]
    return tuple(option for option in OPTIONS if all(option in core for core in cores)) if cores else None


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError) as error:  # Windows has no sysconf, macOS not every name
        _LOG.debug("no memory size: %s", error)
        return None

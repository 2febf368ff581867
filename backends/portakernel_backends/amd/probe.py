"""Finds AMD GPUs in the tree that the kernel driver (KFD) publishes under /sys, without HIP and without torch.

HIP is never initialised here: a process that has done so cannot fork workers that use the GPU. The tree exists on Linux
only; ROCm on Windows and in WSL finds devices in other ways, and no device is reported there.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from portakernel.authoring import Device, Target, logger
from portakernel.authoring.host import (
    TorchBuild,
    is_exhausted,
    read_regular,
    torch_build,
    visible_to_hip,
    visible_to_rocr,
)

_LOG = logger()
_MAX_BYTES = 1 << 20

# HSA_HEAPTYPE_FRAME_BUFFER_PUBLIC and _PRIVATE (libhsakmt, hsakmttypes.h): the GPU's own memory.
_GPU_HEAPS = {1, 2}
_OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"


@dataclass(frozen=True, slots=True)
class _Gpu:
    """One GPU node of the tree; ``uuid`` is as ROCr writes it, empty where the hardware has none."""

    arch: str
    name: str
    uuid: str
    memory_bytes: int | None
    note: str


def find(
    *,
    sysfs: Path = Path("/sys"),
    kfd: Path = Path("/dev/kfd"),
    environ: Mapping[str, str] | None = None,
    build: Callable[[], TorchBuild | None] = torch_build.installed,
) -> list[Device]:
    """The AMD GPUs that the visibility masks leave visible, in HIP's order; empty without the driver.

    ``ROCR_VISIBLE_DEVICES`` is applied first; ``HIP_VISIBLE_DEVICES``, or ``CUDA_VISIBLE_DEVICES`` where that is unset
    or empty, chooses from what is left. ``HSA_OVERRIDE_GFX_VERSION`` changes the arch, as it does for every ROCm
    compiler and library.
    """
    try:
        environment = os.environ if environ is None else environ
        gpus = _gpus(sysfs, environment)
        if not gpus:
            return []
        note = torch_build.unreachable(build(), "ROCm") or _no_access(kfd)
        return _devices(_visible(gpus, environment), _first_line(sysfs / "module/amdgpu/version"), note)
    except Exception as error:
        if is_exhausted(error):
            raise
        # a broken driver must not stop a program that may not even use the GPU
        _LOG.debug("AMD devices could not be found", exc_info=True)
        return []


def _gpus(sysfs: Path, environ: Mapping[str, str]) -> list[_Gpu]:
    """Every GPU that this process may ask about, in the tree's order, which is ROCr's."""
    nodes = sysfs / "class/kfd/kfd/topology/nodes"
    try:
        numbers = sorted(int(node.name) for node in nodes.iterdir() if node.name.isdigit())
    except OSError as error:
        if is_exhausted(error):
            raise
        _LOG.debug("no AMD driver: %s", error)
        return []
    found: list[_Gpu] = []
    for number in numbers:
        node = nodes / str(number)
        properties = _properties(node / "properties")
        version = properties.get("gfx_target_version", 0)
        if properties.get("simd_count", 0) and version:
            found.append(_gpu(sysfs, node, properties, version, environ))
    return found


def _gpu(sysfs: Path, node: Path, properties: Mapping[str, int], version: int, environ: Mapping[str, str]) -> _Gpu:
    arch = _gfx(version // 10000, version // 100 % 100, version % 100)
    note = ""
    if override := _overridden(node.name, environ):
        note = f"{_OVERRIDE} makes this {arch} a {override}" if override != arch else ""
        arch = override
    unique = properties.get("unique_id", 0)
    product = _first_line(sysfs / f"class/drm/renderD{properties.get('drm_render_minor', 0)}/device/product_name")
    return _Gpu(
        arch=arch,
        name=product or f"AMD GPU ({arch})",
        uuid=f"GPU-{unique:016x}" if unique else "",
        memory_bytes=_memory_bytes(node),
        note=note,
    )


def _gfx(major: int, minor: int, stepping: int) -> str:
    """LLVM's name of a version: minor and stepping are one hexadecimal digit each (9, 0, 10 is gfx90a)."""
    return f"gfx{major}{minor:x}{stepping:x}"


def _overridden(node: str, environ: Mapping[str, str]) -> str | None:
    """The arch that the environment puts in place of the node's own (libhsakmt, topology.c)."""
    text = environ.get(f"{_OVERRIDE}_{node}", environ.get(_OVERRIDE, ""))
    parts = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)", text.strip())
    return _gfx(int(parts[1]), int(parts[2]), int(parts[3])) if parts else None


def _memory_bytes(node: Path) -> int | None:
    banks = [_properties(bank) for bank in sorted((node / "mem_banks").glob("*/properties"))]
    return sum(bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in _GPU_HEAPS) or None


def _properties(path: Path) -> dict[str, int]:
    """The ``name value`` lines of a file; empty where the file is missing or (a container's other GPUs) forbidden."""
    values: dict[str, int] = {}
    for line in _text(path).splitlines():
        name, _, value = line.partition(" ")
        if value.strip().isdigit():
            values[name] = int(value)
    return values


def _first_line(path: Path) -> str | None:
    return next(iter(_text(path).strip().splitlines()), None)


def _text(path: Path) -> str:
    try:
        return read_regular(path, limit=_MAX_BYTES).decode("utf-8", "replace")
    except OSError as error:
        if is_exhausted(error):
            raise
        _LOG.debug("%s", error)
        return ""


def _no_access(kfd: Path) -> str:
    """Why HIP cannot open the driver; empty when it can."""
    if not kfd.exists():
        return f"{kfd} does not exist: give the container that device"
    if not os.access(kfd, os.R_OK | os.W_OK):
        return f"no permission to open {kfd}: add this user to the group that owns it (render or video)"
    return ""


def _visible(gpus: Sequence[_Gpu], environ: Mapping[str, str]) -> list[_Gpu]:
    left = [gpus[at] for at in visible_to_rocr(environ.get("ROCR_VISIBLE_DEVICES"), [gpu.uuid for gpu in gpus])]
    mask = environ.get("HIP_VISIBLE_DEVICES") or environ.get("CUDA_VISIBLE_DEVICES")
    return [left[at] for at in visible_to_hip(mask, [gpu.uuid for gpu in left])]


def _devices(gpus: Sequence[_Gpu], driver: str | None, unreachable: str) -> list[Device]:
    shared = {uuid for uuid, count in Counter(gpu.uuid for gpu in gpus).items() if uuid and count > 1}
    return [
        Device(
            target=Target("amd", gpu.arch),
            name=gpu.name,
            torch_device=None if unreachable else f"cuda:{number}",
            uuid=gpu.uuid or None,
            memory_bytes=gpu.memory_bytes,
            driver=driver,
            note="; ".join(
                filter(None, (unreachable, gpu.note, "a partition: its uuid is the GPU's" * (gpu.uuid in shared)))
            ),
        )
        for number, gpu in enumerate(gpus)
    ]

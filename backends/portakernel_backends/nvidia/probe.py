"""Finds NVIDIA GPUs and MIG devices through NVML, without CUDA and without torch.

CUDA is never initialised here: a process that has done so cannot fork workers that use the GPU.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from portakernel import torch_build
from portakernel.target import Device, Target
from portakernel.torch_build import TorchBuild
from portakernel.visibility import visible_to_cuda
from portakernel_backends.nvidia.nvml import Nvml, NvmlError, load

_LOG = logging.getLogger("portakernel")
T = TypeVar("T")

_PRESUMED = (
    "its number is presumed, because the GPUs of this machine differ and CUDA orders them by speed: "
    "set CUDA_DEVICE_ORDER=PCI_BUS_ID to fix it"
)
_OTHER_MIG = (
    "CUDA enumerates only one MIG device per process, and takes another: set CUDA_VISIBLE_DEVICES to this one's uuid"
)
_NO_MIG = "MIG mode is on and no MIG device exists: create one with nvidia-smi mig, or turn MIG mode off"


@dataclass(frozen=True, slots=True)
class _Gpu:
    """One GPU, or one MIG device of a GPU, as NVML describes it."""

    uuid: str
    name: str
    capability: tuple[int, int]
    memory_bytes: int | None
    pci: tuple[int, int, int]
    mig_enabled: bool = False
    migs: tuple[_Gpu, ...] = ()


def find(
    *,
    library: Callable[[], Any | None] = load,
    environ: Mapping[str, str] | None = None,
    build: Callable[[], TorchBuild | None] = torch_build.installed,
) -> list[Device]:
    """The NVIDIA devices that ``CUDA_VISIBLE_DEVICES`` leaves visible, in CUDA's order; empty without a driver.

    The order is CUDA's own with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``, with a mask of UUIDs, and where all GPUs are of one
    kind. Otherwise CUDA sorts by a speed that only CUDA knows; then ``note`` says so, and ``uuid`` is what to go by.
    """
    try:
        nvml = library()
        if nvml is None:
            return []
        with Nvml(nvml) as opened:
            driver = _or_none(opened.driver)
            gpus = _gpus(opened)
        return _devices(gpus, os.environ if environ is None else environ, driver, build())
    except Exception:  # noqa: BLE001 - a broken driver must not stop a program that may not even use the GPU
        _LOG.debug("NVIDIA devices could not be found", exc_info=True)
        return []


def _gpus(nvml: Nvml) -> list[_Gpu]:
    """Every GPU that NVML can describe, in PCI order."""
    found: list[_Gpu] = []
    for index in range(nvml.count()):
        try:
            found.append(_gpu(nvml, nvml.handle(index), index))
        except NvmlError as error:
            # Lost from the bus, or not this container's.
            _LOG.debug("NVIDIA GPU %d is left out: %s", index, error)
    return sorted(found, key=lambda gpu: gpu.pci)


def _gpu(nvml: Nvml, handle: ctypes.c_void_p, index: int) -> _Gpu:
    capability = nvml.compute_capability(handle)
    pci = _or_none(lambda: nvml.pci(handle)) or (0, 0, index)
    mig_enabled = bool(_or_none(lambda: nvml.mig_enabled(handle)))
    migs: list[_Gpu] = []
    for at in range(nvml.mig_count(handle)) if mig_enabled else ():
        try:
            mig = nvml.mig_handle(handle, at)
            migs.append(_Gpu(nvml.uuid(mig), nvml.name(mig), capability, _memory(nvml, mig), pci))
        except NvmlError as error:
            _LOG.debug("NVIDIA GPU %d has no MIG device %d: %s", index, at, error)
    return _Gpu(nvml.uuid(handle), nvml.name(handle), capability, _memory(nvml, handle), pci, mig_enabled, tuple(migs))


def _memory(nvml: Nvml, handle: ctypes.c_void_p) -> int | None:
    return _or_none(lambda: nvml.memory_bytes(handle))


def _or_none(ask: Callable[[], T]) -> T | None:
    """What ``ask`` returns, or None when NVML does not know: a fact that a device can do without."""
    try:
        return ask()
    except NvmlError as error:
        _LOG.debug("%s", error)
        return None


def _devices(
    gpus: Sequence[_Gpu], environ: Mapping[str, str], driver: str | None, build: TorchBuild | None
) -> list[Device]:
    visible, presumed = _visible(gpus, environ)
    unreachable = torch_build.unreachable(build, "CUDA")
    first_mig = next((gpu for gpu in visible if gpu.uuid.startswith("MIG-")), None)
    devices: list[Device] = []
    number = 0
    for gpu in visible:
        note = unreachable
        if not note and gpu.mig_enabled:
            note = _NO_MIG
        if not note and first_mig is not None and gpu is not first_mig:
            note = _OTHER_MIG
        reachable = not note
        devices.append(
            Device(
                target=Target("nvidia", f"sm_{gpu.capability[0]}{gpu.capability[1]}"),
                name=gpu.name,
                torch_device=f"cuda:{number}" if reachable else None,
                uuid=gpu.uuid,
                memory_bytes=gpu.memory_bytes,
                driver=driver,
                note=_PRESUMED if reachable and presumed else note,
            )
        )
        number += reachable
    return devices


def _visible(gpus: Sequence[_Gpu], environ: Mapping[str, str]) -> tuple[list[_Gpu], bool]:
    """GPUs and MIG devices in CUDA's order, and whether that order is presumed.

    A GPU in MIG mode stands for its MIG devices, and for itself when it has none.
    """
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    if mask is not None and mask.startswith(("GPU-", "MIG-")):
        named = [*gpus, *(mig for gpu in gpus for mig in gpu.migs)]
        visible, presumed = [named[at] for at in visible_to_cuda(mask, [gpu.uuid for gpu in named])], False
    else:
        presumed = environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" and len({(g.name, g.capability) for g in gpus}) > 1
        ordered = sorted(gpus, key=lambda gpu: gpu.capability, reverse=True) if presumed else gpus
        visible = [ordered[at] for at in visible_to_cuda(mask, [gpu.uuid for gpu in ordered])]
    return [device for gpu in visible for device in gpu.migs or (gpu,)], presumed

"""Finds NVIDIA GPUs and MIG devices through NVML, without CUDA and without torch.

CUDA is never initialised here: a process that has done so cannot fork workers that use the GPU.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from portakernel.authoring import Device, DriverError, Target, logger
from portakernel.authoring.host import TorchBuild, is_passing, query, torch_build, visible_to_cuda
from portakernel_backends.nvidia import nvml
from portakernel_backends.nvidia.nvml import Gpu, Inventory, load, take_inventory

_LOG = logger()
_SCRIPT = Path(nvml.__file__)

_PRESUMED = (
    "its number is presumed, because the GPUs of this machine differ and CUDA orders them by speed: "
    "set CUDA_DEVICE_ORDER=PCI_BUS_ID to fix it"
)
_OTHER_MIG = (
    "CUDA enumerates only one MIG device per process, and takes another: set CUDA_VISIBLE_DEVICES to this one's uuid"
)
_NO_MIG = "MIG mode is on and no MIG device exists: create one with nvidia-smi mig, or turn MIG mode off"


def find(
    *,
    library: Callable[[], Any | None] | None = None,
    environ: Mapping[str, str] | None = None,
    build: Callable[[], TorchBuild | None] = torch_build.installed,
) -> list[Device]:
    """The NVIDIA devices that ``CUDA_VISIBLE_DEVICES`` leaves visible, in CUDA's order; empty without a driver.

    The order is CUDA's own with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``, with a mask of UUIDs, and where all GPUs are of one
    kind. Otherwise CUDA sorts by a speed that only CUDA knows; then ``note`` says so, and ``uuid`` is what to go by.
    NVML is asked in a child process; a ``library`` that is given, in this one.

    Raises:
        DriverError: NVML hangs or aborts.
        OSError: the child cannot be started at this moment.
    """
    try:
        inventory = _asked_in_child() if library is None else take_inventory(library)
        return _devices(inventory.gpus, os.environ if environ is None else environ, inventory.driver, build())
    except Exception as error:
        if isinstance(error, DriverError) or is_passing(error):
            raise
        _LOG.debug("NVIDIA devices could not be found", exc_info=True)
        return []


def _asked_in_child() -> Inventory:
    interpreter = Path(sys.executable or "").name.lower()
    if not interpreter.startswith(("python", "pypy")) or not _SCRIPT.is_file():
        return take_inventory(load)  # Python inside another program, or in an archive
    try:
        return Inventory.from_json(query(_SCRIPT))
    except (FileNotFoundError, PermissionError):
        return take_inventory(load)
    except DriverError as error:
        raise DriverError(f"NVML {error}; run nvidia-smi, and restart the driver where that fails too") from error


def _devices(
    gpus: Sequence[Gpu], environ: Mapping[str, str], driver: str | None, build: TorchBuild | None
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


def _visible(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> tuple[list[Gpu], bool]:
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

"""Why a build of torch for accelerators has none here: masks, drivers, device files; nothing of a driver is loaded."""

from __future__ import annotations

import ctypes.util
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from portakernel.tensors.torch_build import TorchBuild
from portakernel.tensors.visibility import visible_to_cuda, visible_to_hip, visible_to_rocr

# Any device at all: what a mask leaves of one says whether it hides all.
_ONE = ("GPU-0",)


@dataclass(frozen=True, slots=True)
class Absence:
    """That a build of torch reaches no device, with the reason, and what to do about it."""

    what: str
    action: str


def absence(
    build: TorchBuild,
    *,
    environ: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
    library: Callable[[str], str | None] = ctypes.util.find_library,
) -> Absence | None:
    """Why nothing that ``build`` was made for is here; None for a CPU build."""
    if build.cuda:
        reason, action = _cuda(environ, root, library)
    elif build.hip:
        reason, action = _rocm(environ, root)
    elif build.xpu:
        reason, action = _xpu(environ, root)
    else:
        return None
    return Absence(f"{build}, and no device of that kind is visible: {reason}", action)


_NO_DRIVER = "install the driver; on a machine without such a device a CPU build of torch is smaller and serves as well"


def _cuda(environ: Mapping[str, str], root: Path, library: Callable[[str], str | None]) -> tuple[str, str]:
    loaded = any((root / file).exists() for file in ("proc/driver/nvidia/version", "dev/dxg"))  # the latter: WSL
    found = library("cuda") is not None
    if not loaded and not found:
        return "NVIDIA's driver is not installed (neither its kernel module nor libcuda.so.1 is there)", _NO_DRIVER
    if not found:
        text = "NVIDIA's kernel module is loaded, and libcuda.so.1 is not found"
        return text, "in a container, start it with NVIDIA's container toolkit (`--gpus all`); else install the driver"
    if not loaded:
        return "libcuda.so.1 is there, and NVIDIA's kernel module is not loaded", "`nvidia-smi` says why; load it"
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    if mask is not None and not visible_to_cuda(mask, _ONE):
        return _masked("CUDA_VISIBLE_DEVICES", mask)
    return "the driver is there, and reports none", "`nvidia-smi` says what the driver sees"


def _rocm(environ: Mapping[str, str], root: Path) -> tuple[str, str]:
    kfd = root / "dev/kfd"
    if not kfd.exists():
        text = "AMD's kernel driver is not there (/dev/kfd is missing)"
        return text, f"in a container, start it with `--device /dev/kfd --device /dev/dri`; else {_NO_DRIVER}"
    if not os.access(kfd, os.R_OK | os.W_OK):
        return "/dev/kfd may not be opened by this user", "add the user to the group of /dev/kfd (mostly `render`)"
    for name, visible in (("ROCR_VISIBLE_DEVICES", visible_to_rocr), ("HIP_VISIBLE_DEVICES", visible_to_hip)):
        mask = environ.get(name)
        if mask is not None and not visible(mask, _ONE):
            return _masked(name, mask)
    mask = environ.get("CUDA_VISIBLE_DEVICES")  # which HIP reads as well
    if mask is not None and "HIP_VISIBLE_DEVICES" not in environ and not visible_to_hip(mask, _ONE):
        return _masked("CUDA_VISIBLE_DEVICES", mask)
    return "the driver is there, and reports none", "`rocminfo` says what the driver sees"


def _xpu(environ: Mapping[str, str], root: Path) -> tuple[str, str]:
    if not (root / "dev/dri").is_dir():
        text = "no driver of a graphics device is there (/dev/dri is missing)"
        return text, f"in a container, start it with `--device /dev/dri`; else {_NO_DRIVER}"
    for name in ("ONEAPI_DEVICE_SELECTOR", "ZE_AFFINITY_MASK"):
        if name in environ:
            return f"{name}={environ[name]!r} may hide it", f"unset {name}, or name a device in it"
    return "Level Zero reports none", "`sycl-ls` says what it sees; install intel-level-zero-gpu where it is missing"


def _masked(name: str, mask: str) -> tuple[str, str]:
    return f"{name}={mask!r} hides every device", f"unset {name}, or name a device in it"

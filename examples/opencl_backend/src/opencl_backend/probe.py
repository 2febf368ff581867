"""Finds the OpenCL devices that compute in the host's memory, and says whether they work."""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from portakernel.authoring import CannotRun, Device, ReasonCode, Rejection, Target

if TYPE_CHECKING:
    import pyopencl as cl

_LOG = logging.getLogger(__name__)

# An arch is a driver: by its short name where it has one, else by its own with underscores.
_ARCHS = {"Portable Computing Language": "pocl", "Intel(R) OpenCL": "intel"}


@dataclass(frozen=True, slots=True)
class Opened:
    """The devices, and the process whose threads their drivers run on."""

    devices: tuple[cl.Device, ...]
    process: int


def find() -> list[Device]:
    """The devices as portakernel knows them; empty where there is no driver."""
    try:
        return [_described(device) for device in opened().devices]
    except Exception as error:  # noqa: BLE001 - a probe never raises: what fails here is that there is no device
        _LOG.debug("no OpenCL devices: %s: %s", type(error).__name__, error)
        return []


@cache
def opened() -> Opened:
    """The CPU devices of every OpenCL driver. Only these share memory with the host in all drivers.

    Of a driver that is here in several versions the newest alone: an old one knows fewer CPUs.
    """
    _provide_caches()
    import pyopencl as cl

    oldest_first = sorted(cl.get_platforms(), key=lambda p: [int(n) for n in re.findall(r"\d+", p.version)])
    drivers = {platform.name: platform for platform in oldest_first}.values()
    found = [device for platform in drivers for device in platform.get_devices(cl.device_type.CPU)]
    return Opened(tuple(d for d in found if d.available and d.compiler_available), os.getpid())


def _described(device: cl.Device) -> Device:
    platform = device.platform.name.strip()
    arch = _ARCHS.get(platform) or re.sub(r"[^a-z0-9]+", "_", platform.lower()).strip("_")
    return Device(
        Target("opencl", arch),
        name=f"{device.name.strip()} ({platform})",
        torch_device="cpu",
        # No uuid: OpenCL has none without cl_khr_device_uuid, which pyopencl does not reach.
        memory_bytes=device.global_mem_size,
        driver=device.driver_version,
        attached=True,
    )


def _provide_caches() -> None:
    """Somewhere to write, where the home directory is not: else PoCL offers no device and pyopencl makes no kernel."""
    home = os.environ.get("HOME")
    base = os.environ.get("XDG_CACHE_HOME") or (home and f"{home}/.cache")
    try:
        if base:
            Path(base, "pocl").mkdir(parents=True, exist_ok=True)
            if os.access(Path(base, "pocl"), os.W_OK):
                return
    except OSError as error:
        _LOG.debug("no cache below the home directory: %s", error)
    os.environ.setdefault("PYOPENCL_NO_CACHE", "1")
    if "POCL_CACHE_DIR" not in os.environ:
        os.environ["POCL_CACHE_DIR"] = folder = tempfile.mkdtemp(prefix="pocl-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)


def ready(device: Device) -> Rejection | None:
    """Why ``device`` cannot be used; None where a tiny kernel gives the right numbers on it. Never raises.

    That pyopencl is installed is already known, from ``requires`` in plugin.yaml, as is that ``find`` found the device.
    """
    if device.target.arch == "pocl" and shutil.which("ld") is None:
        text = "PoCL links each kernel with `ld`, which is not here, and aborts the process; install binutils"
        return Rejection(ReasonCode.MISSING_TOOLCHAIN, text)
    try:
        # NumPy's arrays, not tensors: the first call may be traced, and its tensors then have no memory.
        import numpy as np
        import pyopencl as cl

        from opencl_backend.launch import Arguments, Program, launch
    except ImportError as error:
        return Rejection(ReasonCode.MISSING_LIBRARY, f"{error}; reinstall pyopencl and an OpenCL driver (pocl)")
    x = np.array([1.5, -2.0, 2.0**-140], dtype=np.float32)  # the last one is subnormal
    found = np.empty_like(x)
    try:
        arguments = Arguments(given=[x.view(np.uint8), x.view(np.uint8)], written=[found.view(np.uint8)])
        launch(Program("add", ("X=f32",)), "add", x.size, arguments)
    except CannotRun as declared:
        return declared.rejection
    except cl.Error as error:
        lines = str(error).strip().splitlines()
        why = next((line for line in lines if line.startswith("error: ")), lines[0])  # the compiler's, where it spoke
        return Rejection(ReasonCode.DRIVER, f"{device.name} failed on a tiny kernel: {why}; try another driver")
    except Exception as error:  # noqa: BLE001 - the plugin's border: whatever fails here is the answer
        return Rejection(ReasonCode.PROBE_FAILED, f"a tiny kernel failed: {type(error).__name__}: {error}")
    if np.array_equal(found, x + x):
        return None
    text = f"{device.name} gave {found.tolist()} for {x.tolist()} added to itself; try another driver"
    return Rejection(ReasonCode.PROBE_FAILED, text)

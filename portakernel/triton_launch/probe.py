"""Whether Triton works on a device of this machine: toolchain, cache, driver, and one tiny kernel, its result checked.

The answer is not kept on disk. What it costs a second process is a launch of a kernel that Triton's cache has, and
what a file said of another driver, another container or a device that has failed since would be worth less.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from portakernel.claims.capability import ReasonCode, Rejection
from portakernel.deciding.readiness import Usable
from portakernel.triton_launch import fingerprint
from portakernel.triton_launch.cache_folder import FOLDER
from portakernel.triton_launch.launch import launch
from portakernel.words.target import Device, Target

# Triton's name for each vendor's driver, and the vendor's tool that lists devices.
_DRIVERS = {"nvidia": ("cuda", "nvidia-smi"), "amd": ("hip", "rocm-smi")}


def ready(device: Device) -> Rejection | Usable:
    """Why Triton cannot be used on ``device``, which is in this machine, or what has to be said of it. Never raises."""
    try:
        return _toolchain() or _cache() or _driver(device.target) or _tiny_launch(device) or Usable(FOLDER.notes)
    except subprocess.CalledProcessError as error:
        command = " ".join(map(str, error.cmd)) if isinstance(error.cmd, list) else str(error.cmd)
        text = f"the C compiler failed on Triton's launcher (status {error.returncode}): run `{command}` to see why"
        return Rejection(ReasonCode.MISSING_TOOLCHAIN, text)
    except Exception as error:  # noqa: BLE001 - the plugin border: whatever fails here is the answer
        first_line = str(error).strip().partition("\n")[0] or "no message"
        text = f"a tiny Triton kernel failed on {device.target}: {type(error).__name__}: {first_line}; check that the"
        return Rejection(ReasonCode.PROBE_FAILED, f"{text} versions of driver, torch and Triton belong together")


def _toolchain() -> Rejection | None:
    """The compiler for Triton's launchers, looked for as ``triton.runtime.build`` does: CC, gcc, clang."""
    if knobs.build.impl is not None:
        return None
    named = os.environ.get("CC")
    if named is not None and shutil.which(named) is None:
        text = f"Triton compiles launchers with CC, which is {named!r} and no executable; set CC to one, or unset it"
        return Rejection(ReasonCode.MISSING_TOOLCHAIN, text)
    if named is None and not (shutil.which("gcc") or shutil.which("clang")):
        text = "Triton compiles launchers with a host C compiler and finds none; install gcc or clang, or set CC to one"
        return Rejection(ReasonCode.MISSING_TOOLCHAIN, text)
    # Debian's own default scheme names a folder that holds no headers; Triton corrects it in the same way.
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")
    headers = sysconfig.get_paths(scheme=scheme)["include"]
    if not Path(headers, "Python.h").is_file():
        text = f"Triton's launchers include Python.h, which is not in {headers}; install Python's headers (python3-dev)"
        return Rejection(ReasonCode.MISSING_TOOLCHAIN, text)
    return None


def _cache() -> Rejection | None:
    """Whether Triton has a directory for what it compiles; from then on its names there cost little."""
    rejection = FOLDER.settle()
    if rejection is None:
        fingerprint.remember()
    return rejection


def _driver(target: Target) -> Rejection | None:
    """Whether the one driver that Triton runs with is the target's vendor's."""
    from triton.runtime import driver

    if target.vendor not in _DRIVERS:
        text = f"Triton's drivers serve {' and '.join(_DRIVERS)}, not {target.vendor}"
        return Rejection(ReasonCode.DRIVER, text)
    wanted, tool = _DRIVERS[target.vendor]
    try:
        active: Any = driver.active
        running = active.get_current_target().backend
    except RuntimeError as error:
        text = (
            f"Triton finds no usable {wanted} driver ({error}); check that `{tool}` lists the device and that this"
            " torch is built for it: torch.cuda.is_available() has to be true"
        )
        return Rejection(ReasonCode.DRIVER, text)
    if running != wanted:
        text = (
            f"{target} needs Triton's {wanted} driver, and {running} is active; use a torch built for {target.vendor}"
        )
        return Rejection(ReasonCode.DRIVER, text)
    return None


@triton.jit
def _double(x, y, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    tl.store(y + lane, 2 * tl.load(x + lane))


def doubled(x: Tensor) -> Tensor:
    """Twice ``x``, of 16 elements, by a kernel."""
    y = torch.empty_like(x)
    launch(_double, (1, 1), x, y, BLOCK=16)
    return y


def _tiny_launch(device: Device) -> Rejection | None:
    """One small kernel on the device, its numbers compared with what they must be."""
    if device.torch_device is None:
        return Rejection(ReasonCode.DRIVER, f"torch does not reach {device.target}: {device.note}")
    where = torch.device(device.torch_device)
    with torch.accelerator.device_index(where.index) if where.type != "cpu" else nullcontext():
        x = torch.arange(16, dtype=torch.float32, device=where)
        if torch.equal(doubled(x).cpu(), 2 * x.cpu()):
            return None
    text = f"a tiny Triton kernel ran on {device.torch_device} and gave wrong numbers; check the driver's and Triton's"
    return Rejection(ReasonCode.PROBE_FAILED, f"{text} versions")

"""What has to be known to compare a figure with another: device, clocks, driver, versions, date."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from portakernel.deciding.readiness import installed_version
from portakernel.registry.registry import Registry
from portakernel.words.target import Device

_PACKAGES = ("portakernel", "torch", "triton", "pytorch-triton-rocm", "pytorch-triton-xpu")
# What nvidia-smi tells of a device, by our names for it.
_SMI = {
    "driver": "driver_version",
    "sm_clock_mhz": "clocks.sm",
    "memory_clock_mhz": "clocks.mem",
    "max_sm_clock_mhz": "clocks.max.sm",
    "power_limit_w": "power.limit",
}


def circumstances(registry: Registry, device: Device) -> dict[str, Any]:
    """The machine, its software, and the time, as JSON-ready data."""
    known = software(registry)
    return {
        "date": known["date"],
        "device": device.name,
        "torch_device": device.torch_device,
        "target": str(device.target),
        "driver": device.driver,
        "processor": _processor(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "torch_cuda": torch.version.cuda,
        "torch_hip": torch.version.hip,
        "versions": known["versions"],
        "clocks": clocks(device),
    }


def software(registry: Registry) -> dict[str, Any]:
    """The time, and the versions of what kernels are made of, as JSON-ready data."""
    packages = [package.distribution for package in registry.manager.packages if package.distribution]
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": _versions((*_PACKAGES, *packages)) | _required(registry),
    }


def _versions(distributions: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in dict.fromkeys(distributions):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _required(registry: Registry) -> dict[str, str]:
    """The versions of what kernels are made of, by import name."""
    kernels = registry.kernels.values()
    wanted = {(module, kernel.distributions.get(module, "")) for kernel in kernels for module in kernel.requires}
    known = ((module, installed_version(module, distribution)) for module, distribution in sorted(wanted))
    return {module: version for module, version in known if version is not None}


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())


def clocks(device: Device) -> dict[str, Any]:
    """What ``nvidia-smi``, or else torch, tells of the clocks now; empty where neither does.

    Of an idle device they say little: read them behind a measurement.
    """
    if not (device.torch_device or "").startswith("cuda"):
        return {}
    if device.target.vendor == "nvidia" and (command := shutil.which("nvidia-smi")):
        query = [command, f"--query-gpu={','.join(_SMI.values())}", "--format=csv,noheader,nounits"]
        query += ["-i", device.uuid] if device.uuid else []
        try:
            done = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
        except (OSError, subprocess.SubprocessError):
            pass
        else:
            cells = done.stdout.strip().partition("\n")[0].split(", ")
            return dict(zip(_SMI, cells, strict=False))
    try:
        return {"sm_clock_mhz": str(torch.cuda.clock_rate(device.torch_device))}
    except Exception:  # noqa: BLE001 - pynvml or amdsmi may be missing, and raises errors of its own
        return {}

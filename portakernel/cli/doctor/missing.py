"""What an installation lacks that would let more run, and what to do about each."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from portakernel.claims.request import Request
from portakernel.cli.advice import install_command, pip_command
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.deciding.readiness import installed_version
from portakernel.errors import nearest
from portakernel.manifest.models import PluginManifest
from portakernel.registry.kernel import Kernel
from portakernel.tensors import torch_build
from portakernel.words.target import Device

_COMPILERS = ("cc", "gcc", "clang")


@dataclass(frozen=True, slots=True)
class Missing:
    """Something that would let more run here; the rest works without."""

    what: str
    remedy: str


def find_compiler() -> tuple[str, str] | None:
    """The C compiler of this host (``$CC``, or the first that is on the path) and the first line of its version."""
    wanted = os.environ.get("CC", "").split()[:1]
    for command in (*wanted, *_COMPILERS):
        if shutil.which(command) is None:
            continue
        try:
            asked = subprocess.run(
                [command, "--version"], capture_output=True, text=True, errors="replace", timeout=20, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if asked.returncode == 0:
            return command, (asked.stdout.strip().splitlines() or [""])[0]
    return None


def resting_for(manifest: PluginManifest, *, serves_here: bool = True) -> tuple[str, ...]:
    """The modules that a plugin rests without; none where it does not rest.

    They are those that nobody has to have, and of a plugin that serves no device here all but torch.
    """
    rests = manifest.requires.optional or not serves_here
    wanted = [module for module in manifest.requires.modules if rests and module != "torch"]
    return tuple(module for module in wanted if installed_version(module) is None)


def missing(now: Dispatcher, devices: Sequence[Device], compiler: tuple[str, str] | None) -> list[Missing]:
    """Everything that would let more run on these devices; ``compiler`` is what ``find_compiler`` found."""
    found = []
    if torch_build.installed() is None:
        found.append(Missing("torch is not installed: nothing can run", pip_command("torch", ">=2.11")))
    found += _missing_modules(now, devices)
    spaces = now.registry.spaces
    claimed = {
        (kernel.plugin, vendor)
        for kernel in now.registry.kernels.values()
        for _, capability in kernel.variants
        for vendor in capability.targets
        if vendor not in spaces and vendor != "*"
    }
    for plugin, vendor in sorted(claimed):
        what = f"plugin {plugin} claims vendor {vendor!r}, which no installed backend has; {nearest(vendor, spaces)}"
        found.append(Missing(what, "install its backend, or mend the name"))
    for device in devices:
        if device.torch_device is None:
            why, _, advice = device.note.partition(": ")
            what = f"torch cannot reach {device.name} ({device.target})" + (f": {why}" if why else "")
            found.append(Missing(what, advice or "install a build of torch that can"))
    if compiler is None:
        found.append(Missing("there is no C compiler, and Triton needs one to launch kernels", "install gcc or clang"))
    on_gpus = sorted({str(d.target.vendor) for d in devices if d.torch_device and d.torch_device.startswith("cuda")})
    if on_gpus and not Path(sysconfig.get_path("include"), "Python.h").exists():
        what = f"Python's C headers are not here, and Triton's launchers on {on_gpus[0]} include them"
        found.append(
            Missing(what, "install python3-dev (Debian, Ubuntu), python3-devel (Fedora), or your Python's own")
        )
    return found


def _missing_modules(now: Dispatcher, devices: Sequence[Device]) -> Iterator[Missing]:
    """What plugins need, of those that could serve a device here: the others rest."""
    needs: dict[tuple[str, str], dict[frozenset[str], Missing]] = {}
    for kernel in now.registry.kernels.values():
        if any(installed_version(module) is None for module in kernel.optional):
            continue
        if not any(claims(now, kernel, device) for device in devices):
            continue
        for rejection in now.readiness.not_installed(kernel):
            module = rejection.parameter or ""
            versions = frozenset(kernel.requires.get(module, "").replace(" ", "").split(","))
            what = f"plugin {kernel.plugin} {rejection.text}"
            needs.setdefault((kernel.plugin, module), {})[versions] = Missing(what, install_command(kernel, module))
    for (_, module), several in needs.items():
        # who has what a kernel bounds more narrowly has what its plugin needs
        told = (one for versions, one in several.items() if not any(versions < others for others in several))
        yield from told if module != "torch" else ()


def claims(now: Dispatcher, kernel: Kernel, device: Device) -> bool:
    """Whether a kernel is for such hardware, whatever else it needs."""
    anything = Request(kernel.op, device.target)
    return any(one.serving_target(anything, now.registry.spaces) is not None for _, one in kernel.variants)

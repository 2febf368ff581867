"""What the installed torch was built for (CUDA, ROCm, XPU, CPU), read without importing torch."""

from __future__ import annotations

import ast
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

from portakernel.host.passing import is_passing
from portakernel.host.regular_file import read_regular
from portakernel.text.printable import logger

_LOG = logger()

_MAX_BYTES = 1 << 20
_PLATFORMS = ("cuda", "hip", "xpu")
_ARTICLES = {"XPU": "an"}


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """The installed torch: its version, and that of CUDA, HIP or the SYCL compiler (xpu) it was built with, if any."""

    version: str
    cuda: str | None = None
    hip: str | None = None
    xpu: str | None = None

    def __str__(self) -> str:
        kind = "CUDA" if self.cuda else "ROCm" if self.hip else "XPU" if self.xpu else "CPU"
        return f"torch {self.version.partition('+')[0]} is {_ARTICLES.get(kind, 'a')} {kind} build"


def installed() -> TorchBuild | None:
    """The torch that ``import torch`` gives, or None where there is none."""
    module = sys.modules.get("torch.version")
    if module is not None:
        return _from_values({name: getattr(module, name, None) for name in ("__version__", *_PLATFORMS)})
    path = _version_file()
    if path is None:
        return None
    try:
        return parse(read_regular(path, limit=_MAX_BYTES).decode("utf-8"))
    except (OSError, SyntaxError, ValueError) as error:
        if is_passing(error):
            raise
        _LOG.debug("cannot read torch's version from %s: %s", path, error)
        return None


def parse(source: str) -> TorchBuild | None:
    """The build that a ``torch/version.py`` describes, or None when it names no version.

    Raises:
        SyntaxError: ``source`` is not Python.
    """
    values: dict[str, object] = {}
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign):
            targets, value = statement.targets, statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets, value = [statement.target], statement.value
        else:
            continue
        if isinstance(value, ast.Constant):
            values.update({target.id: value.value for target in targets if isinstance(target, ast.Name)})
    return _from_values(values)


def unreachable(build: TorchBuild | None, platform: Literal["CUDA", "ROCm", "XPU"]) -> str:
    """Why ``build`` cannot use a device of ``platform``, and what to do; empty when it can."""
    way_out = f"install {_ARTICLES.get(platform, 'a')} {platform} build to use this device"
    if build is None:
        return f"torch is not installed: {way_out}"
    if {"CUDA": build.cuda, "ROCm": build.hip, "XPU": build.xpu}[platform]:
        return ""
    return f"{build}: {way_out}"


def reaches(build: TorchBuild | None, vendor: str) -> bool:
    """Whether ``build`` can have tensors on a vendor's devices, as far as a build says; of other vendors it says not.

    Where torch is not installed, or names no version, nothing is ruled out.
    """
    if vendor == "apple":
        return sys.platform == "darwin"
    if build is None:
        return True
    return bool({"nvidia": build.cuda, "amd": build.hip, "intel": build.xpu}.get(vendor, build.version))


def _version_file() -> Path | None:
    torch = sys.modules.get("torch")
    if isinstance(torch, ModuleType) and torch.__spec__ is None:
        return None
    spec = importlib.util.find_spec("torch")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder, "version.py")
        if path.is_file():
            return path
    return None


def _from_values(values: dict[str, object]) -> TorchBuild | None:
    version = values.get("__version__")
    if version is None:
        return None
    return TorchBuild(str(version), **{name: str(values[name]) for name in _PLATFORMS if values.get(name)})

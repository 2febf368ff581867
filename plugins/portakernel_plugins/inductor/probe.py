"""Whether Inductor finds what it compiles with; asked once per device, without loading torch."""

from __future__ import annotations

import importlib.util
import os
import shutil

from portakernel.authoring import Device, ReasonCode, Rejection, Usable
from portakernel_plugins.inductor.cache_folder import FOLDER


def ready(device: Device) -> Rejection | Usable:
    """Whether Inductor can compile for ``device``: what is missing and how to get it, or what has to be said of it."""
    kind = (device.torch_device or "").partition(":")[0]
    if kind in ("cuda", "xpu") and importlib.util.find_spec("triton") is None:
        text = f"Inductor compiles for {kind} with Triton, which is not installed; pip install triton"
        return Rejection(ReasonCode.MISSING_TOOLCHAIN, text)
    if kind == "mps":
        return Usable(FOLDER.notes)  # Metal's compiler is part of the system
    named = os.environ.get("CXX" if kind == "cpu" else "CC")
    tried = (named,) if named else ("g++", "c++", "clang++") if kind == "cpu" else ("gcc", "cc", "clang")
    if not any(command and shutil.which(command.split()[0]) for command in tried):
        text = f"Inductor needs a {'C++' if kind == 'cpu' else 'C'} compiler; tried {', '.join(map(str, tried))}"
        return Rejection(ReasonCode.MISSING_TOOLCHAIN, f"{text}; install g++ or set {'CXX' if kind == 'cpu' else 'CC'}")
    return Usable(FOLDER.notes)

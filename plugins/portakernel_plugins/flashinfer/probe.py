"""Whether FlashInfer can have its CUDA kernels: built ahead, or compiled here with nvcc and ninja."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

from portakernel.authoring import Device, ReasonCode, Rejection


def ready(device: Device) -> Rejection | None:
    """None where kernels that were built ahead are installed, or can be compiled; else what is missing."""
    del device  # it is NVIDIA's, which the manifest says
    return None if importlib.util.find_spec("flashinfer_jit_cache") else compiler()


def compiler() -> Rejection | None:
    """What FlashInfer's compilation lacks, looked for as FlashInfer does; None where nothing is."""
    named = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    at_home = os.environ.get("FLASHINFER_NVCC") or str(Path(named or "/usr/local/cuda", "bin", "nvcc"))
    tools = {"nvcc": shutil.which(at_home) or (None if named else shutil.which("nvcc")), "ninja": shutil.which("ninja")}
    missing = [tool for tool, found in tools.items() if found is None]
    if not missing:
        return None
    text = (
        f"FlashInfer compiles its CUDA kernels with nvcc and ninja, and finds no {' and no '.join(missing)}; install"
        " CUDA's toolkit (or set CUDA_HOME) and ninja, or install flashinfer-jit-cache"
    )
    return Rejection(ReasonCode.MISSING_TOOLCHAIN, text)

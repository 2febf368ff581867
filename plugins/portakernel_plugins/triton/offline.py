"""Compiling for a GPU that is not here: kernels called on meta tensors go through Triton's own JIT up to the launch.

Triton takes its target from the active driver, so that a process compiles for one target at a time.
"""
# pyright: reportPrivateUsage=false
# The active driver has no public setter that gives the old one back (triton 3.6 to 3.9).

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from triton import knobs, runtime
from triton.backends.compiler import GPUTarget

from portakernel.offline.compiled import Compiled
from portakernel.target import Target
from portakernel_plugins.triton.configurations import Processor, pretending

# Triton keeps compiled kernels per device number: each pretended device has one of its own, far from real ones.
_NUMBERS = count(1 << 20)
# How many programs run side by side shapes grids and no code: any number will do.
_MULTIPROCESSORS = 100


class _Driver:
    """The driver of a GPU that is not here: it has a target, and launches nothing."""

    def __init__(self, target: GPUTarget) -> None:
        self.target = target
        self.number = next(_NUMBERS)
        self.utils = SimpleNamespace(get_device_properties=lambda _: {"max_shared_mem": 1 << 30})

    def get_current_device(self) -> int:
        return self.number

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return self.target


def gpu_target(target: Target) -> GPUTarget:
    """Triton's name for a target."""
    if target.vendor == "nvidia":
        return GPUTarget("cuda", int(target.arch.removeprefix("sm_")), 32)
    return GPUTarget("hip", target.arch, 64 if target.arch.startswith("gfx9") else 32)


@contextmanager
def compiling(target: Target) -> Iterator[list[Compiled]]:
    """Within this context, launches on meta tensors compile for ``target``, and what they compiled is in the list."""
    active, gpu = runtime.driver._active, gpu_target(target)
    found: list[Compiled] = []
    runtime.driver._active = _Driver(gpu)
    try:
        with pretending(Processor(target.arch, _MULTIPROCESSORS, gpu.warp_size), _Recorder(target, found)):
            yield found
    finally:
        runtime.driver._active = active


@dataclass(frozen=True, slots=True)
class _Recorder:
    """Compiles what launches on meta tensors would run, and notes what came of it."""

    target: Target
    found: list[Compiled]

    def __call__(self, kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], meta: Mapping[str, Any]) -> None:
        begin = time.perf_counter()
        compiled = kernel.warmup(*args, grid=grid, enable_fp_fusion=True, **meta)
        seconds = time.perf_counter() - begin
        nvidia = self.target.vendor == "nvidia"
        registers, spilled = (_of_cubin if nvidia else _of_hsaco)(compiled.asm)
        assembly = compiled.asm["ptx" if nvidia else "amdgcn"]
        name = f"{kernel.__module__.rpartition('.')[2]}.{kernel.__name__}"
        shared = compiled.metadata.shared
        self.found.append(Compiled(name, str(self.target), registers, spilled, shared, seconds, assembly))


def _of_cubin(asm: Mapping[str, Any]) -> tuple[int, int]:
    """Registers of a thread and bytes of its stack, into which registers spill, as NVIDIA's tool reads them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(asm["cubin"])
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", str(path)]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return _number(r"REG:(\d+)", told), _number(r"STACK:(\d+)", told)


def _of_hsaco(asm: Mapping[str, Any]) -> tuple[int, int]:
    """Vector registers of a thread and bytes of scratch memory, from the assembly's own metadata."""
    text = asm["amdgcn"]
    return _number(r"\.vgpr_count:\s*(\d+)", text), _number(r"\.private_segment_fixed_size:\s*(\d+)", text)


def _number(pattern: str, text: str) -> int:
    return max((int(found) for found in re.findall(pattern, text)), default=0)

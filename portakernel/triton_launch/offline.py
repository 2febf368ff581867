"""Compiling for a GPU that is not here: kernels called on meta tensors go through Triton's own JIT up to the launch.

Triton takes its target from the active driver, so that a process compiles for one target at a time.
"""
# pyright: reportPrivateUsage=false
# The active driver has no public setter that gives the old one back (triton 3.6 to 3.9).

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from triton import knobs, runtime
from triton.backends import backends
from triton.backends.compiler import GPUTarget
from triton.runtime.cache import get_cache_manager

from portakernel.claims.capability import CannotRun
from portakernel.offline.compiled import Compiled
from portakernel.triton_launch import fingerprint
from portakernel.triton_launch.cache_folder import FOLDER
from portakernel.triton_launch.launch import hash_helpers, with_options
from portakernel.triton_launch.plain import taking_plain_launches
from portakernel.triton_launch.processor import Processor, pretending
from portakernel.words.target import Target

# Triton keeps compiled kernels per device number: each pretended device has one of its own, far from real ones.
_NUMBERS = count(1 << 20)
# Of a GPU that is not here. How many programs run side by side shapes grids, and the code of few kernels.
MULTIPROCESSORS = 100


class PretendedDriver:
    """The driver of a GPU that is not here: it has a target, and launches nothing."""

    def __init__(self, target: GPUTarget) -> None:
        self.target = target
        self.number = next(_NUMBERS)
        self.utils = SimpleNamespace(get_device_properties=lambda _: {"max_shared_mem": 1 << 30})

    def get_current_device(self) -> int:
        """Its number."""
        return self.number

    def get_current_stream(self, device: int) -> int:
        """The default stream."""
        return 0

    def get_current_target(self) -> GPUTarget:
        """What Triton compiles for."""
        return self.target


def gpu_target(target: Target) -> GPUTarget:
    """Triton's name for a target."""
    if target.vendor == "nvidia":
        return GPUTarget("cuda", int(target.arch.removeprefix("sm_")), 32)
    return GPUTarget("hip", target.arch, 64 if target.arch.startswith("gfx9") else 32)


@contextmanager
def compiling(
    target: Target, *, multiprocessors: int | None = None, dry: bool = False, emulating: bool = False
) -> Iterator[list[Compiled]]:
    """Within this context, launches on meta tensors compile for ``target``, and what they compiled is in the list.

    Launches by Triton itself (``kernel[grid](...)``) count too; of autotuned kernels the first configuration does.
    With ``multiprocessors``, those of a device of this machine, they fill Triton's cache with what launches on it look
    for, and nothing is read. With ``dry`` nothing is compiled, and the list holds what that cache lacks; this thread
    alone notices, and the device has to be current. With ``emulating`` nothing is compiled here: launches go to the
    emulator, which has Triton compile them.

    Raises:
        CannotRun: there is no directory for what Triton compiles.
    """
    if emulating:
        yield []
        return
    if (rejection := FOLDER.settle()) is not None:
        raise CannotRun(rejection)
    fingerprint.remember()
    gpu = gpu_target(target)
    records: list[Compiled] = []
    processor = Processor(target.arch, multiprocessors or MULTIPROCESSORS, gpu.warp_size)
    if dry:
        search = _Search(target, records)
        with pretending(processor, search), taking_plain_launches(search.plain):
            yield records
        return
    drivers: Any = runtime.driver
    active = drivers._active
    drivers._active = PretendedDriver(gpu)
    try:
        recorder = _Recorder(target, records, read=multiprocessors is None)
        with pretending(processor, recorder), taking_plain_launches(recorder.plain):
            yield records
    finally:
        drivers._active = active


@dataclass(frozen=True, slots=True)
class _Recorder:
    """Compiles what launches on meta tensors would run, and notes what came of it."""

    target: Target
    records: list[Compiled]
    read: bool

    def __call__(self, kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], meta: Mapping[str, Any]) -> None:
        self.plain(kernel, grid, args, with_options(meta))

    def plain(self, kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], meta: Mapping[str, Any]) -> None:
        """Takes a launch by Triton itself, which has no options but its own."""
        hash_helpers(kernel)
        begin = time.perf_counter()
        compiled = kernel.warmup(*args, grid=grid, **meta)
        record = Compiled(_name(kernel), str(self.target), seconds=time.perf_counter() - begin, key=compiled.hash)
        self.records.append(self._read(record, compiled) if self.read else record)
        if not self.read:
            _build_launcher(self.target, compiled)

    def _read(self, record: Compiled, compiled: Any) -> Compiled:
        nvidia = self.target.vendor == "nvidia"
        registers, spilled = (_of_cubin if nvidia else _of_hsaco)(compiled.asm)
        return replace(
            record,
            registers=registers,
            spilled_bytes=spilled,
            shared_bytes=compiled.metadata.shared,
            assembly=compiled.asm["ptx" if nvidia else "amdgcn"],
        )


@dataclass(frozen=True, slots=True)
class _Search:
    """Asks Triton for the cache key of what launches on meta tensors would run, and notes those that lead nowhere.

    Triton makes a launch's key on the way to compiling for it, and compiles by whoever is the context's asynchronous
    mode: this is one that compiles nothing. A copy of the kernel is asked, whose own launches must not find what came
    of that.
    """

    target: Target
    records: list[Compiled]

    def __call__(self, kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], meta: Mapping[str, Any]) -> None:
        self.plain(kernel, grid, args, with_options(meta))

    def plain(self, kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], meta: Mapping[str, Any]) -> None:
        """Takes a launch by Triton itself, which has no options but its own."""
        from triton.runtime._async_compile import active_mode

        hash_helpers(kernel)
        asked = copy(kernel)
        vars(asked).pop("_do_compile", None)  # which announces compilations
        asked.device_caches, asked.pre_run_hooks = defaultdict(asked.create_binder), []
        keys = _KeyCollector([])
        token = active_mode.set(keys)  # pyright: ignore[reportArgumentType] - of it, `submit` alone is called
        try:
            asked.warmup(*args, grid=grid, **meta)
        finally:
            active_mode.reset(token)
        for key in keys.seen:
            name = hashlib.sha256(key.encode()).hexdigest()
            # as `triton.compile` asks
            if not get_cache_manager(name).get_group(f"{kernel.__name__[:150]}.json"):
                self.records.append(Compiled(_name(kernel), str(self.target), key=name))


@dataclass(frozen=True, slots=True)
class _KeyCollector:
    """A stand-in for Triton's asynchronous compilation, which takes the keys alone."""

    seen: list[str]

    def submit(self, key: str, *_: Any) -> None:
        self.seen.append(key)


def _build_launcher(target: Target, compiled: Any) -> None:
    """Brings the kernel's launcher into the cache too, in versions that compile one for each signature (3.6)."""
    name, launcher = ("nvidia", "CudaLauncher") if target.vendor == "nvidia" else ("amd", "HIPLauncher")
    module: Any = sys.modules[backends[name].driver.__module__]
    if hasattr(module, "make_launcher"):
        # without the vendor's driver library there is none to build, nor any launch that would look for it
        with suppress(AssertionError, OSError, RuntimeError, subprocess.CalledProcessError):
            getattr(module, launcher)(compiled.src, compiled.metadata)


def _name(kernel: Any) -> str:
    return f"{kernel.__module__.rpartition('.')[2]}.{kernel.__name__}"


def _of_cubin(asm: Mapping[str, Any]) -> tuple[int, int]:
    """Registers of a thread and bytes of its stack, into which registers spill, as NVIDIA's tool reads them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(asm["cubin"])
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", str(path)]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return _number(r"REG:(\d+)", usage), _number(r"STACK:(\d+)", usage)


def _of_hsaco(asm: Mapping[str, Any]) -> tuple[int, int]:
    """Vector registers of a thread and bytes of scratch memory, from the assembly's own metadata."""
    text = asm["amdgcn"]
    return _number(r"\.vgpr_count:\s*(\d+)", text), _number(r"\.private_segment_fixed_size:\s*(\d+)", text)


def _number(pattern: str, text: str) -> int:
    return max((int(digits) for digits in re.findall(pattern, text)), default=0)

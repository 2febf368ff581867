"""How kernels are launched: ``configurations.yaml``, looked up by kernel, device and size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
import triton
import yaml

PATH = Path(__file__).with_name("configurations.yaml")

# The most threads that CUDA and HIP admit in one program.
_MAX_THREADS = 1024


@dataclass(frozen=True, slots=True)
class Configuration:
    """How one kernel is launched for sizes up to a bucket's end.

    ``elements`` are the fewest that a program takes, ``rows`` of ``columns`` (the size's power of two) each;
    ``programs`` as many as run side by side, for kernels whose programs stay and take row after row. ``options`` are
    those of the compiler: ``num_warps``, and what the entry says of ``num_stages`` or ``waves_per_eu``.
    """

    columns: int
    rows: int
    elements: int
    programs: int
    options: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def warps(self) -> int:
        """Warps of a program."""
        return self.options["num_warps"]


@dataclass(frozen=True, slots=True)
class Processor:
    """What a launch's shape depends on: the arch, how many programs run side by side, and the threads of a warp."""

    arch: str
    multiprocessors: int
    warp_size: int


@cache
def processor(device: torch.device) -> Processor:
    """The processor behind ``device``; for a CPU, where kernels are interpreted, a small one."""
    if device.type != "cuda":
        return Processor("interpreter", multiprocessors=1, warp_size=32)
    properties = torch.cuda.get_device_properties(device)
    arch = getattr(properties, "gcnArchName", None) if torch.version.hip else f"sm_{properties.major}{properties.minor}"
    return Processor(str(arch).partition(":")[0], properties.multi_processor_count, properties.warp_size)


@cache
def entries() -> Mapping[str, list[dict[str, Any]]]:
    """What the file says, by kernel."""
    found: dict[str, list[dict[str, Any]]] = yaml.safe_load(PATH.read_text(encoding="utf-8"))
    return found


def configuration(kernel: str, device: torch.device, size: int) -> Configuration:
    """The entry of ``kernel`` for ``size`` on ``device``; by nothing else, so that no row's bits depend on others."""
    return configured(kernel, processor(device), triton.next_power_of_2(max(size, 1)))


@cache
def configured(kernel: str, processor: Processor, columns: int) -> Configuration:
    """The entry of ``kernel`` for ``columns``, a power of two, on a processor that need not be here."""
    here = [entry for entry in entries()[kernel] if processor.arch.startswith(tuple(entry.get("on", ("",))))]
    entry = next((entry for entry in here if columns <= entry.get("up_to", columns)), here[-1])
    warps = min(entry["warps"], _MAX_THREADS // processor.warp_size)
    elements = max(entry.get("elements", 1), 1)
    options = {"num_warps": warps, **entry.get("options", {})}
    programs = processor.multiprocessors * max(1, entry.get("resident_warps", warps) // warps)
    return Configuration(columns, max(1, elements // columns), elements, programs, options)

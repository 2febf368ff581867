"""How kernels are launched: ``configurations.yaml``, looked up by kernel, device and size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml

from portakernel.authoring.triton import Processor, per_device, processor

PATH = Path(__file__).with_name("configurations.yaml")

# Of rows that begin where as much as possible can be read at once.
WHOLE_UNIT = 16
# The most threads that CUDA and HIP admit in one program.
_MAX_THREADS = 1024


@dataclass(frozen=True, slots=True)
class Configuration:
    """How one kernel is launched for sizes up to ``size``, a bucket's end.

    ``elements`` are the fewest that a program takes, ``rows`` of ``columns`` (the size's power of two) each; ``blocks``
    of ``elements`` are the most that a program keeps of a row, for kernels that read what does not fit again;
    ``programs`` as many as run side by side, for kernels whose programs stay and take row after row. ``options`` are
    those of the compiler: ``num_warps``, and what the entry says of ``num_stages`` or ``waves_per_eu``.
    """

    size: int
    columns: int
    rows: int
    elements: int
    programs: int
    blocks: int = 1
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def warps(self) -> int:
        """Warps of a program."""
        found: int = self.options["num_warps"]
        return found


@cache
def entries() -> Mapping[str, list[dict[str, Any]]]:
    """What the file says, by kernel; ``as: KERNEL`` stands for all of that one's, ``always`` is of every entry."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a first call waits for it, and the other takes 50 ms more
    found: dict[str, list[dict[str, Any]]] = yaml.load(PATH.read_text(encoding="utf-8"), Loader=loader)
    return {
        kernel: [entry for listed in own for entry in (found[listed["as"]] if "as" in listed else [listed])]
        for kernel, own in found.items()
    }


@per_device
def configuration(
    kernel: str, device: torch.device, size: int, element_bytes: int = 1, unit: int = WHOLE_UNIT
) -> Configuration:
    """The entry of ``kernel`` for ``size`` on ``device``, and for elements' width and rows' unit where entries differ.

    ``unit`` is the power of two, 16 at most, that divides rows' length. By nothing else, so that no row's bits depend
    on others.
    """
    return configured(kernel, processor(device), bucket(size), element_bytes, unit)


def bucket(size: int) -> int:
    """``size`` rounded up to a power of two, or to one of three steps below it: 5120, 6144, 7168, 8192."""
    if size <= 4:
        return max(size, 1)
    bits = (size - 1).bit_length() - 3
    return -(-size >> bits) << bits


@cache
def configured(
    kernel: str, processor: Processor, size: int, element_bytes: int = 1, unit: int = WHOLE_UNIT
) -> Configuration:
    """The entry of ``kernel`` for ``size``, a ``bucket``, on a processor that need not be here."""
    here = [
        entry
        for entry in entries()[kernel]
        if processor.arch.startswith(tuple(entry.get("archs", ("",))))
        and element_bytes <= entry.get("element_bytes", element_bytes)
        and unit <= entry.get("unit", unit)
    ]
    always = {name: value for entry in here for name, value in entry.get("always", {}).items()}
    here = [entry for entry in here if "always" not in entry]
    entry = next((entry for entry in here if size <= entry.get("up_to", size)), here[-1])
    columns = 1 << (size - 1).bit_length()
    warps = min(entry["warps"], _MAX_THREADS // processor.warp_size)
    elements = max(entry.get("elements", 1), 1)
    options = {"num_warps": warps, **always, **entry.get("options", {})}
    programs = processor.multiprocessors * max(1, entry.get("resident_warps", warps) // warps)
    rows = max(1, elements // columns)
    return Configuration(size, columns, rows, elements, programs, entry.get("blocks", 1), options)

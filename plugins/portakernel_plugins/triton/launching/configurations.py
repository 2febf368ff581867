"""How kernels are launched: ``configurations.yaml``, looked up by kernel, device and size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, wraps
from pathlib import Path
from typing import Any, TypeVar

import torch
import yaml

_Made = TypeVar("_Made")

PATH = Path(__file__).with_name("configurations.yaml")

# What is kept by size starts anew beyond this many: sizes are as they come.
_MOST_KEPT = 4096

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


@dataclass(frozen=True, slots=True)
class Processor:
    """What a launch's shape depends on: the arch, how many programs run side by side, and the threads of a warp."""

    arch: str
    multiprocessors: int
    warp_size: int


def processor(device: torch.device) -> Processor:
    """The processor behind ``device``: a small one where kernels are interpreted, or the one that is pretended."""
    if device.type != "cuda":
        pretence = _PRETENCE.get()
        return pretence[0] if pretence is not None else Processor("interpreter", multiprocessors=1, warp_size=32)
    return _found(device)


@cache
def _found(device: torch.device) -> Processor:
    properties = torch.cuda.get_device_properties(device)
    arch = getattr(properties, "gcnArchName", None) if torch.version.hip else f"sm_{properties.major}{properties.minor}"
    return Processor(str(arch).partition(":")[0], properties.multi_processor_count, properties.warp_size)


# What stands in for a GPU, and what takes the launches that it would get.
_PRETENCE: ContextVar[tuple[Processor, Callable[..., None]] | None] = ContextVar("triton_pretence", default=None)


@contextmanager
def pretending(processor: Processor, launched: Callable[..., None]) -> Iterator[None]:
    """Within this context, meta tensors count as that processor's, and launches on them go to ``launched``."""
    token = _PRETENCE.set((processor, launched))
    try:
        yield
    finally:
        _PRETENCE.reset(token)


def pretended_launch() -> Callable[..., None] | None:
    """What takes launches on meta tensors now."""
    pretence = _PRETENCE.get()
    return pretence[1] if pretence is not None else None


@cache
def entries() -> Mapping[str, list[dict[str, Any]]]:
    """What the file says, by kernel."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a first call waits for it, and the other takes 50 ms more
    found: dict[str, list[dict[str, Any]]] = yaml.load(PATH.read_text(encoding="utf-8"), Loader=loader)
    return found


def per_device(make: Callable[..., _Made]) -> Callable[..., _Made]:
    """``make(kernel, device, size, ...)``, by position, which keeps what it made for GPUs that are here.

    Elsewhere a processor may be pretended.
    """
    kept: dict[tuple[Any, ...], _Made] = {}

    @wraps(make)
    def made(*key: Any) -> _Made:
        found = kept.get(key)
        if found is None:
            found = make(*key)
            if key[1].type == "cuda":
                if len(kept) >= _MOST_KEPT:
                    kept.clear()
                kept[key] = found
        return found

    return made


@per_device
def configuration(kernel: str, device: torch.device, size: int, element_bytes: int = 1) -> Configuration:
    """The entry of ``kernel`` for ``size`` on ``device``, and for the width of elements where entries differ in it.

    By nothing else, so that no row's bits depend on others.
    """
    return configured(kernel, processor(device), bucket(size), element_bytes)


def bucket(size: int) -> int:
    """``size`` rounded up to a power of two, or to one of three steps below it: 5120, 6144, 7168, 8192."""
    if size <= 4:
        return max(size, 1)
    bits = (size - 1).bit_length() - 3
    return -(-size >> bits) << bits


@cache
def configured(kernel: str, processor: Processor, size: int, element_bytes: int = 1) -> Configuration:
    """The entry of ``kernel`` for ``size``, a ``bucket``, on a processor that need not be here."""
    here = [
        entry
        for entry in entries()[kernel]
        if processor.arch.startswith(tuple(entry.get("archs", ("",))))
        and element_bytes <= entry.get("element_bytes", element_bytes)
    ]
    entry = next((entry for entry in here if size <= entry.get("up_to", size)), here[-1])
    columns = 1 << (size - 1).bit_length()
    warps = min(entry["warps"], _MAX_THREADS // processor.warp_size)
    elements = max(entry.get("elements", 1), 1)
    options = {"num_warps": warps, **entry.get("options", {})}
    programs = processor.multiprocessors * max(1, entry.get("resident_warps", warps) // warps)
    rows = max(1, elements // columns)
    return Configuration(size, columns, rows, elements, programs, entry.get("blocks", 1), options)

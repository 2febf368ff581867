"""The processor that launches are shaped for: that of a device, or one that is pretended while kernels are compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any, TypeVar

import torch

_Value = TypeVar("_Value")

# What is kept by size starts anew beyond this many: sizes are as they come.
_MOST_KEPT = 4096


@dataclass(frozen=True, slots=True)
class Processor:
    """The facts a launch's shape depends on: the arch, how many programs run side by side, the threads of a warp."""

    arch: str
    multiprocessors: int
    warp_size: int


def processor(device: torch.device) -> Processor:
    """The processor behind ``device``: a small one where kernels are interpreted, or the one that is pretended."""
    if device.type != "cuda":
        pretence = _PRETENCE.get()
        return pretence[0] if pretence is not None else Processor("interpreter", multiprocessors=1, warp_size=32)
    return _processor_here(device)


@cache
def _processor_here(device: torch.device) -> Processor:
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
    """The function that takes launches on meta tensors now, if there is one."""
    pretence = _PRETENCE.get()
    return pretence[1] if pretence is not None else None


def per_device(make: Callable[..., _Value]) -> Callable[..., _Value]:
    """``make(kernel, device, size, ...)``, by position, which keeps what it made for GPUs that are here.

    Elsewhere a processor may be pretended.
    """
    kept: dict[tuple[Any, ...], _Value] = {}

    @wraps(make)
    def made(*key: Any) -> _Value:
        value = kept.get(key)
        if value is None:
            value = make(*key)
            if key[1].type == "cuda":
                if len(kept) >= _MOST_KEPT:
                    kept.clear()
                kept[key] = value
        return value

    return made

"""The torch device behind the device that DLPack names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from portakernel.errors import ArgumentValueError
from portakernel.registry.registry import Registry

# dlpack.h, DLDeviceType: what people call it, and torch's device where torch has one.
_DEVICES = {
    1: ("kDLCPU", "cpu"),
    2: ("kDLCUDA", "cuda"),
    3: ("kDLCUDAHost", ""),
    4: ("kDLOpenCL", ""),
    7: ("kDLVulkan", ""),
    8: ("kDLMetal", "mps"),
    9: ("kDLVPI", ""),
    10: ("kDLROCM", "cuda"),
    11: ("kDLROCMHost", ""),
    12: ("kDLExtDev", ""),
    13: ("kDLCUDAManaged", ""),
    14: ("kDLOneAPI", "xpu"),
    15: ("kDLWebGPU", ""),
    16: ("kDLHexagon", ""),
    17: ("kDLMAIA", ""),
    18: ("kDLTrn", ""),
}


def torch_device(op: str, name: str, array: Any, registry: Registry) -> torch.device:
    """The torch device that an array lies on.

    Raises:
        ArgumentValueError: it is one that no backend here serves, or has no name in DLPack.
    """
    try:
        kind, index = array.__dlpack_device__()
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        text = f"{op}: {name} is on a device that DLPack has no name for ({error})"
        raise ArgumentValueError(f"{text}; {_instead(registry)}") from error
    word, of_torch = _DEVICES.get(int(kind), (f"DLDeviceType {int(kind)}", ""))
    if of_torch == "cpu":
        return torch.device("cpu")
    if not of_torch or not _serves(registry, of_torch):
        text = f"{op}: {name} is on {word}:{index}, a device that no backend here serves"
        raise ArgumentValueError(f"{text}; {_instead(registry)}")
    return torch.device(of_torch, int(index))


def _serves(registry: Registry, of_torch: str) -> bool:
    module = getattr(torch, of_torch, None)
    return bool(registry.devices_on(of_torch)) and module is not None and bool(module.is_available())


def _instead(registry: Registry) -> str:
    here: Sequence[str] = sorted({device.torch_device for device in registry.devices if device.torch_device} | {"cpu"})
    return f"move it to one of {', '.join(here)}, with its own library's means"

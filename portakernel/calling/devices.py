"""The registry's device behind a torch device."""

from __future__ import annotations

import torch

from portakernel.registry.registry import Registry
from portakernel.tensors.torch_build import installed
from portakernel.tensors.torch_internals import cuda_is_initialised
from portakernel.words.arch import normalise
from portakernel.words.target import Device, Target

# What torch names by the way to program it belongs to one vendor.
_VENDORS = {"xpu": "intel", "mps": "apple"}


def find_device(registry: Registry, device: torch.device) -> Device:
    """The registry's device behind a torch device, by index; no vendor but the device's own is probed.

    A GPU whose context exists is described by torch, which costs no probe: NVML takes its time, and may hang. A device
    that no backend found is described from what torch knows of it.
    """
    if device.type == "cuda" and cuda_is_initialised():
        return _from_torch(device)
    name = _name(device)
    same = next((known for known in registry.devices_on(device.type) if known.torch_device == name), None)
    return _from_torch(device) if same is None else same


def _is_rocm() -> bool:
    build = installed()
    return build is not None and build.hip is not None


def _from_torch(device: torch.device) -> Device:
    # A real tensor means that the context exists; a fake one, while tracing, must not make one.
    if device.type == "cuda" and cuda_is_initialised():
        index = device.index or 0
        properties = torch.cuda.get_device_properties(index)
        if _is_rocm():
            target = Target("amd", normalise(properties.gcnArchName))
        else:
            target = Target("nvidia", f"sm_{properties.major}{properties.minor}")
        # On ROCm torch shows the bytes of the id in a form of its own, so that there the index has to do.
        uuid = f"GPU-{properties.uuid}" if target.vendor == "nvidia" else None
        return Device(target, properties.name, f"cuda:{index}", uuid, properties.total_memory)
    name = _name(device)
    return Device(Target(_VENDORS.get(device.type, device.type), "unknown"), name, name)


def _name(device: torch.device) -> str:
    """A tensor's device always has its index, but for the CPU's."""
    return f"{device}:0" if str(device) in ("cuda", *_VENDORS) else str(device)
